"""What acquisitions have come to: the counts of their receipts, bytes and measures, of one of them or summed
over many."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from shardwright.acquire.measures import Measures
from shardwright.model.receipt import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# of acquisitions whose client brought its own array: one name for all, so that there are not more and more of
# them
CLIENT_STREAM = "client"
_COUNTS = tuple(f.name for f in fields(Receipt) if f.name != "path")
# received and stored: counted where they come from
_FATES_WITH_BYTES = ("durable", "missing", "skipped", "duplicate", "late", "dropped", "lost")
_BYTE_COUNTS = tuple(f"bytes_{fate}" for fate in _FATES_WITH_BYTES)


@dataclass(frozen=True)
class Totals:
    """``counts`` are those of the receipts: exactly their sums once the acquisitions have ended; and the
    pixel bytes of frames by their fate.

    ``frames_skipped`` are the missing ones that nobody ever sent. Skipped, dropped, late, lost and duplicate
    frames are all that is not stored, each counted once; ``frames_missing`` counts the places of dropped,
    late and lost ones as well.
    """

    acquisitions: int = 0
    acquisitions_failed: int = 0
    bytes_received: int = 0
    counts: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys((*_COUNTS, "frames_skipped", *_BYTE_COUNTS), 0)
    )
    measures: Measures = field(default_factory=Measures)

    @classmethod
    def of(
        cls,
        receipt: Receipt,
        before: Receipt | None,
        *,
        failed: bool,
        bytes_received: int,
        frame_bytes: int,
        measures: Measures,
    ) -> Totals:
        """``before``: what an earlier process had done of it, which that one has counted. Missing are the
        frames that are missing now."""
        counts = {name: getattr(receipt, name) for name in _COUNTS}
        if before is not None:
            counts = {
                name: count if name == "frames_missing" else count - getattr(before, name)
                for name, count in counts.items()
            }
        counts["frames_skipped"] = _skipped(receipt, failed=failed)
        pixels = {f"bytes_{fate}": counts[f"frames_{fate}"] * frame_bytes for fate in _FATES_WITH_BYTES}
        return cls(1, int(failed), bytes_received, {**counts, **pixels}, measures)

    def plus(self, others: Iterable[Totals]) -> Totals:
        """New ones of all of them."""
        others = list(others)
        everyone = (self, *others)
        return Totals(
            sum(each.acquisitions for each in everyone),
            sum(each.acquisitions_failed for each in everyone),
            sum(each.bytes_received for each in everyone),
            {name: sum(each.counts[name] for each in everyone) for name in self.counts},
            self.measures.plus(each.measures for each in others),
        )

    def to_dict(self) -> dict[str, Any]:
        counts = {"shards_sealed" if name == "shards" else name: count for name, count in self.counts.items()}
        return {
            "acquisitions": self.acquisitions,
            "acquisitions_failed": self.acquisitions_failed,
            "bytes_received": self.bytes_received,
            **counts,
            "histograms": self.measures.to_dict(),
        }


def _skipped(receipt: Receipt, *, failed: bool) -> int:
    """Missing places (``Receipt.frames_missing``) for which no frame came. At least so many: a dropped frame
    whose place another one took hides one."""
    # a failed acquisition misses what only recovery can seal
    kept = receipt.frames_stored - receipt.frames_durable if failed else 0
    return max(
        0, receipt.frames_missing - kept - receipt.frames_dropped - receipt.frames_late - receipt.frames_lost
    )
