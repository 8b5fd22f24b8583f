"""Errors that travel as JSON, receipts, names."""

from __future__ import annotations

import pytest

from shardwright.model import errors
from shardwright.model.errors import ShardwrightError, error_from_dict
from shardwright.model.names import checked_name, store_name
from shardwright.model.receipt import Receipt

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ShardwrightError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_error_survives_its_journey(cls):
    error = cls("it broke", expected=3, got=(4, 5), hint="Mend it")
    again = error_from_dict(error.to_dict())
    assert type(again) is cls
    assert str(again) == str(error) == "it broke; expected 3; got (4, 5). Mend it"


def test_codes_name_one_class_each():
    assert len({c.code for c in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("facts", [{}, {"code": "from the future", "message": "m"}])
def test_an_unknown_error_is_still_an_error(facts):
    assert type(error_from_dict(facts)) is ShardwrightError


RECEIPT = Receipt("/a", 10, 8, 7, 1, 1, 1, 800, 400, 2)


def test_a_receipt_survives_json_and_ignores_what_a_newer_daemon_adds():
    assert Receipt.from_dict({**RECEIPT.to_dict(), "later": 1}) == RECEIPT
    assert RECEIPT.ratio == 2
    assert Receipt("/a", *[0] * 9).ratio == 0
    with pytest.raises(KeyError):
        Receipt.from_dict({"path": "/a"})


@pytest.mark.parametrize("name", ["embryo-42", "a", "A.b_c-1", "x" * 128])
def test_usable_names(name):
    assert checked_name(name) == name
    assert store_name(name) == name + ".ome.zarr"


def test_a_name_that_is_a_store_already_keeps_its_suffix():
    assert store_name("embryo.ome.zarr") == "embryo.ome.zarr"
    assert store_name("embryo.zarr") == "embryo.zarr"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "/a", "a..b", ".hidden", "-a", "a b", "a\n", "a\0", "ä", "x" * 129]
)
def test_names_that_could_leave_the_output_root_are_refused(name):
    with pytest.raises(errors.InvalidNameError, match="not a usable name"):
        checked_name(name)
