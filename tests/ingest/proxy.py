"""A TCP link that a test can cut, freeze and mend."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Proxy:
    """Forwards connections to a daemon's TCP endpoint. ``endpoint`` stays the same whatever happens to the
    link."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._near: set[socket.socket] = set()  # the clients' ends
        self._state = "open"  # open, mute, cut, frozen, closed
        self.connections = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self) -> None:
        """Closes every connection and takes no more."""
        self._become("cut")

    def mute(self) -> None:
        """Forwards only what the client says: the daemon's answers are lost once the link is cut."""
        self._become("mute")

    def freeze(self) -> None:
        """Forwards nothing more, as a pulled cable: neither side hears of it."""
        self._become("frozen")

    def mend(self, target: str | None = None) -> None:
        """Takes new connections; frozen ones are gone."""
        if target is not None:
            host, port = target.removeprefix("tcp://").rsplit(":", 1)
            self._target = (host, int(port))
        self._become("cut")
        self._become("open")

    def close(self) -> None:
        self._become("closed")
        self._thread.join()
        for each in (self._listener, self._wake_receiver, self._wake_sender):
            each.close()  # not in the thread: it may end before its closer has woken it

    def _become(self, state: str) -> None:
        self._done = threading.Event()
        self._state = state
        self._wake_sender.send(b"\0")
        self._done.wait()

    def _run(self) -> None:
        while self._state != "closed":
            readable = [self._wake_receiver]
            if self._state == "open":
                readable += [self._listener, *self._pairs]
            elif self._state == "mute":
                readable += self._near & self._pairs.keys()
            for ready in select.select(readable, [], [])[0]:
                if ready is self._wake_receiver:
                    self._wake_receiver.recv(1)
                    if self._state in ("cut", "closed"):
                        self._close_pairs()
                    self._done.set()
                elif ready is self._listener:
                    self._accept()
                elif ready in self._pairs:
                    self._forward(ready)
        self._close_pairs()
        self._done.set()  # the loop may end before it has read why

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self.connections += 1
        self._pairs[near], self._pairs[far] = far, near
        self._near.add(near)

    def _forward(self, source: socket.socket) -> None:
        target = self._pairs[source]
        with contextlib.suppress(OSError):
            if data := source.recv(1 << 16):
                target.sendall(data)
                return
        for end in (source, target):
            self._pairs.pop(end, None)
            end.close()

    def _close_pairs(self) -> None:
        for end in list(self._pairs):
            end.close()
        self._pairs.clear()
        self._near.clear()
