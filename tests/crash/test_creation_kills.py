"""A kill while a store is made burns no name: it stands for a store that can be recovered, or for none, and
nothing is left beside it."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover import recover_store

from .creation_kills import CONFIG, FRAMES, NAME, SPEC, camera, create, daemon
from .kills.processes import Sealed
from .kills.scenes import pixels_of
from .kills.trial import KILLED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.harness.fork_server import Child, ForkServer

DAEMON_CALLS = 60  # the opener's and the keeper's; a victim that is asked for more lives


@pytest.fixture(scope="module")
def calls(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The storage calls of one creation in process, as it is without a kill."""
    points, sealed = server.start(create, tmp_path_factory.mktemp("whole") / f"{NAME}.ome.zarr", 0).drain()
    assert isinstance(sealed, Sealed)
    return tuple(points)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(1)
    made.start()
    yield made
    made.stop()


def killed(server: ForkServer, store: Path, call: int) -> Path:
    store.parent.mkdir()
    child = server.start(create, store, call)
    assert child.drain() == []
    assert child.wait() == KILLED
    return store


def assert_whole(store: Path) -> None:
    assert [path.name for path in store.parent.iterdir()] == [store.name], "nothing is left beside it"
    assert not (store / ".shardwright").exists()
    np.testing.assert_array_equal(
        zarr.open_array(store / "0", mode="r")[...], np.stack([pixels_of(SPEC, n + 1) for n in range(FRAMES)])
    )


def begins_after_a_kill_at(server: ForkServer, folder: Path, calls: Iterable[int]) -> None:
    for call in calls:
        store = killed(server, folder / str(call) / f"{NAME}.ome.zarr", call)
        if store.exists():
            assert unfinished_stores(store.parent)[-1] == store, (
                "under its name there is only what can be recovered"
            )
        with sw.create(store, SPEC, threads=1) as writer:
            for n in range(FRAMES):
                writer.append(pixels_of(SPEC, n + 1))
        assert writer.receipt.frames_stored == FRAMES
        assert_whole(store)


def test_the_next_creation_begins_whatever_call_the_one_before_was_killed_at(
    server: ForkServer, tmp_path: Path, calls: tuple[str, ...]
) -> None:
    named = calls.index("store.before_rename") + 1
    begins_after_a_kill_at(
        server, tmp_path, sorted({*range(1, len(calls), 6), *range(named, named + 3), len(calls)})
    )


@pytest.mark.slow
def test_the_next_creation_begins_after_a_kill_at_every_call(
    server: ForkServer, tmp_path: Path, calls: tuple[str, ...]
) -> None:
    begins_after_a_kill_at(server, tmp_path, range(1, len(calls) + 1))


def test_recovery_leaves_nothing_of_a_creation_that_was_killed(
    server: ForkServer, tmp_path: Path, calls: tuple[str, ...], pool: WorkerPool
) -> None:
    for call in sorted({1, 2, 3, *range(5, len(calls), 9), len(calls)}):
        store = killed(server, tmp_path / str(call) / f"{NAME}.ome.zarr", call)
        for found in unfinished_stores(store.parent):
            recover_store(found, pool, threads=1)
        assert not list(store.parent.iterdir()), calls[call - 1]


def test_a_store_that_can_be_recovered_can_be_gone_on_with(
    server: ForkServer, tmp_path: Path, calls: tuple[str, ...]
) -> None:
    for call in range(calls.index("store.before_rename") + 2, len(calls) + 1, 4):
        store = killed(server, tmp_path / str(call) / f"{NAME}.ome.zarr", call)
        with sw.resume(store, threads=1) as writer:
            for n in range(FRAMES):
                writer.append(pixels_of(SPEC, n + 1))
        assert not (store / ".shardwright").exists()
        assert writer.receipt.frames_stored == FRAMES


class Rig:
    """A client that opens one acquisition, and daemons of which each but the last dies at the next of
    ``calls``."""

    def __init__(self, server: ForkServer, folder: Path, calls: list[int]) -> None:
        self._server = server
        self._folder = folder
        self._calls = iter(calls)
        self.kills = 0
        (folder / "data").mkdir()
        (folder / "rig.yaml").write_text(CONFIG)

    def run(self) -> Path:
        client = self._server.start(camera, f"ipc://{self._folder}/in.sock")
        while (call := next(self._calls, None)) is not None:
            victim = self._start(call)
            assert victim.wait() == KILLED, (self._folder / "log").read_text()
            self.kills += 1
        last = self._start(0)
        said = client.drain()
        assert client.wait() == 0, said
        assert isinstance(said[-1], Sealed)
        last.send_signal(signal.SIGTERM)
        assert last.wait() == 0
        return self._folder / "data" / f"{NAME}.ome.zarr"

    def _start(self, call: int) -> Child:
        return self._server.start(daemon, self._folder / "rig.yaml", self._folder / "log", call)


def daemons_that_die(server: ForkServer, calls: list[int]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="sw-"))  # short enough for a socket's path
    try:
        store = Rig(server, folder, calls).run()
        assert_whole(store)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_client_begins_its_experiment_after_each_death_of_the_daemon(server: ForkServer) -> None:
    daemons_that_die(server, [1, 30])


@pytest.mark.slow
def test_at_whatever_call_the_daemon_dies(server: ForkServer) -> None:
    for call in range(1, DAEMON_CALLS):
        daemons_that_die(server, [call])
