"""Folders that are closed to the daemon's user: one clear line where one is needed, and none where one merely
lies beside the stores."""

from __future__ import annotations

import grp
import json
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess, run_cli
from tests.harness.json_process import TIMEOUT_S

import shardwright as sw
from shardwright.model.names import DOCUMENT, EDIT_FOLDER
from shardwright.rework.edit.edit_recovery import edited_arrays
from shardwright.rework.runtime.compaction_queue import QueueEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

# No capability is left, so that modes count for root as well (capset(2)).
NO_PRIVILEGES = (
    "import ctypes; ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())"
)
RUN_FOLDER_IS = (
    "import pathlib; from shardwright.daemon import control_client; control_client.RUN_FOLDER = "
    "pathlib.Path({!r})"
)


def run_unprivileged(*arguments: str | Path, before: str = "") -> subprocess.CompletedProcess[str]:
    return run_cli(*arguments, first=f"{NO_PRIVILEGES}\n{before}")


@pytest.fixture
def closed(folder: Path) -> Iterator[Path]:
    """A folder that nobody may enter."""
    path = folder / "closed"
    path.mkdir(mode=0)
    yield path
    path.chmod(0o700)


def test_a_disks_lost_and_found_beside_the_stores_is_passed_over(config: Path, folder: Path) -> None:
    found = folder / "data" / "lost+found"
    found.mkdir(mode=0)
    try:
        with DaemonProcess(config, sabotage=NO_PRIVILEGES) as daemon:
            assert daemon.wait_for("ready")["unfinished"] == []
            assert daemon.stop() == 0
    finally:
        found.chmod(0o700)


def test_verify_names_closed_folders_beside_the_stores(folder: Path, closed: Path) -> None:
    """Without a word a closed store would count as verified."""
    sw.save(folder / "a.ome.zarr", np.zeros((1, 8, 8), np.uint8), axes="tyx")
    told = run_unprivileged("verify", closed.parent)
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "1 store: nothing is wrong")
    assert f"shardwright: skipped {closed}: this user may not look into it" in told.stderr.splitlines()
    facts = json.loads(run_unprivileged("verify", closed.parent, "--json").stdout)
    assert (facts["ok"], facts["skipped"]) == (True, [str(closed)])


def found_unprivileged(module: str, function: str, root: Path) -> list[str]:
    """What a function that looks for stores finds in a folder."""
    find = (
        f"import sys\nfrom pathlib import Path\nfrom {module} import {function}\n"
        f"print(*{function}(Path(sys.argv[1])), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{NO_PRIVILEGES}\n{find}", str(root)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_what_is_queued_for_compaction_is_found_beside_a_closed_folder(folder: Path, closed: Path) -> None:
    (folder / "run.ome.zarr" / "0").mkdir(parents=True)
    QueueEntry(folder / "run.ome.zarr").add()
    [found] = found_unprivileged(QueueEntry.__module__, "queue_entries", closed.parent)
    assert found.startswith("QueueEntry(")


def test_an_array_with_an_edit_is_found_beside_a_closed_folder(folder: Path, closed: Path) -> None:
    arrays = [folder / "first/0", folder / "second/0"]
    for array in arrays:
        (array / EDIT_FOLDER).mkdir(parents=True)
        for node in (array, array.parent):
            (node / DOCUMENT).touch()
    assert found_unprivileged(edited_arrays.__module__, "edited_arrays", closed.parent) == list(
        map(str, arrays)
    )


@pytest.mark.parametrize("mode", [0, 0o300, 0o500])
@pytest.mark.parametrize("create", [False, True])
def test_a_root_that_is_closed_is_told_by_serve_and_by_check(
    config: Path, folder: Path, mode: int, create: bool
) -> None:
    """One that cannot be entered, listed, or written to."""
    if create:
        config.write_text(
            config.read_text().replace("create: false", "create: true").replace("./data", "./data/new")
        )
    (folder / "data").chmod(mode)
    try:
        told, refused = run_unprivileged("check", "--json", config), run_unprivileged("serve", config)
    finally:
        (folder / "data").chmod(0o700)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert (told.returncode, told.stderr) == (1, "")
    (found,) = [each["found"] for each in json.loads(told.stdout)["findings"] if each["result"] == "bad"]
    assert "Permission denied" in found
    assert refused.stderr.startswith(f"shardwright: {found}")


def test_check_finds_roots_and_sockets_in_closed_folders(config: Path, closed: Path) -> None:
    config.write_text(
        config.read_text()
        .replace("./data", str(closed / "data"))
        .replace("ipc://./in.sock", f"ipc://{closed}/run/in.sock")
    )
    done = run_unprivileged("check", "--json", config)
    assert (done.returncode, done.stderr) == (1, "")
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "Permission denied" in findings["output.root"]["found"]
    assert f"cannot prepare {closed}/run/in.sock; got Permission denied" in findings["sockets"]["found"]
    assert "As root: install -d -o " in findings["sockets"]["advice"]


# A folder's owner is refused by its own bits, root without capabilities included; those of the group are what
# the others may.
OPEN_TO_ITS_GROUP, OPEN_TO_ITS_OWNER = 0o070, 0
WHAT_TO_DO = {
    OPEN_TO_ITS_GROUP: "Members of the group {group} may: as root, usermod -aG {group} {user}, then log in "
    "again.",
    OPEN_TO_ITS_OWNER: "Only the user {user} may. To let a group in, set ingest.group in the daemon's "
    "configuration; else run this as {user}.",
}
ASKING = {
    "status": ("status", "--socket", "{closed}/in.sock"),
    "camera": ("camera", "--connect", "ipc://{closed}/in.sock", "--name", "a", "--timeout-ms", "200"),
}


@pytest.mark.parametrize("mode", WHAT_TO_DO)
@pytest.mark.parametrize("command", ASKING)
def test_who_may_not_use_a_socket_is_told_how_he_may(closed: Path, command: str, mode: int) -> None:
    """Not that no daemon answers. There is one, or may be: nobody is let in to see."""
    closed.chmod(mode)
    done = run_unprivileged(*(argument.format(closed=closed) for argument in ASKING[command]))
    names = {"user": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
    assert done.returncode == (1 if command == "status" else 2)
    assert done.stderr == (
        f"shardwright: permission denied on {closed}/in.sock; got {closed} of "
        f"{names['user']}:{names['group']}, mode {mode:04o}."
        f" {WHAT_TO_DO[mode].format(**names)}\n"
    )


def test_a_socket_that_is_closed_itself_is_told(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "in.sock"))
        listener.listen()
        (folder / "in.sock").chmod(0)
        for command in ASKING.values():
            done = run_unprivileged(*(argument.format(closed=folder) for argument in command))
            assert done.stderr.startswith(
                f"shardwright: permission denied on {folder}/in.sock; got {folder}/in.sock of "
            )
            assert "Only the user " in done.stderr


@pytest.mark.parametrize("below", ["", "/rig1"])
def test_status_says_that_it_may_not_ask_where_daemons_usually_are(folder: Path, below: str) -> None:
    run = folder / "run"
    closed = Path(f"{run}{below}")
    closed.mkdir(parents=True)
    closed.chmod(0)
    try:
        done = run_unprivileged("status", before=RUN_FOLDER_IS.format(str(run)))
    finally:
        closed.chmod(0o700)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(
        f"shardwright: permission denied on {run}{below}/control.sock; got {run}{below} of "
    )


def test_why_nobody_answers_is_told(folder: Path) -> None:
    done = run_unprivileged(*(argument.format(closed=folder) for argument in ASKING["camera"]))
    assert "no daemon answered; expected an answer from ipc://" in done.stderr
    assert "; got No such file or directory. Is `shardwright serve` running there?" in done.stderr


def test_a_socket_whose_folder_cannot_be_made_is_told_with_what_to_do(config: Path, folder: Path) -> None:
    closed = folder / "run"
    closed.mkdir(mode=0o500)
    config.write_text(config.read_text().replace("ipc://./in.sock", f"ipc://{closed}/rig1/in.sock"))
    done = run_unprivileged("serve", config)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert (
        f"cannot prepare {closed}/rig1/in.sock; got Permission denied. Found {closed} of {user}:"
        in done.stderr
    )
    assert (
        f"As root: install -d -o {user} {closed}/rig1; or choose a path in a folder that {user} may write to"
        in done.stderr
    )
