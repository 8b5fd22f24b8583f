"""An array of an older spelling, and the zarr.json that means the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.chunk_keys import OLDER_KEYS
from shardwright.array.document import array_node, check_document
from shardwright.array.metadata import INDEX_CODECS, array_codecs
from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.spec import IndexLocation


@dataclass(frozen=True)
class OlderArray:
    """Shapes in elements, ``shard_chunks`` in chunks; None without shards. ``codecs``: of a chunk, as in
    zarr.json. ``key_head``, ``key_separator``, ``key_alone``: as ``ChunkKeys`` has them."""

    spelling: str
    shape: list[int]
    chunk_shape: list[int]
    shard_chunks: list[int] | None
    data_type: Any
    fill_value: Any
    codecs: list[dict[str, Any]]
    attributes: dict[str, Any]
    dimension_names: list[str] | None
    key_head: str
    key_separator: str
    key_alone: str

    def document(self, file: Path) -> dict[str, Any]:
        """Returns its zarr.json. ``file``: that of its own metadata. Its chunk keys are none of Zarr v3, and
        are taken for those of a new array by no one. Raises ``ShardFormatError``."""
        grid = self.chunk_shape
        if self.shard_chunks is not None:
            grid = [c * n for c, n in zip(self.chunk_shape, self.shard_chunks, strict=True)]
        index_location: IndexLocation = "none" if self.shard_chunks is None else "end"
        document = check_document(
            array_node(
                shape=self.shape,
                data_type=self.data_type,
                grid=grid,
                fill_value=self.fill_value,
                codecs=array_codecs(index_location, self.chunk_shape, self.codecs, INDEX_CODECS[:1]),
                attributes=self.attributes,
                names=self.dimension_names,
                has_keys=False,
            )
        )
        keys = {"head": self.key_head, "separator": self.key_separator, "alone": self.key_alone}
        facts = {**keys, "spelling": self.spelling, "file": str(file)}
        document["chunk_key_encoding"] = {"name": OLDER_KEYS, "configuration": facts}
        return document


def not_supported(field: str, expected: str, got: Any, most: int = 80) -> ShardFormatError:
    """Returns the error for a ``field`` that has another value than those ``expected``. ``most``: letters of
    what it has."""
    return ShardFormatError(f"{field} not supported", expected=expected, got=repr(got)[:most])


def check_fields(json_path: str, document: Any, needed: set[str], others: set[str]) -> None:
    """Raises ``ShardFormatError`` unless ``document`` is an object with these fields."""
    prefix = f"{json_path}." if json_path else ""
    if not isinstance(document, dict):
        raise ShardFormatError(f"{json_path or 'it'} is no object", got=repr(document)[:160])
    missing, unknown = needed - document.keys(), document.keys() - needed - others
    if missing:
        raise ShardFormatError(f"field {prefix + min(missing)!r} is missing")
    if unknown:
        raise ShardFormatError(
            f"field {prefix + min(unknown)!r} is not understood", expected=", ".join(sorted(needed | others))
        )
