"""For pytest, in a run of ome-writers' own suite: makes shardwright one of its backends, or puts it in
place of two of them, and leaves out the others. Nothing else of these tests is there to be imported."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ome_writers import _stream

from shardwright.integrations.ome_writers import register

NAME = "shardwright"
REPLACED = tuple(filter(None, os.environ["SHARDWRIGHT_SUITE_REPLACED"].split(",")))
RESULTS = Path(os.environ["SHARDWRIGHT_SUITE_RESULTS"])
OF_A_BACKEND = {"any_backend", "zarr_backend", "first_backend"}

# before its conftest looks which backends there are
register(name=NAME, replacing=REPLACED, any_version=True)
for other in _stream.AVAILABLE_BACKENDS.keys() - {*(REPLACED or (NAME,)), "scratch"}:
    del _stream.AVAILABLE_BACKENDS[other]

results: dict[str, str | None] = {}


def pytest_configure(config):
    # its layouts are those of its tests, small on purpose, and a warning is an error there
    config.addinivalue_line("filterwarnings", "ignore::shardwright.model.errors.LayoutWarning")


def pytest_collection_modifyitems(config, items):
    """Leaves those that write with a backend of that name; all where others are replaced."""
    if REPLACED:
        return
    chosen = [item for item in items if is_of_ours(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def is_of_ours(item):
    parameters = getattr(item, "callspec", None)
    named = {} if parameters is None else parameters.params
    return bool(OF_A_BACKEND & set(item.fixturenames)) and all(
        named.get(fixture, NAME) == NAME for fixture in OF_A_BACKEND
    )


def pytest_runtest_logreport(report):
    if report.failed:
        results[report.nodeid] = str(report.longreprtext).strip().rpartition("\n")[2]
    elif report.when == "call":
        results.setdefault(report.nodeid, None)


def pytest_sessionfinish():
    RESULTS.write_text(json.dumps(results))
