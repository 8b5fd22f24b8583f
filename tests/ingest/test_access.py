"""Who gets in over TCP, who is told what, and that those who do not get in cost the others nothing."""

from __future__ import annotations

import contextlib
import ctypes
import grp
import os
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq
from tests.harness.json_process import TIMEOUT_S, wait_for

import shardwright as sw
from shardwright.client.curve import DAEMON_KEY_VARIABLE, SECRET_KEY_VARIABLE, keys_for, make_key_pair
from shardwright.client.daemon_socket import DaemonSocket
from shardwright.ingest.opening import Openings
from shardwright.ingest.transport import connection_guard, inbound_byte_limit
from shardwright.ingest.transport.allow_list import AllowList
from shardwright.ingest.transport.client_state import Client
from shardwright.ingest.transport.connection_guard import ConnectionGuard
from shardwright.ingest.transport.inbound_byte_limit import InboundByteLimit
from shardwright.model import errors
from shardwright.wire.controls import Hello
from shardwright.wire.descriptor import DESCRIPTOR
from shardwright.wire.messages import BATCH_PRELUDE, CONNECTION, DTYPE_CODE, Counter, Kind

from .keys import Lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.ingest_daemon import IngestDaemon

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "keys")


@pytest.fixture
def guarded(start, double, lab: Lab) -> Callable[..., IngestDaemon]:
    """Starts a daemon that lets only listed keys in over TCP, and anybody over ipc."""
    return lambda **changes: start(doubled=double, access=lab.access(), **changes)


def address_of(daemon: IngestDaemon) -> tuple[str, int]:
    host, port = daemon.tcp.removeprefix("tcp://").rsplit(":", 1)
    return host, int(port)


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_a_listed_key_gets_in_and_is_called_by_its_name(
    guarded, lab: Lab, spec_of, frames_of, transport: str
):
    curve = lab.make("camera-1")
    daemon = guarded()
    with (
        sw.connect(daemon.tcp, curve=curve, transport=transport) as connection,
        connection.acquire("a", spec_of()) as stream,
    ):
        for frame in frames_of(20):
            stream.append(frame)
    assert stream.receipt.frames_stored == 20
    assert daemon.event("client_connected")["client_key"] == "camera-1"


def test_local_clients_need_no_keys_and_keys_are_not_looked_at_for_ipc(
    guarded, lab: Lab, spec_of, tmp_path: Path
):
    daemon = guarded()
    with sw.connect(daemon.ipc, curve=sw.Curve(tmp_path / "none", tmp_path / "none")) as connection:
        connection.acquire("a", spec_of()).close()
    assert "client_key" not in daemon.event("client_connected")


def test_keys_may_come_from_the_environment(guarded, lab: Lab, monkeypatch):
    curve = lab.make("camera")
    daemon = guarded()
    monkeypatch.setenv(SECRET_KEY_VARIABLE, str(curve.secret_key))
    with pytest.raises(errors.ConfigError, match="only one of the two keys is in the environment"):
        sw.connect(daemon.tcp)
    monkeypatch.setenv(DAEMON_KEY_VARIABLE, str(curve.daemon_key))
    sw.connect(daemon.tcp).close()


def test_a_key_that_is_not_listed_is_told_so_at_once_and_named_in_an_event(guarded, lab: Lab):
    curve = lab.make("stranger", listed=False)
    daemon = guarded()
    with pytest.raises(errors.AccessError, match="does not know this client's key") as caught:
        sw.connect(daemon.tcp, curve=curve, timeout_ms=60_000)
    refused = daemon.event("client_refused")
    assert refused["address"] == "127.0.0.1"
    assert refused["public_key"] == caught.value.got


def test_no_keys_for_a_daemon_that_demands_them_and_the_other_way_round(guarded, start, double, lab: Lab):
    curve = lab.make("camera")
    with pytest.raises(errors.AccessError, match=r"If it demands keys, give curve=Curve\(\.\.\.\)"):
        sw.connect(guarded().tcp, timeout_ms=60_000)
    with pytest.raises(errors.AccessError, match=r"one with ingest\.insecure takes no keys"):
        sw.connect(start(doubled=double).tcp, curve=curve, timeout_ms=60_000)


def test_the_key_of_another_daemon_is_told_as_such(guarded, lab: Lab, tmp_path: Path):
    lab.make("camera")
    other = Lab(tmp_path / "other")
    wrong = sw.Curve(lab.folder / "camera.key_secret", other.rig)
    with pytest.raises(errors.AccessError, match="Check the daemon's public key"):
        sw.connect(guarded().tcp, curve=wrong, timeout_ms=60_000)


def test_the_list_is_read_again_while_the_daemon_runs(guarded, lab: Lab):
    daemon = guarded()
    curve = lab.make("late")
    with pytest.raises(errors.AccessError):
        sw.connect(daemon.tcp, curve=curve)
    assert daemon.server.reload_clients() == {"added": ["late"], "removed": []}
    sw.connect(daemon.tcp, curve=curve).close()
    lab.unlist("late")
    assert daemon.server.reload_clients() == {"added": [], "removed": ["late"]}
    with pytest.raises(errors.AccessError):
        sw.connect(daemon.tcp, curve=curve)


def test_who_is_taken_off_the_list_is_cut_and_may_go_on_when_it_is_back(
    guarded, lab: Lab, spec_of, frames_of, wait
):
    """Its acquisition waits for it, as after any lost connection; another client goes on undisturbed."""
    daemon = guarded()
    curves = [lab.make(name) for name in ("kept", "cut")]
    daemon.server.reload_clients()
    kept, cut = (sw.connect(daemon.tcp, curve=curve) for curve in curves)
    streams = [connection.acquire(name, spec_of()) for connection, name in ((kept, "kept"), (cut, "cut"))]
    frames = frames_of(6)
    for stream in streams:
        stream.append(frames[0])
    lab.unlist("cut")
    daemon.server.reload_clients()
    assert daemon.event("client_lost")["client_key"] == "cut"
    assert daemon.event("acquisition_detached")["reason"] == "its key was taken off the list"
    wait(lambda: daemon.count("client_refused"))
    (lab.clients / "cut.key").write_bytes((lab.folder / "cut.key").read_bytes())
    daemon.server.reload_clients()
    for stream in streams:
        for frame in frames[1:]:
            stream.append(frame)
        stream.close()
        assert stream.receipt.frames_stored == 6
    kept.close()
    cut.close()
    assert daemon.count("client_lost") == 1


def test_a_client_that_stays_off_the_list_ends_with_an_access_error(guarded, lab: Lab, spec_of, frames_of):
    curve = lab.make("cut")
    daemon = guarded()
    connection = sw.connect(daemon.tcp, curve=curve)
    stream = connection.acquire("a", spec_of())
    lab.unlist("cut")
    daemon.server.reload_clients()
    wait_for(lambda: connection._io._refusal, "a refusal")
    connection._io._reconnect_timeout_ms = 1  # only now: time that is over before a refusal has another error
    with pytest.raises(errors.AccessError):  # noqa: PT012 - the append that comes after the end
        while True:
            stream.append(frames_of(1)[0])
    with pytest.raises(errors.AccessError):
        connection.acquire("b", spec_of())


def test_what_is_sent_when_the_handshake_has_failed_raises_the_refusal(guarded, lab: Lab):
    """ZeroMQ gives such a connection up: nothing can be sent any more, and it is not the network's fault."""
    curve = lab.make("stranger", listed=False)
    daemon = guarded()
    with zmq.Context() as context:
        daemon_socket = DaemonSocket(context, daemon.tcp, "test", keys_for(daemon.tcp, curve))
        daemon.event("client_refused")
        with pytest.raises(errors.AccessError, match="does not know this client's key"):  # noqa: PT012 - the one that comes too late
            while True:
                daemon_socket.control(Kind.HEARTBEAT)
                time.sleep(0.001)
        daemon_socket.close(0)


def test_a_list_that_cannot_be_read_leaves_the_old_one(guarded, lab: Lab):
    curve = lab.make("camera")
    daemon = guarded()
    for name, content, says in (
        ("torn.key", "public-key = x", "holds no usable"),
        ("no name.key", "", "does not name a client"),
    ):
        (lab.clients / name).write_text(content)
        with pytest.raises(errors.ConfigError, match=says):
            daemon.server.reload_clients()
        (lab.clients / name).unlink()
    lab.clients.chmod(0o777)
    with pytest.raises(errors.ConfigError, match="every user of this machine may add keys"):
        daemon.server.reload_clients()
    sw.connect(daemon.tcp, curve=curve).close()


def test_who_is_taken_off_a_list_that_cannot_be_read_is_cut_all_the_same(guarded, lab: Lab, wait):
    """A file that somebody has put there by mistake keeps nobody in. A client whose own file is half written
    stays."""
    curves = {name: lab.make(name) for name in ("kept", "torn", "cut", "changed")}
    daemon = guarded()
    connections = {
        name: sw.connect(daemon.tcp, curve=curve, reconnect_timeout_ms=0) for name, curve in curves.items()
    }
    lab.unlist("cut")
    (lab.clients / "torn.key").write_text("public-k")
    other, _ = make_key_pair(lab.folder, "other")
    (lab.clients / "changed.key").write_bytes(other.read_bytes())
    (lab.clients / "mistake.key").write_text("this is no key")
    with pytest.raises(errors.ConfigError, match=r"mistake\.key holds no public-key"):
        daemon.server.reload_clients()
    wait(lambda: daemon.count("client_lost") == 2)
    assert sorted(facts["client_key"] for event, facts in daemon.events if event == "client_lost") == [
        "changed",
        "cut",
    ]
    for name in ("cut", "changed"):
        with pytest.raises(errors.AccessError):
            sw.connect(daemon.tcp, curve=curves[name])
    sw.connect(daemon.tcp, curve=curves["torn"]).close()
    for connection in connections.values():
        connection.close()


def test_only_key_files_are_read_and_one_key_has_one_name(lab: Lab):
    lab.make("camera")
    (lab.clients / "copy.key").write_bytes((lab.folder / "camera.key").read_bytes() + b"\n")
    for name in ("README", ".camera.key.swp", ".hidden.key", "camera.key_secret"):
        (lab.clients / name).write_text("anything")
    assert sorted(AllowList.read(lab.clients).names.values()) == ["camera"]


def test_one_client_cannot_take_all_sessions(guarded, lab: Lab, spec_of):
    """Connections of one key count together, and so does what it left behind; another client still gets
    one."""
    curves = [lab.make(name) for name in ("greedy", "modest")]
    daemon = guarded(max_sessions_per_client=2)
    first, second = (sw.connect(daemon.tcp, curve=curves[0], reconnect_timeout_ms=0) for _ in range(2))
    with pytest.raises(errors.BudgetError, match="too many connections with one key"):
        sw.connect(daemon.tcp, curve=curves[0])
    streams = [connection.acquire(name, spec_of()) for connection, name in ((first, "a"), (second, "b"))]
    for connection in (first, second):
        with pytest.raises(errors.BudgetError, match="too many acquisitions of one client"):
            connection.acquire("c", spec_of())
    with sw.connect(daemon.tcp, curve=curves[1]) as other:
        other.acquire("d", spec_of()).close()
    streams[0].close()
    first.acquire("c", spec_of()).close()
    second.close()
    first.close()


def test_one_connection_without_keys_is_one_client(start, double, spec_of):
    daemon = start(doubled=double, max_sessions_per_client=1)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()):
        with pytest.raises(errors.BudgetError, match="too many acquisitions of one client"):
            connection.acquire("b", spec_of())
        with sw.connect(daemon.ipc) as other:
            other.acquire("b", spec_of()).close()


def test_requests_that_wait_are_bounded(start, double, raw, spec_of, monkeypatch):
    monkeypatch.setattr("shardwright.ingest.opening.MAX_WAITING", 0)
    client = raw(start(doubled=double).ipc)
    client.ask_to_open("a", spec_of())
    _, problem = client.receive_error()
    assert (problem["code"], problem["message"], problem["request"]) == (
        "budget",
        "too many requests at once",
        1,
    )


def test_an_acquisition_that_needs_too_many_open_files_is_refused(start, double, spec_of):
    daemon = start(doubled=double, max_descriptors=4)
    with (
        sw.connect(daemon.ipc) as connection,
        pytest.raises(errors.BudgetError, match=r"cannot open enough files.*at most 4 descriptors"),
    ):
        connection.acquire("a", spec_of())


# Strangers
# ----------------------------------------------------------------------------------------------------


def is_closed(connection: socket.socket) -> bool:
    """Waits for the end of a connection, half a minute at most."""
    connection.settimeout(30)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_the_oldest_stranger_goes_when_there_are_too_many(start, double, spec_of, frames_of, monkeypatch):
    """With a minute for handshakes, only the connection_guard can have ended them."""
    monkeypatch.setattr(connection_guard, "MAX_STRANGERS", 10)
    daemon = start(doubled=double, handshake_timeout_ms=60_000, ring_socket=None)
    with sw.connect(daemon.tcp) as connection, connection.acquire("a", spec_of()) as stream:
        strangers = []
        for frame in frames_of(40):
            strangers.append(socket.create_connection(address_of(daemon)))
            stream.append(frame)
        assert all(is_closed(stranger) for stranger in strangers[:30])
        with sw.connect(daemon.tcp):  # an honest newcomer
            pass
    assert stream.receipt.frames_stored == 40
    for stranger in strangers:
        stranger.close()


def test_whoever_shakes_hands_and_says_nothing_is_sent_away(start, double, spec_of, frames_of, monkeypatch):
    daemon = start(doubled=double)
    with sw.connect(daemon.tcp) as connection, connection.acquire("a", spec_of()) as stream:
        monkeypatch.setattr(connection_guard, "MAX_STRANGER_S", 0.3)  # only now: it was a stranger, too
        for endpoint in (daemon.tcp, daemon.ipc):
            with zmq.Context() as context, context.socket(zmq.DEALER) as mute:
                monitor = mute.get_monitor_socket(zmq.EVENT_DISCONNECTED)
                mute.connect(endpoint)
                assert monitor.poll(1000 * TIMEOUT_S), "it may stay for ever"
                mute.disable_monitor()
                monitor.close()
        stream.append(frames_of(1)[0])  # who was there longer, and said HELLO, stays
    assert stream.receipt.frames_stored == 1
    assert daemon.count("client_lost") == 0


def test_whoever_was_dismissed_has_a_moment_to_go(start, double, raw, monkeypatch):
    client = raw(start(doubled=double).tcp)
    monkeypatch.setattr(connection_guard, "MAX_STRANGER_S", 0.3)  # only now: it was a stranger, too
    monitor = client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.send([b"nonsense"])
    assert client.receive_error()[1]["code"] == "protocol"
    assert monitor.poll(1000 * TIMEOUT_S)
    client.socket.disable_monitor()
    monitor.close()


def test_a_stranger_cannot_fill_the_memory_before_it_has_said_who_it_is(start, double):
    """A frame that never ends, of a message that never ends: ZeroMQ keeps what is not whole, however much it
    is."""
    daemon = start(doubled=double, handshake_timeout_ms=60_000)
    with socket.create_connection(address_of(daemon)) as stranger:
        stranger.sendall(GREETING + b"\x06" + (32 << 20).to_bytes(8, "big"))  # a long command
        stranger.settimeout(30)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012 - one of many
            for _ in range(1000):
                stranger.sendall(bytes(1 << 16))
                time.sleep(0.01)


@pytest.fixture
def speak() -> Iterator[Callable[..., Speaker]]:
    with contextlib.ExitStack() as opened:

        def connect(daemon: IngestDaemon, identity: bytes = b"") -> Speaker:
            return opened.enter_context(
                contextlib.closing(Speaker(socket.create_connection(address_of(daemon)), identity))
            )

        yield connect


class Speaker:
    """Speaks ZMTP by hand, part by part: ZeroMQ's own sockets send nothing of a message before it is
    whole."""

    def __init__(self, connected: socket.socket, identity: bytes = b"") -> None:
        self.socket = connected
        properties = b"".join(
            bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
            for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", identity))
        )
        command = b"\x05READY" + properties
        heard = self.socket.makefile("rb")
        self.socket.sendall(GREETING)
        assert len(heard.read(len(GREETING))) == len(GREETING)
        self.socket.sendall(b"\x04" + bytes([len(command)]) + command)
        _, size = heard.read(2)
        assert heard.read(size).startswith(b"\x05READY")
        heard.close()

    def say(self, parts: list[bytes], *, more: bool = False) -> None:
        for part in parts:
            flags = 2 | (more or part is not parts[-1])
            self.socket.sendall(bytes([flags]) + len(part).to_bytes(8, "big") + part)

    def close(self) -> None:
        self.socket.close()

    def hello(self) -> Counter:
        counter = Counter(CONNECTION)
        self.say(counter.control(Kind.HELLO, Hello("raw", "test", 1).to_body()))
        return counter


def test_a_connection_that_calls_itself_like_another_takes_nothing_over(
    start, double, speak, spec_of, frames_of, monkeypatch
):
    """ZeroMQ lets clients choose the identity by which the daemon knows them, and would hand a taken one over
    if it were told to."""
    daemon = start(doubled=double)
    frames = frames_of(20)
    with sw.connect(daemon.tcp) as connection, connection.acquire("a", spec_of()) as stream:
        stream.append(frames[0])
        thief = speak(daemon, *daemon.server._connections.by_identity)
        thief.say(Counter(CONNECTION).control(Kind.HEARTBEAT))
        monkeypatch.setattr(connection_guard, "MAX_STRANGER_S", 0.3)  # only now: all of that takes its time
        assert is_closed(thief.socket)
        for frame in frames[1:]:
            stream.append(frame)
    assert stream.receipt.frames_stored == 20
    assert daemon.count("client_lost") == 0


def test_nobody_can_guess_what_the_next_connection_will_be_called(start, double, raw):
    """ZeroMQ aborts the process when a connection that it names has its name taken already, by a client that
    chose it for itself."""
    names = []
    for _ in range(2):
        ctypes.CDLL(None).srand(1)  # as in a process that has just begun
        daemon = start(doubled=double)
        raw(daemon.ipc)
        names += daemon.server._connections.by_identity
    assert names[0] != names[1]


def test_a_client_cannot_fill_the_memory_with_a_message_that_does_not_end(start, double, speak, monkeypatch):
    """Each part is small enough, and each whole message was good."""
    monkeypatch.setattr(inbound_byte_limit, "CONTROL_BYTES", 1 << 20)
    daemon = start(doubled=double, max_message_bytes=1 << 20, session_timeout_ms=60_000)
    client = speak(daemon)
    counter, sent = client.hello(), 0
    daemon.event("client_connected")
    client.say(counter.control(Kind.HEARTBEAT))
    with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012 - one of many
        while sent < 256 << 20:
            client.say([bytes(1 << 16)], more=True)
            sent += 1 << 16
            time.sleep(0.001)
    assert sent < 64 << 20, "it is looked at ten times a second"
    assert daemon.event("client_lost")["reason"].startswith("a message without an end")


def test_a_client_may_send_all_of_its_credit_in_one_message(
    start, double, speak, spec_of, frames_of, wait, monkeypatch
):
    """Slowly, and many times more than a message of one frame."""
    monkeypatch.setattr(inbound_byte_limit, "CONTROL_BYTES", 4096)
    monkeypatch.setattr(inbound_byte_limit, "PIXELLESS_BYTES", 4096)
    daemon = start(doubled=double, max_message_bytes=256 << 10, session_timeout_ms=60_000)
    client = speak(daemon)
    counter = client.hello()
    spec = spec_of(shape=(256, 256)).model_dump(mode="json")
    client.say(
        counter.control(
            Kind.OPEN, {"request": 1, "name": "a", "spec": spec, "stream": None, "transport": "message"}
        )
    )
    slots = wait(lambda: [session.credit.ring_slots for session in daemon.server._sessions if session.lease])[
        0
    ]
    token = next(iter(daemon.server._sessions)).lease.token
    records = np.zeros(slots, DESCRIPTOR)
    records["sequence"] = records["slot"] = records["frame_id"] = records["position"] = np.arange(slots)
    frames = [frame.tobytes() for frame in frames_of(slots, (256, 256))]
    body = BATCH_PRELUDE.pack(DTYPE_CODE["uint16"], 256, 256, 0) + records.tobytes()
    message = Counter(token).message(
        Kind.FRAMES, [body], count=slots, pixel_parts=slots, payload_bytes=sum(map(len, frames))
    )
    for part in (*message, *frames[:-1]):
        client.say([part], more=True)
        time.sleep(1.0 / slots)
    client.say([frames[-1]])
    wait(lambda: daemon.acquisitions[0].submitted == list(range(slots)))
    assert daemon.count("client_lost") == 0


def sender(silent_s: float, credit_bytes: int = 0) -> Client:
    """At 100 s, with bytes that wait to be read."""
    client = Client(
        b"",
        Hello("raw", "test", 1),
        Counter(CONNECTION),
        100.0 - silent_s,
        connection=connection_guard.ConnectionId(0, 0),
    )
    client.most_credit_bytes = credit_bytes
    return client


def culprit(beyond_bytes: int, *clients: Client) -> Client | None:
    return InboundByteLimit(lambda connection: 0, lambda connection: True).culprit(
        100.0, beyond_bytes, clients
    )


def test_a_camera_on_a_slow_link_is_not_who_fills_the_memory():
    """A frame may be on its way for long, and so may all of the credit at once."""
    more, credit = inbound_byte_limit.BEYOND_PLAN_BYTES + 1, 64 << 20
    slow, other, abuser = sender(5.0, credit), sender(4.0, credit), sender(1.5)
    assert culprit(more, slow, other) is None
    assert culprit(more, slow, abuser, other) is abuser
    assert culprit(more, sender(0.1)) is None
    for_ever = sender(20.0, credit)
    assert culprit(more, slow, for_ever) is for_ever
    explained = inbound_byte_limit.BEYOND_PLAN_BYTES + inbound_byte_limit.CONTROL_BYTES
    at_once = sender(0.3)
    assert culprit(explained, slow, at_once) is None
    assert culprit(explained + 1, slow, at_once) is at_once
    assert culprit(explained + credit, slow) is None
    assert culprit(explained + credit + 1, slow) is slow


def test_nobody_is_cut_for_memory_that_a_trim_gives_back(start, double, speak, monkeypatch):
    """What is free in the heap, or about to be, looks like a message without an end."""
    beyond_bytes, lost_before_trim = [0], []

    def trim(openings: Openings) -> None:
        lost_before_trim.append(daemon.count("client_lost"))
        if len(lost_before_trim) == 1:
            beyond_bytes[0] = 0

    monkeypatch.setattr(Openings, "beyond_plan", lambda openings: beyond_bytes[0])
    monkeypatch.setattr(Openings, "trim", trim)
    monkeypatch.setattr(ConnectionGuard, "waits", staticmethod(lambda connection: True))
    monkeypatch.setattr(inbound_byte_limit, "SILENT_S", -1.0)  # everybody is a suspect at once
    daemon = start(doubled=double)
    client = speak(daemon)
    client.hello()
    daemon.event("client_connected")
    beyond_bytes[0] = 1 << 30
    wait_for(lambda: lost_before_trim and not daemon.server._connections._trimmed)
    assert daemon.count("client_lost") == 0
    beyond_bytes[0] = 1 << 30
    assert daemon.event("client_lost")["reason"].startswith("a message without an end")
    assert lost_before_trim == [0, 0]


def test_memory_that_is_on_its_way_to_the_system_accuses_nobody(start, double, monkeypatch):
    """A trim waits behind what else its thread prepares; meanwhile only who is overdue is looked for."""
    trimming, seen = [True], set()

    def look(limit: InboundByteLimit, begin_s: float, beyond_bytes: int, clients: Any) -> None:
        seen.add((trimming[0], beyond_bytes))

    monkeypatch.setattr(Openings, "beyond_plan", lambda openings: 1 << 30)
    monkeypatch.setattr(Openings, "is_trimming", property(lambda openings: trimming[0]))
    monkeypatch.setattr(InboundByteLimit, "culprit", look)
    start(doubled=double)
    wait_for(lambda: (True, 0) in seen)
    assert (True, 1 << 30) not in seen
    trimming[0] = False
    wait_for(lambda: (False, 1 << 30) in seen)


def test_the_time_that_a_round_took_makes_nobody_silent(start, double, raw, monkeypatch):
    """Whoever was not heard because the daemon was busy is no suspect."""
    heard: list[tuple[float, float]] = []

    def look(limit: InboundByteLimit, begin_s: float, beyond_bytes: int, clients: Any) -> None:
        heard.append((begin_s, time.monotonic()))

    monkeypatch.setattr(Openings, "beyond_plan", lambda openings: 1 << 30)
    monkeypatch.setattr(InboundByteLimit, "culprit", look)
    advance = Openings.advance
    monkeypatch.setattr(Openings, "advance", lambda openings: (time.sleep(0.05), advance(openings))[1])
    daemon = start(doubled=double)
    raw(daemon.ipc)
    for begin_s, now_s in wait_for(lambda: heard):
        assert now_s - begin_s >= 0.05


def test_descriptors_are_given_back(start, double):
    daemon = start(doubled=double, handshake_timeout_ms=200)
    sw.connect(daemon.tcp).close()

    def open_sockets() -> int:
        return sum(map(is_socket, Path("/proc/self/fd").iterdir()))

    before = open_sockets()
    for _ in range(3):
        strangers = [socket.create_connection(address_of(daemon)) for _ in range(50)]
        assert all(is_closed(stranger) for stranger in strangers)
        for stranger in strangers:
            stranger.close()
    for _ in range(3000):
        if open_sockets() <= before:
            break
        time.sleep(0.01)
    assert open_sockets() <= before
    sw.connect(daemon.tcp).close()


def is_socket(descriptor: Path) -> bool:
    try:
        return stat.S_ISSOCK(descriptor.stat().st_mode)
    except OSError:
        return False


# Groups and names
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_sockets_are_for_this_user_or_for_a_group(start, double, tmp_path: Path, umask: int):
    """Whatever the umask: a terminal's leaves them to the user's group, a service's lets the group look and
    not connect."""
    before = os.umask(umask)
    try:
        own = start(doubled=double, root=tmp_path / "own")
        shared = start(doubled=double, root=tmp_path / "shared", group=grp.getgrgid(os.getgid()).gr_name)
    finally:
        os.umask(before)
    assert stat.S_IMODE(own.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.root.stat().st_mode) == 0o750
    for name in ("ingest.sock", "ring.sock"):
        assert stat.S_IMODE(own.root.joinpath(name).stat().st_mode) == 0o600
        assert stat.S_IMODE(shared.root.joinpath(name).stat().st_mode) == 0o660
    with pytest.raises(errors.ConfigError, match="no such group"):
        start(doubled=double, root=tmp_path / "none", group="no-such-group")


HOSTILE = [
    "..",
    "../x",
    "/etc/x",
    "a/b",
    "a/../../b",
    "a\\b",
    "a\0b",
    "",
    ".",
    ".hidden",
    "a..b",
    "-x",
    "a\n",
    "a" * 129,
    "é",
    "a/",
    "%2e%2e/x",
]
BORDERS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "name": lambda name, spec: {"name": name, "spec": spec},
    "name to reopen": lambda name, spec: {"name": name, "spec": None, "reopen": True},
    "name to resume": lambda name, spec: {
        "name": name,
        "spec": None,
        "resume": {"acquisition": "0" * 32, "client_epoch": 1, "next_sequence": 0, "ring_slots": 8},
    },
    "stream": lambda name, spec: {"name": "fine", "spec": None, "stream": name},
    "acquisition": lambda name, spec: {
        "name": "fine",
        "spec": None,
        "resume": {"acquisition": name, "client_epoch": 1, "next_sequence": 0, "ring_slots": 8},
    },
    "axis": lambda name, spec: {
        "name": "fine",
        "spec": {**spec, "dimensions": [{**spec["dimensions"][0], "name": name}, *spec["dimensions"][1:]]},
    },
    "frame field": lambda name, spec: {"name": "fine", "spec": {**spec, "frame_fields": [name]}},
}


@pytest.mark.parametrize("border", BORDERS)
def test_no_name_leaves_the_output_root(start, raw, spec_of, tmp_path: Path, border: str):
    """Everything that a client can call by a name becomes a path, or could. With the real pipeline, past the
    client's own checks."""
    daemon = start(root=tmp_path / "one" / "two" / "root")
    client = raw(daemon.ipc)
    before = sorted(tmp_path.rglob("*"))
    body = BORDERS[border]
    for name in HOSTILE:
        request = {
            "request": 1,
            "stream": None,
            "transport": "message",
            **body(name, spec_of().model_dump(mode="json")),
        }
        client.send(client.connection.control(Kind.OPEN, request))
        _, problem = client.receive_error()
        assert problem["code"] in ("invalid_name", "unknown_stream", "spec", "protocol", "resume"), (
            name,
            problem,
        )
        if problem["fatal"]:
            client.close()
            client = raw(daemon.ipc)
    assert sorted(tmp_path.rglob("*")) == before
