"""Totals since this daemon started: the counts of receipts, bytes and measures of one acquisition, or of
several; and the frame rate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.acquire.measures import Measures
from shardwright.model.receipt import COUNTS, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The stream name of all acquisitions whose client brought its own array: one, so that totals stay bounded. It
# is recorded in manifests, where None would say that no daemon has a part in it.
CLIENT_STREAM = "client"


SAMPLE_S = 0.5  # between two samples of a rate
_SAMPLES = 5
# received and stored: counted where they come from
_STATUSES_WITH_BYTES = ("durable", "missing", "skipped", "duplicate", "late", "dropped", "lost")
_BYTE_COUNTS = tuple(f"bytes_{status}" for status in _STATUSES_WITH_BYTES)


@dataclass(frozen=True)
class AcquisitionTotals:
    """The totals of one acquisition, or of several. ``counts`` are sums of the receipts' counts, exact once
    the acquisitions have ended, and the pixel bytes of frames by their status.

    ``frames_skipped`` are missing frames that no client ever sent. Skipped, dropped, late, lost and duplicate
    frames are all that is not stored, each counted once; ``frames_missing`` counts the places of dropped,
    late and lost ones as well.
    """

    acquisitions: int = 0
    acquisitions_failed: int = 0
    bytes_received: int = 0
    counts: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys((*COUNTS, "frames_skipped", *_BYTE_COUNTS), 0)
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
    ) -> AcquisitionTotals:
        """``before``: the receipt of an earlier process, whose counts are left out; ``frames_missing`` is
        the present count."""
        counts = receipt.counts
        if before is not None:
            counts = {
                name: count if name == "frames_missing" else count - getattr(before, name)
                for name, count in counts.items()
            }
        counts["frames_skipped"] = _skipped(receipt, failed=failed)
        pixels = {
            f"bytes_{status}": counts[f"frames_{status}"] * frame_bytes for status in _STATUSES_WITH_BYTES
        }
        return cls(1, int(failed), bytes_received, {**counts, **pixels}, measures)

    def plus(self, others: Iterable[AcquisitionTotals]) -> AcquisitionTotals:
        """The sums of this and ``others``."""
        others = list(others)
        everyone = (self, *others)
        return AcquisitionTotals(
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


class FrameRate:
    """The slope over the last two seconds. Written by the ingest thread; ``hz`` and ``bytes_per_s`` may be
    read from any."""

    def __init__(self, now_s: float) -> None:
        self.hz = self.bytes_per_s = 0.0
        self._samples: deque[tuple[float, int, int]] = deque([(now_s, 0, 0)], maxlen=_SAMPLES)

    def sample(self, now_s: float, frames: int, nbytes: int) -> None:
        """Records that ``frames`` and ``nbytes`` have come in all."""
        self._samples.append((now_s, frames, nbytes))
        then_s, frames_then, bytes_then = self._samples[0]
        if now_s > then_s:
            self.hz = (frames - frames_then) / (now_s - then_s)
            self.bytes_per_s = (nbytes - bytes_then) / (now_s - then_s)


def _skipped(receipt: Receipt, *, failed: bool) -> int:
    """Missing places (``Receipt.frames_missing``) for which no frame came. At least so many: a dropped frame
    whose place another one took hides one."""
    # a failed acquisition misses what only recovery can seal
    kept = receipt.frames_stored - receipt.frames_durable if failed else 0
    return max(
        0, receipt.frames_missing - kept - receipt.frames_dropped - receipt.frames_late - receipt.frames_lost
    )
