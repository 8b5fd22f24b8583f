"""Each object of an acquisition alone assigns its fields and the elements of its arrays, and the owner of the
shard rows alone writes those: who reads one knows where its value can come from."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest

import shardwright.acquire
from shardwright.acquire.core import Core
from shardwright.acquire.shard_rows import ShardRow, ShardRows

ROOM = Path(shardwright.acquire.__file__).parent
MODULES = sorted(ROOM.glob("*.py"))
# one thing in two classes, which say so: lines and their scheduler, a shard row and the owner of all
OF_ONE_MODULE = {("fair_scheduler.py", "line"), ("shard_rows.py", "shard_row")}
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


def writes_to_others(function: ast.FunctionDef, own: set[str]) -> list[str]:
    found = []
    for node in ast.walk(function):
        for target in targets(node):
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute) and not is_own(target.value, own):
                found.append(ast.unparse(node))
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=holder, attr=field), attr=call)):
                if field in CONTAINERS and call in CHANGING and not is_own(holder, own):
                    found.append(ast.unparse(node))
    return found


def foreign_writes(source: str, module: str) -> list[str]:
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            partners = (name for of, name in OF_ONE_MODULE if of == module)
            found += writes_to_others(function, {"self", *made_in(function), *partners})
    return found


def methods(of: type) -> list[ast.FunctionDef]:
    (made,) = ast.parse(inspect.getsource(of)).body
    return [each for each in ast.walk(made) if isinstance(each, ast.FunctionDef)]


def mutating_methods(of: type) -> set[str]:
    return {method.name for method in methods(of) if writes_to_others(method, set())}


def attributes(of: type) -> set[str]:
    """What the methods of a class assign at ``self``."""
    return {
        target.attr
        for method in methods(of)
        for node in ast.walk(method)
        for target in targets(node)
        if isinstance(target, ast.Attribute) and is_own(target.value, {"self"})
    }


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
        "self.table.staging_slot[row, 0] = 3",
        "self.table.records['flags'][row] = 0",
        "shard_row.files.journal.entries[0] += 1",
    ],
)
def test_a_foreign_write_is_seen(line):
    source = f"def f(self, row):\n    shard_row = self._owner_of(row)\n    {line}\n"
    assert set(foreign_writes(source, "core.py")) == {line}


def test_an_own_write_is_none():
    lines = "self.slab[row] = self._taking[row] = 0; self._free.append(row); records['status'] = 0"
    assert foreign_writes(f"def f(self, row, records):\n    {lines}\n", "core.py") == []


def test_only_the_owner_of_the_shard_rows_writes_one():
    """A method of the shard row that wrote would be called by whoever has one."""
    assert mutating_methods(ShardRow) == set()
    assert {"slab_closed", "note_frames", "open", "give_up_waiting"} <= mutating_methods(ShardRows)


def test_a_state_machine_gets_no_larger():
    """More fields than these are a part with an owner of its own."""
    assert len(attributes(Core)) <= 22
    assert len(OF_A_SHARD_ROW) <= 14


def test_the_containers_are_those_of_a_shard_row():
    assert all(name in OF_A_SHARD_ROW or name == "by_number" for name in CONTAINERS)
