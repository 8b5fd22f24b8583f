"""The verdict on the cameras: whether their rates can be held, and for how long the disk lasts. Pure
arithmetic."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shardwright.config.plan import Plan, StreamPlan
    from shardwright.wire.controls import Transport

Held = Literal["yes", "barely", "no", "unknown"]
ACCURACY = 0.15  # how far a trial may be off: a camera nearer to it than this is held barely


@dataclass(frozen=True)
class CameraRate:
    """The trial of one camera, beside all others: ``frames`` of ``sample`` became durable in ``seconds``.
    ``bytes_per_s``: of raw pixels; ``ratio``: of raw to stored bytes, levels included."""

    sample: str
    frames: int
    seconds: float
    bytes_per_s: float
    ratio: float


@dataclass(frozen=True)
class Measured:
    """The trial: each stream by its name. ``transport``: of the cameras' pixels."""

    transport: Transport
    streams: dict[str, CameraRate]
    seconds: float


@dataclass(frozen=True)
class StreamVerdict:
    """One camera while all of them acquire. Rates are raw bytes a second; None: not known or not measured.

    ``load``: what it needs, as a part of what it reached. ``hours``: how long the disk lasts for it alone.
    ``ratio``: without compression where that was not measured.
    """

    name: str
    needed_bytes_per_s: float | None
    frame_rate_hz: float | None
    sustained_bytes_per_s: float | None
    sustained_frame_rate_hz: float | None
    load: float | None
    held: Held
    ratio: float
    hours: float | None


@dataclass(frozen=True)
class CamerasVerdict:
    """All cameras at the same time. ``load``: of all their bytes; ``hours``: until the disk is at
    ``output.low_water``."""

    streams: tuple[StreamVerdict, ...]
    load: float | None
    held: Held
    hours: float | None
    measured: Measured | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(plan: Plan, low_water_bytes: int, measured: Measured | None) -> CamerasVerdict:
    """Returns the verdict. Without ``measured`` it has only the needed rates, and how long the disk lasts
    for frames and levels without compression."""
    needed, load = plan.data_rate_bytes_per_s, None
    if measured is not None and needed is not None:
        load = needed / sum(rate.bytes_per_s for rate in measured.streams.values())
    room = max(0, plan.disk_free_bytes - plan.disk_reserved_bytes - low_water_bytes)
    streams = tuple(_judge_stream(stream, load, room, measured) for stream in plan.streams)
    stored = [None if s.needed_bytes_per_s is None else s.needed_bytes_per_s / s.ratio for s in streams]
    known = [rate for rate in stored if rate is not None]
    hours = hours_to_full(room, sum(known)) if len(known) == len(stored) else None
    return CamerasVerdict(streams, load, _held(load), hours, measured)


def _judge_stream(
    stream: StreamPlan, load_of_all: float | None, room_bytes: int, measured: Measured | None
) -> StreamVerdict:
    needed = stream.data_rate_bytes_per_s
    rate = None if measured is None else measured.streams[stream.name]
    load = None if rate is None or needed is None else needed / rate.bytes_per_s
    held = _held(load if load_of_all is None else load_of_all)
    if load_of_all is None and held == "no":
        held = "unknown"  # those whose rates are not known took as much as they could
    ratio = stream.limits.frame_bytes / stream.disk_frame_bytes if rate is None else rate.ratio
    return StreamVerdict(
        name=stream.name,
        needed_bytes_per_s=needed,
        frame_rate_hz=stream.frame_rate_hz,
        sustained_bytes_per_s=None if rate is None else rate.bytes_per_s,
        sustained_frame_rate_hz=None if rate is None else rate.bytes_per_s / stream.frame_bytes,
        load=load,
        held=held,
        ratio=ratio,
        hours=None if needed is None else hours_to_full(room_bytes, needed / ratio),
    )


def _held(load: float | None) -> Held:
    if load is None:
        return "unknown"
    return "yes" if load <= 1 / (1 + ACCURACY) else "barely" if load <= 1 else "no"


def hours_to_full(room_bytes: int, bytes_per_s: float) -> float:
    """Returns how long a disk with so much room lasts at this rate."""
    return room_bytes / bytes_per_s / 3600
