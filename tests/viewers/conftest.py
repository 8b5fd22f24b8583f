"""Environments that several viewers' tests share."""

import pytest

from .installed import napari_python


@pytest.fixture(scope="module")
def napari():
    """The Python of an environment with napari."""
    return napari_python()
