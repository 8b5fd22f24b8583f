"""ome-writers' own suite over our backend: as its fifth backend, and in place of two of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.cached_environment import cached_python
from tests.harness.source_release import source_release
from tests.integrations.suite_run import Expected, SuiteRun, outcomes

if TYPE_CHECKING:
    from tests.harness.source_release import SourceRelease

PROJECT = "ome-writers"
PINNED = {"version": "0.3.2", "sha256": "637d8a9222fcd11a1faa3c8c59170c2cbcb98d078fd8802dab89a8c0b781a411"}
REPLACED = ("tensorstore", "zarr-python")
PLUGIN = Path(__file__).with_name("suite_plugin.py")
OWN_CLASS = Expected("looks for the class of its own backends, and what is in it", "OmeWritersBackend")
EXCEPTIONS = {
    f"tests/test_global_metadata.py::test_zarr_single_position_root_mirror_aliased[{name}]": OWN_CLASS
    for name in ("shardwright", *REPLACED)
}
OWN, IN_PLACE = "as a backend of its own", f"in place of {' and '.join(REPLACED)}"
RUNS = {OWN: (), IN_PLACE: REPLACED}
# What takes seconds: layouts, pixels, codecs, metadata. Modules, and how many of their tests pass at least.
QUICK = {OWN: ("compression", "integration", "zarr_metadata"), IN_PLACE: ("zarr_metadata",)}
QUICK_TESTS = {OWN: 20, IN_PLACE: 5}


def release_of(*, newest: bool) -> SourceRelease:
    """Returns the pinned release, or the newest one. Raises ``CannotInstallError``."""
    return source_release(PROJECT, **({} if newest else PINNED))


def run(over: str, *arguments: str, newest: bool = False) -> SuiteRun:
    """Runs it, or the part that ``arguments`` of pytest choose. ``over``: one of ``RUNS``. Raises
    ``CannotInstallError``."""
    release = release_of(newest=newest)
    python = cached_python(f"{PROJECT}-newest" if newest else PROJECT, (release.archive,))
    chosen = {"SHARDWRIGHT_SUITE_REPLACED": ",".join(RUNS[over])}
    found = outcomes(python, release.folder, PLUGIN, arguments, chosen)
    failed = {test: said for test, said in found.items() if said is not None}
    return SuiteRun(PROJECT, release.version, over, tuple(found), failed, EXCEPTIONS)
