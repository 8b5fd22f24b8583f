"""Sends the records of frames that are not stored to the frame log. Only once they are there the frames are
acknowledged: a client that is told of a frame forgets it. Owned by the acquisition's thread."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from .commands import Record
from .full_disk import retry_at_s

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from shardwright.model.frame_status import FrameStatus, Reason

    from .accounts import Accounts
    from .commands import NotRecorded, Recorded, SealerCommand


class Recorder:
    """The records on their way to the frame log."""

    def __init__(self, accounts: Accounts, ask: Callable[[SealerCommand], None]) -> None:
        self.frames = 0  # records that are not in the log yet
        # For room on the disk: (when to try again, what). They stay in order only among themselves; the log
        # has no order that anything relies on.
        self._waiting: deque[tuple[float, Record]] = deque()
        self._accounts = accounts
        self._ask = ask

    def settle(
        self,
        records: np.ndarray,
        status: FrameStatus | np.ndarray,
        reason: Reason | np.ndarray,
        *,
        release: bool = True,
        settled: bool = True,
    ) -> None:
        """Counts and records frames that are not stored. ``release``: their pixels are free once they are in
        the log; ``settled``: they are acknowledged then."""
        records = records.copy()
        records["status"], records["reason"] = status, reason
        self._accounts.settle(records)
        self.frames += records.size
        self._ask(Record(records, release, settled))

    @property
    def waits(self) -> bool:
        """True while records wait for room."""
        return bool(self._waiting)

    def done(self, report: Recorded | NotRecorded) -> None:
        """Counts records that are in the log, or never will be."""
        self.frames -= report.frames

    def wait_for_room(self, report: NotRecorded, now_s: float) -> None:
        self._waiting.append((retry_at_s(now_s), Record(report.records, report.release, report.settled)))

    def try_again(self, now_s: float = math.inf) -> None:
        """Retries records that have waited long enough; without a time all of them."""
        while self._waiting and now_s >= self._waiting[0][0]:
            self._ask(self._waiting.popleft()[1])
