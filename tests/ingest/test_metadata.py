"""Metadata through the daemon: of frames, of the acquisition and of its images."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.harness.daemon import DaemonProcess
from tests.harness.daemon_config import write_config
from tests.harness.store_contents import stored

import shardwright as sw
from shardwright.model import errors
from shardwright.model.error_text import ErrorText
from shardwright.model.receipt import Receipt
from shardwright.read.verify_store import verify_store
from shardwright.wire.controls import MAX_UPDATES, Finish, Update, Updated, Welcome
from shardwright.wire.messages import Kind, decode_control

WAYS = ["shm", "message"]
pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")


def attributes(path: Path) -> dict:
    return {name: value for name, value in zarr.open_group(path, mode="r").attrs.items() if name != "ome"}


@pytest.mark.parametrize("transport", WAYS)
def test_metadata_of_frames_and_of_images(start, transport, spec_of, frames_of):
    daemon = start()
    array = spec_of().model_copy(update={"frame_json_bytes": 64, "frame_fields": ("laser",)})
    spec = sw.AcquisitionSpec(array=array, images=("left", "right"), attributes={"who": "me", "run": 1})
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec) as stream,
    ):
        stream.update_metadata({"side": "l"}, image="left")  # before its first frame
        for number, frame in enumerate(frames_of(6)):
            metadata = {"laser": number, "note": f"{number} µ"}
            stream.append(frame, image=("left", "right")[number % 2], metadata=metadata)
        stream.append_many(frames_of(2), image="left", metadata={"note": ["a", "b"], "laser": 7})
        stream.update_metadata({"run": 2, "text": "µ"})
    path = Path(stream.path)
    table = sw.frame_table(path)
    notes = [json.loads(text)["note"] for text in table["json"]]
    assert notes == [*(f"{number} µ" for number in range(6)), "a", "b"]
    assert table["laser"].tolist() == [0, 1, 2, 3, 4, 5, 7, 7]
    assert attributes(path) == {"who": "me", "run": 2, "text": "µ"}
    assert (attributes(path / "0"), attributes(path / "1")) == ({"side": "l"}, {})
    assert verify_store(path).ok


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("room", [64, 1])
def test_a_long_comment_costs_no_frame(start, transport, room, spec_of, frames_of):
    daemon = start()
    spec = spec_of(shape=(20, 30)).model_copy(update={"frame_json_bytes": room})
    frames, long = frames_of(6, (20, 30)), "µ" * 40
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec) as stream,
    ):
        stream.append(frames[0], metadata={"note": long})
        stream.append(frames[1])
        stream.append_many(frames[2:5], metadata={"note": [long, long, None]})
        with stream.claim(metadata={"note": long}) as pixels:
            pixels[:] = frames[5]
    dropped = 5 if room == 1 else 4
    assert (stream.receipt.frames_stored, stream.receipt.frame_json_dropped) == (6, dropped)
    texts = list(sw.frame_table(Path(stream.path))["json"])
    assert texts == ["", "", "", "", '{"note":null}' if room == 64 else "", ""]
    assert np.array_equal(stored(stream.path), frames)
    daemon.event("acquisition_ended")  # told behind the receipt
    assert (daemon.count("frame_json_dropped"), daemon.count("acquisition_ended")) == (1, 1)
    told = daemon.event("frame_json_dropped")
    assert (told["name"], told["sequence"], told["most_bytes"]) == ("a", 0, room)
    assert daemon.server.snapshot()["streams"]["client"]["frame_json_dropped"] == dropped


def test_a_receipt_of_an_earlier_daemon_counts_none():
    facts = Receipt("a", *[1] * 9, frame_json_dropped=2).to_dict()
    assert Receipt.from_dict(facts).frame_json_dropped == 2
    del facts["frame_json_dropped"]
    assert Receipt.from_dict(facts).frame_json_dropped == 0


def test_attributes_of_a_single_image(start, spec_of, frames_of):
    daemon = start()
    with sw.connect(daemon.ipc) as connection:
        spec = sw.AcquisitionSpec(array=spec_of(), attributes={"who": "me"})
        with connection.acquire("a", spec) as stream:
            stream.append(frames_of(1)[0])
    assert attributes(Path(stream.path)) == {"who": "me"}


def test_bad_updates_are_the_callers_errors(start, spec_of, frames_of):
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        for bad in ({"ome": 1}, {"x": float("nan")}, {"x": "y" * (300 << 10)}):
            with pytest.raises(errors.MetadataError):
                stream.update_metadata(bad)
        with pytest.raises(errors.UnknownImageError):
            stream.update_metadata({"x": 1}, image="left")
        for name in "abcdef":
            if name < "e":
                stream.update_metadata({name: "y" * (200 << 10)})
        with pytest.raises(errors.MetadataError, match="with those before"):
            stream.update_metadata({"f": "y" * (240 << 10)})
        stream.append(frames_of(1)[0])
    assert sorted(attributes(Path(stream.path))) == ["a", "b", "c", "d"]
    with pytest.raises(errors.ClosedError):
        stream.update_metadata({"x": 1})


def test_an_error_of_the_disk_is_the_callers(start, double, spec_of):
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        daemon.acquisitions[0].update_error = ErrorText(errors.StorageFullError, "no room")
        with pytest.raises(errors.StorageFullError, match="no room"):
            stream.update_metadata({"x": 1})
        daemon.acquisitions[0].update_error = None
        stream.update_metadata({"x": 2})
    assert daemon.acquisitions[0].metadata == [(None, {"x": 1}), (None, {"x": 2})]


@pytest.mark.parametrize(
    ("update", "code"),
    [
        ({"image": "left", "attributes": {"x": 1}}, "unknown_image"),
        ({"image": None, "attributes": {"ome": {}}}, "metadata"),
        ({"image": None, "attributes": {"shardwright": {"x": 1}}}, "metadata"),
        ({"image": None, "attributes": {"shardwright": {"position": {"x": "far"}}}}, "metadata"),
        ({"image": None, "attributes": {"shardwright": {"position": {"x": 1}}}}, "metadata"),  # has no unit
        ({"image": None, "attributes": {"shardwright": {"position": {"grid_row": 1}}}}, None),
        ({"image": None, "attributes": {"x": {"y": [[]] * 3}}}, None),
        ({"image": None, "attributes": {"ome": {"name": "n"}, "shardwright": {"remove": ["x"]}}}, None),
        ({"image": None, "attributes": {"ome": {"version": "0.4"}}}, "metadata"),
        ({"image": None, "attributes": {"shardwright": {"remove": ["ome"]}}}, "metadata"),
        ({"image": None, "attributes": {"shardwright": {"remove": "x"}}}, "metadata"),
        ({"image": None, "attributes": {"x": 1, "shardwright": {"remove": ["x"]}}}, "metadata"),
    ],
)
def test_the_daemon_checks_what_a_client_asks(start, raw, double, spec_of, update, code):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, _ = client.open("a", spec_of())
    client.send(counter.control(Kind.UPDATE, {"request": 3, **update}))
    header, parts = client.receive()
    answer = Updated.from_body(decode_control(parts[0]))
    assert (header.kind, answer.request) == (Kind.UPDATED, 3)
    assert (answer.error and answer.error.code) == code


@pytest.mark.parametrize("body", [{}, {"request": 0, "attributes": []}, {"request": -1, "attributes": {}}])
def test_an_update_that_is_none_ends_the_session(start, raw, double, spec_of, body):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, _ = client.open("a", spec_of())
    client.send(counter.control(Kind.UPDATE, body))
    _, facts = client.receive_error()
    assert (facts["code"], facts["fatal"]) == ("protocol", True)


def test_a_flood_of_updates_does_not_end_the_session(start, raw, double, spec_of, monkeypatch):
    monkeypatch.setattr(double, "take_updates", lambda _: [])
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, _ = client.open("a", spec_of())
    for request in range(MAX_UPDATES + 1):
        client.send(counter.control(Kind.UPDATE, Update(request, None, {}).to_body()))
    header, parts = client.receive()
    answer = Updated.from_body(decode_control(parts[0]))
    assert (header.kind, answer.request) == (Kind.UPDATED, MAX_UPDATES)
    assert (answer.error.code, answer.error.message) == ("overload", "too many updates of metadata at once")
    client.send(counter.control(Kind.FINISH, Finish(0).to_body()))
    assert client.receive()[0].kind is Kind.RECEIPT


def test_updates_from_very_many_threads_are_all_written(start, spec_of, frames_of):
    daemon = start()
    with (
        sw.connect(daemon.ipc) as connection,
        connection.acquire("a", spec_of()) as stream,
        ThreadPoolExecutor(3 * MAX_UPDATES) as callers,
    ):
        for number in range(20):  # the daemon counts these too until it has answered
            with pytest.raises(errors.TimedOutError):
                stream.update_metadata({f"given up {number}": 1}, timeout_s=0)
        updates = [{f"k{number}": number} for number in range(3 * MAX_UPDATES)]
        assert list(callers.map(stream.update_metadata, updates)) == [None] * len(updates)
        stream.append(frames_of(1)[0])
    written = attributes(Path(stream.path))
    assert {name: n for name, n in written.items() if name[0] == "k"} == {f"k{n}": n for n in range(192)}


@pytest.mark.parametrize("transport", WAYS)
def test_a_stream_removes_names_and_adds_to_ome(start, transport, spec_of, frames_of):
    daemon = start()
    spec = sw.AcquisitionSpec(array=spec_of(), images=("left", "right"), attributes={"who": "me", "draft": 1})
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec) as stream,
    ):
        stream.update_metadata({"side": "r", "dose": 1}, image="right")
        stream.update_metadata({"ome": {"name": "named"}}, image="right", remove=["dose"])
        stream.append(frames_of(1)[0], image="right")
        stream.update_metadata({"x": 1}, remove=["draft", "none"])
    path = Path(stream.path)
    assert attributes(path) == {"who": "me", "x": 1}
    assert attributes(path / "1") == {"side": "r"}
    (multiscale,) = zarr.open_group(path / "1", mode="r").attrs["ome"]["multiscales"]
    assert multiscale["name"] == "named"
    assert verify_store(path).ok
    sw.update_metadata(path, {"side": "l"}, image="right", remove=["ome.name"])
    assert attributes(path / "1") == {"side": "l"}
    (multiscale,) = zarr.open_group(path / "1", mode="r").attrs["ome"]["multiscales"]
    assert multiscale["name"] == "right"


@pytest.mark.parametrize("left_out", ["updates", "removes"])
def test_an_earlier_daemon_is_not_asked(start, double, spec_of, monkeypatch, left_out):
    told = Welcome.to_body
    monkeypatch.setattr(
        Welcome, "to_body", lambda self: {k: v for k, v in told(self).items() if k != left_out}
    )
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        for update in ({"remove": ["x"]}, {"attributes": {"ome": {"name": "n"}}}):
            with pytest.raises(errors.VersionError, match="earlier release"):
                stream.update_metadata(**update)
        if left_out == "updates":
            with pytest.raises(errors.VersionError, match="earlier release"):
                stream.update_metadata({"x": 1})
        else:
            stream.update_metadata({"x": 1})
        stream.append(np.zeros((8, 12), np.uint16))


def test_an_update_waits_for_a_daemon_that_was_killed(tmp_path, spec_of, frames_of):
    """Asked for while it hangs, answered by the next one."""
    (tmp_path / "data").mkdir()
    config = write_config(tmp_path, tmp_path / "data")
    with contextlib.ExitStack() as daemons:
        daemon = daemons.enter_context(DaemonProcess(config))
        assert daemon.ready
        connection = daemons.enter_context(sw.connect(f"ipc://{tmp_path}/in.sock"))
        with connection.acquire("a", spec_of()) as stream:
            stream.append(frames_of(1)[0])
            stream.update_metadata({"first": 1})
            daemon.signal(signal.SIGSTOP)
            asked = threading.Thread(target=stream.update_metadata, args=({"second": 2},))
            asked.start()
            daemon.kill()
            again = daemons.enter_context(DaemonProcess(config))
            assert again.ready
            asked.join()
            stream.append(frames_of(1)[0])
    assert attributes(Path(stream.path)) == {"first": 1, "second": 2}
    assert stream.reconnects == 1
