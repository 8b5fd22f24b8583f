"""Damaged files for the parsers of the journal and the staging area: what disks, power cuts and mix-ups
leave, and what nobody would.

Every input is made from its number alone, so that one that failed can be made again by itself. Random damage
dies at the first checksum; so after damaging rows or the header, half of the inputs get the checksum that
fits, from the file's own seed or from a stranger's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c

from shardwright.shard.layout import PAGE_BYTES

if TYPE_CHECKING:
    from random import Random

HUGE_FILE_BYTES = 2**44  # sparse: costs nothing unless someone reads it


@dataclass(frozen=True)
class Row:
    """A piece of a file that ends in the crc32c of what comes before it, started from the file's seed (0: the
    header)."""

    place: int
    size: int
    seed: int


@dataclass(frozen=True)
class Intact:
    """An intact file, partly filled: its bytes, its rows with the header first, and the same file of other
    acquisitions and shard rows."""

    image: bytes
    rows: tuple[Row, ...]
    header_fields: tuple[tuple[int, int], ...]  # (offset, size) of each
    strangers: tuple[bytes, ...]
    stranger_seeds: tuple[int, ...]
    numbers: tuple[int, ...]  # sizes and their neighbours, where an off-by-one would hide


def seal(image: bytearray, row: Row, seed: int) -> None:
    end = row.place + row.size - 4
    if end + 4 <= len(image):
        struct.pack_into("<I", image, end, crc32c.crc32c(bytes(image[row.place : end]), seed))


def _span(image: bytearray, random: Random) -> slice:
    start = random.randrange(len(image))
    return slice(start, min(len(image), start + random.choice((1, 4, 8, 32, 200, PAGE_BYTES))))


def _flip_bits(image: bytearray, intact: Intact, random: Random) -> None:
    row = random.choice(intact.rows)
    for _ in range(random.randint(1, 4)):
        place = row.place + random.randrange(row.size)
        if place < len(image):
            image[place] ^= 1 << random.randrange(8)


def _overwrite_field(image: bytearray, intact: Intact, random: Random) -> None:
    """A number where a number is expected: a boundary, a size, or anything."""
    row = random.choice((intact.rows[0], random.choice(intact.rows)))
    if row is intact.rows[0]:
        offset, size = random.choice(intact.header_fields)
    else:
        size = random.choice((4, 8))
        offset = random.randrange(0, row.size - size + 1, 4)
    size = size if size in (4, 8) else 8
    width = 8 * size
    number = random.choice(
        (
            0,
            1,
            2 ** (width - 1) - 1,
            2 ** (width - 1),
            2**width - 2,
            2**width - 1,
            random.getrandbits(width),
            *intact.numbers,
            *intact.numbers,
        )
    )
    place = row.place + offset
    if place + size <= len(image):
        image[place : place + size] = (number % 2**width).to_bytes(size, "little")


def _randomize(image: bytearray, intact: Intact, random: Random) -> None:
    span = _span(image, random)
    image[span] = random.randbytes(span.stop - span.start)


def _zero(image: bytearray, intact: Intact, random: Random) -> None:
    span = _span(image, random)
    image[span] = bytes(span.stop - span.start)


def _tear(image: bytearray, intact: Intact, random: Random) -> None:
    """A row of which only the first or the last bytes were written."""
    row = random.choice(intact.rows)
    cut = row.place + random.randrange(row.size)
    span = slice(row.place, cut) if random.random() < 0.5 else slice(cut, row.place + row.size)
    if span.stop <= len(image):
        image[span] = bytes(span.stop - span.start)


def _misplace(image: bytearray, intact: Intact, random: Random) -> None:
    """A row, or a page, written where another one belongs."""
    source, target = random.choice(intact.rows), random.choice(intact.rows)
    size = random.choice((min(source.size, target.size), PAGE_BYTES))
    data = image[source.place : source.place + size]
    if target.place + len(data) <= len(image):
        image[target.place : target.place + len(data)] = data


def _swap_in_stranger(image: bytearray, intact: Intact, random: Random) -> None:
    """Pages of another shard row's or acquisition's file: what reused blocks or a mix-up of names leave."""
    stranger = random.choice(intact.strangers)
    if random.random() < 0.3:
        image[:] = stranger
        return
    page = random.randrange(0, len(image), PAGE_BYTES)
    image[page : page + PAGE_BYTES] = stranger[page : page + PAGE_BYTES].ljust(
        min(PAGE_BYTES, len(image) - page), b"\0"
    )


def _resize(image: bytearray, intact: Intact, random: Random) -> None:
    size = random.choice(
        (
            0,
            1,
            PAGE_BYTES - 1,
            PAGE_BYTES,
            len(image) - 1,
            len(image) + 1,
            len(image) + PAGE_BYTES,
            random.randrange(2 * len(image)),
        )
    )
    del image[size:]
    image.extend(bytes(size - len(image)))


_DAMAGES = (
    _flip_bits,
    _overwrite_field,
    _overwrite_field,
    _overwrite_field,
    _randomize,
    _zero,
    _tear,
    _misplace,
    _swap_in_stranger,
)


def damaged(intact: Intact, random: Random) -> tuple[bytes, int]:
    """(the bytes of a damaged file, its size: larger where zeros follow that are not worth writing)."""
    image = bytearray(intact.image)
    if random.random() < 0.01:
        return random.randbytes(len(image)), len(image)
    for _ in range(random.randint(1, 4)):
        random.choice(_DAMAGES)(image, intact, random)
    _seal_some(image, intact, random)
    if random.random() < 0.03:
        _resize(image, intact, random)
    size = HUGE_FILE_BYTES if random.random() < 0.005 else len(image)
    return bytes(image), size


def _seal_some(image: bytearray, intact: Intact, random: Random) -> None:
    """Checksums that fit, for damage that must be caught by something else."""
    for row in intact.rows:
        span = slice(row.place, row.place + row.size)
        if image[span] == intact.image[span] or random.random() < 0.5:
            continue
        own = row is intact.rows[0] or random.random() < 0.8
        seal(image, row, row.seed if own else random.choice(intact.stranger_seeds))
