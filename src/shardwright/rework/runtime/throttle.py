"""The throttle of a job beside an acquisition: idle priority, a byte rate, and a pause while cameras need the
machine.

    bytes read or written ──▶ Throttle.take ──▶ waits while a pause file says so, then for the rate

A task calls ``take`` with the bytes that it is about to move, in pieces of a few MiB. A piece that was
granted is moved without a further wait. Every byte counts each time it passes a disk or a network: a chunk is
read from its source, written, and read back to be compared, so a rate of 300 MB/s packs 100 MB of chunks a
second. Only indexes and metadata are not counted.

    ARRAY/.compact/pause           made by a person: while it exists, jobs on this array wait
    ROOT/.shardwright-pause        made by the daemon that writes below ROOT, while its cameras need the
                                   machine: jobs below ROOT wait
    ROOT/.shardwright-pause-room   made by the same daemon, while its cameras need the room on the disk: jobs
                                   that write there wait. One that sends stores away makes room, and a camera
                                   may be waiting for it

The files of a daemon count only while they are locked. The kernel drops the locks when the daemon dies, so
that the files of a dead daemon make no job wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.disk.lock import StoreLock, is_locked
from shardwright.model.errors import StorageError
from shardwright.model.names import WORK_FOLDER

from .work_folder import PAUSE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RIG_PAUSE_NAME = ".shardwright-pause"
ROOM_PAUSE_NAME = ".shardwright-pause-room"
PAUSE_POLL_S = 0.1
_BURST_S = 0.1  # of the rate: what may be caught up with after a quiet time
_IDLE_NICE = 19
_AUTOGROUP = Path("/proc/self/autogroup")
# ioprio_set(2): libc has no wrapper for it. The numbers of architectures that numba runs on.
_IOPRIO_SET = {"x86_64": 251, "i686": 289, "aarch64": 30, "riscv64": 30, "ppc64le": 273}
_IOPRIO_WHO_PROCESS, _IOPRIO_CLASS_IDLE = 1, 3 << 13

_libc = ctypes.CDLL(None, use_errno=True)
_granted: list[Callable[[int], None]] = []  # at most one: the watcher of this process
_of_this_thread = threading.local()


def watch_grants(watcher: Callable[[int], None] | None) -> None:
    """Call ``watcher`` with the bytes of every grant in this process from now on, from the thread that asked
    for them. None: no watcher."""
    _granted[:] = [] if watcher is None else [watcher]


class TokenBucket:
    """Grants ``bytes_per_s`` on average, to any thread. What is granted now delays the next grant."""

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at_s = clock()
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Blocks until all that was granted before has had its time."""
        with self._lock:
            start_s = max(self._free_at_s, self._clock() - _BURST_S)
            self._free_at_s = start_s + nbytes / self._bytes_per_s
        while (wait_s := start_s - self._clock()) > 0:
            self._sleep(wait_s)


@dataclass(frozen=True)
class Throttle:
    """The throttle of a job, or of one of its workers. ``bytes_per_s`` (read, written and read back): None
    for no limit. ``workers``: those of the job that share the rate, see ``of_one_worker``. ``idle``: at idle
    priority. ``pause_files``: nothing moves while one of them says so, see ``pause_files``.

    ``clock`` and ``sleep`` are for tests. They and ``workers`` do not travel with a task. A thread has one
    bucket for each rate, whatever the number of its tasks.
    """

    bytes_per_s: float | None = None
    pause_files: tuple[str, ...] = ()
    idle: bool = True
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
    workers: int = 1
    _bucket: TokenBucket | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bucket", self._find_bucket())

    def _find_bucket(self) -> TokenBucket | None:
        if self.bytes_per_s is None:
            return None
        buckets = _of_this_thread.__dict__.setdefault("buckets", {})
        key = self.bytes_per_s, self.clock, self.sleep
        if key not in buckets:
            buckets[key] = TokenBucket(*key)
        found: TokenBucket = buckets[key]
        return found

    def of_one_worker(self, tasks: int) -> Throttle:
        """The throttle of each worker of a job with so many tasks: as many workers as have a task share the
        rate."""
        rate = self.bytes_per_s
        share = None if rate is None else rate / max(1, min(self.workers, tasks))
        return replace(self, bytes_per_s=share, workers=1)

    def waiting_for(self, pause_files: Sequence[str]) -> Throttle:
        """The same throttle that waits for these pause files, too."""
        return replace(self, pause_files=tuple(dict.fromkeys((*self.pause_files, *pause_files))))

    def to_dict(self) -> dict[str, Any]:
        """As it travels with a task."""
        return {"bytes_per_s": self.bytes_per_s, "pause_files": list(self.pause_files), "idle": self.idle}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Throttle:
        return cls(
            facts.get("bytes_per_s"), tuple(facts.get("pause_files", ())), bool(facts.get("idle", True))
        )

    def take(self, nbytes: int) -> None:
        """Blocks until ``nbytes`` may move. Called from any thread of the task."""
        while pausing_file(self.pause_files) is not None:
            self.sleep(PAUSE_POLL_S)
        if self._bucket is not None:
            self._bucket.take(nbytes)
        for watcher in _granted:
            watcher(nbytes)

    def be_idle(self) -> None:
        """Give this thread and those that it starts the lowest CPU priority and the idle I/O class, unless
        ``idle`` is False.

        Without privileges this cannot be undone. Where the system refuses (a sandbox, another architecture),
        the task runs at the priority that it has.
        """
        if self.idle:
            make_idle()


UNHURRIED = Throttle(idle=False)  # that of work which somebody waits for: no rate, no pause


def make_idle(pid: int = 0) -> None:
    """Give a process that has just begun, or this thread (0), the lowest CPU priority and the idle I/O class;
    if it leads its session, the session as well.

    Where the kernel divides processors among sessions first (sched(7), autogroup), a nice value counts only
    within one: a job that is run in a terminal would take as much of a processor as the daemon.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _IDLE_NICE)
    if pid == 0 and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(_IDLE_NICE))
    if (number := _IOPRIO_SET.get(platform.machine())) is not None:
        _libc.syscall(
            ctypes.c_long(number),
            ctypes.c_int(_IOPRIO_WHO_PROCESS),
            ctypes.c_int(pid),
            ctypes.c_int(_IOPRIO_CLASS_IDLE),
        )


def pause_files(array: Path, *folders: Path) -> list[str]:
    """The pause files of a job that reads ``array`` and writes there, or into ``folders``, which need not
    exist."""
    return [str(array / WORK_FOLDER / PAUSE_NAME), *rig_pause_files(array, *folders)]


def sending_pause_files(array: Path, *folders: Path) -> list[str]:
    """The pause files of a job that reads ``array`` and writes into ``folders`` alone."""
    room = [*folders, array] if any(_filesystem(each) == _filesystem(array) for each in folders) else folders
    needed = rig_pause_files(*room)
    files = pause_files(array, *folders)
    return [file for file in files if _name(file) != ROOM_PAUSE_NAME or file in needed]


def rig_pause_files(*paths: Path) -> list[str]:
    """The pause files of daemons. One may start at any time, so its files are looked for in every folder
    above on the same filesystem."""
    above = [folder for path in paths for folder in _folders_above(path)]
    return list(
        dict.fromkeys(str(folder / name) for folder in above for name in (RIG_PAUSE_NAME, ROOM_PAUSE_NAME))
    )


def _filesystem(path: Path) -> int:
    return _folders_above(path)[0].stat().st_dev


def _folders_above(path: Path) -> list[Path]:
    folders = [folder for folder in path.resolve().parents if folder.is_dir()]
    return [folder for folder in folders if folder.stat().st_dev == folders[0].stat().st_dev]


def pausing_file(files: list[str] | tuple[str, ...]) -> str | None:
    """The first of ``pause_files`` that makes jobs wait now."""
    return next((file for file in files if _says_wait(file)), None)


def _name(file: str) -> str:
    return os.path.basename(file)  # noqa: PTH119  (asked with every grant)


def _says_wait(file: str) -> bool:
    if _name(file) not in (RIG_PAUSE_NAME, ROOM_PAUSE_NAME):
        return os.path.lexists(file)
    try:
        return is_locked(Path(file))
    except StorageError:  # in a folder above: nothing that the job needs
        return False


def pause_note(files: list[str] | tuple[str, ...]) -> str:
    """One line that says why a job waits now; empty when it does not."""
    file = pausing_file(files)
    if file is None:
        return ""
    folder, name = os.path.split(file)
    needed = {RIG_PAUSE_NAME: "the machine", ROOM_PAUSE_NAME: "the room on the disk"}.get(name)
    if needed is None:
        return f"paused by {file}"
    return f"paused: the cameras of the daemon at {folder} need {needed}"


class RigPause:
    """A pause file of a daemon. One thread's."""

    def __init__(self, root: Path, name: str = RIG_PAUSE_NAME) -> None:
        """``root``: its output root."""
        self._path = root / name
        self._lock: StoreLock | None = None

    @property
    def held(self) -> bool:
        return self._lock is not None

    def begin(self) -> None:
        """Make jobs wait. Raises ``StorageError``, ``LockedError`` when another daemon makes them wait
        already."""
        if self._lock is None:
            self._lock = StoreLock.take(self._path)

    def end(self) -> None:
        """Let jobs continue, also when this raises ``StorageError``."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.delete()

    def clear(self) -> None:
        """Delete the file that a dead daemon has left. Raises as ``begin`` does."""
        if self._path.exists():
            self.begin()
            self.end()
