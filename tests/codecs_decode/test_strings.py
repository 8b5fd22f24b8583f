"""Chunks of strings: read by zarr-python and by us as they were given, and every damage found."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from shardwright.codecs.strings import decode_strings, encode_strings, with_checksum
from shardwright.model.errors import ShardFormatError

TEXTS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6), max_size=9)


@given(TEXTS)
def test_what_was_encoded_is_decoded(texts):
    values = np.array([text.encode() for text in texts], "S24")
    assert decode_strings(encode_strings(values), len(texts), 300).tolist() == texts


def test_zarr_python_reads_them(tmp_path):
    texts = ["", "µm", '{"a":1}', "x" * 24]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "string",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "",
        "codecs": [
            {"name": "vlen-utf8"},
            {"name": "gzip", "configuration": {"level": 1}},
            {"name": "crc32c"},
        ],
    }
    (tmp_path / "c").mkdir()
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    (tmp_path / "c/0").write_bytes(encode_strings(np.array([text.encode() for text in texts], "S24")))
    assert zarr.open_array(tmp_path, mode="r")[:].tolist() == texts


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\2\0\0\0" + b"\1\0\0\0a", "another length"),
        (b"\2\0\0\0" + b"\1\0\0\0a" + b"\2\0\0\0b", "another length"),
        (b"\2\0\0\0" + b"\1\0\0\0a" + b"\1\0\0\0bc", "another length"),
        (b"\3\0\0\0" + 3 * b"\0\0\0\0", "another number"),
        (b"\2\0\0\0" + b"\1\0\0\0\xff" + b"\0\0\0\0", "no UTF-8"),
        (b"\2\0\0\0" + 2 * b"\0\0\0\0" + bytes(100), "more than 50"),
        (b"", "another number"),
    ],
)
def test_damage_is_found(content, words):
    data = with_checksum(gzip.compress(content))
    with pytest.raises(ShardFormatError, match=words):
        decode_strings(data, 2, 50)


def test_every_flipped_bit_is_found():
    data = encode_strings(np.array([b"abc", b"", b"defg"], "S8"))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ShardFormatError, match="crc32c"):
            decode_strings(bytes(damaged), 3, 100)
