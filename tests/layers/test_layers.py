"""The rooms import only downward (the contracts of pyproject.toml), no modules import each other, and each
outside library stays in the rooms that own it."""

import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import shardwright

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

OWNERS = {
    "zmq": {"ingest", "client"},
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "blosc2": {"codecs", "kernels"},
    "pydantic": {"array", "config"},
    "yaml": {"config"},
    "distributed": {"rework"},
    "obstore": {"remote"},
    "icechunk": {"rework"},
    "pyarrow": {"read", "rework"},
    "mmap": {"disk", "client"},
    "bluesky": {"integrations"},
    "dask": {"integrations"},
    "event_model": {"integrations"},
    "napari": {"integrations"},
    "ome_writers": {"integrations"},
    "ophyd_async": {"integrations"},
    "qtpy": {"integrations"},
    "pymmcore_plus": {"integrations"},
    "useq": {"integrations"},
    "typer": {"cli"},
    "rich": {"cli"},
    "structlog": {"daemon"},
    "starlette": {"web"},
    "uvicorn": {"web"},
    "prometheus_client": {"web"},
    "PIL": {"web"},
}


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("shardwright", include_external_packages=True, cache_dir=None)


def test_rooms_import_only_downward():
    """In a process of its own, since it disables every logger that exists."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ran = subprocess.run(
        [sys.executable, "-c", command, "--config", str(PYPROJECT), "--no-cache"],
        cwd=PYPROJECT.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_list_of_rooms_is_that_of_the_folders_in_the_order_of_the_layers():
    """A stranger reads it first: the docstring of the package."""
    listed = re.findall(r"^    (\w+)  +\S", shardwright.__doc__, re.MULTILINE)
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    folders = {path.parent.name for path in Path(shardwright.__file__).parent.glob("*/__init__.py")}
    assert listed == [room.strip("()") for room in layers]
    assert set(listed) == folders


def test_no_modules_import_each_other(imports):
    """Within a room neither; imports for types alone count as well: who reads one module needs the other."""
    ours = [module for module in imports.modules if module.startswith("shardwright")]
    graph = {module: imports.find_modules_directly_imported_by(module) for module in ours}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("library", OWNERS)
def test_only_its_rooms_import_a_library(imports, library):
    importers = imports.find_modules_that_directly_import(library) if library in imports.modules else set()
    rooms = {module.split(".")[1] for module in importers if "." in module}
    assert rooms <= OWNERS[library], f"{library} is imported by {sorted(importers)}"


def test_the_root_package_imports_no_heavy_room(imports):
    """``import shardwright`` on a camera's machine must stay light; ``create`` and ``connect`` are loaded
    when first used."""
    eager = {
        module.split(".")[1]
        for module in imports.find_modules_directly_imported_by("shardwright")
        if module.startswith("shardwright.")
    }
    assert eager - {"client", "config", "read", "rework", "writer"} <= {"array", "model"}
