"""Frames that are written by a camera's driver into memory of the in-process writer (``claim``)."""

from __future__ import annotations

import mmap
import os
import time

import numpy as np
import pytest
import zarr
from tests.harness.python import commands
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.limits import MESSAGE_BYTES
from shardwright.disk import failpoints
from shardwright.model.errors import (
    ClosedError,
    FrameIndexError,
    MetadataError,
    OverloadError,
    UnknownImageError,
)

SHAPE = (20, 24)


def frames_of(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 60_000, (count, *SHAPE)).astype(np.uint16)


def create(path, count, **arguments):
    arguments = {"chunks": {"t": 2, "y": 10, "x": 24}, "axes": "tyx"} | arguments
    return sw.create(path, shape=(count, *SHAPE), dtype="uint16", **how(**arguments))


def stored(path, image=None) -> np.ndarray:
    folder = path if image is None else path / str(image)
    return zarr.open_array(folder / "0", mode="r")[:]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.ome.zarr"


@pytest.fixture
def small_ring(monkeypatch):
    monkeypatch.setattr("shardwright.acquire.limits.SMALL_RING_BYTES", 40 * MESSAGE_BYTES)


def test_claimed_frames_are_stored(path):
    pixels = frames_of(6)
    with create(path, 6) as writer:
        for frame in pixels[:4]:
            with writer.claim() as into:
                assert (into.shape, into.dtype) == (SHAPE, np.dtype("<u2"))
                into[:] = frame
            with pytest.raises(ValueError, match="read-only"):
                into[0, 0] = 1
        with writer.claim(index=(5,)) as into:
            into[:] = pixels[5]
        with writer.claim(frame_id=4) as into:
            into[:] = pixels[4]
        assert writer.frames == writer.released == 6
    assert np.array_equal(stored(path), pixels)


def test_claims_are_counted_as_they_are_committed(path):
    pixels = frames_of(3)
    with create(path, 3) as writer:
        first, second, third = (writer.claim() for _ in range(3))
        second.pixels[:] = pixels[0]
        second.commit()
        third.give_back()
        third.commit()  # it has ended
        writer.append(pixels[1])
        first.pixels[:] = pixels[2]
        first.commit()
        first.commit()
        assert writer.frames == 3
    assert np.array_equal(stored(path), pixels)


def test_an_exception_gives_the_slot_and_the_place_back(path, small_ring):
    pixels = frames_of(2)
    with sw.create(
        path, shape=(2, *SHAPE), dtype="uint16", axes="tyx", images=["a", "b"], order=("t", "p")
    ) as writer:
        for _ in range(2 * writer._limits.ring_frames):
            with pytest.raises(KeyboardInterrupt), writer.claim():
                raise KeyboardInterrupt
        assert writer._ring.used == 0
        for frame in pixels:
            for sign in (0, 1):
                with writer.claim() as into:
                    into[:] = frame + sign
    for image in (0, 1):
        assert np.array_equal(stored(path, image), pixels + image)


def test_images_of_different_forms(path):
    arrays = {
        name: sw.default_layout(shape=(2, *shape), dtype=dtype, axes="tyx")
        for name, shape, dtype in (("a", (8, 9), "uint8"), ("b", (20, 24), "float32"))
    }
    with sw.create(path, images=arrays) as writer:
        with writer.claim(image="b") as large, writer.claim(image="a", index=(1,)) as small:
            small[:], large[:] = 7, 0.5
        assert (small.dtype, small.shape, large.dtype, large.shape) == ("u1", (8, 9), "<f4", (20, 24))
    assert (stored(path, 0)[1] == 7).all()
    assert (stored(path, 1)[0] == 0.5).all()
    with (
        sw.create(path.parent / "b.ome.zarr", images=arrays, order=("t", "p")) as writer,
        pytest.raises(FrameIndexError, match="different shapes"),
    ):
        writer.claim()


def test_what_is_wrong_is_said_at_the_claim(path):
    with create(path, 2) as writer:
        for wrong, error in (
            ({"index": (2,)}, FrameIndexError),
            ({"frame_id": -1}, FrameIndexError),
            ({"image": "no"}, UnknownImageError),
            ({"metadata": {"no": 1}}, MetadataError),
        ):
            with pytest.raises(error):
                writer.claim(**wrong)
        late = writer.claim()
        for _ in range(2):
            with writer.claim() as into:
                into[:] = 1
        with pytest.raises(FrameIndexError):
            writer.claim()
        with pytest.raises(FrameIndexError):
            late.commit()
        assert writer._ring.claimed == 0
    assert writer.receipt.frames_stored == 2


def test_metadata_are_those_of_the_end_of_the_block(path):
    told = {"delta_t": 0.0}
    with create(path, 1) as writer, writer.claim(metadata=told) as into:
        into[:] = 1
        told["delta_t"] = 2.5
    assert zarr.open_group(path / "frames", mode="r")["delta_t"][:].tolist() == [2.5]


@pytest.mark.parametrize("overload", ["block", "degrade"])
def test_more_claims_than_the_ring_are_an_error(path, small_ring, overload):
    pixels = frames_of(40)
    with create(path, 400, chunks={"t": 1}, overload=overload) as writer:
        claims = [writer.claim() for _ in range(writer._limits.ring_frames)]
        with pytest.raises(OverloadError, match="open claims"):
            writer.claim()
        with pytest.raises(OverloadError, match="open claims"):
            writer.append(pixels[0])
        claims.pop().give_back()
        for frame in pixels:  # one slot is enough
            with writer.claim() as into:
                into[:] = frame
    assert np.array_equal(stored(path)[:40], pixels)


def test_frames_that_wait_for_claimed_ones_are_an_error_and_not_an_endless_wait(path, small_ring):
    pixels = frames_of(4)
    with create(path, 400) as writer:
        claims = [writer.claim(index=(2 * i,)) for i in range(writer._limits.ring_frames - 2)]
        for place in (1, 3):
            writer.append(pixels[place], index=(place,))
        with pytest.raises(OverloadError, match="open claims"):
            writer.claim()
        for place, claim in zip((0, 2), claims, strict=False):
            claim.pixels[:] = pixels[place]
            claim.commit()
        writer.claim().give_back()
    assert np.array_equal(stored(path)[:4], pixels)


@pytest.mark.parametrize("overload", ["fail", "drop"])
def test_a_full_ring(path, small_ring, overload):
    blocked = mmap.mmap(-1, 1)

    def wait() -> None:
        while not blocked[0]:
            time.sleep(0.001)

    failpoints.set_hook("slots.before_store", wait)
    try:
        with create(path, 400, chunks={"t": 1}, overload=overload) as writer:
            ring, pixels = writer._limits.ring_frames, frames_of(writer._limits.ring_frames)
            for frame in pixels:
                with writer.claim() as into:
                    into[:] = frame
            if overload == "fail":
                with pytest.raises(OverloadError):
                    writer.claim()
            else:
                with writer.claim() as into, writer.claim() as other:
                    into[:] = other[:] = 1
                writer.claim().give_back()
            blocked[0] = 1
    finally:
        blocked[0] = 1
        failpoints.set_hook("slots.before_store", None)
    assert writer.receipt.frames_dropped == (2 if overload == "drop" else 0)
    assert np.array_equal(stored(path)[:ring], pixels)


def test_open_claims_end_with_their_writer(path):
    with create(path, 4) as writer:
        open_one, given_back = writer.claim(), writer.claim()
        with writer.claim() as into:
            into[:] = 1
    memory = writer._ring._memory
    with create(path.parent / "b.ome.zarr", 4) as other:
        assert other._ring._memory is not memory, "a camera may still write there"
        open_one.pixels[:] = 9
        given_back.give_back()
        with pytest.raises(ClosedError):
            open_one.commit()
        with pytest.raises(ClosedError):
            writer.claim()
    assert writer.receipt.frames_stored == 1


def test_claims_are_no_backlog(path, small_ring):
    """A camera may keep most of the ring claimed; nothing else waits for the workers."""
    pixels = frames_of(60)
    with create(path, 60, chunks={"t": 1, "y": 20, "x": 24}, overload="degrade") as writer:
        claims = [writer.claim() for _ in range(writer._limits.ring_frames * 3 // 4)]
        for frame in pixels:
            writer.append(frame)
            while writer.watermark.stored < writer.frames:
                time.sleep(0.001)
        for claim in claims:
            claim.give_back()
    assert (writer.receipt.frames_faster, writer.receipt.frames_uncompressed) == (0, 0)
    assert np.array_equal(stored(path), pixels)


def test_frames_that_an_earlier_process_staged_hold_no_slot(path):
    """They wait for the rest of their slab like others, but in the staging area."""
    commands().call(_stage_three, path)
    with sw.resume(path) as writer:
        assert writer.frames == 3
        assert writer._acquisition.held_frames == 0
        for frame in frames_of(5)[3:]:
            writer.append(frame)
        while writer._acquisition.held_frames != 1:
            time.sleep(0.001)
    assert np.array_equal(stored(path)[:5], frames_of(5))


def _stage_three(_channel, path) -> None:
    writer = create(path, 6, chunks={"t": 4, "y": 20, "x": 24})
    for frame in frames_of(3):
        writer.append(frame)
    writer.flush()
    os._exit(0)
