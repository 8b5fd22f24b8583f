"""One shard file from preallocation to its final name: the bytes, the blocks, the order of steps, and each
way to fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from shardwright.disk.choose_io import resolve_io
from shardwright.disk.files import DurableFolders
from shardwright.model.errors import OutputExistsError, StorageError, StorageFullError
from shardwright.shard.index import EMPTY, LITTLE_ENDIAN_CRC32C
from shardwright.shard.layout import PAGE_BYTES, ShardLayout
from shardwright.shard.open_shard import OpenShard, SealResult, make_link

# direct is the same but for O_DIRECT, and tmpfs has none: test_seal_direct asks for it
MODES = ["mmap", "pwrite"]
SLOT_BYTES = 4 * PAGE_BYTES


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work" / "c.0.partial", tmp_path / "array" / "c" / "0"


def note(shard: OpenShard, entry: int, offset: int, nbytes: int) -> None:
    shard.entries[entry] = offset, nbytes


def fill(shard: OpenShard, chunks: dict[int, bytes], entry_of=lambda slot: slot) -> None:
    """Put chunk bytes into slots as workers do."""
    for slot, data in chunks.items():
        offset = shard.layout.data_start + slot * shard.layout.slot_bytes
        if shard.slots_address is None:
            padded = data + bytes(-len(data) % PAGE_BYTES)
            page = np.zeros(len(padded) + PAGE_BYTES, np.uint8)
            first = -page.ctypes.data % PAGE_BYTES  # O_DIRECT wants the buffer aligned too
            page[first : first + len(padded)] = np.frombuffer(padded, np.uint8)
            os.pwrite(shard.descriptor, page[first : first + len(padded)], offset)
        else:
            shard._file._bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        note(shard, entry_of(slot), offset, len(data))


def seal(shard: OpenShard) -> SealResult:
    """As the files of a shard row are sealed, for one of them."""
    sealed = shard.complete()
    shard.sync()
    shard.take_name(lambda: None)
    shard.sync_name()
    shard.end(lambda: None)
    return sealed


CHUNKS = {0: b"a" * 5000, 1: b"b" * SLOT_BYTES, 3: b"c" * 17}  # slot 2 is all fill


def expected_file(at_start: bool) -> tuple[bytes, list[tuple[int, int]]]:
    start = PAGE_BYTES if at_start else 0
    entries = [(start + s * SLOT_BYTES, len(CHUNKS[s])) if s in CHUNKS else (EMPTY, EMPTY) for s in range(5)]
    end = start + 3 * SLOT_BYTES + 17
    return bytes(end), entries


def check_sealed(path, at_start: bool) -> None:
    data = path.read_bytes()
    blank, entries = expected_file(at_start)
    index_bytes = 16 * 5 + 4
    index = data[:index_bytes] if at_start else data[-index_bytes:]
    assert LITTLE_ENDIAN_CRC32C.decode(index, 5).tolist() == entries
    whole = bytearray(blank)
    for (offset, nbytes), chunk in zip((e for e in entries if e[0] != EMPTY), CHUNKS.values(), strict=True):
        assert nbytes == len(chunk)
        whole[offset : offset + nbytes] = chunk
    if at_start:
        whole[:index_bytes] = index
    else:
        whole += index
    assert data == bytes(whole), "live chunks, index, and zeros in the gaps"


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_seal_byte_for_byte(paths, mode, at_start):
    working, final = paths
    layout = ShardLayout(
        chunks=5, slots=4, slot_bytes=SLOT_BYTES, index_location="start" if at_start else "end"
    )
    shard = OpenShard(layout, working, final, mode)
    assert working.stat().st_size == layout.file_bytes
    assert working.stat().st_blocks * 512 >= layout.file_bytes, "real blocks, not a sparse file"
    fill(shard, CHUNKS)
    assert not final.exists()
    sealed = seal(shard)
    assert not working.exists()
    assert sealed.path == final
    assert sealed.stored_bytes == sum(map(len, CHUNKS.values())) + layout.index_bytes
    assert final.stat().st_size == layout.data_start + 3 * SLOT_BYTES + 17 + (
        0 if at_start else layout.index_bytes
    )
    live_pages = 2 + 4 + 1 + (1 if at_start else 0)
    assert final.stat().st_blocks * 512 <= live_pages * PAGE_BYTES, "gaps and tail are given back"
    check_sealed(final, at_start)


def test_seal_direct(paths):
    working, final = paths
    layout = ShardLayout(5, 4, SLOT_BYTES, False)
    if resolve_io("auto", [working.parent]) != "direct":
        pytest.skip(f"NOT TESTED: the filesystem of {working.parent} has no O_DIRECT")
    shard = OpenShard(layout, working, final, "direct")
    fill(shard, CHUNKS)
    seal(shard)
    check_sealed(final, at_start=False)


@pytest.mark.parametrize("mode", MODES)
def test_seal_closes_its_descriptor(paths, mode):
    before = open_descriptors()
    shard = OpenShard(ShardLayout(1, 1, PAGE_BYTES, False), *paths, mode)
    fill(shard, {0: b"x"})
    seal(shard)
    assert open_descriptors() == before


@pytest.mark.parametrize("mode", MODES)
def test_an_all_fill_shard_leaves_no_file(paths, mode):
    working, final = paths
    sealed = seal(OpenShard(ShardLayout(4, 4, PAGE_BYTES, "end"), working, final, mode))
    assert (sealed.path, sealed.stored_bytes) == (None, 0)
    assert not working.exists()
    assert not final.exists()


@pytest.mark.parametrize("mode", MODES)
def test_an_existing_final_file_is_not_touched(paths, mode):
    working, final = paths
    final.parent.mkdir(parents=True)
    final.write_bytes(b"older than us")
    shard = OpenShard(ShardLayout(1, 1, PAGE_BYTES, False), working, final, mode)
    fill(shard, {0: b"x"})
    with pytest.raises(OutputExistsError):
        seal(shard)
    assert final.read_bytes() == b"older than us"
    assert working.exists()
    shard.abandon()


def test_an_existing_file_is_not_read_in_place_of_fill_value(paths):
    working, final = paths
    final.parent.mkdir(parents=True)
    final.write_bytes(b"older than us")
    shard = OpenShard(ShardLayout(1, 1, PAGE_BYTES, "end"), working, final, "pwrite")
    with pytest.raises(OutputExistsError):
        seal(shard)
    assert final.read_bytes() == b"older than us"
    assert working.exists()
    shard.abandon()


@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_taken_for_the_link_to_a_shard(paths, is_link):
    working, final = paths
    link = final.parent.with_name("linked") / "0"
    link.parent.mkdir(parents=True)
    if is_link:
        link.symlink_to("elsewhere")
    else:
        link.write_bytes(b"older than us")
    with pytest.raises(OutputExistsError, match="linked/0"):
        make_link(link, final, DurableFolders(), lambda: None)
    shard = OpenShard(ShardLayout(1, 1, PAGE_BYTES, "end"), working, final, "pwrite", link=link)
    with pytest.raises(OutputExistsError, match="linked/0"):
        shard.check_names()
    shard.abandon()
    link.unlink()
    for _ in range(2):
        make_link(link, final, DurableFolders(), lambda: None)
    assert link.readlink() == final


@pytest.mark.parametrize(
    "point",
    [
        "shard.before_index",
        "shard.before_write",
        "shard.before_truncate",
        "shard.before_sync",
        "shard.before_rename",
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_seal_that_fails_leaves_no_final_name(paths, failing, mode, point):
    if (point, mode) == ("shard.before_write", "mmap"):
        return  # a mapped index is not written by a call
    working, final = paths
    shard = OpenShard(ShardLayout(5, 4, SLOT_BYTES, False), working, final, mode)
    fill(shard, CHUNKS)
    failing(point)
    with pytest.raises(StorageError, match="Input/output error"):
        seal(shard)
    assert not final.exists()
    assert working.exists()
    shard.abandon()


def test_a_folder_that_cannot_be_synced_fails_the_seal_of_a_complete_shard(paths, failing):
    """The rename has happened then: the name is there, the shard behind it whole, and the error says that its
    name may not be durable."""
    working, final = paths
    final.parent.mkdir(parents=True)
    known = DurableFolders(final.parent)
    shard = OpenShard(ShardLayout(5, 4, SLOT_BYTES, False), working, final, "mmap", folders=known)
    fill(shard, CHUNKS)
    failing("directory.before_sync")
    with pytest.raises(StorageError, match="sync folder"):
        seal(shard)
    check_sealed(final, at_start=False)
    shard.abandon()


@pytest.mark.parametrize("mode", MODES)
def test_a_full_disk_refuses_the_shard_and_leaves_nothing(paths, failing, mode):
    working, final = paths
    descriptors = open_descriptors()
    failing("shard.before_preallocate", errno.ENOSPC)
    with pytest.raises(StorageFullError, match=r"preallocate .*c\.0\.partial"):
        OpenShard(ShardLayout(1, 1, PAGE_BYTES, False), working, final, mode)
    assert not working.exists()
    assert open_descriptors() == descriptors
