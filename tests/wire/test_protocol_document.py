"""PROTOCOL.md is enough to write a client: what it draws, lists and shows is what the code does."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq
from tests.harness.daemon import serving
from tests.harness.daemon_config import write_config
from tests.harness.json_process import ROOT, TIMEOUT_S
from tests.harness.store_contents import frame_table, stored
from tests.wire.exchange import PIXELS, SESSION, SPEC, as_text, exchange, from_text

from shardwright.array.spec import ArraySpec, Dimension
from shardwright.model import errors, receipt
from shardwright.model.errors import ProtocolError
from shardwright.wire import handover
from shardwright.wire.controls import (
    AddImage,
    Finish,
    FlushTo,
    Hello,
    Open,
    Opened,
    Problem,
    Update,
    Updated,
    Visible,
    Welcome,
    receipt_from_body,
)
from shardwright.wire.descriptor import descriptor_dtype
from shardwright.wire.messages import (
    DTYPE_CODE,
    Kind,
    Level,
    check_parts,
    decode_acks,
    decode_batch,
    decode_control,
    decode_header,
)

if TYPE_CHECKING:
    from pathlib import Path

TEXT = (ROOT / "src/shardwright/wire/PROTOCOL.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?m)^```(\w*)\n((?s:.*?))^```$", TEXT)  # of each its language and its text
TYPES = {"u64": "<u8", "i64": "<i8", "u32": "<u4", "f64": "<f8"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    (table,) = re.findall(rf"(?m)^{re.escape(heading)}\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_descriptor_is_drawn_byte_by_byte():
    (drawing,) = [block for _, block in BLOCKS if " DESCRIPTOR " in block]
    lines = drawing.splitlines()
    drawn: list[tuple[str, str, int]] = []
    for offsets, called, types in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        fields = zip(
            called.split("|")[1:-1], types.split("|")[1:-1], re.findall(r"\d+", offsets), strict=False
        )
        drawn += [(name.strip(), kind.split()[0], int(at)) for name, kind, at in fields]
    real = descriptor_dtype(further_fields=3, json_bytes=13)
    assert real.names is not None
    assert [name.partition("[")[0] for name, _, _ in drawn] == list(real.names)
    *numbers, (_, _, json_at) = drawn
    for name, kind, at in numbers:
        dtype, offset = real.fields[name.partition("[")[0]][:2]
        assert (dtype.base.str, offset) == (TYPES[kind], at), name
    assert (json_at + 8 * 3, json_at + 8 * 3 + 16) == (real.fields["json"][1], real.itemsize)
    described = [name for cell, _ in rows("| field of DESCRIPTOR | meaning |") for name in names(cell)]
    assert described == list(real.names)


def test_the_kinds_of_messages_and_levels():
    kinds = {cells[1]: int(cells[0]) for cells in rows("| kind | | who | session | body |")}
    assert kinds == {kind.name: kind.value for kind in Kind}
    assert {cells[1]: int(cells[0]) for cells in rows("| level | | |")} == {lv.name: lv.value for lv in Level}


def test_the_types_of_pixels():
    (listed,) = re.findall(r"`dtyp`: (.*?)\.\n", TEXT, re.DOTALL)
    assert {name: int(code) for code, name in re.findall(r"(\d+)\s(\w+)", listed)} == DTYPE_CODE


FULL: dict[str, tuple[Any, dict[str, Any]]] = {
    "HELLO": (Hello, {"software": "s", "host": "h", "pid": 1}),
    "WELCOME": (Welcome, from_text(as_text())[1][2][1]),
    "OPEN": (Open, {**decode_control(from_text(as_text())[2][2][1]), "stream": "cam", "frames_expected": 1}),
    "OPENED": (Opened, from_text(as_text())[3][2][1]),
    "FINISH": (Finish, {"frames": 1, "claimed": 2, "extent": "declared"}),
    "FLUSH_TO": (FlushTo, {"request": 0, "level": "visible"}),
    "VISIBLE": (Visible, {"frames": 1, "images": {"0": 1}}),
    "UPDATE": (Update, {"request": 0, "image": "a", "attributes": {}}),
    "ADD_IMAGE": (AddImage, {"request": 0, "known": 1, "image": {"name": "b"}}),
    "UPDATED": (Updated, {"request": 0, "error": {"code": "spec", "message": "m"}, "images": ["b"]}),
    "ERROR": (
        Problem,
        {
            "code": "spec",
            "message": "m",
            "expected": "e",
            "got": "g",
            "hint": "h",
            "fatal": True,
            "request": 1,
            "first": 2,
            "last": 3,
            "receipt": json.loads(from_text(as_text())[8][2][1])["receipt"],
        },
    ),
}


@pytest.mark.parametrize("kind", FULL)
def test_which_keys_may_be_missing(kind: str):
    parse, facts = FULL[kind]
    full = decode_control(facts) if isinstance(facts, bytes) else facts
    (listed,) = [
        names(cell) for name, cell in rows("| body | keys that may be missing or null |") if name == kind
    ]
    assert set(listed) <= full.keys()
    parse.from_body(full)
    for key in full:
        for other in ({**full, key: None}, {name: value for name, value in full.items() if name != key}):
            if key in listed:
                parse.from_body(other)
            else:
                with pytest.raises(ProtocolError):
                    parse.from_body(other)
    assert {name for name, _ in rows("| body | keys that may be missing or null |")} == FULL.keys()


def test_the_example_of_a_spec_and_its_keys():
    (example,) = [block for language, block in BLOCKS if language == "json"]
    spec = ArraySpec.model_validate(json.loads(example))
    assert (spec.frame_shape, spec.frame_fields, spec.frame_json_bytes) == ((2048, 2048), ("laser_mw",), 256)
    assert [d.shard_size for d in spec.dimensions] == [32, 2048, 2048]
    for model, heading in (
        (ArraySpec, "| key | | when it is missing |"),
        (Dimension, "| key of an axis | | when it is missing |"),
    ):
        listed = {name: missing for cell, _, missing in rows(heading) for name in names(cell)}
        assert listed.keys() == model.model_fields.keys()
        needed = {name for name, field in model.model_fields.items() if field.is_required()}
        assert {name for name, missing in listed.items() if missing == "an error"} == needed


def test_all_codes_of_errors():
    assert [names(cell)[0] for cell, _ in rows("| code | meaning |")] == sorted(errors._BY_CODE)


def test_the_fields_of_a_receipt():
    table = rows("| field | meaning | |")
    assert [name for cell, *_ in table for name in names(cell)] == [
        *("path", "frames_received", "frames_stored", "frames_durable", "frames_missing", "frames_duplicate"),
        *("frames_late", "frames_dropped", "frames_lost", "bytes_raw", "bytes_stored", "shards"),
        *receipt._LATER,
        "images",
    ]
    full = json.loads(from_text(as_text())[8][2][1])["receipt"]
    may_be_missing = {name for cell, _, may in table if may == "may be missing" for name in names(cell)}
    assert {*receipt.COUNTS, "path", "images"} == {*full, "images"}
    for name in full:
        other = {key: value for key, value in full.items() if key != name}
        if name not in may_be_missing:
            with pytest.raises(ProtocolError):
                receipt_from_body(other)
    receipt_from_body({name: value for name, value in full.items() if name not in may_be_missing})


def shown() -> str:
    (text,) = [block for _, block in BLOCKS if block.startswith("client  HELLO\n")]
    return text


def test_the_exchange_is_what_the_code_sends():
    assert shown() == as_text()
    assert from_text(shown()) == exchange()


def test_the_exchange_is_what_the_code_reads():
    for _, kind, parts in from_text(shown()):
        if kind in Kind.__members__:
            header = decode_header(parts[0])
            check_parts(header, [len(part) for part in parts[1:]])
            assert header.kind.name == kind
        if kind == "FRAMES":
            batch = decode_batch(header, parts[1])
            assert (batch.dtype, batch.height, batch.width) == ("uint16", 2, 4)
            assert (batch.descriptors["frame_id"][0], batch.descriptors["exposure_time"][0]) == (7, 0.25)
            np.testing.assert_array_equal(np.frombuffer(parts[2], "<u2").reshape(2, 4), PIXELS)
        elif kind == "ACK":
            assert decode_acks(parts[1])["level"].tolist() == [1, 2, 3]
        elif kind == "ring request":
            assert handover.decode_request(parts[0])[0] == SESSION
        elif kind == "ring answer":
            assert handover.decode_answer(parts[0]) == 8 * 16


def test_a_daemon_takes_the_clients_part_of_the_exchange(folder: Path):
    (folder / "data").mkdir()
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger, socket.rcvtimeo = 0, int(TIMEOUT_S * 1000)
    answers, token = {}, b""
    try:
        with serving(write_config(folder, folder / "data", session_timeout_ms=60_000)) as daemon:
            socket.connect(daemon.endpoint)
            for who, kind, parts in from_text(shown()):
                if who == "client" and kind in Kind.__members__:
                    in_session = parts[0][8:16] != bytes(8)
                    head = parts[0][:8] + token + parts[0][16:] if in_session else parts[0]
                    socket.send_multipart([head, *parts[1:]])
                while who == "daemon" and kind in Kind.__members__ and kind not in answers:
                    got = socket.recv_multipart()
                    header = decode_header(got[0])
                    answers[header.kind.name] = got
                    token = got[0][8:16] if header.kind is Kind.OPENED else token
    finally:
        socket.close()
        context.term()
    assert decode_control(answers["RECEIPT"][1])["receipt"]["frames_durable"] == 1
    np.testing.assert_array_equal(stored(folder / "data/a.ome.zarr"), [PIXELS])
    assert frame_table(folder / "data/a.ome.zarr")["frame_id"].tolist() == [7]
    assert decode_control(answers["OPENED"][1])["spec"]["dtype"] == SPEC.dtype
