"""OME-Zarr metadata of an image, and warnings about layouts that some readers do not open, or that are
slow.

    level 0                     the image as it was acquired
    level n                     level n-1, with fewer elements by a factor for each axis
    coordinateTransformations   scale, then (if it is not 0) translation: the centre of element 0 in the axes'
                                units

An element of a mean, minimum or maximum represents its whole window, so that its centre moves, with a factor
of 2 by half an element of the level below; "nearest" is the window's first element and keeps its centre.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.model.versions import VERSION

from .acquisition_spec import ARRAY_NAME
from .atlas_block import profile_warnings
from .consolidated_metadata import FIELD as CONSOLIDATED
from .consolidated_metadata import consolidated_metadata
from .default_layout import OME_ORDER, size_warnings
from .ome_version import (
    axes_of,
    dataset_beside,
    dataset_of,
    image_facts,
    moved,
    not_moved,
    ome_in,
    ome_of,
    scale_and_translation,
    version_of,
)
from .spec import MAX_CHANNELS, OWN_ATTRIBUTE, Channel
from .stage_position import translation_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardwright.model.write_options import OmeVersion, Profile

    from .acquisition_spec import AcquisitionSpec
    from .spec import ArraySpec, Dimension
    from .stage_position import StagePosition

_OF_LEVELS = ("description", "method", "version", "args", "kwargs")  # of a multiscale's metadata
_CHANNEL_COLORS = ("FFFFFF", "00FF00", "FF00FF", "00FFFF", "FFFF00", "FF0000", "0000FF")
# of a colour camera. Viewers add up the channels: with alpha, which is not shown, all would be white
_OF_COLOR_CAMERA = {"red": "FF0000", "green": "00FF00", "blue": "0000FF", "alpha": "FFFFFF"}


def ome_attributes(
    spec: ArraySpec, name: str, position: StagePosition | None = None, version: OmeVersion | None = None
) -> dict[str, Any]:
    """Returns the ``ome`` attributes of the group: one multiscale, and one ``omero`` entry for
    each channel, up to ``MAX_CHANNELS``; with what is known of its optics, which OME-Zarr leaves open. No
    ``omero`` while the channel axis has no count: see ``with_channels``. ``position``: of the image, None
    where the group above has it. ``version``: None for the default."""
    multiscale = {
        "name": name,
        **image_facts(version, axes_facts(spec.stored_dimensions), _datasets(spec, position, version)),
        **({} if spec.levels is None else how_downsampled(spec.levels.method, spec.levels.factors)),
    }
    count = None if spec.channels_grow else spec.channel_count
    return ome_of(version, {"multiscales": [multiscale], **_omero(spec, count)})


def how_downsampled(method: str, factors: Mapping[str, int]) -> dict[str, Any]:
    """Returns what a multiscale says of its levels, each made of the one below."""
    reduced = {name: factor for name, factor in factors.items() if factor > 1}
    made = {"method": f"shardwright {method}", "version": VERSION, "kwargs": {"factors": reduced}}
    return {"type": method, "metadata": made}


def with_channels(group: dict[str, Any], spec: ArraySpec, extent: int) -> dict[str, Any]:
    """Returns the zarr.json of an image's group with the channels of an axis without a count, once its
    ``extent`` is known: readers refuse an image with more or fewer channels than it has elements. As it is
    for any other axis, and where others have described the channels."""
    attributes = group.get("attributes")
    ome = attributes.get("ome") if isinstance(attributes, dict) else None
    omero = _omero(spec, extent) if spec.channels_grow else {}
    if not omero or not isinstance(ome, dict) or "omero" in ome:
        return group
    return {**group, "attributes": {**group["attributes"], "ome": {**ome, **omero}}}


def at_position(
    group: dict[str, Any],
    spec: ArraySpec,
    position: StagePosition,
    *,
    again: bool = False,
    in_scene: bool = False,
) -> dict[str, Any]:
    """Returns the zarr.json of an image's group with a position that became known since it was written. As
    it is where others have described the image, and where it has a position unless that is to be replaced
    (``again``). ``in_scene``: the group above has the position, this one the place in the grid alone."""
    if in_scene or not position.is_placed:  # where the image is stays as it is
        return with_grid(group, position)
    try:
        ome = group["attributes"]["ome"]
        (multiscale,) = ome["multiscales"]
        version = version_of(ome)
        there, ours = multiscale["datasets"], _datasets(spec, None, version)
        if again:
            there, ours = list(map(not_moved, there)), list(map(not_moved, ours))
    except (LookupError, TypeError, ValueError, AttributeError):
        return group
    if there != ours:
        return group
    placed = {**multiscale, "datasets": _datasets(spec, position, version)}
    described = {**group["attributes"], "ome": {**ome, "multiscales": [placed]}}
    return with_grid({**group, "attributes": described}, position)


def with_grid(group: dict[str, Any], position: StagePosition) -> dict[str, Any]:
    """Returns the zarr.json of an image's group with the place in the grid, if its position has one."""
    if not position.grid:
        return group
    there = group["attributes"].get(OWN_ATTRIBUTE)
    own = {**(there if isinstance(there, dict) else {}), "grid": position.grid}
    return {**group, "attributes": {**group["attributes"], OWN_ATTRIBUTE: own}}


def _datasets(
    spec: ArraySpec, position: StagePosition | None, version: OmeVersion | None
) -> list[dict[str, Any]]:
    axes = spec.stored_dimensions
    datasets = [dataset_of(version, ARRAY_NAME, [d.scale for d in axes], translation_of(position, axes))]
    names = [d.name for d in spec.dimensions]
    for number, level in enumerate(spec.level_shapes, 1):
        assert spec.levels is not None, "it has shapes"
        factors = tuple(level.factors[names.index(d.name)] for d in spec.stored_dimensions)
        centred = spec.levels.method != "nearest"
        datasets.append(level_dataset(datasets[-1], str(number), factors, centred=centred))
    return datasets


def multiscale_of(attributes: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the one multiscale of an image group's attributes. Raises ``ShardFormatError`` for another kind
    of group."""
    try:
        (multiscale,) = (attributes or {})["ome"]["multiscales"]
        names = [axis["name"] for axis in axes_of(multiscale)]
        paths = [dataset["path"] for dataset in multiscale["datasets"]]
        sound = len(paths) >= 1 and all(isinstance(name, str) for name in names + paths)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise ShardFormatError(
            "the store is no OME-Zarr image",
            expected="a group with one multiscale of named axes",
            got=sorted(attributes or {}),
        )
    found: dict[str, Any] = multiscale
    return found


def with_datasets(
    document: dict[str, Any], datasets: list[dict[str, Any]], made: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the image group's zarr.json with these ``datasets``. All else stays, except consolidated
    metadata, which would describe the old ones.

    ``made``: ``how_downsampled``, None when that does not change.
    """
    changed = copy.deepcopy({name: value for name, value in document.items() if name != CONSOLIDATED})
    multiscale = multiscale_of(changed["attributes"])
    multiscale["datasets"] = datasets
    if made is not None:
        there = multiscale.get("metadata")
        others = there if isinstance(there, dict) else {}
        # what does not say how another program made its levels
        kept = {name: value for name, value in others.items() if name not in _OF_LEVELS}
        multiscale |= {**made, "metadata": {**made["metadata"], **kept}}
    return changed


def moved_document(document: dict[str, Any], by: Mapping[str, float]) -> dict[str, Any]:
    """Returns the zarr.json of a group with its image moved, by so much along the axes that are named; also
    in the copies of what is below. Raises ``ShardFormatError``."""
    changed = copy.deepcopy(document)
    for node in (changed, *(consolidated_metadata(changed) or {}).values()):
        ome = ome_in(node)
        if isinstance(ome.get("multiscales"), list):
            ome["multiscales"] = [moved(each, by) for each in ome["multiscales"]]
    return changed


def level_dataset(
    below: dict[str, Any], path: str, factors: tuple[int, ...], *, centred: bool
) -> dict[str, Any]:
    """Returns the dataset of the level at ``path``, made from ``below``. ``centred``: its elements represent
    windows, not their first elements."""
    scale, translation = scale_and_translation(below, len(factors))
    if centred:
        translation = [t + (f - 1) / 2 * s for t, s, f in zip(translation, scale, factors, strict=True)]
    return dataset_beside(below, path, [s * f for s, f in zip(scale, factors, strict=True)], translation)


def axes_facts(axes: Sequence[Dimension]) -> list[dict[str, Any]]:
    """Returns axes as OME-Zarr describes them."""
    return [_axis(d) for d in axes]


def _axis(d: Dimension) -> dict[str, str]:
    axis = {"name": d.name}
    if d.axis_type != "other":
        axis["type"] = d.axis_type
    if d.unit is not None:
        axis["unit"] = d.unit
    return axis


def _omero(spec: ArraySpec, count: int | None) -> dict[str, Any]:
    """Returns the field of ``count`` channels; none while their number is not known, nor for more than
    ``MAX_CHANNELS``, since an axis of a million would fill zarr.json."""
    if count is None or count > MAX_CHANNELS:
        return {}
    names, colors = [f"channel {i}" for i in range(count)], list(_CHANNEL_COLORS)
    if spec.interleaved:
        names, colors = list(_OF_COLOR_CAMERA), list(_OF_COLOR_CAMERA.values())
    unnamed = range(len(spec.channels), count)
    channels = [*spec.channels[:count], *(Channel(name=names[i]) for i in unnamed)]
    most = display_range(spec.dtype)
    looks = [_look(channel, colors[i % len(colors)], most) for i, channel in enumerate(channels)]
    for look in looks[3:] if spec.interleaved else ():
        look["active"] = False
    return {"omero": {"channels": looks}}


def _look(channel: Channel, color: str, most: tuple[float, float]) -> dict[str, Any]:
    low, high = channel.window or most
    optics = {name: getattr(channel, name) for name in ("emission_nm", "excitation_nm", "exposure_ms")}
    return {
        "label": channel.name,
        "color": (channel.color or color).upper(),
        "active": True,
        "window": {"min": min(low, most[0]), "max": max(high, most[1]), "start": low, "end": high},
        **{name: value for name, value in optics.items() if value is not None},
    }


def display_range(dtype: str) -> tuple[float, float]:
    """Returns the range of the dtype, 0 to 1 for floats and bools. Viewers let the user narrow it."""
    kind = np.dtype(dtype).kind
    if kind in "bf":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def stated_window(channel: Any, dtype: str) -> tuple[float, float] | None:
    """Returns (start, end) of a channel's window in ``omero`` metadata, of whatever form; None where there is
    none, or only the whole range of the dtype, as it is before one is known."""
    try:
        low, high = float(channel["window"]["start"]), float(channel["window"]["end"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None
    usable = math.isfinite(high - low) and low < high and (low, high) != display_range(dtype)
    return (low, high) if usable else None


def acquisition_warnings(spec: AcquisitionSpec, profile: Profile = "none") -> list[str]:
    """Returns the ``layout_warnings`` of all images, and those of their profile, each once."""
    found = [layout_warnings(array, alone=spec.is_single) for array in spec.distinct_arrays]
    found += [profile_warnings(profile, array) for array in spec.distinct_arrays]
    return list(dict.fromkeys(warning for warnings in found for warning in warnings))


def layout_warnings(spec: ArraySpec, *, alone: bool = True) -> list[str]:
    """Returns one sentence for each property that readers or validators do not accept, or that makes the
    store slow; none for the profile that all of them open. ``alone``: the acquisition has no other image."""
    warnings = size_warnings(spec, alone=alone)
    if spec.index_location == "start":
        warnings.append(
            "index_location: start is not understood by zarrita (JavaScript; neuroglancer reads it): zarrita "
            "shows a shard that grows (live: index) as zeros, without an error, and fails on a finished one; "
            "live: append keeps the index at the end"
        )
    stored = spec.stored_dimensions
    order = [OME_ORDER[d.axis_type] for d in stored]
    if order != sorted(order):
        warnings.append(
            "axes: OME-Zarr wants time, then channel, then space; give them in that "
            "order, and with order that of the frames, or validators and napari will refuse the image"
        )
    names = [d.name for d in stored]
    if names.index("x") < names.index("y") if {"x", "y"} <= set(names) else spec.is_transposed:
        warnings.append(
            f"axes: columns are stored before rows ({', '.join(names)}), which OME-Zarr advises against: "
            "ngff-zarr's validator refuses the image, and viewers that go by order show it transposed; give "
            "y before x, and storage_order, if any, likewise"
        )
    for kind, most in (("time", 1), ("channel", 1), ("space", 3)):
        count = sum(d.axis_type == kind for d in stored)
        if count > most:
            warnings.append(
                f"axes: OME-Zarr allows {most} {kind} axis, this array has {count}; "
                f"validators will refuse the image"
            )
    if not 2 <= len(stored) <= 5:
        warnings.append(
            f"axes: OME-Zarr allows 2 to 5 axes, this array has {len(stored)}; validators "
            f"will refuse the image"
        )
    if sum(d.axis_type == "space" for d in stored) < 2:
        warnings.append(
            "axes: OME-Zarr wants 2 or 3 space axes; name the frame's axes y and x or give them type: space"
        )
    if spec.dtype in ("bool", "int64", "float16", "float64"):
        warnings.append(f"dtype: {spec.dtype} is not among the data types that neuroglancer shows")
    return warnings
