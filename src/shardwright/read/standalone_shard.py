"""A shard file alone, without any zarr.json: read by the description that it has of itself.

The description is believed as far as the file bears it out: its array must be one that is read here, its
index must lie where the description leaves it and decode, and each chunk must decode to its size. The sum
of the chunks is compared with the one that it says.
"""

from __future__ import annotations

import io
import itertools
import math
from contextlib import closing
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.document import check_document, default_keys
from shardwright.disk import beneath
from shardwright.disk.files import AtomicFile, new_name
from shardwright.model.errors import BudgetError, OutputExistsError, ShardFormatError
from shardwright.shard.sealed_shard import SealedShard, regular_file
from shardwright.shard.shard_description import description_before, last_end
from shardwright.shard.shard_sums import data_crc, shard_sum

from .hdf5_shard import HDF5, find_user_block
from .store import parse_array

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from shardwright.disk.read_file import ReadFile
    from shardwright.shard.shard_description import ShardDescription

    from .store import StoredArray

_TAILS = (1 << 16, 1 << 20, 1 << 24, (1 << 28) + (1 << 21))  # the last one is longer than any index
_MOST_TRIES = 64  # ends of descriptions that turn out to be none
_MOST_SLAB_BYTES = 8 << 30


@dataclass(frozen=True)
class StandaloneShard:
    """A lone shard that is open: ``array`` has its shape. ``container``: what the file is as well."""

    file: ReadFile
    array: StoredArray
    sealed: SealedShard[ReadFile]
    description: ShardDescription
    container: str | None

    @classmethod
    def open(cls, path: Path) -> StandaloneShard:
        """Raises ``ShardFormatError`` for a file without a description, or whose index is not as that says,
        ``StorageError``."""
        path = beneath.user_path(path)
        file = regular_file(path, spilled=False)
        try:
            for description, end, block in _descriptions(file):
                array = _described_array(path, description)
                at_end = array.index_location == "end"
                if array.is_sharded and end == (file.nbytes - array.index_bytes if at_end else end):
                    sealed = SealedShard(file, array.index)
                    sealed.check_sound()
                    return cls(file, array, sealed, description, HDF5 if block else None)
        except BaseException:
            file.close()
            raise
        file.close()
        raise ShardFormatError(
            f"{path} has no description of itself",
            hint="`shardwright compact --describe` adds one to each shard of a store. A shard in its store "
            "needs none: leave out --standalone",
        )

    def close(self) -> None:
        self.file.close()

    def check(self) -> list[str]:
        """Reads all chunks. Returns what is wrong with them."""
        live, entries, has_inner = self.sealed.index.live, self.sealed.entries, self.array.codecs.checksum
        crcs = [data_crc(data, has_inner=has_inner) for _, data in self._chunks(live.tolist())]
        found = shard_sum(live, entries["nbytes"][live], np.array(crcs, np.uint32))
        if found == self.description.sum:
            return []
        return ["the chunks are not those that the description says: the file was changed since"]

    def to_dict(self) -> dict[str, Any]:
        array, entries = self.array, self.sealed.entries[self.sealed.index.live]
        return {
            "path": str(self.file.path),
            "shard": list(self.description.shard),
            "shape": list(array.shard_shape),
            "chunk_shape": list(array.chunk_shape),
            "dtype": array.dtype.name,
            "dimension_names": array.dimension_names,
            "fill_value": array.fill_value,
            "codecs": array.chain.as_json,
            "index_location": array.index_location,
            "container": self.container,
            "chunks": array.chunks_per_shard,
            "chunks_present": len(entries),
            "encoded_bytes": int(entries["nbytes"].sum()),
            "file_bytes": self.file.nbytes,
        }

    def save(self, target: Path) -> None:
        """Decodes it into a new file of NumPy (``.npy``). Raises ``ShardFormatError`` for a chunk that does
        not decode, ``BudgetError``, ``OutputExistsError``, ``StorageError``."""
        target, array = beneath.user_path(target), self.array
        if beneath.exists(target):
            raise OutputExistsError(f"{target} exists already", hint="Give the name of a new file")
        slab_shape = (array.chunk_shape[0], *array.shard_shape[1:])
        if math.prod(slab_shape) * array.dtype.itemsize > _MOST_SLAB_BYTES:
            raise BudgetError(
                "a layer of chunks of this shard is too large to be decoded at once",
                expected=f"at most {_MOST_SLAB_BYTES} bytes",
                got=f"{slab_shape} {array.dtype.name}",
            )
        header = io.BytesIO()
        facts = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shard_shape}
        np.lib.format.write_array_header_1_0(header, facts)
        with AtomicFile(new_name(target, token_hex(8)), "replace", called=target) as file:
            file.write(0, header.getvalue())
            at = len(header.getvalue())
            for slab in self._slabs(slab_shape):
                file.write(at, slab.reshape(-1).view(np.uint8).data)
                at += slab.nbytes
            file.sync()
            file.take_name(target)

    def _slabs(self, shape: tuple[int, ...]) -> Iterator[npt.NDArray[Any]]:
        """Yields the values of each layer of chunks along the first axis."""
        array, present = self.array, self.sealed.index.present
        room = np.empty(array.chunk_bytes, np.uint8)
        of_layer = range(math.prod(array.shard_chunks[1:]))
        for layer in range(array.shard_chunks[0]):
            slab = np.full(shape, array.fill_element[()], array.dtype)
            numbers = (layer * len(of_layer) + n for n in of_layer)
            for number, data in self._chunks([n for n in numbers if present[n]]):
                place = np.unravel_index(number, array.shard_chunks)
                starts = [int(at) * n for at, n in zip(place, array.chunk_shape, strict=True)]
                starts[0] = 0
                ends = [at + n for at, n in zip(starts, array.chunk_shape, strict=True)]
                slab[tuple(map(slice, starts, ends))] = array.decode(data, room)
            yield slab

    def _chunks(self, numbers: list[int]) -> Iterator[tuple[int, memoryview]]:
        for number in numbers:
            offset, nbytes = (int(self.sealed.entries[name][number]) for name in ("offset", "nbytes"))
            yield number, self.file.read(offset, nbytes)


def _descriptions(file: ReadFile) -> Iterator[tuple[ShardDescription, int, int | None]]:
    """Yields what may be the description of a file, where it ends, and where HDF5 begins if it lies before
    that: the last bytes of the file, those before HDF5, and those before an index at the end."""
    block = find_user_block(1, file.nbytes, file.read)
    ends = itertools.chain([(file.nbytes, None)], [(block, block)] if block else [], _ends(file))
    for end, of_hdf5 in itertools.islice(ends, _MOST_TRIES):
        if (found := description_before(end, file.read)) is not None:
            yield found, end, of_hdf5


def _ends(file: ReadFile) -> Iterator[tuple[int, None]]:
    """Yields where a description may end, the last place first."""
    tried = file.nbytes
    for nbytes in _TAILS:
        start = max(0, file.nbytes - nbytes)
        tail = bytes(file.read(start, tried - start))
        while (end := last_end(tail)) > 0:
            yield start + end, None
            tail = tail[: end - 1]
        tried = min(tried, start + 8)  # one may lie across
        if not start:
            return


def _described_array(path: Path, description: ShardDescription) -> StoredArray:
    """Returns the array of one shard that a description makes. Raises ``ShardFormatError``."""
    fields = description.fields
    node = {"zarr_format": 3, "node_type": "array", "chunk_key_encoding": default_keys(), "attributes": {}}
    try:
        shape = fields["chunk_grid"]["configuration"]["chunk_shape"]
        array = parse_array(path.parent, check_document({**node, **fields, "shape": shape}))
    except (ShardFormatError, LookupError, TypeError) as error:
        raise ShardFormatError(f"the description in {path} is not understood: {error}") from None
    if len(description.shard) != len(array.shape):
        raise ShardFormatError(f"the description in {path} names no place in the grid")
    return array


def inspect_alone(path: Path, target: Path | None) -> dict[str, Any]:
    """Returns the facts of a lone shard, with its ``problems``; writes its values to ``target``. Raises as
    ``StandaloneShard.open`` and ``save``."""
    with closing(StandaloneShard.open(path)) as shard:
        facts = {**shard.to_dict(), "problems": shard.check()}
        if target is not None:
            shard.save(target)
            facts["to"] = str(target)
        return facts
