"""The blocks of a document that are run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from .json_process import TIMEOUT_S, environment


def dying_at(frames: int) -> str:
    """Python that runs before a block whose writer is to be killed once it has so many frames."""
    return f"""
import os, signal
import shardwright as sw
append = sw.Writer.append
def mortal(self, *arguments, **options):
    if self.frames == {frames}:
        self.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, *arguments, **options)
sw.Writer.append = mortal
"""


def blocks(text: str, language: str = "python") -> list[str]:
    """Returns the text of each block of this language, in order."""
    return re.findall(rf"(?m)^```{language}\n((?s:.*?))^```", text)


def run_block(code: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs Python in this process, with what it takes as given; returns all its names."""
    names = {} if names is None else names
    exec(compile(code, "block", "exec"), names)
    return names


def commands_of(block: str) -> list[list[str]]:
    """Returns the arguments of each ``shardwright`` in a block of shell."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert all(words[0] == "shardwright" for words in lines), block
    return [words[1:] for words in lines]


def run_in_shell(block: str) -> None:
    """Runs a block of shell to its end, in a real one: forks of a process with the threads of an S3 client
    would hang."""
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["sh", "-ec", block], env=environment({"PATH": found}), check=True, timeout=TIMEOUT_S)
