"""An OPEN that fails at any step of creation leaves the daemon as it was: no descriptor, no thread, no file;
the same name can be opened next."""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from shardwright.acquire import acquisition, core
from shardwright.disk import failpoints
from shardwright.store.new_store import abandoned, remove_abandoned

CAN_DO_WITHOUT = {
    "ballast.before_fill",
    "ballast.before_open",
    "log.before_preallocate",
    "store.before_remove",
}


@pytest.fixture
def client(start, raw, tmp_path, spec_of):
    """Of a daemon that has opened and ended an acquisition: what it keeps from then on is there."""
    client = raw(start(root=tmp_path).ipc)
    yield client
    failpoints.watch_all(None)


def left(root: Path) -> tuple[list[str], list[str], list[str]]:
    gc.collect()
    descriptors = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return (
        sorted(descriptors),
        sorted(thread.name for thread in threading.enumerate()),
        sorted(map(str, root.rglob("*"))),
    )


def refused(client, spec) -> None:
    client.ask_to_open("a", spec)
    header, facts = client.receive_error()
    assert (header.session, facts["fatal"], facts["request"]) == (0, False, 1)


def watch(look) -> None:
    """Every call of storage; not where the sealer's thread dies."""
    failpoints.watch_all(lambda name: look(name) if name != "sealer.before_command" else None)


def fail(error: BaseException):
    def action(*_: object, **__: object) -> None:
        raise error

    return action


def test_each_step_of_creation_fails_in_turn(client, tmp_path, spec_of):
    calls: list[str] = []
    watch(calls.append)
    client.open("counted", spec_of())  # the opener's thread is there from now on
    failpoints.watch_all(None)
    steps, tolerated = len(calls), 0
    assert {
        "lock.before_take",
        "log.before_sync",
        "staging.before_preallocate",
        "journal.before_sync",
    } <= set(calls)
    gc.freeze()  # what is there stays there: only what creations leave is looked through each time
    before = left(tmp_path)
    for number in range(1, steps + 1):
        del calls[:]
        failing = failpoints.at_time(number, fail(OSError(errno.EIO, os.strerror(errno.EIO))))
        watch(lambda name, failing=failing: (calls.append(name), failing()))
        client.ask_to_open(f"a{number}", spec_of())
        header, _ = client.receive()
        failpoints.watch_all(None)
        if header.session:
            assert calls[number - 1] in CAN_DO_WITHOUT
            for folder in abandoned(tmp_path):  # as the next creation does
                remove_abandoned(folder)
            before, tolerated = left(tmp_path), tolerated + 1
        assert left(tmp_path) == before, f"after a failure at call {number}, {calls[number - 1]}"
    gc.unfreeze()
    assert tolerated <= len(CAN_DO_WITHOUT)
    client.open("a1", spec_of())


@pytest.mark.parametrize("name", ["SlabTable", "StagingScheduler", "Sealer", "ShardRows"])
def test_a_part_that_cannot_be_made(client, tmp_path, spec_of, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(
            acquisition if name == "Sealer" else core,
            name,
            fail(OverflowError("Python int too large to convert to C long")),
        )
        refused(client, spec_of())
        before = left(tmp_path)
        for _ in range(3):
            refused(client, spec_of())
            assert left(tmp_path) == before
    client.open("a", spec_of())
