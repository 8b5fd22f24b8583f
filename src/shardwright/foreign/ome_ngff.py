"""Attributes of OME-NGFF 0.4 as those of 0.5: its keys move below ``ome``, with one version for all."""

from __future__ import annotations

from typing import Any

from shardwright.model.errors import ShardFormatError

_KEYS = ("multiscales", "omero", "image-label", "plate", "well", "bioformats2raw.layout")
_KEY_OF_FOLDER = {
    "labels": "labels",
    "OME": "series",
}  # common words: of OME-NGFF in a group of this name only
_SAME_IN_ALL = ("omero", "image-label")  # writers give these an older version beside axes of 0.4
OLD, NEW = "0.4", "0.5"


def ome_attributes_of_today(attributes: dict[str, Any], folder_name: str) -> dict[str, Any]:
    """Returns the attributes of a group of Zarr v2 in a folder of this name; unchanged where none is of
    OME-NGFF. Raises ``ShardFormatError`` for another version of it, whose axes have another form."""
    keys = (*_KEYS, _KEY_OF_FOLDER.get(folder_name))
    found = {key: _without_version(key, attributes[key]) for key in keys if key in attributes}
    if not found:
        return attributes
    rest = {key: value for key, value in attributes.items() if key not in found}
    if "ome" in rest:
        raise ShardFormatError("attributes have both 'ome' and the keys of OME-NGFF 0.4", got=sorted(found))
    return {**rest, "ome": {"version": NEW, **found}}


def _without_version(key: str, value: Any) -> Any:
    if key == "multiscales" and isinstance(value, list):
        return [_without_version(f"{key}[{number}]", scale) for number, scale in enumerate(value)]
    if not isinstance(value, dict):
        return value
    version = value.get("version", OLD)
    if version != OLD and key not in _SAME_IN_ALL:
        raise ShardFormatError(
            f"{key}.version of OME-NGFF not supported",
            expected=OLD,
            got=repr(version)[:80],
            hint="Give the path of one of its arrays",
        )
    return {name: part for name, part in value.items() if name != "version"}
