"""Levels of one image: the ``datasets`` of its OME-Zarr multiscale, and zarr.json of an array that is made
from another one.

    level 0                     the image as it was acquired
    level n                     level n-1, with half the elements along the chosen axes
    coordinateTransformations   scale, then (if it is not 0) translation: the centre of element 0 in the axes'
                                units

An element of a mean, minimum or maximum represents its whole window, so that its centre moves by half an
element of the level below; "nearest" is the window's first element and keeps its centre.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal, get_args

from shardwright.model.errors import ShardFormatError

from .consolidated import FIELD as CONSOLIDATED
from .document import encode_document, understood
from .metadata import CREATOR_ATTRIBUTE

Method = Literal["mean", "min", "max", "nearest"]
METHODS: tuple[Method, ...] = get_args(Method)


def multiscale_of(attributes: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the one multiscale of an image group's attributes. Raises ``ShardFormatError`` for another kind
    of group."""
    try:
        (multiscale,) = (attributes or {})["ome"]["multiscales"]
        sound = len(multiscale["datasets"]) >= 1 and all(
            isinstance(axis["name"], str) for axis in multiscale["axes"]
        )
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


def scale_and_translation(dataset: dict[str, Any], rank: int) -> tuple[list[float], list[float]]:
    """Returns the scale and the translation of a dataset. Raises ``ShardFormatError`` for transformations of
    other kinds or lengths."""
    scale, translation = [1.0] * rank, [0.0] * rank
    for transformation in dataset.get("coordinateTransformations", ()):
        kind = transformation.get("type")
        values = transformation.get(kind)
        if kind not in ("scale", "translation") or not isinstance(values, list) or len(values) != rank:
            raise ShardFormatError(
                "coordinateTransformations not supported",
                expected=f"scale and translation of {rank} numbers",
                got=transformation,
            )
        if kind == "scale":
            scale = values
        else:
            translation = values
    return scale, translation


def level_dataset(
    below: dict[str, Any], path: str, factors: tuple[int, ...], *, centred: bool
) -> dict[str, Any]:
    """Returns the dataset of the level at ``path``, made from ``below``. ``centred``: its elements represent
    windows, not their first elements."""
    scale, translation = scale_and_translation(below, len(factors))
    if centred:
        translation = [t + (f - 1) / 2 * s for t, s, f in zip(translation, scale, factors, strict=True)]
    transformations: list[dict[str, Any]] = [
        {"type": "scale", "scale": [s * f for s, f in zip(scale, factors, strict=True)]}
    ]
    if any(translation):
        transformations.append({"type": "translation", "translation": translation})
    return {"path": path, "coordinateTransformations": transformations}


def group_document(document: dict[str, Any], datasets: list[dict[str, Any]], method: str | None) -> bytes:
    """Returns the image group's zarr.json with these ``datasets``. All else stays, except consolidated
    metadata, which would describe the old ones.

    ``method``: how levels were made, None when that does not change.
    """
    changed = copy.deepcopy({name: value for name, value in document.items() if name != CONSOLIDATED})
    multiscale = multiscale_of(changed["attributes"])
    multiscale["datasets"] = datasets
    if method is not None:
        multiscale["type"] = method
        multiscale.pop("metadata", None)  # how another program made its levels
    return encode_document(changed)


def derived_array(
    document: dict[str, Any],
    *,
    shape: tuple[int, ...],
    shard_shape: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    chunk_codecs: list[Any],
    made: dict[str, Any],
) -> bytes:
    """Returns zarr.json of an array with another shape, other chunks or another codec than ``document``, and
    all its other fields of Zarr v3: dtype, fill value, axes, attributes, index location. ``made`` records
    how, under the creator's attribute."""
    changed = copy.deepcopy(understood(document))
    changed["shape"] = list(shape)
    changed["chunk_grid"]["configuration"]["chunk_shape"] = list(shard_shape)
    sharding = changed["codecs"][0]["configuration"]
    sharding["chunk_shape"], sharding["codecs"] = list(chunk_shape), chunk_codecs
    attributes = changed.get("attributes") or {}
    before = attributes.get(CREATOR_ATTRIBUTE)
    changed["attributes"] = {
        **attributes,
        CREATOR_ATTRIBUTE: {**(before if isinstance(before, dict) else {}), **made},
    }
    return encode_document(changed)


def fitting_shards(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...], shard_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns the shape of shards no longer than the array needs, so that a small level has a small index; in
    whole chunks."""
    return tuple(
        min(s, math.ceil(n / c) * c) if n else s
        for n, c, s in zip(shape, chunk_shape, shard_shape, strict=True)
    )
