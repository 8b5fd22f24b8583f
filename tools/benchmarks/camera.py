"""A camera of the bench in its own process: reads commands as lines of JSON, answers each with one line. All
times are of the monotonic clock.

{"do": "open", "path": P, "spec": S, "settings": {}}     -> {}                             settings of create
or acquire {"do": "send", "frames": N, "rate_hz": R or null, "save": FILE or null}
                                                         -> {"begin_ns": B, "end_ns": E}    first append
                                                         begun, last one done
{"do": "flush"}                                          -> {"end_ns": E}                   everything
appended is durable
{"do": "close"}                                          -> {"end_ns": E, "receipt": R}

``rate_hz``: frame i is due at begin + i / rate; up to ``SLEEP_PER_FRAME_HZ`` the camera sleeps until each,
above it hands over every millisecond what is due in one call, as drivers of fast cameras do. ``save``:
int64[2, N] nanoseconds, how long each append took and how long after its due time it was done.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw
from shardwright.client.stream import Stream
from shardwright.writer.writer import Writer

from .cases import Frames

SLEEP_PER_FRAME_HZ = 1000.0
TICK_S = 0.001
Sink = Writer | Stream


class Target:
    """Where the frames go: the daemon at ``endpoint``, or a writer in this process."""

    def __init__(self, endpoint: str | None, transport: Any) -> None:
        self._connection = (
            None if endpoint is None else sw.connect(endpoint, timeout_ms=60_000, transport=transport)
        )

    def open(self, path: Path, spec: sw.ArraySpec, settings: dict[str, Any]) -> Sink:
        if self._connection is None:
            return sw.create(path, spec, **settings)
        named = "stream" in settings
        return self._connection.acquire(
            path.name.removesuffix(".ome.zarr"), None if named else spec, **settings
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def send_unpaced(sink: Sink, frames: Frames, count: int) -> dict[str, int]:
    begin_ns = time.monotonic_ns()
    distinct = len(frames)
    append = sink.append
    for i in range(count):
        append(frames[i % distinct])
    return {"begin_ns": begin_ns, "end_ns": time.monotonic_ns()}


def send_paced(sink: Sink, frames: Frames, count: int, rate_hz: float, times: np.ndarray) -> dict[str, int]:
    """One frame at a time; a late one is sent at once and delays nothing but itself and what waits behind
    it."""
    clock, sleep, append, distinct = time.monotonic_ns, time.sleep, sink.append, len(frames)
    period_ns = 1e9 / rate_hz
    begin_ns = clock()
    for i in range(count):
        due_ns = begin_ns + int(i * period_ns)
        ahead_ns = due_ns - clock()
        if ahead_ns > 0:
            sleep(ahead_ns / 1e9)
        start_ns = clock()
        append(frames[i % distinct])
        end_ns = clock()
        times[0, i], times[1, i] = end_ns - start_ns, end_ns - due_ns
    return {"begin_ns": begin_ns, "end_ns": clock()}


def send_in_ticks(
    sink: Sink, frames: Frames, count: int, rate_hz: float, times: np.ndarray
) -> dict[str, int]:
    """Every millisecond the frames that are due by then."""
    clock = time.monotonic_ns
    begin_ns = clock()
    sent = 0
    while sent < count:
        due = min(count, int((clock() - begin_ns) * rate_hz / 1e9) + 1)
        if due == sent:
            time.sleep(TICK_S)
            continue
        start_ns = clock()
        _hand_over(sink, frames, sent, due)
        end_ns = clock()
        times[0, sent:due] = (end_ns - start_ns) // (due - sent)
        times[1, sent:due] = end_ns - begin_ns - (np.arange(sent, due) * 1e9 / rate_hz).astype(np.int64)
        sent = due
        time.sleep(TICK_S)
    return {"begin_ns": begin_ns, "end_ns": clock()}


def _hand_over(sink: Sink, frames: Frames, first: int, stop: int) -> None:
    """A stack at a time where the sink takes one; the frames repeat after ``len(frames)``."""
    if not isinstance(sink, Stream):
        for i in range(first, stop):
            sink.append(frames[i % len(frames)])
        return
    while first < stop:
        place = first % len(frames)
        count = min(stop - first, len(frames) - place)
        sink.append_many(frames[place : place + count])
        first += count


def send(sink: Sink, frames: Frames, command: dict[str, Any]) -> dict[str, int]:
    count, rate_hz = command["frames"], command["rate_hz"]
    if rate_hz is None:
        return send_unpaced(sink, frames, count)
    times = np.zeros((2, count), np.int64)
    paced = send_paced if rate_hz <= SLEEP_PER_FRAME_HZ else send_in_ticks
    answer = paced(sink, frames, count, rate_hz, times)
    if command["save"] is not None:
        np.save(command["save"], times)
    return answer


def main() -> None:
    frames_path, facts_json = sys.argv[1:]
    facts = json.loads(facts_json)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not talk into the answers
    frames = np.fromfile(frames_path, np.uint16).reshape(facts["shape"])
    target = Target(facts["endpoint"], facts["transport"])
    sink: Sink | None = None
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if command["do"] == "open":
            sink = target.open(
                Path(command["path"]), sw.ArraySpec.model_validate(command["spec"]), command["settings"]
            )
        else:
            assert sink is not None, "opened first"
            if command["do"] == "send":
                answer = send(sink, frames, command)
            elif command["do"] == "flush":
                sink.flush()
                answer = {"end_ns": time.monotonic_ns()}
            else:
                sink.close()
                answer = {"end_ns": time.monotonic_ns(), "receipt": asdict(sink.receipt)}
        print(json.dumps(answer), file=answers, flush=True)
    target.close()


if __name__ == "__main__":
    main()
