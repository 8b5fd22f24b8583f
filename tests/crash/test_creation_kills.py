"""A kill while a store is made burns no name: it stands for a store that can be recovered, or for none, and
nothing is left beside it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.daemon import DaemonProcess

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store

from .creation_kills import (
    CONFIG,
    FIRST_CALLS,
    FRAMES,
    NAME,
    OLD,
    OLD_FRAMES,
    SPEC,
    camera,
    create,
    overwrite,
)
from .daemon_kills import dies_at
from .kills.processes import Flushed, Sealed
from .kills.scenes import pixels_of
from .kills.trial import KILLED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.harness.fork_server import ForkServer

DAEMON_CALLS = 60  # the opener's and the sealer's; a victim that is asked for more lives


@pytest.fixture(scope="module")
def calls(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The storage calls of one creation in process, as it is without a kill. As deep as the victims' stores:
    each folder above is synced."""
    store = tmp_path_factory.mktemp("whole") / "0" / f"{NAME}.ome.zarr"
    store.parent.mkdir()
    points, sealed = server.start(create, store, 0).drain()
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


@pytest.fixture(scope="module")
def overwriting(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The storage calls of a store that is made in place of another, and filled, without a kill."""
    store = tmp_path_factory.mktemp("whole") / "0" / f"{NAME}.ome.zarr"
    store.parent.mkdir()
    *_, sealed = server.start(overwrite, store, 0).drain()
    assert isinstance(sealed, Sealed)
    return sealed.points


def is_old(store: Path) -> bool:
    """Whether this is the store that was to be overwritten, every pixel of it."""
    if not (store / "zarr.json").exists() or (store / ".shardwright").exists():
        return False
    found = zarr.open_array(store / "0", mode="r")[...]
    return np.array_equal(found, np.stack([pixels_of(SPEC, OLD + n) for n in range(OLD_FRAMES)]))


def overwritten_after_a_kill_at(
    server: ForkServer, folder: Path, calls: Iterable[int], pool: WorkerPool
) -> None:
    """One of the two is whole when recovery is done: the old one, or the new one with what was stored."""
    for call in calls:
        store = folder / str(call) / f"{NAME}.ome.zarr"
        store.parent.mkdir()
        child = server.start(overwrite, store, call)
        said = child.drain()
        if child.wait() != KILLED:
            assert isinstance(said[-1], Sealed)  # the threads reach a few calls in another order
        stored = sum(isinstance(each, Flushed) for each in said)
        for found in unfinished_stores(store.parent):
            recover_store(found, pool, threads=1)
        assert [path.name for path in store.parent.iterdir()] == [store.name], call
        if not is_old(store):
            kept = zarr.open_array(store / "0", mode="r")[...]
            assert len(kept) >= max(1, stored), "no old store goes for one without a frame"
            assert np.array_equal(kept, np.stack([pixels_of(SPEC, n + 1) for n in range(len(kept))]))
        else:
            assert not stored
        with sw.create(store, SPEC, threads=1, overwrite=True) as writer:
            for n in range(FRAMES):
                writer.append(pixels_of(SPEC, n + 1))
        assert_whole(store)


def test_one_of_two_stores_is_whole_wherever_an_overwriting_creation_is_killed(
    server: ForkServer, tmp_path: Path, overwriting: tuple[str, ...], pool: WorkerPool
) -> None:
    aside, gone = (
        overwriting.index("store.before_set_aside") + 1,
        overwriting.index("replaced.before_give_up"),
    )
    chosen = {
        *range(aside, aside + 5),
        *range(gone, gone + 8),
        *range(2, len(overwriting), 9),
        len(overwriting),
    }
    overwritten_after_a_kill_at(server, tmp_path, sorted(chosen), pool)


@pytest.mark.slow
def test_one_of_two_stores_is_whole_after_a_kill_at_every_call(
    server: ForkServer, tmp_path: Path, overwriting: tuple[str, ...], pool: WorkerPool
) -> None:
    overwritten_after_a_kill_at(server, tmp_path, range(1, len(overwriting) + 1), pool)


def test_the_next_creation_overwrites_what_a_killed_one_has_left(
    server: ForkServer, tmp_path: Path, overwriting: tuple[str, ...]
) -> None:
    """Without recovery between, as long as no frame has come."""
    first = overwriting.index("store.before_set_aside")
    for call in range(first, overwriting.index("sealer.before_command"), 2):
        store = tmp_path / str(call) / f"{NAME}.ome.zarr"
        store.parent.mkdir()
        child = server.start(overwrite, store, call)
        child.drain()
        assert child.wait() == KILLED
        with sw.create(store, SPEC, threads=1, overwrite=True) as writer:
            for n in range(FRAMES):
                writer.append(pixels_of(SPEC, n + 1))
        assert_whole(store)


def lived_through(server: ForkServer, folder: Path, calls: Iterable[int]) -> Path:
    """The store of a client that opens one acquisition, under daemons of which each but the last dies at the
    next of ``calls``."""
    (folder / "data").mkdir()
    config = folder / "rig.yaml"
    config.write_text(CONFIG)
    client = server.start(camera, f"ipc://{folder}/in.sock")
    for call in calls:
        with DaemonProcess(config, sabotage=dies_at(call, FIRST_CALLS)) as victim:
            assert victim.exit_code() == KILLED, victim.errors()
    with DaemonProcess(config) as last:
        said = client.drain()
        assert client.wait() == 0, said
        assert isinstance(said[-1], Sealed)
        assert last.stop() == 0
    return folder / "data" / f"{NAME}.ome.zarr"


def daemons_that_die(server: ForkServer, calls: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:  # short enough for a socket's path
        assert_whole(lived_through(server, Path(folder), calls))


def test_a_client_begins_its_experiment_after_each_death_of_the_daemon(server: ForkServer) -> None:
    daemons_that_die(server, [1, 30])


@pytest.mark.slow
def test_at_whatever_call_the_daemon_dies(server: ForkServer) -> None:
    for call in range(1, DAEMON_CALLS):
        daemons_that_die(server, [call])
