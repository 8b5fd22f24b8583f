"""What every test may rely on."""

import copy
import errno
import os
import signal
import sys
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import zarr
from hypothesis import HealthCheck, settings
from tests.harness import document_oracle, durations, evidence, gears, run_folder, told_events

from shardwright.array import document
from shardwright.disk import failpoints

# Processes that tests start (daemons, cameras, tools) import this checkout, as the tests themselves do.
SOURCE, SITE = str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent / "harness/child_site")
# SITE last: a run of tests against a broken copy has a sitecustomize of its own.
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")]), SITE])

# Without bytecode each process compiles these tests and rewrites their asserts anew: ten seconds of processor
# time for each worker of xdist.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A worker of xdist has the width of the terminal here, for its own report: commands would take it for theirs,
# and break lines that they write to a file or another program.
os.environ.pop("COLUMNS", None)

# Tests write many small files and sync each: in memory, where that is possible. With TMPDIR=/some/disk all of
# them are there.
FOLDERS = run_folder.enter()

# Of this process: a worker of xdist judges what its own tests encode.
os.environ[document_oracle.VARIABLE] = str(FOLDERS.temporary / f"documents-{os.getpid()}")
ORACLE = document_oracle.DocumentOracle(Path(os.environ[document_oracle.VARIABLE]))
document_oracle.watch(document)
told_events.watch()

# Two cores, often shared: property tests are bounded by their number of examples, never by the clock.
settings.register_profile(
    "quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")

# A shell that starts this in the background has SIGINT ignored, and what tests start and interrupt would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit: what tests started ends, as for ^C


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """With --all twice as many as there are cores: most tests wait for a disk or another process. As always,
    ``PYTEST_XDIST_AUTO_NUM_WORKERS`` goes first."""
    chosen = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    one_each = chosen or "not whole" in config.option.markexpr
    return None if one_each else 2 * len(os.sched_getaffinity(0))


def pytest_addoption(parser):
    parser.addoption(
        "--record-durations", action="store_true", help="write tests/durations.tsv: ./tools/test --all"
    )
    parser.addoption(
        "--stride", type=int, default=1, help="fencing: stop a writer at each so many-th storage call"
    )
    parser.addoption("--first", type=int, default=1, help="fencing: begin with this call")


def pytest_ignore_collect(collection_path, config):
    """Each worker imports what it collects: a third of the time of a short run."""
    return gears.is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)  # before -m looks at marks
def pytest_collection_modifyitems(items):
    gears.mark(items)


def pytest_configure(config):
    """A short name: the path of a socket has 107 bytes at most."""
    config.pluginmanager.register(evidence.Recorder(FOLDERS.temporary, FOLDERS.on_disk))
    if config.option.record_durations and FOLDERS.is_maker:
        config.pluginmanager.register(durations.Recorder())
    if FOLDERS.is_maker and config.option.basetemp is None:
        config.option.basetemp = FOLDERS.temporary / "t"


def pytest_terminal_summary(terminalreporter, config):
    """A run of the quicker gear says which of its tests are too long for it. On a busy machine many are, so
    none fails for it."""
    if "not whole" in config.option.markexpr:
        reports = chain.from_iterable(terminalreporter.stats.values())
        for line in durations.unnamed_long(r for r in reports if isinstance(r, pytest.TestReport)):
            terminalreporter.write_line(line, yellow=True)


def pytest_unconfigure(config):
    """The last lines of a run say what it left out for want of a tool, a right or a filesystem."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return  # a worker: the one that started it reports
    reasons = Counter(report.longrepr[2] for report in reporter.stats.get("skipped", []))
    for reason, tests in sorted(reasons.items()):
        why = reason.removeprefix("Skipped: ").removeprefix("NOT TESTED: ")
        number = f" ({tests} tests)" if tests > 1 else ""
        reporter.write_line(f"NOT TESTED{number}: {why}", red=True, bold=True)


def pytest_sessionfinish(session, exitstatus):
    del exitstatus  # of an interrupted run, too, what had failed before is kept
    if session.testsfailed:
        run_folder.keep(FOLDERS)


@pytest.fixture(autouse=True)
def priority_stays():
    """Every later test of this process, and all that it starts, would be slowed by one that makes it idle."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.fixture(autouse=True)
def settings_of_zarr_stay():
    """Every later test of this process would read with those that one left behind: a count of requests failed
    in one order of the suite alone."""
    before = copy.deepcopy(zarr.config.config)
    yield
    assert zarr.config.config == before


@pytest.fixture(scope="session")
def oracle():
    """Judges what shardwright encodes in tests."""
    return ORACLE


@pytest.fixture(autouse=True)
def legal_documents():
    """Every zarr.json that a test has shardwright encode is legal; here or in a process that it starts."""
    yield
    problems = ORACLE.new_problems()
    assert not problems, "\n".join(problems[:8])


@pytest.fixture(scope="session")
def disk():
    """Where temporary folders lie that must not be in memory."""
    return FOLDERS.on_disk


@pytest.fixture
def on_disk(disk):
    """A ``tmp_path`` that is not in memory, unless the system's temporary folder is."""
    with tempfile.TemporaryDirectory(dir=disk, prefix="shardwright-test-") as folder:
        yield Path(folder)


@pytest.fixture
def folder():
    """A folder whose Unix sockets fit into a socket address; ``tmp_path`` can be too long for that."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        yield Path(folder)


@pytest.fixture
def failing():
    """``failing(point, error, after=n)`` makes a failpoint raise from its n-th time on. ``error`` may be the
    number of an ``OSError``."""
    points = []

    def fail(point: str, error: BaseException | int = errno.EIO, after: int = 0) -> None:
        raised = OSError(error, os.strerror(error)) if isinstance(error, int) else error
        left = [after]

        def hook() -> None:
            if left[0] > 0:
                left[0] -= 1
                return
            raise raised

        points.append(point)
        failpoints.set_hook(point, hook)

    yield fail
    for point in points:
        failpoints.set_hook(point, None)
