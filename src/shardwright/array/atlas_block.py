"""The block ``dca`` of the Dynamic Cell Atlas specification 0.2, beside ``ome`` in the zarr.json of an image
(``profile: dynamic-cell-atlas``).

    "dca": {
      "version": "0.2", "url": URL,
      "channels": [{"name": "GFP", "index": 0, "description": "GFP, excitation 488 nm"}],
      "normalization_statistics": {"0": {"dataset_statistics": {"p1": 101.0, ..., "iqr": 12.0}}},
      "acquisition": {"time_increment_s": 2.0, "timestamps": [1764400000.125, 1764400002.131, ...]}
    }

Version 0.2 names the first four fields, and ``time_increment_s`` for a time lapse. It has no place for the
time of each time point: ``timestamps`` has name, unit and meaning from the draft of 0.3, seconds since 1970
(UTC), one entry for each, none less than that before it. There a time axis without a unit and of scale 1
counts time points, which ``time_sampling: variable`` says.

What the specification wants of study, specimen and perturbation only people know: attributes named ``dca``
are put into the block.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardwright.model.errors import SpecError
from shardwright.model.write_options import DEFAULT_OME_VERSION, check_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from shardwright.model.write_options import Profile

    from .acquisition_spec import AcquisitionSpec
    from .spec import ArraySpec

FIELD = "dca"
VERSION = "0.2"
URL = "https://github.com/chanzuckerberg/dynamic-cell-atlas-specs/tree/main/docs/v0.2/schema.json"
MADE = ("version", "url", "channels", "normalization_statistics", "acquisition")  # by each end, anew
MOST_TIMES = 1 << 16  # some 2 MiB in zarr.json, which every reader loads into memory
_AXES = ("t", "c", "z", "y", "x")
_MOST_OPTICS = 1e9  # nm, ms
_MOST_PIXELS = 2048  # along each space axis of the smallest level
_PREFIXES = {
    "yocto": -24,
    "zepto": -21,
    "atto": -18,
    "femto": -15,
    "pico": -12,
    "nano": -9,
    "micro": -6,
    "milli": -3,
    "centi": -2,
    "deci": -1,
    "": 0,
    "deca": 1,
    "hecto": 2,
    "kilo": 3,
    "mega": 6,
    "giga": 9,
    "tera": 12,
    "peta": 15,
    "exa": 18,
    "zetta": 21,
    "yotta": 24,
}
# every unit of time that OME-Zarr has
_SECONDS = {f"{prefix}second": float(f"1e{power}") for prefix, power in _PREFIXES.items()}
_SECONDS |= {"minute": 60.0, "hour": 3600.0, "day": 86400.0}


class TimePoints(NamedTuple):
    """The time points of an image. ``ns``: int64[n], when each of the first n began, UTC, 0 where nobody
    knows. ``total``: of all, 0 without a time axis. Only where both are as long are there ``timestamps``."""

    ns: npt.NDArray[np.int64]
    total: int


def check_profile(profile: Profile, spec: AcquisitionSpec) -> AcquisitionSpec:
    """Returns the specification. Raises ``SpecError`` if its images cannot have the metadata of a profile."""
    check_options(profile=profile, ome_version=spec.ome_version or DEFAULT_OME_VERSION)
    for array in spec.distinct_arrays:
        check_options(profile=profile, dtype=array.dtype)
    declared = [spec.attributes, *(image.attributes for image in (*spec.images, *spec.added))]
    if profile != "none" and not all(isinstance(each.get(FIELD, {}), dict) for each in declared):
        raise SpecError(
            f"attributes: {FIELD!r} is the block of the profile, which others may add to",
            expected="a JSON object",
            hint='Such as attributes={"dca": {"study": {...}}}',
        )
    return spec


def profile_warnings(profile: Profile, array: ArraySpec) -> list[str]:
    """Returns one sentence for each property of an array that the specification refuses."""
    if profile == "none":
        return []
    begins = "profile: the Dynamic Cell Atlas wants"
    stored, levels, warnings = array.stored_dimensions, array.levels, []
    names = tuple(d.name for d in stored)
    if names not in (_AXES, tuple(map(str.upper, _AXES))):
        warnings.append(f"{begins} the axes {', '.join(_AXES)}, stored in this order; got {', '.join(names)}")
    bare = [d.name for d in stored if d.axis_type in ("time", "space") and d.unit is None]
    if bare:
        warnings.append(f"{begins} a unit of every axis of time and space; {', '.join(bare)} have none")
    counts = array.level_shapes[-1].counts if array.level_shapes else tuple(d.count for d in array.dimensions)
    large = any(
        d.axis_type == "space" and (count or 0) > _MOST_PIXELS
        for d, count in zip(array.dimensions, counts, strict=True)
    )
    if large:
        warnings.append(
            f"{begins} a level of at most {_MOST_PIXELS} elements along each axis of space: write levels, or "
            "make them later by `shardwright pyramid`"
        )
    kept = [d.name for d in stored if d.axis_type in ("time", "channel")]
    if levels is not None and (
        levels.method != "mean" or any(levels.factors.get(name, 1) > 1 for name in kept)
    ):
        warnings.append(f"{begins} levels of means, which keep every time point and channel")
    axis = time_axis(array)
    if axis is not None and (array.dimensions[axis].count or 0) > MOST_TIMES:
        warnings.append(
            f"profile: zarr.json has no times of more than {MOST_TIMES:,} time points; the frame table has"
        )
    return warnings


def time_axis(array: ArraySpec) -> int | None:
    """Returns the number of the (first) time axis, in the order of acquisition; None without one."""
    axes = [number for number, d in enumerate(array.dimensions[:-2]) if d.axis_type == "time"]
    return axes[0] if axes else None


def atlas_block(
    array: ArraySpec,
    group: Mapping[str, Any],
    declared: Mapping[str, Any],
    times: TimePoints,
    statistics: Mapping[int, Mapping[str, float]],
) -> dict[str, Any]:
    """Returns the block of an image. ``group``: its zarr.json, which names the channels; ``declared``: what
    its attributes have in this place, which stays but for version and times; ``statistics`` by channel."""
    block: dict[str, Any] = {
        "channels": [_channel(number, each) for number, each in enumerate(_channels_of(group))],
        "normalization_statistics": {
            str(number): {"dataset_statistics": dict(found)} for number, found in sorted(statistics.items())
        },
        **declared,
    }
    theirs = block.pop("acquisition", {})
    acquisition = {**(theirs if isinstance(theirs, dict) else {}), **_acquisition(array, times)}
    return {
        "version": VERSION,
        "url": URL,
        **{name: value for name, value in block.items() if name not in ("version", "url")},
        **({"acquisition": acquisition} if acquisition else {}),
    }


def told_since(block: Mapping[str, Any], told: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what users say by now in the block of an image. ``told``: what they had said of it by the end
    that wrote the block, ``above``: of all images, which each block has."""
    missing = object()
    since = {name: value for name, value in block.items() if name not in MADE}
    own = {n: v for n, v in since.items() if n in told or above.get(n, missing) != v}
    return {**{name: value for name, value in told.items() if name in MADE}, **own}


def _channels_of(group: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    try:
        channels = group["attributes"]["ome"]["omero"]["channels"]
        return [each for each in channels if isinstance(each["label"], str)]
    except (LookupError, TypeError):
        return []


def _channel(number: int, look: Mapping[str, Any]) -> dict[str, Any]:
    optics = {"excitation_nm": "excitation {:g} nm", "emission_nm": "emission {:g} nm"}
    optics["exposure_ms"] = "exposure {:g} ms"
    said = [
        text.format(value)
        for name, text in optics.items()
        # an integer of others may be longer than any float
        if isinstance(value := look.get(name), int | float) and abs(value) < _MOST_OPTICS
    ]
    return {"name": look["label"], "index": number, "description": ", ".join([look["label"], *said])}


def step_s(array: ArraySpec) -> float | None:
    """Returns the step of the time axis in seconds, if its unit is one of time."""
    axis = time_axis(array)
    seconds = None if axis is None else _SECONDS.get(array.dimensions[axis].unit or "")
    if axis is None or seconds is None:
        return None
    step = float(f"{array.dimensions[axis].scale * seconds:.12g}")
    return step if math.isfinite(step) else None  # JSON has no infinity


def _acquisition(array: ArraySpec, times: TimePoints) -> dict[str, Any]:
    """Returns the fields about time. Nobody's time is made up: of a time point that never began the entry is
    that of the one before it, or of the first that did."""
    axis = time_axis(array)
    if axis is None:
        return {}
    dimension, facts, times_ns = array.dimensions[axis], dict[str, Any](), times.ns
    if (given := step_s(array)) is not None:
        facts["time_increment_s"] = given
    known = np.flatnonzero(times_ns)
    if not known.size:
        return facts
    steps = np.diff(times_ns[known]) / np.diff(known)
    if given is None and steps.size and (step := float(np.median(steps))) > 0:
        facts["time_increment_s"] = round(step / 1e9, 6)
    if times_ns.size == times.total <= MOST_TIMES:
        whole = times_ns.copy()
        whole[: known[0]] = whole[known[0]]
        if dimension.unit is None and dimension.scale == 1:
            facts["time_sampling"] = "variable"
        facts["timestamps"] = [ns // 1000 / 1e6 for ns in np.maximum.accumulate(whole).tolist()]
    return facts


def intensity_statistics(values: npt.NDArray[Any]) -> dict[str, float]:
    """Returns the statistics of a sample of pixels, by the names of the specification; none where a number
    would not be finite, which JSON does not have."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return {}
    with np.errstate(over="ignore", invalid="ignore"):  # pixels near the largest float
        p1, p5, p25, median, p75, p95, p99 = np.percentile(finite, [1, 5, 25, 50, 75, 95, 99]).tolist()
        statistics = {
            "p1": p1,
            "p5": p5,
            "p95": p95,
            "p99": p99,
            "p95_p5": p95 - p5,
            "p99_p1": p99 - p1,
            "mean": float(finite.mean()),
            "std": float(finite.std()),
            "median": median,
            "iqr": p75 - p25,
        }
    return statistics if all(map(math.isfinite, statistics.values())) else {}
