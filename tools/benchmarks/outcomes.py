"""What the rounds say about each figure that is asked: the ratio, its spread, whether it is reached, and if
not which floor binds.

Ratios are taken within each round and their median counts: both sides saw the same minute of the machine.
Where the best of several is meant (our backends, the disk floors), the one with the best median is taken for
all rounds: the best of each round would be the luck of a noisy disk.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .cases.throughput import (
    ASKED,
    DISK_FLOORS,
    KERNEL_FLOOR,
    LIMITS,
    SMALL,
    TOGETHER_FLOOR,
    Asked,
    Comparison,
    Limit,
)
from .contest import Entry, Result

Row = dict[str, Any]
_DIGITS = 6  # significant ones that are kept
BUSY = 0.9  # of all processors: they bind, whatever else does


def rows_of(results: list[Result], taking_part: list[Entry]) -> list[Row]:
    """One row a contender: medians and spread, and the rounds themselves, from which everything else can be
    computed again."""
    rows: list[Row] = []
    for result, entry in zip(results, taking_part, strict=True):
        row: Row = {"name": result.name, "kind": result.kind}
        if result.error is not None or not result.seconds:
            rows.append({**row, "error": result.error or "no round was timed"})
            continue
        raw_gb = entry.case.raw_bytes / 1e9
        speeds = [raw_gb / seconds for seconds in result.seconds]
        costs = [seconds / raw_gb for seconds in result.cpu_seconds]
        cores = [cpu / seconds for cpu, seconds in zip(result.cpu_seconds, result.seconds, strict=True)]
        row |= {
            "gb_per_s": _spread(speeds),
            "cpu_s_per_gb": _spread(costs),
            "cores_used": _kept(median(cores)),
            "memory_bytes": result.memory_bytes,
            "planned_memory_bytes": result.planned_memory_bytes,
            "ratio": _kept(entry.case.raw_bytes / result.stored_bytes),
        }
        rows.append(row)
    return rows


def _kept(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _spread(values: list[float]) -> dict[str, Any]:
    rounded = [_kept(value) for value in values]
    return {"median": _kept(median(values)), "least": min(rounded), "most": max(rounded), "rounds": rounded}


@dataclass(frozen=True)
class Outcome:
    """One figure, measured. ``against``: with what it was compared. ``binds``: what keeps it from being
    reached, in few words; empty where it is reached or nothing that was measured tells. ``verdict``: all of
    it, with the numbers."""

    name: str
    asked: str
    measured_in: str
    headline: bool
    ours: str
    against: str
    value: float
    least: float
    most: float
    limit: float
    at_least: bool
    reached: bool
    binds: str
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def outcomes_of(rows: list[Row], comparison: Comparison) -> list[Outcome]:
    """Of every figure that this comparison can prove; one whose contenders failed or did not run has none."""
    table = {row["name"]: row for row in rows if "error" not in row}
    found = []
    for asked in ASKED:
        # Pages of files in memory count as a writer's own: there peak memory says nothing.
        if asked.case == comparison.case and not (
            asked.measure == "memory_bytes" and comparison.place == "no-disk"
        ):
            found += _outcomes_of_one(asked, table, comparison)
    return found


def _outcomes_of_one(asked: Asked, table: dict[str, Row], comparison: Comparison) -> list[Outcome]:
    ours = _best(asked.ours, table)
    if ours is None:
        return []
    if asked.measure == "memory_bytes":
        found = [
            _memory_outcome(asked, ours, against, table, comparison)
            for against in asked.against
            if against == "plan" or against in table
        ]
        return [outcome for outcome in found if outcome is not None]
    if asked.lower_of_floors:
        floors = [
            floor for floor in (_best((KERNEL_FLOOR,), table), _best(DISK_FLOORS, table)) if floor is not None
        ]
        return _ratio_outcome(asked, ours, tuple(floors), table, comparison) if len(floors) == 2 else []
    if asked.each:
        return [
            one
            for against in asked.against
            if against in table
            for one in _ratio_outcome(asked, ours, (against,), table, comparison)
        ]
    best = _best(asked.against, table)
    return [] if best is None else _ratio_outcome(asked, ours, (best,), table, comparison)


def _best(names: tuple[str, ...], table: dict[str, Row]) -> str | None:
    """The fastest of those that ran."""
    return max(
        (name for name in names if name in table),
        key=lambda name: float(table[name]["gb_per_s"]["median"]),
        default=None,
    )


def _ratio_outcome(
    asked: Asked, ours: str, against: tuple[str, ...], table: dict[str, Row], comparison: Comparison
) -> list[Outcome]:
    """Against the lowest of ``against`` in each round. None where a round used less CPU than the kernel
    counts: it was too short to compare."""
    own = table[ours][asked.measure]["rounds"]
    others = [table[name][asked.measure]["rounds"] for name in against]
    if min(map(min, others)) <= 0:
        return []
    ratios = [mine / min(theirs) for mine, *theirs in zip(own, *others, strict=False)]
    value = median(ratios)
    reached = value >= asked.limit if asked.at_least else value < asked.limit
    name = min(against, key=lambda other: float(table[other][asked.measure]["median"]))
    if asked.measure == "gb_per_s":
        binds, verdict = _speed_verdict(asked, reached, ours, name, table)
    else:
        binds = ""
        own_median, other_median = (table[who][asked.measure]["median"] for who in (ours, name))
        verdict = f"{_said(reached)}: {own_median:.2f} against {other_median:.2f}"
    return [
        _outcome(asked, comparison, ours, name, (value, min(ratios), max(ratios)), reached, binds, verdict)
    ]


def _memory_outcome(
    asked: Asked, ours: str, against: str, table: dict[str, Row], comparison: Comparison
) -> Outcome | None:
    """A peak has no rounds: one number for each process. None where the other took nothing beyond what it
    began with: there was too little to do."""
    own = table[ours]["memory_bytes"]
    other = table[ours]["planned_memory_bytes"] if against == "plan" else table[against]["memory_bytes"]
    if other <= 0:
        return None
    value = own / other
    reached = value <= asked.limit if against == "plan" else value < asked.limit
    verdict = f"{_said(reached)}: {own / 2**20:.0f} MiB against {other / 2**20:.0f}"
    return _outcome(asked, comparison, ours, against, (value, value, value), reached, "", verdict)


def _said(reached: bool) -> str:
    return "reached" if reached else "not reached"


def _outcome(
    asked: Asked,
    comparison: Comparison,
    ours: str,
    against: str,
    values: tuple[float, float, float],
    reached: bool,
    binds: str,
    verdict: str,
) -> Outcome:
    value, least, most = (_kept(number) for number in values)
    return Outcome(
        asked.name,
        asked.text,
        comparison.name,
        comparison.is_headline,
        ours,
        against,
        value,
        least,
        most,
        asked.limit,
        asked.at_least,
        reached,
        binds,
        verdict,
    )


def _speed_verdict(
    asked: Asked, reached: bool, ours: str, against: str, table: dict[str, Row]
) -> tuple[str, str]:
    """What binds, and the whole sentence: which floor ours stands on, and where it is not reached whether
    that floor would allow it."""
    speed, busy = table[ours]["gb_per_s"]["median"], _busy(table[ours]["cores_used"])
    begin = f"{_said(reached)}: {speed:.2f} GB/s against {table[against]['gb_per_s']['median']:.2f}"
    floor = _lowest_floor(ours, table)
    if floor is None:
        return "" if reached else busy, begin + (f"; {busy}" if busy else "")
    own, height, other = (table[name]["gb_per_s"]["rounds"] for name in (ours, floor, against))
    share = median(mine / most for mine, most in zip(own, height, strict=False))
    allows = median(most / theirs for most, theirs in zip(height, other, strict=False))
    stands = f"{share:.0%} of {floor} ({table[floor]['gb_per_s']['median']:.2f} GB/s)"
    if reached or floor == against:
        binds, said = "" if reached else busy, stands
    elif allows < asked.limit:
        binds = f"{floor} binds: it is itself only {allows:.2f}x"
        said = f"{binds}, and ours is {stands}"
    else:
        said = f"no floor binds: {floor} would allow {allows:.2f}x"
        binds, said = busy or said, f"{said}, ours is {stands}"
    return binds, f"{begin}; {said}" + (f"; {busy}" if busy else "")


def _lowest_floor(ours: str, table: dict[str, Row]) -> str | None:
    """Of the kernel's, the best disk's and both together, of the same chunks as ours. The last is none for
    who was above it in any round."""
    suffix = SMALL if ours.endswith(SMALL) else ""
    kinds: tuple[tuple[str, ...], ...] = ((KERNEL_FLOOR,), DISK_FLOORS, (TOGETHER_FLOOR,))
    candidates = [_best(tuple(name + suffix for name in kind), table) for kind in kinds]
    if candidates[-1] is not None:
        own, together = (table[name]["gb_per_s"]["rounds"] for name in (ours, candidates[-1]))
        if any(mine > most for mine, most in zip(own, together, strict=False)):
            candidates.pop()
    return min(
        (name for name in candidates if name is not None),
        key=lambda name: float(table[name]["gb_per_s"]["median"]),
        default=None,
    )


def _busy(cores_used: float) -> str:
    cores = os.cpu_count() or 1
    return f"the processors bind ({cores_used:.2f} of {cores} in use)" if cores_used >= BUSY * cores else ""


def outcomes_of_part(part: str, rows: list[Row]) -> list[Outcome]:
    """``rows``: one for each way in which the part was measured, with ``name``, ``headline`` and the numbers
    that LIMITS speaks of."""
    return [
        _limit_outcome(limit, row)
        for limit in LIMITS
        if limit.part == part
        for row in rows
        if row.get(limit.measure) is not None
    ]


def _limit_outcome(limit: Limit, row: Row) -> Outcome:
    value = float(row[limit.measure])
    at_least = limit.least is not None
    bound = limit.least if limit.least is not None else limit.most
    assert bound is not None, "a limit has one side"
    reached = value >= bound if at_least else value <= bound
    spread = row.get(f"{limit.measure}_spread", {"least": value, "most": value})
    floor = row.get("floor", {}).get(limit.measure)  # the same number of something that does less
    floor_fails = floor is not None and not (floor >= bound if at_least else floor <= bound)
    binds = f"{row['floor']['name']} binds: it has {floor:.2f} itself" if floor_fails and not reached else ""
    verdict = f"{_said(reached)}: {row['says'].get(limit.measure, f'{value:.4g}')}" + (
        f"; {binds}" if binds else ""
    )
    return Outcome(
        limit.measure, limit.text, f"{limit.part}/{row['name']}", bool(row["headline"]), row["name"], limit.part, _kept(value),  # noqa: E501
        spread["least"], spread["most"], bound, at_least, reached, binds, verdict,
    )  # fmt: skip
