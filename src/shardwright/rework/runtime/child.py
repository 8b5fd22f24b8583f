"""The processes that a daemon or a job starts: their start, their output and their end, at the latest with
the thread that started them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

# Runs first in the child, and exec keeps both: SIGTERM when the thread that started it is gone (prctl(2),
# PR_SET_PDEATHSIG), also if it is stopped, since the kernel continues a group that nobody is left of; and
# where memory runs out it is killed before the daemon, whose unit protects all that it starts.
_BEHIND_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
try:
    with open("/proc/self/oom_score_adj", "r+") as score:
        if int(score.read()) < 500:
            score.write("500")
except OSError:
    pass
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and exec would keep that
    signal.signal(ignored, signal.SIG_DFL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_READ_BYTES = 1 << 16


def start_child(
    command: Sequence[str],
    *,
    descriptors: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    is_ours: bool = True,
) -> subprocess.Popen[bytes]:
    """Starts ``command``, the path of a program and its arguments, with pipes for ``take``. ``is_ours``: it
    is our own interpreter. The thread that calls this must outlive the child. Raises ``OSError`` where it
    cannot be started."""
    process = subprocess.Popen(  # noqa: S603  (our own interpreter; what it runs is ours or the configuration's)
        [sys.executable, "-P", "-c", _BEHIND_PARENT, str(os.getpid()), *command],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        # As -P, also for the processes that it starts: a signal.py or numpy.py in the folder where the daemon
        # was started is not imported.
        env={**os.environ, **({"PYTHONSAFEPATH": "1"} if is_ours else {})},
        # A group of its own, since the daemon answers Ctrl-C in a terminal. No session of its own, since
        # nice(2) counts only within one (sched(7)).
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for pipe in (process.stdout, process.stderr):
        os.set_blocking(pipe.fileno(), False)
    return process


def take(pipe: IO[bytes], most_bytes: float = math.inf) -> bytes:
    """Returns the bytes that are in a pipe now. ``most_bytes``: about so many, for a child that may write
    without end."""
    taken = b""
    while len(taken) < most_bytes:
        try:
            piece = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return taken
        if not piece:
            return taken
        taken += piece
    return taken


def end_child(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Ends a child by SIGTERM, and by SIGKILL after ``timeout_s``."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
