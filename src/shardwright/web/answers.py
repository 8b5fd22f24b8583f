"""Answers as JSON that can always be sent: plain ASCII, so that half of a surrogate pair, in a client's name
or a file's, is only an escape."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
