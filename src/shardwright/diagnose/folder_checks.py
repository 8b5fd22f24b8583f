"""The checks of one output folder: may it be written, is what is synced there safe, how fast, and for how
long there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.config.quantities import format_bytes
from shardwright.storage.choose_io import MARGIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from .facts import Facts, FolderFacts
    from .finding import Check

LEAST_TIME_TO_FULL_S = 3600.0
UNSAFE_OPTIONS = ("nobarrier", "barrier=0", "data=writeback")


def check_output_root(folder: FolderFacts, facts: Facts) -> Check:
    """Whether this user can write there."""
    if folder.error is not None:
        hint = "Mount its disk, or make the folder (output.create: true makes it at each start)"
        owner = (
            f"; this is user {facts.user}, which must be the daemon's" if "ermission" in folder.error else ""
        )
        return "bad", f"{folder.path}: {folder.error}", f"{hint}, and give it to the daemon's user{owner}."
    if "ro" in folder.options:
        return (
            "bad",
            f"{folder.path} is mounted read-only",
            ("Mount it read-write; after an error of the disk, check the disk first."),
        )
    if facts.user == 0 and folder.owner != 0:
        advice = (
            "Run this again as the daemon's user (sudo -u USER shardwright doctor CONFIG): root may "
            "write everywhere."
        )
        return "warn", f"{folder.path} belongs to user {folder.owner}, and this is root", advice
    return "ok", f"{folder.path} can be written by user {facts.user}", None


def check_filesystem(folder: FolderFacts, _: Facts) -> Check:
    """Whether a sync there means a disk of this machine."""
    if folder.kind == "memory":
        return (
            "bad",
            f"{folder.filesystem}: in memory, nothing there is durable",
            (f"Set {folder.field} to a folder on a disk."),
        )
    if unsafe := [option for option in folder.options if option in UNSAFE_OPTIONS]:
        advice = f"Mount it without {unsafe[0]}: as it is, a power cut can take what was synced."
        return "bad", f"{folder.filesystem}, mounted with {', '.join(unsafe)}", advice
    if folder.kind == "network":
        advice = (
            "What is durable is up to its server, and locks may not hold across machines: acquire to a "
            "local disk, move finished stores there."
        )
        return "warn", f"{folder.filesystem}: a network filesystem, or FUSE", advice
    if folder.kind == "copy-on-write":
        advice = (
            "Works, with io pwrite or direct. For the highest rates use ext4 or xfs, or switch "
            "copy-on-write off (chattr +C) on the empty folder."
        )
        return "warn", f"{folder.filesystem}: copy-on-write", advice
    return "ok", folder.filesystem, None


def check_writing(folder: FolderFacts, _: Facts) -> Check:
    """How shards are written, and whether another way would be much faster. Measured with files without a
    name, gone at once."""
    choice = folder.io_choice
    measured = f"; {choice.measured}" if choice.measured else ""
    if folder.io_configured == "auto":
        return "ok", f"{choice.mode}, {choice.why}{measured}", None
    found = f"{folder.io}, as output.io says{measured or '; ' + choice.why}"
    own, best = choice.rates.get(folder.io), choice.rates.get(choice.mode)  # type: ignore[call-overload]
    if own and best and best > MARGIN * own:
        return "warn", found, f"Set output.io to auto: {choice.mode} is {best / own:.1f} times as fast here."
    return "ok", found, None


def check_preallocation(folder: FolderFacts, _: Facts) -> Check:
    """Whether a full disk shows before a frame is taken in, and not while it is written. Measured with a
    small file."""
    if folder.preallocation == "absent":
        advice = (
            "A full disk shows only when frames are written: use ext4, xfs or btrfs without "
            "compression, and a generous output.low_water."
        )
        return "bad", "absent: blocks were asked for, and none are there", advice
    if folder.preallocation == "emulated":
        advice = (
            "Each shard is written twice: zeros, then chunks. Use ext4, xfs or another filesystem with "
            "fallocate."
        )
        return "warn", "emulated: every block is written with zeros first", advice
    if folder.kind == "copy-on-write":
        advice = "A second write of a page can still meet a full disk: keep output.low_water free."
        return "warn", "guaranteed for the first write of each page", advice
    if not folder.gives_gaps_back:
        return (
            "warn",
            "guaranteed, but gaps cannot be given back (no hole punching)",
            ("Sealed shards keep their gaps: compact them soon."),
        )
    return "ok", "guaranteed by the filesystem, and gaps can be given back", None


def check_free_space(folder: FolderFacts, facts: Facts) -> Check:
    """Against what the plan takes at once, and how long it lasts at the full rate, uncompressed."""
    needs = facts.needs
    found = f"{format_bytes(folder.free_bytes)} free of {format_bytes(folder.total_bytes)}"
    reserved = needs.disk_bytes if folder.field == "output.root" else 0
    room = folder.free_bytes - reserved
    if room < 0:
        return (
            "bad",
            f"{found}; the plan takes {format_bytes(reserved)} before the first frame",
            ("Free some space, or make shards or rings smaller."),
        )
    if room < needs.low_water_bytes:
        return (
            "warn",
            f"{found}: below output.low_water as soon as every stream acquires",
            ("Free some space before the next acquisition."),
        )
    if not needs.data_rate_bytes_per_s:
        return "ok", f"{found}; frame_rate_hz of every stream would tell how long that lasts", None
    seconds = room / needs.data_rate_bytes_per_s
    lasts = (
        f"{found}, full in {_duration(seconds)} at {needs.data_rate_bytes_per_s / 1e6:,.0f} MB/s "
        f"without compression"
    )
    if seconds < LEAST_TIME_TO_FULL_S:
        return (
            "warn",
            lasts,
            (
                "Free some space, move finished stores away (shardwright compact --to DEST "
                "--move), or set on_full: spill."
            ),
        )
    return "ok", lasts, None


def check_free_files(folder: FolderFacts, facts: Facts) -> Check:
    """Inodes: a disk can be full of files."""
    if folder.total_files == 0:
        return "ok", "as many as there is room for", None
    found = f"{folder.free_files:,} more files of {folder.total_files:,}"
    if folder.free_files < facts.needs.descriptors:
        return "bad", found, "Delete small files, or make a filesystem with more inodes."
    per_hour = facts.needs.shard_files_per_hour
    if per_hour and folder.free_files / per_hour < LEAST_TIME_TO_FULL_S / 3600:
        return (
            "warn",
            f"{found}; {per_hour:,.0f} shards an hour",
            ("Make shard_size_chunks larger, so that fewer files are made."),
        )
    return "ok", found, None


FOLDER_CHECKS: dict[str, Callable[[FolderFacts, Facts], Check]] = {
    "permissions": check_output_root,
    "filesystem": check_filesystem,
    "writing": check_writing,
    "preallocation": check_preallocation,
    "free space": check_free_space,
    "free files": check_free_files,
}


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"
