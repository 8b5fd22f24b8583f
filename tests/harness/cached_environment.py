"""What tests install below ``.cache`` on their first use, and the environments there: Pythons that have other
projects' packages on top of those of this one."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path(__file__).parents[2] / ".cache"
TIMEOUT_S = 300


class CannotInstallError(Exception):
    """The package index cannot be reached, or does not have it."""


@contextlib.contextmanager
def installing() -> Iterator[None]:
    """The workers of xdist share what is installed: one of them is at it at a time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pip(python: str | Path, *arguments: str | Path) -> None:
    """Runs pip. Raises ``CannotInstallError`` with the last line that it says."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise CannotInstallError((done.stderr.strip() or "pip failed").splitlines()[-1])


def cached_python(name: str, *installs: tuple[str | Path, ...], marker: str = "") -> Path:
    """Returns the Python of the environment ``name``, made by these arguments of ``pip install``, one call
    after the other, if it was made by others or for another ``marker``. Raises ``CannotInstallError``."""
    folder = CACHE / f"{name}{Path(sys.prefix).name.removeprefix('.venv')}"  # napari-3.13 of .venv-3.13
    python, made = folder / "bin" / "python", folder / "installed"
    contents = " ".join((sys.version, marker, *(str(each) for install in installs for each in install)))
    with installing():
        if not (made.exists() and made.read_text() == contents):
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "tests.pth").write_text(str(Path(np.__file__).parents[1]))
            for install in installs:
                pip(python, "install", "--no-compile", *install)
            made.write_text(contents)
    return python
