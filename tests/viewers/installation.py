"""The installation of viewers below ``.cache``, on the first use by their tests."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
NAPARI = ("napari-ome-zarr", "napari[pyqt6]")


@contextlib.contextmanager
def installing():
    """The workers of xdist share what is installed: one of them is at it at a time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def napari_python() -> Path:
    """The Python of an environment that has napari, its reader and our plugin on top of this one: in this one
    napari's plugins for pytest would load in every test."""
    folder = CACHE / f"napari{Path(sys.prefix).name.removeprefix('.venv')}"  # napari-3.13 of .venv-3.13
    python, marker = folder / "bin" / "python", folder / "installed"
    contents = " ".join((sys.version, *NAPARI))
    with installing():
        if not (marker.exists() and marker.read_text() == contents):
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "tests.pth").write_text(str(Path(np.__file__).parents[1]))
            for what in (NAPARI, ("--no-deps", "--editable", str(ROOT))):
                command = [python, "-m", "pip", "install", "--quiet", "--no-compile", *what]
                if subprocess.run(command, capture_output=True, timeout=300).returncode:
                    pytest.skip(f"NOT TESTED: napari; pip cannot install {what[-1]} here")
            marker.write_text(contents)
    return python
