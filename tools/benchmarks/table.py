"""Tables of figures: any rows as text, a record as text, and the newest whole record between two marks of the
READMEs: all that is asked in the README here, five ratios in the project's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import record
from .cases import throughput
from .record import Record, RecordError
from .run import PARTS

README, ALL = Path(__file__).resolve().parents[2] / "README.md", Path(__file__).resolve().parent / "README.md"
FIRST = (
    "in process",
    "daemon, shared memory",
    "uncompressed",
    "CPU seconds per GB, in process",
    "peak memory, daemon",
)
BEGIN, END = "<!-- record: written by tools/bench chart -->", "<!-- /record -->"
# of what a ratio is to, for readers of the README who know neither our bench nor our plans
_IN_WORDS = {"shardwright": "in process", "plan": "the memory that `shardwright check` plans"}
SHOWN = ("measured_in", "ours", "against", "value", "least", "most", "limit")
Row = dict[str, Any]


def table(rows: list[Row], columns: Mapping[str, str]) -> str:
    """One line for each row, by its name; ``columns``: title -> path of the figure in a row, such as
    ``gb_per_s.median``. Bytes are shown as MiB."""
    cells = [["", *columns]]
    for row in rows:
        shown = [] if "error" in row else [_cell(row, path) for path in columns.values()]
        cells.append([row["name"], *shown])
    widths = [max(len(line[i]) for line in cells if i < len(line)) + 2 for i in range(len(columns) + 1)]
    lines = [name.ljust(widths[0]) + "".join(map(str.rjust, rest, widths[1:])) for name, *rest in cells]
    failed = [f"  failed: {row['error'].splitlines()[-1][:100]}" if "error" in row else "" for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *map(str.__add__, lines[1:], failed)])


def _cell(row: Row, path: str) -> str:
    value: Any = row
    for key in path.split("."):
        if isinstance(value, dict) and key not in value:
            return ""  # of a record from before it was measured
        value = value[int(key)] if isinstance(value, list) else value[key]
    if isinstance(value, str) or value is None:
        return value or ""
    if path.endswith("_bytes"):
        return f"{value / 2**20:.0f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{2 if abs(value) >= 0.1 else 4}f}"


def text(made: Record) -> str:
    """The figures that are asked, then every comparison and part."""
    changed, quick = " (changed)" if made.dirty else "", ", quick: no figures" if made.quick else ""
    figures = sorted(made.outcomes, key=lambda one: not one["headline"])
    lines = [f"{where(made)}{changed}{quick}", "", table(figures, dict(zip(SHOWN, SHOWN, strict=True)))]
    for name, comparison in made.comparisons.items():
        title = f"{name}: {comparison['case']['frames']} frames, {comparison['rounds']} rounds"
        lines += ["", title, table(comparison["rows"], throughput.COLUMNS)]
    for name, part in made.parts.items():
        failed = f": failed: {part['error']}" if "error" in part else ""
        lines += ["", f"{name}{failed}", part_text(part, PARTS[name].COLUMNS)]
    return "\n".join([*lines, "", *made.notes])


def part_text(part: Row, columns: Mapping[str, str]) -> str:
    rows = [*part["rows"], *part.get("asked_nothing", ())]
    return table([*rows, *([part["floor"]] if "floor" in part else [])], columns)


def where(made: Record) -> str:
    machine = made.machine
    busy = (
        f" The machine was not idle: up to {made.cores_busy:.1f} cores were busy with other work."
        if made.cores_busy > record.BUSY_CORES
        else ""
    )
    return (
        f"{machine.cpu.replace('(R)', '')}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB, "
        f"{machine.filesystem}, Linux {machine.kernel}; {made.date[:10]}, commit "
        f"{(made.commit or 'none')[:9]}.{busy}"
    )


def digest(made: Record) -> str:
    """Markdown: where it was measured, then one row for each figure on the disk in the headline scene, with
    its value without a disk beside it.

    A figure with several comparisons (each peer, plan and peer) has one row: the one that is nearest to being
    missed.
    """
    lines = [where(made), "", "| | asked | measured | no disk | |", "|---|---|---|---|---|"]
    lines += [
        f"| {_name(one)} | {one['asked']} | {measured(one)} | {_no_disk(made, one)} | {_reached(one)} |"
        for one in _headlines(made)
    ]
    return "\n".join(lines)


def summary(made: Record) -> str:
    """Markdown: five ratios, each with what it is a ratio to, then where they were measured."""
    lines = ["| | ratio | to that of |", "|---|---|---|"]
    lines += [
        f"| {_name(one)} | {measured(one)} | {_IN_WORDS.get(one['against'], one['against'])} |"
        for name in FIRST
        for one in _headlines(made)
        if one["name"] == name
    ]
    return "\n".join([*lines, "", where(made)])


def measured(outcome: Row) -> str:
    """A value, with its spread where it has one."""
    value, least, most = outcome["value"], outcome["least"], outcome["most"]
    return f"{value:.2f}" if least == most else f"{value:.2f} ({least:.2f} to {most:.2f})"


def _headlines(made: Record) -> list[Row]:
    rows: dict[tuple[str, str], Row] = {}
    for one in made.outcomes:
        if one["headline"]:
            nearest = rows.setdefault((one["name"], _way(one)), one)
            if _margin(one) < _margin(nearest):
                rows[one["name"], _way(one)] = one
    return list(rows.values())


def _margin(one: Row) -> float:
    """Below 1 where the limit is missed."""
    value, limit = float(one["value"]), float(one["limit"])
    if one["at_least"]:
        return value / limit
    return limit / value if value else float("inf")


def _way(one: Row) -> str:
    """The row of a part that a figure is of; nothing for a comparison."""
    part, _, way = one["measured_in"].partition("/")
    return str(way) if part == one["against"] else ""


def _name(one: Row) -> str:
    """The figure; of a part also the way in which it was measured."""
    way = _way(one)
    if way and way != "disk":
        return f"{one['against']}, {way.removesuffix(' disk')}"
    return str(one["against"] if way else one["name"])


def _reached(one: Row) -> str:
    """Whether the limit was kept, and with whom it was compared. Earlier records also say what bound it."""
    versus, binds = "" if _way(one) or not one["against"] else f" / {one['against']}", one.get("binds")
    if _margin(one) >= 1:
        return f"reached{versus}"
    return f"**not reached**{versus}{f'; {binds}' if binds else ''}"


def _no_disk(made: Record, one: Row) -> str:
    """The same figure in memory, where it has one; the best backend or floor may be another there."""
    where = (one["name"], one["measured_in"].replace("disk", "no-disk"))
    twins = [other for other in made.outcomes if (other["name"], other["measured_in"]) == where]
    same = [other for other in twins if other["against"] == one["against"]] or twins
    return f"{same[0]['value']:.2f}" if len(same) == 1 else ""


def renew(readme: Path = README, everything: Path = ALL, source: Path = record.PATH) -> None:
    """Writes the tables of the newest whole record between the marks. Raises ``RecordError``."""
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
    """The text between the marks."""
    return readme_text.partition(BEGIN)[2].partition(END)[0].strip()
