"""The protocol of sd_notify(3): messages of a service to its manager, as lines ``NAME=value`` in datagrams to
a Unix socket.

    NOTIFY_SOCKET    /a/path, or @name in the abstract namespace
    WATCHDOG_USEC    time after a ping at which the manager ends the service; WATCHDOG_PID: of which
                     process

All three are removed from the environment, so that no child speaks for the daemon. ``service_manager.py``
decides which message is sent when.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

# of a value: systemd drops a datagram of more than 4096 bytes, and with it the READY or WATCHDOG beside a
# long STATUS
MOST_CHARACTERS = 1000
# after so long the message is dropped: a manager that does not read must never block the daemon
SEND_TIMEOUT_S = 5.0


class NotifySocket:
    """The manager's socket. ``tell`` may be called from any thread and never raises; ``on_failure`` is called
    once, with the first error."""

    def __init__(self, address: str, on_failure: Callable[[str], None]) -> None:
        if address[:1] not in ("/", "@") or len(address) < 2:
            raise ValueError(f"NOTIFY_SOCKET: expected an absolute path or @name, got {address!r}")
        self._address = "\0" + address[1:] if address[0] == "@" else address
        self._on_failure = on_failure
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_TIMEOUT_S)
        # keeps the lines of one thread in order; only threads that send wait for it
        self._lock = threading.Lock()
        self._failed = False

    def tell(self, **lines: object) -> None:
        """Sends one datagram: ``tell(READY=1, STATUS="2 cameras")``. Line breaks in a value become spaces,
        long ones are cut."""
        message = "\n".join(f"{name}={_one_short_line(value)}" for name, value in lines.items())
        with self._lock:
            try:
                self._socket.sendto(message.encode(errors="replace"), self._address)
            except OSError as error:
                if not self._failed:
                    self._failed = True
                    self._on_failure(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Manager:
    """The service manager according to the environment. ``watchdog_s`` None: no watchdog."""

    socket: NotifySocket
    watchdog_s: float | None = None


def take_manager(
    on_failure: Callable[[str], None], environment: MutableMapping[str, str] = os.environ
) -> Manager | None:
    """Returns the manager that has started this process, None without one. ``on_failure`` also gets variables
    that are invalid and ignored."""
    address, usec, watched = (
        environment.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    )
    if not address:
        return None
    try:
        notify = NotifySocket(address, on_failure)
    except ValueError as error:
        on_failure(str(error))
        return None
    if not usec or (watched and watched != str(os.getpid())):
        return Manager(notify)
    if not (usec.isascii() and usec.isdecimal() and int(usec) > 0):
        on_failure(f"WATCHDOG_USEC: expected microseconds, got {usec!r}")
        return Manager(notify)
    return Manager(notify, int(usec) / 1e6)


def _one_short_line(value: object) -> str:
    line = " ".join(str(value).splitlines())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def monotonic_usec() -> int:
    """Returns the time for RELOADING."""
    return time.monotonic_ns() // 1000
