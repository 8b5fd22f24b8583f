"""What the tests of this room share: a failpoint that raises."""

from __future__ import annotations

import errno
import os

import pytest

from shardwright.disk import failpoints


@pytest.fixture
def tmp_path(on_disk):
    return on_disk


@pytest.fixture
def failing():
    """Make a failpoint raise, each time or only the ``at``-th; all are taken back at the end."""
    points = []

    def fail(name: str, number: int = errno.EIO, *, at: int | None = None) -> None:
        def hook() -> None:
            raise OSError(number, os.strerror(number))

        points.append(name)
        failpoints.set_hook(name, hook if at is None else failpoints.at_time(at, hook))

    yield fail
    for name in points:
        failpoints.set_hook(name, None)
