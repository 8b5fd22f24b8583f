"""A folder of small files of the software, read once into memory: serving them touches no disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from .ranges import is_unchanged

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

INDEX = "index.html"
# Not the machine's own table: a browser's behaviour must not depend on it. Other kinds of files are not
# served.
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class _StaticFile:
    content: bytes
    etag: str
    media_type: str


class StaticFolder:
    """An endpoint that answers ``path`` with the file of that name below ``folder``, and no path with
    ``index.html``."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
        }

    async def respond(self, request: Request) -> Response:
        file = self._files.get(request.path_params["path"] or INDEX)
        if file is None:
            return PlainTextResponse("There is no such page.\n", 404)
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if is_unchanged(request.headers, file.etag):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)


def _read(path: Path) -> _StaticFile:
    content = path.read_bytes()
    return _StaticFile(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"', _TYPES[path.suffix])
