"""Sends the records of frames that are not stored to the frame log; only then are the frames acknowledged.
Part of the core; the sealer writes them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .commands import Record
from .shard_rows import FULL_DISK_RETRY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from .commands import Command
    from .reports import NotRecorded, Recorded


class Recorder:
    """``frames``: the number of records that are not in the log yet."""

    def __init__(self, ask: Callable[[Command], None]) -> None:
        self.frames = 0
        self._ask = ask
        self._waiting: deque[tuple[float, Record]] = deque()  # for room on the disk: (when to retry, what)

    def record(self, records: np.ndarray, *, release: bool, settled: bool) -> None:
        """Sends records. ``release``: their pixels are free once they are in the log; ``settled``: they are
        acknowledged then."""
        self.frames += records.size
        self._ask(Record(records, release, settled))

    def done(self, report: Recorded | NotRecorded) -> None:
        """Counts records that are in the log, or never will be."""
        self.frames -= report.frames

    def wait_for_room(self, report: NotRecorded, now_s: float) -> None:
        self._waiting.append(
            (now_s + FULL_DISK_RETRY_S, Record(report.records, report.release, report.settled))
        )

    def try_again(self, now_s: float) -> None:
        """Retries records that have waited long enough; with ``inf`` all of them."""
        while self._waiting and now_s >= self._waiting[0][0]:
            self._ask(self._waiting.popleft()[1])
