"""--json: every command has it, and whatever comes of a command, standard output is one JSON document."""

from __future__ import annotations

import io
import json
import signal
import sys
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.cli.app import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITHOUT = {
    "schema": "what it prints is a JSON document",
    "serve": "it runs until it is stopped; --log-format json prints its events",
}
FRAMES = ("--shape", "64x64", "--frame-rate", "10")
# of each command a call that fails, and the code of its error; HERE: an empty folder
ABSENT = {
    "camera": (["--connect", "ipc://HERE/in.sock", "--name", "a", "--timeout-ms", "1"], "session_lost"),
    "compact": (["HERE/a", "--order", "sorted"], "config"),
    "delete": (["HERE", "--yes"], "output_exists"),
    "drain": (["--socket", "HERE/control.sock"], "session_lost"),
    "erase": (["HERE", "--frames", "3"], "shard_format"),
    "init": (["HERE/rig.yaml", "--dtype", "uint16", "--camera", "a b", *FRAMES, "--root", "HERE"], "config"),
    "inspect": (["HERE"], "shard_format"),
    "install": (["--root", "HERE", "--instance", "a b"], "config"),
    "keygen": (["a/b", "--to", "HERE"], "invalid_name"),
    "list": (["--daemon", "--socket", "HERE/control.sock"], "session_lost"),
    "pyramid": (["HERE", "--levels", "1"], "shard_format"),
    "rechunk": (["HERE", "HERE/new"], "shard_format"),
    "refs": (["HERE", "--to", "HERE/a.json"], "shard_format"),
    "rename": (["HERE", "new"], "output_exists"),
    "repair": (["HERE/a", "--rate", "fast"], "config"),
    "upgrade-ome": (["HERE"], "output_exists"),
    "status": (["--socket", "HERE/control.sock"], "session_lost"),
    "stop": (["a", "--socket", "HERE/control.sock"], "session_lost"),
    "update": (["HERE", "--frames", "3", "--value", "7"], "shard_format"),
    "verify": (["HERE"], "shard_format"),
    "view": (["HERE"], "storage"),
}
# those whose report says of each thing that was asked for what is wrong with it
REPORTS = {"check": ["HERE/rig.yaml"], "recover": ["HERE"]}


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Those of a long job turn every interrupt into its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """The exit code, the document on standard output, and standard error."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()
    assert told.out.count("\n") == 1, "one document on one line"
    return int(str(ended.value.code)), json.loads(told.out), told.err


def here(arguments: list[str], folder: Path) -> list[str]:
    return [argument.replace("HERE", str(folder)) for argument in arguments]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_json_or_a_reason(name: str) -> None:
    has_it = "as_json" in signature(import_module(COMMANDS[name][0]).command).parameters
    assert has_it == (name not in WITHOUT)
    assert has_it == (name in ABSENT or name in REPORTS), "its errors are tested below"


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_an_error_is_a_document(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people it is a line on standard error all the same."""
    arguments, code = ABSENT[name]
    exit_code, told, line = run(capsys, name, *here(arguments, tmp_path), "--json")
    assert exit_code == (2 if code == "config" else 1)
    assert (told["ok"], told["error"]["code"]) == (False, code)
    assert line.splitlines()[-1].startswith(f"shardwright: {told['error']['message']}")


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_a_report_is_a_document(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rig.yaml").write_text("output: 7\nlog: 8\n")
    code, told, _ = run(capsys, name, *here(REPORTS[name], tmp_path), "--json")
    assert told["ok"] == (code == 0)
    if name == "check":
        assert [finding["check"] for finding in told["findings"]] == ["configuration"] * 2


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - set(WITHOUT)))
def test_a_wrong_command_line_is_a_document(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, line = run(capsys, name, "--json", "--wrong")
    assert (code, told["ok"], told["error"]["code"]) == (2, False, "usage")
    assert "--wrong" in told["error"]["message"]
    assert "--wrong" in line


def test_an_unknown_command_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = run(capsys, "serv", "--json")
    assert (code, told["error"]["code"]) == (2, "usage")


@pytest.mark.parametrize("arguments", [("--wrong", "status", "--json"), ("--json",)])
def test_a_wrong_option_before_the_command_is_a_document(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, told, _ = run(capsys, *arguments)
    assert (code, told["error"]["code"]) == (2, "usage")
    assert arguments[0] in told["error"]["message"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, EOFError])
def test_an_interrupted_question_is_a_document(
    end: type[BaseException],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def readline(self, *_: object) -> str:
            raise end

    monkeypatch.setattr("sys.stdin", Terminal())
    code, told, _ = run(capsys, "init", str(tmp_path / "rig.yaml"), "--json")
    assert (code, told["error"]["code"]) == (1, "interrupted")


def test_an_interrupted_command_is_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwright.client.connect", interrupted)
    arguments, _ = ABSENT["camera"]
    code, told, _ = run(capsys, "camera", *here(arguments, tmp_path), "--json")
    assert (code, told["error"]["code"]) == (130, "interrupted")


def test_a_viewer_that_ctrl_c_ends_has_told_its_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "zarr.json").touch()
    monkeypatch.setattr("shardwright.cli.view._why_no_napari", lambda: None)
    reader = SimpleNamespace(show=interrupted)  # napari need not be here
    monkeypatch.setitem(sys.modules, "shardwright.integrations.napari.reader", reader)
    code, told, _ = run(capsys, "view", str(tmp_path), "--in", "napari", "--json")
    assert (code, told) == (0, {"in": "napari", "path": str(tmp_path)})


def test_all_wrong_fields_are_in_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "rig.yaml"
    config.write_text("output: 7\nlog: 8\n")
    code, told, lines = run(capsys, "compact", "--config", str(config), "--json")
    assert code == 2
    assert told["error"]["message"] == f"{config}:1: output: is not valid"
    assert [other["message"] for other in told["error"]["others"]] == [f"{config}:2: log: is not valid"]
    assert [line.split(";")[0] for line in lines.splitlines()] == [
        f"shardwright: {config}:1: output: is not valid",
        f"shardwright: {config}:2: log: is not valid",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_an_error_is_no_wider_than_the_terminal(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that is longer is left whole: it may be a path, which is then copied whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    (tmp_path / "rig.yaml").write_text("output: {rot: 7}\nworkers: {threads: 0}\n")
    with pytest.raises(SystemExit):
        main(["serve", "rig.yaml"])
    told = capsys.readouterr().err
    assert max(map(len, told.splitlines())) <= width
    assert told.count("shardwright: rig.yaml:") == 3
    path = f"{'p' * 90}.yaml"
    with pytest.raises(SystemExit):
        main(["serve", path])
    assert path in capsys.readouterr().err


def test_keygen_names_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = run(capsys, "keygen", "rig", "--to", str(tmp_path), "--json")
    assert (code, told) == (0, {name: str(tmp_path / f"rig.key{end}") for name, end in KEYS.items()})
    assert all((tmp_path / f"rig.key{end}").is_file() for end in KEYS.values())


KEYS = {"public": "", "secret": "_secret"}
