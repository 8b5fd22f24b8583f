"""Finds the metadata of a folder that has no zarr.json of Zarr v3, and returns them as Zarr v3 says them.

A folder is enough to find them. That of an array of the storage transformer is ROOT/data/root/NAME, where its
chunks are; it need not exist if there are none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.array.document import MAX_METADATA_BYTES, NamingFile, group_node
from shardwright.disk import beneath
from shardwright.disk.files import read_regular, storage_errors
from shardwright.model.errors import ShardFormatError
from shardwright.model.json_text import parse_json, parse_metadata

from .ome_ngff import ome_attributes_of_today
from .storage_transformer import metadata_suffix, transformer_array
from .zarr_v2 import check_v2_group, v2_array

if TYPE_CHECKING:
    from collections.abc import Iterator

_ARRAY, _GROUP, _ATTRIBUTES = ".zarray", ".zgroup", ".zattrs"
_ENTRY, _META, _DATA, _ROOT = "zarr.json", "meta", "data", "root"
_MANY = 8  # arrays that a message names
_MOST_ENTRIES = 100_000  # files and folders in which an array is looked for


def is_older_node(folder: Path) -> bool:
    """Returns whether older metadata describe an array or a group in ``folder``. Raises ``ShardFormatError``
    for an entry point that is not understood."""
    named = beneath.is_file(folder / _ARRAY) or beneath.is_file(folder / _GROUP)
    return named or _drafted(folder) is not None


def older_document(folder: Path) -> dict[str, Any] | None:
    """Returns the zarr.json that means the same as the older metadata of ``folder``; None if there are none.
    Raises ``ShardFormatError`` naming the file and the field, ``StorageError``."""
    if beneath.is_file(folder / _ARRAY):
        return _v2_array(folder)
    if beneath.is_file(folder / _GROUP):
        return _v2_group(folder)
    found = _drafted(folder)
    if found is None:
        return None
    file, is_array = found
    document = {} if file is None else _read(file)
    with NamingFile(file or folder):
        if is_array and file is not None:
            return transformer_array(document).document(file)
        attributes = document.get("attributes", {}) if isinstance(document, dict) else None
        return _group(attributes, folder.name)


def locate(path: Path) -> Path:
    """Returns the folder of the node that a path means: also that of a metadata file, of an array by its name
    below the root of the storage transformer, and of the only array of such a root. Other paths are returned
    as they are. Raises ``ShardFormatError``."""
    if path.name in (_ARRAY, _GROUP, _ATTRIBUTES):
        return path.parent
    if path.name == _ENTRY and _draft_suffix(path.parent) is not None:
        path = path.parent
    for root in (path, *path.parents):
        suffix = _draft_suffix(root)
        if suffix is None:
            continue
        name = path.relative_to(root).as_posix()
        for kind in (".array", ".group"):
            if name.startswith(f"{_META}/{_ROOT}") and name.endswith(kind + suffix):
                return root / _DATA / name.removeprefix(f"{_META}/").removesuffix(kind + suffix)
        folder = root / _DATA / _ROOT / name
        if path == root:
            return _only_array(root, suffix) or folder
        return folder if not beneath.exists(path) and _drafted(folder) is not None else path
    return path


def _only_array(root: Path, suffix: str) -> Path | None:
    """Returns the folder of the array of a root that has one and no image. Raises ``ShardFormatError`` for
    several."""
    meta = root / _META / _ROOT
    arrays = [_data_folder(root, file, suffix) for file in _array_files(meta, suffix)]
    if beneath.is_file(root / _META / f"{_ROOT}.group{suffix}") or not arrays:
        return None
    if len(arrays) > 1:
        names = [array.relative_to(root / _DATA / _ROOT).as_posix() for array in arrays[:_MANY]]
        raise ShardFormatError(
            f"{root} has {len(arrays)} arrays",
            expected="the path of one",
            got=", ".join(names) + (", .." if len(arrays) > _MANY else ""),
            hint=f"Give one of them at a time, such as {root / names[0]}",
        )
    return arrays[0]


def _array_files(meta: Path, suffix: str) -> Iterator[Path]:
    if beneath.is_file(alone := meta.with_name(f"{_ROOT}.array{suffix}")):
        yield alone
    found, seen = [], 0
    for folder, folders, names in beneath.walk(meta):
        seen += len(folders) + len(names)
        if seen > _MOST_ENTRIES:
            raise ShardFormatError(
                f"{meta} has too many nodes to look for the one array",
                expected=f"at most {_MOST_ENTRIES} files and folders",
                hint="Give the path of one array",
            )
        found += [Path(folder, name) for name in names if name.endswith(f".array{suffix}")]
    yield from sorted(found)


def _data_folder(root: Path, file: Path, suffix: str) -> Path:
    name = file.relative_to(root / _META).as_posix().removesuffix(f".array{suffix}")
    return root / _DATA / name


def _drafted(folder: Path) -> tuple[Path | None, bool] | None:
    """Returns the metadata file of a node below ROOT/data/root, None if it is a group without one, and if it
    is an array. None for any other folder."""
    for above in (folder, *folder.parents):
        root = above.parent.parent
        if above.name != _ROOT or above.parent.name != _DATA or (suffix := _draft_suffix(root)) is None:
            continue
        node = root / _META / _ROOT / folder.relative_to(above)
        for kind in ("array", "group"):
            if beneath.is_file(file := node.with_name(f"{node.name}.{kind}{suffix}")):
                return file, kind == "array"
        return (None, False) if beneath.is_dir(node) else None
    return None


def _draft_suffix(root: Path) -> str | None:
    """Returns the suffix of the metadata files if ``root`` is the root of a store of the draft, else None.
    Raises ``ShardFormatError``."""
    file = root / _ENTRY
    if not beneath.is_dir(root / _META) or not beneath.is_file(file):
        return None
    entry = _read(file)
    if not isinstance(entry, dict) or not isinstance(entry.get("zarr_format"), str):
        return None  # a group of Zarr v3 with a folder of this name
    with NamingFile(file):
        return metadata_suffix(entry)


def _v2_array(folder: Path) -> dict[str, Any]:
    document, attributes = _read(folder / _ARRAY), _v2_attributes(folder)
    with NamingFile(folder / _ARRAY):
        return v2_array(document, attributes).document(folder / _ARRAY)


def _v2_group(folder: Path) -> dict[str, Any]:
    document, attributes = _read(folder / _GROUP), _v2_attributes(folder)
    with NamingFile(folder / _GROUP):
        check_v2_group(document)
    with NamingFile(folder / _ATTRIBUTES):
        return _group(attributes, folder.name)


def _group(attributes: Any, folder_name: str) -> dict[str, Any]:
    if not isinstance(attributes, dict):
        raise ShardFormatError("attributes are no object", got=repr(attributes)[:80])
    return group_node(ome_attributes_of_today(attributes, folder_name))


def _v2_attributes(folder: Path) -> dict[str, Any]:
    path = folder / _ATTRIBUTES
    attributes = _read(path) if beneath.is_file(path) else {}
    if not isinstance(attributes, dict):
        raise ShardFormatError(f"{path} is no object", got=repr(attributes)[:80])
    return attributes


def _read(path: Path) -> Any:
    """Returns a metadata file's JSON. Raises ``ShardFormatError``, ``StorageError``."""
    with storage_errors("read", path):
        text = read_regular(path, MAX_METADATA_BYTES)
    try:
        return parse_json(text, may_be_nan=True) if path.name == _ATTRIBUTES else parse_metadata(text)
    except ValueError as error:
        raise ShardFormatError(f"{path} is not JSON: {error}") from None
