"""Cameras that do what cameras do: slow, bursting, duplicating, reordering, dying, coming back, skipping
frames.

Every frame has one row with its status and the reason, and ``shardwright inspect --missing`` lists exactly
the places without a frame.
"""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest
from tests.harness.camera import CameraProcess, Script
from tests.harness.daemon import DaemonProcess
from tests.harness.daemon_config import write_config
from tests.harness.frames import DROPPED, NOT_HELD, Arrival, in_order
from tests.harness.store_contents import leftovers

from shardwright.model.frame_status import FrameStatus, Reason

from .judge import Evidence, judge, judge_account, read_evidence
from .recovery import missing_by_command, recover_by_command
from .scenario import Outcome, Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from .disks import LoopDisk

SLOW = {"store_within_ms": 50, "sync_interval_ms": 50, "ballast_bytes": 1 << 16}


@pytest.fixture
def path(small_disk: LoopDisk) -> Path:
    return small_disk.path / "a.ome.zarr"


def scripted(path: Path, arrivals: list[Arrival], **more) -> Scenario:
    return Scenario(str(path), arrivals, dict(SLOW), **more)


def acquire(writer, path: Path, arrivals: list[Arrival], **more) -> tuple[Outcome, Evidence]:
    """A whole acquisition: judged, accounted for, its holes listed by the command."""
    scenario = scripted(path, arrivals, **more)
    outcome = writer.run(scenario)
    assert (outcome.state, outcome.error, outcome.losses) == ("sealed", None, []), outcome
    evidence = judge(path, (scenario, outcome))
    judge_account(outcome, evidence)
    assert leftovers(path) == []
    assert missing_by_command(path) == evidence.missing
    return outcome, evidence


def statuses(evidence: Evidence, status: FrameStatus) -> list[int]:
    return sorted(row["frame_id"] for row in evidence.rows.values() if row["status"] == status)


def test_bursts(writer, path):
    outcome, evidence = acquire(writer, path, in_order(300))
    assert (outcome.receipt["frames_stored"], evidence.missing) == (300, [])


def test_frames_that_come_twice(writer, path):
    """At once, within the slab, and long after the shard was sealed: the first one stays."""
    arrivals = [
        Arrival(0),
        Arrival(0, copy=1),
        *in_order(5, 1),
        Arrival(2, copy=1),
        *in_order(42, 6),
        Arrival(3, copy=1),
    ]
    outcome, evidence = acquire(writer, path, arrivals, pause_s=0.002)
    assert statuses(evidence, FrameStatus.DUPLICATE) == [0, 2, 3]
    assert all(
        row["reason"] == Reason.PLACE_TAKEN
        for row in evidence.rows.values()
        if row["status"] == FrameStatus.DUPLICATE
    )
    assert outcome.receipt["frames_stored"] == 48


@pytest.mark.parametrize("seed", range(3))
def test_frames_out_of_order(writer, path, seed):
    arrivals = sorted(
        in_order(96), key=lambda a: a.frame_id + random.Random(f"{seed}/{a.frame_id}").uniform(0, 10)
    )
    outcome, evidence = acquire(writer, path, arrivals)
    assert [a.frame_id for a in arrivals] != sorted(a.frame_id for a in arrivals)
    assert (outcome.receipt["frames_stored"], evidence.missing) == (96, [])


def test_frames_that_never_came(writer, path):
    skipped = {1, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 30}  # single ones, and a whole shard row
    _, evidence = acquire(writer, path, [a for a in in_order(40) if a.frame_id not in skipped])
    assert evidence.missing == sorted(skipped)
    assert not [row for row in evidence.rows.values() if row["status"] != FrameStatus.STORED]


def test_frames_that_were_only_told_of(writer, path):
    told = {3: DROPPED, 4: DROPPED, 12: NOT_HELD, 25: DROPPED}
    _, evidence = acquire(writer, path, [Arrival(i, told.get(i, "frame")) for i in range(32)])
    assert evidence.missing == sorted(told)
    reasons = {
        row["frame_id"]: (row["status"], row["reason"])
        for row in evidence.rows.values()
        if row["frame_id"] in told
    }
    lost, dropped = (FrameStatus.LOST, Reason.NOT_HELD), (FrameStatus.DROPPED, Reason.OVERLOAD)
    assert reasons == {3: dropped, 4: dropped, 12: lost, 25: dropped}


def test_frames_that_come_too_late(writer, path):
    """A shard is closed with a hole when newer ones need its place; the frame that fills the hole afterwards
    is late."""
    arrivals = [a for a in in_order(400) if a.frame_id != 5]
    _, evidence = acquire(writer, path, [*arrivals, Arrival(5)])
    late = statuses(evidence, FrameStatus.LATE)
    assert evidence.missing == late
    assert late in ([], [5]), "either its place was still open, or it is counted as late"


def test_a_slow_camera_waits_for_no_slab(writer, path):
    """One frame at a time into slabs of sixteen: each is stored soon after it came, and SIGKILL takes none of
    them."""
    scenario = scripted(path, in_order(21), slab_frames=16, pause_s=0.06, finish=False, linger_s=None)
    outcome = writer.run(scenario)
    assert outcome.death == signal.SIGKILL
    assert (outcome.stored, outcome.submitted) == (21, 21)
    recover_by_command(path.parent)
    evidence = judge(path, (scenario, outcome))
    assert evidence.held == [0] * 21
    assert missing_by_command(path) == []


def test_a_writer_that_dies_again_and_again(writer, path):
    """Killed mid-slab, resumed, killed: each time it goes on with the next frame, and nothing that was stored
    is lost."""
    runs, sent = [], 0
    for run, frames in enumerate((7, 10, 3, 13)):
        arrivals = in_order(frames, sent)
        scenario = scripted(path, arrivals, pause_s=0.005, resume=run > 0, finish=run == 3, linger_s=None)
        outcome = writer.run(scenario)
        assert outcome.refused is None, outcome.refused
        assert outcome.first_sequence == sent, "it goes on where the last one stopped"
        assert outcome.stored == sent + frames
        sent += frames
        runs.append((scenario, outcome))
    evidence = judge(path, *runs)
    assert evidence.held == [0] * sent
    assert [evidence.rows[i]["status"] for i in range(sent)] == [FrameStatus.STORED] * sent
    assert leftovers(path) == []


def daemon_script(endpoint: str, arrivals: list[Arrival], **more) -> Script:
    return Script(endpoint, "a", arrivals, stream="cam", **more)


@pytest.mark.parametrize("transport", ["shm", "message"])
def test_a_camera_that_dies_mid_slab_and_comes_back_by_name(folder, transport):
    config = write_config(folder, folder)
    path = folder / "a.ome.zarr"
    with DaemonProcess(config) as daemon:
        endpoint = daemon.endpoint
        with CameraProcess(daemon_script(endpoint, in_order(22), transport=transport, close=False)) as camera:
            camera.wait_until(lambda facts: facts["stored"] == 22)
            camera.kill()
            daemon.wait_for("acquisition_detached")  # else the next one comes while it is attached
        with CameraProcess(
            daemon_script(endpoint, in_order(11, 22), transport=transport, reopen=True)
        ) as camera:
            facts = camera.wait_for_end()
        assert camera.lines[0]["first"] == 22, "the new client is told how far the old one came"
        assert (facts["receipt"]["frames_stored"], facts["receipt"]["frames_missing"]) == (33, 0)
        assert daemon.stop() == 0
    evidence = read_evidence(path)
    assert evidence.held == [0] * 33
    assert {row["client_epoch"] for row in evidence.rows.values()} == {1, 2}
    assert leftovers(path) == []


def test_a_daemon_that_dies_under_a_camera(folder):
    """SIGKILL in the middle of a shard, and a new daemon: the camera goes on by itself, without a hole and
    without a shifted frame."""
    config = write_config(folder, folder)
    path = folder / "a.ome.zarr"
    with DaemonProcess(config) as daemon:
        endpoint = daemon.endpoint
        with CameraProcess(daemon_script(endpoint, in_order(200), pause_s=0.01)) as camera:
            camera.wait_until(lambda facts: facts["stored"] > 20)
            daemon.signal(signal.SIGKILL)
            daemon.exit_code()
            with DaemonProcess(config) as again:
                again.wait_for("ready")
                facts = camera.wait_for_end()
                assert again.stop() == 0
    assert (facts["receipt"]["frames_stored"], facts["receipt"]["frames_missing"]) == (200, 0), facts
    assert read_evidence(path).held == [0] * 200
    assert missing_by_command(path) == []


def test_a_camera_with_gaps(folder):
    config = write_config(folder, folder)
    skipped = {2, 7, 8, 9, 20}
    with DaemonProcess(config) as daemon:
        endpoint = daemon.endpoint
        with CameraProcess(
            daemon_script(endpoint, [a for a in in_order(30) if a.frame_id not in skipped])
        ) as camera:
            facts = camera.wait_for_end()
        assert daemon.stop() == 0
    assert "receipt" in facts, facts
    assert facts["receipt"]["frames_missing"] == len(skipped)
    assert read_evidence(folder / "a.ome.zarr").missing == sorted(skipped)
    assert missing_by_command(folder / "a.ome.zarr") == sorted(skipped)
