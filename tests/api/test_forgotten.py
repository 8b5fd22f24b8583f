"""Writers that nobody closes, and their copies in forked children."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw

SOURCE = str(Path(sw.__file__).parents[1])
BEGIN = """
import os, sys, threading, time
import numpy as np
import shardwright as sw
from shardwright.disk import failpoints

def begin(**more):
    return sw.create(sys.argv[1], shape=(None, 16, 16), dtype="uint16", axes="tyx",
                     chunks={"t": 1, "y": 16, "x": 16}, shards={"t": 8, "y": 16, "x": 16}, **more)

def frame(i):
    return np.full((16, 16), i + 1, np.uint16)
"""


def run(code: str, path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=SOURCE)
    command = [sys.executable, *flags, "-c", BEGIN + code, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)


def stored(path: Path, image: int | None = None) -> list[int]:
    folder = path if image is None else path / str(image)
    return zarr.open_array(folder / "0", mode="r")[:, 0, 0].tolist()


def threads_of_ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shardwright")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.ome.zarr"


ENDS = {
    "the last line": ("", 0),
    "an exception": ("raise ValueError", 1),
    "an exception of ours": ("writer.append(frame(0)[1:])", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "a cycle": ("cycle = [writer]; cycle.append(cycle); del writer, cycle", 0),
    "an exit hook of the program": ("import atexit; atexit.register(writer.flush)", 0),
    "a thread that is not done": (
        "threading.Thread(target=lambda: (time.sleep(0.5), writer.append(frame(12)))).start()",
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_came_is_sealed_when_the_interpreter_ends(path, end):
    """As in the with block after an exception. The exit code is the program's own."""
    code, expected = ENDS[end]
    came = 13 if end == "a thread that is not done" else 12
    script = f"writer = begin()\nfor i in range(12): writer.append(frame(i))\n{code}"
    done = run(script, path, "-W", "default")
    assert done.returncode == expected, done.stderr
    assert "ResourceWarning: the writer of" in done.stderr
    assert stored(path) == list(range(1, came + 1))
    assert not (path / ".shardwright").exists()


def test_many_files_are_sealed_without_a_new_thread(path):
    """Python 3.12 refuses them then; the sealer has others to help it at any other time."""
    script = """
writer = begin(images=[f"i{n}" for n in range(24)])
for i in range(9):
    for image in writer.images.names: writer.append(frame(i), image=image)
writer.flush()

def refuse(self): raise RuntimeError("can't create new thread at interpreter shutdown")
import atexit
atexit.register(lambda: setattr(threading.Thread, "start", refuse))
"""
    done = run(script, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(stored(path, image) == list(range(1, 10)) for image in range(24))


def test_a_shard_that_cannot_be_sealed_is_written_anew_without_a_new_thread(path):
    script = """
writer = begin()
for i in range(8): writer.append(frame(i))
writer.flush()
import errno, atexit
faults = [OSError(errno.EIO, "no")]

def fail():
    if faults: raise faults.pop()

failpoints.set_hook("shard.before_index", fail)
writer.append(frame(8))
"""
    done = run(script, path)
    assert done.returncode == 0
    assert "shard row 1 is in new files, 0 frames lost" in done.stderr
    assert stored(path) == list(range(1, 10))


def test_a_store_without_a_frame_leaves_nothing(path):
    assert run("writer = begin()", path).returncode == 0
    assert not path.exists()


def test_a_writer_that_cannot_be_sealed_says_so(path):
    script = """
writer = begin()
for i in range(9): writer.append(frame(i))
writer.flush()
import errno

def fail(): raise OSError(errno.EIO, "the disk is gone")

failpoints.set_hook("shard.before_index", fail)
"""
    done = run(script, path)
    assert "not everything that came was sealed" in done.stderr
    with sw.resume(path) as writer:
        assert writer.frames == 9
    assert stored(path) == list(range(1, 10))


def forget(path, frames: int, **arguments) -> None:
    writer = sw.create(path, shape=(None, 16, 16), dtype="uint16", axes="tyx", **how(**arguments))
    for i in range(frames):
        writer.append(np.full((16, 16), i + 1, np.uint16))


def test_the_last_reference_seals_and_the_cell_can_be_run_again(path):
    before = threads_of_ours()  # workers that a fixture of other tests keeps
    for frames in (5, 7):
        with pytest.warns(ResourceWarning, match=r"the writer of .*a\.ome\.zarr was not closed"):
            forget(path, frames, overwrite=True)
        assert stored(path) == list(range(1, frames + 1))
        assert threads_of_ours() == before


def test_a_forgotten_writer_in_a_cycle_that_another_ones_thread_collects(path, tmp_path):
    """There it cannot wait: its own helper seals."""
    with sw.create(tmp_path / "b", shape=(4, 16, 16), dtype="uint16", axes="tyx") as other:
        submit = other._acquisition.submit

        def collect(*arguments) -> None:
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                gc.collect()
            submit(*arguments)

        other._acquisition.submit = collect
        gc.collect()
        gc.disable()
        try:
            cycle: list[object] = [sw.create(path, shape=(None, 16, 16), dtype="uint16", axes="tyx")]
            cycle[0].append(np.full((16, 16), 1, np.uint16))
            helper = cycle[0]._driver.helper
            cycle.append(cycle)
            del cycle
            other.append(np.zeros((16, 16), np.uint16))
        finally:
            gc.enable()
        helper.join(60)
        assert not helper.is_alive()
    assert stored(path) == [1]


def test_an_open_claim_keeps_its_writer(path):
    writer = sw.create(path, shape=(2, 16, 16), dtype="uint16", axes="tyx")
    claim = writer.claim()
    del writer
    gc.collect()
    claim.pixels[:] = 7
    claim.commit()
    with pytest.warns(ResourceWarning):
        del claim
    assert stored(path) == [7]


def test_a_writer_that_was_closed_says_nothing(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sw.create(path, shape=(None, 16, 16), dtype="uint16", axes="tyx").close()
        gc.collect()


def test_a_full_disk_does_not_keep_the_interpreter(path):
    """Though ``on_full`` says to wait: what is stored stays for ``recover``."""
    script = """
writer = begin(on_full="block")
for i in range(8): writer.append(frame(i))
writer.flush()
import errno

def fail(): raise OSError(errno.ENOSPC, "full")

failpoints.set_hook("shard.before_preallocate", fail)
for i in range(8, 20): writer.append(frame(i))
"""
    done = run(script, path)
    assert "not everything that came was sealed" in done.stderr


FORKED = """
writer = begin()
for i in range(9): writer.append(frame(i))
claim = writer.claim()
calls = {
    "append": lambda: writer.append(frame(9)),
    "append_many": lambda: writer.append_many(frame(9)[None]),
    "claim": writer.claim,
    "commit": claim.commit,
    "flush": writer.flush,
    "update_metadata": lambda: writer.update_metadata({"x": 1}),
    "close": writer.close,
    **{name: lambda name=name: getattr(writer, name)
       for name in ("frames", "released", "copied", "receipt", "watermark")},
}
"""


def test_a_forked_child_is_refused_at_once_and_changes_nothing(path):
    script = (
        FORKED
        + """
holds, ends = threading.Event(), threading.Event()
def hold():
    with writer._driver.lock.held:
        holds.set(); ends.wait()
holder = threading.Thread(target=hold)
holder.start(); holds.wait()
child = os.fork()
if child == 0:
    for name, call in calls.items():
        try:
            call()
        except sw.errors.ForkedError as error:
            print(name, str(error).partition(";")[0], 'get_context("spawn")' in str(error))
    del calls, claim, writer  # says and does nothing
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
ends.set(); holder.join()
claim.give_back()
writer.append(frame(9))
print(writer.close().frames_stored)
"""
    )
    # Python 3.12 and later warn of a fork beside threads
    done = run(script, path, "-W", "default", "-W", "ignore:This process:DeprecationWarning")
    assert (done.returncode, done.stderr) == (0, "")
    *told, count = done.stdout.splitlines()
    refused = "this writer belongs to another process, of which this one is a forked child True"
    assert [line.partition(" ")[2] for line in told] == [refused] * 12
    assert count == "10"
    assert stored(path) == list(range(1, 11))
