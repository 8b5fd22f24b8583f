"""Opens, looks at and changes paths of which no component is a symbolic link: the one way to a file or folder
of a store.

    a path from the user ──▶ user_path: links above the store, and that to it, are resolved, once
    store / any / key    ──▶ the functions here: a link on the way is a LinkError

Whoever may write into a store, or hands one over, can put a link in place of any file or folder of it, also
between two of our calls. So no path is checked before it is used: the kernel resolves it, and refuses links
while it does so (openat2 with RESOLVE_NO_SYMLINKS). Where it has no such call, each folder is opened from the
one above it. The descriptor of the store's own folder is not needed for that: with links refused, every
component of a path that was resolved once is a folder that stands where it is named, and a border that
forgets to resolve refuses too much, never too little.

What a name stands for (stat, unlink, rename, link, mkdir) is asked of its parent folder, which is opened in
this way; the last component is not followed by any of these calls. All functions raise ``OSError``, of which
``LinkError`` is one.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat as modes
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shardwright.model.errors import LinkError
from shardwright.model.local_path import local_path
from shardwright.model.names import DOCUMENT, WORKSPACE

from . import system
from .remote_path import RemotePath
from .system import FOLDER
from .typed_errors import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # also at a link itself


def open_file(path: Path | str, flags: int, mode: int = 0o644, *, folder: int | None = None) -> int:
    """Returns a descriptor of a path, closed on exec; a relative path begins at the descriptor ``folder``,
    if given. Raises ``OSError``, ``LinkError`` where a component is a link."""
    name = os.fspath(path)
    if "\0" in name:  # C would take the part before it
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    try:
        return system.calls.open(name, flags, mode, folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            _refuse(path, folder)
        raise


def _refuse(path: Path | str, folder: int | None) -> NoReturn:
    """Raises the error that names the component that is a link."""
    path = Path(path)
    named = path
    for current in (*reversed(path.parents), path):
        try:
            if modes.S_ISLNK(os.stat(current, dir_fd=folder, follow_symlinks=False).st_mode):
                named = current
                break
        except OSError:
            break  # it was changed meanwhile
    raise LinkError(
        f"{named} is a symbolic link, which is not followed",
        hint="Links in a store could lead out of it: replace it by what it leads to, or delete it",
    )


def close(descriptor: int) -> None:
    """Closes what ``open_file`` has opened."""
    system.calls.close(descriptor)


@contextmanager
def folder_of(path: Path | str) -> Iterator[int]:
    """A context with a descriptor of a folder, for looks at several names in it."""
    descriptor = open_file(path, FOLDER)
    try:
        yield descriptor
    finally:
        close(descriptor)


@contextmanager
def parent_of(path: Path) -> Iterator[tuple[int, str]]:
    """A context with a descriptor of the folder of a path, and the last component."""
    above, name = os.path.split(path)  # as text: to make and parse a ``Path`` takes as long as the call
    descriptor = open_file(above or ".", FOLDER)
    try:
        yield descriptor, name
    finally:
        close(descriptor)


# What a name stands for. A link as the last component is itself what they tell of.


def stat(path: Path | str, *, folder: int | None = None) -> os.stat_result:
    """Returns the status of a file or folder, or of the link that has the name."""
    if isinstance(path, RemotePath):
        return path.stat()
    if folder is not None and isinstance(path, str) and "/" not in path:
        return os.stat(path, dir_fd=folder, follow_symlinks=False)  # nothing on the way that could be a link
    descriptor = open_file(path, _LOOK, folder=folder)
    try:
        return os.fstat(descriptor)
    finally:
        close(descriptor)


def _mode(path: Path) -> int:
    """Returns the kind of what has the name, 0 if nothing has. Raises ``StorageError``: no caller expects
    that a look needs a descriptor, or reads the disk."""
    with storage_errors("look at", path):
        try:
            return stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0


def exists(path: Path) -> bool:
    """Returns whether anything has the name, also a link that leads nowhere."""
    return _mode(path) != 0


def is_file(path: Path) -> bool:
    """Returns whether the name is a regular file's."""
    return modes.S_ISREG(_mode(path))


def is_dir(path: Path) -> bool:
    """Returns whether the name is a folder's."""
    return modes.S_ISDIR(_mode(path))


def is_changeable(path: Path) -> bool:
    """Returns whether this user may have made a folder: it is no mount point, nor in a folder that this user
    cannot change, or not sync."""
    if path == path.parent:
        return False
    with parent_of(path) as (folder, name):
        return os.fstat(folder).st_dev == stat(name, folder=folder).st_dev and os.access(
            ".", os.R_OK | os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True
        )


def is_link(path: Path) -> bool:
    """Returns whether the name is a link's."""
    return modes.S_ISLNK(_mode(path))


def check_no_link(path: Path) -> None:
    """Raises ``LinkError`` if the name is a link's."""
    if is_link(path):
        _refuse(path, None)


def read_link(path: Path) -> Path:
    """Returns the text of a link."""
    with parent_of(path) as (folder, name):
        return Path(os.readlink(name, dir_fd=folder))


def filesystem_of(path: Path) -> os.statvfs_result:
    """Returns the facts of the filesystem of a path."""
    descriptor = open_file(path, os.O_PATH)
    try:
        return system.calls.room(descriptor)
    finally:
        close(descriptor)


# Names in folders


def names_in(path: Path) -> list[str]:
    """Returns the names in a folder, in no order."""
    if isinstance(path, RemotePath):
        return path.names()
    descriptor = open_file(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return system.calls.names(descriptor)
    finally:
        close(descriptor)


def paths_in(path: Path) -> list[Path]:
    """Returns the paths of what is in a folder, in no order."""
    return [path / name for name in names_in(path)]


@contextmanager
def entries_in(path: Path, *, folder: int | None = None) -> Iterator[Iterator[os.DirEntry[str]]]:
    """A context with the entries of a folder, read as they are asked for. Their ``path`` is the name alone;
    ask them for what they are with ``follow_symlinks=False``."""
    descriptor = open_file(path, os.O_RDONLY | os.O_DIRECTORY, folder=folder)
    try:
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        close(descriptor)


def matching(path: Path, pattern: str) -> list[Path]:
    """Returns the paths in a folder whose names match a shell pattern; none if there is no folder."""
    try:
        return [path / name for name in names_in(path) if fnmatch.fnmatchcase(name, pattern)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def walk(
    top: Path, *, top_down: bool = True, failed: Callable[[OSError], None] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yields (folder, names of folders, other names) of a folder and all below it, as ``os.walk`` does; links
    are among the other names. A folder that cannot be read goes to ``failed``, or is left out."""
    folders: list[str] = []
    others: list[str] = []
    try:
        with entries_in(top) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    except OSError as error:
        if failed is not None:
            failed(error)
        return
    if top_down:
        yield top, folders, others
    for name in folders:
        yield from walk(top / name, top_down=top_down, failed=failed)
    if not top_down:
        yield top, folders, others


def all_below(path: Path) -> Iterator[Path]:
    """Yields the paths of everything below a folder; links are not followed. What is gone has nothing. Raises
    ``OSError`` for a folder that cannot be read: who took it for empty could delete what is in it."""
    for folder, folders, others in walk(path, failed=raise_unless_gone):
        yield from (folder / name for name in (*folders, *others))


# Changes of names

# The answer to one of them may be lost: the server of a network disk has done it, and its client asks again
# and is told that the old name is not there (ENOENT), or that the new one is (EEXIST); a failing disk may
# answer EIO to what it has done. A caller that believed that would take its own file for another writer's, or
# delete what has its name. So each is settled here, for all callers, by what the names stand for afterwards.
# Only ``make_folder`` is not: a folder does not tell who has made it.


@contextmanager
def _settled(is_done: Callable[[], bool]) -> Iterator[None]:
    """A context for one change of names. If it fails, ``is_done`` looks at the names: the change was made
    where that returns true. Else, and if they cannot be looked at, the error is raised."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            if is_done():
                return
        raise


def _identity(folder: int, name: str) -> tuple[int, int] | None:
    """Returns what tells the file, folder or link of this name from all others; None if nothing has it."""
    try:
        found = stat(name, folder=folder)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _identity_before(folder: int, name: str) -> tuple[int, int] | None:
    """As ``_identity``; None also where it cannot be looked at: the change then shows what is wrong."""
    with suppress(OSError):
        return _identity(folder, name)
    return None


def _deleted(call: Callable[[int, str], None], folder: int, name: str) -> None:
    before = _identity_before(folder, name)
    with _settled(lambda: before is not None and _identity(folder, name) is None):
        call(folder, name)


def _renamed(source: Path, target: Path, flags: int) -> None:
    above, new_name = os.path.split(target)
    with parent_of(source) as (old, old_name), ExitStack() as stack:
        is_near = os.path.split(source)[0] == above
        new = old if is_near else stack.enter_context(folder_of(above or "."))
        moved = _identity_before(old, old_name)
        left = _identity_before(new, new_name) if flags == RENAME_EXCHANGE else None

        def is_done() -> bool:
            names = _identity(old, old_name), _identity(new, new_name)
            return moved is not None and names == (left, moved)

        with _settled(is_done):
            system.calls.rename(old, old_name, new, new_name, flags)


def unlink_own(path: Path, descriptor: int) -> None:
    """Deletes a name if it is still that of an open file."""
    with suppress(FileNotFoundError), parent_of(path) as (folder, name):
        if os.path.samestat(os.fstat(descriptor), stat(name, folder=folder)):
            _deleted(system.calls.unlink, folder, name)


def unlink(path: Path, *, missing_ok: bool = False) -> None:
    """Deletes a name; of a link the link."""
    try:
        with parent_of(path) as (folder, name):
            _deleted(system.calls.unlink, folder, name)
    except FileNotFoundError:
        if not missing_ok:
            raise


def make_folder(path: Path, mode: int = 0o777, *, exist_ok: bool = False) -> None:
    """Makes a folder."""
    try:
        with parent_of(path) as (folder, name):
            system.calls.make_folder(folder, name, mode)
    except FileExistsError:
        if not exist_ok:
            raise
        close(open_file(path, FOLDER))  # a link, or a file, is an error


def make_folders(path: Path, before_each: Callable[[Path], None]) -> None:
    """Makes a folder and those above it that are not there, each from the one above. ``before_each`` is
    called with the path of each that is made. Raises ``FileNotFoundError`` if another process removes one
    meanwhile."""
    missing = []
    while True:
        try:
            descriptor = open_file(path, FOLDER)
            break
        except FileNotFoundError:
            missing.append(path)
            path = path.parent
    try:
        for folder in reversed(missing):
            before_each(folder)
            try:
                system.calls.make_folder(descriptor, folder.name, 0o777)
                if folder is missing[0]:
                    break
            except FileExistsError:
                pass  # by another thread, or the answer to an earlier call was lost
            inner = open_file(folder.name, FOLDER, folder=descriptor)  # a link, or a file, is an error
            close(descriptor)
            descriptor = inner
    finally:
        close(descriptor)


def remove_folder(path: Path) -> None:
    """Deletes an empty folder."""
    with parent_of(path) as (folder, name):
        _deleted(system.calls.remove_folder, folder, name)


def remove_tree(path: Path, *, ignore_errors: bool = False) -> None:
    """Deletes a folder with everything in it; of links the links."""
    try:
        check_no_link(path)
        for folder, folders, others in walk(path, top_down=False, failed=raise_failure):
            for name in others:
                unlink(folder / name)
            for name in folders:
                remove_folder(folder / name)
        remove_folder(path)
    except OSError:
        if not ignore_errors:
            raise


def raise_unless_gone(error: OSError) -> None:
    """Raises the error of a folder that is there: as ``failed`` of ``walk``."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise_failure(error)


def raise_failure(error: OSError) -> NoReturn:
    """Raises the error: as ``failed`` of ``walk``."""
    try:
        raise error
    finally:
        del error  # in its traceback it would hold itself, and every caller's frame


def replace(source: Path, target: Path) -> None:
    """Renames, in place of what has the name ``target``; a folder replaces an empty folder alone."""
    _renamed(source, target, 0)


def rename_with(source: Path, target: Path, flags: int) -> None:
    """Renames with flags of renameat2(2)."""
    _renamed(source, target, flags)


def add_name(path: Path, name: Path) -> None:
    """Gives a file (or a link) one more name. Does nothing if that is one of its names."""
    with (
        parent_of(path) as (old, old_name),
        parent_of(name) as (new, new_name),
        _settled(lambda: _identity(old, old_name) == _identity(new, new_name) is not None),
    ):
        system.calls.add_name(old, old_name, new, new_name)


def make_link(path: Path, target: Path) -> None:
    """Makes a symbolic link. Does nothing if there is one that leads there."""
    with parent_of(path) as (folder, name), _settled(lambda: read_link(path) == target):
        system.calls.make_link(folder, name, target)


# The border


def user_path(path: Path | str | os.PathLike[str], *, is_new: bool = False) -> Path:
    """Returns a path that a user has given as an absolute one, for the other functions: links above the store
    that it lies in, and a link to that store, are resolved; nothing within the store is. ``is_new``:
    something of this name is about to be made, and the name itself is left as it is. Raises
    ``ConfigError`` as ``local_path``."""
    absolute = local_path(path).absolute()
    *parts, last = absolute.parts
    current = Path(absolute.anchor)
    for number, part in enumerate((*parts, last)[1:], 1):
        is_last = number == len(parts)
        if is_last and is_new and part != "..":
            return current / part
        current = current.parent if part == ".." else Path(os.path.realpath(current / part))
        if not is_last and any(os.path.lexists(current / name) for name in (DOCUMENT, WORKSPACE)):
            inside = current.joinpath(*absolute.parts[number + 1 :])
            # a way out again: without links in between, the text alone says where it leads
            return user_path(os.path.normpath(inside), is_new=is_new) if ".." in inside.parts else inside
    return current
