"""The fixtures of the tests of tools/bench."""

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.harness.daemon import commands

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch):
    """A round of a test may begin while the disk still works: nothing is measured."""
    monkeypatch.setattr("benchmarks.contest.MOST_QUIET_WAIT_S", 0.0)
    monkeypatch.setattr(os, "sync", lambda: None)


class Forked:
    """As much of a ``Popen`` of ``python -m MODULE ARGUMENTS`` as the tools use, forked where all of it is
    imported: each Python that starts anew costs a second and a half."""

    def __init__(self, command, cwd=None, stdin=None, stdout=None, stderr=None, text=True):
        self._folder = tempfile.TemporaryDirectory()
        ends = [Path(self._folder.name, "in"), Path(self._folder.name, "out")]
        wanted = [stdin == subprocess.PIPE, stdout == subprocess.PIPE]
        for end, is_wanted in zip(ends, wanted, strict=True):
            os.mkfifo(end) if is_wanted else end.touch()
        log = getattr(stderr, "name", os.devnull)
        self._child = commands().start(run_module, command[2:], str(cwd or Path.cwd()), *ends, log)
        self.stdin, self.stdout = (
            end.open(how) if is_wanted else None
            for end, how, is_wanted in zip(ends, "wr", wanted, strict=True)
        )
        self.pid, self.kill, self.send_signal = self._child.pid, self._child.kill, self._child.send_signal

    def wait(self, timeout=None):
        self._folder.cleanup()
        return self._child.wait(timeout)


def run_module(_channel, command, folder, *files):
    for number, (path, how) in enumerate(zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        opened = os.open(path, how)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    sys.stdin, sys.argv = os.fdopen(0, closefd=False), [*command]
    code = 0
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


FORKING = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    monkeypatch.setattr("benchmarks.processes.subprocess", FORKING)
    monkeypatch.setattr("benchmarks.testbed.subprocess", FORKING)
