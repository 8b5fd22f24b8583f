"""A scripted camera in a process of its own: sends the frames that it is told, as a real client, and says how
far it came.

    python -m tests.harness.camera      one script as a line of JSON on standard input; a line of JSON for
                                        every frame, and one at the end

The last line holds the receipt, or the error that ended the stream. A script without ``close`` goes on saying
how far it is until it is killed. ``CameraProcess`` starts one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import shardwright as sw
from shardwright.model.errors import ShardwrightError

from .frames import Arrival, array_spec, pixels
from .json_process import TIMEOUT_S, JsonProcess
from .python import start_module

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable


@dataclass(frozen=True)
class Script:
    """``pause_s`` lies between two frames. ``cycle``: so many different frames are made before the first is
    sent, then repeated. ``claims``: frames are filled in place, and so many claims stay open beside."""

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
    claims: int | None = None

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Script:
        facts = json.loads(line)
        facts["arrivals"] = [Arrival(**a) for a in facts["arrivals"]]
        facts["shape"] = tuple(facts["shape"])
        return cls(**facts)


class CameraProcess:
    """Started by the constructor. A context manager that leaves no process behind."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._said = JsonProcess(start_module("tests.harness.camera"))
        self._facts: dict[str, Any] = {"sent": 0, "stored": 0, "durable": 0}
        self._said.tell(script.to_line())

    @property
    def pid(self) -> int:
        return self._said.process.pid

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All that it said so far."""
        self._catch_up()
        return self._said.lines

    @property
    def facts(self) -> dict[str, Any]:
        """The newest of everything that it said so far."""
        self._catch_up()
        return self._facts

    def _catch_up(self) -> None:
        while self._hears(0):
            pass

    def _hears(self, timeout_s: float) -> bool:
        """Whether it says one more line within that time."""
        try:
            line = self._said.next(timeout_s)
        except TimeoutError:
            return False
        self._facts.update(line or {})
        return line is not None

    def wait_until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Until ``condition(facts)`` holds after something was said."""
        while not condition(self.facts):
            assert self._hears(TIMEOUT_S), f"the camera ended early: {self._facts}"

    def wait_for_end(self) -> dict[str, Any]:
        """The last facts: ``receipt`` or ``error`` among them."""
        assert self._said.exit_code() == 0
        for line in self._said.rest():
            self._facts.update(line)
        return self._facts

    def signal(self, number: signal.Signals) -> None:
        self._said.signal(number)

    def kill(self) -> None:
        """SIGKILL; returns once it is gone."""
        self._said.process.kill()
        self._said.exit_code()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._said.close()


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
        first = stream.frames
        say(opened=stream.path, first=first, stored=stream.watermark.stored, durable=stream.watermark.durable)
        still_open = [stream.claim() for _ in range(script.claims or 0)]
        for arrival in script.arrivals:
            frame = (
                made[arrival.frame_id % script.cycle]
                if script.cycle
                else pixels(arrival.frame_id, arrival.copy, script.shape)
            )
            if script.claims is None:
                stream.append(frame, frame_id=arrival.frame_id)
            else:
                with stream.claim(frame_id=arrival.frame_id) as into:
                    into[:] = frame
            say(
                sent=stream.frames - first,
                stored=stream.watermark.stored,
                durable=stream.watermark.durable,
                at_s=time.monotonic(),
            )
            if script.pause_s:
                time.sleep(script.pause_s)
        while not script.close:
            say(
                sent=stream.frames - first,
                stored=stream.watermark.stored,
                durable=stream.watermark.durable,
                at_s=time.monotonic(),
            )
            time.sleep(0.05)
        del still_open
        stream.close()
        say(receipt=stream.receipt.to_dict())


def main() -> None:
    try:
        run(Script.from_line(sys.stdin.readline()))
    except ShardwrightError as error:
        say(error=error.to_dict())


if __name__ == "__main__":
    main()
