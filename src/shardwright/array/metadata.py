"""The documents of an acquisition: zarr.json of its arrays, of their levels, and of the groups above (Zarr v3
core; OME-Zarr)."""

from __future__ import annotations

import copy
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from shardwright.model.errors import SpecError
from shardwright.model.names import DOCUMENT, folders_to

from .document import array_node, group_node, understood
from .metadata_update import with_additions
from .ome import axes_facts, ome_attributes, with_grid
from .ome_version import ome_in, ome_of, scene_of
from .plate import PlateAcquisition
from .spec import OWN_ATTRIBUTE, Blosc, Gzip, Zstd
from .stage_position import AXES, translation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardwright.model.write_options import OmeVersion

    from .acquisition_spec import AcquisitionSpec
    from .codec_chain import CodecChain
    from .metadata_update import MetadataUpdate
    from .plate import Plate
    from .spec import ArraySpec, IndexLocation
    from .stage_position import StagePosition

OME_XML = "METADATA.ome.xml"
DOCUMENTS = (DOCUMENT, OME_XML)
"""Names of the files of a store that its writer replaces while it writes."""
CONTAINER = "container"  # among the creator's facts: what the shards of an array are as well
_XML_AXIS = {"time": "T", "channel": "C", "space": "Z", "other": "C"}
_XML_TYPE = {"bool": "bit", "float32": "float", "float64": "double"}


def fill_value_json(spec: ArraySpec) -> bool | int | float | str:
    """Returns the fill value as Zarr v3 writes it: non-finite floats by name, floats as numbers, bools as
    bools."""
    if spec.dtype == "bool":
        return bool(spec.fill_value)
    if not spec.dtype.startswith("float"):
        return int(spec.fill_value)
    value = float(np.frombuffer(spec.fill_bytes(), np.dtype(spec.dtype).newbyteorder("<"))[0])
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def array_shape(spec: ArraySpec, extents: Sequence[int], counts: Sequence[int] = ()) -> list[int]:
    """Returns the shape on disk (storage order) when the ``growing_axes`` have so many elements. ``counts``:
    of a level, in the order of acquisition."""
    shape = dict(
        zip([d.name for d in spec.dimensions], counts or [d.count or 0 for d in spec.dimensions], strict=True)
    )
    for axis, extent in zip(spec.growing_axes, extents, strict=False):
        shape[spec.dimensions[axis].name] = extent
    return [shape[d.name] for d in spec.stored_dimensions]


INDEX_CODECS: list[dict[str, Any]] = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
]


def index_codecs(spec: ArraySpec) -> list[dict[str, Any]]:
    """Returns the codecs of the index of each shard."""
    return INDEX_CODECS if spec.index_checksum else INDEX_CODECS[:1]


def array_codecs(
    index_location: IndexLocation,
    chunk_shape: Sequence[int],
    chunk_codecs: list[Any],
    index_codecs: list[Any] | None = None,
) -> list[dict[str, Any]]:
    """Returns the codecs of an array: those of its chunks, within the one of its shards if it has any.
    ``index_codecs``: None for ours."""
    if index_location == "none":
        return chunk_codecs
    sharding = {
        "chunk_shape": list(chunk_shape),
        "codecs": chunk_codecs,
        "index_codecs": index_codecs or INDEX_CODECS,
        "index_location": index_location,
    }
    return [{"name": "sharding_indexed", "configuration": sharding}]


def codec_metadata(spec: ArraySpec) -> list[dict[str, Any]]:
    """Returns the ``codecs`` of one inner chunk of this array for zarr.json."""
    codecs = inner_codecs(spec.codec, spec.itemsize, spec.chunk_checksum)
    if spec.is_transposed:
        codecs.insert(0, {"name": "transpose", "configuration": {"order": list(transposed_order(spec))}})
    return codecs


def transposed_order(spec: ArraySpec) -> tuple[int, ...]:
    """Returns the axes of the array on disk in the order of its bytes, which have rows before columns; empty
    if that is the order of the array."""
    *frame_axes, columns, rows = range(len(spec.dimensions))
    return (*frame_axes, rows, columns) if spec.is_transposed else ()


def inner_codecs(codec: Blosc | Zstd | Gzip | None, itemsize: int, checksum: bool) -> list[dict[str, Any]]:
    """Returns the ``codecs`` of one inner chunk for zarr.json: bytes, the compressor if any, crc32c if
    ``checksum`` (Zarr v3 core and codec registry)."""
    bytes_codec: dict[str, Any] = {"name": "bytes"}
    if itemsize > 1:
        bytes_codec["configuration"] = {"endian": "little"}
    codecs = [bytes_codec]
    if isinstance(codec, Blosc):
        configuration: dict[str, Any] = {
            "cname": codec.cname,
            "clevel": codec.clevel,
            "shuffle": codec.shuffle,
            "blocksize": 0,
        }
        if codec.shuffle != "noshuffle":
            configuration["typesize"] = itemsize
        codecs.append({"name": "blosc", "configuration": configuration})
    elif isinstance(codec, Zstd):
        codecs.append({"name": "zstd", "configuration": {"level": codec.level, "checksum": False}})
    elif isinstance(codec, Gzip):
        codecs.append({"name": "gzip", "configuration": {"level": codec.level}})
    if checksum:
        codecs.append({"name": "crc32c"})
    return codecs


def codec_of(inner: CodecChain) -> Blosc | Zstd | Gzip | None:
    """Returns the inverse of ``inner_codecs``, also for other writers' settings. Raises ``SpecError`` for a
    compressor that can be read but not written here."""
    named = {codec.name: codec.configuration for codec in inner.codecs}
    try:
        if "blosc" in named:
            facts = named["blosc"]
            return Blosc(
                cname=facts["cname"], clevel=facts["clevel"], shuffle=facts.get("shuffle", "noshuffle")
            )
        if "zstd" in named:
            return Zstd(level=named["zstd"].get("level", 1))
        return Gzip(level=named["gzip"].get("level", 1)) if "gzip" in named else None
    except (KeyError, ValueError) as error:
        raise unwritable(inner) from error


def unwritable(inner: CodecChain) -> SpecError:
    """Returns the error that our kernels do not write chunks of these ``codecs``."""
    return SpecError(
        "chunks of this codec can be read but not written",
        got=inner.as_json,
        hint="Choose another one, for instance --codec zstd:5",
    )


def group_document(
    spec: ArraySpec,
    name: str,
    attributes: dict[str, Any] | None = None,
    position: StagePosition | None = None,
    version: OmeVersion | None = None,
    *,
    in_scene: bool = False,
) -> dict[str, Any]:
    """Returns zarr.json of the OME-Zarr group that holds the image, at ``position``. ``attributes`` stand
    beside ours. ``version``: None for the default. ``in_scene``: the group above has the position."""
    ome = ome_attributes(spec, name, None if in_scene else position, version)
    group = group_node({**(attributes or {}), "ome": ome})
    return group if position is None else with_grid(group, position)


def image_group(
    spec: AcquisitionSpec,
    image: int | None,
    name: str,
    updates: MetadataUpdate,
    position: StagePosition | None,
) -> dict[str, Any]:
    """Returns zarr.json of the group of an image as it is made, with what users say of it: ``updates``, and
    where it is. ``image``: None of a single one."""
    number, in_scene = image or 0, spec.scene_axes is not None
    array, version = spec.arrays[number], spec.ome_version
    group = group_document(array, name, None, position, version, in_scene=in_scene)
    attributes = {**updates.over(spec.attributes_of(image)), **group["attributes"]}
    return with_additions({**group, "attributes": attributes}, updates, ome_in(group))


def array_documents(spec: ArraySpec, extents: Sequence[int]) -> list[dict[str, Any]]:
    """Returns zarr.json of the image's array when its ``growing_axes`` have so many elements, and of each
    level that is written with it."""
    chunk = [d.chunk_size for d in spec.dimensions]
    documents = [_array_document(spec, array_shape(spec, extents), chunk, spec.attributes)]
    for number, level in enumerate(spec.level_shapes, 1):
        assert spec.levels is not None, "it has shapes"
        shape = array_shape(spec, extents, level.counts)
        made = {"level": number, "of": str(number - 1), **how_made(spec.levels.method, spec.levels.factors)}
        documents.append(_array_document(spec, shape, level.chunk, _recorded(spec.attributes, made)))
    return documents


def _array_document(
    spec: ArraySpec, shape: list[int], chunk: Sequence[int], attributes: dict[str, Any]
) -> dict[str, Any]:
    """``chunk``: elements along each axis, in the order of acquisition."""
    chunk_of = {d.name: size for d, size in zip(spec.dimensions, chunk, strict=True)}
    stored = spec.stored_dimensions
    return array_node(
        shape=shape,
        data_type=spec.dtype,
        grid=[chunk_of[d.name] * d.shard_chunks for d in stored],
        fill_value=fill_value_json(spec),
        codecs=array_codecs(
            spec.actual_index_location,
            [chunk_of[d.name] for d in stored],
            codec_metadata(spec),
            index_codecs(spec),
        ),
        attributes=attributes,
        names=[d.name for d in stored],
    )


def derived_array(
    document: dict[str, Any],
    *,
    shape: tuple[int, ...],
    shard_shape: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    chunk_codecs: list[Any],
    index_location: IndexLocation,
    made: dict[str, Any],
    index_codecs: list[Any] | None = None,
) -> dict[str, Any]:
    """Returns zarr.json of an array with another shape, other chunks or another codec than ``document``, and
    all its other fields of Zarr v3: dtype, fill value, axes, attributes. ``index_codecs``: None for ours.
    ``made`` records how, under the creator's attribute."""
    changed = copy.deepcopy(understood(document))
    changed["shape"] = list(shape)
    if changed.get("dimension_names") is None:  # null, which tensorstore refuses, says no more than nothing
        changed.pop("dimension_names", None)
    changed["chunk_grid"]["configuration"]["chunk_shape"] = list(shard_shape)
    changed["codecs"] = array_codecs(index_location, chunk_shape, chunk_codecs, index_codecs)
    changed["attributes"] = _recorded(changed.get("attributes") or {}, made)
    return changed


def _recorded(attributes: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Returns attributes that record also how the array was made. Its files are of no container but that of
    ``made``."""
    before = {k: v for k, v in creator_facts({"attributes": attributes}).items() if k != CONTAINER}
    return {**attributes, OWN_ATTRIBUTE: {**before, **made}}


def contained_array(document: dict[str, Any], container: str) -> dict[str, Any]:
    """Returns zarr.json of an array whose shards have become files of a container as well: their index is at
    the start, and the array says so."""
    attributes = _recorded(document.get("attributes") or {}, {CONTAINER: container})
    return {**with_index_at_start(document), "attributes": attributes}


def with_index_at_start(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns zarr.json of a sharded array, or some of its fields, with the index of shards at the start."""
    sharding, *others = document["codecs"]
    at_start = {**sharding, "configuration": {**sharding["configuration"], "index_location": "start"}}
    return {**document, "codecs": [at_start, *others]}


def creator_facts(document: dict[str, Any]) -> dict[str, Any]:
    """Returns what a program of ours recorded in the attributes of a node; nothing where none did."""
    found = (document.get("attributes") or {}).get(OWN_ATTRIBUTE)
    return found if isinstance(found, dict) else {}


def how_made(method: str, factors: Mapping[str, int]) -> dict[str, Any]:
    """Returns how levels were made, as their zarr.json records it: ``axes`` where all factors are 2, as
    earlier releases say it, else ``factors``."""
    reduced = {name: factor for name, factor in factors.items() if factor > 1}
    if set(reduced.values()) <= {2}:
        return {"method": method, "axes": list(reduced)}
    return {"method": method, "factors": reduced}


def collection_documents(
    spec: AcquisitionSpec,
    extents: Mapping[int, Sequence[int]],
    attributes: dict[str, Any],
    *,
    name: str,
    start_s: int,
    end_s: int | None = None,
    positions: Mapping[int, StagePosition] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Returns zarr.json of the groups above the images of a collection, by their paths in the store: they
    name the images that have an array. ``extents``: of those images along their growing axes, by number.
    ``attributes``: of the store's group, beside ours. ``name`` of the acquisition, and when it began and
    ended (UTC, seconds since 1970; None: not known), for a plate. ``positions``: those of images that became
    known, which count more than those that were declared."""
    version, plate = spec.ome_version, spec.whole_plate
    if plate is None:
        folders = {image: spec.folders[image] for image in extents}
        above = dict.fromkeys(each for folder in folders.values() for each in folders_to(folder)[:-1])
        layout = {"bioformats2raw.layout": 3, **_scene(spec, folders, positions)}
        return {
            **{f"{folder}/{DOCUMENT}": _group(version) for folder in above},
            f"OME/{DOCUMENT}": _group(version, {"series": list(folders.values())}),
            DOCUMENT: _group(version, layout, attributes),
        }
    acquisitions = _acquisitions(plate, name, start_s, end_s)
    return _plate_documents(spec, plate, extents, attributes, acquisitions)


def _plate_documents(
    spec: AcquisitionSpec,
    plate: Plate,
    images: Iterable[int],
    attributes: dict[str, Any],
    acquisitions: list[dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    wells: dict[tuple[str, str], list[str]] = {}
    for image in images:
        row, column, field = spec.names[image].split("/")
        wells.setdefault((row, column), []).append(field)
    version = spec.ome_version
    documents = {f"{row}/{DOCUMENT}": _group(version) for row, _ in wells}
    acquisition_of = {field: each.id for each in plate.acquisitions for field in each.fields}
    first = acquisitions[0]["id"]  # without fields of its own it has all
    for (row, column), fields in wells.items():
        nodes = [{"path": field, "acquisition": acquisition_of.get(field, first)} for field in fields]
        documents[f"{row}/{column}/{DOCUMENT}"] = _group(version, {"well": {"images": nodes}})
    wells_at = [
        {
            "path": f"{row}/{column}",
            "rowIndex": plate.rows.index(row),
            "columnIndex": plate.columns.index(column),
        }
        for row, column in wells
    ]
    facts = {
        "name": plate.name,
        "rows": [{"name": name} for name in plate.rows],
        "columns": [{"name": name} for name in plate.columns],
        "wells": wells_at,
        "field_count": len(plate.field_names),
        "acquisitions": acquisitions,
    }
    return {**documents, DOCUMENT: _group(version, {"plate": facts}, attributes)}


def _scene(
    spec: AcquisitionSpec, folders: Mapping[int, str], positions: Mapping[int, StagePosition]
) -> dict[str, Any]:
    """Returns how the images in ``folders`` are related by their positions; nothing where that is said
    elsewhere, or none has one."""
    if (axes := spec.scene_axes) is None:
        return {}
    at = {
        folder: translation_of(positions.get(image, spec.position_of(image)), axes)
        for image, folder in folders.items()
    }
    return scene_of(axes_facts(axes), at)


def _acquisitions(plate: Plate, name: str, start_s: int, end_s: int | None) -> list[dict[str, Any]]:
    """Returns the acquisitions of a plate, as far as they are known. When the only one began and ended the
    writer knows, as long as nobody says otherwise; of several it does not know."""
    given = plate.acquisitions or (PlateAcquisition(id=0, name=name),)
    start, end = (start_s, end_s) if len(given) == 1 else (None, None)
    facts = [
        {
            "id": each.id,
            "name": each.name,
            "maximumfieldcount": len(each.fields or plate.field_names),
            "starttime": start if each.start is each.end is None else each.start,
            "endtime": end if each.start is each.end is None else each.end,
        }
        for each in given
    ]
    return [{key: value for key, value in each.items() if value is not None} for each in facts]


def collection_xml(
    spec: AcquisitionSpec,
    extents: Mapping[int, Sequence[int]],
    position_of: Callable[[int], StagePosition | None] = lambda _: None,
) -> dict[str, bytes]:
    """Returns the images of a collection as OME-XML, in which napari's reader looks for them, by its path in
    the store; nothing for a plate. An axis that OME-XML does not know counts as channels. ``position_of``:
    of an image with an extent, None where it is not known."""
    if spec.plate is not None:
        return {}
    root = Element("OME", xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06")
    for number, reached in extents.items():
        array = spec.arrays[number]
        shape = array_shape(array, reached)
        sizes = dict.fromkeys("XYZCT", 1)
        for d, size in zip(array.stored_dimensions[:-2], shape[:-2], strict=True):
            sizes[_XML_AXIS[d.axis_type]] *= size
        sizes["Y"], sizes["X"] = array.frame_shape
        path = spec.folders[number]
        image = SubElement(root, "Image", ID=f"Image:{path}", Name=spec.names[number])
        if (position := position_of(number)) is not None:
            image.append(_stage_label(spec.names[number], position))
        facts = {
            "ID": f"Pixels:{path}",
            "DimensionOrder": "XYZCT",
            "Type": _XML_TYPE.get(array.dtype, array.dtype),
            **{f"Size{axis}": str(max(size, 1)) for axis, size in sizes.items()},
        }
        pixels = SubElement(image, "Pixels", facts)
        SubElement(pixels, "MetadataOnly")
    return {f"OME/{OME_XML}": bytes(tostring(root, encoding="UTF-8", xml_declaration=True))}


def _stage_label(name: str, position: StagePosition) -> Element:
    known = {axis: value for axis in AXES if (value := position.in_micrometers(axis)) is not None}
    facts = {"Name": name, **{axis.upper(): repr(value) for axis, value in known.items()}}
    return Element("StageLabel", {**facts, **{f"{axis.upper()}Unit": "\u00b5m" for axis in known}})


def _group(
    version: OmeVersion | None, ome: dict[str, Any] | None = None, attributes: dict[str, Any] | None = None
) -> dict[str, Any]:
    own = {} if ome is None else {"ome": ome_of(version, ome)}
    return group_node({**(attributes or {}), **own})
