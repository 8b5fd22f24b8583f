"""How a compaction task behaves beside an acquisition: at idle priority, below a byte rate, and not at all
while it is told to pause.

    bytes read or written ──▶ Throttle.take ──▶ waits while jobs are held up (pausing.py), then for the rate

A task calls ``take`` with the bytes it is about to move, in pieces of a few MiB: a piece once granted is
moved without a further wait. All that passes a disk or a network counts, each time it does: a chunk is read
from its source, written, and read back to be compared, so a rate of 300 MB/s packs 100 MB of chunks a second.
Only indexes and metadata go uncounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .pause import pausing_file

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_POLL_S = 0.1
_BURST_S = 0.1  # of the rate: what may be caught up with after a quiet time
_IDLE_NICE = 19
_AUTOGROUP = Path("/proc/self/autogroup")
# ioprio_set(2): libc has no wrapper for it. The numbers of architectures that numba runs on.
_IOPRIO_SET = {"x86_64": 251, "i686": 289, "aarch64": 30, "riscv64": 30, "ppc64le": 273}
_IOPRIO_WHO_PROCESS, _IOPRIO_CLASS_IDLE = 1, 3 << 13

_libc = ctypes.CDLL(None, use_errno=True)
_granted: list[Callable[[int], None]] = []  # at most one: who is told of every grant in this process
_of_this_thread = threading.local()


def watch_grants(watcher: Callable[[int], None] | None) -> None:
    """Call ``watcher`` with the bytes of every grant in this process from now on, from any thread; None:
    nobody any more."""
    _granted[:] = [] if watcher is None else [watcher]


class TokenBucket:
    """Lets ``bytes_per_s`` pass on average; from any thread. What is granted now delays what is asked for
    next."""

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
    """``bytes_per_s`` (read, written and read back): of one worker, None for as fast as it goes. ``idle``: at
    idle priority. ``pause_files``: as ``pausing.pause_files`` gives them; nothing moves while one of them
    says so.

    ``clock`` and ``sleep`` are the tests' to replace; they do not travel. A thread has one bucket for each
    rate, whatever the number of its tasks.
    """

    bytes_per_s: float | None = None
    pause_files: tuple[str, ...] = ()
    idle: bool = True
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
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
        for tell in _granted:
            tell(nbytes)

    def be_idle(self) -> None:
        """The lowest CPU priority and the idle I/O class for this thread and those it starts, unless ``idle``
        is False.

        There is no way back without privileges. Where the system refuses (a sandbox, another architecture),
        the task runs as it is.
        """
        if self.idle:
            make_idle()


def make_idle(pid: int = 0) -> None:
    """The same for a process that has just begun, or for this thread; of a process that leads its session,
    for the session as well.

    Where the kernel shares processors out by session first (sched(7), autogroup), a nice value counts only
    within one: a job run by hand, in a terminal of its own, would take as much of a processor as the daemon.
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
