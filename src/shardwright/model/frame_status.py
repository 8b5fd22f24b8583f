"""The final status of a frame and its reason: the numbers in frame records and in the columns ``status`` and
``reason`` of the frame table."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# two names of one column: readers of 0.2.0 know only the older one, so that this release writes both
STATUS, OLDER_STATUS = "status", "fate"


def status_column(facts: Mapping[str, Any]) -> str:
    """Returns the name of the column of statuses, by the attributes of a frame table, which spell out the
    numbers of the columns that have any.

    The presence of a column ``status`` is not enough: it may be a frame field of the array, as 0.2.0 allowed.
    """
    return STATUS if STATUS in facts else OLDER_STATUS


class FrameStatus(IntEnum):
    STORED = 1
    DUPLICATE = 2
    LATE = 3
    DROPPED = 4
    LOST = 5
    SKIPPED = 6  # the caller said that no frame comes for its place

    @property
    def counted_as(self) -> str:
        """The field of a receipt that counts it."""
        return "places_skipped" if self is FrameStatus.SKIPPED else f"frames_{self.name.lower()}"


class Reason(IntEnum):
    NONE = 0
    PLACE_TAKEN = 1  # duplicate: another frame has this place
    PLACE_CLOSED = 2  # late: the place's shard was sealed, or its slab closed, with the place empty
    OVERLOAD = 3  # dropped: the camera's side had no credit left
    IO_ERROR = 4  # lost: its chunk could not be written, or not be read back after a disk error
    NOT_HELD = 5  # lost: not stored when the daemon died, and the client no longer had it
    ACQUISITION_FAILED = 6  # lost: acknowledged, then given up with the acquisition (0.2.0: or just given up)
    NOT_ACKNOWLEDGED = 7  # lost: only in the memory of a writer that died or failed, and never acknowledged
