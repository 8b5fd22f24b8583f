"""Each check finds what it is for: a machine that is fit, and that machine with one thing wrong."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardwright.diagnose import computer, output_folder
from shardwright.diagnose.computer import CHECKS, Computer, Needs
from shardwright.diagnose.output_folder import FOLDER_CHECKS, OutputFolder
from shardwright.ingest.transport.endpoints import ZmqLibrary
from shardwright.storage.choose_io import IoChoice

if TYPE_CHECKING:
    from shardwright.diagnose.computer import Check

GIB = 1 << 30
ROOT = OutputFolder(
    field="output.root",
    path="/data",
    filesystem="xfs",
    options=("rw", "noatime"),
    copy_on_write=False,
    preallocation="guaranteed",
    gives_gaps_back=True,
    io="direct",
    io_configured="auto",
    io_choice=IoChoice("direct", "not measured", ("direct",), {}),
    free_bytes=9000 * GIB,
    total_bytes=10_000 * GIB,
    low_water_bytes=GIB,
    free_files=1_000_000,
    total_files=2_000_000,
    owner=500,
    user=500,
)
CHOICE = IoChoice(
    "direct", "nothing else is 1.5 times as fast", ("direct", "mmap"), {"direct": 2e9, "mmap": 1e9}
)
NEEDS = Needs(
    memory_bytes=2 * GIB,
    ring_bytes=GIB,
    disk_bytes=4 * GIB,
    disk_rate_bytes_per_s=5e8,
    shard_files_per_hour=3600.0,
    files=400,
)
ZMQ = ZmqLibrary((4, 3, 5), has_ipc=True, has_curve=True)
FIT = Computer(
    memory_bytes=64 * GIB,
    available_memory_bytes=60 * GIB,
    swap_bytes=0,
    memory_lock_bytes=8 << 20,
    kernel="6.8.0-45-generic",
    dirty_bytes=GIB,
    background_dirty_bytes=GIB // 4,
    dirty_expire_s=30,
    huge_pages="madvise",
    huge_page_defrag="madvise",
    reserved_huge_bytes=0,
    clock_synchronised=True,
    clock_error_us=4000,
    clock_s=1_800_000_000,
    clock_source="tsc",
    monotonic_resolution_ns=1,
    zmq=ZMQ,
    uses_ipc=True,
    uses_tcp=True,
    blosc_version="4.1.2",
    blosc_problem=None,
    missing_symbols=(),
)


def zmq(**change: object) -> dict[str, object]:
    return {"zmq": replace(ZMQ, **change)}


def check(name: str, change: dict[str, object], needs: dict[str, object]) -> Check:
    """What the check of this name says of a machine, or a folder, that is fit but for ``change``."""
    wanted = replace(NEEDS, **needs)
    if name in CHECKS:
        return CHECKS[name](replace(FIT, **change), wanted)
    return FOLDER_CHECKS[name](replace(ROOT, **change), wanted)


@pytest.mark.parametrize("name", [*CHECKS, *FOLDER_CHECKS])
def test_a_machine_that_is_fit(name: str):
    result, _, advice = check(name, {}, {})
    assert (result, advice) == ("ok", None)


CACHED = {"through_page_cache": ("output.root",)}
WRONG = [
    ("owner", "warn", {"user": 0}, {}, "belongs to user 500"),
    ("filesystem", "warn", {"options": ("rw", "barrier=0")}, {}, "barrier=0"),
    ("filesystem", "warn", {"copy_on_write": True, "filesystem": "btrfs"}, {}, "btrfs: copy-on-write"),
    (
        "writing",
        "warn",
        {"io": "mmap", "io_configured": "mmap", "io_choice": CHOICE},
        {},
        "mmap, set by output.io; direct 2.00, mmap 1.00 GB/s",
    ),
    ("preallocation", "warn", {"preallocation": "absent"}, {}, "absent"),
    ("preallocation", "warn", {"preallocation": "emulated"}, {}, "emulated"),
    ("preallocation", "warn", {"copy_on_write": True}, {}, "first write"),
    ("preallocation", "warn", {"gives_gaps_back": False}, {}, "no hole punching"),
    ("free space", "warn", {"free_bytes": 1000 * GIB}, {}, "at output.low_water in 36 minutes at 500 MB/s"),
    ("free files", "bad", {"free_files": 100}, {}, "100 more files"),
    ("free files", "warn", {"free_files": 3000}, {}, "3,600 shards an hour"),
    ("memory", "warn", {"available_memory_bytes": GIB}, {}, "1.0 GiB are available"),
    ("memory locks", "warn", {"swap_bytes": GIB, "available_memory_bytes": GIB // 2}, {}, "do not fit"),
    ("memory locks", "warn", {"swap_bytes": GIB}, {}, "1.0 GiB of swap"),
    ("kernel", "bad", {"kernel": "3.10.0-1160.el7.x86_64"}, {}, "Linux 3.10"),
    ("kernel", "warn", {"kernel": "5.4.0-200-generic"}, {}, "Linux 5.4"),
    ("dirty pages", "warn", {"background_dirty_bytes": 2 * GIB}, CACHED, "writers wait from 1.0 GiB"),
    (
        "dirty pages",
        "warn",
        {"dirty_bytes": 12 * GIB, "background_dirty_bytes": 6 * GIB},
        CACHED,
        "kernel writes from 6.0 GiB",
    ),
    ("huge pages", "warn", {"reserved_huge_bytes": 63 * GIB}, {}, "63.0 GiB reserved"),
    ("huge pages", "warn", {"huge_pages": "always", "huge_page_defrag": "always"}, {}, "defrag: always"),
    ("clock", "warn", {"monotonic_resolution_ns": 4e6}, {}, "steps of 4 ms"),
    ("clock", "warn", {"clock_s": 86_400}, {}, "years behind"),
    ("clock", "warn", {"clock_source": "hpet"}, {}, "hpet"),
    ("clock", "warn", {"clock_synchronised": False}, {}, "not synchronised"),
    ("clock", "warn", {"clock_synchronised": None}, {}, "unknown whether"),
    ("clock", "warn", {"clock_error_us": 16_000_000}, {}, "not synchronised"),
    ("ZeroMQ", "bad", zmq(version=(4, 0, 5)), {}, "libzmq 4.0.5"),
    ("ZeroMQ", "bad", zmq(has_ipc=False), {}, "without ipc"),
    ("ZeroMQ", "warn", zmq(version=(4, 3, 1)), {}, "libzmq 4.3.1"),
    ("ZeroMQ", "warn", zmq(has_curve=False), {}, "without CURVE"),
    ("Blosc", "warn", {"blosc_version": None}, {}, "not installed"),
    ("Blosc", "warn", {"blosc_problem": "cannot load the codec library"}, {}, "cannot load"),
    ("Blosc", "warn", {"missing_symbols": ("zng_crc32",)}, {}, "blosc2 4.1.2 lacks zng_crc32"),
    ("Blosc", "warn", {"blosc_version": "5.0.1"}, {}, "5.0.1"),
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
    ("writing", {"io": "direct", "io_configured": "direct", "io_choice": CHOICE}, {}),
    ("writing", {"io": "mmap", "io_configured": "mmap"}, {}),  # nothing was measured
    ("free space", {}, {"disk_rate_bytes_per_s": None}),
    ("free space", {"field": "output.spill_root", "free_bytes": 3000 * GIB}, {}),
    ("free files", {"free_files": 0, "total_files": 0}, {}),  # btrfs counts none
    ("memory locks", {"memory_lock_bytes": None}, {}),
    # past the page cache
    ("dirty pages", {"dirty_bytes": 12 * GIB, "background_dirty_bytes": 6 * GIB}, {}),
    ("huge pages", {"huge_pages": None, "huge_page_defrag": None}, {}),
    ("clock", {"clock_source": "kvm-clock"}, {}),
    ("ZeroMQ", {**zmq(has_curve=False), "uses_tcp": False}, {}),
    ("ZeroMQ", {**zmq(has_ipc=False), "uses_ipc": False}, {}),
]


@pytest.mark.parametrize(("name", "change", "needs"), STILL_FIT)
def test_nothing_is_wrong(name: str, change: dict[str, object], needs: dict[str, object]):
    result, _, advice = check(name, change, needs)
    assert (result, advice) == ("ok", None)


def test_what_auto_means_is_told_with_the_reason_and_the_measurement():
    assert check("writing", {"io_choice": CHOICE}, {})[1] == (
        "direct, nothing else is 1.5 times as fast; direct 2.00, mmap 1.00 GB/s"
    )


def test_a_free_space_that_is_reserved_for_the_first_shards_lasts_for_nothing():
    """Of output.root alone: nothing is taken ahead of the folder that shards spill to."""
    four = {"free_bytes": 4 * GIB}
    assert "at output.low_water in 0 s" in check("free space", four, {})[1]
    assert "in 6 s" in check("free space", {**four, "field": "output.spill_root"}, {})[1]


def test_every_result_of_every_check_is_tried():
    """Each ``return "warn"`` and ``return "bad"`` in the source stands for at least one case above."""
    nodes = [
        node
        for module in (computer, output_folder)
        for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    ]
    names = {function.__name__: name for name, function in {**CHECKS, **FOLDER_CHECKS}.items()}
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
