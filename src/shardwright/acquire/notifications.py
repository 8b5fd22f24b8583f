"""The notifications of an acquisition: events for the operator, losses for the client, frames whose place was
taken. Each is reported once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.grid import image_of, number_in_image
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import DuplicateFrameError, LostFramesError
from shardwright.model.frame_status import FrameStatus, Reason

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec

    from .accounts import Accounts
    from .flushes import Flushes

    Event = tuple[str, dict[str, Any]]  # name and facts

_EVENT_OF_STATUS = {
    FrameStatus.DUPLICATE: "frames_duplicate",
    FrameStatus.LATE: "frames_late",
    FrameStatus.DROPPED: "frames_dropped",
    FrameStatus.LOST: "frames_lost",
}
_HINT_OF_STATUS = {
    FrameStatus.DUPLICATE: "Check the index: images of several positions or channels have the same place if "
    "the array has no axis for them",
    FrameStatus.LATE: "Its place had been closed: frames came further out of order than the ring can hold",
    FrameStatus.DROPPED: "Frames come faster than they are stored: find out whether the disk or the codec "
    "limits",
    FrameStatus.LOST: "`shardwright inspect --missing {path}` lists the places that such frames leave empty",
}
_JSON_HINT = (
    "The frame is kept without its JSON, which was too long; the receipt counts such frames. Set "
    "frame_json_bytes of the array higher for the next acquisition"
)


class Notifications:
    """The notifications of one acquisition that nobody has taken yet. ``raises_duplicates``: a frame whose
    place is taken is raised as the caller's error, and is no event."""

    def __init__(
        self, path: Path, spec: AcquisitionSpec, flushes: Flushes, *, raises_duplicates: bool
    ) -> None:
        self._path = path
        self.flushes = flushes  # the requests of callers that wait for their frames
        self._spec = spec
        self._raises_duplicates = raises_duplicates
        self._events: list[Event] = []
        self._losses: list[tuple[int, int, ErrorText]] = []
        self._reported: set[FrameStatus] = set()  # statuses whose first frame was reported
        self._duplicates_reported = 0
        self._json_reported = False
        self._updates: list[tuple[int, ErrorText | None]] = []

    def take_images(self, spec: AcquisitionSpec) -> None:
        """Takes the specification with images that were added."""
        self._spec = spec

    def begin_with(self, accounts: Accounts) -> None:
        """Marks all frames of an earlier process as reported."""
        self._duplicates_reported = accounts.frames_by_status[FrameStatus.DUPLICATE]
        self._reported.update(status for status, frames in accounts.frames_by_status.items() if frames)
        accounts.first_by_status.clear()
        self._json_reported = accounts.frame_json_dropped > 0

    def note(self, event: str, facts: dict[str, Any]) -> None:
        """Adds an event. A shard row of one of several images gets its number within the image, and the
        image's name."""
        if "shard_row" in facts and not self._spec.is_single:
            number = facts["shard_row"]
            image = self._spec.names[image_of(number)]
            facts = {"image": image, **facts, "shard_row": number_in_image(number)}
        self._events.append((event, facts))

    def take_events(self, accounts: Accounts) -> list[Event]:
        """Returns the events since the last call. Only the first frame of each status is an event; the counts
        have the number of others, so that a camera which is too fast fills no log."""
        for status, event in _EVENT_OF_STATUS.items():
            frames = accounts.frames_by_status[status]
            raised = status is FrameStatus.DUPLICATE and self._raises_duplicates
            if frames and status not in self._reported and not raised:
                self._reported.add(status)
                self.note(
                    event,
                    {
                        "frames": frames,
                        **self._facts_of_first(status, accounts),
                        "hint": _HINT_OF_STATUS[status].format(path=self._path),
                    },
                )
        if (record := accounts.first_json_dropped) is not None and not self._json_reported:
            self._json_reported = True
            facts = {"most_bytes": self._spec.frame_json_bytes, **self._facts_of(record)}
            self.note("frame_json_dropped", {**facts, "hint": _JSON_HINT})
        events, self._events = self._events, []
        return events

    def _facts_of_first(self, status: FrameStatus, accounts: Accounts) -> dict[str, Any]:
        """Returns the known facts of the first frame with a status."""
        record = accounts.first_by_status.get(status)
        if record is None:
            return {}
        return {"reason": Reason(int(record["reason"])).name.lower(), **self._facts_of(record)}

    def _facts_of(self, record: np.void) -> dict[str, Any]:
        """Returns which frame a record is of."""
        facts: dict[str, Any] = {"sequence": int(record["sequence"])}
        if record["frame_id"] >= 0:
            facts["frame_id"] = int(record["frame_id"])
        if record["position"] >= 0:
            image, facts["index"] = self._place(record)
            if image:
                facts["image"] = image
        return facts

    def _place(self, record: np.void) -> tuple[str, list[int]]:
        """Returns the image's name, empty if it has none, and the index of the frame of a record."""
        position = int(record["position"])
        image = image_of(position)
        return self._spec.names[image], list(self._spec.grids.of(position).index_of(position))

    def take_duplicates(self, accounts: Accounts) -> ErrorText | None:
        """Returns the error for frames since the last call whose place was taken, or None. A sequence that is
        sent again does not count."""
        count = accounts.frames_by_status[FrameStatus.DUPLICATE] - self._duplicates_reported
        if not count:
            return None
        self._duplicates_reported += count
        record = accounts.first_by_status.pop(FrameStatus.DUPLICATE)
        image, index = self._place(record)
        named = f"frame {int(record['sequence'])}" + (
            f" (id {int(record['frame_id'])})" if record["frame_id"] >= 0 else ""
        )
        return ErrorText(
            DuplicateFrameError,
            f"the place of {named} is taken",
            expected="one frame for each place",
            got=f"another one for index {tuple(index)}"
            + (f" of image {image}" if image else "")
            + (f", and {count - 1} more such frames" if count > 1 else ""),
            hint=f"{_HINT_OF_STATUS[FrameStatus.DUPLICATE]}. With on_duplicate: count, the first frame of a "
            f"place is kept and the others are counted",
        )

    def note_losses(self, sequences: np.ndarray) -> None:
        """Reports stored frames that a disk error destroyed, int64[n], to the client and the operator."""
        error = ErrorText(
            LostFramesError,
            "stored frames could not be read back after a disk error",
            got=f"{sequences.size} frames",
            hint=f"`shardwright inspect --missing {self._path}` lists their places",
        )
        sequences = np.sort(sequences)
        edges = np.flatnonzero(np.diff(sequences) != 1)
        firsts, lasts = (
            sequences[np.concatenate(([0], edges + 1))],
            sequences[np.concatenate((edges, [sequences.size - 1]))],
        )
        self._losses.extend(
            (first, last, error) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
        )
        self._reported.add(FrameStatus.LOST)
        self.note("frames_lost", {"frames": int(sequences.size), "reason": error.message})

    def note_update(self, request: int, error: ErrorText | None) -> None:
        self._updates.append((request, error))

    def take_updates(self) -> list[tuple[int, ErrorText | None]]:
        """Returns (request, why not) of metadata that are updated, or could not be, and of flushes."""
        updates, self._updates = self._updates, []
        return updates + self.flushes.take_answers()

    def take_losses(self) -> list[tuple[int, int, ErrorText]]:
        """Returns (first, last, why) of frames that were taken in, perhaps acknowledged, and could not be
        kept."""
        losses, self._losses = self._losses, []
        return losses
