"""What the rounds say: medians, spread, ratios to acquire-zarr, CPU, memory; as numbers, then as a table."""

from __future__ import annotations

from statistics import median
from typing import Any

from .cases import Case
from .contest import Result

REFERENCE = "acquire-zarr"


def gigabytes_per_second(result: Result, case: Case) -> list[float]:
    """Raw frames per second of wall time, one number a round."""
    return [case.raw_bytes / seconds / 1e9 for seconds in result.seconds]


def summary(results: list[Result], case: Case) -> list[dict[str, Any]]:
    """One row a contender. ``versus_reference`` is the median of the ratios within each round: both saw the
    same minute of the machine."""
    speeds = {result.name: gigabytes_per_second(result, case) for result in results}
    reference = speeds.get(REFERENCE, [])
    rows: list[dict[str, Any]] = []
    for result in results:
        row: dict[str, Any] = {"name": result.name, "kind": result.kind}
        speed = speeds[result.name]
        if result.error is not None or not speed:
            rows.append({**row, "error": result.error or "no round was timed"})
            continue
        ratios = [ours / theirs for ours, theirs in zip(speed, reference, strict=False)]
        row |= {
            "gb_per_s": median(speed),
            "gb_per_s_least": min(speed),
            "gb_per_s_most": max(speed),
            "versus_reference": median(ratios) if ratios else None,
            "cpu_s_per_gb": median(result.cpu_seconds) / (case.raw_bytes / 1e9),
            "memory_bytes": result.memory_bytes,
            "planned_memory_bytes": result.planned_memory_bytes,
            "within_plan": None
            if result.planned_memory_bytes is None
            else result.memory_bytes <= result.planned_memory_bytes,
            "ratio": case.raw_bytes / result.stored_bytes,
        }
        rows.append(row)
    return rows


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """The comparisons that the project asks of itself, as sentences; only those whose contenders ran."""
    speed = {row["name"]: row["gb_per_s"] for row in rows if "error" not in row}
    ratio = {row["name"]: row["versus_reference"] for row in rows if row.get("versus_reference") is not None}
    lines = [
        f"{name} is {ratio[name]:.2f}x {REFERENCE} (asked: {asked}x)"
        for name, asked in (("shardwright", 2.0), ("daemon-shm", 1.5))
        if name in ratio
    ]
    for ours, theirs, what in (
        ("core-kernel", "core-numcodecs", "from frames"),
        ("core-kernel-gathered", "core-numcodecs-gathered", "from gathered chunks"),
    ):
        if ours in speed and theirs in speed:
            lines.append(
                f"on one core {what} the kernel is {speed[ours] / speed[theirs]:.2f}x numcodecs' "
                f"Blosc (asked: 2x)"
            )
    greedy = [row for row in rows if row.get("within_plan") is False]
    return lines + [
        f"{row['name']} used {row['memory_bytes']:,} bytes, more than its plan of "
        f"{row['planned_memory_bytes']:,}"
        for row in greedy
    ]


def table(rows: list[dict[str, Any]]) -> str:
    head = f"{'contender':<26}{'GB/s':>7}{'least':>7}{'most':>7}{'x acquire':>11}{'CPU s/GB':>10}{'memory MiB':>12}{'plan MiB':>10}{'ratio':>7}"  # noqa: E501
    lines = [head, "-" * len(head)]
    for row in rows:
        if "error" in row:
            lines.append(f"{row['name']:<26}  failed: {row['error'].splitlines()[-1][:100]}")
            continue
        versus = "" if row["versus_reference"] is None else f"{row['versus_reference']:.2f}"
        planned = "" if row["planned_memory_bytes"] is None else f"{row['planned_memory_bytes'] / 2**20:.0f}"
        lines.append(
            f"{row['name']:<26}{row['gb_per_s']:>7.2f}{row['gb_per_s_least']:>7.2f}{row['gb_per_s_most']:>7.2f}{versus:>11}"
            f"{row['cpu_s_per_gb']:>10.2f}{row['memory_bytes'] / 2**20:>12.0f}{planned:>10}{row['ratio']:>7.2f}"  # noqa: E501
        )
    return "\n".join(lines)
