"""Two cameras near the sustainable rate, a fault every minute, and at the end an exact balance of frames,
flat memory and descriptors.

    tools/soak --hours 12                        --folder: where the work and its filesystem lie, on the disk
    that is to be tried
    tools/soak --minutes 30 --without daemon-kill     one daemon lives all the time, so that slow leaks show

Exit code 0: all is well; 1: something is not, the evidence is kept and named. Disk faults need root and loop
devices: where these are missing, they are refused, and have to be left out by name. Ctrl-C ends it in order,
with its report.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from tests.faults.disks import LoopDisk

from . import report
from .faults import FAULTS
from .settings import Places, Settings
from .soak import Soak

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from .soak import Result

ROOT = Path(__file__).parents[2]
LONGEST_MEASUREMENT_S = 12.0
DISK_KEPT_AS = "disk.ext4"
SPARE = 1.25  # times the filesystem's size: shards that spill lie beside it


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, help="how long (default: 1)")
    length.add_argument("--minutes", type=float)
    parser.add_argument(
        "--fault-every-s",
        type=float,
        default=60.0,
        help="(default: %(default)g, less where each would not come once)",
    )
    parser.add_argument(
        "--hold-s",
        type=float,
        default=5.0,
        help="how long a disk stays stuck or full, and a flood goes on (default: %(default)g)",
    )
    parser.add_argument(
        "--load",
        type=float,
        default=0.8,
        help="part of the rate that can be kept up here, measured first (default: %(default)g)",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--only", action="append", choices=FAULTS, metavar="FAULT", help=f"repeatable; of {', '.join(FAULTS)}"
    )
    chosen.add_argument("--without", action="append", choices=FAULTS, metavar="FAULT", help="repeatable")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the frames, and of the order of the faults (default: %(default)d)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / ".cache" / "soak",
        help="where the work lies (default: .cache/soak)",
    )
    parser.add_argument(
        "--disk-gib",
        type=float,
        default=8.0,
        help="size of the filesystem that is made there (default: %(default)g)",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the report there as well; -: to standard output, instead of the tables",
    )
    options = parser.parse_args(arguments)
    options.seconds = (
        3600 * options.hours
        if options.hours is not None
        else 60 * (options.minutes if options.minutes is not None else 60)
    )
    if min(options.seconds, options.fault_every_s, options.hold_s, options.load, options.disk_gib) <= 0:
        parser.error("times, load and size must be above 0")
    return options


def settings_of(options: argparse.Namespace) -> Settings:
    faults = tuple(
        name
        for name in FAULTS
        if (name in options.only if options.only else name not in (options.without or ()))
    )
    measure_s = min(LONGEST_MEASUREMENT_S, options.seconds / 10)
    return Settings(
        seconds=options.seconds,
        faults=faults,
        fault_every_s=min(options.fault_every_s, (options.seconds - measure_s) / max(1, len(faults))),
        hold_s=options.hold_s,
        measure_s=measure_s,
        load=options.load,
        seed=options.seed,
        disk_bytes=int(options.disk_gib * (1 << 30)),
    )


def why_no_disk(folder: Path, nbytes: int) -> str | None:
    """Why disk faults are not possible here; None when they are."""
    if (free := shutil.disk_usage(folder).free) < nbytes * SPARE:
        return (
            f"{folder} has {free >> 20:,} MiB free, {int(nbytes * SPARE) >> 20:,} are needed; see "
            f"--folder and --disk-gib"
        )
    try:
        with LoopDisk(folder=folder) as disk, disk.frozen():
            return None
    except pytest.skip.Exception as reason:
        return str(reason.msg)
    except subprocess.CalledProcessError as error:
        return error.stderr.strip()  # a container, most likely: it has loop devices and may not mount them
    except OSError as error:
        return f"a filesystem cannot be frozen here: {error.strerror}"


def soak(settings: Settings, folder: Path) -> tuple[Result, Path]:
    """The result, and the folder with the evidence. Of a soak that found nothing that folder is gone."""
    work = Path(tempfile.mkdtemp(prefix="soak-", dir=folder))
    made: AbstractContextManager[LoopDisk | None] = nullcontext(None)
    if any(FAULTS[name].needs_disk for name in settings.faults):
        made = LoopDisk(nbytes=settings.disk_bytes, folder=folder)
    with tempfile.TemporaryDirectory(prefix="sw-soak-") as sockets, made as disk:
        places = Places(work, Path(sockets), work / "data" if disk is None else disk.path)
        running = Soak(settings, places, disk, lambda text: print(text, file=sys.stderr, flush=True))
        earlier = signal.signal(signal.SIGINT, lambda *_: running.stop())
        try:
            result = running.run()
        finally:
            signal.signal(signal.SIGINT, earlier)
        if disk is not None and result.violations:
            disk.keep_as = work / DISK_KEPT_AS
    if not result.violations:
        shutil.rmtree(work)
    return result, work


def main() -> int:
    options = parse()
    settings = settings_of(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    needing = [name for name in settings.faults if FAULTS[name].needs_disk]
    if needing and (reason := why_no_disk(options.folder, settings.disk_bytes)) is not None:
        others = " ".join(f"--without {name}" for name in needing)
        print(
            f"tools/soak: refused: {', '.join(needing)} cannot be tried here: {reason}\nThe rest can: "
            f"{others}",
            file=sys.stderr,
        )
        return 1
    result, work = soak(settings, options.folder.resolve())
    facts = {**report.to_dict(result, settings), "evidence": str(work) if result.violations else None}
    if options.json:
        text = json.dumps(facts, indent=2) + "\n"
        sys.stdout.write(text) if options.json == "-" else Path(options.json).write_text(
            text, encoding="utf-8"
        )
    if options.json != "-":
        report.print_tables(result, Console())
    if result.violations:
        disk = work / DISK_KEPT_AS
        print(
            f"The evidence is kept in "
            f"{work}{f' (the disk: mount -o loop {disk} /mnt)' if disk.exists() else ''}",
            file=sys.stderr,
        )
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
