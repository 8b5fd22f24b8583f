"""Acquisitions that are armed: a program which is not the camera has prepared them, and the camera takes each
up when it opens it.

    arm ──▶ planned ──▶ armed ──▶ taken: a session has it
               │          └─────▶ disarmed: stopped, its time is over, or the daemon stops
               └────────────────▶ refused

An armed acquisition is a plan: no folder, no memory and no file is made before its camera comes. So it costs
nothing and leaves nothing behind, and a daemon that dies forgets it. One stream has one at a time: which of
two a camera means that names the stream alone, nobody could say.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    BudgetError,
    LockedError,
    SessionLostError,
    TimedOutError,
    UnknownAcquisitionError,
)
from shardwright.model.names import acquisition_name, store_name

from .account import account, described

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from shardwright.model.promise import Promise
    from shardwright.wire.controls import Open

    from .open_admission import Planned
    from .session import OnEvent

MOST_ARMED = 16  # the plan of one with thousands of images has tens of MiB


@dataclass(eq=False)
class Armed:
    """An acquisition that is armed or about to be. ``answers``: to those who arm it, once it is.
    ``before_s``: when the last of them gives up."""

    request: Open
    plan: Promise[Planned]
    waits_s: float
    before_s: float
    answers: list[Promise[Callable[[], dict[str, Any]]]]
    until_s: float | None = None  # None: not armed yet
    stop_asked: bool = False  # set by any thread, never reset

    @property
    def is_armed(self) -> bool:
        return self.until_s is not None

    def description(self) -> dict[str, Any]:
        """As of ``IngestServer.describe``. From any thread."""
        planned = self.plan.result()
        return described(planned.path, planned.spec, planned.stream, "armed")

    def which(self) -> dict[str, Any]:
        """Returns the facts of an event that say which acquisition it is of."""
        planned = self.plan.result()
        name = acquisition_name(planned.path.name)
        return {"name": name, "stream": planned.stream, "path": str(planned.path)}

    def account(self) -> dict[str, Any]:
        """As of ``IngestServer.account``."""
        planned = self.plan.result()
        return account(planned.path, planned.stream, "armed")


class Arms:
    """Owned by the ingest thread. ``plan``: begins a plan in another thread. ``is_open``: whether an
    acquisition of this path is open, or being opened. ``on_armed``: takes the folder name before it is armed.
    """

    def __init__(
        self,
        plan: Callable[[Open], Promise[Planned]],
        is_open: Callable[[Path], bool],
        on_armed: Callable[[str], None],
        on_event: OnEvent,
    ) -> None:
        self._plan = plan
        self._is_open = is_open
        self._on_armed = on_armed
        self._on_event = on_event
        self._all: Mapping[str, Armed] = {}  # by folder name; replaced, never changed: read from any thread

    # Any thread
    # ----------------------------------------------------------------------------------------------------

    def get(self, folder: str) -> Armed | None:
        """The armed acquisition with this folder name."""
        armed = self._all.get(folder)
        return armed if armed is not None and armed.is_armed else None

    def to_dict(self) -> list[dict[str, Any]]:
        """Returns JSON values of those that are armed."""
        now_s = time.monotonic()
        return [
            {**armed.which(), "left_s": max(0.0, armed.until_s - now_s)}
            for armed in self._all.values()
            if armed.until_s is not None
        ]

    # The ingest thread
    # ----------------------------------------------------------------------------------------------------

    def arm(
        self,
        request: Open,
        waits_s: float,
        answer: Promise[Callable[[], dict[str, Any]]],
        before_s: float = math.inf,
    ) -> None:
        """Arms an acquisition; ``answer`` gets ``description``, which takes too long for this thread where
        there are thousands of images. The same request again changes nothing but the time from which it
        waits. ``before_s``: of the monotonic clock; it is not armed later, when who asked has given up, and
        may have armed something else. Raises ``LockedError``, ``BudgetError``, ``TimedOutError``."""
        if time.monotonic() > before_s:
            raise _too_late(request)
        folder = store_name(request.name)
        if (armed := self._all.get(folder)) is not None:
            if armed.request != request or armed.stop_asked:
                state = "being stopped" if armed.stop_asked else "armed in another way"
                raise _held(f"the name {request.name} is {state}", armed)
            armed.waits_s, armed.before_s = waits_s, max(armed.before_s, before_s)
            armed.answers.append(answer)
            return
        stream = request.stream
        if stream is not None and (other := self._of_stream(stream)) is not None:
            raise _held(f"the stream {stream} is armed already", other)
        if len(self._all) >= MOST_ARMED:
            raise BudgetError("too many armed acquisitions", expected=f"at most {MOST_ARMED}")
        armed = Armed(request, self._plan(request), waits_s, before_s, [answer])
        self._all = {**self._all, folder: armed}

    def advance(self, taken: Collection[Armed]) -> None:
        """One round: answers for plans that are done, and gives up what nobody came for. ``taken``: those
        that a camera is opening."""
        now_s = time.monotonic()
        for folder, armed in self._all.items():
            if armed.answers and armed.plan.done():
                self._answer(folder, armed, now_s)
            elif armed.until_s is None or armed in taken:
                continue
            elif armed.stop_asked:
                self._disarm(folder, armed, "stopped on request")
            elif now_s >= armed.until_s:
                self._disarm(folder, armed, f"no camera came within {armed.waits_s:g} s")

    def _answer(self, folder: str, armed: Armed, now_s: float) -> None:
        answers, armed.answers = armed.answers, []
        why = armed.plan.failure()
        if why is None and not armed.is_armed and self._is_open(armed.plan.result().path):
            why = ErrorText.of(is_open_already(armed.request.name))
        if why is None and not armed.is_armed and now_s > armed.before_s:
            why = ErrorText.of(_too_late(armed.request))
        if why is not None:
            self._drop(folder)
            for answer in answers:
                answer.fail(why)
            return
        if not armed.is_armed:
            self._on_armed(folder)
            self._on_event("acquisition_armed", {**armed.which(), "waits_s": armed.waits_s})
        armed.until_s = now_s + armed.waits_s
        for answer in answers:
            answer.keep(armed.description)

    def meant_by(self, request: Open) -> Armed | None:
        """Returns the armed acquisition that a camera opens: of that name, or of its stream if it names none.
        Raises ``UnknownAcquisitionError`` for a camera without a name whose stream is not armed."""
        if request.name:
            return self.get(store_name(request.name))
        if request.stream is None or request.spec is not None:
            return None  # its name is refused as any other that cannot be
        armed = self._of_stream(request.stream)
        if armed is None or not armed.is_armed:
            raise UnknownAcquisitionError(
                "this stream is not armed, and the camera names no acquisition",
                got=repr(request.stream)[:160],
                hint="Arm it over the daemon's control socket first, or open an acquisition by its name",
            )
        return armed

    def take(self, armed: Armed) -> None:
        """Takes an armed acquisition out: a session has it."""
        folder = store_name(armed.request.name)
        if self._all.get(folder) is armed:
            self._drop(folder)

    def end(self) -> None:
        """Disarms all: the daemon stops."""
        for folder, armed in self._all.items():
            if armed.is_armed:
                self._disarm(folder, armed, "the daemon is stopping")
            for answer in armed.answers:
                answer.fail(ErrorText(SessionLostError, "the daemon is stopping"))
        self._all = {}

    def _of_stream(self, stream: str) -> Armed | None:
        return next((armed for armed in self._all.values() if armed.request.stream == stream), None)

    def _disarm(self, folder: str, armed: Armed, reason: str) -> None:
        self._drop(folder)
        self._on_event("acquisition_disarmed", {**armed.which(), "reason": reason})

    def _drop(self, folder: str) -> None:
        self._all = {name: armed for name, armed in self._all.items() if name != folder}


def is_open_already(name: str) -> LockedError:
    """The error for arming an acquisition that is open."""
    return LockedError(
        "an acquisition of this name is open",
        expected="a name that is not taken",
        got=name,
        hint="Choose another name, or end that one first: `shardwright stop NAME`",
    )


def _too_late(request: Open) -> TimedOutError:
    return TimedOutError(
        f"the time to arm {request.name} is over, and it is not armed", hint="Ask again, with more time"
    )


def _held(message: str, other: Armed) -> LockedError:
    return LockedError(
        message,
        got=f"{other.request.name} for {other.request.stream or 'no stream'}",
        hint="`shardwright stop NAME` disarms that one",
    )
