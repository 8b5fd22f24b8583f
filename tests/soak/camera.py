"""A camera in a process of its own: takes orders, sends frames at its pace, keeps a ledger of what it sent
and what it was told.

    python -m tests.soak.camera ENDPOINT SEED     orders as lines of JSON on standard input, events as lines
    of JSON on standard output

    {"do": "acquire", ...}    the fields of ``Order``; answered by "refused" any number of times, "opened",
    and then "closed" or "failed" {"do": "pace", "fps": F}  from now on; 0 is as fast as the stream takes
    frames
    {"do": "finish"}          close what is open; later orders are closed before their first frame

Whatever the daemon or the link does to it, it behaves as a camera's program should: what may be tried again
is tried again, the rest is told.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import shardwright as sw
from shardwright.model import errors
from shardwright.simulate.photons import PhotonFrames

from .ledger import Ledger
from .settings import SHAPE

if TYPE_CHECKING:
    from shardwright.client import Connection, Stream

PATIENCE_S = 300.0  # only so that a hang becomes a failure
RETRY_S = 0.1
MOST_BEHIND_S = 0.5  # a camera that was held up catches up on so much; the rest of its time is gone
NUMBERS_OF_AN_ACQUISITION = 1 << 20  # no two acquisitions of a camera draw the same frame


@dataclass(frozen=True)
class Order:
    """Send frames ``first`` to ``frames`` - 1 of acquisition ``number``. ``reopen``: an earlier process began
    it."""

    name: str
    number: int
    stream: str
    frames: int
    ledger: str
    first: int = 0
    reopen: bool = False

    def to_line(self) -> str:
        return json.dumps({"do": "acquire", **asdict(self)})


def source_of(seed: int) -> PhotonFrames:
    return PhotonFrames(SHAPE, "uint16", seed)


def drawn_number(number: int, frame_id: int) -> int:
    """Which frame of the source stands for a frame of an acquisition."""
    return number * NUMBERS_OF_AN_ACQUISITION + frame_id


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


class Pace:
    """Says when the next frame is due."""

    def __init__(self) -> None:
        self.fps = 0.0
        self._due_s = 0.0

    def wait(self) -> None:
        if self.fps <= 0:
            return
        now_s = time.monotonic()
        self._due_s = max(self._due_s + 1 / self.fps, now_s - MOST_BEHIND_S)
        if self._due_s > now_s:
            time.sleep(self._due_s - now_s)


class Camera:
    """Orders are read by a thread of their own."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self._connection = connection
        self._source = source_of(seed)
        self._buffer = np.empty(SHAPE, np.uint16)
        self._pace = Pace()
        self._finish = threading.Event()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            facts = json.loads(line)
            match facts.pop("do"):
                case "acquire":
                    self._orders.put(Order(**facts))
                case "pace":
                    self._pace.fps = facts["fps"]
                case "finish":
                    self._finish.set()
        os._exit(0)  # nobody is there any more

    def run(self) -> None:
        while True:
            order = self._orders.get()
            doing = "acquire"
            try:
                stream = self._acquire(order)
                say(
                    opened=stream.path,
                    epoch=stream._link.opened.client_epoch,
                    first_sequence=stream._link.opened.next_sequence,
                )
                doing = "append"
                ledger = Ledger(Path(order.ledger))
                self._send(stream, order, ledger)
                doing = "close"
                stream.close()
                note(stream, ledger)
                say(closed=stream.receipt.to_dict())
            except errors.ShardwrightError as error:
                say(failed=error.to_dict(), doing=doing)

    def _acquire(self, order: Order) -> Stream:
        """Until the daemon is back, the disk has room, and it has noticed that the process before this one is
        gone."""
        reopen, give_up_s = order.reopen, time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._connection.acquire(order.name, stream=order.stream, reopen=reopen)
            except (errors.StorageFullError, errors.LockedError) as error:
                refused = error
            except errors.SessionLostError as error:
                refused, reopen = error, True  # nobody knows how far the daemon got with it
            except errors.ResumeError as error:
                if order.reopen:
                    raise
                refused, reopen = error, False
            if time.monotonic() > give_up_s:
                raise refused
            say(refused=refused.to_dict())
            time.sleep(RETRY_S)

    def _send(self, stream: Stream, order: Order, ledger: Ledger) -> None:
        note(stream, ledger)
        for count, frame_id in enumerate(range(order.first, order.frames), start=1):
            if self._finish.is_set():
                break
            self._pace.wait()
            self._source.frame(drawn_number(order.number, frame_id), out=self._buffer)
            ledger.write(begun=count)
            stream.append(self._buffer, frame_id=frame_id)
            ledger.write(returned=count)
            note(stream, ledger)


def note(stream: Stream, ledger: Ledger) -> None:
    watermark = stream.watermark
    ledger.write(
        reconnects=stream.reconnects,  # first: who sees more stored frames sees how they came to be
        dropped=stream.frames_dropped,
        stored=watermark.stored,
        durable=watermark.durable,
    )


def main() -> None:
    endpoint, seed = sys.argv[1:]
    patience_ms = round(1000 * PATIENCE_S)
    connection = sw.connect(endpoint, timeout_ms=patience_ms, reconnect_timeout_ms=patience_ms)
    say(ready=os.getpid())
    Camera(connection, int(seed)).run()


if __name__ == "__main__":
    main()
