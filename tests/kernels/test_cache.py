"""The folder of compiled kernels: old ones go, the one in use stays, and it says whether there is anything to
compile."""

import errno
import fcntl
import os
import re
from pathlib import Path

import numba
import pytest
from numba.core import caching

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


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """Returns how to choose a folder in ``NUMBA_CACHE_DIR``."""
    monkeypatch.setattr(cache.numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(cache, "_unsaved", set())

    def choose(folder=tmp_path):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
        return cache.choose_cache_folder()

    return choose


@pytest.mark.parametrize(
    ("of", "name", "other"),
    [
        (cache.sys.implementation, "cache_tag", "cpython-399"),
        (cache.binding, "get_host_cpu_name", lambda: "another"),
        (cache.binding, "get_host_cpu_features", lambda: cache.binding.FeatureMap(another=True)),
    ],
)
def test_another_python_or_cpu_has_a_folder_of_its_own(chosen, monkeypatch, of, name, other):
    """numba compiles for each. In a folder that another one had marked as complete (a home that machines
    share) that took half a minute in silence, in every process that started meanwhile."""
    one = chosen()
    cache.note_compiled(one)
    assert cache.is_compiled(chosen())
    monkeypatch.setattr(of, name, other)
    assert chosen() != one
    assert not cache.is_compiled(chosen())


def test_a_folder_that_cannot_be_written_is_none(chosen, monkeypatch):
    """numba refuses to declare a kernel there, so that the import of the package failed."""
    assert chosen() is not None
    monkeypatch.setattr(
        cache.os, "access", lambda path, mode, **_: False
    )  # root may write into any but these
    assert chosen() is None


def test_nobody_else_can_put_a_folder_in_place_of_ours(chosen, monkeypatch, tmp_path):
    """Its files are unpickled. The folder was private, but stood in one that somebody else had made."""
    above = tmp_path / "above"
    assert chosen(above) is not None
    above.chmod(0o777)
    assert chosen(above) is None
    above.chmod(0o1777)  # /tmp
    assert chosen(above) is not None
    above.chmod(0o777)
    monkeypatch.setenv("HOME", str(above / "shardwright"))
    assert chosen(above) is not None, "who can replace our home need not replace this"
    monkeypatch.setenv("HOME", "/")
    if os.geteuid() == 0:
        above.chmod(0o755)
        os.chown(above, 12345, 12345)
        assert chosen(above) is None


def test_a_link_to_the_folder_is_not_followed_again(chosen, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "one", target_is_directory=True)
    assert chosen(tmp_path / "link").is_relative_to(tmp_path.resolve() / "one")


def twice(number):
    return 2 * number


def test_a_kernel_that_a_full_disk_does_not_keep_is_used_all_the_same(chosen, monkeypatch):
    """numba raised it out of the call: no writer, daemon or reader started. The folder is not complete then:
    the next start compiles, too, and says so."""
    folder = chosen()

    def full(self, signature, compiled):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.FunctionCache, "_save_overload", full)
    kernel = cache.njit(cache=True)(twice)
    kernel._cache.save_overload((numba.int64,), "compiled")  # as numba calls it, before the kernel runs
    cache.note_compiled(folder)
    assert not cache.is_compiled(folder)


def test_a_kernel_is_never_kept_beside_its_source(chosen, monkeypatch, tmp_path):
    """There it would stay in use when another one that it calls has changed."""
    folder = chosen()
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache.numba.config, "CACHE_DIR", str(tmp_path / "file"))
    assert isinstance(cache.njit(cache=True)(twice)._cache, caching.NullCache)
    cache.note_compiled(folder)
    assert not cache.is_compiled(folder)


def test_every_kernel_is_declared_with_this_cache():
    importing = re.compile(r"(?m)^from numba import .*\bnjit\b|numba\.njit")
    found = {
        path.name for path in Path(cache.__file__).parent.glob("*.py") if importing.search(path.read_text())
    }
    assert found == {"cache.py"}


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
