"""The verdict on each camera from the measurements: can its rate be held, which floor binds, what to change.
Pure arithmetic.

A stage alone gives a floor. Real acquisitions measure the rate of all stages together, on the same cores:
that is the prediction, and the floor that binds is the lowest. The cores are a floor as well: the seconds of
all of them, divided by the CPU seconds that a gigabyte took.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from shardwright.array.default_layout import default_chunk_bytes, layout_advice
from shardwright.config.durability import can_degrade

if TYPE_CHECKING:
    from shardwright.config.plan import Plan, StreamPlan
    from shardwright.model.write_options import IoMode

Transport = Literal["in-process", "shm", "message"]


@dataclass(frozen=True)
class StageRate:
    """Of one stage alone. ``cpu_s_per_gb``: of a billion of the bytes that ``bytes_per_s`` counts."""

    bytes_per_s: float
    cpu_s_per_gb: float

    def to_dict(self) -> dict[str, float]:
        return {"bytes_per_s": self.bytes_per_s, "cpu_s_per_gb": self.cpu_s_per_gb}


@dataclass(frozen=True)
class KernelRate:
    """Frames to encoded chunks in memory, on all cores. ``encoded_bytes`` of each chunk of one slab, in the
    order of the layout's tables."""

    rate: StageRate
    ratio: float
    encoded_bytes: tuple[int, ...]


@dataclass(frozen=True)
class AcquisitionRun:
    """One acquisition at full speed. ``seconds`` from its opening until it is sealed; the others once its
    ring was full."""

    frames: int
    raw_bytes: int
    stored_bytes: int
    seconds: float
    sustained_bytes_per_s: float
    cpu_s_per_gb: float

    @property
    def start_s(self) -> float:
        """What an acquisition takes beside its frames: the ring's memory, files, sealing the last shard;
        below 0 where the ring hid a part."""
        return self.seconds - self.raw_bytes / self.sustained_bytes_per_s


@dataclass(frozen=True)
class Acquisitions:
    """Rounds of one stream over one transport; medians count, as single rounds meet a slow moment of the
    disk."""

    transport: Transport
    runs: tuple[AcquisitionRun, ...]

    @property
    def sustained_bytes_per_s(self) -> float:
        return median(run.sustained_bytes_per_s for run in self.runs)

    @property
    def spread_bytes_per_s(self) -> tuple[float, float]:
        rates = [run.sustained_bytes_per_s for run in self.runs]
        return min(rates), max(rates)

    @property
    def cpu_s_per_gb(self) -> float:
        return median(run.cpu_s_per_gb for run in self.runs)

    @property
    def start_s(self) -> float:
        return median(run.start_s for run in self.runs)

    @property
    def ratio(self) -> float:
        return median(run.raw_bytes / run.stored_bytes if run.stored_bytes else 1.0 for run in self.runs)

    def bytes_per_s_of(self, raw_bytes: float) -> float:
        """Predicted for an acquisition of this size as a whole, from its opening until it is sealed."""
        return raw_bytes / max(self.start_s + raw_bytes / self.sustained_bytes_per_s, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        least, most = self.spread_bytes_per_s
        return {
            "transport": self.transport,
            "rounds": len(self.runs),
            "sustained_bytes_per_s": self.sustained_bytes_per_s,
            "sustained_bytes_per_s_least": least,
            "sustained_bytes_per_s_most": most,
            "start_s": self.start_s,
            "cpu_s_per_gb": self.cpu_s_per_gb,
            "ratio": self.ratio,
            "raw_bytes_of_a_round": round(median(run.raw_bytes for run in self.runs)),
        }


@dataclass(frozen=True)
class StreamRates:
    """Everything that was measured for one stream. ``disk``: bytes of encoded chunks a second for each way of
    writing. ``transport``: of each way that pixels may come, alone. ``other_codecs``: the kernel with
    settings that the stream does not have."""

    sample: str
    kernel: KernelRate
    disk: dict[IoMode, StageRate]
    io: IoMode
    transport: dict[Transport, StageRate]
    acquisitions: dict[Transport, Acquisitions]
    other_codecs: dict[str, KernelRate] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sample": self.sample,
            "ratio": self.kernel.ratio,
            "kernel": self.kernel.rate.to_dict(),
            "io": self.io,
            "disk": {mode: rate.to_dict() for mode, rate in self.disk.items()},
            "transport": {name: rate.to_dict() for name, rate in self.transport.items()},
            "acquisitions": {name: runs.to_dict() for name, runs in self.acquisitions.items()},
            "other_codecs": {
                name: {**each.rate.to_dict(), "ratio": each.ratio} for name, each in self.other_codecs.items()
            },
        }


@dataclass(frozen=True)
class Measured:
    """The machine, and each stream by its name. ``daemon_transport``: how a camera on this machine would
    send."""

    cores: int
    memory_copy: StageRate
    daemon_transport: Transport
    streams: dict[str, StreamRates]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "cores": self.cores,
            "memory_copy": self.memory_copy.to_dict(),
            "daemon_transport": self.daemon_transport,
            "streams": {name: rates.to_dict() for name, rates in self.streams.items()},
            "seconds": self.seconds,
        }


Held = Literal["yes", "barely", "no", "unknown"]
FloorName = Literal["kernel", "disk", "transport", "processors", "pipeline"]
ACCURACY = 0.15  # how far the prediction may be off: a camera nearer to it than this is held barely
WAITS_BELOW = 0.75  # of the lowest floor: below it the stages stall on each other
SMALL_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True)
class Floor:
    """The most raw bytes a second that one resource allows. ``basis``: what it was derived from, for
    people."""

    name: FloorName
    bytes_per_s: float
    basis: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "bytes_per_s": self.bytes_per_s, "basis": self.basis}


@dataclass(frozen=True)
class StreamVerdict:
    """One camera. ``load``: the part of what this machine can do that it takes. Rates are raw bytes a second;
    None: not known or not measured.

    ``held`` counts every camera of the configuration acquiring at the same time, ``held_alone`` only this
    one. ``hours``: how long the disk lasts for it alone. ``ratio``: of raw to stored bytes, levels included;
    without compression where that was not measured.
    """

    name: str
    needed_bytes_per_s: float | None
    frame_rate_hz: float | None
    predicted_bytes_per_s: float | None
    predicted_frame_rate_hz: float | None
    load: float | None
    held: Held
    held_alone: Held
    binds: FloorName | None
    floors: tuple[Floor, ...]
    ratio: float
    hours: float | None
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        facts = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("floors", "advice")
        }
        return {**facts, "floors": [floor.to_dict() for floor in self.floors], "advice": list(self.advice)}


@dataclass(frozen=True)
class CamerasVerdict:
    """All cameras at the same time. ``load`` is the sum of theirs; ``hours``: until the disk is at
    ``output.low_water``."""

    streams: tuple[StreamVerdict, ...]
    load: float | None
    held: Held
    hours: float | None
    measured: Measured | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "held": self.held,
            "load": self.load,
            "hours": self.hours,
            "streams": [stream.to_dict() for stream in self.streams],
            "measured": None if self.measured is None else self.measured.to_dict(),
        }


def judge(plan: Plan, low_water_bytes: int, measured: Measured | None) -> CamerasVerdict:
    """Returns the verdict. Without ``measured`` it has only the needed rates, and how long the disk lasts
    for frames and levels without compression."""
    loads = [_load(stream, measured) for stream in plan.streams]
    total = None if None in loads or not loads else sum(load for load in loads if load is not None)
    # a camera of unknown rate takes something as well: then nothing is promised
    known = sum(load for load in loads if load is not None)
    room = max(0, plan.disk_free_bytes - plan.disk_reserved_bytes - low_water_bytes)
    together = _held(total) if total is not None else ("no" if known > 1 else "unknown")
    streams = tuple(
        _judge_stream(stream, load, together, room, measured)
        for stream, load in zip(plan.streams, loads, strict=True)
    )
    stored = [None if s.needed_bytes_per_s is None else s.needed_bytes_per_s / s.ratio for s in streams]
    hours = (
        None
        if None in stored or not stored
        else hours_to_full(room, sum(rate for rate in stored if rate is not None))
    )
    return CamerasVerdict(streams, total, together, hours, measured)


def hours_to_full(room_bytes: int, bytes_per_s: float) -> float:
    """How long a disk with so much room lasts at this rate."""
    return room_bytes / bytes_per_s / 3600


def duration(hours: float) -> str:
    """For people: in the largest unit of which there are two."""
    for unit, length in (("days", 24), ("hours", 1), ("minutes", 1 / 60)):
        if hours >= 2 * length:
            return f"{hours / length:,.0f} {unit}"
    return f"{hours * 3600:.0f} s"


def _load(stream: StreamPlan, measured: Measured | None) -> float | None:
    if measured is None or stream.data_rate_bytes_per_s is None:
        return None
    return stream.data_rate_bytes_per_s / _predicted(measured.streams[stream.name], measured.daemon_transport)


def _held(load: float | None) -> Held:
    if load is None:
        return "unknown"
    return "yes" if load <= 1 / (1 + ACCURACY) else "barely" if load <= 1 else "no"


def _predicted(rates: StreamRates, transport: Transport) -> float:
    return rates.acquisitions[transport].sustained_bytes_per_s


def _judge_stream(
    stream: StreamPlan, load: float | None, together: Held, room_bytes: int, measured: Measured | None
) -> StreamVerdict:
    needed, alone = stream.data_rate_bytes_per_s, _held(load)
    rates = None if measured is None else measured.streams[stream.name]
    predicted, binds = None, None
    ratio = stream.limits.frame_bytes / stream.disk_frame_bytes  # of what is stored, so with levels
    floors: tuple[Floor, ...] = ()
    if measured is not None and rates is not None:
        predicted = _predicted(rates, measured.daemon_transport)
        floors, ratio = floors_of(rates, measured), rates.acquisitions[measured.daemon_transport].ratio
        binds = binding(floors, predicted)
    held: Held = "unknown" if load is None else together
    return StreamVerdict(
        name=stream.name,
        needed_bytes_per_s=needed,
        frame_rate_hz=stream.frame_rate_hz,
        predicted_bytes_per_s=predicted,
        predicted_frame_rate_hz=None if predicted is None else predicted / stream.limits.frame_bytes,
        load=load,
        held=held,
        held_alone=alone,
        binds=binds,
        floors=floors,
        ratio=ratio,
        hours=None if not needed else hours_to_full(room_bytes, needed / ratio),
        advice=()
        if measured is None or rates is None or binds is None or held in ("yes", "unknown")
        else advice(stream, rates, measured, binds, alone),
    )


def floors_of(rates: StreamRates, measured: Measured) -> tuple[Floor, ...]:
    """The lowest first."""
    transport = measured.daemon_transport
    runs, disk, ratio = (
        rates.acquisitions[transport],
        rates.disk[rates.io],
        rates.acquisitions[transport].ratio,
    )
    cores = measured.cores
    found = [
        Floor(
            "kernel",
            rates.kernel.rate.bytes_per_s,
            f"{rates.sample}, {cores} cores, ratio {rates.kernel.ratio:.2f}",
        ),
        Floor(
            "disk",
            disk.bytes_per_s * ratio,
            f"{disk.bytes_per_s / 1e9:.2f} GB/s of chunks by {rates.io}, ratio {ratio:.2f}",
        ),
        Floor(
            "transport",
            rates.transport[transport].bytes_per_s,
            "one camera into shared memory" if transport == "shm" else "messages over ipc",
        ),
    ]
    basis = f"{cores} cores, {runs.cpu_s_per_gb:.2f} CPU s/GB: {_shares(rates, transport)}"
    found.append(Floor("processors", cores / runs.cpu_s_per_gb * 1e9, basis))
    return tuple(sorted(found, key=lambda floor: floor.bytes_per_s))


def _shares(rates: StreamRates, transport: Transport) -> str:
    """Where the CPU seconds of an acquisition go, as far as the stages alone account for them."""
    total = rates.acquisitions[transport].cpu_s_per_gb
    parts = {
        "kernel": rates.kernel.rate.cpu_s_per_gb,
        "disk": rates.disk[rates.io].cpu_s_per_gb / max(rates.kernel.ratio, 1e-9),
        "transport": rates.transport[transport].cpu_s_per_gb,
    }
    rest = max(0.0, total - sum(parts.values()))
    return ", ".join(f"{name} {part / total:.0%}" for name, part in (*parts.items(), ("rest", rest)))


def binding(floors: tuple[Floor, ...], predicted: float) -> FloorName:
    """The lowest floor; the pipeline itself, where even that is far above what was reached."""
    return floors[0].name if predicted >= WAITS_BELOW * floors[0].bytes_per_s else "pipeline"


def advice(
    stream: StreamPlan, rates: StreamRates, measured: Measured, binds: FloorName, alone: Held
) -> tuple[str, ...]:
    """Returns what to change for a camera that cannot be held, the most promising first."""
    found: list[str] = []
    if binds == "disk":
        found += _disk_advice(rates)
    found += _codec_advice(stream, rates, measured)
    found += _degrade_advice(stream, rates, measured)
    if binds == "transport" and measured.daemon_transport == "message":
        found.append(
            "Let the camera run on this machine and connect over ipc: pixels then go through shared memory."
        )
    if stream.limits.chunk_bytes < min(SMALL_CHUNK_BYTES, default_chunk_bytes(stream.spec)):
        found.append(
            f"Make inner chunks larger: at {stream.limits.chunk_bytes >> 10} KiB the fixed cost of each "
            f"chunk counts. Better is {layout_advice(stream.spec)}."
        )
    if stream.limits.threads < measured.cores:
        found.append(
            f"Set workers.threads to auto: {stream.limits.threads} cannot use {measured.cores} cores."
        )
    if alone in ("yes", "barely"):
        found.append("Alone it can be held: let the cameras take turns, or give one of them another machine.")
    predicted = _predicted(rates, measured.daemon_transport) / stream.limits.frame_bytes
    found.append(
        f"Lower the frame rate, to at most {predicted / (1 + ACCURACY):,.0f} frames a second for this "
        f"camera alone, or record a smaller region."
    )
    return tuple(found)


def _disk_advice(rates: StreamRates) -> list[str]:
    own, best = rates.disk[rates.io], max(rates.disk, key=lambda mode: rates.disk[mode].bytes_per_s)
    found = []
    if rates.disk[best].bytes_per_s > (1 + ACCURACY) * own.bytes_per_s:
        found.append(
            f"Set output.io to {best}: it wrote "
            f"{rates.disk[best].bytes_per_s / own.bytes_per_s:.1f} times as fast here as {rates.io}."
        )
    found.append("Put output.root on a faster disk.")
    return found


def _codec_advice(stream: StreamPlan, rates: StreamRates, measured: Measured) -> list[str]:
    """Other codecs, by what their kernels took and made: estimates, as their acquisitions were not run."""
    own = _predicted(rates, measured.daemon_transport)
    # of the lowest floor: another codec will not do better
    reached = min(1.0, own / floors_of(rates, measured)[0].bytes_per_s)
    found = []
    for name, other in rates.other_codecs.items():
        estimate = reached * _lowest_floor_with(other, rates, measured)
        if estimate > (1 + ACCURACY) * own:
            rate = estimate / stream.limits.frame_bytes
            found.append(
                (
                    estimate,
                    f"Set codec to {name}: about {rate:,.0f} frames a second, at {other.ratio:.2f} : 1.",
                )
            )
    return [text for _, text in sorted(found, reverse=True)]


def _degrade_advice(stream: StreamPlan, rates: StreamRates, measured: Measured) -> list[str]:
    """Where everything but the codec has room for the camera."""
    needed = stream.data_rate_bytes_per_s
    unencoded = min(rates.disk[rates.io].bytes_per_s, rates.transport[measured.daemon_transport].bytes_per_s)
    if (
        stream.reliability.overload == "degrade"
        or not can_degrade(stream.acquisition)
        or needed is None
        or needed * (1 + ACCURACY) > unencoded
    ):
        return []
    cost = "chunks that come too fast are then compressed less, or not at all, until the ring has room again"
    return [
        (
            f"Set reliability.overload to degrade: {cost}. compaction: {{enabled: true, recompress: codec}} "
            f"compresses them later."
        )
    ]


def _lowest_floor_with(other: KernelRate, rates: StreamRates, measured: Measured) -> float:
    """Raw bytes a second, were the chunks encoded so."""
    transport, disk, kernel = measured.daemon_transport, rates.disk[rates.io], rates.kernel
    written_cpu_s = disk.cpu_s_per_gb * (1 / max(other.ratio, 1e-9) - 1 / max(kernel.ratio, 1e-9))
    cpu_s = (
        rates.acquisitions[transport].cpu_s_per_gb
        + other.rate.cpu_s_per_gb
        - kernel.rate.cpu_s_per_gb
        + written_cpu_s
    )
    processors = measured.cores / max(cpu_s, 1e-3) * 1e9
    return min(
        other.rate.bytes_per_s,
        disk.bytes_per_s * other.ratio,
        rates.transport[transport].bytes_per_s,
        processors,
    )
