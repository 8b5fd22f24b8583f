"""SIGHUP: reads the configuration again and applies the parts that can change while cameras send. The other
changes are reported, and need a restart.

    log, compaction, output.low_water    change live
    the folder ingest.curve.clients      is read again, as it is whenever a file in it changes (FolderWatch)
    everything else                      needs a restart: clients already rely on sockets, rings and promises

An invalid file, or a plan that cannot work, changes nothing: the daemon keeps its configuration and reports
the error.
"""

from __future__ import annotations

import queue
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.config.load import LoadedConfig, load_config
from shardwright.config.plan import make_plan
from shardwright.ingest.transport.allow_list import folder_state
from shardwright.model.errors import ConfigError, ShardwrightError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from shardwright.config.model import Config
    from shardwright.ingest.transport.allow_list import State

    from .service_manager import ServiceManager

LIVE = ("log", "compaction", "output.low_water")
LOOK_S = 1.0  # between two looks at the folder of client keys


class Reloader:
    """Reloads the configuration. ``ask`` may be called from any thread; ``run`` is the thread that reads and
    applies, so a disk that hangs delays no signal.

    ``apply`` applies the live parts of a configuration; ``manager`` is notified, if there is one.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        apply: Callable[[Config], None],
        emit: Callable[[str, Mapping[str, Any]], None],
        manager: ServiceManager | None,
    ) -> None:
        self._file = Path(loaded.source.file)
        self._config = loaded.config  # in force: fields that need a restart are as at the start
        self._apply = apply
        self._emit = emit
        self._manager = manager
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def ask(self) -> None:
        self._asked.put(True)

    def close(self) -> None:
        self._asked.put(False)

    def run(self) -> None:
        """Reloads at each ``ask``, until ``close``."""
        while self._asked.get():
            if self._manager is not None:
                self._manager.reloading()
            result, remark = self._reload()
            if self._manager is not None:
                self._manager.reloaded(result, remark)

    def _reload(self) -> tuple[str, str]:
        """Returns the result of this reload, and the remark for the status until the next one."""
        try:
            loaded = load_config(self._file)
            make_plan(loaded)
            changed = changed_fields(self._config, loaded.config)
            live = [name for name in changed if is_live(name)]
            needs_restart = [name for name in changed if not is_live(name)]
            config = with_live_parts(self._config, loaded.config)
            self._apply(config)
            self._config = config
        except ShardwrightError as error:
            self._emit("reload_failed", {"config": str(self._file), **error.to_dict()})
            return _refused(error)
        except Exception as error:  # noqa: BLE001  (a reload must never end a daemon that serves cameras)
            self._emit(
                "reload_failed",
                {"config": str(self._file), "error": f"{type(error).__name__}: {error}", "exc_info": error},
            )
            return _refused(error)
        hint = {"hint": "Restart the daemon to apply these"} if needs_restart else {}
        self._emit(
            "reloaded", {"config": str(self._file), "changed": live, "needs_restart": needs_restart, **hint}
        )
        remark = f"restart needed for {', '.join(needs_restart)}" if needs_restart else ""
        return f"reloaded: {', '.join(live) or 'nothing'} changed" + (f"; {remark}" if remark else ""), remark


def _refused(error: Exception) -> tuple[str, str]:
    text = f"reload refused, the old configuration stays: {' '.join(str(error).split())}"
    return text, text


def is_live(field: str) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in LIVE)


def changed_fields(old: Config, new: Config) -> list[str]:
    """Returns the dotted names of the fields that differ; a list is one field."""
    before, after = _flat(old.model_dump()), _flat(new.model_dump())
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def with_live_parts(old: Config, new: Config) -> Config:
    """Returns ``old`` with the live parts of ``new``."""
    output = old.output.model_copy(update={"low_water": new.output.low_water})
    return old.model_copy(update={"log": new.log, "compaction": new.compaction, "output": output})


def _flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


class FolderWatch:
    """Watches the folder of client keys for changed files, in a thread of its own, since its disk may be
    slow. ``changed`` is called once for each change since ``state``, also for one that was incomplete at the
    last look."""

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
