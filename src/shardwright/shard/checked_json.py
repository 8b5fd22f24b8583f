"""JSON files of a workspace that carry the crc32c of what they say. The checksum is that of the other fields
as JSON with sorted keys, without spaces, in ASCII; the file has exactly the bytes that ``json.dumps(...,
indent=2)`` makes of it.

A module of its own, since two files have this form, the manifest and metadata that were updated, and each
line of a job's record has this checksum.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import crc32c

from shardwright.disk.files import read_regular, storage_errors
from shardwright.model.errors import ShardFormatError
from shardwright.model.json_text import parse_json

if TYPE_CHECKING:
    from pathlib import Path


def encode_checked(facts: dict[str, Any]) -> bytes:
    """Returns the bytes of a file with these facts, which are JSON values."""
    return json.dumps(with_checksum(facts), indent=2).encode()


def with_checksum(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns facts, which are JSON values, and their checksum."""
    return {**facts, "crc32c": checksum(facts)}


def read_checked(path: Path, most_bytes: int) -> dict[str, Any]:
    """Returns the facts of a file. Raises ``ShardFormatError`` when it is damaged or longer than
    ``most_bytes``, ``StorageError``."""
    with storage_errors("read", path):
        text = read_regular(path, most_bytes)
    try:
        facts = parse_json(text)
        if not isinstance(facts, dict):
            raise ShardFormatError(f"{path} is damaged", expected="a JSON object", got=type(facts).__name__)
        recorded = facts.pop("crc32c", None)
        is_sound = encode_checked(facts) == text
    except ValueError as error:
        raise ShardFormatError(f"{path} is damaged: not JSON ({error})") from None
    if not is_sound:
        raise ShardFormatError(
            f"{path} is damaged: its crc32c does not hold", expected=checksum(facts), got=repr(recorded)[:40]
        )
    return facts


def checksum(facts: dict[str, Any]) -> int:
    """Returns the crc32c of facts, which are JSON values."""
    return int(crc32c.crc32c(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()))
