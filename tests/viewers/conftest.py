"""Environments and stores that several viewers' tests share."""

import pytest

from .image_stores import STORES, write_store
from .installation import napari_python


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return write_store(request.param, tmp_path)


@pytest.fixture(scope="module")
def napari():
    """The Python of an environment with napari."""
    return napari_python()
