"""What the disk does wrong while shards are edited."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, get_args

from .disk import SimulatedDisk
from .edit_story import EditFaultKind
from .points import changes_names

if TYPE_CHECKING:
    from .edit_story import EditFault

_SYNC = re.compile(r".*\.before_sync")
_WRITE = re.compile(r"(edit|edit_journal|compact)\.before_(write|index)")
_TAKES_ROOM = re.compile(r".*\.before_(create|preallocate|reserve|write|index|second_name|open)")


class Disk(SimulatedDisk):
    """``cut_short``: the next write is, and then fails."""

    cut_short = False

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        if not self.cut_short:
            return super().write(descriptor, data, offset)
        self.cut_short = False
        super().write(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Faults:
    """Errors of the disk in one life. ``met``: there was one."""

    def __init__(self, faults: tuple[EditFault, ...]) -> None:
        self._faults = faults
        self._calls = dict.fromkeys(get_args(EditFaultKind), 0)
        self.met = False

    @property
    def is_full(self) -> bool:
        return self._is_now("full")

    def fails_sync(self, point: str) -> bool:
        return _SYNC.fullmatch(point) is not None and self._is_met("sync")

    def cuts_short(self, point: str) -> bool:
        return _WRITE.fullmatch(point) is not None and self._is_met("short")

    def loses_answer(self, point: str) -> bool:
        """Whether the change of names that follows is made, and its answer is another one. ``met`` says
        nothing of it: a call that only comes again must be taken for done."""
        if not changes_names(point):
            return False
        lost = self._is_now("answer")
        self._calls["answer"] += 1
        return lost

    def reach(self, point: str) -> None:
        """Raises ``OSError``."""
        if _SYNC.fullmatch(point) is None and self._is_met("error"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if _TAKES_ROOM.fullmatch(point) is not None and self._is_met("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_now(self, kind: str) -> bool:
        number = self._calls[kind]
        return any(
            fault.kind == kind and fault.after <= number < fault.after + fault.times for fault in self._faults
        )

    def _is_met(self, kind: str) -> bool:
        met = self._is_now(kind)
        self._calls[kind] += 1
        self.met = self.met or met
        return met
