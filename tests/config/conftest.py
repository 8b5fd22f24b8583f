"""Roots as a disk has them: one in memory is warned of."""

import pytest


@pytest.fixture
def tmp_path(on_disk):
    return on_disk
