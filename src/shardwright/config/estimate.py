"""``shardwright.estimate``: what an acquisition takes, of the plan that ``shardwright check`` prints for a
stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.acquisition_spec import in_chunks_as, parse_acquisition, with_index_for
from shardwright.model.display_text import FactSheet, format_bytes
from shardwright.model.extras import naming_missing_extra
from shardwright.model.write_settings import WriteSettings

if TYPE_CHECKING:
    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec


@dataclass(frozen=True, repr=False)
class Estimate(FactSheet):
    """The cost of one acquisition.

    memory_bytes         the most memory of a process that writes it, with the process itself
    disk_reserved_bytes  the disk that it takes before the first frame; what is not filled is given back
    frame_bytes          pixels of one frame as it comes
    disk_frame_bytes     what a frame adds to the disk uncompressed, with its levels; of the largest image
    files_per_frame      files of shards (or chunks, without shards) for each frame; a part of a shared one
    open_files           the most files that are open at once
    frames, disk_bytes,  in all, uncompressed, and files of shards; None where an axis has no count
    files
    """

    memory_bytes: int
    disk_reserved_bytes: int
    frame_bytes: int
    disk_frame_bytes: float
    files_per_frame: float
    open_files: int
    frames: int | None
    disk_bytes: int | None
    files: int | None

    def _facts(self) -> dict[str, object]:
        return {
            name: format_bytes(round(value)) if name.endswith("_bytes") and value is not None else value
            for name, value in asdict(self).items()
        }

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate(
    spec: ArraySpec | AcquisitionSpec | dict[str, Any],
    settings: WriteSettings | None = None,
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
) -> Estimate:
    """Estimates what an acquisition takes: memory, disk and files. Writes nothing.

    Parameters
    ----------
    spec : ArraySpec, AcquisitionSpec or dict
        What is stored, such as ``sw.default_layout`` makes it, or ``Writer.images`` has it.
    settings, threads, memory_bytes
        As of ``create``.

    Raises
    ------
    SpecError, BudgetError
        As ``create`` does, for what cannot be written, or not with so much memory.

    Examples
    --------
    >>> found = sw.estimate(sw.default_layout((100, 2048, 2048), "uint16", chunks={"t": 1}, shards={"t": 20}))
    >>> found.frames, found.files, found.disk_bytes
    (100, 5, 838860800)
    """
    with naming_missing_extra("shardwright.estimate"):
        from shardwright.acquire.limits import Limits, default_threads, machine_memory_bytes

        from .model import Reliability
        from .plan import disk_frame_bytes, shard_files_per_frame, stream_plan
    write = settings or WriteSettings()
    acquisition = parse_acquisition(spec)
    acquisition = in_chunks_as(write.partial_chunks, with_index_for(write.live, acquisition))
    limits = Limits.derive(
        acquisition,
        threads=threads or default_threads(),
        memory_bytes=memory_bytes or machine_memory_bytes(),
    )
    plan = stream_plan(
        "",
        acquisition,
        limits,
        Reliability(),
        ballast_bytes=write.ballast_bytes,
        live=write.live,
        profile=write.profile,
    )
    frames, files, disk_bytes = acquisition.total_frames, None, None
    if frames is not None:
        grids = [(grid, grid.total_frames or 0) for grid in acquisition.grids.grids]
        files = sum(round(shard_files_per_frame(grid) * count) for grid, count in grids)
        disk_bytes = sum(round(disk_frame_bytes(grid) * count) for grid, count in grids)
    return Estimate(
        memory_bytes=limits.memory_bytes,
        disk_reserved_bytes=plan.disk_reserved_bytes,
        frame_bytes=plan.frame_bytes,
        disk_frame_bytes=plan.disk_frame_bytes * acquisition.frame_places,
        files_per_frame=plan.shard_files_per_frame * acquisition.frame_places,
        open_files=limits.descriptors,
        frames=frames,
        disk_bytes=disk_bytes,
        files=files,
    )
