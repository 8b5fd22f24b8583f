"""Frames that the in-process writer reads where they lie (``copy=False``): the same pixels are stored, memory
is kept exactly as long as it is read, and what cannot be read so is copied and counted."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time
import weakref

import numpy as np
import pytest
import zarr
from tests.harness.told_events import logged
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.limits import MESSAGE_BYTES
from shardwright.disk import failpoints
from shardwright.model.errors import OverloadError, ShardwrightError

SHAPE = (20, 24)


def wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def frames_of(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 60_000, (count, *SHAPE)).astype(np.uint16)


def create(path, count, **arguments):
    chunks = arguments.pop("chunks", {"t": 2, "y": 10, "x": 24})
    return sw.create(
        path, shape=(count, *SHAPE), dtype="uint16", axes="tyx", chunks=chunks, **how(**arguments)
    )


def stored(path) -> np.ndarray:
    return zarr.open_array(path / "0", mode="r")[:]


def test_frames_are_stored_as_they_lie(tmp_path):
    pixels = frames_of(9)
    with create(tmp_path / "a.ome.zarr", 9) as writer:
        for frame in pixels[:5]:
            writer.append(frame, copy=False)
        writer.append_many(pixels[5:], copy=False)
        assert writer.copied == 0
    assert writer.released == writer.frames == 9
    assert np.array_equal(stored(tmp_path / "a.ome.zarr"), pixels)


class Memory(bytearray):
    """Memory of a frame that can be watched."""


def watched(pixels: np.ndarray) -> tuple[np.ndarray, weakref.ref]:
    memory = Memory(pixels.tobytes())
    return np.frombuffer(memory, pixels.dtype).reshape(pixels.shape), weakref.ref(memory)


def test_memory_is_kept_until_the_frame_is_stored_and_no_longer(tmp_path):
    pixels = frames_of(4)
    with create(tmp_path / "a.ome.zarr", 4, store_within_ms=600_000) as writer:
        first, first_alive = watched(pixels[0])
        writer.append(first, copy=False)
        del first
        gc.collect()
        assert first_alive() is not None, "its slab waits for one more frame"
        assert writer.released == 0
        second, second_alive = watched(pixels[1])
        writer.append(second, copy=False)
        del second
        wait_for(lambda: writer.released == 2)
        wait_for(lambda: first_alive() is None and second_alive() is None)
        assert writer.watermark.stored == 2
    assert np.array_equal(stored(tmp_path / "a.ome.zarr")[:2], pixels[:2])


def test_durable_frames_are_kept_until_they_are_durable(tmp_path):
    held = []
    failpoints.set_hook("sealer.before_commit", lambda: held.append(writer.released))
    try:
        arguments = {"durability": "durable", "sync_interval_ms": 5, "chunks": {"t": 1}}
        with create(tmp_path / "a.ome.zarr", 8, **arguments) as writer:  # two are still to come
            for frame in frames_of(6):
                writer.append(frame, copy=False)
            writer.flush()
            assert writer.released == 6 == writer.watermark.durable
    finally:
        failpoints.set_hook("sealer.before_commit", None)
    assert held[0] == 0, "nothing is let go before the first sync"


@pytest.mark.parametrize("chunks", [{"t": 1}, {"t": 2}])
def test_released_counts_without_a_hole_and_copied_frames_at_once(tmp_path, chunks):
    pixels = frames_of(6)
    arguments = {"chunks": {**chunks, "y": 20, "x": 24}, "store_within_ms": 600_000}
    with create(tmp_path / "a.ome.zarr", 6, **arguments) as writer:
        writer.append(pixels[0])
        assert writer.released == 1, "a copy is made before append returns"
        writer.append(pixels[2], index=(2,), copy=False)
        writer.append(pixels[3], index=(3,), copy=False)
        wait_for(lambda: writer.released == 3)
        writer.append(pixels[4], index=(4,))
        assert writer.released == 4
        writer.append(pixels[1], index=(1,), copy=False)
        wait_for(lambda: writer.released == 5)
    assert np.array_equal(stored(tmp_path / "a.ome.zarr")[:5], pixels[:5])


def in_mapped_file(pixels: np.ndarray, folder, *, as_memmap: bool) -> np.ndarray:
    (folder / "raw").write_bytes(pixels.tobytes())
    if as_memmap:
        return np.asarray(np.memmap(folder / "raw", pixels.dtype, "r", shape=pixels.shape))
    with (folder / "raw").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, pixels.dtype).reshape(pixels.shape)


def unaligned(pixels: np.ndarray) -> np.ndarray:
    memory = np.zeros(pixels.nbytes + 1, np.uint8)
    odd = memory[1:].view(pixels.dtype).reshape(pixels.shape)
    odd[...] = pixels
    return odd


KINDS = {
    "in order": (lambda p, _: p.copy(), 0),
    "a window": (lambda p, _: np.pad(p, 3)[3:-3, 3:-3], 1),
    "turned": (lambda p, _: np.asfortranarray(p), 1),
    "unaligned": (lambda p, _: unaligned(p), 1),
    "read-only": (lambda p, _: np.frombuffer(p.tobytes(), p.dtype).reshape(p.shape), 0),
    "memmap": (lambda p, folder: in_mapped_file(p, folder, as_memmap=True), 1),
    "mmap": (lambda p, folder: in_mapped_file(p, folder, as_memmap=False), 1),
    "mmap by a memoryview": (
        lambda p, folder: np.asarray(memoryview(in_mapped_file(p, folder, as_memmap=False))),
        1,
    ),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_cannot_be_read_where_it_lies_is_copied_and_counted(tmp_path, kind):
    (pixels,) = frames_of(1)
    make, copies = KINDS[kind]
    with create(tmp_path / "a.ome.zarr", 2, chunks={"t": 1}) as writer:
        writer.append(make(pixels, tmp_path), copy=False)
        writer.append_many(make(pixels, tmp_path)[None], copy=False)
        assert writer.copied == 2 * copies
    assert np.array_equal(stored(tmp_path / "a.ome.zarr"), np.stack([pixels, pixels]))


@pytest.mark.parametrize("overload", ["fail", "drop"])
def test_a_frame_that_is_not_copied_takes_a_place_of_the_ring(tmp_path, monkeypatch, overload):
    monkeypatch.setattr("shardwright.acquire.limits.SMALL_RING_BYTES", 40 * MESSAGE_BYTES)
    pixels, blocked = frames_of(400), mmap.mmap(-1, 1)
    failpoints.set_hook("slots.before_store", lambda: wait_for(lambda: blocked[0] == 1))
    try:
        with create(tmp_path / "a.ome.zarr", 400, chunks={"t": 1}, overload=overload) as writer:
            ring = writer._limits.ring_frames
            for frame in pixels[:ring]:
                writer.append(frame, copy=False)
            lost, alive = watched(pixels[ring])
            if overload == "fail":
                with pytest.raises(OverloadError):
                    writer.append(lost, copy=False)
            else:
                writer.append(lost, copy=False)
            del lost
            gc.collect()
            assert alive() is None, "a frame that is not kept is not held"
            blocked[0] = 1
        assert writer.released == writer.frames
    finally:
        blocked[0] = 1
        failpoints.set_hook("slots.before_store", None)
    assert np.array_equal(stored(tmp_path / "a.ome.zarr")[:ring], pixels[:ring])


def test_frames_are_let_go_when_the_writer_fails(tmp_path, failing):
    one, alive = watched(frames_of(1)[0])
    writer = create(tmp_path / "a.ome.zarr", 4, store_within_ms=600_000)
    failing("journal.before_frames", 5)
    writer.append(one, copy=False)
    writer.append(one, copy=False)
    del one
    with pytest.raises(ShardwrightError):
        writer.close()
    gc.collect()
    assert alive() is None
    assert writer.released == writer.frames


def test_a_stack_is_kept_by_one_reference_until_its_last_frame_is_stored(tmp_path):
    pixels = frames_of(5)
    with create(tmp_path / "a.ome.zarr", 6, store_within_ms=600_000) as writer:
        stack, alive = watched(pixels)
        writer.append_many(stack, copy=False)
        del stack
        wait_for(lambda: writer.released == 4)
        assert len({id(lent) for lent in writer._ring._lent if lent is not None}) == 1
        assert alive() is not None
        writer.append(pixels[0], copy=False)
        wait_for(lambda: writer.released == 6)
        gc.collect()
        wait_for(lambda: alive() is None)
    assert np.array_equal(stored(tmp_path / "a.ome.zarr")[:5], pixels)


def test_frames_are_kept_for_the_new_file_after_an_io_error(tmp_path, caplog):
    pixels, refs = frames_of(12), []

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    failpoints.set_hook("slots.before_write", failpoints.at_time(3, fail))
    with create(tmp_path / "a.ome.zarr", 12, chunks={"t": 2, "y": 20, "x": 24}) as writer:
        for frame in pixels:
            memory, alive = watched(frame)
            refs.append(alive)
            writer.append(memory, copy=False)
        del memory
    gc.collect()
    failpoints.set_hook("slots.before_write", None)
    assert "shard_rewritten" in logged(caplog)
    assert not any(alive() is not None for alive in refs)
    assert np.array_equal(stored(tmp_path / "a.ome.zarr"), pixels)


def test_memory_is_let_go_outside_of_the_locks_of_the_writer(tmp_path):
    """Its last reference may call back into the caller's code, which may ask the writer."""
    answers = []
    with create(tmp_path / "a.ome.zarr", 8) as writer:

        def ask() -> None:
            answers.append(writer._driver.lock.held.acquire(timeout=10))
            if answers[-1]:
                writer._driver.lock.held.release()

        for n, frame in enumerate(frames_of(8)):
            memory = Memory(frame.tobytes())
            weakref.finalize(memory, ask)
            writer.append(np.frombuffer(memory, frame.dtype).reshape(frame.shape), copy=False)
            del memory
            if n % 2:
                wait_for(lambda n=n: len(answers) == n + 1)
    assert answers == [True] * 8
