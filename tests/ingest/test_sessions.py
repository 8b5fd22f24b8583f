"""Client and server over real sockets, the pipeline replaced by a double: credit, acks, errors, ends."""

from __future__ import annotations

import inspect
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardwright as sw
from shardwright.acquire.acquisition import Acquisition, AcquisitionState
from shardwright.acquire.limits import Limits
from shardwright.ingest import StreamSettings
from shardwright.ingest.open_admission import Admission
from shardwright.model import errors
from shardwright.model.error_text import ErrorText
from shardwright.model.write_settings import WriteSettings
from shardwright.wire.messages import Kind

if TYPE_CHECKING:
    from shardwright.client import Stream

WAYS = [("ipc", "shm"), ("ipc", "message"), ("tcp", "shm"), ("tcp", "message")]


def append_until_refused(stream: Stream, frame: np.ndarray) -> None:
    """Like a camera that goes on; the daemon's error arrives soon."""
    for _ in range(6000):
        stream.append(frame)
        time.sleep(0.01)


def test_the_double_is_called_as_an_acquisition_is(double):
    """Its methods have the parameters of those that they stand for."""
    shared = [
        name
        for name, found in inspect.getmembers(double)
        if callable(found) and not name.startswith("_") and hasattr(Acquisition, name)
    ]
    assert len(shared) > 10
    for name in shared:
        own, real = (inspect.signature(getattr(each, name)).parameters for each in (double, Acquisition))
        assert [(p.name, p.kind) for p in own.values()] == [
            (p.name, p.kind) for p in real.values() if p.name in own or p.default is p.empty
        ], name


@pytest.mark.parametrize(("endpoint", "transport"), WAYS)
def test_frames_arrive_whole_and_in_their_places(
    start, double, spec_of, frames_of, endpoint: str, transport: str
):
    daemon = start(doubled=double)
    frames = frames_of(500)
    with (
        sw.connect(getattr(daemon, endpoint), transport=transport) as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        assert stream.transport == transport
        for i, frame in enumerate(frames):
            stream.append(frame, frame_id=i, metadata={"exposure_time": i / 10, "position_z": 2})
    (acquisition,) = daemon.acquisitions
    assert acquisition.frames == {i: frame.tobytes() for i, frame in enumerate(frames)}
    assert (stream.receipt.frames_received, stream.receipt.frames_stored) == (500, 500)
    assert stream.receipt.path == stream.path == str(daemon.root / "a.ome.zarr")
    descriptors = np.concatenate(acquisition.descriptors)
    assert descriptors["frame_id"].tolist() == list(range(500))
    np.testing.assert_array_equal(descriptors["exposure_time"], np.arange(500) / 10)
    assert np.isnan(descriptors["delta_t"]).all()
    assert (descriptors["position_z"] == 2).all()
    assert (np.diff(descriptors["monotonic_ns"]) >= 0).all()
    assert acquisition.closed


def test_auto_takes_shared_memory_on_one_machine_and_messages_where_it_is_not_offered(start, double, spec_of):
    offering, silent = start(doubled=double), start(doubled=double, ring_socket=None)
    for daemon, expected in ((offering, "shm"), (silent, "message")):
        with sw.connect(daemon.tcp) as connection, connection.acquire("a", spec_of()) as stream:
            assert stream.transport == expected
    with pytest.raises(errors.ConfigError, match="shared memory cannot be used"):
        sw.connect(silent.tcp, transport="shm")


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_append_waits_while_the_daemon_needs_every_slot(
    start, double, spec_of, frames_of, wait, tmp_path, transport: str
):
    double.holding = True
    daemon = start(StreamSettings("cam0", spec_of(chunk=1), 6, WriteSettings()), doubled=double)
    frames = frames_of(20)
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        appender = threading.Thread(target=lambda: [stream.append(frame) for frame in frames])
        appender.start()
        (acquisition,) = daemon.acquisitions
        wait(lambda: acquisition.in_flight == 6)
        assert stream.frames == 6
        assert appender.is_alive()
        double.holding = False
        appender.join()
    assert acquisition.frames == {i: frame.tobytes() for i, frame in enumerate(frames)}


def test_heartbeats_go_on_while_the_user_does_nothing(start, double, spec_of, frames_of, wait):
    daemon = start(doubled=double, heartbeat_ms=20)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        stream.append(frames_of(1)[0])
        wait(lambda: stream.watermark.durable == 1)  # nothing more is under way
        (client,) = daemon.server._connections
        heard: set[float] = set()
        wait(lambda: heard.add(client.last_heard_s) or len(heard) > 5, "heartbeats")
        stream.append(frames_of(1)[0])
    assert stream.receipt.frames_received == 2
    assert daemon.count("acquisition_detached") == 0


def test_a_lone_frame_is_sent_without_waiting_for_its_batch(start, double, spec_of, frames_of, wait):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        stream.append(frames_of(1)[0])
        wait(lambda: daemon.acquisitions[0].frames)
        wait(lambda: (stream.watermark.stored, stream.watermark.durable) == (1, 1))


def test_several_acquisitions_on_one_connection_at_once_and_one_after_another(
    start, double, spec_of, frames_of
):
    daemon = start(doubled=double)
    frames = frames_of(60)
    with sw.connect(daemon.ipc) as connection:
        with connection.acquire("a", spec_of()) as a, connection.acquire("b", spec_of()) as b:
            for frame in frames:
                a.append(frame)
                b.append(frame + 1)
        with connection.acquire("c", spec_of()) as c:
            c.append(frames[0])
    assert [stream.receipt.frames_stored for stream in (a, b, c)] == [60, 60, 1]
    assert daemon.acquisitions[1].frames == {i: (frame + 1).tobytes() for i, frame in enumerate(frames)}


def test_several_threads_may_append(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    frames = frames_of(400)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        threads = [
            threading.Thread(
                target=lambda k=k: [stream.append(frames[i], frame_id=i) for i in range(k, 400, 4)]
            )
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert daemon.acquisitions[0].frames == {i: frame.tobytes() for i, frame in enumerate(frames)}


# Frames that the client refuses
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "options", "expected"),
    [
        (np.zeros((12, 8), "u2"), {}, errors.FrameShapeError),
        (np.zeros((8, 12, 1), "u2"), {}, errors.FrameShapeError),
        (np.zeros((8, 12), "u1"), {}, errors.FrameDtypeError),
        (np.zeros((8, 12), ">u2"), {}, errors.FrameDtypeError),
        (np.zeros((8, 12), "u2"), {"index": (10,)}, errors.FrameIndexError),
        (np.zeros((8, 12), "u2"), {"index": (0, 0)}, errors.FrameIndexError),
        (np.zeros((8, 12), "u2"), {"frame_id": 10}, errors.FrameIndexError),
        (np.zeros((8, 12), "u2"), {"frame_id": -1}, errors.FrameIndexError),
        (np.zeros((8, 12), "u2"), {"metadata": {"gain": 1}}, errors.MetadataError),
        (np.zeros((8, 12), "u2"), {"metadata": {"delta_t": "soon"}}, errors.MetadataError),
    ],
)
def test_a_wrong_frame_is_refused_and_the_stream_goes_on(
    start, double, spec_of, frames_of, frame, options, expected
):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of(count=10)) as stream:
        stream.append(frames_of(1)[0])
        for _ in range(100):  # more often than there are slots
            with pytest.raises(expected):
                stream.append(frame, **options)
        stream.append(frames_of(1)[0])
    assert sorted(daemon.acquisitions[0].frames) == [0, 1]


@pytest.mark.parametrize("dtype", ["uint8", "float32", ">u2"])
def test_a_wrong_dtype_is_told_by_its_name(start, double, spec_of, dtype: str):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of(count=10)) as stream:
        for append, frame in (
            (stream.append, np.zeros((8, 12), dtype)),
            (stream.append_many, np.zeros((1, 8, 12), dtype)),
        ):
            with pytest.raises(errors.FrameDtypeError, match=f"expected uint16; got {dtype}$"):
                append(frame)


def test_the_client_and_the_writer_of_this_process_refuse_a_frame_with_the_same_words(
    start, double, spec_of, tmp_path
):
    fits, spec = np.zeros((8, 12), np.uint16), spec_of(count=10)
    wrong = [
        (fits[1:], {}),
        (fits.astype(np.uint8), {}),
        (fits, {"index": (0,), "frame_id": -1}),
        (fits, {"index": (10,)}),
        (fits, {"frame_id": 10}),
        (fits, {"metadata": {"gain": 1}}),
        (fits, {"metadata": {"delta_t": "soon"}}),
    ]
    daemon = start(doubled=double)
    with (
        sw.connect(daemon.ipc) as connection,
        connection.acquire("a", spec) as stream,
        sw.create(tmp_path / "own.ome.zarr", spec) as writer,
    ):
        for frame, options in wrong:
            with pytest.raises(errors.ShardwrightError) as of_client:
                stream.append(frame, **options)
            with pytest.raises(errors.ShardwrightError) as of_writer:
                writer.append(frame, **options)
            assert (type(of_client.value), str(of_client.value)) == (
                type(of_writer.value),
                str(of_writer.value),
            )


def test_frames_beyond_the_array_are_refused_when_counted(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of(count=2)) as stream:
        for frame in frames_of(2):
            stream.append(frame)
        with pytest.raises(errors.FrameIndexError, match=r"the image is full.*expected at most 2 frames"):
            stream.append(frames_of(1)[0])
    assert stream.receipt.frames_received == 2


def test_index_goes_before_frame_id(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of(count=10)) as stream:
        stream.append(frames_of(1)[0], index=[7], frame_id=10**6)
    (descriptors,) = daemon.acquisitions[0].descriptors
    assert (descriptors["position"].tolist(), descriptors["frame_id"].tolist()) == ([7], [10**6])


# What the daemon refuses
# ----------------------------------------------------------------------------------------------------


def test_refusals_name_their_reason_and_leave_the_connection_usable(start, double, spec_of, frames_of):
    fixed = StreamSettings("cam0", spec_of(), None, WriteSettings())
    daemon = start(fixed, doubled=double)
    spec = spec_of()
    with sw.connect(daemon.ipc) as connection:
        for name in ("../out", "a/b", "", ".hidden", "x" * 200):
            with pytest.raises(errors.InvalidNameError):
                connection.acquire(name, spec)
        with pytest.raises(errors.UnknownStreamError, match="expected one of cam0; got 'cam9'"):
            connection.acquire("a", stream="cam9")
        with pytest.raises(errors.SpecError, match="has its own array"):
            connection.acquire("a", spec, stream="cam0")
        with pytest.raises(errors.SpecError):
            connection.acquire("a")
        with connection.acquire("a", stream="cam0") as stream:
            stream.append(frames_of(1)[0])
            with pytest.raises(errors.OutputExistsError):
                connection.acquire("a", stream="cam0")
        with pytest.raises(errors.OutputExistsError):
            connection.acquire("a", stream="cam0")
        assert stream.spec == spec
        assert stream.receipt.frames_stored == 1
    assert daemon.count("acquisition_refused") == 10


def test_the_memory_budget_and_the_number_of_sessions_are_shared(start, double, spec_of):
    limits = Limits.derive(spec_of(), threads=2)
    daemon = start(doubled=double, memory_budget_bytes=limits.memory_bytes + limits.acquisition_bytes + 5)
    with sw.connect(daemon.ipc) as one, sw.connect(daemon.ipc) as other:
        with (
            one.acquire("a", spec_of()),
            other.acquire("b", spec_of()),
            pytest.raises(errors.BudgetError, match="expected at most 5 bytes"),
        ):
            one.acquire("c", spec_of())
        one.acquire("c", spec_of()).close()
    few = start(doubled=double, max_sessions=1)
    with (
        sw.connect(few.ipc) as connection,
        connection.acquire("a", spec_of()),
        pytest.raises(errors.BudgetError, match="at most 1"),
    ):
        connection.acquire("b", spec_of())


def test_client_specs_can_be_forbidden(start, double, spec_of):
    daemon = start(doubled=double, allow_client_specs=False)
    with (
        sw.connect(daemon.ipc) as connection,
        pytest.raises(errors.SpecError, match="takes no arrays from clients"),
    ):
        connection.acquire("a", spec_of())


def test_a_frame_longer_than_a_message_is_refused_for_messages_only(start, double, spec_of, frames_of):
    daemon = start(doubled=double, max_message_bytes=100_000)
    big = spec_of(shape=(300, 300))
    with (
        sw.connect(daemon.tcp, transport="message") as connection,
        pytest.raises(errors.BudgetError, match="one frame does not fit"),
    ):
        connection.acquire("a", big)
    with sw.connect(daemon.tcp, transport="shm") as connection, connection.acquire("a", big) as stream:
        stream.append(frames_of(1, (300, 300))[0])
    assert stream.receipt.frames_stored == 1


def test_message_parts_stay_below_the_limit(start, double, spec_of, frames_of):
    daemon = start(doubled=double, max_message_bytes=20_000)
    frames = frames_of(100, (64, 64))
    with (
        sw.connect(daemon.tcp, transport="message") as connection,
        connection.acquire("a", spec_of(shape=(64, 64))) as stream,
    ):
        for frame in frames:
            stream.append(frame)
    assert daemon.acquisitions[0].frames == {i: frame.tobytes() for i, frame in enumerate(frames)}


# Ends
# ----------------------------------------------------------------------------------------------------


def test_an_exception_in_the_body_seals_what_arrived_and_goes_on(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", spec_of())

        def body() -> None:
            with stream:
                stream.append(frames_of(1)[0])
                raise RuntimeError("the camera fell over")

        with pytest.raises(RuntimeError, match="the camera fell over"):
            body()
    assert stream.receipt.frames_stored == 1


def test_a_failed_acquisition_is_told_with_its_own_error(start, double, spec_of, frames_of):
    double.error_after = 3
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", spec_of())
        with pytest.raises(errors.ShardwrightError, match="the disk of this test broke"):
            append_until_refused(stream, frames_of(1)[0])
        with pytest.raises(errors.ShardwrightError, match="the disk of this test broke"):
            stream.close()
        stream.close()
        double.error_after = None
        with connection.acquire("b", spec_of()) as good:
            good.append(frames_of(1)[0])
    assert good.receipt.frames_stored == 1
    assert daemon.event("acquisition_failed")["reason"] == "the disk of this test broke"


def test_a_closed_stream_takes_no_frames(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection:
        with (
            connection.acquire("a", spec_of()) as stream,
            pytest.raises(errors.SessionLostError, match="no receipt"),
        ):
            _ = stream.receipt
        with pytest.raises(errors.ClosedError):
            stream.append(frames_of(1)[0])
    with pytest.raises(errors.ClosedError):
        connection.acquire("b", spec_of())


def test_a_stopping_daemon_seals_first_and_then_says_so(start, double, spec_of, frames_of, wait):
    double.hold_seal = True
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        wait(lambda: stream.watermark.stored)
        daemon.ask_to_stop()
        daemon.event("draining")
        wait(lambda: not daemon.acquisitions[0].waits_for_room)
        with pytest.raises(errors.SessionLostError, match="stopping"):
            connection.acquire("b", spec_of())
        with pytest.raises(errors.SessionLostError, match="stopping"):
            sw.connect(daemon.ipc)
        double.hold_seal = False
        with pytest.raises(errors.SessionLostError, match="the daemon is stopping"):
            append_until_refused(stream, frames_of(1)[0])
        assert stream.receipt.frames_stored >= 1
        with pytest.raises(errors.SessionLostError):
            stream.close()
    daemon.stop()
    assert daemon.acquisitions[0].closed


@pytest.mark.parametrize("leaves_something", [True, False])
def test_a_stop_names_the_stores_that_wait_for_recovery_and_no_other(
    start, double, spec_of, frames_of, leaves_something: bool
):
    """One may fail while it is stopped, and be sealed whole nevertheless."""
    double.hold_seal, double.left_to_recovery = True, leaves_something
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        daemon.ask_to_stop()
        daemon.event("draining")
        (acquisition,) = daemon.acquisitions
        acquisition.why = ErrorText(errors.StorageFullError, "the disk of this test is full")
        acquisition.state = AcquisitionState.FAILED
        with pytest.raises(errors.StorageFullError):
            stream.close()
    daemon.stop()
    assert daemon.server.left_to_recovery == ([acquisition.path] if leaves_something else [])


def test_a_store_that_was_deleted_is_not_left_to_recovery(start, spec_of, frames_of):
    """Nor is anybody sent to look for its missing frames."""
    daemon = start()
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", spec_of())
        for frame in frames_of(3):
            stream.append(frame)
        stream.flush()
        shutil.rmtree(stream.path)
        daemon.stop()
        with pytest.raises(errors.StoreGoneError):
            stream.close()
    assert "was deleted" in daemon.event("acquisition_failed")["reason"]
    told = daemon.event("acquisition_incomplete")
    assert told["frames_lost"] == 3
    assert "hint" not in told
    assert daemon.server.left_to_recovery == []


def test_an_exception_in_the_loop_leaves_run_and_the_client_hears_of_it(start, double, spec_of, frames_of):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc, reconnect_timeout_ms=0) as connection:
        stream = connection.acquire("a", spec_of())
        daemon.acquisitions[0].poll = lambda: 1 / 0
        with pytest.raises(errors.SessionLostError):
            append_until_refused(stream, frames_of(1)[0])
        with pytest.raises(errors.SessionLostError):
            stream.close()
    with pytest.raises(ZeroDivisionError):
        daemon.stop()
    daemon._error = None


def test_nobody_there_is_said_after_the_timeout(tmp_path):
    with pytest.raises(errors.SessionLostError, match="no daemon answered"):
        sw.connect(f"ipc://{tmp_path}/nobody.sock", timeout_ms=50)
    with pytest.raises(errors.ConfigError, match="not an endpoint"):
        sw.connect("nonsense")


def test_an_address_that_is_not_this_machines_is_told_with_what_to_do(start, double):
    with pytest.raises(errors.ConfigError, match=r"cannot bind tcp://192\.0\.2\.1:5555; .*see `ip address`"):
        start(doubled=double, endpoints=("tcp://192.0.2.1:5555",))


def test_a_live_socket_is_not_taken_over_and_a_dead_one_is(start, double, spec_of, wait, tmp_path):
    import socket

    first = start(doubled=double)
    with pytest.raises(errors.ConfigError, match="in use"):
        start(doubled=double, endpoints=(first.ipc,))
    with pytest.raises(errors.ConfigError, match="in use"):
        start(doubled=double, ring_socket=first.root / "ring.sock")
    dead = tmp_path / "new" / "dead.sock"
    dead.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    second = start(doubled=double, endpoints=(f"ipc://{dead}",), output_root=tmp_path)
    with sw.connect(f"ipc://{dead}") as connection:
        connection.acquire("a", spec_of()).close()
    wait(lambda: second.count("acquisition_ended") == 1)  # told after the receipt was sent
    assert (first.root.stat().st_mode & 0o777) == 0o700


def test_clients_are_welcomed_and_wait_while_the_daemon_is_not_ready_to_take_frames(
    start, double, spec_of, frames_of
):
    """Its kernels are being compiled: longer than a client waits for an answer, and no reason to give up."""
    daemon = start(doubled=double, held=True)
    with sw.connect(daemon.ipc, timeout_ms=5000) as connection, ThreadPoolExecutor(1) as threads:
        assert connection.daemon.session_timeout_ms > 0, "welcomed"
        opening = threads.submit(connection.acquire, "a", spec_of())
        for _ in range(3):  # a request that comes later is heard: the loop goes round
            with sw.connect(daemon.ipc, timeout_ms=5000):
                assert not opening.done()
        assert not daemon.acquisitions
        daemon.server.let_go()
        with opening.result(30) as stream:
            stream.append(frames_of(1)[0])
    assert stream.receipt.frames_stored == 1


def test_frames_are_taken_while_an_acquisition_is_planned(
    start, double, raw, spec_of, frames_of, wait, monkeypatch
):
    """That of thousands of images takes seconds. Of one client one is planned at a time."""
    may_go_on, planned, plan = threading.Event(), [], Admission.plan

    def plan_slowly(admission, request, **options):
        planned.append(request.name)
        assert may_go_on.wait(60)
        return plan(admission, request, **options)

    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        monkeypatch.setattr(Admission, "plan", plan_slowly)
        client = raw(daemon.ipc)
        for name in ("plate", "plate2"):
            client.ask_to_open(name, spec_of())
        wait(lambda: planned)
        stream.append(frames_of(1)[0])
        stream.flush()
        assert planned == ["plate"]
        may_go_on.set()
        answers = [client.receive() for _ in range(2)]
    assert [header.kind for header, _ in answers] == [Kind.OPENED] * 2
    assert planned == ["plate", "plate2"]


def test_a_defect_in_a_plan_refuses_its_request_alone(start, double, spec_of, monkeypatch):
    plan = Admission.plan

    def fail(admission, request, **options):
        return plan(admission, request, **options) if request.name != "bad" else 1 / 0

    monkeypatch.setattr(Admission, "plan", fail)
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection:
        with pytest.raises(errors.ShardwrightError, match="division by zero"):
            connection.acquire("bad", spec_of())
        connection.acquire("good", spec_of()).close()
    assert "ZeroDivisionError" in daemon.event("acquisition_open_failed")["exception"]


def test_a_daemon_that_is_stopped_before_it_is_ready_refuses_who_waits(
    start, double, spec_of, wait, tmp_path
):
    daemon = start(doubled=double, held=True, adopt=[tmp_path / "a.ome.zarr"])
    with sw.connect(daemon.ipc) as connection, ThreadPoolExecutor(1) as threads:
        opening = threads.submit(connection.acquire, "b", spec_of())
        wait(lambda: daemon.server._openings._pending)  # else nobody waits yet, and it ends unheard
        daemon.ask_to_stop()
        with pytest.raises(errors.SessionLostError):
            opening.result(30)
    daemon.stop()
    assert not daemon.acquisitions, "nothing was begun, nothing taken up"


@pytest.mark.parametrize("how", ["made", "recovered"])
def test_another_low_water_holds_for_what_is_being_made_or_recovered(
    start, double, raw, spec_of, wait, monkeypatch, how: str
):
    """And for those that are open."""
    daemon = start(doubled=double)
    raw(daemon.ipc).open("open", spec_of())
    begun, may_go_on, make = threading.Event(), threading.Event(), double.__init__

    def makes_slowly(*arguments, **options):
        begun.set()
        assert may_go_on.wait(60)
        make(*arguments, **options)

    monkeypatch.setattr(double, "__init__", makes_slowly)
    if how == "recovered":
        daemon.kill()
        daemon = start(doubled=double, root=daemon.root, adopt=[daemon.root / "open.ome.zarr"])
    else:
        raw(daemon.ipc).ask_to_open("made", spec_of())
    assert begun.wait(60)
    daemon.server.set_low_water(9)
    may_go_on.set()
    there = 1 if how == "recovered" else 2
    wait(lambda: [each.settings.low_water_bytes for each in daemon.acquisitions] == [9] * there)
