"""The command line of ``tools/bench compact`` and what its rounds say: medians, ratios within each round,
bytes saved."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from .cases import Case
from .peers.repackers import REPACKERS, Repacked, measure

FLOORS = ("cp", "cp-sync", "cp-sync-cmp", "cp-replace")
ASKED_OF_CP = 0.8


def parse(arguments: list[str], folder: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench compact", description="One acquired store made gapless by several means."
    )
    parser.add_argument("--quick", action="store_true", help="64 frames and 2 rounds instead of 256 and 5")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(REPACKERS),
        metavar="NAME",
        help=f"repeatable; of {', '.join(REPACKERS)}",
    )
    parser.add_argument("--rounds", type=int, help="timed rounds of each contender")
    parser.add_argument("--frames", type=int, help="frames of the store, a multiple of 64")
    parser.add_argument(
        "--scene",
        choices=["spots", "camera"],
        default="spots",
        help="what the frames show, see benchmarks/case.py",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="threads of each peer, processes of pack-job and recompress-zstd",
    )
    parser.add_argument(
        "--folder", type=Path, default=folder, help="where to write; its folder `compaction` is emptied first"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str], folder: Path) -> int:
    """Exits with 1 when a contender failed."""
    options = parse(arguments, folder)
    case = Case(
        frames=options.frames or (64 if options.quick else 256), scene=options.scene, threads=options.threads
    )
    rounds = options.rounds or (2 if options.quick else 5)
    names = options.only or list(REPACKERS)
    live_bytes, results = measure(
        names,
        case,
        rounds,
        options.folder / "compaction",
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    rows = summary(results, live_bytes)
    if options.json:
        print(
            json.dumps(
                {"case": json.loads(case.to_json()), "rounds": rounds, "live_bytes": live_bytes, "rows": rows}
            )
        )
    else:
        print(
            f"\n{live_bytes / 1e9:.2f} GB of live chunks, scene {case.scene}, {rounds} rounds; GB/s of "
            f"live bytes\n"
        )
        print(table(rows))
        print("\n" + "\n".join(verdicts(rows)))
    return 1 if any("error" in row for row in rows) else 0


def summary(results: list[Repacked], live_bytes: int) -> list[dict[str, Any]]:
    """One row a contender. ``versus``: the median of the ratios within each round, to each floor that ran."""
    seconds = {result.name: result.seconds for result in results}
    rows: list[dict[str, Any]] = []
    for result in results:
        row: dict[str, Any] = {"name": result.name, "kind": result.kind}
        if result.error is not None or not result.seconds:
            rows.append({**row, "error": result.error or "no round was timed"})
            continue
        versus = {
            floor: median(theirs / ours for ours, theirs in zip(result.seconds, seconds[floor], strict=False))
            for floor in FLOORS
            if seconds.get(floor)
        }
        row |= {
            "gb_per_s": live_bytes / median(result.seconds) / 1e9,
            "gb_per_s_least": live_bytes / max(result.seconds) / 1e9,
            "gb_per_s_most": live_bytes / min(result.seconds) / 1e9,
            "versus": versus,
            "cpu_s_per_gb": median(result.cpu_seconds) / (live_bytes / 1e9),
            "stored_bytes": result.stored_bytes,
            "gain": 1 - result.stored_bytes / live_bytes,
        }
        rows.append(row)
    return rows


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """The comparison that the project asks of itself, and what recompression gains; only of those that
    ran."""
    done = {row["name"]: row for row in rows if "error" not in row}
    lines = [
        f"{what} {done[name]['versus'][floor]:.2f}x {floor}{asked}"
        for name, floor, what, asked in (
            (
                "move",
                "cp",
                "moving bytes without decoding, synced, is",
                f" (asked: {ASKED_OF_CP}x; cp does not sync)",
            ),
            ("move", "cp-sync", "moving bytes without decoding, synced, is", f" (asked: {ASKED_OF_CP}x)"),
            ("pack", "cp-replace", "all of it, which cp-replace does as well, is", ""),
            ("pack-job", "cp-replace", "the same in worker processes, their starts included, is", ""),
            (
                "pack",
                "cp",
                "all of it is",
                f" (asked: {ASKED_OF_CP}x; cp neither syncs nor reads back nor frees what was there)",
            ),
        )
        if name in done and floor in done[name]["versus"]
    ]
    lines += [
        f"pack is {done['pack']['gb_per_s'] / done[peer]['gb_per_s']:.1f}x rewriting with {peer}"
        for peer in ("zarr-python", "tensorstore")
        if "pack" in done and peer in done
    ]
    if "recompress-zstd" in done:
        lines.append(
            f"zstd in place of lz4 makes {done['recompress-zstd']['gain']:.1%} less of the live bytes"
        )
    return lines


def table(rows: list[dict[str, Any]]) -> str:
    columns = "".join(f"{name:>8}" for name in ("GB/s", "least", "most", "x cp", "x sync", "x cmp", "x repl"))
    head = f"{'contender':<18}{columns}{'CPU s/GB':>10}{'MB stored':>11}{'gain':>8}"
    lines = [head, "-" * len(head)]
    for row in rows:
        if "error" in row:
            lines.append(f"{row['name']:<18}  failed: {row['error'].splitlines()[-1][:100]}")
            continue
        versus = "".join(
            f"{row['versus'][floor]:>8.2f}" if floor in row["versus"] else " " * 8 for floor in FLOORS
        )
        lines.append(
            f"{row['name']:<18}{row['gb_per_s']:>8.2f}{row['gb_per_s_least']:>8.2f}{row['gb_per_s_most']:>8.2f}{versus}"
            f"{row['cpu_s_per_gb']:>10.2f}{row['stored_bytes'] / 1e6:>11.1f}{row['gain']:>8.1%}"
        )
    return "\n".join(lines)
