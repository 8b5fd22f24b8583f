"""Following an acquisition, frame by frame."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, HTTPServer
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.model.errors import (
    ProtocolError,
    ShardFormatError,
    StorageError,
    StoreGoneError,
    TimedOutError,
)
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.read.followed_frame import MetSequences

from .frame_tables import make_store, place, set_values, without_status
from .live_judge import append_until_logged, frame
from .stores import edit_json
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


STORED = (FrameStatus.STORED, Reason.NONE)


def test_frames_that_a_crop_left_outside_are_not_told(tmp_path):
    path = make_store(tmp_path / "a.ome.zarr", [(place(t, 0, 0), *STORED) for t in range(4)], 2)
    assert [each.index for each in sw.follow(path)] == [(0, 0, 0), (1, 0, 0)]


def test_a_sequence_far_beyond_all_others_takes_no_memory(tmp_path):
    path = make_store(tmp_path / "a.ome.zarr", [(place(0, z, 0), *STORED) for z in range(3)], 1)
    set_values(path, "sequence", r1=1 << 48)
    assert [each.row["sequence"] for each in sw.follow(path)] == [0, 2, 1 << 48]


def test_a_sequence_behind_all_others_costs_no_more_after_many_holes():
    met = MetSequences()
    met.meet((2 * number, 2 * number + 1) for number in range(100_000))
    newest = [np.array([200_000 + 2 * number], np.int64) for number in range(10)]
    assert met.new_ones(newest[0]).size == 1  # which makes room for more
    tracemalloc.start()
    try:
        assert [met.new_ones(each).size for each in newest] == [0, *[1] * 9]
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert met.ranges()[-2:] == [(200_016, 200_017), (200_018, 200_019)]


def test_sequences_are_met_once_in_whatever_order_they_come():
    random = Random(5)
    met, known = MetSequences(), set[int]()
    for _ in range(300):
        some = np.array([random.randrange(200) for _ in range(random.randrange(1, 6))], np.int64)
        new = [int(some[index]) for index in met.new_ones(some)]
        assert sorted(new) == sorted(set(some.tolist()) - known)
        known.update(new)
        assert [n for start, stop in met.ranges() for n in range(start, stop)] == sorted(known)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("sequence", {"r1": (1 << 64) - 1}, "a sequence that cannot be"),
        ("index_t", {"r1": -1}, "has no place in 0"),
        ("sequence", None, "no column 'sequence'"),
        ("index_z", None, "other axes than the image"),
        ("fate", None, "no column 'fate'"),
    ],
)
def test_a_frame_table_that_cannot_be_is_told(tmp_path, name, values, message):
    """The statuses are in the column ``fate``, as 0.2.0 wrote them."""
    rows = [(place(0, z, 0), *STORED) for z in range(3)]
    path = without_status(make_store(tmp_path / "a.ome.zarr", rows, 1))
    if values is None:
        edit_json(path / "frames/zarr.json", lambda d: d["attributes"]["shardwright"]["columns"].remove(name))
    else:
        set_values(path, name, **values)
    with pytest.raises(ShardFormatError, match=message):
        list(sw.follow(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: set_values(path, "image", r0=2), "has no image"),
        (lambda path: _set_images(path, "../b.ome.zarr/0"), "leads out of the group"),
    ],
)
def test_a_frame_table_that_names_no_image_of_the_store_is_told(tmp_path, change, message):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, images={"left": spec(), "right": spec()}, **how(**QUICK)) as writer:
        for name in ("left", "right"):
            writer.append(frame(0), image=name)
    change(path)
    with pytest.raises(ShardFormatError, match=message):
        list(sw.follow(path))


def _set_images(path: Any, name: str) -> None:
    edit_json(
        path / "frames/zarr.json", lambda d: d["attributes"]["shardwright"]["images"][0].update(path=name)
    )


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([{"met": []}, {"sequence": 1 << 40}], None),
        ([{"met": []}, {"sequence": 1 << 62}], ShardFormatError),
        ([{"met": []}, {"sequence": 1 << 70}], ProtocolError),
        ([{"met": [[0, 1 << 70]]}, {"sequence": 0}], ProtocolError),
        ([{"met": [[0, 1e400]]}, {"sequence": 0}], ProtocolError),
    ],
)
def test_a_server_that_names_any_sequence_costs_no_memory(lines, error):
    form = {"index": [0], "image": "", "dtype": "<u2", "shape": [1, 1]}
    data = b"".join(
        json.dumps(line if "met" in line else {"frame": {**form, "row": line}}).encode()
        + (b"\n" if "met" in line else b"\n\0\0")
        for line in lines
    )

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data + b'{"end": true}\n')

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        frames = sw.follow(f"http://127.0.0.1:{server.server_port}/live/a.ome.zarr", timeout_ms=WAIT_MS)
        if error is None:
            assert [each.row for each in frames] == lines[1:]
        else:
            with pytest.raises(error):
                list(frames)
        thread.join(WAIT_MS / 1000)


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


def test_a_manifest_that_is_renewed_between_frames_of_sealed_rows_loses_none_and_repeats_none(tmp_path):
    """As by a client that connects again, or by recovery, while the user has a frame of the first row."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=1, shard=2), **how(**QUICK)) as writer:
        append_until_logged(writer, 9, rows=4)
        frames = sw.follow(path, timeout_ms=WAIT_MS)
        found = [next(frames)]
        (manifest,) = path.glob("**/acquisition.*.json")
        shutil.copy(manifest, tmp_path / "manifest")
        (tmp_path / "manifest").rename(manifest)
        found += itertools.islice(frames, 8)
        writer.close()
        found += frames
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
