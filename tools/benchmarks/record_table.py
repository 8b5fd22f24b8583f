"""A record as text: what is asked and what was measured, then every comparison and part."""

from __future__ import annotations

from typing import Any

from .part_command import PARTS
from .record import BUSY_CORES, Record


def text(record: Record) -> str:
    machine = record.machine
    others = (
        f"; up to {record.cores_busy:.1f} cores were busy with other work"
        if record.cores_busy > BUSY_CORES
        else ""
    )
    lines = [
        (
            f"{record.date}, commit "
            f"{(record.commit or 'none')[:9]}{' (changed)' if record.dirty else ''}{', quick: no figures' if record.quick else ''}"  # noqa: E501
        ),
        (
            f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB, Linux "
            f"{machine.kernel}, {machine.filesystem}{others}"
        ),
        "",
        *outcome_lines(record.outcomes),
    ]
    for name, comparison in record.comparisons.items():
        lines += [
            "",
            f"{name}: {comparison['case']['frames']} frames, {comparison['rounds']} rounds",
            *comparison_lines(comparison["rows"]),
        ]
    for name, part in record.parts.items():
        lines += ["", f"{name}: failed: {part['error']}" if "error" in part else PARTS[name][1](part)]
    return "\n".join([*lines, "", *record.notes])


def measured(outcome: dict[str, Any]) -> str:
    """The value as people say it: a ratio, with its spread where it has one."""
    value, least, most = outcome["value"], outcome["least"], outcome["most"]
    return f"{value:.2f}" if least == most else f"{value:.2f} ({least:.2f} to {most:.2f})"


def outcome_lines(outcomes: list[dict[str, Any]]) -> list[str]:
    head = (
        f"{'figure':<40}{'measured in':<28}{'ours':<20}{'against':<14}{'asked':>7}  {'measured':<22}verdict"
    )
    lines = [head, "-" * len(head)]
    for one in sorted(outcomes, key=lambda outcome: not outcome["headline"]):
        asked = f"{'>=' if one['at_least'] else '<='}{one['limit']:g}"
        lines.append(
            f"{one['name']:<40}{one['measured_in']:<28}{one['ours']:<20}{one['against']:<14}{asked:>7}  "
            f"{measured(one):<22}{one['verdict']}"
        )
    return lines


def comparison_lines(rows: list[dict[str, Any]]) -> list[str]:
    head = f"{'contender':<22}{'GB/s':>7}{'least':>7}{'most':>7}{'CPU s/GB':>10}{'cores':>7}{'memory MiB':>12}{'plan MiB':>10}{'ratio':>7}"  # noqa: E501
    lines = [head, "-" * len(head)]
    for row in rows:
        if "error" in row:
            lines.append(f"{row['name']:<22}  failed: {row['error'].splitlines()[-1][:100]}")
            continue
        speed, planned = row["gb_per_s"], row["planned_memory_bytes"]
        plan = "" if planned is None else f"{planned / 2**20:.0f}"
        lines.append(
            f"{row['name']:<22}{speed['median']:>7.2f}{speed['least']:>7.2f}{speed['most']:>7.2f}{row['cpu_s_per_gb']['median']:>10.2f}"
            f"{row['cores_used']:>7.2f}{row['memory_bytes'] / 2**20:>12.0f}{plan:>10}{row['ratio']:>7.2f}"
        )
    return lines
