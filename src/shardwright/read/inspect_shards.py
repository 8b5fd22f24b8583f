"""The layout of a shard: slots, the gaps between them, how each chunk was encoded, the index. Reads only the
index and each chunk's first bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.array.layout_costs import TIME_AXES, LayoutAxis, layout_costs
from shardwright.codecs.decode import HEAD_BYTES
from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.shard.edit_files import INTERRUPTED, is_interrupted, journaled_edits
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.shard_description import find_description

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.array.layout_costs import LayoutCost
    from shardwright.disk.read_file import ReadFile
    from shardwright.shard.sealed_shard import SealedShard

    from .store import Store, StoredArray


@dataclass(frozen=True)
class ChunkReport:
    """One chunk that is present. ``gap_bytes``: unused bytes between it and the next thing in the file."""

    chunk: int
    coordinates: tuple[int, ...]
    offset: int
    nbytes: int
    page_aligned: bool
    gap_bytes: int
    form: str


@dataclass
class ShardReport:
    """One shard file, or without shards the file of a chunk. ``allocated_bytes`` is what the filesystem holds
    of it, ``hole_bytes`` the part of ``file_bytes`` that it does not hold. ``index_location`` is then "none",
    and ``index_checksum_ok`` says that the file can be read. ``chunks_cropped``: present chunks wholly
    outside the array's shape. ``described``: it has a description of itself."""

    key: str
    coordinates: tuple[int, ...]
    file_bytes: int = 0
    allocated_bytes: int = 0
    index_location: str = "end"
    index_offset: int = 0
    index_bytes: int = 0
    index_checksum_ok: bool = False
    chunks: int = 0
    chunks_in_shape: int = 0
    chunks_present: int = 0
    chunks_cropped: int = 0
    chunks_page_aligned: int = 0
    encoded_bytes: int = 0
    decoded_bytes: int = 0
    gaps: int = 0
    gap_bytes: int = 0
    largest_gap_bytes: int = 0
    forms: dict[str, int] = field(default_factory=dict)
    described: bool = False
    chunk_reports: list[ChunkReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def hole_bytes(self) -> int:
        return max(0, self.file_bytes - self.allocated_bytes)

    @property
    def chunks_empty(self) -> int:
        """The number of chunks inside the array's shape that are absent and read as fill value."""
        return max(0, self.chunks_in_shape - (self.chunks_present - self.chunks_cropped))

    @property
    def ratio(self) -> float:
        return self.decoded_bytes / self.encoded_bytes if self.encoded_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "hole_bytes": self.hole_bytes,
            "chunks_empty": self.chunks_empty,
            "ratio": self.ratio,
        }


@dataclass
class Totals:
    """Sums over the shards of one array."""

    shards: int = 0
    file_bytes: int = 0
    allocated_bytes: int = 0
    chunks_in_shape: int = 0
    chunks_present: int = 0
    chunks_cropped: int = 0
    encoded_bytes: int = 0
    decoded_bytes: int = 0
    gap_bytes: int = 0
    described: int = 0
    problems: int = 0
    forms: Counter[str] = field(default_factory=Counter)

    def add(self, shard: ShardReport) -> None:
        self.shards += 1
        self.file_bytes += shard.file_bytes
        self.allocated_bytes += shard.allocated_bytes
        self.chunks_in_shape += shard.chunks_in_shape
        self.chunks_present += shard.chunks_present
        self.chunks_cropped += shard.chunks_cropped
        self.encoded_bytes += shard.encoded_bytes
        self.decoded_bytes += shard.decoded_bytes
        self.gap_bytes += shard.gap_bytes
        self.described += shard.described
        self.problems += len(shard.problems)
        self.forms.update(shard.forms)

    @property
    def ratio(self) -> float:
        return self.decoded_bytes / self.encoded_bytes if self.encoded_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "forms": dict(self.forms), "ratio": self.ratio}


def describe_array(array: StoredArray) -> dict[str, Any]:
    """The array's metadata in plain values, ready for JSON."""
    return {
        "path": str(array.path),
        "spelling": array.spelling or "Zarr v3",
        "shape": array.shape,
        "dtype": array.dtype.name,
        "dimension_names": array.dimension_names,
        "fill_value": array.fill_value,
        "shard_shape": array.shard_shape,
        "chunk_shape": array.chunk_shape,
        "chunk_bytes": array.chunk_bytes,
        "chunks_per_shard": array.chunks_per_shard,
        "shards_in_shape": array.shards_in_shape,
        "codecs": array.chain.as_json,
        "index_location": array.index_location,
        "container": array.container,
        "layout_costs": [cost._asdict() for cost in costs_of(array)],
    }


def costs_of(array: StoredArray) -> list[LayoutCost]:
    """Returns what makes the array slow to read (``array.layout_costs``)."""
    names = [name or "" for name in array.dimension_names or [None] * len(array.shape)]
    shard_chunks = array.shard_chunks if array.is_sharded else [None] * len(array.shape)
    axes = [*map(LayoutAxis, names, array.shape, array.chunk_shape, shard_chunks)]
    time = next((name for name in names if name.lower() in TIME_AXES), None)
    index_bytes = array.index_bytes if array.is_sharded else 0
    return layout_costs(axes, array.dtype.itemsize, index_bytes, time) if axes else []


def inspect_shards(store: Store, array: StoredArray, *, chunks: bool = False) -> Iterator[ShardReport]:
    """Yields a report for each shard file of ``array``, one at a time; only for one shard if the store was
    opened by that shard."""
    if store.shard is not None:
        yield inspect_shard(array, store.shard, chunks=chunks)
        return
    edited = journaled_edits(array.path)  # asked once: at an address each question is a request
    for key, coordinates in array.shard_files():
        if coordinates is not None:
            is_edited = key.replace("/", ".") in edited
            yield inspect_shard(array, coordinates, chunks=chunks, may_be_edited=is_edited)


def inspect_shard(
    array: StoredArray, coordinates: tuple[int, ...], *, chunks: bool = False, may_be_edited: bool = True
) -> ShardReport:
    """Inspects one shard file. Its faults go into ``problems``; none is raised. ``chunks`` keeps a record of
    each chunk."""
    key = array.shard_key(coordinates)
    report = ShardReport(
        key,
        coordinates,
        index_location=array.index_location,
        index_bytes=array.index_bytes,
        chunks=array.chunks_per_shard,
    )
    report.chunks_in_shape = array.chunks_inside(coordinates)
    if may_be_edited and is_interrupted(array.path, key):
        report.problems.append(INTERRUPTED)
    try:
        with array.open_shard(coordinates) as sealed:
            report.file_bytes, report.allocated_bytes = sealed.file.nbytes, sealed.file.allocated_bytes
            report.index_offset, report.index_checksum_ok = sealed.index_offset, True
            start, stop = sealed.index.data_range
            if (description := find_description(sealed, array.described, coordinates)) is not None:
                report.described, stop = True, stop if description.user_block else description.start
            _look_at_chunks(report, array, sealed, (start, stop), chunks)
    except (ShardFormatError, StorageError, ChangedError) as error:
        report.problems.append(str(error))
    return report


def _look_at_chunks(
    report: ShardReport,
    array: StoredArray,
    sealed: SealedShard[ReadFile],
    data_range: tuple[int, int],
    keep: bool,
) -> None:
    index, entries = sealed.index, sealed.entries
    report.problems += [f"chunk {chunk}: {fault}" for chunk, fault in index.faults()]
    live = index.live
    report.chunks_present = int(index.present.sum())
    report.chunks_cropped = int((index.present & ~array.chunks_in_shape(report.coordinates)).sum())
    report.chunks_page_aligned = int((entries["offset"][live] % PAGE_BYTES == 0).sum())
    report.encoded_bytes = int(entries["nbytes"][live].sum())
    report.decoded_bytes = len(live) * array.chunk_bytes
    gap_after, leading = _gaps(entries[live], data_range)
    sizes = np.append(gap_after, leading)
    report.gaps, report.gap_bytes, report.largest_gap_bytes = (
        int((sizes > 0).sum()),
        int(sizes.sum()),
        int(sizes.max()),
    )
    forms: Counter[str] = Counter()
    for chunk, gap in zip(live.tolist(), gap_after.tolist(), strict=True):
        offset, nbytes = int(entries["offset"][chunk]), int(entries["nbytes"][chunk])
        form = _form(report, array, sealed.file, chunk, offset, nbytes)
        forms[form] += 1
        if keep:
            where = array.chunk_coordinates(report.coordinates, chunk)
            report.chunk_reports.append(
                ChunkReport(chunk, where, offset, nbytes, offset % PAGE_BYTES == 0, gap, form)
            )
    report.forms = dict(forms.most_common())


def _gaps(live: npt.NDArray[np.void], data_range: tuple[int, int]) -> tuple[npt.NDArray[np.int64], int]:
    """Returns the unused bytes after each live chunk, and those before the first one. Chunks that overlap
    leave no gap."""
    start, stop = data_range
    if not len(live):
        return np.empty(0, np.int64), stop - start
    offsets, ends = live["offset"].astype(np.int64), (live["offset"] + live["nbytes"]).astype(np.int64)
    order = np.argsort(offsets, kind="stable")
    reach = np.maximum.accumulate(ends[order])
    following = np.append(offsets[order][1:], stop)
    after = np.zeros(len(live), np.int64)
    after[order] = np.maximum(0, following - reach)
    return after, int(offsets[order[0]]) - start


def _form(
    report: ShardReport, array: StoredArray, file: ReadFile, chunk: int, offset: int, nbytes: int
) -> str:
    try:
        return str(array.describe(file.read(offset, min(HEAD_BYTES, nbytes)), nbytes))
    except ShardFormatError as error:
        report.problems.append(f"chunk {chunk}: {error}")
        return "unreadable"
