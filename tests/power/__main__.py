"""``python -m tests.power --images 20000``: rounds on each filesystem in turn until enough images are judged.

With ``--state FILE`` every finished round is written down, and a second call goes on after it. Exit code 0:
no violation; 1: some; 2: cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import EDIT, JOBS
from .requirements import FILESYSTEMS, tool, why_not

_EVERY_PREFIX_EACH = 4  # rounds: one of so many judges every prefix of its log, however many images these are
# rounds: in one of so many a writer hangs and is taken over, unless the command says how writers end
_HANG_EVERY = 5
_MOST_FAILED = 20  # recordings; then there is nothing to judge
_INSIDE = "SHARDWRIGHT_POWER_NAMESPACE"  # set in the process that runs in namespaces of its own
_REPOSITORY = Path(__file__).parents[2]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="power", description=__doc__)
    parser.add_argument(
        "--images",
        type=int,
        default=20_000,
        help="how many to judge, over all filesystems (default: %(default)s)",
    )
    parser.add_argument(
        "--images-per-round",
        type=int,
        default=500,
        help="how many of one recorded run (default: %(default)s)",
    )
    parser.add_argument(
        "--filesystem", choices=FILESYSTEMS, action="append", help="only this one (may be repeated)"
    )
    parser.add_argument(
        "--no-every-prefix",
        action="store_true",
        help="do not judge every prefix of the log in one of four rounds",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first round (default: %(default)s)")
    parser.add_argument(
        "--interruption",
        choices=("none", "kill", "power", "hang"),
        help="the same in every round, instead of one drawn from the seed",
    )
    parser.add_argument(
        "--rows-of-a-slab", action="store_true", help="in every round: of many images, which share journals"
    )
    parser.add_argument(
        "--adds-images", action="store_true", help="in every round: images are added while it is written"
    )
    parser.add_argument(
        "--goes-on", action="store_true", help="in every round: the store is finished, and goes on"
    )
    parser.add_argument(
        "--compaction",
        action="store_true",
        help="cut the power while a sealed store is packed, instead of while it is written",
    )
    parser.add_argument(
        "--job",
        choices=(*JOBS, EDIT),
        action="append",
        help="cut it while a sealed store is moved, ... (may be repeated: in turn)",
    )
    parser.add_argument(
        "--mutant", help="break the writer in this way (see mutants.py): the proof must fail then"
    )
    parser.add_argument(
        "--until-violation", action="store_true", help="stop at the first image with a violation"
    )
    parser.add_argument("--state", type=Path, help="a file that remembers finished rounds, to go on later")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="copy violating images there, as the cut left them: mount them to see what is wrong",
    )
    parser.add_argument("--json", type=Path, help="write the summary here, too")
    return parser.parse_args(arguments)


def main() -> int:
    given = parse()
    reason = why_not(tuple(given.filesystem or FILESYSTEMS))
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    if os.environ.get(_INSIDE):
        # the first process of a namespace is deaf to it otherwise
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return run(given)
    namespaces = [
        tool("unshare"),
        "--mount",
        "--propagation",
        "slave",  # what is unmounted outside goes here, too: see ``tests.faults.disks``
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    source = os.pathsep.join([str(_REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {_INSIDE: "1", "PYTHONPATH": source}
    command = [*namespaces, sys.executable, "-m", "tests.power", *sys.argv[1:]]
    paths = {"--state": given.state, "--json": given.json, "--keep": given.keep}
    for option, path in paths.items():
        if path is not None:  # the command runs in the repository
            command += [option, str(path.absolute())]
    os.chdir(_REPOSITORY)
    os.execve(command[0], command, environment)  # no process between: whoever kills this one kills all of it
    raise AssertionError("not reached")


def run(given: argparse.Namespace) -> int:
    from tests.harness.fork_server import ForkServer

    from shardwright.acquire.workers import WorkerPool

    from . import machine

    spare_work()
    state = State(given)
    pool = WorkerPool(1)
    pool.start()
    with (
        ForkServer(prepare="tests.power.rounds") as server,
        tempfile.TemporaryDirectory(prefix="power-") as name,
        machine.memory_folder(Path(name)) as folder,
    ):
        while (
            state.images < given.images
            and not (given.until_violation and state.failures)
            and state.failed_recordings <= _MOST_FAILED
        ):
            state.add(next_round(given, state, folder, pool, server))
    pool.stop()
    summary = state.summary()
    text = json.dumps(summary, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")
    return 1 if summary["violating_images"] or summary["failed_recordings"] else 0


def spare_work() -> None:
    """Take out of recovery, in the judging process only, what costs most of its time there and decides
    nothing."""
    from shardwright.array import frame_table_format as described

    # what recovery writes to an image is read from memory and thrown away
    os.fsync = os.fdatasync = lambda _: None
    described.ROWS_PER_CHUNK = 256  # the table is always made anew, and has 24 rows


def next_round(
    given: argparse.Namespace, state: State, folder: Path, pool: Any, server: Any
) -> dict[str, Any]:
    from dataclasses import replace

    from .compaction import HOW
    from .rounds import run_round
    from .scenario import Scenario

    filesystems = given.filesystem or FILESYSTEMS
    seed = given.seed + len(state.rounds)
    scenario = Scenario.draw(seed, filesystems[len(state.rounds) % len(filesystems)])
    if given.interruption:
        scenario = replace(scenario, interruption=given.interruption)
    elif not given.mutant and len(state.rounds) % _HANG_EVERY == _HANG_EVERY - 1:
        scenario = replace(scenario, interruption="hang")
    if given.rows_of_a_slab:
        scenario = scenario.of_wells()
    if given.adds_images:
        scenario = scenario.with_added_images()
    if given.goes_on:
        scenario = scenario.in_parts()
    if given.compaction:
        how = "pack" if scenario.codec == "none" else HOW[seed // len(FILESYSTEMS) % len(HOW)]
    if given.job:
        how = given.job[len(state.rounds) // len(filesystems) % len(given.job)]
    if given.compaction or given.job:
        scenario = replace(
            scenario,
            compaction=how,
            interruption="none",
            live="none",
            pause_ms=(0,) * len(scenario.pause_ms),
            added=0,
            ends=(),
        )
    wanted = min(given.images_per_round, given.images - state.images)
    begun = time.monotonic()

    def progress(images: int) -> None:
        if sys.stderr.isatty():
            print(
                f"\r{scenario.filesystem} seed {seed}: {images} of {wanted} images",
                end="\x1b[K",
                file=sys.stderr,
                flush=True,
            )

    every_prefix = not given.no_every_prefix and len(state.rounds) % _EVERY_PREFIX_EACH == 0
    result = run_round(
        scenario,
        wanted,
        folder,
        pool,
        server,
        every_prefix=every_prefix,
        mutant=given.mutant,
        until_violation=given.until_violation,
        keep=given.keep,
        progress=progress,
    )
    seconds = time.monotonic() - begun
    how = (
        scenario.interruption
        if scenario.interruption == "none"
        else (f"{scenario.interruption}, {scenario.then}")
    )
    how = scenario.compaction or how
    facts = [f"{scenario.filesystem:5} seed {seed:4} {scenario.io:6} {how:14} {result.entries:5} log entries"]
    facts += [
        f"{result.promises:3} promises",
        f"{result.images:4} images in {seconds:5.1f} s",
        f"violating: {result.violating_images}",
    ]
    print(
        ", ".join(facts), f"({state.images + result.images} of {given.images})", file=sys.stderr, flush=True
    )
    return result.to_dict() | {"seconds": round(seconds, 2)}


class State:
    """The finished rounds, in a file when one was named."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._path: Path | None = given.state
        self._same = {
            name: getattr(given, name)
            for name in (
                "filesystem",
                "seed",
                "interruption",
                "rows_of_a_slab",
                "adds_images",
                "goes_on",
                "compaction",
                "job",
                "mutant",
                "images_per_round",
                "no_every_prefix",
            )
        }
        self.rounds: list[dict[str, Any]] = []
        if self._path is not None and self._path.exists():
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["asked"] != self._same:
                raise SystemExit(
                    f"{self._path} belongs to another campaign: {kept['asked']}. Name another "
                    f"file, or delete it"
                )
            self.rounds = kept["rounds"]

    def add(self, result: dict[str, Any]) -> None:
        self.rounds.append(result)
        if self._path is not None:
            draft = self._path.with_name(f".{self._path.name}.new")
            draft.write_text(json.dumps({"asked": self._same, "rounds": self.rounds}), encoding="utf-8")
            draft.replace(self._path)

    @property
    def images(self) -> int:
        return sum(each["images"] for each in self.rounds)

    @property
    def failed_recordings(self) -> int:
        return sum(each["failed_recordings"] for each in self.rounds)

    @property
    def failures(self) -> int:
        return self.failed_recordings + sum(each["violating_images"] for each in self.rounds)

    def summary(self) -> dict[str, Any]:
        counted = (
            "images",
            "with_promise",
            "with_shared_journal",
            "with_added",
            "going_on",
            "repeated",
            "unmountable",
            "mounted_anew",
            "violating_images",
            "failed_recordings",
            "entries",
            "flushes",
            "promises",
        )
        by_filesystem: dict[str, int] = {}
        kinds: dict[str, int] = {}
        for each in self.rounds:
            by_filesystem[each["filesystem"]] = by_filesystem.get(each["filesystem"], 0) + each["images"]
            for kind, count in each["kinds"].items():
                kinds[kind] = kinds.get(kind, 0) + count
        sums = {name: sum(each[name] for each in self.rounds) for name in counted}
        seconds = sum(each["seconds"] for each in self.rounds)
        rate = {
            "seconds": round(seconds, 1),
            "images_per_second": round(sums["images"] / seconds, 1) if seconds else 0.0,
        }
        violations = [violation for each in self.rounds for violation in each["violations"]]
        return {
            "rounds": len(self.rounds),
            **sums,
            "filesystems": by_filesystem,
            "kinds": kinds,
            **rate,
            "violations": violations[:50],
        }


if __name__ == "__main__":
    sys.exit(main())
