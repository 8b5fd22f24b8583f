"""The lines of the control protocol, for both sides: one JSON object a line, as CONTROL.md describes.
Standard library only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ProtocolError, ShardwrightError, VersionError, error_from_dict
from shardwright.model.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS = (1, 2)
# The version that brought each request. A client asks in that one, so that it can ask an earlier daemon, too;
# an earlier version has none of the later ones.
SINCE = {
    **dict.fromkeys(("status", "events", "preview", "stop", "drain"), 1),
    **dict.fromkeys(("arm", "describe", "counts", "watch", "flush", "set_metadata"), 2),
}
MAX_REQUEST_BYTES = 256 << 10  # without the newline; the specification of an acquisition may have 192 KiB
MAX_REPLY_BYTES = 16 << 20  # the description of a plate of 16,384 fields has some 7 MB


def encode_request(do: str, facts: Mapping[str, Any]) -> bytes:
    """Returns the line of a request. Raises ``ProtocolError`` for one that is too long."""
    line = json.dumps({"version": SINCE.get(do, VERSIONS[-1]), "do": do, **facts}).encode()
    if len(line) > MAX_REQUEST_BYTES:
        raise ProtocolError(
            "a control request that is too long", expected=f"at most {MAX_REQUEST_BYTES} bytes", got=len(line)
        )
    return line + b"\n"


def decode_request(line: bytes) -> dict[str, Any]:
    """Returns the request in ``line``, of one of ``VERSIONS``, whose ``do`` is text. Raises
    ``ProtocolError``, ``VersionError``."""
    request = _decode_object(line, "request")
    _check_version(request, "Use the shardwright command of the version that the daemon runs")
    if not isinstance(request.get("do"), str):
        raise ProtocolError(
            "a control request without a name", expected='"do": NAME', got=_shown(request.get("do"))
        )
    return request


def encode_reply(facts: Mapping[str, Any], version: int = 1) -> bytes:
    """Returns the line of an answer, in the version of its request. Values that JSON lacks are sent as text.
    An answer that is too long becomes an error."""
    line = json.dumps({"version": version, "ok": True, **facts}, default=str).encode()
    if len(line) > MAX_REPLY_BYTES:
        return encode_error(
            ProtocolError(
                "the answer is too long for one line",
                expected=f"at most {MAX_REPLY_BYTES} bytes",
                got=len(line),
            ),
            version,
        )
    return line + b"\n"


def encode_error(error: ShardwrightError, version: int = 1) -> bytes:
    return json.dumps({"version": version, "ok": False, "error": error.to_dict()}).encode() + b"\n"


def decode_reply(line: bytes) -> dict[str, Any]:
    """Returns the answer in ``line``. Raises the error in it, or ``ProtocolError`` or ``VersionError`` for a
    line that is no answer."""
    reply = _decode_object(line, "reply")
    _check_version(reply, "The daemon is of another version than this command")
    if reply.get("ok") is True:
        return reply
    error = reply.get("error")
    raise error_from_dict(error if isinstance(error, dict) else {})


def _decode_object(line: bytes, what: str) -> dict[str, Any]:
    try:
        found = parse_json(line, may_be_nan=True)
    except ValueError as error:
        raise ProtocolError(
            f"a control {what} that is not JSON",
            expected="one JSON object a line, in UTF-8",
            got=_shown(str(error)),
        ) from None
    if not isinstance(found, dict):
        raise ProtocolError(
            f"a control {what} of the wrong kind", expected="a JSON object", got=_shown(found)
        )
    return found


def _check_version(message: Mapping[str, Any], hint: str) -> None:
    version = message.get("version")
    if isinstance(version, bool) or version not in VERSIONS:
        raise VersionError(
            "another version of the control protocol",
            expected=f"version {' or '.join(map(str, VERSIONS))}",
            got=_shown(version),
            hint=hint,
        )


def _shown(value: Any) -> str:
    return repr(value)[:160]
