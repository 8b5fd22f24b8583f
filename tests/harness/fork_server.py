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

        child = server.python("-m", "shardwright.cli", "serve", "rig.yaml", stdout=PIPE)    # as a shell would
        child.stdout.readline()
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from . import evidence
from .json_process import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MAX_MESSAGE_BYTES = 1 << 18
_MAX_DESCRIPTORS = 16
_PR_SET_PDEATHSIG = 1
_MOST_SHOWN = 20_000  # characters of each output
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
    """A forked process. ``channel``: to the function that it runs. Of a Python there is none, and what is
    piped are ``stdin``, ``stdout`` and ``stderr``. To be used as a ``Popen``."""

    def __init__(
        self, server: ForkServer, pid: int, channel: Channel | None, pipes: Sequence[IO[Any] | None] = ()
    ) -> None:
        self._server = server
        self.pid = pid
        self.channel = channel
        self.stdin, self.stdout, self.stderr = pipes or (None, None, None)
        self.returncode: int | None = None
        self.started_s = time.monotonic()
        self.ended_s: float | None = None
        self._output = self._errors = ""  # what was read, as evidence
        self._ended = os.pidfd_open(pid)  # nobody takes its number before ``wait``
        evidence.register(self)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

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
            self.ended_s = time.monotonic()
            os.close(self._ended)
            if self.channel is not None:
                self.channel.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Tells it no more, and returns all that it writes to its end, None for what is not piped. Ends one
        that lives on: a ``HangError`` has what it wrote and, if its errors are piped, its stacks."""
        if self.stdin is not None:
            with contextlib.suppress(OSError):  # what it never read
                self.stdin.close()
        outputs = (self.stdout, self.stderr)
        with ThreadPoolExecutor(2) as readers:
            texts = [readers.submit(output.read) if output is not None else None for output in outputs]
            hang = None
            try:
                self.wait(timeout)
            except HangError as error:
                hang = error
                evidence.ask_for_stacks(self.pid)  # which are read there
                self.kill()
            written, errors = (None if text is None else text.result() for text in texts)
        self._close_pipes()
        if hang is not None:
            said = "\n".join(str(text)[-_MOST_SHOWN:] for text in (written, errors) if text)
            raise HangError(f"{hang}, after it said:\n{said}") from None
        return written, errors

    def testify(self, folder: Path) -> dict[str, list[str]]:
        """What nobody has read of it."""
        del folder
        self._hear()
        return evidence.of_process(self, self._output.splitlines(), self._errors.splitlines())

    def _hear(self) -> None:
        self._errors += evidence.last_words(self)
        self._output += evidence.read_now(self.stdout)

    def _close_pipes(self) -> None:
        for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(OSError):  # what it never read
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """None of it is left, neither the process nor its pipes."""
        if sys.exc_info()[0] is not None:  # a test fails around it
            self._hear()
        self.kill()
        self.wait()
        self._close_pipes()

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
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = self._fork([theirs.fileno()], "start", function, arguments)
        return Child(self, pid, Channel(ours))

    def python(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = True,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> Child:
        """``Popen([sys.executable, *arguments], ...)`` of a Python that has imported all of it. ``arguments``
        begin with ``-c CODE`` or ``-m MODULE``; without ``env`` it has that of this process, and imports this
        checkout. It ends as any Python does, but for taking its modules apart, which costs more than most do
        in their lives."""
        with contextlib.ExitStack() as sent:
            ends, pipes = _streams(sent, (stdin, stdout, stderr), text)
            facts = _Python(
                tuple(map(os.fspath, arguments)),
                dict(environment() if env is None else env),
                os.fspath(cwd or Path.cwd()),
                (0, 1, 2, *pass_fds),
                start_new_session,
            )
            pid = self._fork([*ends, *pass_fds], "python", facts)
        return Child(self, pid, None, pipes)

    def _fork(self, descriptors: list[int], *request: Any) -> int:
        with self._lock:
            socket.send_fds(self._control.socket, [pickle.dumps(request)], descriptors)
            pid: int = self._control.receive()
        return pid

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


def _streams(
    sent: contextlib.ExitStack, wanted: Sequence[int | IO[Any] | None], text: bool
) -> tuple[list[int], list[IO[Any] | None]]:
    """Returns the descriptors of a Python's input, output and errors, and our ends of those that are piped.
    ``sent`` closes what was opened for it alone."""
    ends: list[int] = []
    pipes: list[IO[Any] | None] = []
    for number, stream in enumerate(wanted):
        pipe, end = None, number if stream is None else stream
        if stream == PIPE:
            reads, writes = os.pipe()
            end, own = (reads, writes) if number == 0 else (writes, reads)
            how = ("r" if number else "w") + ("" if text else "b")
            pipe = os.fdopen(own, how, encoding="utf-8" if text else None)
            sent.callback(os.close, end)
        elif stream == DEVNULL:
            end = os.open(os.devnull, os.O_RDWR)
            sent.callback(os.close, end)
        elif stream == STDOUT:
            end = ends[1]
        ends.append(end if isinstance(end, int) else end.fileno())
        pipes.append(pipe)
    return ends, pipes


# ---------------------------------------------------------------------- the server's side


def _serve(control: Channel) -> None:
    while True:
        data, descriptors, _, _ = socket.recv_fds(control.socket, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
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
            if what == "python":
                _run_python(descriptors, *rest)
            _run(Channel(socket.socket(fileno=descriptors[0])), *rest)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(pid)


def _run(channel: Channel, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The child: never returns."""
    status = 1
    try:
        function(channel, *arguments)
        status = 0
    except BaseException as error:  # travels to whoever started it
        channel.send(Failed(type(error).__name__, traceback.format_exc()[-4000:]))
    finally:
        os._exit(status)


@dataclass(frozen=True)
class _Python:
    """A Python that is asked for. ``numbers``: those of its descriptors, in the order in which they come."""

    arguments: tuple[str, ...]
    environ: dict[str, str]
    folder: str
    numbers: tuple[int, ...]
    own_session: bool


def _run_python(descriptors: list[int], facts: _Python) -> None:
    """The child: never returns. As if it were started anew, it shares no more with others than those do."""
    _take(descriptors, facts.numbers)
    os.environ.clear()
    os.environ.update(facts.environ)
    os.chdir(facts.folder)
    if facts.own_session:
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a nohup of the tests is not one of what they start
    tempfile.tempdir = None  # may be another one by its environment
    np.random.seed()  # noqa: NPY002  (forks would draw the same; Python's own are seeded anew by itself)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    how, what, *more = facts.arguments
    sys.argv = [how if how == "-c" else what, *more]
    sys.path[0] = "" if how == "-c" else facts.folder
    code: Any = 1
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(what, vars(main))
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            output.flush()
    os._exit(code or 0)


def _take(descriptors: list[int], numbers: Sequence[int]) -> None:
    """Gives each descriptor the number that it has where it came from."""
    above = 1 + max(*descriptors, *numbers)
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
        os.close(copy)


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
