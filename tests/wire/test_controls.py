"""Control records: to_body and from_body are inverse; from_body raises ProtocolError for anything else."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model import errors
from shardwright.model.receipt import Receipt
from shardwright.wire.controls import Finish, Hello, Open, Opened, Problem, Welcome, receipt_from_body

RECEIPT = Receipt("/data/a.ome.zarr", 10, 9, 8, 1, 1, 0, 900, 450, 2)
RECORDS = [
    Hello("test", "rig-pc", 17),
    Welcome(None, None, 1000, 10_000, 1 << 26, 1 << 18, 1024, "daemon"),
    Welcome("a-boot", "/run/ring", 1000, 10_000, 1 << 26, 1 << 18, 1024, "daemon"),
    Open(3, "embryo", {"dtype": "uint8"}, None, "shm"),
    Open(4, "embryo", None, "cam0", "message"),
    Opened(3, "/data/a", {"dtype": "uint8"}, "shm", 800, 8, 100, "ab" * 16),
    Opened(3, "/data/a", {"dtype": "uint8"}, "message", 800, 8, 100, None),
    Finish(12),
]
ODD_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5) | st.sampled_from([[], {}, "x" * 70_000])


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_records_survive_json(record: Hello | Welcome | Open | Opened | Finish):
    assert type(record).from_body(json.loads(json.dumps(record.to_body()))) == record


@pytest.mark.parametrize("record", RECORDS, ids=repr)
@given(data=st.data())
def test_any_field_of_a_wrong_type_is_a_protocol_error_or_harmless(record: Hello | Welcome | Open | Opened | Finish, data: st.DataObject):
    body = record.to_body()
    key = data.draw(st.sampled_from(sorted(body)))
    body[key] = data.draw(ODD_VALUES)
    with contextlib.suppress(errors.ProtocolError):
        assert isinstance(record.from_body(body), type(record))


@pytest.mark.parametrize("token", ["", "zz" * 16, "ab" * 15, None])
def test_a_ring_token_must_fit_the_transport(token: str | None):
    body = Opened(3, "/data/a", {}, "shm", 800, 8, 100, "ab" * 16).to_body()
    with pytest.raises(errors.ProtocolError):
        Opened.from_body({**body, "ring_token": token})


def test_an_error_keeps_its_class_and_facts():
    told = Problem(errors.FrameShapeError("wrong", expected=(2, 3), got=(3, 2), hint="turn it"), fatal=True, first=4, last=9, receipt=RECEIPT)
    heard = Problem.from_body(json.loads(json.dumps(told.to_body())))
    assert type(heard.error) is errors.FrameShapeError
    assert str(heard.error) == str(told.error)
    assert (heard.fatal, heard.request, heard.first, heard.last, heard.receipt) == (True, None, 4, 9, RECEIPT)


def test_an_overlong_error_is_cut_rather_than_lost():
    told = Problem(errors.StorageError("m" * 5000, got="g" * 5000), fatal=False, request=1)
    heard = Problem.from_body(told.to_body())
    assert type(heard.error) is errors.StorageError
    assert heard.error.message == "m" * 1000


@pytest.mark.parametrize("changes", [{"shards": None}, {"shards": "many"}, {"path": 3, "shards": []}, {"frames_stored": float("inf")}])
def test_a_receipt_that_cannot_be_read_is_a_protocol_error(changes: dict[str, object]):
    assert receipt_from_body(RECEIPT.to_dict()) == RECEIPT
    with pytest.raises(errors.ProtocolError):
        receipt_from_body({**RECEIPT.to_dict(), **changes})
