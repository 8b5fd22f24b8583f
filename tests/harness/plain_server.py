"""A server of plain files on loopback, as any web server is for a Zarr reader: GET and HEAD with ranges, no
lists. In a thread of its own."""

from __future__ import annotations

import functools
import os
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .loopback_server import LoopbackServer

if TYPE_CHECKING:
    from collections.abc import Callable


class PlainServer(LoopbackServer):
    """Serves a folder. ``asked``: method, path and range of every request. ``answer(method, path)``: a status
    to answer instead of the file, None for the file. ``has_suffixes``: knows ranges "the last n bytes", which
    many servers do not; ``has_ranges``: any."""

    def __init__(self, folder: Path, *, has_suffixes: bool = True, has_ranges: bool = True) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self.answer: Callable[[str, str], int | None] = lambda _method, _path: None
        server = self

        class Handler(SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def send_head(self) -> Any:
                wanted = self.headers.get("Range")
                server.asked.append((self.command, self.path, wanted))
                if (status := server.answer(self.command, self.path)) is not None:
                    self.send_error(status)
                    return None
                return super().send_head() if wanted is None or not has_ranges else self._ranged(wanted)

            def _ranged(self, wanted: str) -> None:
                try:
                    with Path(self.translate_path(self.path)).open("rb") as file:
                        modified, data = os.fstat(file.fileno()).st_mtime, file.read()
                except OSError:
                    return self.send_error(HTTPStatus.NOT_FOUND)
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                if not first and not has_suffixes:
                    return self.send_error(HTTPStatus.BAD_REQUEST)
                start = int(first) if first else max(0, len(data) - int(last))
                part = data[start : int(last) + 1 if first and last else None]
                if not part:
                    return self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                self.send_response(HTTPStatus.PARTIAL_CONTENT)
                self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(part)))
                self.send_header("Last-Modified", self.date_time_string(int(modified)))
                self.end_headers()
                self.wfile.write(part)
                return None

            def list_directory(self, _path: Any) -> Any:
                self.send_error(HTTPStatus.FORBIDDEN)

            def log_message(self, *_: object) -> None:
                """Nothing of it is written."""

        super().__init__(functools.partial(Handler, directory=str(folder)))
