"""A shard packed in place: nothing that is read changes, no gap stays, and whatever goes wrong leaves the
shard as it was."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.levels import level_problems
from tests.harness.writing import how
from tests.properties.acquisitions import SMALL, acquisitions, bits, expected, pixels, places
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.disk import failpoints, working_file
from shardwright.read.inspect_shards import inspect_shard, inspect_shards
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pack_shard import pack_shard
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import Throttle, watch_grants
from shardwright.shard.chunk_order import ORDERS
from shardwright.shard.index import EMPTY, LITTLE_ENDIAN_CRC32C

from .stores import leftovers, shard_files, spec, task

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")


def write(acquired, path):
    counts, sent = places(acquired.spec), []
    with sw.create(
        path, acquired.spec, threads=acquired.threads, **how(io=acquired.io, on_duplicate="count")
    ) as writer:
        for arrival in acquired.arrivals:
            sent.append(pixels(acquired.spec, arrival.content, arrival.seed))
            writer.append(
                sent[-1],
                index=tuple(int(n) for n in np.unravel_index(arrival.position, counts)) if counts else (),
            )
    return expected(acquired, sent).arrays[0]


# The quick suite has a fixed share of two busy cores; any other profile decides by itself how long to search.
examples = settings(max_examples=6) if settings.get_current_profile_name() == "quick" else settings()


@examples
@given(
    acquisitions(SMALL).filter(lambda acquired: acquired.arrivals),
    st.sampled_from(ORDERS),
    st.sampled_from([4096, 8192, 1 << 20]),
)
def test_any_layout_reads_the_same_and_has_no_gap(disk, acquired, order, piece_bytes):
    """Written by the real writer; pieces small enough that chunks and indexes span several."""
    with tempfile.TemporaryDirectory(dir=disk) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(working_file, "PIECE_BYTES", piece_bytes)
        patch.delattr(working_file._of_this_thread, "buffers", raising=False)
        model = write(acquired, Path(folder) / "a.zarr")
        store = open_store(Path(folder) / "a.zarr")
        for array in store.arrays:  # the image, and its levels
            for _, shard in array.shard_files():
                assert pack_shard(task(array, *shard, order=order), Throttle())["ok"]
                assert pack_shard(task(array, *shard, order=order), Throttle())["skipped"]
            for report in inspect_shards(store, array):
                assert (report.gap_bytes, report.problems) == (0, [])
                assert report.file_bytes == report.encoded_bytes + report.index_bytes
        for name, read in READERS.items():
            assert np.array_equal(bits(read(store.arrays[0].path)), bits(model)), name
        assert level_problems(store.root) == []
        assert verify_store(store.root).ok
        assert not leftovers(store.root)
    working_file._of_this_thread.__dict__.pop("buffers", None)


def test_what_it_says_it_did(store_of):
    array = store_of()
    before = inspect_shard(array, (0, 0, 0))
    result = run_task(task(array, 0, 0, 0, order="morton"))
    after = inspect_shard(array, (0, 0, 0))
    assert (result["ok"], result["skipped"], result["chunks"]) == (True, False, before.chunks_present)
    assert (
        result["bytes_written"]
        == result["bytes_read"]
        == after.file_bytes
        == before.encoded_bytes + before.index_bytes
    )
    assert result["gain_bytes"] == before.file_bytes - after.file_bytes == before.gap_bytes
    again = run_task(task(array, 0, 0, 0, order="morton"))
    assert (again["skipped"], again["bytes_written"], again["gain_bytes"]) == (True, 0, 0)
    assert not run_task(task(array, 0, 0, 0, order="column_major"))["skipped"], "packed, but in another order"


def test_who_has_the_old_file_open_keeps_reading_old_bytes(store_of):
    array = store_of()
    path = array.path / "c/0/0/0"
    with path.open("rb") as old:
        before = path.read_bytes()
        assert run_task(task(array, 0, 0, 0))["ok"]
        assert old.read() == before != path.read_bytes()


def test_mode_and_owner_stay(store_of):
    array = store_of()
    path = array.path / "c/0/0/0"
    path.chmod(0o440)
    if os.geteuid() == 0:
        os.chown(path, 1234, 5678)
    before = path.stat()
    assert run_task(task(array, 0, 0, 0))["ok"]
    after = path.stat()
    assert before.st_ino != after.st_ino
    assert (before.st_mode, before.st_uid, before.st_gid) == (after.st_mode, after.st_uid, after.st_gid)


def test_extended_attributes_stay(store_of):
    array = store_of()
    path = array.path / "c/0/0/0"
    try:
        os.setxattr(path, "user.sample", b"liver")
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("NOT TESTED: this filesystem has no extended attributes")
    assert run_task(task(array, 0, 0, 0, order="morton"))["skipped"] is False
    assert os.getxattr(path, "user.sample") == b"liver"


def flip(path: Path, offset: int) -> None:
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0x10]), offset)


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_a_flipped_bit_in_the_new_file_is_caught_and_named(store_of, at_point, index_location):
    array = store_of(spec(index_location=index_location))
    before = shard_files(array)
    packing_task = task(array, 0, 0, 0, order="morton")
    size = inspect_shard(array, (0, 0, 0)).encoded_bytes + array.index_bytes
    for offset in [0, 1, *np.linspace(2, size - 2, 30, dtype=int).tolist(), size - 1]:

        def spoil(offset=offset):
            (working,) = leftovers(array.path)
            flip(working, offset)

        at_point("compact.before_read_back", spoil)
        result = run_task(packing_task)
        assert (result["ok"], result["error"]["code"]) == (False, "storage")
        data_start, data_end = (
            (array.index_bytes, size) if index_location == "start" else (0, size - array.index_bytes)
        )
        assert ("chunk " if data_start <= offset < data_end else "the index of") in result["error"]["message"]
        assert "does not read back" in result["error"]["message"]
        assert shard_files(array) == before
        assert not leftovers(array.path)


def test_the_chunk_that_is_named_is_the_one(store_of, at_point):
    array = store_of(spec(None))  # every chunk has 16 * 16 * 2 * 2 bytes
    at_point("compact.before_read_back", lambda: flip(leftovers(array.path)[0], 2 * 1024 + 5))
    # present in order: 0/0/0, 0/0/1, then 0/1/1: the lower left is empty
    assert "chunk 0/1/1 of" in run_task(task(array, 0, 0, 0))["error"]["message"]


@pytest.mark.parametrize("point", ["compact.before_write", "compact.before_sync", "compact.before_read_back"])
def test_a_source_that_changes_under_the_copy_stays_and_the_chunk_is_named(store_of, at_point, point):
    array = store_of()
    path = array.path / "c/0/0/0"
    reports = {report.chunk: report for report in inspect_shard(array, (0, 0, 0), chunks=True).chunk_reports}
    place = reports[3].offset + reports[3].nbytes // 2
    at_point(point, failpoints.at_time(1, lambda: flip(path, place)))
    result = run_task(task(array, 0, 0, 0))
    assert not result["ok"]
    assert "was changed while it was packed" in result["error"]["message"]
    assert "chunk 0/1/1" in result["error"]["got"]
    flip(path, place)
    assert run_task(task(array, 0, 0, 0))["ok"]


def test_a_shard_that_another_took_the_place_of_stays(store_of, at_point):
    array = store_of()
    path = array.path / "c/0/0/0"

    def replace():
        new = path.with_name("new")
        new.write_bytes(path.read_bytes())
        new.replace(path)

    at_point("compact.before_sync", replace)
    assert "was changed" in run_task(task(array, 0, 0, 0))["error"]["message"]


def test_a_bad_index_leaves_the_shard(store_of):
    array = store_of()
    path = array.path / "c/0/0/0"
    flip(path, path.stat().st_size - 10)
    before = shard_files(array)
    assert "index fails its crc32c" in run_task(task(array, 0, 0, 0))["error"]["message"]
    assert shard_files(array) == before


CODECS = [sw.Blosc(), sw.Zstd(), sw.Gzip(), None]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_with_an_inner_checksum_any_flipped_bit_of_a_chunk_is_seen_before_it_is_copied(store_of, codec):
    array = store_of(spec(codec, chunk_checksum=True))
    path = array.path / "c/0/0/0"
    for report in inspect_shard(array, (0, 0, 0), chunks=True).chunk_reports:
        name = "/".join(map(str, report.coordinates))
        for offset in (0, report.nbytes // 2, report.nbytes - 1):
            flip(path, report.offset + offset)
            before = shard_files(array)
            result = run_task(task(array, 0, 0, 0))
            assert result["error"]["message"].startswith(f"chunk {name} of {path}"), result
            assert shard_files(array) == before
            flip(path, report.offset + offset)
    assert run_task(task(array, 0, 0, 0))["ok"]


@pytest.mark.parametrize("codec", CODECS[:3], ids=str)
def test_without_one_a_chunk_that_does_not_begin_as_its_codec_does_is_seen(store_of, codec):
    array = store_of(spec(codec))
    report = inspect_shard(array, (0, 0, 0), chunks=True).chunk_reports[2]
    flip(array.path / "c/0/0/0", report.offset)
    result = run_task(task(array, 0, 0, 0))
    assert result["error"]["message"].startswith(f"chunk {'/'.join(map(str, report.coordinates))} of ")
    assert not leftovers(array.path)


def test_an_uncompressed_chunk_of_another_length_is_seen(store_of):
    from shardwright.shard.sealed_shard import SealedShard

    array = store_of(spec(None))
    path = array.path / "c/0/0/0"
    with SealedShard.open(path, array.index) as file:
        entries, offset = file.entries.copy(), file.index_offset
    live = np.flatnonzero(entries["offset"] != EMPTY)
    entries["nbytes"][live[1]] -= 2
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(LITTLE_ENDIAN_CRC32C.encode(entries))
    assert "uncompressed chunk has the wrong length" in run_task(task(array, 0, 0, 0))["error"]["message"]


POINTS = ["create", "preallocate", "write", "index", "truncate", "sync", "read_back", "rename"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_any_point_leaves_the_shard_and_nothing_else(store_of, at_point, point, number):
    array = store_of()
    before = shard_files(array)

    def fail():
        raise OSError(number, os.strerror(number))

    at_point(f"compact.before_{point}", fail)
    result = run_task(task(array, 0, 0, 0))
    assert (result["ok"], result["error"]["code"]) == (
        False,
        "storage" if number == errno.EIO else "storage_full",
    )
    assert shard_files(array) == before
    assert not leftovers(array.path)
    failpoints.set_hook(f"compact.before_{point}", None)
    assert run_task(task(array, 0, 0, 0))["ok"]


def test_these_are_all_the_points(store_of, at_point):
    array, seen = store_of(), []
    failpoints.watch_all(seen.append)
    assert run_task(task(array, 0, 0, 0))["ok"]
    assert {name for name in seen if name.startswith("compact.")} == {
        f"compact.before_{point}" for point in POINTS
    }


def test_the_bytes_are_durable_before_the_name_and_the_name_before_success(store_of, at_point):
    array, seen = store_of(), []
    failpoints.watch_all(seen.append)
    assert run_task(task(array, 0, 0, 0))["ok"]
    order = [
        "compact.before_write",
        "compact.before_index",
        "compact.before_sync",
        "compact.before_read_back",
        "compact.before_rename",
    ]
    assert [name for name in dict.fromkeys(seen) if name in order] == order
    assert seen[-1] == "directory.before_sync"


def test_a_filesystem_without_o_direct(store_of, monkeypatch):
    direct, cached = store_of(), store_of()
    assert run_task(task(direct, 0, 0, 0))["ok"]
    monkeypatch.setattr(os, "O_DIRECT", 0)
    assert run_task(task(cached, 0, 0, 0))["ok"]
    assert shard_files(direct)["c/0/0/0"] == shard_files(cached)["c/0/0/0"]


def test_a_filesystem_that_takes_the_flag_and_refuses_the_write(store_of, monkeypatch):
    array, refused, pwrite = store_of(), [], os.pwrite

    def refuse_direct(descriptor, data, offset):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse_direct)
    assert run_task(task(array, 0, 0, 0))["ok"]
    assert refused == [0]
    assert verify_store(array.path).ok


@pytest.mark.parametrize("place", ["second/0.ome.zarr/0/c/0/0/0", "object-4711"])
def test_a_spilled_shard_is_read_and_never_changed(store_of, tmp_path, place):
    array = store_of()
    link, elsewhere = array.path / "c/0/0/0", tmp_path / place
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert (
        "a link to a shard on another disk, which is not changed"
        in run_task(task(array, 0, 0, 0))["error"]["message"]
    )
    assert elsewhere.read_bytes() == before
    assert link.readlink() == elsewhere
    assert {path.name for path in elsewhere.parent.iterdir()} >= {elsewhere.name}
    assert not list(tmp_path.rglob(".compact")), "no folder beside it"


@pytest.mark.parametrize("shard", [(9, 0, 0), (0, 0), (-1, 0, 0)])
def test_a_shard_outside_the_array_is_refused(store_of, shard):
    assert "has no shard" in run_task(task(store_of(), *shard))["error"]["message"]


@pytest.mark.parametrize("recompress", [None, {"cname": "zstd", "clevel": 5}])
def test_its_rate_is_of_all_that_is_read_and_written_and_read_back(store_of, recompress):
    array, now, granted = store_of(), [0.0], []
    throttle = Throttle(
        1000.0, (), False, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    watch_grants(granted.append)
    result = pack_shard(task(array, 0, 0, 0, recompress=recompress), throttle)
    watch_grants(None)
    read_back = inspect_shard(array, (0, 0, 0)).file_bytes
    assert sum(granted) == result["bytes_read"] + result["bytes_written"] + read_back - 2 * array.index_bytes
    assert now[0] >= (sum(granted) - granted[-1]) / 1000.0 - 0.2
