"""The parts of the record on tiny cameras: latency, small, cameras, overload, fair, flat, prediction,
reading, seen, shards, plates, opening, kernel, scaling, start and steps; and the rows that they make of
invented times."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import zarr

from benchmarks import run, testbed
from benchmarks.__main__ import main
from benchmarks.cases import (
    Case,
    cameras,
    fair,
    flat,
    kernel,
    latency,
    opening,
    overload,
    plates,
    prediction,
    reading,
    saved,
    scaling,
    seen,
    shards,
    small,
    start,
    steps,
)
from benchmarks.contest import Child, Entry, Result
from benchmarks.peers import CONTENDERS
from benchmarks.peers.kernel_floor import SlabKernel
from benchmarks.processes import ProcessFailedError
from benchmarks.processes import Usage as RealUsage
from benchmarks.run import outcomes_of_part
from benchmarks.table import part_text
from shardwright.disk import system
from shardwright.kernels.warm_up import CACHE_FOLDER

CASE = Case(frames=8, distinct=4, shape=(96, 64), chunk=(2, 32, 64), shard=(4, 96, 64))


@pytest.fixture
def places(tmp_path, on_disk):
    found = testbed.Places(on_disk, tmp_path)
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


@pytest.mark.parametrize("one_by_one_up_to_hz", [1000.0, 3000.0])
def test_a_paced_camera_sends_every_frame_in_order_and_none_before_it_is_due(
    one_by_one_up_to_hz, monkeypatch
):
    monkeypatch.setattr(testbed, "SLEEP_PER_FRAME_HZ", one_by_one_up_to_hz)
    frames = np.arange(5, dtype=np.uint16).reshape(5, 1, 1)
    sink = Sink()
    times, answer = testbed.send_paced(sink, frames, 42, 2000.0)
    assert sink.frames == [i % 5 for i in range(42)]
    assert (times[1] >= 0).all(), "done after it was due"
    assert (times[0] > 0).all()
    assert answer["end_ns"] - answer["begin_ns"] >= 41 / 2000 * 1e9
    assert answer["sent"] == times.shape[1] == 42


def test_a_camera_with_a_rate_stops_when_its_time_is_over():
    sink, frames = Sink(), np.zeros((1, 1, 1), np.uint16)
    times, answer = testbed.send_paced(sink, frames, 10**6, 500.0, seconds=0.05)
    assert 0 < answer["sent"] == len(sink.frames) == times.shape[1] < 10**6


def test_latency_is_measured_in_process_and_through_the_daemon(places, monkeypatch):
    assert set(latency.WAYS) == {
        (target, place) for target in ("in-process", "daemon-shm") for place in ("disk", "no-disk")
    }
    monkeypatch.setattr(latency, "WAYS", (("in-process", "disk"), ("daemon-shm", "no-disk")))
    part = latency.measure(places, False, shards=6, case=CASE)
    assert [row["name"] for row in part["rows"]] == ["in-process disk", "daemon-shm no-disk"]
    assert part["floor"]["name"] == f"copy alone, {len(os.sched_getaffinity(0))} busy"
    assert part["floor"]["rate_hz"] == part["rows"][0]["rate_hz"]
    assert part["floor"]["copy_p99_9_ms"] == part["rows"][0]["copy_p99_9_ms"]
    shown = part_text(part, latency.COLUMNS)
    assert part["floor"]["name"] in shown
    for row in part["rows"]:
        assert row["frames"] == sum(row["histogram"]) == 24
        assert row["rate_hz"] == pytest.approx(0.8 * row["sustainable_hz"])
        assert row["p99_9_of_copy"] == row["latency_ms"]["p99_9"] / row["copy_p99_9_ms"]
        assert row["name"] in shown
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


def test_twenty_thousand_a_second_in_small(places, monkeypatch):
    monkeypatch.setattr(small, "WARM_UP_S", 0.1)
    part = small.measure(places, False, rate_hz=1500.0, seconds=0.2)
    disk, memory = part["rows"]
    assert (disk["frames"], memory["frames"]) == (300, 100)
    assert disk["receipt"]["frames_durable"] == 300
    assert disk["frames_lost"] == memory["frames_lost"] == 0
    assert "300" in part_text(part, small.COLUMNS)


def test_a_lost_frame_and_a_camera_that_waits_are_not_held():
    receipt = {"frames_durable": 999, "frames_received": 1000, "path": "x"}
    row = small.row("disk", receipt, 1000, 0.1, 20_000.0, np.arange(1000.0), [1.0, 0.5])
    assert row["frames_lost"] == 1
    assert row["rate_of_asked"] == 0.5
    assert "path" not in row["receipt"]
    assert [(one["value"], one["limit"]) for one in outcomes_of_part("small", [row])] == [(0.5, 0.99), (1, 0)]


def test_four_cameras_send_as_many_frames_as_one(places, monkeypatch):
    counted = []
    at_once = cameras._at_once
    monkeypatch.setattr(
        cameras,
        "_at_once",
        lambda some, each, case: counted.append((len(some), each)) or at_once(some, each, case),
    )
    part = cameras.measure(places, True, ways=[(CASE, "disk")], shards=2)
    assert counted == 2 * [(1, 32), (4, 8)]  # the first of two rounds warms up
    assert [row["name"] for row in part["rows"]] == ["96x64 disk"]
    assert len(outcomes_of_part("cameras", part["rows"])) == 1
    assert "96x64 disk" in part_text(part, cameras.COLUMNS)


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
    part = flat.measure(places, False, age_shards=22, rounds={"in-process": 2, "daemon-shm": 3})
    assert [row["name"] for row in part["rows"]] == ["in-process", "daemon-shm"]
    for row in part["rows"]:
        assert len(row["memory_bytes"]) == 1 + flat.SAMPLES + 1
    assert len(outcomes_of_part("flat", part["rows"])) == 6
    assert "daemon-shm" in part_text(part, flat.COLUMNS)


def test_a_plan_is_held_against_what_is_then_held(places):
    """Of shards of 64 frames: a ring full of shards of four takes a minute to seal."""
    case = replace(CASE, frames=64, distinct=32, chunk=(32, 96, 64), shard=(64, 96, 64))
    part = prediction.measure(places, True, case=case, plan_seconds=2.0)
    (row,) = part["rows"]
    assert row["off_by"] == pytest.approx(
        abs(row["predicted_gb_per_s"][0] / row["held_gb_per_s"][0] - 1), abs=1e-3
    )
    assert "disk" in part_text(part, prediction.COLUMNS)


def test_a_plan_that_is_a_fifth_off_is_wrong():
    row = prediction.row([1.2e9, 0.8e9, 1.0e9], [1e9, 1e9, 1e9])
    assert row["off_by"] == pytest.approx(0.2)
    (one,) = outcomes_of_part("prediction", [row])
    assert (one["value"], one["limit"], one["at_least"]) == (0.2, 0.15, False)


def test_a_plan_that_fails_says_why(places):
    with pytest.raises(ProcessFailedError, match="shardwright check failed"):
        prediction.planned(places.disk / "plan", CASE.draw()[:, :4], CASE, 2.0)
    shutil.rmtree(places.disk / "plan")


SMALL_OVERLOAD = replace(
    CASE, scene="camera", frames=64, distinct=16, shape=(256, 256), chunk=(16, 64, 64), shard=(64, 256, 256)
)


def test_a_camera_that_is_too_fast_is_measured_under_both_policies(places):
    part = overload.measure(places, False, seconds=1.0, case=SMALL_OVERLOAD)
    (row,) = part["rows"]
    assert [one["policy"] for one in row["runs"]] == ["block", "degrade"]
    assert all(one["stored"] == one["taken"] > 0 and one["lost"] == 0 for one in row["runs"])
    assert row["taken_of_due"] == row["runs"][1]["taken"] / row["runs"][1]["due"]
    assert f"{row['runs'][1]['due']:,}" in part_text(part, overload.COLUMNS)


def test_a_small_camera_is_measured_alone_and_beside_a_greedy_one(places, monkeypatch):
    monkeypatch.setattr(fair, "RATE_HZ", 20.0)
    part = fair.measure(places, False, seconds=1.0, small=CASE, greedy=SMALL_OVERLOAD)
    (row,) = part["rows"]
    for one in (row["alone"], row["beside"]):
        assert one["due"] == 20 >= one["taken"]
        assert 0 < one["p50"] <= one["max"]
    assert (row["stored_ms_most"], row["taken_of_due"]) == (row["beside"]["max"], row["beside"]["taken"] / 20)
    assert row["greedy_hz"] > 0
    assert "stored within ms" in part_text(part, fair.COLUMNS)


@pytest.mark.parametrize(("most", "taken", "figures"), [(700.0, 300, [700, 1]), (1200.0, 270, [1200, 0.9])])
def test_a_small_camera_that_has_to_wait_is_seen(most, taken, figures):
    alone, beside = ({"max": ms, "due": 300, "taken": count} for ms, count in ((600.0, 300), (most, taken)))
    found = outcomes_of_part("fair", [fair.row(alone, beside, 100.0)])
    assert [one["value"] for one in found] == figures
    assert [one["limit"] for one in found] == [fair.STORE_WITHIN_MS, 1]


def test_a_disk_without_room_for_it_is_said_before_it_is_filled(places):
    with pytest.raises(OSError, match=r"GB free; a run of 0\.3 s may take"):
        overload.measure(places, False, seconds=0.3, times=1e9, case=SMALL_OVERLOAD)


def test_a_store_with_another_frame_is_an_error(tmp_path):
    frames = CASE.draw()
    with testbed.testbed(tmp_path / "bed") as here, saved(frames) as file:
        camera, store = here.camera(file, CASE), here.folder / "one.ome.zarr"
        camera.open(store, CASE.spec())
        camera.send(8)
        camera.close_acquisition()
        overload.check(store, frames, 8)
        frames[3, 5, 7] ^= 1
        with pytest.raises(AssertionError, match="frame 3 reads back as another"):
            overload.check(store, frames, 8)


@pytest.mark.parametrize(
    ("taken", "stored", "figures"),
    [(1000, 1000, [1, 0]), (980, 980, [0.98, 0]), (1000, 999, [1, 1])],
)
def test_degrade_that_makes_a_camera_wait_or_loses_is_seen(taken, stored, figures):
    block, degrade = (
        {"due": 1000, "taken": count, "stored": kept, "lost": 0}
        for count, kept in ((700, 700), (taken, stored))
    )
    row = overload.row(block, degrade, 100.0)
    assert [one["value"] for one in outcomes_of_part("overload", [row])] == figures


class Usage(RealUsage):
    """A window of a test is shorter than the hundredth of a second in which the kernel counts."""

    @classmethod
    def of(cls, pids):
        real = RealUsage.of(pids)
        cls.calls = getattr(cls, "calls", 0) + 1
        return cls(real.cpu_s + cls.calls, real.memory_bytes)


def test_an_old_writer_that_is_slower_and_larger_is_seen():
    old, young = (
        flat.AgeingWriter(None, [], None, seconds=s, cpu_s=c, memory_bytes=m)
        for s, c, m in (([2.0, 2.2], [1.0, 1.2], [100, 120]), ([2.0, 2.0], [1.0, 1.0], []))
    )
    row = flat.row("invented", old, young)
    assert row["time_of_young"] == pytest.approx(1.05)
    assert row["cpu_of_young"] == pytest.approx(1.1)
    assert row["memory_of_young"] == pytest.approx(1.2)
    assert [one["limit"] for one in outcomes_of_part("flat", [row])] == [1.05] * 3


def test_a_camera_that_dies_says_why(tmp_path):
    with testbed.testbed(tmp_path / "bed") as here, saved(CASE.draw()) as frames:
        camera = here.camera(frames, CASE)
        with pytest.raises(ProcessFailedError, match="opened first"):
            camera.send(1)


def test_reading(places, monkeypatch):
    case = Case(frames=8, shape=(64, 64), chunk=(2, 32, 32), shard=(8, 64, 64), distinct=8)
    monkeypatch.setattr(reading, "LAYOUTS", {"tiny": case})
    monkeypatch.setattr(reading, "SELECTIONS", {"whole": np.s_[:], "frame": np.s_[7]})
    part = reading.measure(places, True)
    names = [f"tiny/{what}/{cache}" for what in ("whole", "frame") for cache in ("warm", "cold")]
    assert [row["name"] for row in part["rows"]] == names
    for row in part["rows"]:
        others = {"tensorstore", "zarrs", "zarr-python"}
        assert set(row["ms"]) == {"shardwright", "shardwright.open", *others}
        fastest = min(row["ms"][name] for name in others)
        assert row["of_fastest"] == pytest.approx(fastest / row["ms"]["shardwright"], rel=1e-4)
        over = row["ms"]["zarr-python"] / row["ms"]["shardwright.open"]
        assert row["of_zarr_python"] == pytest.approx(over, rel=1e-4)
    assert len(outcomes_of_part("reading", part["rows"])) == 2 * 4
    assert "tiny/frame/cold" in part_text(part, reading.COLUMNS)


def test_seen(places, monkeypatch):
    case = Case(frames=24, shape=(64, 64), chunk=(1, 64, 64), shard=(8, 64, 64), distinct=8)
    monkeypatch.setattr(seen, "CASES", {"tiny": case})
    monkeypatch.setattr(seen, "ROUNDS", 1)
    part = seen.measure(places, False)
    (row,) = part["rows"]
    assert row["seen_p50_ms"] > 0
    assert row["writer_cpu"] > 0
    assert len(outcomes_of_part("seen", part["rows"])) == 2
    assert "tiny" in part_text(part, seen.COLUMNS)


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_shards(places, monkeypatch):
    monkeypatch.setattr(shards, "SIDES", (32,))
    monkeypatch.setattr(shards, "FRAMES", {32: 40})
    part = shards.measure(places, True)
    (row,) = part["rows"]
    peers = {"acquire-zarr", "tensorstore", "zarr-python"}
    assert set(row["by_round"]) == {"shardwright", "shardwright-durable", "floor"} | peers
    assert row["fastest_peer"] in peers
    assert min(row["of_fastest_peer"], row["durable_of_floor"], row["durable_frames_per_s"]) > 0
    assert len(outcomes_of_part("shards", part["rows"])) == 1
    assert "32x32" in part_text(part, shards.COLUMNS)


def test_every_writer_of_small_shards_writes_the_same(tmp_path):
    frames = np.random.default_rng(2).integers(1, 500, (shards.DISTINCT, 8, 8)).astype(np.uint16)
    for name, write in shards.WRITERS.items():
        write(tmp_path / name, frames, 5)
        if name == "floor":
            assert len([path for path in (tmp_path / name).rglob("0") if path.is_file()]) == 5
            continue
        array = zarr.open(tmp_path / name, mode="r")
        array = array["0"] if isinstance(array, zarr.Group) else array
        assert np.array_equal(array[:5], frames[:5]), name


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_opening_and_closing_beside_syncs(places, monkeypatch):
    monkeypatch.setattr(opening, "LIMITS_MS", {1: 10.0, 2: 30.0})
    monkeypatch.setattr(opening, "SIDE", 16)
    monkeypatch.setattr(opening, "SETTLE_S", 0.0)
    part = opening.measure(places, True)
    assert [row["name"] for row in part["rows"]] == ["1 images", "2 images"]
    for row in part["rows"]:
        for step in ("opened", "closed"):
            assert 0 < row[f"{step}_beside_ms"] < row[f"{step}_ms"], "it has syncs, and is not all syncs"
    assert type(system.calls) is system.OperatingSystem
    assert len(outcomes_of_part("opening", part["rows"])) == 4
    assert "2 images" in part_text(part, opening.COLUMNS)


def test_a_moment_with_two_syncs_counts_once():
    syncs = opening.TimedSyncs()
    syncs.spans += [(0.0, 2.0), (5.0, 6.0), (5.5, 8.0), (5.6, 5.7), (20.0, 21.0)]
    assert syncs.within(1.0, 7.0) == 3.0


def test_plates(places, monkeypatch):
    monkeypatch.setattr(plates, "IMAGES", (48,))
    monkeypatch.setattr(plates, "SIDE", 16)
    part = plates.measure(places, True)
    (row,) = part["rows"]
    assert set(row["by_round"]) == set(plates.WRITERS)
    assert min(row["seconds"], row["of_floor"], row["of_fastest_peer"], row["longest_append_ms"]) > 0
    assert len(outcomes_of_part("plates", part["rows"])) == 3
    (beside,) = part["asked_nothing"]
    assert set(beside["by_round"]) == {"shardwright", "floor"}
    assert min(beside[key] for key in ("seconds", "of_floor", "longest_append_ms", "beside_mb_per_s")) > 0
    text = part_text(part, plates.COLUMNS)
    assert "48 images" in text
    assert beside["name"] in text


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_every_writer_of_a_plate_writes_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(plates, "SIDE", 16)
    frames = np.random.default_rng(2).integers(1, 500, (plates.DISTINCT, 16, 16)).astype(np.uint16)
    for name, write in plates.WRITERS.items():
        write(tmp_path / name, frames, 3)
        if name == "floor":
            assert len([path for path in (tmp_path / name).glob("*/0/c/*/0/0") if path.is_file()]) == 6
            continue
        for image in range(3):
            path = tmp_path / name / str(image)
            array = zarr.open_array(path / "0" if (path / "0" / "zarr.json").exists() else path, mode="r")
            assert np.array_equal(array[...], frames[[image, image + 3]]), name


@pytest.mark.parametrize(("cname", "shuffle"), kernel.CODECS)
def test_the_kernel_and_the_libraries_encode_the_same_chunks(cname, shuffle):
    depth, height, width = Case.chunk
    shape = (2 * height, 2 * width)
    frames = np.random.default_rng(3).poisson(220, (depth, *shape)).astype(np.uint16)
    chunks = kernel.contiguous(frames, Case.chunk)
    slab = SlabKernel(Case(cname=cname, shuffle=shuffle, shape=shape), frames)
    slab.encode(0, slab.chunks)
    assert [slab.decoded(i).tobytes() for i in range(slab.chunks)] == [chunk.tobytes() for chunk in chunks]
    row = kernel.one(frames, cname, shuffle, "spots", 2)
    assert row["name"] == f"{cname}-{shuffle}/spots"
    assert all(row[f"{writer}ratio"] > 1.3 for writer in ("", "blosc2_", "numcodecs_"))
    assert all(row[f"{writer}gb_per_s"] > 0 for writer in ("", "blosc2_", "numcodecs_"))


def test_a_row_of_the_kernel_has_medians_and_ratios_of_passes_side_by_side():
    seconds = {"ours": [1.0, 2.0, 4.0], "blosc2": [2.0, 2.0, 2.0], "numcodecs": [3.0, 3.0, 3.0]}
    seconds |= {"sample": [1.0, 2.0, 4.7], "all": [2.0, 3.0, 9.0]}
    sizes = {"ours": 10**9, "blosc2": 2 * 10**9, "numcodecs": 10**9}
    row = kernel.row("lz4-shuffle/camera", "camera", 4 * 10**9, seconds, sizes)
    assert (row["gb_per_s"], row["blosc2_gb_per_s"], row["ratio"], row["blosc2_ratio"]) == (
        2.0,
        2.0,
        4.0,
        2.0,
    )
    assert (row["of_blosc2"], row["of_blosc2_spread"]) == (1.0, {"least": 0.5, "most": 2.0})
    assert (row["sample_of_none"], row["all_of_none"]) == (1.1, 2.0), "of means: passes of a sample differ"
    assert not row["headline"]
    assert "0.5" in part_text({"rows": [row]}, kernel.COLUMNS)


def test_scaling_has_a_row_for_each_place_writer_and_number_of_cores(places, monkeypatch):
    monkeypatch.setattr(scaling, "WRITERS", (("zstd", "shardwright"),))
    part = scaling.measure(places, True, case=CASE)
    cores = [n for n in (1, 2) if n <= len(os.sched_getaffinity(0))]
    assert [row["name"] for row in part["rows"]] == [
        f"{place}/zstd-shardwright-{n}" for place in ("no-disk", "disk") for n in cores
    ]
    for row in part["rows"]:
        assert row["of_ideal"] > 0
        assert row["cores"] > 1 or row["of_ideal"] == 1
        assert row["name"] in part_text(part, scaling.COLUMNS)


def test_a_writer_runs_on_the_cores_that_its_case_says(tmp_path):
    with saved(CASE.draw()) as frames:
        child = Child(
            Entry("one", CONTENDERS["daemon-shm"], replace(CASE, cores=1)), frames, tmp_path / "one"
        )
        try:
            child.wait_until_ready()
            allowed = [os.sched_getaffinity(pid) for pid in child.pids]
        finally:
            child.close()
    assert allowed == [{min(os.sched_getaffinity(0))}] * 2, "of the daemon and of the camera"


def test_the_share_of_the_ideal_is_of_the_same_round():
    assert [scaling.frames_on(n, CASE, False) for n in scaling.CORES] == [8, 8, 16, 32, 32]
    taking_part = [Entry(f"w-{n}", "", replace(CASE, cores=n)) for n in (1, 2, 1, 2)]
    results = [
        Result(entry.label, "ours", 10**9, None, seconds, [1.0] * len(seconds), 1000)
        for entry, seconds in zip(taking_part, ([1.0, 4.0, 2.0], [1.0, 2.0], [], [1.0]), strict=True)
    ]
    one, two, failed, alone = scaling.rows_of("disk", taking_part, results)
    assert (one["of_ideal"], two["of_ideal"]) == (1, 0.75)
    assert two["of_ideal_spread"] == {"least": 0.5, "most": 1}
    assert "no round was timed" in failed["error"]
    assert alone["of_ideal"] is None, "nothing to compare it with"
    assert "failed: no round" in part_text({"rows": [one, two, failed, alone]}, scaling.COLUMNS)


def test_steps_of_a_run(tmp_path, monkeypatch, capfd):
    case = Case(frames=8, shape=(64, 64), chunk=(1, 64, 64), shard=(8, 64, 64), distinct=8)
    monkeypatch.setattr(steps, "CASES", {"tiny": case})
    monkeypatch.setattr(steps, "QUICK_STEPS", 4)
    assert main(["steps", "--quick", "--json", "--folder", str(tmp_path)]) == 0
    part = json.loads(capfd.readouterr().out)
    assert part["settings"] == {"steps": 4, "rounds": 1}
    assert [(row["name"], row["headline"]) for row in part["rows"]] == [("none", False), ("tiny", True)]
    assert all(row["step_p50_ms"] > 0 for row in part["rows"])
    assert "tiny" in part_text(part, steps.COLUMNS)


@pytest.mark.parametrize("part", run.PARTS)
def test_every_part_is_a_command(part, tmp_path, monkeypatch, capsys):
    def measure(places, quick, **further):
        assert quick
        assert further == (
            {"share": 0.5}
            if part == "latency"
            else {"seconds": 3, "times": 1.5}
            if part == "overload"
            else {}
        )
        assert places.disk.is_dir()
        return {"settings": {}, "rows": []}

    monkeypatch.setattr(run.PARTS[part], "measure", measure)
    options = {"latency": ["--share", "0.5"], "overload": ["--seconds", "3"]}.get(part, [])
    assert main([part, "--quick", "--json", "--folder", str(tmp_path), *options]) == 0
    assert json.loads(capsys.readouterr().out) == {"part": part, "settings": {}, "rows": []}
    assert not list(tmp_path.iterdir())


def test_a_start_is_measured_with_and_without_compiled_kernels(places, monkeypatch):
    caches = []

    def one(store, cache):
        caches.append(cache.name)
        return 3.0 if len(caches) == 1 else 0.4

    assert CACHE_FOLDER is not None, "the kernels of these tests are kept"
    assert start.one(places.disk / "a.ome.zarr", CACHE_FOLDER.parent.parent) > 0
    monkeypatch.setattr(start, "one", one)
    part = start.measure(places, True)
    assert caches == ["cache-0", "cache-0"]
    (row,) = part["rows"]
    assert (row["cold_s"], row["warm_s"]) == (3.0, 0.4)
    assert [found["limit"] for found in outcomes_of_part("start", [row])] == [6.0, 0.5]
