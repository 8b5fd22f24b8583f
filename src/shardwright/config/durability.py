"""The disk space that crash safety takes, and warnings where the configured disks do not keep its
promises."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shardwright.array.grid import Grid
from shardwright.codecs.degrade import degrade_ladder
from shardwright.codecs.parameters import CodecParameters
from shardwright.codecs.recompress import is_covered, parse_recompress
from shardwright.disk.filesystems import (
    memory_filesystem,
    nearest_folder,
    remote_filesystem,
    same_filesystem,
)
from shardwright.model.display_text import format_bytes
from shardwright.shard.frame_record import record_of
from shardwright.shard.journal import JournalLayout
from shardwright.shard.layout import ArrayLayout, page_aligned
from shardwright.store.store_folder import rows_share_journals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardwright.acquire.limits import Limits
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.codecs.degrade import DegradeLevel
    from shardwright.model.write_options import LiveMode

    from .model import Compaction, Output, Reliability


@dataclass(frozen=True)
class SafetyCost:
    """The disk space of one open acquisition beside its shards; all of it is given back when the acquisition
    is sealed.

    ``staging_bytes``: room for the raw frames of unfinished slabs. ``journals``: one for each shard row that
    is prepared, filled or sealed. ``journal_bytes``: of the largest, whichever image it belongs to.
    ``shared_rows``: more of them where rows share journals, which lie there until their last row ends.
    ``ballast_bytes``: reserved for sealing and recovery on a full disk.
    """

    staging_bytes: int
    journal_bytes: int
    journals: int
    shared_rows: int
    ballast_bytes: int

    @classmethod
    def of(
        cls, acquisition: AcquisitionSpec, limits: Limits, ballast_bytes: int, live: LiveMode = "none"
    ) -> SafetyCost:
        # Once that many lie there, each further row in progress has a journal of its own.
        most = limits.shared_journal_rows + limits.open_shard_rows
        return cls(
            staging_bytes=limits.staging_frames * page_aligned(limits.staged_bytes),
            journal_bytes=max(journal_bytes(array, grid) for array, grid in grids_of_distinct(acquisition)),
            journals=limits.disk_reserved_bytes // limits.shard_row_bytes,
            shared_rows=most if rows_share_journals(acquisition, live) else 0,
            ballast_bytes=ballast_bytes,
        )

    @property
    def disk_bytes(self) -> int:
        # A shared journal is no larger than those of its rows would be: it has two pages beside their tables.
        journals_bytes = (self.journals + self.shared_rows) * self.journal_bytes
        return self.staging_bytes + journals_bytes + self.ballast_bytes

    def to_dict(self) -> dict[str, int]:
        return {**asdict(self), "disk_bytes": self.disk_bytes}


def journal_bytes(spec: ArraySpec, grid: Grid) -> int:
    """Returns the size of the largest row's journal: the first row's, since only far edges cut rows."""
    codec = CodecParameters.of(spec, grid.chunk_bytes)
    layout = ArrayLayout.of_spec(spec, grid, codec.max_encoded_bytes)
    return JournalLayout.of(layout, grid.first, record_of(spec)).file_bytes


def grids_of_distinct(acquisition: AcquisitionSpec) -> list[tuple[ArraySpec, Grid]]:
    """Returns each array of an acquisition once, with the grid of the first image that has it."""
    both = zip(acquisition.arrays, acquisition.grids.grids, strict=True)
    return list({id(array): (array, grid) for array, grid in reversed(list(both))}.values())


def ring_warnings(reliability: Reliability, ring_seconds: float | None) -> Iterator[str]:
    """Warns of a ring that is too short for a durable stream, which holds every frame there until its sync
    has ended."""
    needed_s = 2 * reliability.sync_interval_ms / 1000
    if reliability.durability != "durable" or ring_seconds is None or ring_seconds >= needed_s:
        return
    cause = (
        f"durability is durable: frames stay in the ring until they are synced, and it bridges "
        f"{ring_seconds:.2f} s"
    )
    yield (
        f"{cause}; make ring_frames larger (for {needed_s:g} s, two sync intervals) or sync_interval_ms "
        f"smaller, otherwise the camera waits"
    )


def longest_degrade_ladder(acquisition: AcquisitionSpec) -> tuple[DegradeLevel, ...]:
    """Returns the levels of encoding of the image that has the most of them."""
    ladders = (
        degrade_ladder(CodecParameters.of(array, Grid.of(array).chunk_bytes))
        for array in acquisition.distinct_arrays
    )
    return max((tuple(ladder) for ladder in ladders), key=len)


def can_degrade(acquisition: AcquisitionSpec) -> bool:
    """True if the codec of an image has a faster setting."""
    return len(longest_degrade_ladder(acquisition)) > 1


def overload_warnings(acquisition: AcquisitionSpec, reliability: Reliability) -> Iterator[str]:
    if reliability.overload != "degrade" or can_degrade(acquisition):
        return
    yield (
        "overload is degrade, but the codec compresses nothing: it cannot become faster, and the camera "
        "waits as with block"
    )


def degraded_for_good_warnings(degrading: list[str], compaction: Compaction) -> Iterator[str]:
    """Warns where nothing compresses the frames again. ``degrading``: names of the streams that may write
    with less compression."""
    if not degrading or (compaction.enabled and compaction.recompress is not None):
        return
    names = f"{', '.join(degrading)}: chunks that overload: degrade writes with less compression stay so"
    yield (
        f"{names}; set compaction: {{enabled: true, recompress: codec}}, or run shardwright compact "
        f"--recompress codec"
    )


def uncovered_warnings(streams: Mapping[str, AcquisitionSpec], compaction: Compaction) -> Iterator[str]:
    """Warns of streams whose stores are refused by every compaction. ``streams``: by name."""
    if compaction.recompress is None:
        return
    wish = parse_recompress(compaction.recompress)
    names = [
        name
        for name, acquisition in streams.items()
        if not all(is_covered(array.codec, wish) for array in acquisition.distinct_arrays)
    ]
    if not names:
        return
    yield (
        f"{', '.join(names)}: stores are not compacted, since compaction.recompress "
        f"({compaction.recompress}) does not fit their codec: blosc takes lz4, lz4hc, zlib and zstd of "
        f"levels 0 to 9, zstd and gzip a level of their own, none takes codec alone"
    )


def disk_warnings(output: Output, root: Path, spill_root: Path | None, *, spills: bool) -> Iterator[str]:
    """Warns of disks that weaken the promises. ``root`` and ``spill_root`` are existing folders on the disks
    that ``output`` names."""
    yield from _promise_warnings("output.root", root, output)
    if spill_root is None:
        return
    yield from _promise_warnings("output.spill_root", spill_root, output)
    if not spills:
        yield f"output.spill_root {output.spill_root} is never used: no on_full is spill"
    elif same_filesystem(root, spill_root):
        yield (
            f"output.spill_root {output.spill_root} is on the same filesystem as output.root: both "
            f"are full at the same time"
        )


def room_warnings(
    name: str, root: Path, free_bytes: int, reserved_bytes: int, low_water_bytes: int
) -> Iterator[str]:
    """Warns of a disk that is too full. Never an error: what an unfinished store has preallocated is not
    free, and needed only once, so that a daemon that was killed would not start again."""
    if free_bytes - reserved_bytes >= low_water_bytes:
        return
    free = f"{format_bytes(free_bytes)} are free"
    if (above := nearest_folder(root)) != root:
        free += f" in {above}, as {root} does not exist (is its disk mounted?)"
    if reserved_bytes > free_bytes:
        yield (
            f"{name} has no room for the preallocated shards and the files that crash safety needs "
            f"beside them, unless unfinished stores hold it already: {format_bytes(reserved_bytes)} are "
            f"needed, {free}; free some space, or make shard_size_chunks, ring_frames or output.ballast "
            f"smaller"
        )
    else:
        low_water = format_bytes(low_water_bytes)
        yield f"{name} is below output.low_water ({low_water}) as soon as every stream acquires; {free}"


def _promise_warnings(name: str, path: Path, output: Output) -> Iterator[str]:
    if remote := remote_filesystem(path):
        what = (
            "FUSE, which is often a network filesystem"
            if remote == "fuse"
            else (f"a network filesystem ({remote})")
        )
        yield (
            f"{name} is on {what}: its server decides whether stored and durable frames are safe, and "
            f"other machines may not see a lock"
        )
    elif memory := memory_filesystem(path):
        refused = "" if output.in_memory else "; serve refuses it unless output.in_memory is true"
        yield f"{name} is in memory ({memory}): nothing there is durable{refused}"
