"""``shardwright list``, ``rename`` and ``delete``, for people and as JSON."""

from __future__ import annotations

import json
import os
import pty
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.daemon import run_cli, start_cli

import shardwright as sw

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, indices in (("whole", (0, 1)), ("holey", (0, 2))):
        with sw.create(
            tmp_path / f"{name}.ome.zarr", shape=(None, 8, 8), dtype="uint8", axes="tyx"
        ) as writer:
            for t in indices:
                writer.append(np.full((8, 8), 7, np.uint8), index=(t,))
    return tmp_path


def test_a_list_says_what_is_there_and_whether_all_is(root):
    heading, *rows = run_cli("list", root).stdout.splitlines()
    assert heading.split() == [
        "acquisition",
        "state",
        "began",
        "size",
        "frames",
        "all",
        "there",
        "also",
        "in",
    ]
    assert [row.split()[0] for row in rows] == ["holey", "whole"]
    assert rows[0].endswith("1 missing")
    assert rows[1].endswith("yes")
    assert run_cli("list", cwd=root).stdout == run_cli("list", root).stdout, "by default this folder's"
    found = json.loads(run_cli("list", root, "--json").stdout)["acquisitions"]
    assert [(one["name"], one["frames"], one["trouble"]) for one in found] == [
        ("holey", 2, {"frames_missing": 1}),
        ("whole", 2, {}),
    ]
    (root / "none").mkdir()
    assert run_cli("list", root / "none").stdout == f"no acquisition is in {root / 'none'}\n"


def test_what_cannot_be_read_is_named_behind_the_list(root):
    (root / "whole.ome.zarr/zarr.json").write_text("{")
    result = run_cli("list", root)
    assert result.returncode == 0
    assert "unreadable" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("whole: ")


def test_a_socket_without_a_daemon_is_a_wrong_command_line(root):
    result = run_cli("list", root, "--socket", "x")
    assert (result.returncode, "Give --daemon as well" in result.stderr) == (2, True)
    assert run_cli("list", root / "absent").returncode == 1


def test_a_store_is_renamed(root):
    result = run_cli("rename", root / "whole.ome.zarr", "new")
    assert result.stdout == f"{root}/whole.ome.zarr is now {root}/new.ome.zarr\n"
    as_json = run_cli("rename", root / "new.ome.zarr", "newer", "--json")
    assert json.loads(as_json.stdout) == {"ok": True, "path": f"{root}/newer.ome.zarr"}
    refused = run_cli("rename", root / "newer.ome.zarr", "holey")
    assert refused.returncode == 1
    assert sorted(path.name for path in root.iterdir()) == ["holey.ome.zarr", "newer.ome.zarr"]


def test_a_store_is_deleted_when_its_user_has_said_so(root):
    unasked = run_cli("delete", root / "whole.ome.zarr")
    assert (unasked.returncode, "Give --yes" in unasked.stderr) == (2, True)
    deleted = run_cli("delete", "--yes", root / "whole.ome.zarr", "--json")
    assert json.loads(deleted.stdout)["files"] > 10
    assert [path.name for path in root.iterdir()] == ["holey.ome.zarr"]


@pytest.mark.parametrize(("answer", "is_left"), [("n", True), ("y", False)])
def test_it_asks_at_a_terminal_and_says_what_is_in_the_store(root, answer, is_left):
    ours, theirs = pty.openpty()
    with start_cli("delete", root / "whole.ome.zarr", stdin=theirs) as asked:
        os.write(ours, f"{answer}\n".encode())
        said, _ = asked.communicate()
    os.close(ours)
    os.close(theirs)
    assert "(2 frames, " in said
    assert (root / "whole.ome.zarr").exists() is is_left
    assert asked.returncode == int(is_left)
