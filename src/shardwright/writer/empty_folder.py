"""The empty folder that a user has made for a store: the store takes its place and its mode."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from shardwright.disk import beneath
from shardwright.model.errors import OutputExistsError

if TYPE_CHECKING:
    from collections.abc import Callable


class _WithPath(Protocol):
    @property
    def path(self) -> Path: ...


Placed = TypeVar("Placed", bound=_WithPath)


def in_place_of_empty_folder(path: Path, make: Callable[[], Placed]) -> Placed:
    """Returns the writer that ``make`` makes, whose store may take the place of an empty folder. If it fails,
    the folder is made again. Raises ``OutputExistsError`` for the folder in which this process is: it would
    be in none any more."""
    mode = _empty_folder_mode(path)
    if mode is not None:
        with suppress(OSError):
            if os.path.samestat(beneath.stat(path), beneath.stat(Path.cwd())):
                mode = -1
        if mode == -1:
            raise OutputExistsError(
                "the store would replace the folder in which this program is",
                expected="the path of a folder that is not there yet, such as run.ome.zarr",
                got=path,
            )
        try:
            beneath.remove_folder(path)
        except OSError:  # such as a mount point: it stays, and its name is taken
            mode = None
    try:
        writer = make()
    except BaseException:
        if mode is not None:
            with suppress(OSError):  # another process has taken the name meanwhile
                beneath.make_folder(path)
                _set_mode(path, mode)
        raise
    if mode is not None and writer.path == path:
        with suppress(OSError):
            _set_mode(path, mode | stat.S_IRWXU)  # its owner must be able to write it
    return writer


def _set_mode(path: Path, mode: int) -> None:
    descriptor = beneath.open_file(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)
    finally:
        beneath.close(descriptor)


def _empty_folder_mode(path: Path) -> int | None:
    """Returns the mode of an empty folder, None for anything else."""
    with suppress(OSError):
        found = beneath.stat(path)
        if stat.S_ISDIR(found.st_mode) and not beneath.names_in(path):
            return stat.S_IMODE(found.st_mode)
    return None
