"""``shardwright plan`` as people and programs run it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.harness.daemon import CLI, DaemonProcess, run_cli
from tests.harness.json_process import TIMEOUT_S

import shardwright as sw


def test_without_measuring_it_is_arithmetic_and_says_so(config):
    shown = run_cli("plan", config, "--frame-rate", "100")
    assert shown.returncode == 0
    assert "only arithmetic: --measure says what this machine can hold" in shown.stdout
    facts = json.loads(run_cli("plan", config, "--frame-rate", "100", "--json").stdout)
    (stream,) = facts["streams"]
    assert (facts["ok"], facts["held"], facts["measured"], stream["held"]) == (
        True,
        "unknown",
        None,
        "unknown",
    )
    assert stream["needed_bytes_per_s"] == 100 * 48 * 80 * 2
    assert stream["hours"] == facts["hours"] > 0


def test_a_camera_that_can_be_held_and_one_that_cannot(config):
    """The same measurement, of a rate that any machine holds and one that none does: exit code, verdict and
    advice differ."""
    held = run_cli("plan", config, "--measure", "--seconds", "2", "--frame-rate", "1", "--json")
    assert held.returncode == 0, held.stderr
    facts = json.loads(held.stdout)
    (stream,) = facts["streams"]
    assert (facts["ok"], facts["held"], stream["held"], stream["advice"]) == (True, "yes", "yes", [])
    assert stream["load"] == pytest.approx(stream["needed_bytes_per_s"] / stream["predicted_bytes_per_s"])
    assert {floor["name"] for floor in stream["floors"]} == {"kernel", "disk", "transport", "processors"}
    assert stream["binds"] in ("kernel", "disk", "transport", "processors", "pipeline")
    measured = facts["measured"]["streams"]["cam0"]
    assert measured["acquisitions"]["shm"]["rounds"] >= 2
    assert stream["predicted_bytes_per_s"] == measured["acquisitions"]["shm"]["sustained_bytes_per_s"]
    assert "plan: measuring" in held.stderr, "long work shows progress"
    refused = run_cli("plan", config, "--measure", "--seconds", "2", "--frame-rate", "1000000000")
    assert refused.returncode == 1
    assert "cannot be held" in refused.stdout
    assert "Lower the frame rate" in refused.stdout
    assert "Traceback" not in refused.stderr
    assert list((config.parent / "data").iterdir()) == []


def test_own_frames_on_the_command_line(config, tmp_path):
    np.save(tmp_path / "f.npy", np.zeros((4, 48, 80), np.uint16))
    facts = json.loads(
        run_cli(
            "plan", config, "--measure", "--seconds", "2", "--frames", tmp_path / "f.npy", "--json"
        ).stdout
    )
    assert facts["measured"]["streams"]["cam0"]["sample"] == "4 frames of f.npy"
    assert (facts["held"], facts["streams"][0]["held"]) == ("unknown", "unknown"), "without a frame rate"
    assert facts["streams"][0]["predicted_frame_rate_hz"] > 0
    bad = run_cli("plan", config, "--measure", "--frames", tmp_path / "none.npy", "--json")
    assert (bad.returncode, json.loads(bad.stdout)["ok"]) == (1, False)
    assert "none.npy" in bad.stderr
    assert len([line for line in bad.stderr.splitlines() if line.startswith("shardwright: ")]) == 1
    assert run_cli("plan", config, "--frames", tmp_path / "f.npy").returncode == 2, (
        "means nothing without --measure"
    )


def test_a_configuration_without_streams_has_nothing_to_plan(config):
    config.write_text(config.read_text()[: config.read_text().index("streams:")])
    done = run_cli("plan", config)
    assert done.returncode == 2
    assert "no stream" in done.stderr


def test_an_interrupt_ends_it_with_1_and_leaves_nothing(config):
    process = subprocess.Popen(
        [*CLI, "plan", str(config), "--measure", "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "cam0: " in line:
            break
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, "".join(seen) + rest
    assert "plan was interrupted; what it had written is deleted" in rest
    assert list((config.parent / "data").iterdir()) == []


def test_cameras_that_acquire_are_left_alone(config):
    with DaemonProcess(config) as daemon:
        endpoint = next(e for e in daemon.wait_for("ready")["endpoints"] if e.startswith("ipc"))
        idle = run_cli("plan", config, "--measure", "--seconds", "2")
        assert idle.returncode == 0, idle.stderr
        with sw.connect(endpoint) as connection, connection.acquire("run-1", stream="cam0") as stream:
            stream.append(np.zeros((48, 80), np.uint16))
            done = run_cli("plan", config, "--measure", "--seconds", "2")
            assert done.returncode == 2
            assert "cameras are acquiring" in done.stderr
            assert "run-1" in done.stderr
            beside = run_cli("plan", config, "--measure", "--seconds", "2", "--beside", "--json")
            assert beside.returncode == 0, beside.stderr
        assert stream.receipt.frames_stored == 1
        assert daemon.stop() == 0
    assert {path.name for path in (config.parent / "data").iterdir() if not path.name.startswith(".")} == {
        "run-1.ome.zarr"
    }


def test_the_help_names_what_it_does():
    done = subprocess.run(
        [sys.executable, "-m", "shardwright.cli", "plan", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path.cwd(),
    )
    assert "Exits with 1 when a camera cannot be held" in " ".join(done.stdout.replace("│", " ").split())
