"""Which destination an address means. Each is imported only when it is: a bucket needs a library that not
everyone has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    from .destination import Destination

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_destination(url_or_path: str) -> Destination:
    """``s3://bucket/prefix``, or the path of a folder. Nothing is looked at or made yet. Raises
    ``ConfigError`` for other schemes."""
    scheme = _SCHEME.match(url_or_path)
    if scheme is None:
        from .local_folder import LocalFolder

        return LocalFolder(Path(url_or_path).absolute())
    if scheme[1].lower() != "s3":
        raise ConfigError(
            f"{url_or_path} is no destination",
            expected="a folder, or s3://BUCKET/PREFIX",
            got=f"{scheme[1]}://",
        )
    from .bucket import Bucket

    return Bucket(url_or_path)
