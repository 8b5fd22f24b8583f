"""The facts of events have names of their own: a line's fields are not among them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardwright

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(shardwright.__file__).parent
OF_THE_LINE = {"timestamp", "level", "event", "number", "text", "exc_info"}
EMITTERS = {"note", "_note", "tell", "emit", "_emit", "on_event", "_on_event", "_warn_of"}


def facts_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name of a fact, as far as it is a literal, in a function that emits an event."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [call for call in ast.walk(function) if isinstance(call, ast.Call)]
        if not any(getattr(call.func, "attr", getattr(call.func, "id", "")) in EMITTERS for call in calls):
            continue
        for made in ast.walk(function):
            keys = made.keys if isinstance(made, ast.Dict) else ()
            yield from ((key.value, key.lineno) for key in keys if isinstance(key, ast.Constant))


@pytest.mark.parametrize("room", ["acquire", "ingest", "daemon"])
def test_no_fact_has_the_name_of_a_line_s_field(room: str) -> None:
    files = sorted((SOURCE / room).rglob("*.py"))
    facts = [
        (file.name, line, name) for file in files for name, line in facts_of(ast.parse(file.read_text()))
    ]
    assert len(facts) > 5, "the emitters are known by name"
    # the uncaught exception of a thread is the one fact that the log itself renders
    taken = [fact for fact in facts if fact[2] in OF_THE_LINE - {"exc_info"}]
    assert not taken, "such a fact would be written as another name, with a dash behind it"
