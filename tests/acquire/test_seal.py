"""FORMAT.md, "Sealing", and the function that seals name the same steps in the same order, and a seal takes
them so."""

from __future__ import annotations

import ast
import inspect
import re
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import shardwright as sw
from shardwright.acquire import seal
from shardwright.acquire.commands import Commit, Discard, Grow, Prepare, Seal
from shardwright.acquire.sealer import MOST_TOGETHER, Sealer
from shardwright.array.grid import IMAGE_SHIFT
from shardwright.disk import failpoints
from shardwright.store.ownership import Ownership

FORMAT = Path(seal.__file__).parents[1] / "shard" / "FORMAT.md"
LOOK = "a look at the owner"


def documented() -> dict[int, list[str]]:
    """The failpoints of each step."""
    section = FORMAT.read_text(encoding="utf-8").partition("\n## Sealing\n")[2]
    (table,) = [block for block in section.split("\n\n") if block.startswith("| step |")]
    rows = [line.split("|")[1:4] for line in table.splitlines()[2:]]
    return {int(step): re.findall("`([^`]+)`", points) for step, _, points in rows}


STEPS = documented()
POINTS = [point for points in STEPS.values() for point in points]


def steps_of(function: object) -> list[int]:
    """The numbers in the comments of a function, as they stand there."""
    comments = re.findall(r"^ +# (\d+)(?: (to|and) (\d+))?\. ", inspect.getsource(function), re.MULTILINE)
    return [step for first, _, last in comments for step in range(int(first), int(last or first) + 1)]


def test_the_function_has_the_steps_of_the_format_in_their_order():
    assert list(STEPS) == list(range(1, 13))
    assert steps_of(seal.seal) == list(STEPS)
    assert steps_of(seal.name_shards) == [step for step in STEPS if 2 <= step <= 10]


def test_the_format_and_the_function_cite_each_other():
    assert "`seal` in `acquire/seal.py`" in FORMAT.read_text(encoding="utf-8").partition("\n## Sealing\n")[2]
    assert 'FORMAT.md, "Sealing"' in ast.get_docstring(ast.parse(inspect.getsource(seal)))


@pytest.fixture
def reached(monkeypatch):
    """What the sealer's threads reach."""
    reached: list[str] = []

    def note(what: str) -> None:
        if threading.current_thread().name.startswith("shardwright-sealer"):
            reached.append(what)

    look = Ownership.may_rename
    monkeypatch.setattr(Ownership, "may_rename", lambda self: (note(LOOK), look(self))[1])
    failpoints.watch_all(note)
    yield reached
    failpoints.watch_all(None)


def sealed(path, spec_of, io) -> None:
    """A store of two images whose first one gets a shard."""
    with sw.create(
        path,
        sw.AcquisitionSpec(array=spec_of(count=2, y=(4, 4, 1), x=(6, 6, 1)), images=("a", "b")),
        threads=1,
        settings=sw.WriteSettings(io=io, store_within_ms=600_000, sync_interval_ms=600_000),
    ) as writer:
        for value in (1, 2):
            writer.append(np.full((4, 6), value, np.uint16), image="a")


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
@pytest.mark.parametrize("io", ["mmap", "pwrite"])
def test_a_seal_takes_the_steps_in_the_order_of_the_format(tmp_path, spec_of, reached, io):
    path, was_there = tmp_path / "a.ome.zarr", []

    def look_for_array() -> None:
        was_there.append((path / "0" / "0" / "zarr.json").exists())

    failpoints.set_hook(POINTS[0], look_for_array)
    try:
        sealed(path, spec_of, io)
    finally:
        failpoints.set_hook(POINTS[0], None)
    assert was_there == [True], "step 1"
    first, last = reached.index(POINTS[0]), reached.index(POINTS[-1])
    seal_reached = reached[first : last + 1]
    # of a point that folders and files on the way reach as well, the last time counts
    at = {point: len(seal_reached) - seal_reached[::-1].index(point) for point in POINTS}
    assert sorted(POINTS, key=at.__getitem__) == POINTS

    def between(before: str, after: str) -> list[str]:
        return seal_reached[at[before] : at[after] - 1]

    assert LOOK in between(STEPS[7][-1], STEPS[9][0]), "step 8"
    assert between(STEPS[9][0], STEPS[10][0]) == [LOOK], "of the rename nothing comes before the last look"
    assert between(STEPS[11][-1], STEPS[12][0]) == [LOOK], "step 12"


A, B = (image << IMAGE_SHIFT for image in (1, 2))
GROUPS = {
    "images in turns": (
        [Seal(A), Prepare(A + 1, 1), Seal(B), Prepare(B + 1, 2)],
        [[Seal(A), Seal(B)], [Prepare(A + 1, 1), Prepare(B + 1, 2)]],
    ),
    "a seal may give the room that a new row needs": (
        [Prepare(B, 1), Seal(A), Prepare(A + 1, 2), Seal(B + 1)],
        [[Prepare(B, 1)], [Seal(A), Seal(B + 1)], [Prepare(A + 1, 2)]],
    ),
    "shapes grow behind the seals before them": (
        [Seal(A), Grow(1, (1,)), Seal(B), Grow(2, (1,))],
        [[Seal(A)], [Grow(1, (1,))], [Seal(B)], [Grow(2, (1,))]],
    ),
    "rows of one image are made one by one": (
        [Prepare(A, 1), Prepare(A + 1, 2), Prepare(B, 3)],
        [[Prepare(A, 1), Prepare(B, 3)], [Prepare(A + 1, 2)]],
    ),
    "nothing passes what depends on it": (
        [Seal(A), Commit(frozenset([B])), Seal(B), Discard(B + 1), Prepare(B + 1, 1)],
        [[Seal(A)], [Commit(frozenset([B]))], [Seal(B)], [Discard(B + 1)], [Prepare(B + 1, 1)]],
    ),
    "the end comes behind what was asked before": (
        [Prepare(A, 1), Seal(B), None],
        [[Prepare(A, 1)], [Seal(B)], []],
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_commands_that_wait_for_the_disk_alike_are_carried_out_together(case):
    asked, groups = GROUPS[case]
    sealer = Sealer(Mock(), Mock(), [], lambda _: None, 0)
    for command in asked:
        sealer.put(command) if command is not None else sealer.stop()
    assert [sealer._take() for _ in groups] == groups


def test_no_more_rows_are_sealed_at_once_than_others_may_wait_for():
    sealer = Sealer(Mock(), Mock(), [], lambda _: None, 0)
    for shard_row in range(MOST_TOGETHER + 1):
        sealer.put(Seal(shard_row))
    assert [len(sealer._take()) for _ in range(2)] == [MOST_TOGETHER, 1]
