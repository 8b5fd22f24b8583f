"""Calls of several threads at once."""

from __future__ import annotations

import threading


def in_threads(*calls) -> None:
    """Runs calls at once; raises the first error of any."""
    errors: list[BaseException] = []

    def guarded(call) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a call waits for ever"
    if errors:
        raise errors[0]
