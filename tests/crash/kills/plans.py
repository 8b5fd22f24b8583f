"""When the kill comes. Three ways, because each sees what the others do not.

AtCall      the n-th storage call, counted where Python makes it: exact, and between any two of them
AtSyscall   the n-th call of one system call in a thread, injected by strace: kernels write without passing
            Python
AfterMs     any moment: a mapped store passes nowhere
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from time import sleep
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.harness.fork_server import Child

SYSCALLS = (
    *(
        "openat",
        "close",
        "write",
        "pwrite64",
        "fallocate",
        "ftruncate",
        "fdatasync",
        "fsync",
        "mmap",
        "munmap",
        "fcntl",
    ),
    # with a folder (disk/beneath.py)
    *("openat2", "renameat", "renameat2", "linkat", "unlinkat", "mkdirat"),
)


@dataclass(frozen=True)
class AtCall:
    number: int

    def __str__(self) -> str:
        return f"storage call {self.number}"


@dataclass(frozen=True)
class AtSyscall:
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


@dataclass(frozen=True)
class AfterMs:
    ms: float

    def __str__(self) -> str:
        return f"{self.ms:.1f} ms"


Plan = AtCall | AtSyscall | AfterMs


def carry_out(plan: Plan | None, child: Child) -> None:
    """Start a child that waits for its first message, and see to it that it is killed as planned (``AtCall``:
    the child does that itself)."""
    match plan:
        case AtSyscall():
            strace = attach(
                child.pid,
                "-e",
                f"trace={plan.name}",
                "-e",
                f"inject={plan.name}:signal=SIGKILL:when={plan.number}",
            )
            child.channel.send("go")
            finish(strace)
        case AfterMs():
            child.channel.send("go")
            sleep(plan.ms / 1000)
            child.kill()
        case _:
            child.channel.send("go")


def strace_works() -> bool:
    """Whether strace is here and may trace: containers often forbid it."""
    return (
        shutil.which("strace") is not None
        and subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode
        == 0
    )


def attach(
    pid: int, *options: str, output: str = "/dev/null", one_thread: bool = False
) -> subprocess.Popen[str]:
    """strace on a process and the threads it will start, or on one thread, once it has hold of it. Ends with
    what it traces."""
    follow = [] if one_thread else ["-f"]
    strace = subprocess.Popen(
        ["strace", *follow, "-o", output, *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True
    )
    assert strace.stderr is not None
    line = strace.stderr.readline()
    assert "attached" in line, f"strace: {line}"
    return strace


def finish(strace: subprocess.Popen[str]) -> None:
    """It ends with what it traces."""
    strace.wait()
    assert strace.stderr is not None
    strace.stderr.close()


def count_syscalls(child: Child, trace: Path) -> Counter[str]:
    """Let a child run to its end; returns for each of ``SYSCALLS`` the most calls that any one of its threads
    made."""
    strace = attach(child.pid, "-e", f"trace={','.join(SYSCALLS)}", output=str(trace))
    child.channel.send("go")
    finish(strace)
    child.drain()
    calls: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text().splitlines():
        pid, _, call = line.partition(" ")
        if "(" in call and not call.lstrip().startswith("<"):
            calls[pid, call.strip().partition("(")[0]] += 1
    most: Counter[str] = Counter()
    for (_, name), count in calls.items():
        most[name] = max(most[name], count)
    return most


def spread(count: int, of: int, rng: np.random.Generator) -> list[int]:
    """``count`` numbers from 1 to ``of``, all of them when there are no more: one at random from each of
    ``count`` equal parts."""
    edges = np.linspace(0, of, min(count, of) + 1)
    return sorted({1 + int(rng.uniform(first, stop)) for first, stop in pairwise(edges.tolist())})


def syscall_plans(count: int, most: Mapping[str, int], rng: np.random.Generator) -> Iterator[AtSyscall]:
    every = [AtSyscall(name, number + 1) for name in sorted(most) for number in range(most[name])]
    for number in spread(count, len(every), rng):
        yield every[number - 1]
