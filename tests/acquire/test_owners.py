"""Each object of an acquisition alone assigns its fields, and a shard row and its owner alone change their
containers: who reads one knows where its value can come from. Elements of arrays, as those of the slab table,
are not looked at."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import shardwright.acquire
from shardwright.acquire.shard_rows import ShardRow

ROOM = Path(shardwright.acquire.__file__).parent
MODULES = sorted(ROOM.glob("*.py"))
# lines and their scheduler are one thing in two classes, and say so
OF_ONE_MODULE = {("fair_scheduler.py", "line")}
CHANGING = {
    "add",
    "append",
    "appendleft",
    "clear",
    "difference_update",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "setdefault",
    "update",
}
OF_A_SHARD_ROW = {field.name for field in fields(ShardRow)}
CONTAINERS = {"waiting", "done_slabs", "by_number"}  # of shard rows, and of their owner


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to, or deletes."""
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            pass
        case ast.AugAssign(target=one) | ast.AnnAssign(target=one):
            found = [one]
        case _:
            return []
    return [each for one in found for each in (one.elts if isinstance(one, ast.Tuple) else [one])]


def made_in(function: ast.AST) -> set[str]:
    """The names of objects that a function has just made: by calling their class, or ``copy``."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if isinstance(made := node.value.func, ast.Name) and (made.id[0].isupper() or made.id == "copy")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def is_own(holder: ast.expr, own: set[str]) -> bool:
    return isinstance(holder, ast.Name) and holder.id in own


def foreign_writes(source: str, module: str) -> list[str]:
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        allowed = {"self", *made_in(function), *(name for of, name in OF_ONE_MODULE if of == module)}
        for node in ast.walk(function):
            for target in targets(node):
                if isinstance(target, ast.Attribute) and not is_own(target.value, allowed):
                    found.append(ast.unparse(node))
                while isinstance(target, ast.Subscript):
                    target = target.value
                    if isinstance(target, ast.Attribute) and target.attr in CONTAINERS:
                        found += [] if is_own(target.value, {"self"}) else [ast.unparse(node)]
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(value=holder, attr=field), attr=call)):
                    if field in CONTAINERS and call in CHANGING and not is_own(holder, {"self"}):
                        found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", MODULES, ids=[path.name for path in MODULES])
def test_no_object_writes_the_fields_of_another(path):
    assert foreign_writes(path.read_text(), path.name) == []


@pytest.mark.parametrize(
    "line",
    [
        "shard_row.files = None",
        "self.shard_rows.by_number[3].spilled = True",
        "shard_row.in_flight, shard_row.files = (0, None)",
        "self._owner_of(row).in_flight += 1",
        "shard_row.waiting.append(row)",
        "shard_row.done_slabs |= {4}",
        "del self.shard_rows.by_number[3]",
        "self.core.settings = settings",
    ],
)
def test_a_foreign_write_is_seen(line):
    source = f"def f(self, row):\n    shard_row = self._owner_of(row)\n    {line}\n"
    assert set(foreign_writes(source, "core.py")) == {line}


def test_the_containers_are_those_of_a_shard_row():
    assert all(name in OF_A_SHARD_ROW or name == "by_number" for name in CONTAINERS)
