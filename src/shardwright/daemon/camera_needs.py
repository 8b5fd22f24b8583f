"""Finds when the cameras need the machine, or the room on the disk, for themselves. Jobs on stores below the
output root then wait, whichever process started them.

    a ring fuller than pause_above                            ──▶ not calm, and for a while after it
    less than low_water of free disk while cameras acquire,   ──▶ the same, and ``disk_low``
    or an acquisition that waits for room

Jobs wait as long as a ``RigPause`` is held (rework/runtime/throttle.py): of the first kind all, of the second
those that take room. The ring of an acquisition that waits for room counts as empty (``ring_fill``): a job
that sends stores away would wait for a camera that waits for this very job.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from shardwright.disk.files import free_bytes
from shardwright.model.errors import ShardwrightError, StorageError
from shardwright.rework.runtime.throttle import ROOM_PAUSE_NAME, RigPause

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.config.model import Output

CALM_S = 2.0  # time of calm before work continues: a ring fills and empties with every slab


class _Pause:
    """One pause of jobs: begins with its reason, and ends ``CALM_S`` after it."""

    def __init__(self, file: RigPause) -> None:
        self.file = file
        self._calm_at_s = 0.0
        self.calm = True
        self._reported = False  # True once an error of this pause was raised

    def look(self, *, needed: bool) -> None:
        """As ``CameraNeeds.look``."""
        now_s = time.monotonic()
        if needed:
            self._calm_at_s = now_s + CALM_S
        calm = now_s >= self._calm_at_s
        if calm != self.calm:
            self.calm, self._reported = calm, False
            if calm:
                self.file.end()
        if not calm and not self.file.held:
            try:
                self.file.begin()
            except ShardwrightError:  # a full disk, perhaps the very one to be relieved
                if not self._reported:
                    self._reported = True
                    raise


class CameraNeeds:
    """The needs of the cameras. Used by one thread. ``ring_fill``: fill of the fullest ring, 0 to 1;
    ``acquiring``: true while any acquisition is open; ``waits_for_room``: while any waits on a full disk.

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
        waits_for_room: Callable[[], bool],
    ) -> None:
        self._output = output
        self._pause_above = pause_above
        self._ring_fill = ring_fill
        self._acquiring = acquiring
        self._waits_for_room = waits_for_room
        self._of_machine = _Pause(RigPause(output.root))
        self._of_room = _Pause(RigPause(output.root, ROOM_PAUSE_NAME))
        self._pauses = (self._of_machine, self._of_room)
        self.disk_low = False
        self.facts: dict[str, Any] = {}

    def configure(self, output: Output, pause_above: float) -> None:
        """Changes the limits, from the next ``look`` on. From any thread."""
        self._output, self._pause_above = output, pause_above

    @property
    def calm(self) -> bool:
        return all(pause.calm for pause in self._pauses)

    @property
    def jobs_wait(self) -> bool:
        """True if jobs are paused: making a file may have failed."""
        return not self.calm and all(pause.calm or pause.file.held for pause in self._pauses)

    def look(self) -> None:
        """Pauses jobs, or lets them continue. Retries at each call while it fails; raises ``StorageError``
        only the first time."""
        fill, free_bytes = self._ring_fill(), self._free_bytes()
        low = self._acquiring() and free_bytes < self._output.low_water
        self.disk_low = low or self._waits_for_room()
        fills = fill > self._pause_above
        if fills or self.disk_low:
            self.facts = {"ring_fill": round(fill, 3), "free_bytes": free_bytes}
        self._of_machine.look(needed=fills)
        self._of_room.look(needed=self.disk_low)

    def _free_bytes(self) -> int:
        """Returns the free bytes of the output root; 0 when it is gone."""
        try:
            return free_bytes(self._output.root)
        except StorageError:
            return 0

    def begin(self) -> None:
        """Clears up after a daemon that died. Raises ``StorageError``, ``LockedError``."""
        for pause in self._pauses:
            pause.file.clear()

    def end(self) -> None:
        """Ends the pauses. Raises ``StorageError``."""
        with ExitStack() as ends:
            for pause in self._pauses:
                ends.callback(pause.file.end)
