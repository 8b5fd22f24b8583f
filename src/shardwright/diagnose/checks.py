"""The checks of the machine, and all findings in order: each check is a small function of the facts, in one
table, with what it looks at. They find, they change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.codecs.native import SYMBOLS
from shardwright.config.quantities import format_bytes
from shardwright.model.extras import install_line

from .finding import Finding
from .folder_checks import FOLDER_CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .facts import Facts
    from .finding import Check

OLDEST_KERNEL, GOOD_KERNEL = (3, 17), (5, 14)  # memfd and OFD locks; a ring is then populated by one call
OLDEST_ZMQ, GOOD_ZMQ = (4, 1, 0), (4, 3, 3)  # 4.3.3 mends what strangers could do to a listener
TESTED_BLOSC = ("4.",)
MOST_DIRTY_BYTES = 2 << 30  # where frames go through the page cache: several seconds of what a disk takes
MOST_CLOCK_ERROR_US = 1_000_000
SLOW_CLOCK_SOURCES = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
MADE_IN_S = 1_735_689_600  # the start of 2025: no clock is right that stands before it
COARSE_RESOLUTION_NS = 1e6


def check_plan(facts: Facts) -> Check:
    """Whether the configuration works on this machine at all."""
    needs = facts.needs
    if needs.problem is not None:
        return (
            "bad",
            needs.problem,
            (
                "Mend that line; `shardwright check` shows the whole plan. The other "
                "findings count a daemon without streams."
            ),
        )
    return (
        "ok",
        (
            f"{format_bytes(needs.memory_bytes)} of memory, {format_bytes(needs.disk_bytes)} of disk before "
            f"the "
            f"first frame"
        ),
        None,
    )


def check_memory(facts: Facts) -> Check:
    """The plan's peak against what this machine has, and has free now."""
    needs = facts.needs
    has, free = format_bytes(facts.machine_memory_bytes), format_bytes(facts.available_memory_bytes)
    found = f"{format_bytes(needs.memory_bytes)} at most, of {has}; {free} are available now"
    if needs.memory_bytes > facts.machine_memory_bytes - facts.reserved_huge_bytes:
        return "bad", found, "Make ring_frames or chunk_size smaller, or add memory."
    if needs.memory_bytes > facts.available_memory_bytes:
        return (
            "warn",
            found,
            ("Unless a daemon holds it already, end what else takes memory before an acquisition."),
        )
    return "ok", found, None


def check_memory_lock(facts: Facts) -> Check:
    """Nothing is locked: so what must not wait for a swap disk needs a machine, or a limit, that leaves it in
    memory."""
    limit = (
        "no limit" if facts.memory_lock_bytes is None else (f"limit {format_bytes(facts.memory_lock_bytes)}")
    )
    rings = format_bytes(facts.needs.ring_bytes)
    if facts.swap_bytes == 0:
        return "ok", f"no swap, so rings of {rings} stay in memory; memlock ({limit}) is not used", None
    if facts.needs.ring_bytes > facts.available_memory_bytes:
        advice = (
            "Switch swap off (swapoff -a), or make ring_frames smaller: frames would wait for the swap disk."
        )
        return "bad", f"rings of {rings} do not fit the available memory, and there is swap", advice
    advice = (
        "Switch swap off, or set MemorySwapMax=0 in the service's unit: rings are not locked (memlock "
        "is not used), and may be swapped out."
    )
    return "warn", f"{format_bytes(facts.swap_bytes)} of swap; rings of {rings}; memlock {limit}", advice


def check_descriptors(facts: Facts) -> Check:
    """Open files: two for each shard that is filled, one for its journal, connections."""
    needs, limit = facts.needs, facts.descriptors
    found = (
        f"{needs.descriptors:,} needed, {needs.most_descriptors:,} when frames come far out of order; limit "
        + (f"{limit:,}" if limit else "none")
    )
    advice = (
        f"Raise it: LimitNOFILE={2 * needs.most_descriptors} in the service's unit, or `ulimit -Hn` of "
        f"the shell; or make shards larger."
    )
    if limit is not None and needs.descriptors > limit:
        return "bad", found, advice
    if limit is not None and needs.most_descriptors > limit:
        return "warn", found, advice
    return "ok", found, None


def check_kernel(facts: Facts) -> Check:
    """What is asked of Linux: memfd and OFD locks (3.17), populating a ring in one call (5.14)."""
    version = _numbers(facts.kernel)
    if version < OLDEST_KERNEL:
        return (
            "bad",
            f"Linux {facts.kernel}",
            (
                f"Use Linux {_dotted(OLDEST_KERNEL)} or newer: older ones have no memfd and no file locks of "
                f"their own."
            ),
        )
    if version < GOOD_KERNEL:
        return (
            "warn",
            f"Linux {facts.kernel}",
            (
                f"From Linux {_dotted(GOOD_KERNEL)} on rings are in memory before the first frame, and not "
                f"page "
                f"by page."
            ),
        )
    return "ok", f"Linux {facts.kernel}", None


def check_dirty_pages(facts: Facts) -> Check:
    """Unwritten page cache: only where shards go through it."""
    limits = (
        f"writers wait from {format_bytes(facts.dirty_bytes)}, the kernel writes from "
        f"{format_bytes(facts.background_dirty_bytes)}"
    )
    found = f"{limits} or after {facts.dirty_expire_s:g} s"
    buffered = [folder.field for folder in facts.folders if folder.error is None and folder.io != "direct"]
    if not buffered:
        return "ok", f"{found}; shards are written past the page cache", None
    if facts.dirty_bytes <= facts.background_dirty_bytes:
        advice = (
            "Set vm.dirty_background_bytes well below vm.dirty_bytes: else the kernel begins to write "
            "when writers have to wait already."
        )
        return "bad", found, advice
    if facts.background_dirty_bytes > MOST_DIRTY_BYTES:
        advice = (
            f"{' and '.join(buffered)} goes through the page cache, and what piles up there is waited for "
            f"all at once. "
            "As root: sysctl vm.dirty_background_bytes=268435456 vm.dirty_bytes=1073741824 (and in "
            "/etc/sysctl.d to keep it)."
        )
        return "warn", found, advice
    return "ok", found, None


def check_huge_pages(facts: Facts) -> Check:
    """Reserved ones are memory nobody else gets; transparent ones, made on the spot, hold up whoever touches
    memory first."""
    found = (
        f"transparent: {facts.huge_pages or 'none'}, defrag: {facts.huge_page_defrag or 'none'}; "
        f"{format_bytes(facts.reserved_huge_bytes)} reserved"
    )
    if (
        facts.reserved_huge_bytes
        and facts.machine_memory_bytes - facts.reserved_huge_bytes < facts.needs.memory_bytes
    ):
        return (
            "bad",
            found,
            (
                "Reserve fewer: sysctl vm.nr_hugepages=0. shardwright uses none, and what is "
                "left is less than the plan needs."
            ),
        )
    if facts.huge_pages == "always" and facts.huge_page_defrag == "always":
        advice = (
            "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag: else a frame may wait while "
            "memory is moved about."
        )
        return "warn", found, advice
    return "ok", found, None


def check_clock(facts: Facts) -> Check:
    """Frames carry UTC; every decision is taken by the monotonic clock."""
    if facts.monotonic_resolution_ns > COARSE_RESOLUTION_NS:
        return (
            "bad",
            f"the monotonic clock counts in steps of {facts.monotonic_resolution_ns / 1e6:g} ms",
            "Use a kernel with high resolution timers.",
        )
    if 0 < facts.clock_s < MADE_IN_S:
        return (
            "bad",
            "the clock stands years ago",
            ("Set it (timedatectl set-time, or hwclock): every frame would carry that time."),
        )
    if facts.clock_source in SLOW_CLOCK_SOURCES:
        advice = (
            "Ask for tsc (or the hypervisor's) with the kernel parameter clocksource=: this one costs "
            "microseconds for each look at the clock."
        )
        return "warn", f"clock source {facts.clock_source}", advice
    if not facts.clock_synchronised or facts.clock_error_us > MOST_CLOCK_ERROR_US:
        said = (
            "unknown whether it is synchronised" if facts.clock_synchronised is None else ("not synchronised")
        )
        return (
            "warn",
            said,
            (
                "Run chrony or systemd-timesyncd (in a container or VM: on the host), else times of frames "
                "from "
                "two machines do not compare."
            ),
        )
    return (
        "ok",
        f"synchronised to {facts.clock_error_us / 1000:g} ms; clock source {facts.clock_source}",
        None,
    )


def check_sockets(facts: Facts) -> Check:
    """Whoever reaches the sockets may acquire: their folders are for the daemon's user, or its group."""
    for folder in facts.sockets:
        if not folder.usable:
            advice = (
                "Make it, for the daemon's user: systemd does with RuntimeDirectory=shardwright; or "
                "choose other paths in ingest.endpoints."
            )
            return "bad", f"{folder.path} cannot be used by user {facts.user}", advice
    if open_ones := [
        f"{folder.path} has mode {folder.mode:04o}"
        for folder in facts.sockets
        if folder.mode is not None and folder.mode & 0o007
    ]:
        return (
            "warn",
            "; ".join(open_ones),
            (
                "Every user of this machine can reach the sockets there: chmod "
                "o= its folder, or use one of their own."
            ),
        )
    places = ", ".join(folder.path for folder in facts.sockets)
    return "ok", f"{places or 'none'}{': for the daemon and its group' if places else ''}", None


def check_keys(facts: Facts) -> Check:
    """Who gets in from other computers: nobody, those whose keys are listed, or everybody."""
    if facts.keys_problem is not None:
        return (
            "bad",
            facts.keys_problem,
            ("Mend that, else the daemon does not start; `shardwright keygen NAME` makes a pair of keys."),
        )
    if not facts.uses_tcp:
        return "ok", "no tcp endpoint, so this machine's own users only", None
    if facts.client_keys is None:
        advice = "Use ingest.curve (`shardwright keygen`), unless nobody else is on this network."
        return (
            "warn",
            "ingest.insecure: whoever reaches a tcp endpoint may write stores and fill the disk",
            advice,
        )
    if facts.client_keys == 0:
        return (
            "warn",
            "no client key is listed",
            ("Put the NAME.key of each camera's computer into the folder ingest.curve.clients."),
        )
    return "ok", f"client keys on the list: {facts.client_keys}", None


def check_zmq(facts: Facts) -> Check:
    """The library that pyzmq was built with."""
    version = _dotted(facts.zmq.version)
    found = f"libzmq {version}, {'with' if facts.zmq.has_curve else 'without'} CURVE"
    if facts.zmq.version < OLDEST_ZMQ or (facts.uses_ipc and not facts.zmq.has_ipc):
        return (
            "bad",
            f"{found}{'' if facts.zmq.has_ipc else ', without ipc'}",
            "Install the pyzmq wheel from the package index: it brings its own libzmq.",
        )
    if facts.zmq.version < GOOD_ZMQ:
        return (
            "warn",
            found,
            (
                f"Update pyzmq to one with libzmq {_dotted(GOOD_ZMQ)} or newer, which mends "
                f"what strangers could do to a listener."
            ),
        )
    if facts.uses_tcp and not facts.zmq.has_curve:
        return (
            "warn",
            found,
            (
                "Install the pyzmq wheel from the package index: without CURVE nobody can be "
                "kept out of a tcp endpoint."
            ),
        )
    return "ok", found, None


def check_blosc(facts: Facts) -> Check:
    """The library in the blosc2 wheel, and the functions in it that the kernels call by name."""
    again = 'Install a version that is tested: pip install "blosc2>=4.0,<5".'
    if facts.blosc_problem is not None or facts.blosc_version is None:
        return (
            "bad",
            facts.blosc_problem or "blosc2 is not installed",
            (f"{again} Without it chunks are stored uncompressed."),
        )
    if facts.missing_symbols:
        found = f"blosc2 {facts.blosc_version} lacks {', '.join(facts.missing_symbols)}"
        return "bad", found, f"{again} As it is, chunks are stored uncompressed."
    found = f"blosc2 {facts.blosc_version}, all {len(SYMBOLS)} functions are there"
    if not facts.blosc_version.startswith(TESTED_BLOSC):
        return "warn", found, again
    return "ok", found, None


def check_stores(facts: Facts) -> Check:
    """What the daemon will take up at its start: written by this release, or one before it."""
    found = f"{facts.unfinished_stores} in output.root"
    if facts.unreadable_stores:
        advice = (
            "The daemon leaves such a store as it is and serves everything else; `shardwright recover` "
            "of the release that wrote it seals it."
        )
        return "bad", f"{found}; {'; '.join(facts.unreadable_stores)}", advice
    return "ok", found, None


def check_web(facts: Facts) -> Check:
    """Packages of the status page."""
    if not facts.web_wanted:
        return "ok", "off (http.enabled)", None
    if facts.missing_web_packages:
        return (
            "bad",
            f"not installed: {', '.join(facts.missing_web_packages)}",
            (f"{install_line('web')}, or http.enabled: false."),
        )
    return "ok", "its packages are installed", None


MACHINE_CHECKS: dict[str, Callable[[Facts], Check]] = {
    "plan": check_plan,
    "memory": check_memory,
    "memory locks": check_memory_lock,
    "open files": check_descriptors,
    "kernel": check_kernel,
    "dirty pages": check_dirty_pages,
    "huge pages": check_huge_pages,
    "clock": check_clock,
    "sockets": check_sockets,
    "keys": check_keys,
    "ZeroMQ": check_zmq,
    "Blosc": check_blosc,
    "unfinished stores": check_stores,
    "status page": check_web,
}


def examine(facts: Facts) -> Iterator[Finding]:
    """Every finding, in the order of the tables. Of a folder that cannot be used only that is said."""
    yield _finding("plan", check_plan(facts))
    for folder in facts.folders:
        for name, check_folder in FOLDER_CHECKS.items():
            yield _finding(f"{folder.field}: {name}", check_folder(folder, facts))
            if folder.error is not None:
                break
    for name, check in MACHINE_CHECKS.items():
        if check is not check_plan:
            yield _finding(name, check(facts))


def _finding(name: str, found: Check) -> Finding:
    result, what, advice = found
    assert (advice is None) == (result == "ok"), "whoever is told of something is told what to do"
    return Finding(name, result, what, advice)


def _numbers(version: str) -> tuple[int, ...]:
    """``5.14.0-427.el9`` as (5, 14)."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
