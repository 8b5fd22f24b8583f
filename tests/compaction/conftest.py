"""One fork server, and the ground of each job, for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.harness.fork_server import ForkServer

from .jobs import JOBS, WITHOUT_SHARDS
from .stores import Ground

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer(prepare="tests.compaction.stores:prepare") as made:
        yield made


@pytest.fixture(scope="session")
def grounds(tmp_path_factory) -> dict[str, Ground]:
    """By the job; for an image without shards by the job and that."""
    sharded = {job: Ground.of(job, tmp_path_factory.mktemp(job)) for job in JOBS}
    return sharded | {
        f"{job} without shards": Ground.of(job, tmp_path_factory.mktemp(job), is_sharded=False)
        for job in WITHOUT_SHARDS
    }
