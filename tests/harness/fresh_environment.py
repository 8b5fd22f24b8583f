"""An environment of its own with this checkout's wheel in it; its packages come from the package index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

from .json_process import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
TIMEOUT_S = 300.0  # the first block that writes compiles the kernels


def built_wheel(folder: Path) -> Path:
    """Returns the wheel of this checkout."""
    command = [*PIP, "wheel", "-q", "--no-deps", "-w", folder, ROOT]
    subprocess.run(command, check=True, env=_without_checkout())
    (wheel,) = folder.glob("*.whl")
    return wheel


class FreshEnvironment:
    """A new environment in ``folder`` with the wheel and these of its extras alone."""

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str] = ()) -> None:
        self.commands = folder / "bin"
        self._python = self.commands / "python"
        venv.create(folder)
        asked = f"shardwright[{','.join(sorted(extras))}] @ {wheel.as_uri()}"
        self._pip("install", "-q", "--prefer-binary", asked)

    def packages(self) -> set[str]:
        """Returns the names of what is installed, in lower case."""
        return {package["name"].lower() for package in json.loads(self._pip("list", "--format", "json"))}

    def run(self, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs its Python, which imports nothing of the checkout, to its end."""
        return subprocess.run(
            [self._python, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=_without_checkout(),
            check=False,
        )

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Starts its ``shardwright``, which says lines."""
        return subprocess.Popen(
            [self.commands / "shardwright", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_without_checkout(),
        )

    def _pip(self, *arguments: str) -> str:
        command = [*PIP, "--python", self._python, *arguments]
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=_without_checkout()
        ).stdout


def _without_checkout() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
