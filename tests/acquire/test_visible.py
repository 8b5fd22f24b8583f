"""The third watermark: frames that a plain reader of the files sees, zarr-python on the path. Each time that
it is told, such a reader looks; and ``flush(level)``, which waits for a level."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import live_scheduler, sealer
from shardwright.acquire.visible_frames import RECEIVED, ROW, SEEN, VisibleFrames
from shardwright.array.grid import IMAGE_SHIFT, Grid, Grids
from shardwright.disk import failpoints
from shardwright.model.errors import TimedOutError, VisibilityError
from shardwright.read.verify_store import verify_store
from shardwright.wire.descriptor import DESCRIPTOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.usefixtures("each_file_syncs_alone"),
    pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
SLOW = {"store_within_ms": 3_600_000, "sync_interval_ms": 3_600_000}  # nothing happens unless it is asked for
LIVE = pytest.mark.parametrize("live", ["index", "append"])


def frame(number: int) -> np.ndarray:
    return np.full((8, 8), number + 1, np.uint16)


def made(path: Path, *, live: str = "append", t: int = 1, shard: Any = 64, **more: Any) -> sw.Writer:
    shards = more.pop("shards", {"t": shard * t})
    shape = more.pop("shape", (None, 8, 8))
    options = how(threads=2, live=live, **{**SLOW, **more})
    return sw.create(path, shape=shape, dtype="uint16", chunks={"t": t}, shards=shards, **options)


def seen(path: Path, image: str = "0") -> int:
    """How many frames a reader sees that knows nothing of us, each of them right, in order."""
    try:
        pixels = zarr.open_array(path / image, mode="r")[...]
    except FileNotFoundError:  # an image without a frame that is seen may have no array yet
        return 0
    found = [int(each.ravel()[0]) for each in pixels.reshape(-1, 8, 8)]
    count = next((i for i, value in enumerate(found) if value != i + 1), len(found))
    assert not any(found[count:]), "what is not seen is fill value"
    return count


def killed_at_its_end(writer: sw.Writer) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    failpoints.set_hook("sealer.before_command", die)
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    failpoints.set_hook("sealer.before_command", None)


# ---------------------------------------------------------------------- flush("visible")


@LIVE
def test_each_announced_step_is_readable_when_it_is_announced(tmp_path, live):
    """Five steps, each announced once ``flush`` returns: a reader finds 1, 2, 3, 4, 5 of them."""
    path = tmp_path / "a.ome.zarr"
    with made(path, live=live) as writer:
        assert writer.watermark == sw.Watermark(0, 0, 0)
        for step in range(5):
            writer.append(frame(step))
            writer.flush("visible", 60)
            assert seen(path) == writer.watermark.visible == step + 1
            assert writer.watermark.durable == 0, "nothing was synced for it"
    assert writer.watermark == sw.Watermark(5, 5, 5)
    assert verify_store(path).ok


def test_a_plain_reader_sees_no_frame_before_it_is_told_and_all_that_is_told(tmp_path, monkeypatch):
    """As they come: what is told is there, whatever the scheduler did in between."""
    monkeypatch.setattr(live_scheduler, "SHOW_INTERVAL_S", 0.0)
    path = tmp_path / "a.ome.zarr"
    with made(path, t=2, shard=4, store_within_ms=20, sync_interval_ms=20) as writer:
        for i in range(40):
            writer.append(frame(i))
            told = writer.watermark.visible
            assert seen(path) >= told
        writer.flush("visible", 60)
        assert seen(path) == writer.watermark.visible == 40


def test_whole_chunks_are_seen_and_the_rest_is_refused_at_once(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with made(path, t=4) as writer:
        for i in range(6):
            writer.append(frame(i))
        with pytest.raises(VisibilityError, match=r"their chunk is not full.*4 of 6.*Chunks of one frame"):
            writer.flush("visible", 60)
        assert seen(path) == writer.watermark.visible == 4
        writer.append(frame(6))
        writer.append(frame(7))
        writer.flush("visible", 60)
        assert seen(path) == 8


def test_without_live_a_frame_in_an_open_shard_is_refused_at_once_and_says_what_shows_it(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with made(path, live="none", shard=4) as writer:
        for i in range(6):
            writer.append(frame(i))
        with pytest.raises(VisibilityError, match=r'live: none.*live: append.*4 of 6.*live="append"'):
            writer.flush("visible")  # no timeout: it must not wait
        assert seen(path) == writer.watermark.visible == 4, "the shard that is sealed"
        for i in range(6, 8):
            writer.append(frame(i))
        writer.flush("visible", 60)
        assert seen(path) == 8
    assert writer.watermark.visible == 8


def test_the_end_makes_all_visible(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with made(path, live="none") as writer:
        writer.append(frame(0))
        assert writer.watermark.visible == 0
    assert (seen(path), writer.watermark) == (1, sw.Watermark(1, 1, 1))
    writer.flush("visible")  # of a closed writer: all is


def test_a_flush_that_waits_for_a_slow_disk_times_out(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with made(path) as writer:
        writer.append(frame(0))
        go_on = threading.Event()
        failpoints.set_hook("shard.before_live_name", lambda: go_on.wait(60) and None)
        with pytest.raises(TimedOutError, match="0 of 1 frames"):
            writer.flush("visible", 0.2)
        failpoints.set_hook("shard.before_live_name", None)
        go_on.set()
        writer.flush("visible", 60)
        assert seen(path) == 1


def test_readers_are_not_told_of_a_shape_that_could_not_be_written(tmp_path, monkeypatch):
    path = tmp_path / "a.ome.zarr"
    with made(path) as writer:
        metadata = writer._driver.acquisition.folder.metadata

        def refuses(extents: Any) -> None:
            raise sw.errors.StorageError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(metadata, "grow", refuses)
            writer.append(frame(0))
            with pytest.raises(VisibilityError, match="the shape cannot cover them"):
                writer.flush("visible", 60)
        assert (seen(path), writer.watermark.visible) == (0, 0)
        writer.append(frame(1))
        writer.flush("visible", 60)
        assert seen(path) == 2


def test_dropped_and_duplicate_frames_are_settled_and_hold_nothing_up(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with made(path, on_duplicate="count") as writer:
        writer.append(frame(0))
        writer.append(frame(0), index=0)
        writer.append(frame(1), index=1)
        writer.flush("visible", 60)
        assert writer.watermark.visible == 3
        assert seen(path) == 2


def test_readers_that_are_open_follow_the_shape(tmp_path):
    """zarr-python's arrays have the shape with which they were opened, whatever the store: a group gives one
    with the shape of now. Nothing else needs to be opened anew."""
    path = tmp_path / "a.ome.zarr"
    with made(path) as writer:
        writer.append(frame(0))
        writer.flush("visible", 60)
        live, files = zarr.open_group(sw.open(path), mode="r"), zarr.open_group(path, mode="r")
        view = sw.open_array(path)
        for i in range(1, 4):
            writer.append(frame(i))
            writer.flush("stored", 60)
            assert live["0"].shape[0] == view.refresh().shape[0] == i + 1
            assert view[i].max() == live["0"][i].max() == i + 1
            writer.flush("visible", 60)
            assert files["0"].shape[0] == i + 1
            assert files["0"][i].max() == i + 1
    assert view.refresh().shape == (4, 8, 8), "and once it has ended"


# ---------------------------------------------------------------------- by image


def test_each_image_has_its_count_and_waits_for_no_other(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with made(path, t=2, images=["left", "right"]) as writer:
        for i in range(2):
            writer.append(frame(i), image="left")
        writer.append(frame(0), image="right")
        with pytest.raises(VisibilityError):
            writer.flush("visible", 60)
        assert writer.watermark.images == {"left": 2}
        assert writer.watermark.visible == 2
        assert seen(path / "0") == 2
        for i in range(2, 4):
            writer.append(frame(i), image="left")
        with pytest.raises(VisibilityError):
            writer.flush("visible", 60)
        assert writer.watermark.images == {"left": 4}
        assert writer.watermark.visible == 2, "the third frame of all is the one of right"
        writer.append(frame(1), image="right")
        writer.flush("visible", 60)
        assert writer.watermark.images == {"left": 4, "right": 2}
        assert (seen(path / "0"), seen(path / "1"), writer.watermark.visible) == (4, 2, 6)


def test_an_image_that_is_added_counts_too(tmp_path):
    with made(tmp_path / "a.ome.zarr", images=["left", "right"]) as writer:
        writer.append(frame(0), image="left")
        writer.add_image("third")
        writer.append(frame(0), image="third")
        writer.flush("visible", 60)
        assert writer.watermark.images == {"left": 1, "third": 1}


def test_frames_of_colours_count_once(tmp_path):
    path = tmp_path / "a.ome.zarr"
    options = how(threads=2, live="append", **SLOW)
    with sw.create(
        path, shape=(None, 8, 8, 3), axes="tyxc", dtype="uint8", chunks={"t": 1}, **options
    ) as writer:
        for i in range(2):
            writer.append(np.full((8, 8, 3), i + 1, np.uint8))
        writer.flush("visible", 60)
        assert writer.watermark.visible == 2
        assert zarr.open_array(path / "0", mode="r")[...].shape == (2, 3, 8, 8)


# ---------------------------------------------------------------------- flush("stored")


def test_stored_is_reached_without_a_sync_also_in_a_chunk_that_is_not_full(tmp_path, monkeypatch):
    path, synced = tmp_path / "a.ome.zarr", []
    with made(path, live="none", t=4) as writer:
        monkeypatch.setattr(sealer.Sealer, "_commit", lambda *_: synced.append(1))
        for i in range(6):
            writer.append(frame(i))
            writer.flush("stored", 60)
            assert writer.watermark.stored == i + 1
        assert writer.watermark.durable == 0
        assert not synced
        monkeypatch.undo()
        writer.flush(60)  # as ever: durable, and the number is the timeout
        assert writer.watermark.durable == 6
    assert verify_store(path).ok


def test_what_was_flushed_to_stored_survives_a_kill(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path, live="none", t=4)
    for i in range(6):
        writer.append(frame(i))
    writer.flush("stored", 60)

    killed_at_its_end(writer)
    with sw.resume(path) as again:
        assert again.frames == 6
    assert seen(path) == 6


def test_another_word_is_no_level(tmp_path):
    with made(tmp_path / "a.ome.zarr") as writer:
        writer.append(frame(0))
        with pytest.raises(ValueError, match="stored, durable, visible"):
            writer.flush("published")


# ---------------------------------------------------------------------- after a crash


@pytest.mark.parametrize("live", ["none", "append"])
def test_a_resumed_writer_knows_what_readers_see(tmp_path, live):
    """Sealed and covered, sealed and not covered by any shape, in an open shard row."""
    path = tmp_path / "a.ome.zarr"
    writer = made(path, live=live, shard=4)
    for i in range(10):
        writer.append(frame(i))
    writer.flush(60)

    killed_at_its_end(writer)
    before = seen(path)
    with sw.resume(path, threads=2, settings=sw.WriteSettings(**SLOW)) as writer:
        assert writer.watermark.stored == 10
        told = writer.watermark.visible
        assert before <= told <= seen(path), "never more than there is"
        for i in range(10, 12):
            writer.append(frame(i))
        writer.flush("visible", 60)
        assert seen(path) == writer.watermark.visible == 12


# ---------------------------------------------------------------------- arrays without shards


@LIVE
def test_chunk_files_appear_when_they_are_stored(tmp_path, live):
    """Also of a step that is not whole: channel 0 of time 1, with ``live``."""
    path = tmp_path / "a.ome.zarr"
    with made(path, live=live, shards=False, shape=(None, 2, 8, 8)) as writer:
        assert not (path / "0" / "c").exists()
        for i in range(3):
            writer.append(frame(i))
            writer.flush("visible", 60)
            assert seen(path) == writer.watermark.visible == i + 1
            files = [file for file in (path / "0" / "c").rglob("*") if file.is_file()]
            assert len(files) == i + 1
    assert verify_store(path).ok


def test_arrays_with_and_without_shards_are_seen_side_by_side(tmp_path):
    path = tmp_path / "a.ome.zarr"
    arrays = {
        name: sw.default_layout((None, 8, 8), "uint16", "tyx", chunks={"t": 1}, shards=shards)
        for name, shards in (("sharded", {"t": 8}), ("plain", False))
    }
    with sw.create(path, images=arrays, live="append", threads=2, **how(**SLOW)) as writer:
        for i in range(3):
            for name in arrays:
                writer.append(frame(i), image=name)
        writer.flush("visible", 60)
        assert writer.watermark.images == {"sharded": 3, "plain": 3}
        assert seen(path / "0") == seen(path / "1") == 3


@LIVE
def test_a_live_store_without_shards_is_recovered(tmp_path, live):
    path = tmp_path / "a.ome.zarr"
    writer = made(path, live=live, shards=False, shape=(None, 2, 8, 8))
    for i in range(3):
        writer.append(frame(i))
    writer.flush("visible", 60)

    killed_at_its_end(writer)
    assert seen(path) == 3
    with sw.resume(path, threads=2) as writer:
        assert writer.frames == 3
        writer.append(frame(3))
        writer.flush("visible", 60)
        assert seen(path) == 4
    assert verify_store(path).ok


def test_the_place_of_an_index_says_nothing_without_shards(tmp_path):
    """As in an array that was written as JSON, with all that it left open."""
    array = sw.default_layout((None, 8, 8), "uint16", "tyx", chunks={"t": 1}, shards=False)
    whole = sw.ArraySpec(**{**array.model_dump(), "index_location": "end"})
    with sw.create(tmp_path / "a.ome.zarr", whole, live="index", threads=2) as writer:
        writer.append(frame(0))
        writer.flush("visible", 60)
    assert seen(tmp_path / "a.ome.zarr") == 1


# ---------------------------------------------------------------------- the bookkeeping by itself


def grids(**counts: int | None) -> Grids:
    return Grids(
        tuple(
            Grid.of(sw.default_layout((count, 8, 8), "uint16", "tyx", chunks={"t": 1}), image)
            for image, count in enumerate(counts.values())
        )
    )


def records(*frames: tuple[int, int]) -> np.ndarray:
    found = np.zeros(len(frames), DESCRIPTOR)
    found["sequence"], found["position"] = np.array(frames, np.int64).reshape(-1, 2).T
    return found


def test_listed_and_covered_come_in_any_order():
    of_two = grids(a=None, b=None)
    visible = VisibleFrames(of_two, live=True)
    other = 1 << IMAGE_SHIFT
    visible.receive(np.arange(4), np.array([0, other, 1, other + 1]))
    visible.cover({1: (2,)})
    visible.slab_stored(other, np.array([1]))
    visible.show([other])
    assert (visible.watermark(4), visible.by_image()) == (0, [0, 1]), "frame 0 is not seen"
    visible.seal(0, records((0, 0), (2, 1)))
    assert visible.watermark(4) == 0
    visible.cover({0: (1,)})
    assert (visible.watermark(4), visible.by_image()) == (2, [1, 1])
    visible.cover({0: (2,)})
    assert (visible.watermark(4), visible.by_image()) == (3, [2, 1])
    visible.settle(records((3, other + 1)))
    assert visible.watermark(4) == 4
    assert visible.watermark(3) == 3, "never more than is stored"


def test_frames_that_are_sent_again_stand_in_their_order():
    visible = VisibleFrames(grids(a=None), live=True)
    visible.receive(np.array([0, 3, 4]), np.array([0, 3, 4]))
    visible.receive(np.array([1, 2]), np.array([1, 2]))
    visible.cover({0: (9,)})
    visible.seal(0, records((0, 0), (2, 2), (4, 4)))
    assert visible.watermark(5) == 1
    visible.seal(0, records((1, 1)))
    assert visible.watermark(5) == 3


def test_memory_is_bounded_and_what_is_beyond_waits_for_the_end(monkeypatch):
    monkeypatch.setattr("shardwright.acquire.visible_frames.MOST_UNSEEN", 4)
    visible = VisibleFrames(grids(a=None), live=True)
    visible.receive(np.arange(3), np.arange(3))
    visible.receive(np.arange(3, 6), np.arange(3, 6))
    visible.receive(np.array([6]), np.array([6]))
    visible.cover({0: (9,)})
    visible.seal(0, records(*((i, i) for i in range(7))))
    assert (visible.watermark(7), visible.by_image()) == (3, [3])
    visible.end(np.array([7]))
    assert (visible.watermark(7), visible.by_image()) == (7, [7])


def test_frames_of_no_known_image_count_for_none(tmp_path):
    """Lost with their client, which alone knew what they were: an image counts its own frames."""
    visible, other = VisibleFrames(grids(a=None, b=None), live=True), 1 << IMAGE_SHIFT
    visible.receive(np.array([0, 1, 2, 3]), np.array([0, -1, 1, other]))
    visible.cover({0: (1,), 1: (1,)})
    visible.seal(0, records((0, 0)))
    visible.settle(records((1, -1)))
    assert (visible.watermark(4), visible.by_image()) == (2, [1, 0])


def test_duplicates_of_an_earlier_process_belong_to_their_image(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path, images=["left", "right"], on_duplicate="count")
    writer.append(frame(0), image="right")
    writer.append(frame(0), image="right", index=0)
    writer.append(frame(0), image="left")
    writer.flush(60)

    killed_at_its_end(writer)
    with sw.resume(path, threads=2, settings=sw.WriteSettings(**SLOW)) as writer:
        told = writer.watermark.images
        assert told.get("left", 0) <= seen(path / "0")
    images = writer.receipt.images
    assert (images["left"]["frames_received"], images["right"]["frames_received"]) == (1, 2)


def test_a_frame_that_is_seen_behind_one_that_is_not_does_not_count_yet():
    """As an acquisition is resumed: of frames 0 to 3 readers see 0 and 2, and 3 is settled."""
    visible = VisibleFrames(grids(a=None, b=None), live=True)
    rows = np.zeros(3, ROW)
    rows["sequence"] = rows["position"] = 1, 2, 3
    rows["state"] = RECEIVED, SEEN, SEEN
    visible.begin({0: (4,)}, np.array([4, 0]), rows)
    assert (visible.watermark(4), visible.by_image()) == (1, [1, 0])
    visible.seal(0, records((1, 1)))
    assert (visible.watermark(4), visible.by_image()) == (4, [4, 0])
