"""The folder of compiled kernels: old ones go, the one in use stays, and it says whether there is anything to
compile."""

import fcntl
import os

import pytest

from shardwright.acquire.workers import WorkerPool
from shardwright.kernels import cache, warm_up


def test_a_clock_that_was_set_back_does_not_cost_the_newest_folder(tmp_path):
    for i in range(cache.KEPT + 2):
        folder = tmp_path / f"kernels-{i}"
        folder.mkdir()
        os.utime(folder, (2e9 + i, 2e9 + i))  # made while the clock was ahead
    newest = tmp_path / "kernels-new"
    newest.mkdir()
    cache._delete_old(newest)
    kept = {folder.name for folder in tmp_path.iterdir()}
    assert kept == {"kernels-new", *(f"kernels-{i}" for i in range(2, cache.KEPT + 2))}


def test_another_python_has_a_folder_of_its_own(monkeypatch, tmp_path):
    """numba compiles for each Python. In a folder that another one has marked as complete that took half a
    minute in silence, in every process that started meanwhile."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache.numba.config, "CACHE_DIR", "")
    one = cache.choose_cache_folder()
    cache.note_compiled(one)
    assert cache.is_compiled(cache.choose_cache_folder())
    monkeypatch.setattr(cache.sys.implementation, "cache_tag", "cpython-399")
    other = cache.choose_cache_folder()
    assert other != one
    assert not cache.is_compiled(other)


@pytest.fixture
def new_process(monkeypatch):
    """As at the start of another one, without the compilation. Returns how to begin one, and what it has
    done."""
    done = []
    monkeypatch.setattr(warm_up, "_run_each", lambda: done.append("run"))

    def begin(folder):
        monkeypatch.setattr(warm_up, "CACHE_FOLDER", folder)
        monkeypatch.setattr(warm_up, "_done", False)
        done.clear()
        if warm_up.compiles():
            done.append(warm_up.COMPILING)
        warm_up.warm_up()
        assert not warm_up.compiles()
        warm_up.warm_up()
        return list(done)

    return begin


def test_a_compilation_is_told_before_it_begins_and_once(new_process, tmp_path):
    assert new_process(tmp_path) == [warm_up.COMPILING, "run"]
    assert new_process(tmp_path) == ["run"], "loaded: nobody need wait"


def test_where_nothing_can_be_kept_each_start_tells(new_process, tmp_path):
    assert [new_process(None), new_process(None)] == [[warm_up.COMPILING, "run"]] * 2
    gone = tmp_path / "gone"
    assert [new_process(gone), new_process(gone)] == [[warm_up.COMPILING, "run"]] * 2


def test_a_compilation_that_was_cut_short_is_told_again(new_process, monkeypatch, tmp_path):
    def cut():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(warm_up, "_run_each", cut)
        with pytest.raises(KeyboardInterrupt):
            new_process(tmp_path)
    assert new_process(tmp_path) == [warm_up.COMPILING, "run"]


def test_in_a_program_it_is_a_line_of_the_log(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(warm_up, "_run_each", lambda: None)
    monkeypatch.setattr(warm_up, "CACHE_FOLDER", tmp_path)
    monkeypatch.setattr(warm_up, "_done", False)
    for _ in range(2):
        pool = WorkerPool(1)
        pool.start()
        pool.stop()
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("shardwright", "WARNING", warm_up.COMPILING)
    ]


def test_a_process_that_was_stopped_while_it_compiled_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LONGEST_COMPILATION_S", 0.2)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with cache.one_compiles(tmp_path):
            pass  # both compile
    monkeypatch.setattr(cache, "LONGEST_COMPILATION_S", 60.0)
    with cache.one_compiles(tmp_path), (tmp_path / "lock").open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
