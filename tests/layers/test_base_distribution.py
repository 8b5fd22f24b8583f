"""``pip install shardwright`` is the camera's side: what it depends on, what works with it alone, and how
what is missing is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
from tests.harness.daemon import serving
from tests.harness.fresh_environment import FreshEnvironment, built_wheel

from shardwright.cli.app import COMMANDS
from shardwright.model.errors import ConfigError
from shardwright.model.extras import EXTRA_OF_MODULE, LINUX_MODULES, naming_missing_extra

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
DAEMON_MODULES = tuple(module for module, extra in EXTRA_OF_MODULE.items() if extra == "daemon")
# Imported by name, and brought by another package that we name.
BROUGHT_BY = {"anyio": "starlette", "llvmlite": "numba", "numcodecs": "zarr", "pydantic_core": "pydantic"}
ELSEWHERE = {
    "icechunk": "icechunk",
    "napari": "napari",
    "qtpy": "QtPy",
}  # in an environment of its own (tests/viewers), or on a newer Python: distribution of each
# Each reads or writes stores, or a configuration; with arguments that a daemon's machine would take.
DAEMON_COMMANDS = {
    "check": ["rig.yaml"],
    "compact": ["."],
    "erase": [".", "--frames", "3"],
    "init": [],
    "inspect": ["."],
    "pyramid": [".", "--levels", "1"],
    "rechunk": [".", "new", "--chunks", "y=8"],
    "recover": ["."],
    "refs": [".", "--to", "a.json"],
    "schema": [],
    "serve": ["rig.yaml"],
    "status": ["rig.yaml"],
    "update": [".", "--region", "t=3", "--value", "7"],
    "verify": ["."],
}
IN_PROCESS = """
import inspect
import shardwright as sw
from shardwright import *
inspect.getmembers(sw)
spec = ArraySpec(dtype="uint8", dimensions=[Dimension(name=n, count=8, chunk_size=8) for n in "yx"])
for call in (
    lambda: sw.create("new", spec),
    lambda: resume("old"),
    lambda: sw.update("old", {}, 0),
    lambda: sw.erase("old", 0),
    lambda: ChunkStore("old"),
    lambda: LiveStore("old"),
    lambda: RegionReport("old"),
    lambda: sw.Writer(None, 1),
):
    try:
        call()
    except sw.errors.ConfigError as error:
        assert error.__suppress_context__
        print(error)
assert all(isinstance(kind, type) for kind in (ChunkStore, LiveStore, RegionReport, Writer, Stream))
release_memory()
"""


def names(requirements):
    return {requirement.partition(">")[0].partition("=")[0].lower() for requirement in requirements}


def distributions(modules):
    known = packages_distributions()
    names = [ELSEWHERE.get(module) or known[BROUGHT_BY.get(module, module)][0] for module in modules]
    return {name.lower().replace("_", "-") for name in names}


def outside_of(modules):
    return {module.partition(".")[0] for module in modules} - {"shardwright"} - sys.stdlib_module_names


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("shardwright", include_external_packages=True, cache_dir=None)


def test_the_dependencies_are_what_the_cameras_side_imports(imports):
    """By the modules that the two contracts keep free of the daemon's packages, and no others."""
    for edge in CONTRACTS["client-commands"]["ignore_imports"]:
        importer, imported = edge.split(" -> ")
        imports.remove_import(importer=importer, imported=imported)
    sources = {
        *CONTRACTS["portable-client"]["source_modules"],
        *CONTRACTS["client-commands"]["source_modules"],
    }
    sources |= {child for source in sources for child in imports.find_descendants(source)}
    needed = sources.union(*(imports.find_upstream_modules(source) for source in sources))
    assert names(PROJECT["project"]["dependencies"]) == distributions(outside_of(needed))
    assert set(DAEMON_MODULES) <= set(CONTRACTS["portable-client"]["forbidden_modules"]) & set(
        CONTRACTS["client-commands"]["forbidden_modules"]
    )


def test_every_other_import_stands_in_an_extra_that_is_named_where_it_is_missing(imports):
    extras = PROJECT["project"]["optional-dependencies"]
    for module in outside_of(imports.modules) | set(EXTRA_OF_MODULE):
        (distribution,) = distributions([module])
        if distribution not in names(PROJECT["project"]["dependencies"]):
            assert distribution in names(extras[EXTRA_OF_MODULE[module]]), module
    assert names(extras["daemon"]) == distributions(DAEMON_MODULES)
    for extra in set(EXTRA_OF_MODULE.values()) - {"daemon"}:
        assert extras[extra][0] in ("shardwright[daemon]", "shardwright[web]"), (
            "an extra of the daemon's machine brings the daemon"
        )


@pytest.mark.parametrize("module", sorted(LINUX_MODULES))
def test_what_only_linux_has_is_no_extra(module):
    with pytest.raises(ConfigError, match="serve needs Linux"), naming_missing_extra("serve"):
        raise ModuleNotFoundError(name=module)


def test_a_module_that_no_extra_brings_is_an_error_of_ours():
    with pytest.raises(ModuleNotFoundError), naming_missing_extra("serve"):
        raise ModuleNotFoundError("No module named 'nothing'", name="nothing")


@pytest.fixture
def rig(folder):
    """A folder with a running daemon's sockets in it. The daemon has everything."""
    endpoint = f"ipc://{folder}/ingest.sock"
    config = folder / "rig.yaml"
    config.write_text(
        f"output: {{root: data, create: true, in_memory: true}}\ningest: {{endpoints: ['{endpoint}']}}\n",
        encoding="utf-8",
    )
    with serving(config):
        yield folder


def try_the_cameras_side(run, rig):
    """``run``: a Python command line on an installation of the client alone, in the folder ``rig``."""

    def command(*arguments):
        return run("-c", "import sys; from shardwright.cli.app import main; main(sys.argv[1:])", *arguments)

    keys = command("keygen", "camera-1")
    assert (keys.returncode, keys.stderr) == (0, "")
    assert (rig / "camera-1.key_secret").exists()
    camera = command(
        "camera",
        "--connect",
        f"ipc://{rig}/ingest.sock",
        "--name",
        "one",
        "--frames",
        "4",
        "--shape",
        "64x64",
        "--json",
    )
    assert camera.returncode == 0, camera.stderr
    assert json.loads(camera.stdout)["frames_stored"] == 4
    for form in ([], ["--json"]):
        status = command("status", "--socket", "control.sock", *form)
        assert (status.returncode, status.stderr) == (0, "")
    assert json.loads(status.stdout)["state"] == "serving"
    serving = command("serve", "rig.yaml")
    assert (serving.returncode, len(serving.stderr.splitlines())) == (2, 1)
    assert "serve needs shardwright[daemon]: " in serving.stderr
    assert serving.stderr.endswith("pip install 'shardwright[daemon]'\n")
    writer = run("-c", IN_PROCESS)
    assert (writer.returncode, writer.stderr) == (0, "")
    calls = ("create", "resume", "update", "erase", "ChunkStore", "LiveStore", "RegionReport", "Writer")
    for line, what in zip(writer.stdout.splitlines(), calls, strict=True):
        assert line.startswith(f"shardwright.{what} needs shardwright[daemon]: ")
        assert line.endswith("pip install 'shardwright[daemon]'")


def without_the_daemons_modules(folder):
    block = f"import sys; sys.modules.update(dict.fromkeys({DAEMON_MODULES!r})); exec(sys.argv.pop(1))"

    def run(_, code, *arguments):
        return subprocess.run(
            [sys.executable, "-c", block, code, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_the_cameras_side_works_without_the_daemons_packages(rig):
    try_the_cameras_side(without_the_daemons_modules(rig), rig)


def test_every_command_of_the_daemons_side_says_what_is_missing(tmp_path):
    """One process for all of them; each is still listed and explained."""
    (tmp_path / "rig.yaml").write_text("output: {root: data}\n", encoding="utf-8")
    code = f"""
import io, sys
from contextlib import redirect_stderr, redirect_stdout
from shardwright.cli.app import main
def run(*arguments):
    told, out = io.StringIO(), io.StringIO()
    with redirect_stderr(told), redirect_stdout(out):
        try:
            main(arguments)
        except SystemExit as end:
            return end.code, told.getvalue()
for name in {sorted(COMMANDS)!r}:
    assert run(name, "--help") == (0, ""), name
for name, arguments in {DAEMON_COMMANDS!r}.items():
    code, told = run(name, *arguments)
    assert code == 2, (name, code, told)
    assert told.count("\\n") == 1 and "needs shardwright[daemon]: " in told and "pip install 'shardwright[daemon]'" in told, told
"""  # noqa: E501
    done = without_the_daemons_modules(tmp_path)("-c", code)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == ["rig.yaml"]  # noqa: PTH208


def test_a_system_without_unix_sockets_is_named(tmp_path):
    code = (
        "import socket; del socket.AF_UNIX; from shardwright.cli.app import main; main(['status', "
        "'--socket', 'control.sock'])"
    )
    done = without_the_daemons_modules(tmp_path)("-c", code)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "no Unix sockets" in done.stderr


@pytest.mark.slow
def test_an_installation_of_the_client_alone(rig, tmp_path):
    fresh = FreshEnvironment(tmp_path / "venv", built_wheel(tmp_path))
    installed = fresh.packages()
    assert {"numpy", "pyzmq", "pydantic", "shardwright"} <= installed
    assert not installed & {"blosc2", "crc32c", "llvmlite", "numba", "pyyaml", "structlog"}
    try_the_cameras_side(partial(fresh.run, cwd=rig), rig)
    told = fresh.run(fresh.commands / "shardwright", "--version", cwd=rig)
    assert told.returncode == 0, told.stderr
