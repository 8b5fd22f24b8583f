"""Control records: to_body and from_body are inverse; from_body raises ProtocolError for anything else."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model import errors
from shardwright.model.error_text import ErrorText
from shardwright.model.receipt import Receipt
from shardwright.wire.controls import Finish, Hello, Open, Opened, Problem, Resume, Welcome, receipt_from_body

RECEIPT = Receipt("/data/a.ome.zarr", 10, 9, 8, 1, 1, 0, 900, 450, 2)
RECORDS = [
    Hello("test", "rig-pc", 17),
    Welcome(None, None, 1000, 10_000, 1 << 26, 1 << 18, 1024, "daemon", 60_000),
    Welcome("a-boot", "/run/ring", 1000, 10_000, 1 << 26, 1 << 18, 1024, "daemon", 60_000),
    replace(Welcome(None, None, 1, 1, 1, 1, 1, "daemon", 0), instance="0f" * 16),
    Open(3, "embryo", {"dtype": "uint8"}, None, "shm"),
    Open(3, "embryo", {"dtype": "uint8"}, None, "shm", opening="0f" * 16),
    Open(4, "embryo", None, "cam0", "message"),
    Open(5, "embryo", None, None, "shm", Resume("0f" * 16, 2, 900, 8)),
    Open(6, "embryo", None, None, "message", None, reopen=True),
    Resume("0f" * 16, 2, 900, 8),
    Opened(
        3,
        "/data/a",
        {"dtype": "uint8"},
        "shm",
        800,
        8,
        100,
        "ab" * 16,
        "0f" * 16,
        1,
        0,
        (),
        "block",
        "stored",
    ),
    Opened(
        3,
        "/data/a",
        {"dtype": "uint8"},
        "message",
        800,
        8,
        100,
        None,
        "0f" * 16,
        3,
        70,
        ((0, 4), (6, 6), (69, 69)),
        "drop",
        "durable",
    ),
    Finish(12),
    Finish(12, claimed=3),
]
ODD_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([[], {}, "x" * 70_000])
)


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_records_survive_json(record: Hello | Welcome | Open | Resume | Opened | Finish):
    assert type(record).from_body(json.loads(json.dumps(record.to_body()))) == record


@pytest.mark.parametrize("record", RECORDS, ids=repr)
@given(data=st.data())
def test_any_field_of_a_wrong_type_is_a_protocol_error_or_harmless(
    record: Hello | Welcome | Open | Resume | Opened | Finish, data: st.DataObject
):
    body = record.to_body()
    key = data.draw(st.sampled_from(sorted(body)))
    body[key] = data.draw(ODD_VALUES)
    with contextlib.suppress(errors.ProtocolError):
        assert isinstance(record.from_body(body), type(record))


def opened_body(**changes: object) -> dict[str, object]:
    opened = Opened(3, "/data/a", {}, "shm", 800, 8, 100, "ab" * 16, "0f" * 16, 1, 10, (), "block", "stored")
    return {**json.loads(json.dumps(opened.to_body())), **changes}


@pytest.mark.parametrize(
    "missing",
    [
        *(None, {}, [1], [[1]], [[1, 2, 3]], [[0, True]]),
        *([[2, 1]], [[0, 10]], [[-1, 1]], [[0, 3], [3, 4]], [[4, 5], [0, 1]], [[i, i] for i in range(1025)]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_missing_frames_are_ascending_ranges_below_the_next_sequence(missing: object):
    assert Opened.from_body(opened_body(missing=[[0, 3], [5, 9]])).missing == ((0, 3), (5, 9))
    with pytest.raises(errors.ProtocolError, match="missing"):
        Opened.from_body(opened_body(missing=missing))


@pytest.mark.parametrize(
    "changes",
    [
        {"acquisition": "0F" * 16},
        {"acquisition": "0f" * 15},
        {"client_epoch": 0},
        {"overload": "wait"},
        {"durability": 3},
    ],
)
def test_an_opened_that_names_no_acquisition_or_policy_is_a_protocol_error(changes: dict[str, object]):
    with pytest.raises(errors.ProtocolError):
        Opened.from_body(opened_body(**changes))


def test_an_open_resumes_or_reopens_but_not_both():
    body = Open(1, "a", None, None, "shm", Resume("0f" * 16, 1, 0, 8)).to_body()
    assert not Open.from_body(
        {key: value for key, value in body.items() if key not in ("resume", "reopen")}
    ).reopen
    with pytest.raises(errors.ProtocolError):
        Open.from_body({**body, "reopen": True})


@pytest.mark.parametrize("token", ["", "zz" * 16, "ab" * 15, None])
def test_a_ring_token_must_fit_the_transport(token: str | None):
    body = opened_body()
    with pytest.raises(errors.ProtocolError):
        Opened.from_body({**body, "ring_token": token})


def test_an_error_keeps_its_class_and_facts():
    told = Problem(
        ErrorText.of(errors.FrameShapeError("wrong", expected=(2, 3), got=(3, 2), hint="turn it")),
        fatal=True,
        first=4,
        last=9,
        receipt=RECEIPT,
    )
    heard = Problem.from_body(json.loads(json.dumps(told.to_body())))
    assert heard.error.kind is errors.FrameShapeError
    assert str(heard.error) == str(told.error)
    assert (heard.fatal, heard.request, heard.first, heard.last, heard.receipt) == (True, None, 4, 9, RECEIPT)


def test_an_overlong_error_is_cut_rather_than_lost():
    told = Problem(ErrorText(errors.StorageError, "m" * 5000, got="g" * 5000), fatal=False, request=1)
    heard = Problem.from_body(told.to_body())
    assert heard.error.kind is errors.StorageError
    assert heard.error.message == "m" * 1000


@pytest.mark.parametrize(
    "changes",
    [{"shards": None}, {"shards": "many"}, {"path": 3, "shards": []}, {"frames_stored": float("inf")}],
)
def test_a_receipt_that_cannot_be_read_is_a_protocol_error(changes: dict[str, object]):
    assert receipt_from_body(RECEIPT.to_dict()) == RECEIPT
    with pytest.raises(errors.ProtocolError):
        receipt_from_body({**RECEIPT.to_dict(), **changes})
