"""The in-process writer called from several threads, from signal handlers and finalizers."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.alarm import Alarm
from tests.harness.in_threads import in_threads
from tests.harness.interrupted_call import interruptions
from tests.harness.json_process import wait_for
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.limits import MESSAGE_BYTES
from shardwright.disk import failpoints
from shardwright.model.errors import (
    ClosedError,
    FrameIndexError,
    NestedCallError,
    OverloadError,
    WorkerError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = (20, 24)


def frames_of(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 60_000, (count, *SHAPE)).astype(np.uint16)


def create(path, count, **arguments):
    return sw.create(path, shape=(count, *SHAPE), dtype="uint16", axes="tyx", **how(**arguments))


def stored(path) -> np.ndarray:
    return zarr.open_array(path / "0", mode="r")[:]


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_of_others():
    """Workers that a fixture of other tests keeps."""
    _before.clear()
    _before.update(threading.enumerate())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.ome.zarr"


@pytest.fixture
def switching():
    """Threads change places at nearly each instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def full_ring(path, monkeypatch):
    """A writer whose ring is full, of frames that wait for the rest of their slab."""
    monkeypatch.setattr("shardwright.acquire.limits.SMALL_RING_BYTES", 40 * MESSAGE_BYTES)
    with create(path, 400, chunks={"t": 2, "y": 20, "x": 24}) as writer:
        free = writer._ring._free.take(writer._limits.ring_frames)
        yield writer, free


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_that_append_at_once(path, switching, threads):
    pixels = frames_of(600)
    with create(path, 600, on_duplicate="count") as writer:

        def part(first: int) -> None:
            for i in range(first, 600, threads):
                writer.append(pixels[i], index=(i,), copy=bool(i % 3))

        in_threads(*(lambda first=first: part(first) for first in range(threads)))
        writer.flush()
    assert writer.receipt.frames_stored == 600
    assert np.array_equal(stored(path), pixels)


def test_frames_without_a_place_have_the_order_of_their_calls(path):
    """The first one is being copied while the second one is complete."""
    pixels = frames_of(3)
    with create(path, 3) as writer:
        copies, goes_on = threading.Event(), threading.Event()
        put = writer._ring.put

        def slow_put(slot, frame):
            if (frame == pixels[0]).all():
                copies.set()
                assert goes_on.wait(60)
            return put(slot, frame)

        writer._ring.put = slow_put
        first = threading.Thread(target=writer.append, args=(pixels[0],))
        first.start()
        assert copies.wait(60)
        writer.append(pixels[1])
        writer.append_many(pixels[2:])
        assert writer.frames == 0
        goes_on.set()
        first.join()
        assert writer.frames == 3
    assert np.array_equal(stored(path), pixels)


def test_a_copy_that_fails_leaves_no_hole_between_those_of_others(path):
    pixels = frames_of(2)
    with create(path, 3) as writer:
        copies, goes_on = threading.Event(), threading.Event()
        put = writer._ring.put

        def failing_put(slot, frame):
            if frame[0, 0] == 0:
                copies.set()
                assert goes_on.wait(60)
                raise MemoryError
            return put(slot, frame)

        writer._ring.put = failing_put
        errors: list[BaseException] = []

        def fail() -> None:
            try:
                writer.append(np.zeros(SHAPE, np.uint16))
            except MemoryError as error:
                errors.append(error.with_traceback(None))

        thread = threading.Thread(target=fail)
        thread.start()
        assert copies.wait(60)
        writer.append(pixels[0])
        goes_on.set()
        thread.join()
        writer.append(pixels[1])
        assert (writer.frames, len(errors), writer._ring.copying) == (2, 1, 0)
    assert np.array_equal(stored(path), pixels)


def test_a_stack_is_not_divided_by_the_frames_of_others(path, switching, monkeypatch):
    """Though it takes free slots several times."""
    monkeypatch.setattr("shardwright.writer.writer.BATCH_BYTES", 1)
    stacks = [np.full((60, *SHAPE), n + 1, np.uint16) for n in range(3)]
    with create(path, 180) as writer:
        in_threads(*(lambda stack=stack: writer.append_many(stack) for stack in stacks))
    came = stored(path)[:, 0, 0]
    assert np.count_nonzero(np.diff(came)) == 2
    assert sorted(set(came.tolist())) == [1, 2, 3]


def test_a_call_that_waits_for_room_holds_up_no_other_and_ends_with_the_writer(full_ring):
    writer, _ = full_ring
    ends: list[str] = []

    def wait_for_room(call) -> None:
        try:
            call()
        except ClosedError as error:
            ends.append(str(error))

    calls = [
        lambda: writer.append(frames_of(1)[0]),
        lambda: writer.append_many(frames_of(3)),
        lambda: writer.append_many(frames_of(3), indices=[(7,), (8,), (9,)]),
        writer.claim,
    ]
    threads = [threading.Thread(target=wait_for_room, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    while len(writer._driver.order._line) < len(calls):
        time.sleep(0.001)
    assert writer.watermark.durable == writer.frames == 0
    writer.flush(60)
    writer.update_metadata({"x": 1})
    writer.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(ends) == 4


def test_a_call_that_finds_no_place_after_it_has_waited_takes_no_slot(path):
    with create(path, 3) as writer:
        ring, refused = writer._ring, []
        slots = ring._free.take(writer._limits.ring_frames)

        def append() -> None:
            try:
                writer.append(frames_of(1)[0])
            except FrameIndexError as error:
                refused.append(error)

        threads = [threading.Thread(target=append) for _ in range(5)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(writer._driver.order._line) == 5, "calls that wait")
        ring._free.give_back(slots)
        for thread in threads:
            thread.join(60)
        writer.flush()
        wait_for(lambda: ring.used == 0, "slots that come back")
        assert len(refused) == 2
        assert ring._free.take(slots.size).size == slots.size


def test_several_threads_that_close(path):
    writer = create(path, 9)
    writer.append_many(frames_of(9))
    receipts: list[sw.Receipt] = []
    in_threads(*[lambda: receipts.append(writer.close())] * 4)
    assert len({id(receipt) for receipt in receipts}) == 1
    assert receipts[0].frames_stored == 9


def test_a_close_that_is_interrupted_can_be_called_again(path):
    """By Ctrl-C: sealing goes on meanwhile."""
    writer = create(path, 400)
    goes_on = threading.Event()
    before = signal.signal(signal.SIGALRM, interrupt)
    failpoints.set_hook("shard.before_rename", lambda: (kill_once(), goes_on.wait(60)))

    def kill_once() -> None:
        """Once the main thread is in it: a shard that is full is sealed before, too."""
        if not goes_on.is_set():
            wait_for(lambda: main_thread_is_in(sw.Writer.close), "the call")
            os.kill(os.getpid(), signal.SIGALRM)

    try:
        writer.append_many(frames_of(400))
        with pytest.raises(KeyboardInterrupt):
            writer.close()
        goes_on.set()
        assert writer.close().frames_stored == 400
    finally:
        failpoints.set_hook("shard.before_rename", None)
        signal.signal(signal.SIGALRM, before)


def test_a_claim_is_ended_once_by_whichever_thread(path, switching):
    pixels = frames_of(200)
    with create(path, 200) as writer:
        for i in range(200):
            claim = writer.claim(index=(i,))
            claim.pixels[:] = pixels[i]
            in_threads(claim.commit, claim.commit)
        assert (writer.frames, writer._ring.claimed) == (200, 0)
    assert np.array_equal(stored(path), pixels)


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_all_kinds_at_once(path, switching, seed):
    """Each thread has its own places; what a call has said is what is stored."""
    threads, each = 4, 120
    pixels = frames_of(threads * each, seed)
    writer = create(path, threads * each, chunks={"t": 8, "y": 20, "x": 24})
    said: set[int] = set()

    def work(thread: int) -> None:
        draw = random.Random(100 * seed + thread)
        places = list(range(thread, threads * each, threads))
        while places:
            kind, count = draw.randrange(6), draw.randrange(1, 9)
            some, places[:count] = places[:count], []
            try:
                if kind == 0:
                    writer.append_many(pixels[some], indices=[(i,) for i in some], copy=draw.random() < 0.5)
                    said.update(some)
                elif kind == 1:
                    writer.flush(120)
                    places[:0] = some
                    assert writer.watermark.durable <= writer.watermark.stored
                for i in some if kind > 1 else ():
                    if kind == 2:
                        with writer.claim(index=(i,)) as into:
                            into[:] = pixels[i]
                    else:
                        writer.append(pixels[i], index=(i,), copy=draw.random() < 0.5)
                    said.add(i)
            except ClosedError:
                return

    def close() -> None:
        if seed == 2:
            while writer.frames < 100:
                time.sleep(0.001)
            writer.close()

    in_threads(*(lambda thread=thread: work(thread) for thread in range(threads)), close)
    receipt, some = writer.close(), sorted(said)
    assert receipt.frames_stored >= len(some)
    assert receipt.frames_stored == receipt.frames_received
    assert np.array_equal(stored(path)[some], pixels[some])
    assert seed == 2 or len(some) == threads * each


# ---------------------------------------------------------------- within a call of the same thread


def test_a_signal_handler_appends_and_reads(path):
    """It appends in the middle of any call but of a step, which it is told; nothing waits for ever."""
    pixels = frames_of(3000)
    with create(path, 4000) as writer:

        def handle() -> object:
            assert writer.receipt.frames_received <= 4000
            assert writer.watermark.stored <= writer.frames + 1
            writer.flush(60)
            if len(alarm.answers) < 1000:
                writer.append(np.full(SHAPE, 60_001, np.uint16))
            return None

        with Alarm(handle) as alarm:
            for frame in pixels:
                writer.append(frame)
            while not (NestedCallError in alarm.answers and None in alarm.answers):
                writer.flush()
        appended = sum(answer is None for answer in alarm.answers)
        assert writer.frames == 3000 + min(appended, 1000) or len(alarm.answers) > 1000
    assert set(alarm.answers) <= {None, NestedCallError}
    came = stored(path)
    assert np.array_equal(came[came[:, 0, 0] != 60_001][:3000], pixels)


def test_a_signal_handler_closes(tmp_path):
    """Wherever the main thread is: what it had appended is sealed."""

    def close(writer) -> sw.Receipt:
        alarm.is_over = True
        return writer.close()

    for n in range(12):
        path = tmp_path / f"{n}.ome.zarr"
        writer, pixels = create(path, 4000), frames_of(50)
        writer.append(pixels[0])
        came = 1
        with Alarm(partial(close, writer)) as alarm:
            with suppress(ClosedError):
                while came < 4000:
                    writer.append(pixels[came % 50])
                    came += 1
            while not alarm.answers:
                time.sleep(1e-4)
        receipt = writer.close()
        assert receipt.frames_stored in (came, came + 1)
        assert np.array_equal(stored(path)[:came], pixels[np.arange(came) % 50])
        assert all(isinstance(answer, sw.Receipt) for answer in alarm.answers)


def test_a_finalizer_in_the_middle_of_a_call(path):
    """The collector of cycles runs at any allocation, also under the writer's lock."""
    pixels = frames_of(400)
    answers: list[object] = []
    before = gc.get_threshold()
    with create(path, 4000) as writer:

        class Cycle:
            def __init__(self) -> None:
                self.own = self
                weakref.finalize(self, self.end).atexit = False

            @staticmethod
            def end() -> None:
                try:
                    assert writer.watermark.stored <= 4000
                    writer.flush(60)
                    answers.append(None)
                except NestedCallError:
                    answers.append(NestedCallError)

        gc.set_threshold(5, 1, 1)
        try:
            for frame in pixels:
                Cycle()
                writer.append(frame)
        finally:
            gc.set_threshold(*before)
    assert answers
    assert np.array_equal(stored(path)[:400], pixels)


def test_what_is_interrupted_in_the_middle_of_a_step_is_told_at_every_later_call(path, monkeypatch):
    """Nothing is guessed from the first half of a step; ``recover`` keeps what was stored."""
    pixels = frames_of(8)
    writer = create(path, 8)
    writer.append_many(pixels[:4])
    writer.flush()
    monkeypatch.setattr(writer._acquisition, "submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.append(pixels[4])
    for call in (lambda: writer.append(pixels[4]), writer.flush, writer.claim, writer.close):
        with pytest.raises(WorkerError, match="interrupted in the middle of a step"):
            call()
    assert writer.close().frames_stored == 4
    assert threads_of_ours() == []
    with sw.resume(path) as resumed:
        resumed.append_many(pixels[resumed.frames :])
    assert np.array_equal(stored(path), pixels)


def test_the_death_of_the_helper_is_told_at_every_later_call(path, full_ring, monkeypatch):
    writer, _ = full_ring
    monkeypatch.setattr(writer._acquisition, "poll", lambda: {}["a defect"])
    while writer._driver.lock.broken is None:
        time.sleep(0.001)
    calls = [lambda: writer.append(frames_of(1)[0]), writer.flush, writer.claim]
    for call in calls:
        with pytest.raises(WorkerError, match=r"a defect has ended this writer; got KeyError"):
            call()
    with pytest.raises(WorkerError, match="KeyError"):
        writer.close()
    assert threads_of_ours() == []


def test_a_wait_for_room_can_be_interrupted(full_ring, monkeypatch):
    """By Ctrl-C: nothing is left of the call."""
    writer, free = full_ring
    monkeypatch.setattr(writer._driver.lock.changed, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.append(frames_of(1)[0])
    monkeypatch.undo()
    writer._ring._free.give_back(free)
    writer.append(frames_of(1)[0])
    assert writer.frames == 1


@pytest.mark.parametrize("way", ["append", "claim"])
def test_after_a_call_that_was_interrupted_anywhere_others_go_on_or_are_told(tmp_path, way):
    """Nothing waits for a frame of it, whose thread goes on."""
    writers = [create(tmp_path / "a0.ome.zarr", 4_000)]

    def call():
        if writers[-1]._driver.lock.broken is not None:
            with pytest.raises(WorkerError, match="interrupted in the middle of a step"):
                writers[-1].close()
            writers.append(create(tmp_path / f"a{len(writers)}.ome.zarr", 4_000))
        writer = writers[-1]
        return writer.claim().commit if way == "claim" else partial(writer.append, frames_of(1)[0])

    for _ in interruptions(call):
        writer = writers[-1]
        with suppress(WorkerError):
            in_threads(partial(writer.append_many, frames_of(2)), partial(writer.flush, 60))
            writer.append(frames_of(1)[0])
            in_threads(partial(writer.flush, 60))
            assert writer.watermark.durable == writer.frames
            assert writer._ring.copying == 0
    writers[-1].close()
    assert len(writers) > 1, "no step was interrupted"
    assert threads_of_ours() == []


def test_memory_into_which_a_thread_still_copies_is_no_other_writers(path, monkeypatch):
    """After a defect has ended the writer, another thread closes it."""
    copies, closed = threading.Event(), threading.Event()

    writer = create(path, 10)
    put, kept = writer._ring.put, []

    def slow_put(slot: int, pixels: np.ndarray) -> int:
        copies.set()
        assert closed.wait(60)
        return put(slot, pixels)

    monkeypatch.setattr(writer._ring, "put", slow_put)
    monkeypatch.setattr("shardwright.disk.spare_memory.spare_memory.give_back", kept.append)

    def append() -> None:
        with pytest.raises(WorkerError):
            writer.append(frames_of(1)[0])

    def close() -> None:
        copies.wait(60)
        monkeypatch.setattr(writer._acquisition, "poll", lambda: {}["a defect"])
        with pytest.raises(WorkerError):
            writer.close()
        closed.set()

    in_threads(append, close)
    assert all(block is not writer._ring._memory for block in kept)


def test_a_full_ring_of_claims_is_an_error_though_another_thread_copies(full_ring):
    writer, free = full_ring
    writer._ring._free.give_back(free[:1])
    claim = writer.claim()
    with pytest.raises(OverloadError, match="claims"):
        writer.append(frames_of(1)[0])
    claim.give_back()


def main_thread_is_in(function: Callable[..., object]) -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return any(each.f_code is function.__code__ for each, _ in traceback.walk_stack(frame))


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def threads_of_ours() -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread not in _before]
    return [name for name in threads if name.startswith("shardwright")]
