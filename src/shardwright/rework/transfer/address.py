"""The address of a destination, as users write it and as tasks carry it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.model.errors import ConfigError
from shardwright.model.names import checked_new_archive, checked_new_store, is_archive_name

if TYPE_CHECKING:
    from .destination import Destination

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_destination(url_or_path: str) -> Destination:
    """The destination of an address: ``s3://BUCKET/PREFIX``, or the path of a folder, or of a zip file
    (.ozx). Nothing is looked at or made yet. Raises ``ConfigError`` for other schemes,
    ``InvalidNameError``."""
    scheme = _SCHEME.match(url_or_path)
    is_archive = is_archive_name(url_or_path)
    if scheme is None and is_archive:
        from .archive_file import ArchiveFile  # each is imported only when it is asked for

        return ArchiveFile.at(checked_new_archive(beneath.user_path(url_or_path, is_new=True)))
    if scheme is None:
        from .local_folder import LocalFolder

        return LocalFolder(checked_new_store(beneath.user_path(url_or_path)))
    if scheme[1].lower() != "s3":
        raise ConfigError(
            f"{url_or_path} is not a destination",
            expected="a folder, a file NAME.ozx, or s3://BUCKET/PREFIX",
            got=f"{scheme[1]}://",
        )
    if is_archive:
        raise ConfigError(
            f"{url_or_path} is an object, and a zip file is made in a folder of this computer",
            expected="a path such as NAME.ozx",
            hint="Make the file here, then copy it there: it is read at its address like a store",
        )
    from .bucket import Bucket  # needs a library that not everyone has

    return Bucket(url_or_path)
