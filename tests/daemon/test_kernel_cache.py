"""`shardwright install` compiles the kernels where the units' daemons look for them. Here it has a mount
namespace with a /var/cache of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.daemon import kernel_cache
from shardwright.daemon.kernel_cache import FOLDER

UNIT = Path(__file__).parents[2] / "systemd" / "shardwright@.service"
# the command, also from a checkout in a folder that no unit could run it from
INSTALL = """
import sys
from shardwright.cli.app import main
from shardwright.daemon import installation
installation.HIDDEN_BY_UNITS = ()
sys.argv[0] = "shardwright"
main()
"""
PROGRAM = f"{sys.executable} -c '{INSTALL}'"
COMPILES = "from shardwright.kernels.warm_up import compiles; print(compiles())"


def with_own_cache(mount: str, command: str) -> str:
    """Runs a shell command; returns what it printed."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a mount namespace needs root; run this suite as root")
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-e", "-c", f"mount -t tmpfs {mount} none /var/cache\n{command}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_the_folder_of_the_units() -> None:
    (name,) = re.findall(r"(?m)^CacheDirectory=(.*)$", UNIT.read_text())
    assert Path("/var/cache", name) == FOLDER


def test_what_was_installed_need_not_be_compiled(tmp_path: Path) -> None:
    told = with_own_cache(
        "-o mode=755",
        f"{PROGRAM} install --prefix {tmp_path} --json\n"
        f"CACHE_DIRECTORY={FOLDER} {sys.executable} -c '{COMPILES}'",
    ).splitlines()
    kernels = json.loads(told[0])["kernels"]
    assert (kernels["folder"], kernels["why_not"]) == (str(FOLDER), None)
    assert told[1] == "False"


def test_where_it_cannot_be_done_the_rest_is_installed(tmp_path: Path) -> None:
    told = with_own_cache("-o ro", f"{PROGRAM} install --prefix {tmp_path}")
    assert f"{FOLDER}/: not done: {FOLDER}: Read-only file system; the first start does it" in told
    assert (tmp_path / "lib/systemd/system/shardwright@.service").is_file()


def test_nothing_is_written_as_root_into_the_folder_of_the_services_user(tmp_path: Path) -> None:
    """Whether that user can run this Python, or not."""
    users = tmp_path / "passwd"
    users.write_text(f"{Path('/etc/passwd').read_text()}shardwright:x:987:987::/:/bin/false\n")
    told = with_own_cache(
        "-o mode=755",
        f"mount --bind {users} /etc/passwd\n"
        f"{PROGRAM} install --prefix {tmp_path} --json\n"
        "find /var/cache/* -not -uid 987",
    ).splitlines()
    assert json.loads(told[0])["kernels"]["owner"] == "shardwright"
    assert told[1:] == []


def test_a_user_without_a_name_compiles_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under any uid."""
    monkeypatch.setattr(os, "geteuid", lambda: 4_294_967_290)
    monkeypatch.setattr(kernel_cache, "_account", lambda: None)
    monkeypatch.setattr(kernel_cache, "_run", lambda folder, account: None)
    compiled = kernel_cache.compile_for_units(tmp_path)
    assert (compiled.owner, compiled.why_not) == ("4294967290", None)


def test_not_for_an_image_or_another_program(tmp_path: Path) -> None:
    for more in (f"--root {tmp_path}/image", "--program /usr/bin/env", "--dry-run"):
        told = with_own_cache(
            "-o mode=755", f"{PROGRAM} install --prefix {tmp_path} --json {more}; ls /var/cache"
        )
        assert json.loads(told)["kernels"] is None
