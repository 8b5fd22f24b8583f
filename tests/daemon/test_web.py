"""The web process beside a real daemon: it tells what the daemon does, and whatever is done to it, frames go
on."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import zmq
from PIL import Image
from tests.harness.daemon import DaemonProcess, run_cli, serving, start_cli
from tests.harness.json_process import TIMEOUT_S, wait_for
from tests.harness.store_contents import assert_holds
from tests.web.web_process import ask, read_to_the_end, say

import shardwright as sw
from shardwright.model.event_text import event_text
from shardwright.simulate.photons import PhotonFrames
from shardwright.web.daemon_link import stretched
from shardwright.wire.controls import Hello
from shardwright.wire.messages import CONNECTION, Counter, Kind

from .conftest import write_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TROUBLE = {"thread_died", "client_lost", "acquisition_failed"}
HTTP = 'http: {enabled: true, listen: "127.0.0.1:*"}\n'


@pytest.fixture
def web_config(config: Path) -> Path:
    config.write_text(config.read_text() + HTTP)
    return config


def port_of(ready: dict[str, Any]) -> int:
    port = urlsplit(ready["status_page"]).port
    assert port is not None
    return port


def status(port: int) -> dict[str, Any]:
    """As soon as the daemon answers the page, which asks for two seconds at a time."""
    answer = wait_for(lambda: (found := ask(port, "/api/status")).status == 200 and found, "an answer")
    snapshot: dict[str, Any] = json.loads(answer.body)
    return snapshot


def stream_once(port: int, *, frames_stored: int) -> dict[str, Any]:
    """What is told of the camera's stream once so many frames are stored; the page asks the daemon only now
    and then."""
    told: list[dict[str, Any]] = []

    def is_told() -> bool:
        told.append(status(port)["streams"]["cam0"])
        return bool(told[-1]["frames_stored"] == frames_stored)

    wait_for(is_told, lambda: told[-1])
    return told[-1]


def test_the_page_and_its_numbers_are_there_and_end_with_the_daemon(web_config: Path) -> None:
    with DaemonProcess(web_config) as daemon:
        ready = daemon.wait_for("ready")
        page = daemon.wait_for("web_ready")
        assert page["url"] == ready["status_page"]
        port = port_of(ready)
        assert b"<html" in ask(port, "/").body
        endpoint = ready["endpoints"][0]
        assert status(port)["streams"]["cam0"]["frames_received"] == 0
        result = run_cli("camera", "--connect", endpoint, "--name", "x", "--stream", "cam0", "--frames", "21")
        assert result.returncode == 0, result.stderr
        stream_once(port, frames_stored=21)
        assert daemon.stop() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(page["pid"], 0)


def test_the_page_does_not_outlive_a_daemon_that_is_killed(web_config: Path) -> None:
    with DaemonProcess(web_config) as daemon:
        daemon.wait_for("ready")
        watch = os.pidfd_open(daemon.wait_for("web_ready")["pid"])
        try:
            daemon.process.kill()

            assert select.select([watch], [], [], TIMEOUT_S)[0], "it lives on"
        finally:
            os.close(watch)


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonProcess]:
    """A daemon with its page, for tests that end, kill and stop nothing."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:  # whose sockets fit into an address
        config = write_config(Path(folder), create=True)
        config.write_text(config.read_text() + HTTP)
        with serving(config) as daemon:
            daemon.wait_for("web_ready")
            yield daemon
        assert not TROUBLE & set(daemon.rest())


def test_the_page_stands_behind_the_daemon(shared: DaemonProcess) -> None:
    """In one session: Linux shares the processors among sessions first, and niceness counts only within one
    (autogroup, sched(7))."""
    pid, own = page_of(shared)["pid"], shared.process.pid
    assert os.getpriority(os.PRIO_PROCESS, pid) >= os.getpriority(os.PRIO_PROCESS, own) + 5
    assert os.getsid(pid) == os.getsid(own)
    assert os.getpgid(pid) != os.getpgid(own), "Ctrl-C is the daemon's to answer"


def page_of(daemon: DaemonProcess) -> dict[str, Any]:
    """The event of its page, the first one; waited for if it was not heard yet."""
    heard = next((event for event in daemon.events if event["event"] == "web_ready"), None)
    return heard or daemon.wait_for("web_ready")


class WatchedStream:
    """A stream to a daemon with its page; a frame is sent whenever the test says so."""

    def __init__(self, daemon: DaemonProcess, name: str = "watched") -> None:
        self.daemon = daemon
        self.port = port_of(daemon.ready)
        self.pid = page_of(daemon)["pid"]
        self.source = PhotonFrames((48, 80), seed=9)
        self.sent = 0
        self.store = daemon.config.parent / "data" / f"{name}.ome.zarr"
        self._connection = sw.connect(daemon.endpoint)
        self._stream = self._connection.acquire(name, stream="cam0")

    def send(self, frames: int) -> None:
        """Frames that are stored when this returns."""
        for _ in range(frames):
            self._stream.append(self.source.frame(self.sent))
            self.sent += 1
        self._stream.flush()

    def finish(self) -> None:
        """Every frame that was sent is in the store, and none is told to be anything else than stored."""
        self._stream.close()
        self._connection.close()
        receipt = self._stream.receipt
        assert receipt is not None
        assert (receipt.frames_received, receipt.frames_stored, receipt.frames_durable) == (self.sent,) * 3
        assert (
            receipt.frames_missing + receipt.frames_dropped + receipt.frames_late + receipt.frames_lost == 0
        )
        if not self.sent:
            assert not self.store.exists(), "an acquisition without a frame leaves no store"
            return
        assert_holds(self.store, self.source, self.sent)


@contextmanager
def watched(config: Path, **options: Any) -> Iterator[WatchedStream]:
    with DaemonProcess(config, **options) as daemon:
        running = WatchedStream(daemon)
        yield running
        running.finish()
        assert daemon.stop() == 0
        assert not TROUBLE & set(daemon.rest())


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_client_whose_name_is_no_text_breaks_no_list(web_config: Path) -> None:
    """JSON may hold half of a surrogate pair, which UTF-8 cannot: whoever may connect can put one into an
    event."""
    with DaemonProcess(web_config) as daemon:
        ready = daemon.wait_for("ready")
        daemon.wait_for("web_ready")
        context = zmq.Context()
        try:
            stranger = context.socket(zmq.DEALER)
            stranger.connect(ready["endpoints"][0])
            stranger.send_multipart(
                Counter(CONNECTION).control(Kind.HELLO, Hello("soak", "half \ud800", 1).to_body())
            )
            assert daemon.wait_for("client_connected")["host"] == "half \ud800"
            answer = ask(port_of(ready), "/api/events")
            assert answer.status == 200, answer
            assert "half \ud800" in [event.get("host") for event in json.loads(answer.body)["events"]]
            assert ask(port_of(ready), "/api/status").status == 200
        finally:
            context.destroy(linger=0)
        assert daemon.stop() == 0


def test_a_camera_that_is_gone_keeps_its_last_picture(web_config: Path) -> None:
    """The daemon that was started again has no frame of it; the store has."""
    frames = PhotonFrames((48, 80), "uint16", seed=9)
    patient = web_config.read_text().replace("resume_timeout_ms: 5000", "resume_timeout_ms: 600000")
    web_config.write_text(patient)  # it waits for its camera until it was looked at
    with DaemonProcess(web_config) as daemon:
        port, options = port_of(daemon.ready), ("--stream", "cam0", "--frames", "4000", "--seed", "9")
        with start_cli(
            "camera", "--connect", daemon.endpoint, "--name", "cut", *options, "--fps", "20", stderr=DEVNULL
        ) as camera:
            wait_for(lambda: any(each["frames_stored"] > 5 for each in status(port)["acquisitions"]))
            camera.kill()
        daemon.kill()
    with DaemonProcess(web_config) as daemon:
        port = port_of(daemon.ready)
        wait_for(lambda: status(port)["acquisitions"])
        (kept,) = status(port)["acquisitions"]
        answer = ask(port, "/api/preview/cut.png")
        assert (answer.status, kept["client"]) == (200, None), answer
        facts = json.loads(answer.headers["x-facts"])
        last = kept["frames_stored"] - 1
        assert (facts["frame"], facts["index"], facts["image"]) == (last, {"t": last}, "")
        assert facts["range"] == [frames.frame(last).min(), frames.frame(last).max()]
        assert 0 < facts["time_s"] < TIMEOUT_S, "since the frame came"
        picture = np.asarray(Image.open(io.BytesIO(answer.body)))
        np.testing.assert_array_equal(picture, stretched(frames.frame(last)))
        again = ask(port, "/api/preview/cut.png")
        assert again.body == answer.body
        assert json.loads(again.headers["x-facts"])["time_s"] > facts["time_s"]
        assert daemon.stop() == 0


def test_the_events_can_be_followed(web_config: Path) -> None:
    with watched(web_config) as running:
        running.daemon.wait_for("acquisition_opened")  # its client hears of it before the log does
        first = json.loads(ask(running.port, "/api/events").body)["events"]
        names = [event["event"] for event in first]
        assert names.index("ready") < names.index("acquisition_opened")
        assert [event["text"] for event in first] == [event_text(event["event"], event) for event in first]
        last = first[-1]["number"]
        assert json.loads(ask(running.port, f"/api/events?after={last}").body)["events"] == []
        assert [event["number"] for event in first] == sorted({event["number"] for event in first})
        middle = first[len(first) // 2]["number"]
        assert json.loads(ask(running.port, f"/api/events?after={middle}").body)["events"] == [
            event for event in first if event["number"] > middle
        ]


def silent(port: int, store: str, held: ExitStack) -> None:
    del store
    for _ in range(300):
        held.enter_context(socket.create_connection(("127.0.0.1", port)))


def trickling(port: int, store: str, held: ExitStack) -> None:
    del store
    for _ in range(300):
        connection = held.enter_context(socket.create_connection(("127.0.0.1", port)))
        with suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: local")


def huge_heads(port: int, store: str, held: ExitStack) -> None:
    del store
    for _ in range(50):
        connection = held.enter_context(socket.create_connection(("127.0.0.1", port)))
        with suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"x" * (1 << 20))


def greedy(port: int, store: str, held: ExitStack) -> None:
    """Everything at once, and nobody reads the answers."""
    del store
    for _ in range(100):
        connection = held.enter_context(socket.create_connection(("127.0.0.1", port)))
        with suppress(ConnectionError):
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)


def nonsense(port: int, store: str, held: ExitStack) -> None:
    del store, held
    for i in range(200):
        with suppress(ConnectionError):
            say(port, bytes((i + j) % 256 for j in range(300)) + b"\r\n\r\n")


def trespassing(port: int, store: str, held: ExitStack) -> None:
    del held
    for path in (
        "/stores/../rig.yaml",
        f"/stores/{store}/.shardwright/lock",
        "/stores/%2e%2e/rig.yaml",
        f"/stores/{store}/../../rig.yaml",
    ):
        assert ask(port, path).status == 404
    for method in ("POST", "PUT", "DELETE"):
        assert ask(port, f"/stores/{store}/zarr.json", method).status == 405
    assert ask(port, "/api/status", headers={"Host": "evil.example"}).status == 421


@pytest.mark.parametrize("attack", [silent, trickling, huge_heads, greedy, nonsense, trespassing])
def test_whatever_comes_over_http_frames_go_on_and_the_page_comes_back(
    shared: DaemonProcess, attack: Callable[[int, str, ExitStack], None]
) -> None:
    stored_before = status(port_of(shared.ready))["streams"]["cam0"]["frames_stored"]
    running = WatchedStream(shared, attack.__name__)
    with ExitStack() as held:
        running.send(20)
        before = descriptors(shared.process.pid)
        attacker = threading.Thread(target=attack, args=(running.port, running.store.name, held))
        attacker.start()
        running.send(60)
        attacker.join()
        running.send(20)
        assert descriptors(shared.process.pid) < before + 20, "some of these connections are the daemon's"
        assert stream_once(running.port, frames_stored=stored_before + 100)["frames_dropped"] == 0
        running.finish()


def test_a_page_that_is_killed_comes_back_at_the_same_address(web_config: Path) -> None:
    with watched(web_config) as running:
        running.send(10)
        os.kill(running.pid, signal.SIGKILL)
        running.send(10)
        # waits while nobody is there
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
            connection.sendall(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            died, ready = running.daemon.wait_for("web_died"), running.daemon.wait_for("web_ready")
            assert read_to_the_end(connection).startswith(b"HTTP/1.1 200 ")
        assert (died["error"], died["level"]) == ("ended by signal 9", "error")
        assert ready["pid"] != running.pid
        running.send(10)
        stream_once(running.port, frames_stored=30)


# The page that hangs is waited for no longer; any other has all the time that it needs on a busy machine.
IMPATIENT = """
import pathlib
from shardwright.daemon import web_child
hanging, silence_s = pathlib.Path({hanging!r}), web_child._WebChild.silence_s.fget
def silence(it):
    hangs = hanging.exists() and hanging.read_text() == str(it.pid)
    return 100 * silence_s(it) if hangs else 0
web_child._WebChild.silence_s = property(silence)
"""


def test_a_page_that_hangs_is_replaced(web_config: Path, folder: Path) -> None:
    hanging = folder / "hanging"
    with watched(web_config, sabotage=IMPATIENT.format(hanging=str(hanging))) as running:
        os.kill(running.pid, signal.SIGSTOP)
        hanging.write_text(str(running.pid))
        running.send(10)
        assert "no sign of life" in running.daemon.wait_for("web_died")["error"]
        assert running.daemon.wait_for("web_ready")["pid"] != running.pid
        with pytest.raises(ProcessLookupError):
            os.kill(running.pid, 0)
        assert status(running.port)["state"] == "serving"


def test_a_page_that_cannot_live_is_tried_less_and_less_often(web_config: Path) -> None:
    broken = (
        "from shardwright.daemon.web_child import WebSettings; WebSettings.to_json = lambda "
        "settings: 'not settings'"
    )
    with DaemonProcess(web_config, sabotage=broken) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        deaths = [daemon.wait_for("web_died") for _ in range(3)]
        assert [death["again_in_s"] for death in deaths] == [0.5, 1.0, 2.0]
        assert "JSONDecodeError" in deaths[0]["error"]
        assert (
            run_cli(
                "camera", "--connect", endpoint, "--name", "x", "--stream", "cam0", "--frames", "5"
            ).returncode
            == 0
        )
        assert daemon.stop() == 0


def refusal(config: Path, *, sabotage: str = "", code: int = 2) -> str:
    """The one line that a start is refused with."""
    with DaemonProcess(config, sabotage=sabotage) as daemon:
        assert daemon.exit_code() == code
        assert daemon.rest() == []
        (line,) = daemon.errors().splitlines()
    return line


def test_a_missing_extra_is_refused_with_what_to_install(web_config: Path) -> None:
    line = refusal(web_config, sabotage="sys.modules['uvicorn'] = sys.modules['PIL'] = None")
    last = len(web_config.read_text().splitlines())  # the one of http
    assert (
        f"{web_config}:{last}: http.enabled: needs packages that are not installed: uvicorn, pillow." in line
    )
    assert "pip install 'shardwright[web]'" in line


def test_a_port_that_is_taken_is_refused(web_config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        web_config.write_text(
            web_config.read_text().replace('listen: "127.0.0.1:*"', f'listen: "127.0.0.1:{port}"')
        )
        assert f"http.listen: cannot listen on 127.0.0.1:{port}; got Address already in use" in refusal(
            web_config, code=1
        )


def test_an_address_of_another_machine_is_refused(web_config: Path) -> None:
    web_config.write_text(web_config.read_text().replace('127.0.0.1:*"}', '192.0.2.1:8790"}'))
    assert "http.listen: cannot listen on 192.0.2.1:8790" in refusal(web_config, code=1)


def test_a_page_without_a_control_socket_is_refused(web_config: Path) -> None:
    web_config.write_text(web_config.read_text() + "control: {socket: none}\n")
    assert "http.enabled: needs the control socket" in refusal(web_config)


def test_a_page_for_the_network_has_a_name_and_is_warned_about(web_config: Path) -> None:
    text = web_config.read_text()
    web_config.write_text(text.replace('"127.0.0.1:*"', '"0.0.0.0:*"'))
    assert "http.allowed_hosts: is missing" in refusal(web_config)
    web_config.write_text(text.replace('"127.0.0.1:*"', '"0.0.0.0:*", allowed_hosts: [rig-3.example.org]'))
    with DaemonProcess(web_config) as daemon:
        port = port_of(daemon.wait_for("ready"))
        assert daemon.events[-1]["status_page"] == f"http://0.0.0.0:{port}/"
        assert ask(port, "/", headers={"Host": "rig-3.example.org"}).status == 200
        assert ask(port, "/", headers={"Host": "0.0.0.0"}).status == 421
        assert daemon.stop() == 0
        daemon.rest()
        (warning,) = [event for event in daemon.events if event["event"] == "web_open_to_the_network_warning"]
        assert warning["level"] == "warning"


def test_without_the_section_there_is_no_page_and_nothing_is_imported(config: Path) -> None:
    with DaemonProcess(
        config,
        fresh=True,
        sabotage="sys.modules['starlette'] = sys.modules['uvicorn'] = "
        "sys.modules['prometheus_client'] = None",
    ) as daemon:
        ready = daemon.wait_for("ready")
        assert "status_page" not in ready
        assert daemon.stop() == 0
        assert not [name for name in daemon.rest() if name.startswith("web")]
