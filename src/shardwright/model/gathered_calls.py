"""Calls of coroutines that are made together: those of one turn of an event loop.

A reader such as zarr-python starts its calls together, a few at a time. All of them run before whatever the
first one lets the loop call, so no timer has to wait for the last.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .error_text import ErrorText

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass
class _Turn(Generic[Asked]):
    asked: list[Asked] = field(default_factory=list)
    answers: Any = None  # the task of all


class GatheredCalls(Generic[Asked, Answer]):
    """Used by the threads of any event loops."""

    def __init__(self) -> None:
        # of this turn; a loop's thread alone uses its own
        self._groups: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Turn[Asked]] = {}

    async def call(
        self,
        answer_all: Callable[[list[Asked]], Awaitable[list[Answer | ErrorText]]],
        asked: Asked,
        *,
        kind: Hashable = None,
    ) -> Answer:
        """Returns the answer. ``answer_all``, the same for all calls of a ``kind``, answers them in their
        order; all go on in one turn of the loop, and so their next calls are together as well. A task that
        is cancelled takes no other with it. Raises a fresh error if its answer is one."""
        loop = asyncio.get_running_loop()
        group = self._groups.get((loop, kind))
        if group is None:
            group = self._groups[loop, kind] = _Turn()
            # not by the task: one that is cancelled before it begins would leave its group for others
            loop.call_soon(self._groups.pop, (loop, kind))
            group.answers = loop.create_task(_answers(answer_all, group.asked))
        position = len(group.asked)
        group.asked.append(asked)
        answer: Answer | ErrorText = (await asyncio.shield(group.answers))[position]
        if isinstance(answer, ErrorText):
            raise answer.to_error()
        return answer


async def _answers(
    answer_all: Callable[[list[Asked]], Awaitable[list[Answer | ErrorText]]], asked: list[Asked]
) -> list[Answer | ErrorText]:
    await asyncio.sleep(0)  # a loop may run a task up to here before its first call is in the list
    return await answer_all(asked)
