"""``shardwright update``: gives a region of a finished store new values."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.model.errors import StorageError

from . import region_options as options
from .existing_path import existing_path
from .job_command import AsJson  # noqa: TC001  (typer reads the annotation)

if TYPE_CHECKING:
    import numpy.typing as npt

ValuesFile = Annotated[
    Path | None, typer.Argument(help="The values, of the region's shape.", metavar="VALUES.npy")
]
Value = Annotated[
    str | None, typer.Option("--value", metavar="NUMBER", help="One value for all, instead of VALUES.npy.")
]


def command(
    store: Path = typer.Argument(
        ..., help="A finished store, or an image in it.", metavar="STORE", callback=existing_path
    ),
    values: ValuesFile = None,
    *,
    frames: options.Frames = None,
    region: options.Region = None,
    value: Value = None,
    image: options.Image = None,
    strategy: options.StrategyName = "auto",
    max_unused: options.MaxUnused = 0.25,
    dry_run: options.DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give frames or a region of a finished store new values. Levels of lower resolution follow; the frame
    table stays.

    Each shard is changed whole or not at all, for readers that open it later. A run that was cut short may
    have changed some shards: run it again to complete it. Exits with 1 when something could not be changed,
    and with 2 for wrong usage.
    """
    from shardwright.rework.edit.region_edit import update

    chosen = options.parse_elements(region, frames)
    new = _values(values, value)
    change = partial(
        update, store, chosen, new, image=image, strategy=strategy, max_unused=max_unused, dry_run=dry_run
    )
    options.make_changes("update", change, as_json)


def _values(path: Path | None, value: str | None) -> npt.ArrayLike:
    """The values of a file, which is mapped, or the one value. Raises ``StorageError``."""
    import numpy as np

    if (path is None) == (value is None):
        raise typer.BadParameter("give either a file of values or --value", param_hint="VALUES.npy")
    if path is None:
        return _number(str(value))
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(
            f"cannot read values from {path}: {error}", hint="Write such a file with `numpy.save`"
        ) from None
    if not isinstance(found, np.ndarray):
        raise StorageError(f"{path} holds several arrays", expected="a file of numpy.save")
    return found


def _number(text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise typer.BadParameter(f"expected a number, got {text!r}", param_hint="--value")
