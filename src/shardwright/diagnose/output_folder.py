"""One output folder: its filesystem and its room, looked at in the folder itself, and the checks of them
(``FOLDER_CHECKS``).

Files of at most 1 MiB without a name are written there, and are gone afterwards. Whether the daemon may
write there at all is not judged here but tried (start.py).
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardwright.disk.choose_io import IoChoice, choose_io, resolve_io
from shardwright.disk.files import preallocate, punch_hole, sync_data
from shardwright.disk.filesystems import copy_on_write_filesystem
from shardwright.model.display_text import duration, format_bytes

from .start import Result
from .verdict import hours_to_full

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.config.plan import Plan
    from shardwright.model.write_options import IoMode

Check = tuple[Result, str, "str | None"]
"""The outcome of a check: the result, what was found, and the advice unless all is well."""
Preallocation = Literal["guaranteed", "emulated", "absent"]
LEAST_HOURS_TO_FULL = 1.0
UNSAFE_OPTIONS = ("nobarrier", "barrier=0", "data=writeback")
PROBE_BYTES = 1 << 20
_BLOCK_BYTES = 512  # the unit of st_blocks
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a space, tab, newline or backslash in mountinfo


@dataclass(frozen=True)
class Needs:
    """The needs of a plan while every configured stream acquires. Rates are None where a frame rate is not
    known. ``disk_rate_bytes_per_s``: of frames and their levels, uncompressed. ``files``: shard files and
    journals that are made before the first frame."""

    disk_bytes: int = 0
    disk_rate_bytes_per_s: float | None = None
    shard_files_per_hour: float | None = None
    files: int = 0

    @classmethod
    def of(cls, plan: Plan | None) -> Needs:
        if plan is None:
            return cls()
        return cls(
            disk_bytes=plan.disk_reserved_bytes,
            disk_rate_bytes_per_s=plan.disk_rate_bytes_per_s,
            shard_files_per_hour=plan.shard_files_per_hour,
            files=sum(s.safety.journals * (s.limits.shard_files_per_shard_row + 1) for s in plan.streams),
        )


@dataclass(frozen=True)
class OutputFolder:
    """The facts of one output folder. ``field``: where the configuration names it. ``io``: how shards are
    written there, and why. ``total_files`` 0: limited only by the space."""

    field: str
    path: str
    filesystem: str
    options: tuple[str, ...]
    copy_on_write: bool
    preallocation: Preallocation
    gives_gaps_back: bool
    io: IoChoice
    free_bytes: int
    total_bytes: int
    low_water_bytes: int
    free_files: int
    total_files: int
    owner: int
    user: int


def look_at_folder(field: str, path: Path, io: IoMode, low_water_bytes: int) -> OutputFolder:
    """``io``: as configured. Raises ``OSError`` and ``StorageError``."""
    room = os.statvfs(path)
    filesystem, options = mount_of(path.resolve(), _mounts())
    return OutputFolder(
        field,
        str(path),
        filesystem=filesystem,
        options=options,
        copy_on_write=copy_on_write_filesystem(path) is not None,
        preallocation=preallocation_of(path),
        gives_gaps_back=gives_gaps_back(path),
        io=choose_io(path) if io == "auto" else IoChoice(resolve_io(io, [path]), "set by output.io"),
        free_bytes=room.f_bavail * room.f_frsize,
        total_bytes=room.f_blocks * room.f_frsize,
        low_water_bytes=low_water_bytes,
        free_files=room.f_favail,
        total_files=room.f_files,
        owner=path.stat().st_uid,
        user=os.geteuid(),
    )


def check_owner(folder: OutputFolder, _: Needs) -> Check:
    """Root may write everywhere, which says little about the daemon's user."""
    if folder.user == 0 and folder.owner != 0:
        advice = "Run this again as the daemon's user: sudo -u USER shardwright check CONFIG."
        return "warn", f"{folder.path} belongs to user {folder.owner}, and this is root", advice
    return "ok", f"{folder.path} belongs to user {folder.owner}", None


def check_filesystem(folder: OutputFolder, _: Needs) -> Check:
    """Checks that synced data is safe; the plan warns of network filesystems and of memory."""
    if unsafe := [option for option in folder.options if option in UNSAFE_OPTIONS]:
        advice = f"Mount it without {unsafe[0]}: with it a power cut can destroy synced data."
        return "warn", f"{folder.filesystem}, mounted with {', '.join(unsafe)}", advice
    if folder.copy_on_write:
        advice = (
            "Works, with io pwrite or direct. For the highest rates use ext4 or xfs, or switch "
            "copy-on-write off (chattr +C) on the empty folder, and set output.io to direct."
        )
        return "warn", f"{folder.filesystem}: copy-on-write", advice
    return "ok", folder.filesystem, None


def check_writing(folder: OutputFolder, _: Needs) -> Check:
    """Says how shards are written, and why."""
    return "ok", f"{folder.io.mode}, {folder.io.why}", None


def check_preallocation(folder: OutputFolder, _: Needs) -> Check:
    """Checks that a full disk shows before a frame is accepted, and not while it is written."""
    if folder.preallocation == "absent":
        advice = (
            "A full disk shows only when frames are written: use ext4, xfs or btrfs without "
            "compression, and a generous output.low_water."
        )
        return "warn", "absent: the filesystem reserved no blocks", advice
    if folder.preallocation == "emulated":
        advice = (
            "Each shard is written twice: zeros, then chunks. Use ext4, xfs or another filesystem with "
            "fallocate."
        )
        return "warn", "emulated: every block is written with zeros first", advice
    if folder.copy_on_write:
        advice = "A second write of a page can still meet a full disk: keep output.low_water free."
        return "warn", "guaranteed for the first write of each page", advice
    if not folder.gives_gaps_back:
        advice = "Sealed shards keep their gaps: compact them soon."
        return "warn", "guaranteed, but gaps cannot be given back (no hole punching)", advice
    return "ok", "guaranteed by the filesystem, and gaps can be given back", None


def check_free_space(folder: OutputFolder, needs: Needs) -> Check:
    """Checks how long it lasts at the full rate, uncompressed, down to output.low_water; that the first
    shards fit is checked by the plan."""
    found = f"{format_bytes(folder.free_bytes)} free of {format_bytes(folder.total_bytes)}"
    if needs.disk_rate_bytes_per_s is None:
        return "ok", f"{found}; with frame_rate_hz of every stream its time to full is shown here", None
    reserved = needs.disk_bytes if folder.field == "output.root" else 0
    room = max(0, folder.free_bytes - reserved - folder.low_water_bytes)
    hours = hours_to_full(room, needs.disk_rate_bytes_per_s)
    lasts = (
        f"{found}, at output.low_water in {duration(3600 * hours)} at "
        f"{needs.disk_rate_bytes_per_s / 1e6:,.0f} MB/s without compression"
    )
    if hours < LEAST_HOURS_TO_FULL:
        advice = (
            "Free some space, move finished stores away (shardwright compact --to DEST --move), or set "
            "on_full: spill."
        )
        return "warn", lasts, advice
    return "ok", lasts, None


def check_free_files(folder: OutputFolder, needs: Needs) -> Check:
    """Inodes: a disk can be full of files."""
    if folder.total_files == 0:
        return "ok", "limited only by the space", None
    found = f"{folder.free_files:,} more files of {folder.total_files:,}"
    if folder.free_files < needs.files:
        advice = "Delete small files, or make a filesystem with more inodes."
        return "bad", f"{found}; {needs.files:,} are made before the first frame", advice
    per_hour = needs.shard_files_per_hour
    if per_hour and folder.free_files / per_hour < LEAST_HOURS_TO_FULL:
        advice = "Make shard_size_chunks larger, so that fewer files are made."
        return "warn", f"{found}; {per_hour:,.0f} shards an hour", advice
    return "ok", found, None


FOLDER_CHECKS: dict[str, Callable[[OutputFolder, Needs], Check]] = {
    "owner": check_owner,
    "filesystem": check_filesystem,
    "writing": check_writing,
    "preallocation": check_preallocation,
    "free space": check_free_space,
    "free files": check_free_files,
}


def preallocation_of(folder: Path) -> Preallocation:
    """Tried with a file of 1 MiB. Absent: no blocks were reserved. Raises ``OSError``."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        guaranteed = preallocate(probe.fileno(), PROBE_BYTES)
        sync_data(probe.fileno())
        if os.fstat(probe.fileno()).st_blocks * _BLOCK_BYTES < PROBE_BYTES:
            return "absent"
        return "guaranteed" if guaranteed else "emulated"


def gives_gaps_back(folder: Path) -> bool:
    """True if holes can be punched into a file here. Raises ``OSError``."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        preallocate(probe.fileno(), PROBE_BYTES)
        return punch_hole(probe.fileno(), 0, PROBE_BYTES // 2)


def _mounts() -> str:
    try:
        return os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return ""


def mount_of(folder: Path, mounts: str) -> tuple[str, tuple[str, ...]]:
    """Returns (type, options) of the filesystem of ``folder``, which is resolved. ``mounts``: the text of
    /proc/self/mountinfo."""
    best = -1
    found: tuple[str, tuple[str, ...]] = ("unknown", ())
    for line in mounts.split("\n"):  # a name may have any other character that ends a line or is a space
        own, _, filesystem = line.partition(" - ")
        fields, parts = own.split(" "), filesystem.split(" ")
        if len(fields) < 6 or len(parts) < 3:
            continue
        point = Path(_ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), fields[4]))
        # of two on one point the later one counts
        if (point == folder or point in folder.parents) and len(point.parts) >= best:
            best, found = len(point.parts), (parts[0], (*fields[5].split(","), *parts[2].split(",")))
    return found
