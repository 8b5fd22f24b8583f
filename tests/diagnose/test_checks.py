"""Each check finds what it is for: a folder that is fit, and that folder with one thing wrong."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardwright.diagnose import output_folder
from shardwright.diagnose.output_folder import FOLDER_CHECKS, Needs, OutputFolder
from shardwright.disk.choose_io import IoChoice

if TYPE_CHECKING:
    from shardwright.diagnose.output_folder import Check

GIB = 1 << 30
ROOT = OutputFolder(
    field="output.root",
    path="/data",
    filesystem="xfs",
    options=("rw", "noatime"),
    copy_on_write=False,
    preallocation="guaranteed",
    gives_gaps_back=True,
    io=IoChoice("direct", "past the page cache"),
    free_bytes=9000 * GIB,
    total_bytes=10_000 * GIB,
    low_water_bytes=GIB,
    free_files=1_000_000,
    total_files=2_000_000,
    owner=500,
    user=500,
)
NEEDS = Needs(
    disk_bytes=4 * GIB,
    disk_rate_bytes_per_s=5e8,
    shard_files_per_hour=3600.0,
    files=400,
)


def check(name: str, change: dict[str, object], needs: dict[str, object]) -> Check:
    """What the check of this name says of a folder that is fit but for ``change``."""
    return FOLDER_CHECKS[name](replace(ROOT, **change), replace(NEEDS, **needs))


@pytest.mark.parametrize("name", FOLDER_CHECKS)
def test_a_folder_that_is_fit(name: str):
    result, _, advice = check(name, {}, {})
    assert (result, advice) == ("ok", None)


WRONG = [
    ("owner", "warn", {"user": 0}, {}, "belongs to user 500"),
    ("filesystem", "warn", {"options": ("rw", "barrier=0")}, {}, "barrier=0"),
    ("filesystem", "warn", {"copy_on_write": True, "filesystem": "btrfs"}, {}, "btrfs: copy-on-write"),
    ("preallocation", "warn", {"preallocation": "absent"}, {}, "absent"),
    ("preallocation", "warn", {"preallocation": "emulated"}, {}, "emulated"),
    ("preallocation", "warn", {"copy_on_write": True}, {}, "first write"),
    ("preallocation", "warn", {"gives_gaps_back": False}, {}, "no hole punching"),
    ("free space", "warn", {"free_bytes": 1000 * GIB}, {}, "at output.low_water in 35 min at 500 MB/s"),
    ("free files", "bad", {"free_files": 100}, {}, "100 more files"),
    ("free files", "warn", {"free_files": 3000}, {}, "3,600 shards an hour"),
]


@pytest.mark.parametrize(
    ("name", "result", "change", "needs", "words"), WRONG, ids=[f"{case[0]}-{case[4]}" for case in WRONG]
)
def test_one_thing_is_wrong(
    name: str, result: str, change: dict[str, object], needs: dict[str, object], words: str
):
    found_result, found, advice = check(name, change, needs)
    assert found_result == result
    assert words in found
    assert advice
    assert advice.endswith(".")


STILL_FIT = [
    ("owner", {"user": 0, "owner": 0}, {}),
    ("writing", {"io": IoChoice("mmap", "set by output.io")}, {}),
    ("free space", {}, {"disk_rate_bytes_per_s": None}),
    ("free space", {"field": "output.spill_root", "free_bytes": 3000 * GIB}, {}),
    ("free files", {"free_files": 0, "total_files": 0}, {}),  # btrfs counts none
]


@pytest.mark.parametrize(("name", "change", "needs"), STILL_FIT)
def test_nothing_is_wrong(name: str, change: dict[str, object], needs: dict[str, object]):
    result, _, advice = check(name, change, needs)
    assert (result, advice) == ("ok", None)


def test_what_auto_means_is_told_with_the_reason():
    assert check("writing", {}, {})[1] == "direct, past the page cache"


def test_a_free_space_that_is_reserved_for_the_first_shards_lasts_for_nothing():
    """Of output.root alone: nothing is taken ahead of the folder that shards spill to."""
    four = {"free_bytes": 4 * GIB}
    assert "at output.low_water in 0 s" in check("free space", four, {})[1]
    assert "in 6 s" in check("free space", {**four, "field": "output.spill_root"}, {})[1]


def test_every_result_of_every_check_is_tried():
    """Each ``return "warn"`` and ``return "bad"`` in the source stands for at least one case above."""
    nodes = ast.parse(Path(output_folder.__file__).read_text(encoding="utf-8")).body
    names = {function.__name__: name for name, function in FOLDER_CHECKS.items()}
    functions = [
        node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]
    assert {function.name for function in functions} == set(names)
    for function in functions:
        returned = [
            each.elts[0].value
            for node in ast.walk(function)
            if isinstance(node, ast.Return)
            for each in ast.walk(node)
            if isinstance(each, ast.Tuple) and isinstance(each.elts[0], ast.Constant)
        ]
        assert "ok" in returned
        tried = [case[1] for case in WRONG if case[0] == names[function.name]]
        for result in ("warn", "bad"):
            assert tried.count(result) >= returned.count(result), f"{function.name}: {result}"
