"""``./tools/prove compaction``: P13, every storage call of every job. Exit code 0 when nothing was broken.

jobs        what is run: packing, recoding, moving, a pyramid, other chunks, parity; its storage calls
            counted, and something done at one of them
stores      what the jobs work on, and the state that each begins and ends with
judge       what must hold at every moment, and after the job was run again
trials      one job, one moment, one misfortune, from beginning to verdict

Each call is a moment to be killed at (alone, and with a second death in the run that goes on), to fail at
with EIO (once, and from then on), and to be without room from. Then the power is cut, see ``tests/power``.
Needs root for the small disks and what ``tests/power/README.md`` names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults.disks import LoopDisk
from tests.harness.fork_server import ForkServer
from tests.harness.run_folder import roomy_memory
from tests.power import JOBS as POWER_JOBS

from .jobs import JOBS, WITHOUT_SHARDS
from .stores import Ground
from .trials import Tally, Trials, every

SUITES = ("killed", "failing", "full", "power")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/prove compaction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--job", action="append", choices=sorted(JOBS), help="only this job (may be given again)"
    )
    parser.add_argument(
        "--only", action="append", choices=SUITES, help="only this misfortune (may be given again)"
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=0,
        metavar="N",
        help="about so many storage calls of each job instead of all",
    )
    parser.add_argument(
        "--images", type=int, default=2000, help="of disks after a power cut (default: %(default)s)"
    )
    parser.add_argument(
        "--filesystem",
        action="append",
        default=None,
        help="of full disks (may be given again; default: ext4, xfs, btrfs)",
    )
    options = parser.parse_args()
    suites = options.only or SUITES
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="compaction-") as name:
        folder = Path(name)
        chosen = options.job or JOBS
        grounds = [Ground.of(job, folder / job) for job in chosen]
        grounds += [
            Ground.of(job, folder / f"{job} without shards", is_sharded=False)
            for job in WITHOUT_SHARDS
            if job in chosen
        ]
        folder = folder / "trials"  # as deep as the grounds: folders above are synced, call by call
        folder.mkdir()
        if "killed" in suites:
            summary["killed"] = _tallied(lambda tally: _kill(grounds, folder, tally, options.calls))
        if "failing" in suites:
            summary["failing"] = _tallied(lambda tally: _fail(grounds, folder, tally, options.calls))
        for filesystem in options.filesystem or ("ext4", "xfs", "btrfs") if "full" in suites else ():
            summary[f"full {filesystem}"] = _tallied(
                lambda tally, kind=filesystem: _fill(grounds, kind, tally, options.calls)
            )
    broken = sum(len(part["violations"]) for part in summary.values())
    print(json.dumps(summary, indent=2))
    if "power" in suites:
        jobs = [part for job in POWER_JOBS if job in (options.job or JOBS) for part in ("--job", job)]
        for what in ([["--compaction"]] if {"pack", "recode"} & set(options.job or JOBS) else []) + (
            [jobs] if jobs else []
        ):
            broken += subprocess.run(
                [sys.executable, "-m", "tests.power", *what, "--images", str(options.images)], check=False
            ).returncode
    return 1 if broken else 0


def _tallied(try_all) -> dict[str, Any]:
    tally, begun = Tally(), time.monotonic()
    try_all(tally)
    return {
        "trials": tally.trials,
        "deaths": tally.deaths,
        "ended": tally.ended,
        "violations": tally.violations,
        "seconds": round(time.monotonic() - begun, 1),
    }


def _kill(grounds: list[Ground], folder: Path, tally: Tally, calls: int) -> None:
    with ForkServer(prepare="tests.compaction.stores:prepare") as server:
        for ground in grounds:
            trials = Trials(ground, folder, tally)
            for call in every(calls, len(ground.points)):
                trials.killed(server, call)
                trials.killed(server, call, then=1 + call * 7 % len(ground.points))
            _say("killed", ground, tally)


def _fail(grounds: list[Ground], folder: Path, tally: Tally, calls: int) -> None:
    for ground in grounds:
        trials = Trials(ground, folder, tally)
        for call in every(calls, len(ground.points)):
            trials.failing(call, for_ever=False)
            trials.failing(call, for_ever=True)
        _say("failing", ground, tally)


def _fill(grounds: list[Ground], filesystem: str, tally: Tally, calls: int) -> None:
    with LoopDisk(filesystem, 64 << 20, folder=roomy_memory()) as disk:
        for ground in grounds:
            for call in every(calls, len(ground.points)):
                Trials(ground, disk.path, tally).full(call, disk.filler)
            _say(f"full {filesystem}", ground, tally)


def _say(what: str, ground: Ground, tally: Tally) -> None:
    line = (
        f"{what}: {ground.job}, {len(ground.points)} storage calls; {tally.trials} trials, "
        f"{len(tally.violations)} violations"
    )
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
