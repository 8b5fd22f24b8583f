"""``shardwright.ChunkStore``, whose name is there without the extra that it needs: then it says so when it is
called."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ConfigError
from shardwright.model.extras import naming_missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from .chunk_store import ChunkStore


def chunk_store_class() -> type[ChunkStore] | Callable[..., NoReturn]:
    """Returns the class, or what raises ``ConfigError`` with the line that installs what it needs."""
    try:
        with naming_missing_extra("shardwright.ChunkStore"):
            # first: zarr-python fails in other ways where packages of the daemon are missing
            from . import shard_edit  # noqa: F401
            from .chunk_store import ChunkStore
    except ConfigError as error:
        why = ErrorText.of(error)
    else:
        return ChunkStore

    def needs_extra(*_: object, **__: object) -> NoReturn:
        raise why.to_error() from None

    return needs_extra
