"""Everything the checks look at, frozen: what this machine is, and what the plan of a configuration needs of
it."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.acquire.limits import (
    DESCRIPTORS_PER_FILE,
    OWN_DESCRIPTORS,
    RUNTIME_BYTES,
    SPARE_DESCRIPTORS,
    machine_memory_bytes,
)
from shardwright.codecs import native
from shardwright.config.access import load_access
from shardwright.config.plan import make_plan
from shardwright.daemon.web_child import PACKAGES
from shardwright.ingest.transport.endpoints import connection_descriptors, is_tcp, zmq_library
from shardwright.model.errors import CodecError, ConfigError, ShardwrightError, StorageError
from shardwright.recovery.leftovers import is_leftover, unfinished_stores
from shardwright.recovery.unfinished import Unfinished
from shardwright.storage.choose_io import UNKNOWN_CHOICE, IoChoice, choose_io, resolve_io
from shardwright.storage.filesystems import nearest_folder

from . import machine_speed as machine

if TYPE_CHECKING:
    from shardwright.config.load import LoadedConfig
    from shardwright.config.model import Config
    from shardwright.config.plan import Plan, StreamPlan
    from shardwright.ingest.transport.endpoints import ZmqLibrary
    from shardwright.storage.slot_file import IoMode

    from .machine_speed import FilesystemKind, Preallocation


@dataclass(frozen=True)
class Needs:
    """What the daemon takes when every configured stream acquires. ``problem``: why there is no plan; then
    the rest is what any daemon takes."""

    problem: str | None = None
    memory_bytes: int = RUNTIME_BYTES
    ring_bytes: int = 0
    page_cache_bytes: int = 0
    disk_bytes: int = 0
    low_water_bytes: int = 0
    # before compression; None where a stream's frame rate is not known, or there is none
    data_rate_bytes_per_s: float | None = None
    shard_files_per_hour: float | None = None
    descriptors: int = SPARE_DESCRIPTORS  # while frames come in order
    most_descriptors: int = SPARE_DESCRIPTORS  # when they come far out of order


@dataclass(frozen=True)
class FolderFacts:
    """An output root. ``error``: why nothing could be measured; then the rest stands for nothing."""

    field: str
    path: str
    error: str | None = None
    filesystem: str = "unknown"
    options: tuple[str, ...] = ()
    kind: FilesystemKind = "disk"
    preallocation: Preallocation = "guaranteed"
    gives_gaps_back: bool = True
    io: str = "direct"
    io_configured: str = "auto"
    io_choice: IoChoice = UNKNOWN_CHOICE
    free_bytes: int = 0
    total_bytes: int = 0
    free_files: int = 0
    total_files: int = 0  # 0: as many as there is room for
    owner: int = 0


@dataclass(frozen=True)
class SocketFolder:
    """Where Unix sockets are made. ``mode`` None: it is not there; ``usable``: this user may make sockets in
    it, or make the folder."""

    path: str
    mode: int | None
    usable: bool


@dataclass(frozen=True)
class Facts:
    """``memory_lock_bytes``, ``descriptors``: limits of this process, None without limit. ``dirty_bytes``,
    ``background_dirty_bytes``: unwritten page cache from which writers wait, and from which the kernel
    writes. ``clock_synchronised`` None: the kernel does not tell. ``client_keys``: how many may connect over
    TCP, None where no keys are asked for; ``keys_problem``: why serve would not start with these keys."""

    needs: Needs
    folders: tuple[FolderFacts, ...]
    sockets: tuple[SocketFolder, ...]
    user: int
    machine_memory_bytes: int
    available_memory_bytes: int
    swap_bytes: int
    memory_lock_bytes: int | None
    descriptors: int | None
    kernel: str
    dirty_bytes: int
    background_dirty_bytes: int
    dirty_expire_s: float
    huge_pages: str | None
    huge_page_defrag: str | None
    reserved_huge_bytes: int
    clock_synchronised: bool | None
    clock_error_us: int
    clock_s: int
    clock_source: str | None
    monotonic_resolution_ns: float
    zmq: ZmqLibrary
    uses_ipc: bool
    uses_tcp: bool
    client_keys: int | None
    keys_problem: str | None
    blosc_version: str | None
    blosc_problem: str | None
    missing_symbols: tuple[str, ...]
    unfinished_stores: int
    unreadable_stores: tuple[str, ...]  # of these; why, a line each
    web_wanted: bool
    missing_web_packages: tuple[str, ...]


def gather(loaded: LoadedConfig) -> Facts:
    """Ask this machine. Writes nothing but files without a name in each output root, gone when this
    returns."""
    config = loaded.config
    memory, (synchronised, error_us, clock_s) = machine.memory_facts(), machine.clock_facts()
    dirty_bytes, background_bytes = _dirty_limits(memory.get("MemAvailable", 0))
    blosc_problem, missing = _native_library()
    unfinished, unreadable = _unfinished(config.output.root)
    client_keys, keys_problem = _keys(loaded)
    return Facts(
        needs=needs_of(loaded),
        folders=tuple(folder_facts(field, path, config.output.io) for field, path in _output_folders(config)),
        sockets=tuple(_socket_folder(folder) for folder in _socket_folders(config)),
        user=os.geteuid(),
        machine_memory_bytes=machine_memory_bytes(),
        available_memory_bytes=memory.get("MemAvailable", 0),
        swap_bytes=memory.get("SwapTotal", 0),
        memory_lock_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        # the daemon raises its own limit to the hard one
        descriptors=_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        kernel=platform.release(),
        dirty_bytes=dirty_bytes,
        background_dirty_bytes=background_bytes,
        dirty_expire_s=(machine.number_of("/proc/sys/vm/dirty_expire_centisecs") or 0) / 100,
        huge_pages=machine.chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        huge_page_defrag=machine.chosen("/sys/kernel/mm/transparent_hugepage/defrag"),
        reserved_huge_bytes=memory.get("Hugetlb", 0),
        clock_synchronised=synchronised,
        clock_error_us=error_us,
        clock_s=clock_s,
        clock_source=machine.text_of("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        monotonic_resolution_ns=time.clock_getres(time.CLOCK_MONOTONIC) * 1e9,
        zmq=zmq_library(),
        uses_ipc=any(endpoint.startswith("ipc:") for endpoint in config.ingest.endpoints),
        uses_tcp=any(map(is_tcp, config.ingest.endpoints)),
        client_keys=client_keys,
        keys_problem=keys_problem,
        blosc_version=_version_of("blosc2"),
        blosc_problem=blosc_problem,
        missing_symbols=missing,
        unfinished_stores=unfinished,
        unreadable_stores=unreadable,
        web_wanted=config.http.enabled,
        missing_web_packages=tuple(
            package for module, package in PACKAGES.items() if find_spec(module) is None
        ),
    )


def needs_of(loaded: LoadedConfig) -> Needs:
    """From the plan that ``check`` prints; a plan that cannot work is one of the findings."""
    config = loaded.config
    connections = connection_descriptors(config.ingest.endpoints, config.ingest.max_connections)
    try:
        plan = make_plan(loaded)
    except ConfigError as error:
        return Needs(problem=" ".join(str(error).split()), low_water_bytes=config.output.low_water)
    return Needs(
        memory_bytes=plan.memory_peak_bytes,
        ring_bytes=sum(stream.limits.ring_bytes for stream in plan.streams),
        page_cache_bytes=plan.mapped_bytes,
        disk_bytes=plan.disk_reserved_bytes,
        low_water_bytes=config.output.low_water,
        data_rate_bytes_per_s=_sum_over(plan, "data_rate_bytes_per_s"),
        shard_files_per_hour=_sum_over(plan, "shard_files_per_hour"),
        descriptors=SPARE_DESCRIPTORS
        + connections
        + sum(_descriptors(stream, stream.safety.journals) for stream in plan.streams),
        most_descriptors=SPARE_DESCRIPTORS + connections + plan.descriptors,
    )


def _sum_over(plan: Plan, name: str) -> float | None:
    values = [getattr(stream, name) for stream in plan.streams]
    return None if not values or None in values else float(sum(values))


def _descriptors(stream: StreamPlan, groups: int) -> int:
    """Of so many open groups: their shard files, and a journal each; and of the acquisition itself."""
    return OWN_DESCRIPTORS + groups * (DESCRIPTORS_PER_FILE * stream.limits.shard_files_per_group + 1)


def _output_folders(config: Config) -> list[tuple[str, Path]]:
    output = config.output
    return [
        ("output.root", output.root),
        *([] if output.spill_root is None else [("output.spill_root", output.spill_root)]),
    ]


def folder_facts(field: str, path: Path, io: IoMode = "auto") -> FolderFacts:
    """Measured in the folder itself: another one may lie on another filesystem. ``io``: as configured."""
    try:
        if not path.is_dir():
            return FolderFacts(
                field, str(path), error="it is not a folder" if path.exists() else "it is not there"
            )
        room = os.statvfs(path)
        filesystem, options = machine.mount_of(path.resolve(), machine.text_of("/proc/self/mountinfo") or "")
        return FolderFacts(
            field,
            str(path),
            filesystem=filesystem,
            options=options,
            kind=machine.filesystem_kind(path),
            preallocation=machine.preallocation_of(path),
            gives_gaps_back=machine.gives_gaps_back(path),
            io=resolve_io(io, [path]),
            io_configured=io,
            io_choice=choose_io([path]),
            free_bytes=room.f_bavail * room.f_frsize,
            total_bytes=room.f_blocks * room.f_frsize,
            free_files=room.f_favail,
            total_files=room.f_files,
            owner=path.stat().st_uid,
        )
    except (OSError, StorageError) as error:
        return FolderFacts(field, str(path), error=getattr(error, "strerror", None) or str(error))


def _socket_folders(config: Config) -> list[Path]:
    files = [
        endpoint.removeprefix("ipc://")
        for endpoint in config.ingest.endpoints
        if endpoint.startswith("ipc:///")
    ]
    files += [
        path for path in (config.ingest.ring_socket_path, config.control_socket_path) if path is not None
    ]
    return sorted({Path(file).parent for file in files})


def _socket_folder(folder: Path) -> SocketFolder:
    above = nearest_folder(folder)
    usable = os.access(above, os.W_OK | os.X_OK) and (above == folder or not os.path.lexists(folder))
    return SocketFolder(
        str(folder), folder.stat().st_mode & 0o777 if above == folder else None, usable=usable
    )


def _keys(loaded: LoadedConfig) -> tuple[int | None, str | None]:
    """(how many clients are on the list, why the keys cannot be used)."""
    try:
        access = load_access(loaded)
    except ConfigError as error:
        return None, " ".join(str(error).split())
    return (None if access is None else len(access.clients.names)), None


def _unfinished(root: Path) -> tuple[int, tuple[str, ...]]:
    """(stores that the daemon will take up, why it cannot with some). After an upgrade, and before a way
    back, this is the question."""
    try:
        stores = (
            [store for store in unfinished_stores(root) if not is_leftover(store)] if root.is_dir() else []
        )
    except (OSError, StorageError):
        return 0, ()  # the folder itself is a finding
    problems = []
    for store in stores:
        try:
            Unfinished.read(store)
        except ShardwrightError as error:
            problems.append(" ".join(str(error).split()))
    return len(stores), tuple(problems)


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _dirty_limits(available_bytes: int) -> tuple[int, int]:
    """In bytes, whether they were given so or as a part of the memory that is available."""

    def limit(name: str) -> int:
        return (
            machine.number_of(f"/proc/sys/vm/{name}_bytes")
            or (machine.number_of(f"/proc/sys/vm/{name}_ratio") or 0) * available_bytes // 100
        )

    return limit("dirty"), limit("dirty_background")


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _native_library() -> tuple[str | None, tuple[str, ...]]:
    """(why it cannot be used, symbols that it lacks)."""
    try:
        return None, native.missing_symbols()
    except CodecError as error:
        return error.message, ()
