"""What came of another project's own suite over one of our doors."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

from tests.harness.json_process import ROOT
from tests.harness.run_folder import roomy_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 1800


class Expected(NamedTuple):
    """Why a test fails. ``says``: what its failure then says, among other things."""

    reason: str
    says: str


@dataclass(frozen=True)
class SuiteRun:
    """``over``: what of the project is ours in it. ``failed``: those tests, each with what its failure says.
    ``exceptions``: tests that are expected to fail. ``missed``: what the run should have done beside, and has
    not."""

    project: str
    version: str
    over: str
    tests: tuple[str, ...]
    failed: Mapping[str, str]
    exceptions: Mapping[str, Expected]
    missed: tuple[str, ...] = ()

    @property
    def passed(self) -> int:
        return len(self.tests) - len(self.failed)

    @property
    def problems(self) -> list[str]:
        """Failures that are not expected, exceptions that are none any more, and what was missed."""
        new = [
            f"{test}: {said}"
            for test, said in self.failed.items()
            if test not in self.exceptions or self.exceptions[test].says not in said
        ]
        ran = set(self.tests)
        old = [f"{test} passes" for test in self.exceptions if test in ran and test not in self.failed]
        return [*new, *old, *self.missed]

    def to_dict(self) -> dict[str, Any]:
        return {
            "project": self.project,
            "version": self.version,
            "over": self.over,
            "tests": len(self.tests),
            "passed": self.passed,
            "exceptions": {
                test: self.exceptions[test].reason for test in self.failed if test in self.exceptions
            },
            "problems": self.problems,
        }


def outcomes(
    python: Path, folder: Path, plugin: Path | None, arguments: Sequence[str], more: Mapping[str, str]
) -> dict[str, str | None]:
    """Runs a suite with pytest in ``folder``; a ``plugin`` puts ours in its place. Returns what came
    of each test: None, or what its failure says; those that skip themselves are left out. ``more`` is
    added to its environment. Raises ``RuntimeError`` where it does not come to its end."""
    memory = None if "TMPDIR" in os.environ else roomy_memory()
    with tempfile.TemporaryDirectory(prefix="sw-suite-", dir=memory) as temporary:
        results = Path(temporary) / "results.xml"
        paths = (str(ROOT / "src"), *([] if plugin is None else [str(plugin.parent)]))
        environment = {**os.environ, **more, "PYTHONPATH": os.pathsep.join(paths)}
        base = ("--basetemp", str(Path(temporary) / "t"), "-p", "no:cacheprovider")
        base += () if plugin is None else ("-p", plugin.stem)
        # this form names the files of the tests
        told = (f"--junitxml={results}", "-o", "junit_family=xunit1")
        command = [python, "-m", "pytest", "-q", "--no-header", *base, *told, *arguments]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode not in (0, 1) or not results.exists():
            raise RuntimeError(f"the suite did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _outcomes_in(results)


def _outcomes_in(results: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for case in ET.parse(results).iter("testcase"):
        file = case.attrib["file"]
        # "tests.test_mda.TestRuns": the classes stand behind the module
        classes = case.attrib["classname"].split(".")[len(Path(file).parts) :]
        test = "::".join((file, *classes, case.attrib["name"]))
        trouble = [each.attrib["message"] for each in case if each.tag in ("failure", "error")]
        if trouble:
            found[test] = trouble[-1]
        elif case.find("skipped") is None:
            found.setdefault(test, None)
    return found
