"""For pytest, in a run of ome-writers' own suite: makes shardwright one of its backends, or puts it in
place of some, and leaves the tests that write with it. Nothing else of our tests is there to be imported."""

from __future__ import annotations

import inspect
import os

from ome_writers import _stream

from shardwright.integrations.ome_writers import register

NAME = "shardwright"
REPLACED = tuple(filter(None, os.environ["SHARDWRIGHT_SUITE_REPLACED"].split(",")))
OURS = REPLACED or (NAME,)
OF_A_BACKEND = {"any_backend", "zarr_backend", "first_backend"}

# Before its conftest looks which backends there are. Ours are the first: some tests take that one.
register(name=NAME, replacing=REPLACED, any_version=True)
backends = _stream.AVAILABLE_BACKENDS
ordered = {name: backends[name] for name in (*OURS, *backends) if name in OURS or name != NAME}
backends.clear()
backends.update(ordered)


def pytest_configure(config):
    # its layouts are those of its tests, small on purpose, and a warning is an error there
    config.addinivalue_line("filterwarnings", "ignore::shardwright.model.errors.LayoutWarning")


def pytest_collection_modifyitems(config, items):
    chosen = [item for item in items if writes_with_ours(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def writes_with_ours(item):
    fixtures = OF_A_BACKEND & set(item.fixturenames)
    if not fixtures:
        source = inspect.getsource(item.function)
        return any(f'"{name}"' in source for name in OURS)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return all(parameters.get(fixture, OURS[0]) in OURS for fixture in fixtures)
