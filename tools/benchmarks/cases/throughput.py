"""The comparisons of writers, and the ratios between contenders that are asked of them.

    Comparison   writers of the same frames in one interleaved run; its name is CASE/SCENE/PLACE
    Ratio        one figure that is asked of a case, and the contenders that it relates

Two places: ``disk`` is the folder that the bench was given, with the noise of its disk; ``no-disk`` is a
filesystem in memory, where a writer's own cost shows. Headlines are the figures on the disk in the headline
scene; the others stand beside them.

Ratios are taken within each round and their median counts: both sides saw the same minute of the machine.
Where the best of several is meant (our backends, the disk floors), the one with the best median is taken for
all rounds: the best of each round would be the luck of a noisy disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from benchmarks.contest import Entry
from benchmarks.peers import CONTENDERS

from . import HEADLINE_SCENE, SCENES, Case, outcome

Place = Literal["disk", "no-disk"]
PLACES: tuple[Place, ...] = ("disk", "no-disk")
Measure = Literal["gb_per_s", "cpu_s_per_gb", "memory_bytes"]
Row = dict[str, Any]

# the first takes what `io: auto` means here
BACKENDS = ("shardwright", "shardwright-mmap", "shardwright-pwrite")
DAEMONS = ("daemon-shm", "daemon-message")
UNCOPIED, CLAIMS = "shardwright-uncopied", ("shardwright-claim", "daemon-claim")
OURS = (*BACKENDS, UNCOPIED, *DAEMONS, *CLAIMS)
DISK_FLOORS = ("floor-direct", "floor-pwrite", "floor-mmap")
KERNEL_FLOOR = "floor-kernel"
TOGETHER_FLOOR = "floor-together"  # both at once, and the copy of each frame: lower than either alone
PEERS = ("acquire-zarr", "tensorstore", "zarrs", "zarr-python")
SLOW_ROUNDS = {"zarrs": 2, "zarr-python": 2}  # they take half of all time
SMALL_CHUNK = (8, 64, 64)
SMALL = "-64KiB"  # after the name of a contender that writes chunks of SMALL_CHUNK in the same run
_FLOORS = (KERNEL_FLOOR, *DISK_FLOORS)
COLUMNS = {
    "GB/s": "gb_per_s.median",
    "least": "gb_per_s.least",
    "most": "gb_per_s.most",
    "CPU s/GB": "cpu_s_per_gb.median",
    "cores": "cores_used",
    "memory MiB": "memory_bytes",
    "plan MiB": "planned_memory_bytes",
    "ratio": "ratio",
}


@dataclass(frozen=True)
class Comparison:
    """One interleaved run. ``settings``: fields of ``Case`` that differ from its defaults."""

    case: str
    scene: str
    place: Place
    contenders: tuple[str, ...]
    frames: int
    rounds: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.case}/{self.scene}/{self.place}"

    @property
    def is_headline(self) -> bool:
        return self.scene == HEADLINE_SCENE and self.place == "disk"

    def entries(self, frames: int | None = None) -> list[Entry]:
        """The contenders; ``frames`` in place of this comparison's own."""
        case = Case(**{"frames": frames or self.frames, "scene": self.scene, **self.settings})
        depth, rows, columns = map(min, case.chunk, SMALL_CHUNK)
        small = replace(case, chunk=(depth, rows, columns))
        return [
            Entry(
                label,
                CONTENDERS[label.removesuffix(SMALL)],
                small if label.endswith(SMALL) else case,
                SLOW_ROUNDS.get(label),
            )
            for label in self.contenders
        ]


def _comparisons() -> tuple[Comparison, ...]:
    """Every case on the disk and without one, lz4 and zstd in the other scene as well; slow peers once, all
    backends where any may be the best: the whole record takes half an hour. In the first a round has 4.3 GB:
    of 2 GB, which ours write in 0.8 s, a sixth is the beginning and the end of an acquisition."""
    zstd, plain = {"cname": "zstd"}, {"cname": "none"}
    few = ("shardwright", "daemon-shm", "acquire-zarr", KERNEL_FLOOR, "floor-direct")
    of_zstd = ("shardwright", *PEERS[:2], KERNEL_FLOOR, "floor-direct")
    # mapped is the dearest way to write the most bytes
    unpacked = ("shardwright", "shardwright-pwrite", "acquire-zarr", *DISK_FLOORS[:2])
    small = ("shardwright", *(name + SMALL for name in ("shardwright", KERNEL_FLOOR, "floor-direct")))
    leveled = ("shardwright", "shardwright-levels", "acquire-zarr", "acquire-zarr-levels")
    here, there = SCENES
    return (
        Comparison("lz4", here, "disk", (*OURS, *PEERS, *_FLOORS, TOGETHER_FLOOR), 512, 4),
        Comparison("lz4", here, "no-disk", (*OURS, *PEERS[:2], *_FLOORS), 128, 4),
        Comparison("lz4", there, "disk", (*few, TOGETHER_FLOOR), 128, 3),
        Comparison("lz4", there, "no-disk", few, 128, 3),
        Comparison("zstd", here, "disk", (*of_zstd, TOGETHER_FLOOR), 128, 4, zstd),
        Comparison("zstd", here, "no-disk", of_zstd, 128, 3, zstd),
        Comparison("zstd", there, "no-disk", of_zstd, 128, 3, zstd),
        Comparison("uncompressed", here, "disk", unpacked, 128, 4, plain),
        Comparison("uncompressed", here, "no-disk", unpacked, 128, 3, plain),
        Comparison("small-chunks", here, "disk", small, 128, 4),
        Comparison("small-chunks", here, "no-disk", small, 128, 3),
        Comparison("levels", here, "disk", leveled, 128, 4),
        Comparison("levels", here, "no-disk", leveled, 128, 3),
    )


COMPARISONS: tuple[Comparison, ...] = _comparisons()


@dataclass(frozen=True)
class Ratio:
    """A figure: the best of ``ours`` to the best of ``against`` (to each by itself where ``each``). Speeds
    are asked to be at least ``limit`` times those, costs at most; ``plan`` stands for the memory that ours
    planned. ``lower_of_floors``: to the lower of the kernel floor and the best disk floor. ``against``
    nothing: the measure itself."""

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


def _ratios() -> tuple[Ratio, ...]:
    acquire, unpacked, small = ("acquire-zarr",), BACKENDS[::2], ("shardwright" + SMALL,)
    of_floor = "at least 90 % of the lower floor"
    uncopied, of_uncopied = (UNCOPIED,), "at least 95 % of in-process copy=False"
    of_disk = "at least 85 % of the disk-only floor"
    messages = "at least 1.5x acquire-zarr in-process"
    both = "at least 3x acquire-zarr and tensorstore"
    speeds = (
        Ratio("in process", "at least 4x acquire-zarr", "lz4", BACKENDS, acquire, 4.0),
        Ratio("in process, copy=False", "at least 5x acquire-zarr", "lz4", uncopied, acquire, 5.0),
        Ratio("in process, of its floor", of_floor, "lz4", BACKENDS, _FLOORS, 0.9, lower_of_floors=True),
        Ratio("copy=False, of its floor", of_floor, "lz4", uncopied, _FLOORS, 0.9, lower_of_floors=True),
        Ratio("daemon, shared memory", "at least 95 % of in-process", "lz4", DAEMONS[:1], BACKENDS, 0.95),
        Ratio("in process, claim", "at least 95 % of in-process", "lz4", CLAIMS[:1], BACKENDS, 0.95),
        Ratio("daemon, claim", of_uncopied, "lz4", CLAIMS[1:], uncopied, 0.95),
        Ratio("daemon, pixels in messages", messages, "lz4", DAEMONS[1:], acquire, 1.5),
        Ratio("zstd-1", both, "zstd", BACKENDS[:1], PEERS[:2], 3.0, each=True),
        Ratio("uncompressed", "at least 2x acquire-zarr", "uncompressed", unpacked, acquire, 2.0),
        Ratio("uncompressed, of its floor", of_disk, "uncompressed", unpacked, DISK_FLOORS[:2], 0.85),
        Ratio(
            "inner chunks of 64 KiB",
            "at least 60 % of the 2 MiB figure",
            "small-chunks",
            small,
            BACKENDS[:1],
            0.6,
        ),
    )
    leveled = ("levels", ("shardwright-levels",), ("shardwright",))
    cpu = (("in process", "shardwright"), ("daemon and camera", "daemon-shm"))
    own, own_uncopied = ("lz4", ("shardwright",), ()), ("lz4", uncopied, ())
    memory = (*cpu[:1], ("daemon", "daemon-shm"), ("daemon, pixels in messages", "daemon-message"))
    below, planned = "below every peer", "at most the plan, below acquire-zarr"
    return (
        *speeds,
        Ratio("levels while writing", "at least 75 % of the speed without", *leveled, 0.75),
        Ratio("levels, CPU seconds per GB", "at most 25 % more than without", *leveled, 1.25, "cpu_s_per_gb"),
        *(
            Ratio(f"CPU seconds per GB, {way}", below, "lz4", (name,), PEERS, 1.0, "cpu_s_per_gb", each=True)
            for way, name in cpu
        ),
        Ratio("CPU seconds, in process", "at most 0.35 for a GB", *own, 0.35, "cpu_s_per_gb"),
        Ratio("CPU seconds, copy=False", "at most 0.30 for a GB", *own_uncopied, 0.3, "cpu_s_per_gb"),
        *(
            Ratio(f"peak memory, {way}", planned, "lz4", (name,), ("plan", *acquire), 1.0, "memory_bytes")
            for way, name in memory
        ),
    )


RATIOS: tuple[Ratio, ...] = _ratios()


def outcomes_of(rows: list[Row], comparison: Comparison) -> list[dict[str, Any]]:
    """Each figure that this comparison gives; one whose contenders failed or did not run has none."""
    table = {row["name"]: row for row in rows if "error" not in row}
    found = []
    for ratio in RATIOS:
        ours = _best(ratio.ours, table)
        # Pages of files in memory count as a writer's own: there peak memory says nothing.
        in_memory = ratio.measure == "memory_bytes" and comparison.place == "no-disk"
        if ratio.case != comparison.case or ours is None or in_memory:
            continue
        for against, values in _values(ratio, table, ours):
            where = {"measured_in": comparison.name, "headline": comparison.is_headline}
            names = {"name": ratio.name, "ours": ours, "against": against}
            found.append(outcome(ratio, median(values), min(values), max(values), **names, **where))
    return found


def _best(names: tuple[str, ...], table: dict[str, Row]) -> str | None:
    """The fastest of those that ran."""
    ran = (name for name in names if name in table)
    return max(ran, key=lambda name: float(table[name]["gb_per_s"]["median"]), default=None)


def _values(ratio: Ratio, table: dict[str, Row], ours: str) -> list[tuple[str, list[float]]]:
    """For each that ours is compared with, its name and the ratio of each round. A peak of memory has no
    rounds; one of nothing is left out, since there was too little to do."""
    if ratio.measure == "memory_bytes":
        peaks = {name: table[name]["memory_bytes"] for name in ratio.against if name in table}
        peaks = {"plan": table[ours]["planned_memory_bytes"], **peaks}
        return [(name, [table[ours]["memory_bytes"] / peak]) for name, peak in peaks.items() if peak > 0]
    if not ratio.against:
        return [("", table[ours][ratio.measure]["rounds"])]
    if ratio.lower_of_floors:
        floors = [_best((KERNEL_FLOOR,), table), _best(DISK_FLOORS, table)]
        sides = [] if None in floors else [floors]
    elif ratio.each:
        sides = [[name] for name in ratio.against if name in table]
    else:
        best = _best(ratio.against, table)
        sides = [] if best is None else [[best]]
    found = []
    for names in sides:
        own, *others = [table[name][ratio.measure] for name in (ours, *names) if name]
        rounds = zip(own["rounds"], *(other["rounds"] for other in others), strict=False)
        lowest = min(names, key=lambda name: float(table[str(name)][ratio.measure]["median"]))
        found.append((str(lowest), [mine / min(theirs) for mine, *theirs in rounds]))
    return found


def names_to_choose(parts: tuple[str, ...]) -> list[str]:
    """The names that ``--only`` takes."""
    levels = ("/".join(c.name.split("/")[:level]) for level in (1, 2, 3) for c in COMPARISONS)
    return [*dict.fromkeys(levels), *parts]


def chosen_comparisons(only: list[str] | None) -> list[Comparison]:
    """Those whose name begins with one of ``only`` (``lz4``, ``lz4/spots``); all without it."""
    return [
        c for c in COMPARISONS if only is None or any(f"{c.name}/".startswith(f"{name}/") for name in only)
    ]
