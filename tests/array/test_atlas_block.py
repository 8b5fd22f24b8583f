"""The block of the Dynamic Cell Atlas: what it says of channels, pixels and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.atlas_block import (
    MOST_TIMES,
    URL,
    TimePoints,
    atlas_block,
    check_profile,
    intensity_statistics,
    profile_warnings,
)
from shardwright.array.default_layout import default_layout
from shardwright.array.metadata import group_document
from shardwright.model.errors import SpecError

S = 10**9
UNITS = {"t": "s", "z": "um", "y": "um", "x": "um"}


def array_of(axes: str = "tczyx", **changes: Any) -> sw.ArraySpec:
    lengths = {"t": None, "c": 2, "z": 1, "y": 16, "x": 16, "T": 4, "C": 2, "Z": 1, "Y": 16, "X": 16}
    return default_layout(
        **{
            "shape": tuple(lengths[axis] for axis in axes),
            "dtype": "uint16",
            "axes": axes,
            "units": {name: unit for name, unit in UNITS.items() if name in axes},
            "scales": {name: 2.0 for name in UNITS if name in axes},
            **changes,
        }
    )


def block(
    array: sw.ArraySpec,
    times: list[int] = [],  # noqa: B006
    declared: Any = None,
    total: int | None = None,
    **statistics: Any,
) -> dict:
    group = group_document(array, "a")
    points = TimePoints(np.array(times, np.int64), len(times) if total is None else total)
    return atlas_block(array, group, declared or {}, points, statistics)


def test_the_specification_is_named() -> None:
    found = block(array_of())
    assert (found["version"], found["url"]) == ("0.2", URL)


def test_channels_have_their_names_and_what_is_known_of_their_light() -> None:
    optics = {"name": "GFP", "excitation_nm": 488, "emission_nm": 509.5, "exposure_ms": 20}
    assert block(array_of(channels=[optics, {"name": "phase"}]))["channels"] == [
        {
            "name": "GFP",
            "index": 0,
            "description": "GFP, excitation 488 nm, emission 509.5 nm, exposure 20 ms",
        },
        {"name": "phase", "index": 1, "description": "phase"},
    ]
    assert [each["name"] for each in block(array_of("tzyx"))["channels"]] == ["channel 0"]


def test_a_group_that_others_have_changed_has_no_channels() -> None:
    none = TimePoints(np.zeros(0, np.int64), 0)
    for group in ({}, {"attributes": {"ome": 3}}, {"attributes": {"ome": {"omero": {"channels": [7]}}}}):
        assert atlas_block(array_of(), group, {}, none, {})["channels"] == []


def test_a_number_of_others_that_no_lamp_has_is_left_out() -> None:
    channels = [{"label": "GFP", "excitation_nm": 10**400, "exposure_ms": 5}]
    group = {"attributes": {"ome": {"omero": {"channels": channels}}}}
    (channel,) = atlas_block(array_of(), group, {}, TimePoints(np.zeros(0, np.int64), 0), {})["channels"]
    assert channel["description"] == "GFP, exposure 5 ms"


def test_what_users_say_stays_but_for_version_and_times() -> None:
    declared = {
        "version": "0.1",
        "study": {"title": "x"},
        "channels": ["theirs"],
        "acquisition": {"objective": "63x", "timestamps": ["theirs"]},
    }
    found = block(array_of(), [5 * S], declared)
    assert (found["version"], found["study"], found["channels"]) == ("0.2", {"title": "x"}, ["theirs"])
    assert found["acquisition"] == {"objective": "63x", "time_increment_s": 2.0, "timestamps": [5.0]}


@pytest.mark.parametrize(
    ("times", "written"),
    [
        ([1 * S, 2 * S, 3 * S], [1.0, 2.0, 3.0]),
        ([1_234_567_891, 2 * S], [1.234567, 2.0]),
        ([1 * S, 0, 0, 3 * S], [1.0, 1.0, 1.0, 3.0]),  # frames that never came
        ([0, 0, 2 * S], [2.0, 2.0, 2.0]),
        ([3 * S, 1 * S, 4 * S], [3.0, 3.0, 4.0]),  # the clock was set back
    ],
)
def test_times(times: list[int], written: list[float]) -> None:
    assert block(array_of(), times)["acquisition"]["timestamps"] == written


def test_without_any_time_there_is_only_the_step() -> None:
    assert block(array_of(), [0, 0])["acquisition"] == {"time_increment_s": 2.0}


def test_without_a_time_axis_nothing_is_said_of_time() -> None:
    assert "acquisition" not in block(array_of("czyx"))


def test_too_many_time_points_have_no_times() -> None:
    most = [S * (n + 1) for n in range(MOST_TIMES)]
    assert len(block(array_of(), most)["acquisition"]["timestamps"]) == MOST_TIMES
    assert block(array_of(), [*most, S * (MOST_TIMES + 1)])["acquisition"] == {"time_increment_s": 2.0}


def test_of_some_time_points_of_many_there_is_the_step() -> None:
    found = block(array_of(scales={}, units={}), [10 * S, 11 * S, 12 * S], total=MOST_TIMES + 1)
    assert found["acquisition"] == {"time_increment_s": 1.0}


@pytest.mark.parametrize(
    ("unit", "step"),
    [("ms", 0.002), ("minute", 120.0), ("hour", 7200.0), ("centisecond", 0.02), ("kilosecond", 2000.0)],
)
def test_the_step_is_in_seconds(unit: str, step: float) -> None:
    array = array_of(units={**UNITS, "t": unit})
    assert block(array, [1 * S, 9 * S])["acquisition"]["time_increment_s"] == step
    assert "time_sampling" not in block(array, [1 * S])["acquisition"]


def test_a_step_that_json_does_not_have_is_left_out() -> None:
    array = array_of(units={**UNITS, "t": "yottasecond"}, scales={"t": 1e300})
    assert "time_increment_s" not in block(array, [1 * S])["acquisition"]


def test_a_step_that_nobody_gave_is_the_median_one() -> None:
    array = array_of(scales={}, units={})
    found = block(array, [10 * S, 11 * S, 12 * S, 0, 20 * S])["acquisition"]
    assert (found["time_increment_s"], found["time_sampling"]) == (1.0, "variable")
    assert "time_increment_s" not in block(array, [10 * S])["acquisition"]
    assert "time_increment_s" not in block(array, [10 * S, 10 * S])["acquisition"]


def test_statistics_are_those_of_numpy() -> None:
    values = np.random.default_rng(1).poisson(100, 5000).astype(np.uint16)
    found = intensity_statistics(values)
    assert found["median"] == np.median(values)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["std"] == pytest.approx(values.std())
    p1, p5, p25, p75, p95, p99 = np.percentile(values, [1, 5, 25, 75, 95, 99])
    assert (found["p1"], found["p5"], found["p95"], found["p99"]) == (p1, p5, p95, p99)
    assert (found["p95_p5"], found["p99_p1"], found["iqr"]) == (p95 - p5, p99 - p1, p75 - p25)


@pytest.mark.parametrize(
    "values",
    [np.zeros(0, np.uint8), np.full(3, np.nan), np.array([-1.7e308, 1.7e308] * 8)],
    ids=["no pixel", "no number", "too large to be squared"],
)
def test_statistics_that_json_does_not_have_are_left_out(values: np.ndarray) -> None:
    assert intensity_statistics(values) == {}


def test_pixels_without_intensities_are_refused() -> None:
    spec = parse_acquisition(array_of(dtype="bool"))
    with pytest.raises(SpecError, match="statistics of intensities"):
        check_profile("dynamic-cell-atlas", spec)
    assert check_profile("none", spec) is spec


@pytest.mark.parametrize("where", ["the store", "an image"])
def test_a_block_that_is_no_object_is_refused(where: str) -> None:
    attributes = {"dca": [1]}
    of_store, of_image = ({}, attributes) if where == "an image" else (attributes, {})
    images = [sw.Image(name="a", attributes=of_image)]
    spec = parse_acquisition({"array": array_of(), "images": images, "attributes": of_store})
    with pytest.raises(SpecError, match="'dca' is the block of the profile"):
        check_profile("dynamic-cell-atlas", spec)
    assert check_profile("none", spec) is spec


@pytest.mark.parametrize("axes", ["tczyx", "TCZYX"])
def test_the_array_that_the_specification_wants_gives_no_warning(axes: str) -> None:
    array = array_of(
        axes, units={(n if axes[0] == "t" else n.upper()): u for n, u in UNITS.items()}, scales={}
    )
    assert profile_warnings("dynamic-cell-atlas", array) == []


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (array_of("tcyx"), "the axes t, c, z, y, x"),
        (array_of(units={"t": "s"}, scales={}), "z, y, x have none"),
        (array_of(shape=(None, 2, 1, 4096, 16)), "at most 2048 elements"),
        (array_of(shape=(None, 2, 1, 4096, 4096), levels={"count": 1, "method": "max"}), "levels of means"),
        (array_of(shape=(MOST_TIMES + 1, 2, 1, 16, 16)), "no times of more than"),
    ],
    ids=["axes", "units", "size", "levels", "times"],
)
def test_what_the_specification_refuses_gives_a_warning(array: sw.ArraySpec, said: str) -> None:
    (warning,) = profile_warnings("dynamic-cell-atlas", array)
    assert said in warning
    assert profile_warnings("none", array) == []
