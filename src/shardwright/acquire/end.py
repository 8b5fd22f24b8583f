"""The way of an acquisition to its end, which its client asks for or a failure forces. ``states.LIFE`` has
the ways to it. Owned by the acquisition's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.model.errors import StoreGoneError

from .full_disk import retry_at_s
from .states import LIFE, AcquisitionState, Life, LifeEvent

if TYPE_CHECKING:
    from shardwright.model.error_text import ErrorText


class End:
    """The end of one acquisition: who asked for it, why it fails, and which step comes next."""

    def __init__(self) -> None:
        self.life = Life.OPEN
        # The reason of a failure, with a defect's place. The first one counts: others follow from it.
        self.why: ErrorText | None = None
        # The client sends no more. The life stays OPEN until all frames that came have a place: those that
        # wait for room must not be refused.
        self.is_asked = False
        self.keeps_empty = True  # else a store in which no frame was ever recorded is removed
        # Set by recovery: acknowledged frames may be missing without a trace. Such a store is not removed for
        # want of a frame, which would hide that, and delete the damaged files that were set aside in it.
        self.in_doubt = False
        self._retry_s = 0.0  # without room to finish the store: when to try again
        # False once one has died. The others go on reading pixels: the owner must not free these before they
        # have ended.
        self.workers_live = True
        # Then no report comes any more, and nothing can be recorded or sealed.
        self.sealer_dead = False

    @property
    def state(self) -> AcquisitionState:
        return self.life.state

    @property
    def may_fail(self) -> bool:
        """True while a failure would change anything."""
        return self.state in (AcquisitionState.OPEN, AcquisitionState.FINISHING)

    @property
    def is_failing(self) -> bool:
        return self.state is AcquisitionState.FAILING

    @property
    def takes_frames(self) -> bool:
        return self.may_fail and not self.is_asked

    @property
    def thread_died(self) -> bool:
        """True if a worker or the sealer died: the process must then be ended."""
        return self.sealer_dead or not self.workers_live

    @property
    def store_is_gone(self) -> bool:
        return self.why is not None and self.why.is_a(StoreGoneError)

    def go(self, event: LifeEvent) -> None:
        self.life = LIFE.after(self.life, event)

    def restore(self, *, in_doubt: bool) -> None:
        self.in_doubt = in_doubt

    def ask(self, *, keep_empty: bool) -> None:
        self.is_asked, self.keeps_empty = True, keep_empty or self.in_doubt

    def wait_for_room(self, now_s: float) -> None:
        """Lets the end of the store wait for room on the disk."""
        self._retry_s = retry_at_s(now_s)
        self.go(LifeEvent.WAIT)

    def try_again(self, now_s: float) -> None:
        if self.life is Life.NO_ROOM_TO_FINISH and now_s >= self._retry_s:
            self.go(LifeEvent.RETRY)

    def wait_no_longer(self) -> None:
        self._retry_s = 0.0

    def fail(self, why: ErrorText) -> None:
        self.why = why
        self.go(LifeEvent.FAIL)

    def note_dead_worker(self) -> None:
        self.workers_live = False

    def note_dead_sealer(self) -> None:
        self.sealer_dead = True

    def over(self, hint: str) -> None:
        """Ends as FAILED. ``hint``: for the user, if not empty."""
        assert self.why is not None, "the reason why it fails"
        if hint:
            self.why = replace(self.why, hint=hint)
        self.go(LifeEvent.OVER)
