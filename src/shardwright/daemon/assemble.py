"""The floor plan of the daemon: the rooms built from a configuration, the order in which they open and close,
and the threads they run in.

    main thread        signals, supervision                      daemon/lifecycle.py
    events thread      lines to standard output                  daemon/events.py
    ingest thread      sockets, sessions, every Acquisition      ingest/server.py, acquire/acquisition.py
    planner thread     what new acquisitions need                ingest/blocking_executor.py
    opener thread      stores and rings of new acquisitions      ingest/blocking_executor.py
    recovery thread    stores that an earlier daemon left        ingest/blocking_executor.py
    look-up thread     what the control socket asks of disks     ingest/blocking_executor.py
    worker threads     slabs to encoded chunks in their slots    acquire/workers.py
    sealer threads     one for each acquisition: shards are preallocated, synced, sealed
    disks thread       free space                                daemon/disks.py
    keys thread        changes of client keys                    daemon/reload.py
    control thread     requests of other processes               daemon/control.py
    web thread         the process that serves HTTP              daemon/web_child.py
    notify threads     one for each receiver of notifications    daemon/notifier.py (notifications are sent by
                                                                 processes of their own)
    reload thread      a configuration that is read again        daemon/reload.py
    service-manager    messages to systemd, where it is present  daemon/service_manager.py
    compaction thread  repacking of sealed stores                daemon/compaction.py (the work is done in a
                                                                 process of its own)
                       pauses of all repacking                   daemon/camera_needs.py

Opened in the order plan, output roots, sockets, ingest, kernels, threads: each step raises its errors before
anything of a later step exists. Closed in reverse. Clients get WELCOME while kernels are compiled; their OPEN
requests wait, and so does a signal. Unfinished stores are handed over before `ready` and resumed after it,
one after another: a client that comes back waits for its own store and those before it.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardwright.acquire.limits import raise_descriptor_limit
from shardwright.acquire.workers import WorkerPool
from shardwright.config.load import access_warnings, load_access
from shardwright.config.plan import make_plan
from shardwright.ingest import IngestServer
from shardwright.ingest.transport.endpoints import is_tcp
from shardwright.kernels.warm_up import COMPILING, compiles, warm_up
from shardwright.model.errors import AddressError, ConfigError, ShardwrightError
from shardwright.recovery.leftovers import is_leftover, look_at, remove, row_for, unfinished_stores

from .camera_needs import CameraNeeds
from .compaction import STOP_TIMEOUT_S, CompactionService
from .control import ControlServer
from .control_requests import Requests
from .disks import DiskSpace, prepare_output_root, written_folders
from .lifecycle import has_terminal
from .notifier import Notifier, notify_problems
from .reload import FolderWatch, Reloader
from .service_manager import ServiceManager
from .snapshot import SnapshotTaker
from .web_child import STOP_TIMEOUT_S as WEB_STOP_TIMEOUT_S
from .web_child import WebService, check_packages, web_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardwright.config.load import LoadedConfig
    from shardwright.config.model import Config

    from .events import EventLog, LogFormat
    from .lifecycle import Lifecycle
    from .service_manager import Manager

T = TypeVar("T")
CONTROL_STOP_TIMEOUT_S = 2.0
LEFT_TO_RECOVERY = 3  # exit code: an orderly end, but not all that was open could be sealed


class Daemon:
    """One daemon from one configuration. Owned by the main thread. Raises ``ConfigError`` for a plan that
    cannot work."""

    def __init__(
        self,
        loaded: LoadedConfig,
        events: EventLog,
        manager: Manager | None = None,
        log_format: LogFormat | None = None,
    ) -> None:
        """``manager``: the service manager that started this process. ``log_format``: in place of the
        configuration's."""
        self._loaded = loaded
        self._events = events
        self._log_format = log_format
        self.plan = make_plan(loaded)
        config = loaded.config
        self._notifier = Notifier(config.notify, events.emit)
        self._emit = self._tell
        self._pool = WorkerPool(config.workers.count)
        self._access = load_access(loaded)
        self._server = IngestServer(config.ingest_settings(self._access), self._pool, on_event=self._pass_on)
        self._needs = CameraNeeds(
            config.output,
            config.compaction.pause_above,
            self._server.ring_fill,
            self._server.acquiring,
            self._server.waits_for_room,
        )
        self._compaction = CompactionService(config.compaction, config.output.root, self._needs, self._emit)
        self._disks = DiskSpace(written_folders(config), config.output.low_water, self._server.bytes_stored)
        # While client keys are read and put in force: an older, slower reading would put a revoked key back.
        self._clients_lock = threading.Lock()
        self._web = web_service(loaded, self._emit)
        self._web_begun = False
        self.snapshots = SnapshotTaker(
            loaded.source.file,
            config.output.root,
            self._server,
            self._compaction,
            self._disks,
            self._notifier,
            events,
        )
        self._manager = (
            ServiceManager(manager, self.snapshots.take, self._emit) if manager is not None else None
        )
        self._reloader = Reloader(loaded, self._take_over, self._emit, self._manager)

    def reload_clients(self) -> None:
        """Reads the folder of client keys again; an event names the changes. If it cannot be used, no client
        is added. From any thread."""
        with self._clients_lock:
            try:
                changes = self._server.reload_clients()
            except ConfigError as error:
                self._emit("client_keys_refused", error.to_dict())
            else:
                self._emit("client_keys_reloaded", changes)

    def run(self, life: Lifecycle) -> int:
        """Opens, serves until it is stopped, drains and closes; returns the exit code. Raises
        ``AddressError`` or ``StorageError`` when it cannot start."""
        output = self._loaded.config.output
        raise_descriptor_limit()
        for folder, _ in written_folders(self._loaded.config):
            prepare_output_root(folder, create=output.create, in_memory=output.in_memory)
        unfinished = self._unfinished(output.root)
        # By its default action a signal would leave the socket files. For systemd that is a clean end, after
        # which it does not start the daemon again.
        life.take_signals(None if has_terminal() else self._reloader.ask)
        bound(self._loaded, "ingest", "endpoints", self._server.bind)
        with ExitStack() as opened:
            try:
                self._open_control(life, opened)
                if self._web is not None:
                    bound(self._loaded, "http", "listen", self._web.bind)
                    opened.callback(self._web.unbind)
            except BaseException:
                self._server.close()
                raise
            return self._serve(life, unfinished, opened)

    def _serve(self, life: Lifecycle, unfinished: list[Path], opened: ExitStack) -> int:
        self._notifier.begin(life.spawn)
        self._server.adopt(unfinished)
        self._server.hold()
        ingest = life.spawn("ingest", partial(self._server.run, life.stop))
        try:
            self._prepare(life, opened)
        except BaseException:
            life.stop.set()
            ingest.join()
            raise
        life.watch_uncaught()
        life.act_on_signals()  # before ready: a daemon that is to stop never says that it is
        page = None if self._web is None else self._web.url
        self.snapshots.serve(self._server.endpoints, page, life.stop)
        compaction = None if life.stop.is_set() else self._begin(life, unfinished, opened)
        ended = threading.Event()
        if self._manager is not None:
            # also when the end follows at once: for systemd an end without READY is a failure, after which it
            # starts the service again
            self._manager.ready()
            life.spawn("service-manager", partial(self._manager.run, life.stop, ended))
        code = life.supervise(ingest, self._dead_threads)
        if self._pool.alive():
            self._pool.stop()
        self._compaction.close()
        if compaction is not None:
            compaction.join(STOP_TIMEOUT_S + 2.0)
        self._reloader.close()
        self._notifier.end()
        ended.set()
        if left := self._server.left_to_recovery:
            hint = (
                "Stored frames are kept: once there is room, the next start resumes these stores, or "
                "`shardwright recover` seals them"
            )
            self._emit("left_to_recovery_warning", {"paths": [str(path) for path in left], "hint": hint})
            code = code or LEFT_TO_RECOVERY
        last = self._server.snapshot()
        counts = {
            "frames_received": last["sums"]["frames_received"],
            "foreign_messages": last["foreign_messages"],
        }
        self._emit("stopped", {"exit_code": code, **counts})
        return code

    def _begin(self, life: Lifecycle, unfinished: list[Path], opened: ExitStack) -> threading.Thread:
        """Begins to take frames. Returns the compaction thread."""
        self._server.let_go()
        life.spawn("disks", partial(self._disks.run, life.stop))
        config = self._loaded.config.ingest
        if self._access is not None:
            clients = self._access.clients
            watch = FolderWatch(clients.folder, clients.state, self.reload_clients)
            life.spawn("keys", partial(watch.run, life.stop))
        compaction = life.spawn("compaction", partial(self._compaction.run, life.stop))
        life.spawn("reload", self._reloader.run)
        if config.insecure and (
            open_endpoints := [endpoint for endpoint in self._server.endpoints if is_tcp(endpoint)]
        ):
            hint = "Use ingest.curve, unless only the cameras' computers are on this network"
            self._emit(
                "insecure_warning",
                {
                    "endpoints": open_endpoints,
                    "meaning": "anyone who can reach these endpoints may write stores",
                    "hint": hint,
                },
            )
        self._emit("ready", {**self._facts(), "unfinished": [str(path) for path in unfinished]})
        self._start_web(life, opened)
        return compaction

    def _prepare(self, life: Lifecycle, opened: ExitStack) -> None:
        """Prepares kernels and workers. Until then clients wait after WELCOME, at a first start for half a
        minute; snapshot, status, page and events say so."""
        first, begun_s = compiles(), time.monotonic()
        what = COMPILING if first else "kernels are loaded from their cache"
        self.snapshots.starting(what)
        if self._manager is not None:
            self._manager.starting(what)
        if first:
            self._emit("kernels_compiling", {"meaning": what})
            self._start_web(life, opened)
        warm_up()
        if first:
            self._emit("kernels_compiled", {"took_s": round(time.monotonic() - begun_s, 1)})
        self._pool.start()

    def _open_control(self, life: Lifecycle, opened: ExitStack) -> None:
        """Opens the control socket until ``opened`` is closed; it is the last to close, so that the end can
        be watched."""
        path = self._loaded.config.control_socket_path
        if path is None:
            return
        group = self._loaded.config.ingest.group
        requests = Requests(self._server, self._events.recent, status=self.snapshots.take, drain=life.drain)
        control = bound(
            self._loaded,
            "control",
            "socket",
            lambda: ControlServer(Path(path), requests.answers, self._emit, group=group),
        )
        thread = life.spawn("control", control.run)
        opened.callback(thread.join, CONTROL_STOP_TIMEOUT_S)
        opened.callback(control.close)

    def _start_web(self, life: Lifecycle, opened: ExitStack) -> None:
        """Starts the web process, unless it runs. It ends before the control socket that it uses."""
        if self._web is not None and not self._web_begun:
            self._web_begun = True
            thread = life.spawn("web", self._web.run)
            opened.callback(thread.join, WEB_STOP_TIMEOUT_S + 2.0)
            opened.callback(self._web.close)

    def _tell(self, event: str, facts: Mapping[str, Any]) -> None:
        """Passes an event to the log, and to people."""
        self._events.emit(event, facts)
        self._notifier.notice(event, facts)

    def _pass_on(self, event: str, facts: Mapping[str, Any]) -> None:
        """Passes an event of ingest to the log and to compaction."""
        self._emit(event, facts)
        self._compaction.notice(event, facts)

    def _take_over(self, config: Config) -> None:
        """Applies the parts of a configuration that can change while cameras send (``reload.LIVE``)."""
        log = config.log
        form = self._log_format or log.format
        self._events.configure(
            form=form, level=log.level, repeat_lines=log.repeat_lines, repeat_every_s=log.repeat_every_s
        )
        self._needs.configure(config.output, config.compaction.pause_above)
        self._compaction.configure(config.compaction)
        self._server.set_low_water(config.output.low_water)
        self._disks.set_low_water(config.output.low_water)
        if config.ingest.curve is not None:
            self.reload_clients()

    def _dead_threads(self) -> list[str]:
        return [*([] if self._pool.alive() else ["worker"]), *self._server.dead_threads()]

    def _unfinished(self, root: Path) -> list[Path]:
        """Returns the stores to resume. Removes the remains of an end or a beginning that was cut short."""
        stores = []
        for path in unfinished_stores(root):
            try:
                if is_leftover(path):
                    remove(path, row_for(look_at(path)))
                else:
                    stores.append(path)
            except ShardwrightError as error:
                self._emit("leftovers_not_removed_warning", {"path": str(path), **error.to_dict()})
        return stores

    def _facts(self) -> dict[str, Any]:
        config = self._loaded.config
        warnings = [
            *self.plan.warnings,
            *access_warnings(self._loaded, self._access),
            *notify_problems(config),
        ]
        return {
            "endpoints": list(self._server.endpoints),
            "ring_socket": config.ingest.ring_socket_path,
            "control_socket": config.control_socket_path,
            "output_root": str(config.output.root),
            "streams": [stream.name for stream in config.streams],
            "threads": self._pool.threads,
            "memory_peak_bytes": self.plan.memory_peak_bytes,
            "memory_budget_bytes": config.memory.budget,
            "pid": os.getpid(),
            **({} if self._web is None else {"status_page": self._web.url}),
            **({"warnings": warnings} if warnings else {}),
        }


def bound(loaded: LoadedConfig, section: str, field: str, bind: Callable[[], T]) -> T:
    """Binds a socket. Raises ``AddressError`` that names the field."""
    try:
        return _as_configured(loaded, section, field, bind)
    except ConfigError as error:
        raise AddressError(error.message, expected=error.expected, got=error.got, hint=error.hint) from None


def web_service(loaded: LoadedConfig, emit: Callable[[str, Mapping[str, Any]], None]) -> WebService | None:
    """Returns the status page, not bound yet; None if it is off. Raises ``ConfigError`` if it cannot be
    served."""
    config = loaded.config
    if not config.http.enabled:
        return None
    _as_configured(loaded, "http", "enabled", check_packages)
    settings = _as_configured(loaded, "http", "enabled", lambda: web_settings(config))
    return WebService(config.http, settings, emit)


def _as_configured(loaded: LoadedConfig, section: str, field: str, make: Callable[[], T]) -> T:
    """Calls ``make``. Its ``ConfigError`` gets the field and the line that caused it."""
    try:
        return make()
    except ConfigError as error:
        raise loaded.source.error(
            (section, field), error.message, expected=error.expected, got=error.got, hint=error.hint
        ) from None
