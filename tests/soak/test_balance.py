"""What judges a soak finds what it is there for: an altered pixel, a removed frame, a lost count, an
acknowledgement that was not kept."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from tests.harness.json_process import environment
from tests.soak.balance import Balance, Claims, Life, judge
from tests.soak.camera import drawn_number, source_of
from tests.soak.evidence import EMPTY, RIGHT, WRONG, Evidence, Row, read_evidence
from tests.soak.judge import Judge
from tests.soak.ledger import Ledger, Numbers, create, read
from tests.soak.report import print_tables
from tests.soak.settings import FRAME_BYTES, PATIENT, SHAPE, Places
from tests.soak.soak import Result, stored_nothing
from tests.soak.watch import Level

import shardwright as sw
from shardwright.model.frame_status import FrameStatus

if TYPE_CHECKING:
    from pathlib import Path


def account() -> tuple[Claims, Evidence]:
    """A camera that was killed after 10 frames, of which 8 were heard, and another process that sent the last
    two of these again, and 10 more.

    Frame 9 died with its camera and was sent again; 13 and 14 were dropped; the last two frames stand behind
    the image's end.
    """
    first = Life(0, 1, 0, Numbers(10, 9, 0, 6, 5), killed=True)
    second = Life(6, 2, 8, Numbers(14, 14, 4, 22, 22))
    rows = [Row(i, i, i, 1, FrameStatus.STORED) for i in range(8)]
    statuses = {
        6: FrameStatus.DUPLICATE,
        7: FrameStatus.DUPLICATE,
        13: FrameStatus.DROPPED,
        14: FrameStatus.DROPPED,
        18: FrameStatus.DROPPED,
        19: FrameStatus.DROPPED,
    }
    rows += [Row(8 + i, 6 + i, 6 + i, 2, statuses.get(6 + i, FrameStatus.STORED)) for i in range(14)]
    evidence = Evidence(
        [EMPTY if place in (13, 14) else RIGHT for place in range(18)], rows, [13, 14, 18, 19]
    )
    receipt = {
        "frames_received": 22,
        "frames_stored": 16,
        "frames_durable": 16,
        "frames_missing": 2,
        "frames_duplicate": 2,
        "frames_late": 0,
        "frames_dropped": 4,
        "frames_lost": 0,
        "places_skipped": 0,
        "bytes_raw": 16 * FRAME_BYTES,
    }
    return Claims("live-1", 1, "live", [first, second], receipt), evidence


def with_row(evidence: Evidence, sequence: int, **changes) -> None:
    evidence.rows[sequence] = Row(**{**vars(evidence.rows[sequence]), **changes})


def test_a_sound_account_balances():
    balance, faults = judge(*account())
    assert faults == []
    expected = {
        "sent": 24,
        "stored": 16,
        "duplicate": 2,
        "late": 0,
        "dropped": 4,
        "lost": 0,
        "gone": 2,
        "missing": 2,
        "difference": 0,
    }
    assert {name: getattr(balance, name) for name in expected} == expected


def altered_pixels(claims, evidence):
    evidence.holds[3] = WRONG


def removed_frame(claims, evidence):
    evidence.holds[3] = EMPTY


def removed_frame_and_row(claims, evidence):
    evidence.holds[17] = EMPTY
    del evidence.rows[19]


def shorter_image(claims, evidence):
    evidence.holds.pop()


def frame_that_no_row_tells_of(claims, evidence):
    evidence.holds[13] = RIGHT


def removed_last_row(claims, evidence):
    evidence.rows.pop()


def repeated_row(claims, evidence):
    evidence.rows.append(evidence.rows[4])


def swapped_frames(claims, evidence):
    with_row(evidence, 2, place=3)
    with_row(evidence, 3, place=2)


def row_of_another_client(claims, evidence):
    with_row(evidence, 12, epoch=1)


def lost_after_it_was_told_stored(claims, evidence):
    with_row(evidence, 5, status=FrameStatus.LOST)
    evidence.holds[5] = EMPTY
    evidence.listed = [5, 13, 14, 18, 19]
    claims.receipt |= {
        "frames_stored": 15,
        "frames_durable": 15,
        "frames_lost": 1,
        "frames_missing": 3,
        "bytes_raw": 15 * FRAME_BYTES,
    }


def lost_although_its_camera_lived(claims, evidence):
    claims.lives[1] = replace(claims.lives[1], numbers=Numbers(14, 14, 4, 6, 6))
    with_row(evidence, 19, status=FrameStatus.LOST)
    evidence.holds[17] = EMPTY
    evidence.listed = [13, 14, 17, 18, 19]
    claims.receipt |= {
        "frames_stored": 15,
        "frames_durable": 15,
        "frames_lost": 1,
        "frames_missing": 3,
        "bytes_raw": 15 * FRAME_BYTES,
    }


def gone_although_its_camera_lived(claims, evidence):
    claims.lives[1] = replace(claims.lives[1], numbers=Numbers(15, 15, 4, 22, 22))


def told_of_more_than_was_heard(claims, evidence):
    claims.lives[0] = replace(claims.lives[0], numbers=Numbers(10, 9, 0, 9, 5))


def duplicate_of_a_frame_that_was_sent_once(claims, evidence):
    with_row(evidence, 20, status=FrameStatus.DUPLICATE)
    claims.receipt |= {"frames_dropped": 3, "frames_duplicate": 3}
    claims.lives[1] = replace(claims.lives[1], numbers=Numbers(14, 14, 3, 22, 22))


def drops_that_nobody_counted(claims, evidence):
    claims.lives[1] = replace(claims.lives[1], numbers=Numbers(14, 14, 3, 22, 22))


def drops_of_a_camera_that_waits(claims, evidence):
    claims.camera = PATIENT


def hole_that_is_not_listed(claims, evidence):
    evidence.listed.remove(14)


def hole_that_is_none(claims, evidence):
    evidence.listed.append(2)


def something_left_behind(claims, evidence):
    evidence.left_behind.append("0/c/0/0/0.partial")


MUTANTS = (
    *(
        altered_pixels,
        removed_frame,
        removed_frame_and_row,
        shorter_image,
        frame_that_no_row_tells_of,
        removed_last_row,
        repeated_row,
        swapped_frames,
    ),
    *(
        row_of_another_client,
        lost_after_it_was_told_stored,
        lost_although_its_camera_lived,
        gone_although_its_camera_lived,
    ),
    *(
        told_of_more_than_was_heard,
        duplicate_of_a_frame_that_was_sent_once,
        drops_that_nobody_counted,
        drops_of_a_camera_that_waits,
    ),
    *(hole_that_is_not_listed, hole_that_is_none),
    something_left_behind,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_judge_finds(mutant):
    claims, evidence = account()
    mutant(claims, evidence)
    assert judge(claims, evidence)[1]


@pytest.mark.parametrize("name", account()[0].receipt)
def test_the_judge_finds_a_receipt_that_is_wrong_by_one(name):
    claims, evidence = account()
    claims.receipt[name] -= 1
    (fault,) = judge(claims, evidence)[1]
    assert name in fault


def test_an_acquisition_that_no_camera_got_is_empty():
    """The daemon was killed while it was opened."""
    claims = Claims("live-3", 3, "live", [Life(0)])
    assert judge(claims, Evidence()) == (Balance(1), [])
    assert judge(claims, account()[1])[1]


def test_a_store_that_is_not_there_held_nothing_that_was_acknowledged():
    claims = Claims("live-2", 2, "live", [Life(0, 1, 0, Numbers(3, 2), killed=True)])
    balance, faults = judge(claims, None)
    assert (balance.gone, balance.difference, faults) == (3, 0, [])
    claims.lives[0].numbers = Numbers(3, 2, stored=1)
    assert judge(claims, None)[1]


@pytest.mark.parametrize("frames", [0, 3])
def test_only_a_store_that_got_no_frame_is_removed(frames):
    """As when the end comes before the first frame."""
    claims = Claims(
        "live-4", 4, "live", [Life(0, 1, 0, Numbers(frames, frames))], {"frames_received": frames}
    )
    assert bool(judge(claims, None)[1]) == bool(frames)


# Evidence
# ----------------------------------------------------------------------------------------------------


def written(path: Path, number: int, wrong: int, skipped: int) -> None:
    """Nine frames of an acquisition of seed 5: one with a pixel that is not as drawn, one that never came."""
    dimensions = [
        sw.Dimension(name=n, count=c, chunk_size=s)
        for n, c, s in zip("tyx", (None, *SHAPE), (4, *SHAPE), strict=True)
    ]
    source = source_of(5)
    with sw.create(path, sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as writer:
        for frame_id in range(9):
            frame = source.frame(drawn_number(number, frame_id))
            if frame_id == wrong:
                frame[200, 300] += 1
            if frame_id != skipped:
                writer.append(frame, frame_id=frame_id)


def test_evidence_is_what_lies_on_disk(tmp_path):
    written(tmp_path / "a.ome.zarr", 3, wrong=2, skipped=6)
    evidence = read_evidence(tmp_path / "a.ome.zarr", source_of(5), 3)
    assert evidence.holds == [RIGHT, RIGHT, WRONG, RIGHT, RIGHT, RIGHT, EMPTY, RIGHT, RIGHT]
    assert evidence.listed == [6]
    assert [
        (row.frame_id, row.place, row.status) for row in sorted(evidence.rows, key=lambda row: row.sequence)
    ] == [(i, i, FrameStatus.STORED) for i in range(9) if i != 6]
    assert read_evidence(tmp_path / "b.ome.zarr", source_of(5), 3) is None
    of_another_acquisition = read_evidence(tmp_path / "a.ome.zarr", source_of(5), 4)
    assert of_another_acquisition.holds.count(WRONG) == 8


class Side:
    """What the judge needs of a camera."""

    seed = 5

    def __init__(self) -> None:
        self.given = 0
        self.room = self

    def release(self) -> None:
        self.given += 1


@pytest.mark.parametrize("wrong", [2, None], ids=["one wrong pixel", "sound"])
def test_a_store_with_a_fault_is_told_of_and_kept(tmp_path, wrong):
    places, side, faults = Places(tmp_path, tmp_path, tmp_path), Side(), []
    written(places.store("patient-3"), 3, wrong, skipped=-1)
    life = Life(0, 1, 0, Numbers(9, 9, 0, 9, 9))
    with Judge(places, {"patient": side}, faults.append) as judging:
        judging.hand_over(Claims("patient-3", 3, "patient", [life]))
        judging.wait_for_all()
    assert [fault.split(": ")[1] for fault in faults[:1]] == (
        [] if wrong is None else ["place 2 holds pixels that were not sent there"]
    )
    assert places.store("patient-3").exists() == (wrong is not None)
    assert side.given == (wrong is None)


def test_a_ledger_outlives_whoever_is_killed(tmp_path):
    path = tmp_path / "ledger"
    create(path)
    code = f"""
import os, signal
from pathlib import Path
from tests.soak.ledger import Ledger
Ledger(Path({str(path)!r})).write(begun=7, durable=1 << 40)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode < 0
    assert read(path) == Numbers(begun=7, durable=1 << 40)
    Ledger(path).write(begun=8)
    assert read(path).begun == 8


def test_a_camera_whose_frames_were_all_dropped_is_found():
    served, dropped = Balance(sent=9, stored=2, dropped=7), Balance(sent=9, dropped=9)
    assert stored_nothing({"live": served, "patient": Balance()}) == []
    assert stored_nothing({"live": dropped}) == ["camera live: not one of 9 frames was stored"]


def test_what_was_not_judged_is_not_called_flat():
    lines = io.StringIO()
    print_tables(Result(), Console(file=lines, width=200))
    assert "NOT JUDGED" in lines.getvalue()
    print_tables(
        Result(levels=[Level("daemon", "threads", "within life 1", 2, 2)]), Console(file=lines, width=200)
    )
    assert "memory and descriptors are flat" in lines.getvalue()
