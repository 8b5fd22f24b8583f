"""A thread for calls that wait for a disk. Its death is seen: what it had still to do fails, instead of never
being answered."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import WorkerError
from shardwright.model.promise import Promise

if TYPE_CHECKING:
    from collections.abc import Callable

    _Call = tuple[Promise[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class SlowThread:
    """Calls are made in the order of ``submit``; ``wake`` is called after each. Owned by the ingest thread;
    ``alive`` may be asked from any.

    Nothing of a call is kept once it is made: its outcome belongs to whoever has the promise.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.name = name
        self._wake = wake
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._promises: weakref.WeakSet[Promise[Any]] = weakref.WeakSet()  # that somebody still waits for
        self._died = False
        self._closed = False
        # started with the first call
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        self._promises.add(promise)
        self._calls.put((promise, call, arguments, options))
        if self._thread.ident is None:
            self._thread.start()
        return promise

    def alive(self) -> bool:
        """Whether it does what it is told: it runs, has had no call yet, or was closed."""
        return self._closed or (not self._died and (self._thread.ident is None or self._thread.is_alive()))

    def fail_if_dead(self) -> None:
        """What a dead thread had still to do fails with ``WorkerError``."""
        if not self.alive():
            for promise in list(self._promises):
                promise.fail(ErrorText(WorkerError, f"the thread {self.name} died"))

    def cancel_waiting(self) -> None:
        """What has not begun never will."""
        with suppress(Empty):
            while (waiting := self._calls.get_nowait()) is not None:
                waiting[0].cancel()

    def close(self) -> None:
        """What has not begun is dropped; what has is not waited for."""
        self._closed = True
        self._calls.put(None)

    def _work(self) -> None:
        while (waiting := self._calls.get()) is not None and not self._closed:
            self._make(*waiting)
            del waiting  # what it made may be large, and this thread waits for long
            self._wake()
            if self._died:
                return

    def _make(
        self,
        promise: Promise[Any],
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        """What would end a thread ends this one, and whoever waits must not die of it."""
        try:
            promise.keep(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001  (travels in the promise, as text)
            promise.fail(ErrorText.of(error))
        except BaseException as error:  # noqa: BLE001
            self._died = True
            promise.fail(ErrorText.of(error, WorkerError(f"the thread {self.name} died: {error!r}")))
