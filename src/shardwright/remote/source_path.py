"""The path of a store that is to be read: here the text that a user gives becomes a place of one kind."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from shardwright.disk import beneath
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ConfigError

from .object_path import ObjectPath
from .zip_path import within_archive

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS = re.compile(r"(?:\./+)*(s3|https?):/+(.+)", re.IGNORECASE | re.DOTALL)
_IN_NO_KEY = re.compile(r"[\0-\x1f\x7f\ud800-\udfff]")


def source_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a store to read: ``ObjectPath`` of s3:// and http(s)://, also as pathlib spells it,
    ``ZipPath`` of a zip file and of what is in one, wherever it is, any other as ``beneath.user_path`` does.
    Raises ``ConfigError``, and ``StorageError`` where it is asked for (a path with ``.ozx``)."""
    if isinstance(path, RemotePath):
        return path
    text = os.fspath(path)
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return within_archive(beneath.user_path(path))
    scheme, rest = found[1].lower(), found[2].strip("/")
    if "@" in rest.partition("/")[0] or (scheme != "s3" and "?" in rest):
        raise ConfigError(  # which is not repeated: messages and logs would have it
            "an address with a password or a query is not read",
            expected="s3://BUCKET/KEY or http(s)://SERVER/PATH: a store is many files, each with an address "
            "below it",
        )
    if scheme != "s3":
        rest = unquote(rest)
    if ".." in rest.split("/") or _IN_NO_KEY.search(rest):
        raise ConfigError(
            "no object has such an address", expected="names between slashes", got=repr(text)[:80]
        )
    return within_archive(ObjectPath(f"{scheme}:/{rest}"))
