"""``shardwright check --measure`` as people and programs run it."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess, run_cli, start_cli
from tests.harness.json_process import TIMEOUT_S

import shardwright as sw


def test_a_camera_that_can_be_held_and_one_that_cannot(config):
    """The same trial, of a rate that any machine holds and one that none does: exit code, verdict and advice
    differ."""
    held = run_cli("check", config, "--measure", "--seconds", "2", "--frame-rate", "1", "--json")
    assert held.returncode == 0, held.stderr
    answer = json.loads(held.stdout)
    facts = answer["keep_up"]
    (stream,) = facts["streams"]
    assert (answer["ok"], facts["held"], stream["held"]) == (True, "yes", "yes")
    (finding,) = [each for each in answer["findings"] if each["check"] == "stream cam0: rate"]
    assert (finding["result"], finding["found"][:12], finding["advice"]) == ("ok", "can be held,", None)
    assert stream["load"] == pytest.approx(stream["needed_bytes_per_s"] / stream["sustained_bytes_per_s"])
    measured = facts["measured"]["streams"]["cam0"]
    assert stream["sustained_bytes_per_s"] == measured["bytes_per_s"]
    assert "check: measuring" in held.stderr, "long work shows progress"
    refused = run_cli("check", config, "--measure", "--seconds", "2", "--frame-rate", "1000000000")
    assert refused.returncode == 1
    assert "cannot be held" in refused.stdout
    assert refused.stdout.splitlines()[-1].startswith("will not keep up here: stream cam0: rate")
    assert "Lower its frame rate" in refused.stdout
    assert "Traceback" not in refused.stderr
    assert list((config.parent / "data").iterdir()) == []


def test_own_frames_on_the_command_line(config, tmp_path):
    np.save(tmp_path / "f.npy", np.zeros((4, 48, 80), np.uint16))
    facts = json.loads(
        run_cli(
            "check", config, "--measure", "--seconds", "2", "--frames", tmp_path / "f.npy", "--json"
        ).stdout
    )["keep_up"]
    assert facts["measured"]["streams"]["cam0"]["sample"] == "4 frames of f.npy"
    assert (facts["held"], facts["streams"][0]["held"]) == ("unknown", "unknown"), "without a frame rate"
    assert facts["streams"][0]["sustained_frame_rate_hz"] > 0
    bad = run_cli("check", config, "--measure", "--frames", tmp_path / "none.npy", "--json")
    answer = json.loads(bad.stdout)
    assert (bad.returncode, answer["ok"]) == (1, False)
    (finding,) = [each for each in answer["findings"] if each["result"] == "bad"]
    assert (finding["check"], "none.npy" in finding["found"]) == ("measurement", True)
    assert run_cli("check", config, "--frames", tmp_path / "f.npy").returncode == 2, (
        "means nothing without --measure"
    )


def test_a_configuration_without_streams_has_nothing_to_measure(config):
    config.write_text(config.read_text()[: config.read_text().index("streams:")])
    done = run_cli("check", config, "--measure")
    assert done.returncode == 1
    assert "there is no camera to measure" in done.stdout
    assert run_cli("check", config).returncode == 0


def test_nothing_is_measured_where_it_will_not_run(config):
    (config.parent / "data").rmdir()
    done = run_cli("check", config, "--measure", "--seconds", "2")
    assert (done.returncode, done.stderr) == (1, "")
    assert "not measured, since the daemon would not run" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("will not run here: output.root")


def test_an_output_root_that_a_start_makes_is_measured_and_gone_again(config):
    (config.parent / "data").rmdir()
    config.write_text(config.read_text().replace("create: false", "create: true"))
    done = run_cli("check", config, "--measure", "--seconds", "2", "--frame-rate", "1")
    assert done.returncode == 0, done.stderr
    assert not (config.parent / "data").exists()


def test_an_interrupt_ends_it_with_1_and_leaves_nothing(config):
    process = start_cli("check", config, "--measure", "--seconds", "600")
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "all cameras" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, "".join(seen) + rest
    assert "check was interrupted; what it had written is deleted" in rest
    assert list((config.parent / "data").iterdir()) == []


def test_cameras_that_acquire_are_left_alone(config):
    with DaemonProcess(config) as daemon:
        endpoint = next(e for e in daemon.wait_for("ready")["endpoints"] if e.startswith("ipc"))
        idle = json.loads(run_cli("check", config, "--measure", "--seconds", "2", "--json").stdout)
        assert idle["keep_up"]["measured"] is not None
        assert [each["check"] for each in idle["findings"] if each["result"] == "bad"] == ["sockets"]
        with sw.connect(endpoint) as connection, connection.acquire("run-1", stream="cam0") as stream:
            stream.append(np.zeros((48, 80), np.uint16))
            done = run_cli("check", config, "--measure", "--seconds", "2")
            assert done.returncode == 1
            assert "cameras are acquiring (run-1)" in done.stdout
            beside = run_cli("check", config, "--measure", "--seconds", "2", "--beside", "--json")
            assert json.loads(beside.stdout)["keep_up"]["measured"] is not None, beside.stderr
        assert stream.receipt.frames_stored == 1
        assert daemon.stop() == 0
    assert {path.name for path in (config.parent / "data").iterdir() if not path.name.startswith(".")} == {
        "run-1.ome.zarr"
    }


def test_the_help_names_what_it_does():
    done = run_cli("check", "--help", check=True)
    told = " ".join(done.stdout.replace("│", " ").split())
    assert "Exits with 0 when it will run (there may be warnings), with 1 when it will not" in told
