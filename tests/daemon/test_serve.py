"""``shardwright serve`` from outside: a real process, real sockets, real signals, and stores that an
independent reader opens."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import pytest
import zarr
from tests.harness.daemon import DaemonProcess, camera, run_cli
from tests.harness.daemon_config import tmpfs_for_a_daemon
from tests.harness.json_process import wait_for
from tests.harness.store_contents import assert_holds

import shardwright as sw
from shardwright.daemon.control_client import ControlClient
from shardwright.simulate.photons import PhotonFrames

from .conftest import write_config

CHECKOUT = Path(__file__).parents[2]


def test_cameras_on_both_endpoints_end_up_in_stores(config: Path, folder: Path) -> None:
    with DaemonProcess(config, fresh=True) as daemon:
        ready = daemon.wait_for("ready")
        ipc, tcp = ready["endpoints"]
        assert (ipc, ready["streams"], ready["threads"]) == (f"ipc://{folder}/in.sock", ["cam0"], 2)
        near = camera(ipc, "near", "--stream", "cam0", "--frames", "21", "--seed", "3")
        far = camera(
            tcp,
            "far",
            "--shape",
            "40x24",
            "--dtype",
            "uint8",
            "--frames",
            "9",
            "--transport",
            "message",
            "--codec",
            "zstd:3",
        )
        assert (near["transport"], near["frames_stored"], near["frames_durable"], near["frames_missing"]) == (
            "shm",
            21,
            21,
            0,
        )
        assert (far["transport"], far["frames_stored"]) == ("message", 9)
        assert daemon.stop() == 0
        assert daemon.wait_for("stopped")["frames_received"] == 30
    assert_holds(folder / "data" / "near.ome.zarr", PhotonFrames((48, 80), "uint16", seed=3), 21)
    assert_holds(folder / "data" / "far.ome.zarr", PhotonFrames((40, 24), "uint8"), 9)
    for name in ("near", "far"):
        assert run_cli("verify", folder / "data" / f"{name}.ome.zarr").returncode == 0


def test_cameras_write_arrays_without_shards(config: Path, folder: Path) -> None:
    """Of a stream whose shards are null, and of a camera that asks for none, through both transports."""
    config.write_text(re.sub(r"shard_size_chunks: \d", "shard_size_chunks: null", config.read_text()))
    own = ("--shape", "48x80", "--shard", "none", "--chunk", "2x24x80", "--codec", "zstd:3")
    with DaemonProcess(config) as daemon:
        ipc, tcp = daemon.wait_for("ready")["endpoints"]
        for name, endpoint, transport, options in (
            ("near", ipc, "shm", ("--stream", "cam0")),
            ("far", tcp, "message", ("--stream", "cam0")),
            ("own-near", ipc, "shm", own),
            ("own-far", tcp, "message", own),
        ):
            options = (*options, "--frames", "21", "--seed", "3", "--transport", transport)
            receipt = camera(endpoint, name, *options)
            assert (receipt["transport"], receipt["frames_durable"]) == (transport, 21)
            path = Path(receipt["path"])
            assert zarr.open_array(path / "0", mode="r").shards is None
            assert receipt["shards"] == sum(file.is_file() for file in (path / "0/c").rglob("*"))
            assert_holds(path, PhotonFrames((48, 80), "uint16", seed=3), 21)
        assert daemon.stop() == 0
    for name in ("near", "far", "own-near", "own-far"):
        report = json.loads(run_cli("verify", "--json", folder / "data" / f"{name}.ome.zarr").stdout)
        assert (report["ok"], report["shards"]) == (True, report["shards_recorded"])


def test_a_missing_output_root_is_made_when_the_configuration_says_so(folder: Path) -> None:
    with DaemonProcess(write_config(folder, root="./a/b", create=True)) as daemon:
        daemon.wait_for("ready")
        assert (folder / "a" / "b").is_dir()
        assert daemon.stop() == 0


def test_a_signal_seals_what_has_arrived(config: Path, folder: Path) -> None:
    source = PhotonFrames((48, 80), seed=1)
    with DaemonProcess(config) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        connection = sw.connect(endpoint, reconnect_timeout_ms=0)
        stream = connection.acquire("cut-short", stream="cam0")
        for i in range(10):
            stream.append(source.frame(i))
        with ControlClient(folder / "control.sock", timeout_s=60) as control:
            # two whole slabs; the last two frames wait for a third
            wait_for(lambda: control.ask("status")["status"]["sums"]["frames_received"] == 10)
        daemon.signal(signal.SIGINT)
        assert daemon.wait_for("stopping")["signal"] == "SIGINT"
        ended = daemon.wait_for("acquisition_ended")
        assert (ended["frames_received"], ended["frames_stored"], ended["frames_durable"]) == (10, 10, 10)
        assert daemon.exit_code() == 0
        with pytest.raises(sw.errors.ShardwrightError):
            connection.close()
    assert_holds(folder / "data" / "cut-short.ome.zarr", source, 10)


def test_closed_standard_streams_stay_empty(config: Path, folder: Path) -> None:
    """As after ``serve rig.yaml 2>&-``: no descriptor of the daemon has their numbers."""
    closed = "import os, sys\nos.closerange(0, 3)\nsys.stdin = sys.stdout = sys.stderr = None"
    with DaemonProcess(config, sabotage=closed) as daemon:
        wait_for(lambda: (folder / "control.sock").exists() or daemon.process.poll() is not None)
        streams = {Path(f"/proc/{daemon.process.pid}/fd/{number}").readlink() for number in range(3)}
        assert (streams, daemon.stop()) == ({Path("/dev/null")}, 0)


def test_the_same_configuration_starts_again_after_a_kill(config: Path) -> None:
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        daemon.process.kill()
        assert daemon.exit_code() == -signal.SIGKILL
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        assert daemon.stop() == 0


def refusal(config: Path) -> tuple[int, str]:
    result = run_cli("serve", config)
    assert result.stdout == "", "nothing was started, so nothing is told as an event"
    assert result.stderr.count("\n") == 1, "one clear line"
    return result.returncode, result.stderr


def test_a_socket_that_another_daemon_serves_is_refused_and_left_to_it(config: Path) -> None:
    with DaemonProcess(config) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        code, message = refusal(config)
        assert code == 1, "systemd tries again"
        assert f"{config}:3: ingest.endpoints: " in message
        assert "Is a daemon already running?" in message
        assert camera(endpoint, "still-served", "--stream", "cam0", "--frames", "3")["frames_stored"] == 3
        assert daemon.stop() == 0


def test_a_taken_port_is_refused(config: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        config.write_text(config.read_text().replace("127.0.0.1:*", f"127.0.0.1:{other.getsockname()[1]}"))
        code, message = refusal(config)
    assert code == 1
    assert f"cannot bind tcp://127.0.0.1:{other_port(message)}" in message


def test_an_address_that_this_machine_does_not_have_yet_is_tried_again(config: Path, folder: Path) -> None:
    """At boot the network of the cameras may come up later: exit code 2 would tell systemd never to try
    again."""
    config.write_text(config.read_text().replace("127.0.0.1:*", "192.0.2.1:5555"))
    code, message = refusal(config)
    assert code == 1
    assert f"{config}:3: ingest.endpoints: cannot bind tcp://192.0.2.1:5555" in message
    assert "RestartPreventExitStatus=2" in (CHECKOUT / "systemd" / "shardwright@.service").read_text()
    assert not (folder / "in.sock.ring").exists()


def other_port(message: str) -> str:
    return message.partition("tcp://127.0.0.1:")[2].partition(";")[0]


def test_a_missing_output_root_is_refused_before_any_socket(folder: Path) -> None:
    code, message = refusal(write_config(folder, root="./not-mounted"))
    assert code == 1
    assert f"output root {folder}/not-mounted does not exist" in message
    assert sorted(path.name for path in folder.iterdir()) == ["rig.yaml"]


def test_an_output_root_that_is_no_folder_is_refused(folder: Path) -> None:
    code, message = refusal(write_config(folder, root="./rig.yaml"))
    assert code == 1
    assert f"output root {folder}/rig.yaml is not a folder" in message


def test_an_output_root_in_memory_is_refused_before_any_socket(folder: Path) -> None:
    memory = tmpfs_for_a_daemon()
    config = write_config(folder, root=memory)
    config.write_text(config.read_text().replace("in_memory: true", "in_memory: false"))
    code, message = refusal(config)
    assert code == 1
    assert f"output root {memory} is in memory (tmpfs)" in message
    assert sorted(path.name for path in folder.iterdir()) == ["rig.yaml"]


def test_a_plan_that_does_not_fit_is_refused(config: Path, folder: Path) -> None:
    config.write_text(config.read_text().replace("2GiB", "2MiB"))
    code, message = refusal(config)
    assert code == 2
    assert f"{config}:8: memory.budget: " in message
    assert not (folder / "in.sock").exists()


def test_a_refused_camera_is_one_line_and_the_daemon_goes_on(config: Path, folder: Path) -> None:
    with DaemonProcess(config) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        for options, says in [
            (("--name", "x", "--stream", "cam7"), "unknown stream"),
            (("--name", "../x", "--stream", "cam0"), "not a usable name"),
            (("--name", "x", "--stream", "cam0", "--shape", "5x5"), "wrong frame shape"),
            (("--name", "x", "--shape", "20000x20000", "--chunk", "1000x256x256"), "budget"),
        ]:
            result = run_cli("camera", "--connect", endpoint, "--frames", "3", *options)
            assert result.returncode == 1
            assert says in result.stderr
            assert result.stderr.strip().count("\n") == 0, result.stderr
        assert camera(endpoint, "good", "--stream", "cam0", "--frames", "5")["frames_stored"] == 5
        assert daemon.stop() == 0
    assert_holds(folder / "data" / "good.ome.zarr", PhotonFrames((48, 80)), 5)


def test_a_camera_without_a_daemon_says_what_to_do(folder: Path) -> None:
    result = run_cli(
        "camera", "--connect", f"ipc://{folder}/nobody.sock", "--name", "x", "--timeout-ms", "300"
    )
    assert result.returncode == 1
    assert "Is `shardwright serve` running there?" in result.stderr


WORKER_DIES = """
from shardwright.acquire.encoding import SlabTask
def run(self, state):
    raise SystemExit(0)
SlabTask.run = run
"""
INGEST_DIES = """
from shardwright.ingest.session import Session
def receive(self, header, body, pixels):
    raise ZeroDivisionError("a defect")
Session.receive = receive
"""


@pytest.mark.parametrize(
    ("sabotage", "thread"), [(WORKER_DIES, "worker"), (INGEST_DIES, "ingest")], ids=["worker", "ingest"]
)
def test_a_dead_thread_ends_the_daemon_with_1_and_the_camera_with_an_error(
    config: Path, sabotage: str, thread: str
) -> None:
    with DaemonProcess(config, sabotage=sabotage) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        result = run_cli(
            "camera",
            "--connect",
            endpoint,
            "--name",
            "x",
            "--stream",
            "cam0",
            "--frames",
            "50",
            "--reconnect-ms",
            "0",
        )
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1].startswith("shardwright: ")
        assert thread in daemon.wait_for("thread_died")["thread"]
        assert daemon.exit_code() == 1
