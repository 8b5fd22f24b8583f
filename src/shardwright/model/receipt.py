"""The counts that a writer reports: the watermark while an acquisition lasts, the receipt when it has
ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .display_text import FactSheet, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

# fields that are newer than protocol version 1
_LATER = (
    *("frames_faster", "frames_uncompressed", "chunks_faster", "chunks_uncompressed"),
    *("frame_json_dropped", "places_skipped"),
)

MOST_IMAGES = 1024  # so that a receipt fits into a message

_TROUBLE = ("frames_missing", "frames_duplicate", "frames_late", "frames_dropped", "frames_lost")


@dataclass(frozen=True)
class Watermark:
    """The numbers of frames of an acquisition that are safe, counted without a hole from the first:
    ``stored`` ones survive a kill of the writer, ``durable`` ones a power cut. ``visible`` ones are seen by
    any reader of the files, such as zarr-python: with ``live: none`` once their shard is sealed, else once it
    lists their chunk. A frame may be visible before it is durable.

    ``images``: with several images, by name, how many frames of each are visible, from its first on; those
    without one are left out. A frame that is duplicate, late, dropped, lost or skipped is settled and counts
    too: the frame table shows which. One whose image nobody knows, lost with its client, counts for none.
    """

    stored: int
    durable: int
    visible: int = 0
    images: Mapping[str, int] = field(default_factory=dict)

    def of_frames(self, frame_places: int) -> Watermark:
        """Returns it, counted in places, as whole frames that take so many each."""
        if frame_places == 1:
            return self
        images = {name: count // frame_places for name, count in self.images.items()}
        stored, durable = self.stored // frame_places, self.durable // frame_places
        return Watermark(stored, durable, self.visible // frame_places, images)


@dataclass(frozen=True, repr=False)
class Receipt(FactSheet):
    """The exact account of one acquisition. It counts the rows of the frame table: a frame of a colour camera
    is 3 or 4 of them.

    ``frames_received`` counts every frame that was reported to the writer; each is then *stored* (in its
    chunk), *duplicate* (its place was taken), *late* (its place had been closed), *dropped* (the client had
    no credit, and the policy is to drop), *lost* (taken in, but not stored because of an error) or a place
    that ``skip`` left without a frame (``places_skipped``, which is no trouble).
    ``frames_missing`` counts the places inside the final array that hold fill value because no frame came or
    was kept, without skipped ones; until the end of the acquisition, only places before its newest frame's;
    where several axes have no count, and nobody knows which frames were to come, only places of frames that
    came. ``frames_durable`` are the stored frames that are synced. Bytes: ``bytes_raw`` of the stored frames,
    ``bytes_stored`` of the encoded chunks and indexes.

    Under the overload policy ``degrade``, ``..._faster`` counts the stored frames and chunks that were
    written with a faster setting than the array's, ``..._uncompressed`` those without compression; only those
    written by the reporting process. A frame counts once, by the fastest of its chunks.

    ``frame_json_dropped`` counts the frames whose JSON was left out, since it was longer than the array's
    ``frame_json_bytes``. The frames themselves have one of the statuses above.

    ``images``: with several images, of each one to which frames came ``frames_received``, ``frames_stored``
    and ``frames_missing``, by name; of more than ``MOST_IMAGES`` only the frame table says.
    """

    path: str
    frames_received: int
    frames_stored: int
    frames_durable: int
    frames_missing: int
    frames_duplicate: int
    frames_late: int
    bytes_raw: int
    bytes_stored: int
    shards: int
    frames_dropped: int = 0
    frames_lost: int = 0
    frames_faster: int = 0
    frames_uncompressed: int = 0
    chunks_faster: int = 0
    chunks_uncompressed: int = 0
    frame_json_dropped: int = 0
    places_skipped: int = 0
    images: dict[str, dict[str, int]] = field(default_factory=dict)

    def _facts(self) -> dict[str, object]:
        """Returns the path, and the counts that are not 0."""
        facts: dict[str, object] = {"path": self.path}
        for name, count in self.counts.items():
            if count or name == "frames_received":
                facts[name] = format_bytes(count) if name.startswith("bytes_") else count
        return facts | ({"images": len(self.images)} if self.images else {})

    @property
    def ratio(self) -> float:
        """The number of raw bytes per stored byte; 0 when nothing was stored."""
        return self.bytes_raw / self.bytes_stored if self.bytes_stored else 0.0

    @property
    def trouble(self) -> dict[str, int]:
        """The nonzero counts of frames that are not stored and of places without a frame: empty if every
        frame is in its place."""
        return {name: count for name in _TROUBLE if (count := getattr(self, name))}

    def incomplete_facts(self, *, is_there: bool) -> dict[str, Any]:
        """Returns the facts of the event ``acquisition_incomplete``; empty if every frame is in its place.
        ``is_there``: the store is where it was, so that a command can look into it."""
        if not self.trouble:
            return {}
        hint = {"hint": f"`shardwright inspect --missing {self.path}` lists them"} if is_there else {}
        return {"frames_received": self.frames_received, **self.trouble, **hint}

    @property
    def counts(self) -> dict[str, int]:
        """Every count of the acquisition as a whole, by name."""
        return {name: getattr(self, name) for name in COUNTS}

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, not to be changed; ``images`` only if there are some."""
        facts = dict(vars(self))  # ``asdict`` copies each image's counts, which takes tens of milliseconds
        if not self.images:
            del facts["images"]
        return facts

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Receipt:
        """Makes a receipt from ``to_dict``'s facts. Raises ``KeyError`` when a field other than ``_LATER`` is
        missing; unknown fields are ignored (a newer daemon may send more)."""
        counts = {name: int(facts.get(name, 0) if name in _LATER else facts[name]) for name in COUNTS}
        images = {
            str(image): {str(name): int(count) for name, count in dict(account).items()}
            for image, account in dict(facts.get("images", {})).items()
        }
        return cls(path=str(facts["path"]), **counts, images=images)


COUNTS = tuple(f.name for f in fields(Receipt) if f.name not in ("path", "images"))
