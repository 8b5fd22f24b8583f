"""A covering array: rows of one value of each option which together have every combination of the values of
some groups of options, such as all pairs. Greedy, and the same in every process."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Row = dict[str, Any]
Group = tuple[str, ...]  # names of options
Combination = tuple[tuple[str, Any], ...]  # (option, value)
ROUNDS = 4  # rows tried for each that is taken


def combinations(options: Mapping[str, tuple[Any, ...]], groups: Iterable[Group]) -> Iterator[Combination]:
    """Yields all values of the options of each group."""
    for names in groups:
        for values in itertools.product(*(options[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def covering_rows(
    options: Mapping[str, tuple[Any, ...]], groups: list[Group], is_refused: Callable[[Row], bool]
) -> list[Row]:
    """Returns rows that have every combination which is not refused. ``is_refused``: of some options' values.
    Each option needs a value that goes with all others."""
    left = dict.fromkeys(each for each in combinations(options, groups) if not is_refused(dict(each)))
    by_name = {name: [group for group in groups if name in group] for name in options}
    numbers, rows = random.Random(0), []
    while left:
        first = dict(next(iter(left)))
        tried = [_grown(first, options, by_name, is_refused, left, numbers) for _ in range(ROUNDS)]
        row, _ = max(tried, key=lambda grown: grown[1])
        for group in groups:
            left.pop(_of(row, group), None)
        rows.append({name: row[name] for name in options})
    return rows


def _of(row: Row, group: Group) -> Combination:
    return tuple((name, row[name]) for name in group)


def _grown(
    first: Row,
    options: Mapping[str, tuple[Any, ...]],
    by_name: Mapping[str, list[Group]],
    is_refused: Callable[[Row], bool],
    left: Mapping[Combination, None],
    numbers: random.Random,
) -> tuple[Row, int]:
    """Returns a whole row, and how many of ``left`` it has beside ``first``: each option in turn gets the
    value that adds most."""
    row, total = dict(first), 0
    others = [name for name in options if name not in row]
    for name in numbers.sample(others, len(others)):
        ready = [group for group in by_name[name] if all(each in row or each == name for each in group)]
        added = {}
        for value in options[name]:
            with_it = {**row, name: value}
            if not is_refused(with_it):
                added[value] = sum(_of(with_it, group) in left for group in ready)
        most = max(added.values())
        row[name] = numbers.choice([value for value, count in added.items() if count == most])
        total += most
    return row, total
