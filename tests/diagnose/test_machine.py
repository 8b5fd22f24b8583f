"""What is measured on this machine is so: real filesystems on loop devices and in memory, the real kernel."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import crc32c
import pytest
from tests.faults import disks
from tests.faults.disks import LoopDisk
from tests.harness.run_folder import MEMORY

from shardwright.acquire import limits
from shardwright.acquire.limits import available_memory_bytes
from shardwright.config.load import load_config
from shardwright.config.plan import make_plan
from shardwright.diagnose import output_folder
from shardwright.diagnose.check_report import check_start
from shardwright.diagnose.output_folder import (
    FOLDER_CHECKS,
    Needs,
    look_at_folder,
    mount_of,
    preallocation_of,
)
from shardwright.diagnose.start import memory_finding
from shardwright.disk.filesystems import memory_filesystem
from shardwright.shard import manifest
from shardwright.shard.manifest import Manifest, write_manifest


def look_at(folder):
    return look_at_folder("output.root", folder, "auto", 0)


def results(folder) -> dict[str, str]:
    return {name: FOLDER_CHECKS[name](folder, Needs())[0] for name in ("filesystem", "preallocation")}


def test_ext4():
    with LoopDisk("ext4") as disk:
        found = look_at(disk.path)
        assert (found.filesystem, found.copy_on_write, found.preallocation, found.gives_gaps_back) == (
            "ext4",
            False,
            "guaranteed",
            True,
        )
        assert 0 < found.free_bytes < found.total_bytes <= 8 << 20
        assert 0 < found.free_files < found.total_files
        assert results(found) == {"filesystem": "ok", "preallocation": "ok"}
        assert {path.name for path in disk.path.iterdir()} == {"lost+found"}, "nothing is left behind"


def test_a_filesystem_without_extents_emulates(monkeypatch):
    monkeypatch.setitem(
        disks.FORMATS, "ext4-no-extents", ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^extent,^64bit")
    )
    monkeypatch.setitem(disks.LEAST_BYTES, "ext4-no-extents", 8 << 20)
    with LoopDisk("ext4-no-extents") as disk:
        found = look_at(disk.path)
        assert found.preallocation == "emulated"
        assert results(found)["preallocation"] == "warn"


def test_a_disk_that_is_mounted_read_only():
    with LoopDisk("ext4") as disk:
        disk.unmount()
        disks.run("mount", "-o", "loop,ro", disk._source(), disk.path)
        disk._mounted = True
        with pytest.raises(OSError, match="Read-only"):
            look_at(disk.path)


def test_a_disk_without_room_for_the_probe():
    with LoopDisk("ext4") as disk:
        with (disk.path / "fill").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.free_bytes - (256 << 10))
        with pytest.raises(OSError, match="No space left"):
            look_at(disk.path)


@pytest.fixture
def memory_folder():
    if not MEMORY.is_dir() or not memory_filesystem(MEMORY):
        pytest.skip("NOT TESTED: /dev/shm is no tmpfs here")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def test_tmpfs(memory_folder):
    found = look_at(memory_folder)
    assert (found.filesystem, found.preallocation) == ("tmpfs", "guaranteed")
    assert results(found) == {"filesystem": "ok", "preallocation": "ok"}, "of memory the plan warns"


def test_a_mount_point_of_any_name(folder):
    name = folder / os.fsdecode("données \\ ".encode() + b"\xff")
    name.mkdir()
    with LoopDisk("ext4", folder=name) as disk:
        assert look_at(disk.path).filesystem == "ext4"


def test_blocks_that_are_not_there(tmp_path, monkeypatch):
    """As some network and compressing filesystems do: the call succeeds, and reserves nothing."""
    monkeypatch.setattr(
        output_folder, "preallocate", lambda descriptor, nbytes: os.ftruncate(descriptor, nbytes) is None
    )
    assert preallocation_of(tmp_path) == "absent"


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
30 22 0:25 / /data rw,noatime - xfs /dev/sdb rw,attr2
31 30 0:26 / /data/with\\040space ro,nosuid - btrfs /dev/sdc rw,compress=zstd:3
32 30 0:27 / /data rw - ext4 /dev/sdd rw,nobarrier
33 30 0:28 / /data/données\u3000x rw - ext4 /dev/sde rw,barrier=0
what is no mount
"""


@pytest.mark.parametrize(
    ("folder", "filesystem", "option"),
    [
        ("/home/x", "ext4", "errors=remount-ro"),
        ("/data/x", "ext4", "nobarrier"),
        ("/data/with space/y", "btrfs", "ro"),
        ("/data/données\u3000x/y", "ext4", "barrier=0"),
        ("/database", "ext4", "relatime"),
    ],
)
def test_the_innermost_and_newest_mount_counts(folder: str, filesystem: str, option: str):
    found, options = mount_of(Path(folder), MOUNTS)
    assert found == filesystem
    assert option in options


def test_no_mounts():
    assert mount_of(Path("/data"), "") == ("unknown", ())


def test_this_machine(config):
    loaded = load_config(config)
    root = look_at_folder("output.root", loaded.config.output.root, "auto", 0)
    assert (root.owner, root.user) == (os.geteuid(), os.geteuid())
    assert FOLDER_CHECKS["free files"](root, Needs.of(make_plan(loaded)))[0] == "ok"
    assert 0 < available_memory_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_of_a_container_is_what_its_limit_leaves(tmp_path, monkeypatch):
    """Pages of files do not count: soon they are all the rest of it, where a daemon writes."""
    monkeypatch.setattr(limits, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.current").write_text("90000\n")
    (tmp_path / "memory.stat").write_text("anon 40000\ninactive_file 20000\nactive_file 30000\n")
    (tmp_path / "memory.max").write_text("100000\n")
    assert available_memory_bytes() == 60_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes() > 100_000


def test_memory_that_other_programs_hold(config):
    plan = make_plan(load_config(config))
    enough, little = (memory_finding(plan, plan.memory_peak_bytes - lacks) for lacks in (0, 1))
    assert (enough.result, enough.advice) == ("ok", None)
    assert (little.result, "end programs" in (little.advice or "")) == ("warn", True)


def test_what_a_plan_needs_is_what_its_streams_do(config):
    plan = make_plan(load_config(config), frame_rate_hz=100)
    (stream,) = plan.streams
    needs = Needs.of(plan)
    assert needs.disk_bytes == plan.disk_reserved_bytes
    assert needs.disk_rate_bytes_per_s == 100 * 48 * 80 * 2
    assert needs.shard_files_per_hour == stream.shard_files_per_hour
    shards = stream.limits.disk_reserved_bytes // stream.limits.shard_file_bytes
    assert needs.files == shards + stream.safety.journals
    unknown = Needs.of(make_plan(load_config(config)))
    assert (unknown.disk_rate_bytes_per_s, unknown.shard_files_per_hour) == (None, None)


def test_a_plan_that_cannot_work_leaves_the_other_findings(config):
    config.write_text(config.read_text().replace("budget: 2GiB", "budget: 1MiB"))
    report = check_start(load_config(config))
    first = report.findings[0]
    assert (first.check, first.result, report.plan, report.ok) == ("plan", "bad", None, False)
    assert "memory.budget" in first.found
    assert "output.root: free space" in {finding.check for finding in report.findings}


SPEC = {"dtype": "uint16", "dimensions": [{"name": name, "count": 8, "chunk_size": 8} for name in "yx"]}


def test_stores_of_this_and_of_a_later_release(config):
    for name in ("old", "new"):
        workspace = config.parent / f"data/{name}.ome.zarr/.shardwright"
        workspace.mkdir(parents=True)
        write_manifest(workspace, Manifest("0" * 32, 1, 1, SPEC, "pwrite", 0))

    def found():
        findings = check_start(load_config(config)).findings
        return [(each.result, each.found) for each in findings if each.check == "unfinished stores"]

    assert found() == [("ok", "2 in output.root")]
    facts = {"format": manifest.FORMAT + 1}
    checksum = crc32c.crc32c(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
    (workspace / "acquisition.1.json").write_text(json.dumps({**facts, "crc32c": checksum}, indent=2))
    (result, problem), counted = found()
    assert (result, counted) == ("warn", ("ok", "2 in output.root"))
    assert (
        "new.ome.zarr/.shardwright/acquisition.1.json is of another version of its format; expected version "
        f"1 to {manifest.FORMAT}; got version {manifest.FORMAT + 1}" in problem
    )
