"""Links that break, daemons that are killed, clients that come back or are replaced: real sockets, the
pipeline replaced by a double that remembers what a killed daemon would have left on disk."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from tests.harness.ack_ranges import decode_ranges

import shardwright as sw
from shardwright.acquire.limits import RUNTIME_BYTES, Limits
from shardwright.disk import allocation_reserve
from shardwright.ingest import StreamSettings
from shardwright.model import errors
from shardwright.model.error_text import ErrorText
from shardwright.model.write_settings import WriteSettings
from shardwright.wire import messages
from shardwright.wire.controls import Hello
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED, FRAME_NOT_HELD, FRAME_SKIPPED
from shardwright.wire.messages import BATCH_PRELUDE, CONNECTION, Counter, Kind, Level

WAYS = ["shm", "message"]


def pixels(frames: np.ndarray) -> dict[int, bytes]:
    return {i: frame.tobytes() for i, frame in enumerate(frames)}


def appender(stream, frames) -> threading.Thread:
    thread = threading.Thread(target=lambda: [stream.append(frame) for frame in frames])
    thread.start()
    return thread


@pytest.fixture
def few_slots(spec_of):
    """A stream with a ring of 12 frames."""

    def stream(**write: Any) -> StreamSettings:
        return StreamSettings("cam0", spec_of(chunk=1), 12, WriteSettings(**write))

    return stream


# The same client comes back
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("holding", [False, True], ids=["stored as it comes", "nothing stored"])
def test_a_killed_daemon_is_replaced_and_no_frame_is_missing(
    start, double, spec_of, frames_of, wait, transport: str, holding: bool
):
    double.holding = holding
    first = start(doubled=double)
    frames = frames_of(900)
    with (
        sw.connect(first.ipc, transport=transport) as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        camera = appender(stream, frames)
        wait(lambda: first.acquisitions[0].submitted)
        first.kill()
        double.holding = False
        second = start(doubled=double, root=first.root, adopt=[first.root / "a.ome.zarr"])
        camera.join()
    (recovered,) = second.acquisitions
    assert recovered.frames == pixels(frames)
    assert stream.receipt.frames_received == stream.receipt.frames_stored == 900
    assert stream.reconnects >= 1
    assert second.event("acquisition_recovered")["path"].endswith("a.ome.zarr")
    assert second.event("acquisition_resumed")["client_epoch"] == 1


@pytest.mark.parametrize("transport", WAYS)
def test_a_cut_link_is_mended_and_no_frame_is_missing_or_sent_to_the_pipeline_twice(
    start, double, spec_of, frames_of, wait, proxy, transport: str
):
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    frames = frames_of(1500)
    with (
        sw.connect(link.endpoint, transport=transport) as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        camera = appender(stream, frames)
        for cuts in range(1, 5):
            wait(lambda: daemon.acquisitions[0].submitted)
            link.cut()
            link.mend()
            wait(lambda cuts=cuts: stream.reconnects >= cuts)
        camera.join()
    (acquisition,) = daemon.acquisitions
    assert acquisition.frames == pixels(frames)
    assert sorted(acquisition.submitted) == list(range(1500))
    assert daemon.count("acquisition_resumed") == stream.reconnects >= 4
    assert stream.receipt.frames_received == 1500


@pytest.mark.parametrize("transport", WAYS)
def test_frames_still_needed_when_the_link_broke_keep_their_slots(
    start, double, few_slots, frames_of, wait, proxy, transport: str
):
    """The ring is full, half of it unsent: nothing may be overwritten, nothing be released twice."""
    double.holding = True
    daemon = start(few_slots(), doubled=double)
    link = proxy(daemon.tcp)
    frames = frames_of(60)
    with (
        sw.connect(link.endpoint, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        camera = appender(stream, frames)
        (acquisition,) = daemon.acquisitions
        for cuts in range(1, 4):
            wait(lambda: acquisition.in_flight == 12)
            link.cut()
            link.mend()
            wait(lambda cuts=cuts: stream.reconnects == cuts)
        double.holding = False
        camera.join()
    assert acquisition.frames == pixels(frames)
    assert acquisition.submitted == list(range(60))


def test_a_frozen_link_is_given_up_on_both_sides_and_mended(start, double, spec_of, frames_of, wait, proxy):
    daemon = start(doubled=double, session_timeout_ms=300)
    link = proxy(daemon.tcp)
    frames = frames_of(40)
    with (
        sw.connect(link.endpoint, transport="message") as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        appender(stream, frames[:20]).join()
        link.freeze()
        camera = appender(stream, frames[20:])
        assert "fell silent" in daemon.event("acquisition_detached")["reason"]
        link.mend()
        camera.join()
    assert daemon.acquisitions[0].frames == pixels(frames)


def test_a_client_may_come_back_before_its_old_connection_is_missed(
    start, double, raw, spec_of, frames_of, wait, proxy
):
    daemon = start(doubled=double, session_timeout_ms=60_000)
    frames = frames_of(4)
    link = proxy(daemon.tcp)
    client = raw(link.endpoint)
    counter, opened = client.open("a", spec_of())
    client.send(frames_message(counter, frames[:2]))
    wait(lambda: daemon.acquisitions[0].stored_watermark == 2)
    link.freeze()
    client = raw(daemon.ipc)
    again, resumed = client.open("a", None, resume=resume_of(opened, 2))
    assert resumed["missing"] == []
    client.send(frames_message(Counter(counter.session), frames[2:], first=2))  # by the old token
    header, facts = client.receive_error(until=True)
    assert (header.session, facts["code"]) == (counter.session, "session_lost")
    client.send(frames_message(again, frames[2:], first=2))
    client.send(again.control(Kind.FINISH, {"frames": 4}))
    assert receipt_of(client)["frames_stored"] == 4


def resume_of(
    opened: dict[str, Any], next_sequence: int, changes: dict[str, int | str] | None = None
) -> dict[str, object]:
    facts = {key: opened[key] for key in ("acquisition", "client_epoch", "ring_slots")}
    return {**facts, "next_sequence": next_sequence} | (changes or {})


def frames_message(
    counter: Counter,
    frames: np.ndarray,
    *,
    first: int = 0,
    sequences: list[int] | None = None,
    **fields: object,
) -> list[bytes]:
    """Message transport; frames whose ``flags`` are set travel without their pixels."""
    count, height, width = frames.shape
    descriptors = np.zeros(count, DESCRIPTOR)
    descriptors["position"] = first + np.arange(count)
    descriptors["sequence"] = descriptors["position"] if sequences is None else np.array(sequences, np.uint64)
    descriptors["frame_id"] = -1
    for name, value in fields.items():
        descriptors[name] = value
    with_pixels = descriptors["flags"] == 0
    descriptors["slot"] = np.where(with_pixels, np.cumsum(with_pixels) - 1, 0)
    body = BATCH_PRELUDE.pack(messages.DTYPE_CODE["uint16"], height, width, 0) + descriptors.tobytes()
    payload = frames[with_pixels].tobytes()
    parts = [payload] if payload else []
    return [
        *counter.message(
            Kind.FRAMES, [body], count=count, pixel_parts=len(parts), payload_bytes=len(payload)
        ),
        *parts,
    ]


def receipt_of(client) -> dict[str, object]:
    header, parts = client.receive()
    while header.kind is Kind.ACK:
        header, parts = client.receive()
    assert header.kind is Kind.RECEIPT, parts
    return messages.decode_control(parts[0])["receipt"]


def acks_of(client, level: Level) -> list[int]:
    """The sequences of that level in the next ACK."""
    header, parts = client.receive()
    assert header.kind is Kind.ACK, parts
    return [
        s for each, first, last in decode_ranges(parts[0]) if each is level for s in range(first, last + 1)
    ]


def test_a_client_that_sends_everything_again_changes_nothing(start, double, raw, spec_of, frames_of, wait):
    """It need not look at ``missing``: what came before is dropped by its sequence, and its release is told
    again."""
    daemon = start(doubled=double)
    frames = frames_of(6)
    client = raw(daemon.ipc)
    counter, opened = client.open("a", spec_of())
    client.send(frames_message(counter, frames[:4]))
    wait(lambda: daemon.acquisitions[0].stored_watermark == 4)
    client.close()
    client = raw(daemon.ipc)
    counter, resumed = client.open("a", None, resume=resume_of(opened, 6))
    assert (resumed["missing"], resumed["next_sequence"], resumed["client_epoch"]) == ([[4, 5]], 6, 1)
    assert acks_of(client, Level.RELEASED) == [0, 1, 2, 3]
    client.send(frames_message(counter, 7 * frames))  # other pixels where the daemon has frames already
    client.send(counter.control(Kind.FINISH, {"frames": 6}))
    assert receipt_of(client)["frames_received"] == 6
    assert daemon.acquisitions[0].frames == pixels(np.concatenate((frames[:4], 7 * frames[4:])))
    assert daemon.acquisitions[0].submitted == list(range(6))


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([0, 1, 5], "had to be sent again are missing"),
        ([3], "had to be sent again are missing"),
        ([2, 4], "had to be sent again are missing"),
        ([6], "had to be sent again are missing"),
        ([3, 2], "missing or repeated"),
        ([2, 3, 4, 5, 7], "missing or repeated"),
        ([2**62], "missing or repeated"),
        ([2**64 - 1], "missing or repeated"),
    ],
    ids=str,
)
def test_frames_that_were_to_be_sent_again_may_not_be_left_out(
    start, double, raw, spec_of, frames_of, wait, sequences: list[int], message: str
):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, opened = client.open("a", spec_of())
    client.send(frames_message(counter, frames_of(2)))
    wait(lambda: daemon.acquisitions[0].stored_watermark == 2)
    client.close()
    client = raw(daemon.ipc)
    counter, resumed = client.open("a", None, resume=resume_of(opened, 6))
    assert resumed["missing"] == [[2, 5]]
    client.send(frames_message(counter, frames_of(len(sequences)), sequences=sequences))
    _, facts = client.receive_error(until=True)
    assert (facts["code"], message in facts["message"]) == ("protocol", True)
    assert receipt_of(client)["frames_received"] == 2


def test_a_client_that_claims_to_have_sent_the_moon_costs_no_memory(
    start, double, raw, spec_of, frames_of, wait
):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    _, opened = client.open("a", spec_of())
    client.close()
    client = raw(daemon.ipc)
    counter, resumed = client.open("a", None, resume=resume_of(opened, 2**62))
    assert resumed["missing"] == [[0, 2**62 - 1]]
    client.send(frames_message(counter, frames_of(1), sequences=[2**61]))
    _, facts = client.receive_error(until=True)
    assert "had to be sent again are missing" in facts["message"]


def test_finish_waits_for_what_is_to_be_sent_again(start, double, raw, spec_of, frames_of):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    _, opened = client.open("a", spec_of())
    client.close()
    client = raw(daemon.ipc)
    counter, _ = client.open("a", None, resume=resume_of(opened, 3))
    client.send(counter.control(Kind.FINISH, {"frames": 3}))
    _, facts = client.receive_error(until=True)
    assert facts["message"] == "FINISH counts other frames than those received"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"acquisition": "00" * 16}, "resume"),
        ({"client_epoch": 2}, "resume"),
        ({"next_sequence": 1}, "resume"),
        ({"ring_slots": 3}, "resume"),
    ],
    ids=str,
)
def test_a_resume_that_cannot_be_is_refused_and_the_acquisition_waits_on(
    start, double, raw, spec_of, frames_of, wait, changes, code: str
):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, opened = client.open("a", spec_of())
    client.send(frames_message(counter, frames_of(2)))
    wait(lambda: daemon.acquisitions[0].submitted)
    client.close()
    other = raw(daemon.ipc)
    other.ask_to_open("a", None, resume=resume_of(opened, 2, changes))
    _, facts = other.receive_error()
    assert (facts["code"], facts["fatal"], facts["request"]) == (code, False, 1)
    other.open("a", None, resume=resume_of(opened, 2))


def test_what_was_lost_is_told_to_the_client_that_comes_back(start, double, spec_of, frames_of, wait, proxy):
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection, connection.acquire("a", spec_of()) as stream:
        stream.append(frames_of(1)[0])
        (acquisition,) = daemon.acquisitions
        acquisition.losses.append((0, 0, ErrorText(errors.LostFramesError, "the disk ate it")))
        acquisition.events.append(
            ("io_error", {"shard_row": 1, "reason": "no", "then": "it is written anew"})
        )
        wait(lambda: stream.losses)
        link.cut()
        daemon.event("acquisition_detached")
        acquisition.losses.append((0, 0, ErrorText(errors.LostFramesError, "and again")))
        link.mend()
        wait(lambda: len(stream.losses) == 2)
        stream.append(frames_of(1)[0])
    assert [(loss.first, loss.last, str(loss.error)) for loss in stream.losses] == [
        (0, 0, "the disk ate it"),
        (0, 0, "and again"),
    ]
    assert daemon.event("io_error") == {
        "name": "a",
        "stream": "client",
        "path": stream.path,
        "shard_row": 1,
        "reason": "no",
        "then": "it is written anew",
    }


# Ends while the link is down
# ----------------------------------------------------------------------------------------------------


def test_a_receipt_that_was_missed_is_given_again(start, double, spec_of, frames_of, wait, proxy):
    double.hold_seal = True
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        closer = threading.Thread(target=stream.close)
        closer.start()
        wait(lambda: daemon.server.snapshot()["acquisitions"][0]["state"] == "finishing")
        link.cut()
        double.hold_seal = False
        daemon.event("acquisition_ended")
        link.mend()
        closer.join()
    assert stream.receipt.frames_stored == 1


def test_a_client_that_comes_back_while_it_is_sealed_waits_for_its_receipt(
    start, double, spec_of, frames_of, wait, proxy
):
    double.hold_seal = True
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        closer = threading.Thread(target=stream.close)
        closer.start()
        wait(lambda: daemon.server.snapshot()["acquisitions"][0]["state"] == "finishing")
        link.cut()
        link.mend()
        wait(lambda: daemon.count("client_connected") == 2)
        assert closer.is_alive()
        double.hold_seal = False
        closer.join()
    assert stream.receipt.frames_stored == 1


def test_who_does_not_come_back_in_time_finds_the_acquisition_sealed(
    start, double, spec_of, frames_of, wait, proxy
):
    daemon = start(doubled=double, resume_timeout_ms=50)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        wait(lambda: stream.watermark.stored == 1)
        link.cut()
        assert "no client came back" in daemon.event("acquisition_ended")["reason"]
        link.mend()
        with pytest.raises(errors.SessionLostError, match="no client came back"):
            stream.close()
    assert stream.receipt.frames_stored == 1


def test_a_stop_seals_what_waits_for_its_client(start, double, spec_of, frames_of, wait, proxy):
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint, reconnect_timeout_ms=100) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        wait(lambda: stream.watermark.stored == 1)
        link.cut()
        daemon.event("acquisition_detached")
        daemon.stop()
        with pytest.raises(errors.SessionLostError):
            stream.close()
    assert daemon.acquisitions[0].disk.sealed


def test_without_reconnecting_a_broken_link_ends_the_stream(start, double, spec_of, frames_of, proxy):
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint, reconnect_timeout_ms=0) as connection:
        stream = connection.acquire("a", spec_of())
        link.cut()
        with pytest.raises(errors.SessionLostError, match="closed the connection"):
            stream.close()
        with pytest.raises(errors.SessionLostError):
            connection.acquire("b", spec_of())


def test_a_connection_without_streams_comes_back_too(start, double, spec_of, frames_of, wait, proxy):
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection:
        link.cut()
        link.mend()
        wait(lambda: daemon.count("client_connected") == 2)
        with connection.acquire("a", spec_of()) as stream:
            stream.append(frames_of(1)[0])
    assert stream.receipt.frames_stored == 1


def test_a_client_that_leaves_in_good_order_ends_its_acquisition_at_once(start, double, raw, spec_of):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    client.open("a", spec_of())
    facts = {"code": "closed", "message": "bye", "fatal": True}
    client.send(client.connection.control(Kind.ERROR, facts))
    daemon.event("acquisition_ended")
    assert daemon.count("acquisition_detached") == 0


# Recovery at start
# ----------------------------------------------------------------------------------------------------


def test_others_are_served_while_a_store_is_recovered_and_its_client_waits(
    start, double, spec_of, frames_of, wait
):
    first = start(doubled=double)
    frames = frames_of(10)
    with sw.connect(first.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        appender(stream, frames[:5]).join()
        wait(lambda: stream.watermark.stored == 5)
        first.kill()
        slow, resume = threading.Event(), double.resume
        double.resume = classmethod(lambda cls, *given, **named: (slow.wait(), resume(*given, **named))[1])
        second = start(doubled=double, root=first.root, adopt=[first.root / "a.ome.zarr"])
        wait(lambda: second.count("client_connected") == 1)
        with sw.connect(second.ipc) as other:
            with other.acquire("b", spec_of()) as bystander:
                bystander.append(frames[0])
            with pytest.raises(errors.OutputExistsError, match="reopen=True"):
                other.acquire("a", spec_of())
        assert stream.reconnects == 0
        slow.set()
        appender(stream, frames[5:]).join()
    assert stream.receipt.frames_stored == 10
    assert bystander.receipt.frames_stored == 1


def test_nobody_answers_for_the_memory_of_what_is_recovered(
    start, pool, double, spec_of, frames_of, wait, monkeypatch
):
    """What a recovery takes is known when it is done, and then it is in the plan of memory, though it counts
    nothing against the budget."""
    first = start(doubled=double)
    with sw.connect(first.ipc, reconnect_timeout_ms=0) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        wait(lambda: stream.watermark.stored == 1)
        first.kill()
        with pytest.raises(errors.SessionLostError):
            stream.close()
    slow, resume, budget_bytes, has_bytes = threading.Event(), double.resume, 1 << 30, [1 << 30]
    double.resume = classmethod(lambda cls, *given, **named: (slow.wait(), resume(*given, **named))[1])
    monkeypatch.setattr(allocation_reserve, "resident_bytes", lambda: has_bytes[0])
    path = first.root / "a.ome.zarr"
    second = start(doubled=double, root=first.root, adopt=[path], memory_budget_bytes=budget_bytes)
    openings = second.server._openings
    wait(lambda: openings.busy)
    assert openings.beyond_plan() == 0
    slow.set()
    second.event("acquisition_recovered")
    limits = second.acquisitions[0].limits
    pool.keep_buffers(0, 0)  # of other tests
    has_bytes[0] = RUNTIME_BYTES + limits.acquisition_bytes - limits.ring_bytes
    assert openings.beyond_plan() <= 0
    assert second.server.snapshot()["memory"]["used_bytes"] == RUNTIME_BYTES


def test_a_store_that_a_dying_process_still_locks_is_waited_for(start, double, spec_of, frames_of, wait):
    first = start(doubled=double)
    frames = frames_of(4)
    resume, locked = double.resume, [True]

    def resume_when_unlocked(cls, *arguments, **more):
        if locked[0]:
            raise errors.LockedError("another writer holds this output")
        return resume(*arguments, **more)

    double.resume = classmethod(resume_when_unlocked)
    with sw.connect(first.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        appender(stream, frames[:2]).join()
        wait(lambda: stream.watermark.stored == 2)
        first.kill()
        second = start(doubled=double, root=first.root, adopt=[first.root / "a.ome.zarr"])
        wait(lambda: second.count("acquisition_recovery_failed") >= 3)
        with sw.connect(second.ipc) as other, pytest.raises(errors.LockedError):
            other.acquire("a", reopen=True)
        locked[0] = False
        appender(stream, frames[2:]).join()
    assert second.acquisitions[0].frames == pixels(frames)


def test_what_nobody_resumes_is_sealed(start, double, spec_of, frames_of, wait):
    first = start(doubled=double)
    with sw.connect(first.ipc, reconnect_timeout_ms=0) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        wait(lambda: stream.watermark.stored == 1)
        first.kill()
        with pytest.raises(errors.SessionLostError):
            stream.close()
    second = start(doubled=double, root=first.root, adopt=[first.root / "a.ome.zarr"], resume_timeout_ms=100)
    assert second.event("acquisition_ended")["frames_stored"] == 1
    assert second.server.snapshot()["memory"]["used_bytes"] == RUNTIME_BYTES


def test_a_store_that_cannot_be_recovered_is_told_and_hurts_nobody(start, double, spec_of, tmp_path):
    (tmp_path / "d0").mkdir()
    daemon = start(doubled=double, adopt=[tmp_path / "d0" / "gone.ome.zarr"])
    assert daemon.event("acquisition_recovery_failed")["code"] == "resume"
    with sw.connect(daemon.ipc) as connection:
        connection.acquire("a", spec_of()).close()


# Another client takes over
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", WAYS)
def test_another_client_goes_on_where_the_first_one_died(
    start, double, raw, spec_of, frames_of, wait, transport: str
):
    double.holding = True
    daemon = start(doubled=double)
    frames = frames_of(30)
    client = raw(daemon.ipc)
    counter, _ = client.open("a", spec_of())
    client.send(frames_message(counter, frames[:5]))
    wait(lambda: daemon.acquisitions[0].in_flight == 5)
    client.close()
    daemon.event("acquisition_detached")
    with sw.connect(daemon.ipc, transport=transport) as connection:
        with pytest.raises(errors.OutputExistsError, match="reopen=True"):
            connection.acquire("a", spec_of())
        with pytest.raises(errors.SpecError, match="another array"):
            connection.acquire("a", spec_of(count=50), reopen=True)
        with connection.acquire("a", reopen=True) as stream:
            assert stream.spec == spec_of()
            appender(stream, frames[5:]).join()
            assert stream.frames == 30
            double.holding = False  # only now: frames of the first client are released meanwhile
    assert daemon.acquisitions[0].frames == pixels(frames)
    assert daemon.event("acquisition_reopened")["client_epoch"] == 2
    assert stream.receipt.frames_received == 30


def test_whoever_was_replaced_is_fenced_off(start, double, spec_of, frames_of, wait, proxy):
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection, sw.connect(daemon.ipc) as other:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        with pytest.raises(errors.LockedError, match="a client is attached"):
            other.acquire("a", reopen=True)
        wait(lambda: stream.watermark.stored == 1)
        link.cut()
        daemon.event("acquisition_detached")
        successor = other.acquire("a", reopen=True)
        link.mend()
        with pytest.raises(errors.FencedError, match="another client has taken"):
            stream.close()
        successor.append(frames_of(1)[0])
        successor.close()
    assert daemon.acquisitions[0].submitted == [0, 1]
    assert successor.receipt.frames_stored == 2


def test_a_client_of_a_known_identity_is_back_before_its_broken_link_is_noticed(start, double, raw, spec_of):
    """Its HELLO counted as a message of the connection that was broken, and ended the acquisition. To the
    daemon one that comes over the same link is the same."""
    daemon = start(doubled=double)
    client = raw(daemon.tcp)
    client.open("a", spec_of())
    client.connection = Counter(CONNECTION)
    client.send(client.connection.control(Kind.HELLO, Hello("raw", "test", 1).to_body()))
    assert client.receive()[0].kind is Kind.WELCOME
    daemon.event("acquisition_detached")
    client.open("a", None, reopen=True)
    assert daemon.count("acquisition_ended") == 0


def test_whoever_reopens_without_a_token_counts_as_another_client(start, double, raw, spec_of, frames_of):
    """The earlier one would go on where it was, and take the new one's frames for its own."""
    daemon = start(doubled=double)
    first, second = raw(daemon.ipc), raw(daemon.ipc)
    counter, opened = first.open("a", spec_of())
    first.send(frames_message(counter, frames_of(2)))
    first.close()
    daemon.event("acquisition_detached")
    _, reopened = second.open("a", None, reopen=True)
    assert (opened["client_epoch"], reopened["client_epoch"]) == (1, 2)


def test_a_duplicate_that_is_found_while_the_client_is_away_ends_the_acquisition_once_somebody_is_there(
    start, double, raw, spec_of, frames_of, wait, tmp_path
):
    """``on_duplicate: fail``: frames that wait for room are given their places later."""
    daemon = start(
        StreamSettings("strict", spec_of(), None, WriteSettings(on_duplicate="fail")),
        root=tmp_path,
        doubled=double,
    )
    client = raw(daemon.ipc)
    counter, _ = client.open("a", None, stream="strict")
    client.send(frames_message(counter, frames_of(3)))
    client.close()
    daemon.event("acquisition_detached")
    (acquisition,) = daemon.acquisitions
    acquisition.duplicates = ErrorText(errors.DuplicateFrameError, "the place of frame 2 is taken")
    rounds = len(acquisition.ring_seen)
    wait(lambda: len(acquisition.ring_seen) > rounds + 1)
    # perhaps before its ring is made
    refused = pytest.raises(errors.DuplicateFrameError, match="frame 2 is taken")
    with sw.connect(daemon.ipc, transport="message") as connection, refused:
        connection.acquire("a", stream="strict", reopen=True).close()
    assert daemon.event("acquisition_ended")["reason"] == "the place of frame 2 is taken"


def test_a_store_is_reopened_from_disk(start, double, spec_of, frames_of, wait):
    first = start(doubled=double)
    frames = frames_of(4)
    with sw.connect(first.ipc, reconnect_timeout_ms=0) as connection:
        stream = connection.acquire("a", spec_of())
        appender(stream, frames[:2]).join()
        wait(lambda: stream.watermark.stored == 2)
        first.kill()
        with pytest.raises(errors.SessionLostError):
            stream.close()
    second = start(doubled=double, root=first.root)  # which was not told of it
    with sw.connect(second.ipc) as connection, connection.acquire("a", reopen=True) as stream:
        appender(stream, frames[2:]).join()
    assert second.acquisitions[-1].frames == pixels(frames)
    with sw.connect(second.ipc) as connection:
        for name in ("a", "never"):
            with pytest.raises(errors.ResumeError):
                connection.acquire(name, reopen=True)


def test_what_the_first_client_can_no_longer_send_holds_nothing_up(
    start, double, spec_of, frames_of, wait, raw
):
    """A power cut took frames in the middle."""
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, _ = client.open("a", spec_of())
    client.send(frames_message(counter, frames_of(6)))
    wait(lambda: daemon.acquisitions[0].stored_watermark == 6)
    daemon.kill()
    disk = double.disks[daemon.root / "a.ome.zarr"]
    del disk.place_of[2], disk.place_of[3]
    second = start(doubled=double, root=daemon.root, adopt=[daemon.root / "a.ome.zarr"])
    second.event("acquisition_recovered")
    with sw.connect(second.ipc) as connection, connection.acquire("a", reopen=True) as stream:
        stream.append(frames_of(1)[0])
        wait(lambda: (stream.watermark.stored, stream.watermark.durable) == (7, 7))
    assert disk.place_of[2] == disk.place_of[3] == -FRAME_NOT_HELD


# Overload, flush, memory
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", WAYS)
def test_drop_drops_the_newest_and_records_each(start, double, few_slots, frames_of, wait, transport: str):
    double.holding = True
    daemon = start(few_slots(overload="drop"), doubled=double)
    frames = frames_of(30)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        (acquisition,) = daemon.acquisitions
        for i, frame in enumerate(frames[:20]):
            stream.append(frame, frame_id=i, metadata={"exposure_time": i})
        wait(lambda: acquisition.next_sequence == 20)
        double.holding = False
        wait(lambda: stream.watermark.stored == 20)
        for i, frame in enumerate(frames[20:], start=20):
            while not stream._outbox._queue.free:
                wait(lambda: stream._outbox._queue.free)
            stream.append(frame, frame_id=i)
    assert (stream.frames, stream.frames_dropped) == (30, 8)
    assert sorted(acquisition.frames) == [*range(12), *range(20, 30)]
    records = np.concatenate(acquisition.descriptors)
    dropped = records[records["flags"] == FRAME_DROPPED]
    assert (
        dropped["frame_id"].tolist()
        == dropped["position"].tolist()
        == dropped["exposure_time"].tolist()
        == list(range(12, 20))
    )
    assert stream.receipt.frames_dropped == 8


def test_dropped_frames_survive_a_broken_link(start, double, few_slots, frames_of, wait, proxy):
    daemon = start(few_slots(overload="drop"), doubled=double)
    link = proxy(daemon.tcp)
    frames = frames_of(500)
    with (
        sw.connect(link.endpoint, transport="message") as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        link.cut()
        for frame in frames:
            stream.append(frame)
        assert stream.frames == 500
        link.mend()
    (acquisition,) = daemon.acquisitions
    assert sorted(acquisition.submitted) == list(range(500))
    assert stream.receipt.frames_dropped == stream.frames_dropped == 500 - len(acquisition.frames)


def test_fail_ends_the_stream_and_seals_what_it_sent(start, double, few_slots, frames_of, wait):
    double.holding = True
    daemon = start(few_slots(overload="fail"), doubled=double)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", stream="cam0")
        for frame in frames_of(12):
            stream.append(frame)
        for frame in frames_of(2):
            with pytest.raises(errors.OverloadError):
                stream.append(frame)
        stream.close()
    assert stream.receipt.frames_stored == stream.frames == 12
    assert daemon.acquisitions[0].disk.sealed


def test_a_client_without_end_to_its_dropped_frames_is_refused(start, double, raw, spec_of, frames_of):
    double.holding = True
    double.stored_watermark = 0
    client = raw(start(doubled=double).ipc)
    counter, _ = client.open("a", spec_of())
    none = np.broadcast_to(frames_of(1), (4096, 8, 12))
    for first in range(0, messages.MAX_PIXELLESS_FRAMES + 1, 4096):
        client.send(frames_message(counter, none, first=first, flags=FRAME_DROPPED))
    _, facts = client.receive_error(until=True)
    assert (facts["message"], facts["first"]) == ("more frames than credit", messages.MAX_PIXELLESS_FRAMES)


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": 4},
        {"flags": FRAME_SKIPPED, "position": -1},
        {"flags": FRAME_DROPPED, "position": -1},
        {"flags": FRAME_NOT_HELD, "position": -2},
        {"position": -1},
    ],
    ids=str,
)
def test_frames_without_pixels_follow_their_rules(
    start, double, raw, spec_of, frames_of, fields: dict[str, int]
):
    client = raw(start(doubled=double).ipc)
    counter, _ = client.open("a", spec_of())
    client.send(frames_message(counter, frames_of(1), **fields))
    _, facts = client.receive_error(until=True)
    assert facts["code"] in ("protocol", "frame_index")


def test_a_flush_asks_the_pipeline_and_waits_for_durable(start, double, spec_of, frames_of, wait):
    double.holding = True
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        (acquisition,) = daemon.acquisitions
        stream.append(frames_of(1)[0])
        with pytest.raises(errors.TimedOutError):
            stream.flush(timeout_s=0.01)
        wait(lambda: acquisition.flushes == 1)
        double.holding = False
        stream.flush()
        assert (stream.watermark.stored, stream.watermark.durable) == (1, 1)


def test_a_flush_survives_a_broken_link(start, double, spec_of, frames_of, wait, proxy):
    double.holding = True
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection, connection.acquire("a", spec_of()) as stream:
        stream.append(frames_of(1)[0])
        waiter = threading.Thread(target=stream.flush)
        waiter.start()
        (acquisition,) = daemon.acquisitions
        wait(lambda: acquisition.flushes == 1)
        link.cut()
        link.mend()
        wait(lambda: acquisition.flushes == 2)
        double.holding = False
        waiter.join()


def test_a_resume_waits_for_memory_rather_than_for_ever_losing_its_stream(
    start, double, few_slots, frames_of, wait, proxy
):
    """The old ring is still needed by the pipeline, and there is no room for a second one."""
    policy = few_slots()
    limits = Limits.derive(policy.spec, threads=2, ring_frames=12)
    double.holding = True
    daemon = start(policy, doubled=double, memory_budget_bytes=limits.memory_bytes + limits.ring_bytes // 2)
    link = proxy(daemon.tcp)
    frames = frames_of(20)
    with (
        sw.connect(link.endpoint, transport="shm") as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        camera = appender(stream, frames)
        wait(lambda: daemon.acquisitions[0].in_flight == 12)
        link.cut()
        link.mend()
        wait(lambda: daemon.count("client_connected") == 2)
        assert stream.reconnects == 0
        double.holding = False
        wait(lambda: stream.reconnects == 1)
        camera.join()
    assert daemon.acquisitions[0].frames == pixels(frames)


@pytest.mark.parametrize("recovered", [False, True])
def test_whoever_reopens_with_pixels_in_messages_needs_memory_for_the_messages(
    start, double, raw, spec_of, recovered: bool
):
    """Of an acquisition that had a ring in this daemon, and of one that a daemon before it had."""
    limits = Limits.derive(spec_of(), threads=2)
    daemon = start(doubled=double, memory_budget_bytes=limits.memory_bytes)
    client = raw(daemon.ipc)
    client.open("a", spec_of(), transport="shm")
    if recovered:
        daemon.kill()
        daemon = start(
            doubled=double,
            root=daemon.root,
            adopt=[daemon.root / "a.ome.zarr"],
            memory_budget_bytes=limits.memory_bytes,
        )
        daemon.event("acquisition_recovered")
    else:
        client.close()
        daemon.event("acquisition_detached")
    with sw.connect(daemon.ipc, transport="message") as connection, pytest.raises(errors.BudgetError):
        connection.acquire("a", reopen=True)
    with sw.connect(daemon.ipc, transport="shm") as connection, connection.acquire("a", reopen=True):
        assert daemon.server.snapshot()["memory"]["used_bytes"] == limits.memory_bytes


def test_further_fields_travel_with_each_frame(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    spec = spec_of().model_copy(update={"frame_fields": ("laser_power", "pressure")})
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec) as stream:
        stream.append(frames_of(1)[0], metadata={"pressure": 7, "delta_t": 1})
        with pytest.raises(errors.MetadataError, match="laser_power"):
            stream.append(frames_of(1)[0], metadata={"gain": 1})
    (records,) = daemon.acquisitions[0].descriptors
    assert np.isnan(records["further"][0, 0])
    assert (records["further"][0, 1], records["delta_t"][0]) == (7, 1)


def test_json_travels_with_each_frame(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    spec = spec_of().model_copy(update={"frame_fields": ("pressure",), "frame_json_bytes": 50})
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec) as stream:
        stream.append(frames_of(1)[0], metadata={"pressure": 7, "note": "µ", "at": [1, 2]})
        with pytest.raises(errors.MetadataError, match="no JSON"):
            stream.append(frames_of(1)[0], metadata={"note": float("nan")})
        stream.append_many(frames_of(2), metadata={"note": ["b", "c"]})
    records = np.concatenate(daemon.acquisitions[0].descriptors)
    texts = [text.decode() for text in records["json"].tolist()]
    assert texts == ['{"note":"µ","at":[1,2]}', '{"note":"b"}', '{"note":"c"}']
    assert records["further"][0, 0] == 7
