"""Images that are added to an acquisition of the daemon."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.harness.daemon import DaemonProcess
from tests.harness.daemon_config import write_config

import shardwright as sw
from shardwright.model import errors
from shardwright.read.verify_store import verify_store
from shardwright.wire.controls import MAX_UPDATES, AddImage, Opened, Updated, Welcome
from shardwright.wire.messages import Kind, decode_control

WAYS = ["shm", "message"]
pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")


def images_of(spec: sw.ArraySpec) -> sw.AcquisitionSpec:
    return sw.AcquisitionSpec(array=spec, images=("overview",))


def first_pixels(stream: sw.Stream, path: str) -> list[int]:
    found: list[int] = zarr.open_array(Path(stream.path) / path, mode="r")[:, 0, 0].tolist()
    return found


def frame(number: int) -> np.ndarray:
    return np.full((8, 12), number, np.uint16)


@pytest.mark.parametrize("transport", WAYS)
def test_frames_of_an_image_that_came_later(start, transport, spec_of):
    daemon = start()
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", images_of(spec_of())) as stream,
    ):
        stream.append(frame(1), image="overview")
        stream.add_image("cell", path="cells/1", attributes={"score": 0.9})
        stream.add_image("cell", path="cells/1", attributes={"score": 0.9})
        for number in range(2, 7):
            stream.append(frame(number), image="cell")
        with stream.claim(image="cell") as pixels:
            pixels[:] = 7
        stream.append(frame(8), image="overview")
        with pytest.raises(errors.SpecError, match="another image 'cell' already"):
            stream.add_image("cell")
        with pytest.raises(errors.SpecError, match="would have one folder"):
            stream.add_image("other", path="0")
        with pytest.raises(errors.BudgetError, match="bytes of a slot for any frame"):
            stream.add_image("large", array=spec_of(shape=(80, 90)))
        assert stream.images.names == ("overview", "cell")
    assert (first_pixels(stream, "0/0"), first_pixels(stream, "cells/1/0")) == ([1, 8], [2, 3, 4, 5, 6, 7])
    assert verify_store(Path(stream.path)).ok
    assert daemon.server.snapshot()["memory"]["used_bytes"] > 0


def test_it_takes_memory_of_the_budget(start, spec_of):
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images_of(spec_of())) as stream:
        before = daemon.server.snapshot()["memory"]["used_bytes"]
        stream.add_image("cell")
        assert daemon.server.snapshot()["memory"]["used_bytes"] > before
        stream.append(frame(1), image="cell")


def test_a_budget_that_is_used_up_refuses_it(start, double, spec_of):
    """The double is told the room; the acquisition refuses by it, as its own test shows."""
    daemon = start(doubled=double)
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images_of(spec_of())) as stream:
        stream.add_image("b")
    (_, facts), *_ = daemon.acquisitions[0].metadata
    budget = daemon.server.snapshot()["memory"]["budget_bytes"]
    assert 0 < facts["room_bytes"] < budget


def test_an_image_with_a_preview(start, spec_of, wait):
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images_of(spec_of())) as stream:
        stream.add_image("cell")
        (session,) = daemon.server._sessions
        session.preview.ask()
        stream.append(frame(5), image="cell")
        stream.flush()
        assert wait(session.preview.ask).image == "cell"


def test_more_frames_are_expected(start, spec_of):
    daemon = start()
    spec = spec_of()
    dimensions = (spec.dimensions[0].model_copy(update={"count": 3}), *spec.dimensions[1:])
    spec = spec.model_copy(update={"dimensions": dimensions})
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images_of(spec)) as stream:
        (session,) = daemon.server._sessions
        assert session.frames_expected == 3
        stream.add_image("cell")
        assert session.frames_expected == 6
        stream.append(frame(5), image="cell")


def test_many_threads_add_images_and_send_frames_of_them(start, spec_of):
    daemon = start()
    names = [f"cell {number}" for number in range(24)]
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images_of(spec_of())) as stream:

        def acquire(number: int) -> None:
            stream.add_image(names[number], path=f"at{number}")
            for t in range(3):
                stream.append(frame(10 * number + t + 1), image=names[number], index=t)

        threads = [threading.Thread(target=acquire, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(24):
        assert first_pixels(stream, f"at{number}/0") == [10 * number + t for t in (1, 2, 3)]


def leave_with_an_image(client: Any, spec: sw.AcquisitionSpec, image: dict[str, Any]) -> None:
    """A client that adds one, and is gone once that is there."""
    counter, _ = client.open("a", spec)
    client.send(counter.control(Kind.ADD_IMAGE, AddImage(0, 1, image).to_body()))
    assert Updated.from_body(decode_control(client.receive()[1][0])).error is None
    client.close()


def test_the_next_client_knows_them(start, raw, spec_of):
    daemon = start()
    spec = images_of(spec_of())
    leave_with_an_image(raw(daemon.ipc), spec, {"name": "cell", "path": "c"})
    daemon.event("acquisition_detached")
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec, reopen=True) as stream:
        assert stream.images.names == ("overview", "cell")
        with pytest.raises(errors.FrameIndexError, match="after a reopen"):
            stream.append(frame(2), image="cell")
        stream.append(frame(2), image="cell", index=0)
        stream.add_image("third")
        stream.append(frame(3), image="third")  # which nobody else can have sent frames of
    assert (first_pixels(stream, "c/0"), first_pixels(stream, "2/0")) == ([2], [3])


def test_a_call_that_gave_up_does_not_move_the_numbers_of_the_next_ones(start, spec_of):
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images_of(spec_of())) as stream:
        for name in ("b", "c"):
            with pytest.raises(errors.TimedOutError):
                stream.add_image(name, path=name, timeout_s=0)
        stream.add_image("d", path="d")
        for number, name in enumerate(("d", "c", "b")):
            stream.add_image(name, path=name)
            stream.append(frame(number + 1), image=name)
    assert [first_pixels(stream, f"{name}/0") for name in "dcb"] == [[1], [2], [3]]


def test_an_earlier_daemon_is_not_asked(start, spec_of, monkeypatch):
    told = Welcome.to_body
    left_out = "adds_images"
    monkeypatch.setattr(
        Welcome, "to_body", lambda self: {k: v for k, v in told(self).items() if k != left_out}
    )
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", images_of(spec_of())) as stream:
        with pytest.raises(errors.VersionError, match="earlier release"):
            stream.add_image("b")
        stream.append(frame(1), image="overview")
    assert first_pixels(stream, "0/0") == [1]


def test_an_earlier_client_reads_what_the_daemon_says_of_an_acquisition_with_more_images(
    start, raw, spec_of, monkeypatch
):
    """It knows nothing of ``added_images``, and goes on with the images that were declared."""
    daemon = start()
    spec = images_of(spec_of())
    leave_with_an_image(raw(daemon.ipc), spec, {"name": "b"})
    daemon.event("acquisition_detached")
    read = Opened.from_body
    known = {name for name in Opened.__dataclass_fields__ if name != "added_images"}
    monkeypatch.setattr(
        Opened, "from_body", lambda body: read({key: body[key] for key in body.keys() & known})
    )
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec, reopen=True) as stream:
        assert stream.images == spec
        stream.append(frame(2), image="overview", index=0)
    assert first_pixels(stream, "0/0") == [2]


@pytest.mark.parametrize(
    ("image", "code"),
    [
        ({"name": "b"}, None),
        ({"name": "overview"}, None),
        ({"name": "overview", "path": "x"}, "spec"),
        ({"name": ""}, "spec"),
        ({"name": "b", "path": "../x"}, "spec"),
        ({"name": "b", "more": 1}, "spec"),
        ({"name": "b", "array": {"dtype": "uint16"}}, "spec"),
        ({}, "spec"),
    ],
)
def test_the_daemon_checks_what_a_client_asks(start, raw, spec_of, image, code):
    daemon = start()
    client = raw(daemon.ipc)
    counter, _ = client.open("a", images_of(spec_of()))
    client.send(counter.control(Kind.ADD_IMAGE, AddImage(3, 1, image).to_body()))
    header, parts = client.receive()
    answer = Updated.from_body(decode_control(parts[0]))
    assert (header.kind, answer.request) == (Kind.UPDATED, 3)
    assert (answer.error and answer.error.code) == code
    if code is None:
        assert answer.images == (("b",) if image["name"] == "b" else ())


@pytest.mark.parametrize("body", [{}, {"request": 0, "known": 1}, {"request": 0, "known": -1, "image": {}}])
def test_what_is_no_image_ends_the_session(start, raw, double, spec_of, body):
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, _ = client.open("a", images_of(spec_of()))
    client.send(counter.control(Kind.ADD_IMAGE, body))
    _, facts = client.receive_error()
    assert (facts["code"], facts["fatal"]) == ("protocol", True)


def test_a_flood_of_images_does_not_end_the_session(start, raw, double, spec_of, monkeypatch):
    monkeypatch.setattr(double, "take_updates", lambda _: [])
    daemon = start(doubled=double)
    client = raw(daemon.ipc)
    counter, _ = client.open("a", images_of(spec_of()))
    for request in range(MAX_UPDATES + 1):
        client.send(counter.control(Kind.ADD_IMAGE, AddImage(request, 1, {"name": f"b{request}"}).to_body()))
    header, parts = client.receive()
    answer = Updated.from_body(decode_control(parts[0]))
    assert (header.kind, answer.request, answer.error.code) == (Kind.UPDATED, MAX_UPDATES, "overload")


@pytest.mark.parametrize(
    "answer",
    [
        Updated(0, None, ("b", "b")),
        Updated(0, None, ({"name": "b", "path": "/x"},)),
        Updated(0, None, ({"name": "b", "array": {"dtype": "uint8"}},)),
    ],
)
def test_a_daemon_that_answers_nonsense_is_not_believed(start, spec_of, monkeypatch, answer):
    daemon = start()
    body = answer.to_body()
    monkeypatch.setattr(Updated, "to_body", lambda self: body)
    connection = sw.connect(daemon.ipc)
    stream = connection.acquire("a", images_of(spec_of()))
    for fails in (lambda: stream.add_image("b"), connection.close):
        with pytest.raises(errors.ProtocolError):
            fails()


def test_an_image_waits_for_a_daemon_that_was_killed(tmp_path, spec_of):
    """Asked for while it hangs, answered by the next one; the one before is there."""
    (tmp_path / "data").mkdir()
    config = write_config(tmp_path, tmp_path / "data")
    with contextlib.ExitStack() as daemons:
        daemon = daemons.enter_context(DaemonProcess(config))
        assert daemon.ready
        connection = daemons.enter_context(sw.connect(f"ipc://{tmp_path}/in.sock"))
        with connection.acquire("a", images_of(spec_of())) as stream:
            stream.add_image("b")
            stream.append(frame(1), image="b")
            daemon.signal(signal.SIGSTOP)
            asked = threading.Thread(target=stream.add_image, args=("c",))
            asked.start()
            daemon.kill()
            again = daemons.enter_context(DaemonProcess(config))
            assert again.ready
            asked.join()
            stream.append(frame(2), image="c")
            stream.append(frame(3), image="b")
    assert (first_pixels(stream, "1/0"), first_pixels(stream, "2/0")) == ([1, 3], [2])
    assert stream.reconnects == 1
