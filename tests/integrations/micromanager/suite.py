"""pymmcore-plus's own suite of its runner and its outputs, every run of which writes over our door."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.cached_environment import cached_python
from tests.harness.source_release import source_release
from tests.integrations.suite_run import Expected, SuiteRun, outcomes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.harness.source_release import SourceRelease

PROJECT = "pymmcore-plus"
PINNED = {"version": "0.18.1", "sha256": "6f435d61034d7e0b854c7dd74d222d195aa5c82d5698eb1ac90a88260d33668d"}
PLUGIN = Path(__file__).with_name("pymmcore_plus_plugin.py")
RUNS = ("under its runner, in place of its outputs",)
MODULES = ("mda", "mda_output", "mda_status", "multicam_save", "sequencing", "thread_relay")
REASONS = {  # tests by why they fail
    Expected(
        "channels without all planes keep their places, the others are missing; expected is a list of frames",
        "assert (2, 4) == (5,)",
    ): (
        "mda_output.py::test_run_with_ragged_sequence[psygnal-scratch]",
        "mda_output.py::test_run_with_ragged_sequence[psygnal-ome-zarr]",
    ),
    Expected(
        "expected is a warning that cameras and channels do not go together; here each camera has its images",
        "DID NOT WARN",
    ): (
        "multicam_save.py::test_multicam_ome_sink_with_channels[psygnal-True]",
        "multicam_save.py::test_multicam_ome_sink_with_channels[psygnal-False]",
    ),
    Expected(
        "the frames of one image change their shape, which ends the run; these runs have no output of theirs",
        "FrameShapeError: wrong frame shape",
    ): (
        "mda.py::test_roi_on_sequenced_event[psygnal]",
        "mda.py::test_different_roi_breaks_sequencing[psygnal]",
    ),
}
EXCEPTIONS = {f"tests/test_{test}": why for why, tests in REASONS.items() for test in tests}
TIMED = "tests/test_mda.py::test_reset_event_timer"  # the time between two events, to 10 ms
# Written by the whole: runs that name an output, runs with frames (nearly all), frames.
LEAST = {"outputs": 12, "runs": 40, "frames": 300}
QUICK = ("mda_output", "multicam_save")
QUICK_TESTS, QUICK_LEAST = 19, {"outputs": 12, "runs": 12, "frames": 80}


def release_of(*, newest: bool) -> SourceRelease:
    """Returns the pinned release, or the newest one. Raises ``CannotInstallError``."""
    return source_release(PROJECT, **({} if newest else PINNED))


def run(
    over: str, *, newest: bool = False, modules: tuple[str, ...] = MODULES, least: Mapping[str, int] = LEAST
) -> SuiteRun:
    """Runs it, or some ``modules`` of it, and looks that they have written as much as ``least`` says.
    ``over``: one of ``RUNS``. Raises ``CannotInstallError``."""
    release = release_of(newest=newest)
    python = cached_python(f"{PROJECT}-newest" if newest else PROJECT, (release.archive,))
    files = [f"tests/test_{name}.py" for name in modules]
    with tempfile.TemporaryDirectory(prefix="sw-pmm-") as temporary:
        account = Path(temporary) / "account.json"
        told = {"SHARDWRIGHT_ACCOUNT": str(account)}
        found = outcomes(python, release.folder, PLUGIN, [f"--deselect={TIMED}", *files], told)
        written = json.loads(account.read_text(encoding="utf-8"))
    failed = {test: said for test, said in found.items() if said is not None}
    missed = [f"{written[name]} {name} written" for name, count in least.items() if written[name] < count]
    return SuiteRun(PROJECT, release.version, over, tuple(found), failed, EXCEPTIONS, tuple(missed))
