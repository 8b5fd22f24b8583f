"""A real napari with a window on a display in memory, and the ways to ask it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 60
SCRIPT = Path(__file__).with_name("napari_window.py")
HINT = "tools/setup, as root on Debian, installs what it needs"


@contextlib.contextmanager
def display(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of programs that open windows, with settings of their own in ``folder``."""
    xvfb = shutil.which("Xvfb")
    if xvfb is None:
        pytest.skip(f"NOT TESTED: napari's window; {HINT}")
    told, tell = os.pipe()
    command = [xvfb, "-displayfd", str(tell), "-screen", "0", "1280x1000x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[tell], stderr=subprocess.DEVNULL)
    os.close(tell)
    try:
        with os.fdopen(told) as line:
            number = line.readline().strip()
        home = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder)}
        yield {**os.environ, **home, "DISPLAY": f":{number}", "QT_QPA_PLATFORM": "xcb"}
    finally:
        server.terminate()
        server.wait()


class NapariWindow:
    """A window, open when the constructor returns. A context manager that leaves no process behind."""

    def __init__(self, python: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [python, SCRIPT],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, expression: str) -> Any:
        """The value of an expression in the window's thread."""
        assert self.process.stdin is not None
        self.process.stdin.write(expression.replace("\n", " ") + "\n")
        self.process.stdin.flush()
        answer = json.loads(self._answer())
        assert "raised" not in answer, f"{expression}: {answer['raised']}"
        return answer["value"]

    def until(self, expression: str, expected: Any) -> None:
        """Waits until an expression has this value."""
        until_s = time.monotonic() + TIMEOUT_S
        while (value := self.ask(expression)) != expected:
            if time.monotonic() > until_s:
                pytest.fail(f"{expression} is {value} after {TIMEOUT_S} s; expected {expected}")
            time.sleep(0.05)

    def close(self) -> str:
        """Closes the window. Returns what was written to standard error, which must be empty of errors."""
        if self.process.poll() is None:
            _, errors = self.process.communicate("\n", timeout=TIMEOUT_S)
        else:
            errors = self.process.stderr.read()
        assert self.process.returncode == 0, errors
        return errors

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=TIMEOUT_S)
            if "Qt platform plugin" in errors:
                pytest.skip(f"NOT TESTED: napari's window; {HINT}")
            raise AssertionError(errors)
        return line

    def __enter__(self) -> NapariWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
