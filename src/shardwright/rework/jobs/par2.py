"""The program par2 as a child process: at the job's priority, within its rate and its pauses, with bounded
memory and files, killed with the job.

The PAR2 files that it reads are not trusted: it works in a folder of its own, and only there does it make
files, of at most ``most_bytes``. par2 keeps names with ``..`` or a leading ``/`` in that folder, too.
"""

from __future__ import annotations

import resource
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from shardwright.model.errors import WorkerError
from shardwright.rework.runtime.child import start_child, take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardwright.rework.runtime.throttle import Throttle

DONE, CAN_BE_REPAIRED, BEYOND = 0, 1, 2  # exit codes; ``BEYOND``: more is lost than there is parity
_CRITICAL_LOST = 4  # exit code: so much of the PAR2 files that they do not say of what they are
_MEMORY_MIB = 256
_POLL_S = 0.05
_TAIL_BYTES = 4096


def run_par2(
    command: str,
    arguments: Sequence[str],
    throttle: Throttle,
    *,
    threads: int,
    most_bytes: int,
    on_moved: Callable[[int], None] = lambda nbytes: None,
) -> int:
    """Runs a command of par2 (``c``, ``v``, ``r``) to its end; returns its exit code, of those above.
    ``on_moved`` gets the bytes read and written so far.

    Raises ``WorkerError`` for any other end, ``ConfigError`` without the extra ``parity``."""
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
            on_moved(moved := max(now, moved))
            with suppress(TimeoutExpired):
                process.wait(_POLL_S)
        text = (text + take(process.stdout) + take(process.stderr))[-_TAIL_BYTES:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()
    code = BEYOND if process.returncode == _CRITICAL_LOST else process.returncode
    if code != DONE and (command == "c" or code not in (CAN_BE_REPAIRED, BEYOND)):
        said = " ".join(text.decode(errors="replace").split())
        raise WorkerError(f"par2 ended with {code}: {said[-500:] or 'it printed nothing'}")
    return code


def _moved_bytes(pid: int) -> int:
    """Of the calls of a child that read or write; 0 where the kernel does not tell."""
    try:
        lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(lines["rchar"]) + int(lines["wchar"])
    except (OSError, ValueError, KeyError):
        return 0
