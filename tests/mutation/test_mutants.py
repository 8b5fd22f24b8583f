"""The proof of the proofs, the quick part: the list is sound, and a suite catches what it must.
``./tools/prove mutants`` tries every mutant."""

from __future__ import annotations

import pytest

from .__main__ import TABLE, written_before
from .mutants import MUTANTS, SUITES, Mutant
from .run import try_mutant

QUICK = ("no-frame-journal", "no-index", "no-group-block")  # caught within seconds


def test_names_are_unique_and_suites_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.suite for mutant in MUTANTS} == SUITES.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_sabotage_is_python(mutant: Mutant) -> None:
    compile(mutant.sabotage, mutant.name, "exec")


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
