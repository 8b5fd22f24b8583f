"""The ``shardwright`` command: names its subcommands, loads only the one that is asked for, and turns typed
errors into one line and an exit code.

Exit codes: 0 done, 1 the work failed or something is wrong with the data, 2 usage or configuration.
"""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from shardwright import __version__
from shardwright.disk.failpoints import load_from_environment
from shardwright.model.errors import AccessError, ConfigError, ShardwrightError
from shardwright.model.extras import naming_missing_extra
from shardwright.model.local_path import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# where the scripts of --install-completion put the words so far
_COMPLETED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")

# name -> (module with a function ``command``, the line that --help shows). A module is imported only when its
# command is called, so that `shardwright schema` waits neither for numba nor for zmq.
COMMANDS = {
    "serve": ("shardwright.cli.serve", "Run the daemon that takes frames from cameras."),
    "check": ("shardwright.cli.check", "Check whether a configuration will run here, and why not."),
    "schema": ("shardwright.cli.schema", "Print the JSON Schema of the configuration."),
    "install": ("shardwright.cli.install", "Install systemd units and an example configuration."),
    "camera": ("shardwright.cli.camera", "Run a simulated camera against a daemon."),
    "status": ("shardwright.cli.status", "Show the state of a running daemon."),
    "acquisitions": ("shardwright.cli.acquisitions", "List the acquisitions that a running daemon has open."),
    "stop": (
        "shardwright.cli.stop",
        "End one acquisition of a running daemon; what has arrived is sealed.",
    ),
    "drain": ("shardwright.cli.drain", "End a running daemon in good order."),
    "keygen": ("shardwright.cli.keygen", "Make a pair of keys for connections over TCP."),
    "view": ("shardwright.cli.view", "Open a store in napari or in the browser, while it is written too."),
    "inspect": ("shardwright.cli.inspect", "Show the shards, slots and gaps of a store or of one shard."),
    "verify": ("shardwright.cli.verify", "Decode and check every chunk of a store."),
    "rechunk": ("shardwright.cli.rechunk", "Write the image of a store as a new store with other chunks."),
    "pyramid": ("shardwright.cli.pyramid", "Add levels of lower resolution to a store."),
    "update": ("shardwright.cli.update_region", "Give a region of a finished store new values."),
    "erase": ("shardwright.cli.erase", "Give frames or a region of a finished store the fill value."),
    "recover": ("shardwright.cli.recover", "Recover the stores that a killed daemon left unfinished."),
    "compact": ("shardwright.cli.compact", "Repack the sealed shards of stores without gaps."),
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardwright {__version__}")
        raise typer.Exit


def _root(
    show_version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Acquisition writer for microscope rigs: camera frames in, sharded OME-Zarr out."""


def _not_loaded() -> None:
    raise AssertionError("only commands named on the command line are run, and those are loaded")


class _Command(TyperCommand):
    """A command. Each path among its arguments is one of this computer: ``ConfigError`` for an address. Asked
    here, so that no command can forget it."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _shown(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        for given in ctx.params.values():
            for value in given if isinstance(given, list | tuple) else (given,):
                if isinstance(value, Path):
                    local_path(value)
        return super().invoke(ctx)


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _shown(super().get_params(ctx))


def _shown(params: list[Any]) -> list[Any]:
    """The parameters as --help shows them: a flag takes no value, so it has no placeholder."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _paragraphs(function: Callable[..., Any]) -> str:
    """Its docstring for a terminal of any width: line ends that are not between paragraphs would be kept."""
    return "\n\n".join(
        " ".join(paragraph.split()) for paragraph in (inspect.getdoc(function) or "").split("\n\n")
    )


def _words(arguments: Sequence[str]) -> set[str]:
    """Of this command line, or of the one that a shell wants completed."""
    return {*arguments, *(word for name in _COMPLETED for word in os.environ.get(name, "").split())}


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The typer application for one command line: the commands it names are loaded, the others only
    listed."""
    words = _words(arguments)
    app = typer.Typer(
        name="shardwright",
        cls=_Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, (module, summary) in COMMANDS.items():
        function: Callable[..., Any] = import_module(module).command if name in words else _not_loaded
        app.command(
            name, cls=_Command, short_help=summary, help=_paragraphs(function) if name in words else summary
        )(function)
    return app


def exit_code(error: ShardwrightError) -> int:
    """2 for what the user wrote into a configuration or chose as keys, 1 for everything else."""
    return 2 if isinstance(error, ConfigError | AccessError) else 1


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and exit. Unexpected exceptions keep their traceback and end in a non-zero
    code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    load_from_environment()
    try:
        with naming_missing_extra(next(filter(COMMANDS.__contains__, arguments), "this")):
            build_app(arguments)(list(arguments), prog_name="shardwright")
    except ShardwrightError as error:
        typer.echo(f"shardwright: {one_line(error)}", err=True)
        sys.exit(exit_code(error))
    sys.exit(0)


def one_line(error: ShardwrightError) -> str:
    """The error as one printable line."""
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
