"""Tables for a terminal of any width, in which nothing is cut, and a view for one of any height.

A name or a count that ends in an ellipsis is worse than none: it cannot be copied, or is read as another. So
a table that is too wide leaves out whole columns, the least important first, and names them below. Where
those that always stay are too wide, the first cell of each row, its name, gets a line of its own. A line that
is longer even then is left to the terminal, which wraps it and copies it whole.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.segment import Segment, Segments
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType, RenderResult

GAP = 2
LEAST_WRAPPED = 30  # the room that a column that wraps gets before another one is left out
_LEAST_FIRST = 2  # lines of a view that begin it even where its last part alone would be too long
_ENDLESS = 1_000_000  # where output goes to a file or another program, lines are as long as they need to be


def console() -> Console:
    """Standard output, which takes text as it is: no markup, no colours for what looks like a number."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=False, emoji=False, width=None if known else _ENDLESS)


def show(*parts: RenderableType) -> None:
    """Prints each part on lines of its own, none of them shortened, and text broken between words alone."""
    out = console()
    for part in parts:
        for line in _wrapped(Text(part), out.width) if isinstance(part, str) else (part,):
            out.print(line, soft_wrap=True)


class Screenful:
    """A view of several parts that is no higher than the terminal. Lines that do not fit are left out before
    the last part, and one line says so: the view begins with the state of the whole, and its last part is
    what its reader must not miss."""

    def __init__(self, parts: Group) -> None:
        *self._before, self._last = parts.renderables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        before, last = (
            console.render_lines(Group(*parts), options, pad=False) for parts in (self._before, [self._last])
        )
        lines, height = before + last, options.size.height
        if len(lines) > height:
            first = max(height - 1 - len(last), min(_LEAST_FIRST, height - 1))
            left_out = lines[first : len(lines) - (height - 1 - first)]
            told = f"({len(left_out)} lines left out, for a terminal of {height})"
            note = console.render_lines(Text(told, "dim", no_wrap=True), options, pad=False)
            lines[first : first + len(left_out)] = note[:1]
        for number, line in enumerate(lines):
            yield Segments(line if number == 0 else [Segment.line(), *line])


@dataclass(frozen=True)
class TableColumn:
    """Columns of rank 0 always stay; of the others, the one of the highest rank is left out first. The last
    column may be one that ``wraps``: between words, never within one."""

    name: str = ""
    rank: int = 0
    is_number: bool = False
    wraps: bool = False
    style: str = ""


@dataclass(eq=False)
class _Filled:
    """A column and its cells, that of the header first."""

    column: TableColumn
    cells: list[Text] = field(default_factory=list)
    width: int = 0

    def add(self, cell: str | Text, style: str) -> None:
        self.cells.append(cell if isinstance(cell, Text) else Text(cell, style))
        self.width = max(self.width, self.cells[-1].cell_len)

    @property
    def least_width(self) -> int:
        return min(self.width, LEAST_WRAPPED) if self.column.wraps else self.width


class FittedTable:
    """Chooses its columns when it is drawn. It has a header if a column has a name."""

    def __init__(self, *columns: TableColumn) -> None:
        self._filled = [_Filled(column) for column in columns]
        for filled in self._filled:
            filled.add(filled.column.name, "bold")

    def add_row(self, *cells: str | Text) -> None:
        """Adds a cell to each column."""
        for filled, cell in zip(self._filled, cells, strict=True):
            filled.add(cell, filled.column.style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        apart, printed = _laid_out(self._filled, options.max_width)
        has_header = any(filled.column.name for filled in self._filled)
        for row in range(not has_header, len(self._filled[0].cells)):
            if apart:
                yield apart.cells[row]
            yield from _lines(printed, row, options.max_width, indent=GAP if apart else 0)
        if left_out := [each.column.name for each in self._filled if each not in (apart, *printed)]:
            yield Text(f"no room for {', '.join(left_out)}", "dim")


def _laid_out(filled: Sequence[_Filled], room: int) -> tuple[_Filled | None, list[_Filled]]:
    """Returns the column whose cells get lines of their own, if any, and those beside each other."""
    printed = _fitting(filled, room)
    if _needed(printed) <= room or len(printed) == 1:
        return None, printed
    return filled[0], _fitting(filled[1:], room - GAP)


def _fitting(filled: Sequence[_Filled], room: int) -> list[_Filled]:
    printed = list(filled)
    while _needed(printed) > room and (least := max(printed, key=lambda each: each.column.rank)).column.rank:
        printed.remove(least)
    return printed


def _needed(printed: Sequence[_Filled]) -> int:
    return sum(each.least_width for each in printed) + GAP * (len(printed) - 1)


def _lines(printed: Sequence[_Filled], row: int, width: int, *, indent: int) -> Iterator[Text]:
    """Yields the lines of one row: one, or more where its last column wraps."""
    line = Text(" " * indent)
    for each in printed[:-1]:
        line.append_text(_padded(each, row)).append(" " * GAP)
    last, begin = printed[-1], line.cell_len
    if not last.column.wraps:
        line.append_text(_padded(last, row)).rstrip()
        yield line
        return
    for piece in _wrapped(last.cells[row], max(width - begin, LEAST_WRAPPED)):
        yield line.append_text(piece)
        line = Text(" " * begin)


def _padded(filled: _Filled, row: int) -> Text:
    cell = filled.cells[row].copy()
    missing = filled.width - cell.cell_len
    (cell.pad_left if filled.column.is_number else cell.pad_right)(missing)
    return cell


def _wrapped(text: Text, room: int) -> Iterator[Text]:
    """Yields lines of at most ``room`` characters, or of one longer word: rich and textwrap would cut it."""
    for line in text.split(allow_blank=True):
        begins = [0]
        for word in re.finditer(r"\S+", line.plain):
            if word.end() - begins[-1] > room and word.start() > begins[-1]:
                begins.append(word.start())
        for piece in line.divide(begins[1:]):
            piece.rstrip()
            yield piece
