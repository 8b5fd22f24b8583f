"""The part ``prediction``: is ``shardwright check --measure`` right about the rate that this machine then
holds? tools/bench prediction.

In each round the plan measures and predicts, then a camera sends the same frames through a daemon that holds
the same array, and its rate counts from when the ring is full until all is sealed and durable. The middle of
the rounds' deviations is held against the limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from shardwright.acquire.limits import Limits, default_threads

from .case import Case, Frames
from .json_process import ANSWER_LIMIT_S, ProcessFailedError
from .rig import Camera, Places, delete_stores, rig, saved

ROUNDS = 3
PLAN_SECONDS = 10.0
SHARDS = 6
STREAM = "bench"

Say = Callable[[str], None]


def measure(
    places: Places, quick: bool, say: Say, *, case: Case | None = None, plan_seconds: float | None = None
) -> dict[str, Any]:
    """One row. ``case``: another one than the record's, for tests."""
    case, rounds = case or Case(), 1 if quick else ROUNDS
    seconds = plan_seconds or (4.0 if quick else PLAN_SECONDS)
    frames = case.draw()
    predicted: list[float] = []
    held: list[float] = []
    binds: list[str] = []
    with saved(frames) as file, rig(places.disk / "prediction") as here:
        daemon = here.daemon()
        camera = here.camera(file, (case.distinct, *case.shape), daemon)
        rate(camera, case, SHARDS)  # warms up
        for number in range(rounds):
            delete_stores(here.folder / "daemon")
            found = planned(here.folder / "plan", frames, case, seconds)
            predicted.append(found["predicted_bytes_per_s"])
            binds.append(found["binds"])
            held.append(rate(camera, case, SHARDS))
            say(
                f"round {number + 1} of {rounds}: predicted {predicted[-1] / 1e9:.2f} GB/s, held "
                f"{held[-1] / 1e9:.2f}"
            )
    return {
        "settings": {"plan_seconds": seconds, "shards": SHARDS, "rounds": rounds},
        "rows": [row(predicted, held, binds)],
    }


def planned(folder: Path, frames: Frames, case: Case, seconds: float) -> dict[str, Any]:
    """What the command says of the one stream. Raises ``ProcessFailedError``."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    config = {
        "output": {"root": "./data"},
        "ingest": {"endpoints": ["ipc://./in.sock"]},
        "streams": [{"name": STREAM, "array": case.spec().model_dump(mode="json")}],
    }
    (folder / "rig.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    np.save(folder / "frames.npy", frames)
    options = ["--measure", "--frames", str(folder / "frames.npy"), "--seconds", str(seconds), "--json"]
    command = [sys.executable, "-m", "shardwright.cli", "check", str(folder / "rig.yaml"), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=ANSWER_LIMIT_S)
    answer = json.loads(done.stdout) if done.stdout.strip() else {}
    keep_up = answer.get("keep_up")
    if keep_up is None or keep_up["measured"] is None:
        bad = [each["found"] for each in answer.get("findings", ()) if each["result"] == "bad"]
        raise ProcessFailedError(f"shardwright check failed: {bad or done.stderr[-500:]}")
    (stream,) = keep_up["streams"]
    assert isinstance(stream, dict)
    os.sync()  # what it wrote and deleted must not slow what comes next
    return stream


def rate(camera: Camera, case: Case, shards: int) -> float:
    """Raw bytes a second, once two shards have filled the ring between the camera and the disk; what waits
    there then is stored in this time, too."""
    camera.open(Path("held"), case.spec())
    camera.ask(do="send", frames=2 * case.shard[0], rate_hz=None)
    begin_ns = camera.ask(do="send", frames=shards * case.shard[0], rate_hz=None)["begin_ns"]
    seconds = float(camera.close_acquisition()["end_ns"] - begin_ns) / 1e9
    frames = shards * case.shard[0] + Limits.derive(case.spec(), threads=default_threads()).ring_frames
    return frames * case.raw_bytes / case.frames / seconds


def row(predicted: list[float], held: list[float], binds: list[str]) -> dict[str, Any]:
    off = [abs(guess / truth - 1) for guess, truth in zip(predicted, held, strict=True)]
    ratios = [guess / truth for guess, truth in zip(predicted, held, strict=True)]
    guess, truth = median(predicted) / 1e9, median(held) / 1e9
    return {
        "name": "disk",
        "headline": True,
        "predicted_gb_per_s": [float(f"{value / 1e9:.6g}") for value in predicted],
        "held_gb_per_s": [float(f"{value / 1e9:.6g}") for value in held],
        "binds": binds,
        "off_by": median(off),
        "off_by_spread": {"least": round(min(off), 4), "most": round(max(off), 4)},
        "says": {
            "off_by": f"predicted {guess:.2f} GB/s, held {truth:.2f}: {min(ratios):.2f} to "
            f"{max(ratios):.2f} of it; {most_often(binds)} binds"
        },
    }


def most_often(names: list[str]) -> str:
    """The one that is named most often."""
    return max(names, key=names.count)


def text(part: dict[str, Any]) -> str:
    (one,) = part["rows"]
    lines = [f"{'round':<8}{'predicted GB/s':>16}{'held GB/s':>12}  binds", "-" * 50]
    rounds = zip(one["predicted_gb_per_s"], one["held_gb_per_s"], one["binds"], strict=True)
    return "\n".join(
        lines
        + [
            f"{number:<8}{guess:>16.2f}{truth:>12.2f}  {binds}"
            for number, (guess, truth, binds) in enumerate(rounds, 1)
        ]
    )
