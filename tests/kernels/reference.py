"""The plain NumPy twin of every kernel: short, slow, and easily seen to be correct. Tests compare each kernel
with its twin.

Frames are uint8 arrays of (rows, bytes of a row), or None where no frame came. ``chunk`` is one row of the
plane table: top row, left byte, rows, width in bytes. The twin of ``encode_chunks`` is ``chunk_bytes``: with
any codec, the encoded chunk must decode to exactly these bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from shardwright.codecs.parameters import BLOSC_HEADER_BYTES, DEFLATE_STORED_BLOCK_BYTES, ZSTD_RAW_BLOCK_BYTES
from shardwright.wire.messages import IMAGE_SHIFT

Frames = Sequence[np.ndarray | None]

# ------------------------------------------------------------------ gather


def chunk_bytes(
    frames: Frames, chunk: Sequence[int], chunk_rows: int, row_bytes: int, fill_row: np.ndarray
) -> bytes:
    """Returns the decoded inner chunk: its frames one after the other, fill where a frame, row or column is
    missing."""
    top, left, rows, width = (int(number) for number in chunk)
    block = np.empty((len(frames), chunk_rows, row_bytes), np.uint8)
    block[:] = fill_row
    for place, frame in enumerate(frames):
        if frame is not None:
            block[place, :rows, :width] = frame[top : top + rows, left : left + width]
    return block.tobytes()


def gather_range(
    frames: Frames,
    chunk: Sequence[int],
    chunk_rows: int,
    row_bytes: int,
    fill_row: np.ndarray,
    start: int,
    stop: int,
) -> bytes:
    return chunk_bytes(frames, chunk, chunk_rows, row_bytes, fill_row)[start:stop]


def is_all_fill(
    frames: Frames, chunk: Sequence[int], chunk_rows: int, row_bytes: int, fill_row: np.ndarray
) -> bool:
    return chunk_bytes(frames, chunk, chunk_rows, row_bytes, fill_row) == fill_row.tobytes() * (
        len(frames) * chunk_rows
    )


def place_parts(
    chunks: Sequence[bytearray],
    place: int,
    frame: np.ndarray | None,
    plane: Sequence[Sequence[int]],
    chunk_rows: int,
    row_bytes: int,
    fill_row: np.ndarray,
) -> None:
    """Puts a frame's parts at its place of decoded chunks, whose checksum is that of all their bytes."""
    part_bytes = chunk_rows * row_bytes
    for chunk, geometry in zip(chunks, plane, strict=True):
        part = chunk_bytes([frame], geometry, chunk_rows, row_bytes, fill_row)
        chunk[place * part_bytes : (place + 1) * part_bytes] = part


# ------------------------------------------------------------------ filters


def shuffle(data: bytes, typesize: int) -> bytes:
    """Returns all first bytes of the elements, then all second bytes, and so on."""
    return np.frombuffer(data, np.uint8).reshape(-1, typesize).T.tobytes()


def bitshuffle(data: bytes, typesize: int) -> bytes:
    """Returns all lowest bits of the elements, then all second bits, and so on. Blosc 1 does not filter a
    block whose number of elements is no multiple of 8."""
    elements = np.frombuffer(data, np.uint8).reshape(-1, typesize)
    if len(elements) % 8:
        return data
    return np.packbits(
        np.unpackbits(elements, axis=1, bitorder="little").T, axis=1, bitorder="little"
    ).tobytes()


# ------------------------------------------------------------------ stored forms


def store_plain(data: bytes) -> bytes:
    return data


def store_blosc(data: bytes, typesize: int, format_number: int, block_bytes: int) -> bytes:
    """Returns a Blosc 1 chunk with the memcpyed flag."""
    flags = 0x02 | format_number << 5
    return (
        struct.pack("<4B3I", 2, 1, flags, typesize, len(data), block_bytes, len(data) + BLOSC_HEADER_BYTES)
        + data
    )


def store_zstd(data: bytes) -> bytes:
    """Returns one zstd frame of raw blocks (RFC 8878, 3.1.1)."""
    parts = [struct.pack("<IBI", 0xFD2FB528, 0xA0, len(data))]
    for start in range(0, len(data), ZSTD_RAW_BLOCK_BYTES):
        block = data[start : start + ZSTD_RAW_BLOCK_BYTES]
        last = start + len(block) == len(data)
        parts += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(parts)


def store_gzip(data: bytes) -> bytes:
    """Returns one gzip member of stored deflate blocks (RFC 1952; RFC 1951, 3.2.4)."""
    parts = [bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255))]
    for start in range(0, len(data), DEFLATE_STORED_BLOCK_BYTES):
        block = data[start : start + DEFLATE_STORED_BLOCK_BYTES]
        last = start + len(block) == len(data)
        parts += [struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF), block]
    return b"".join([*parts, struct.pack("<II", zlib.crc32(data), len(data))])


# ------------------------------------------------------------------ reading a Blosc 1 chunk's framing


@dataclass(frozen=True)
class BloscChunk:
    """The header's fields and, unless the chunk is memcpyed, the streams of each block: one, or one per byte
    plane."""

    version: int
    format_version: int
    flags: int
    typesize: int
    nbytes: int
    block_bytes: int
    encoded_bytes: int
    blocks: tuple[tuple[bytes, ...], ...]

    @property
    def memcpyed(self) -> bool:
        return bool(self.flags & 0x02)


def parse_blosc(data: bytes) -> BloscChunk:
    """Parses a Blosc 1 chunk. Raises ``AssertionError`` when blocks do not follow each other without a gap up
    to the chunk's last byte."""
    version, format_version, flags, typesize, nbytes, block_bytes, encoded_bytes = struct.unpack_from(
        "<4B3I", data
    )
    blocks = []
    if not flags & 0x02:
        count = -(-nbytes // block_bytes)
        position = BLOSC_HEADER_BYTES + 4 * count
        for number, start in enumerate(struct.unpack_from(f"<{count}I", data, BLOSC_HEADER_BYTES)):
            assert start == position, f"block starts at {start}, the one before ends at {position}"
            shorter = (number + 1) * block_bytes > nbytes
            split = not flags & 0x10 and block_bytes // typesize >= 128 and not shorter
            streams = []
            for _ in range(typesize if split else 1):
                (length,) = struct.unpack_from("<I", data, position)
                streams.append(data[position + 4 : position + 4 + length])
                position += 4 + length
            blocks.append(tuple(streams))
        assert position == encoded_bytes == len(data), (
            f"blocks end at {position}, header says {encoded_bytes}, chunk has {len(data)}"
        )
    return BloscChunk(
        version, format_version, flags, typesize, nbytes, block_bytes, encoded_bytes, tuple(blocks)
    )


# ------------------------------------------------------------------ LZ4 blocks


def lz4_sequences(block: bytes) -> list[tuple[bytes, int, int]]:
    """Parses an LZ4 block into (literals, distance, bytes of the match); the last one has no match: 0, 0."""
    found: list[tuple[bytes, int, int]] = []
    position = 0

    def length(nibble: int) -> int:
        nonlocal position
        while nibble >= 15:
            nibble += block[position]
            position += 1
            if block[position - 1] != 255:
                break
        return nibble

    while True:
        token = block[position]
        position += 1
        count = length(token >> 4)
        literals = block[position : position + count]
        position += count
        assert len(literals) == count
        if position == len(block):
            assert token & 15 == 0
            return [*found, (literals, 0, 0)]
        distance = int.from_bytes(block[position : position + 2], "little")
        position += 2
        found.append((literals, distance, 4 + length(token & 15)))


def lz4_bytes(block: bytes) -> bytes:
    """Returns the bytes of an LZ4 block. Raises ``AssertionError`` where a match begins before the first
    byte, or the end is not as the format asks."""
    data = bytearray()
    sequences = lz4_sequences(block)
    for literals, distance, count in sequences:
        data += literals
        assert distance <= len(data)
        assert (distance > 0) == (count > 0)
        for _ in range(count):
            data.append(data[-distance])
    if len(sequences) > 1:
        assert len(sequences[-1][0]) >= 5
        assert len(sequences[-1][0]) + sequences[-2][2] >= 12
    return bytes(data)


def has_constant_part(plane: bytes) -> bool:
    """Returns whether one of 16 pieces of 64 bytes, evenly spread, has fewer than 16 bytes that differ from
    the byte before them."""
    places = [1 + (len(plane) - 65) * i // 15 for i in range(16)]
    return any(sum(plane[p + k] != plane[p + k - 1] for k in range(64)) < 16 for p in places)


# ------------------------------------------------------------------ checksum


def crc32c(data: bytes, seed: int = 0) -> int:
    """Computes the crc32c bit by bit (RFC 3720, B.4), continued from ``seed``, the crc32c of earlier
    bytes."""
    value = seed ^ 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


# ------------------------------------------------------------------ placing frames


def slab_and_index(
    position: int,
    counts: Sequence[Sequence[int]],
    chunk: Sequence[Sequence[int]],
    slab_counts: Sequence[Sequence[int]],
    slab_strides: Sequence[Sequence[int]],
) -> tuple[int, int]:
    """Takes the image off the position, unravels the rest over the image's frame axes, splits each index into
    chunk and remainder, ravels both again. ``counts[image][0]`` is not needed."""
    image, position = divmod(position, 2**IMAGE_SHIFT)
    index: list[int] = []
    for count in reversed(counts[image][1:]):
        position, i = divmod(position, count)
        index.insert(0, i)
    if len(counts[image]):
        index.insert(0, position)
    slab = 0
    for i, c, n in zip(index, chunk[image], slab_counts[image], strict=True):
        slab = slab * n + i // c
    place = sum(i % c * stride for i, c, stride in zip(index, chunk[image], slab_strides[image], strict=True))
    return image * 2**IMAGE_SHIFT + slab, place


@dataclass
class SlabRow:
    """One open slab: sequence and address by place."""

    expected: int
    frames: dict[int, tuple[int, int]]


def place_frames(
    rows: dict[int, SlabRow],
    first: int,
    frames: Sequence[tuple[int, int, int]],
    tables: tuple[Sequence[Sequence[int]], ...],
) -> tuple[int, list[int], int, dict[int, bool]]:
    """Puts (position, sequence, address) first, first+1, ... into the rows, which are keyed by their slab,
    until a slab has no row.

    Returns (frames done, slabs completed, slab without a row or -1, for each frame done whether it was a
    duplicate).
    """
    completed: list[int] = []
    duplicate: dict[int, bool] = {}
    for i in range(first, len(frames)):
        position, sequence, address = frames[i]
        slab, place = slab_and_index(position, *tables)
        if slab not in rows:
            return i, completed, slab, duplicate
        row = rows[slab]
        duplicate[i] = place in row.frames
        if not duplicate[i]:
            row.frames[place] = (sequence, address)
            if len(row.frames) == row.expected:
                completed.append(slab)
    return len(frames), completed, -1, duplicate


# ------------------------------------------------------------------ the encode check


def is_due(mode: int, number: int) -> bool:
    """Whether a chunk is checked: in a sample (1) the numbers whose multiple of the golden ratio has a part
    behind the point of less than 1/64, in 63 bits."""
    return mode == 2 or (mode == 1 and number * 0x4F1BBCDCBFA53E0B % 2**63 < 2**63 // 64)


# ------------------------------------------------------------------ writing


def write_slot(file: bytearray, offset: int, data: bytes, alignment: int) -> None:
    """Writes one chunk into its slot, with zeros up to the next multiple of ``alignment``; nothing for an
    empty chunk."""
    padded = data + bytes(-len(data) % alignment)
    file[offset : offset + len(padded)] = padded


# ------------------------------------------------------------------ reading


def packed_starts(nbytes: Sequence[int], files: Sequence[int], page_bytes: int) -> list[int]:
    """Returns the places of packed chunks by ``encode_chunks``, relative to the first one: without a gap,
    those of another file from a page on."""
    starts, end = [], 0
    for i, (n, file) in enumerate(zip(nbytes, files, strict=True)):
        if i and file != files[i - 1]:
            end = -(-end // page_bytes) * page_bytes
        starts.append(end)
        end += n
    return starts


def write_runs(
    contents: list[bytearray], cursors: list[int], chunks: Sequence[tuple[int, bytes]], alignment: int
) -> list[int]:
    """The twin of ``write.write_runs``: chunks are (file, bytes), those of a file together. Returns each
    one's offset; changes contents and cursors."""
    offsets = []
    for file in dict.fromkeys(file for file, _ in chunks):
        run = b""
        for _, data in (chunk for chunk in chunks if chunk[0] == file):
            offsets.append(cursors[file] + len(run))
            run += data
        write_slot(contents[file], cursors[file], run, alignment)
        cursors[file] += -(-len(run) // alignment) * alignment
    return offsets


def read_ranges(
    file: bytes, offsets: Sequence[int], nbytes: Sequence[int], crcs: Sequence[int]
) -> list[tuple[bytes, int]]:
    """Returns (bytes, crc continued from the given one) of each range."""
    pieces = [file[offset : offset + count] for offset, count in zip(offsets, nbytes, strict=True)]
    return [(piece, crc32c(piece, crc)) for piece, crc in zip(pieces, crcs, strict=True)]


def read_pieces(
    files: Sequence[bytes], pieces: Sequence[Sequence[int]], memory: bytearray
) -> tuple[int, bool]:
    """Lays pieces (file, offset, bytes, place in memory) into ``memory``. Returns the number of those before
    the first that is not there whole, and whether there is such a one."""
    for i, (file, offset, count, place) in enumerate(pieces):
        piece = files[file][offset : offset + count]
        if len(piece) < count:
            return i, True
        memory[place : place + count] = piece
    return len(pieces), False


# ------------------------------------------------------------------ journal and staging area


def chunk_entry(offset: int, nbytes: int, crc: int, writer_epoch: int, seed: int) -> bytes:
    """Returns an entry of 32 bytes; a chunk of 0 bytes is all fill and has 2^64-1 in both fields."""
    fields = struct.pack(
        "<QQIII", *((offset, nbytes, crc) if nbytes else (2**64 - 1, 2**64 - 1, 0)), writer_epoch, 0
    )
    return fields + struct.pack("<I", crc32c(fields, seed))


def journal_chunks(
    file: bytearray,
    places: Sequence[int],
    offsets: Sequence[int],
    nbytes: Sequence[int],
    crcs: Sequence[int],
    writer_epoch: int,
    seed: int,
) -> None:
    for place, offset, count, crc in zip(places, offsets, nbytes, crcs, strict=True):
        file[place : place + 32] = chunk_entry(offset, count, crc, writer_epoch, seed)


def sealed_record(record: bytes, pixels_crc: int, seed: int) -> bytes:
    """Returns the frame record with its last two fields set."""
    body = record[:-8] + struct.pack("<I", pixels_crc)
    return body + struct.pack("<I", crc32c(body, seed))


def journal_frames(
    file: bytearray, place: int, records: Sequence[bytes], filled: Sequence[bool], seed: int
) -> None:
    """Writes the records of one slab, zeros where no frame came."""
    data = b"".join(
        sealed_record(record, 0, seed) if here else bytes(len(record))
        for record, here in zip(records, filled, strict=True)
    )
    file[place : place + len(data)] = data


def stage_frames(
    file: bytearray,
    frames: Sequence[bytes],
    data_offsets: Sequence[int],
    entry_offsets: Sequence[int],
    records: Sequence[bytes],
    seed: int,
) -> None:
    for pixels, data_offset, entry_offset, record in zip(
        frames, data_offsets, entry_offsets, records, strict=True
    ):
        if data_offset >= 0:
            file[data_offset : data_offset + len(pixels)] = pixels
        file[entry_offset : entry_offset + len(record)] = sealed_record(record, crc32c(pixels), seed)


# ------------------------------------------------------------------ downsampling


def downsample(source: np.ndarray, factors: Sequence[int], method: str) -> np.ndarray:
    """Computes a level window by window: the exact mean of integers by Python's integers, rounded half to
    even; of floats by the float64 sum in row-major order."""
    target = np.empty([-(-n // f) for n, f in zip(source.shape, factors, strict=True)], source.dtype)
    for place in np.ndindex(*target.shape):
        window = source[tuple(slice(i * f, (i + 1) * f) for i, f in zip(place, factors, strict=True))].ravel()
        target[place] = _reduce_window(window, method)
    return target


def _reduce_window(window: np.ndarray, method: str) -> object:
    if method == "nearest":
        return window[0]
    if method in ("min", "max"):
        return window.min() if method == "min" else window.max()
    if window.dtype.kind == "f":
        total = np.float64(-0.0)
        for value in window:
            total = total + np.float64(value)
        return (total / window.size).astype(window.dtype)
    return round(Fraction(sum(map(int, window)), window.size))


# ------------------------------------------------------------------ samples


def sample_pixels(frames: Sequence[np.ndarray], count: int, first: int) -> np.ndarray:
    """Takes ``count`` pixels of frames of one size: pixel k from frame k mod n, at a place that goes on by
    the golden ratio of the frame, in steps of 2^-27 of it."""
    fractions = [((first + k) * 0x4F1BBCDCBFA53E0B % 2**63) // 2**36 for k in range(count)]
    return np.array(
        [frames[k % len(frames)].flat[f * frames[0].size // 2**27] for k, f in enumerate(fractions)],
        frames[0].dtype,
    )


# ------------------------------------------------------------------ decode


def lay_cut(chunk: np.ndarray, cut: np.ndarray, box: np.ndarray) -> None:
    """Copies a part of a decoded chunk into a box; ``cut`` as ``cuts.decode_cuts`` takes it."""
    first, count, in_box = cut
    inner = tuple(slice(a, a + n) for a, n in zip(first, count, strict=True))
    outer = tuple(slice(a, a + n) for a, n in zip(in_box, count, strict=True))
    box[outer] = chunk[inner]


def cut_boxes(
    boxes: np.ndarray, chunk_shape: Sequence[int], shard_chunks: Sequence[int]
) -> tuple[list[int], list[list[list[int]]]]:
    """Returns the numbers and the cuts of the chunks that boxes touch, found chunk by chunk of a shard."""
    numbers, cuts = [], []
    for low, high, at in boxes.tolist():
        for number, chunk in enumerate(np.ndindex(*shard_chunks)):
            begin = [i * n for i, n in zip(chunk, chunk_shape, strict=True)]
            first = [max(a, b) for a, b in zip(begin, low, strict=True)]
            stop = [min(a + n, b) for a, n, b in zip(begin, chunk_shape, high, strict=True)]
            if all(a < b for a, b in zip(first, stop, strict=True)):
                numbers.append(number)
                count = [b - a for a, b in zip(first, stop, strict=True)]
                in_chunk = [a - b for a, b in zip(first, begin, strict=True)]
                in_box = [i + a - b for i, a, b in zip(at, first, low, strict=True)]
                cuts.append([in_chunk, count, in_box])
    return numbers, cuts
