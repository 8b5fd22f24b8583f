"""Calls of coroutines that are made together in another thread: those of one turn of an event loop.

A reader such as zarr-python starts its calls together, a few at a time. They all run before whatever the
first of them lets the loop call, so no timer is needed to wait for the last.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from .error_text import ErrorText
from .promise import Promise

if TYPE_CHECKING:
    from collections.abc import Callable

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass
class GatheredCall(Generic[Asked, Answer]):
    """One call. ``answer`` is cancelled with the task that waits for it."""

    asked: Asked
    answer: Promise[Answer] = field(default_factory=Promise)


class GatheredCalls(Generic[Asked, Answer]):
    """Used by the threads of any event loops. ``begin`` is called in a thread of the loop's executor. It
    settles the answer of each call, then or later; what it raises fails those that it has not settled. What
    it returns is called in the loop: answers that are settled there go on together, and so do the next calls.
    """

    def __init__(
        self, begin: Callable[[list[GatheredCall[Asked, Answer]]], Callable[[], None] | None]
    ) -> None:
        self._begin = begin
        # of this turn, by loop, whose thread alone uses its list
        self._groups: WeakKeyDictionary[asyncio.AbstractEventLoop, list[GatheredCall[Asked, Answer]]] = (
            WeakKeyDictionary()
        )

    async def call(self, asked: Asked) -> Answer:
        """Returns the answer. Raises a fresh error of the reason why there is none."""
        loop, call = asyncio.get_running_loop(), GatheredCall[Asked, Answer](asked)
        group = self._groups.setdefault(loop, [])
        group.append(call)
        if len(group) == 1:
            loop.call_soon(self._hand_on, loop)
        return await settled(call.answer)

    def _hand_on(self, loop: asyncio.AbstractEventLoop) -> None:
        group = self._groups.pop(loop)
        try:
            begun = loop.run_in_executor(None, self._begin_all, group)
            begun.add_done_callback(lambda begun: None if begun.cancelled() else begun.result()())
        except RuntimeError as error:  # the interpreter ends: nobody would serve them
            _fail(group, error)

    def _begin_all(self, group: list[GatheredCall[Asked, Answer]]) -> Callable[[], None]:
        try:
            return self._begin([call for call in group if not call.answer.cancelled()]) or _nothing
        except BaseException as error:  # noqa: BLE001 (of whoever called)
            _fail(group, error)
            return _nothing


def _nothing() -> None:
    """All is settled, or will be."""


def _fail(group: list[GatheredCall[Asked, Answer]], error: BaseException) -> None:
    why = ErrorText.of(error)
    for call in group:
        call.answer.fail(why)


async def settled(promise: Promise[Answer]) -> Answer:
    """Waits for a promise, which is cancelled with the task that waits. Raises as its ``result``."""
    loop, is_settled = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(is_settled.set)

    promise.when_settled(tell)
    try:
        await is_settled.wait()
    except asyncio.CancelledError:
        promise.cancel()
        raise
    return promise.result()
