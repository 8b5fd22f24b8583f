"""The choice of a Python by tools/setup, tools/test and .ci/run: with programs that only say how they were
called, in place of Pythons and environments."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNAVAILABLE = 69


def put(path: Path, text: str) -> Path:
    """A program, with the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def put_python(path: Path, status: int = 0) -> Path:
    """A Python that says its path and its arguments; ``status`` answers the look at its version."""
    return put(path, f'[ "$1" = -c ] && exit {status}\necho "$0 $*"')


@pytest.fixture
def machine(tmp_path):
    """Runs a copy of the tools in a checkout of their own, on a machine without any Python."""
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    shutil.copytree(ROOT / "tools", checkout / "tools", ignore=shutil.ignore_patterns("benchmarks"))
    shutil.copytree(ROOT / ".ci", checkout / ".ci")
    path = tmp_path / "bin"
    path.mkdir()
    for program in ("dirname", "env", "sh"):
        (path / program).symlink_to(shutil.which(program))

    class Machine:
        def __init__(self):
            self.checkout, self.home, self.path = checkout, home, path

        def run(self, *command, **options):
            environment = {"PATH": str(path), "HOME": str(home)}
            options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
            program = checkout / command[0]
            return subprocess.run([program, *command[1:]], env=environment, check=False, **options)

    return Machine()


def test_the_newest_python_on_path_makes_the_environment(machine):
    put_python(machine.path / "python3.11")
    newest = put_python(machine.path / "python3.13")
    put_python(machine.path / "python3.14", status=1)  # a shim that does not run, or too old a Python
    done = machine.run("tools/setup", "test", "dev")
    script = machine.checkout / "tools" / "setup_venv.py"
    assert done.stdout == f"{newest} -I {script} .venv test dev\n"


FOLDERS = {
    "pyenv": ".pyenv/versions/3.13.1",
    "uv": ".local/share/uv/python/cpython-3.13.1-linux-x86_64-gnu",
    "mise": ".local/share/mise/installs/python/3.13.1",
    "asdf": ".asdf/installs/python/3.13.1",
}


@pytest.mark.parametrize("manager", FOLDERS)
def test_the_python_that_is_asked_for_may_be_a_version_managers(machine, manager):
    """It gets an environment of its own. A shim on PATH that does not run is passed over."""
    put_python(machine.path / "python3.11")
    put_python(machine.path / "python3.13", status=127)
    managed = put_python(machine.home / FOLDERS[manager] / "bin" / "python3.13")
    done = machine.run("tools/setup", "--python", "3.13", "test")
    script = machine.checkout / "tools" / "setup_venv.py"
    assert done.stdout == f"{managed} -I {script} .venv-3.13 test\n"


def test_a_python_that_is_missing_is_named(machine):
    put_python(machine.path / "python3.11")
    done = machine.run("tools/test", "--python", "3.13")
    assert done.returncode == UNAVAILABLE
    assert done.stderr.startswith("NOT TESTED: Python 3.13 is neither on PATH nor installed by ")
    assert "\x1b" not in done.stderr, "a file is not coloured"


def test_a_python_that_is_missing_is_named_in_red_on_a_terminal(machine):
    master, slave = pty.openpty()
    try:
        done = machine.run("tools/test", "--python", "3.13", stderr=slave)
        said = os.read(master, 1000).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == UNAVAILABLE
    assert said.startswith("\x1b[1;31mNOT TESTED: Python 3.13 is ")


@pytest.mark.parametrize("version", ["", "3", "3.13.1", "pypy", "tests/wire"])
def test_what_is_no_version_is_refused(machine, version):
    done = machine.run("tools/test", "--python", version)
    assert done.returncode == 2
    assert "takes a version such as 3.13" in done.stderr


@pytest.mark.parametrize(("arguments", "venv"), [((), ".venv"), (("--python", "3.13"), ".venv-3.13")])
def test_the_suite_runs_in_the_environment_that_was_set_up(machine, arguments, venv):
    put(machine.checkout / "tools" / "setup", 'echo "set up $*"')
    put_python(machine.checkout / venv / "bin" / "python")
    done = machine.run("tools/test", *arguments, "tests/wire", "-k", "credit")
    set_up, tested = done.stdout.splitlines()
    assert set_up == f"set up {' '.join([*arguments, 'test'])}"
    assert tested.startswith(f"{venv}/bin/python -m pytest ")
    assert tested.endswith(" tests/wire -k credit")


@pytest.mark.parametrize(
    ("arguments", "gear"),
    [((), "not slow and not whole"), (("--all",), "not slow"), (("--all", "-x"), "not slow")],
)
def test_all_are_more_than_those_of_a_few_minutes(machine, arguments, gear):
    put(machine.checkout / "tools" / "setup", "")
    put_python(machine.checkout / ".venv" / "bin" / "python")
    put_python(machine.checkout / ".venv-3.11" / "bin" / "python")
    first, *_ = machine.run("tools/test", *arguments).stdout.splitlines()
    assert first.startswith(f".venv/bin/python -m pytest -m {gear} -n auto")


FIRST_IS_3_11, FIRST_IS_NEWER = 0, 1  # what .venv's Python answers
NO_3_14 = f"""[ "$*" != "--python 3.14 --find" ] || exit {UNAVAILABLE}"""


@pytest.mark.parametrize(
    ("first", "newest", "second"),
    [(FIRST_IS_3_11, "3.13", "3.13"), (FIRST_IS_3_11, "3.14", "3.14"), (FIRST_IS_NEWER, "3.14", "3.11")],
)
def test_the_second_python_is_another_than_the_first(machine, first, newest, second):
    put(machine.checkout / "tools" / "setup", NO_3_14 if newest == "3.13" else "")
    put_python(machine.checkout / ".venv" / "bin" / "python", status=first)
    put_python(machine.checkout / f".venv-{second}" / "bin" / "python")
    done = machine.run("tools/test", "--all")
    assert done.returncode == 0, done.stderr
    _, tested = done.stdout.splitlines()
    assert tested.startswith(f".venv-{second}/bin/python -m pytest ")
    for place in tested.partition(" worksteal ")[2].split():
        assert (ROOT / place).exists()


def test_a_python_is_looked_for_without_a_word(machine):
    put_python(machine.path / "python3.13")
    for version, status in (("3.13", 0), ("3.14", UNAVAILABLE)):
        done = machine.run("tools/setup", "--python", version, "--find")
        assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize("arguments", [(), ("--all", "tests/wire"), ("--all", "--python", "3.13")])
def test_only_all_of_it_runs_on_a_second_python(machine, arguments):
    put(machine.checkout / "tools" / "setup", "")
    for venv in (".venv", ".venv-3.13"):
        put_python(machine.checkout / venv / "bin" / "python")
    assert len(machine.run("tools/test", *arguments).stdout.splitlines()) == 1


@pytest.mark.parametrize(("status", "result"), [(0, 0), (1, 1), (5, 5), (130, 130), (UNAVAILABLE, 0)])
def test_only_a_missing_python_lets_the_second_run_be_left_out(machine, status, result):
    put(machine.checkout / "tools" / "setup", f'{NO_3_14}\n[ "$1" != --python ] || exit {status}')
    put_python(machine.checkout / ".venv" / "bin" / "python")
    put_python(machine.checkout / ".venv-3.13" / "bin" / "python")
    assert machine.run("tools/test", "--all").returncode == result
    assert machine.run("tools/test", "--all", "--both").returncode == status, (
        "but not where both are asked for"
    )


def test_a_failed_first_run_is_the_last(machine):
    put(machine.checkout / "tools" / "setup", "")
    put(machine.checkout / ".venv" / "bin" / "python", 'echo "$*"; exit 3')
    put_python(machine.checkout / ".venv-3.13" / "bin" / "python")
    done = machine.run("tools/test", "--all")
    assert (done.returncode, len(done.stdout.splitlines())) == (3, 1)


def test_ci_checks_and_then_runs_every_test(machine):
    put(machine.checkout / "tools" / "check", 'echo "check $*"')
    put(machine.checkout / "tools" / "test", 'echo "test $*"')
    assert machine.run(".ci/run").stdout.splitlines() == ["check --static", "test --all"]
