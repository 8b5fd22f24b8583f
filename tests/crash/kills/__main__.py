"""``./tools/prove kills --count 2000``: the long suite of kills. Exit code 0 when no promise was broken."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.harness.fork_server import ForkServer

from .plans import SYSCALLS
from .scenes import IO_MODES, SCENES
from .suite import PARTS, Campaign, Summary, run, seed_of_code

PROGRESS_EVERY = 50


class Progress:
    """A line now and then, and every violation as it comes."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(self, summary: Summary) -> None:
        for violation in summary.violations[self._shown :]:
            print("VIOLATION", violation["trial"], *violation["problems"], sep="\n    ", file=sys.stderr)
        self._shown = len(summary.violations)
        if summary.trials % PROGRESS_EVERY == 0:
            print(
                f"{summary.seconds:8.1f} s  {summary.trials} trials, {summary.kills} kills, {self._shown} "
                f"with violations",
                file=sys.stderr,
            )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/prove kills", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="processes to kill")
    parser.add_argument(
        "--daemon-count", type=int, default=200, help="daemons to kill on top, under a client that goes on"
    )
    parser.add_argument("--seed", type=int, default=seed_of_code(), help="default: by the code")
    parser.add_argument(
        "--folder", type=Path, help="where stores are written; the default is a temporary folder"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the stores of trials that broke a promise (needs --folder)"
    )
    parser.add_argument(
        "--until-violation", action="store_true", help="stop after the first trial that broke a promise"
    )
    parser.add_argument(
        "--scene", action="append", choices=sorted(SCENES), help="only this scene (may be given again)"
    )
    parser.add_argument(
        "--io", action="append", choices=IO_MODES, help="only this io mode (may be given again)"
    )
    parser.add_argument(
        "--syscall",
        action="append",
        choices=SYSCALLS,
        help="only at calls of this system call (may be given again)",
    )
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help="only in this part of writers' lives (may be given again); early end: they go on all the same",
    )
    options = parser.parse_args()
    with (
        ForkServer(prepare="tests.crash.fencing") as server,
        tempfile.TemporaryDirectory(prefix="kills-") as temporary,
    ):
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(
            count=options.count,
            daemons=options.daemon_count,
            seed=options.seed,
            scenes=tuple(SCENES[name] for name in options.scene or SCENES),
            io=tuple(options.io or IO_MODES),
            syscalls=tuple(options.syscall or ()),
            parts=tuple(options.part or PARTS),
            keep=options.keep,
            until_violation=options.until_violation,
        )
        summary = run(server, folder, campaign, Progress()).to_dict()
    print(json.dumps(summary, indent=2))
    chosen = options.scene or options.io or options.part or summary["untried"] or summary["left_out"]
    whole = options.count and not chosen
    never = [name for name in SYSCALLS if whole and name not in summary["syscalls"]]
    if never:
        print(f"no scene makes these system calls, so that no kill comes there: {never}", file=sys.stderr)
    return 1 if never or summary["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
