"""Whether the cameras need the machine for themselves; then every job on stores below the output root waits,
whoever started it.

    a ring fuller than pause_above                            ──▶ not calm, and for a while after it
    less than low_water of free disk while cameras acquire    ──▶ the same, and ``disk_low``

Jobs wait as long as ``RigPause`` is held (repack/pausing.py).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardwrightError
from shardwright.repack.pausing import RigPause

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.config.model import Output

CALM_S = 2.0  # how long all must have been well before work goes on: a ring fills and empties with every slab


class CameraNeeds:
    """One thread's. ``ring_fill``: how full the fullest ring is, 0 to 1; ``acquiring``: whether any
    acquisition is open.

    calm        nobody is held up
    disk_low    what takes up disk for a while (the copies that a job makes) is to give it back
    facts       why it is not calm, or was not
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
        self._told = False  # that jobs could not be held up, of this time
        self.disk_low = False
        self.facts: dict[str, Any] = {}

    def configure(self, output: Output, pause_above: float) -> None:
        """From the next look on. From any thread."""
        self._output, self._pause_above = output, pause_above

    @property
    def jobs_wait(self) -> bool:
        """Whether jobs are really held up: making the file may have failed."""
        return self._pause.held

    def look(self) -> None:
        """Hold jobs up, or let them go on. Tries again with every look while it fails; raises
        ``StorageError`` only the first time."""
        fill, free_bytes, now_s = self._ring_fill(), self._free_bytes(), time.monotonic()
        self.disk_low = self._acquiring() and free_bytes < self._output.low_water
        if fill > self._pause_above or self.disk_low:
            self._calm_at_s = now_s + CALM_S
            self.facts = {"ring_fill": round(fill, 3), "free_bytes": free_bytes}
        calm = now_s >= self._calm_at_s
        if calm != self.calm:
            self.calm, self._told = calm, False
            if calm:
                self._pause.end()
        if not calm and not self._pause.held:
            try:
                self._pause.begin()
            except ShardwrightError:  # a full disk, perhaps the very one that is to be spared
                if not self._told:
                    self._told = True
                    raise

    def _free_bytes(self) -> int:
        """Of the output root; as good as none when it is gone."""
        try:
            facts = os.statvfs(self._output.root)
        except OSError:
            return 0
        return facts.f_bavail * facts.f_frsize

    def begin(self) -> None:
        """Clear up after a daemon that died. Raises ``StorageError``, ``LockedError``."""
        self._pause.clear()

    def end(self) -> None:
        """Hold nobody up any more. Raises ``StorageError``."""
        self._pause.end()
