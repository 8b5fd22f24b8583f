"""Files as a disk has them."""

import pytest


@pytest.fixture
def tmp_path(on_disk):
    return on_disk
