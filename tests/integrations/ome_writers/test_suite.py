"""The quickest part of ome-writers' own suite over our backend; ``./tools/prove integrations`` runs all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.harness import cached_environment, source_release
from tests.harness.cached_environment import CannotInstallError
from tests.integrations.__main__ import DOORS, main, problems_of, rows
from tests.integrations.suite_run import SuiteRun

from . import suite


@pytest.mark.parametrize("over", suite.RUNS)
def test_the_quickest_part_of_its_own_suite(over):
    files = [f"tests/test_{name}.py" for name in suite.QUICK[over]]
    try:
        run = suite.run(over, *files)
    except CannotInstallError as error:
        pytest.skip(f"NOT TESTED: ome-writers' own suite; pip cannot install it here: {error}")
    assert run.problems == []
    assert {test.partition("::")[0] for test in run.tests} == set(files)
    assert run.passed >= suite.QUICK_TESTS[over]


def test_what_cannot_be_installed_is_said_in_red_and_is_no_success(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for module in (cached_environment, source_release):
        monkeypatch.setattr(module, "CACHE", tmp_path)
    assert main(["--pinned", "--only", "ome-writers"]) == 1
    assert capsys.readouterr().out.startswith("\x1b[1;31mNOT TESTED: ome-writers, pinned: pip cannot install")


def test_what_nobody_expects_is_a_problem():
    run = SuiteRun("ome-writers", "0.3.2", suite.OWN, ("a", "b", "c"), {"a": "why"}, {"a": "known", "z": "-"})
    assert (run.passed, run.problems) == (2, [])
    assert replace(run, failed={"a": "why", "b": "E 3"}).problems == ["b: E 3"]
    assert replace(run, failed={}).problems == ["a passes"]
    (wrong,) = problems_of(run)
    assert wrong.endswith("found ('0.3.2', '2 of 3')"), "the table says another number"


def test_the_table_of_the_doors_names_the_releases_that_are_run():
    named = {place: version for place, (version, _) in rows().items()}
    assert named == {
        (door.PROJECT, over): door.PINNED["version"] for door in DOORS.values() for over in door.RUNS
    }
    assert all(re.fullmatch(r"[1-9]\d* of [1-9]\d*", passed) for _, passed in rows().values())
