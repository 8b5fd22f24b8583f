"""A thread for calls that wait for a disk. Its death is seen: what it had still to do fails, instead of never being answered."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable


class SlowThread:
    """Calls are made in the order of ``submit``; ``wake`` is called after each. Owned by the ingest thread; ``alive`` may be asked from any."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.name = name
        self._wake = wake
        self._thread: threading.Thread | None = None  # the executor starts it with the first call
        self._ended_by: BaseException | None = None
        self._closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=self._begin)
        self._unanswered: list[Future[Any]] = []

    def submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        answer = self._executor.submit(self._guarded, partial(call, *arguments, **options))
        self._unanswered = [other for other in self._unanswered if not other.done()]
        self._unanswered.append(answer)
        answer.add_done_callback(lambda _: self._wake())
        return answer

    def alive(self) -> bool:
        """Whether it does what it is told: it runs, has had no call yet, or was closed."""
        return self._closed or (self._ended_by is None and (self._thread is None or self._thread.is_alive()))

    def fail_if_dead(self) -> None:
        """What a dead thread had still to do fails with ``WorkerError``."""
        if not self.alive():
            for answer in self._unanswered:
                if not answer.done():
                    answer.set_exception(WorkerError(f"the thread {self.name} died"))

    def close(self) -> None:
        """What has not begun is dropped; what has is not waited for."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """What would end a thread of our own ends this one, although the executor's goes on; whoever waits must not die of it."""
        try:
            return call()
        except Exception:
            raise
        except BaseException as error:
            self._ended_by = error
            raise WorkerError(f"the thread {self.name} died: {error!r}") from error

    def _begin(self) -> None:
        self._thread = threading.current_thread()
