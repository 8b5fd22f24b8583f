import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model.errors import ConfigError
from shardwright.model.write_options import OPTIONS
from shardwright.shard.chunk_order import ORDERS, chunk_order, fixed_order

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple)


@given(shapes, st.sampled_from(ORDERS))
def test_every_chunk_comes_once(shape, order):
    assert sorted(chunk_order(order, shape).tolist()) == list(range(math.prod(shape)))


def test_row_major_is_the_order_of_the_numbers():
    assert chunk_order("row_major", (2, 3)).tolist() == [0, 1, 2, 3, 4, 5]


def test_column_major_has_the_first_axis_fastest():
    assert chunk_order("column_major", (2, 3)).tolist() == [0, 3, 1, 4, 2, 5]


def test_morton_of_a_square_is_a_z():
    assert chunk_order("morton", (4, 4)).tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


@given(shapes)
def test_morton_is_the_order_of_interleaved_bits(shape):
    def code(chunk: int) -> str:
        bits = [f"{int(c):03b}" for c in np.unravel_index(chunk, shape)]
        return "".join("".join(column) for column in zip(*bits, strict=True))

    assert chunk_order("morton", shape).tolist() == sorted(range(math.prod(shape)), key=code)


def test_morton_of_many_axes_and_of_a_long_one():
    assert chunk_order("morton", (1,) * 11 + (2**20,)).tolist() == list(range(2**20))
    assert chunk_order("morton", (2,) * 12).tolist() == list(range(2**12))


def test_an_unknown_order_is_refused():
    with pytest.raises(ConfigError, match="row_major or column_major or morton; got 'hilbert'"):
        chunk_order("hilbert", (2, 2))


def test_a_fixed_order_is_mortons_unless_another_is_asked_for():
    orders = {order: fixed_order(order) for order in OPTIONS["chunk_order"]}
    assert orders == {"arrival": None, "fixed": "morton", "row_major": "row_major", "morton": "morton"}
