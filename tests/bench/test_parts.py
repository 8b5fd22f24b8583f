"""The parts of the record on tiny cameras: latency, small, cameras, flat; and what they make of invented
times."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from benchmarks import camera_process, cameras, flat, latency, overload, part_command, prediction, rig, small
from benchmarks.case import Case
from benchmarks.json_process import ProcessFailedError
from benchmarks.outcomes import outcomes_of_part

CASE = Case(frames=8, distinct=4, shape=(96, 64), chunk=(2, 32, 64), shard=(4, 96, 64))


@pytest.fixture
def places(tmp_path):
    found = rig.Places(tmp_path / "disk", tmp_path / "memory")
    for folder in (found.disk, found.memory):
        folder.mkdir()
    yield found
    assert not [path for folder in (found.disk, found.memory) for path in folder.iterdir()], (
        "nothing is left behind"
    )


class Sink:
    """A writer that takes what it is given and remembers when."""

    def __init__(self):
        self.frames = []

    def append(self, frame):
        self.frames.append(int(frame[0, 0]))


@pytest.mark.parametrize("paced", [camera_process.send_paced, camera_process.send_in_ticks])
def test_a_paced_camera_sends_every_frame_in_order_and_none_before_it_is_due(paced):
    frames = np.arange(5, dtype=np.uint16).reshape(5, 1, 1)
    sink, times = Sink(), np.zeros((2, 42), np.int64)
    answer = paced(sink, frames, 42, 2000.0, times)
    assert sink.frames == [i % 5 for i in range(42)]
    assert (times[1] >= 0).all(), "done after it was due"
    assert (times[0] > 0).all()
    assert answer["end_ns"] - answer["begin_ns"] >= 41 / 2000 * 1e9


def test_latency_is_measured_in_process_and_through_the_daemon(places, monkeypatch):
    assert set(latency.WAYS) == {
        (target, place) for target in ("in-process", "daemon-shm") for place in ("disk", "no-disk")
    }
    monkeypatch.setattr(latency, "WAYS", (("in-process", "disk"), ("daemon-shm", "no-disk")))
    part = latency.measure(places, False, lambda _: None, shards=6, case=CASE)
    assert [row["name"] for row in part["rows"]] == ["in-process disk", "daemon-shm no-disk"]
    assert part["floor"]["name"] == f"copy alone, {len(os.sched_getaffinity(0))} busy"
    assert part["floor"]["rate_hz"] == part["rows"][0]["rate_hz"]
    assert part["floor"]["name"] in latency.text(part)
    row = {**part["rows"][0], "p99_9_of_period": 1.5}
    for floor, words in ((1.25, f"{part['floor']['name']} binds: it has 1.25 itself"), (0.75, "")):
        row["floor"] = {**row["floor"], "p99_9_of_period": floor}
        (judged,) = (one for one in outcomes_of_part("latency", [row]) if one.name == "p99_9_of_period")
        assert judged.binds == words
    for row in part["rows"]:
        assert row["frames"] == sum(row["histogram"]) == 24
        assert row["rate_hz"] == pytest.approx(0.8 * row["sustainable_hz"])
        assert row["name"] in latency.text(part)
    assert len(outcomes_of_part("latency", part["rows"])) == 4


def test_a_slow_append_at_a_shards_edge_is_seen_there_and_nowhere_else():
    case = Case(frames=64, distinct=16, shape=(64, 64), chunk=(16, 64, 64), shard=(64, 64, 64))
    calls = np.ones((2, 256))
    calls[0, 129] = 7.0  # the second frame of the third shard
    row = latency.row("invented", True, calls, 100.0, 125.0, case)
    assert row["worst_rollover_of_median"] == 7
    assert row["worst_elsewhere_of_median"] == row["median_rollover_of_median"] == 1
    calls[0, 129], calls[0, 80] = 1.0, 7.0
    row = latency.row("invented", True, calls, 100.0, 125.0, case)
    assert (row["worst_rollover_of_median"], row["worst_elsewhere_of_median"]) == (1, 7)
    assert row["p99_9_of_period"] == pytest.approx(row["latency_ms"]["p99_9"] / 10)
    with pytest.raises(ValueError, match="too few appends"):
        latency.row("invented", True, calls[:, :70], 100.0, 125.0, case)


def test_twenty_thousand_a_second_in_small(places):
    part = small.measure(places, False, lambda _: None, rate_hz=1500.0, seconds=0.6)
    disk, memory = part["rows"]
    assert (disk["frames"], memory["frames"]) == (900, 300)
    assert disk["receipt"]["frames_durable"] == 900
    assert disk["frames_lost"] == memory["frames_lost"] == 0
    assert "1,500" in small.text(part)


def test_a_lost_frame_and_a_camera_that_waits_are_not_held():
    receipt = {"frames_durable": 999, "frames_received": 1000, "path": "x"}
    row = small.row("disk", receipt, 1000, 0.1, 20_000.0, np.arange(1000.0), [1.0, 0.5])
    assert row["frames_lost"] == 1
    assert row["rate_of_asked"] == 0.5
    assert "path" not in row["receipt"]
    assert [one.reached for one in outcomes_of_part("small", [row])] == [False, False]


def test_four_cameras_send_as_many_frames_as_one(places, monkeypatch):
    counted = []
    at_once = cameras._at_once
    monkeypatch.setattr(
        cameras,
        "_at_once",
        lambda some, each, case: counted.append((len(some), each)) or at_once(some, each, case),
    )
    part = cameras.measure(places, True, lambda _: None, ways=[(CASE, "disk"), (CASE, "no-disk")], shards=2)
    assert counted == 4 * [(1, 32), (4, 8)]  # the first of two rounds warms up, in both places
    assert [row["name"] for row in part["rows"]] == ["96x64 disk", "96x64 no-disk"]
    assert len(outcomes_of_part("cameras", part["rows"])) == 2
    assert "96x64 disk" in cameras.text(part)


def test_four_against_one_within_each_round():
    row = cameras.row((8, 8), "disk", [1.0, 2.0, 4.0], [0.9, 2.0, 2.0], 1.0)
    assert row["of_one_stream"] == pytest.approx(0.9)
    assert row["of_one_stream_spread"] == {"least": 0.5, "most": 1.0}


@pytest.mark.parametrize("shape", cameras.SHAPES)
def test_a_round_of_cameras_is_whole_shards(shape):
    case = cameras.case_of(shape)
    assert case.raw_bytes == 512 << 20
    assert all(budget // cameras.STREAMS // case.raw_bytes >= 1 for budget in cameras.ROUND_BYTES.values())


def test_old_and_young_writers_are_compared(places, monkeypatch):
    for name, value in (
        ("SHARD_FRAMES", 50),
        ("WINDOW_SHARDS", 2),
        ("LEAD_IN_SHARDS", 1),
        ("FIRST_SHARDS", 2),
    ):
        monkeypatch.setattr(flat, name, value)
    monkeypatch.setattr(flat, "CASE", replace(flat.CASE, frames=50, chunk=(10, 32, 32), shard=(50, 32, 32)))
    monkeypatch.setattr(flat, "Usage", Usage)
    part = flat.measure(
        places, False, lambda _: None, age_shards=22, rounds={"in-process": 2, "daemon-shm": 3}
    )
    assert [row["name"] for row in part["rows"]] == ["in-process", "daemon-shm"]
    for row in part["rows"]:
        assert len(row["memory_bytes"]) == 1 + flat.SAMPLES + 1
    assert len(outcomes_of_part("flat", part["rows"])) == 6
    assert "1,100 frames and 22 shards" in flat.text(part)


def test_a_plan_is_held_against_what_is_then_held(places):
    part = prediction.measure(places, True, lambda _: None, case=CASE, plan_seconds=2.0)
    (row,) = part["rows"]
    assert row["off_by"] == pytest.approx(
        abs(row["predicted_gb_per_s"][0] / row["held_gb_per_s"][0] - 1), abs=1e-3
    )
    assert row["binds"][0] in prediction.text(part)


def test_a_plan_that_is_a_fifth_off_is_wrong():
    row = prediction.row([1.2e9, 0.8e9, 1.0e9], [1e9, 1e9, 1e9], ["disk", "kernel", "disk"])
    assert row["off_by"] == pytest.approx(0.2)
    assert "disk binds" in row["says"]["off_by"]
    assert [one.reached for one in outcomes_of_part("prediction", [row])] == [False]


def test_a_plan_that_fails_says_why(places):
    with pytest.raises(ProcessFailedError, match="shardwright check failed"):
        prediction.planned(places.disk / "plan", CASE.draw()[:, :4], CASE, 2.0)
    shutil.rmtree(places.disk / "plan")


def test_a_camera_that_is_too_fast_is_measured_under_both_policies(places, monkeypatch):
    monkeypatch.setattr(overload, "SHAPE", (256, 256))
    part = overload.measure(places, False, lambda _: None, seconds=1.0)
    (row,) = part["rows"]
    assert [one["policy"] for one in row["runs"]] == ["block", "degrade"]
    assert all(one["stored"] == one["taken"] > 0 and one["lost"] == 0 for one in row["runs"])
    assert row["taken_of_due"] == row["runs"][1]["taken"] / row["runs"][1]["due"]
    assert "the camera sends 1.5 times that" in overload.text(part)
    assert f"| degrade | {row['runs'][1]['due']} |" in overload.text(part)


def test_a_disk_without_room_for_it_is_said_before_it_is_filled(places, monkeypatch):
    monkeypatch.setattr(overload, "SHAPE", (256, 256))
    with pytest.raises(OSError, match=r"GB free; a run of 0\.3 s may take"):
        overload.measure(places, False, lambda _: None, seconds=0.3, times=1e9)


@pytest.mark.parametrize(
    ("taken", "stored", "reached"),
    [(1000, 1000, [True, True]), (980, 980, [False, True]), (1000, 999, [True, False])],
)
def test_degrade_that_makes_a_camera_wait_or_loses_is_seen(taken, stored, reached):
    block, degrade = (
        overload.Run(policy, 1000, count, 1, 10.0, 5.0, kept, 0, 3, 4, 10, 5)
        for policy, count, kept in (("block", 700, 700), ("degrade", taken, stored))
    )
    row = overload.row(degrade, block, 100.0)
    assert [one.reached for one in outcomes_of_part("overload", [row])] == reached
    assert "with block 70.0%" in row["says"]["taken_of_due"]


class Usage(rig.Usage):
    """A window of a test is shorter than the hundredth of a second in which the kernel counts."""

    @classmethod
    def of(cls, pids):
        real = rig.Usage.of(pids)
        cls.calls = getattr(cls, "calls", 0) + 1
        return cls(real.cpu_s + cls.calls, real.memory_bytes)


def test_an_old_writer_that_is_slower_and_larger_is_seen():
    old, young = (
        flat.Writer(None, [], None, seconds=s, cpu_s=c, memory_bytes=m)
        for s, c, m in (([2.0, 2.2], [1.0, 1.2], [100, 120]), ([2.0, 2.0], [1.0, 1.0], []))
    )
    row = flat.row("invented", old, young)
    assert row["time_of_young"] == pytest.approx(1.05)
    assert row["cpu_of_young"] == pytest.approx(1.1)
    assert row["memory_of_young"] == pytest.approx(1.2)
    assert [one.reached for one in outcomes_of_part("flat", [row])] == [True, False, False]


def test_a_camera_that_dies_says_why(tmp_path):
    with rig.rig(tmp_path / "rig") as here, rig.saved(CASE.draw()) as frames:
        camera = here.camera(frames, (CASE.distinct, *CASE.shape))
        with pytest.raises(ProcessFailedError, match="opened first"):
            camera.ask(do="send", frames=1, rate_hz=None)


@pytest.mark.parametrize("part", part_command.PARTS)
def test_every_part_is_a_command(part):
    options = part_command.parse(part, ["--quick", "--json"], Path("x"))
    assert options.quick
    assert options.json
