"""The bytes that edits of objects may take together. Edits wait for room in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque

from shardwright.model.errors import BudgetError


class ByteBudget:
    """Thread-safe. ``limit_bytes``: of all together."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0, "nothing could ever be taken"
        self.limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._taken_bytes = 0  # under _changed
        self._waiting: deque[object] = deque()  # under _changed; whoever came first is first

    def take(self, nbytes: int, what: str) -> bool:
        """Takes bytes, which ``give`` gives back, when there is room. Returns whether it had to wait. Raises
        ``BudgetError`` for more than all."""
        if nbytes > self.limit_bytes:
            raise BudgetError(
                f"{what} is too large to be changed as a whole",
                expected=f"at most {self.limit_bytes:,} bytes for it and its copy, half of the memory",
                got=f"{nbytes:,}",
                hint="Copy the array to a disk, change it there, and copy it back; or write smaller shards",
            )
        with self._changed:
            me = object()
            self._waiting.append(me)
            waits = not self._has_room(me, nbytes)
            try:
                self._changed.wait_for(lambda: self._has_room(me, nbytes))
                self._taken_bytes += nbytes
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()
            assert self._taken_bytes <= self.limit_bytes, "all edits together keep to the budget"
            return waits

    def give(self, nbytes: int) -> None:
        """Gives back what was taken."""
        with self._changed:
            self._taken_bytes -= nbytes
            assert self._taken_bytes >= 0, "more was given back than was taken"
            self._changed.notify_all()

    def _has_room(self, who: object, nbytes: int) -> bool:
        return self._waiting[0] is who and self._taken_bytes + nbytes <= self.limit_bytes
