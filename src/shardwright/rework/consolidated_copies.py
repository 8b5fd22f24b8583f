"""The copies of a zarr.json in the groups above it, while it changes: consolidated metadata. Readers use only
the copies, so they must never say something else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.array.consolidated_metadata import consolidated_metadata, encode_consolidated
from shardwright.array.document import encode_document
from shardwright.disk import beneath
from shardwright.disk.files import replace_file
from shardwright.model.names import DOCUMENT
from shardwright.read.store import read_metadata, read_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@contextmanager
def without_copies(root: Path, folders: Iterable[Path]) -> Iterator[None]:
    """A context in which the zarr.json of ``folders`` may change. Copies of them in groups above, up to
    ``root``, are left out first and written again at last, after an error too: a kill in between leaves a
    store without them, and never a wrong one. Raises ``ShardFormatError``, ``StorageError``."""
    above = {each for folder in folders for each in folder.parents if each.is_relative_to(root)}
    with_copies = [
        each
        for each in sorted(above, key=lambda path: -len(path.parts))
        if beneath.is_file(each / DOCUMENT)
        and consolidated_metadata(read_metadata(each, foreign=True)) is not None
    ]
    try:
        for each in reversed(with_copies):
            group = read_metadata(each, foreign=True)
            alone = {name: value for name, value in group.items() if name != CONSOLIDATED}
            replace_file(each / DOCUMENT, encode_document(alone, foreign=True))
        yield
    finally:
        for each in with_copies:
            group = read_metadata(each, foreign=True)
            replace_file(each / DOCUMENT, encode_consolidated(group, read_nodes(each)))
