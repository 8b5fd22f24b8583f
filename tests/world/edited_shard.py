"""What one shard may hold while it is edited: every content that the edits so far allow, an edit being done
whole, in some order, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Rows = tuple[int, ...]  # the value of each row of pixels; 0: fill
State = tuple[Rows, frozenset[int]]  # and which of the pending edits it has
_NEVER = 1 << 30


@dataclass
class Pending:
    """An edit whose process has not said that it is done. ``rows``: their new values. ``chunks``: rows of
    chunks that it names. ``mixes``: chunks may be found half written. ``tears``: a power cut may leave its
    index without its chunks, which are written at once. ``ended``: its process has given up, or is dead, as
    the so manieth: from then on it is recovery's, which every later edit does first."""

    rows: dict[int, int]
    chunks: frozenset[int]
    mixes: bool
    tears: bool
    within: bool  # the file may be changed where it lies
    ended: int = _NEVER


class EditedShard:
    """``seen``: states that what was read allows too. ``told``: that are allowed by what was acknowledged
    alone: a power cut may leave them."""

    def __init__(self, rows: Rows) -> None:
        self.seen: set[State] = {(rows, frozenset())}
        self.told = set(self.seen)
        self.pending: dict[int, Pending] = {}
        self._ended = 0
        self.torn = False  # a write may have been, since the pending edits were recovered last

    def begin(self, number: int, edit: Pending) -> None:
        self._close()
        self.pending[number] = edit

    def end(self, number: int) -> None:
        """Its process is dead, or has given up: it is done by recovery, or was done, or not."""
        self._close()
        self._ended += 1
        self.pending[number].ended = self._ended

    def acknowledge(self, number: int) -> str | None:
        """It is done, durably, and whatever it was made on with it. Returns what is wrong."""
        self._close()
        self.seen = {state for state in self.seen if number in state[1]}
        if not self.seen:
            return "an edit was acknowledged that what was read shows undone"
        self._drop({number})
        self.told = set(self.seen)
        return None

    def refuse(self, number: int) -> str | None:
        """It was not done, and never will be. Returns what is wrong."""
        self._close()
        self.seen, self.told = (
            {state for state in states if number not in state[1]} for states in (self.seen, self.told)
        )
        if not self.seen:
            return "an edit that was refused was done"
        self._drop({number})
        return None

    def recovered(self) -> None:
        """Edits that had ended are done or not by now."""
        self._close()
        self._drop({number for number, edit in self.pending.items() if edit.ended < _NEVER})
        self.torn = False

    def lose_power(self) -> None:
        """All processes have ended before."""
        self._close()
        self.seen = set(self.told)
        self.torn = True

    def look(self, found: list[int | None] | None, *, recovered: bool) -> str | None:
        """``found``: of each row, None for one that cannot be read; None: no row can, since the index fails
        its checksum. Returns what is wrong."""
        self._close()
        if found is None:
            torn = self.torn and not recovered and any(edit.within for edit in self.pending.values())
            return None if torn else self._unlike(found)
        # a mix may look like a state that another edit would make: it is not to be taken for that one alone
        fits = {
            state
            for state in self.seen
            if list(state[0]) == found or (not recovered and self._may_mix(state, found))
        }
        if not fits:
            return self._unlike(found)
        self.seen = fits
        return None

    def _may_mix(self, state: State, found: list[int | None]) -> bool:
        """Whether an edit that this state has is found half written. It is done then, now or by recovery."""
        rows, done = state
        mixing = (self.pending[number] for number in done & self.pending.keys())
        return any(
            all(row in edit.chunks or found[row] == value for row, value in enumerate(rows))
            for edit in mixing
            if edit.mixes or (edit.tears and self.torn)
        )

    def _unlike(self, found: list[int | None] | None) -> str:
        return f"found {found}, allowed {sorted({state[0] for state in self.seen})[:4]}"

    # ------------------------------------------------------------------ states

    def _close(self) -> None:
        self.seen, self.told = self._closed(self.seen), self._closed(self.told)

    def _closed(self, states: Iterable[State]) -> set[State]:
        """With every pending edit that may have been done meanwhile."""
        found = set(states)
        left = list(found)
        while left:
            rows, done = left.pop()
            for number, edit in self.pending.items():
                if number in done:
                    continue
                # whoever does it has recovered what had ended before
                settled = {n for n, other in self.pending.items() if other.ended < edit.ended}
                new = tuple(edit.rows.get(row, value) for row, value in enumerate(rows))
                state = new, done | {number} | settled
                if state not in found:
                    found.add(state)
                    left.append(state)
        return found

    def _drop(self, numbers: set[int]) -> None:
        for number in numbers:
            self.pending.pop(number, None)
        self.seen, self.told = (
            {(rows, done - numbers) for rows, done in states} for states in (self.seen, self.told)
        )
