"""The proof of the proofs, the quick part: the list is sound, and a suite catches what it must.
``./tools/prove mutants`` tries every mutant."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest
from tests.harness.gears import is_whole

from shardwright.model.names import WORKSPACE

from .__main__ import TABLE, written_before
from .mutant import NAMED, SUITES, Mutant, changed, is_marked
from .mutants import MUTANTS
from .run import run_suite, try_mutant

QUICK = ("no-frame-journal", "no-index", "no-shard-row-block")  # caught within seconds


def test_names_are_unique_and_suites_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.suite for mutant in MUTANTS} == SUITES.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_sabotage_is_python(mutant: Mutant) -> None:
    compile(mutant.sabotage, mutant.name, "exec")


def test_the_tests_that_are_named_are_there_and_not_slow() -> None:
    named = [(test, mutant) for mutant in MUTANTS if mutant.suite == NAMED for test in mutant.options]
    named += [(test, mutant) for mutant in MUTANTS for test in mutant.quick]
    assert len(named) > 100
    assert not [test for test, _ in named if "::" not in test or is_marked(test, "slow")]
    assert not [test for test, mutant in named if mutant.gear == "test" and is_whole(test)]


def test_a_module_is_changed_for_whoever_imports_a_name_of_it() -> None:
    show = ("-c", "from shardwright.disk.beneath import WORKSPACE; print(WORKSPACE)")
    old = f'WORKSPACE = "{WORKSPACE}"'
    assert run_suite(show, changed("model.names", old, 'WORKSPACE = "changed"')).tail == "changed\n"
    gone = run_suite(show, changed("model.names", "no such text", "")).tail
    assert "shardwright.model.names has not once: no such text" in gone


def _changes(tree: ast.Module) -> list[list[str]]:
    """Module, old and new text of each change of a module's text."""
    return [
        [ast.literal_eval(argument) for argument in node.args]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "change"
    ]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_it_replaces_is_there(mutant: Mutant) -> None:
    """Else it changes nothing, and what catches it proves nothing."""
    tree = ast.parse(mutant.sabotage)
    modules = {
        alias.asname or alias.name: importlib.import_module(alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            root, *names = ast.unparse(target).split(".")
            if root in modules:
                found: object = modules[root]
                for name in names:
                    assert hasattr(found, name), f"{modules[root].__name__} has no {'.'.join(names)}"
                    found = getattr(found, name)
    for module, old, new in _changes(tree):
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{module} has not once: {old}"
        assert old != new
        compile(text.replace(old, new), module, "exec")


def test_the_table_lists_every_mutant() -> None:
    assert list(written_before()) == [mutant.name for mutant in MUTANTS], (
        f"{TABLE.name}: run ./tools/prove mutants --write"
    )


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.name in QUICK], ids=lambda mutant: mutant.name
)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    outcome = try_mutant(mutant)
    assert outcome.caught, f"exit code {outcome.code}\n{outcome.tail}"


def test_what_a_patch_does_wrong_catches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "broken", ("-c", "from shardwright.model.names import there\nthere()"))
    patch = Mutant("a", "", "broken", "import shardwright.model.names as m\nm.there = 0")
    change = Mutant("b", "", "broken", changed("model.names", "WORKSPACE =", "there = WORKSPACE ="))
    assert [try_mutant(mutant).code for mutant in (patch, change)] == [1, 1]
    assert [try_mutant(mutant).caught for mutant in (patch, change)] == [False, True]
