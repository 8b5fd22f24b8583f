"""The table of the record: what is compared with whom, and which figure is asked of it. Nothing here runs
anything.

    Comparison   writers of the same frames in one interleaved run; its name is CASE/SCENE/PLACE
    Asked        one figure that is asked of a case, and which contenders prove it
    LIMITS       what is asked of the parts that are no comparison (latency, small, cameras, overload, flat,
                 prediction)

Two places: ``disk`` is the folder that the bench was given, with the noise of its disk; ``no-disk`` is a
filesystem in memory, where a writer's own cost shows. What is asked is judged on the disk and in the headline
scene; the other rows stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from .case import HEADLINE_SCENE, SCENES, Case
from .parent import Entry

Place = Literal["disk", "no-disk"]
PLACES: tuple[Place, ...] = ("disk", "no-disk")
Measure = Literal["gb_per_s", "cpu_s_per_gb", "memory_bytes"]

# the first takes what `io: auto` means here
BACKENDS = ("shardwright", "shardwright-mmap", "shardwright-pwrite")
DISK_FLOORS = ("floor-direct", "floor-pwrite", "floor-mmap")
KERNEL_FLOOR = "floor-kernel"
TOGETHER_FLOOR = "floor-together"  # both at once, and the copy of each frame: lower than either alone
PEERS = ("acquire-zarr", "tensorstore", "zarrs", "zarr-python")
SLOW_ROUNDS = {"zarrs": 2, "zarr-python": 2}  # they take half of all time, and are far from every limit
SMALL_CHUNK = (8, 64, 64)
SMALL = "-64KiB"  # after the name of a contender that writes chunks of SMALL_CHUNK in the same run
_FLOORS = (KERNEL_FLOOR, *DISK_FLOORS)


@dataclass(frozen=True)
class Comparison:
    """One interleaved run. ``settings``: fields of ``Case`` that differ from its defaults."""

    case: str
    scene: str
    place: Place
    contenders: tuple[str, ...]
    frames: int
    rounds: int
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        return f"{self.case}/{self.scene}/{self.place}"

    @property
    def is_headline(self) -> bool:
        return self.scene == HEADLINE_SCENE and self.place == "disk"

    def entries(self, frames: int | None = None) -> list[Entry]:
        """Who takes part; ``frames`` in place of this comparison's own."""
        case = Case(**{"frames": frames or self.frames, "scene": self.scene, **self.settings})
        small = replace(case, chunk=_at_most(SMALL_CHUNK, case.chunk))
        return [
            Entry(
                label,
                label.removesuffix(SMALL),
                small if label.endswith(SMALL) else case,
                SLOW_ROUNDS.get(label),
            )
            for label in self.contenders
        ]


def _at_most(chunk: tuple[int, int, int], most: tuple[int, int, int]) -> tuple[int, int, int]:
    return min(chunk[0], most[0]), min(chunk[1], most[1]), min(chunk[2], most[2])


def _comparisons() -> tuple[Comparison, ...]:
    """Every case on the disk and without one, lz4 and zstd in the other scene as well; slow peers only where
    they are asked for, all backends where any may be the best: the whole record takes half an hour. Where the
    most is asked a round has 4.3 GB: of 2 GB, which ours write in 0.8 s, a sixth is the beginning and the end
    of an acquisition."""
    zstd = MappingProxyType({"cname": "zstd"})
    plain = MappingProxyType({"cname": "none"})
    daemons = ("daemon-shm", "daemon-message")
    few = ("shardwright", "daemon-shm", "acquire-zarr", KERNEL_FLOOR, "floor-direct")
    of_zstd = ("shardwright", *PEERS[:2], KERNEL_FLOOR, "floor-direct")
    # mapped is the dearest way to write the most bytes
    unpacked = ("shardwright", "shardwright-pwrite", "acquire-zarr", *DISK_FLOORS[:2])
    small = (
        "shardwright",
        "shardwright" + SMALL,
        *(floor + SMALL for floor in (KERNEL_FLOOR, "floor-direct")),
    )
    here, there = SCENES
    return (
        Comparison("lz4", here, "disk", (*BACKENDS, *daemons, *PEERS, *_FLOORS, TOGETHER_FLOOR), 512, 4),
        Comparison("lz4", here, "no-disk", (*BACKENDS, *daemons, *PEERS[:2], *_FLOORS), 128, 4),
        Comparison("lz4", there, "disk", (*few, TOGETHER_FLOOR), 128, 3),
        Comparison("lz4", there, "no-disk", few, 128, 3),
        Comparison("zstd", here, "disk", (*of_zstd, TOGETHER_FLOOR), 128, 4, zstd),
        Comparison("zstd", here, "no-disk", of_zstd, 128, 3, zstd),
        Comparison("zstd", there, "no-disk", of_zstd, 128, 3, zstd),
        Comparison("uncompressed", here, "disk", unpacked, 128, 4, plain),
        Comparison("uncompressed", here, "no-disk", unpacked, 128, 3, plain),
        Comparison("small-chunks", here, "disk", small, 128, 4),
        Comparison("small-chunks", here, "no-disk", small, 128, 3),
    )


COMPARISONS: tuple[Comparison, ...] = _comparisons()


@dataclass(frozen=True)
class Asked:
    """A figure: the best of ``ours`` against the best of ``against`` (each peer by itself where ``each``),
    within each round.

    Speeds must be at least ``limit`` times, costs at most; ``plan`` stands for the memory that ours planned.
    ``lower_of_floors``: against the lower of the kernel-only floor and the best disk-only floor. ``text``
    says it for people.
    """

    name: str
    text: str
    case: str
    ours: tuple[str, ...]
    against: tuple[str, ...]
    limit: float
    measure: Measure = "gb_per_s"
    each: bool = False
    lower_of_floors: bool = False

    @property
    def at_least(self) -> bool:
        return self.measure == "gb_per_s"


ASKED: tuple[Asked, ...] = (
    Asked("in process", "at least 4x acquire-zarr", "lz4", BACKENDS, ("acquire-zarr",), 4.0),
    Asked(
        "in process, of its floor",
        "at least 85 % of the lower floor",
        "lz4",
        BACKENDS,
        _FLOORS,
        0.85,
        lower_of_floors=True,
    ),
    Asked("daemon, shared memory", "at least 85 % of in-process", "lz4", ("daemon-shm",), BACKENDS, 0.85),
    Asked(
        "daemon, pixels in messages",
        "at least 1.5x acquire-zarr in-process",
        "lz4",
        ("daemon-message",),
        ("acquire-zarr",),
        1.5,
    ),
    Asked(
        "zstd-1",
        "at least 3x acquire-zarr and tensorstore",
        "zstd",
        ("shardwright",),
        PEERS[:2],
        3.0,
        each=True,
    ),
    Asked("uncompressed", "at least 2x acquire-zarr", "uncompressed", BACKENDS[::2], ("acquire-zarr",), 2.0),
    Asked(
        "uncompressed, of its floor",
        "at least 85 % of the disk-only floor",
        "uncompressed",
        BACKENDS[::2],
        DISK_FLOORS[:2],
        0.85,
    ),
    Asked(
        "inner chunks of 64 KiB",
        "at least 60 % of the 2 MiB figure",
        "small-chunks",
        ("shardwright" + SMALL,),
        ("shardwright",),
        0.6,
    ),
    Asked(
        "CPU seconds per GB, in process",
        "below every peer",
        "lz4",
        ("shardwright",),
        PEERS,
        1.0,
        "cpu_s_per_gb",
        each=True,
    ),
    Asked(
        "CPU seconds per GB, daemon and camera",
        "below every peer",
        "lz4",
        ("daemon-shm",),
        PEERS,
        1.0,
        "cpu_s_per_gb",
        each=True,
    ),
    Asked(
        "peak memory, in process",
        "at most the plan, below acquire-zarr",
        "lz4",
        ("shardwright",),
        ("plan", "acquire-zarr"),
        1.0,
        "memory_bytes",
        each=True,
    ),
    Asked(
        "peak memory, daemon",
        "at most the plan, below acquire-zarr",
        "lz4",
        ("daemon-shm",),
        ("plan", "acquire-zarr"),
        1.0,
        "memory_bytes",
        each=True,
    ),
    Asked(
        "peak memory, daemon, pixels in messages",
        "at most the plan, below acquire-zarr",
        "lz4",
        ("daemon-message",),
        ("plan", "acquire-zarr"),
        1.0,
        "memory_bytes",
        each=True,
    ),
)


@dataclass(frozen=True)
class Limit:
    """What is asked of one number of a part. ``least`` or ``most`` is None."""

    part: str
    measure: str
    text: str
    least: float | None = None
    most: float | None = None


LIMITS: tuple[Limit, ...] = (
    Limit(
        "latency",
        "p99_9_of_period",
        "append at 80 % of the sustainable rate: p99.9 below one frame period",
        most=1.0,
    ),
    Limit(
        "latency",
        "worst_rollover_of_median",
        "no append around a shard's change above 2x the median",
        most=2.0,
    ),
    Limit("small", "rate_of_asked", "128x128 at 20,000 frames/s through the daemon: held", least=0.99),
    Limit("small", "frames_lost", "and none is lost", most=0.0),
    Limit("cameras", "of_one_stream", "four streams at once: at least 90 % of one stream's total", least=0.9),
    Limit(
        "overload",
        "taken_of_due",
        "degrade: a camera faster than the codec (1.5x) need not wait: 99 % of its frames in time",
        least=0.99,
    ),
    Limit("overload", "frames_lost", "and none is lost", most=0.0),
    Limit(
        "flat",
        "time_of_young",
        "time per frame after a million frames and a thousand shards: within 5 %",
        most=1.05,
    ),
    Limit("flat", "cpu_of_young", "CPU per frame after them: within 5 %", most=1.05),
    Limit("flat", "memory_of_young", "memory after them: within 5 %", most=1.05),
    Limit("prediction", "off_by", "shardwright check --measure: within 15 % of what is then held", most=0.15),
)
PARTS: tuple[str, ...] = tuple(dict.fromkeys(limit.part for limit in LIMITS))


def chosen_comparisons(only: list[str] | None) -> list[Comparison]:
    """Those whose name begins with one of ``only`` (``lz4``, ``lz4/spots``); all without it."""
    return [
        c for c in COMPARISONS if only is None or any(f"{c.name}/".startswith(f"{name}/") for name in only)
    ]


def chosen_parts(only: list[str] | None) -> list[str]:
    return [part for part in PARTS if only is None or part in only]


def names_to_choose() -> list[str]:
    """What ``--only`` takes."""
    levels = (
        *(c.case for c in COMPARISONS),
        *(f"{c.case}/{c.scene}" for c in COMPARISONS),
        *(c.name for c in COMPARISONS),
    )
    return [*dict.fromkeys(levels), *PARTS]
