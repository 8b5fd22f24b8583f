"""ophyd-async's own tests of its detector, which is ours there; and our tests of the door, in an environment
of the releases that are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.cached_environment import cached_python
from tests.harness.json_process import ROOT
from tests.harness.source_release import source_release
from tests.integrations.suite_run import SuiteRun, outcomes

if TYPE_CHECKING:
    from tests.harness.source_release import SourceRelease

PROJECT = "ophyd-async"
PINNED = {"version": "0.21.3", "sha256": "373b60c432366cb12b8ce40f289826ab53708b2b95d0e6be0c75404ea39bf9c0"}
PLUGIN = Path(__file__).with_name("ophyd_async_plugin.py")
IN_PLACE, IN_RUNS = "in place of its detector", "in runs of bluesky, read from tiled: our tests"
RUNS = (IN_PLACE, IN_RUNS)
THEIRS = ("unit_tests/core/test_standard_detector.py", "unit_tests/sim/test_sim_blob_detector.py")
LEAST = 59  # of them
OURS = ("test_detector.py", "test_scans.py")
WITH = ("bluesky", "bluesky-tiled-plugins", "event-model", "tiled")


def release_of(*, newest: bool) -> SourceRelease:
    """Returns the pinned release, or the newest one. Raises ``CannotInstallError``."""
    return source_release(PROJECT, **({} if newest else PINNED))


def run(over: str, *, newest: bool = False) -> SuiteRun:
    """``over``: one of ``RUNS``. Raises ``CannotInstallError``."""
    release = release_of(newest=newest)
    wanted = (f"{PROJECT}=={release.version}", "h5py", "pytest-asyncio", "pytest-timeout")
    python = cached_python(
        f"{PROJECT}-newest" if newest else PROJECT, (*wanted, *(("--upgrade", *WITH) if newest else ()))
    )
    if over == IN_PLACE:
        files = [f"tests/{file}" for file in THEIRS]
        found = outcomes(python, release.folder, PLUGIN, files, {})
    else:
        files = [str(Path(__file__).with_name(file).relative_to(ROOT)) for file in OURS]
        found = outcomes(python, ROOT, None, ["-p", "no:asyncio", "-m", "", *files], {})
    failed = {test: said for test, said in found.items() if said is not None}
    return SuiteRun(PROJECT, release.version, over, tuple(found), failed, {})
