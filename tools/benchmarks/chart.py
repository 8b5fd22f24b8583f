"""The chart of a record, for the README: one panel for each comparison in the headline scene, a bar for each
contender, a whisker for its spread.

SVG by hand: bars and text, one file, no fonts and no scripts. Colours change with the reader's light or dark
mode; without either the middle tones stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from . import record
from .cases import HEADLINE_SCENE
from .record import Record

PATH = Path(__file__).resolve().parent / "chart.svg"
PANELS = {
    f"{case}/{HEADLINE_SCENE}/{place}": f"{title}, {where}"
    for case, title in (
        ("lz4", "Blosc lz4 + shuffle"),
        ("zstd", "Blosc zstd-1 + shuffle"),
        ("uncompressed", "uncompressed"),
    )
    for place, where in (("disk", "on the disk"), ("no-disk", "no disk"))
}
WIDTH = 960
COLUMN, GAP = 460, 40
NAME_WIDTH, VALUE_WIDTH = 156, 52
ROW, BAR = 20, 12
HEAD = 34  # of a panel: its title
TOP = 48  # of the whole: title and legend
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #59636e; }
  .title { font-size: 14px; font-weight: 600; } .strong { font-weight: 600; }
  .ours { fill: #2f81f7; } .peer { fill: #c2733a; } .floor { fill: #8c959f; fill-opacity: .55; }
  .whisker { stroke: #59636e; stroke-width: 1.2; }
  @media (prefers-color-scheme: light) { text { fill: #1f2328; } .whisker { stroke: #1f2328; } .ours { fill: #0969da; } .peer { fill: #bc4c00; } }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .whisker { stroke: #e6edf3; } .ours { fill: #4493f8; } .peer { fill: #db8f5c; } }
"""  # noqa: E501


def draw(made: Record) -> str:
    """The SVG of one record. Panels of comparisons that were not run are left out; raises ``RecordError``
    when none is left."""
    drawn = ((title, made.comparisons.get(name, {"rows": []})["rows"]) for name, title in PANELS.items())
    panels = [(title, ran) for title, rows in drawn if (ran := bars(rows))]
    if not panels:
        raise record.RecordError(
            "this record has no comparison to draw. Run tools/bench record without --only"
        )
    body: list[str] = []
    y = TOP
    for first in range(0, len(panels), 2):
        pair = panels[first : first + 2]
        for column, (title, rows) in enumerate(pair):
            body += _panel(title, rows, column * (COLUMN + GAP), y)
        y += HEAD + ROW * max(len(rows) for _, rows in pair) + 14
    machine = made.machine
    what = (
        f"GB/s of raw 2048 x 2048 uint16 frames, final sync counted: {machine.cpu}, {machine.cores} "
        f"cores, {machine.filesystem}, {made.date[:10]}"
    )
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
                f'height="{y}" role="img" aria-labelledby="title">'
            ),
            f'<title id="title">{escape(what)}</title>',
            f"<style>{STYLE}</style>",
            f'<text class="title" x="0" y="14">{escape(what)}</text>',
            *_legend(),
            *body,
            "</svg>\n",
        ]
    )


def bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a comparison that are drawn: those that ran, fastest first, floors last."""
    ran = [row for row in rows if "error" not in row]
    return sorted(ran, key=lambda row: (row["kind"] == "floor", -row["gb_per_s"]["median"]))


def _legend() -> Iterator[str]:
    x = 0.0
    for kind, text in (
        ("ours", "shardwright"),
        ("peer", "other writers"),
        ("floor", "floors: the kernel, the disk, both at once"),
        (None, "line: least to most"),
    ):
        if kind is not None:
            yield f'<rect class="{kind}" x="{x:.1f}" y="24" width="12" height="12" rx="2"/>'
            x += 18
        yield f'<text x="{x:.1f}" y="34">{text}</text>'
        x += 24 + 6.4 * len(text)


def _panel(title: str, rows: list[dict[str, Any]], x: float, y: float) -> Iterator[str]:
    yield f'<text class="title" x="{x}" y="{y + 20}">{escape(title)}</text>'
    room = COLUMN - NAME_WIDTH - VALUE_WIDTH
    longest = max(row["gb_per_s"]["most"] for row in rows)
    left = x + NAME_WIDTH
    for number, row in enumerate(rows):
        top = y + HEAD + number * ROW
        speed = row["gb_per_s"]
        at = {name: left + room * speed[name] / longest for name in ("median", "least", "most")}
        strong = ' class="strong"' if row["kind"] == "ours" else ""
        yield (
            f'<text{strong} x="{left - 8}" y="{top + BAR - 1}" text-anchor="end">{escape(row["name"])}</text>'
        )
        yield (
            f'<rect class="{row["kind"]}" x="{left}" y="{top}" width="{at["median"] - left:.1f}" '
            f'height="{BAR}" rx="2"/>'
        )
        yield (
            f'<line class="whisker" x1="{at["least"]:.1f}" y1="{top + BAR / 2}" x2="{at["most"]:.1f}" '
            f'y2="{top + BAR / 2}"/>'
        )
        yield f'<text{strong} x="{at["most"] + 6:.1f}" y="{top + BAR - 1}">{speed["median"]:.2f}</text>'
