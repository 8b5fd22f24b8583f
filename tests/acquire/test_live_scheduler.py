"""When readers of files are told what is stored, by itself: a shape never covers what they cannot see yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import shardwright as sw
from shardwright.acquire.commands import Command, Grow, Show
from shardwright.acquire.live_scheduler import LiveScheduler
from shardwright.acquire.shard_rows import ShardRow
from shardwright.acquire.states import FilesState, ShardRowState
from shardwright.array.acquisition_spec import parse_acquisition

ALL = np.array([[100]])


def row(number: int, **facts: Any) -> ShardRow:
    return ShardRow(number, slabs=0, **{"files_state": FilesState.READY, **facts})


class Told:
    """A live acquisition of one image with slabs of 2 frames, and what its readers are told."""

    def __init__(self, *, live: bool = True, shard: int = 2) -> None:
        axes = (("t", None, 2, shard), ("y", 4, 4, 1), ("x", 6, 6, 1))
        dimensions = [sw.Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=s) for n, c, k, s in axes]
        grids = parse_acquisition(sw.ArraySpec(dtype="uint16", dimensions=dimensions)).grids
        self._asked: list[Command] = []
        self.scheduler = LiveScheduler(grids, self._asked.append, live=live)
        self._now_s = 0.0

    def shown(self, *rows: Any, encoding: tuple[int, ...] = ()) -> list[Command]:
        self._now_s += 1
        self._asked.clear()
        if self.scheduler.is_due(self._now_s):
            self.scheduler.show(self._now_s, {each.number: each for each in rows}, encoding, ALL)
        return list(self._asked)


def test_chunks_are_listed_before_the_shape_covers_them():
    told, first = Told(), row(0)
    told.scheduler.stored(first, [0])
    assert told.shown(first) == [Show({0: (0,)}), Grow(0, (2,))]
    assert told.shown(first) == []


def test_a_shard_row_that_is_opened_again_is_seen_when_it_is_sealed_again():
    """Its older shards keep the final names until then."""
    reopened = SimpleNamespace(journal=SimpleNamespace(reopened=True))
    told, again, other = Told(), row(0, files=reopened), row(1)
    told.scheduler.stored(again, [1])
    assert told.shown(again) == []
    told.scheduler.stored(other, [2])
    assert told.shown(again, other) == [Show({1: (2,)})], "a shape up to it would cover slab 1"
    told.scheduler.sealed(again, np.array([[4]]))
    assert told.shown(other) == [Grow(0, (6,))]


def test_no_shape_grows_while_a_shard_row_is_being_opened_again_or_moved():
    for facts in ({"state": ShardRowState.REOPENING}, {"files_state": FilesState.REWRITING}):
        told, hidden, other = Told(), row(0, **facts), row(1)
        told.scheduler.stored(other, [2])
        assert told.shown(hidden, other) == [Show({1: (2,)})]
        assert told.shown(row(0), other) == [Grow(0, (6,))]


def test_slabs_of_files_that_are_replaced_are_noted_again():
    told, first = Told(), row(0)
    told.scheduler.stored(first, [0])
    told.scheduler.forget(0)
    assert [each for each in told.shown(first) if each != Grow(0, (0,))] == []
    told.scheduler.stored(first, [0])
    assert told.shown(first) == [Show({0: (0,)}), Grow(0, (2,))]


def test_a_seal_lists_what_waits_itself():
    told, first = Told(), row(0)
    told.scheduler.stored(first, [0, 1])
    first.files_state = FilesState.SEALING
    assert told.shown(first) == [Grow(0, (4,))]


def test_no_shape_covers_a_slab_behind_one_that_is_being_stored():
    told, first = Told(), row(0)
    told.scheduler.stored(first, [1])
    assert told.shown(first, encoding=(0,)) == [Show({0: (1,)}), Grow(0, (0,))]
    told.scheduler.stored(first, [0])
    assert told.shown(first) == [Show({0: (0,)}), Grow(0, (4,))]


def test_where_shards_are_sealed_whole_no_shape_covers_a_slab_that_waits_within_them():
    """A row was opened again for it, sealed with what it had, and waits to be opened once more."""
    told = Told(live=False, shard=1)
    again = row(0, files=SimpleNamespace(journal=SimpleNamespace(reopened=True)))
    told.scheduler.sealed(again, np.array([[6]]))
    assert told.shown(encoding=(1,)) == [Grow(0, (2,))]
    assert told.shown() == [Grow(0, (6,))]


def test_shapes_grow_over_sealed_rows_together_and_at_most_so_often():
    scheduler = Told().scheduler
    scheduler.grows_over(1)
    assert scheduler.take_sealed(10.0, 0.5) == [1], "at once after a pause"
    scheduler.grows_over(2)
    assert scheduler.take_sealed(10.4, 0.5) == []
    scheduler.grows_over(3)
    scheduler.grows_over((1 << 48) + 1)
    assert scheduler.take_sealed(10.5, 0.5) == [3, (1 << 48) + 1], "the last of each image"
    scheduler.grows_over(4)
    assert scheduler.take_sealed(10.6, 0.0) == [4], "a flush does not wait"
    assert scheduler.take_sealed(99.0, 0.0) == []


def test_shapes_of_many_images_grow_less_often():
    scheduler = Told().scheduler
    for image in range(1000):
        scheduler.grows_over(image << 48)
    assert len(scheduler.take_sealed(10.0, 0.5)) == 1000
    scheduler.grows_over(1)
    assert scheduler.take_sealed(19.9, 0.5) == [], "ten milliseconds for each"
    assert scheduler.take_sealed(20.0, 0.5) == [1]
    scheduler.grows_over(2)
    assert scheduler.take_sealed(20.5, 0.5) == [2], "one image alone as often as ever"
