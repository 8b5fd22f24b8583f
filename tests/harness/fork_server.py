"""Processes to kill, cheap to start: a server that imported and compiled everything once, is single-threaded,
and forks.

    with ForkServer() as server:
        child = server.start(acquire, scene, folder)      # runs acquire(channel, scene, folder) in a process
        of its own
        child.channel.receive()                           # what it says, None once it is dead
        child.kill(); child.wait()

The function and its arguments travel by pickle, the function by its name: it must be importable from the
repository's root. A child that raises says ``Failed`` with its traceback and ends with status 1. Children die
with the server, the server with its owner.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
_MAX_MESSAGE_BYTES = 1 << 18
_PR_SET_PDEATHSIG = 1
GIVE_UP_S = 120.0  # only so that a hang becomes a failure


@dataclass(frozen=True)
class Failed:
    """The last message of a child whose function raised."""

    kind: str
    text: str


class HangError(AssertionError):
    """Nothing was heard of a process for far too long."""


class Channel:
    """Whole messages both ways: what was sent before a SIGKILL arrives whole, what was not does not
    arrive."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Any) -> None:
        self.socket.send(pickle.dumps(message))

    def receive(self, timeout_s: float = GIVE_UP_S) -> Any:
        """The next message; None when the other side is gone. Raises ``HangError``."""
        if not select.select([self.socket], [], [], timeout_s)[0]:
            raise HangError(f"no message within {timeout_s} s")
        try:
            data = self.socket.recv(_MAX_MESSAGE_BYTES)
        except ConnectionResetError:
            data = b""
        return pickle.loads(data) if data else None

    def pending(self) -> bool:
        """Whether ``receive`` would answer at once."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        self.socket.close()


class Child:
    """A forked process and the channel to it."""

    def __init__(self, server: ForkServer, pid: int, channel: Channel) -> None:
        self._server = server
        self.pid = pid
        self.channel = channel
        self._status: int | None = None

    def signal(self, number: signal.Signals) -> None:
        if self._status is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def wait(self) -> int:
        """The exit code, negative for a signal. Ends the channel."""
        if self._status is None:
            self._status = self._server.wait(self.pid)
            self.channel.close()
        return self._status

    def drain(self) -> list[Any]:
        """Every message until the end of the process."""
        messages = []
        while (message := self.channel.receive()) is not None:
            messages.append(message)
        self.wait()
        return messages


class ForkServer:
    """Owns the server's process. One thread at a time. ``prepare``: "module:function" to be called in it
    before it forks for the first time."""

    def __init__(self, *, prepare: str = "", **environment: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        one_thread = dict.fromkeys(
            ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS"), "1"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.fork_server", str(theirs.fileno()), prepare],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, **one_thread, **environment},
        )
        theirs.close()
        self._control = Channel(ours)
        assert self._control.receive() == "ready", "the fork server did not start"

    def start(self, function: Callable[..., Any], *arguments: Any) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = pickle.dumps(("start", function, arguments))
        socket.send_fds(self._control.socket, [request], [theirs.fileno()])
        theirs.close()
        return Child(self, self._control.receive(), Channel(ours))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run ``function(channel, ...)`` to its end in a fresh process and return its last message. Raises
        ``AssertionError`` when it failed."""
        child = self.start(function, *arguments)
        messages = child.drain()
        answer = messages[-1] if messages else None
        assert child.wait() == 0, f"{function.__name__} ended with {child.wait()}: {answer}"
        return answer

    def wait(self, pid: int) -> int:
        self._control.send(("wait", pid))
        status: int = self._control.receive()
        return status

    def close(self) -> None:
        self._control.close()
        self._process.wait(GIVE_UP_S)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------- the server's side


def _serve(control: Channel) -> None:
    while True:
        data, descriptors, _, _ = socket.recv_fds(control.socket, _MAX_MESSAGE_BYTES, 1)
        if not data:
            return
        what, *rest = pickle.loads(data)
        if what == "wait":
            control.send(os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1]))
            continue
        assert _threads() == 1, f"a fork copies one thread; this server has {_threads()}"
        if (pid := os.fork()) == 0:
            control.close()
            _run(Channel(socket.socket(fileno=descriptors[0])), *rest)
        os.close(descriptors[0])
        control.send(pid)


def _run(channel: Channel, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The child: never returns."""
    _die_with_parent()
    status = 1
    try:
        function(channel, *arguments)
        status = 0
    except BaseException as error:  # travels to whoever started it
        channel.send(Failed(type(error).__name__, traceback.format_exc()[-4000:]))
    finally:
        os._exit(status)


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor: int, prepare: str) -> None:
    """Import and compile everything that a child may need, then serve."""
    _die_with_parent()
    from shardwright.kernels.warm_up import warm_up

    for module in ("shardwright.writer.writer", "tests.crash.fencing"):
        importlib.import_module(module)
    warm_up()
    if prepare:
        module, _, function = prepare.partition(":")
        getattr(importlib.import_module(module), function)()
    gc.freeze()  # else the first collection in each child would copy every page
    control = Channel(socket.socket(fileno=descriptor))
    control.send("ready")
    _serve(control)


if __name__ == "__main__":
    # under its own name, so that what travels by pickle is found again
    from tests.harness.fork_server import main

    main(int(sys.argv[1]), sys.argv[2])
