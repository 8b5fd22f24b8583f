"""Every zarr.json that a test writes is judged by zarr-metadata, in whichever process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardwright.array.document import encode_document

GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
}
BROKEN = {
    "a format": ({**GROUP, "zarr_format": 2}, "zarr_format"),
    "a shape": ({**ARRAY, "shape": [4, -4]}, "shape"),
    "chunks": (
        {**ARRAY, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}},
        "chunk_grid",
    ),
    "a codec": (
        {**ARRAY, "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 10}}]},
        "codecs",
    ),
    "a fill value": ({**ARRAY, "fill_value": 256}, "fill_value"),
    "a name": ({**ARRAY, "dimension_names": ["y"]}, "dimension_names"),
    "repeated": (
        {
            **GROUP,
            "consolidated_metadata": {
                "kind": "inline",
                "must_understand": False,
                "metadata": {"a": {**ARRAY, "fill_value": 256}},
            },
        },
        "fill_value",
    ),
}
IN_A_CHILD = """
import json, os, signal, sys
from shardwright.array.document import encode_document
encode_document(json.loads(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_document_is_a_problem(oracle, name):
    document, field = BROKEN[name]
    encode_document({**document, "attributes": {"of": f"test {name}"}})
    problems = oracle.new_problems()
    assert problems
    assert all(field in problem for problem in problems)


def test_one_that_a_child_encodes_is_too(oracle):
    text = encode_document({**ARRAY, "fill_value": -1, "attributes": {"of": "a child"}}).decode()
    assert oracle.new_problems()
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD, text.replace("a child", "a killed child")], check=False
    )
    assert ran.returncode == -9
    (problem,) = oracle.new_problems()
    assert "a killed child" in problem


def test_legal_documents_are_none_and_each_test_asks(oracle, request):
    encode_document({**ARRAY, "attributes": {"of": "a legal document"}})
    assert oracle.new_problems() == []
    assert "legal_documents" in request.fixturenames


def test_the_last_of_many_is_judged_too_and_each_broken_one_is_told(oracle):
    for number in range(1000):
        encode_document({**ARRAY, "attributes": {"number": number}})
    for number in range(2):
        encode_document({**ARRAY, "shape": [4, -5], "attributes": {"broken": number}})
    first, second = oracle.new_problems()
    assert '"broken": 0' in first
    assert '"broken": 1' in second


def test_attributes_that_are_no_object_are_a_problem(oracle):
    encode_document({**ARRAY, "attributes": ["legal", "elsewhere"]})
    (problem,) = oracle.new_problems()
    assert problem.startswith("attributes")


def test_the_half_line_of_a_killed_process_hides_no_other(oracle):
    with oracle.path.open("ab") as file:
        file.write(b'\n{"zarr_format": 3, "node')
    assert oracle.new_problems() == []
    encode_document({**ARRAY, "fill_value": 300, "attributes": {"of": "after half a line"}})
    assert len(oracle.new_problems()) == 1
