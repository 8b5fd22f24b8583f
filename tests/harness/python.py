"""Python in processes of their own, cheap to start: forks of one that imported and compiled everything once.

Where a fresh start is what a test is about, or the end of the interpreter, it takes ``sys.executable``:
``tests/layers/test_fresh_pythons.py`` has the list.
"""

from __future__ import annotations

import subprocess
from functools import cache
from importlib import import_module
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

from shardwright.cli.app import COMMANDS

from .fork_server import ForkServer
from .json_process import TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

    from .fork_server import Child


def load() -> None:
    """Imports all that commands and most tests do."""
    for module, _ in COMMANDS.values():
        import_module(module)
    for module in ("shardwright.daemon.assemble", "shardwright.web.__main__", "tests.harness.frames", "zarr"):
        import_module(module)


@cache
def commands() -> ForkServer:
    """The one of this process that all of it is forked from."""
    return ForkServer(prepare="tests.harness.python:load")


def start_python(*arguments: str | Path, **options: Any) -> Child:
    """``python *arguments``, as ``ForkServer.python`` has it."""
    return commands().python(*arguments, **options)


def run_python(
    *arguments: str | Path, check: bool = False, timeout: float = TIMEOUT_S, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """``python *arguments`` to its end, with all that it writes. Raises ``CalledProcessError`` if ``check``
    is set, and ``HangError``."""
    with start_python(*arguments, **{"stdout": PIPE, "stderr": PIPE, **options}) as child:
        output, errors = child.communicate(timeout)
        ended = subprocess.CompletedProcess(arguments, child.wait(), output, errors)
    if check:
        ended.check_returncode()
    return ended


def start_module(module: str, *arguments: str, **options: Any) -> Child:
    """``python -m module``, to be told lines and to be heard."""
    return start_python("-m", module, *arguments, **{"stdin": PIPE, "stdout": PIPE, **options})
