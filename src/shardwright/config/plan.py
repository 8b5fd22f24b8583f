"""The plan: all limits and costs that follow from a configuration, before the first frame arrives.

For each stream it has the pipeline's limits, what they mean at its frame rate and what its promises cost; for
the daemon its peak memory and the disk that it takes before the first frame, compared with the budget and
this machine. A configuration that cannot work raises a ``ConfigError`` that names the field and its line. A
disk that is full now is a warning.
"""

from __future__ import annotations

import grp
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwright.acquire.limits import RUNTIME_BYTES, Limits, machine_memory_bytes
from shardwright.array.grid import Grid
from shardwright.array.ome import acquisition_warnings
from shardwright.disk.choose_io import resolve_io
from shardwright.disk.files import free_bytes
from shardwright.disk.filesystems import nearest_folder
from shardwright.model.display_text import format_bytes
from shardwright.model.errors import AddressError, BudgetError, ConfigError, StorageError
from shardwright.read.frame_parquet import check_parquet

from .durability import (
    SafetyCost,
    can_degrade,
    degraded_for_good_warnings,
    disk_warnings,
    overload_warnings,
    ring_warnings,
    room_warnings,
    uncovered_warnings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.model.write_options import LiveMode, Profile

    from .load import LoadedConfig
    from .model import Compaction, Reliability, StreamConfig
    from .source import FieldPath


@dataclass(frozen=True)
class StreamPlan:
    """The plan of one stream. Rates are None where no frame rate is known. ``spec``: of the image with the
    largest frames. ``shard_files_per_frame`` counts the fraction of a shared file, ``disk_frame_bytes`` the
    levels as well, uncompressed; both of the image that has most. ``copies_bytes``: of the copies of shards
    in progress that readers see grow (``live: append``)."""

    name: str
    acquisition: AcquisitionSpec
    spec: ArraySpec
    limits: Limits
    reliability: Reliability
    safety: SafetyCost
    frame_rate_hz: float | None
    shard_files_per_frame: float
    disk_frame_bytes: float
    copies_bytes: int
    profile: Profile

    @property
    def warnings(self) -> tuple[str, ...]:
        return (
            *acquisition_warnings(self.acquisition, self.profile),
            *ring_warnings(self.reliability, self.ring_seconds),
            *overload_warnings(self.acquisition, self.reliability),
        )

    @property
    def may_degrade(self) -> bool:
        return self.reliability.overload == "degrade" and can_degrade(self.acquisition)

    @property
    def disk_reserved_bytes(self) -> int:
        """Disk that the stream takes when it opens: preallocated shards, and the needs of crash safety."""
        return self.limits.disk_reserved_bytes + self.copies_bytes + self.safety.disk_bytes

    @property
    def frame_bytes(self) -> int:
        """Of one frame of the camera: of colours all of its channels, which the limits count one by one."""
        return self.limits.frame_bytes * self.spec.frame_places

    @property
    def _places_per_s(self) -> float | None:
        return None if self.frame_rate_hz is None else self.frame_rate_hz * self.spec.frame_places

    @property
    def data_rate_bytes_per_s(self) -> float | None:
        """Of the camera's frames."""
        return None if self.frame_rate_hz is None else self.frame_rate_hz * self.frame_bytes

    @property
    def disk_rate_bytes_per_s(self) -> float | None:
        """Of the frames and their levels, before compression."""
        return None if self._places_per_s is None else self._places_per_s * self.disk_frame_bytes

    @property
    def raw_bytes_per_hour(self) -> float | None:
        return None if self.data_rate_bytes_per_s is None else self.data_rate_bytes_per_s * 3600

    @property
    def shard_files_per_hour(self) -> float | None:
        return None if self._places_per_s is None else self._places_per_s * 3600 * self.shard_files_per_frame

    @property
    def ring_seconds(self) -> float | None:
        """The time for which the ring bridges a disk that does not answer."""
        return None if self._places_per_s is None else self.limits.ring_frames / self._places_per_s

    @property
    def open_shard_files(self) -> int:
        """The number of shard files that are filled or sealed at once while frames come in order."""
        limits = self.limits
        return limits.mapped_bytes // limits.shard_row_bytes * limits.shard_files_per_shard_row

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "frame_rate_hz": self.frame_rate_hz,
            "data_rate_bytes_per_s": self.data_rate_bytes_per_s,
            "disk_rate_bytes_per_s": self.disk_rate_bytes_per_s,
            "raw_bytes_per_hour": self.raw_bytes_per_hour,
            "shard_files_per_hour": self.shard_files_per_hour,
            "ring_seconds": self.ring_seconds,
            "open_shard_files": self.open_shard_files,
            "images": len(self.acquisition.names),
            # With the default, which JSON for peers leaves out.
            "array": {**self.spec.model_dump(mode="json"), "index_location": self.spec.index_location},
            "limits": self.limits.to_dict(),
            "reliability": self.reliability.model_dump(mode="json"),
            "safety": self.safety.to_dict(),
            "disk_reserved_bytes": self.disk_reserved_bytes,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Plan:
    """The plan of the daemon with every configured stream acquiring at once. ``warnings``: those that no
    single stream causes."""

    streams: tuple[StreamPlan, ...]
    threads: int
    memory_budget_bytes: int
    machine_memory_bytes: int
    output_root: Path
    disk_free_bytes: int
    descriptors_for_acquisitions: int
    warnings: tuple[str, ...]
    compaction: Compaction

    @property
    def descriptors(self) -> int:
        """The most open files of all streams together."""
        return sum(s.limits.descriptors for s in self.streams)

    @property
    def memory_peak_bytes(self) -> int:
        """The memory that ingest counts against the budget when every stream acquires: the process itself and
        each stream's share."""
        return RUNTIME_BYTES + sum(s.limits.acquisition_bytes for s in self.streams)

    @property
    def mapped_bytes(self) -> int:
        """Page cache of open shards where they are mapped, beside the memory: the kernel writes it back and
        reclaims it when needed."""
        return sum(s.limits.mapped_bytes for s in self.streams)

    @property
    def disk_reserved_bytes(self) -> int:
        return sum(s.disk_reserved_bytes for s in self.streams)

    @property
    def ring_bytes(self) -> int:
        return sum(s.limits.ring_bytes for s in self.streams)

    @property
    def data_rate_bytes_per_s(self) -> float | None:
        """Of the cameras' frames; None where a stream's frame rate is not known, or there is none."""
        return _sum_if_known([s.data_rate_bytes_per_s for s in self.streams])

    @property
    def disk_rate_bytes_per_s(self) -> float | None:
        """With levels, before compression; None as ``data_rate_bytes_per_s``."""
        return _sum_if_known([s.disk_rate_bytes_per_s for s in self.streams])

    @property
    def shard_files_per_hour(self) -> float | None:
        """As ``data_rate_bytes_per_s``."""
        return _sum_if_known([s.shard_files_per_hour for s in self.streams])

    def to_dict(self) -> dict[str, Any]:
        return {
            "streams": [s.to_dict() for s in self.streams],
            "threads": self.threads,
            "memory_peak_bytes": self.memory_peak_bytes,
            "mapped_bytes": self.mapped_bytes,
            "memory_budget_bytes": self.memory_budget_bytes,
            "machine_memory_bytes": self.machine_memory_bytes,
            "output_root": str(self.output_root),
            "disk_reserved_bytes": self.disk_reserved_bytes,
            "disk_free_bytes": self.disk_free_bytes,
            "descriptors": self.descriptors,
            "descriptors_for_acquisitions": self.descriptors_for_acquisitions,
            "compaction": self.compaction.model_dump(mode="json"),
            "warnings": list(self.warnings),
        }


def _sum_if_known(rates: list[float | None]) -> float | None:
    return None if not rates or None in rates else sum(rate for rate in rates if rate is not None)


def make_plan(loaded: LoadedConfig, *, frame_rate_hz: float | None = None) -> Plan:
    """Derives and checks the plan. ``frame_rate_hz`` replaces every stream's own. Raises ``ConfigError``;
    ``AddressError`` for a group that is not there, ``StorageError`` where a disk cannot be looked at."""
    config = loaded.config
    _refuse_an_unknown_group(loaded)
    root, spill_root, low_water = config.output.root, config.output.spill_root, config.output.low_water
    descriptors = config.ingest.descriptors_for_acquisitions
    share = descriptors // config.ingest.max_sessions
    plan = Plan(
        streams=tuple(
            _plan_stream(loaded, i, stream, frame_rate_hz, share) for i, stream in enumerate(config.streams)
        ),
        threads=config.workers.count,
        memory_budget_bytes=config.memory.budget,
        machine_memory_bytes=machine_memory_bytes(),
        output_root=root,
        disk_free_bytes=free_bytes(nearest_folder(root)),
        descriptors_for_acquisitions=descriptors,
        warnings=(),
        compaction=config.compaction,
    )
    _refuse_what_does_not_fit(loaded, plan)
    if config.output.io == "mmap":
        _refuse_an_unsafe_mapping(loaded)
    if config.output.frame_parquet:
        _refuse_a_missing_package(loaded)
    return replace(
        plan,
        warnings=(
            *degraded_for_good_warnings([s.name for s in plan.streams if s.may_degrade], config.compaction),
            *uncovered_warnings({s.name: s.acquisition for s in plan.streams}, config.compaction),
            *disk_warnings(
                config.output,
                nearest_folder(root),
                spill_root and nearest_folder(spill_root),
                spills=config.spills,
            ),
            *room_warnings("output.root", root, plan.disk_free_bytes, plan.disk_reserved_bytes, low_water),
            *(
                room_warnings(
                    "output.spill_root", spill_root, free_bytes(nearest_folder(spill_root)), 0, low_water
                )
                if spill_root is not None
                else ()
            ),
            *((MAPPING_WARNING,) if config.output.io == "mmap" else ()),
            *(_page_cache_warnings(plan) if config.output.io in ("auto", "mmap") else ()),
        ),
    )


def _plan_stream(
    loaded: LoadedConfig, i: int, stream: StreamConfig, frame_rate_hz: float | None, descriptors: int
) -> StreamPlan:
    config = loaded.config
    ring_frames = None if stream.ring_frames == "auto" else stream.ring_frames
    try:
        limits = Limits.derive(
            config.acquisition_of(stream),
            threads=config.workers.count,
            ring_frames=ring_frames,
            memory_bytes=config.memory.budget,
            descriptors=descriptors,
        )
    except BudgetError as error:
        path: FieldPath
        path, problem = {
            "memory": (("memory", "budget"), f"too small for stream {stream.name}: {error.message}"),
            "ring_frames": (("streams", i, "ring_frames"), "too small for this chunking"),
            "descriptors": (("streams", i, "array"), error.message),
        }[error.short_of]
        raise loaded.source.error(
            path, problem, expected=error.expected, got=error.got, hint=error.hint
        ) from None
    return stream_plan(
        stream.name,
        stream.acquisition,
        limits,
        config.reliability_of(stream),
        ballast_bytes=config.output.ballast,
        live=config.output.live,
        profile=config.output.profile,
        frame_rate_hz=frame_rate_hz or stream.frame_rate_hz,
    )


def stream_plan(
    name: str,
    acquisition: AcquisitionSpec,
    limits: Limits,
    reliability: Reliability,
    *,
    ballast_bytes: int,
    live: LiveMode,
    profile: Profile,
    frame_rate_hz: float | None = None,
) -> StreamPlan:
    """Returns the plan of one acquisition: of a stream, or of an acquisition in process."""
    grids = [Grid.of(array) for array in acquisition.distinct_arrays]
    return StreamPlan(
        name=name,
        acquisition=acquisition,
        spec=max(acquisition.distinct_arrays, key=lambda array: array.frame_bytes),
        limits=limits,
        reliability=reliability,
        safety=SafetyCost.of(acquisition, limits, ballast_bytes, live),
        frame_rate_hz=frame_rate_hz,
        shard_files_per_frame=max(map(shard_files_per_frame, grids)),
        disk_frame_bytes=max(map(disk_frame_bytes, grids)),
        copies_bytes=limits.mapped_bytes if live == "append" else 0,
        profile=profile,
    )


def _refuse_what_does_not_fit(loaded: LoadedConfig, plan: Plan) -> None:
    peak = plan.memory_peak_bytes
    if peak > plan.memory_budget_bytes:
        raise loaded.source.error(
            ("memory", "budget"),
            "too small for the daemon and all streams at the same time",
            expected=f"at least {format_bytes(peak)}",
            got=format_bytes(plan.memory_budget_bytes),
            hint="Raise it, or make chunk_size or ring_frames smaller.",
        )
    if peak > plan.machine_memory_bytes:
        raise loaded.source.error(
            ("memory", "budget"),
            "the streams need more memory than this machine has",
            expected=f"at most {format_bytes(plan.machine_memory_bytes)}",
            got=format_bytes(peak),
            hint="Make chunk_size or ring_frames smaller.",
        )
    if plan.descriptors > plan.descriptors_for_acquisitions:
        ingest = loaded.config.ingest
        raise loaded.source.error(
            ("streams",) if plan.streams else ("ingest",),
            "the daemon cannot open enough files for all streams and connections at the same time",
            expected=f"at most {max(0, plan.descriptors_for_acquisitions)} descriptors for streams, with "
            f"{ingest.max_connections} connections",
            got=plan.descriptors,
            hint="Raise LimitNOFILE (ulimit -Hn), lower ingest.max_connections, or make shard_size_chunks "
            "of the frame's axes larger.",
        )


def _refuse_an_unknown_group(loaded: LoadedConfig) -> None:
    group = loaded.config.ingest.group
    if group is None:
        return
    try:
        grp.getgrnam(group)
    except (KeyError, ValueError):  # ValueError: a NUL in the name
        error = loaded.source.error(("ingest", "group"), "is not a group of this machine")
        # of a directory service it may be one a moment later, as an address
        hint = "Correct that line, or make the group."
        raise AddressError(error.message, got=repr(group)[:80], hint=hint) from None


MAPPING_WARNING = (
    "output.io: mmap: a process of the daemon's user that truncates a file being written (.partial), or a "
    "disk that dies, ends the daemon and all acquisitions with it (SIGBUS); the next start recovers the "
    "stored frames. With auto, direct or pwrite only that shard is damaged"
)


def _refuse_a_missing_package(loaded: LoadedConfig) -> None:
    try:
        check_parquet()
    except ConfigError as error:
        raise loaded.source.error(("output", "frame_parquet"), error.message, hint=error.hint) from None


def _refuse_an_unsafe_mapping(loaded: LoadedConfig) -> None:
    output = loaded.config.output
    roots = [root for root in (output.root, output.spill_root) if root is not None]
    # where the disk of a root is not mounted yet, the folder above it tells nothing
    folders = [above for root in roots if (above := nearest_folder(root)) == root or output.create]
    try:
        resolve_io("mmap", folders)
    except StorageError as error:
        raise loaded.source.error(
            ("output", "io"), error.message, expected="auto, direct or pwrite", got="mmap"
        ) from None


def shard_files_per_frame(grid: Grid) -> float:
    """Returns the array's shard files for each of its frames, once it is long; exact for an array of
    limited length."""
    if not grid.unlimited:
        return grid.files_per_shard_row * math.prod(grid.shard_row_counts) / math.prod(grid.counts)
    frames_along_first = grid.chunk[0] * grid.shard_chunks[0]
    return (
        grid.files_per_shard_row
        * math.prod(grid.shard_row_counts[1:])
        / (frames_along_first * math.prod(grid.counts[1:]))
    )


def disk_frame_bytes(grid: Grid) -> float:
    """Returns the uncompressed bytes that a frame adds to the array and to its levels."""
    return sum(
        level.frame_bytes
        * math.prod(n / below for n, below in zip(level.counts, grid.counts, strict=True) if below)
        for level in (grid, *grid.levels)
    )


def _page_cache_warnings(plan: Plan) -> Iterator[str]:
    if plan.memory_peak_bytes + plan.mapped_bytes > plan.machine_memory_bytes:
        yield (
            f"open shards, where they are mapped, take {format_bytes(plan.mapped_bytes)} of page cache; with "
            f"the peak memory that is more than the {format_bytes(plan.machine_memory_bytes)} of this "
            f"machine, so the disk must keep up at every moment; make shard_size_chunks smaller"
        )
