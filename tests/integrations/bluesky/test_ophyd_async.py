"""ophyd-async's own tests of its detector, which is ours there; ``./tools/prove integrations`` also runs our
tests of the door with other releases."""

from __future__ import annotations

import pytest
from tests.harness.cached_environment import CannotInstallError

from . import suite


def test_its_own_tests_of_its_detector():
    try:
        run = suite.run(suite.IN_PLACE)
    except CannotInstallError as error:
        pytest.skip(f"NOT TESTED: ophyd-async's own tests; pip cannot install it here: {error}")
    assert run.problems == []
    assert {test.partition("::")[0] for test in run.tests} == {f"tests/{file}" for file in suite.THEIRS}
    assert run.passed >= suite.LEAST
