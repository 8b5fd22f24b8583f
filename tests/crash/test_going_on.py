"""An acquisition that is ended early and dies of it goes on as if nobody had ended it: no frame that comes in
order is late, or a duplicate."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.stored import frame_table

from shardwright.model.frame_status import FrameStatus
from shardwright.read.verify_store import verify_store
from shardwright.shard.manifest import has_manifest

from .going_on import CASES, FAILURES, Case, end, fail, go_on, send_again
from .kills.plans import spread
from .kills.processes import Flushed, Refused, recover
from .kills.scenes import pixels_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fork_server import ForkServer

KILLED = -9
KILLS_OF_EACH = 3


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "_"))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def run(server: ForkServer, function: Callable[..., None], *arguments: Any) -> tuple[list[Any], int]:
    child = server.start(function, *arguments)
    messages = child.drain()
    return messages, child.wait()


def whole(server: ForkServer, function: Callable[..., None], *arguments: Any) -> Any:
    """A life that nobody ends."""
    messages, status = run(server, function, *arguments)
    assert status == 0, messages
    return messages[-1]


def judge(case: Case, path: Path, receipt: dict[str, Any]) -> None:
    counts = {
        name: receipt[name]
        for name in ("frames_stored", "frames_late", "frames_duplicate", "frames_lost", "frames_missing")
    }
    assert counts == {
        "frames_stored": case.last,
        "frames_late": 0,
        "frames_duplicate": 0,
        "frames_lost": 0,
        "frames_missing": 0,
    }
    judge_pixels(case, path, case.last)
    table = frame_table(path)
    assert sorted(table["sequence"].tolist()) == list(case.frames)
    assert set(table["fate"].tolist()) == {FrameStatus.STORED}
    assert not (path / ".shardwright").exists()
    assert verify_store(path, threads=1).problems == []


def judge_pixels(case: Case, path: Path, frames: int) -> None:
    image = zarr.open_array(path / "0", mode="r")
    planes = image[...].reshape(-1, *case.spec.frame_shape)
    assert len(planes) >= frames
    for n in range(frames):
        assert np.array_equal(planes[n], pixels_of(case.spec, n + 1)), f"frame {n}"


def final_shards(path: Path) -> set[Path]:
    return {file for file in (path / "0" / "c").rglob("*") if file.is_file()}


def killed_while_it_closed(server: ForkServer, case: Case, folder: Path, count: int) -> list[Path]:
    """Stores whose writers died in ``close``, at calls spread over all of it."""
    control = folder / "control.ome.zarr"
    calls = len(whole(server, end, case, control, 0).points)
    left = []
    for call in spread(count, calls, np.random.default_rng(7)):
        path = folder / f"{call}.ome.zarr"
        messages, status = run(server, end, case, path, call)
        # threads race: of the last calls one may be missing, or come too late
        if status == KILLED and is_unfinished(path):
            assert messages == [Flushed(case.first)]
            left.append(path)
    return left


@pytest.mark.parametrize("take_over", [False, True], ids=["resumed", "taken over"])
def test_a_close_that_was_killed_changes_nothing(
    server: ForkServer, case: Case, tmp_path: Path, take_over: bool
) -> None:
    stores = killed_while_it_closed(server, case, tmp_path, KILLS_OF_EACH)
    assert stores
    for path in stores:
        sealed = whole(server, go_on, case, path, take_over, case.first, case.last, True, 0)
        judge(case, path, sealed.receipt)


def last_before_the_manifest_goes(server: ForkServer, case: Case, path: Path) -> None:
    """Everything is sealed and logged: the latest that a close can die."""
    messages, status = run(server, end, case, path, "workspace.before_manifest")
    assert (messages, status) == ([Flushed(case.first)], KILLED)


def test_what_was_sealed_is_there_for_readers_all_the_time(
    server: ForkServer, case: Case, tmp_path: Path
) -> None:
    """While rows are open again their old shards keep their names; in the end they are replaced."""
    path = tmp_path / "a.ome.zarr"
    last_before_the_manifest_goes(server, case, path)
    before = final_shards(path)
    assert before
    whole(server, go_on, case, path, False, case.first, case.last, False, 0)  # ends without closing
    assert before <= final_shards(path)
    judge_pixels(case, path, case.first)
    sealed = whole(server, go_on, case, path, False, case.last, case.last, True, 0)
    judge(case, path, sealed.receipt)


def test_a_kill_while_rows_are_opened_again_loses_nothing(
    server: ForkServer, case: Case, tmp_path: Path
) -> None:
    """At calls spread over the whole life that goes on; then the wreck is recovered, or resumed by a client
    that sends again what was not stored."""
    path, rng = tmp_path / "a.ome.zarr", np.random.default_rng(11)
    last_before_the_manifest_goes(server, case, path)
    control = tmp_path / "whole.ome.zarr"
    shutil.copytree(path, control)
    calls = len(whole(server, go_on, case, control, False, case.first, case.last, True, 0).points)
    for number, call in enumerate(spread(KILLS_OF_EACH, calls, rng)):
        again = tmp_path / f"{call}.ome.zarr"
        shutil.copytree(path, again)
        messages, status = run(server, go_on, case, again, False, case.first, case.last, True, call)
        assert status == KILLED, messages
        judge_pixels(case, again, case.first)
        stored = messages[0].sent if messages else case.first
        if not is_unfinished(again):
            continue  # so late that nothing was left to do
        if number % 3 == 0:
            whole_recovery(server, again)
            judge_pixels(case, again, stored)
            continue
        receipt = whole(server, send_again, case, again, stored).receipt
        assert receipt["frames_late"] == receipt["frames_missing"] == 0
        judge_pixels(case, again, case.last)
        assert verify_store(again, threads=1).problems == []


@pytest.mark.parametrize("point", FAILURES)
def test_a_failure_at_the_end_changes_nothing(server: ForkServer, tmp_path: Path, point: str) -> None:
    case, path = CASES["several slabs and rows at once"], tmp_path / "a.ome.zarr"
    messages, _ = run(server, fail, case, path, point)
    assert [type(message) for message in messages] == [Flushed, Refused]
    assert is_unfinished(path)
    judge(case, path, whole(server, go_on, case, path, False, case.first, case.last, True, 0).receipt)


def test_a_recovery_that_was_killed_changes_nothing(server: ForkServer, case: Case, tmp_path: Path) -> None:
    """A writer is killed, recovery ends its acquisition for it and is killed over it, and the camera comes
    back after all."""
    path = tmp_path / "a.ome.zarr"
    run(server, end, case, path, 1)
    for call in (25, 60):
        child = server.start(recover, path, call)
        child.channel.send("go")
        child.drain()
        assert child.wait() in (KILLED, 0)
    if is_unfinished(path):
        judge(case, path, whole(server, go_on, case, path, False, case.first, case.last, True, 0).receipt)


def is_unfinished(path: Path) -> bool:
    return has_manifest(path / ".shardwright")


def whole_recovery(server: ForkServer, path: Path) -> None:
    child = server.start(recover, path, 0)
    child.channel.send("go")
    messages = child.drain()
    assert child.wait() == 0, messages
