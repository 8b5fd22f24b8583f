"""``shardwright update``: gives a region of a finished store new values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.model.errors import StorageError

from .array_options import parse_region
from .existing_path import existing_path
from .job_command import AsJson  # noqa: TC001  (typer reads the annotation)
from .region_options import DryRun, Image, MaxUnused, Region, StrategyName, changes_shown, finish_region

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
    region: Region = None,
    value: Value = None,
    image: Image = None,
    strategy: StrategyName = "auto",
    max_unused: MaxUnused = 0.25,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give a region of a finished store new values. Levels of lower resolution follow; the frame table stays.

    Each shard is changed whole or not at all, for readers that open it later. A run that was cut short may
    have changed some shards: run it again to complete it. Exits with 1 when something could not be changed,
    and with 2 for wrong usage.
    """
    from shardwright.edit.region_edit import update

    if region is None:
        raise typer.BadParameter("say which elements are to change", param_hint="--region")
    chosen = parse_region("--region", region)
    new = _values(values, value)
    with changes_shown("update") as on_progress:
        report = update(
            store,
            chosen,
            new,
            image=image,
            strategy=strategy,
            max_unused=max_unused,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    finish_region(report, as_json)


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
            f"cannot read values from {path}: {error}", hint="numpy.save writes them"
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
