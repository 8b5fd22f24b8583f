"""Wakes the I/O thread, which waits in a poll, by a byte through a socket of its own, so that it works on
every system."""

from __future__ import annotations

import contextlib
import socket


class WakeUp:
    """The wake-up of the I/O thread. ``receiver`` is polled. ``send`` is for any thread and never blocks; the
    other methods are for the thread that is woken."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def send(self) -> None:
        # full: the thread is awake already; closed: it has ended and failed every promise
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def drain(self) -> None:
        try:
            while self.receiver.recv(4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._sender.close()
        self.receiver.close()
