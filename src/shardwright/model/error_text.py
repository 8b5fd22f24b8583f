"""An error kept as text: its class and its message. No exception outlives the call that handles it, since its
traceback holds every object that the call touched: a session with its ring, a batch of frames.

    border   ErrorText.of(error)    any exception, as text
    kept     in fields, queues, promises
    border   text.to_error()        a fresh exception of the same class, for the caller
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Any

from .errors import ShardwrightError, error_from_dict

MOST_CHARACTERS = 8192  # of each text
_MOST_FRAMES = 40  # of a defect's traceback


@dataclass(frozen=True)
class ErrorText:
    """An error as text. ``trace``: the traceback of a defect (an exception of any other class), as Python
    prints it."""

    kind: type[ShardwrightError]
    message: str
    expected: str | None = None
    got: str | None = None
    hint: str | None = None
    trace: str | None = None

    @classmethod
    def of(cls, error: BaseException, defect: ShardwrightError | None = None) -> ErrorText:
        """Makes the text of an exception. ``defect``: the error to report for an exception of another class
        than ours; by default a ``ShardwrightError``."""
        known, trace = error, None
        if not isinstance(known, ShardwrightError):
            known = defect or ShardwrightError("an unexpected error", got=repr(error))
            trace = _cut("".join(traceback.format_exception(error, limit=-_MOST_FRAMES)))
        return cls(
            type(known),
            known.message[:MOST_CHARACTERS],
            _cut(known.expected),
            _cut(known.got),
            _cut(known.hint),
            trace,
        )

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> ErrorText:
        """Returns the error that ``to_dict`` described; a plain ``ShardwrightError`` for an unknown code."""
        return cls.of(error_from_dict(facts))

    def to_error(self) -> ShardwrightError:
        """Returns a fresh exception, which must be raised at once and never kept."""
        return self.kind(self.message, expected=self.expected, got=self.got, hint=self.hint)

    def is_a(self, kind: type[ShardwrightError]) -> bool:
        return issubclass(self.kind, kind)

    @property
    def code(self) -> str:
        return self.kind.code

    def __str__(self) -> str:
        return str(self.to_error())

    def to_dict(self) -> dict[str, str]:
        """As ``ShardwrightError.to_dict``."""
        return self.to_error().to_dict()

    def as_reason(self) -> dict[str, str]:
        """Returns the facts for an event that has the error as its ``reason``, and its hint beside it."""
        reason = str(replace(self, hint=None))
        return {"reason": reason, **({} if self.hint is None else {"hint": self.hint})}

    def as_facts(self) -> dict[str, Any]:
        """Returns the facts for an event: as ``to_dict``, with the traceback of a defect (``exception``)."""
        return {**self.to_dict(), **({} if self.trace is None else {"exception": self.trace})}


def _cut(text: str | None) -> str | None:
    return text if text is None else text[:MOST_CHARACTERS]
