"""The command as a user runs it: help, version, usage errors, and how little the quick commands load."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from tests.harness.daemon import CLI, run_cli
from tests.harness.run_folder import CHECKOUT

import shardwright
from shardwright.cli.app import COMMANDS, build_app, main
from shardwright.config.json_schema import schema_text

HEAVY = ("numba", "llvmlite", "blosc2", "zmq", "structlog")


def test_help_lists_every_command() -> None:
    result = subprocess.run([*CLI, "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    for name in COMMANDS:
        assert name in result.stdout


def test_version() -> None:
    result = run_cli("--version")
    assert result.returncode == 0
    assert result.stdout == f"shardwright {shardwright.__version__}\n"
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == shardwright.__version__


def test_a_full_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = subprocess.run([*CLI, "schema"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "shardwright: cannot write to standard output: No space left on device\n"


def test_an_error_that_is_not_of_standard_output_keeps_its_traceback() -> None:
    failing = "import os; from shardwright.cli import schema; schema.command = lambda: os.close(-1)"
    result = run_cli("schema", first=failing)
    assert result.returncode == 1
    assert result.stderr.endswith("OSError: [Errno 9] Bad file descriptor\n")


def test_closed_standard_streams_take_no_file_s_descriptor() -> None:
    code = """
import os, sys
from shardwright.cli import app, schema
def command() -> None:
    print("out", flush=not sys.stdout.isatty())
    print("err", file=sys.stderr, flush=True)
    os._exit(10 + os.open(os.devnull, os.O_RDONLY))
schema.command = command
app.main(["schema"])
"""
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(closed, timeout=60, check=False).returncode == 13


def test_an_unknown_command_is_a_usage_error() -> None:
    result = run_cli("serv")
    assert result.returncode == 2
    assert "serv" in result.stderr


def test_schema_prints_the_schema() -> None:
    result = run_cli("schema")
    assert result.returncode == 0
    assert result.stdout == schema_text()


@pytest.mark.parametrize("command", ["--help", "schema", "--version"])
def test_quick_commands_load_nothing_heavy(command: str) -> None:
    code = f"""
import sys
from shardwright.cli.app import main
try:
    main([{command!r}])
except SystemExit as end:
    assert end.code == 0, end.code
loaded = [name for name in {HEAVY!r} if name in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize("command", ["status", "list", "recover"])
def test_a_script_loads_nothing_that_draws(command: str, tmp_path: Path) -> None:
    """Tables and bars are for people. ``status`` finds no daemon here, and the others no store."""
    where = ("--socket", str(tmp_path / "none")) if command == "status" else (str(tmp_path),)
    code = f"""
import sys
from shardwright.cli.app import main
try:
    main({[command, *where, "--json"]!r})
except SystemExit as end:
    assert end.code == {int(command == "status")}, end.code
loaded = [name for name in sys.modules if name.startswith("rich.")]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert "Usage: shardwright" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS)])
def test_help_names_values_as_a_user_knows_them(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag has none; others have a name of the field, not of Python's type; what may be left out is in
    brackets once."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(SystemExit):
        main([name, "--help"] if name else ["--help"])
    told = capsys.readouterr().out
    options = told[told.index("Options") :]
    assert re.findall(r"<[a-z]+( range)?>", options) == [], (
        "choices alone stand like this: <auto|shm|message>"
    )
    assert re.findall(r"\[\[|\.{6}|\.\.\.\]\.", told) == []
    for paragraph in filter(
        None, (inspect.getdoc(import_module(COMMANDS[name][0]).command) or "").split("\n\n") if name else []
    ):
        assert " ".join(paragraph.split()) in " ".join(told.split()), (
            "paragraphs are wrapped to the terminal, not where the source was"
        )


COMPLETIONS = {
    "a command": ("shardwright sta", 1, {"status"}),
    "its options": ("shardwright status --", 2, {"--socket", "--json", "--watch", "--interval", "--help"}),
    "a choice": ("shardwright camera --transport ", 3, {"auto", "shm", "message"}),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_a_shell_is_told_how_to_go_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, at, expected = COMPLETIONS[name]
    monkeypatch.setenv("_SHARDWRIGHT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(at))
    done = run_cli()
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_for_each_shell(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SHARDWRIGHT_COMPLETE", f"source_{shell}")
    done = run_cli()
    assert done.returncode == 0
    assert "_SHARDWRIGHT_COMPLETE=complete_" in done.stdout


def test_commands_that_are_not_asked_for_are_not_imported() -> None:
    code = (
        "import sys; from shardwright.cli.app import build_app; build_app(['schema']); assert "
        "'shardwright.cli.camera' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert build_app([]).registered_commands, "the commands are listed all the same"


EMPTY = [
    ("compact", "run.ome.zarr", "--to", "", "--move"),
    ("compact", "run.ome.zarr", "--to="),
    ("compact", "run.ome.zarr", ""),
    ("compact", "--config", ""),
    ("rechunk", "run.ome.zarr", ""),
    ("recover", ""),
    ("view", ""),
    ("status", "--socket", ""),
]


@pytest.mark.parametrize("arguments", EMPTY)
def test_an_empty_path_is_not_the_current_folder(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """As a script gives it whose variable is not set."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "an empty path" in capsys.readouterr().err


def test_a_typed_error_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("output: {root: data}\nstreams: 5\n")
    result = run_cli("serve", str(config))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == f"shardwright: {config}:2: streams: is not valid; expected a list; got 5\n"
