"""What an older client says makes the same store, what an older daemon answers is still understood: byte for
byte as it was recorded."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zmq
from tests.harness.ack_ranges import decode_ranges
from tests.harness.daemon import DaemonProcess
from tests.properties.readers import with_zarr_python

from shardwright.daemon.control_protocol import decode_reply, decode_request
from shardwright.model.errors import ProtocolError
from shardwright.wire import controls, handover, messages
from shardwright.wire.messages import Kind

from .states import CONVERSATION_FRAMES, all_pixels

if TYPE_CHECKING:
    from pathlib import Path

PARSERS = {
    Kind.HELLO: controls.Hello,
    Kind.WELCOME: controls.Welcome,
    Kind.OPEN: controls.Open,
    Kind.OPENED: controls.Opened,
    Kind.FINISH: controls.Finish,
    Kind.UPDATE: controls.Update,
    Kind.UPDATED: controls.Updated,
    Kind.ADD_IMAGE: controls.AddImage,
    Kind.ERROR: controls.Problem,
}
ANSWERED = {Kind.HELLO: Kind.WELCOME, Kind.OPEN: Kind.OPENED, Kind.FINISH: Kind.RECEIPT}


def recorded(release: Path) -> list[tuple[str, list[bytes]]]:
    lines = map(json.loads, (release / "conversation.jsonl").read_text().splitlines())
    return [(line["from"], [base64.b64decode(part) for part in line["parts"]]) for line in lines]


def test_every_message_is_understood(release):
    kinds = set()
    for _, (head, *parts) in recorded(release):
        header = messages.decode_header(head)
        messages.check_parts(header, [len(part) for part in parts])
        kinds.add(header.kind)
        if header.kind is Kind.FRAMES:
            assert messages.decode_batch(header, parts[0]).descriptors.size == header.count
        elif header.kind is Kind.ACK:
            assert decode_ranges(parts[0])
        elif header.kind in PARSERS:
            PARSERS[header.kind].from_body(messages.decode_control(parts[0]))
    later = {Kind.ADD_IMAGE, Kind.FLUSH_TO, Kind.VISIBLE}
    later |= {Kind.UPDATE, Kind.UPDATED} if release.name in ("0.1.0", "0.2.0") else set()
    assert kinds == set(Kind) - later, "the recording has every kind of message"


def test_a_recorded_client_makes_its_store(release, config, place):
    """Everything as it was sent, but for the session's token, which the daemon gives."""
    (place / "data").mkdir()
    session = 0
    with DaemonProcess(config) as daemon, zmq.Context() as context, context.socket(zmq.DEALER) as link:
        daemon.wait_for("ready")
        link.linger, link.rcvtimeo = 0, 60_000
        link.connect(f"ipc://{place}/in.sock")
        for head, *parts in (message for speaker, message in recorded(release) if speaker == "client"):
            header = messages.decode_header(head)
            link.send_multipart(
                [head[:8] + struct.pack("<Q", session) + head[16:] if header.session else head, *parts]
            )
            if header.kind in ANSWERED:
                answer, *body = receive(link, ANSWERED[header.kind])
                session = messages.decode_header(answer).session if header.kind is Kind.OPEN else session
        assert messages.decode_control(body[0])["receipt"]["frames_stored"] == CONVERSATION_FRAMES
        assert daemon.stop() == 0
    assert np.array_equal(
        with_zarr_python(place / "data/tiny.ome.zarr/0"), all_pixels("tiny", CONVERSATION_FRAMES)
    )


def receive(link: zmq.Socket[bytes], kind: Kind) -> list[bytes]:
    """The next message of this kind."""
    while True:
        parts = link.recv_multipart()
        found = messages.decode_header(parts[0]).kind
        assert found is not Kind.ERROR, parts
        if found is kind:
            return parts


def test_the_ring_is_asked_for_and_given(release):
    facts = json.loads((release / "ring.json").read_text())
    assert handover.decode_request(bytes.fromhex(facts["request"])) == (facts["session"], facts["token"])
    assert handover.decode_answer(bytes.fromhex(facts["answer"])) == facts["ring_bytes"]


def test_control_lines(release):
    status, unknown = map(json.loads, (release / "control.jsonl").read_text().splitlines())
    assert decode_request(json.dumps(status["request"]).encode())["do"] == "status"
    assert decode_reply(status["reply"].encode())["status"]["state"] == "serving"
    with pytest.raises(ProtocolError):
        decode_reply(unknown["reply"].encode())
