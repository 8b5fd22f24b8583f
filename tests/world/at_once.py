"""In place of threads and worker processes: everything is done where it is asked for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from shardwright.rework.runtime.tasks import run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable


class AtOnce:
    """In place of a pool of threads: does everything when it is asked for."""

    def __init__(
        self, _: int, thread_name_prefix: str = "", initializer: Callable[[], None] | None = None
    ) -> None:
        del thread_name_prefix
        if initializer is not None:
            initializer()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    map = staticmethod(map)

    def shutdown(self) -> None:
        """There is nothing to wait for."""

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class OfThisGreenlet:
    """In place of ``threading.local``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return getcurrent().__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        getcurrent().__dict__[name] = value


class InThisProcess:
    """An executor of tasks, one after the other."""

    workers = 1

    def run(self, tasks: Iterable[dict[str, Any]], _: Any = None) -> Generator[dict[str, Any], None, None]:
        for task in tasks:
            yield run_task(task)

    def close(self) -> None:
        pass
