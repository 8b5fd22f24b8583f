"""A Python that is forked is, to whoever starts it, as one that is started anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from subprocess import DEVNULL, PIPE, STDOUT

import pytest
from tests.harness.fork_server import HangError
from tests.harness.json_process import environment
from tests.harness.python import commands, run_python, start_module, start_python


@pytest.fixture(scope="module", autouse=True)
def server():
    """What is forked, started before the first test is timed."""
    commands()


WAYS = pytest.mark.parametrize("forked", [False, True])


def start(forked, *arguments, **options):
    options = {"text": True, "env": environment(), **options}
    if forked:
        return start_python(*arguments, **options)
    return subprocess.Popen([sys.executable, *arguments], **options)


def end_of(forked, *arguments, **options):
    """Returns exit code, output and errors."""
    process = start(forked, *arguments, **{"stdout": PIPE, "stderr": PIPE, **options})
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


ENDS = {
    "print(1)": (0, ""),
    "import sys; sys.exit()": (0, ""),
    "import sys; sys.exit(True)": (1, ""),
    "import sys; sys.exit(3)": (3, ""),
    "import sys; sys.exit('why')": (1, "why"),
    "raise ValueError('why')": (1, "ValueError: why"),
    "def": (1, "SyntaxError: invalid syntax"),
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": (-signal.SIGTERM, ""),
    "import atexit; atexit.register(print, 'why')": (0, ""),
    "import threading; threading.Timer(0.2, print, ['why']).start()": (0, ""),
}


@WAYS
@pytest.mark.parametrize("code", ENDS)
def test_its_end(forked, code):
    expected, last_error = ENDS[code]
    ended, output, errors = end_of(forked, "-c", code)
    assert (ended, errors.strip().rpartition("\n")[2]) == (expected, last_error)
    if "print" in code:
        assert output.split() == ["1" if "1" in code else "why"]


SAYS = """
import json, os, signal, sys, tempfile, threading
here = sys.modules["__main__"]
names = "SIGINT", "SIGTERM", "SIGPIPE", "SIGCHLD", "SIGALRM"
print(json.dumps([
    sys.argv, sys.path[0], sys.stdin.read(), os.getcwd(), dict(os.environ),
    tempfile.gettempdir(), here.__name__,
    vars(here) is globals(), threading.active_count(), threading.current_thread().name,
    [repr(signal.getsignal(getattr(signal, name))) for name in names],
    sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), os.getpriority(os.PRIO_PROCESS, 0),
    os.getsid(0) == os.getpid(), [os.path.exists(f"/proc/self/fd/{number}") for number in sys.argv[1:]],
]))
"""


@pytest.mark.parametrize("start_new_session", [False, True])
@pytest.mark.parametrize("what", [("-c", SAYS), ("-m", "says")], ids=["code", "module"])
def test_its_surroundings(tmp_path, what, start_new_session):
    """Arguments, input, folder, where it imports from, environment, handlers of signals, threads, priority,
    descriptors."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "says.py").write_text(SAYS)
    more = {"TMPDIR": str(tmp_path / "temporary"), "SHARDWRIGHT_MORE": "ä"}
    told = []
    for forked in (False, True):
        reads, writes = os.pipe()
        process = start(
            forked,
            *(*what, str(reads), str(writes)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=tmp_path,
            env=environment(more),
            pass_fds=[reads],
            start_new_session=start_new_session,
        )
        process.stdin.write("line\n")
        told.append((process.communicate(timeout=120)[0], process.returncode))
        os.close(reads)
        os.close(writes)
    assert told[0] == told[1]
    *_, own_session, descriptors = json.loads(told[0][0])
    assert (own_session, descriptors, told[0][1]) == (start_new_session, [True, False], 0)


def test_two_draw_no_number_alike():
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    drawn = [run_python("-c", code, check=True).stdout.split() for _ in range(2)]
    assert set(drawn[0]).isdisjoint(drawn[1])


def test_the_pipes_of_one_end_while_another_lives():
    code = "import sys; print(sys.stdin.read())"
    with (
        start_python("-c", code, stdin=PIPE, stdout=PIPE) as one,
        start_module("tests.harness.camera") as other,
    ):
        one.stdin.close()
        assert one.stdout.read() == "\n"
        assert other.poll() is None


def test_bytes():
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    process = start_python("-c", code, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=False)
    process.stdin.write(b"\xff\0\1")
    assert process.communicate(timeout=120) == (b"\1\0\xff", None)


def test_one_that_fails_or_hangs_is_told_of():
    with pytest.raises(subprocess.CalledProcessError, match="exit status 4"):
        run_python("-c", "raise SystemExit(4)", check=True)
    with pytest.raises(HangError):
        run_python("-c", "import time; print(1, flush=True); time.sleep(600)", timeout=0.1)
