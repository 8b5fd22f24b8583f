"""A stream that ends as declared, and skips places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.client import send_queue
from shardwright.model import errors
from shardwright.wire.controls import Finish, Welcome

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
WAYS = ["shm", "message"]


def frame(number: int) -> np.ndarray:
    return np.full((8, 12), number + 1, np.uint16)


def values(stream: sw.Stream) -> list[int]:
    found: list[int] = zarr.open_array(Path(stream.path) / "0", mode="r")[:, 0, 0].tolist()
    return found


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("count", [8, None])
def test_places_are_skipped_and_the_extent_is_declared(start, spec_of, transport, count):
    daemon = start()
    with sw.connect(daemon.ipc, transport=transport) as connection:
        stream = connection.acquire("a", spec_of(count))
        stream.append(frame(0))
        stream.skip(2)
        stream.append(frame(3))
        assert stream.frames == 4
        stream.skip()
        receipt = stream.close(extent="declared")
    assert values(stream) == [1, 0, 0, 4, 0, *[0] * (3 if count else 0)]
    assert receipt is not None
    assert (receipt.places_skipped, receipt.frames_stored) == (3, 2)
    assert receipt.frames_missing == (3 if count else 0)


def test_more_than_may_be_on_their_way(start, spec_of, monkeypatch):
    monkeypatch.setattr(send_queue, "MAX_PIXELLESS_FRAMES", 16)
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        stream.skip(100)
        stream.append(frame(100))
    assert values(stream) == [*[0] * 100, 101]
    assert stream.receipt.places_skipped == 100, "none is only numbered, which would count as lost"


def test_a_daemon_of_an_earlier_release_refuses_both(start, spec_of, monkeypatch):
    whole = Welcome.to_body
    monkeypatch.setattr(Welcome, "to_body", lambda self: whole(replace(self, declares=False)))
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of(8)) as stream:
        stream.append(frame(0))
        with pytest.raises(errors.VersionError, match="earlier release"):
            stream.skip()
        with pytest.raises(errors.VersionError, match="earlier release"):
            stream.close(extent="declared")
        stream.append(frame(1))
    assert values(stream) == [1, 2]


def test_an_extent_that_nobody_knows_is_a_protocol_error():
    assert Finish.from_body({"frames": 1}) == Finish(1, 0, "frames")
    assert Finish.from_body(Finish(1, 2, "declared").to_body()) == Finish(1, 2, "declared")
    with pytest.raises(errors.ProtocolError, match="extent"):
        Finish.from_body({"frames": 1, "extent": "all"})


@pytest.mark.parametrize("reopen", [False, True])
def test_an_unfinished_store_in_the_way_is_named(start, spec_of, reopen):
    daemon = start()
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec_of()) as stream:
        stream.append(frame(0))
        kind = errors.LockedError if reopen else errors.OutputExistsError
        with pytest.raises(kind) as caught:
            connection.acquire("a", None if reopen else spec_of(), reopen=reopen)
        if not reopen:
            assert "an acquisition that is unfinished" in str(caught.value)
            assert "reopen=True" in str(caught.value)
