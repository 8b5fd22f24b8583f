"""An acquisition as programs that are not its camera see it, by its name: what its data are (``described``)
and how far it has come (``account``), while it is armed, open, or after its end. Plain JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.model.errors import UnknownAcquisitionError
from shardwright.model.names import WORKSPACE, acquisition_name
from shardwright.model.receipt import Receipt
from shardwright.read.frame_table import frame_table_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.model.error_text import ErrorText
    from shardwright.model.receipt import Watermark


def described(path: Path, spec: AcquisitionSpec, stream: str, state: str) -> dict[str, Any]:
    """Returns the description of an acquisition: where its store is or will be, and each image as it is
    stored. A length along an axis is None while nothing says it."""
    arrays = {id(array): _array(array) for array in spec.distinct_arrays}
    images = [
        {"name": name, "path": place, **arrays[id(array)]}
        for name, place, array in zip(spec.names, spec.paths, spec.arrays, strict=True)
    ]
    return {
        "name": acquisition_name(path.name),
        "stream": stream,
        "state": state,
        "path": str(path),
        "uri": path.absolute().as_uri(),
        "images": images,
    }


def _array(array: ArraySpec) -> dict[str, Any]:
    axes = array.stored_dimensions
    has_shards = array.actual_index_location != "none"
    return {
        "dtype": array.dtype,
        "axes": [axis.name for axis in axes],
        "shape": [axis.count for axis in axes],
        "chunks": [axis.chunk_size for axis in axes],
        "shards": [axis.shard_size for axis in axes] if has_shards else None,
        "scales": [axis.scale for axis in axes],
        "units": [axis.unit for axis in axes],
        "frame_shape": list(array.given_shape),
        "frame_axes": [axis.name for axis in array.dimensions[:-2]],
    }


def account(
    path: Path,
    stream: str | None,
    state: str,
    watermark: Watermark | None = None,
    receipt: Receipt | None = None,
    why: ErrorText | None = None,
) -> dict[str, Any]:
    """Returns how far an acquisition has come. ``why``: the reason for an end that its camera did not ask
    for."""
    return {
        "name": acquisition_name(path.name),
        "path": str(path),
        "stream": stream,
        "state": state,
        "ended": state in ("ended", "failed"),
        "watermark": None if watermark is None else dict(vars(watermark)),
        "receipt": None if receipt is None else receipt.to_dict(),
        "error": None if why is None else why.to_dict(),
    }


def stored_account(path: Path) -> dict[str, Any]:
    """Returns the account of a finished acquisition as its store records it: the receipt with which its
    newest part ended. Raises ``UnknownAcquisitionError``, ``ShardFormatError``, ``StorageError``."""
    if not beneath.exists(path):
        raise UnknownAcquisitionError(
            "there is no acquisition of this name",
            expected="one that is armed, open or finished",
            got=acquisition_name(path.name),
        )
    if beneath.exists(path / WORKSPACE):
        raise UnknownAcquisitionError(
            "the acquisition of this name is unfinished, and nobody has it open",
            got=acquisition_name(path.name),
            hint="Its camera may resume it; `shardwright recover` seals it",
        )
    table = frame_table_of(path)
    if table is None or not table.receipts:
        raise UnknownAcquisitionError(
            "the store of this name has no receipt: it was not acquired, or by an early release",
            got=acquisition_name(path.name),
        )
    receipt = Receipt.from_dict({"path": str(path), **table.receipts[-1].counts})
    return account(path, None, "ended", receipt=receipt)
