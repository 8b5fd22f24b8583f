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

        child = server.command("serve", "rig.yaml")       # shardwright, as a shell would start it
        child.stdout.readline()
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .json_process import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

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
    """A forked process and the channel to it; of one that was started as a command, also what it writes. To
    be used as a ``Popen``."""

    def __init__(self, server: ForkServer, pid: int, channel: Channel, *output: TextIO) -> None:
        self._server = server
        self.pid = pid
        self.channel = channel
        self.stdin = None
        self.stdout, self.stderr = output or (None, None)
        self.returncode: int | None = None
        self._ended = os.pidfd_open(pid)  # nobody takes its number before ``wait``

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """The exit code, None while it lives."""
        if self.returncode is None and not select.select([self._ended], [], [], 0)[0]:
            return None
        return self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Ends the channel. Raises ``HangError``."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise HangError(f"process {self.pid} lives on after {timeout} s")
            self.returncode = self._server.wait(self.pid)
            os.close(self._ended)
            self.channel.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that a command writes, to its end."""
        assert self.stdout is not None
        assert self.stderr is not None
        with ThreadPoolExecutor(2) as readers, self.stdout, self.stderr:
            texts = [readers.submit(output.read) for output in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except HangError:
                self.kill()
                raise
            output, errors = (text.result() for text in texts)
        return output, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """None of it is left, neither the process nor its pipes."""
        self.kill()
        self.wait()
        for output in filter(None, (self.stdout, self.stderr)):
            output.close()

    def drain(self) -> list[Any]:
        """Every message until the end of the process."""
        messages = []
        while (message := self.channel.receive()) is not None:
            messages.append(message)
        self.wait()
        return messages


class ForkServer:
    """Owns the server's process. ``prepare``: "module:function" to be called in it before it forks for the
    first time, or a module that is only imported; ``more`` is added to the environment."""

    def __init__(self, *, prepare: str = "", **more: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one_thread = dict.fromkeys(
            ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS"), "1"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.fork_server", str(theirs.fileno()), prepare],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=environment(one_thread | more),
        )
        theirs.close()
        self._lock = threading.Lock()  # one question at a time
        self._control = Channel(ours)
        assert self._control.receive() == "ready", "the fork server did not start"

    def start(self, function: Callable[..., Any], *arguments: Any) -> Child:
        """``function(channel, *arguments)`` in a process of its own."""
        return self._start(function, arguments, [], [])

    def command(
        self, *arguments: str | Path, first: str = "", more: Mapping[str, str] | None = None
    ) -> Child:
        """``shardwright`` with these arguments, in the folder of this process, and in its environment and
        ``more``. ``first``: Python that runs before it does."""
        out, err = os.pipe(), os.pipe()
        files = [os.fdopen(end, encoding="utf-8") for end, _ in (out, err)]
        words = ([*map(str, arguments)], environment(more), str(Path.cwd()), first)
        return self._start(_shardwright, words, [out[1], err[1]], files)

    def _start(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], ends: list[int], output: list[TextIO]
    ) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = pickle.dumps(("start", function, arguments))
        with self._lock:
            socket.send_fds(self._control.socket, [request], [theirs.fileno(), *ends])
            for end in (theirs.detach(), *ends):
                os.close(end)
            pid = self._control.receive()
        return Child(self, pid, Channel(ours), *output)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run ``function(channel, ...)`` to its end in a fresh process and return its last message. Raises
        ``AssertionError`` when it failed."""
        child = self.start(function, *arguments)
        messages = child.drain()
        answer = messages[-1] if messages else None
        assert child.wait() == 0, f"{function.__name__} ended with {child.wait()}: {answer}"
        return answer

    def wait(self, pid: int) -> int:
        with self._lock:
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
        data, descriptors, _, _ = socket.recv_fds(control.socket, _MAX_MESSAGE_BYTES, 3)
        if not data:
            return
        what, *rest = pickle.loads(data)
        if what == "wait":
            control.send(os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1]))
            continue
        assert _threads() == 1, f"a fork copies one thread; this server has {_threads()}"
        if (pid := os.fork()) == 0:
            control.close()
            _die_with_parent()
            _run(Channel(socket.socket(fileno=descriptors[0])), descriptors[1:], *rest)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(pid)


def _run(
    channel: Channel, output: list[int], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """The child: never returns. A command ends as any Python does, the others at once."""
    if output:
        for end, descriptor in zip(output, (1, 2), strict=True):
            os.dup2(end, descriptor)
            os.close(end)
        function(*arguments)
    status = 1
    try:
        function(channel, *arguments)
        status = 0
    except BaseException as error:  # travels to whoever started it
        channel.send(Failed(type(error).__name__, traceback.format_exc()[-4000:]))
    finally:
        os._exit(status)


def _shardwright(arguments: list[str], environ: dict[str, str], folder: str, first: str) -> None:
    from shardwright.cli.app import main

    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.argv = ["shardwright", *arguments]
    _fork_workers()
    code: Any = 1
    try:
        exec(first, {})
        main(arguments)
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code
    except BaseException:
        traceback.print_exc()
    # as Python ends, but for taking its modules apart, which costs more than most commands do
    threading._shutdown()
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            output.flush()
    os._exit(code)


def _fork_workers() -> None:
    """A command's own worker processes are forks, too: each would import all of it again, at idle priority.
    Those that are spawned, as a shell's command has them, are tested in ``tests/repack``."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*fork")
    forks = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _method=None: forks


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor: int, prepare: str) -> None:
    """Import and compile everything that a child may need, then serve until the owner is gone."""
    from shardwright.kernels.warm_up import warm_up

    importlib.import_module("shardwright.writer.writer")
    warm_up()
    if prepare:
        name, _, function = prepare.partition(":")
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()
    gc.freeze()  # else the first collection in each child would copy every page
    control = Channel(socket.socket(fileno=descriptor))
    control.send("ready")
    _serve(control)


if __name__ == "__main__":
    # under its own name, so that what travels by pickle is found again
    from tests.harness.fork_server import main

    main(int(sys.argv[1]), sys.argv[2])
