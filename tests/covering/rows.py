"""A covering array: rows of one value of each option which together have every combination of the values of
any two options (or three). Greedy, and the same in every process."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Row = dict[str, Any]
Combination = tuple[tuple[str, Any], ...]  # (option, value), in the order of the options
ROUNDS = 4  # rows tried for each that is taken


def combinations(options: Mapping[str, tuple[Any, ...]], strength: int) -> Iterator[Combination]:
    """Yields all of ``strength`` options."""
    for names in itertools.combinations(options, strength):
        for values in itertools.product(*(options[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def covering_rows(
    options: Mapping[str, tuple[Any, ...]], is_refused: Callable[[Row], bool], strength: int = 2
) -> list[Row]:
    """Returns rows that have every combination which is not refused. ``is_refused``: of some options' values.
    The first value of each option must go with every value of the others."""
    left = dict.fromkeys(each for each in combinations(options, strength) if not is_refused(dict(each)))
    numbers, rows = random.Random(0), []
    while left:
        first = next(iter(left))
        tried = [_grown(dict(first), options, is_refused, left, strength, numbers) for _ in range(ROUNDS)]
        best = max(tried, key=lambda row: sum(1 for each in _of_row(row, strength) if each in left))
        for each in _of_row(best, strength):
            left.pop(each, None)
        rows.append(best)
    return rows


def _of_row(row: Row, strength: int) -> Iterator[Combination]:
    return itertools.combinations(row.items(), strength)


def _grown(
    row: Row,
    options: Mapping[str, tuple[Any, ...]],
    is_refused: Callable[[Row], bool],
    left: Mapping[Combination, None],
    strength: int,
    numbers: random.Random,
) -> Row:
    """Returns a whole row: each option in turn gets the value that adds most of ``left``."""
    order = list(options)
    places = {name: place for place, name in enumerate(order)}
    others = [name for name in order if name not in row]
    for name in numbers.sample(others, len(others)):
        added = {}
        for value in options[name]:
            if is_refused({**row, name: value}):
                continue
            groups = itertools.combinations([*row.items()], strength - 1)
            added[value] = sum(
                tuple(sorted((*group, (name, value)), key=lambda pair: places[pair[0]])) in left
                for group in groups
            )
        most = max(added.values())
        row[name] = numbers.choice([value for value, count in added.items() if count == most])
    return {name: row[name] for name in order}
