"""Streams called from several threads, from signal handlers, forgotten, and copied into forked children."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.harness.alarm import Alarm
from tests.harness.in_threads import in_threads
from tests.harness.interrupted_call import interruptions
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.client.send_queue import COPYING
from shardwright.ingest import StreamSettings
from shardwright.model.errors import ClosedError, NestedCallError, SessionLostError, WorkerError
from shardwright.model.write_settings import WriteSettings

WAYS = ["shm", "message"]
SOURCE = str(Path(sw.__file__).parents[1])


@pytest.fixture
def switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def few_slots(spec_of):
    def stream(chunk: int = 1, shard: int = 2, **write) -> StreamSettings:
        return StreamSettings("cam0", spec_of(chunk=chunk, shard=shard), 12, WriteSettings(**write))

    return stream


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_that_append_at_once(start, few_slots, frames_of, switching, transport, threads):
    """Each by its own way of calls, all waiting for the few slots there are. All 30 shard rows may be open at
    once: a thread that the others are 64 rows ahead of is late, and says so in the receipt."""
    frames = frames_of(240)
    with (
        sw.connect(start(few_slots(shard=8)).ipc, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):

        def part(first: int) -> None:
            places = list(range(first, 240, threads))
            for n, i in enumerate(places[:30]):
                if n % 2:
                    stream.append(frames[i], index=(i,))
                else:
                    with stream.claim(index=(i,)) as into:
                        into[:] = frames[i]
            stream.append_many(frames[places[30:]], indices=[(i,) for i in places[30:]])

        in_threads(*(lambda first=first: part(first) for first in range(threads)))
        stream.flush(60)
    assert stream.receipt.frames_stored == stream.frames == 240
    np.testing.assert_array_equal(stored(stream.path), frames)


def test_frames_without_a_place_have_the_order_of_their_calls(start, spec_of, frames_of):
    """The first one is being copied while the second one is complete."""
    frames = frames_of(3)
    with (
        sw.connect(start().ipc, transport="message") as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        copies, goes_on = threading.Event(), threading.Event()
        ring = stream._outbox.ring
        put = ring.put

        def slow_put(slot, frame):
            if frame.shape == frames[0].shape and (frame == frames[0]).all():
                copies.set()
                assert goes_on.wait(60)
            put(slot, frame)

        ring.put = slow_put
        first = threading.Thread(target=stream.append, args=(frames[0],))
        first.start()
        assert copies.wait(60)
        stream.append(frames[1])
        stream.append_many(frames[2:])
        assert stream.frames == 0
        closing = threading.Thread(target=stream.close)
        closing.start()  # a frame that is being copied is still sent
        while not stream._outbox._finishing:
            time.sleep(0.001)
        goes_on.set()
        first.join()
        closing.join()
    np.testing.assert_array_equal(stored(stream.path)[:3], frames)


def test_a_stack_is_not_divided_by_the_frames_of_others(start, few_slots, frames_of, switching):
    one = frames_of(1)[0]
    with (
        sw.connect(start(few_slots()).ipc) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        stacks = [np.full((30, *one.shape), n + 1, one.dtype) for n in range(3)]
        in_threads(*(lambda stack=stack: stream.append_many(stack) for stack in stacks))
    came = stored(stream.path)[:, 0, 0]
    assert np.count_nonzero(np.diff(came)) == 2


@pytest.mark.parametrize("call", ["append", "append_many", "indexed", "claim"])
def test_a_call_that_waits_for_a_slot_holds_up_no_other_and_ends_with_the_stream(
    start, double, few_slots, frames_of, call
):
    double.holding = True
    frames, ends = frames_of(3), []
    calls = {
        "append": lambda stream: stream.append(frames[0]),
        "append_many": lambda stream: stream.append_many(frames),
        "indexed": lambda stream: stream.append_many(frames, indices=[(50,), (51,), (52,)]),
        "claim": lambda stream: stream.claim(),
    }
    daemon = start(few_slots(), doubled=double)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", stream="cam0")
        stream.append_many(frames_of(12))

        def wait_for_room() -> None:
            try:
                calls[call](stream)
            except ClosedError as error:
                ends.append(str(error))

        thread = threading.Thread(target=wait_for_room)
        thread.start()
        while not stream._outbox._order.is_waiting:
            time.sleep(0.001)
        assert stream.watermark.durable == 0
        with pytest.raises(sw.errors.TimedOutError):
            stream.flush(0.01)
        double.holding = False
        stream._outbox.finish()
        thread.join(60)
        assert len(ends) == 1
        stream.close()


def test_several_threads_that_close(start, spec_of, frames_of):
    with sw.connect(start().ipc) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append_many(frames_of(9))
        in_threads(*[stream.close] * 4)
        assert stream.receipt.frames_stored == 9


# ---------------------------------------------------------------- within a call of the same thread


def test_a_signal_handler_appends_flushes_and_reads(start, spec_of, frames_of):
    frames = frames_of(600)
    with (
        sw.connect(start().ipc) as connection,
        connection.acquire("a", spec_of(count=None)) as stream,
    ):
        places = itertools.count(5000)  # a handler may interrupt another one

        def handle() -> None:
            assert stream.watermark.durable <= stream.watermark.stored
            stream.flush(60)
            stream.append(frames[0], index=(next(places),))

        with Alarm(handle) as alarm:
            for i, frame in enumerate(frames):
                stream.append(frame, index=(i,))
            while None not in alarm.answers:
                time.sleep(1e-3)
    assert set(alarm.answers) <= {None, NestedCallError}
    np.testing.assert_array_equal(stored(stream.path)[:600], frames)
    assert stream.receipt.frames_stored == 600 + alarm.answers.count(None)


def test_a_signal_handler_closes(start, spec_of, frames_of):
    frames = frames_of(50)
    for n in range(8):
        with sw.connect(start().ipc) as connection:
            stream = connection.acquire("a", spec_of(count=None))
            before = signal.signal(signal.SIGALRM, lambda *_, stream=stream: stream.close())
            came = 0
            try:
                stream.append(frames[0])
                signal.setitimer(signal.ITIMER_REAL, 1e-3 * (n + 1))
                with suppress(ClosedError):
                    for came in range(1, 1_000_000):
                        stream.append(frames[came % 50])
            finally:
                signal.signal(signal.SIGALRM, before)
            stream.close()
            assert stream.receipt.frames_stored in (came, came + 1)
            np.testing.assert_array_equal(stored(stream.path)[:came], frames[np.arange(came) % 50])


def test_what_is_interrupted_in_the_middle_of_a_step_is_told_and_what_came_before_is_sealed(
    start, spec_of, frames_of, monkeypatch
):
    frames = frames_of(5)
    with sw.connect(start().ipc) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append_many(frames[:4])

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(stream._outbox._queue, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.append(frames[4])
        for call in (lambda: stream.append(frames[4]), stream.flush, stream.claim, stream.close):
            with pytest.raises(WorkerError, match="interrupted in the middle of a step"):
                call()
        assert stream.receipt.frames_stored == 4
    np.testing.assert_array_equal(stored(stream.path)[:4], frames[:4])


@pytest.mark.parametrize("way", ["append", "claim"])
def test_after_a_call_that_was_interrupted_anywhere_others_go_on_or_are_told(start, spec_of, frames_of, way):
    """Nothing waits for a frame of it, whose thread goes on."""
    frames = frames_of(3)
    with sw.connect(start(StreamSettings("cam0", spec_of(), 400, WriteSettings())).ipc) as connection:
        streams = [connection.acquire("a0", stream="cam0")]

        def call():
            if streams[-1]._outbox._lock.broken is not None:
                with pytest.raises(WorkerError, match="interrupted in the middle of a step"):
                    streams[-1].close()
                streams.append(connection.acquire(f"a{len(streams)}", stream="cam0"))
            stream = streams[-1]
            return stream.claim().commit if way == "claim" else partial(stream.append, frames[0])

        for _ in interruptions(call):
            stream = streams[-1]
            with suppress(WorkerError):
                in_threads(partial(stream.append_many, frames[:2]), partial(stream.flush, 60))
                stream.append(frames[0])
                in_threads(partial(stream.flush, 60))
                assert stream.watermark.durable == stream.frames
                assert stream._outbox._queue.count(COPYING) == 0
        assert len(streams) > 1, "no step was interrupted"


def test_the_death_of_the_io_thread_is_told_at_every_later_call(start, spec_of, frames_of, monkeypatch):
    frame = frames_of(1)[0]
    connection = sw.connect(start().ipc)
    stream = connection.acquire("a", spec_of())
    monkeypatch.setattr(stream._link, "outgoing", lambda: {}["a defect"])
    while not stream._outbox.is_over:
        time.sleep(0.001)
    for call in (lambda: stream.append(frame), stream.flush, stream.claim, stream.close):
        with pytest.raises(SessionLostError, match="KeyError"):
            call()
    connection.close()


# ---------------------------------------------------------------- forgotten


def threads_of_client() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "shardwright-client"]


@pytest.mark.parametrize("transport", WAYS)
def test_the_last_reference_seals_and_disconnects(start, spec_of, frames_of, transport, monkeypatch):
    monkeypatch.setattr("shardwright.client.connection.GOODBYE_S", 60.0)  # on a busy machine
    frames, daemon = frames_of(9), start()

    def forget(name: str) -> str:
        stream = sw.connect(daemon.ipc, transport=transport).acquire(name, spec_of())
        for frame in frames:
            stream.append(frame)
        return stream.path

    for name in ("a", "b"):
        with pytest.warns(ResourceWarning, match="the stream of .* was not closed"):
            path = forget(name)
        np.testing.assert_array_equal(stored(path), frames)
        assert threads_of_client() == []


def test_a_stream_is_ended_while_its_connection_goes_on(start, spec_of, frames_of):
    frames = frames_of(4)
    with sw.connect(start().ipc) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append_many(frames)
        path = stream.path
        with pytest.warns(ResourceWarning):
            del stream
        np.testing.assert_array_equal(stored(path)[:4], frames)
        connection.acquire("b", spec_of()).close()


def test_what_was_closed_says_nothing(start, spec_of):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sw.connect(start().ipc) as connection:
            connection.acquire("a", spec_of()).close()
        del connection
        gc.collect()
    assert threads_of_client() == []


SCRIPT = """
import os, sys, threading
import numpy as np
import shardwright as sw
from shardwright.client import stream as client_stream

connection = sw.connect(sys.argv[1], transport=sys.argv[2])
stream = connection.acquire("a", sw.default_layout(shape=(None, 16, 16), dtype="uint16", axes="tyx"))
for i in range(12): stream.append(np.full((16, 16), i + 1, np.uint16))
"""


def run(code: str, *arguments: str, flags=()) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=SOURCE)
    command = [sys.executable, *flags, "-c", SCRIPT + code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise ValueError", 1), ("sys.exit(3)", 3)])
def test_what_came_is_sealed_when_the_interpreter_ends(start, transport, end, code):
    daemon = start()
    done = run(end, daemon.ipc, transport, flags=("-W", "default"))
    assert done.returncode == code, done.stderr
    assert "ResourceWarning: the stream of" in done.stderr
    assert stored(daemon.root / "a.ome.zarr")[:, 0, 0].tolist() == list(range(1, 13))


def test_a_silent_daemon_keeps_the_interpreter_only_so_long_and_the_loss_is_told(start, double):
    double.hold_seal = True
    daemon = start(doubled=double)
    code = """
other = sw.connect(sys.argv[1])  # waits for the same daemon, and not as long again
more = other.acquire("b", stream.spec)
more.append(np.ones((16, 16), np.uint16))
connection._patience.left_s = 0.5
assert other._patience.left_s == 0.5
"""
    done = run(code, daemon.ipc, "shm")
    assert done.returncode == 0, done.stderr
    assert " frames are not known to be stored: the daemon has not ended the acquisition yet" in done.stderr
    double.hold_seal = False  # else the daemon waits for it at its own end


def test_a_forked_child_is_refused_at_once_and_changes_nothing(start):
    daemon = start()
    code = """
claim = stream.claim()
calls = {
    "append": lambda: stream.append(np.zeros((16, 16), np.uint16)),
    "append_many": lambda: stream.append_many(np.zeros((1, 16, 16), np.uint16)),
    "claim": stream.claim,
    "commit": claim.commit,
    "flush": stream.flush,
    "update_metadata": lambda: stream.update_metadata({"x": 1}),
    "close": stream.close,
    "acquire": lambda: connection.acquire("b", stream.spec),
    "disconnect": connection.close,
    **{name: lambda name=name: getattr(stream, name) for name in (
        "frames", "frames_dropped", "released", "copied", "watermark", "reconnects", "losses", "receipt")},
}
holds, ends = threading.Event(), threading.Event()

def hold():
    with stream._outbox._lock.held:
        holds.set()
        ends.wait()

holder = threading.Thread(target=hold)
holder.start()
holds.wait()
child = os.fork()
if child == 0:
    for name, call in calls.items():
        try:
            call()
        except sw.errors.ForkedError as error:
            print(name, str(error).partition(";")[0])
    del calls, claim, stream, connection
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
ends.set()
holder.join()
claim.give_back()
stream.append(np.full((16, 16), 13, np.uint16))
stream.close()
connection.close()
"""
    done = run(code, daemon.ipc, "shm", flags=("-W", "default"))
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    refused = "this {} belongs to another process, of which this one is a forked child"
    assert sorted(told) == [refused.format("connection")] * 2 + [refused.format("stream")] * 15
    assert stored(daemon.root / "a.ome.zarr")[:, 0, 0].tolist() == list(range(1, 14))
