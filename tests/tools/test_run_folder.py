"""What a run of the tests leaves behind: nothing, or the next one deletes it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.faults.disks import need_root, need_tools
from tests.harness import run_folder
from tests.harness.json_process import ROOT, environment

ON_A_DISK_OF_ITS_OWN = """
import os, signal, sys
from pathlib import Path
from tests.faults.disks import LoopDisk
from tests.harness.run_folder import PREFIX, enter
folders = enter()
with LoopDisk() as disk, disk.frozen():
    print(disk.path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
IN_A_RUN = """
import sys
from tests.harness.run_folder import enter, keep
folders = enter()
(folders.temporary / "file").touch()
print(folders.temporary, folders.on_disk, flush=True)
if sys.argv[1] == "fails":
    keep(folders)
if sys.argv[1] == "joined":
    import subprocess
    subprocess.run([sys.executable, "-c", sys.argv[2], "whole"], check=True)
    assert (folders.temporary / "file").exists()
"""


@pytest.fixture
def tmp_path(on_disk):
    return on_disk


def run(code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in environment(more).items() if name != "SHARDWRIGHT_TEST_DISK"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=without, capture_output=True, text=True, cwd=ROOT, timeout=100)


def left_in(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob(f"{run_folder.PREFIX}*"))


@pytest.mark.parametrize("way", ["whole", "joined"])
def test_a_run_leaves_nothing(tmp_path, way):
    done = run(IN_A_RUN, way, IN_A_RUN, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1, "one folder, of this run and of what it starts"
    assert Path(done.stdout.split()[0]).parent == tmp_path
    assert left_in(tmp_path) == []


def test_what_a_failed_test_left_stays_until_the_next_run(tmp_path):
    kept = Path(run(IN_A_RUN, "fails", TMPDIR=str(tmp_path)).stdout.split()[0])
    assert (kept / "file").exists()
    note = kept / run_folder.KEPT
    assert note.read_text() == str(ROOT)
    note.write_text(str(tmp_path))  # of another checkout
    run_folder.sweep(tmp_path)
    assert kept.exists()
    note.write_text(str(ROOT))
    run_folder.sweep(tmp_path)
    assert left_in(tmp_path) == []


def test_a_folder_in_use_stays(tmp_path):
    used = tmp_path / f"{run_folder.PREFIX}used"
    used.mkdir()
    with subprocess.Popen(["flock", "--shared", used, "cat"], stdin=subprocess.PIPE) as user:
        while not subprocess.run(["flock", "--nonblock", used, "true"]).returncode:
            pass
        run_folder.sweep(tmp_path)
        assert used.exists()
        user.communicate()
    run_folder.sweep(tmp_path)
    assert not used.exists()


def test_the_next_run_unmounts_what_a_killed_one_had_frozen(tmp_path):
    need_root()
    need_tools("mkfs.ext4")
    done = run(ON_A_DISK_OF_ITS_OWN, TMPDIR=str(tmp_path))
    assert done.returncode == -signal.SIGKILL, done.stderr
    mounted = done.stdout.strip()
    image = str(Path(mounted).with_name("image"))
    assert (os.path.ismount(mounted), image in attached()) == (True, True)
    run_folder.sweep(tmp_path)
    assert left_in(tmp_path) == []
    assert image not in attached()


def attached() -> list[str]:
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [file.read_text().strip().removesuffix(" (deleted)") for file in files]


@pytest.mark.parametrize("free", [64 << 20, run_folder.MEMORY_BYTES - 1, run_folder.MEMORY_BYTES])
def test_memory_must_have_room(tmp_path, monkeypatch, free):
    monkeypatch.setattr(run_folder, "MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
    assert run_folder.roomy_memory() == (tmp_path if free == run_folder.MEMORY_BYTES else None)


def test_a_machine_may_have_no_such_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "MEMORY", tmp_path / "shm")
    assert run_folder.roomy_memory() is None


def test_a_folder_that_another_run_sweeps_before_it_is_held_is_made_again(tmp_path, monkeypatch):
    made, make = [], tempfile.mkdtemp

    def swept(**named):
        made.append(Path(make(**named)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    assert run_folder._make(tmp_path) == made[1]
