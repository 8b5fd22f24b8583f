"""P13, the quick part: storage calls from all over each job. ``./tools/prove compaction`` tries every one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.faults.disks import LoopDisk

from .jobs import JOBS, STORE, WITHOUT_SHARDS
from .judge import judge_moment
from .trials import Tally, Trials, every, last_of_each

if TYPE_CHECKING:
    from pathlib import Path

KILLS, ERRORS, FULL = 4, 3, 2  # storage calls of each job, about


@pytest.fixture
def tally():
    kept = Tally()
    yield kept
    assert not kept.violations, "\n".join(kept.violations)


@pytest.mark.parametrize("job", [*JOBS, *(f"{job} without shards" for job in WITHOUT_SHARDS)])
def test_a_kill_breaks_nothing_and_the_next_run_goes_on(server, grounds, tmp_path, tally, job) -> None:
    points = grounds[job].points
    assert {"compact.before_sync", "put.before_sync"} & set(points)
    trials = Trials(grounds[job], tmp_path, tally)
    for call in last_of_each(points) if job in ("pack", "hdf5") else every(KILLS, len(points)):
        trials.killed(server, call, then=1 + call * 7 % len(points) if call % 2 else 0)
    assert tally.deaths >= KILLS


@pytest.mark.parametrize("job", JOBS)
def test_an_io_error_breaks_nothing_and_is_told(grounds, tmp_path, tally, job) -> None:
    trials = Trials(grounds[job], tmp_path, tally)
    for call in every(ERRORS, len(grounds[job].points)):
        trials.failing(call, for_ever=call % 2 == 0)


@pytest.mark.parametrize("job", JOBS)
def test_a_full_disk_breaks_nothing_and_is_told(grounds, tally, job) -> None:
    with LoopDisk("ext4", 64 << 20) as disk:
        for call in every(FULL, len(grounds[job].points)):
            Trials(grounds[job], disk.path, tally).full(call, disk.filler)


@pytest.mark.parametrize("job", ["pack", "recode", "describe", "hdf5"])
def test_what_the_disk_gives_back_wrong_keeps_the_original(grounds, tmp_path, tally, job) -> None:
    def damage(folder: Path):
        working = next((folder / STORE).rglob("*.packed"))
        data = bytearray(working.read_bytes())
        data[len(data) // 3] ^= 1
        with working.open("r+b") as file:
            file.write(data)
        return lambda: judge_moment(grounds[job], folder)

    errors = Trials(grounds[job], tmp_path, tally).changed("compact.before_read_back", damage)
    assert ["does not read back" in error["message"] for error in errors] == [True]


@pytest.mark.parametrize("job", ["pack", "recode", "hdf5"])
def test_a_source_that_is_written_to_meanwhile_keeps_what_was_written(grounds, tmp_path, tally, job) -> None:
    def write(folder: Path):
        shard = folder / STORE / "0/c/0/0/0"
        with shard.open("r+b") as file:
            first = file.read(64)
            file.seek(0)
            file.write(first[::-1])
        written = shard.read_bytes()
        return lambda: [] if shard.read_bytes() == written else ["what was written to the shard is gone"]

    errors = Trials(grounds[job], tmp_path, tally).changed("compact.before_sync", write)
    assert ["was changed while it was packed" in error["message"] for error in errors] == [True]
