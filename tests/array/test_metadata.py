"""zarr.json as zarr-python and yaozarrs read it, and the warnings for layouts that some readers refuse."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from yaozarrs import validate_ome_object
from yaozarrs.v05 import Image

import shardwright as sw
from shardwright.array import document
from shardwright.array.acquisition_spec import AcquisitionSpec
from shardwright.array.document import encode_document, group_node
from shardwright.array.metadata import (
    array_documents,
    array_shape,
    codec_metadata,
    collection_xml,
    fill_value_json,
    group_document,
)
from shardwright.array.ome import layout_warnings, with_channels
from shardwright.array.spec import ArraySpec, Blosc, Channel, Dimension, Gzip, Zstd, parse_spec
from shardwright.model.errors import LayoutWarning, ShardFormatError, SpecError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.write_options import DTYPES

YX = (("y", 10, 4, 2), ("x", 9, 3, 2))


def write(tmp_path, spec: ArraySpec, extent: int) -> zarr.Array:
    (tmp_path / "0").mkdir()
    (tmp_path / "zarr.json").write_text(json.dumps(group_document(spec, "img")))
    (tmp_path / "0" / "zarr.json").write_bytes(encode_document(array_documents(spec, (extent,))[0]))
    array = zarr.open_group(tmp_path, mode="r")["0"]
    assert isinstance(array, zarr.Array)
    return array


@pytest.mark.parametrize("dtype", DTYPES)
def test_zarr_python_opens_every_dtype(tmp_path, spec_of, dtype):
    array = write(tmp_path, spec_of(("t", None, 2, 3), *YX, dtype=dtype, fill_value=1), 7)
    assert (array.shape, array.chunks, array.shards, array.dtype) == (
        (7, 10, 9),
        (2, 4, 3),
        (6, 8, 6),
        np.dtype(dtype),
    )
    assert array.metadata.dimension_names == ("t", "y", "x")
    assert (array[...] == np.ones((), dtype)).all()


CODECS = [
    None,
    Zstd(level=3),
    Gzip(level=2),
    *(
        Blosc(cname=c, shuffle=s)
        for c in ("lz4", "lz4hc", "zstd", "zlib")
        for s in ("noshuffle", "shuffle", "bitshuffle")
    ),
]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("checksum", [False, True])
def test_zarr_python_opens_every_codec(tmp_path, spec_of, codec, checksum):
    array = write(
        tmp_path, spec_of(*YX, codec=codec, chunk_checksum=checksum, index_location="start", fill_value=5), 0
    )
    assert array.shape == (10, 9)
    assert (array[...] == 5).all()
    (sharding,) = array.metadata.codecs
    assert [type(c).__name__.lower().removesuffix("codec") for c in sharding.codecs] == [
        "bytes", *([] if codec is None else [codec.name]), *(["crc32c"] if checksum else [])
    ]  # fmt: skip
    assert sharding.to_dict()["configuration"]["index_location"] == "start"


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("checksum", [False, True])
def test_an_array_without_shards_names_the_codecs_of_its_chunks_alone(tmp_path, spec_of, codec, checksum):
    axes = [(name, count, size, None) for name, count, size, _ in (("t", None, 2, 3), *YX)]
    array = write(tmp_path, spec_of(*axes, codec=codec, chunk_checksum=checksum, fill_value=5), 7)
    document = json.loads((tmp_path / "0" / "zarr.json").read_bytes())
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [2, 4, 3]
    names = ["bytes", *([] if codec is None else [codec.name]), *(["crc32c"] if checksum else [])]
    assert [c["name"] for c in document["codecs"]] == names
    assert (array.shape, array.chunks, array.shards) == ((7, 10, 9), (2, 4, 3), None)
    assert (array[...] == 5).all()


def test_levels_of_an_array_without_shards_have_none(spec_of):
    axes = [(name, count, size, None) for name, count, size, _ in (("t", None, 2, 3), *YX)]
    spec = spec_of(*axes, levels=1)
    whole, level = array_documents(spec, (7,))
    assert level["shape"] == [7, 5, 5]
    assert level["chunk_grid"]["configuration"]["chunk_shape"] == [2, 4, 3]
    assert level["codecs"] == whole["codecs"]
    assert level["codecs"][0]["name"] == "bytes"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("NaN", "NaN"), (float("inf"), "Infinity"), ("-Infinity", "-Infinity"), (0.5, 0.5), (3, 3.0)],
)
def test_float_fill_values(tmp_path, spec_of, value, expected):
    spec = spec_of(*YX, dtype="float32", fill_value=value)
    assert fill_value_json(spec) == expected
    assert np.array_equal(write(tmp_path, spec, 0)[...], np.full((10, 9), np.float32(value)), equal_nan=True)


_TEXT = st.text(st.characters(codec=None)) | st.text('\x00\n\x1f\x7f\u2028\ud800"\\/')  # surrogates, too
_POWERS = st.tuples(st.floats(-9, 9), st.integers(-25, 25)).map(lambda part: part[0] * 10.0 ** part[1])
_NUMBERS = st.integers() | st.integers(-(10**400), 10**400) | st.floats() | _POWERS
_LEAVES = st.none() | st.booleans() | _NUMBERS | _NUMBERS.map(str) | _TEXT
_VALUES = _NUMBERS | st.recursive(
    _LEAVES, lambda some: st.lists(some) | st.lists(some).map(tuple) | st.dictionaries(_TEXT, some)
)


def assert_bytes_of_json(value):
    group = group_node({"a": [value, {"b": value}], "c": {}})
    assert encode_document(group, foreign=True) == json.dumps(group, indent=2).encode()


@pytest.mark.parametrize(
    "value",
    [
        *(1e16, 1e-07, 1e-05, 9.99e-05, 1e-04, 1.5e300, -0.0, 5e-324, 2**70, 10**400, float("nan")),
        *(-float("inf"), np.float64(0.1), FrameStatus(1), "NaN", "5e3", "caf\u00e9", "\U0001f52c", "\ud800"),
        *("\u2028", "\x7f", "\x1f", [], {}, (1, [2]), None, True),
    ],
    ids=ascii,
)
def test_a_document_has_the_bytes_of_json(value):
    assert_bytes_of_json(value)


@given(_VALUES)
def test_any_document_has_the_bytes_of_json(value):
    assert_bytes_of_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_document_of_ours_has_only_numbers_of_json(value):
    with pytest.raises(ShardFormatError, match="cannot hold NaN"):
        encode_document(group_node({"a": value}))


def test_documents_of_images_are_not_encoded_in_python(spec_of, monkeypatch):
    spec = spec_of(("t", None, 2, 2), *YX)
    documents = [group_document(spec, "tile1"), *array_documents(spec, (3,))]
    wanted = [json.dumps(each, indent=2).encode() for each in documents]
    monkeypatch.delattr(document, "json")
    assert list(map(encode_document, documents)) == wanted


def test_ome_xml_has_names_as_they_are(spec_of):
    names = ['"quoted"', "it's", "a < b > c & d", "\u00b5m", "&amp;"]
    spec = AcquisitionSpec(array=spec_of(("t", None, 2, 2), *YX), images=[{"name": n} for n in names])
    (xml,) = collection_xml(spec, {number: (number,) for number in range(len(names))}).values()
    images = list(ET.fromstring(xml))
    assert [image.get("Name") for image in images] == names
    assert [image[0].get("SizeT") for image in images] == ["1", "1", "2", "3", "4"]
    assert not list(ET.fromstring(*collection_xml(spec, {}).values()))


def test_the_shape_follows_the_storage_order(spec_of):
    spec = spec_of(
        ("t", None, 1, 1), ("z", 5, 1, 1), ("c", 2, 1, 1), *YX, storage_order=("z", "c", "t", "y", "x")
    )
    assert array_shape(spec, (7,)) == [5, 2, 7, 10, 9]
    assert array_shape(spec_of(*YX), ()) == [10, 9]


AXES = {
    "yx": [*YX],
    "tyx": [("t", None, 1, 1), *YX],
    "zyx": [("z", 4, 2, 1), *YX],
    "cyx": [("c", 3, 1, 1), *YX],
    "tczyx": [("t", None, 1, 1), ("c", 2, 1, 1), ("z", 3, 1, 1), *YX],
}


@pytest.mark.parametrize("axes", AXES)
def test_yaozarrs_accepts_the_usual_axes(spec_of, axes):
    spec = spec_of(*AXES[axes])
    document = group_document(spec, "img")
    validate_ome_object(document["attributes"]["ome"], Image)
    assert layout_warnings(spec) == []
    channels = document["attributes"]["ome"]["omero"]["channels"]
    assert len(channels) == {"c": 3, "t": 1, "z": 1, "y": 1}[axes[0]] * (2 if axes == "tczyx" else 1)
    assert all(len(c["color"]) == 6 and set(c["window"]) == {"min", "max", "start", "end"} for c in channels)


def test_channels_have_the_names_colours_and_windows_that_were_given(spec_of):
    spec = spec_of(
        ("t", None, 1, 1),
        ("c", 3, 1, 1),
        *YX,
        channels=[
            Channel(name="GFP", color="00ff00", window=(100, 4095), emission_nm=509, exposure_ms=20),
            {"name": "DAPI", "color": "0000ff"},
            {"name": "beyond the dtype", "window": (-5, 70_000)},
        ],
    )
    ome = group_document(spec, "img")["attributes"]["ome"]
    validate_ome_object(ome, Image)
    assert ome["omero"]["channels"] == [
        {
            "label": "GFP",
            "color": "00FF00",
            "active": True,
            "window": {"min": 0, "max": 65535, "start": 100, "end": 4095},
            "emission_nm": 509,
            "exposure_ms": 20,
        },
        {
            "label": "DAPI",
            "color": "0000FF",
            "active": True,
            "window": {"min": 0, "max": 65535, "start": 0, "end": 65535},
        },
        {
            "label": "beyond the dtype",
            "color": "FF00FF",
            "active": True,
            "window": {"min": -5, "max": 70_000, "start": -5, "end": 70_000},
        },
    ]
    assert ArraySpec.model_validate(spec.model_dump(mode="json")) == spec


def test_a_spec_without_channels_is_one_of_earlier_releases(spec_of):
    assert "channels" not in spec_of(*YX).model_dump(mode="json"), "they refuse fields that they do not know"


def test_the_channel_of_an_image_without_a_channel_axis(spec_of):
    spec = spec_of(*YX, channels=[{"name": "bright field"}])
    (channel,) = group_document(spec, "img")["attributes"]["ome"]["omero"]["channels"]
    assert (channel["label"], channel["color"]) == ("bright field", "FFFFFF")


WRONG_CHANNELS = {
    "too few": ([{"name": "a"}], "one for each of the 2 elements"),
    "too many": ([{"name": "a"}] * 3, "one for each of the 2 elements"),
    "a colour by an unknown name": ([{"name": "a", "color": "greenish"}] * 2, "color"),
    "a short colour": ([{"name": "a", "color": "#0F0"}] * 2, "color"),
    "two names": ([{"name": "a", "label": "b"}] * 2, "label"),
    "no name": ([{"name": ""}] * 2, "name"),
    "a blank name": ([{"name": " "}] * 2, "printable"),
    "two lines": ([{"name": "a\nb"}] * 2, "printable"),
    "an empty window": ([{"name": "a", "window": (5, 5)}] * 2, "low < high"),
    "an endless window": ([{"name": "a", "window": (0, float("inf"))}] * 2, "low < high"),
    "light without a wavelength": ([{"name": "a", "emission_nm": 0}] * 2, "emission_nm"),
}


@pytest.mark.parametrize("name", WRONG_CHANNELS)
def test_wrong_channels_are_named(spec_of, name):
    channels, message = WRONG_CHANNELS[name]
    facts = spec_of(("c", 2, 1, 1), *YX).model_dump() | {"channels": channels}
    with pytest.raises(SpecError, match=message):
        parse_spec(facts)


def test_scales_and_units_stand_in_storage_order():
    dimensions = [
        Dimension(name="t", count=None, chunk_size=1, unit="second", scale=0.5),
        Dimension(name="z", count=2, chunk_size=1, unit="micrometer", scale=2),
        Dimension(name="c", count=2, chunk_size=1),
        Dimension(name="y", count=4, chunk_size=4, unit="micrometer", scale=0.1),
        Dimension(name="x", count=4, chunk_size=4, unit="micrometer", scale=0.1),
    ]
    spec = ArraySpec(dtype="uint16", dimensions=dimensions, storage_order=("t", "c", "z", "y", "x"))
    (image,) = group_document(spec, "img")["attributes"]["ome"]["multiscales"]
    assert image["axes"] == [
        {"name": "t", "type": "time", "unit": "second"},
        {"name": "c", "type": "channel"},
        {"name": "z", "type": "space", "unit": "micrometer"},
        {"name": "y", "type": "space", "unit": "micrometer"},
        {"name": "x", "type": "space", "unit": "micrometer"},
    ]
    assert image["datasets"][0]["coordinateTransformations"] == [
        {"type": "scale", "scale": [0.5, 1.0, 2.0, 0.1, 0.1]}
    ]


@pytest.mark.parametrize("unknown", [0, 0.0, -0.0, "0"])  # as text: from YAML
def test_a_scale_of_0_is_unknown_and_claims_no_size(unknown):
    """Micro-Manager says it of a pixel size that nobody calibrated. OME-Zarr demands a scale, and 0 is
    none."""
    y, x = (
        {"name": name, "count": 4, "chunk_size": 4, "unit": "micrometer", "scale": scale}
        for name, scale in (("y", unknown), ("x", 0.1))
    )
    spec = ArraySpec(dtype="uint16", dimensions=[{"name": "t", "chunk_size": 1}, y, x])
    (image,) = group_document(spec, "img")["attributes"]["ome"]["multiscales"]
    assert image["axes"][1:] == [
        {"name": "y", "type": "space"},
        {"name": "x", "type": "space", "unit": "micrometer"},
    ]
    assert image["datasets"][0]["coordinateTransformations"] == [{"type": "scale", "scale": [1.0, 1.0, 0.1]}]
    assert ArraySpec.model_validate(spec.model_dump(mode="json")) == spec, (
        "as every daemon knows it: what is sent and kept has no 0"
    )


T, Z, C = ("t", None, 1, 1), ("z", 3, 1, 1), ("c", 2, 1, 1)
WARNED = {
    "index at the start": (
        lambda spec_of: spec_of(*YX, index_location="start"),
        "not understood by zarrita (JavaScript; neuroglancer reads it): zarrita shows a shard that grows",
    ),
    "channel behind depth": (
        lambda spec_of: spec_of(T, Z, C, *YX),
        "give them in that order, and with order that of the frames",
    ),
    "two times": (lambda spec_of: spec_of(T, ("T", 2, 1, 1), *YX), "1 time axis, this array has 2"),
    "six axes": (lambda spec_of: spec_of(T, ("a", 2, 1, 1), C, Z, *YX), "2 to 5 axes, this array has 6"),
    "axes of no kind": (lambda spec_of: spec_of(("a", 4, 2, 1), ("b", 4, 2, 1)), "2 or 3 space axes"),
    "float16": (lambda spec_of: spec_of(*YX, dtype="float16"), "float16 is not among"),
    "tcxy": (lambda spec_of: spec_of(T, C, YX[1], YX[0]), "columns are stored before rows (t, c, x, y)"),
    "tyx stored as txy": (
        lambda spec_of: spec_of(T, *YX, storage_order=("t", "x", "y")),
        "columns are stored before rows (t, x, y), which OME-Zarr advises against: ngff-zarr's validator",
    ),
    "others' names for rows and columns": (
        lambda spec_of: spec_of(T, ("r", 4, 2, 1), ("q", 4, 2, 1), storage_order=("t", "q", "r")),
        "columns are stored before rows (t, q, r)",
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_layouts_that_some_readers_refuse_are_named(spec_of, name):
    make, message = WARNED[name]
    assert any(message in warning for warning in layout_warnings(make(spec_of)))


def test_an_axis_of_very_many_channels_does_not_describe_each(spec_of):
    few, many = (group_document(spec_of(T, ("c", count, 1, 1), *YX), "a") for count in (1024, 2**40))
    assert len(few["attributes"]["ome"]["omero"]["channels"]) == 1024
    assert "omero" not in many["attributes"]["ome"]
    assert validate_ome_object(many["attributes"]["ome"], Image)


def test_channels_of_an_axis_without_a_count_are_described_once_it_ends(spec_of):
    spec = spec_of(("c", None, 1, 1), *YX, channels=[{"name": "DAPI"}])
    group = group_document(spec, "a")
    assert "omero" not in group["attributes"]["ome"]
    described = with_channels(group, spec, 3)
    assert validate_ome_object(described["attributes"]["ome"], Image)
    labels = [channel["label"] for channel in described["attributes"]["ome"]["omero"]["channels"]]
    assert labels == ["DAPI", "channel 1", "channel 2"]
    assert with_channels(described, spec, 4) is described, "others may have written them"
    assert with_channels(group, spec, 1025) is group
    counted = spec_of(("c", 2, 1, 1), *YX)
    assert with_channels(group, counted, 2) is group


def test_reordering_takes_the_warning_away(spec_of):
    assert layout_warnings(spec_of(T, Z, C, *YX, storage_order=("t", "c", "z", "y", "x"))) == []
    # frames whose rows are x and whose columns are y
    assert layout_warnings(spec_of(T, YX[1], YX[0], storage_order=("t", "y", "x"))) == []


def test_create_warns_of_columns_before_rows(tmp_path):
    with pytest.warns(LayoutWarning, match="columns are stored before rows"):
        sw.create(tmp_path / "a.ome.zarr", shape=(4, 3, 2), dtype="uint8", axes="zxy").close()


@pytest.mark.parametrize("version", ["0.5", "0.6"])
def test_levels_say_how_they_were_made(spec_of, version):
    spec = spec_of(T, *YX, levels={"count": 1, "method": "max", "factors": {"y": 2, "x": 3}})
    ome = group_document(spec, "a", version=version)["attributes"]["ome"]
    assert (ome["version"], ome["multiscales"][0]["type"]) == (version, "max")
    assert ome["multiscales"][0]["metadata"] == {
        "method": "shardwright max",
        "version": sw.__version__,
        "kwargs": {"factors": {"y": 2, "x": 3}},
    }
    if version == "0.5":
        assert validate_ome_object(ome, Image)
    assert "metadata" not in group_document(spec_of(T, *YX), "a")["attributes"]["ome"]["multiscales"][0]


def test_codec_metadata():
    axes = [Dimension(name=n, count=1, chunk_size=1) for n in "yx"]
    spec = ArraySpec(
        dtype="uint16",
        dimensions=axes,
        codec=Blosc(cname="zstd", clevel=3, shuffle="bitshuffle"),
        chunk_checksum=True,
    )
    assert codec_metadata(spec) == [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {
            "name": "blosc",
            "configuration": {
                "cname": "zstd",
                "clevel": 3,
                "shuffle": "bitshuffle",
                "blocksize": 0,
                "typesize": 2,
            },
        },
        {"name": "crc32c"},
    ]
    assert codec_metadata(ArraySpec(dtype="uint8", dimensions=axes, codec=None)) == [{"name": "bytes"}]
