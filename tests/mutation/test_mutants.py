"""The proof of the proofs, the quick part: the list is sound, and a suite catches what it must.
``./tools/prove mutants`` tries every mutant."""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.gears import is_whole

from shardwright.model.names import WORKSPACE

from .__main__ import NOT_RUN, TABLE, by_gear, definition_of, rows, table, verdict_of
from .mutant import NAMED, SUITES, Mutant, changed, is_marked
from .mutants import MUTANTS
from .run import run_suite, try_mutant

if TYPE_CHECKING:
    from types import CodeType

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
        used = _globals_of(compile(text.replace(old, new), module, "exec"))
        used -= _globals_of(compile(text, module, "exec"))
        assert used <= {*vars(importlib.import_module(module)), *vars(builtins)}, "a name that is not there"


def _globals_of(code: CodeType) -> set[str]:
    """Names that the functions of a module look up in it."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return found.union(*(_globals_of(inner) for inner in code.co_consts if hasattr(inner, "co_code")))


def test_the_table_says_of_every_mutant_what_it_is() -> None:
    found = [row[:-1] for row in rows(TABLE.read_text(encoding="utf-8"))]
    assert found == [definition_of(mutant) for mutant in MUTANTS], "./tools/prove mutants --only none --write"


def test_what_a_run_found_is_kept_while_the_mutant_is_what_it_was() -> None:
    first, second, third, *_ = (definition_of(mutant) for mutant in MUTANTS)
    before = [(*first, "caught, then"), (*second[:-1], "01234567", "caught, then"), (*third, "caught, then")]
    after = rows(table({MUTANTS[2].name: "SURVIVES, now"}, before))
    assert [row[-1] for row in after[:4]] == ["caught, then", NOT_RUN, "SURVIVES, now", NOT_RUN]


def test_each_gear_tries_a_mutant_that_it_has_tests_for() -> None:
    both = next(mutant for mutant in MUTANTS if mutant.name == "no-index")
    forms = both.tried_by
    assert [(gear, form.suite) for gear, form in forms.items()] == [("test", NAMED), ("all", "kills")]
    assert forms["test"].options == both.quick
    alone = next(mutant for mutant in MUTANTS if mutant.name == "no-lock")
    assert alone.tried_by == {"all": alone}


@pytest.mark.parametrize(
    ("test", "whole", "told"),
    [
        ("caught", "caught", "caught by test and all"),
        ("caught", "SURVIVES", "caught by test; SURVIVES by all"),
        ("", "caught", "caught by all"),
    ],
)
def test_a_verdict_says_which_gear_gave_it(test: str, whole: str, told: str) -> None:
    found = {"room": "disk", "test": {"verdict": test}, "all": {"verdict": whole}}
    assert by_gear({key: value for key, value in found.items() if value != {"verdict": ""}}) == told


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.name in QUICK], ids=lambda mutant: mutant.name
)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    outcome = try_mutant(mutant)
    assert outcome.caught, f"exit code {outcome.code}\n{outcome.tail}"


def test_a_mistake_of_a_mutant_catches_nothing_unless_it_names_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SUITES, "broken", ("-c", "from shardwright.model.names import there\nthere()"))
    patch = Mutant("a", "", "broken", "import shardwright.model.names as m\nm.there = 0")
    change = Mutant("b", "", "broken", changed("model.names", "WORKSPACE =", "there = WORKSPACE ="))
    named = replace(change, error="TypeError")
    outcomes = [try_mutant(mutant) for mutant in (patch, change, named)]
    assert [outcome.code for outcome in outcomes] == [1, 1, 1]
    mistaken = "NOT TRIED (TypeError)"
    assert [verdict_of(outcome) for outcome in outcomes] == [mistaken, mistaken, "caught"]


def test_an_error_that_a_suite_only_names_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "broken", ("-c", "assert 0, 'DID NOT RAISE TypeError'"))
    assert try_mutant(Mutant("a", "", "broken", "")).caught
