"""Coroutines, called by tests that are none: run in one event loop, in a thread of its own, whichever threads
ask. zarr-python calls stores in the same way, from a loop that it keeps to itself."""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Coroutine
    from typing import Any

T = TypeVar("T")


def sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns what a coroutine returns; raises what it raises."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


def collected(items: AsyncIterable[T]) -> list[T]:
    """Returns all items, in their order."""

    async def collect() -> list[T]:
        return [item async for item in items]

    return sync(collect())


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tests' event loop", daemon=True)
    thread.start()
    atexit.register(_end, loop, thread)
    return loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
