"""Levels of one image: the ``datasets`` of its OME-Zarr multiscale, and zarr.json of an array that is made
from another one.

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

from shardwright.model.errors import ShardFormatError
from shardwright.model.json_text import parse_json

from .consolidated import FIELD as CONSOLIDATED
from .document import encode_document, understood
from .metadata import CREATOR_ATTRIBUTE, array_codecs, array_metadata, index_codecs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .spec import ArraySpec, IndexPlace


def multiscale_of(attributes: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the one multiscale of an image group's attributes. Raises ``ShardFormatError`` for another kind
    of group."""
    try:
        (multiscale,) = (attributes or {})["ome"]["multiscales"]
        names = [axis["name"] for axis in multiscale["axes"]]
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
    index_place: IndexPlace,
    made: dict[str, Any],
    index_codecs: list[Any] | None = None,
) -> bytes:
    """Returns zarr.json of an array with another shape, other chunks or another codec than ``document``, and
    all its other fields of Zarr v3: dtype, fill value, axes, attributes. ``index_codecs``: None for ours.
    ``made`` records how, under the creator's attribute."""
    changed = copy.deepcopy(understood(document))
    changed["shape"] = list(shape)
    if changed.get("dimension_names") is None:  # null, which tensorstore refuses, says no more than nothing
        changed.pop("dimension_names", None)
    changed["chunk_grid"]["configuration"]["chunk_shape"] = list(shard_shape)
    changed["codecs"] = array_codecs(index_place, chunk_shape, chunk_codecs, index_codecs)
    attributes = changed.get("attributes") or {}
    before = attributes.get(CREATOR_ATTRIBUTE)
    changed["attributes"] = {
        **attributes,
        CREATOR_ATTRIBUTE: {**(before if isinstance(before, dict) else {}), **made},
    }
    return encode_document(changed)


def how_made(method: str, factors: Mapping[str, int]) -> dict[str, Any]:
    """Returns how levels were made, as their zarr.json records it: ``axes`` where all factors are 2, as
    earlier releases say it, else ``factors``."""
    reduced = {name: factor for name, factor in factors.items() if factor > 1}
    if set(reduced.values()) <= {2}:
        return {"method": method, "axes": list(reduced)}
    return {"method": method, "factors": reduced}


def array_documents(
    spec: ArraySpec, extents: Sequence[int], chunk_codecs: list[dict[str, Any]]
) -> list[bytes]:
    """Returns zarr.json of the image's array and of each level that is written with it; the arguments are
    those of ``array_metadata``."""
    documents = [array_metadata(spec, extents, chunk_codecs)]
    stored = [[d.name for d in spec.dimensions].index(d.name) for d in spec.stored_dimensions]
    for number, level in enumerate(spec.level_shapes, 1):
        assert spec.levels is not None, "it has shapes"
        shards = [c * d.shard_chunks for c, d in zip(level.chunk, spec.dimensions, strict=True)]
        shape = [*level.counts]
        for axis, extent in zip(spec.growing_axes, extents, strict=False):
            shape[axis] = extent
        made = {"level": number, "of": str(number - 1), **how_made(spec.levels.method, spec.levels.factors)}
        documents.append(
            derived_array(
                parse_json(documents[0]),
                shape=tuple(shape[i] for i in stored),
                shard_shape=tuple(shards[i] for i in stored),
                chunk_shape=tuple(level.chunk[i] for i in stored),
                chunk_codecs=chunk_codecs,
                index_place=spec.index_place,
                made=made,
                index_codecs=index_codecs(spec),
            )
        )
    return documents


def fitting_shards(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...], shard_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns the shape of shards no longer than the array needs, so that a small level has a small index; in
    whole chunks."""
    return tuple(
        min(s, math.ceil(n / c) * c) if n else s
        for n, c, s in zip(shape, chunk_shape, shard_shape, strict=True)
    )
