"""The start of the daemon, tried and undone: each step by which ``serve`` may refuse is made here by the same
function, in the same order (daemon/assemble.py). One that fails is a finding, and the next one is tried.

    plan, keys, status page   derived from the configuration, and read
    notifications             their programs and files are looked for
    output folders            made where output.create says so, and written to
    unfinished stores         found and read
    sockets                   bound, and given back
    kernels and workers       compiled or loaded, started and ended
    memory                    as much as the plan needs is free

If a daemon is already running on these sockets, that is the finding, and no socket is touched. A socket that
a dead daemon has left is removed, as by a start; folders that were made are removed again.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from shardwright.acquire.limits import available_memory_bytes, raise_descriptor_limit
from shardwright.acquire.workers import WorkerPool
from shardwright.config.load import access_warnings, load_access
from shardwright.config.plan import make_plan
from shardwright.daemon.assemble import bound, web_service
from shardwright.daemon.control_client import PATIENT_S, ControlClient
from shardwright.daemon.disks import prepare_output_root, written_folders
from shardwright.daemon.notifier import notify_problems
from shardwright.ingest import IngestServer
from shardwright.ingest.transport.endpoints import bind_unix_listener, socket_files
from shardwright.model.display_text import format_bytes
from shardwright.model.errors import ConfigError, ShardwrightError
from shardwright.recovery.admission import admit
from shardwright.recovery.leftovers import is_leftover, unfinished_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardwright.config.load import LoadedConfig
    from shardwright.config.model import Config
    from shardwright.config.plan import Plan
    from shardwright.daemon.web_child import WebService
    from shardwright.ingest.transport.allow_list import Access

T = TypeVar("T")
Result = Literal["ok", "warn", "bad"]
"""
ok     as it should be
warn   the daemon runs, but slower, later, with less room or with less of a promise than it could
bad    it does not start, or no acquisition can work
"""


@dataclass(frozen=True)
class Finding:
    """The result of one step of the check. ``found``: one line; ``advice``: what to do next, where ``found``
    does not say it."""

    check: str
    result: Result
    found: str
    advice: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        return asdict(self)


def refusal(check: str, error: Exception) -> Finding:
    """Returns an error of ``serve`` as a finding."""
    if not isinstance(error, ShardwrightError):
        return Finding(check, "bad", f"{type(error).__name__}: {error}")
    advice = error.hint or ("Correct that line of the file." if isinstance(error, ConfigError) else None)
    said = str(error) if error.hint is None else str(error).removesuffix(f". {error.hint}")
    return Finding(check, "bad", " ".join(said.split()), advice)


class StartTrial:
    """The constructor makes the plan, ``run`` takes all the other steps, inside ``new_folders_removed``.

    ``findings``: in the order of the steps. ``running``: the status of a daemon on these sockets, None if
    none answers. ``folders``: the output folders that can be written, by the field that names each.
    """

    def __init__(self, loaded: LoadedConfig, *, frame_rate_hz: float | None = None) -> None:
        self._loaded = loaded
        self.findings: list[Finding] = []
        self.folders: dict[str, Path] = {}
        self.running: dict[str, Any] | None = None
        self.plan = self._try("plan", lambda: make_plan(loaded, frame_rate_hz=frame_rate_hz), _plan_text)
        if self.plan is not None:
            self._warn("plan", self.plan.warnings)
            for stream in self.plan.streams:
                self._warn(f"stream {stream.name}", stream.warnings)

    def run(self) -> None:
        loaded = self._loaded
        self.running = running_daemon(loaded.config)
        raise_descriptor_limit()
        access = self._try("keys", lambda: load_access(loaded), _keys_text)
        has_keys = access is not None or loaded.config.ingest.curve is None
        if has_keys:
            self._warn("keys", access_warnings(loaded, access))
        self._warn("notifications", notify_problems(loaded.config))
        web = self._try("status page", lambda: web_service(loaded, _ignore), _web_text)
        self._make_folders()
        if self.running is not None:
            self.findings.append(_already_running(loaded, self.running))
        elif has_keys:  # nothing is opened to the network without them
            self._bind_sockets(access, web)
        self._try("kernels", self._start_workers, lambda _: "compiled, and they run")
        if self.plan is not None:
            self.findings.append(memory_finding(self.plan, available_memory_bytes()))

    def _make_folders(self) -> None:
        for path, role in written_folders(self._loaded.config):
            name = "output.root" if role == "root" else "output.spill_root"
            if self._try(name, partial(self._make_folder, path), "{} can be written".format) is not None:
                self.folders[name] = path
        if "output.root" in self.folders:
            self._try("unfinished stores", self._look_at_unfinished, "{} in output.root".format)

    def _make_folder(self, path: Path) -> Path:
        output = self._loaded.config.output
        prepare_output_root(path, create=output.create, in_memory=output.in_memory)
        return path

    def _look_at_unfinished(self) -> int:
        """Returns the number of stores that the daemon resumes. It leaves a store that it cannot read as it
        is, and serves everything else."""
        root = self._loaded.config.output.root
        advice = (
            "The daemon leaves it unchanged; `shardwright recover` of the release that wrote it can seal it."
        )
        found = 0
        for store in unfinished_stores(root):
            try:
                if is_leftover(store):
                    continue
                found += 1
                admit(store)
            except ShardwrightError as error:
                self.findings.append(
                    Finding("unfinished stores", "warn", " ".join(str(error).split()), advice)
                )
        return found

    def _bind_sockets(self, access: Access | None, web: WebService | None) -> None:
        """Binds all of them at once, since one may be in the way of another."""
        loaded, config = self._loaded, self._loaded.config
        with ExitStack() as opened:

            def bind_ingest() -> str:
                server = IngestServer(config.ingest_settings(access), WorkerPool(config.workers.count))
                bound(loaded, "ingest", "endpoints", server.bind)
                opened.callback(server.close)
                return ", ".join(server.endpoints)

            def bind_control(path: Path) -> Path:
                group = config.ingest.group
                listener = bound(loaded, "control", "socket", lambda: bind_unix_listener(path, group))
                opened.callback(listener.close)
                opened.callback(path.unlink, missing_ok=True)
                return path

            def bind_web(web: WebService) -> str:
                bound(loaded, "http", "listen", web.bind)
                opened.callback(web.unbind)
                return web.url

            # else perhaps a daemon is about to bind the others: do not disturb it
            if self._try("sockets", bind_ingest, "{} can be bound".format) is not None:
                if config.control_socket_path is not None:
                    control = Path(config.control_socket_path)
                    self._try("control socket", lambda: bind_control(control), "{} can be bound".format)
                if web is not None:
                    self._try("status page", lambda: bind_web(web), "{} can be served".format)
        for folder in sorted({path.parent for path in socket_paths(config)}):
            with suppress(OSError):
                if (mode := folder.stat().st_mode & 0o777) & 0o007:
                    advice = "Every user of this machine can enter it: chmod o= it, or use another folder."
                    self.findings.append(Finding("sockets", "warn", f"{folder} has mode {mode:04o}", advice))

    def _start_workers(self) -> None:
        pool = WorkerPool(self._loaded.config.workers.count)
        try:
            pool.start()
        finally:
            pool.stop()

    def _try(self, check: str, step: Callable[[], T], found: Callable[[T], str]) -> T | None:
        """Returns the result of a step; None, and a finding, if it fails. ``found`` makes the text of a
        result, which may be empty."""
        try:
            result = step()
        except Exception as error:  # noqa: BLE001  (whatever ends the start of the daemon is a finding)
            self.findings.append(refusal(check, error))
            return None
        if text := found(result):
            self.findings.append(Finding(check, "ok", text))
        return result

    def _warn(self, check: str, warnings: Iterable[str]) -> None:
        self.findings += [Finding(check, "warn", warning) for warning in warnings]


@contextmanager
def new_folders_removed(config: Config) -> Iterator[None]:
    """Of output folders and of folders of sockets, those that are made inside are removed at the end, unless
    there is something in them."""
    folders = [path for path, _ in written_folders(config)] + [path.parent for path in socket_paths(config)]
    missing = {folder for path in folders for folder in (path, *path.parents) if not _is_there(folder)}
    try:
        yield
    finally:
        for folder in sorted(missing, key=lambda folder: len(folder.parts), reverse=True):
            with suppress(OSError):
                folder.rmdir()


def _is_there(folder: Path) -> bool:
    """True also for a folder that this user may not look at: it is not made."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def socket_paths(config: Config) -> Iterable[Path]:
    """Of all Unix sockets of this configuration."""
    others = (config.ingest.ring_socket_path, config.control_socket_path)
    return [*socket_files(config.ingest.endpoints), *(Path(path) for path in others if path is not None)]


def running_daemon(config: Config) -> dict[str, Any] | None:
    """Returns the status of the daemon on this configuration's control socket; None if none answers this
    user."""
    path = config.control_socket_path
    if path is None:
        return None
    try:
        with ControlClient(path, PATIENT_S) as daemon:  # a busy one is no dead one
            status: dict[str, Any] = daemon.ask("status")["status"]
    except ShardwrightError:
        return None
    return status


def _already_running(loaded: LoadedConfig, status: dict[str, Any]) -> Finding:
    file = loaded.source.file
    return Finding(
        "sockets",
        "bad",
        f"a daemon is already running on them: process {status['pid']}, with {status['config']}",
        f"serve does not start beside it. End it first (shardwright drain {file}), or let it reload the "
        f"file: shardwright check --reload {file} checks whether it can.",
    )


def _plan_text(plan: Plan) -> str:
    return (
        f"{format_bytes(plan.memory_peak_bytes)} of memory, {format_bytes(plan.disk_reserved_bytes)} of disk "
        f"before the first frame, at most {plan.descriptors:,} open files"
    )


def memory_finding(plan: Plan, available_bytes: int) -> Finding:
    """Compares the plan's peak with the memory that is free now: the plan knows only what the machine has."""
    peak, free = format_bytes(plan.memory_peak_bytes), format_bytes(available_bytes)
    found = f"{peak} at most; {free} are available now"
    if plan.memory_peak_bytes <= available_bytes:
        return Finding("memory", "ok", found)
    advice = "Unless a running daemon holds it, end programs that take memory before an acquisition."
    return Finding("memory", "warn", found, advice)


def _keys_text(access: Access | None) -> str:
    return "" if access is None else f"client keys on the list: {len(access.clients.names)}"


def _web_text(web: WebService | None) -> str:
    return "off (http.enabled)" if web is None else ""


def _ignore(event: str, facts: object) -> None:
    """Drops an event: nothing is started here."""
