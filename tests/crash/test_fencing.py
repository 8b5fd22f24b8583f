"""P7: one writer per output. A stopped writer that was taken over and goes on changes nothing; of many that
want an output, one gets it."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.properties.readers import with_zarr_python

from shardwright.read.verify_store import verify_store

from .fencing import Race, Racers, contender, race, race_for_a_rename, shard_records
from .kills.plans import strace_works
from .kills.processes import Created, Refused, Sealed, acquire
from .kills.scenes import IO_MODES, SCENES, Scene
from .kills.trial import differing, digest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import ForkServer

CONTENDERS = 8


def storage_calls(server: ForkServer, scene: Scene, path: Path, io: str) -> int:
    """How many an undisturbed old writer makes."""
    old = Racers(server, scene, path, io).start_old(0)
    old.channel.send("go")
    sealed = old.drain()[-1]
    assert isinstance(sealed, Sealed), sealed
    return len(sealed.points)


def check(result: Race, path: Path, what: str) -> None:
    """The new writer kept every promise of both, the old one changed nothing and knows why."""
    assert isinstance(result.refusal, Refused), what
    assert result.refusal.code == "locked", f"{what}: a writer that is alive is asked for by force only"
    assert result.oracle.complaints == [], what
    assert result.oracle.sealed is not None, what
    assert differing(result.sealed, digest(path)) <= result.records.keys(), (
        f"{what}: the old writer changed what the new one had sealed"
    )
    check_records(result, path, what)
    assert result.oracle.judge_store(path, with_zarr_python) == [], what
    assert verify_store(path, threads=1).problems == [], what
    assert isinstance(result.old_ending, Refused), f"{what}: the old writer ended with {result.old_ending}"
    assert result.old_ending.code == "fenced", f"{what}: {result.old_ending}"


def check_records(result: Race, path: Path, what: str) -> None:
    """No check comes after the last one before an append: the old writer may leave a line too many for each
    shard that it was about to seal."""
    records = shard_records(path)
    assert records.keys() == result.records.keys(), what
    for name, record in records.items():
        assert record.startswith(result.records[name]), what
        lines = record.removeprefix(result.records[name]).splitlines()
        keys = [json.loads(line)["key"] for line in lines if line]
        assert len(keys) == len(set(keys)), what


def check_races(
    server: ForkServer, scene: Scene, folder: Path, io: str, calls: list[int], *, old_first: bool
) -> int:
    """Stop the old writer at each of these calls; returns how often there was something to take over."""
    fenced = 0
    for call in calls:
        path = folder / f"stopped-at-{call}.ome.zarr"
        result = race(server, scene, path, io, call, old_first=old_first)
        if result is not None:
            check(result, path, f"{scene.name}, {io}, stopped at storage call {call}")
            fenced += 1
    return fenced


@pytest.mark.parametrize("io", IO_MODES)
def test_a_writer_that_was_taken_over_changes_nothing(server: ForkServer, tmp_path: Path, io: str) -> None:
    scene = SCENES["plain"]
    most = storage_calls(server, scene, tmp_path / "whole.ome.zarr", io)
    calls = np.linspace(most // 3, 0.9 * most, 5).astype(int).tolist()
    assert check_races(server, scene, tmp_path, io, calls, old_first=False) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("old_first", [False, True], ids=["after the new one", "before the new one"])
@pytest.mark.parametrize("io", IO_MODES)
@pytest.mark.parametrize("name", SCENES)
def test_wherever_it_was_stopped(
    server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest, name: str, io: str, old_first: bool
) -> None:
    """All calls of all cases take half a day on two cores; one in sixteen of each an hour."""
    scene = SCENES[name]
    first, stride = (request.config.getoption(option) for option in ("--first", "--stride"))
    most = storage_calls(server, scene, tmp_path / "whole.ome.zarr", io)
    calls = list(range(first, most + 1, stride))
    assert check_races(server, scene, tmp_path, io, calls, old_first=old_first) > 10 // stride


@pytest.mark.skipif(
    not strace_works(),
    reason="A RENAME ON ITS WAY IS NOT TRIED: strace is missing, or this container forbids ptrace",
)
@pytest.mark.parametrize("old_first", [False, True], ids=["after the new one", "before the new one"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_rename_that_was_on_its_way(
    server: ForkServer, tmp_path: Path, number: int, old_first: bool
) -> None:
    """No check can come after the last one: what the old writer renames must not be what the new one
    fills."""
    path = tmp_path / "delayed.ome.zarr"
    result = race_for_a_rename(server, SCENES["plain"], path, "pwrite", number, old_first=old_first)
    check(result, path, f"rename {number}")


@pytest.mark.parametrize("fresh", [True, False], ids=["create", "resume"])
def test_of_many_that_want_an_output_one_gets_it(server: ForkServer, tmp_path: Path, fresh: bool) -> None:
    scene, path = SCENES["slow camera"], tmp_path / "wanted.ome.zarr"
    if not fresh:
        victim = server.start(acquire, scene, path, "pwrite", 0)
        victim.channel.send("go")
        assert isinstance(victim.channel.receive(), Created)
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
    contenders = [server.start(contender, scene, path, fresh) for _ in range(CONTENDERS)]
    for one in contenders:
        one.channel.send("go")
    answers = [one.channel.receive() for one in contenders]
    assert sum(isinstance(answer, Created) for answer in answers) == 1, answers
    refusals = {answer.code for answer in answers if isinstance(answer, Refused)}
    assert refusals <= ({"output_exists", "locked"} if fresh else {"locked"}), answers
    for one in contenders:
        one.kill()
        one.wait()
