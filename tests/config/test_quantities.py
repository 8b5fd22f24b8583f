"""Byte sizes as people write them and as they are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.config.quantities import UNIT_BYTES, parse_size_bytes


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNIT_BYTES)), st.sampled_from(["", " "]))
def test_every_unit(count: int, unit: str, space: str) -> None:
    assert parse_size_bytes(f"{count}{space}{unit}") == count * UNIT_BYTES[unit]


def test_fractions_must_be_whole_bytes() -> None:
    assert parse_size_bytes("0.5KiB") == 512
    with pytest.raises(ValueError, match="a size such as"):
        parse_size_bytes("0.0001KiB")


def test_units_are_powers_of_ten_or_of_two() -> None:
    assert (parse_size_bytes("1kB"), parse_size_bytes("1KiB"), parse_size_bytes("2TB")) == (
        1000,
        1024,
        2 * 10**12,
    )
