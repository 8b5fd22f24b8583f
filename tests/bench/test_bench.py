"""tools/bench on a tiny case: each contender writes what it was given, and the report computes what it
says."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from benchmarks import compaction_report, contest, processes
from benchmarks.cases import Case, page
from benchmarks.contest import Child, Entry, Result, compare, entries, frames_file
from benchmarks.peers import CONTENDERS
from benchmarks.peers import repackers as compaction
from benchmarks.report import summary, table, verdicts

CASE = Case(frames=8, distinct=4, shape=(96, 64), chunk=(2, 32, 64), shard=(4, 96, 64))


@pytest.mark.parametrize("name", CONTENDERS)
def test_contender_writes_the_frames_and_proves_it(name, tmp_path):
    with frames_file(CASE) as frames:
        child = Child(Entry(name, name, CASE), frames, tmp_path / name)
        try:
            child.wait_until_ready()
            child.round(timed=True)
            child.verify()
            assert any((tmp_path / name).iterdir()) is (
                child.result.kind != "core" and name != "floor-kernel"
            )
            child.clear()
            assert not [path for path in (tmp_path / name).iterdir() if path.is_dir()]
        finally:
            child.close()
    result = child.result
    assert len(result.seconds) == len(result.cpu_seconds) == 1
    assert result.stored_bytes > 0


UNCOMPRESSED = (
    "shardwright",
    "shardwright-mmap",
    "shardwright-pwrite",
    "daemon-shm",
    "acquire-zarr",
    "tensorstore",
    "zarrs",
    "zarr-python",
)


@pytest.mark.parametrize("name", [*UNCOMPRESSED, "floor-kernel", "floor-direct"])
def test_contender_writes_uncompressed_and_small_chunks(name, tmp_path):
    """Without a compressor what is stored has the size of the frames; the readers that verify it prove that
    the layout is the one asked for."""
    case = replace(CASE, cname="none", chunk=(2, 32, 32))  # of one page
    (result,) = compare([Entry(name, name, case)], 1, tmp_path / "work", lambda _: None)
    assert result.error is None
    assert case.raw_bytes <= result.stored_bytes < 4 * case.raw_bytes


def test_a_contender_that_hangs_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "ANSWER_LIMIT_S", 0.0)
    (result,) = compare(entries(["zarr-python"], CASE), 1, tmp_path / "work", lambda _: None)
    assert "no answer within" in result.error


def test_frames_must_be_the_same_for_all(tmp_path):
    with pytest.raises(AssertionError, match="the same frames"):
        compare(
            [*entries(["zarr-python"], CASE), *entries(["zarrs"], replace(CASE, seed=8))],
            1,
            tmp_path / "work",
            lambda _: None,
        )


def test_both_scenes_draw_distinct_frames():
    for scene in ("spots", "camera"):
        frames = Case(
            frames=4, distinct=2, shape=(64, 64), chunk=(2, 64, 64), shard=(2, 64, 64), scene=scene
        ).draw()
        assert frames.shape == (2, 64, 64)
        assert (frames[0] != frames[1]).any()


def test_verification_fails_on_a_wrong_pixel(tmp_path):
    """The check that all contenders rely on, seen failing."""
    from benchmarks.peers.contender import check_last_shard
    from benchmarks.peers.zarr_python import ZarrPython

    frames = CASE.draw()
    contender = ZarrPython(CASE, frames)
    contender.start(tmp_path)
    contender.write(tmp_path / "store")
    check_last_shard(tmp_path / "store", contender)
    frames[3, 5, 7] ^= 1
    with pytest.raises(AssertionError, match="frame 7 differs"):
        check_last_shard(tmp_path / "store", contender)


def test_a_contender_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(CONTENDERS, "broken", ("no_such_module", "Nothing"))
    said = []
    broken, right = compare(entries(["broken", "zarr-python"], CASE), 1, tmp_path / "work", said.append)
    assert broken.error is not None
    assert right.error is None
    assert len(right.seconds) == 1
    assert not (tmp_path / "work").exists()
    rows = summary([broken, right], CASE)
    assert "failed" in table(rows)


def test_ratios_are_taken_within_each_round():
    case = Case(frames=64)
    second = case.raw_bytes / 1e9
    ours = Result(
        "shardwright", "ours", 100, [second, second / 2, second / 4], [second] * 3, case.raw_bytes // 2, 50
    )
    reference = Result(
        "acquire-zarr",
        "peer",
        None,
        [2 * second, 2 * second, 2 * second],
        [second] * 3,
        case.raw_bytes // 2,
        70,
    )
    row = summary([ours, reference], case)[0]
    assert row["gb_per_s"] == pytest.approx(2)
    assert row["versus_reference"] == pytest.approx(4)
    assert row["within_plan"] is True
    assert row["ratio"] == pytest.approx(2)
    assert verdicts([row]) == ["shardwright is 4.00x acquire-zarr (asked: 2.0x)"]


def test_more_memory_than_planned_is_said():
    case = Case(frames=64)
    greedy = Result("shardwright", "ours", 100, [1.0], [1.0], 1000, 101)
    rows = summary([greedy], case)
    assert rows[0]["within_plan"] is False
    assert any("more than its plan" in line for line in verdicts(rows))


def test_help_lists_the_contenders():
    tools = Path(__file__).parents[2] / "tools"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=tools, capture_output=True, text=True, check=True
    )
    assert "acquire-zarr" in done.stdout


def test_every_way_to_repack_gives_the_same_pixels_and_is_measured(tmp_path):
    names = list(compaction.REPACKERS)
    live_bytes, results = compaction.measure(names, CASE, 1, tmp_path / "work", lambda _: None)
    assert [result.error for result in results] == [None] * len(names)
    assert all(len(result.seconds) == len(result.cpu_seconds) == 1 for result in results)
    stored = {result.name: result.stored_bytes for result in results}
    assert {stored[name] for name in ("pack", "pack-job", "cp", "cp-sync", "cp-sync-cmp")} == {live_bytes}
    assert stored["recompress-zstd"] < live_bytes
    assert not (tmp_path / "work").exists()
    rows = compaction_report.summary(results, live_bytes)
    assert rows[names.index("cp")]["versus"]["cp"] == 1
    assert "asked: 0.8x" in compaction_report.verdicts(rows)[0]
    assert all(name in compaction_report.table(rows) for name in names)


def test_a_way_to_repack_that_loses_a_pixel_is_an_error(tmp_path, monkeypatch):
    class Lossy(compaction.Cp):
        def write(self, path):
            nbytes = super().write(path)
            shard = max((path / "0" / "c").rglob("*"))
            shard.unlink()
            return nbytes

    monkeypatch.setitem(compaction.REPACKERS, "lossy", Lossy)
    _, (lossy, right) = compaction.measure(["lossy", "cp"], CASE, 1, tmp_path / "work", lambda _: None)
    assert "AssertionError" in lossy.error
    assert right.error is None
    (row, _) = compaction_report.summary([lossy, right], 1)
    assert "failed: AssertionError" in compaction_report.table([row])


def test_the_page_costs_what_its_rounds_lost():
    off, polled = page.summary(
        {
            "off": [page.Round(rate, 0.0) for rate in (100.0, 200.0, 400.0, 100.0)],
            "polled": [
                page.Round(99.0, 0.01),
                page.Round(190.0, 0.012),
                page.Round(400.0, 0.03),
                page.Round(98.0, 0.008),
            ],
        }
    )
    assert (off["rate_cost"], off["web_share"]) == (0, 0)
    assert polled["rate_cost"] == pytest.approx(0.015), (
        "the middle of the rounds, each against its own neighbour"
    )
    assert (polled["rate_cost_at_least"], polled["rate_cost_at_most"]) == pytest.approx((0.01, 0.02)), (
        "half of the rounds lie between"
    )
    assert polled["web_share"] == pytest.approx(0.011)
    assert polled["frames_per_s"] == 144.5


def test_who_polls_asks_what_the_page_asks(tmp_path):
    daemon = page.Daemon(tmp_path / "on", http=True)
    try:
        with page.polled(daemon.url):
            measured = daemon.camera(20, "64x64")
        assert measured.frames_per_s > 0
        assert 0 <= measured.web_share < 1
    finally:
        daemon.close()
    assert daemon.url.startswith("http://127.0.0.1:")


def test_nobody_pays_for_what_the_one_before_deleted(tmp_path, monkeypatch):
    """The disk's counters move for a while; and a disk that never rests is not waited for."""
    counters = tmp_path / "stat"
    moves = iter(range(4))
    monkeypatch.setattr(contest, "Path", lambda _: counters)
    monkeypatch.setattr(contest, "QUIET_S", 0.01)
    monkeypatch.setattr(contest.time, "sleep", lambda _: counters.write_text(str(next(moves, "at rest"))))
    counters.write_text("begin")
    contest.wait_until_quiet(tmp_path)
    assert counters.read_text() == "at rest"
    endless = iter(range(10**9))
    monkeypatch.setattr(contest.time, "sleep", lambda _: counters.write_text(str(next(endless))))
    monkeypatch.setattr(contest, "MOST_QUIET_WAIT_S", 0.1)
    contest.wait_until_quiet(tmp_path)
    assert int(counters.read_text()) > 0
