"""pymmcore-plus's own tests of its outputs and its runner, every run of which writes over the door."""

import json
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.viewers.installation import CACHE, ROOT, installing

VERSION = "0.18.1"
SUITES = (
    "test_mda.py",
    "test_mda_output.py",
    "test_mda_status.py",
    "test_multicam_save.py",
    "test_sequencing.py",
    "test_thread_relay.py",
)
# Theirs that expect otherwise, with the reason.
REASONS = {
    "channels without all planes keep their places, the others are missing; expected is a list of frames": (
        "test_run_with_ragged_sequence[psygnal-scratch]",
        "test_run_with_ragged_sequence[psygnal-ome-zarr]",
    ),
    "expected is a warning that cameras and channels do not go together; here each camera has its images": (
        "test_multicam_ome_sink_with_channels[psygnal-True]",
        "test_multicam_ome_sink_with_channels[psygnal-False]",
    ),
    "the frames of one image change their shape, which ends the run; these runs have no output of theirs": (
        "test_roi_on_sequenced_event[psygnal]",
        "test_different_roi_breaks_sequencing[psygnal]",
    ),
}
# What these say, each twice: a failure for another reason is none of them.
TOLD = (r"assert \(2, 4\) == \(5,\)", "DID NOT WARN", "FrameShapeError: wrong frame shape")
PASSED = 103
# the time between two events, to 10 ms: not beside other tests
TIMED = ("tests/test_mda.py::test_reset_event_timer",)
EXCEPTIONS = {test for tests in REASONS.values() for test in tests}


@pytest.fixture(scope="module")
def suite():
    """The folder of its tests, from its source distribution on the package index."""
    folder = CACHE / f"pymmcore_plus-{VERSION}"
    with installing():
        if not (folder / "tests").exists():
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={CACHE}"]
            command += ["--no-binary=pymmcore-plus", f"pymmcore-plus=={VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            archive = CACHE / f"pymmcore_plus-{VERSION}.tar.gz"
            if not archive.exists():
                pytest.skip(
                    f"NOT TESTED: pymmcore-plus's own tests; pip cannot fetch them: {done.stderr[-300:]}"
                )
            with tarfile.open(archive) as packed:
                packed.extractall(CACHE, filter="data")
    return folder


def test_its_own_tests_of_outputs_and_runners(suite, tmp_path):
    assert version("pymmcore-plus") == VERSION
    account = tmp_path / "account.json"
    paths = [str(ROOT / "src"), str(Path(__file__).parent)]
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pymmcore_plus_plugin"),
        *("--rootdir", str(suite), *(f"--deselect={name}" for name in TIMED)),
        *(f"tests/{name}" for name in SUITES),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SHARDWRIGHT_ACCOUNT": str(account)}
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=550)
    failed = set(re.findall(r"(?m)^(?:FAILED|ERROR) \S+::(\S+)", done.stdout))
    assert failed == EXCEPTIONS, done.stdout[-20_000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) == PASSED, done.stdout[-2_000:]
    for told in TOLD:
        assert len(re.findall(rf"(?m)^E +.*{told}", done.stdout)) == 2, f"another failure than {told}"
    written = json.loads(account.read_text())
    assert written["outputs"] >= 9, "runs that name an output"
    assert written["runs"] > 40, "nearly all runs have frames"
    assert written["frames"] > 300
