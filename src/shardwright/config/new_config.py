"""A new configuration: the least that a rig needs, with the layout that fits its frames."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.array.default_layout import default_layout
from shardwright.disk.beneath import user_path
from shardwright.disk.files import replace_file, storage_errors
from shardwright.model.errors import ConfigError

from .source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Relative, so that nobody must be root: a new folder, into which the daemon lets nobody else.
DEFAULT_ENDPOINT = "ipc://run/ingest.sock"


def new_config_text(
    folder: Path,
    root: Path,
    cameras: Sequence[str],
    shape: tuple[int, int],
    dtype: str,
    frame_rate_hz: float,
    endpoint: str = DEFAULT_ENDPOINT,
) -> str:
    """Returns YAML of a file in ``folder``, for cameras with frames of one ``shape``. Its values are not
    checked. Raises ``SpecError`` for frames that have no layout, ``StorageError`` for a ``root`` that cannot
    be looked at."""
    # A path that a user gives counts from the working directory, and one in the file from the file's folder.
    given = root if folder == Path.cwd() else root.absolute()
    is_there = _mode_of(root, followed=True)
    lines = [
        "# Made by `shardwright init`. `shardwright check` says whether it will run here. More examples are",
        "# in configs/ of the source, all fields in `shardwright schema`. Relative paths count from here.",
        "output:",
        f"  root: {_scalar(str(given))}",
        # of a disk that is not mounted the daemon is not to make a folder
        *([] if is_there else ["  create: true # leave this out where a disk is mounted"]),
        "ingest:",
        f"  endpoints: [{json.dumps(endpoint)}]",
        "streams:",
    ]
    for camera in cameras:
        lines += _stream(camera, shape, dtype, frame_rate_hz)
    return "\n".join([*lines, ""])


def check_may_write(path: Path, *, replace: bool) -> None:
    """Raises ``ConfigError`` if there is something of this name, with ``replace`` only for what is no file,
    as a link, which may lead to another rig's. Raises ``StorageError``."""
    mode = _mode_of(path, followed=False)
    if mode and not stat.S_ISREG(mode):
        kind = f"a link to {os.readlink(path)}" if stat.S_ISLNK(mode) else "no regular file"  # noqa: PTH115  (as it is)
        raise ConfigError(f"{path} is {kind}", hint="Give another name")
    if mode and not replace:
        raise ConfigError(f"{path} exists", hint="Give another name, or --force to replace it")


def write_new_config(path: Path, text: str, *, replace: bool) -> None:
    """Writes the whole file or nothing. Raises as ``check_may_write``, without ``replace``
    ``OutputExistsError`` if it comes in this moment."""
    check_may_write(path, replace=replace)
    replace_file(user_path(path, is_new=True), text.encode(), is_new=not replace)


def _mode_of(path: Path, *, followed: bool) -> int:
    """The kind of what has the name, 0 if nothing has. Raises ``StorageError``."""
    with storage_errors("look at", path):
        try:
            return path.stat(follow_symlinks=followed).st_mode
        except FileNotFoundError:
            return 0


def _stream(camera: str, shape: tuple[int, int], dtype: str, frame_rate_hz: float) -> Iterator[str]:
    yield f"  - name: {_scalar(camera)}"
    yield f"    frame_rate_hz: {frame_rate_hz:.12g}"
    yield "    array:"
    yield f"      dtype: {dtype}"
    yield "      dimensions:"
    for d in default_layout((None, *shape), dtype, "tyx").dimensions:
        count = "" if d.count is None else f" count: {d.count},"
        sizes = f"chunk_size: {d.chunk_size}, shard_size_chunks: {d.shard_size_chunks}"
        yield f"        - {{ name: {d.name},{count} {sizes} }}"


def _scalar(text: str) -> str:
    """The text as it is if YAML reads it so, else in quotes."""
    try:
        is_plain = Source.parse(f"of: {text}", "").data == {"of": text}
    except ConfigError:
        is_plain = False
    return text if is_plain else json.dumps(text)
