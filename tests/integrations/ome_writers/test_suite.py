"""The quickest part of ome-writers' own suite over our backend; ``./tools/prove integrations`` runs all."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness import cached_environment, source_release
from tests.harness.cached_environment import CannotInstallError
from tests.integrations.__main__ import DOORS, main, problems_of, rows
from tests.integrations.suite_run import Expected, SuiteRun, outcomes

from . import suite

A_SUITE = """import pytest

@pytest.mark.parametrize("how", ["a::b"])
def test_passes(how):
    pass

class TestMore:
    def test_fails(self):
        assert False

    def test_skips(self):
        pytest.skip("no")

def fail():
    raise RuntimeError("the end")

def test_fails_afterwards(request):
    request.addfinalizer(fail)
"""


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


def test_the_outcomes_of_a_suite_are_without_tests_that_skip_themselves(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(A_SUITE)
    (tmp_path / "ours.py").write_text("import os\nassert os.environ['OURS']\n")
    found = outcomes(Path(sys.executable), tmp_path, tmp_path / "ours.py", ["tests"], {"OURS": "1"})
    assert found == {
        "tests/test_a.py::test_passes[a::b]": None,
        "tests/test_a.py::TestMore::test_fails": "assert False",
        "tests/test_a.py::test_fails_afterwards": 'failed on teardown with "RuntimeError: the end"',
    }
    with pytest.raises(RuntimeError, match="did not run"):
        outcomes(Path(sys.executable), tmp_path, tmp_path / "ours.py", ["elsewhere"], {"OURS": "1"})


def test_what_nobody_expects_is_a_problem():
    expected = {"a": Expected("known", "why"), "z": Expected("-", "-")}
    run = SuiteRun("ome-writers", "0.3.2", suite.OWN, ("a", "b", "c"), {"a": "the why"}, expected)
    assert (run.passed, run.problems) == (2, [])
    assert replace(run, failed={"a": "the why", "b": "E 3"}).problems == ["b: E 3"]
    assert replace(run, failed={"a": "another"}).problems == ["a: another"]
    assert replace(run, failed={}).problems == ["a passes"]
    assert replace(run, missed=("0 frames written",)).problems == ["0 frames written"]
    (wrong,) = problems_of(run)
    assert wrong.endswith("found ('0.3.2', '2 of 3')"), "the table says another number"


def test_the_table_of_the_doors_names_the_releases_that_are_run():
    named = {place: version for place, (version, _) in rows().items()}
    assert named == {
        (door.PROJECT, over): door.PINNED["version"] for door in DOORS.values() for over in door.RUNS
    }
    assert all(re.fullmatch(r"[1-9]\d* of [1-9]\d*", passed) for _, passed in rows().values())
