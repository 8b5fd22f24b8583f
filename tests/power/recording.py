"""What one run left: the log of its writes and the promises made on the way. From it cuts are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .images import KINDS, Cut, draw_cut

if TYPE_CHECKING:
    from shardwright.read.frame_table import FinishedPart

    from .compaction import Shards
    from .write_log import WriteLog

# of the cuts come right after a promise, where the least has been flushed that may be
_SHARE_AT_PROMISES = 0.5


@dataclass(frozen=True)
class Promised:
    """What had been said before a cut: that so many frames, counted from the first, are durable; that so many
    need no recovery any more; that so many shards are packed, so many images added; and the receipts with
    which parts of the acquisition have ended."""

    durable: int = 0
    sealed: int = 0
    packed: int = 0
    added: int = 0
    receipts: tuple[FinishedPart, ...] = field(default=(), repr=False, hash=False)

    def covers(self, other: Promised) -> bool:
        is_more = len(self.receipts) >= len(other.receipts) and self.added >= other.added
        is_more = is_more and self.durable >= other.durable and self.sealed >= other.sealed
        return is_more and self.packed >= other.packed


@dataclass(frozen=True)
class Recording:
    log: WriteLog
    # (entries of the log that lie before it, what had been promised by then), in order
    promises: list[tuple[int, Promised]]
    shards: Shards = field(default_factory=list)  # what a compaction made of them

    @classmethod
    def of(cls, said: list[dict[str, Any]], log: WriteLog, before: Promised = Promised()) -> Recording:
        """``said`` is what the workload told, in order; ``before`` had been promised when the log began. A
        promise stays."""
        told = before
        promises, shards = [(0, told)] if before != Promised() else [], []
        for facts in said:
            durable, receipts = (
                max(told.durable, facts.get("durable", 0)),
                facts.get("receipts", told.receipts),
            )
            assert receipts[: len(told.receipts)] == told.receipts, "those of earlier parts stay"
            told = Promised(
                durable,
                durable if facts.get("sealed") else told.sealed,
                max(told.packed, facts.get("packed", 0)),
                max(told.added, facts.get("added", 0)),
                receipts,
            )
            shards = [tuple(shard) for shard in facts.get("shards", shards)]
            promises.append((log.entries_before(facts["mark"]), told))
        return cls(log, promises, shards)

    def promised_at(self, cut: int) -> Promised:
        told = [promised for entries, promised in self.promises if entries <= cut]
        return told[-1] if told else Promised()


def draw_cuts(
    recording: Recording, count: int, rng: np.random.Generator, *, every_prefix: bool = False
) -> list[Cut]:
    """Cuts in the order of the log, each once. About ``count``; more when every prefix of the log is asked
    for, fewer when there are no more."""
    log = recording.log
    cuts: dict[tuple[object, ...], Cut] = {}

    def add(entry: int, kind: str) -> None:
        cut = draw_cut(log, entry, kind, rng)
        cuts.setdefault((cut.flushed, cut.pieces, recording.promised_at(entry)), cut)

    for entry in range(len(log) + 1) if every_prefix else ():
        add(entry, "whole")
    at_promises = np.array([entries for entries, _ in recording.promises], np.int64)
    if at_promises.size:
        for entry in rng.choice(at_promises, int(count * _SHARE_AT_PROMISES) // 2):
            add(int(entry), "flushed")
            add(min(int(entry) + int(rng.integers(0, 4)), len(log)), str(rng.choice(KINDS)))
    for _ in range(2 * count):
        if len(cuts) >= count:
            break
        add(int(rng.integers(0, len(log) + 1)), str(rng.choice(KINDS)))
    return sorted(cuts.values(), key=lambda cut: cut.flushed)
