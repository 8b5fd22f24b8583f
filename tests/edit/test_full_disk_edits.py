"""Edits on a disk that is really full, or nearly: the shard keeps its old chunks, or has the new ones."""

import contextlib
import os
import shutil

import pytest
from tests.disk.test_full_disk import small_disk  # noqa: F401  (a fixture)

from shardwright.model.errors import StorageFullError
from shardwright.rework.edit.edit_recovery import recover_edits
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.shard.edit_files import interrupted_edits

from .arrays import encoded, make_array
from .test_shard_edit import assert_sound

EDITS = {
    "in_place": {0: 29_000, 3: 1000},
    "gap": {2: 15_000},
    "append": {0: 31_000, 4: 20_000},
    "rewrite": {0: 31_000, 3: None},
}


def leave_free(disk, nbytes):
    """Fill the disk, then give so many bytes of it back."""
    with (disk / "fill").open("wb") as file:
        size = 0
        for step in (1 << 20, 1 << 10):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
        file.truncate(size - nbytes)
    os.sync()


@pytest.mark.parametrize("strategy", EDITS)
def test_an_edit_on_a_nearly_full_disk_is_whole_or_not_done(small_disk, strategy):  # noqa: F811
    results = set()
    for free_bytes in range(0, 192 << 10, 16 << 10):
        array = make_array(small_disk / f"{strategy}-{free_bytes}", side=180, recorded=True)
        old = {n: encoded(array, n + 1, 30_000) for n in (0, 1, 3, 4, 5)}
        edit_shard(array, (0, 0), old)
        edit_shard(array, (0, 0), {1: None, 5: encoded(array, 6, 29_990)}, strategy="in_place")
        old = {**old, 5: encoded(array, 6, 29_990)}
        del old[1]
        chunks = {n: k if k is None else encoded(array, n + 50, k) for n, k in EDITS[strategy].items()}
        leave_free(small_disk, free_bytes)
        try:
            edit_shard(array, (0, 0), chunks, strategy=strategy)
            expected = {n: data for n, data in {**old, **chunks}.items() if data is not None}
        except StorageFullError:
            expected = old
        assert not interrupted_edits(array.path)
        assert recover_edits(array.path) == []
        assert_sound(array, expected, 0, 0)
        results.add(expected == old)
        (small_disk / "fill").unlink()
        shutil.rmtree(array.path)
    assert results == {True, False}
