"""What every test may rely on."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Processes that tests start (daemons, cameras, tools) import this checkout, as the tests themselves do.
SOURCE = str(Path(__file__).parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])

# Two cores, often shared: property tests are bounded by their number of examples, never by the clock.
settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")


@pytest.fixture
def short_folder():
    """A folder whose Unix sockets fit into a socket address; ``tmp_path`` can be too long for that."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        yield Path(folder)
