"""The frames that readers of the files see as an acquisition is resumed: of those that recovery found, the
ones that are sealed and covered by a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import Extents, image_of
from shardwright.shard.frame_log import BlockKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .recovered_state import RecoveredState
    from .visible_frames import VisibleFrames

_PLACE = np.dtype([("sequence", "<i8"), ("position", "<i8")])


def begin_visible(visible: VisibleFrames, restored: RecoveredState) -> None:
    """Begins with the frames of earlier processes. Of a shard row that was opened again those count as unseen
    that its older shards have. Raises ``ShardFormatError``, ``StorageError``."""
    accounts, covered = restored.standing.accounts, restored.folder.metadata.covered
    listed = _places(_sealed_beyond(restored, covered))
    in_progress = [found.files.frame_records() for found in restored.shard_rows]
    places = np.concatenate([listed, _places([restored.standing.staged, *in_progress])])
    places = places[np.unique(places["sequence"], return_index=True)[1]]
    places = places[accounts.stored.holds(places["sequence"])]
    visible.begin(
        covered,
        accounts.images_known,
        (places["sequence"].copy(), places["position"].copy()),
        (listed["sequence"].copy(), listed["position"].copy()),
    )


def _places(pieces: list[np.ndarray]) -> np.ndarray:
    """Returns the sequences and positions of records."""
    places = np.zeros(sum(piece.size for piece in pieces), _PLACE)
    done = 0
    for piece in pieces:
        if piece.size:
            mine = places[done : done + piece.size]
            mine["sequence"], mine["position"] = piece["sequence"], piece["position"]
            done += piece.size
    return places


def _sealed_beyond(restored: RecoveredState, covered: Mapping[int, tuple[int, ...]]) -> list[np.ndarray]:
    """Returns the records of frames in sealed shards that no shape covers: their writer died between the
    two."""
    grids, found = restored.folder.spec.grids, []
    reached = Extents(grids)
    for image, along in covered.items():
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
            found.append(records[(needed > reached.along[image_of(row)]).any(axis=1)])
    return found
