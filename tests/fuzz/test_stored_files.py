"""Some variants of each of our files, in a store beside a sound one; all of them behind
``python -m tests.fuzz.stored_files``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fuzz.stored_files import FORMATS, try_format
from tests.harness.fork_server import Failed, ForkServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST = 6  # of a format


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(prepare="tests.fuzz.stored_files") as running:
        yield running


def outcomes_of(server: ForkServer, name: str, folder: Path, most: int) -> dict[str, int]:
    child = server.start(try_format, name, folder, most, 32)
    messages = child.drain()
    failed = [message.text for message in messages if isinstance(message, Failed)]
    named = [message for message in messages if isinstance(message, str)]
    assert child.wait() == 0, f"{named[-1:]} ended with {child.wait()}: {failed}"
    outcomes: dict[str, int] = messages[-1]["outcomes"]
    return outcomes


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_a_file_of_ours_says_costs_little_and_the_rest_goes_on(server, tmp_path, name):
    assert outcomes_of(server, name, tmp_path, MOST)
