"""What a specification refuses, and that the message names the field; what it keeps on its way through
JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from pydantic import ValidationError

from shardwright.array.acquisition_spec import image_count, parse_acquisition, with_index_for
from shardwright.array.grid import Grid, Grids
from shardwright.array.plate import Plate
from shardwright.array.spec import (
    MAX_ATTRIBUTES_BYTES,
    MAX_ATTRIBUTES_DEPTH,
    MAX_CHUNK_BYTES,
    MAX_FRAMES,
    ArraySpec,
    Blosc,
    Dimension,
    Gzip,
    Zstd,
    parse_spec,
)
from shardwright.kernels.place import slabs_and_indices
from shardwright.model.errors import SpecError
from shardwright.model.write_options import DTYPES
from shardwright.wire.messages import MAX_IMAGES

T = {"name": "t", "count": None, "chunk_size": 4}
Y = {"name": "y", "count": 8, "chunk_size": 4}
X = {"name": "x", "count": 8, "chunk_size": 4}
GOOD = {"dtype": "uint16", "dimensions": [T, Y, X]}


def deep(value: object, levels: int) -> object:
    for _ in range(levels):
        value = [value]
    return value


def nested(levels: int) -> dict:
    return {"a": deep(0, levels)}


BAD = {
    "unknown dtype": ({"dtype": "complex64"}, "dtype 'complex64' is not one of bool, int8"),
    "no dtype": ({"dtype": None}, "dtype 'None' is not one of"),
    "structured dtype": ({"dtype": [("a", "u2")]}, "dtype"),
    "dtype by NumPy's type number": ({"dtype": "\n"}, r"dtype '\\n' is not one of"),
    "dtype by a number": ({"dtype": 10}, "dtype '10' is not one of"),
    "dtype with a newline": ({"dtype": "uint16\n"}, r"dtype 'uint16\\n' is not one of"),
    "dtype that is no type": (
        {"dtype": {"names": ["a"], "formats": ["u2"], "offsets": [2**70]}},
        "dtype .* is not one of",
    ),
    "unknown field": ({"colour": 1}, "colour"),
    "one axis": ({"dimensions": [Y]}, "dimensions"),
    "thirteen axes": ({"dimensions": [{**Y, "name": f"a{i}"} for i in range(13)]}, "dimensions"),
    "same name twice": ({"dimensions": [T, Y, Y]}, "dimensions: names must differ"),
    "unlimited second axis": (
        {"dimensions": [{**Y, "name": "z"}, T, Y, X]},
        "dimensions: 't' has no count and changes faster than 'z', .* chunk_size 1 .* got 4 and 1",
    ),
    "unlimited rows": (
        {"dimensions": [Y, T, X]},
        "dimensions: the two axes of the frame itself need a count",
    ),
    "unlimited frame": ({"dimensions": [T, X]}, "dimensions: the two axes of the frame itself need a count"),
    "count 0": ({"dimensions": [{**T, "count": 0}, Y, X]}, r"dimensions\.0\.count"),
    "chunk size 0": ({"dimensions": [T, {**Y, "chunk_size": 0}, X]}, r"dimensions\.1\.chunk_size"),
    "negative shard": (
        {"dimensions": [T, Y, {**X, "shard_size_chunks": -1}]},
        r"dimensions\.2\.shard_size_chunks",
    ),
    "name with a slash": ({"dimensions": [T, Y, {**X, "name": "a/b"}]}, r"dimensions\.2\.name"),
    "empty name": ({"dimensions": [T, Y, {**X, "name": ""}]}, r"dimensions\.2\.name"),
    "unknown type": ({"dimensions": [{**T, "type": "tempo"}, Y, X]}, r"dimensions\.0\.type"),
    "scale below 0": ({"dimensions": [{**T, "scale": -0.1}, Y, X]}, r"dimensions\.0\.scale"),
    "scale no number": ({"dimensions": [{**T, "scale": math.nan}, Y, X]}, r"dimensions\.0\.scale"),
    "infinite scale": ({"dimensions": [{**T, "scale": math.inf}, Y, X]}, r"dimensions\.0\.scale"),
    "unknown field of an axis": ({"dimensions": [{**T, "shard": 2}, Y, X]}, r"dimensions\.0\.shard"),
    "chunk too large": (
        {"dimensions": [{**T, "chunk_size": 2**20}, {**Y, "chunk_size": 2**10}, X]},
        f"one inner chunk .* {MAX_CHUNK_BYTES}",
    ),
    "unknown codec": ({"codec": {"name": "lzma"}}, "codec.*lzma"),
    "unknown codec by name": ({"codec": "lzma"}, r"(?s)codec.*lzma.*'zstd'"),
    "unknown compressor": ({"codec": {"name": "blosc", "cname": "snappy"}}, r"codec\.blosc\.cname"),
    "blosc level": ({"codec": {"name": "blosc", "clevel": 10}}, r"codec\.blosc\.clevel"),
    "zstd level": ({"codec": {"name": "zstd", "level": 23}}, r"codec\.zstd\.level"),
    "gzip level": ({"codec": {"name": "gzip", "level": -1}}, r"codec\.gzip\.level"),
    "index location": ({"index_location": "middle"}, "index_location"),
    "storage order lacks an axis": (
        {"storage_order": ["t", "y"]},
        "storage_order: must name every axis once",
    ),
    "storage order with another": (
        {"storage_order": ["z", "y", "x"]},
        "storage_order: must name every axis once",
    ),
    "storage order turns the frame": (
        {"storage_order": ["x", "t", "y"]},
        r"storage_order: must end with the frame's own axes \['y', 'x'\]",
    ),
    "fill value too large": ({"fill_value": 65536}, "fill_value: 65536 is not a uint16"),
    "fill value negative": ({"fill_value": -1}, "fill_value: -1 is not a uint16"),
    "fill value broken": ({"fill_value": 1.5}, "fill_value: 1.5 is not a uint16"),
    "fill value infinite": ({"fill_value": math.inf}, "fill_value: 'Infinity' is not a uint16"),
    "fill value no number": ({"fill_value": math.nan}, "fill_value: 'NaN' is not a uint16"),
    "fill value a word": ({"dtype": "float32", "fill_value": "zero"}, "fill_value: 'zero' is not a float32"),
    "fill value past float32": (
        {"dtype": "float32", "fill_value": 1e300},
        r"fill_value: 1e\+300 is out of a float32's range",
    ),
    "fill value past float64": (
        {"dtype": "float64", "fill_value": 10**400},
        "fill_value: .* is out of a float64's range",
    ),
    "fill value past float64, with levels": (
        {"dtype": "float64", "fill_value": 10**400, "levels": 1},
        "fill_value: .* is out of a float64's range",
    ),
    "fill value of which four are past float64": (
        {"dtype": "float64", "fill_value": 10**308, "levels": 1},
        "levels: a sum of fill values overflows, choose another fill_value",
    ),
    "fill value past float16": (
        {"dtype": "float16", "fill_value": -70000},
        "fill_value: -70000 is out of a float16's range",
    ),
    "fill value no bool": ({"dtype": "bool", "fill_value": 2}, "fill_value: 2 is not a bool"),
    "attributes with an object": ({"attributes": {"a": object()}}, "attributes: must be plain JSON"),
    "attributes with NaN": ({"attributes": {"a": [math.nan]}}, "attributes: must be plain JSON"),
    "attributes with half of a pair": ({"attributes": {"a": ["\ud800"]}}, "attributes: must be plain JSON"),
    "attributes with a name of none": ({"attributes": {"\ud800": 1}}, "attributes: must be plain JSON"),
    "attributes too deep": (
        {"attributes": nested(MAX_ATTRIBUTES_DEPTH)},
        "attributes: nested too deep, expected at most 64",
    ),
    "attributes too long": (
        {"attributes": {"a": "x" * MAX_ATTRIBUTES_BYTES}},
        "attributes: too long, expected at most 1048576 bytes",
    ),
    "attributes that are long in zarr.json": (
        {"attributes": {"a": deep([0] * 20_000, 60)}},
        "attributes: too long",
    ),
    "a unit of a page": ({"dimensions": [{**T, "unit": "m" * 200}, Y, X]}, r"dimensions\.0\.unit"),
    "a count past int64": ({"dimensions": [{**T, "count": 2**63}, Y, X]}, r"dimensions\.0\.count"),
    "more frames than places": (
        {
            "dimensions": [
                {**T, "count": 2**24},
                {**T, "name": "c", "count": 2**24},
                {**T, "name": "z", "count": 2},
                Y,
                X,
            ]
        },
        "dimensions: too many frames in the array, expected at most 281474976710656, got 562949953421312",
    ),
    "frames too large": (
        {"dimensions": [T, {**Y, "count": 2**18}, {**X, "count": 2**18}]},
        "dimensions: too many bytes in a frame",
    ),
    "too many chunks in a frame": (
        {"dimensions": [T, {**Y, "count": 2**13, "chunk_size": 1}, {**X, "count": 2**13, "chunk_size": 1}]},
        "dimensions: too many inner chunks in a frame, expected at most 16777216, got 67108864",
    ),
    "too many chunks in a shard": (
        {"dimensions": [{**T, "shard_size_chunks": 2**20}, {**Y, "shard_size_chunks": 2**5}, X]},
        "inner chunks in a shard.*got 33554432; better is shard_size_chunks of at most 524288 along t",
    ),
    "a chunk too large for the codecs": (
        {"dimensions": [{**T, "chunk_size": 2**12}, {**Y, "chunk_size": 2**12}, {**X, "chunk_size": 2**10}]},
        r"one inner chunk would have \d+ bytes.*; better is chunk_size of at most \d+ along t",
    ),
    "too many frames in a shard": (
        {
            "dtype": "uint8",
            "dimensions": [
                {**T, "chunk_size": 2**20, "shard_size_chunks": 2**12},
                {**Y, "chunk_size": 1},
                {**X, "chunk_size": 1},
            ],
        },
        "too many frames in a shard.*got 4294967296; better is shard_size_chunks of at most 2048 along t",
    ),
    "a chunk size past every file": (
        {"dimensions": [{**T, "chunk_size": 2**62}, Y, X]},
        r"dimensions\.0\.chunk_size",
    ),
    "shards along some axes": (
        {"dimensions": [T, {**Y, "shard_size_chunks": None}, {**X, "shard_size_chunks": None}]},
        "dimensions: shard_size_chunks is null along y, x and not along others, expected a number",
    ),
    "an index without shards": (
        {"dimensions": [{**d, "shard_size_chunks": None} for d in (T, Y, X)], "index_location": "start"},
        "index_location: is of shards, and an array of shard_size_chunks null has none",
    ),
    "a shard past every file": (
        {"dimensions": [{**T, "shard_size_chunks": 2**62}, Y, X]},
        r"dimensions\.0\.shard_size_chunks",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_the_name_of_its_field(name):
    change, message = BAD[name]
    with pytest.raises(ValidationError, match=message):
        ArraySpec.model_validate({**GOOD, **change})


def test_specs_are_frozen():
    spec = ArraySpec.model_validate(GOOD)
    with pytest.raises(ValidationError, match="frozen"):
        spec.dtype = "uint8"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "codec", [Blosc(cname="zstd", clevel=5, shuffle="bitshuffle"), Zstd(level=-3), Gzip(level=9), None]
)
def test_json_round_trip(dtype, codec):
    spec = ArraySpec.model_validate(
        {
            **GOOD,
            "dtype": dtype,
            "codec": codec,
            "index_location": "start",
            "chunk_checksum": True,
            "fill_value": 1,
            "attributes": {"a": {"b": [1, None, "µm"]}},
        }
    )
    assert ArraySpec.model_validate_json(spec.model_dump_json()) == spec
    assert ArraySpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -0.0, 0.1, "NaN", "-Infinity", np.float32(0.5)]
)
def test_float_fill_values_survive_json(value):
    spec = ArraySpec.model_validate({**GOOD, "dtype": "float32", "fill_value": value})
    again = ArraySpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert again.fill_bytes() == np.array(float(value), "<f4").tobytes()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("uint64", 2**64 - 1), ("int64", -(2**63)), ("int8", -128), ("bool", True), ("uint16", np.uint16(7))],
)
def test_integer_fill_values_survive_json(dtype, value):
    spec = ArraySpec.model_validate({**GOOD, "dtype": dtype, "fill_value": value})
    again = ArraySpec.model_validate_json(spec.model_dump_json())
    assert (
        again.fill_bytes()
        == spec.fill_bytes()
        == np.array(value, np.dtype(dtype).newbyteorder("<")).tobytes()
    )


@pytest.mark.parametrize("dtype", [np.uint16, np.dtype(">u2"), "u2", "<u2", "uint16"])
def test_dtypes_in_every_spelling(dtype):
    assert ArraySpec.model_validate({**GOOD, "dtype": dtype}).dtype == "uint16"


def test_the_largest_numbers_that_are_taken_hold_in_int64():
    """The tables that the kernels read, and the names of shards, at every bound at once."""
    frame = {"count": 2**12, "chunk_size": 1, "shard_size_chunks": 2**6}
    axes = [
        {"name": "t", "count": MAX_FRAMES // 4, "chunk_size": 2**10, "shard_size_chunks": 2**12},
        {"name": "c", "count": 4, "chunk_size": 1},
    ]
    spec = ArraySpec.model_validate(
        {"dtype": "uint8", "dimensions": [*axes, {**frame, "name": "y"}, {**frame, "name": "x"}]}
    )
    assert ArraySpec.model_validate_json(spec.model_dump_json()) == spec
    grid = Grid.of(spec)
    assert grid.position_of((MAX_FRAMES // 4 - 1, 3)) == grid.last_position == MAX_FRAMES - 1
    assert grid.positions_of(np.array([[MAX_FRAMES // 4 - 1, 3]])).tolist() == [MAX_FRAMES - 1]
    slabs, places = slabs_and_indices(np.array([MAX_FRAMES - 1]), *Grids((grid,)).tables)
    assert (slabs.tolist(), places.tolist()) == ([grid.slab_of_position(MAX_FRAMES - 1)], [2**10 - 1])


def test_attributes_that_would_end_the_stack_are_refused():
    with pytest.raises(SpecError, match="the array specification is wrong") as error:
        parse_spec({**GOOD, "attributes": nested(100_000)})
    assert "attributes: nested too deep, expected at most 64" in error.value.got


def test_attributes_of_the_greatest_depth_are_taken():
    assert ArraySpec.model_validate({**GOOD, "attributes": nested(MAX_ATTRIBUTES_DEPTH - 1)}).attributes["a"]


@pytest.mark.parametrize(
    ("codec", "meant"), [("none", None), (None, None), ("blosc", Blosc()), ("zstd", Zstd()), ("gzip", Gzip())]
)
def test_a_codec_by_its_name(codec, meant):
    spec = ArraySpec(
        dtype="uint8", dimensions=[Dimension(name=n, count=8, chunk_size=8) for n in "yx"], codec=codec
    )
    assert spec.codec == meant
    assert ArraySpec.model_validate_json(spec.model_dump_json()) == spec
    assert ArraySpec.model_validate(GOOD).codec == Blosc()


def test_an_array_without_shards_survives_json_and_counts_a_chunk_as_a_file():
    facts = {**GOOD, "dimensions": [{**d, "shard_size_chunks": None} for d in (T, Y, X)]}
    spec = ArraySpec.model_validate_json(json.dumps(facts))
    assert ArraySpec.model_validate(spec.model_dump(mode="json")) == spec
    assert spec.actual_index_location == "none"
    assert [(d.shard_size_chunks, d.shard_size) for d in spec.dimensions] == [(None, 4)] * 3
    assert ArraySpec.model_validate(GOOD).actual_index_location == "end"


def test_an_index_that_is_left_open_stays_open_through_json():
    left_open = ArraySpec.model_validate(GOOD)
    read = ArraySpec.model_validate_json(left_open.model_dump_json())
    assert with_index_for("index", parse_acquisition(read)).arrays[0].index_location == "start"
    at_end = ArraySpec.model_validate({**GOOD, "index_location": "end"})
    with pytest.raises(SpecError, match="live: index needs the index at the start"):
        with_index_for("index", parse_acquisition(at_end.model_dump(mode="json")))
    assert left_open == at_end
    assert len(parse_acquisition({"images": {"a": left_open, "b": at_end}}).distinct_arrays) == 1


def test_a_plate_of_too_many_fields_is_refused_before_it_names_one(monkeypatch):
    monkeypatch.setattr(Plate, "images", lambda self: pytest.fail("it names them"))
    most = {"rows": 64, "columns": 64, "fields": 2**14}
    with pytest.raises(SpecError) as caught:
        parse_acquisition({"plate": most, "array": GOOD})
    assert caught.value.got == "plate: too many fields, expected at most 16384, got 67108864"
    assert image_count({"plate": most}) == 1


def test_a_plate_of_as_many_fields_as_images_may_be_is_taken():
    assert len(Plate(rows=64, columns=64, fields=4).images()) == MAX_IMAGES


def test_stored_dimensions_follow_the_storage_order():
    dimensions = [Dimension(name=n, count=2, chunk_size=1) for n in "tzcyx"]
    spec = ArraySpec(dtype="uint8", dimensions=dimensions, storage_order=("t", "c", "z", "y", "x"))
    assert [d.name for d in spec.stored_dimensions] == ["t", "c", "z", "y", "x"]
    assert spec.frame_shape == (2, 2)
    assert spec.frame_bytes == 4


@pytest.mark.parametrize(
    ("facts", "got"),
    [
        ({"images": ["a", "a"], "array": GOOD}, "images: names must differ, got 'a' twice"),
        ({"images": ["\t"], "array": GOOD}, "images.0.name: expected one line of printable characters"),
        ({"plate": {"rows": 65, "columns": 1}, "array": GOOD}, "plate.rows: expected 1 to 64, got 65"),
        ({"images": ["a"], "array": GOOD, "attributes": {"ome": 1}}, "attributes: 'ome' is written by"),
        (
            {"array": {**GOOD, "dimensions": [{**T, "name": 1}, T, Y, X]}, "order": ["t", "z"]},
            "array.dimensions.0.name: Input should be a valid string",
        ),
        ({"array": {**GOOD, "levels": 40}}, "array.levels.count: Input should be less than or equal to 32"),
        ({"array": {**GOOD, "fill_value": 70000}}, "array: fill_value: 70000 is not a uint16"),
    ],
)
def test_a_wrong_specification_is_named_once_and_in_our_words(facts, got):
    with pytest.raises(SpecError) as caught:
        parse_acquisition(facts)
    assert caught.value.got.startswith(got)
    assert "Value error" not in str(caught.value)
