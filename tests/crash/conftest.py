"""One fork server for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.harness.fork_server import ForkServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer(prepare="tests.crash.fencing") as made:
        yield made
