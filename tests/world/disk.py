"""A simulated disk: real files in a folder in memory, so that kernels, mappings, locks and links work as they
do, and beside them what the medium holds. A kill leaves the files as they are; a power cut leaves what was
synced and a seeded choice of the rest: names one by one, bytes page by page, a page torn between sectors.

What a sync makes durable is a copy of the file's bytes, or of the names in its folder. So nothing has to be
told when bytes change: a page that differs from its copy was not synced. A sync that fails leaves pages that
later syncs take for clean (``File.clean``), as the kernel does.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from shardwright.disk.system import OperatingSystem

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

PAGE, SECTOR = 4096, 512
TORN = 0.2  # of writes, where some are: others act before one, and a kill leaves some of its bytes


class Killed(BaseException):
    """The process that made this call is dead."""


class DefectError(BaseException):
    """A mistake of the code, or of the world around it: no handler may take it for an error of the disk."""


@dataclass(frozen=True)
class Wrong:
    """What an actor's next sync meets, or (``done``) its next change of names, which is made all the same.
    ``error``: its errno; None: what a call gets that is repeated because its answer was lost. Or (``short``)
    its next write: a part of it is made, and then an error comes, or (None) it is told how much that is."""

    error: int | None = errno.EIO
    done: bool = False
    short: bool = False


class Caller(Protocol):
    """Who makes calls. ``unmarked``: a sync of it has failed, and it makes so many calls until the store
    tells that."""

    wrong: Wrong | None
    unmarked: int


class _ByInode(dict[int, "File"]):
    def __missing__(self, inode: int) -> File:
        raise DefectError(f"a file that the disk does not know: inode {inode}")


@dataclass(eq=False)
class File:
    """A file, a folder or a link, by its inode. ``descriptor`` keeps it alive. ``durable``: its bytes on the
    medium; of a folder its names there. ``clean``: pages that a failed sync has left in memory alone.
    ``failures``: how often its bytes could not be written, of which each descriptor hears once, and one that
    is opened later of what nobody was ``told`` yet. ``stamp``: its time of change, as ``SimulatedDisk.stamp``
    has set it."""

    descriptor: int
    kind: int
    durable: bytes = b""
    names: dict[str, File] = field(default_factory=dict)
    clean: dict[int, bytes] = field(default_factory=dict)
    failures: int = 0
    told: int = 0
    target: str = ""
    stamp: int = -1

    def bytes(self) -> bytes:
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)

    def is_clean(self, page: int, piece: bytes) -> bool:
        """Whether a page is still what a failed sync has left: it is so in a file that has become longer."""
        return self.clean.get(page) == piece.ljust(PAGE, b"\0")


# what a call does to the names of folders: (folder, name, file or None), together or not at all
Change = list[tuple[File, str, "File | None"]]


@dataclass
class Opened:
    inode: int
    heard: int  # of the failures of the file
    heard_whole: int  # of those of all files, which a sync of the filesystem tells
    file: weakref.ref[IO[bytes]] | None = None


class Descriptors:
    """Of one process: what it has open. ``is_dead``: it was killed. ``chance``: of its own, what it finds in
    no order; None: the disk's."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.is_dead = False
        self.chance = chance
        self.opened: dict[int, Opened] = {}  # by descriptor


class SimulatedDisk(OperatingSystem):
    """``root``: an empty folder in memory. ``look`` is called before each look at names, ``pause`` within
    each change of them, before it is made: another process may act between a look at the fence and the
    change that it allows. ``full``: whether there is no room. ``torn``: by which chance a process is killed
    within a write; None: never. ``refused`` is called where a write fails half-way, and where a file or a
    folder was made by a call whose answer was lost: nobody can tell that it was not there before."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self._rng = rng
        self.process = Descriptors()  # of the one that runs now
        self.caller: Caller | None = None  # who makes the calls now
        self.full: Callable[[], bool] = lambda: False
        self.pause: Callable[[], None] = lambda: None
        self.look: Callable[[], None] = lambda: None
        self.torn: random.Random | None = None
        self.refused: Callable[[], None] = lambda: None
        self._files = _ByInode()
        self._owners: dict[int, Descriptors] = {}  # by descriptor
        self._stamps = 0
        self.late_errors = 0  # of syncs, that told of what had failed before
        self._failures = self._told_whole = 0  # as of a file, of the filesystem
        self._unsynced: list[Change] = []
        self._survives = 0.5  # how likely the power cut leaves what was not synced
        self._root = self._known(os.open(root, os.O_RDONLY | os.O_DIRECTORY))

    # ------------------------------------------------------------------ processes

    def _live(self) -> None:
        if self.process.is_dead:
            raise Killed

    def _let_others_act(self) -> None:
        self._live()
        self.pause()
        self._live()

    def kill(self, process: Descriptors) -> None:
        """Closes what it has open, once nothing of it runs any more."""
        process.is_dead = True
        for descriptor, opened in process.opened.items():
            if opened.file is not None:
                if (file := opened.file()) is not None:
                    file.close()
                continue
            with suppress(OSError):  # closed by a file that took it
                if os.fstat(descriptor).st_ino == opened.inode:
                    os.close(descriptor)
        process.opened.clear()

    # ------------------------------------------------------------------ descriptors

    def open(self, path: str, flags: int, mode: int = 0o644, folder: int | None = None) -> int:
        self._live()
        self.look()
        made = self._is_made(path, folder) if flags & os.O_CREAT else None
        descriptor = super().open(path, flags, mode, folder)
        if made is not None:
            file = self._known(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR))
            try:
                self._changed([(*made, file)], errno.EEXIST if flags & os.O_EXCL else errno.EIO)
            except OSError:
                os.close(descriptor)
                self.refused()
                raise
        inode = os.fstat(descriptor).st_ino
        known = self._files.get(inode)
        self.process.opened[descriptor] = Opened(inode, 0 if known is None else known.told, self._told_whole)
        self._owners[descriptor] = self.process
        return descriptor

    def _is_made(self, path: str, folder: int | None) -> tuple[File, str] | None:
        """The folder and the name of a file that is not there yet."""
        parent, name = os.path.split(path)
        with _Folder(super().open(parent, os.O_PATH | os.O_DIRECTORY, 0, folder)) as above:
            return (self._at(above), name) if _inode(above, name) is None else None

    def close(self, descriptor: int) -> None:
        # perhaps of another process than the one that runs: what nobody has any more is closed at any moment
        if (owner := self._owners.pop(descriptor, None)) is not None:
            owner.opened.pop(descriptor, None)
        super().close(descriptor)

    def file(self, descriptor: int, mode: str, buffering: int) -> IO[bytes]:
        file = super().file(descriptor, mode, buffering)
        self.process.opened[descriptor].file = weakref.ref(file)
        return file

    def room(self, descriptor: int) -> os.statvfs_result:
        facts = super().room(descriptor)
        return os.statvfs_result((*facts[:3], 0, 0, *facts[5:])) if self.full() else facts

    def names(self, descriptor: int) -> list[str]:
        self.look()
        found = sorted(super().names(descriptor))
        (self.process.chance or self._rng).shuffle(found)
        return found

    def _known(self, descriptor: int) -> File:
        """``descriptor`` is the disk's from now on."""
        status = os.fstat(descriptor)
        file = File(descriptor, stat.S_IFMT(status.st_mode))
        self._files[status.st_ino] = file
        return file

    def _at(self, descriptor: int) -> File:
        return self._files[os.fstat(descriptor).st_ino]

    # ------------------------------------------------------------------ names

    def unlink(self, folder: int, name: str) -> None:
        self._let_others_act()
        super().unlink(folder, name)
        self._changed([(self._at(folder), name, None)], errno.ENOENT)

    def make_folder(self, folder: int, name: str, mode: int) -> None:
        self._let_others_act()
        super().make_folder(folder, name, mode)
        file = self._known(os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder))
        try:
            self._changed([(self._at(folder), name, file)], errno.EEXIST)
        except FileExistsError:
            raise
        except OSError:
            self.refused()
            raise

    def remove_folder(self, folder: int, name: str) -> None:
        self._let_others_act()
        super().remove_folder(folder, name)
        self._changed([(self._at(folder), name, None)], errno.ENOENT)

    def rename(self, old: int, old_name: str, new: int, new_name: str, flags: int = 0) -> None:
        self._let_others_act()
        source = self._named(old, old_name)
        target = self._named(new, new_name)
        super().rename(old, old_name, new, new_name, flags)
        exchanged = target if flags & 2 else None
        change: Change = [(self._at(old), old_name, exchanged), (self._at(new), new_name, source)]
        self._changed(change, errno.EIO if exchanged else errno.ENOENT)

    def add_name(self, old: int, old_name: str, new: int, new_name: str) -> None:
        self._let_others_act()
        super().add_name(old, old_name, new, new_name)
        self._changed([(self._at(new), new_name, self._named(old, old_name))], errno.EEXIST)

    def make_link(self, folder: int, name: str, target: Path) -> None:
        self._let_others_act()
        super().make_link(folder, name, target)
        file = self._known(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder))
        file.target = os.fspath(target)
        self._changed([(self._at(folder), name, file)], errno.EEXIST)

    def _named(self, folder: int, name: str) -> File | None:
        inode = _inode(folder, name)
        return None if inode is None else self._files[inode]

    def _changed(self, change: Change, repeated: int) -> None:
        """A change is made; its answer may be lost. ``repeated``: errno of the call if it comes again."""
        self._unsynced.append(change)
        if (wrong := self._wrong(done=True)) is not None:
            raise _error(repeated if wrong.error is None else wrong.error)

    def _wrong(self, *, done: bool) -> Wrong | None:
        """What this call meets, which is over then."""
        caller = self.caller
        if caller is None or caller.wrong is None or caller.wrong.short or caller.wrong.done is not done:
            return None
        wrong, caller.wrong = caller.wrong, None
        return wrong

    # ------------------------------------------------------------------ bytes

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._live()
        write = super().write
        self._within(lambda part: write(descriptor, part, offset), data)
        data, wrong = self._cut_short(data)
        self._no_longer_clean(descriptor, offset, len(data))
        done = write(descriptor, data, offset)
        if wrong is not None:
            raise wrong
        return done

    def write_parts(self, descriptor: int, parts: Sequence[bytes], offset: int) -> int:
        return self.write(descriptor, b"".join(parts), offset)

    def append(self, descriptor: int, data: bytes) -> int:
        self._live()
        append = super().append
        self._within(lambda part: append(descriptor, bytes(part)), data)
        part, wrong = self._cut_short(data)
        done = append(descriptor, bytes(part))
        if wrong is not None:
            raise wrong
        return done

    def _cut_short(self, data: bytes | memoryview) -> tuple[bytes | memoryview, OSError | None]:
        """Returns what of a write is made, and the error behind it."""
        caller = self.caller
        if caller is None or caller.wrong is None or not caller.wrong.short:
            return data, None
        wrong, caller.wrong = caller.wrong, None
        part = data[: len(data) // 2 or len(data)]
        if wrong.error is None:
            return part, None
        self.refused()
        return part, _error(wrong.error)

    def _within(self, write: Callable[[memoryview], int], data: bytes | memoryview) -> None:
        """Lets others act within a write. Who is killed there has written its first bytes alone: those of a
        call become visible from the first to the last."""
        if self.torn is None or self.torn.random() >= TORN:
            return
        try:
            self._let_others_act()
        except Killed:
            write(memoryview(data)[: self.torn.randint(0, len(data))])
            raise

    def allocate(self, descriptor: int, start: int, nbytes: int, *, keeps_size: bool = False) -> None:
        self._live()
        super().allocate(descriptor, start, nbytes, keeps_size=keeps_size)

    def punch(self, descriptor: int, offset: int, nbytes: int) -> None:
        self._live()
        self._no_longer_clean(descriptor, offset, nbytes)
        super().punch(descriptor, offset, nbytes)

    def truncate(self, descriptor: int, nbytes: int) -> None:
        self._live()
        super().truncate(descriptor, nbytes)

    def _no_longer_clean(self, descriptor: int, offset: int, nbytes: int) -> None:
        if clean := self._at(descriptor).clean:
            for page in range(offset // PAGE, -(-(offset + nbytes) // PAGE)):
                clean.pop(page, None)

    def stamp(self) -> None:
        """Gives every file that was written since the last call a time of its own. The kernel's are those of
        its last tick, which are the same for many writes, and other ones each time that a story is told."""
        for file in self._files.values():
            if file.kind == stat.S_IFREG and os.fstat(file.descriptor).st_mtime_ns != file.stamp:
                self._stamps += 1
                file.stamp = self._stamps
                os.utime(file.descriptor, ns=(file.stamp, file.stamp))

    # ------------------------------------------------------------------ syncs

    def sync(self, descriptor: int, *, data_only: bool = False) -> None:
        self._live()
        if os.fstat(descriptor).st_ino not in self._files:
            return  # a folder above the root: its names outlive every cut
        file, opened = self._at(descriptor), self.process.opened.get(descriptor)
        if opened is None:
            raise DefectError("a sync of a file that its process has not opened")
        wrong = self._wrong(done=False)
        if wrong is not None:
            self._left_in_memory(file)
        else:
            self._sync(file)
        if opened.heard < file.failures:
            opened.heard = file.told = file.failures
            self._has_failed(late=wrong is None)
            raise _error((wrong and wrong.error) or errno.EIO)

    @property
    def untold(self) -> int:
        """How many files have failed to sync, which the next who opens and syncs them hears."""
        return sum(file.told < file.failures for file in self._files.values())

    def _has_failed(self, *, late: bool) -> None:
        """A sync tells its caller, and nobody else any more, that pages are not on the medium."""
        self.late_errors += late
        if self.caller is not None:
            self.caller.unmarked = 2

    def sync_filesystem(self, descriptor: int) -> None:
        self._live()
        failing = self._wrong(done=False)
        untold = [file for file in self._files.values() if file.told < file.failures]
        for file in self._files.values():
            if failing and self._rng.random() < 0.5:
                self._left_in_memory(file)
            elif not failing:
                self._sync(file)
        for file in untold:  # a descriptor that was open before hears of it as well
            file.told = file.failures
        # also of what another one has heard of: else files of which it has not would count as synced
        opened = self.process.opened[descriptor]
        unheard = opened.heard_whole < self._failures
        self._told_whole = opened.heard_whole = self._failures
        if failing or untold or unheard:
            self._has_failed(late=failing is None)
            raise _error((failing and failing.error) or errno.EIO)
        for change in self._unsynced:
            _carry_out(change)
        self._unsynced = []

    def _sync(self, file: File) -> None:
        if file.kind == stat.S_IFDIR:
            self._sync_names(file)
        elif file.kind == stat.S_IFREG:
            now = file.bytes()
            if file.clean:
                now = b"".join(
                    _page(file.durable, page, len(now)) if file.is_clean(page, piece) else piece
                    for page, piece in enumerate(_pages(now))
                )
            file.durable = now

    def _sync_names(self, folder: File) -> None:
        """Of a file that came from another folder the old name may stay. It never loses both, as a journal
        makes a rename durable as one: whoever syncs the folder that it has left syncs the new name too, and
        that of a new folder in which it is, which the journal has before."""
        left: list[Change] = []
        for change in self._unsynced:
            here = [name for name in change if name[0] is folder]
            if not here:
                left.append(change)
                continue
            removed = [name for name in change if name[0] is not folder and name[2] is None]
            moves_folder = any(file is not None and file.kind == stat.S_IFDIR for _, _, file in here)
            if (
                removed
                and not moves_folder
                and len(here) + len(removed) == len(change)
                and self._rng.random() < 0.5
            ):
                left = [*_without(left, here), removed]
                _carry_out(here)
            else:
                left = _without(left, change)
                if any(file is None for _, _, file in here):
                    left = _with_folders(left, change)
                _carry_out(change)
        self._unsynced = left

    # ------------------------------------------------------------------ between syncs

    def write_back(self, *, fails: bool) -> None:
        """Some of what was not synced goes to the medium by itself, or cannot (``fails``), which the next
        sync tells."""
        rng = self._rng
        if self._unsynced and rng.random() < 0.3:
            number = rng.randrange(len(self._unsynced))
            change = self._unsynced[number]
            earlier = _with_folders(_without(self._unsynced[:number], change), change)
            self._unsynced = [*earlier, *self._unsynced[number + 1 :]]
            _carry_out(change)
        files = [file for file in self._files.values() if file.kind == stat.S_IFREG]
        if not files:
            return
        file = rng.choice(files)
        if fails:
            self._left_in_memory(file)
            return
        now, was = file.bytes(), file.durable
        if now != was:
            sizes = sorted((len(now), len(was)))
            nbytes = rng.choice((len(now), len(was), rng.randint(*sizes)))
            pieces = []
            for page in range(-(-nbytes // PAGE)):
                stays = rng.random() < 0.5 or file.is_clean(page, now[page * PAGE : (page + 1) * PAGE])
                pieces.append(_page(was if stays else now, page, nbytes)[: nbytes - page * PAGE])
            file.durable = b"".join(pieces)

    def _left_in_memory(self, file: File) -> None:
        file.failures += 1
        self._failures += 1
        if file.kind != stat.S_IFREG:
            return
        for page, piece in enumerate(_pages(file.bytes())):
            if piece != file.durable[page * PAGE : (page + 1) * PAGE]:
                file.clean[page] = piece.ljust(PAGE, b"\0")

    # ------------------------------------------------------------------ rot and power cuts

    def spoil(self, descriptor: int) -> None:
        """Every byte of a file becomes another one, in memory and on the medium."""
        with suppress(OSError):  # it is closed
            file = self._at(descriptor)
            spoiled = bytes(byte ^ 0xA5 for byte in file.bytes())
            os.pwrite(file.descriptor, spoiled, 0)
            file.durable = spoiled

    def flip(self, path: Path, place: int, bits: int) -> None:
        """Changes ``bits`` of one byte, in memory and on the medium."""
        file = self._files[path.stat().st_ino]
        byte = os.pread(file.descriptor, 1, place)[0] ^ bits
        os.pwrite(file.descriptor, bytes((byte,)), place)
        if place < len(file.durable):
            durable = bytearray(file.durable)
            durable[place] ^= bits
            file.durable = bytes(durable)

    def lose_power(self) -> None:
        """Leaves what the medium holds and any part of the rest. Every process is dead by now."""
        self._survives = self._rng.uniform(0.05, 0.95)
        left_out: dict[int, Change] = {}  # by folder: what gives it its name
        for change in self._unsynced:
            if self._rng.random() < self._survives:
                _carry_out_within(change, left_out)
            else:
                made = (file for _, _, file in change if file is not None and file.kind == stat.S_IFDIR)
                left_out.update((id(file), change) for file in made)
        self._unsynced = []
        kept: dict[int, bytes] = {}
        self._look_at(self._root, kept)
        old = self._files
        aside = self.root.with_name(f"{self.root.name}-aside")
        self._put_aside(aside, kept)
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        names = self._root.names
        self._files = _ByInode({os.fstat(self._root.descriptor).st_ino: self._root})
        self._root.names = {}
        made: dict[int, tuple[Path, File]] = {}
        self._make_again(self.root, self._root, names, kept, made, aside)
        shutil.rmtree(aside)
        for file in old.values():
            if file is not self._root:
                os.close(file.descriptor)

    def _look_at(self, folder: File, kept: dict[int, bytes]) -> None:
        for file in folder.names.values():
            if file.kind == stat.S_IFDIR:
                self._look_at(file, kept)
            elif file.kind == stat.S_IFREG and id(file) not in kept:
                kept[id(file)] = self._what_is_left(file)

    def _put_aside(self, aside: Path, kept: dict[int, bytes]) -> None:
        """Files that have a name now keep their inode: a journal may tell by it that a file is the same."""
        aside.mkdir(exist_ok=True)
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder, name) for name in names):
                inode = path.lstat().st_ino
                if id(self._files.get(inode)) in kept:
                    path.replace(aside / str(inode))

    def _what_is_left(self, file: File) -> bytes:
        now, rng = file.bytes(), self._rng
        if now == file.durable:
            return now
        nbytes = len(now) if len(now) == len(file.durable) or rng.random() < 0.5 else len(file.durable)
        pieces = []
        for page in range(-(-nbytes // PAGE)):
            size = min(PAGE, nbytes - page * PAGE)
            new, was = _page(now, page, nbytes), _page(file.durable, page, nbytes)
            if new != was:
                if rng.random() < 0.1:
                    new = self._torn(new, was)
                elif rng.random() >= self._survives:
                    new = was
            pieces.append(new[:size])
        return b"".join(pieces)

    def _torn(self, new: bytes, was: bytes) -> bytes:
        """Any of its sectors are there."""
        return b"".join(
            (new if self._rng.random() < self._survives else was)[at : at + SECTOR]
            for at in range(0, len(new), SECTOR)
        )

    def _make_again(
        self,
        path: Path,
        folder: File,
        names: dict[str, File],
        kept: dict[int, bytes],
        made: dict[int, tuple[Path, File]],
        aside: Path,
    ) -> None:
        for name, old in sorted(names.items()):
            place = path / name
            if id(old) in made:
                first, file = made[id(old)]
                os.link(first, place, follow_symlinks=False)
            elif old.kind == stat.S_IFDIR:
                place.mkdir()
                file = self._known(os.open(place, os.O_RDONLY | os.O_DIRECTORY))
                self._make_again(place, file, old.names, kept, made, aside)
            elif old.kind == stat.S_IFLNK:
                place.symlink_to(old.target)
                file = self._known(os.open(place, os.O_PATH | os.O_NOFOLLOW))
                file.target = old.target
            else:
                same = aside / str(os.fstat(old.descriptor).st_ino)
                if same.exists():
                    same.replace(place)
                file = self._known(os.open(place, os.O_RDWR | os.O_CREAT, 0o644))
                _write_anew(file.descriptor, kept[id(old)])
                if kept[id(old)] and self._rng.random() < 0.5:  # what was preallocated may be still
                    os.posix_fallocate(file.descriptor, 0, len(kept[id(old)]))
                file.durable = kept[id(old)]
            made[id(old)] = place, file
            folder.names[name] = file

    def end(self) -> None:
        """Closes everything."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()


class _Folder:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _inode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None


def _write_anew(descriptor: int, data: bytes) -> None:
    """Pages of zeros are holes."""
    os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, len(data))
    for number, page in enumerate(_pages(data)):
        if page.strip(b"\0"):
            os.pwrite(descriptor, page, number * PAGE)


def _pages(data: bytes) -> list[bytes]:
    return [data[start : start + PAGE] for start in range(0, len(data), PAGE)]


def _page(data: bytes, page: int, nbytes: int) -> bytes:
    """One page of a file that is made ``nbytes`` long: behind its end zeros."""
    return data[page * PAGE : (page + 1) * PAGE].ljust(min(PAGE, nbytes - page * PAGE), b"\0")


def _without(changes: list[Change], done: Change) -> list[Change]:
    """Changes before ``done``, less what that makes of the same names. Those of a folder that it moves are
    carried out before: a folder has one name."""
    names = {(id(folder), name) for folder, name, _ in done}
    moved = {id(file) for _, _, file in done if file is not None and file.kind == stat.S_IFDIR}
    left: list[Change] = []
    for change in changes:
        if moved & {id(file) for _, _, file in change}:
            left = _without(left, change)
            _carry_out(change)
        elif kept := [each for each in change if (id(each[0]), each[1]) not in names]:
            left.append(kept)
    return left


def _with_folders(changes: list[Change], change: Change) -> list[Change]:
    """Carries out those of ``changes`` that give the folders their names in which ``change`` gives names.
    Returns the others."""
    for folder in [folder for folder, _, file in change if file is not None]:
        while naming := next((each for each in changes if any(file is folder for _, _, file in each)), None):
            number = changes.index(naming)
            changes = [*_without(changes[:number], naming), *changes[number + 1 :]]
            changes = _with_folders(changes, naming)
            _carry_out(naming)
    return changes


def _carry_out(change: Change) -> None:
    for folder, name, file in change:
        if file is None:
            folder.names.pop(name, None)
        else:
            folder.names[name] = file


def _carry_out_within(change: Change, left_out: dict[int, Change]) -> None:
    """With the names of the folders that it is made in, and the earlier ones of a folder that it moves: no
    filesystem keeps a file in a folder that it has lost, or a folder under two names, since it writes its
    changes down in their order."""
    for folder, _, file in change:
        for each in (folder, file) if file is not None else ():
            if (earlier := left_out.pop(id(each), None)) is not None:
                _carry_out_within(earlier, left_out)
    _carry_out(change)
