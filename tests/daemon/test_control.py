"""The control socket against clients that are polite, and against every kind that is not: none keeps another
from its answer."""

from __future__ import annotations

import contextlib
import grp
import itertools
import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pytest
from tests.harness.json_process import wait_for
from tests.harness.python import run_python

from shardwright.daemon import control_protocol
from shardwright.daemon.control import MAX_REST_S, REST_RATIO, ControlLimits, ControlServer, Later, Watch
from shardwright.daemon.control_client import ControlClient
from shardwright.daemon.control_protocol import MAX_REQUEST_BYTES
from shardwright.daemon.control_requests import (
    LEAST_WATCHED_S,
    MOST_ARMED_S,
    MOST_WATCHED_S,
    WATCHED_S,
    Requests,
)
from shardwright.daemon.events import KEPT, MOST_AT_ONCE, RecentEvents
from shardwright.ingest.arms import MOST_ARMED
from shardwright.ingest.blocking_executor import MOST_LOOK_UPS
from shardwright.ingest.registry import ENDED_REMEMBERED
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    AccessError,
    BudgetError,
    ConfigError,
    LockedError,
    ProtocolError,
    SessionLostError,
    ShardwrightError,
    TimedOutError,
    VersionError,
)
from shardwright.model.event_text import event_text
from shardwright.model.promise import Promise
from shardwright.wire.controls import MAX_UPDATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardwright.daemon.control import Answer

PATIENT = ControlLimits(transfer_s=300, idle_s=300)  # nobody is closed while a test runs
SILENT_NO_MORE = ControlLimits(transfer_s=300, idle_s=0.05)
SLOW_NO_MORE = ControlLimits(transfer_s=0.05, idle_s=300)


def echo(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"echo": request["text"]}


def refuse(_: Mapping[str, Any]) -> dict[str, Any]:
    raise LockedError("somebody has it", expected="nobody", got="somebody", hint="Wait.")


def fail(_: Mapping[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("a defect")


def answer_at_length(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": "x" * request["length"]}


class Served:
    """A control server in a thread; leaves none behind."""

    def __init__(self, path: Path, limits: ControlLimits = PATIENT, group: str | None = None) -> None:
        self.path = path
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.promised: list[Promise[str]] = []  # to those who asked for a later answer
        self.state: dict[str, Any] = {"count": 0}  # that is watched
        self.is_over = False
        self.looks = 0
        answers: dict[str, Answer] = {
            "echo": echo,
            "refuse": refuse,
            "fail": fail,
            "long": answer_at_length,
            "later": self._promise,
            "watch": lambda _: Watch(self._look, 0.001),
            "set_metadata": echo,
        }
        self.server = ControlServer(
            path, answers, lambda event, facts: self.events.append((event, dict(facts))), limits, group
        )
        self._thread = threading.Thread(target=self.server.run)

    def _promise(self, _: Mapping[str, Any]) -> Later:
        self.promised.append(Promise())
        return Later(self.promised[-1], lambda text: {"later": text.upper()})

    def _look(self) -> tuple[dict[str, Any], bool]:
        self.looks += 1
        if "error" in self.state:
            raise self.state["error"]
        return dict(self.state), self.is_over

    def raw(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return connection

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self._thread.join()


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "run" / "control.sock"


@pytest.fixture
def served(path: Path) -> Iterator[Served]:
    with Served(path) as served:
        yield served


def ask(served: Served, text: str = "hello") -> str:
    with ControlClient(served.path, timeout_s=60) as client:
        return str(client.ask("echo", text=text)["echo"])


def line_of(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile("rb") as reading:
        reply = json.loads(reading.readline())
    assert reply["version"] == 1
    return dict(reply)


def request(**facts: Any) -> bytes:
    return json.dumps({"version": 1, **facts}).encode() + b"\n"


def next_of(replies: BinaryIO) -> dict[str, Any]:
    """The next line, an answer of version 2."""
    reply = json.loads(replies.readline())
    assert reply.pop("version") == 2
    return dict(reply)


def test_a_client_asks_again_and_again_on_one_connection(served: Served) -> None:
    with ControlClient(served.path, timeout_s=60) as client:
        for text in ("one", "zwölf", "x" * (MAX_REQUEST_BYTES - 100)):
            assert client.ask("echo", text=text)["echo"] == text
        assert len(client.ask("long", length=3_000_000)["text"]) == 3_000_000


def test_the_document_names_every_request_and_limit() -> None:
    text = (Path(control_protocol.__file__).parent / "CONTROL.md").read_text()
    requests = Requests(cast("Any", None), RecentEvents(), status=dict, drain=lambda: None)
    tables = text.split("## Requests")[1].split("\n## ")[0].split("Those of version 2:")
    for version, table in zip(control_protocol.VERSIONS, tables, strict=True):
        assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [
            "do",
            *(name for name in requests.answers if control_protocol.SINCE[name] == version),
        ]
    limits = ControlLimits()
    for fact in [
        "Versions 1 and 2.",
        f"most {limits.watches} watch at once",
        f"after {limits.silence_s:g} s without one",
        f"(3600, at most {MOST_ARMED_S:g})",
        f"{WATCHED_S:g} if left out, {LEAST_WATCHED_S:g} to {MOST_WATCHED_S:g}",
        f"more than {MOST_ARMED} are armed",
        f"the last {ENDED_REMEMBERED} acquisitions",
        f"| {MAX_UPDATES}, then `overload` |",
        f"| {MOST_LOOK_UPS}, likewise |",
        f"{MAX_REQUEST_BYTES >> 10} KiB",
        f"{control_protocol.MAX_REPLY_BYTES >> 20} MiB",
        f"within {limits.transfer_s:g} s",
        f"after {limits.idle_s:g} s",
        f"| connections | {limits.connections};",
        f"last {KEPT} events",
        f"newest {MOST_AT_ONCE} whose",
    ]:
        assert fact in text


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folder_and_socket_are_for_this_user_or_for_a_group(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        for group, folder_mode, socket_mode in (
            (None, 0o700, 0o600),
            (grp.getgrgid(os.getgid()).gr_name, 0o750, 0o660),
        ):
            path = folder / f"for-{group}" / "control.sock"
            with Served(path, group=group):
                assert (stat.S_IMODE(path.parent.stat().st_mode), stat.S_IMODE(path.stat().st_mode)) == (
                    folder_mode,
                    socket_mode,
                )
    finally:
        os.umask(before)


def test_errors_keep_their_class_and_their_facts(served: Served) -> None:
    with ControlClient(served.path, timeout_s=60) as client:
        with pytest.raises(LockedError) as caught:
            client.ask("refuse")
        assert (caught.value.expected, caught.value.got, caught.value.hint) == ("nobody", "somebody", "Wait.")
        with pytest.raises(ProtocolError, match=r"one of echo, .*, set_metadata; got 'no-such'"):
            client.ask("no-such")
        assert client.ask("echo", text="still here")["echo"] == "still here"


def test_a_defect_in_an_answer_costs_that_answer_only(served: Served) -> None:
    with served.raw() as connection:
        connection.sendall(request(do="fail"))
        assert line_of(connection)["error"]["code"] == "internal"
        connection.sendall(request(do="echo", text="on"))
        assert line_of(connection)["echo"] == "on"
    ((event, facts),) = served.events
    assert event == "control_request_failed"
    assert isinstance(facts["exc_info"], ZeroDivisionError)
    assert facts["error"] == "ZeroDivisionError: a defect"
    assert event_text(event, facts).endswith(': "fail"}): ZeroDivisionError: a defect')


def test_an_answer_that_is_too_long_is_an_error(served: Served) -> None:
    with (
        ControlClient(served.path, timeout_s=60) as client,
        pytest.raises(ProtocolError, match="too long for one line"),
    ):
        client.ask("long", length=17_000_000)


@pytest.mark.parametrize("version", [None, 0, 3, "1", True, [1]])
def test_another_version_is_refused_clearly(served: Served, version: object) -> None:
    with served.raw() as connection:
        connection.sendall(json.dumps({"version": version, "do": "echo", "text": "x"}).encode() + b"\n")
        error = line_of(connection)["error"]
    assert (error["code"], error["expected"], error["got"]) == ("version", "version 1 or 2", repr(version))
    assert "version that the daemon runs" in error["hint"]


GARBAGE = [
    b"",
    b"status",
    b"{",
    b"[]",
    b"1",
    b"\xff\xfe\x00",
    b"[" * 60_000,
    b"1" * 60_000,
    b'{"version": 1}',
    b'{"version": 1, "do": 7}',
    b"GET / HTTP/1.1\r",
]


def test_garbage_is_answered_line_by_line(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        for garbage in GARBAGE:
            connection.sendall(garbage + b"\n")
            error = json.loads(replies.readline())["error"]
            assert error["code"] in ("protocol", "version"), garbage
        connection.sendall(request(do="echo", text="and now"))
        assert json.loads(replies.readline())["echo"] == "and now"


def test_a_line_without_end_is_refused_once_it_is_too_long(served: Served) -> None:
    with served.raw() as connection:
        connection.sendall(b"x" * (MAX_REQUEST_BYTES + 1))
        assert "too long" in line_of(connection)["error"]["message"]
        assert connection.recv(1) == b""


def test_requests_in_one_piece_are_answered_in_turn_and_after_half_a_close(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(b"".join(request(do="echo", text=str(i)) for i in range(20)))
        connection.shutdown(socket.SHUT_WR)
        assert [json.loads(line)["echo"] for line in replies] == [str(i) for i in range(20)]


def test_half_a_line_and_half_a_close_are_an_error(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(do="echo", text="whole") + request(do="echo", text="cut")[:-1])
        connection.shutdown(socket.SHUT_WR)
        assert json.loads(replies.readline())["echo"] == "whole"
        assert "ends in the middle" in json.loads(replies.readline())["error"]["message"]
        assert replies.readline() == b""


def test_a_request_may_come_byte_by_byte(served: Served) -> None:
    with served.raw() as connection:
        for byte in request(do="echo", text="slow"):
            connection.sendall(bytes([byte]))
            assert ask(served, "meanwhile") == "meanwhile"
        assert line_of(connection)["echo"] == "slow"


def test_whoever_begins_a_request_and_stops_is_told_and_closed(path: Path) -> None:
    with Served(path, SLOW_NO_MORE) as served, served.raw() as connection:
        connection.sendall(b'{"version"')
        assert line_of(connection)["error"]["code"] == "timed_out"
        assert connection.recv(1) == b""


def test_whoever_is_silent_is_closed(path: Path) -> None:
    with Served(path, SILENT_NO_MORE) as served, served.raw() as connection:
        assert connection.recv(1) == b""


def test_whoever_does_not_take_its_reply_is_closed(path: Path) -> None:
    with Served(path, SLOW_NO_MORE) as served, served.raw() as connection:
        connection.sendall(request(do="long", length=4_000_000))
        assert ask(served) == "hello"  # which came later: both connections are known
        wait_for(lambda: not served.server._connections, "both are closed")
        with pytest.raises(json.JSONDecodeError), connection.makefile("rb") as replies:
            json.loads(replies.readline())


def test_a_client_comes_back_after_it_was_closed_for_its_silence(path: Path) -> None:
    with Served(path, SILENT_NO_MORE) as served, ControlClient(path, timeout_s=60) as client:
        assert client.ask("echo", text="first")["echo"] == "first"
        while served.server._connections:
            pass
        assert client.ask("echo", text="second")["echo"] == "second"


def test_more_silent_clients_than_connections_keep_nobody_out(served: Served) -> None:
    with contextlib.ExitStack() as silent:
        for _ in range(60):
            silent.enter_context(served.raw())
            assert ask(served) == "hello"
        assert len(served.server._connections) <= PATIENT.connections


def flood(served: Served, over: threading.Event, *, read: bool) -> None:
    """Asks as fast as the socket takes it; without ``read`` nobody takes the replies."""
    with served.raw() as connection:
        connection.settimeout(0.01)
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                connection.sendall(request(do="echo", text="flood") * 50)
            with contextlib.suppress(TimeoutError):
                while read and connection.recv(1 << 16) and not over.is_set():
                    pass


@pytest.mark.parametrize("read", [True, False], ids=["reading", "deaf"])
def test_floods_hold_up_nobody(served: Served, read: bool) -> None:
    over = threading.Event()
    floods = [threading.Thread(target=flood, args=(served, over), kwargs={"read": read}) for _ in range(4)]
    for thread in floods:
        thread.start()
    try:
        for i in range(20):
            assert ask(served, str(i)) == str(i)
    finally:
        over.set()
        for thread in floods:
            thread.join()


def test_a_socket_that_is_served_is_refused_and_left_alone(served: Served) -> None:
    with pytest.raises(ConfigError, match="Is a daemon already running"):
        ControlServer(served.path, {}, lambda event, facts: None)
    assert ask(served) == "hello"


def test_the_socket_of_a_dead_daemon_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    with Served(path) as served:
        assert ask(served) == "hello"
    assert not path.exists()


def test_a_file_in_the_sockets_place_is_refused_and_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="another kind of file"):
        ControlServer(path, {}, lambda event, facts: None)
    assert path.read_text() == "mine"


def test_nobody_there_is_one_clear_error(path: Path) -> None:
    with pytest.raises(SessionLostError, match=r"no daemon answers at .*Is `shardwright serve` running\?"):
        ControlClient(path).ask("status")


def test_a_daemon_that_does_not_answer_is_given_up(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(path))
        stuck.listen(0)
        with (
            ControlClient(path, timeout_s=0.05) as first,
            ControlClient(path, timeout_s=0.05) as second,
            ControlClient(path, timeout_s=0.05) as third,
        ):
            for client in (first, second, third):  # the last ones are not even let in
                with pytest.raises(TimedOutError, match=r"within 0\.05 s"):
                    client.ask("status")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", ProtocolError),
        (b'{"version": 3, "ok": true}\n', VersionError),
        (b'{"version": 1, "ok": true}\nmore', ProtocolError),
        (b'{"version": 1}\n', ShardwrightError),
    ],
)
def test_whoever_answers_something_else_is_not_believed(
    path: Path, reply: bytes, error: type[Exception]
) -> None:
    path.parent.mkdir()

    def answer() -> None:
        connection, _ = other.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(reply)

    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        with ControlClient(path, timeout_s=60) as client, pytest.raises(error):
            client.ask("status")
        thread.join()


HALF_OPEN = """
import socket, sys
connections = [socket.socket(socket.AF_UNIX) for _ in range(65)]
for number, connection in enumerate(connections):
    connection.connect(sys.argv[1])
    if number % 2:
        connection.sendall(b'{"version": 1, "do"')
print("there", flush=True)
sys.stdin.read()
"""


def test_connections_of_another_process_that_ask_nothing_cost_nobody_its_place(served: Served) -> None:
    """65 of them: who was there before keeps its connection, and who comes is let in."""
    with served.raw() as earlier:
        earlier.sendall(request(do="echo", text="before"))
        assert line_of(earlier)["echo"] == "before"
        command = [sys.executable, "-c", HALF_OPEN, str(served.path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"there\n"
            for number in range(5):
                assert ask(served, str(number)) == str(number)
            earlier.sendall(request(do="echo", text="after"))
            assert line_of(earlier)["echo"] == "after"
            other.communicate()
    assert len(served.server._connections) <= PATIENT.connections


@pytest.mark.parametrize(
    ("do", "fields"),
    [
        ("events", {"after": True}),
        ("events", {"after": -1}),
        ("events", {"after": 1.0}),
        ("events", {"least": "fatal"}),
        ("events", {"least": ["error"]}),
        ("preview", {}),
        ("preview", {"stream": "a", "name": "b"}),
        ("preview", {"name": 7}),
        ("stop", {}),
        ("stop", {"name": ["a"]}),
        ("arm", {"stream": "cam0"}),
        ("arm", {"name": "a", "stream": 7}),
        ("arm", {"name": "a", "spec": "cam0"}),
        ("arm", {"name": "a", "stream": "cam0", "timeout_s": 86401}),
        ("arm", {"name": "a", "stream": "cam0", "timeout_s": True}),
        ("describe", {}),
        ("counts", {"name": 7}),
        ("watch", {"name": None}),
        ("watch", {"name": "a", "every_s": 0}),
        ("flush", {"level": "stored"}),
        ("flush", {"name": "a", "level": "seen"}),
        ("set_metadata", {"name": "a"}),
        ("set_metadata", {"name": "a", "attributes": []}),
        ("set_metadata", {"name": "a", "attributes": {}, "image": 0}),
    ],
)
def test_a_field_that_is_none_of_its_request_reaches_no_server(do: str, fields: dict[str, Any]) -> None:
    def nobody(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is not asked")

    asked = ("preview", "stop_acquisition", "arm", "describe", "account", "flush", "update_metadata")
    server: Any = SimpleNamespace(**dict.fromkeys(asked, nobody))
    requests = Requests(server, RecentEvents(), status=nobody, drain=nobody)
    with pytest.raises(ProtocolError):
        requests.answers[do](fields)


# Answers that come later
# --------------------------------------------------------------------------------------------------------


def test_an_answer_has_the_version_of_its_request_and_version_1_has_no_later_request(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(do="echo", text="one"))
        assert json.loads(replies.readline()) == {"version": 1, "ok": True, "echo": "one"}
        connection.sendall(request(version=2, do="echo", text="two"))
        assert next_of(replies) == {"ok": True, "echo": "two"}
        connection.sendall(request(version=2, do="refuse"))
        assert next_of(replies)["error"]["code"] == "locked"
        connection.sendall(request(do="watch"))
        error = json.loads(replies.readline())["error"]
        assert (error["code"], error["got"]) == ("protocol", "'watch'")
        assert "watch" not in error["expected"]


def test_an_answer_that_comes_later_delays_nobody_and_keeps_its_turn(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(do="later") + request(do="echo", text="behind it"))
        wait_for(lambda: served.promised)
        assert ask(served, "meanwhile") == "meanwhile"
        connection.sendall(request(do="echo", text="x" * 20_000))
        connection.shutdown(socket.SHUT_WR)
        assert ask(served, "meanwhile") == "meanwhile"
        served.promised[0].keep("there")
        assert json.loads(replies.readline())["later"] == "THERE"
        assert json.loads(replies.readline())["echo"] == "behind it"
        assert len(json.loads(replies.readline())["echo"]) == 20_000
        assert replies.readline() == b""


def test_what_is_promised_may_fail_and_a_defect_of_its_answer_costs_that_answer(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        for settle, code in (
            (lambda promise: promise.fail(ErrorText.of(LockedError("not now"))), "locked"),
            (lambda promise: promise.keep(7), "internal"),
            (lambda promise: promise.cancel(), "internal"),
        ):
            connection.sendall(request(do="later"))
            wait_for(lambda: served.promised)
            settle(served.promised.pop())
            assert json.loads(replies.readline())["error"]["code"] == code
    assert [event for event, _ in served.events] == ["control_request_failed"] * 2


def test_whoever_goes_while_its_answer_is_to_come_leaves_no_connection(served: Served) -> None:
    connection = served.raw()
    connection.sendall(request(do="later"))
    wait_for(lambda: served.promised)
    assert ask(served) == "hello"
    connection.close()
    served.promised[0].keep("nobody hears it")
    wait_for(lambda: not served.server._connections)
    assert ask(served) == "hello"


# Watches
# --------------------------------------------------------------------------------------------------------


def test_a_watch_tells_each_state_once_and_its_last_one_gives_the_connection_back(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(version=2, do="watch"))
        assert next_of(replies) == {"ok": True, "count": 0}
        looks = served.looks
        wait_for(lambda: served.looks > looks + 20)  # which had nothing to tell
        served.state = {"count": 1}
        assert next_of(replies) == {"ok": True, "count": 1}
        served.is_over = True
        assert next_of(replies) == {"ok": True, "count": 1}
        connection.sendall(request(version=2, do="echo", text="on"))
        assert next_of(replies)["echo"] == "on"
        connection.sendall(request(version=2, do="watch"))
        assert next_of(replies)["count"] == 1


def test_a_watch_that_has_nothing_to_tell_says_that_the_daemon_is_there(path: Path) -> None:
    with (
        Served(path, ControlLimits(transfer_s=300, idle_s=0.01, silence_s=0.05)) as served,
        served.raw() as connection,
        connection.makefile("rb") as replies,
    ):
        connection.sendall(request(version=2, do="watch"))
        assert [next_of(replies)["count"] for _ in range(5)] == [0] * 5


def test_a_watch_rests_nine_times_as_long_as_a_look_takes(served: Served) -> None:
    looks: list[tuple[float, float]] = []

    def look() -> tuple[dict[str, Any], bool]:
        begin_s = time.monotonic()
        threading.Event().wait(0.05)
        looks.append((begin_s, time.monotonic()))
        return {"count": len(looks)}, len(looks) == 3

    served.server._answers = {"watch": lambda _: Watch(look, 0.001)}
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(version=2, do="watch"))
        for _ in range(3):
            next_of(replies)
    for (begin_s, end_s), (next_s, _) in itertools.pairwise(looks):
        assert next_s - end_s >= REST_RATIO * (end_s - begin_s) > MAX_REST_S


@pytest.mark.parametrize(
    ("error", "code"),
    [(LockedError("it is gone"), "locked"), (ZeroDivisionError("a defect"), "internal")],
)
def test_an_error_ends_a_watch_and_the_connection_goes_on(
    served: Served, error: Exception, code: str
) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(version=2, do="watch"))
        next_of(replies)
        served.state = {"error": error}
        assert next_of(replies)["error"]["code"] == code
        connection.sendall(request(version=2, do="echo", text="on"))
        assert next_of(replies)["echo"] == "on"


def test_a_reader_that_does_not_read_is_dropped_and_never_waited_for(path: Path) -> None:
    with Served(path, SLOW_NO_MORE) as served, served.raw() as deaf:
        deaf.sendall(request(version=2, do="watch"))
        wait_for(lambda: served.looks)
        lines = 0
        while any(one.watches for one in served.server._connections):
            lines += 1
            served.state = {"count": lines, "much": "x" * 100_000}
            assert ask(served, str(lines)) == str(lines)
            outboxes = [len(one._outbox) for one in served.server._connections]
            assert max(outboxes, default=0) < 101_000  # one line, and no more
        with deaf.makefile("rb") as replies:  # what the socket had taken, and the end
            got = replies.readlines()
        assert len(got) < lines or not got[-1].endswith(b"\n")


def test_a_reader_that_is_slow_gets_the_newest_state_and_not_each(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(version=2, do="watch"))
        assert next_of(replies)["count"] == 0
        looks = served.looks
        for count in range(1, 501):
            served.state = {"count": count, "much": "x" * 100_000}
            if served.looks == looks:
                assert ask(served) == "hello"
            looks = served.looks
        seen = []
        while not seen or seen[-1] < 500:
            seen.append(next_of(replies)["count"])
        assert seen == sorted(seen)
        assert len(seen) < 400


def test_a_request_in_the_middle_of_a_watch_ends_it(served: Served) -> None:
    with served.raw() as connection, connection.makefile("rb") as replies:
        connection.sendall(request(version=2, do="watch"))
        next_of(replies)
        connection.sendall(request(version=2, do="echo", text="x"))
        error = next_of(replies)["error"]
        assert (error["code"], error["message"]) == ("protocol", "a request in the middle of a watch")
        assert replies.readline() == b""


def test_more_watches_than_allowed_are_refused_until_one_ends(served: Served) -> None:
    with contextlib.ExitStack() as watching:
        connections = [watching.enter_context(served.raw()) for _ in range(PATIENT.watches)]
        for connection in connections:
            connection.sendall(request(version=2, do="watch"))
            with connection.makefile("rb") as replies:
                next_of(replies)
        with (
            ControlClient(served.path, timeout_s=60) as client,
            pytest.raises(BudgetError, match="too many watches"),
        ):
            client.ask("watch")
        connections[0].close()
        wait_for(lambda: sum(one.watches for one in served.server._connections) < PATIENT.watches)
        with served.raw() as another, another.makefile("rb") as replies:
            another.sendall(request(version=2, do="watch"))
            assert next_of(replies)["count"] == 0


def test_the_end_of_the_server_tells_a_watch_the_last_state(path: Path) -> None:
    with Served(path) as served:
        connection = served.raw()
        replies = connection.makefile("rb")
        connection.sendall(request(version=2, do="watch"))
        next_of(replies)
        served.server._closed.set()  # the thread is not woken: it looks once more on its own
        served.state, served.is_over = {"count": "last"}, True
    with connection, replies:
        assert next_of(replies)["count"] == "last"
        assert replies.readline() == b""


AS_NOBODY = """
import os, socket, sys
groups = [int(group) for group in sys.argv[2:]]
os.setgroups(groups)
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    for do in ("set_metadata", "echo"):
        connection.sendall(b'{"version": 2, "do": "%s", "text": "x"}\\n' % do.encode())
        print(connection.makefile("r").readline(), end="")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become another user")
@pytest.mark.parametrize("groups", [[], [4242], [4242, 4243]])
def test_where_others_may_connect_they_may_not_do_what_cameras_may(
    folder: Path, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.chown", lambda path, group: os.chown(path, -1, 4243))
    with Served(folder / "run" / "control.sock", group="cameras") as served:
        for path, mode in ((folder, 0o711), (served.path.parent, 0o711), (served.path, 0o666)):
            path.chmod(mode)
        told = run_python("-c", AS_NOBODY, str(served.path), *map(str, groups), check=True, cwd="/")
    first, second = map(json.loads, told.stdout.splitlines())
    assert second["echo"] == "x"
    if 4243 in groups:
        assert first["echo"] == "x"
    else:
        assert (first["error"]["code"], first["error"]["got"]) == (AccessError.code, "user 65534")
