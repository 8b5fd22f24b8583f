"""Every process that the daemon starts, however it is used."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.rework.runtime.child import start_child, take

if TYPE_CHECKING:
    import pytest


def said_by(code: str) -> tuple[str, str]:
    """What Python code says as a child of the daemon, and its errors."""
    output, errors = start_child([sys.executable, "-c", code]).communicate()
    return output.decode(), errors.decode()


def test_where_memory_runs_out_it_is_killed_before_the_daemon() -> None:
    """Whose unit has OOMScoreAdjust=-500, which a child would inherit."""
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert said_by("print(open('/proc/self/oom_score_adj').read())") == (f"{max(500, own)}\n\n", "")


def test_of_one_that_writes_faster_than_it_is_read_a_piece_is_taken() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as child:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 18)
        os.set_blocking(pipe.fileno(), False)
        child.write(bytes(1 << 18))
        assert len(take(pipe, 1)) == 1 << 16
        assert len(take(pipe)) == (1 << 18) - (1 << 16)


def test_no_module_of_the_working_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as it starts nor later, nor in processes that it starts itself."""
    for module in ("signal", "socket", "subprocess"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(f'{__file__} is imported')")
    monkeypatch.chdir(tmp_path)
    own = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import socket; print(1)'])"
    assert said_by(own) == ("1\n", "")
