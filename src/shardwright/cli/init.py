"""``shardwright init``: writes a first configuration; asks for what its options do not say."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shardwright.model.errors import ConfigError
from shardwright.model.write_options import DTYPES

from .camera import parse_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.config.load import LoadedConfig

LEAST_HZ, MOST_HZ = 0.000001, 1e9


def command(
    config: Path = typer.Argument(Path("rig.yaml"), help="The file to write.", metavar="CONFIG"),
    root: Path | None = typer.Option(None, "--root", metavar="DIR", help="Folder for the stores."),
    cameras: list[str] = typer.Option(
        [], "--camera", metavar="NAME", help="Name of a camera; may be repeated."
    ),
    shape: str | None = typer.Option(
        None, "--shape", metavar="HxW", help="ROWSxCOLUMNS of a frame, such as 2048x2048."
    ),
    frame_rate: float | None = typer.Option(
        None, "--frame-rate", min=LEAST_HZ, max=MOST_HZ, metavar="HZ", help="Frames per second of a camera."
    ),
    dtype: str = typer.Option("uint16", "--dtype", metavar="DTYPE", help="Pixel type."),
    endpoint: str | None = typer.Option(
        None,
        "--endpoint",
        metavar="ENDPOINT",
        help="ipc://PATH where cameras connect. Default: in the folder run beside CONFIG.",
    ),
    force: bool = typer.Option(False, "--force", help="Replace CONFIG if it exists."),
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
) -> None:
    """Write a first configuration, of about 15 lines, that `check` accepts: where stores go, and each camera
    with a layout that fits its frames. Asks for what the options do not say.

    All cameras get the same frames; edit the file where they differ. An existing file is not replaced without
    --force.
    """
    from shardwright.config.load import parse_config
    from shardwright.config.new_config import (
        DEFAULT_ENDPOINT,
        check_may_write,
        new_config_text,
        write_new_config,
    )
    from shardwright.config.plan import make_plan

    if dtype not in DTYPES:
        raise typer.BadParameter(f"expected one of {', '.join(DTYPES)}, got {dtype!r}", param_hint="--dtype")
    check_may_write(config, replace=force)
    root = _told(root, "--root", "Folder for the stores", "data", _folder)
    names = _told(cameras or None, "--camera", "Names of the cameras", "camera", _names)
    size = _told(
        shape and parse_shape(shape), "--shape", "Rows x columns of a frame", "2048x2048", parse_shape
    )
    rate = _told(frame_rate, "--frame-rate", "Frames per second", "100", _rate)
    folder = config.absolute().parent
    text = new_config_text(folder, root, names, size, dtype, rate, endpoint or DEFAULT_ENDPOINT)
    try:
        loaded = parse_config(text, file=str(config), folder=folder)
    except ConfigError as error:
        if "too long for a Unix socket" in error.message:
            error.hint = "Give a shorter path: --endpoint ipc:///run/shardwright/ingest.sock"
        raise
    make_plan(loaded)  # one that cannot work is not written
    write_new_config(config, text, replace=force)
    _tell(config, loaded, as_json=as_json)


def _told(given: Any, option: str, question: str, default: str, parse: Callable[[str], Any]) -> Any:
    """The value of an option, or the answer to a question, asked again until ``parse`` takes it. Raises
    typer's usage error without a terminal."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise typer.BadParameter("is missing, and there is no terminal to ask on", param_hint=option)
    return typer.prompt(question, default=default, value_proc=parse, err=True)


def _folder(text: str) -> Path:
    return Path(os.path.expanduser(text))  # noqa: PTH111  (pathlib's raises for a user who is not there)


def _names(text: str) -> list[str]:
    if names := text.split():
        return names
    raise typer.BadParameter("expected at least one name")


def _rate(text: str) -> float:
    with suppress(ValueError):
        if LEAST_HZ <= (rate := float(text)) <= MOST_HZ:
            return rate
    raise typer.BadParameter(f"expected a number above 0, got {text!r}")


def _tell(config: Path, loaded: LoadedConfig, *, as_json: bool) -> None:
    endpoint = loaded.config.ingest.endpoints[0]
    streams = [stream.name for stream in loaded.config.streams]
    camera = ("camera", "--connect", endpoint, "--name", "test", "--stream", streams[0])
    calls = (("check", str(config)), ("serve", str(config)), camera)
    commands = [shlex.join(("shardwright", *call)) for call in calls]
    if as_json:
        facts = {"config": str(config), "root": str(loaded.config.output.root), "endpoint": endpoint}
        typer.echo(json.dumps({**facts, "streams": streams, "next": commands}))
    else:
        typer.echo("\n".join([f"{config} is written. Next:", *(f"  {command}" for command in commands)]))
