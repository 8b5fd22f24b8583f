"""Hints are sentences: each is shown behind a full stop, by errors and by events."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import shardwright

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(shardwright.__file__).parent


def hints_in(tree: ast.AST) -> Iterator[ast.expr]:
    """Yields every expression that is given as a hint."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="hint", value=value):
                yield value
            case ast.Dict(keys=keys, values=values):
                yield from (
                    value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == "hint"
                )
            case ast.Assign(targets=[ast.Name(id="hint")], value=value):
                yield value


def beginnings(hint: ast.expr) -> Iterator[str]:
    """Yields how a hint may begin, as far as it is a literal."""
    match hint:
        case ast.Constant(value=str(text)) | ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*beginnings(body), *beginnings(orelse))
        case ast.BinOp(left=left):
            yield from beginnings(left)


def test_a_hint_begins_with_a_capital_letter_or_with_code_in_backticks() -> None:
    found = [
        (file.name, text)
        for file in sorted(SOURCE.rglob("*.py"))
        for hint in hints_in(ast.parse(file.read_text()))
        for text in beginnings(hint)
    ]
    assert len(found) > 200, "hints are known by name"
    assert [(file, text) for file, text in found if text[0].islower()] == []
