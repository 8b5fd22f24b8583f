"""Finds when the cameras need the machine for themselves. Every job on stores below the output root then
waits, whichever process started it.

    a ring fuller than pause_above                            ──▶ not calm, and for a while after it
    less than low_water of free disk while cameras acquire    ──▶ the same, and ``disk_low``

Jobs wait as long as ``RigPause`` is held (rework/runtime/throttle.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shardwright.disk.files import free_bytes
from shardwright.model.errors import ShardwrightError, StorageError
from shardwright.rework.runtime.throttle import RigPause

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.config.model import Output

CALM_S = 2.0  # time of calm before work continues: a ring fills and empties with every slab


class CameraNeeds:
    """The needs of the cameras. Used by one thread. ``ring_fill``: fill of the fullest ring, 0 to 1;
    ``acquiring``: true while any acquisition is open.

    calm        no job has to wait
    disk_low    a job must give back the disk that its copies take
    facts       the reason why it is not calm, or was not
    """

    def __init__(
        self,
        output: Output,
        pause_above: float,
        ring_fill: Callable[[], float],
        acquiring: Callable[[], bool],
    ) -> None:
        self._output = output
        self._pause_above = pause_above
        self._ring_fill = ring_fill
        self._acquiring = acquiring
        self._calm_at_s = 0.0
        self._pause = RigPause(output.root)
        self.calm = True
        self._reported = False  # True once an error of this pause was raised
        self.disk_low = False
        self.facts: dict[str, Any] = {}

    def configure(self, output: Output, pause_above: float) -> None:
        """Changes the limits, from the next ``look`` on. From any thread."""
        self._output, self._pause_above = output, pause_above

    @property
    def jobs_wait(self) -> bool:
        """True if jobs are paused: making the file may have failed."""
        return self._pause.held

    def look(self) -> None:
        """Pauses jobs, or lets them continue. Retries at each call while it fails; raises ``StorageError``
        only the first time."""
        fill, free_bytes, now_s = self._ring_fill(), self._free_bytes(), time.monotonic()
        self.disk_low = self._acquiring() and free_bytes < self._output.low_water
        if fill > self._pause_above or self.disk_low:
            self._calm_at_s = now_s + CALM_S
            self.facts = {"ring_fill": round(fill, 3), "free_bytes": free_bytes}
        calm = now_s >= self._calm_at_s
        if calm != self.calm:
            self.calm, self._reported = calm, False
            if calm:
                self._pause.end()
        if not calm and not self._pause.held:
            try:
                self._pause.begin()
            except ShardwrightError:  # a full disk, perhaps the very one to be relieved
                if not self._reported:
                    self._reported = True
                    raise

    def _free_bytes(self) -> int:
        """Returns the free bytes of the output root; 0 when it is gone."""
        try:
            return free_bytes(self._output.root)
        except StorageError:
            return 0

    def begin(self) -> None:
        """Clears up after a daemon that died. Raises ``StorageError``, ``LockedError``."""
        self._pause.clear()

    def end(self) -> None:
        """Ends the pause. Raises ``StorageError``."""
        self._pause.end()
