"""``shardwright compact --config``: the stores below a daemon's output root, with the daemon's compaction
settings. For a timer, at night."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.config.model import Config


def configured(file: Path, stores: Sequence[Path], to: str | None) -> Config:
    """Raises ``ConfigError``, also for what cannot go with ``--config``."""
    from shardwright.config.load import load_config

    if stores or to is not None:
        raise ConfigError(
            "--config names the stores",
            expected="no STORE and no --to beside it",
            got=to if to is not None else str(stores[0]),
        )
    return load_config(file).config


def sealed_stores(root: Path) -> list[Path]:
    """Finished stores below an output root; those that are being written, or were left unfinished, are the
    daemon's. Raises ``StorageError``."""
    from shardwright.recovery.leftovers import unfinished_stores
    from shardwright.storage.files import storage_errors

    unfinished = set(unfinished_stores(root))
    with storage_errors("look into", root):
        return sorted(
            folder
            for folder in root.iterdir()
            if folder not in unfinished and folder.suffix == ".zarr" and (folder / "zarr.json").is_file()
        )
