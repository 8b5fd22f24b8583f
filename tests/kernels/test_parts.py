"""Parts of chunks: in whatever order frames come, at their places are the twin's bytes, and the joined
checksum is that of the whole chunk."""

from __future__ import annotations

import numpy as np
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import reference

from shardwright.kernels.parts import place_parts, shifts_behind


@st.composite
def slabs(draw):
    itemsize = draw(st.sampled_from((1, 2, 4)))
    rows, columns, chunk_rows, chunk_columns = (draw(st.integers(1, 40)) for _ in range(4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    fill = rng.integers(0, 2, itemsize, np.uint8)
    kinds = draw(st.lists(st.sampled_from(("pixels", "fill", "none")), min_size=1, max_size=9))
    frames: list[np.ndarray | None] = []
    for kind in kinds:
        frame = np.tile(fill, rows * columns).reshape(rows, -1)
        frames.append({"pixels": rng.integers(0, 256, frame.shape, np.uint8), "fill": frame}.get(kind))
    plane = [
        (top, left * itemsize, min(chunk_rows, rows - top), min(chunk_columns, columns - left) * itemsize)
        for top in range(0, rows, chunk_rows)
        for left in range(0, columns, chunk_columns)
    ]
    order = draw(st.permutations(range(len(frames))))
    groups = draw(st.integers(1, len(frames)))
    return frames, np.array(plane), chunk_rows, chunk_columns * itemsize, fill, order, groups


@given(slabs())
def test_parts_in_any_order_make_the_chunk_and_its_checksum(slab) -> None:
    frames, plane, chunk_rows, row_bytes, fill, order, groups = slab
    fill_row = np.tile(fill, row_bytes // fill.size)
    part_bytes, places, chunks = chunk_rows * row_bytes, len(frames), len(plane)
    memory = np.full((chunks, places * part_bytes), 0xA5, np.uint8)
    joined = np.zeros(chunks, np.uint32), np.zeros(chunks, np.bool_)
    shifts = shifts_behind(places, part_bytes)
    frame_row_bytes = next((frame.shape[1] for frame in frames if frame is not None), row_bytes)
    cut = (frame_row_bytes, chunk_rows, row_bytes, fill_row, False)
    for some in np.array_split(np.array(order), groups):
        addresses = [0 if frames[place] is None else frames[place].ctypes.data for place in some.tolist()]
        starts = memory.ctypes.data + memory.strides[0] * np.arange(chunks)
        targets = np.add.outer(some * part_bytes, starts)
        place_parts(np.array(addresses, np.int64), shifts[some], plane, cut, targets, joined)

    wanted = [bytearray(places * part_bytes) for _ in range(chunks)]
    for place, frame in enumerate(frames):
        reference.place_parts(wanted, place, frame, plane, chunk_rows, row_bytes, fill_row)
    assert [chunk.tobytes() for chunk in memory] == [bytes(chunk) for chunk in wanted]
    assert joined[0].tolist() == [reference.crc32c(bytes(chunk)) for chunk in wanted]
    came = [frame for frame in frames if frame is not None]
    filled = [reference.is_all_fill(came, chunk, chunk_rows, row_bytes, fill_row) for chunk in plane]
    assert (~joined[1]).tolist() == filled


def test_parts_of_the_size_of_real_chunks() -> None:
    rng = np.random.default_rng(1)
    places, part_bytes = 300, 256 * 256 * 2
    parts = [rng.bytes(part_bytes) for _ in range(3)]
    shifts = shifts_behind(places, part_bytes)
    whole = crc32c(parts[0] + bytes(part_bytes * (places - 3)) + parts[1] + parts[2])

    def moved(crc: int, place: int) -> int:
        found = 0
        for bit in range(32):
            found ^= int(shifts[place, bit]) if crc >> bit & 1 else 0
        return found

    zeros = crc32c(bytes(part_bytes))
    found = moved(crc32c(parts[0]), 0)
    for place in range(1, places - 2):
        found ^= moved(zeros, place)
    found ^= moved(crc32c(parts[1]), places - 2) ^ crc32c(parts[2])
    assert found == whole
