"""Watches a folder for changed files, in a thread of its own, since its disk may be slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.ingest.transport.allow_list import folder_state
from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.ingest.transport.allow_list import State

LOOK_S = 1.0


class FolderWatch:
    """The watch of one folder. ``changed`` is called once for each change since ``state``, also for one that
    was incomplete at the last look."""

    def __init__(self, folder: Path, state: State, changed: Callable[[], None]) -> None:
        self._folder = folder
        self._changed = changed
        self._state: State | str = state

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_S):
            state = self._look()
            if state != self._state:
                self._state = state
                self._changed()

    def _look(self) -> State | str:
        try:
            return folder_state(self._folder)
        except ConfigError as error:
            return str(error)
