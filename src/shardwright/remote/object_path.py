"""Paths of finished stores at an address: s3://BUCKET/KEY, http(s)://SERVER/KEY.

is there    HEAD; a folder is what has a zarr.json, and in a bucket each prefix that something has. A server
            of plain files has no lists, and answers for a folder as it likes
lists       of a bucket alone, a thousand keys by one request
bytes       a document by one request, a shard by ranges (``object_shard``)
"""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ShardFormatError
from shardwright.model.forked_child import renew_in_child
from shardwright.model.names import DOCUMENT

from .object_shard import RANGES_AT_ONCE, ObjectRanges, ObjectVersion, ShardSize
from .objects import RETRY_VARIABLE, Objects, not_found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_SIZES, _MOST_ASKED = 1 << 20, 1024
_FOLDER = os.stat_result((stat.S_IFDIR | 0o555, *(0,) * 9))


class _Place:
    """A bucket or a server. ``sizes``: of objects that were listed last, by key; it may be behind."""

    def __init__(self, root: str) -> None:
        self.objects = Objects(root)
        self.sizes: dict[str, int] = {}


@lru_cache(maxsize=16)
def _connected(root: str, settings: tuple[tuple[str, str], ...]) -> _Place:
    del settings  # another one for other credentials
    return _Place(root)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(RANGES_AT_ONCE, "shardwright-ranges")


renew_in_child(_connected.cache_clear)
renew_in_child(_threads.cache_clear)


class ObjectPath(RemotePath):
    """As ``RemotePath``. Raises ``ConfigError`` too, where the extra or credentials are missing."""

    hint_without_document = "Check the address. What is still being sent there gets its zarr.json last"

    def _at(self) -> tuple[_Place, str]:
        """Returns the bucket or server, and the key there. Raises ``FileNotFoundError`` for what is above."""
        scheme, server, *parts = (*self.parts, "", "")
        if not scheme.endswith(":") or not server:
            raise not_found(self)
        settings = [item for item in os.environ.items() if item[0].startswith(("AWS_", RETRY_VARIABLE))]
        return _connected(f"{scheme}//{server}", tuple(sorted(settings))), "/".join(filter(None, parts))

    @property
    def has_lists(self) -> bool:
        return self.parts[:1] == ("s3:",)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        del follow_symlinks
        place, key = self._at()
        is_document = self.name == DOCUMENT
        if not is_document and place.objects.size(f"{key}/{DOCUMENT}") is not None:
            return _FOLDER
        if key and (meta := place.objects.head(key)) is not None:
            return ObjectVersion.of(meta).status
        if self.has_lists and not is_document and any(True for _ in place.objects.sizes(key or None)):
            return _FOLDER
        raise not_found(self)

    def names(self) -> list[str]:
        place, key = self._at()
        files, folders = place.objects.names(key) if self.has_lists else (set(), set())
        if not files | folders:
            raise not_found(self)
        return [*files, *folders]

    def keys_below(self) -> Iterator[str]:
        place, key = self._at()
        start = f"{key}/" if key else ""
        for found, nbytes in place.objects.sizes(key or None) if self.has_lists else ():
            if len(place.sizes) >= _MOST_SIZES:
                place.sizes.clear()
            place.sizes[found] = nbytes
            yield found.removeprefix(start)

    def listed_bytes(self) -> int:
        place, key = self._at()
        nbytes = place.sizes.get(key)
        return self.stat().st_size if nbytes is None else nbytes

    def content(self, most_bytes: int) -> bytes:
        place, key = self._at()
        answer = place.objects.begin(key) if key else None
        if answer is None:
            raise not_found(self)
        if (nbytes := int(answer.meta["size"])) > most_bytes:
            raise ShardFormatError(f"{self} is too long", expected=f"at most {most_bytes} bytes", got=nbytes)
        with place.objects.errors("read", key):
            return bytes(answer.bytes())

    def open_shard(self, size: ShardSize | None = None) -> ObjectRanges:
        place, key = self._at()
        return ObjectRanges(place.objects, key, _threads, self, size)

    def present(self, keys: Iterable[str]) -> Iterator[str]:
        place, start = self._at()

        def size(key: str) -> int | None:
            return place.objects.size(f"{start}/{key}")

        asked = iter(keys)
        while some := list(islice(asked, _MOST_ASKED)):
            for key, nbytes in zip(some, _threads().map(size, some), strict=True):
                if nbytes is not None:
                    place.sizes[f"{start}/{key}"] = nbytes
                    yield key
