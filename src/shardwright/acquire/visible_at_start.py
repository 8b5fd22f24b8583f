"""The frames that readers of the files see as an acquisition is resumed: of those that recovery found, the
ones that are sealed and covered by a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Extents, image_of
from shardwright.shard.frame_log import BlockKind

from .visible_frames import LISTED, RECEIVED, ROW, SEEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .recovered_state import RecoveredState
    from .visible_frames import VisibleFrames


def begin_visible(visible: VisibleFrames, restored: RecoveredState) -> None:
    """Begins with the frames of earlier processes. Of a shard row that was opened again those count as unseen
    that its older shards have. Raises ``ShardFormatError``, ``StorageError``."""
    accounts, metadata = restored.standing.accounts, restored.folder.metadata
    in_progress = (found.files.frame_records() for found in restored.shard_rows)
    listed = _rows(_sealed_beyond(restored), LISTED)
    rows = _first_of_each([listed, _rows([restored.standing.staged, *in_progress], RECEIVED)])
    rows = rows[accounts.stored.holds(rows["sequence"])]
    if rows.size and accounts.newest.size > 1:
        rows = _first_of_each([rows, _rows(_behind(restored, rows), SEEN)])
    visible.begin(metadata.covered, accounts.images_known, rows)


def _rows(pieces: Iterable[np.ndarray], state: int) -> np.ndarray:
    """Returns ``ROW``[n] of records."""
    made = []
    for piece in pieces:
        if piece.size:
            rows = np.zeros(piece.size, ROW)
            rows["sequence"], rows["position"], rows["state"] = piece["sequence"], piece["position"], state
            made.append(rows)
    return np.concatenate([np.zeros(0, ROW), *made])


def _first_of_each(rows: list[np.ndarray]) -> np.ndarray:
    """Returns of each sequence the row that stands first, in their order."""
    joined = np.concatenate(rows)
    return joined[np.unique(joined["sequence"], return_index=True)[1]]


def _sealed_beyond(restored: RecoveredState) -> Iterator[np.ndarray]:
    """Yields the records of frames in sealed shards that no shape covers: their writer died between the
    two."""
    grids = restored.folder.spec.grids
    reached = Extents(grids)
    for image, along in restored.folder.metadata.covered.items():
        reached.cover_image(image, along)
    rows = {
        row
        for row in restored.standing.closed_shard_rows
        if any(
            end > reach
            for end, reach in zip(grids.of(row).ends_of(row), reached.along[image_of(row)], strict=False)
        )
    }
    for kind, row, records in restored.folder.log.blocks() if rows else ():
        if kind is BlockKind.SHARD_ROW and row in rows:
            needed = reached.needed_for(records["position"].astype(np.int64))
            yield records[(needed > reached.along[image_of(row)]).any(axis=1)]


def _behind(restored: RecoveredState, unseen: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the records, sealed or settled, of frames behind the first one of their image that is unseen:
    an image counts those before it."""
    first = np.full(restored.standing.accounts.newest.size, np.iinfo(np.int64).max)
    np.minimum.at(first, image_of(unseen["position"]), unseen["sequence"])
    for _, _, records in restored.folder.log.blocks():
        known = records[records["position"].astype(np.int64) >= 0]
        images = image_of(known["position"].astype(np.int64))
        yield known[known["sequence"].astype(np.int64) > first[images]]
