"""A proxy in front of an HTTP server on loopback that loses answers: the server does the whole request, and
the client never hears of it. The connection is cut, or a gateway's 500 comes in place of the answer, upon
which clients repeat the request by themselves."""

from __future__ import annotations

import http.client
import itertools
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Literal

from .loopback_server import LoopbackServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Loss = Literal["cut", "gateway"]
LOSSES: tuple[Loss, ...] = ("cut", "gateway")
TIMEOUT_S = 60.0


class LossyProxy(LoopbackServer):
    """``port``: of the server. ``asked``: method and path of every request that changes something, in order.
    ``lose(number, loss)``: the answer to the request of that number, counted from 0 and from now on, is lost.
    ``then``: called once that request is done, before the client can know."""

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []
        self._lost: tuple[int, Loss] | None = None  # under _lock
        self._then: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                loss = proxy._count(f"{self.command} {self.path}")
                # chunked bodies would need a reader of their own; no client of ours sends them
                assert "transfer-encoding" not in self.headers
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                server = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
                server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    server.putheader(name, value)
                server.endheaders(body or None)
                answer = server.getresponse()
                data = answer.read()
                server.close()
                if loss is not None:
                    proxy._then()
                if loss == "cut":
                    self.close_connection = True
                    return
                if loss == "gateway":
                    answer.status, data = 500, b""
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                is_head = self.command == "HEAD"
                length = answer.getheader("content-length", "0") if is_head else str(len(data))
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815  (the base class's names)

            def log_message(self, *_: object) -> None:
                """Nothing of it is written."""

        super().__init__(Handler)

    def lose(self, number: int, loss: Loss, then: Callable[[], None] = lambda: None) -> None:
        with self._lock:
            self.asked.clear()
            self._lost, self._then = (number, loss), then

    def pass_all(self) -> None:
        with self._lock:
            self.asked.clear()
            self._lost = None

    def each_lost(self) -> Iterator[tuple[int, Loss]]:
        """Loses one answer after another, in each way: yields (number, loss) for the job that is to be done,
        until that sends no such request."""
        for loss in LOSSES:
            for number in itertools.count():
                self.lose(number, loss)
                yield number, loss
                if len(self.asked) <= number:
                    assert number > 0, "the job has sent nothing"
                    break

    def _count(self, request: str) -> Loss | None:
        if request.startswith(("GET", "HEAD")):
            return None
        with self._lock:
            self.asked.append(request)
            if self._lost is None or len(self.asked) - 1 != self._lost[0]:
                return None
            return self._lost[1]
