"""Reading many ranges of a file in one call, checksummed on the way, against the twin in ``reference``."""

import itertools
import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels import file_io

ranges = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 1000), st.integers(0, 2**32 - 1)), min_size=1, max_size=6
)


def arrays(asked, memory):
    offsets, nbytes, crcs = (
        np.array(column, dtype)
        for column, dtype in zip(zip(*asked, strict=True), (np.int64, np.int64, np.uint32), strict=True)
    )
    return offsets, memory.ctypes.data + np.arange(len(asked)) * 1000, nbytes, crcs


@given(ranges)
def test_ranges_and_their_checksums(tmp_path_factory, asked):
    path = tmp_path_factory.mktemp("read") / "file"
    data = np.random.default_rng(3).bytes(4000)
    path.write_bytes(data)
    memory = np.zeros(len(asked) * 1000, np.uint8)
    offsets, addresses, nbytes, crcs = arrays(asked, memory)
    again = crcs.copy()
    with path.open("rb") as file:
        file_io.will_need(file.fileno(), offsets, nbytes)
        assert file_io.read_ranges(file.fileno(), offsets, addresses, nbytes, crcs) == 0
    expected = reference.read_ranges(data, offsets.tolist(), nbytes.tolist(), again.tolist())
    assert [
        (memory[1000 * i : 1000 * i + n].tobytes(), crc)
        for i, (n, crc) in enumerate(zip(nbytes, crcs.tolist(), strict=True))
    ] == expected
    file_io.checksum_ranges(addresses, nbytes, again)
    assert again.tolist() == crcs.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000), st.integers(1, 500)), min_size=1),
    st.integers(-1, 400),
    st.sampled_from([1, 700, 2000, 1 << 20]),
)
def test_every_chunk_lies_at_its_place_once_the_pieces_of_its_batch_are_read(chunks, gap, batch_bytes):
    files, offsets, nbytes = (np.array(column, np.int64) for column in zip(*chunks, strict=True))
    order, n = np.lexsort((offsets, files)), len(chunks)
    places, pieces, firsts = np.zeros(n, np.int64), np.zeros((n, 4), np.int64), np.zeros((n + 1, 2), np.int64)
    count = file_io.plan_pieces(order, files, offsets, nbytes, (gap, batch_bytes), places, pieces, firsts)
    assert firsts[0].tolist() == [0, 0]
    assert firsts[count][0] == n
    data = [np.random.default_rng(i).bytes(4000) for i in range(3)]
    for (first, piece), (end, pieces_end) in itertools.pairwise(firsts[: count + 1].tolist()):
        mine = pieces[piece:pieces_end].tolist()
        memory = bytearray(sum(mine[-1][2:]))
        assert reference.read_pieces(data, [tuple(each) for each in mine], memory) == (len(mine), False)
        assert places[end - 1] < batch_bytes
        for i, place in zip(order[first:end].tolist(), places[first:end].tolist(), strict=True):
            file, offset, length = chunks[i]
            assert memory[place : place + length] == data[file][offset : offset + length]
        # nothing but short gaps is read besides, and no byte for another batch
        asked = {(chunks[i][0], chunks[i][1]) for i in order[first:end].tolist()}
        assert {(file, offset) for file, offset, *_ in mine} <= asked
    between = [b[1] - a[1] - a[2] for a, b in _neighbours(chunks, order.tolist())]
    read_too = [each for each in between if 0 <= each <= gap]
    assert count <= -(-(sum(nbytes.tolist()) + sum(read_too)) // batch_bytes), "each is about full"
    if count == 1:
        assert firsts[count][1] == n - len(read_too)


def _neighbours(chunks, order):
    """Yields two chunks that follow each other in one file."""
    for i, j in itertools.pairwise(order):
        if chunks[i][0] == chunks[j][0]:
            yield chunks[i], chunks[j]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000), st.integers(1, 1500)), min_size=1))
def test_pieces_of_several_files(tmp_path_factory, asked):
    folder = tmp_path_factory.mktemp("read")
    files = [np.random.default_rng(i).bytes(4000) for i in range(3)]
    for i, data in enumerate(files):
        (folder / str(i)).write_bytes(data)
    places = np.cumsum([0, *(count for _, _, count in asked)])
    pieces = [(*each, place) for each, place in zip(asked, places.tolist(), strict=False)]
    memory, expected = np.zeros(places[-1], np.uint8), bytearray(int(places[-1]))
    descriptors = [os.open(folder / str(i), os.O_RDONLY) for i in range(3)]
    try:
        file_io.announce_pieces(np.array(descriptors, np.int64), np.array(pieces, np.int64))
        done, number = file_io.read_pieces(
            np.array(descriptors, np.int64), np.array(pieces, np.int64), memory.ctypes.data
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert (done, number != 0) == reference.read_pieces(files, pieces, expected)
    assert number in (0, file_io.FILE_ENDED)
    ends = places[done] if number else places[-1]
    assert memory[:ends].tobytes() == expected[:ends]


def test_a_long_range_goes_in_steps(tmp_path):
    data = np.random.default_rng(3).integers(0, 256, 1_000_003).astype(np.uint8)
    data.tofile(tmp_path / "file")
    memory, crcs = np.zeros(data.size, np.uint8), np.zeros(1, np.uint32)
    with (tmp_path / "file").open("rb") as file:
        one = np.ones(1, np.int64)
        assert (
            file_io.read_ranges(file.fileno(), 0 * one, one * memory.ctypes.data, one * data.size, crcs) == 0
        )
    assert np.array_equal(memory, data)
    assert crcs[0] == file_io.crc32c_from(0, data.ctypes.data, data.size)


def test_a_file_that_ends_and_one_that_is_closed(tmp_path):
    (tmp_path / "file").write_bytes(bytes(10))
    memory, one, crcs = np.zeros(100, np.uint8), np.ones(1, np.int64), np.zeros(1, np.uint32)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    assert (
        file_io.read_ranges(descriptor, 5 * one, one * memory.ctypes.data, 6 * one, crcs)
        == file_io.FILE_ENDED
    )
    os.close(descriptor)
    assert file_io.read_ranges(-1, 0 * one, one * memory.ctypes.data, one, crcs) == 9  # EBADF
