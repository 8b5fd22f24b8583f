"""An acquisition goes on, after a restart of the daemon, as what it was opened as: its manifest says so, and
another stream's array may be like its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess
from tests.harness.json_process import wait_for
from tests.shard.test_manifest import rewrite_file

import shardwright as sw
from shardwright.config.model import Config
from shardwright.daemon.control_client import ControlClient
from shardwright.ingest.open_admission import Admission
from shardwright.shard.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """\
output: {{root: {root}, in_memory: true, ballast: 64KiB, low_water: 1MiB}}
ingest: {{endpoints: ["ipc://./in.sock"], heartbeat_ms: 200, session_timeout_ms: 30000}}
workers: {{threads: 1}}
memory: {{budget: 2GiB}}
reliability: {{resume_timeout_ms: 600000, store_within_ms: 50, sync_interval_ms: 50}}
streams:
"""
ARRAY = """\
    array:
      dtype: uint16
      dimensions:
        - {name: t, chunk_size: 2, shard_size_chunks: 2}
        - {name: y, count: 8, chunk_size: 8, shard_size_chunks: 1}
        - {name: x, count: 12, chunk_size: 12, shard_size_chunks: 1}
"""
LEFT = f"  - name: left\n{ARRAY}"
RIGHT = f"""\
  - name: right
    ring_frames: 200
    durability: durable
    overload: drop
    on_duplicate: fail
{ARRAY}"""
FRAME = np.arange(96, dtype=np.uint16).reshape(8, 12)


def write(folder: Path, *streams: str) -> Path:
    config = folder / "rig.yaml"
    config.write_text(HEAD.format(root=folder / "data") + "".join(streams))
    return config


def status(folder: Path) -> dict[str, Any]:
    with ControlClient(folder / "control.sock", timeout_s=60) as control:
        answer: dict[str, Any] = control.ask("status")["status"]
    return answer


def open_and_kill(folder: Path, config: Path) -> None:
    """Two cameras of one model, and one that brings the same array itself; then the daemon is killed."""
    with DaemonProcess(config) as daemon:
        connection = sw.connect(daemon.endpoint, transport="message", reconnect_timeout_ms=0)
        streams = {
            name: connection.acquire(f"of-{name}", stream=name, frames_expected=expected)
            for name, expected in (("right", 500), ("left", None))
        }
        streams["nobody"] = connection.acquire("of-nobody", streams["left"].spec)
        for stream in streams.values():
            stream.append(FRAME)
            stream.append(FRAME)
            wait_for(lambda stream=stream: stream.watermark.stored == 2, "both frames")
        daemon.kill()
        with pytest.raises(sw.errors.ShardwrightError):
            connection.close()


@pytest.fixture
def killed(folder: Path) -> Path:
    (folder / "data").mkdir()
    open_and_kill(folder, write(folder, LEFT, RIGHT))
    return folder


def recovered(daemon: DaemonProcess, count: int = 3) -> None:
    for _ in range(count):
        daemon.wait_for("acquisition_recovered")


def test_it_is_the_stream_s_that_opened_it_though_another_has_the_same_array(killed: Path) -> None:
    manifest = read_manifest(killed / "data/of-nobody.ome.zarr/.shardwright")
    assert manifest.opened_as.stream == "client", "null is for what no daemon has a part in"
    with DaemonProcess(write(killed, LEFT, RIGHT)) as daemon:
        recovered(daemon)
        found = status(killed)
        named = {one["name"]: (one["stream"], one["frames_expected"]) for one in found["acquisitions"]}
        assert named == {
            "of-right": ("right", 500),
            "of-left": ("left", None),
            "of-nobody": ("client", None),
        }
        with sw.connect(daemon.endpoint) as connection:
            with pytest.raises(sw.errors.SpecError, match=r"another stream's; expected stream 'right'"):
                connection.acquire("of-right", stream="left", reopen=True)
            stream = connection.acquire("of-right", reopen=True)
            opened = stream._link.opened
            assert (opened.ring_slots, opened.durability, opened.overload) == (200, "durable", "drop")
            assert status(killed)["streams"]["right"]["ring_frames"] == 200
            stream.append(FRAME, index=(0,))
            with pytest.raises(sw.errors.DuplicateFrameError):
                stream.close()
        assert daemon.stop() == 0


def test_a_stream_that_is_gone_from_the_configuration_goes_on_as_recorded(killed: Path) -> None:
    with DaemonProcess(write(killed, LEFT)) as daemon:
        recovered(daemon)
        found = status(killed)
        assert {one["stream"] for one in found["acquisitions"]} == {"right", "left", "client"}
        assert found["streams"]["right"]["acquisitions"] == 1
        with sw.connect(daemon.endpoint) as connection:
            with connection.acquire("of-right", stream="right", reopen=True, frames_expected=7) as stream:
                assert stream._link.opened.durability == "durable"
                manifest = read_manifest(killed / "data/of-right.ome.zarr/.shardwright")
                assert manifest.opened_as.frames_expected == 7
                stream.append(FRAME)
            assert stream.receipt.frames_stored == 3
            with pytest.raises(sw.errors.UnknownStreamError):
                connection.acquire("new", stream="right")
        assert daemon.stop() == 0


def test_what_was_recorded_counts_more_than_what_the_stream_is_today(killed: Path) -> None:
    changed = RIGHT.replace("durable", "stored").replace("200", "64").replace("count: 12", "count: 24")
    with DaemonProcess(write(killed, LEFT, changed)) as daemon:
        recovered(daemon)
        with (
            sw.connect(daemon.endpoint) as connection,
            connection.acquire("of-right", stream="right", reopen=True) as stream,
        ):
            assert (stream._link.opened.ring_slots, stream._link.opened.durability) == (200, "durable")
        assert daemon.stop() == 0


def test_damaged_settings_leave_the_store_as_it_is(killed: Path) -> None:
    path = killed / "data/of-right.ome.zarr/.shardwright/acquisition.1.json"
    rewrite_file(path, lambda facts: facts["opened_as"]["settings"].update(durability="eternal"))
    before = json.loads(path.read_text())
    with DaemonProcess(write(killed, LEFT, RIGHT)) as daemon:
        failed = daemon.wait_for("acquisition_recovery_failed")
        assert (failed["path"], failed["code"]) == (str(path.parents[1]), "shard_format")
        assert failed["message"].endswith("unknown durability")
        assert daemon.stop() == 0
    assert json.loads(path.read_text()) == before


@pytest.mark.parametrize("partial_chunks", ["collect", "in_place"])
def test_chunks_are_checked_as_the_configuration_of_today_says(tmp_path: Path, partial_chunks: Any) -> None:
    """Also those of a store whose frames are put in place, which has none to check."""
    path, counts = tmp_path / "a.ome.zarr", {"t": 4, "y": 8, "x": 12}
    dimensions = [sw.Dimension(name=name, count=n, chunk_size=n) for name, n in counts.items()]
    spec = sw.ArraySpec(dtype="uint16", codec=None, dimensions=dimensions)
    with sw.create(path, spec, settings=sw.WriteSettings(partial_chunks=partial_chunks)) as writer:
        manifest = read_manifest(path / ".shardwright")
        writer.append(FRAME)
    today = {"output": {"root": tmp_path, "min_ratio": 1.5}, "reliability": {"encode_check": "all"}}
    admission = Admission(Config.model_validate(today).ingest_settings(None), threads=1)
    found = admission.found_as(manifest, None).settings
    assert (found.partial_chunks, found.encode_check, found.min_ratio) == (partial_chunks, "all", 1.5)
