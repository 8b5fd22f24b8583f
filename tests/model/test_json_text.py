"""JSON is read in one place, and no text costs more than its length."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path

import pytest

from shardwright.model.json_text import MOST_DEPTH, parse_json, parse_metadata


def nested(depth: int, innermost: str = "") -> str:
    return "[" * depth + innermost + "]" * depth


@pytest.mark.parametrize(
    "text",
    [
        nested(MOST_DEPTH + 1),
        nested(800),
        nested(200_000),
        "[" * 200_000,
        '{"a":' * 800 + "1" + "}" * 800,
        "NaN",
        '{"a": [-Infinity]}',
        "[1e999]",
        "-1e999",
        "9" * 5000,
        "{",
        b"\xff",
        "",
    ],
)
def test_what_is_no_json_or_too_deep_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)
    with pytest.raises(ValueError):  # noqa: PT011
        parse_metadata(text)


def test_what_is_read_can_be_copied_and_written() -> None:
    value = parse_json(nested(MOST_DEPTH - 1, '{"a": 1e308, "b": "\\ud800"}'))
    assert json.loads(json.dumps(copy.deepcopy(value), indent=2)) == value


def test_numbers_that_are_not_finite_are_of_attributes_alone() -> None:
    text = '{"attributes": {"a": [NaN, 1e999]}, "consolidated_metadata": {"metadata": {"x": NaN}}}'
    found = parse_metadata(text)
    assert math.isnan(found["attributes"]["a"][0])
    assert found["attributes"]["a"][1] == math.inf
    for wrong in (text.replace("attributes", "shape"), '{"x": {"attributes": NaN}}'):
        with pytest.raises(ValueError, match="finite"):
            parse_metadata(wrong)


def test_nothing_else_reads_json_files() -> None:
    source = Path(__file__).parents[2] / "src" / "shardwright"
    read = re.compile(r"\bjson\.loads?\(")
    found = [
        path.relative_to(source).as_posix() for path in source.rglob("*.py") if read.search(path.read_text())
    ]
    assert found == [], "parse_json bounds depth and numbers"
