"""The proof of the proofs, the quick part: the list is sound, and a suite catches what it must.
``./tools/prove mutants`` tries every mutant."""

from __future__ import annotations

import ast
import importlib

import pytest

from .__main__ import TABLE, written_before
from .mutants import MUTANTS, SUITES, Mutant
from .run import try_mutant

QUICK = ("no-frame-journal", "no-index", "no-shard-row-block")  # caught within seconds


def test_names_are_unique_and_suites_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.suite for mutant in MUTANTS} == SUITES.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_sabotage_is_python(mutant: Mutant) -> None:
    compile(mutant.sabotage, mutant.name, "exec")


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
