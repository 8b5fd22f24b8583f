"""A process that says one line of JSON after the other: daemons, cameras and writers of tests are such."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from . import evidence

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from .fork_server import Child

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300.0  # only so that a hang becomes a failure; a first start may have to compile the kernels


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's own and ``more``. Python imports this checkout, its tests too."""
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(more or {})}


def wait_for(
    condition: Callable[[], Any],
    what: str | Callable[[], object] = "what was expected",
    seconds: float = TIMEOUT_S,
) -> Any:
    """What ``condition`` returns once that is true. Raises ``AssertionError`` when it never is; ``what`` may
    be a function that says then how it stands."""
    end_s = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end_s, f"waited {seconds:.0f} s for {what() if callable(what) else what}"
        time.sleep(0.02)
    return result


class JsonProcess:
    """A context manager that leaves no process behind.

    ``lines``: what was heard so far. A thread reads, so that the process never waits for a test.
    """

    def __init__(self, process: subprocess.Popen[str] | Child, *, read: bool = True) -> None:
        """With ``read`` False nobody reads its lines."""
        self.process = process
        self.started_s = time.monotonic()
        self.ended_s: float | None = None  # when it was closed
        self._errors = ""  # what was read of its standard error, as evidence
        self.lines: list[dict[str, Any]] = []
        self._heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        if read:
            self._reader.start()
        evidence.register(self, instead_of=process)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard.put(line)
        self._heard.put(None)

    def next(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
        """The next line; None at the end of the process. Raises ``TimeoutError``."""
        try:
            line = self._heard.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no word for {timeout_s:.0f} s, after {self.lines[-3:]}") from None
        if line is None:
            self._heard.put(None)  # for whoever asks again
            return None
        self.lines.append(json.loads(line))
        return self.lines[-1]

    def rest(self) -> list[dict[str, Any]]:
        """All lines, up to the end of the process."""
        while self.next() is not None:
            pass
        return self.lines

    def tell(self, line: str) -> None:
        """A process that has died meanwhile is told nothing: its lines end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(timeout=TIMEOUT_S)

    def testify(self, folder: Path) -> dict[str, list[str]]:
        """Its end, its lines, heard or not, and its standard error."""
        del folder
        with contextlib.suppress(ValueError):  # a line that is no JSON
            while not self._heard.empty() and self.next(0) is not None:
                pass
        self._errors += evidence.last_words(self.process)
        said = [*map(json.dumps, self.lines)]
        return evidence.of_process(self.process, said, self._errors.splitlines())

    def close(self) -> None:
        if self.process.poll() is None:
            if sys.exc_info()[0] is not None:  # a test fails around it
                self.signal(signal.SIGCONT)  # a test may have stopped it
                self._errors += evidence.last_words(self.process)
            self.process.kill()
            self.process.wait()
        if self._reader.ident is not None:
            self._reader.join()
        self._errors += evidence.last_words(self.process)
        self.ended_s = time.monotonic()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a line that the dead process never read
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
