"""The border where a user's path enters: ``s3://BUCKET/x`` is an address, and never a folder ``s3:`` of this
computer.

``pathlib`` makes ``s3:/BUCKET/x`` of an address, without an error, and every later check sees a legal
relative path. So each function and command that takes a path passes it through ``local_path`` first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import ConfigError

# Two characters at least: ``C:`` is a drive. A ``./`` before it does not make it a path, since pathlib drops
# that. A chain (``zip::s3://``) is an address, too; ``a:b`` and ``run:1/x`` are names of folders.
ADDRESS_PATTERN = r"(\./+)*[A-Za-z][A-Za-z0-9+.:-]+:([/\\]|$)"
_MOST_BYTES = 4095  # Linux takes no longer path: PATH_MAX, without the null character at its end
_ADDRESS = re.compile(ADDRESS_PATTERN)


def is_address(path: str | os.PathLike[str]) -> bool:
    """Returns whether this is ``SCHEME://…``, or what pathlib makes of it. An absolute path never is."""
    return _ADDRESS.match(os.fspath(path)) is not None


def can_be_path(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file system takes this text as a path."""
    try:
        text = os.fsencode(path)
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return b"\0" not in text and len(text) <= _MOST_BYTES


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a file or folder of this computer as it was given, relative or absolute. Raises
    ``ConfigError`` for an address, and for a text that no file system takes."""
    if not can_be_path(path):
        raise ConfigError(
            "no file or folder can have this path",
            expected=f"at most {_MOST_BYTES} bytes of text without null characters",
            got=repr(os.fspath(path))[:80],
        )
    if is_address(path):
        raise ConfigError(
            f"{os.fspath(path)} is an address",
            expected="the path of a file or folder of this computer",
            hint="`shardwright compact STORE --to s3://BUCKET/PREFIX` sends a finished store to a bucket, "
            "`shardwright rechunk` a new one. sw.open, open_array, open_xarray, frame_table and ChunkStore "
            "open s3:// and http(s)://, so do inspect, verify and view; sw.follow reads http(s)://. For a "
            "folder here that has such a name give the absolute path",
        )
    return Path(path)
