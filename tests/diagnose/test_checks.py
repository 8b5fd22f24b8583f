"""Each check finds what it is for: a machine that is fit, and that machine with one thing wrong."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardwright.diagnose import checks, folder_checks
from shardwright.diagnose.checks import MACHINE_CHECKS, examine
from shardwright.diagnose.facts import Facts, FolderFacts, Needs, SocketFolder
from shardwright.diagnose.folder_checks import FOLDER_CHECKS
from shardwright.ingest.transport.endpoints import ZmqLibrary
from shardwright.storage.choose_io import IoChoice

if TYPE_CHECKING:
    from shardwright.diagnose.finding import Finding

GIB = 1 << 30
ROOT = FolderFacts(
    field="output.root",
    path="/data",
    filesystem="xfs",
    options=("rw", "noatime"),
    free_bytes=9000 * GIB,
    total_bytes=10_000 * GIB,
    free_files=1_000_000,
    total_files=2_000_000,
    owner=500,
)
CHOICE = IoChoice(
    "direct", "nothing else is 1.5 times as fast", ("direct", "mmap"), {"direct": 2e9, "mmap": 1e9}
)
NEEDS = Needs(
    memory_bytes=2 * GIB,
    ring_bytes=GIB,
    page_cache_bytes=GIB,
    disk_bytes=4 * GIB,
    low_water_bytes=GIB,
    data_rate_bytes_per_s=5e8,
    shard_files_per_hour=3600.0,
    descriptors=400,
    most_descriptors=1000,
)
ZMQ = ZmqLibrary((4, 3, 5), has_ipc=True, has_curve=True)
FIT = Facts(
    needs=NEEDS,
    folders=(ROOT,),
    sockets=(SocketFolder("/run/shardwright", 0o700, usable=True),),
    user=500,
    machine_memory_bytes=64 * GIB,
    available_memory_bytes=60 * GIB,
    swap_bytes=0,
    memory_lock_bytes=8 << 20,
    descriptors=65_536,
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
    client_keys=2,
    keys_problem=None,
    blosc_version="4.1.2",
    blosc_problem=None,
    missing_symbols=(),
    unfinished_stores=1,
    unreadable_stores=(),
    web_wanted=True,
    missing_web_packages=(),
)


def folder(**change: object) -> dict[str, object]:
    return {"folders": (replace(ROOT, **change),)}


def needs(**change: object) -> dict[str, object]:
    return {"needs": replace(NEEDS, **change)}


def zmq(**change: object) -> dict[str, object]:
    return {"zmq": replace(ZMQ, **change)}


def sockets(mode: int | None, *, usable: bool) -> dict[str, object]:
    return {"sockets": (SocketFolder("/run/shardwright", mode, usable=usable),)}


def result_of(name: str, change: dict[str, object]) -> Finding:
    (finding,) = [
        finding
        for finding in examine(replace(FIT, **change))
        if finding.check.removeprefix("output.root: ") == name
    ]
    return finding


def test_a_machine_that_is_fit():
    findings = list(examine(FIT))
    names = ["plan", *FOLDER_CHECKS, *(name for name in MACHINE_CHECKS if name != "plan")]
    assert [finding.check.removeprefix("output.root: ") for finding in findings] == names
    assert {(finding.result, finding.advice) for finding in findings} == {("ok", None)}


WRONG = [
    ("plan", "bad", {"needs": Needs(problem="rig.yaml:7: memory.budget: too small")}, "rig.yaml:7"),
    ("permissions", "bad", folder(error="it is not there"), "not there"),
    ("permissions", "bad", folder(error="Permission denied"), "Permission denied"),
    ("permissions", "bad", folder(options=("ro",)), "read-only"),
    ("permissions", "warn", {"user": 0}, "belongs to user 500"),
    ("filesystem", "bad", folder(kind="memory", filesystem="tmpfs"), "in memory"),
    ("filesystem", "bad", folder(options=("rw", "barrier=0")), "barrier=0"),
    ("filesystem", "warn", folder(kind="network", filesystem="nfs4"), "nfs4: a network filesystem"),
    ("filesystem", "warn", folder(kind="copy-on-write", filesystem="btrfs"), "btrfs: copy-on-write"),
    (
        "writing",
        "warn",
        folder(io="mmap", io_configured="mmap", io_choice=CHOICE),
        "mmap, as output.io says; direct 2.00, mmap 1.00 GB/s",
    ),
    ("preallocation", "bad", folder(preallocation="absent"), "absent"),
    ("preallocation", "warn", folder(preallocation="emulated"), "emulated"),
    ("preallocation", "warn", folder(kind="copy-on-write"), "first write"),
    ("preallocation", "warn", folder(gives_gaps_back=False), "no hole punching"),
    ("free space", "bad", folder(free_bytes=3 * GIB), "3.0 GiB free"),
    ("free space", "warn", folder(free_bytes=4 * GIB + 1), "low_water"),
    ("free space", "warn", folder(free_bytes=1000 * GIB), "full in 36 minutes at 500 MB/s"),
    ("free files", "bad", folder(free_files=100), "100 more files"),
    ("free files", "warn", folder(free_files=3000), "3,600 shards an hour"),
    ("memory", "bad", {"machine_memory_bytes": GIB}, "2.0 GiB at most, of 1.0 GiB"),
    ("memory", "warn", {"available_memory_bytes": GIB}, "1.0 GiB are available"),
    ("memory locks", "bad", {"swap_bytes": GIB, "available_memory_bytes": GIB // 2}, "do not fit"),
    ("memory locks", "warn", {"swap_bytes": GIB}, "1.0 GiB of swap"),
    ("open files", "bad", {"descriptors": 256}, "400 needed"),
    ("open files", "warn", {"descriptors": 512}, "1,000 when frames come far out of order; limit 512"),
    ("kernel", "bad", {"kernel": "3.10.0-1160.el7.x86_64"}, "Linux 3.10"),
    ("kernel", "warn", {"kernel": "5.4.0-200-generic"}, "Linux 5.4"),
    (
        "dirty pages",
        "bad",
        {**folder(io="pwrite"), "background_dirty_bytes": 2 * GIB},
        "writers wait from 1.0 GiB",
    ),
    (
        "dirty pages",
        "warn",
        {**folder(io="mmap"), "dirty_bytes": 12 * GIB, "background_dirty_bytes": 6 * GIB},
        "kernel writes from 6.0 GiB",
    ),
    ("huge pages", "bad", {"reserved_huge_bytes": 63 * GIB}, "63.0 GiB reserved"),
    ("huge pages", "warn", {"huge_pages": "always", "huge_page_defrag": "always"}, "defrag: always"),
    ("clock", "bad", {"monotonic_resolution_ns": 4e6}, "steps of 4 ms"),
    ("clock", "bad", {"clock_s": 86_400}, "years ago"),
    ("clock", "warn", {"clock_source": "hpet"}, "hpet"),
    ("clock", "warn", {"clock_synchronised": False}, "not synchronised"),
    ("clock", "warn", {"clock_synchronised": None}, "unknown whether"),
    ("clock", "warn", {"clock_error_us": 16_000_000}, "not synchronised"),
    ("sockets", "bad", sockets(None, usable=False), "cannot be used by user 500"),
    ("sockets", "warn", sockets(0o1777 & 0o777, usable=True), "mode 0777"),
    (
        "keys",
        "bad",
        {"keys_problem": "rig.yaml:4: ingest.curve.secret_key: cannot read the key file"},
        "rig.yaml:4",
    ),
    ("keys", "warn", {"client_keys": None}, "ingest.insecure"),
    ("keys", "warn", {"client_keys": 0}, "no client key"),
    ("ZeroMQ", "bad", zmq(version=(4, 0, 5)), "libzmq 4.0.5"),
    ("ZeroMQ", "bad", zmq(has_ipc=False), "without ipc"),
    ("ZeroMQ", "warn", zmq(version=(4, 3, 1)), "libzmq 4.3.1"),
    ("ZeroMQ", "warn", zmq(has_curve=False), "without CURVE"),
    ("Blosc", "bad", {"blosc_version": None}, "not installed"),
    ("Blosc", "bad", {"blosc_problem": "cannot load the codec library"}, "cannot load"),
    ("Blosc", "bad", {"missing_symbols": ("zng_crc32",)}, "blosc2 4.1.2 lacks zng_crc32"),
    ("Blosc", "warn", {"blosc_version": "5.0.1"}, "5.0.1"),
    (
        "unfinished stores",
        "bad",
        {"unreadable_stores": ("staging is of another version",)},
        "1 in output.root; staging is of another version",
    ),
    ("status page", "bad", {"missing_web_packages": ("uvicorn",)}, "uvicorn"),
]


@pytest.mark.parametrize(
    ("name", "result", "change", "words"), WRONG, ids=[f"{name}-{words}" for name, _, _, words in WRONG]
)
def test_one_thing_is_wrong(name: str, result: str, change: dict[str, object], words: str):
    finding = result_of(name, change)
    assert finding.result == result
    assert words in finding.found
    assert finding.advice
    assert finding.advice.endswith(".")


STILL_FIT = [
    ("permissions", {"user": 0, **folder(owner=0)}),
    ("writing", folder(io="direct", io_configured="direct", io_choice=CHOICE)),
    ("writing", folder(io="mmap", io_configured="mmap")),  # nothing was measured
    ("preallocation", folder(kind="memory")),
    ("free space", needs(data_rate_bytes_per_s=None)),
    ("free space", folder(field="output.spill_root", free_bytes=3000 * GIB)),
    ("free files", folder(free_files=0, total_files=0)),  # btrfs counts none
    ("open files", {"descriptors": None}),
    ("memory locks", {"memory_lock_bytes": None}),
    ("dirty pages", {"dirty_bytes": 12 * GIB, "background_dirty_bytes": 6 * GIB}),  # past the page cache
    ("huge pages", {"huge_pages": None, "huge_page_defrag": None}),
    ("clock", {"clock_source": "kvm-clock"}),
    ("sockets", {"sockets": ()}),
    ("sockets", sockets(0o750, usable=True)),
    ("sockets", sockets(None, usable=True)),
    ("keys", {"client_keys": None, "uses_tcp": False}),
    ("ZeroMQ", {**zmq(has_curve=False), "uses_tcp": False}),
    ("ZeroMQ", {**zmq(has_ipc=False), "uses_ipc": False}),
    ("status page", {"web_wanted": False, "missing_web_packages": ("uvicorn",)}),
]


@pytest.mark.parametrize(("name", "change"), STILL_FIT)
def test_nothing_is_wrong(name: str, change: dict[str, object]):
    found = [f for f in examine(replace(FIT, **change)) if f.check.rpartition(": ")[2] == name]
    assert [(f.result, f.advice) for f in found] == [("ok", None)]


def test_what_auto_means_is_told_with_the_reason_and_the_measurement():
    assert result_of("writing", folder(io_choice=CHOICE)).found == (
        "direct, nothing else is 1.5 times as fast; direct 2.00, mmap 1.00 GB/s"
    )


def test_of_a_folder_that_cannot_be_used_only_that_is_said():
    findings = [
        f.check
        for f in examine(replace(FIT, **folder(error="it is not there")))
        if f.check.startswith("output.root")
    ]
    assert findings == ["output.root: permissions"]


def test_every_result_of_every_check_is_tried():
    """Each ``return "warn"`` and ``return "bad"`` in the source stands for at least one case above."""
    nodes = [
        node
        for module in (checks, folder_checks)
        for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    ]
    names = {function.__name__: name for name, function in {**MACHINE_CHECKS, **FOLDER_CHECKS}.items()}
    for function in (
        node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ):
        returned = [node.value.elts[0].value for node in ast.walk(function) if isinstance(node, ast.Return)]
        tried = [result for name, result, _, _ in WRONG if name == names[function.name]]
        for result in ("warn", "bad"):
            assert tried.count(result) >= returned.count(result), f"{function.name}: {result}"
