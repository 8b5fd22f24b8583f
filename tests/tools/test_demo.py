"""tools/demo for real, with few frames: daemon, camera, comparison, exit codes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "tools" / "demo.py"
CONFIG = """
output: {root: data, create: true, in_memory: true}
ingest: {endpoints: ["ipc://ingest.sock"]}
memory: {budget: 1GiB}
streams:
  - name: demo
    array:
      dtype: uint16
      dimensions:
        - { name: t, type: time, chunk_size: 4, shard_size_chunks: 2 }
        - { name: y, type: space, count: 96, chunk_size: 64, shard_size_chunks: 2 }
        - { name: x, type: space, count: 80, chunk_size: 64, shard_size_chunks: 2 }
"""


@pytest.fixture
def demo(folder, monkeypatch):
    """The demo's module, on a small stream in a folder of its own."""
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = folder / "demo.yaml"
    config.write_text(CONFIG)
    monkeypatch.setattr(module, "CONFIG", config)
    return module


def run(demo, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["demo", "--json", *arguments])
    code = demo.main()
    return code, capsys.readouterr()


def test_every_pixel_is_right_and_a_second_run_replaces_the_first(demo, monkeypatch, capsys):
    for frames in (21, 9):
        code, output = run(demo, monkeypatch, capsys, "--frames", str(frames))
        report = json.loads(output.out)
        assert code == 0, output.err
        assert (report["frames"], report["frames_missing"], report["frames_differing"]) == (frames, 0, 0)
    assert Path(report["path"]).is_dir()


def test_a_wrong_pixel_fails_the_demo(demo, monkeypatch, capsys):
    draw = demo.PhotonFrames.frame

    def with_one_other_pixel(self, index, out=None):
        image = draw(self, index, out)
        if index == 5:
            image[17, 3] ^= 1
        return image

    # here only: the camera is another process
    monkeypatch.setattr(demo.PhotonFrames, "frame", with_one_other_pixel)
    code, output = run(demo, monkeypatch, capsys, "--frames", "9")
    assert code == 1
    assert json.loads(output.out)["frames_differing"] == 1


def test_a_daemon_that_does_not_start_is_reported(demo, monkeypatch, capsys):
    demo.CONFIG.write_text(CONFIG.replace("budget: 1GiB", "budget: 1MiB"))
    code, output = run(demo, monkeypatch, capsys)
    assert code == 1
    assert "memory.budget" in output.err


def test_two_demos_at_once_are_refused(demo, folder, monkeypatch, capsys):
    with demo.only_one(folder):
        code, output = run(demo, monkeypatch, capsys)
    assert code == 1
    assert "another demo is running" in output.err


def test_help_names_the_options():
    done = subprocess.run([sys.executable, str(DEMO), "--help"], capture_output=True, text=True, check=True)
    assert "--frames" in done.stdout
    assert "--json" in done.stdout
