"""The manager's end of sd_notify: a real Unix datagram socket, with a path or in the abstract namespace."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMEOUT_S = 120  # the kernels may have to be compiled first


class NotifyListener:
    """``heard`` has every datagram so far, as a dictionary. A context manager."""

    def __init__(self, folder: Path | None = None) -> None:
        """In ``folder``, or in the abstract namespace without one."""
        name = f"shardwright-test-{secrets.token_hex(8)}"
        self.address = f"@{name}" if folder is None else str(folder / "notify.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name if folder is None else self.address)
        self._socket.settimeout(TIMEOUT_S)
        self.heard: list[dict[str, str]] = []

    def next(self) -> dict[str, str]:
        lines = self._socket.recv(1 << 16).decode().split("\n")
        self.heard.append(dict(line.split("=", maxsplit=1) for line in lines))
        return self.heard[-1]

    def wait_for(self, what: str | Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """The next datagram that has this variable, or of which this is true."""
        while True:
            message = self.next()
            if what in message if isinstance(what, str) else what(message):
                return message

    def waiting(self) -> list[dict[str, str]]:
        """What has come and was not looked at yet."""
        found = []
        self._socket.setblocking(False)
        try:
            while True:
                found.append(self.next())
        except BlockingIOError:
            return found
        finally:
            self._socket.settimeout(TIMEOUT_S)

    def falls_silent(self, *, quiet_s: float, most: int) -> bool:
        """Whether nothing comes for so long, after at most so many datagrams."""
        self._socket.settimeout(quiet_s)
        try:
            for _ in range(most):
                self.next()
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(TIMEOUT_S)
        return False

    def __enter__(self) -> NotifyListener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
