"""``python -m shardwright.integrations.micromanager`` with the simulated microscope."""

import json
import signal
import sys
from itertools import islice
from subprocess import PIPE, Popen

import pymmcore_plus
import pytest
from tests.harness.json_process import TIMEOUT_S, environment

import shardwright as sw
from shardwright.integrations.micromanager import __main__ as program
from shardwright.read.verify_store import verify_store

SEQUENCE = """
axis_order: tpcz
stage_positions: [{x: 0, y: 0, z: 0, name: left}, {x: 50, y: 0, z: 0}]
channels: [{config: DAPI, exposure: 1}]
time_plan: {interval: INTERVAL, loops: LOOPS}
"""


@pytest.fixture
def command(tmp_path):
    """Starts the command with a sequence of so many time points."""

    def start(*words, loops=2, interval=0):
        sequence = tmp_path / "sequence.yaml"
        sequence.write_text(SEQUENCE.replace("LOOPS", str(loops)).replace("INTERVAL", str(interval)))
        arguments = [
            sys.executable,
            "-m",
            "shardwright.integrations.micromanager",
            "demo",
            str(sequence),
            *words,
        ]
        return Popen(arguments, cwd=tmp_path, env=environment(), stdout=PIPE, stderr=PIPE, text=True)

    return start


def test_a_sequence_becomes_a_store(command, tmp_path):
    out, errors = command("out.ome.zarr", "--json").communicate(timeout=TIMEOUT_S)
    receipt = json.loads(out)
    assert (receipt["frames_stored"], receipt["frames_missing"]) == (4, 0)
    assert "4 of 4 frames" in errors
    assert sw.open_array(tmp_path / "out.ome.zarr/p0_left").shape == (2, 1, 512, 512)
    again = command("out.ome.zarr", "--json")
    document = json.loads(again.communicate(timeout=TIMEOUT_S)[0])
    assert (document["ok"], document["error"]["code"]) == (False, "output_exists")
    assert document["error"]["hint"]
    assert again.returncode == 1
    replaced, _ = command("out.ome.zarr", "--overwrite", loops=1).communicate(timeout=TIMEOUT_S)
    assert "frames_stored" in replaced
    assert sw.open_array(tmp_path / "out.ome.zarr/p0_left").shape[0] == 1


def test_a_sequence_through_the_daemon(command, daemon):
    out, errors = command("mda-command", "--daemon", daemon, "--json").communicate(timeout=TIMEOUT_S)
    receipt = json.loads(out)
    assert receipt["frames_stored"] == 4, errors
    assert sw.open_array(f"{receipt['path']}/p1").shape == (2, 1, 512, 512)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_run_and_seals_it(command, tmp_path, number):
    """An hour between time points: only the first one comes, of both positions."""
    running = command("out.ome.zarr", "--json", loops=3, interval=3600)
    frames = sw.follow(waited_for(tmp_path / "out.ome.zarr", running), timeout_ms=60_000)
    assert [frame.pixels.shape for frame in islice(frames, 2)] == [(512, 512)] * 2
    running.send_signal(number)
    out, errors = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 130, errors
    assert json.loads(out)["frames_stored"] == 2
    assert verify_store(tmp_path / "out.ome.zarr").ok


def waited_for(store, running):
    from tests.harness.json_process import wait_for

    wait_for(lambda: (store / "zarr.json").exists() or running.poll() is not None, "the store")
    return store


@pytest.fixture
def words(tmp_path, monkeypatch, core):
    """Words for a run of the command in this process, with this core."""
    monkeypatch.setattr(pymmcore_plus, "CMMCorePlus", lambda: core)
    sequence = tmp_path / "sequence.yaml"
    sequence.write_text(SEQUENCE.replace("LOOPS", "3").replace("INTERVAL", "0"))
    return ["demo", str(sequence), str(tmp_path / "out.ome.zarr"), "--json"]


def test_a_signal_before_the_run_has_begun_is_not_lost(words, capsys, monkeypatch):
    create = sw.create

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return create(*arguments, **options)

    monkeypatch.setattr(sw, "create", interrupted)
    assert program.main(words) == 130
    assert json.loads(capsys.readouterr().out)["frames_stored"] == 0


def test_a_signal_while_the_engine_holds_its_lock(words, capsys, monkeypatch, core):
    def progress(_, frames, expected):
        if frames == 1:
            with core.mda._lock:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(program._ProgressLines, "__call__", progress)
    assert program.main(words) == 130
    assert 0 < json.loads(capsys.readouterr().out)["frames_stored"] < 6


@pytest.mark.parametrize("text", ["axis_order: [tp", "time_plan: {interval: 0}", None])
def test_what_is_no_sequence_is_told_with_a_hint(words, capsys, tmp_path, text):
    words[1] = str(tmp_path / "wrong.yaml")
    if text is not None:
        (tmp_path / "wrong.yaml").write_text(text)
    assert program.main(words) == 1
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert (error["code"], "MDASequence" in error["hint"]) == ("config", True)
    assert "wrong.yaml is no sequence" in told.err


def test_a_configuration_without_a_camera_is_told(words, capsys, tmp_path):
    words[0] = str(tmp_path / "empty.cfg")
    (tmp_path / "empty.cfg").touch()
    assert program.main(words) == 1
    assert "no camera" in json.loads(capsys.readouterr().out)["error"]["message"]
