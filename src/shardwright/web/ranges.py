"""The byte range of a file that a request wants (RFC 9110, section 14)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_RANGE = re.compile(r"bytes=\s*(?P<first>[0-9]{0,19})-(?P<last>[0-9]{0,19})\s*", re.IGNORECASE)


class UnsatisfiableRangeError(Exception):
    """The file has no such bytes."""


def wanted_range(headers: Headers, etag: str, size: int) -> tuple[int, int] | None:
    """Returns the first byte and the one after the last. Returns None for the whole file, also when there are
    several ranges or none that is valid.

    Raises ``UnsatisfiableRangeError``.
    """
    match = _RANGE.fullmatch(headers.get("range", ""))
    if match is None or headers.get("if-range", etag) != etag:
        return None
    first, last = match["first"], match["last"]
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    elif last:
        start, stop = max(0, size - int(last)), size
    else:
        return None
    if start >= size or start >= stop:
        raise UnsatisfiableRangeError
    return start, stop


def is_unchanged(headers: Headers, etag: str) -> bool:
    """True if the client has the file already."""
    known = headers.get("if-none-match")
    return known is not None and (
        known.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in known.split(","))
    )
