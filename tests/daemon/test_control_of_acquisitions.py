"""A program that is not the camera takes part in acquisitions, over the control socket of a real daemon."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import socket
import time
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess, run_cli
from tests.harness.json_process import wait_for
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.daemon.control_client import ControlClient
from shardwright.ingest.arms import MOST_ARMED
from shardwright.model import errors
from shardwright.model.names import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FRAME = np.ones((48, 80), np.uint16)
SMALL = np.ones((8, 16), np.uint8)
SPEC = parse_acquisition(
    sw.default_layout((None, 8, 16), "uint8", chunks={"t": 1}, shards={"t": 8})
).to_json()
NAMES = [f"run-{number}" for number in range(40)]


@pytest.fixture
def control(daemon: DaemonProcess) -> Iterator[ControlClient]:
    with control_of(daemon) as client:
        yield client


@pytest.fixture(scope="module")
def camera(daemon: DaemonProcess) -> Iterator[sw.Connection]:
    with sw.connect(daemon.endpoint) as connection:
        yield connection


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return iter(NAMES)


@pytest.fixture
def name(names: Iterator[str]) -> str:
    """Of an acquisition that no other test has."""
    return next(names)


def control_of(daemon: DaemonProcess) -> ControlClient:
    return ControlClient(daemon.ready["control_socket"], timeout_s=60)


def path_of(daemon: DaemonProcess, name: str) -> Path:
    return daemon.config.parent / "data" / f"{name}.ome.zarr"


def test_a_camera_takes_up_what_was_armed_for_its_stream(
    daemon: DaemonProcess, control: ControlClient, camera: sw.Connection, name: str
) -> None:
    described = control.arm(name, stream="cam0", frames_expected=12)
    path = path_of(daemon, name)
    assert (described["state"], described["uri"]) == ("armed", path.as_uri())
    (image,) = described["images"]
    assert image == {
        "name": "",
        "path": "0",
        "dtype": "uint16",
        "axes": ["t", "y", "x"],
        "shape": [None, 48, 80],
        "chunks": [4, 32, 32],
        "shards": [8, 32, 96],
        "scales": [1.0, 1.0, 1.0],
        "units": [None, None, None],
        "frame_shape": [48, 80],
        "frame_axes": ["t"],
    }
    assert not path.exists()
    assert [(one["name"], one["stream"]) for one in control.ask("status")["status"]["armed"]] == [
        (name, "cam0")
    ]
    assert f"armed          {name} for cam0" in run_cli("status", daemon.config).stdout
    watching = control.watch(name)
    assert next(watching) == control.counts(name)
    assert control.counts(name)["state"] == "armed"
    with camera.acquire(stream="cam0") as stream:
        assert stream.path == str(path)
        (listed,) = control.ask("status")["status"]["acquisitions"]
        assert listed["frames_expected"] == 12
        for _ in range(10):
            stream.append(FRAME)
        stream.flush("stored")
        assert control.flush(name)["durable"] == 10
        assert control.describe(name) == {**described, "state": "running"}
        control.set_metadata(name, {"plan": {"uid": "abc"}})
    last = list(watching)[-1]
    assert (last["state"], last["ended"], last["error"]) == ("ended", True, None)
    assert last["watermark"] == {"stored": 10, "durable": 10, "visible": 10, "images": {}}
    assert last["receipt"] == stream.receipt.to_dict()
    assert (control.counts(name), list(control.watch(name))) == (last, [last])
    assert stored(path).shape == (10, 48, 80)
    assert json.loads((path / "zarr.json").read_text())["attributes"]["plan"] == {"uid": "abc"}
    with pytest.raises(errors.UnknownAcquisitionError, match="this stream is not armed"):
        camera.acquire(stream="cam0")
    with pytest.raises(errors.UnknownAcquisitionError):
        control.describe(name)


@pytest.mark.parametrize(
    "camera_says",
    [{}, {"stream": "cam0"}, {"spec": SPEC}, {"stream": "cam0", "spec": SPEC}],
    ids=["its name", "its stream", "the spec", "both"],
)
def test_a_spec_takes_the_place_of_the_array_of_a_stream(
    daemon: DaemonProcess,
    control: ControlClient,
    camera: sw.Connection,
    name: str,
    camera_says: dict[str, Any],
) -> None:
    assert control.arm(name, stream="cam0", spec=SPEC)["images"][0]["frame_shape"] == [8, 16]
    with camera.acquire(name, **camera_says) as stream:
        with pytest.raises(errors.FrameShapeError):
            stream.append(FRAME)
        stream.append(SMALL)
    assert control.counts(name)["stream"] == "cam0"
    assert stored(path_of(daemon, name)).shape == (1, 8, 16)


def test_a_camera_that_opens_something_else_is_refused_or_has_no_part_in_it(
    daemon: DaemonProcess, control: ControlClient, camera: sw.Connection, name: str
) -> None:
    control.arm(name, spec=SPEC)
    other = parse_acquisition(sw.default_layout((None, 16, 16), "uint8")).to_json()
    with pytest.raises(errors.SpecError, match="has another array"):
        camera.acquire(name, other)
    with pytest.raises(errors.SpecError, match="another stream's; expected no stream; got 'cam0'"):
        camera.acquire(name, stream="cam0")
    with pytest.raises(errors.UnknownAcquisitionError):
        camera.acquire(stream="cam0")
    with camera.acquire(f"{name}-else", stream="cam0") as stream:
        stream.append(FRAME)
    assert control.counts(name)["state"] == "armed"
    with camera.acquire(name, SPEC) as stream:
        stream.append(SMALL)
    assert control.counts(name)["receipt"]["frames_stored"] == 1


def test_what_cannot_be_armed_is_refused_at_once(
    daemon: DaemonProcess, control: ControlClient, camera: sw.Connection, name: str
) -> None:
    path_of(daemon, f"{name}-there").mkdir()
    (path_of(daemon, f"{name}-left") / WORKSPACE).mkdir(parents=True)
    with camera.acquire(f"{name}-open", stream="cam0") as stream:
        stream.append(FRAME)
        for refused, facts, kind in (
            (f"{name}-there", {"stream": "cam0"}, errors.OutputExistsError),
            (f"{name}-left", {"stream": "cam0"}, errors.OutputExistsError),
            (f"{name}-open", {"stream": "cam0"}, errors.LockedError),
            (f"../{name}", {"stream": "cam0"}, errors.InvalidNameError),
            ("", {"stream": "cam0"}, errors.InvalidNameError),
            (name, {"stream": "cam7"}, errors.UnknownStreamError),
            (name, {}, errors.SpecError),
            (name, {"spec": {"dtype": "uint16"}}, errors.SpecError),
            (name, {"spec": {**SPEC, "array": 1}}, errors.SpecError),
            (name, {"spec": 7}, errors.ProtocolError),
            (name, {"stream": "cam0", "armed_s": -1}, errors.ProtocolError),
            (name, {"stream": "cam0", "frames_expected": -1}, errors.ProtocolError),
            (
                name,
                {"spec": parse_acquisition(sw.default_layout((None, 16384, 16384), "uint16")).to_json()},
                errors.BudgetError,
            ),
        ):
            with pytest.raises(kind) as caught:
                control.arm(refused, **facts)  # type: ignore[arg-type]
            assert type(caught.value) is kind
    assert control.ask("status")["status"]["armed"] == []


def test_the_same_again_changes_nothing_and_two_cannot_arm_one_stream(
    control: ControlClient, camera: sw.Connection, name: str
) -> None:
    first = control.arm(name, stream="cam0")
    assert control.arm(name, stream="cam0") == first
    with pytest.raises(errors.LockedError, match=f"cam0 is armed already; got {name} for cam0"):
        control.arm(f"{name}-b", stream="cam0")
    with pytest.raises(errors.LockedError, match=f"the name {name} is armed in another way"):
        control.arm(name, stream="cam0", frames_expected=7)
    with camera.acquire(stream="cam0") as stream:
        assert control.arm(name, stream="cam0") == {**first, "state": "running"}
        with pytest.raises(errors.LockedError, match="an acquisition of this name is open"):
            control.arm(name, spec=SPEC)
        control.arm(f"{name}-b", stream="cam0")  # the next one, while this one runs
        stream.append(FRAME)
    with camera.acquire(stream="cam0") as stream:
        stream.append(FRAME)
    assert control.counts(f"{name}-b")["receipt"]["frames_stored"] == 1


@pytest.mark.parametrize("way", ["time", "stop", "command"])
def test_an_acquisition_for_which_nobody_comes_is_disarmed(
    daemon: DaemonProcess, control: ControlClient, camera: sw.Connection, name: str, way: str
) -> None:
    control.arm(name, stream="cam0", armed_s=0.2 if way == "time" else None)
    watching = control.watch(name)
    assert next(watching)["state"] == "armed"
    if way == "stop":
        control.ask("stop", name=name)
    elif way == "command":
        assert run_cli("stop", name, daemon.config).stdout == f"{name} is disarmed\n"
    with pytest.raises(errors.UnknownAcquisitionError, match="no longer armed"):
        list(watching)
    reason = daemon.wait_for("acquisition_disarmed")["reason"]
    assert reason == ("no camera came within 0.2 s" if way == "time" else "stopped on request")
    for ask in (control.counts, control.describe, control.flush):
        with pytest.raises(errors.UnknownAcquisitionError):
            ask(name)
    assert not path_of(daemon, name).exists()
    with pytest.raises(errors.UnknownAcquisitionError):
        camera.acquire(stream="cam0")


def test_a_request_to_arm_says_how_long_it_is_waited_for(
    control: ControlClient, camera: sw.Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one that waits in the socket of a daemon that hangs arms nothing later."""
    with monkeypatch.context() as patch:
        real, sent = control._ask, []
        patch.setattr(control, "_ask", lambda *asked: [sent.append(asked[2]), real(*asked)][1])
        control.arm(name, stream="cam0")
    assert time.monotonic() < sent[0]["before_s"] <= time.monotonic() + 60
    control.ask("stop", name=name)
    wait_for(lambda: not control.ask("status")["status"]["armed"])
    with pytest.raises(errors.TimedOutError):
        control.ask("arm", name=name, stream="cam0", before_s=time.monotonic() - 1)
    with pytest.raises(errors.UnknownAcquisitionError):
        camera.acquire(stream="cam0")


def test_counts_by_image_are_pushed_while_frames_become_visible(
    control: ControlClient, camera: sw.Connection, name: str
) -> None:
    spec = {"array": SPEC, "images": ["left", "right"]}
    assert [image["path"] for image in control.arm(name, spec=spec)["images"]] == ["0/0", "1/0"]
    with camera.acquire(name) as stream:
        watching = control.watch(name, every_s=0.01)
        for number in range(8):
            stream.append(SMALL, image="left")
            if number < 3:
                stream.append(SMALL, image="right")
        # what is stored counts without a hole: frames of the other image may come later
        marks = (state["watermark"] for state in watching if state["watermark"])
        assert next(mark for mark in marks if mark["images"] == {"left": 8} and mark["stored"] >= 8)
        with pytest.raises(errors.VisibilityError):
            control.flush(name, "visible")
        assert control.flush(name, "stored")["stored"] == 11
        control.set_metadata(name, {"note": 1}, image="right")
        with pytest.raises(errors.UnknownImageError):
            control.set_metadata(name, {"note": 1}, image="up")
        with pytest.raises(errors.MetadataError):
            control.set_metadata(name, {"ome": {"version": "9"}})
    last = list(watching)[-1]
    assert last["watermark"]["images"] == {"left": 8, "right": 3}
    assert {image: counts["frames_stored"] for image, counts in last["receipt"]["images"].items()} == {
        "left": 8,
        "right": 3,
    }


def test_an_end_that_the_camera_did_not_ask_for_has_its_reason(
    control: ControlClient, camera: sw.Connection, name: str
) -> None:
    control.arm(name, stream="cam0")
    stream = camera.acquire(stream="cam0")
    stream.append(FRAME)
    stream.flush("stored")
    control.ask("stop", name=name)
    last = list(control.watch(name))[-1]
    with pytest.raises(errors.SessionLostError, match="stopped on request"):
        stream.close()
    assert (last["state"], last["error"]["message"]) == ("ended", "the acquisition was stopped on request")


def test_a_name_that_is_unknown_or_without_a_receipt_has_no_counts(
    daemon: DaemonProcess, control: ControlClient, name: str
) -> None:
    with sw.create(path_of(daemon, name), shape=(None, 8, 16), dtype="uint8") as writer:
        writer.append(SMALL)
        with pytest.raises(errors.UnknownAcquisitionError, match="unfinished, and nobody has it open"):
            control.counts(name)
    found = control.counts(name)  # of a program that wrote without the daemon
    assert (found["receipt"]["frames_stored"], found["ended"], found["watermark"]) == (1, True, None)
    (path_of(daemon, name) / "frames" / "zarr.json").unlink()
    for ask in (control.counts, lambda name: next(control.watch(name))):
        with pytest.raises(errors.ShardwrightError):
            ask(name)
        with pytest.raises(errors.UnknownAcquisitionError):
            ask(f"{name}-no")
        with pytest.raises(errors.InvalidNameError):
            ask("../run")


def test_final_counts_outlive_the_daemon_and_what_is_armed_does_not(config: Path) -> None:
    with DaemonProcess(config) as daemon, control_of(daemon) as control:
        with sw.connect(daemon.endpoint) as camera:
            control.arm("done", stream="cam0")
            with camera.acquire(stream="cam0") as stream:
                stream.append(FRAME)
        before = list(control.watch("done"))[-1]
        control.arm("next", stream="cam0", spec=SPEC)
        watching = control.watch("next")
        next(watching)
        daemon.kill()
        with pytest.raises(errors.SessionLostError):
            next(watching)
    with DaemonProcess(config) as daemon, control_of(daemon) as control:
        after = control.counts("done")
        assert after == {**before, "stream": None, "watermark": None}
        with pytest.raises(errors.UnknownAcquisitionError):
            control.counts("next")
        with sw.connect(daemon.endpoint) as camera:
            with pytest.raises(errors.UnknownAcquisitionError):
                camera.acquire(stream="cam0")
            control.arm("next", stream="cam0", spec=SPEC)
            with camera.acquire(stream="cam0") as stream:
                stream.append(SMALL)
        assert daemon.stop() == 0


def test_a_camera_that_named_its_stream_alone_resumes_after_the_daemon_died(config: Path) -> None:
    config.write_text(
        config.read_text().replace(', "tcp://127.0.0.1:*"', "").replace("  insecure: true\n", "")
    )
    with DaemonProcess(config) as daemon, control_of(daemon) as control:
        control.arm("resumed", stream="cam0")
        camera = sw.connect(daemon.endpoint)
        stream = camera.acquire(stream="cam0")
        stream.append(FRAME)
        stream.flush("stored")
        daemon.kill()
    with DaemonProcess(config) as daemon, control_of(daemon) as control:
        stream.append(FRAME)
        watching = control.watch("resumed")
        camera.close()
        assert list(watching)[-1]["receipt"]["frames_stored"] == 2
        assert daemon.stop() == 0
    assert stream.reconnects == 1


def test_a_drain_disarms_and_tells_each_watch_how_it_ended(config: Path) -> None:
    with DaemonProcess(config) as daemon, control_of(daemon) as control:
        camera = sw.connect(daemon.endpoint, reconnect_timeout_ms=0)
        stream = camera.acquire("open", stream="cam0")
        stream.append(FRAME)
        stream.flush("stored")
        control.arm("armed", stream="cam0")
        armed, running = control.watch("armed"), control.watch("open")
        assert [next(watch)["state"] for watch in (armed, running)] == ["armed", "running"]
        daemon.signal(signal.SIGTERM)
        with pytest.raises(errors.SessionLostError, match="the daemon is stopping"):
            list(armed)
        last = list(running)[-1]
        assert (last["ended"], last["receipt"]["frames_durable"]) == (True, 1)
        assert last["error"]["message"] == "the daemon is stopping"
        assert daemon.wait_for("acquisition_disarmed")["reason"] == "the daemon is stopping"
        assert daemon.exit_code() == 0
        with pytest.raises(errors.ShardwrightError):
            camera.close()


def test_a_configuration_that_is_read_again_leaves_it_armed(config: Path) -> None:
    with DaemonProcess(config) as daemon, control_of(daemon) as control:
        control.arm("armed", stream="cam0")
        config.write_text(config.read_text().replace("in_memory: true", "in_memory: true, low_water: 1MiB"))
        daemon.signal(signal.SIGHUP)
        assert daemon.wait_for("reloaded")["changed"] == ["output.low_water"]
        with sw.connect(daemon.endpoint) as camera, camera.acquire(stream="cam0") as stream:
            stream.append(FRAME)
        assert control.counts("armed")["receipt"]["frames_stored"] == 1
        assert daemon.stop() == 0


def test_a_flush_shows_frames_to_any_reader_where_shards_are_seen_to_grow(config: Path) -> None:
    config.write_text(config.read_text().replace("in_memory: true", "in_memory: true, live: append"))
    with (
        DaemonProcess(config) as daemon,
        control_of(daemon) as control,
        sw.connect(daemon.endpoint) as camera,
    ):
        control.arm("live", stream="cam0", spec=SPEC)
        with camera.acquire(stream="cam0") as stream:
            for step in range(1, 4):
                stream.append(SMALL)
                stream.flush("stored")
                assert control.flush("live", "visible")["visible"] == step
                assert stored(path_of(daemon, "live")).shape[0] == step
        camera.close()
        assert daemon.stop() == 0


@pytest.mark.parametrize(("name_taken", "refused"), [("increment", True), ("overwrite", False)])
def test_the_path_that_was_told_is_the_one_that_comes(config: Path, name_taken: str, refused: bool) -> None:
    config.write_text(
        config.read_text().replace("in_memory: true", f"in_memory: true, name_taken: {name_taken}")
    )
    with (
        DaemonProcess(config) as daemon,
        control_of(daemon) as control,
        sw.connect(daemon.endpoint) as camera,
    ):
        path = path_of(daemon, "again")
        for attempt in range(2):
            if attempt and refused:
                with pytest.raises(errors.OutputExistsError):
                    control.arm("again", stream="cam0")
                break
            assert control.arm("again", stream="cam0")["path"] == str(path)
            with camera.acquire(stream="cam0") as stream:
                assert stream.path == str(path)
                stream.append(FRAME)
        assert [one.name for one in path.parent.glob("*.zarr")] == ["again.ome.zarr"]
        camera.close()
        assert daemon.stop() == 0


def test_requests_for_one_acquisition_are_bounded(
    daemon: DaemonProcess, control: ControlClient, camera: sw.Connection, name: str
) -> None:
    with pytest.raises(errors.ProtocolError, match="level"):
        control.flush(name, "visibly")  # type: ignore[arg-type]
    for every_s in (0, 61, "1", True):
        with pytest.raises(errors.ProtocolError, match="every_s"):
            next(control.watch(name, every_s=every_s))  # type: ignore[arg-type]
    for number in range(MOST_ARMED):
        control.arm(f"{name}-{number}", spec=SPEC)
    with pytest.raises(errors.BudgetError, match="too many armed"):
        control.arm(name, spec=SPEC)
    for number in range(MOST_ARMED):
        control.ask("stop", name=f"{name}-{number}")
    wait_for(lambda: not control.ask("status")["status"]["armed"])


ODD = [
    *(None, True, 0, -1, 2**63, 1.5, math.nan, math.inf, "", ".", "../x", "a/b", "x" * 2000, "\0", "é\ud800"),
    *([], {}, [[[[]]]], {"a": math.nan}, {"": {"": None}}, "cam0", "odd", "visible", 1e-9, 86400),
]
FIELDS = {
    "arm": ("name", "stream", "spec", "frames_expected", "timeout_s"),
    "describe": ("name",),
    "counts": ("name",),
    "watch": ("name", "every_s"),
    "flush": ("name", "level"),
    "set_metadata": ("name", "image", "attributes"),
}


def odd_spec(random: Random) -> object:
    """A spec with one value that is another, somewhere in it."""
    spec = json.loads(json.dumps({"array": SPEC, "images": ["a", {"name": "b", "path": "B"}]}))
    within: Any = spec
    while True:
        key = random.choice(list(within) if isinstance(within, dict) else range(len(within)))
        if not isinstance(within[key], dict | list) or not within[key] or random.random() < 0.2:
            within[key] = random.choice(ODD)
            return spec
        within = within[key]


@pytest.mark.parametrize("seed", range(3))
def test_odd_values_are_answered_in_one_line_and_cost_nobody_anything(
    daemon: DaemonProcess, control: ControlClient, camera: sw.Connection, name: str, seed: int
) -> None:
    random = Random(seed)
    with camera.acquire("odd", SPEC) if not seed else contextlib.nullcontext() as stream:
        if stream is not None:
            stream.append(SMALL)
        for _ in range(100):
            do = random.choice(list(FIELDS))
            request: dict[str, Any] = {"version": 2, "do": do, "name": random.choice([name, "odd"])}
            for field in FIELDS[do]:
                if random.random() < 0.4:
                    odd = odd_spec(random) if field == "spec" else random.choice(ODD)
                    request[field] = odd
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(daemon.ready["control_socket"])
                raw.sendall(json.dumps(request).encode() + b"\n")
                with raw.makefile("rb") as replies:
                    reply = json.loads(replies.readline())
            assert reply["ok"] or reply["error"]["code"] != "internal", (request, reply)
            if do == "arm" and reply["ok"]:
                control.ask("stop", name=reply["description"]["name"])
    assert control.ask("status")["status"]["events"]["by_name"].get("control_request_failed", 0) == 0
