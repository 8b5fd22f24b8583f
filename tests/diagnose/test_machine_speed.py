"""What is measured on this machine is so: real filesystems on loop devices and in memory, the real kernel,
the real libraries."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import crc32c
import pytest
from tests.faults import disks
from tests.faults.disks import LoopDisk

from shardwright.client.curve import make_key_pair
from shardwright.config.load import load_config
from shardwright.diagnose import machine_speed as measure
from shardwright.diagnose.checks import examine
from shardwright.diagnose.facts import folder_facts, gather
from shardwright.diagnose.folder_checks import FOLDER_CHECKS
from shardwright.shard import manifest
from shardwright.shard.manifest import Manifest, write_manifest


def results(folder) -> dict[str, str]:
    return {name: FOLDER_CHECKS[name](folder, None)[0] for name in ("filesystem", "preallocation")}


def test_ext4():
    with LoopDisk("ext4") as disk:
        found = folder_facts("output.root", disk.path)
        assert (found.error, found.filesystem, found.kind, found.preallocation, found.gives_gaps_back) == (
            None,
            "ext4",
            "disk",
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
        found = folder_facts("output.root", disk.path)
        assert (found.error, found.preallocation) == (None, "emulated")
        assert results(found)["preallocation"] == "warn"


def test_a_disk_that_is_mounted_read_only():
    with LoopDisk("ext4") as disk:
        disk.unmount()
        disks.run("mount", "-o", "loop,ro", disk._source(), disk.path)
        disk._mounted = True
        assert "Read-only" in folder_facts("output.root", disk.path).error


def test_a_disk_without_room_for_the_probe():
    with LoopDisk("ext4") as disk:
        with (disk.path / "fill").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.free_bytes - (256 << 10))
        assert "No space left" in folder_facts("output.root", disk.path).error


@pytest.fixture
def memory_folder():
    if not disks.MEMORY.is_dir() or measure.filesystem_kind(disks.MEMORY) != "memory":
        pytest.skip("NOT TESTED: /dev/shm is no tmpfs here")
    with tempfile.TemporaryDirectory(dir=disks.MEMORY) as folder:
        yield Path(folder)


def test_tmpfs(memory_folder):
    found = folder_facts("output.root", memory_folder)
    assert (found.error, found.filesystem, found.kind, found.preallocation) == (
        None,
        "tmpfs",
        "memory",
        "guaranteed",
    )
    assert results(found) == {"filesystem": "bad", "preallocation": "ok"}


def test_blocks_that_are_not_there(tmp_path, monkeypatch):
    """As some network and compressing filesystems do: the call succeeds, and reserves nothing."""
    monkeypatch.setattr(
        measure, "preallocate", lambda descriptor, nbytes: os.ftruncate(descriptor, nbytes) is None
    )
    assert measure.preallocation_of(tmp_path) == "absent"


def test_a_folder_that_is_none(tmp_path):
    assert folder_facts("output.root", tmp_path / "no").error == "it is not there"
    (tmp_path / "file").touch()
    assert folder_facts("output.root", tmp_path / "file").error == "it is not a folder"


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
30 22 0:25 / /data rw,noatime - xfs /dev/sdb rw,attr2
31 30 0:26 / /data/with\\040space ro,nosuid - btrfs /dev/sdc rw,compress=zstd:3
32 30 0:27 / /data rw - ext4 /dev/sdd rw,nobarrier
what is no mount
"""


@pytest.mark.parametrize(
    ("folder", "filesystem", "option"),
    [
        ("/home/x", "ext4", "errors=remount-ro"),
        ("/data/x", "ext4", "nobarrier"),
        ("/data/with space/y", "btrfs", "ro"),
        ("/database", "ext4", "relatime"),
    ],
)
def test_the_innermost_and_newest_mount_counts(folder: str, filesystem: str, option: str):
    found, options = measure.mount_of(Path(folder), MOUNTS)
    assert found == filesystem
    assert option in options


def test_no_mounts():
    assert measure.mount_of(Path("/data"), "") == ("unknown", ())


def test_files_of_the_kernel(tmp_path):
    assert measure.number_of("/proc/sys/kernel/pid_max") > 0
    assert measure.number_of("/proc/sys/kernel/ostype") is None
    assert measure.text_of("/proc/no-such-file") is None
    assert measure.chosen("/proc/no-such-file") is None
    (tmp_path / "choice").write_text("always [madvise] never\n")
    assert measure.chosen(str(tmp_path / "choice")) == "madvise"
    memory = measure.memory_facts()
    assert 0 < memory["MemAvailable"] <= memory["MemTotal"]
    assert memory["MemTotal"] == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.1
    )


def test_this_machine(config):
    """Every fact is found, and is what it claims to be."""
    facts = gather(load_config(config))
    assert facts.needs.problem is None
    assert facts.needs.descriptors <= facts.needs.most_descriptors
    assert facts.user == os.geteuid()
    assert facts.machine_memory_bytes >= facts.needs.memory_bytes > facts.needs.ring_bytes > 0
    assert facts.kernel == os.uname().release
    assert facts.clock_s == pytest.approx(time.time(), abs=60)
    assert 0 < facts.monotonic_resolution_ns < 1e6
    assert facts.zmq.version >= (4, 3, 3)
    assert (facts.blosc_problem, facts.missing_symbols) == (None, ())
    (root,) = facts.folders
    assert (root.error, root.owner) == (None, os.geteuid())
    assert [folder.path for folder in facts.sockets] == [str(config.parent)]
    assert facts.sockets[0].mode == 0o700
    assert {
        finding.result
        for finding in examine(facts)
        if finding.check in ("plan", "open files", "kernel", "ZeroMQ", "Blosc")
    } == {"ok"}


def test_keys_of_a_configuration(config, tmp_path):
    """As serve would find them: each step of the way that the README shows."""
    config.write_text(
        config.read_text().replace("insecure: true", "curve: {secret_key: rig.key_secret, clients: clients}")
    )

    def found() -> tuple[str, str]:
        (finding,) = [finding for finding in examine(gather(load_config(config))) if finding.check == "keys"]
        return finding.result, finding.found

    assert found() == (
        "bad",
        (
            f"{config}:4: ingest.curve.secret_key: cannot read the key file "
            f"{config.parent}/rig.key_secret; got no such file"
        ),
    )
    make_key_pair(config.parent, "rig")
    assert "cannot read the folder of client keys" in found()[1]
    (config.parent / "clients").mkdir()
    assert found() == ("warn", "no client key is listed")
    public, _ = make_key_pair(tmp_path, "camera")
    public.rename(config.parent / "clients" / public.name)
    assert found() == ("ok", "client keys on the list: 1")


def test_a_plan_that_cannot_work_is_a_finding(config):
    config.write_text(config.read_text().replace("budget: 2GiB", "budget: 1MiB"))
    finding = next(iter(examine(gather(load_config(config)))))
    assert (finding.check, finding.result) == ("plan", "bad")
    assert "memory.budget" in finding.found


SPEC = {"dtype": "uint16", "dimensions": [{"name": name, "count": 8, "chunk_size": 8} for name in "yx"]}


def test_stores_of_this_and_of_a_later_release(config):
    for name in ("old", "new"):
        workspace = config.parent / f"data/{name}.ome.zarr/.shardwright"
        workspace.mkdir(parents=True)
        write_manifest(workspace, Manifest("0" * 32, 1, 1, SPEC, "pwrite", 0))
    assert (gather(load_config(config)).unfinished_stores, gather(load_config(config)).unreadable_stores) == (
        2,
        (),
    )
    facts = {"format": manifest.FORMAT + 1}
    checksum = crc32c.crc32c(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
    (workspace / "acquisition.1.json").write_text(json.dumps({**facts, "crc32c": checksum}, indent=2))
    (problem,) = gather(load_config(config)).unreadable_stores
    assert (
        "new.ome.zarr/.shardwright/acquisition.1.json is of another version of its format; expected version "
        "1 to 2; got version 3" in problem
    )
