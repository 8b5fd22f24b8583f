"""This computer, as far as it decides how well a daemon runs: its facts (``look_at_computer``), and the
checks of them (``CHECKS``).

Reading a fact changes nothing; one that cannot be found out is None. A check is a small function of the facts
and of the plan's needs. What ``serve`` refuses is not judged here but tried (start.py), and what follows from
the configuration is the plan's task (config/plan.py).
"""

from __future__ import annotations

import ctypes
import platform
import resource
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardwright.acquire.limits import RUNTIME_BYTES
from shardwright.codecs import native
from shardwright.config.quantities import format_bytes
from shardwright.ingest.transport.endpoints import is_tcp, zmq_library
from shardwright.model.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.config.model import Config
    from shardwright.config.plan import Plan
    from shardwright.ingest.transport.endpoints import ZmqLibrary

Result = Literal["ok", "warn", "bad"]
Check = tuple[Result, str, "str | None"]
"""The outcome of a check: the result, what was found, and the advice unless all is well.

ok     as it should be
warn   the daemon runs, but slower, later, with less room or with less of a promise than it could
bad    it does not start, or no acquisition can work
"""
OLDEST_KERNEL, GOOD_KERNEL = (3, 17), (5, 14)  # memfd and OFD locks; a ring is then populated by one call
OLDEST_ZMQ, GOOD_ZMQ = (4, 1, 0), (4, 3, 3)  # 4.3.3 fixes attacks on a listener
TESTED_BLOSC = ("4.",)
MOST_DIRTY_BYTES = 2 << 30  # where frames go through the page cache: several seconds of what a disk takes
MOST_CLOCK_ERROR_US = 1_000_000
SLOW_CLOCK_SOURCES = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
MADE_IN_S = 1_735_689_600  # the start of 2025: no clock is right that stands before it
COARSE_RESOLUTION_NS = 1e6
_STA_UNSYNC = 0x0040


@dataclass(frozen=True)
class Needs:
    """The needs of a plan while every configured stream acquires; without a plan, those of any daemon. Rates
    are None where a frame rate is not known. ``disk_rate_bytes_per_s``: of frames and their levels,
    uncompressed. ``files``: shard files and journals that are made before the first frame.
    ``through_page_cache``: fields of the output folders that are not written past it."""

    memory_bytes: int = RUNTIME_BYTES
    ring_bytes: int = 0
    disk_bytes: int = 0
    disk_rate_bytes_per_s: float | None = None
    shard_files_per_hour: float | None = None
    files: int = 0
    through_page_cache: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan | None, through_page_cache: tuple[str, ...]) -> Needs:
        if plan is None:
            return cls(through_page_cache=through_page_cache)
        return cls(
            memory_bytes=plan.memory_peak_bytes,
            ring_bytes=plan.ring_bytes,
            disk_bytes=plan.disk_reserved_bytes,
            disk_rate_bytes_per_s=plan.disk_rate_bytes_per_s,
            shard_files_per_hour=plan.shard_files_per_hour,
            files=sum(s.safety.journals * (s.limits.shard_files_per_shard_row + 1) for s in plan.streams),
            through_page_cache=through_page_cache,
        )


@dataclass(frozen=True)
class Computer:
    """``memory_lock_bytes``: limit of this process, None without one. ``dirty_bytes``,
    ``background_dirty_bytes``: unwritten page cache from which writers wait, and from which the kernel
    writes. ``clock_synchronised`` None: unknown."""

    memory_bytes: int
    available_memory_bytes: int
    swap_bytes: int
    memory_lock_bytes: int | None
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
    blosc_version: str | None
    blosc_problem: str | None
    missing_symbols: tuple[str, ...]


def look_at_computer(config: Config, memory_bytes: int) -> Computer:
    """Reads the facts of this machine. ``memory_bytes``: its memory, as the plan counts it."""
    memory, (synchronised, error_us, clock_s) = memory_facts(), clock_facts()
    dirty_bytes, background_bytes = _dirty_limits(memory.get("MemAvailable", 0))
    blosc_problem, missing = _native_library()
    lock_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Computer(
        memory_bytes=memory_bytes,
        available_memory_bytes=memory.get("MemAvailable", 0),
        swap_bytes=memory.get("SwapTotal", 0),
        memory_lock_bytes=None if lock_bytes == resource.RLIM_INFINITY else lock_bytes,
        kernel=platform.release(),
        dirty_bytes=dirty_bytes,
        background_dirty_bytes=background_bytes,
        dirty_expire_s=(number_of("/proc/sys/vm/dirty_expire_centisecs") or 0) / 100,
        huge_pages=chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        huge_page_defrag=chosen("/sys/kernel/mm/transparent_hugepage/defrag"),
        reserved_huge_bytes=memory.get("Hugetlb", 0),
        clock_synchronised=synchronised,
        clock_error_us=error_us,
        clock_s=clock_s,
        clock_source=text_of("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        monotonic_resolution_ns=time.clock_getres(time.CLOCK_MONOTONIC) * 1e9,
        zmq=zmq_library(),
        uses_ipc=any(endpoint.startswith("ipc:") for endpoint in config.ingest.endpoints),
        uses_tcp=any(map(is_tcp, config.ingest.endpoints)),
        blosc_version=_version_of("blosc2"),
        blosc_problem=blosc_problem,
        missing_symbols=missing,
    )


def check_memory(computer: Computer, needs: Needs) -> Check:
    """Compares the plan's peak with the memory that is free now; that the machine has so much is checked by
    the plan."""
    free = format_bytes(computer.available_memory_bytes)
    found = (
        f"{format_bytes(needs.memory_bytes)} at most, of {format_bytes(computer.memory_bytes)}; {free} are "
        f"available now"
    )
    if needs.memory_bytes > computer.available_memory_bytes:
        advice = "Unless a running daemon holds it, end programs that take memory before an acquisition."
        return "warn", found, advice
    return "ok", found, None


def check_memory_lock(computer: Computer, needs: Needs) -> Check:
    """Nothing is locked: rings stay in memory only if there is no swap, or the service may not use it."""
    locked = computer.memory_lock_bytes
    limit = "no limit" if locked is None else f"limit {format_bytes(locked)}"
    rings = format_bytes(needs.ring_bytes)
    if computer.swap_bytes == 0:
        return "ok", f"no swap, so rings of {rings} stay in memory; memlock ({limit}) is not used", None
    if needs.ring_bytes > computer.available_memory_bytes:
        advice = (
            "Switch swap off (swapoff -a), or make ring_frames smaller: frames would wait for the swap disk."
        )
        return "warn", f"rings of {rings} do not fit the available memory, and there is swap", advice
    advice = (
        "Switch swap off, or set MemorySwapMax=0 in the service's unit: rings are not locked (memlock "
        "is not used), and may be swapped out."
    )
    return "warn", f"{format_bytes(computer.swap_bytes)} of swap; rings of {rings}; memlock {limit}", advice


def check_kernel(computer: Computer, _: Needs) -> Check:
    """Linux needs memfd and OFD locks (3.17); from 5.14 on a ring is populated in one call."""
    version, found = _numbers(computer.kernel), f"Linux {computer.kernel}"
    if version < OLDEST_KERNEL:
        advice = (
            f"Use Linux {_dotted(OLDEST_KERNEL)} or newer: older ones have no memfd and no file locks that "
            f"hold for one open file."
        )
        return "bad", found, advice
    if version < GOOD_KERNEL:
        advice = (
            f"From Linux {_dotted(GOOD_KERNEL)} on rings are in memory before the first frame, and not page "
            f"by page."
        )
        return "warn", found, advice
    return "ok", found, None


def check_dirty_pages(computer: Computer, needs: Needs) -> Check:
    """Unwritten page cache, where shards go through it."""
    found = (
        f"writers wait from {format_bytes(computer.dirty_bytes)}, the kernel writes from "
        f"{format_bytes(computer.background_dirty_bytes)} or after {computer.dirty_expire_s:g} s"
    )
    if not needs.through_page_cache:
        return "ok", f"{found}; shards are written past the page cache", None
    if computer.dirty_bytes <= computer.background_dirty_bytes:
        advice = (
            "Set vm.dirty_background_bytes well below vm.dirty_bytes: otherwise the kernel begins to write "
            "only when writers have to wait."
        )
        return "warn", found, advice
    if computer.background_dirty_bytes > MOST_DIRTY_BYTES:
        advice = (
            f"{' and '.join(needs.through_page_cache)}: writes go through the page cache, and writers wait "
            f"until all of it is on the disk. As root: sysctl vm.dirty_background_bytes=268435456 "
            f"vm.dirty_bytes=1073741824 (and in /etc/sysctl.d to keep it)."
        )
        return "warn", found, advice
    return "ok", found, None


def check_huge_pages(computer: Computer, needs: Needs) -> Check:
    """Reserved pages are memory that no other program gets. Transparent ones that are made on the spot delay
    the first access to memory."""
    reserved = computer.reserved_huge_bytes
    found = (
        f"transparent: {computer.huge_pages or 'none'}, defrag: {computer.huge_page_defrag or 'none'}; "
        f"{format_bytes(reserved)} reserved"
    )
    if reserved and computer.memory_bytes - reserved < needs.memory_bytes:
        advice = (
            "Reserve fewer: sysctl vm.nr_hugepages=0. shardwright uses none, and the rest of the memory is "
            "less than the plan needs."
        )
        return "warn", found, advice
    if computer.huge_pages == "always" and computer.huge_page_defrag == "always":
        advice = (
            "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag: otherwise a frame may wait while the "
            "kernel moves memory."
        )
        return "warn", found, advice
    return "ok", found, None


def check_clock(computer: Computer, _: Needs) -> Check:
    """Frames carry UTC; all decisions use the monotonic clock."""
    step_ms = computer.monotonic_resolution_ns / 1e6
    if computer.monotonic_resolution_ns > COARSE_RESOLUTION_NS:
        advice = "Use a kernel with high resolution timers."
        return "warn", f"the monotonic clock counts in steps of {step_ms:g} ms", advice
    if 0 < computer.clock_s < MADE_IN_S:
        advice = "Set it (timedatectl set-time, or hwclock): every frame would carry that time."
        return "warn", "the clock is years behind", advice
    if computer.clock_source in SLOW_CLOCK_SOURCES:
        advice = (
            "Select tsc (or the hypervisor's) with the kernel parameter clocksource=: reading this one takes "
            "microseconds."
        )
        return "warn", f"clock source {computer.clock_source}", advice
    if not computer.clock_synchronised or computer.clock_error_us > MOST_CLOCK_ERROR_US:
        unknown = computer.clock_synchronised is None
        advice = (
            "Run chrony or systemd-timesyncd (in a container or VM: on the host), otherwise times of frames "
            "from two machines cannot be compared."
        )
        return "warn", "unknown whether it is synchronised" if unknown else "not synchronised", advice
    found = f"synchronised to {computer.clock_error_us / 1000:g} ms; clock source {computer.clock_source}"
    return "ok", found, None


def check_zmq(computer: Computer, _: Needs) -> Check:
    """The library that pyzmq was built with."""
    zmq = computer.zmq
    found = f"libzmq {_dotted(zmq.version)}, {'with' if zmq.has_curve else 'without'} CURVE"
    wheel = "Install the pyzmq wheel from the package index"
    if zmq.version < OLDEST_ZMQ or (computer.uses_ipc and not zmq.has_ipc):
        lacks = "" if zmq.has_ipc else ", without ipc"
        return "bad", f"{found}{lacks}", f"{wheel}: it brings its own libzmq."
    if zmq.version < GOOD_ZMQ:
        advice = (
            f"Update pyzmq to one with libzmq {_dotted(GOOD_ZMQ)} or newer: in older ones any peer can crash "
            f"or exhaust a listener."
        )
        return "warn", found, advice
    if computer.uses_tcp and not zmq.has_curve:
        return "warn", found, f"{wheel}: without CURVE everyone may connect to a tcp endpoint."
    return "ok", found, None


def check_blosc(computer: Computer, _: Needs) -> Check:
    """The library in the blosc2 wheel, and the functions in it that the kernels call by name."""
    again = 'Install a tested version: pip install "blosc2>=4.0,<5".'
    uncompressed = f"{again} Until then chunks are stored uncompressed."
    if computer.blosc_problem is not None or computer.blosc_version is None:
        return "warn", computer.blosc_problem or "blosc2 is not installed", uncompressed
    if computer.missing_symbols:
        found = f"blosc2 {computer.blosc_version} lacks {', '.join(computer.missing_symbols)}"
        return "warn", found, uncompressed
    found = f"blosc2 {computer.blosc_version}, all {len(native.SYMBOLS)} functions are there"
    return ("ok", found, None) if computer.blosc_version.startswith(TESTED_BLOSC) else ("warn", found, again)


CHECKS: dict[str, Callable[[Computer, Needs], Check]] = {
    "memory": check_memory,
    "memory locks": check_memory_lock,
    "kernel": check_kernel,
    "dirty pages": check_dirty_pages,
    "huge pages": check_huge_pages,
    "clock": check_clock,
    "ZeroMQ": check_zmq,
    "Blosc": check_blosc,
}


def _numbers(version: str) -> tuple[int, ...]:
    """``5.14.0-427.el9`` as (5, 14)."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, up to the time; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("microseconds", ctypes.c_long),
        ("room", ctypes.c_char * 256),
    )


def text_of(path: str) -> str | None:
    """A file of /proc or /sys; None where it is not there."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def number_of(path: str) -> int | None:
    text = text_of(path)
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def memory_facts() -> dict[str, int]:
    """/proc/meminfo, in bytes (counts of huge pages as they are)."""
    found = {}
    for line in (text_of("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if number.isdecimal():
            found[name] = int(number) * (1024 if unit == "kB" else 1)
    return found


def chosen(path: str) -> str | None:
    """The word in brackets: ``always [madvise] never``."""
    text = text_of(path) or ""
    return text[text.index("[") + 1 : text.index("]")] if "[" in text and "]" in text else None


def clock_facts() -> tuple[bool | None, int, int]:
    """(synchronised, largest error in microseconds, seconds since 1970) by adjtimex(2); None where that is
    unknown."""
    facts = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(facts)) < 0:
        return None, 0, 0
    return not facts.status & _STA_UNSYNC, int(facts.maxerror), int(facts.seconds)


def _dirty_limits(available_bytes: int) -> tuple[int, int]:
    """In bytes, whether they were given so or as a part of the memory that is available."""

    def limit(name: str) -> int:
        return (
            number_of(f"/proc/sys/vm/{name}_bytes")
            or (number_of(f"/proc/sys/vm/{name}_ratio") or 0) * available_bytes // 100
        )

    return limit("dirty"), limit("dirty_background")


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _native_library() -> tuple[str | None, tuple[str, ...]]:
    """Returns (why it cannot be used, symbols that it lacks)."""
    try:
        return None, native.missing_symbols()
    except CodecError as error:
        return error.message, ()
