"""Calls of coroutines that are made together in another thread: those of one turn of an event loop.

A reader such as zarr-python starts its calls together, a few at a time. They all run before whatever the
first of them lets the loop call, so no timer is needed to wait for the last.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar
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


# settles the answer of each call, then or later; what it raises fails those that it has not settled
Begin: TypeAlias = "Callable[[list[GatheredCall[Asked, Answer]]], Callable[[], None] | None]"


class GatheredCalls(Generic[Asked, Answer]):
    """Used by the threads of any event loops."""

    def __init__(self) -> None:
        # of this turn, by loop, whose thread alone uses its list
        self._groups: WeakKeyDictionary[asyncio.AbstractEventLoop, list[GatheredCall[Asked, Answer]]] = (
            WeakKeyDictionary()
        )

    async def call(self, begin: Begin[Asked, Answer], asked: Asked) -> Answer:
        """Returns the answer. ``begin``, the same for all calls, is called in a thread of the loop's
        executor, and what it returns in the loop: answers that are settled there go on together, and so do
        the next calls. Raises a fresh error of the reason why there is no answer."""
        loop, call = asyncio.get_running_loop(), GatheredCall[Asked, Answer](asked)
        group = self._groups.setdefault(loop, [])
        group.append(call)
        if len(group) == 1:
            loop.call_soon(self._hand_on, loop, begin)
        return await settled(call.answer)

    def _hand_on(self, loop: asyncio.AbstractEventLoop, begin: Begin[Asked, Answer]) -> None:
        group = self._groups.pop(loop)
        try:
            begun = loop.run_in_executor(None, _begin_all, begin, group)
            begun.add_done_callback(lambda begun: None if begun.cancelled() else begun.result()())
        except RuntimeError as error:  # the interpreter ends: nobody would serve them
            _fail(group, error)


def _begin_all(begin: Begin[Asked, Answer], group: list[GatheredCall[Asked, Answer]]) -> Callable[[], None]:
    try:
        return begin([call for call in group if not call.answer.cancelled()]) or _nothing
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
