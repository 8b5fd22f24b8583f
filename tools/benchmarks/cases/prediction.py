"""The part ``prediction``: the rate that the trial of ``shardwright check --measure`` reaches, against the
rate that the machine then holds.

In each round the trial is made, then a camera sends the same frames through a daemon that holds the same
array.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from benchmarks.processes import ANSWER_LIMIT_S, ProcessFailedError, say
from benchmarks.testbed import Places, delete_stores, testbed

from . import Asked, Case, Frames, least_and_most, saved

ROUNDS = 3
PLAN_SECONDS = 10.0
SHARDS = 6
ASKED = (Asked("off_by", "shardwright check --measure: within 15 % of what is then held", 0.15),)
COLUMNS = {"off by": "off_by", "least": "off_by_spread.least", "most": "off_by_spread.most"}


def measure(
    places: Places, quick: bool, *, case: Case | None = None, plan_seconds: float | None = None
) -> dict[str, Any]:
    """One row. ``case``: another one than the record's, for tests."""
    case, rounds = case or Case(), 1 if quick else ROUNDS
    seconds = plan_seconds or (4.0 if quick else PLAN_SECONDS)
    frames = case.draw()
    predicted: list[float] = []
    held: list[float] = []
    with saved(frames) as file, testbed(places.disk / "prediction") as here:
        camera = here.camera(file, case, here.daemon())
        path, spec = Path("held"), case.spec()
        camera.held_hz(path, case, spec, SHARDS)  # warms up
        for number in range(rounds):
            delete_stores(here.folder / "daemon")
            found = planned(here.folder / "plan", frames, case, seconds)
            predicted.append(found["sustained_bytes_per_s"])
            held.append(camera.held_hz(path, case, spec, SHARDS) * spec.frame_bytes)
            both = f"predicted {predicted[-1] / 1e9:.2f} GB/s, held {held[-1] / 1e9:.2f}"
            say(f"round {number + 1} of {rounds}: {both}")
    settings = {"plan_seconds": seconds, "shards": SHARDS, "rounds": rounds}
    return {"settings": settings, "rows": [row(predicted, held)]}


def planned(folder: Path, frames: Frames, case: Case, seconds: float) -> dict[str, Any]:
    """The command's answer on the one stream. Raises ``ProcessFailedError``."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    config = {
        "output": {"root": "./data"},
        "ingest": {"endpoints": ["ipc://./in.sock"]},
        "streams": [{"name": "bench", "array": case.spec().model_dump(mode="json")}],
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


def row(predicted: list[float], held: list[float]) -> dict[str, Any]:
    off = [abs(guess / truth - 1) for guess, truth in zip(predicted, held, strict=True)]
    return {
        "name": "disk",
        "headline": True,
        "predicted_gb_per_s": [float(f"{value / 1e9:.6g}") for value in predicted],
        "held_gb_per_s": [float(f"{value / 1e9:.6g}") for value in held],
        "off_by": median(off),
        "off_by_spread": least_and_most(off),
    }
