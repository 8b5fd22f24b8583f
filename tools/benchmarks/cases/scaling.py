"""The part ``scaling``: our writers on 1, 2, 4, 8 and 16 cores, as far as the machine has them.

A writer runs on the first cores of the machine, and chooses its threads for as many; through the daemon,
camera and daemon share them. All writers take turns within a round. *Of ideal* is the rate on n cores over n
times that on one, of the same round. More cores write more frames, or the beginning and the end of an
acquisition would weigh more. After ``LIMIT_S`` no further round begins; without a disk, after two fifths of
it.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.contest import Entry, Result, compare
from benchmarks.peers import CONTENDERS
from benchmarks.processes import say
from benchmarks.testbed import Places
from shardwright.kernels.warm_up import warm_up

from . import Asked, Case, least_and_most
from .throughput import PLACES

CORES = (1, 2, 4, 8, 16)
WRITERS = (
    ("lz4", "shardwright"),
    ("lz4", "daemon-shm"),
    ("lz4", "shardwright-levels"),
    ("zstd", "shardwright"),
    ("zstd", "daemon-shm"),
    ("none", "shardwright"),
    ("none", "daemon-shm"),
)
ROUNDS, LEAST_SHARDS, MOST_SHARDS = 3, 2, 8  # shards of a round: as many as cores, within these
LIMIT_S = 440.0  # of both places: all of it ends within eight minutes
ASKED: tuple[Asked, ...] = ()
COLUMNS = {
    "GB/s": "gb_per_s.median",
    "CPU s/GB": "cpu_s_per_gb.median",
    "cores used": "cores_used",
    "of ideal": "of_ideal",
    "least": "of_ideal_spread.least",
    "most": "of_ideal_spread.most",
}


def measure(
    places: Places, quick: bool, *, case: Case | None = None, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """One row for each place, writer and number of cores. ``case``: other frames than the record's, for
    tests."""
    case, rounds = case or Case(), 1 if quick else ROUNDS
    numbers = [cores for cores in CORES if cores <= len(os.sched_getaffinity(0))]
    if quick:
        numbers = numbers[:2]
    rows, end_s = [], time.monotonic() + limit_s
    warm_up()  # or all writers for one core would compile on it at the same time
    for place in reversed(PLACES):
        limit_s = end_s - time.monotonic() if place == "disk" else limit_s * 2 / 5  # faster
        taking_part = [
            Entry(
                f"{cname}-{contender}-{cores}",
                CONTENDERS[contender],
                replace(case, cname=cname, cores=cores, frames=frames_on(cores, case, quick)),
            )
            for cname, contender in WRITERS
            for cores in numbers
        ]
        results = compare(taking_part, rounds, places.folder(place) / "scaling", limit_s)
        found = rows_of(place, taking_part, results)
        say("\n".join(f"{row['name']}: {row['of_ideal']} of ideal" for row in found if row["of_ideal"]))
        rows += found
    return {"settings": {"cores": numbers, "rounds": rounds, "limit_s": LIMIT_S}, "rows": rows}


def frames_on(cores: int, case: Case, quick: bool) -> int:
    return case.shard[0] * (1 if quick else min(MOST_SHARDS, max(LEAST_SHARDS, cores)))


def rows_of(place: str, taking_part: list[Entry], results: list[Result]) -> list[dict[str, Any]]:
    """``results``: of each entry, in the same order; those of a writer together, one core first."""
    rows: list[dict[str, Any]] = []
    alone: list[float] = []  # the rates of the writer on one core
    for entry, result in zip(taking_part, results, strict=True):
        row = {**result.row(), "name": f"{place}/{result.name}", "headline": place == "disk"}
        rates = [] if "error" in row else row["gb_per_s"]["rounds"]
        if entry.case.cores == 1:
            alone = rates
        shares = [rate / one / entry.case.cores for rate, one in zip(rates, alone, strict=False)]
        spread = least_and_most(shares) if shares else {"least": None, "most": None}
        share = round(median(shares), 4) if shares else None
        rows.append({**row, "cores": entry.case.cores, "of_ideal": share, "of_ideal_spread": spread})
    return rows
