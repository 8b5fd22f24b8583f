"""The requests to make frames stored, durable or visible (``flush``), until each has its answer. Owned by the
acquisition's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import StorageError, VisibilityError

if TYPE_CHECKING:
    from shardwright.model.write_options import FlushLevel, LiveMode

    from .accounts import Accounts

_NOW = "`sw.open` and `sw.follow` show every stored frame, and the end shows all to any reader"


class _Flush(NamedTuple):
    """A request: the sequences before ``goal`` are to reach ``level``."""

    level: FlushLevel
    goal: int
    request: int


class Flushes:
    """The requests without an answer, and the answers that nobody has taken."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._waiting: list[_Flush] = []
        self._answers: list[tuple[int, ErrorText | None]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, level: FlushLevel, goal: int, request: int | None) -> None:
        if request is not None:
            self._waiting.append(_Flush(level, goal, request))

    def wait_for(self, level: FlushLevel) -> bool:
        """Returns whether any waits for this level."""
        return bool(self._unmet(level))

    def answer(self) -> None:
        """Answers those that are fulfilled."""
        self._answer([each for each in self._waiting if self._is_reached(each)], None)

    def end(self, why: ErrorText | None) -> None:
        """Answers all others with the reason why the acquisition failed."""
        self.answer()
        self._answer(self._waiting.copy(), why)

    def refuse_unstored(self) -> None:
        """Answers those that wait for frames which cannot be staged."""
        levels: tuple[FlushLevel, ...] = ("stored", "durable")
        for level in levels:
            why = f"frames of an unfinished slab cannot be made {level}: no room to stage them"
            self._answer(self._unmet(level), ErrorText(StorageError, why))

    def refuse_unseen(self, live: LiveMode, why: str) -> None:
        """Answers those that wait for frames which no reader will see before more come. ``why``: what keeps
        them from readers of a live store."""
        for each in self._unmet("visible"):
            got = f"{self._value('visible')} of {each.goal}"
            self._answer([each], _unseen(live, why, got))

    def _unmet(self, level: FlushLevel) -> list[_Flush]:
        return [each for each in self._waiting if each.level == level and not self._is_reached(each)]

    def _value(self, level: FlushLevel) -> int:
        stored = self._accounts.stored.value
        if level == "visible":
            return self._accounts.visible_frames.watermark(stored)
        return stored if level == "stored" else self._accounts.durable.value

    def _is_reached(self, flush: _Flush) -> bool:
        return self._value(flush.level) >= flush.goal

    def _answer(self, answered: list[_Flush], why: ErrorText | None) -> None:
        for each in answered:
            self._waiting.remove(each)
            self._answers.append((each.request, why))

    def take_answers(self) -> list[tuple[int, ErrorText | None]]:
        """Returns (request, why not) of those that were answered."""
        answers, self._answers = self._answers, []
        return answers


def _unseen(live: LiveMode, why: str, got: str) -> ErrorText:
    if live == "none":
        return ErrorText(
            VisibilityError,
            "readers of the files see a frame once its shard is sealed, with live: none",
            expected="live: append, or index, by which they see shards grow",
            got=f"{got} frames in sealed shards",
            hint=f'Create the next one with live="append" and chunks of one frame; {_NOW}',
        )
    return ErrorText(
        VisibilityError,
        f"readers of the files do not see all frames: {why}",
        expected="whole chunks",
        got=f"{got} frames seen",
        hint=f"Chunks of one frame along the first axis show each frame; {_NOW}",
    )
