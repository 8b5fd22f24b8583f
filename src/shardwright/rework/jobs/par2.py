"""The program par2 as a child process: at the job's priority, within its rate and its pauses, with bounded
memory and files, killed with the job. It makes files in a folder of the job alone."""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from shardwright.model.errors import StorageFullError, WorkerError
from shardwright.rework.runtime.child import start_child, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardwright.rework.runtime.throttle import Throttle

_MEMORY_MIB = 256
_POLL_S = 0.05
_TAIL_BYTES = 500


def run_par2(
    command: str, arguments: Sequence[str], throttle: Throttle, *, threads: int = 1, most_bytes: int = 0
) -> bool:
    """Runs a command of par2 (``c``, ``v``, ``r``), which makes files of at most ``most_bytes``, to its end.
    Returns False if something is lost, or for ``r``, if more is lost than can be restored.

    Raises ``StorageFullError``, ``WorkerError`` for any other end, ``ConfigError`` without the extra
    ``parity``."""
    from par2.cli import par2_executable

    limits = (f"-m{_MEMORY_MIB}", f"-t{threads}", "-T1")
    process = start_child([par2_executable(), command, "-q", "-q", *limits, *arguments], is_ours=False)
    assert process.stdout is not None
    assert process.stderr is not None
    text, moved = b"", 0
    try:
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or a sandbox refuses
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        while process.poll() is None:
            text = (text + take(process.stdout) + take(process.stderr))[-_TAIL_BYTES:]
            now = _moved_bytes(process.pid)
            # stopped while the rate, or a camera, makes it wait: it would not wait by itself
            process.send_signal(signal.SIGSTOP)
            throttle.take(max(0, now - moved))
            process.send_signal(signal.SIGCONT)
            moved = max(now, moved)
            with suppress(TimeoutExpired):
                process.wait(_POLL_S)
        text = (text + take(process.stdout) + take(process.stderr))[-_TAIL_BYTES:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()
    code, said = process.returncode, " ".join(text.decode(errors="replace").split())
    if os.strerror(errno.ENOSPC) in said or code == -signal.SIGXFSZ:
        raise StorageFullError(f"par2 has no room: {said}")
    # more is lost than there is parity, or than its files can tell; can be restored
    if code and (command == "c" or code not in ((2, 4) if command == "r" else (1, 2, 4))):
        raise WorkerError(f"par2 ended with {code}: {said or 'it printed nothing'}")
    return code == 0


def _moved_bytes(pid: int) -> int:
    """Of the calls of a child that read or write; 0 where the kernel does not tell."""
    try:
        lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(lines["rchar"]) + int(lines["wchar"])
    except (OSError, ValueError, KeyError):
        return 0
