"""The moments of a run: which storage calls it makes, and at which of them a fault is worth trying."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .scenario import Fault, Scenario

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .rig_process import Rig


def calls_of(rig: Rig, scenario: Scenario) -> list[str]:
    """The storage calls of a run without faults, in order."""
    outcome = rig.run(scenario)
    assert outcome.state == "sealed", (outcome.error, outcome.refused, outcome.trace)
    return outcome.calls


def first_and_last(calls: Sequence[str]) -> list[tuple[str, int]]:
    """Each point at its first and its last call: (point, which call of it)."""
    last = {point: number - 1 for point, number in Counter(calls).items()}
    return sorted({(point, call) for point in last for call in (0, last[point])})


def every_call(calls: Sequence[str]) -> list[tuple[str, int]]:
    """All calls, as (point, which call of it): the same call even when threads change places."""
    seen: Counter[str] = Counter()
    moments = []
    for point in calls:
        moments.append((point, seen[point]))
        seen[point] += 1
    return moments


def fault_at(moment: tuple[str, int], action: str, **more) -> Fault:
    point, call = moment
    return Fault(action, point, call, **more)


def fresh(folder: Path, label: str) -> str:
    """A store path that no scenario used before."""
    used = len([path for path in folder.iterdir() if path.name.startswith(label)])
    return str(folder / f"{label}-{used}.ome.zarr")
