"""A failed test says what its processes said, where their threads were, what its browser showed and which
files there were; a copy stays."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from tests.harness import evidence
from tests.harness.json_process import ROOT, TIMEOUT_S, environment

if TYPE_CHECKING:
    from collections.abc import Callable

OF_A_DAEMON = """
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
OF_FIXTURES = """
import tempfile
import threading
from pathlib import Path

import pytest
from tests.daemon.conftest import write_config
from tests.harness.daemon import serving
from tests.harness.fork_server import Channel
from tests.harness.python import commands

@pytest.fixture(scope="module")
def daemon():
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        with serving(write_config(Path(folder), create=True)) as daemon:
            yield daemon

@pytest.fixture
def helper():
    end = threading.Event()
    def helper_waits():
        end.wait()
    thread = threading.Thread(target=helper_waits, name="the helper")
    thread.start()
    yield
    end.set()
    thread.join()

@pytest.fixture
def child():
    child = commands().start(Channel.receive, 1000.0)
    yield child
    child.kill()
    child.wait()

def test_that_fails(daemon, helper, child):
    assert not daemon.ready

def test_that_passes(daemon):
    assert daemon.process.poll() is None
"""
OF_COMMANDS = """
from subprocess import PIPE

import pytest
from tests.harness.python import start_python
from tests.harness.daemon import start_cli
from tests.harness.json_process import wait_for
from tests.web.web_process import WebProcess, settings_for

HANGS = '''
import pathlib, sys, time
def hangs():
    print("begun", flush=True)
    print("a complaint", file=sys.stderr, flush=True)
    pathlib.Path(*sys.argv[1:], "hangs").touch()
    time.sleep(1000)
hangs()
'''

def test_one_that_hangs(folder):
    with start_python("-c", HANGS, folder, stdout=PIPE, stderr=PIPE) as child:
        wait_for((folder / "hangs").exists, "its hanging")
        child.communicate(timeout=0)

def test_one_that_is_left(folder):
    with start_cli("doctor", first=f"import sys; sys.argv[1:] = [{str(folder)!r}]" + HANGS) as process:
        wait_for((folder / "hangs").exists, "its hanging")
        assert not process.stderr.readline()

def test_a_page(folder):
    sabotage = "import sys; print('a word of the page', file=sys.stderr, flush=True)"
    with WebProcess(settings_for(folder), sabotage=sabotage) as page:
        page.ask("/")
        pytest.fail()
"""
OF_A_BROWSER = """
import pytest
from tests.daemon.browser import Browser

PAGE = "data:text/html,<script>console.log('a word of a script'); nobody()</script>"

@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser

def test_of_a_fixture(browser):
    browser.open(PAGE)
    pytest.fail()

def test_of_its_own():
    with Browser() as browser:
        browser.open(PAGE)
        pytest.fail()
"""
OF_A_DAEMON_IN_PROCESS = """
from tests.harness.ingest_daemon import IngestDaemon
from shardwright.acquire.workers import WorkerPool

def test_that_fails(folder):
    pool = WorkerPool(1)
    daemon = IngestDaemon(folder, pool)
    daemon.events.append(("client_left", {"reason": "a last word"}))
    daemon.kill()
    pool.close()
    assert not daemon.events
"""


def report_of(folder: Path, text: str) -> str:
    """Of a file of such tests."""
    file = folder / "test_one.py"
    file.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", str(folder / "pytest.ini"), str(file)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    out = done.stdout + done.stderr
    print(out)  # if it is judged to be wrong
    return out


def of_a_daemon(out: str) -> None:
    assert "1 failed, 1 passed" in out
    assert out.count(", which ended with -9 -") == 1, "nothing of the test that passed"
    assert '"event": "ready"' in out
    assert "a last word" in out
    assert "lifecycle.py" in out, "where each thread of the daemon was"
    assert "15 data/store.txt" in out
    (copies,) = re.findall(r"^are in (.*)$", out, re.MULTILINE)
    (copy,) = Path(copies).rglob("store.txt")
    assert copy.read_text() == "what was stored"


def of_fixtures(out: str) -> None:
    assert "1 failed, 1 passed" in out, "the daemon goes on"
    assert ", which runs -" in out
    assert "lifecycle.py" in out
    assert re.search(r"^the helper:$.*? helper_waits$", out, re.MULTILINE | re.DOTALL)
    assert " in receive" in out, "the child, on the standard error that it shares"


def of_commands(out: str) -> None:
    assert "3 failed" in out
    words = {
        "test_one_that_hangs": ("HangError", "begun", "a complaint", "in hangs"),
        "test_one_that_is_left": ("begun", "in hangs"),
        "test_a_page": ("a word of the page", "in _run_python"),
    }
    for name, expected in words.items():
        (own,) = re.findall(rf"^_+ {name} _+$(.*?)(?=^_+ test|^=+)", out, re.MULTILINE | re.DOTALL)
        assert not [word for word in expected if word not in own], name


def of_a_daemon_in_process(out: str) -> None:
    assert "1 failed" in out
    assert re.search(r"evidence: ingest daemon in .*\nclient_left .*a last word", out)


def of_a_browser(out: str) -> None:
    assert "2 failed" in out
    assert out.count("a word of a script") == 3, "that of the fixture is open in the other test, too"
    assert out.count("nobody is not defined") == 3
    pictures = re.findall(r"a picture of the page is (.*\.png)", out)
    assert len(pictures) == 3
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.size[0] == 1280


@pytest.mark.parametrize(
    ("text", "judge"),
    [
        pytest.param(OF_A_DAEMON, of_a_daemon, id="a daemon"),
        pytest.param(OF_FIXTURES, of_fixtures, id="fixtures"),
        pytest.param(OF_COMMANDS, of_commands, id="commands"),
        pytest.param(OF_A_DAEMON_IN_PROCESS, of_a_daemon_in_process, id="a daemon in process"),
        pytest.param(OF_A_BROWSER, of_a_browser, id="a browser", marks=pytest.mark.browser),
    ],
)
def test_what_a_failed_test_leaves_is_in_its_report(
    tmp_path: Path, text: str, judge: Callable[[str], None]
) -> None:
    judge(report_of(tmp_path, text))


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
