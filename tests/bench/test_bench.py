"""tools/bench on a tiny case: each contender writes what it was given, and the table shows its figures."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import zarr

from benchmarks import contest, processes
from benchmarks.__main__ import main
from benchmarks.cases import Case, saved, throughput
from benchmarks.contest import Child, Result, compare, entries
from benchmarks.peers import CONTENDERS, REPACKERS, contender_class, repackers
from benchmarks.table import table

CASE = Case(frames=8, distinct=4, shape=(96, 64), chunk=(2, 32, 64), shard=(4, 96, 64))


@pytest.mark.parametrize("name", CONTENDERS)
def test_contender_writes_the_frames_and_proves_it(name, tmp_path):
    with saved(CASE.draw()) as frames:
        (entry,) = entries([name], CASE)
        child = Child(entry, frames, tmp_path / name)
        try:
            child.wait_until_ready()
            child.round(timed=True)
            child.verify()
            assert any((tmp_path / name).iterdir()) is (name != "floor-kernel")
            child.clear()
            assert not [path for path in (tmp_path / name).iterdir() if path.is_dir()]
        finally:
            child.close()
    result = child.result
    assert len(result.seconds) == len(result.cpu_seconds) == 1
    assert result.stored_bytes > 0
    assert result.counted_bytes == CASE.raw_bytes


ZARR_PYTHONS = zarr.config.get("codec_pipeline.path")
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
    stored_bytes, _ = written_here(CONTENDERS[name], case, tmp_path / "own")
    assert case.raw_bytes <= stored_bytes < 4 * case.raw_bytes
    assert zarr.config.get("codec_pipeline.path") == ZARR_PYTHONS, "other tests read with it"


def written_here(place, case, folder):
    """(bytes stored, bytes counted) of one round of a contender in this process, which proves what it
    wrote."""
    folder.mkdir()
    contender = contender_class(place)(case, case.draw())
    contender.start(folder)
    try:
        contender.prepare(folder / "round")
        stored_bytes = contender.write(folder / "round")
        contender.verify(folder / "round")
    finally:
        contender.stop()
    return stored_bytes, contender.counted_bytes()


def test_a_contender_that_hangs_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "ANSWER_LIMIT_S", 0.0)
    (result,) = compare(entries(["zarr-python"], CASE), 1, tmp_path / "work")
    assert "no answer within" in result.error


def test_no_round_begins_after_the_time_of_a_comparison(tmp_path, monkeypatch):
    clock = iter([0.0] * 5)  # its begin, then one contender to start, to warm up, and two of three rounds
    monkeypatch.setattr(contest, "time", SimpleNamespace(monotonic=lambda: next(clock, 10.0)))
    monkeypatch.setattr(contest, "wait_until_quiet", lambda folder: None)
    (result,) = compare(entries(["zarr-python"], CASE), 3, tmp_path / "work", limit_s=10.0)
    assert result.error is None
    assert len(result.seconds) == 2


def test_frames_must_be_the_same_for_all(tmp_path):
    with pytest.raises(AssertionError, match="the same frames"):
        compare(
            [*entries(["zarr-python"], CASE), *entries(["zarrs"], replace(CASE, seed=8))],
            1,
            tmp_path / "work",
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
    from benchmarks.peers import check_last_shard
    from benchmarks.peers.zarr_python import ZarrPython

    frames = CASE.draw()
    contender = ZarrPython(CASE, frames)
    contender.start(tmp_path)
    contender.write(tmp_path / "store")
    contender.stop()
    check_last_shard(tmp_path / "store", contender)
    frames[3, 5, 7] ^= 1
    with pytest.raises(AssertionError, match="frame 7 differs"):
        check_last_shard(tmp_path / "store", contender)


def test_a_contender_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(CONTENDERS, "broken", "no_such_module.Nothing")
    broken, right = compare(entries(["broken", "zarr-python"], CASE), 1, tmp_path / "work")
    assert "no_such_module" in broken.error
    assert right.error is None
    assert len(right.seconds) == 1
    assert not (tmp_path / "work").exists()
    shown = table([broken.row(), right.row()], throughput.COLUMNS).splitlines()
    assert shown[2].startswith("broken")
    assert "failed: " in shown[2]
    assert shown[3].startswith("zarr-python")
    assert "broken failed" in capsys.readouterr().err


def test_a_row_has_the_medians_and_every_round():
    second = Case(frames=64).raw_bytes
    result = Result("one", "ours", second, 100, [1.0, 0.5, 0.25], [1.0, 1.0, 2.0], second // 2, 50)
    row = result.row()
    assert row["gb_per_s"]["rounds"] == pytest.approx([second / 1e9 * many for many in (1, 2, 4)], rel=1e-5)
    assert row["gb_per_s"]["median"] == row["gb_per_s"]["rounds"][1]
    assert (row["gb_per_s"]["least"], row["gb_per_s"]["most"]) == tuple(row["gb_per_s"]["rounds"][::2])
    assert row["cpu_s_per_gb"]["median"] == pytest.approx(1e9 / second, rel=1e-5)
    assert (row["cores_used"], row["ratio"]) == (2, 2)
    assert (row["memory_bytes"], row["planned_memory_bytes"]) == (50, 100)
    assert "no round was timed" in Result("two").row()["error"]


def test_a_table_has_a_line_for_each_row_and_a_column_for_each_figure():
    rows = [
        {
            "name": "a",
            "speed": {"median": 1234.567},
            "memory_bytes": 3 << 20,
            "plan": None,
            "runs": [{"n": 7}],
        },
        {"name": "a longer name", "error": "first line\nlast line"},
    ]
    columns = {"GB/s": "speed.median", "MiB": "memory_bytes", "plan": "plan", "first": "runs.0.n"}
    head, rule, first, second = table(rows, columns).splitlines()
    assert head.split() == list(columns)
    assert set(rule) == {"-"}
    assert first.split() == ["a", "1,234.57", "3", "7"]
    assert second.split() == ["a", "longer", "name", "failed:", "last", "line"]


def test_help_lists_the_contenders():
    tools = Path(__file__).parents[2] / "tools"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=tools, capture_output=True, text=True, check=True
    )
    assert "acquire-zarr" in done.stdout


def test_every_way_to_repack_gives_the_same_pixels(tmp_path):
    written = {name: written_here(place, CASE, tmp_path / name) for name, place in REPACKERS.items()}
    stored = {name: stored_bytes for name, (stored_bytes, _) in written.items()}
    live = {counted_bytes for _, counted_bytes in written.values()}
    assert {stored[name] for name in ("pack", "pack-job", "cp", "cp-sync", "cp-sync-cmp")} == live
    assert len(live) == 1
    assert stored["recompress-zstd"] < stored["pack"]


def test_ways_to_repack_are_measured(tmp_path):
    results = compare(entries(["pack", "cp"], CASE, REPACKERS), 1, tmp_path / "work")
    assert [result.error for result in results] == [None, None]
    assert all(len(result.seconds) == len(result.cpu_seconds) == 1 for result in results)
    assert not (tmp_path / "work").exists()


def test_a_way_to_repack_that_loses_a_pixel_is_an_error(tmp_path):
    class Lossy(repackers.Cp):
        def write(self, path):
            nbytes = super().write(path)
            max((path / "0" / "c").rglob("*")).unlink()
            return nbytes

    (tmp_path / "own").mkdir()
    for kind, right in ((repackers.Cp, True), (Lossy, False)):
        contender = kind(CASE, CASE.draw())
        contender.start(tmp_path / "own")
        contender.prepare(tmp_path / "own" / kind.__name__)
        contender.write(tmp_path / "own" / kind.__name__)
        if right:
            contender.verify(tmp_path / "own" / kind.__name__)
        else:
            with pytest.raises(AssertionError, match="differs"):
                contender.verify(tmp_path / "own" / kind.__name__)


def test_nobody_pays_for_what_the_one_before_deleted(tmp_path, monkeypatch):
    """The disk's counters move for a while; and a disk that never rests is not waited for."""
    counters = tmp_path / "stat"
    moves = iter(range(4))
    monkeypatch.setattr(contest, "Path", lambda _: counters)
    monkeypatch.setattr(contest, "QUIET_S", 0.01)
    monkeypatch.setattr(contest, "MOST_QUIET_WAIT_S", 20.0)
    monkeypatch.setattr(contest.time, "sleep", lambda _: counters.write_text(str(next(moves, "at rest"))))
    counters.write_text("begin")
    contest.wait_until_quiet(tmp_path)
    assert counters.read_text() == "at rest"
    endless = iter(range(10**9))
    monkeypatch.setattr(contest.time, "sleep", lambda _: counters.write_text(str(next(endless))))
    monkeypatch.setattr(contest, "MOST_QUIET_WAIT_S", 0.1)
    contest.wait_until_quiet(tmp_path)
    assert int(counters.read_text()) > 0


def test_the_command_prints_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.__main__.Case", lambda **given: replace(CASE, threads=given["threads"]))
    assert main(["--only", "zarr-python", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("zarr-python")
    assert main(["compact", "--only", "cp", "--rounds", "1", "--folder", str(tmp_path), "--json"]) == 0
    assert '"name": "cp"' in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
