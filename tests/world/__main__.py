"""``./tools/prove simulation --seeds 100000``: simulated acquisitions with crashes. Exit code 0 when no
promise was broken.

``--seed S`` plays one and tells everything that happens; where it fails it is made smaller, and the smaller
one told as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from . import edits
from .creation import draw_naming, play_naming, smaller_naming
from .shrink import shrink
from .story import Story, draw, seed_of
from .world import play

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRESS_EVERY_S = 20.0
SEEDS_A_PART = 100
KINDS = ("all", "acquisitions", "edits")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/prove simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kind",
        choices=KINDS,
        default="all",
        help="of stories: acquisitions and how stores get their names, edits and packing, or both",
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
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="that play at once"
    )
    options = parser.parse_args()
    if options.seed is not None:
        return (_replay_edits if options.kind == "edits" else _replay)(options.seed)
    if options.mends:
        return _prove_itself(options.kind, options.seeds, options.first)
    return _run(
        options.kind,
        options.first,
        options.seeds,
        processes=options.processes,
        until_violation=options.until_violation,
    )


def _run(kind: str, first: int, seeds: int, *, processes: int, until_violation: bool) -> int:
    started = shown = time.monotonic()
    counts: Counter[str] = Counter(stories=0, lives=0, creations=0, crashes=0, steps=0, cpu_ms=0)
    violations: list[dict[str, Any]] = []
    parts = [
        range(seed, min(seed + SEEDS_A_PART, first + seeds))
        for seed in range(first, first + seeds, SEEDS_A_PART)
    ]
    with multiprocessing.Pool(processes) as pool:
        for part, found in pool.imap_unordered(partial(_play_all, kind), parts):
            counts.update(part)
            violations += found
            for each in found:
                print(f"VIOLATION at seed {each['seed']}: {each['violation']}", file=sys.stderr, flush=True)
            if found and until_violation:
                break
            if time.monotonic() - shown > PROGRESS_EVERY_S:
                shown = time.monotonic()
                print(
                    f"{shown - started:8.1f} s  {counts['stories']} stories, {counts['lives']} lives, "
                    f"{counts['crashes']} crashes, {len(violations)} violations",
                    file=sys.stderr,
                    flush=True,
                )
    seconds, cpu_s = time.monotonic() - started, counts.pop("cpu_ms") / 1000
    summary = {
        "first": first,
        **counts,
        "seconds": round(seconds, 1),
        "lives_per_s": round(counts["lives"] / seconds, 1),
        "lives_per_cpu_s": round(counts["lives"] / max(cpu_s, 0.001), 1),
        "violations": violations,
    }
    print(json.dumps(summary, indent=2))
    return 1 if violations else 0


def _play_all(kind: str, numbers: range) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Plays the stories of these numbers. Returns what was counted, and the violations."""
    counts: Counter[str] = Counter()
    violations = []
    for each in (*([_play] if kind != "edits" else []), *([_play_edits] if kind != "acquisitions" else [])):
        part, found = each(numbers)
        counts.update(part)
        violations += found
    return counts, violations


def _play(numbers: range) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Acquisitions, and as many creations."""
    counts: Counter[str] = Counter()
    violations = []
    begun_s = time.process_time()
    for seed in map(seed_of, numbers):
        world, violation = play(draw(seed))
        naming, burned = play_naming(draw_naming(seed))
        counts.update(
            stories=1,
            lives=world.lives,
            creations=naming.lives,
            crashes=world.crashes + naming.crashes,
            steps=world.steps,
            **world.crossings.counts,
        )
        if violation or burned:
            violations.append({"seed": seed, "violation": violation or f"creations: {burned}"})
    counts["cpu_ms"] = round(1000 * (time.process_time() - begun_s))
    return counts, violations


def _play_edits(seeds: range) -> tuple[Counter[str], list[dict[str, Any]]]:
    """As ``_play``, of edits and packing."""
    counts: Counter[str] = Counter()
    violations = []
    begun_s = time.process_time()
    for seed in seeds:
        story = edits.draw(seed)
        violation = edits.play(story)
        counts.update(stories=1, lives=len(story.lives))
        if violation:
            violations.append({"seed": seed, "violation": f"--kind edits: {violation}"})
    counts["cpu_ms"] = round(1000 * (time.process_time() - begun_s))
    return counts, violations


def _replay(seed: int) -> int:
    story = draw(seed)
    violation = _told(story)
    print("\n--- the creations of this seed ---\n")
    naming = draw_naming(seed)
    _, burned = play_naming(naming, print)
    print(f"the creations of this seed: {burned or 'every promise was kept'}")
    print(f"its acquisition: {violation or 'every promise was kept'}", flush=True)
    if burned is not None:
        naming = shrink(naming, burned, play_it=lambda each: play_naming(each)[1], smaller=smaller_naming)
        print(f"\n--- the same, made smaller ---\n\n{naming}")
        print(play_naming(naming, print)[1])
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


def _replay_edits(seed: int) -> int:
    story = edits.draw(seed)
    print(story)
    violation = edits.play(story, print)
    print(violation or "every promise was kept")
    if violation is None:
        return 0
    smaller = shrink(story, violation, play_it=edits.play, smaller=edits.smaller)
    print(f"\n--- the same, made smaller ---\n\n{smaller}")
    print(edits.play(smaller, print))
    return 1


def _prove_itself(kind: str, seeds: int, first: int) -> int:
    from . import edit_mutants, found, mends

    missed = 0
    searches: dict[str, Callable[[], tuple[int, str] | None]]
    if kind != "edits":
        for mend in mends.MENDS.values():
            if mend.unseen:
                print(f"{mend.name:51} not looked for: {mend.unseen}")
        for each in found.FOUND:
            print(f"{each.mend:51} by a written story: {each.name}")
        written = {each.mend for each in found.FOUND}
        sought = [m for m in mends.MENDS.values() if not m.unseen and m.name not in written]
        searches = {mend.name: partial(mends.find, mend, seeds, first) for mend in sought}
    else:
        mutants = edit_mutants.MUTANTS.values()
        searches = {mutant.name: partial(edit_mutants.find, mutant, seeds, first) for mutant in mutants}
    for name, search in searches.items():
        met = search()
        missed += met is None
        print(f"{name:51} {'NOT FOUND' if met is None else f'seed {met[0]}: {met[1][:110]}'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
