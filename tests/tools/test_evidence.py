"""A failed test says what its processes said, where they stood and which files there were; a copy stays."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.harness import evidence
from tests.harness.json_process import ROOT, environment

TESTS = """
from tests.daemon.conftest import write_config
from tests.harness.daemon import DaemonProcess

def run(folder, fails):
    (folder / "data").mkdir()
    (folder / "data" / "store.txt").write_text("what was stored")
    last_word = "import sys; print('a last word', file=sys.stderr, flush=True)"
    with DaemonProcess(write_config(folder), sabotage=last_word) as daemon:
        assert daemon.ready
        assert not fails

def test_that_passes(folder):
    run(folder, False)

def test_that_fails(folder):
    run(folder, True)
"""


def test_what_a_failed_test_leaves_is_in_its_report(tmp_path):
    file = tmp_path / "test_one.py"
    file.write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", str(tmp_path / "pytest.ini"), str(file)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    out = done.stdout
    assert "1 failed, 1 passed" in out, out + done.stderr
    assert out.count(", which ended with -6 -") == 1, "nothing of the test that passed"
    assert '"event": "ready"' in out
    assert "a last word" in out
    assert "lifecycle.py" in out, "where each thread of the daemon was"
    assert "15 data/store.txt" in out
    (copies,) = re.findall(r"^are in (.*)$", out, re.MULTILINE)
    (copy,) = Path(copies).rglob("store.txt")
    assert copy.read_text() == "what was stored"


def test_evidence_is_bounded(tmp_path, monkeypatch):
    lines = [f"{number} {'x' * 1000}" for number in range(500)]
    shown = evidence._last(lines, 200).splitlines()
    assert shown[0] == "(300 more before)"
    assert len(shown) == 201
    assert max(map(len, shown)) == evidence.MOST_COLUMNS
    assert evidence._last(["\udcff.ome.zarr"], 1) == "\\udcff.ome.zarr", "xdist sends text alone"
    assert evidence._shares([10, 500, 300, 0]) == [10, 95, 95, 0]
    monkeypatch.setattr(evidence, "MOST_BYTES", 100)
    (tmp_path / "from").mkdir()
    for number in range(5):
        (tmp_path / "from" / f"{number}").write_bytes(bytes(40))
    evidence._copy([tmp_path / "from"], tmp_path / "to")
    assert len([*(tmp_path / "to").rglob("?")]) == 3, "a folder and two files"


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "file.txt").write_text("x")
    scandir = os.scandir

    def scan(path):
        if os.fspath(path).endswith("broken"):
            raise OSError(errno.EUCLEAN, os.strerror(errno.EUCLEAN), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert [line.split() for line in evidence._listed(tmp_path)] == [["1", "file.txt"]]
