"""Contrast windows of samples of every dtype, and their place in the metadata."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shardwright.array.contrast_window import ContrastWindow, contrast_window, with_windows
from shardwright.array.metadata import group_document
from shardwright.model.write_options import DTYPES


@pytest.mark.parametrize(
    ("values", "window"),
    [
        (np.arange(2, 10_003, dtype=np.uint16), (0, 16383, 12, 9992)),
        (np.array([100] * 2000 + [3900], np.uint16), (0, 4095, 100, 101)),  # a hot pixel
        (np.array([90, 200], np.uint8), (0, 255, 90, 200)),
        (np.array([0, 127], np.int8), (0, 127, 0, 127)),
        (np.array([-1, 5], np.int16), (-128, 127, -1, 5)),
        (np.array([-2000, 5], np.int16), (-2048, 2047, -2000, 5)),
        (np.array([3, 2**64 - 1], np.uint64), (0, 2**64 - 1, 3, 2**64 - 1)),
        (np.array([-0.5, np.nan, 2, np.inf], np.float32), (-0.5, 2, -0.5, 2)),
        (np.zeros(3, bool), (0, 1, 0, 1)),
        (np.full(9, 7, np.uint16), (0, 255, 7, 8)),
        (np.full(9, 255, np.uint8), (0, 255, 254, 255)),
        (np.full(9, 4095, np.uint16), (0, 4095, 4094, 4095)),
        (np.full(9, -128, np.int8), (-128, 127, -128, -127)),
        (np.zeros(9, np.float16), (0, 1, 0, 1)),
    ],
)
def test_windows(values, window):
    assert contrast_window(values) == window


@pytest.mark.parametrize("values", [np.zeros(0, np.uint8), np.full(3, np.nan, np.float32)])
def test_there_is_no_window_of_nothing(values):
    assert contrast_window(values) is None


@given(
    st.sampled_from([dtype for dtype in DTYPES if dtype != "bool"]).flatmap(
        lambda dtype: arrays.arrays(np.dtype(dtype), st.integers(1, 40))
    )
)
def test_a_window_is_never_empty_and_lies_on_the_slider(values):
    window = contrast_window(values)
    if window is None:
        assert not np.isfinite(values).any()
        return
    assert window.min <= window.start < window.end <= window.max
    json.dumps(window, allow_nan=False)
    if values.dtype.kind in "iu":
        info = np.iinfo(values.dtype)
        assert all(isinstance(value, int) and info.min <= value <= info.max for value in window)


def test_only_the_windows_of_a_group_change(spec_of):
    spec = spec_of(("c", 2, 1, 1), ("y", 8, 4, 1), ("x", 8, 4, 1))
    group = {**group_document(spec, "a"), "consolidated_metadata": {"kind": "inline"}}
    group["attributes"]["mine"] = 1
    changed = with_windows(group, {1: ContrastWindow(0, 4095, 100, 900)})
    first, second = changed["attributes"]["ome"]["omero"]["channels"]
    assert first == group["attributes"]["ome"]["omero"]["channels"][0]
    assert second.pop("window") == {"min": 0, "max": 4095, "start": 100, "end": 900}
    assert second.items() < group["attributes"]["ome"]["omero"]["channels"][1].items()
    del changed["attributes"]["ome"]["omero"], group["attributes"]["ome"]["omero"]
    assert changed == group


@pytest.mark.parametrize(
    ("window", "written"),
    [
        ((0, 4095, 100, 1100), False),
        ((0, 4095, 82, 1118), False),
        ((0, 4095, 100, 1130), True),
        ((0, 4095, 70, 1100), True),
        ((0, 8191, 100, 1100), True),
    ],
)
def test_a_window_that_looks_the_same_stays(window, written):
    old = {"min": 0, "max": 4095, "start": 100, "end": 1100}
    group = {"attributes": {"ome": {"omero": {"channels": [{"window": old}]}}}}
    assert (with_windows(group, {0: ContrastWindow(*window)}) != group) is written


@pytest.mark.parametrize("field", ["start", "end"])
@pytest.mark.parametrize(
    "value", [10**400, -(10**400), math.nan, math.inf, True, "100", None, [100]], ids=lambda v: repr(v)[:8]
)
def test_a_window_of_what_is_no_number_is_written_again(field, value):
    new = ContrastWindow(0.0, 1.0, 0.25, 0.75)
    group = {"attributes": {"ome": {"omero": {"channels": [{"window": {**new._asdict(), field: value}}]}}}}
    (channel,) = with_windows(group, {0: new})["attributes"]["ome"]["omero"]["channels"]
    assert channel == {"window": new._asdict()}


@pytest.mark.parametrize(
    "ome", [None, {}, {"omero": {"channels": []}}, {"omero": {"channels": 3}}, {"omero": []}]
)
def test_a_group_that_does_not_describe_the_channel_stays_as_it_is(ome):
    group = {"attributes": {"ome": ome}}
    assert with_windows(group, {0: ContrastWindow(0, 1, 0, 1)}) == {"attributes": {"ome": ome}}
