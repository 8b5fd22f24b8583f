"""Missing frames, held against a list of places; and as the command line prints them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.array import frame_table_format as table_format
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.cli.app import main
from shardwright.model.errors import ShardFormatError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.read import missing_frames
from shardwright.read.frame_table import open_frame_table
from shardwright.read.missing_frames import MissingFrames
from shardwright.read.store import open_store

from .frame_tables import Row, make_store, place
from .stores import wrap_in_group

STORED = (FrameStatus.STORED, Reason.NONE)
DUPLICATE = (FrameStatus.DUPLICATE, Reason.PLACE_TAKEN)
LATE = (FrameStatus.LATE, Reason.PLACE_CLOSED)
DROPPED = (FrameStatus.DROPPED, Reason.OVERLOAD)
LOST = (FrameStatus.LOST, Reason.NOT_HELD)


def missing_of(root: Path) -> MissingFrames:
    store = open_store(root)
    return MissingFrames(open_frame_table(store), store.arrays[0])


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def naive(rows: list[Row], places: int) -> list[tuple[int, int, FrameStatus | None, Reason | None]]:
    """Place by place."""
    told: dict[int, tuple[FrameStatus, Reason]] = {}
    for position, status, reason in rows:
        if (
            position >= 0
            and status != FrameStatus.DUPLICATE
            and told.get(position, LOST)[0] != FrameStatus.STORED
        ):
            told[position] = (status, reason)
    ranges: list[list] = []
    for p in range(max([places, *(q + 1 for q in told)])):
        why = told.get(p, (None, None))
        if why[0] == FrameStatus.STORED:
            continue
        if ranges and ranges[-1][1] == p - 1 and tuple(ranges[-1][2:]) == why:
            ranges[-1][1] = p
        else:
            ranges.append([p, p, *why])
    return [tuple(r) for r in ranges]


@given(
    rows=st.lists(
        st.tuples(
            st.integers(-1, 40), st.sampled_from([STORED, STORED, STORED, DUPLICATE, LATE, DROPPED, LOST])
        ),
        max_size=60,
    ),
    extent=st.integers(0, 6),
    rows_per_chunk=st.integers(1, 20),
    rows_per_window=st.integers(1, 30),
)
def test_every_place_against_a_plain_list(rows, extent, rows_per_chunk, rows_per_window):
    rows = [(position, *why) for position, why in rows]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_format, "ROWS_PER_CHUNK", rows_per_chunk)
        patch.setattr(missing_frames, "ROWS_PER_WINDOW", rows_per_window)
        found = missing_of(make_store(Path(folder) / "a.ome.zarr", rows, extent))
        ranges = [(r.first, r.last, r.status, r.reason) for r in found.ranges()]
    assert ranges == naive(rows, 6 * extent)
    assert found.places == 6 * extent
    assert found.unplaced == Counter(
        (status, reason)
        for position, status, reason in rows
        if position < 0 and status != FrameStatus.DUPLICATE
    )
    stored = Counter(
        position for position, status, _ in rows if status == FrameStatus.STORED and position >= 0
    )
    assert found.stored_twice == sorted(p for p, times in stored.items() if times > 1)


def test_far_apart_places_cost_nothing(tmp_path):
    """A camera whose counter jumped: the array has a hole of 10^14 frames."""
    far = 10**14
    found = missing_of(make_store(tmp_path / "a", [(0, *STORED), (far, *STORED)], far // 6 + 1))
    (hole, _) = found.ranges()
    assert (hole.first, hole.last, hole.count, hole.status) == (1, far - 1, far - 1, None)


def test_a_single_image(tmp_path):
    spec = ArraySpec(dtype="uint8", dimensions=[Dimension(name=n, count=2, chunk_size=2) for n in "yx"])
    assert list(missing_of(make_store(tmp_path / "there", [(0, *STORED)], 0, spec)).ranges()) == []
    (hole,) = missing_of(make_store(tmp_path / "lost", [(0, *LOST)], 0, spec)).ranges()
    assert (hole.first, hole.last, hole.status) == (0, 0, FrameStatus.LOST)


ROWS = [
    *((p, *STORED) for p in range(place(2, 0, 0))),
    (place(1, 1, 1), *DUPLICATE),
    *((p, *DROPPED) for p in range(place(2, 1, 0), place(3, 0, 0))),
    (place(3, 2, 1), *STORED),
    (place(4, 0, 1), *LOST),
    (-1, *DROPPED),
]


def test_the_list_as_text(tmp_path, capsys):
    make_store(tmp_path / "a", ROWS, 4)
    assert run("inspect", "--missing", tmp_path / "a") == 0
    assert capsys.readouterr().out.splitlines() == [
        "frames 12 to 13 (t=2 z=0 c=0 to t=2 z=0 c=1): never came",
        "frames 14 to 17 (t=2 z=1 c=0 to t=2 z=2 c=1): dropped (overload)",
        "frames 18 to 22 (t=3 z=0 c=0 to t=3 z=2 c=0): never came",
        "frame 24 (t=4 z=0 c=0): never came",
        "frame 25 (t=4 z=0 c=1): lost (not_held)",
        (
            "11 of 24 frames of the image are missing, and 2 behind its end: 8 never came, 4 dropped "
            "(overload), 1 lost (not_held)"
        ),
        "1 frame without a place: dropped (overload)",
    ]


def test_the_list_as_json(tmp_path, capsys):
    make_store(tmp_path / "a", ROWS, 4)
    assert run("inspect", "--missing", tmp_path / "a", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["places"] == 24
    assert facts["missing"][1] == {
        "first": 14, "last": 17, "first_index": [2, 1, 0], "last_index": [2, 2, 1], "status": "dropped", "fate": "dropped", "reason": "overload"  # noqa: E501
    }  # fmt: skip
    for name in ("status", "fate"):
        assert [r[name] for r in facts["missing"]] == [None, "dropped", None, None, "lost"]
    assert (facts["frames_missing"], facts["frames_missing_beyond"]) == (11, 2)
    assert facts["frames_without_place"] == [
        {"status": "dropped", "fate": "dropped", "reason": "overload", "frames": 1}
    ]


def test_nothing_missing(tmp_path, capsys):
    make_store(tmp_path / "a", [(p, *STORED) for p in range(12)], 2)
    assert run("inspect", "--missing", tmp_path / "a") == 0
    assert capsys.readouterr().out == "no frame is missing: all 12 places of the image are stored\n"
    assert run("inspect", "--missing", tmp_path / "a", "--json") == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []


def test_stores_without_a_table(tmp_path, capsys):
    wrap_in_group(tmp_path / "g")
    assert run("inspect", "--missing", tmp_path / "g") == 1
    assert "has no frame table" in capsys.readouterr().err
    (tmp_path / "g/.shardwright").mkdir()
    assert run("inspect", "--missing", tmp_path / "g") == 1
    assert "shardwright recover" in capsys.readouterr().err
    for part in ("0", "0/c/0/0/0"):
        assert run("inspect", "--missing", tmp_path / "g" / part) == 1
        assert "whole store" in capsys.readouterr().err


def test_statuses_that_mean_nothing(tmp_path):
    make_store(tmp_path / "a", [(0, 77, 0)], 1)
    with pytest.raises(ShardFormatError, match="unknown status"):
        missing_of(tmp_path / "a")


MEASURED = """
import resource, sys
from pathlib import Path
from shardwright.read.frame_table import open_frame_table
from shardwright.read import missing_frames
from shardwright.read.missing_frames import MissingFrames
from shardwright.read.store import open_store
store = open_store(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
missing_frames.ROWS_PER_WINDOW = 1 << 15
ranges = sum(1 for _ in MissingFrames(open_frame_table(store), store.arrays[0]).ranges())
print(ranges, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_bounded(tmp_path):
    """Every other frame is missing, in the worst order: each window needs rows of every chunk."""
    count = 400_000
    make_store(
        tmp_path / "a", [(2 * (p * 99_991 % count), *STORED) for p in range(count)], -(-2 * count // 6)
    )
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "a")], capture_output=True, text=True, check=True
    )
    ranges, peak_kib = map(int, ended.stdout.split())
    assert ranges == count
    assert peak_kib < 32 << 10, "61 MiB were measured with all rows in one window, 10 with these"
