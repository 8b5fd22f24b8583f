"""A shard file alone, without any zarr.json: read by the description that it has of itself.

The description is believed as far as the file bears it out: its array must be one that is read here, its
index must lie where the description leaves it and decode, and each chunk must decode to its size. The sum
of the chunks is compared with the one that it says.
"""

from __future__ import annotations

import io
import math
from contextlib import closing
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.document import check_document, default_keys
from shardwright.disk import beneath
from shardwright.disk.files import AtomicFile, new_name
from shardwright.model.errors import BudgetError, OutputExistsError, ShardFormatError
from shardwright.shard.sealed_shard import SealedShard, regular_file
from shardwright.shard.shard_description import FIELDS, HDF5_SIGNATURE, MAGIC, SHARD, description_before
from shardwright.shard.shard_sums import data_crc, shard_sum

from .store import parse_array

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.disk.read_file import ReadFile
    from shardwright.shard.shard_description import ShardDescription

    from .store import StoredArray

_TAILS = (1 << 16, 1 << 20, 1 << 24, (1 << 28) + (1 << 21))  # the last one is longer than any index
_MOST_LAYER_BYTES = 8 << 30


def inspect_alone(path: Path, target: Path | None) -> dict[str, Any]:
    """Reads all of a lone shard. Returns its facts, with its ``problems``; decodes it into a new file of
    NumPy (``target``: ``.npy``). Raises ``ShardFormatError`` for a file without a description, or that is not
    as that says, ``BudgetError``, ``OutputExistsError``, ``StorageError``."""
    path, target = beneath.user_path(path), target and beneath.user_path(target)
    with closing(regular_file(path, spilled=False)) as file:
        description, end = _description(file)
        array = _described_array(path, description)
        if end != (file.nbytes - array.index_bytes if array.index_location == "end" else end):
            raise _without_description(path)
        sealed = SealedShard(file, array.index)
        sealed.check_sound()
        live, has_inner = sealed.index.live, array.codecs.checksum
        crcs = [data_crc(_chunk(sealed, n), has_inner=has_inner) for n in live.tolist()]
        nbytes = sealed.entries["nbytes"][live]
        found = shard_sum(live, nbytes, np.array(crcs, np.uint32))
        changed = "the chunks are not those that the description says: the file was changed since"
        if target is not None:
            _save(array, sealed, target)
        return {
            "path": str(path),
            "shard": description.facts[SHARD],
            "shape": list(array.shard_shape),
            "chunk_shape": list(array.chunk_shape),
            "dtype": array.dtype.name,
            "fill_value": array.fill_value,
            "codecs": array.chain.as_json,
            "index_location": array.index_location,
            "container": "hdf5" if description.user_block else None,
            "chunks": array.chunks_per_shard,
            "chunks_present": len(live),
            "encoded_bytes": int(nbytes.sum()),
            "problems": []
            if description.is_of(array.described, description.facts[SHARD], found)
            else [changed],
        }


def _chunk(sealed: SealedShard[ReadFile], number: int) -> memoryview:
    entry = sealed.entries[number]
    return sealed.file.read(int(entry["offset"]), int(entry["nbytes"]))


def _save(array: StoredArray, sealed: SealedShard[ReadFile], target: Path) -> None:
    """Decodes a shard, one layer of chunks along the first axis after another."""
    if beneath.exists(target):
        raise OutputExistsError(f"{target} exists already", hint="Give the name of a new file")
    shape = (array.chunk_shape[0], *array.shard_shape[1:])
    if math.prod(shape) * array.dtype.itemsize > _MOST_LAYER_BYTES:
        raise BudgetError(
            "a layer of chunks of this shard is too large to be decoded at once",
            expected=f"at most {_MOST_LAYER_BYTES} bytes",
            got=f"{shape} {array.dtype.name}",
        )
    header, room = io.BytesIO(), np.empty(array.chunk_bytes, np.uint8)
    facts = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shard_shape}
    np.lib.format.write_array_header_1_0(header, facts)
    with AtomicFile(new_name(target, token_hex(8)), "replace", called=target) as out:
        out.preallocate(len(header.getvalue()) + math.prod(array.shard_shape) * array.dtype.itemsize)
        out.write(0, header.getvalue())
        at = len(header.getvalue())
        for numbers in np.arange(array.chunks_per_shard).reshape(array.shard_chunks[0], -1):
            layer = np.full(shape, array.fill_element[()], array.dtype)
            for number in numbers[sealed.index.present[numbers]].tolist():
                place = (0, *np.unravel_index(number, array.shard_chunks)[1:])
                parts = (
                    slice(int(k) * n, int(k + 1) * n) for k, n in zip(place, array.chunk_shape, strict=True)
                )
                layer[tuple(parts)] = array.decode(_chunk(sealed, number), room)
            out.write(at, layer.reshape(-1).view(np.uint8).data)
            at += layer.nbytes
        out.sync()
        out.take_name(target)


def _description(file: ReadFile) -> tuple[ShardDescription, int]:
    """Returns the description of a file, and where it ends: before HDF5, or the last one there is."""
    block = 512
    while block + 8 <= file.nbytes:
        if file.read(block, 8) == HDF5_SIGNATURE and (found := description_before(block, file.read)):
            return replace(found, user_block=block), block
        block *= 2
    for nbytes in _TAILS:
        start = max(0, file.nbytes - nbytes)
        at = bytes(file.read(start, file.nbytes - start)).rfind(MAGIC)
        if at >= 0 and (found := description_before(end := start + at + len(MAGIC), file.read)):
            return found, end
        if not start:
            break
    raise _without_description(file.path)


def _without_description(path: Path | str) -> ShardFormatError:
    return ShardFormatError(
        f"{path} has no description of itself",
        hint="`shardwright compact --describe` adds one to each shard of a store. A shard in its store "
        "needs none: leave out --standalone",
    )


def _described_array(path: Path, description: ShardDescription) -> StoredArray:
    """Returns the array of one shard that a description makes. Raises ``ShardFormatError``."""
    node = {"zarr_format": 3, "node_type": "array", "chunk_key_encoding": default_keys(), "attributes": {}}
    fields = {name: value for name, value in description.facts.items() if name in FIELDS}
    try:
        shape = fields["chunk_grid"]["configuration"]["chunk_shape"]
        array = parse_array(path.parent, check_document({**node, **fields, "shape": shape}))
        is_place = len(description.facts[SHARD]) == len(array.shape)
    except (ShardFormatError, LookupError, TypeError) as error:
        raise ShardFormatError(f"the description in {path} is not understood: {error}") from None
    if not is_place or not array.is_sharded:
        raise ShardFormatError(f"the description in {path} is not understood: it is of no shard in a grid")
    return array
