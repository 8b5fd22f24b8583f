"""Following an acquisition, frame by frame."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.model.errors import StorageError, StoreGoneError, TimedOutError

from .live_judge import frame
from .test_live_view import QUICK, leave, spec

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
WAIT_MS = 120_000  # only so that a hang becomes a failure


class Following:
    """A follower in a thread of its own."""

    def __init__(self, path: Any, **options: Any) -> None:
        self.frames: list[Any] = []
        self.error: Exception | None = None
        self._came = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(path, {"timeout_ms": WAIT_MS, **options}))
        self._thread.start()

    def _run(self, path: Any, options: dict[str, Any]) -> None:
        try:
            for each in sw.follow(path, **options):
                with self._came:
                    self.frames.append(each)
                    self._came.notify_all()
        except Exception as error:
            self.error = error

    def wait_for(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.frames) >= count, WAIT_MS / 1000)

    def end(self) -> list[Any]:
        self._thread.join(WAIT_MS / 1000)
        if self.error is not None:
            raise self.error
        return self.frames


@pytest.mark.parametrize("chunk", [1, 4])
def test_each_frame_comes_once_with_its_pixels_and_row(tmp_path, chunk):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk, frame_json_bytes=64), **how(**QUICK)) as writer:
        following = Following(path)
        for i in range(21):
            metadata = {"exposure_time": i / 8, "note": f"n{i}"}
            writer.append(frame(i), frame_id=i, metadata=metadata)
            if i % 6 == 5:
                writer.flush()
                following.wait_for(i + 1)
    found = sorted(following.end(), key=lambda each: each.row["sequence"])
    table = sw.frame_table(path)
    assert len(found) == len(table) == 21
    for i, each in enumerate(found):
        np.testing.assert_array_equal(each.pixels, frame(i))
        assert (each.index, each.image) == ((i,), "")
        row = table.iloc[i].to_dict()
        assert each.row["exposure_time"] == row["exposure_time"] == i / 8
        assert each.row["json"] == row["json"]
        assert each.row["arrival_ns"] == row["arrival_ns"]
        assert each.row.keys() == row.keys()


def test_a_finished_store_is_followed_to_its_end(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        for i in range(9):
            writer.append(frame(i), index=(2 * i,))
    found = list(sw.follow(path))
    assert [each.index for each in found] == [(2 * i,) for i in range(9)]
    for i, each in enumerate(found):
        np.testing.assert_array_equal(each.pixels, frame(i))
    assert list(sw.follow(path, only_new=True)) == []


def test_only_new_frames_if_so_wished(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        for i in range(9):
            writer.append(frame(i))
        writer.flush()
        frames = sw.follow(path, timeout_ms=WAIT_MS, only_new=True)
        for i in range(9, 20):
            writer.append(frame(i))
        writer.flush()
        assert sorted(each.row["sequence"] for each in itertools.islice(frames, 11)) == list(range(9, 20))


def test_images_are_told_by_name(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, images={"left": spec(), "right": spec(chunk=1)}, **how(**QUICK)) as writer:
        following = Following(path)
        for i in range(12):
            writer.append(frame(i), image=("left", "right")[i % 2])
    found = sorted(following.end(), key=lambda each: each.row["sequence"])
    assert [each.image for each in found] == ["left", "right"] * 6
    assert [each.index for each in found] == [(i // 2,) for i in range(12)]
    for i, each in enumerate(found):
        np.testing.assert_array_equal(each.pixels, frame(i))


def test_a_pause_ends_it_after_the_timeout_and_it_can_begin_again(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**QUICK)) as writer:
        writer.append(frame(0))
        writer.flush()
        frames = sw.follow(path, timeout_ms=50)
        assert next(frames).row["sequence"] == 0
        with pytest.raises(TimedOutError, match="Its writer is alive"):
            next(frames)


def test_a_dead_writer_is_told(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**QUICK))
    for i in range(5):
        writer.append(frame(i))
    writer.flush()
    leave(writer)
    frames = sw.follow(path, timeout_ms=50)
    assert len(list(itertools.islice(frames, 5))) == 5
    with pytest.raises(TimedOutError, match="shardwright recover"):
        next(frames)


def test_it_goes_on_across_a_crash_and_a_resumed_writer(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**QUICK))
    following = Following(path)
    for i in range(10):
        writer.append(frame(i))
    writer.flush()
    following.wait_for(10)
    leave(writer)
    with sw.resume(path, **how(**QUICK)) as writer:
        for i in range(10, 23):
            writer.append(frame(i))
    found = sorted(following.end(), key=lambda each: each.row["sequence"])
    assert [each.index[0] for each in found] == list(range(23))
    for each in found:
        np.testing.assert_array_equal(each.pixels, frame(each.index[0]))


def test_frames_of_a_row_that_was_sealed_between_two_looks_come(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=2, shard=1), **how(**QUICK)) as writer:
        frames = sw.follow(path, timeout_ms=WAIT_MS)
        writer.append(frame(0))
        writer.flush()
        found = [next(frames)]
        for i in range(1, 9):
            writer.append(frame(i))
        writer.flush()
        while not (path / "0/c/3/1/0").exists():
            pass
        found += itertools.islice(frames, 8)
    assert sorted(each.index[0] for each in found) == list(range(9))


@pytest.mark.parametrize("what", ["no store", "no frame"])
def test_a_store_that_is_not_there_is_told(tmp_path, what):
    path = tmp_path / "a.ome.zarr"
    if what == "no store":
        with pytest.raises(StorageError):
            sw.follow(path)
        return
    writer = sw.create(path, spec(), **how(**QUICK))
    frames = sw.follow(path, timeout_ms=WAIT_MS)
    writer.close()
    with pytest.raises(StoreGoneError):
        next(frames)
