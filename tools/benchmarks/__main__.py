"""The command line of tools/bench."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from . import chart, compaction_report, page, part_command, run_record
from .case import SCENES, Case
from .parent import compare, entries
from .peers import CONTENDERS
from .report import summary, table, verdicts

DESCRIPTION = """Writers compared on the same frames, layout and codec, final sync counted.

tools/bench record    the whole table of comparisons and parts, appended to benchmarks/RECORD.jsonl; --list, --only
tools/bench chart     draw the chart of the newest record, and renew the README's table
tools/bench latency   how long append takes; small: 20,000 frames a second; cameras: four at once; flat: after a million frames;
                      prediction: was shardwright check --measure right
tools/bench compact   ways to repack a store
tools/bench overload  a camera that is faster than the codec: what it loses with block, and with degrade
tools/bench page      what the status page costs
"""  # noqa: E501
ROOT = Path(__file__).resolve().parents[2]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="64 frames and 2 rounds instead of 256 and 5")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(CONTENDERS),
        metavar="NAME",
        help=f"repeatable; of {', '.join(CONTENDERS)}",
    )
    parser.add_argument("--rounds", type=int, help="timed rounds of each contender")
    parser.add_argument("--frames", type=int, help="frames of a round, a multiple of 64")
    parser.add_argument(
        "--scene", choices=SCENES, default="spots", help="what the frames show, see benchmarks/case.py"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="compressing threads of each peer and floor; ours choose themselves",
    )
    parser.add_argument("--cname", choices=["lz4", "zstd", "none"], default="lz4")
    parser.add_argument("--clevel", type=int, default=1)
    parser.add_argument("--shuffle", choices=["noshuffle", "shuffle", "bitshuffle"], default="shuffle")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".cache" / "bench", help="where to write; it is emptied first"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args(arguments)


def main() -> int:
    """Exits with 1 when a contender failed or used more memory than it planned."""
    command, arguments, folder = "".join(sys.argv[1:2]), sys.argv[2:], ROOT / ".cache" / "bench"
    if command in part_command.PARTS:
        return part_command.main(command, arguments, folder)
    if command == "chart":
        return chart.main(arguments)
    of_folder = {"compact": compaction_report.main, "page": page.main, "record": run_record.main}
    if command in of_folder:
        return of_folder[command](arguments, folder)
    options = parse()
    frames = options.frames or (64 if options.quick else 256)
    case = Case(
        frames=frames,
        scene=options.scene,
        threads=options.threads,
        cname=options.cname,
        clevel=options.clevel,
        shuffle=options.shuffle,
    )
    rounds = options.rounds or (2 if options.quick else 5)
    results = compare(
        entries(options.only or list(CONTENDERS), case),
        rounds,
        options.folder / "work",
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    rows = summary(results, case)
    if options.json:
        print(
            json.dumps(
                {
                    "case": json.loads(case.to_json()),
                    "rounds": rounds,
                    "machine": platform.processor() or platform.machine(),
                    "rows": rows,
                }
            )
        )
    else:
        size = f"{frames} frames of 2048 x 2048 uint16 ({case.raw_bytes / 1e9:.2f} GB)"
        print(f"\n{size} a round, scene {case.scene}, {rounds} rounds, final sync counted\n")
        print(table(rows))
        print("\n" + "\n".join(verdicts(rows)))
    return 1 if any("error" in row or row["within_plan"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
