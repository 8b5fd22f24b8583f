"""Disks as a cut of the power may leave them: what the last flush before the cut made safe, and any part of
what was written after it.

    whole     every write up to the cut, in order: a prefix of the log
    flushed   none of the writes after the last flush
    subset    some of the writes after the last flush, in order
    torn      the same, and of each perhaps only some of its sectors

A mounted image is written to (the filesystem replays its journal, the store is recovered); afterwards it is
put back by comparing it with ``model``, a copy in memory of what the last flush made safe. Both are sparse,
and compared only where anything was ever written.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .write_log import SECTOR_BYTES, WriteLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

WITHOUT_TEARS = ("whole", "flushed", "subset")
KINDS = (*WITHOUT_TEARS, "torn")
_BLOCK_BYTES = 4096  # what is compared, hashed, and, in most torn writes, kept whole
_GRAIN_BYTES = 64 * 1024  # how finely is remembered where anything was ever written
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Piece:
    """Bytes [first, stop) of one entry's data."""

    entry: int
    first: int
    stop: int


@dataclass(frozen=True)
class Cut:
    """The power goes after ``cut`` entries. Of those from ``flushed`` on, ``pieces`` had reached the disk."""

    kind: str
    cut: int
    flushed: int
    pieces: tuple[Piece, ...]


def draw_cut(log: WriteLog, cut: int, kind: str, rng: np.random.Generator) -> Cut:
    """One way in which the power may go after ``cut`` entries."""
    flushed = log.flushed_before(cut)
    pieces: Iterable[Piece] = (Piece(i, 0, int(log.sizes[i])) for i in range(flushed, cut) if log.sizes[i])
    if kind == "flushed":
        pieces = ()
    elif kind in ("subset", "torn"):
        share = rng.choice((0.2, 0.5, 0.8))
        pieces = [piece for piece in pieces if rng.random() < share]
    if kind == "torn":
        atom = int(rng.choice((SECTOR_BYTES, _BLOCK_BYTES)))
        pieces = [part for piece in pieces for part in _tear(piece, atom, rng)]
    return Cut(kind, cut, flushed, tuple(pieces))


def _tear(piece: Piece, atom: int, rng: np.random.Generator) -> Iterator[Piece]:
    """Half of the writes stay whole, of the others each atom is there or not."""
    if piece.stop <= atom or rng.random() < 0.5:
        yield piece
        return
    for first in range(0, piece.stop, atom):
        if rng.random() < 0.5:
            yield Piece(piece.entry, first, min(first + atom, piece.stop))


class DiskImage:
    """The file that is mounted again and again. ``advance`` only goes forward; ``lay`` and ``restore``
    alternate."""

    def __init__(self, fresh: Path, path: Path) -> None:
        """``fresh`` is the disk before the recording began; ``path`` is made."""
        self.path = path
        self.applied = 0
        self.nbytes = fresh.stat().st_size
        with path.open("wb+") as file:
            file.truncate(self.nbytes)
            self._image_map = mmap.mmap(file.fileno(), self.nbytes)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._model_map = mmap.mmap(-1, self.nbytes)
        self._image = np.frombuffer(self._image_map, np.uint8)
        self._model = np.frombuffer(self._model_map, np.uint8)
        self._used = np.zeros(-(-self.nbytes // _GRAIN_BYTES), np.bool_)
        self._digests: dict[int, int] = {}  # block -> digest of what the model holds there
        self._digest = 0  # of the whole model: the exclusive or of all blocks' digests
        self._copy(fresh)

    def _copy(self, fresh: Path) -> None:
        with fresh.open("rb") as file:
            for first, stop in _extents(file.fileno(), self.nbytes):
                data = np.frombuffer(os.pread(file.fileno(), stop - first, first), np.uint8)
                self._write(self._model, first, data)
                self._write(self._image, first, data)

    def advance(self, log: WriteLog, entries: int) -> None:
        """All of the first ``entries`` are safe from now on."""
        changed: set[int] = set()
        for entry in range(self.applied, entries):
            offset, data = int(log.offsets[entry]), log.bytes_of(entry)
            self._write(self._model, offset, data)
            self._write(self._image, offset, data)
            changed.update(_blocks(offset, data.size))
        for block in changed:
            digest = _digest_of(block, self._model[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES])
            self._digest ^= self._digests.get(block, 0) ^ digest
            self._digests[block] = digest
        self.applied = max(self.applied, entries)

    def lay(self, log: WriteLog, pieces: Iterable[Piece]) -> int:
        """Put pieces on top of what is safe. Returns a digest of the whole image: two images of one recording
        with one digest are the same."""
        touched: set[int] = set()
        for piece in pieces:
            offset, data = (
                int(log.offsets[piece.entry]) + piece.first,
                log.bytes_of(piece.entry)[piece.first : piece.stop],
            )
            self._write(self._image, offset, data)
            touched.update(_blocks(offset, data.size))
        digest = self._digest
        for block in touched:
            digest ^= self._digests.get(block, 0) ^ self._image_digest(block)
        return digest

    def _image_digest(self, block: int) -> int:
        span = slice(block * _BLOCK_BYTES, (block + 1) * _BLOCK_BYTES)
        if block not in self._digests and np.array_equal(self._image[span], self._model[span]):
            return 0  # as it was when the recording began, like all blocks without a digest
        return _digest_of(block, self._image[span])

    def restore(self) -> None:
        """Undo what was laid on top and what a mount wrote."""
        for first, stop in _extents(self._fd, self.nbytes):
            self._used[first // _GRAIN_BYTES : -(-stop // _GRAIN_BYTES)] = True
        edges = np.flatnonzero(np.diff(self._used, prepend=False, append=False))
        for first, stop in (edges.reshape(-1, 2) * _GRAIN_BYTES).tolist():
            image = self._image[first:stop].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8)
            model = self._model[first:stop].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8)
            for block in np.flatnonzero((image != model).any(axis=1)):
                image[block] = model[block]

    def close(self) -> None:
        del self._image, self._model
        self._image_map.close()
        self._model_map.close()
        os.close(self._fd)

    def _write(self, disk: np.ndarray, offset: int, data: np.ndarray) -> None:
        disk[offset : offset + data.size] = data
        self._used[offset // _GRAIN_BYTES : -(-(offset + data.size) // _GRAIN_BYTES)] = True


def _blocks(offset: int, nbytes: int) -> range:
    return range(offset // _BLOCK_BYTES, -(-(offset + nbytes) // _BLOCK_BYTES))


def _digest_of(block: int, content: np.ndarray) -> int:
    return int.from_bytes(
        hashlib.blake2b(content, digest_size=_DIGEST_BYTES, salt=block.to_bytes(16, "little")).digest(),
        "little",
    )


def _extents(descriptor: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """[first, stop) of the ranges that are no holes."""
    stop = 0
    while stop < nbytes:
        try:
            first = os.lseek(descriptor, stop, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        stop = os.lseek(descriptor, first, os.SEEK_HOLE)
        yield first, stop
