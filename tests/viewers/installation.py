"""The installation of viewers below ``.cache``, on the first use by their tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.cached_environment import CannotInstallError, cached_python

ROOT = Path(__file__).parents[2]
NAPARI = ("napari-ome-zarr", "napari[pyqt6]")


def napari_python() -> Path:
    """The Python of an environment that has napari, its reader and our plugin on top of this one: in this one
    napari's plugins for pytest would load in every test."""
    try:
        return cached_python("napari", NAPARI, ("--no-deps", "--editable", ROOT))
    except CannotInstallError as error:
        pytest.skip(f"NOT TESTED: napari; pip cannot install it here: {error}")
