"""Memory and descriptors of every process of a soak, sampled from /proc, and the judgement whether they are
flat.

Memory is what a process holds itself and what it shares (``RssAnon`` and ``RssShmem``: rings), not the page
cache of files that it maps. A process that was killed and started again is another life of the same name, and
begins anew. Flat means two things; each level is the upper quartile of its samples, so that it does not
matter at which moment of an acquisition they fell:

    within a life      its last third against its first third, once it has warmed up
    across lives       the last third of the lives against the first third, all looked at at the same age
                       (from ``LIVES_TO_COMPARE`` lives on)

More than ``TOLERANCES`` is growth. What falls is flat.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SAMPLES_TO_JUDGE = 60  # of one life, warm
LIVES_TO_COMPARE = 6
MOST_SAMPLES = 20_000  # of one life


class Sample(NamedTuple):
    age_s: float
    memory_bytes: int
    descriptors: int
    threads: int


QUANTITIES = ("memory_bytes", "descriptors", "threads")


class Tolerance(NamedTuple):
    share: float
    more: float

    def of(self, level: float) -> float:
        return level * (1 + self.share) + self.more


TOLERANCES = {
    "memory_bytes": Tolerance(0.10, 32 << 20),
    "descriptors": Tolerance(0.10, 16),
    "threads": Tolerance(0.0, 8),
}  # pools fill up


@dataclass
class Life:
    pid: int
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True)
class Level:
    """One comparison: from ``early`` to ``late``, both in the unit of the quantity."""

    process: str
    quantity: str
    scope: str
    early: float
    late: float

    @property
    def flat(self) -> bool:
        return self.late <= TOLERANCES[self.quantity].of(self.early)

    def __str__(self) -> str:
        early, late = (
            f"{value / 2**20:.1f} MiB" if self.quantity == "memory_bytes" else f"{value:.0f}"
            for value in (self.early, self.late)
        )
        return f"{self.process}, {self.scope}: {self.quantity.removesuffix('_bytes')} from {early} to {late}"


def judge(lives: Mapping[str, Sequence[Life]], warm_up_s: float) -> list[Level]:
    """Every comparison that the samples allow; of those within lives the worst of each process."""
    found = []
    for process, its_lives in lives.items():
        warm = [[sample for sample in life.samples if sample.age_s >= warm_up_s] for life in its_lives]
        warm = [samples for samples in warm if len(samples) >= SAMPLES_TO_JUDGE]
        for quantity in QUANTITIES:
            within = [
                Level(process, quantity, f"within life {i}", *_thirds(s, quantity))
                for i, s in enumerate(warm, 1)
            ]
            found += sorted(within, key=lambda level: level.late - TOLERANCES[quantity].of(level.early))[-1:]
            if len(warm) >= LIVES_TO_COMPARE:
                found.append(
                    Level(process, quantity, f"across {len(warm)} lives", *_at_equal_age(warm, quantity))
                )
    return found


def _level(samples: Sequence[Sample], quantity: str) -> float:
    values = [getattr(sample, quantity) for sample in samples]
    return quantiles(values, n=4)[2] if len(values) > 1 else values[0]


def _thirds(samples: Sequence[Sample], quantity: str) -> tuple[float, float]:
    third = len(samples) // 3
    return _level(samples[:third], quantity), _level(samples[-third:], quantity)


def _at_equal_age(lives: Sequence[Sequence[Sample]], quantity: str) -> tuple[float, float]:
    """Up to the age that all of them reached."""
    end_s = min(samples[-1].age_s for samples in lives)
    levels = [
        _level([sample for sample in samples if sample.age_s <= end_s] or samples[:1], quantity)
        for samples in lives
    ]
    third = len(levels) // 3
    return median(levels[:third]), median(levels[-third:])


class Watch:
    """Samples ``processes()``, pids by name, every ``interval_s`` while its ``with`` block runs. Names keep
    their lives in order."""

    def __init__(self, processes: Callable[[], Mapping[str, int]], interval_s: float) -> None:
        self.lives: dict[str, list[Life]] = {}
        self.peak_bytes: dict[str, int] = {}
        self._processes = processes
        self._interval_s = interval_s
        self._born_s: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            for name, pid in self._processes().items():
                self._take(name, pid)

    def _take(self, name: str, pid: int) -> None:
        lives = self.lives.setdefault(name, [])
        now_s = time.monotonic()
        if not lives or lives[-1].pid != pid:
            lives.append(Life(pid))
            self._born_s[pid] = now_s
        try:
            sample = look_at(pid, now_s - self._born_s[pid])
        except (OSError, KeyError):
            return  # it ends: what is left of it in /proc has no memory
        if len(lives[-1].samples) == MOST_SAMPLES:
            del lives[-1].samples[::2]
        lives[-1].samples.append(sample)
        self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), sample.memory_bytes)

    def newest(self, name: str) -> Sample | None:
        lives = self.lives.get(name)
        return lives[-1].samples[-1] if lives and lives[-1].samples else None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def look_at(pid: int, age_s: float = 0.0) -> Sample:
    """Raises ``OSError`` or ``KeyError`` for a process that is gone."""
    folder = Path(f"/proc/{pid}")
    lines = (folder / "status").read_text(encoding="ascii", errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    memory = sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
    return Sample(age_s, memory, sum(1 for _ in (folder / "fd").iterdir()), int(fields["Threads"]))
