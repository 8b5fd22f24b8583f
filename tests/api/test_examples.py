"""The examples in docstrings, run as a user runs them who has imported NumPy and shardwright: in a folder of
their own, in this process. All of ``src`` that has examples is run."""

from __future__ import annotations

import ast
import doctest
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.store_contents import snapshot

import shardwright as sw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = Path(sw.__file__).parent
LINE = {"shape": (None, 8, 8), "dtype": "uint16", "axes": "tyx"}


def cameras_frames(folder: Path) -> dict[str, Any]:
    return {"camera": [np.zeros((2048, 2048), np.uint16)] * 2}


def left_by_a_dead_writer(folder: Path) -> dict[str, Any]:
    with sw.create(folder / "before.ome.zarr", **LINE) as writer:
        writer.append_many(np.ones((3, 8, 8), np.uint16))
        writer.flush()
        snapshot(writer.path, folder / "run.ome.zarr")
    return {"frame": lambda number: np.full((8, 8), number, np.uint16)}


def a_finished_store(folder: Path) -> dict[str, Any]:
    with sw.create(folder / "embryo.ome.zarr", attributes={"draft": True}, **LINE) as writer:
        writer.append_many(np.ones((3, 8, 8), np.uint16))
    return {}


# What an example takes as given: its makers get the folder and return the names.
GIVEN: dict[str, Callable[[Path], dict[str, Any]]] = {
    "shardwright.writer.in_process:create": cameras_frames,
    "shardwright.writer.in_process:resume": left_by_a_dead_writer,
    "shardwright.rework.edit.metadata_edit:update_metadata": a_finished_store,
}


def documented(node: ast.AST, above: str = "") -> Iterator[tuple[str, str]]:
    """The dotted name and the docstring of everything in a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{above}{child.name}", ast.get_docstring(child) or ""
            yield from documented(child, f"{above}{child.name}.")


def examples() -> list[str]:
    """``module:name`` of each docstring that has one."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        if ">>> " not in (text := file.read_text()):
            continue
        module = ".".join(("shardwright", *file.relative_to(SOURCE).with_suffix("").parts))
        tree = ast.parse(text)
        assert ">>> " not in (ast.get_docstring(tree) or ""), "an example is below what it shows"
        found += [f"{module}:{name}" for name, docstring in documented(tree) if ">>> " in docstring]
    return found


EXAMPLES = examples()


def test_what_users_begin_with_has_an_example() -> None:
    names = {example.rpartition(":")[2] for example in EXAMPLES}
    assert names >= {"ArraySpec", "ChunkStore", "Grid", "WriteSettings", "create", "open", "resume"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_true(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"np": np, "sw": sw, **GIVEN.get(example, lambda folder: {})(tmp_path)}
    monkeypatch.chdir(tmp_path)
    module, _, name = example.partition(":")
    docstring = reduce(getattr, name.split("."), import_module(module)).__doc__
    test = doctest.DocTestParser().get_doctest(docstring, names, example, None, 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert result.attempted > 0
    assert not result.failed, "".join(said)
