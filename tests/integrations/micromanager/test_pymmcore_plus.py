"""The quickest part of pymmcore-plus's own suite over our door; ``./tools/prove integrations`` runs all."""

from __future__ import annotations

import pytest
from tests.harness.cached_environment import CannotInstallError

from . import suite


def test_the_quickest_part_of_its_own_suite():
    try:
        run = suite.run(*suite.RUNS, modules=suite.QUICK, least=suite.QUICK_LEAST)
    except CannotInstallError as error:
        pytest.skip(f"NOT TESTED: pymmcore-plus's own suite; pip cannot install it here: {error}")
    assert run.problems == []
    assert {test.partition("::")[0] for test in run.tests} == {
        f"tests/test_{name}.py" for name in suite.QUICK
    }
    assert run.passed >= suite.QUICK_TESTS
