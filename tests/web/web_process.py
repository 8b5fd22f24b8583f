"""A web process as the daemon starts it, without a daemon behind it, and the ways to talk to it."""

from __future__ import annotations

import http.client
import select
import socket
from dataclasses import replace
from subprocess import PIPE
from typing import TYPE_CHECKING

from tests.harness.python import start_python

from shardwright.daemon.web_child import WebSettings

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 60
RUN = """
from shardwright.web.__main__ import main
from shardwright.web import connections, viewer
from shardwright.web.connections import LimitedConnection
connections.SHUTDOWN_S = {timeout_s}  # what is cut off on a busy machine is a line on standard error
viewer.CONTRAST_TIMEOUT_S = {timeout_s}  # in which a Python starts
{sabotage}
main()
"""


class Answer:
    """One response, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def __repr__(self) -> str:
        return f"{self.status} {dict(self.headers)} {self.body[:80]!r}"


def ask(
    port: int,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> Answer:
    """One request on a connection of its own. ``path`` is sent as it is; a ``Host`` of None sends none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    headers = {"Host": f"127.0.0.1:{port}", **(headers or {})}
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def say(port: int, data: bytes) -> bytes:
    """Send bytes on a connection of their own, and return everything that comes back until the other side
    closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(data)
        return read_to_the_end(connection)


def read_to_the_end(connection: socket.socket) -> bytes:
    answer = bytearray()
    try:
        while piece := connection.recv(1 << 16):
            answer += piece
    except ConnectionResetError:
        pass
    return bytes(answer)


def is_cut_off(connection: socket.socket) -> bool:
    """Whether the other side has ended it by now. Nothing else may have come."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


class WebProcess:
    """Started by the constructor, ready when that returns. A context manager that leaves no process
    behind."""

    def __init__(self, settings: WebSettings, *, sabotage: str = "", port: int = 0) -> None:
        """``sabotage`` is Python that runs in the process before its ``main``."""
        with socket.create_server(("127.0.0.1", port)) as listener:
            self.port = listener.getsockname()[1]
            descriptor = listener.fileno()
            code = RUN.format(sabotage=sabotage, timeout_s=TIMEOUT_S)
            told = replace(settings, descriptor=descriptor).to_json()
            self.process = start_python(
                "-c", code, told, stdout=PIPE, stderr=PIPE, text=False, pass_fds=[descriptor]
            )
        assert self.process.stdout is not None
        if self.process.stdout.read(1) != b".":
            _, errors = self.process.communicate()
            raise AssertionError(errors.decode())

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        return ask(self.port, path, method, headers, body)

    def say(self, data: bytes) -> bytes:
        return say(self.port, data)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def errors(self) -> str:
        """Ends it, and returns what it has written to standard error."""
        self.process.terminate()
        return self.process.communicate(timeout=TIMEOUT_S)[1].decode()

    def __enter__(self) -> WebProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__()


def settings_for(
    root: Path,
    *,
    spill_root: Path | None = None,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = ("*",),
) -> WebSettings:
    """Of a process whose daemon does not answer."""
    return WebSettings(
        control_socket=str(root / "nobody.sock"),
        descriptor=-1,
        hosts=hosts,
        origins=origins,
        preview_hz=2,
        output_root=str(root),
        spill_root=None if spill_root is None else str(spill_root),
    )
