"""The processes that the daemon starts: their start, their output and their end, at the latest with the
daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

# Runs first in the child: SIGTERM when the daemon's thread that started it is gone (prctl(2),
# PR_SET_PDEATHSIG), which exec keeps.
_END_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_READ_BYTES = 1 << 16


def start_child(command: Sequence[str], *, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Starts ``command`` with pipes for ``take``. The thread that calls this must outlive the child. Raises
    ``OSError`` where it cannot be started."""
    process = subprocess.Popen(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", _END_WITH_PARENT, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        # A group of its own, since the daemon answers Ctrl-C in a terminal. No session of its own, since
        # nice(2) counts only within one (sched(7)).
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for pipe in (process.stdout, process.stderr):
        os.set_blocking(pipe.fileno(), False)
    return process


def take(pipe: IO[bytes]) -> bytes:
    """Returns the bytes that are in a pipe now."""
    taken = b""
    while True:
        try:
            piece = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return taken
        if not piece:
            return taken
        taken += piece


def end_child(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Ends a child by SIGTERM, and by SIGKILL after ``timeout_s``."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
