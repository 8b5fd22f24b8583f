"""What was measured, frozen. Rates are raw bytes of pixels a second unless a name says otherwise; CPU seconds
are those of all threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shardwright.storage.slot_file import IoMode

Transport = Literal["in-process", "shm", "message"]


@dataclass(frozen=True)
class Rate:
    """Of one stage alone. ``cpu_s_per_gb``: of a billion of the bytes that ``bytes_per_s`` counts."""

    bytes_per_s: float
    cpu_s_per_gb: float

    def to_dict(self) -> dict[str, float]:
        return {"bytes_per_s": self.bytes_per_s, "cpu_s_per_gb": self.cpu_s_per_gb}


@dataclass(frozen=True)
class KernelRate:
    """Frames to encoded chunks in memory, on all cores. ``encoded_bytes`` of each chunk of one slab, in the
    order of the layout's tables."""

    rate: Rate
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
    disk: dict[IoMode, Rate]
    io: IoMode
    transport: dict[Transport, Rate]
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
    memory_copy: Rate
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
