"""How far an array reaches that is closed before its end, and places that are skipped on purpose; an
unfinished store in the way of a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.model.errors import FrameIndexError, OutputExistsError
from shardwright.read.verify_store import verify_store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def frame(number: int) -> np.ndarray:
    return np.full((8, 8), number + 1, np.uint16)


def made(path: Path, shape: tuple[Any, ...] = (6, 8, 8), **more: Any) -> sw.Writer:
    options = {"threads": 2, "chunks": {"t": 2}, "shards": {"t": 4}, **more}
    return sw.create(path, shape=shape, dtype="uint16", **how(**options))


def values(path: Path, image: str = "0") -> Any:
    return zarr.open_array(path / image, mode="r")[..., 0, 0].tolist()


def die() -> None:
    raise KeyboardInterrupt


def leave(writer: sw.Writer) -> None:
    """As a kill leaves it."""
    writer.flush(60)
    failpoints.set_hook("sealer.before_command", die)
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    failpoints.set_hook("sealer.before_command", None)


# ---------------------------------------------------------------------- close(extent=)


def test_an_array_ends_with_its_newest_frame_or_as_it_was_declared(tmp_path):
    for extent, expected, missing in (("frames", [1, 2, 3], 0), ("declared", [1, 2, 3, 0, 0, 0], 3)):
        path = tmp_path / f"{extent}.ome.zarr"
        writer = made(path)
        for i in range(3):
            writer.append(frame(i))
        assert writer.close(extent=extent).frames_missing == missing
        assert values(path) == expected
        assert verify_store(path).ok


def test_along_an_axis_without_a_count_nothing_is_declared(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path, (None, 3, 8, 8), axes="tcyx")
    writer.append(frame(0), index=(0, 0))
    writer.append(frame(3), index=(1, 0))
    assert writer.close(extent="declared").frames_missing == 4
    assert values(path) == [[1, 0, 0], [4, 0, 0]]


def test_images_of_one_frame_have_no_first_axis(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path, (8, 8), images=["left", "none"], chunks=None, shards=None)
    writer.append(frame(0), image="left")
    assert writer.close(extent="declared").frames_missing == 0
    assert values(path, "0/0") == 1
    assert verify_store(path).ok


def test_of_several_images_those_with_a_frame_keep_what_was_declared(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path, images=["left", "right", "none"], levels=1, chunks=None, shards=None)
    writer.append(frame(0), image="left", index=2)
    writer.append(frame(0), image="right", index=5)
    writer.close(extent="declared")
    assert [len(values(path, f"{image}/0")) for image in (0, 1)] == [6, 6]
    assert len(values(path, "0/1")) == 6, "and its level"
    assert not (path / "2").exists()
    assert verify_store(path).ok


def test_a_store_without_a_frame_is_removed_all_the_same(tmp_path):
    path = tmp_path / "a.ome.zarr"
    made(path).close(extent="declared")
    assert not path.exists()


@pytest.mark.parametrize("live", ["none", "append"])
def test_it_goes_on_where_its_frames_end(tmp_path, live):
    """Finished as declared, then resumed: the next frame comes behind the last one that came."""
    path = tmp_path / "a.ome.zarr"
    writer = made(path, live=live)
    for i in range(3):
        writer.append(frame(i))
    writer.close(extent="declared")
    with sw.resume(path, threads=2) as writer:
        assert writer.frames == 3
        writer.append(frame(3))
    assert values(path) == [1, 2, 3, 4, 0, 0], "it never shrinks"
    assert verify_store(path).ok


def test_the_first_word_counts(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path)
    writer.append(frame(0))
    receipt = writer.close()
    assert writer.close(extent="declared") == receipt
    assert values(path) == [1]


# ---------------------------------------------------------------------- skip


@pytest.mark.parametrize("count", [9, None])
@pytest.mark.parametrize("live", ["none", "append"])
def test_skipped_places_stay_fill_and_are_told(tmp_path, count, live):
    path = tmp_path / "a.ome.zarr"
    with made(path, (count, 8, 8), live=live) as writer:
        writer.append(frame(0))
        writer.skip(3)
        writer.append(frame(4))
        writer.skip()
        assert writer.frames == 6
        writer.flush(60)
        assert writer.watermark.durable == 6
    assert values(path) == [1, 0, 0, 0, 5, 0], "it reaches over the last one, too"
    receipt = writer.receipt
    assert (receipt.frames_received, receipt.frames_stored, receipt.places_skipped) == (6, 2, 4)
    assert receipt.trouble == {}
    report = verify_store(path)
    assert report.ok, report.problems
    table = sw.frame_table(path)
    assert table["status"].tolist().count("skipped") == 4
    assert sorted(table.loc[table["status"] == "skipped", "index_t"].tolist()) == [1, 2, 3, 5]


def test_the_order_of_an_acquisition_skips_places_of_all_its_images(tmp_path):
    path = tmp_path / "a.ome.zarr"
    images = ["left", "right"]
    with made(
        path, (2, 3, 8, 8), axes="tzyx", images=images, order=("t", "p", "z"), chunks=None, shards=None
    ) as writer:
        for i in range(2):
            writer.append(frame(i))
        writer.skip(3)  # the last plane of left, two of right
        writer.append(frame(9))
    assert values(path, "0/0") == [[1, 2, 0]]
    assert values(path, "1/0") == [[0, 0, 10]]
    assert writer.receipt.images["left"]["frames_missing"] == 0
    assert writer.receipt.places_skipped == 3


def test_a_frame_of_colours_is_skipped_as_a_whole(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=(None, 8, 8, 3), axes="tyxc", dtype="uint8", threads=2) as writer:
        writer.skip(2)
        writer.append(np.full((8, 8, 3), 7, np.uint8))
        assert writer.frames == 3
    assert zarr.open_array(path / "0", mode="r")[:, :, 0, 0].tolist() == [[0] * 3, [0] * 3, [7] * 3]


def test_what_was_skipped_is_known_after_a_crash(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path)
    writer.append(frame(0))
    writer.skip(2)
    leave(writer)
    with sw.resume(path, threads=2) as writer:
        assert writer.frames == 3
        writer.append(frame(3))
    assert values(path) == [1, 0, 0, 4]
    assert (writer.receipt.places_skipped, writer.receipt.trouble) == (2, {})
    assert verify_store(path).ok


def test_more_than_may_wait_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwright.writer.driver.MAX_UNRECORDED_FRAMES", 16)
    path = tmp_path / "a.ome.zarr"
    with made(path, (None, 8, 8)) as writer:
        writer.skip(100)
        writer.append(frame(100))
    assert values(path) == [*[0] * 100, 101]
    assert writer.receipt.places_skipped == 100


def test_what_cannot_be_skipped(tmp_path):
    with made(tmp_path / "a.ome.zarr") as writer:
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(FrameIndexError, match="integer of 1 or more"):
                writer.skip(wrong)
        with pytest.raises(FrameIndexError, match="the image is full"):
            writer.skip(7)
        writer.skip(5)
        writer.append(frame(5))
    with made(tmp_path / "b.ome.zarr", images=["left", "right"]) as writer:
        with pytest.raises(FrameIndexError, match="several images and no order"):
            writer.skip()
        writer.append(frame(0), image="left")
    with made(tmp_path / "c.ome.zarr", (None, None, 8, 8), axes="tzyx", chunks=None, shards=None) as writer:
        with pytest.raises(FrameIndexError):
            writer.skip()
        writer.append(frame(0), index=(0, 0))


# ---------------------------------------------------------------------- a store in the way


def test_an_unfinished_store_in_the_way_is_named_with_what_to_do(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = made(path)
    writer.append(frame(0))
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=r"unfinished, and being written.*Close its writer first"):
            made(path, overwrite=overwrite)
    leave(writer)
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError) as caught:
            made(path, overwrite=overwrite)
        said = str(caught.value)
        assert "an acquisition that is unfinished" in said
        assert "being written" not in said
        for way in ("`sw.resume`", f"`shardwright recover {path}`", "overwrite=True", "delete the folder"):
            assert way in said
    sw.resume(path).close()
    with made(path, overwrite=True) as writer:
        writer.append(frame(7))
    assert values(path) == [8]
