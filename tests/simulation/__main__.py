"""``./tools/prove simulation --seeds 100000``: simulated acquisitions with crashes. Exit code 0 when no
promise was broken.

``--seed S`` plays one and tells everything that happens; where it fails it is made smaller, and the smaller
one told as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from . import creation
from .shrink import shrink
from .story import Story, draw
from .world import play

PROGRESS_EVERY_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/prove simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="stories to play")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--seed", type=int, help="play this one alone, and tell what happens")
    parser.add_argument(
        "--until-violation", action="store_true", help="stop after the first story that broke a promise"
    )
    parser.add_argument(
        "--mends",
        action="store_true",
        help="take each mend of a known defect out, and look for it in so many seeds",
    )
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed)
    if options.mends:
        return _prove_itself(options.seeds, options.first)
    return _run(options.first, options.seeds, until_violation=options.until_violation)


def _run(first: int, seeds: int, *, until_violation: bool) -> int:
    started = shown = time.monotonic()
    summary: dict[str, Any] = {
        "first": first,
        "stories": 0,
        "lives": 0,
        "creations": 0,
        "crashes": 0,
        "steps": 0,
        "seconds": 0.0,
        "violations": [],
    }
    for seed in range(first, first + seeds):
        story = draw(seed)
        world, violation = play(story)
        summary["stories"] += 1
        summary["lives"] += world.lives
        deaths, burned = creation.play(seed)
        violation = violation or burned
        summary["creations"] += 1
        summary["crashes"] += world.crashes + deaths
        summary["steps"] += world.steps
        if violation is not None:
            summary["violations"].append({"seed": seed, "violation": violation})
            print(f"VIOLATION at seed {seed}: {violation}", file=sys.stderr, flush=True)
            if until_violation:
                break
        if time.monotonic() - shown > PROGRESS_EVERY_S:
            shown = time.monotonic()
            done = (
                f"{summary['stories']} stories, {summary['lives']} lives, {summary['crashes']} crashes, "
                f"{len(summary['violations'])} violations"
            )
            print(f"{shown - started:8.1f} s  {done}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    summary["seconds"] = round(seconds, 1)
    summary["lives_per_s"] = round(summary["lives"] / seconds, 1)
    summary["lives_per_cpu_s"] = round(summary["lives"] / time.process_time(), 1)
    print(json.dumps(summary, indent=2))
    return 1 if summary["violations"] else 0


def _replay(seed: int) -> int:
    story = draw(seed)
    violation, (_, burned) = _told(story), creation.play(seed)
    print(f"the creation beside it: {burned or 'every promise was kept'}")
    if violation is None:
        return 0 if burned is None else 1
    smaller = shrink(story, violation)
    if smaller != story:
        print("\n--- the same, made smaller ---\n")
        _told(smaller)
    return 1


def _told(story: Story) -> str | None:
    print(story)
    world, violation = play(story, print)
    print(f"{world.lives} lives, {world.crashes} crashes: {violation or 'every promise was kept'}")
    return violation


def _prove_itself(seeds: int, first: int) -> int:
    from .mends import MENDS, find

    missed = 0
    for mend in MENDS.values():
        found = find(mend, seeds, first)
        missed += found is None
        print(
            f"{mend.name:24} {'NOT FOUND' if found is None else f'seed {found[0]}: {found[1][:110]}'}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
