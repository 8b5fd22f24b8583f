"""Chooses the I/O mode of ``auto`` by where a store lies: its filesystem, and whether direct writes work.

    direct   where an aligned O_DIRECT write works and saves something: it takes a tenth of the processors'
             time, and no page cache
    pwrite   elsewhere, and on copy-on-write filesystems: there a direct write goes through the page cache
             all the same (btrfs: its checksum needs a page that nobody changes)
    mmap     never chosen by ``auto``: a process of the same user that truncates a working file, or a disk
             that dies, ends this process by SIGBUS, and with it every acquisition. It must be requested, and
             is refused where a full disk or a lost server would do the same

GB/s and, in brackets, CPU seconds per GB, with the final sync; Linux 6.18, two cores that other work shared,
loop devices that do direct I/O themselves; medians of five rounds of both modes in turns:

                        files of 1 MiB pieces        acquisitions, uncompressed
                        direct        pwrite         direct        pwrite
    ext4                1.81 (0.06)   0.45 (0.66)    0.50 (0.66)   0.35 (1.09)
    ext4, no loop       1.29 (0.07)   0.43 (0.76)    0.48 (0.65)   0.25 (1.15)
    xfs                 2.00 (0.06)   0.51 (0.57)    0.54 (0.66)   0.40 (1.07)
    btrfs               0.19 (1.13)   0.28 (1.14)    0.16 (2.01)   0.16 (2.09)
    tmpfs               0.85 (0.44)   1.10 (0.43)    0.26 (1.31)   0.24 (1.30)

tmpfs takes O_DIRECT since Linux 6.6 and writes as ever: the pages of a file there are its memory. So neither
mode gains, and which of them is ahead changes with the run (two more: files 1.56 and 1.20 direct, 1.42 and
1.04 pwrite; acquisitions 0.23 and 0.17, 0.21 and 0.17). It is no case of its own: a trial in memory is then
written in the mode of the disk that it stands for.

A measurement at the first use lost: it delayed the first acquisition, and its answer depended on what else
the disk did. Of network filesystems none was recorded; who finds pwrite faster there sets ``io``.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from shardwright.model.errors import StorageError

from .files import set_direct
from .filesystems import copy_on_write_filesystem, unmappable_filesystem
from .slot_file import DIRECT_ALIGNMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.model.write_options import IoMode


class IoChoice(NamedTuple):
    """The mode of one folder. ``why``: the reason, for people."""

    mode: IoMode
    why: str


def resolve_io(mode: IoMode, folders: Sequence[Path]) -> IoMode:
    """Returns ``mode`` itself, or the choice of ``auto`` for all of a store's folders: direct
    only if it is that of each.

    Raises ``StorageError`` for ``mmap`` on a filesystem where a full disk or a lost server would end the
    process.
    """
    if mode == "auto":
        return "direct" if all(choose_io(folder).mode == "direct" for folder in folders) else "pwrite"
    for folder in folders if mode == "mmap" else ():
        if (name := unmappable_filesystem(folder)) is not None:
            raise StorageError(
                f"shards below {folder} cannot be mapped: on {name} a full disk or a lost server would end "
                f"this process by SIGBUS",
                got="io: mmap",
                hint="Choose io: auto, direct or pwrite: there the same failure is an error that can be "
                "handled",
            )
    return mode


def choose_io(folder: Path) -> IoChoice:
    """Returns the choice of ``auto`` for one folder. Raises ``StorageError``."""
    if (name := copy_on_write_filesystem(folder)) is not None:
        return IoChoice("pwrite", f"direct writes gain nothing on {name}")
    if not _takes_direct_writes(folder):
        return IoChoice("pwrite", "direct writes do not work here")
    return IoChoice("direct", "past the page cache")


def _takes_direct_writes(folder: Path) -> bool:
    """Returns whether direct writes work, by one write to an unnamed file."""
    try:
        with (
            tempfile.TemporaryFile(dir=folder, buffering=0) as probe,
            mmap.mmap(-1, DIRECT_ALIGNMENT_BYTES) as page,
        ):
            set_direct(probe.fileno(), on=True)
            os.pwrite(probe.fileno(), page, 0)
    except OSError:
        return False
    return True
