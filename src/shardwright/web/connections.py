"""HTTP connections with limits on everything that a client could hold: uvicorn's, and those that it lacks.

connection   ──▶ waits for a request: HEAD_S for all of a head, KEEP_ALIVE_S between requests
             ──▶ is answered: a client that reads nothing of its answer for STALL_S is cut off
too many     the connection that has waited longest for a request is cut off; else the new one
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from shardwright.read.live_row import MOST_OPEN_JOURNALS
from shardwright.read.live_sealed import MOST_OPEN_SHARDS

from .frame_stream import MOST_FOLLOWERS
from .live_stores import MOST_VIEWS

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp

MAX_CONNECTIONS = 128
MAX_HEAD_BYTES = 16 << 10
HEAD_S = 10.0
KEEP_ALIVE_S = 15  # a page polls every second or two, a scraper every fifteen
STALL_S = 20.0
SHUTDOWN_S = 1
ACCEPTED_A_ROUND = 64
# of a live view: its folder, frame log, staging area, and the sealed shards and journals that it keeps open
VIEW_DESCRIPTORS = 8 + MOST_OPEN_SHARDS + MOST_OPEN_JOURNALS
# each connection may have a file open, and the libraries have some
DESCRIPTORS = 4 * MAX_CONNECTIONS + (MOST_VIEWS + MOST_FOLLOWERS) * VIEW_DESCRIPTORS + 1024


class LimitedConnection(H11Protocol):
    """One connection. Tests shorten the limits, which are class attributes."""

    max_connections = MAX_CONNECTIONS
    head_s = HEAD_S
    stall_s = STALL_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.waiting_since_s = time.monotonic()
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            waiting = [
                other
                for other in self.connections
                if isinstance(other, LimitedConnection) and not other.is_answering
            ]
            min(waiting, key=lambda other: other.waiting_since_s).cut_off()  # this one waits, too
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        self.waiting_since_s = time.monotonic()
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.stall_s, self.cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def cut_off(self) -> None:
        """Ends the connection at once. The kernel drops the rest of the answer too (linger for no time: a
        reset)."""
        self.connections.discard(self)
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()

    def _watch_head(self) -> None:
        """Starts or stops our timer. It runs from a head's first byte to its last and before the first one;
        between requests uvicorn's keep-alive timer runs."""
        if self.is_answering or self.timeout_keep_alive_task is not None:
            self._stop_head_timer()
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.head_s, self.cut_off)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


async def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serves until SIGTERM."""
    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTED_A_ROUND,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    await uvicorn.Server(config).serve(sockets=[listener])
