"""The client in C against a daemon that is killed and started again: every frame is in its place, with its id
and its metadata. All under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.daemon import DaemonProcess, serving
from tests.harness.daemon_config import write_config
from tests.harness.frames import array_spec
from tests.harness.fresh_environment import built_wheel
from tests.harness.json_process import wait_for
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.store_contents import frame_table, stored
from tests.ingest.keys import Lab
from tests.wire.c_camera import CLIENT, CCamera, compile_c, drawn, need_compiler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC = json.dumps(array_spec(frame_fields=("mine",), frame_json_bytes=40).model_dump(mode="json"))
PLAIN = json.dumps(array_spec().model_dump(mode="json"))
WAYS = pytest.mark.parametrize("way", ["shm", "message"])
PATIENCE_MS = 300_000
Start = "Callable[[], CCamera]"


@pytest.fixture
def daemon(folder: Path) -> Iterator[RestartedDaemon]:
    daemon = RestartedDaemon(folder)
    yield daemon
    daemon.kill()


def opened(camera: CCamera, daemon: RestartedDaemon, way: str = "auto", **more: Any) -> CCamera:
    """A camera with an acquisition. ``more``: ``spec``, ``stream``, ``reopen``, ``name``."""
    facts = {"name": "a", "spec": PLAIN, "stream": "-", "reopen": 0, **more}
    said = camera.connect(daemon.endpoint, way)
    assert said["done"] == 0, said
    camera.good("open", facts["name"], facts["spec"], facts["stream"], facts["reopen"], PATIENCE_MS)
    return camera


def by_frame_id(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The frame table, whose rows come in the order in which slabs are stored, by the camera's numbers."""
    table = frame_table(path)
    order = np.argsort(table["frame_id"])
    return {name: column[order] for name, column in table.items()}


def assert_all_there(daemon: RestartedDaemon, frames: int, name: str = "a") -> None:
    """Each frame in its place, and in the table as often as it was taken: once."""
    pixels, table = daemon.stored(name), frame_table(daemon.path(name))
    assert len(pixels) == frames
    for i in range(frames):
        np.testing.assert_array_equal(pixels[i], drawn(i), err_msg=f"frame {i}")
    assert sorted(table["frame_id"].tolist()) == list(range(frames))


@WAYS
def test_frames_and_what_they_bring(daemon: RestartedDaemon, camera: Start, way: str):
    daemon.start()
    each = opened(camera(), daemon, way, spec=SPEC)
    assert each.good("append", 0, 20, "-", '{"gain":2, "note":"\\u00b5"}', PATIENCE_MS)["dropped"] == 0
    assert each.good("append", 20, 3, "-", "{ }", PATIENCE_MS)["dropped"] == 0
    each.good("append", 23, 2, "-", json.dumps({"longer than its room": "x" * 40}), PATIENCE_MS)
    each.good("flush", PATIENCE_MS)
    now = each.good("progress")
    assert (now["frames"], now["durable"], now["is_shared"]) == (25, 25, way == "shm")
    receipt = each.good("finish", PATIENCE_MS)
    assert (receipt["frames_received"], receipt["frames_durable"], receipt["frame_json_dropped"]) == (
        25,
        25,
        2,
    )
    assert receipt["bytes_raw"] == 25 * 32 * 48 * 2
    assert each.do("append", 0, 1, "-", "-", 0)["code"] == "closed"
    each.end()
    assert_all_there(daemon, 25)
    table = by_frame_id(daemon.path())
    np.testing.assert_allclose(table["exposure_time"], 0.001 * np.arange(25))
    np.testing.assert_array_equal(table["position_z"], np.full(25, -1.0))
    assert np.isnan(table["delta_t"]).all()
    np.testing.assert_array_equal(table["mine"], 0.5 * np.arange(25))
    texts = [json.loads(text) if text else None for text in table["json"].tolist()]
    assert texts == [{"gain": 2, "note": "µ"}] * 20 + [None] * 5


@WAYS
def test_daemons_are_killed_in_mid_stream(daemon: RestartedDaemon, camera: Start, way: str):
    """The ring is smaller than what is sent between two kills, so each finds frames on their way, frames that
    the daemon holds, and frames that are stored."""
    daemon.start(ring_frames=16)
    each = opened(camera(), daemon, way, spec="-", stream="cam")
    each.ask("append", 0, 400, "-", "-", PATIENCE_MS)
    for number in (30, 90, 260):
        each.wait_until_it_took(number)
        daemon.kill()
        daemon.start(ring_frames=16)
    assert each.answer()["done"] == 0
    assert each.good("progress")["reconnects"] == 3
    receipt = each.good("finish", PATIENCE_MS)
    assert receipt["frames_durable"] == 400
    each.end()
    assert_all_there(daemon, 400)


def test_several_threads_append_while_the_daemon_is_killed(daemon: RestartedDaemon, camera: Start):
    daemon.start(ring_frames=16)
    each = opened(camera(), daemon, spec="-", stream="cam")
    each.ask("threads", 4, 300)
    each.wait_until_it_took(40)
    daemon.kill()
    daemon.start(ring_frames=16)
    assert each.answer()["done"] == 0
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 300
    each.end()
    table, pixels = frame_table(daemon.path()), daemon.stored()
    assert sorted(table["frame_id"].tolist()) == sorted(table["index_t"].tolist()) == list(range(300))
    for place, number in zip(table["index_t"].tolist(), table["frame_id"].tolist(), strict=True):
        np.testing.assert_array_equal(pixels[place], drawn(number))


def test_a_camera_that_knows_no_name_takes_up_what_is_armed(daemon: RestartedDaemon, camera: Start):
    """By its stream alone, or by the name alone; after a kill it resumes by the name that it was given."""
    daemon.start()
    each = camera()
    assert each.connect(daemon.endpoint)["done"] == 0
    assert each.do("open", "-", "-", "cam", 0, PATIENCE_MS)["code"] == "unknown_acquisition"
    for facts in (("-", "-", "-", 0), ("-", PLAIN, "cam", 0), ("-", "-", "cam", 1)):
        assert each.do("open", *facts, PATIENCE_MS)["code"] == "invalid_name"
    with daemon.control() as control:
        control.arm("a", stream="cam")
        assert each.good("open", "-", "-", "cam", 0, PATIENCE_MS)["path"] == str(daemon.path())
        control.arm("b", stream="cam")
    each.good("append", 0, 20, "-", "-", PATIENCE_MS)
    daemon.kill()
    daemon.start()
    each.good("append", 20, 20, "-", "-", PATIENCE_MS)
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 40
    with daemon.control() as control:
        control.arm("b", stream="cam")
        each.good("open", "b", "-", "-", 0, PATIENCE_MS)
    each.good("append", 0, 1, "-", "-", PATIENCE_MS)
    each.good("finish", PATIENCE_MS)
    each.end()
    assert_all_there(daemon, 40)
    assert_all_there(daemon, 1, "b")


def test_a_copy_that_lasts_while_the_ring_is_replaced(daemon: RestartedDaemon, camera: Start):
    """Frames that other threads append meanwhile are in the new ring, and stay there."""
    daemon.start(ring_frames=16)
    each = opened(camera(), daemon, "shm", spec="-", stream="cam")
    each.good("append", 0, 5, "-", "-", PATIENCE_MS)
    each.good("behind", 5, 1, 1)
    given_ns = time.monotonic_ns()
    daemon.kill()
    daemon.start(ring_frames=16)
    wait_for(lambda: each.good("progress")["reconnects"] == 1, "the acquisition to be resumed")
    each.good("append", 6, 5, "-", "-", PATIENCE_MS)
    each.good("release")
    each.good("join")
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 11
    each.end()
    table, pixels = frame_table(daemon.path()), daemon.stored()
    assert sorted(table["frame_id"].tolist()) == list(range(11))
    for place, number in zip(table["index_t"].tolist(), table["frame_id"].tolist(), strict=True):
        np.testing.assert_array_equal(pixels[place], drawn(number), err_msg=f"frame {number}")
    assert table["monotonic_ns"][table["frame_id"] == 5] < given_ns, "of the call, not of the copy's end"


def test_the_end_ends_calls_that_wait_for_room(daemon: RestartedDaemon, camera: Start):
    daemon.start(ring_frames=16, session_timeout_ms=60_000)
    each = opened(camera(), daemon, spec="-", stream="cam")
    daemon.signal(signal.SIGSTOP)
    each.good("behind", 0, 17, 0)
    each.wait_until_it_took(15)
    assert each.do("finish", 50)["code"] == "timed_out"
    assert each.do("join")["code"] == "closed"
    daemon.signal(signal.SIGCONT)
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 16
    each.end()


@WAYS
def test_frames_wait_while_no_daemon_is_there(daemon: RestartedDaemon, camera: Start, way: str):
    """The camera's own copies of frames, and the end, outlive the daemon; a full ring is told in time."""
    daemon.start(ring_frames=16)
    each = opened(camera(), daemon, way, spec="-", stream="cam")
    each.good("append", 0, 7, "-", "-", PATIENCE_MS)
    daemon.kill()
    each.good("append", 7, 9, "-", "-", PATIENCE_MS)
    assert each.do("append", 16, 100, "-", "-", 50)["code"] == "timed_out"
    for timeout_ms in (50, 0, -1, -(2**31)):
        assert each.do("flush", timeout_ms)["code"] == "timed_out"
    taken = each.good("progress")["next"]
    assert each.do("finish", 50)["code"] == "timed_out"
    daemon.start(ring_frames=16)
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == taken
    each.end()
    assert_all_there(daemon, taken)


@pytest.mark.parametrize("dies_at", ["log.before_append", "shard.before_rename"])
def test_a_daemon_that_dies_while_it_seals(daemon: RestartedDaemon, camera: Start, dies_at: str):
    daemon.start()
    each = opened(camera(), daemon)
    each.good("append", 0, 21, "-", "-", PATIENCE_MS)
    each.good("flush", PATIENCE_MS)
    daemon.kill()
    daemon.start(dies_at=dies_at)
    each.ask("finish", PATIENCE_MS)
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    assert each.answer()["frames_durable"] == 21
    each.end()
    assert_all_there(daemon, 21)


@WAYS
def test_a_camera_that_does_nothing_stays_and_a_paused_daemon_is_waited_for(
    daemon: RestartedDaemon, camera: Start, way: str
):
    daemon.start(session_timeout_ms=400)
    each = opened(camera(), daemon, way)
    each.good("append", 0, 5, "-", "-", PATIENCE_MS)
    threading.Event().wait(1.0)  # more than the session timeout: heartbeats keep it
    each.good("append", 5, 5, "-", "-", PATIENCE_MS)
    each.good("flush", PATIENCE_MS)
    assert each.good("progress")["reconnects"] == 0
    daemon.signal(signal.SIGSTOP)
    each.good("append", 10, 5, "-", "-", PATIENCE_MS)
    threading.Event().wait(1.0)  # both sides give the connection up
    daemon.signal(signal.SIGCONT)
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 15
    assert each.good("progress")["reconnects"] >= 1
    each.end()
    assert_all_there(daemon, 15)


def test_another_camera_goes_on_for_one_that_was_killed(daemon: RestartedDaemon, camera: Start):
    daemon.start()
    first = opened(camera(), daemon)
    first.good("append", 0, 10, "-", "-", PATIENCE_MS)
    first.good("flush", PATIENCE_MS)
    first.process.kill()
    second = camera()
    assert second.connect(daemon.endpoint)["done"] == 0
    wait_for(
        lambda: second.do("open", "a", "-", "-", 1, PATIENCE_MS)["done"] == 0, "the lease of the first to end"
    )
    assert second.good("progress")["next"] == 10
    second.good("append", 10, 10, "-", "-", PATIENCE_MS)
    assert second.good("finish", PATIENCE_MS)["frames_durable"] == 20
    # the same connection has the next one
    second.good("open", "b", PLAIN, "-", 0, PATIENCE_MS)
    second.good("append", 0, 5, "-", "-", PATIENCE_MS)
    assert second.good("finish", PATIENCE_MS)["frames_durable"] == 5
    second.end()
    assert_all_there(daemon, 20)
    assert_all_there(daemon, 5, "b")


@WAYS
def test_a_ring_that_is_full_drops_the_newest(daemon: RestartedDaemon, camera: Start, way: str):
    """More of them than have descriptors: the rest are numbered, and told as not held."""
    frames, slots = 2500, 16
    daemon.start(ring_frames=slots, overload="drop", session_timeout_ms=60_000)
    each = opened(camera(), daemon, way, spec="-", stream="cam")
    daemon.signal(signal.SIGSTOP)
    said = each.do("append", 0, frames, "-", "-", PATIENCE_MS)
    daemon.signal(signal.SIGCONT)
    assert (said["done"], said["dropped"]) == (1, frames - slots)
    receipt = each.good("finish", PATIENCE_MS)
    assert (receipt["frames_received"], receipt["frames_stored"]) == (frames, slots)
    assert receipt["frames_dropped"] >= 1024
    each.end()
    table = frame_table(daemon.path())
    known = sorted(table["frame_id"][table["frame_id"] >= 0].tolist())
    assert known == list(range(slots + receipt["frames_dropped"]))
    np.testing.assert_array_equal(daemon.stored()[slots - 1], drawn(slots - 1))


def test_a_policy_to_fail(daemon: RestartedDaemon, camera: Start):
    daemon.start(ring_frames=16, overload="fail", session_timeout_ms=60_000)
    each = opened(camera(), daemon, spec="-", stream="cam")
    daemon.signal(signal.SIGSTOP)
    assert each.do("append", 0, 40, "-", "-", PATIENCE_MS)["code"] == "overload"
    assert each.do("append", 40, 1, "-", "-", PATIENCE_MS)["code"] == "overload"
    daemon.signal(signal.SIGCONT)
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 16
    each.end()


def test_several_images_of_different_sizes(daemon: RestartedDaemon, camera: Start):
    small = array_spec(count=6, shape=(16, 48)).model_dump(mode="json")
    spec = {
        "array": array_spec(count=6).model_dump(mode="json"),
        "images": ["big", {"name": "small", "array": small}],
    }
    daemon.start()
    each = opened(camera(), daemon, spec=json.dumps(spec))
    assert each.do("append", 0, 1, "-", "-", 0)["code"] == "frame_index"
    assert each.do("append", 0, 1, 99999, "-", 0)["code"] == "unknown_image"
    for image in (0, 1):
        each.good("append", 0, 6, image, "-", PATIENCE_MS)
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 12
    each.end()
    for image, shape in enumerate(((32, 48), (16, 48))):
        pixels = zarr.open_array(daemon.path() / f"{image}/0", mode="r")[:]
        np.testing.assert_array_equal(pixels, [drawn(i, shape) for i in range(6)])


def test_errors_are_the_daemons(daemon: RestartedDaemon, camera: Start):
    daemon.start()
    each = opened(camera(), daemon)
    assert each.do("open", "b", PLAIN, "-", 0, 0)["code"] == "closed"
    each.good("append", 0, 1, "-", "-", PATIENCE_MS)
    assert each.do("append", 1, 1, 0, '{"x":1}', PATIENCE_MS)["code"] == "metadata"
    each.good("finish", PATIENCE_MS)

    def refused(name: str, spec: str = PLAIN, stream: str = "-", reopen: int = 0) -> tuple[str, str]:
        said = each.do("open", name, spec, stream, reopen, PATIENCE_MS)
        assert said["message"]
        return said["code"], said["expected"]

    assert refused("a")[0] == "output_exists"
    assert refused("../b")[0] == "invalid_name"
    assert refused("b", "-", "nobody")[0] == "unknown_stream"
    assert refused("b", '{"dtype":"text"}')[0] == "spec"
    assert refused("b", '{"dtype":', "-")[0] == "spec"
    assert refused("b", "-", "-", 0)[0] == "spec"
    assert refused("nothing", "-", "-", 1)[0] == "resume"
    colours = array_spec().model_dump(mode="json")
    colours["dimensions"].insert(1, {"name": "c", "count": 3, "chunk_size": 1})
    assert refused("c", json.dumps({**colours, "interleaved": True}))[0] == "spec"
    # none of them ended the connection
    each.good("open", "d", json.dumps(array_spec(count=2).model_dump(mode="json")), "-", 0, PATIENCE_MS)
    assert each.do("append", 0, 3, "-", "-", PATIENCE_MS)["code"] == "frame_index"
    assert each.good("finish", PATIENCE_MS)["frames_durable"] == 2
    each.end()


def test_a_daemon_that_stops_leaves_a_receipt(daemon: RestartedDaemon, camera: Start):
    daemon.start()
    each = opened(camera(), daemon)
    each.good("append", 0, 9, "-", "-", PATIENCE_MS)
    each.good("flush", PATIENCE_MS)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    wait_for(lambda: each.do("append", 9, 1, "-", "-", PATIENCE_MS)["done"] < 0, "the end")
    said = each.do("finish", PATIENCE_MS)
    assert said["code"] == "session_lost"
    assert said["is_known"]
    each.end()
    assert len(daemon.stored()) == said["frames_stored"] >= 9


def test_no_daemon_and_no_endpoint(folder: Path, camera: Start):
    each = camera()
    assert each.connect(f"ipc://{folder}/nobody.sock", timeout_ms=50)["code"] == "session_lost"
    assert each.connect("tcp://127.0.0.1:9", timeout_ms=50)["code"] == "session_lost"
    assert each.connect("udp://127.0.0.1:9")["code"] == "config"
    assert each.connect("tcp://no port")["code"] == "config"
    each.end()


def test_a_daemon_that_does_not_come_back_is_given_up(daemon: RestartedDaemon, camera: Start):
    daemon.start()
    each = camera()
    assert each.connect(daemon.endpoint, reconnect_ms=200)["done"] == 0
    each.good("open", "a", PLAIN, "-", 0, PATIENCE_MS)
    each.good("append", 0, 1, "-", "-", PATIENCE_MS)
    daemon.kill()
    said = each.do("finish", PATIENCE_MS)
    assert (said["code"], said["is_known"]) == ("session_lost", 0)
    assert each.do("open", "b", PLAIN, "-", 0, PATIENCE_MS)["code"] == "session_lost"
    each.end()


def test_keys(folder: Path, camera: Start):
    lab = Lab(folder / "keys")
    listed, unlisted = lab.make("cam"), lab.make("stranger", listed=False)
    (folder / "data").mkdir()
    config = write_config(folder, folder / "data")
    text = config.read_text(encoding="utf-8").replace(
        '["ipc://./in.sock"]',
        f'["tcp://127.0.0.1:*"]\n  curve: {{secret_key: {lab.rig_secret}, clients: {lab.clients}}}',
    )
    config.write_text(text, encoding="utf-8")
    each = camera()
    with serving(config) as daemon:

        def tried(secret: Path | str, public: Path | str, timeout_ms: int = 60_000) -> str:
            said = each.connect(daemon.endpoint, "message", timeout_ms, keys=(secret, public))
            return said.get("code", "")

        assert tried(unlisted.secret_key, lab.rig) == "access"
        assert tried("-", "-") == "access"
        assert tried(listed.secret_key, lab.make("other").secret_key) == "access"
        assert tried(lab.rig, lab.rig) == "config"
        assert tried(folder / "none", lab.rig) == "config"
        assert tried(listed.secret_key, lab.rig) == ""
        each.good("open", "a", PLAIN, "-", 0, PATIENCE_MS)
        each.good("append", 0, 6, "-", "-", PATIENCE_MS)
        assert each.good("finish", PATIENCE_MS)["frames_durable"] == 6
        each.end()
    np.testing.assert_array_equal(stored(folder / "data/a.ome.zarr")[5], drawn(5))


@pytest.fixture
def rig(folder: Path) -> Iterator[DaemonProcess]:
    (folder / "data").mkdir()
    with serving(write_config(folder, folder / "data")) as daemon:
        yield daemon


def test_examples_in_c_cpp_and_python(rig: DaemonProcess, folder: Path, tmp_path: Path):
    need_compiler()
    examples, source = CLIENT / "examples", CLIENT / "shardwright.c"
    compile_c("-O2", examples / "record.c", source, "-o", tmp_path / "in-c")
    compile_c("-O2", "-c", source, "-o", tmp_path / "client.o")
    compile_c(
        examples / "record.cpp",
        tmp_path / "client.o",
        "-o",
        tmp_path / "in-cpp",
        compiler="g++",
        standard="c++17",
    )
    compile_c("-O2", "-shared", "-fPIC", source, "-o", tmp_path / "libshardwright.so")
    commands: dict[str, list[Any]] = {
        "c": [tmp_path / "in-c", rig.endpoint, "c"],
        "cpp": [tmp_path / "in-cpp", rig.endpoint, "cpp", "cam"],
        "py": [
            sys.executable,
            "-I",
            examples / "record.py",
            tmp_path / "libshardwright.so",
            rig.endpoint,
            "py",
            "cam",
        ],
    }
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        path = folder / "data" / f"{name}.ome.zarr"
        assert (done.stdout, done.stderr) == (f"{path}: 20 frames durable\n", "")
        pixels = stored(path)
        assert len(pixels) == 20
        assert all((frame == i).all() for i, frame in enumerate(pixels))
        again = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert again.returncode == 1
        assert again.stderr.startswith("output_exists: ")
    assert by_frame_id(folder / "data/c.ome.zarr")["laser_mw"].tolist() == [1.5 * i for i in range(20)]


def test_the_distributions_have_it(tmp_path: Path):
    with zipfile.ZipFile(built_wheel(tmp_path)) as wheel:
        names = set(wheel.namelist())
    for file in (
        "shardwright.h",
        "shardwright.c",
        "examples/record.c",
        "examples/record.cpp",
        "examples/record.py",
    ):
        assert f"shardwright/wire/c/{file}" in names
