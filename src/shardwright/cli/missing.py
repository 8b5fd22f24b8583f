"""``shardwright inspect --missing``: the places of an image that no stored frame fills, with the reason where
it is known."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.read.missing_frames import MissingFrames, MissingRange
    from shardwright.read.store import Store


def print_missing(store: Store, as_json: bool) -> None:
    """Print the missing frames range by range, so that a list of any length costs no memory. Raises
    ``ShardFormatError`` when the store has no frame table."""
    from shardwright.read.frame_table import open_frame_table
    from shardwright.read.missing_frames import MissingFrames

    if store.group is None or not store.arrays:
        raise ShardFormatError(
            f"{store.root} is no store with a frame table",
            hint="Give the path of the whole store, the folder above the image",
        )
    table = open_frame_table(store)
    if table is None:
        hint = (
            "It is written when the acquisition ends; `shardwright recover` ends one that was interrupted"
            if store.work_in_progress
            else None
        )
        raise ShardFormatError(f"{store.root} has no frame table", hint=hint)
    missing = MissingFrames(table, store.arrays[0])
    if as_json:
        _print_json(store, missing)
    else:
        _print_text(table.axes, missing)


class _Tally:
    """Counts the frames of the ranges that it yields."""

    def __init__(self, missing: MissingFrames) -> None:
        self.inside = self.beyond = 0
        self.by_status: Counter[str] = Counter()
        self._missing = missing

    def ranges(self) -> Iterator[MissingRange]:
        for found in self._missing.ranges():
            inside = max(0, min(found.last + 1, self._missing.places) - found.first)
            self.inside += inside
            self.beyond += found.count - inside
            self.by_status[_why(found)] += found.count
            yield found


def _why(found: MissingRange) -> str:
    if found.status is None or found.reason is None:
        return "never came"
    return f"{found.status.name.lower()} ({found.reason.name.lower()})"


def _as_dict(found: MissingRange, missing: MissingFrames) -> dict[str, Any]:
    return {
        "first": found.first,
        "last": found.last,
        "first_index": missing.index_of(found.first),
        "last_index": missing.index_of(found.last),
        "fate": None if found.status is None else found.status.name.lower(),
        "reason": None if found.reason is None else found.reason.name.lower(),
    }


def _print_json(store: Store, missing: MissingFrames) -> None:
    """Print one object, piece by piece: the ranges first, their sums after them."""
    tally = _Tally(missing)
    typer.echo(f'{{"path": {json.dumps(str(store.root))}, "places": {missing.places}, "missing": [', nl=False)
    for i, found in enumerate(tally.ranges()):
        typer.echo((",\n" if i else "\n") + json.dumps(_as_dict(found, missing)), nl=False)
    unplaced = [
        {"fate": status.name.lower(), "reason": reason.name.lower(), "frames": n}
        for (status, reason), n in missing.unplaced.items()
    ]
    totals = {
        "frames_missing": tally.inside,
        "frames_missing_beyond": tally.beyond,
        "frames_without_place": unplaced,
    }
    typer.echo(f"],\n{json.dumps(totals)[1:]}")


def _print_text(axes: list[str], missing: MissingFrames) -> None:
    tally = _Tally(missing)
    for found in tally.ranges():
        first, last = (
            " ".join(f"{axis}={i}" for axis, i in zip(axes, missing.index_of(p), strict=True))
            for p in (found.first, found.last)
        )
        where = (
            f"frame {found.first} ({first})"
            if found.count == 1
            else (f"frames {found.first} to {found.last} ({first} to {last})")
        )
        typer.echo(f"{where}: {_why(found)}")
    if tally.by_status:
        beyond = f", and {tally.beyond} behind its end" if tally.beyond else ""
        summary = ", ".join(f"{count} {why}" for why, count in tally.by_status.most_common())
        typer.echo(f"{tally.inside} of {missing.places} frames of the image are missing{beyond}: {summary}")
    else:
        typer.echo(f"no frame is missing: all {missing.places} places of the image are stored")
    for (status, reason), count in missing.unplaced.items():
        typer.echo(
            f"{count} frame{'s' if count > 1 else ''} without a place: {status.name.lower()} "
            f"({reason.name.lower()})"
        )
