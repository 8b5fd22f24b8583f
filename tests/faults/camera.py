"""A scripted camera in a process of its own: sends the frames that it is told, as a real client, and says how
far it came.

    python -m tests.faults.camera       one script as a line of JSON on standard input; a line of JSON for
    every frame, and one at the end

The last line holds the receipt, or the error that ended the stream. A script without ``close`` goes on saying
how far it is until it is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import shardwright as sw
from shardwright.model.errors import ShardwrightError

from .frames import array_spec, pixels
from .scenario import Arrival


@dataclass(frozen=True)
class Script:
    """``pause_s`` lies between two frames. ``cycle``: so many different frames are made before the first is
    sent, then repeated."""

    endpoint: str
    name: str
    arrivals: list[Arrival]
    stream: str | None = None
    shape: tuple[int, int] = (32, 48)
    slab_frames: int = 4
    slabs: int = 2
    transport: str = "auto"
    pause_s: float = 0.0
    cycle: int | None = None
    reopen: bool = False
    close: bool = True

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Script:
        facts = json.loads(line)
        facts["arrivals"] = [Arrival(**a) for a in facts["arrivals"]]
        facts["shape"] = tuple(facts["shape"])
        return cls(**facts)


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def run(script: Script) -> None:
    made = [pixels(i, shape=script.shape) for i in range(script.cycle)] if script.cycle else []
    with sw.connect(script.endpoint, transport=script.transport, timeout_ms=60_000) as daemon:
        spec = (
            None
            if script.stream
            else array_spec(slab_frames=script.slab_frames, slabs=script.slabs, shape=script.shape)
        )
        stream = daemon.acquire(
            script.name, spec, stream=script.stream, **({"reopen": True} if script.reopen else {})
        )
        say(opened=stream.path, stored=stream.watermark.stored, durable=stream.watermark.durable)
        for arrival in script.arrivals:
            frame = (
                made[arrival.frame_id % script.cycle]
                if script.cycle
                else pixels(arrival.frame_id, arrival.copy, script.shape)
            )
            stream.append(frame, frame_id=arrival.frame_id)
            say(
                sent=stream.frames_sent,
                stored=stream.watermark.stored,
                durable=stream.watermark.durable,
                at_s=time.monotonic(),
            )
            if script.pause_s:
                time.sleep(script.pause_s)
        while not script.close:
            say(
                sent=stream.frames_sent,
                stored=stream.watermark.stored,
                durable=stream.watermark.durable,
                at_s=time.monotonic(),
            )
            time.sleep(0.05)
        stream.close()
        say(receipt=stream.receipt.to_dict())


def main() -> None:
    try:
        run(Script.from_line(sys.stdin.readline()))
    except ShardwrightError as error:
        say(error=error.to_dict())


if __name__ == "__main__":
    main()
