"""The record of a finished acquisition: what its next part needs to go on where this one ended. It is in the
attributes of the frame table, since that gets its name as a whole, and travels with the store.

    receipts       one for each time that the acquisition ended: ``client_epoch``, of the newest client by
                   then, and ``counts``, of all frames that had come. Those of earlier parts stay as they are
    acquisition    ``manifest``, as the manifest file has it; ``passed_over``, the slabs that stay closed;
                   ``updates``, the files of updated metadata by their names

While the next part is written, ``.shardwright/receipts.json`` keeps the receipts: where names cannot be
exchanged, a kill may leave no frame table from which recovery could read them.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.files import replace_file
from shardwright.model.errors import ShardFormatError
from shardwright.read.frame_table import frame_table_of
from shardwright.shard.checked_json import encode_checked, read_checked, with_checksum
from shardwright.shard.manifest import manifest_facts
from shardwright.shard.metadata_updates import MOST_BYTES, updates_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from shardwright.read.frame_table import FinishedPart
    from shardwright.shard.manifest import Manifest

log = logging.getLogger("shardwright")
RECEIPTS_NAME = "receipts.json"
FORMAT = 1
_MOST_RECORD_BYTES = 24 << 20  # zarr.json of the table may have 64 MiB, and a user may consolidate it
_MOST_RECEIPTS_BYTES = 16 << 20
MOST_PASSED_OVER = 1 << 16  # slabs, the newest ones: older ones may then take frames again


def finish_record(
    workspace: Path, manifest: Manifest, updated: Iterable[int | None], counts: Mapping[str, int]
) -> dict[str, Any]:
    """Returns the record of an acquisition that ends. ``updated``: the groups whose metadata were;
    ``counts``: of its receipt, none if it has not ended. Raises ``StorageError``."""
    receipts = earlier_receipts(workspace)
    if counts:
        receipts.append({"client_epoch": manifest.client_epoch, "counts": dict(counts)})
    updates = {}
    for path in (updates_path(workspace, image) for image in sorted(updated, key=str)):
        with suppress(ShardFormatError):  # it has been set aside, or will be: nothing else hangs on it
            updates[path.name] = with_checksum(read_checked(path, MOST_BYTES))
    acquisition = {"manifest": with_checksum(manifest_facts(manifest)), "updates": updates}
    if len(json.dumps(acquisition)) > _MOST_RECORD_BYTES:
        log.warning(
            "%s cannot go on later: the record of its acquisition would be too long", workspace.parent
        )
        return {"receipts": receipts}
    return {"receipts": receipts, "acquisition": acquisition}


def keep_receipts(workspace: Path, receipts: Iterable[FinishedPart]) -> None:
    """Writes the receipts of the parts that have ended, durably. Raises ``StorageError``."""
    parts = [part._asdict() for part in receipts]
    replace_file(workspace / RECEIPTS_NAME, encode_checked({"format": FORMAT, "receipts": parts}))


def earlier_receipts(workspace: Path) -> list[dict[str, Any]]:
    """Returns what ``keep_receipts`` has written, and where that is damaged what the frame table has. Raises
    ``StorageError``."""
    path = workspace / RECEIPTS_NAME
    if beneath.exists(path):
        with suppress(ShardFormatError):
            return list(read_checked(path, _MOST_RECEIPTS_BYTES)["receipts"])
        with suppress(ShardFormatError):  # no frame depends on it
            table = frame_table_of(workspace.parent)
            return [] if table is None else [part._asdict() for part in table.receipts]
    return []
