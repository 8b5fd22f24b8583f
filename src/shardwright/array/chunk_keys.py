"""The keys of an array's chunks, which are its shard files: their names below the array's folder (Zarr v3
core, "Chunk key encoding")."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OLDER_KEYS = "older keys"  # a chunk_key_encoding that no zarr.json may name: of ``foreign``
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_ANY_KEY = re.compile(r"c|(c[/.])?[0-9]+([/.][0-9]+)*")  # of Zarr v3


class Lister(Protocol):
    """Lists the folders of a store: ``disk.beneath``, which follows no link. This room has no lister."""

    def is_file(self, path: Path) -> bool: ...

    def is_dir(self, path: Path) -> bool: ...

    def paths_in(self, path: Path) -> list[Path]: ...


def arrays_above(key: str) -> Iterator[tuple[str, str]]:
    """Yields the folder of each array of which ``key`` may be a chunk, with the key below that folder, the
    outermost first. Only the documents there tell which it is: a folder may be named ``c`` or 0, too."""
    parts = key.split("/")
    for count in range(len(parts)):
        if _ANY_KEY.fullmatch(below := "/".join(parts[count:])):
            yield "/".join(parts[:count]), below


@dataclass(frozen=True)
class ChunkKeys:
    """The keys of the chunks of one array: ``head``, then the ``rank`` coordinates with ``separator`` between
    them. ``alone``: the key of the only chunk of an array without axes.

    | encoding | head | key |
    |---|---|---|
    | default | c/ or c. | c/1/0, c.1.0 |
    | v2 | none | 1/0, 1.0 |
    | storage transformer 1.0 | c | c1/0, c1.0 |
    """

    head: str
    separator: str
    rank: int
    alone: str = "c"

    @classmethod
    def of(cls, encoding: Any, rank: int) -> ChunkKeys:
        """Returns the keys that a ``chunk_key_encoding`` of zarr.json means. Raises ``ShardFormatError``."""
        if encoding["name"] == OLDER_KEYS:
            facts = encoding["configuration"]
            head, separator, alone = facts["head"], facts["separator"], facts["alone"]
            if head not in ("", "c") or separator not in ("/", ".") or alone not in ("0", "c0"):
                raise ShardFormatError("chunk_key_encoding not supported", got=repr(encoding)[:160])
            return cls(head, separator, rank, alone)
        is_v2 = encoding["name"] == "v2"
        separator = encoding.get("configuration", {}).get("separator", "." if is_v2 else "/")
        if separator not in ("/", "."):
            raise ShardFormatError(
                "chunk_key_encoding not supported", expected="separator '/' or '.'", got=encoding
            )
        return cls("", separator, rank, "0") if is_v2 else cls(f"c{separator}", separator, rank)

    def key(self, coordinates: tuple[int, ...]) -> str:
        return self.head + self.separator.join(map(str, coordinates)) if coordinates else self.alone

    def coordinates_of(self, key: str) -> tuple[int, ...] | None:
        """Returns the coordinates in a key; None if it is none of these."""
        if not self.rank:
            return () if key == self.alone else None
        parts = key.removeprefix(self.head).split(self.separator)
        if not key.startswith(self.head) or len(parts) != self.rank or not all(map(_NUMBER.fullmatch, parts)):
            return None
        return tuple(map(int, parts))

    def files(self, folder: Path, lister: Lister) -> Iterator[str]:
        """Yields the path of every file below the array's folder that may be a chunk, in a stable order,
        chunks or not."""

        def is_key(path: Path) -> bool:
            return self.coordinates_of(path.relative_to(folder).as_posix()) is not None

        if not self.rank:
            found = iter([folder / self.alone] if lister.is_file(folder / self.alone) else [])
        elif self.head == "c/":
            found = _files(folder / "c", is_key, lister)
        else:
            tops = (entry for entry in _sorted(folder, lister) if self._may_begin(entry.name))
            found = itertools.chain.from_iterable(
                _files(entry, is_key, lister) if lister.is_dir(entry) and not is_key(entry) else [entry]
                for entry in tops
            )
        yield from (path.relative_to(folder).as_posix() for path in found)

    def may_be(self, key: str) -> bool:
        """Returns whether a path below the array's folder is one of those that ``files`` yields."""
        if not self.rank:
            return key == self.alone
        return key.startswith("c/") if self.head == "c/" else self._may_begin(key.partition("/")[0])

    def _may_begin(self, name: str) -> bool:
        """Returns whether a name in the array's folder may be of chunks: nothing else begins so."""
        return name.startswith("c") if self.head else name[:1].isdecimal()


def _files(folder: Path, is_key: Callable[[Path], bool], lister: Lister) -> Iterator[Path]:
    """Yields everything that is not a folder, and folders in the place of a shard."""
    for entry in _sorted(folder, lister):
        if lister.is_dir(entry) and not is_key(entry):
            yield from _files(entry, is_key, lister)
        else:
            yield entry


def _sorted(folder: Path, lister: Lister) -> list[Path]:
    """Returns what is in a folder, numbers in the order of their value; nothing if there is none."""
    if not lister.is_dir(folder):
        return []
    return sorted(
        lister.paths_in(folder),
        key=lambda p: (not p.name.isdecimal(), len(p.name) if p.name.isdecimal() else 0, p.name),
    )
