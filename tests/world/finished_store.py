"""What a finished store holds, as a reader finds it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.frame_table_format import RECORD_COLUMNS, TABLE_PATH
from shardwright.model.errors import ShardFormatError
from shardwright.model.names import DOCUMENT, WORKSPACE
from shardwright.read.frame_table import open_frame_table
from shardwright.read.store import open_store
from shardwright.shard.index import EMPTY
from shardwright.shard.sealed_shard import SealedShard
from shardwright.wire.descriptor import METADATA_FIELDS

from .oracle import ViolationError
from .pixels import tokens

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.grid import Grids
    from shardwright.read.frame_table import FinishedPart, FrameTable
    from shardwright.read.store import StoredArray

COLUMNS = (*RECORD_COLUMNS, *METADATA_FIELDS, "client_epoch", "status", "reason")
RECORD = np.dtype(
    [*((name, "f8" if name in METADATA_FIELDS else "i8") for name in COLUMNS), ("position", "i8")]
)


@dataclass(frozen=True)
class Left:
    """``records``: RECORD[n], of the frame table. ``arrays``: (image, level, pixels [frame axes in the order
    of acquisition ..., rows, columns]) of each array. ``unknown``: of its ``shards`` those that nobody has on
    record."""

    grids: Grids
    records: np.ndarray
    arrays: list[tuple[int, int, np.ndarray]]
    shards: int
    unknown: int = 0

    def pixels(self, width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (position, tokens) of every place of every array; files are ``width`` columns wide."""
        for image, level, array in self.arrays:
            grid = self.grids.grids[image]
            axes = len(grid.counts)
            for index in np.ndindex(*array.shape[:axes]):
                yield grid.position_of(index), tokens(array[index], width, level=level).ravel()


@dataclass(frozen=True)
class FinishedFacts:
    """What a finished store tells those who read its files: shapes by array, sequences in the frame table,
    receipts."""

    shapes: dict[str, tuple[int, ...]]
    sequences: frozenset[int]
    receipts: tuple[FinishedPart, ...]

    def lacking(self, later: FinishedFacts) -> list[str]:
        """Returns what the store does not tell later."""
        shrunk = [
            name
            for name, shape in self.shapes.items()
            if any(now < was for now, was in zip(later.shapes.get(name, (0,)), shape, strict=False))
        ]
        rows = sorted(self.sequences - later.sequences)
        is_kept = later.receipts[: len(self.receipts)] == self.receipts
        return [*shrunk, *(f"row {n}" for n in rows), *([] if is_kept else ["receipts"])]


def is_finished(path: Path) -> bool:
    """Returns whether a store has a frame table."""
    return (path / TABLE_PATH / DOCUMENT).exists()


def finished_facts(path: Path) -> FinishedFacts:
    """Reads them from the files, without what is unfinished."""
    store = open_store(path)
    table = open_frame_table(store)
    if table is None:
        return FinishedFacts({}, frozenset(), ())
    sequences = (n for chunk in range(table.chunks) for n in table.read("sequence", chunk).tolist())
    shapes = {array.path.relative_to(path).as_posix(): array.shape for array in store.arrays}
    return FinishedFacts(shapes, frozenset(sequences), table.receipts)


def left(
    path: Path,
    spec: AcquisitionSpec,
    *,
    is_spoiled: bool = False,
    unknown: Collection[str] = (),
    uncovered: Collection[str] = (),
) -> Left | None:
    """None: there is no store. ``is_spoiled``: shards may be broken, which show as fill. ``unknown``: paths
    of shards whose records are gone from the frame log or with their journal, so that no shape need cover
    them and no account count them. ``uncovered``: of shards that had their names ahead of their row as rot
    took frames of theirs from its journal: no shape need cover these. Raises what readers raise, and
    ``ViolationError`` for one that is not finished."""
    if not path.exists():
        return None
    if (path / WORKSPACE).exists():
        raise ViolationError("the store is not finished, though its acquisition is")
    store = open_store(path)
    table = open_frame_table(store)
    if table is None:
        raise ViolationError("the store is finished without a frame table")
    arrays, shards = [], 0
    images = {
        name: (image, level)
        for image in range(len(spec.paths))
        for level, name in enumerate(spec.level_paths(image))
    }
    for stored in store.arrays:
        image, level = images[stored.path.relative_to(path).as_posix()]
        pixels, count = _pixels(path, stored, is_spoiled=is_spoiled, uncovered={*unknown, *uncovered})
        arrays.append((image, level, pixels))
        shards += count
    there = (path / each for each in unknown)
    return Left(spec.grids, _records(table, spec.grids), arrays, shards, sum(each.exists() for each in there))


def _pixels(
    store: Path, stored: StoredArray, *, is_spoiled: bool, uncovered: Collection[str]
) -> tuple[np.ndarray, int]:
    whole = np.full(stored.shape, stored.fill_element, stored.dtype)
    shards = 0
    room = np.empty(stored.chunk_bytes, np.uint8)
    for key, shard in stored.shard_files():
        is_outside = shard is None or not stored.contains_shard(shard)
        if is_outside and (stored.path / key).relative_to(store).as_posix() not in uncovered:
            raise ViolationError(f"a shard outside the shape {stored.shape}: {key}")
        shards += 1
        if shard is None or is_outside:
            continue
        # what rot has taken shows as fill, which the oracle takes from spoiled slabs alone
        with (
            suppress(*(ShardFormatError,) if is_spoiled else ()),
            SealedShard.open(stored.path / key, stored.index) as file,
        ):
            entries = file.entries
            for chunk in np.flatnonzero(entries["nbytes"] != np.uint64(EMPTY)).tolist():
                data = file.file.read(int(entries["offset"][chunk]), int(entries["nbytes"][chunk]))
                values = stored.decode(data, room)
                first = np.multiply(stored.chunk_coordinates(shard, chunk), stored.chunk_shape)
                place = tuple(
                    slice(a, min(a + c, n))
                    for a, c, n in zip(first, stored.chunk_shape, stored.shape, strict=True)
                )
                cut = tuple(slice(0, max(0, each.stop - each.start)) for each in place)
                if (inside := whole[place]).size:
                    inside[...] = values[cut]
    return whole, shards


def _records(table: FrameTable, grids: Grids) -> np.ndarray:
    parts = []
    for chunk in range(table.chunks):
        found = np.zeros(table.read("status", chunk).size, RECORD)
        for name in COLUMNS:
            found[name] = table.read(name, chunk)
        images = table.read("image", chunk) if "image" in table.columns else np.zeros(found.size, np.int64)
        found["position"] = [
            -1 if min(index, default=0) < 0 else _position(grids, image, index)
            for image, index in zip(images.tolist(), table.read_indices(chunk).tolist(), strict=True)
        ]
        parts.append(found)
    return np.concatenate([np.zeros(0, RECORD), *parts])


def _position(grids: Grids, image: int, index: list[int]) -> int:
    return grids.grids[image].position_of(tuple(index)) if image >= 0 else -1
