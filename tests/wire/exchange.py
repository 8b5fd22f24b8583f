"""The exchange of PROTOCOL.md: one acquisition of one frame, made by the real code, as text."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

import numpy as np
from tests.harness.ack_ranges import encode_ranges

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ClosedError
from shardwright.model.receipt import Receipt
from shardwright.wire import handover
from shardwright.wire.controls import Finish, Hello, Open, Opened, Problem, Welcome
from shardwright.wire.descriptor import DESCRIPTOR
from shardwright.wire.messages import (
    BATCH_PRELUDE,
    CONNECTION,
    DTYPE_CODE,
    HEADER,
    Counter,
    Kind,
    Level,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION = 0x8123456789ABCDEF
TOKEN = "00112233445566778899aabbccddeeff"
SPEC = ArraySpec(
    dtype="uint16",
    dimensions=[
        Dimension(name="t", chunk_size=1),
        Dimension(name="y", count=2, chunk_size=2),
        Dimension(name="x", count=4, chunk_size=4),
    ],
)
PIXELS = np.arange(1, 9, dtype="<u2").reshape(2, 4)
_HEADER = (4, 2, 1, 1, 8, 8, 4, 4, 8, 8)
_DESCRIPTOR = (8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8)
_BODIES = {  # the sizes of the fields of what is no JSON, over and over
    "FRAMES": (1, 3, 4, 4, 4, *_DESCRIPTOR, PIXELS.nbytes),
    "ACK": (4, 4, 8, 8) * 3,
    "ring request": (4, 2, 2, 8, 16),
    "ring answer": (4, 2, 2, 8),
}


def exchange() -> list[tuple[str, str, list[bytes]]]:
    """Returns each message, or record of the ring's socket: from whom, its kind, its parts."""
    connection, session = (Counter(CONNECTION), Counter(CONNECTION)), (Counter(SESSION), Counter(SESSION))
    client, daemon = 0, 1
    facts = parse_acquisition(SPEC).to_json(for_client=True)
    welcome = Welcome(
        "3f0c6a52-9b1e-4b6f-8d0a-5b1f7d6f2c11",
        "/run/sw/in.sock.ring",
        1000,
        10_000,
        1 << 28,
        1 << 20,
        1024,
        "shardwright 0.3.0",
        60_000,
        updates=True,
        adds_images=True,
        flush_levels=True,
        declares=True,
        removes=True,
        instance="1" * 32,
    )
    opening = Open(0, "a", SPEC.model_dump(mode="json"), None, "message", opening="2" * 32)
    opened = Opened(
        0, "/data/a.ome.zarr", facts, "message", 8 * 16, 8, 16, None, "3" * 32, 1, 0, (), "block", "stored"
    )
    record = np.zeros(1, DESCRIPTOR)
    record["frame_id"], record["camera_ns"], record["monotonic_ns"] = (
        7,
        1_790_000_000_000_000_000,
        123_456_789,
    )
    record["exposure_time"] = 0.25
    for name in ("delta_t", "position_x", "position_y", "position_z"):
        record[name] = np.nan
    frames = session[client].message(
        Kind.FRAMES,
        [BATCH_PRELUDE.pack(DTYPE_CODE["uint16"], 2, 4, 0) + record.tobytes()],
        count=1,
        pixel_parts=1,
        payload_bytes=PIXELS.nbytes,
    )
    receipt = Receipt("/data/a.ome.zarr", 1, 1, 1, 0, 0, 0, 16, 52, 1)
    acks = encode_ranges([(level, 0, 0) for level in Level])
    left = Problem(ErrorText(ClosedError, "the client leaves"), fatal=True)
    messages = [
        (client, Kind.HELLO, connection[client].control(Kind.HELLO, Hello("example", "rig", 1).to_body())),
        (daemon, Kind.WELCOME, connection[daemon].control(Kind.WELCOME, welcome.to_body())),
        (client, Kind.OPEN, connection[client].control(Kind.OPEN, opening.to_body())),
        (daemon, Kind.OPENED, session[daemon].control(Kind.OPENED, opened.to_body())),
        (client, Kind.FRAMES, [*frames, PIXELS.tobytes()]),
        (daemon, Kind.ACK, session[daemon].message(Kind.ACK, [acks], count=3)),
        (client, Kind.HEARTBEAT, connection[client].control(Kind.HEARTBEAT)),
        (client, Kind.FINISH, session[client].control(Kind.FINISH, Finish(1).to_body())),
        (daemon, Kind.RECEIPT, session[daemon].control(Kind.RECEIPT, {"receipt": receipt.to_dict()})),
        (client, Kind.ERROR, connection[client].control(Kind.ERROR, left.to_body())),
    ]
    records = [
        ("client", "ring request", [handover.encode_request(SESSION, TOKEN)]),
        ("daemon", "ring answer", [handover.encode_answer(handover.GIVEN, 8 * 16)]),
    ]
    return [*((("client", "daemon")[who], kind.name, parts) for who, kind, parts in messages), *records]


def _fields(data: bytes, sizes: tuple[int, ...]) -> Iterator[str]:
    for size in sizes:
        yield data[:size].hex()
        data = data[size:]
    assert not data, "every byte is in a field"


def as_text() -> str:
    """Returns the block of PROTOCOL.md, without its fences."""
    lines = []
    for who, kind, parts in exchange():
        lines.append(f"{who}  {kind}")
        head, rest = (parts[0], parts[1:]) if kind in Kind.__members__ else (b"", parts)
        words = list(_fields(head, _HEADER)) if head else []
        data = b"".join(rest)
        if kind in _BODIES:
            words += _fields(data, _BODIES[kind])
        lines += ["    " + line for line in textwrap.wrap(" ".join(words), 104)]
        if kind not in _BODIES and data:
            line = ""
            for piece in re.findall(r"[^,]*,|[^,]+", data.decode()):  # lines are cut behind commas
                if len(line + piece) > 104:
                    lines.append("    " + line)
                    line = ""
                line += piece
            lines.append("    " + line)
    return "\n".join(lines) + "\n"


def from_text(text: str) -> list[tuple[str, str, list[bytes]]]:
    """Reads the block again: the same messages."""
    found = []
    for who, kind, body in re.findall(r"(?m)^(client|daemon)  (.+)\n((?:    .+\n)*)", text):
        lines = [line[4:] for line in body.splitlines()]
        json_at = next((i for i, line in enumerate(lines) if line.startswith("{")), len(lines))
        data = bytes.fromhex("".join(lines[:json_at])) + "".join(lines[json_at:]).encode()
        if kind not in Kind.__members__:
            found.append((who, kind, [data]))
            continue
        head, rest = data[: HEADER.size], data[HEADER.size :]
        *_, parts, body_bytes, payload_bytes = HEADER.unpack(head)
        cut = [rest[:body_bytes], rest[body_bytes : body_bytes + payload_bytes]][:parts]
        assert sum(map(len, cut)) == len(rest), kind
        found.append((who, kind, [head, *cut]))
    return found
