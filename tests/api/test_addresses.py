"""An address is never a folder ``s3:`` of this computer, wherever a user's path enters: each public function
and each command refuses it, says what is supported, and makes nothing."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.cli.app import COMMANDS, main
from shardwright.config.load import parse_config
from shardwright.config.quantities import PATH_PATTERN, SOCKET_PATTERN
from shardwright.model.errors import ConfigError
from shardwright.model.local_path import is_address, local_path
from shardwright.rework.transfer.address import open_destination

if TYPE_CHECKING:
    from collections.abc import Callable

ADDRESSES = [
    "s3://bucket/x.ome.zarr",
    "s3:/bucket/x.ome.zarr",  # as pathlib writes it
    Path("s3://bucket/x.ome.zarr"),
    Path("./S3://bucket/x.ome.zarr"),
    "gs://bucket/x",
    Path("https://rig:8790/live/x.ome.zarr"),
    "file:///data/x.ome.zarr",
    "git+ssh://host/x",
    "zip::s3://bucket/x.zip",
    "s3://",
    Path("s3://"),
]
FOLDERS = [
    "a:b",
    "a:b/c",
    "run:1/x",
    "C:/data/x",
    "C:\\data",
    "12:30/x",
    "/data/s3:/x",
    "x/s3://y",
    "..",
    "s3",
]
LAYOUT: dict[str, Any] = {"shape": (2, 16, 16), "dtype": "uint8", "axes": "tyx"}

Door = "Callable[[Any], object]"
# For each parameter of a public function that is a path.
FUNCTIONS: dict[tuple[str, str], Door] = {
    ("create", "path"): lambda path: sw.create(path, **LAYOUT),
    ("save", "path"): lambda path: sw.save(path, np.zeros((2, 16, 16), "uint8")),
    ("WriteSettings", "spill_root"): lambda path: sw.create(
        "x.ome.zarr", **LAYOUT, on_full="spill", **how(spill_root=path)
    ),
    ("resume", "path"): sw.resume,
    ("open", "path"): sw.open,
    ("open_array", "path"): sw.open_array,
    ("shard_regions", "path"): sw.shard_regions,
    ("open_xarray", "path"): sw.open_xarray,
    ("LiveStore", "path"): sw.LiveStore,
    ("follow", "path"): sw.follow,
    ("frame_table", "path"): sw.frame_table,
    ("acquisitions", "root"): sw.acquisitions,
    ("update", "path"): lambda path: sw.update(path, {"t": 0}, 1),
    ("erase", "path"): lambda path: sw.erase(path, 0),
    ("update_metadata", "path"): lambda path: sw.update_metadata(path, {"x": 1}),
    ("ChunkStore", "path_or_url"): sw.ChunkStore,
    ("Curve", "secret_key"): lambda path: sw.connect("tcp://127.0.0.1:9", curve=sw.Curve(path, "a")),
    ("Curve", "daemon_key"): lambda path: sw.connect("tcp://127.0.0.1:9", curve=sw.Curve("a", path)),
}
HERE = object()  # in a command line: the address
STORE = "store.ome.zarr"  # is there
# For each argument of a command that is a path, by its name.
FRAMES = ("--camera", "a", "--shape", "8x8", "--frame-rate", "1")
ARGUMENTS: dict[tuple[str, str], list[Any]] = {
    ("serve", "config"): [HERE],
    ("init", "config"): [HERE, "--root", "data", *FRAMES],
    ("init", "root"): ["rig.yaml", "--root", HERE, *FRAMES],
    ("check", "config"): [HERE],
    ("check", "frames"): ["rig.yaml", "--measure", "--frames", HERE],
    ("install", "prefix"): ["--dry-run", "--prefix", HERE],
    ("install", "program"): ["--dry-run", "--program", HERE],
    ("install", "root"): ["--dry-run", "--root", HERE],
    ("camera", "secret_key"): ["--connect", "ipc:///nowhere", "--name", "a", "--secret-key", HERE],
    ("camera", "daemon_key"): ["--connect", "ipc:///nowhere", "--name", "a", "--daemon-key", HERE],
    ("keygen", "folder"): ["rig", "--to", HERE],
    ("view", "what"): [HERE],
    ("view", "config"): ["a", "--config", HERE],
    ("view", "socket"): ["a", "--socket", HERE],
    ("view", "spill_root"): [STORE, "--no-open", "--spill-root", HERE],
    ("inspect", "path"): [HERE],
    ("inspect", "to"): ["--standalone", STORE, "--to", HERE],
    ("verify", "path"): [HERE],
    ("rechunk", "store"): [HERE, "new.ome.zarr"],
    ("rechunk", "destination"): [STORE, HERE],
    ("pyramid", "store"): [HERE, "--levels", "1"],
    ("update", "store"): [HERE, "--region", "t=0", "--value", "1"],
    ("update", "values"): [STORE, "--region", "t=0", HERE],
    ("erase", "store"): [HERE, "--frames", "0"],
    ("recover", "path"): [HERE],
    ("list", "root"): [HERE],
    ("list", "socket"): ["--daemon", "--socket", HERE],
    ("rename", "store"): [HERE, "new"],
    ("repair", "store"): [HERE],
    ("upgrade-ome", "store"): [HERE],
    ("delete", "store"): ["--yes", HERE],
    ("compact", "stores"): [STORE, HERE],
    ("compact", "config"): ["--config", HERE],
    ("compact", "to"): [STORE, "--to", HERE],
    **{
        (command, option): ([*name, f"--{option}", HERE] if option == "socket" else [*name, HERE])
        for command, name in (("status", []), ("drain", []), ("stop", ["a"]))
        for option in ("config", "socket")
    },
}
# or something else
PATHS_AS_TEXT = {
    *(("rechunk", "destination"), ("compact", "to"), ("view", "what")),
    *(("inspect", "path"), ("verify", "path")),
}
# These read finished stores at s3:// and http(s)://, but at no other address.
READ_ADDRESSES = {
    *(
        (name, "path")
        for name in ("open", "open_array", "open_xarray", "shard_regions", "LiveStore", "frame_table")
    ),
    *(("inspect", "path"), ("verify", "path"), ("view", "what")),
}


def refused(path: Any) -> Any:
    return pytest.raises(
        ConfigError, match=rf"{re.escape(str(path))} is an address.*compact STORE --to s3://"
    )


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    with sw.create(folder / STORE, **LAYOUT) as writer:
        for _ in range(2):
            writer.append(np.zeros((16, 16), np.uint8))
    return folder


@pytest.mark.parametrize("path", ADDRESSES, ids=repr)
def test_an_address_is_told_as_such(path: Any) -> None:
    assert is_address(path)
    assert not re.match(PATH_PATTERN, str(path)), "the schema says what the configuration accepts"
    assert not re.match(SOCKET_PATTERN, str(path))
    with refused(path):
        local_path(path)


@pytest.mark.parametrize("path", FOLDERS)
def test_a_folder_with_a_colon_is_a_folder(path: str) -> None:
    assert not is_address(path)
    assert re.match(PATH_PATTERN, path)
    assert local_path(path) == local_path(Path(path)) == Path(path)


def test_a_store_with_a_colon_in_its_name_is_written(empty: Path) -> None:
    with sw.create("a:b", **LAYOUT) as writer:
        writer.append(np.ones((16, 16), np.uint8))
    assert len(sw.frame_table("a:b")) == 1


def path_parameters(function: Callable[..., Any]) -> set[str]:
    """Names of those whose annotation is a path, also below the annotation's own name."""
    hints = inspect.get_annotations(function)
    return {name for name, hint in hints.items() if name != "return" and _is_path(function, hint)}


def _is_path(function: Callable[..., Any], hint: Any) -> bool:
    named = function.__globals__.get(hint, hint) if isinstance(hint, str) else hint
    return re.search(r"\bPath(Like)?\b", str(named)) is not None


def test_the_table_has_every_path_of_every_public_function() -> None:
    public = {name: getattr(sw, name) for name in sw.__all__}
    functions = {name: each.__init__ if isinstance(each, type) else each for name, each in public.items()}
    found = {
        (name, parameter)
        for name, function in functions.items()
        if inspect.isfunction(function)
        for parameter in path_parameters(function)
    }
    assert found == FUNCTIONS.keys()


@pytest.mark.parametrize("path", ADDRESSES[:3], ids=repr)
@pytest.mark.parametrize("door", FUNCTIONS, ids="-".join)
def test_every_public_function_refuses_it(door: tuple[str, str], path: Any, empty: Path) -> None:
    if door in READ_ADDRESSES:
        path = path.replace("s3:", "gs:") if isinstance(path, str) else Path("gs://bucket/x")
    if door == ("ChunkStore", "path_or_url") and path == ADDRESSES[0]:
        path = "gs://bucket/x"  # it opens s3://
    with refused(path):
        FUNCTIONS[door](path)
    assert not list(empty.iterdir())


@pytest.mark.parametrize("path", ["a\0b", "\ud800", Path("/data/\ud800"), "9" * 5000])
@pytest.mark.parametrize("door", FUNCTIONS, ids="-".join)
def test_a_text_that_no_file_system_takes_is_told_as_such(
    door: tuple[str, str], path: Any, empty: Path
) -> None:
    with pytest.raises(ConfigError, match="no file or folder can have this path"):
        FUNCTIONS[door](path)
    assert not list(empty.iterdir())


def test_what_is_an_address_elsewhere_is_none_here(empty: Path) -> None:
    """``follow`` and ``ChunkStore`` take http:// as text. A ``Path`` has lost it."""
    for door in (sw.follow, sw.ChunkStore):
        with refused("http:/rig/x"):
            door(Path("http://rig/x"))


def test_the_table_has_every_path_of_every_command() -> None:
    commands = {name: import_module(module).command for name, (module, _) in COMMANDS.items()}
    found = {(name, each) for name, function in commands.items() for each in path_parameters(function)}
    assert found | PATHS_AS_TEXT == ARGUMENTS.keys()


@pytest.mark.parametrize("address", ["s3://bucket/x", "s3:/bucket/x", "gs://bucket/x"])
@pytest.mark.parametrize("argument", ARGUMENTS, ids="-".join)
def test_every_command_refuses_it(
    argument: tuple[str, str],
    address: str,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    sends = argument in (("rechunk", "destination"), ("compact", "to"))
    if sends and address == "s3://bucket/x":
        address = "http://rig/x"  # they send to s3://
    if argument in READ_ADDRESSES:
        address = address.replace("s3:", "gs:")
    before = sorted(store.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main([argument[0], *(address if each is HERE else each for each in ARGUMENTS[argument])])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "s3://BUCKET/PREFIX" in said, "what is supported"
    assert re.search(rf"{re.escape(address).replace('//', '/+')} is (an address|not a destination)", said)
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize("address", ["s3://bucket/x", "s3:/bucket/x"])
def test_a_configuration_refuses_it(address: str, tmp_path: Path) -> None:
    """It would be below the folder of the file, where nothing tells that it was an address."""
    for section in (
        f"output: {{root: '{address}'}}",
        f"output: {{root: {tmp_path}, spill_root: '{address}'}}",
        f"output: {{root: {tmp_path}}}\ncontrol: {{socket: '{address}'}}",
    ):
        with pytest.raises(ConfigError, match=r"is an address.*compact STORE --to s3://"):
            parse_config(f"version: 1\n{section}\n", folder=tmp_path)


def test_a_destination_is_a_bucket_or_a_folder(empty: Path) -> None:
    with refused("s3:/bucket/x"):
        open_destination("s3:/bucket/x")
    with pytest.raises(ConfigError, match="not a destination"):
        open_destination("gs://bucket/x")
    assert open_destination("a:b").url == str(empty / "a:b")
