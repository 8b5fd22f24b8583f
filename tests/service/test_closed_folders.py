"""Folders that are closed to the daemon's user: one clear line where one is needed, and none where one merely lies beside the stores."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shardwright.compact.queued import QueuedStore

from .daemon_process import TIMEOUT_S, DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# No capability is left, so that modes count for root as well (capset(2)).
NO_PRIVILEGES = "import ctypes; ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())"
RUN_FOLDER_IS = "import pathlib; from shardwright.service import control_client; control_client.RUN_FOLDER = pathlib.Path({!r})"


def run_unprivileged(*arguments: str | Path, before: str = "") -> subprocess.CompletedProcess[str]:
    run = f"{NO_PRIVILEGES}\n{before}\nimport sys\nfrom shardwright.cli.app import main\nmain(sys.argv[1:])"
    return subprocess.run([sys.executable, "-c", run, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)


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


def test_what_is_queued_for_compaction_is_found_beside_a_closed_folder(folder: Path, closed: Path) -> None:
    (folder / "run.ome.zarr" / "0").mkdir(parents=True)
    QueuedStore(folder / "run.ome.zarr").add()
    find = "import sys\nfrom pathlib import Path\nfrom shardwright.compact.queued import queued_stores\nprint(*queued_stores(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", f"{NO_PRIVILEGES}\n{find}", str(closed.parent)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.stdout.count("QueuedStore("), done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("command", "code", "says"), [("serve", 1, "cannot be reached; got Permission denied"), ("check", 0, "cannot be reached by this user")]
)
def test_a_root_in_a_closed_folder_is_told(config: Path, closed: Path, command: str, code: int, says: str) -> None:
    config.write_text(config.read_text().replace("./data", str(closed / "data")))
    done = run_unprivileged(command, config)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
    assert done.stderr.count("\n") == code


def test_doctor_finds_roots_and_sockets_in_closed_folders(config: Path, closed: Path) -> None:
    config.write_text(config.read_text().replace("./data", str(closed / "data")).replace("ipc://./in.sock", f"ipc://{closed}/run/in.sock"))
    done = run_unprivileged("doctor", "--json", config)
    assert (done.returncode, done.stderr) == (1, "")
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "Permission denied" in findings["output.root: permissions"]["found"]
    assert findings["sockets"]["found"].startswith(f"{closed}/run cannot be used by user ")


def test_status_says_that_it_may_not_ask(closed: Path) -> None:
    done = run_unprivileged("status", before=RUN_FOLDER_IS.format(str(closed)))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "is not open to this user. Run this as the user of the daemon" in done.stderr
