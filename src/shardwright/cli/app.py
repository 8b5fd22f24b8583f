"""The ``shardwright`` command: names its subcommands, loads only the one that is asked for, and turns typed
errors into one line each and an exit code.

Exit codes: 0 done, 1 the work failed or something is wrong with the data, 2 usage or configuration.

With --json standard output gets one JSON document: what the command reports, or at any error and at Ctrl-C
``{"ok": false, "error": {...}}``. Standard error has the line for people all the same.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from shardwright import __version__
from shardwright.disk.failpoints import load_from_environment
from shardwright.model.display_text import one_line
from shardwright.model.errors import (
    AccessError,
    ConfigError,
    InterruptedJobError,
    ShardwrightError,
    error_from_dict,
)
from shardwright.model.extras import naming_missing_extra
from shardwright.model.local_path import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# of a wrong command line. Click's, which newer releases of typer have under a name of their own.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# where the scripts of --install-completion put the words so far
_COMPLETED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")

# name -> (module with a function ``command``, the line that --help shows). A module is imported only when its
# command is called, so that `shardwright schema` waits neither for numba nor for zmq.
COMMANDS = {
    "serve": ("shardwright.cli.serve", "Run the daemon that takes frames from cameras."),
    "init": ("shardwright.cli.init", "Write a first configuration."),
    "check": ("shardwright.cli.check", "Check whether a configuration will run here, and why not."),
    "schema": ("shardwright.cli.schema", "Print the JSON Schema of the configuration."),
    "install": ("shardwright.cli.install", "Install systemd units and an example configuration."),
    "camera": ("shardwright.cli.camera", "Run a simulated camera against a daemon."),
    "status": ("shardwright.cli.status", "Show the state of a running daemon."),
    "list": ("shardwright.cli.list_stores", "List the acquisitions in a folder, or those a daemon has open."),
    "stop": (
        "shardwright.cli.stop",
        "End one acquisition of a running daemon; what has arrived is sealed.",
    ),
    "drain": ("shardwright.cli.drain", "End a running daemon in good order."),
    "keygen": ("shardwright.cli.keygen", "Make a pair of keys for connections over TCP."),
    "view": ("shardwright.cli.view", "Open a store in napari or in the browser, while it is written too."),
    "inspect": ("shardwright.cli.inspect", "Show the shards, slots and gaps of a store or of one shard."),
    "verify": ("shardwright.cli.verify", "Decode and check every chunk of a store."),
    "repair": ("shardwright.cli.repair", "Restore damaged shards from their parity, and verify the store."),
    "rechunk": ("shardwright.cli.rechunk", "Write the image of a store as a new store with other chunks."),
    "pyramid": ("shardwright.cli.pyramid", "Add levels of lower resolution to a store."),
    "update": ("shardwright.cli.update_region", "Give a region of a finished store new values."),
    "erase": ("shardwright.cli.erase", "Give frames or a region of a finished store the fill value."),
    "recover": ("shardwright.cli.recover", "Recover the stores that a killed daemon left unfinished."),
    "compact": ("shardwright.cli.compact", "Repack the sealed shards of stores without gaps."),
    "refs": ("shardwright.cli.refs", "Write references to chunks: kerchunk, icechunk; or check them."),
    "upgrade-ome": ("shardwright.cli.upgrade_ome", "Change a store's metadata to OME-Zarr 0.6."),
    "rename": ("shardwright.cli.rename", "Give a finished store another name."),
    "delete": ("shardwright.cli.delete", "Delete a finished store."),
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
    """A command. None of its arguments is empty, and each path among them is one of this computer:
    ``BadParameter`` for an empty text, ``ConfigError`` for an address. Asked here, so that no command can
    forget it."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _shown(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Before the texts become paths: of an empty one, as a script makes of a variable that is not set,
        # pathlib makes the current folder, and a store would be moved into it.
        if not ctx.resilient_parsing:
            texts = self.make_parser(ctx).parse_args(args=[*args])[0]
            for param in self.get_params(ctx):
                given = texts.get(param.name)
                if "" in (given if isinstance(given, list | tuple) else (given,)):
                    raise typer.BadParameter("an empty path or text", ctx=ctx, param=param)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        for given in ctx.params.values():
            for value in given if isinstance(given, list | tuple) else (given,):
                if isinstance(value, Path):
                    local_path(value)
        return super().invoke(ctx)


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _shown(super().get_params(ctx))

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        with _ends_as_documents(_wants_json(args)):
            return super().make_context(info_name, args, *rest, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _ends_as_documents(_wants_json(ctx.args)):
            return super().invoke(ctx)


@contextmanager
def _ends_as_documents(as_json: bool) -> Iterator[None]:
    """Prints the ends that typer tells people itself, with ``as_json``."""
    try:
        yield
    except (_UsageError, typer.Abort, KeyboardInterrupt, EOFError) as error:
        if as_json and isinstance(error, _UsageError):
            _print_error({"code": "usage", "message": error.format_message()})  # type: ignore[attr-defined]
        elif as_json:
            _print_error(InterruptedJobError("the command was interrupted").to_dict())
        raise


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
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        # A folder's name need not be text, and what was done must be told all the same. Python has it so for
        # standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    load_from_environment()
    try:
        try:
            with naming_missing_extra(next(filter(COMMANDS.__contains__, arguments), "this")):
                build_app(arguments)(list(arguments), prog_name="shardwright")
        except ShardwrightError as error:
            for each in (error, *map(error_from_dict, error.others)):
                typer.echo(_fitted(f"shardwright: {one_line(each)}"), err=True)
            if _wants_json(arguments):
                _print_error(error.to_dict())
            sys.exit(exit_code(error))
    except OSError as error:  # those of a disk are typed
        if not _output_fails():
            raise
        typer.echo(f"shardwright: cannot write to standard output: {error.strerror}", err=True)
        sys.exit(1)
    sys.exit(0)


def _wants_json(arguments: Sequence[str]) -> bool:
    return "--json" in arguments


def _print_error(error: Mapping[str, Any]) -> None:
    typer.echo(json.dumps({"ok": False, "error": error}))


def _open_closed_streams() -> None:
    """Opens the null device as each standard stream that is closed. Python has None in their place, and the
    next file that is opened would get the descriptor: lines of the log would be written into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _output_fails() -> bool:
    """True if standard output takes no further line, as on a full disk. It then leads nowhere: Python would
    try to write the rest at its exit."""
    try:
        typer.echo()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _fitted(line: str) -> str:
    """The line, on a terminal in lines of its width. No word of it is broken: it may be a path. A log gets
    it as it is."""
    if not sys.stderr.isatty():  # COLUMNS alone may be of readline in a program that calls us
        return line
    import textwrap

    from rich.console import Console

    width = Console(stderr=True).width
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
