"""The newest whole record as tables between two marks: all that is asked in README.md here, five ratios in
the project's. ``renew`` writes both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import record
from .record import Record, RecordError
from .record_table import measured

README, ALL = Path(__file__).resolve().parents[2] / "README.md", Path(__file__).resolve().parent / "README.md"
FIRST = (
    "in process",
    "daemon, shared memory",
    "uncompressed",
    "CPU seconds per GB, in process",
    "peak memory, daemon",
)
BEGIN, END = "<!-- record: written by tools/bench chart -->", "<!-- /record -->"


def digest(made: Record) -> str:
    """Markdown: where it was measured, then one row for each figure on the disk in the headline scene, with
    its value without a disk beside it.

    A figure that is asked of several (each peer, plan and peer) has one row: the one that is nearest to being
    missed.
    """
    lines = [_where(made), "", "| | asked | measured | no disk | |", "|---|---|---|---|---|"]
    lines += [
        f"| {_what(one)} | {one['asked']} | {measured(one)} | {_no_disk(made, one)} | {_short(one)} |"
        for one in _rows(made)
    ]
    return "\n".join(lines)


def summary(made: Record) -> str:
    """Markdown: five ratios, each with what it is a ratio to, then where they were measured."""
    lines = ["| | ratio | to that of |", "|---|---|---|"]
    lines += [
        f"| {_what(one)} | {measured(one)} | {one['against'].replace('shardwright', 'in process')} |"
        for name in FIRST
        for one in _rows(made)
        if one["name"] == name
    ]
    return "\n".join([*lines, "", _where(made)])


def _where(made: Record) -> str:
    machine = made.machine
    where = (
        f"{machine.cpu.replace('(R)', '')}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} "
        f"GiB, {machine.filesystem}, "
    )
    where += f"Linux {machine.kernel}; {made.date[:10]}, commit {(made.commit or 'none')[:9]}."
    if made.cores_busy > record.BUSY_CORES:
        where += f" The machine was not idle: up to {made.cores_busy:.1f} cores were busy with other work."
    return where


def _rows(made: Record) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for one in made.outcomes:
        if one["headline"]:
            worst = rows.setdefault((one["name"], _way(one)), one)
            if _margin(one) < _margin(worst):
                rows[one["name"], _way(one)] = one
    return list(rows.values())


def _margin(one: dict[str, Any]) -> float:
    """Below 1 where it is not reached."""
    value, limit = float(one["value"]), float(one["limit"])
    if one["at_least"]:
        return value / limit
    return limit / value if value else float("inf")


def _way(one: dict[str, Any]) -> str:
    """Which of a part's rows it is; nothing for a comparison."""
    part, _, way = one["measured_in"].partition("/")
    return str(way) if part == one["against"] else ""


def _what(one: dict[str, Any]) -> str:
    """The figure; of a part also the way in which it was measured."""
    way = _way(one)
    return (
        f"{one['against']}, {way.removesuffix(' disk')}"
        if way and way != "disk"
        else str(one["against"] if way else one["name"])
    )


def _short(one: dict[str, Any]) -> str:
    """Reached, or not and why; with whom it was compared."""
    versus = "" if _way(one) else f" / {one['against']}"
    return (
        f"reached{versus}"
        if one["reached"]
        else (f"**not reached**{versus}{'; ' + one['binds'] if one['binds'] else ''}")
    )


def _no_disk(made: Record, one: dict[str, Any]) -> str:
    """The same figure in memory, where it has one; the best backend or floor may be another there."""
    where = one["measured_in"].replace("disk", "no-disk")
    twins = [
        other for other in made.outcomes if other["name"] == one["name"] and other["measured_in"] == where
    ]
    same = [other for other in twins if other["against"] == one["against"]] or (
        twins if len(twins) == 1 else []
    )
    return f"{same[0]['value']:.2f}" if same else ""


def renew(readme: Path = README, everything: Path = ALL, source: Path = record.PATH) -> None:
    """Write the tables of the newest whole record between the marks. Raises ``RecordError``."""
    made = record.newest(source)
    _put(readme, summary(made))
    _put(everything, digest(made))


def _put(readme: Path, table: str) -> None:
    text = readme.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise RecordError(
            f"{readme.name} has no place for the digest: put {BEGIN} and {END} on lines of their own"
        )
    readme.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def digest_of(readme_text: str) -> str:
    """What stands between the marks."""
    return readme_text.partition(BEGIN)[2].partition(END)[0].strip()
