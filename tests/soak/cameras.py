"""The cameras as the soak sees them: each has one process after another, sends one acquisition after another,
and all that it claims is kept.

A ``CameraSide`` runs in a thread of its own. ``kill`` may come from another thread at any moment; what the
camera's program does after its death is drawn by whoever kills it:

    go_on        a new process opens the acquisition again and goes on with the next frame
    send_again   the same, but it has kept every frame that it was not told to be stored, and sends these
                 again
    start_anew   a new process starts the next acquisition; the daemon has to seal the old one by itself
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Literal, Self

from tests.harness.json_process import TIMEOUT_S, JsonProcess, environment

from . import ledger
from .balance import Claims, Life
from .camera import Order
from .ledger import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .settings import Places

Afterwards = Literal["go_on", "send_again", "start_anew"]
AFTERWARDS: tuple[Afterwards, ...] = ("go_on", "send_again", "start_anew")


def started(places: Places, name: str, seed: int) -> JsonProcess:
    """A camera's process, to be told orders. Ctrl-C is for the soak alone."""
    with (places.work / f"{name}.errors").open("ab") as errors:
        return JsonProcess(
            subprocess.Popen(
                [sys.executable, "-m", "tests.soak.camera", places.endpoint, str(seed)],
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                text=True,
                env=environment(),
                start_new_session=True,
            )
        )


class CameraSide:
    """``on_ended`` gets the claims of each acquisition that no camera sends to any more; ``on_trouble`` every
    fault that needs no judge.

    ``room`` is taken for each acquisition, and given back by whoever has judged and removed it.
    """

    def __init__(
        self,
        places: Places,
        name: str,
        seed: int,
        *,
        room: int,
        on_ended: Callable[[Claims], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self.name = name
        self.seed = seed
        self.room = threading.Semaphore(room)
        self.refusals = 0
        self.deaths = 0
        # how many the soak has caused; an acquisition that ended during one may have no receipt
        self.daemon_deaths = 0
        self._places = places
        self._on_ended = on_ended
        self._on_trouble = on_trouble
        self._number = 0
        self._stream, self._frames, self._fps = name, 0, 0.0
        self._afterwards: Afterwards | None = None
        self._lock = threading.Lock()  # of the process, and of what it was told
        self._process = started(places, name, seed)
        self._ledger: Path | None = None
        self._before = Numbers()  # of all lives that have ended
        self._finish = threading.Event()
        self._over = False  # its process has been ended for good
        self._thread = threading.Thread(target=self._run, name=f"camera {name}", daemon=True)

    # The soak's side
    # ----------------------------------------------------------------------------------------------------

    def begin(self, stream: str, frames: int, fps: float) -> None:
        self.set(stream, fps, frames)
        self._thread.start()

    def set(self, stream: str, fps: float, frames: int) -> None:
        """The pace holds at once, stream and length from the next acquisition on."""
        with self._lock:
            self._stream, self._frames, self._fps = stream, frames, fps
            self._process.tell(json.dumps({"do": "pace", "fps": fps}))

    @property
    def pid(self) -> int:
        return self._process.process.pid

    @property
    def sent(self) -> int:
        """Frames, over all acquisitions."""
        return self._before.begun + self._numbers.begun

    @property
    def stored(self) -> int:
        """Frames that it was told are stored, over all lives: once they are more, it is connected."""
        return self._before.stored + self._numbers.stored

    @property
    def reconnects(self) -> int:
        """How often streams went on over a new connection."""
        return self._before.reconnects + self._numbers.reconnects

    @property
    def sending(self) -> bool:
        return self._numbers.begun > 0

    @property
    def _numbers(self) -> Numbers:
        """Of the life that goes on now."""
        try:
            return ledger.read(self._ledger) if self._ledger is not None else Numbers()
        except FileNotFoundError:
            return Numbers()  # it has just ended

    def kill(self, afterwards: Afterwards) -> None:
        with self._lock:
            self._afterwards = afterwards
            self._process.process.kill()

    def finish(self) -> None:
        """No more frames: what is open is closed."""
        with self._lock:
            self._finish.set()
            self._process.tell('{"do": "finish"}')
        self.room.release()  # it may wait for some

    def join(self) -> None:
        self._thread.join(2 * TIMEOUT_S)
        assert not self._thread.is_alive(), f"camera {self.name} hangs"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            self._finish.set()
            self._process.close()
        self.room.release()
        if self._thread.ident is not None:
            self._thread.join()

    # Its thread
    # ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self.room.acquire()
                if self._finish.is_set():
                    return
                self._on_ended(self._acquire())
        except Exception as error:
            if not self._over:
                self._on_trouble(f"camera {self.name}: {type(error).__name__}: {error}")

    def _acquire(self) -> Claims:
        """One acquisition, through all deaths of its camera."""
        self._number += 1
        claims = Claims(f"{self.name}-{self._number}", self._number, self.name)
        with self._lock:
            order = Order(claims.name, self._number, self._stream, self._frames, "")
        deaths_before = self.daemon_deaths
        while True:
            life = self._live(claims, order)
            if not life.killed:
                if (
                    claims.receipt is None
                    and self.daemon_deaths == deaths_before
                    and not any(earlier.killed for earlier in claims.lives)
                ):
                    self._on_trouble(f"{claims.name} has no receipt, and nobody died")
                return claims
            with self._lock:
                if self._over:
                    return claims
                afterwards, self._afterwards = self._afterwards, None
                self._start_again()
            if afterwards is None:
                self._on_trouble(f"camera {self.name} died by itself")
            if life.epoch == 0 or afterwards in (None, "start_anew") or self._finish.is_set():
                return claims
            first = life.first_frame + life.numbers.begun
            if afterwards == "send_again":
                first = max(
                    life.first_frame, min(first, life.first_frame + life.numbers.stored - life.first_sequence)
                )
            order = Order(order.name, order.number, order.stream, order.frames, "", first, reopen=True)

    def _live(self, claims: Claims, order: Order) -> Life:
        """From the order to the end of the acquisition, or of the process."""
        path = self._places.work / f"{claims.name}-{len(claims.lives) + 1}.ledger"
        ledger.create(path)
        life = Life(order.first)
        claims.lives.append(life)
        with self._lock:
            process = self._process
            self._ledger = path
            process.tell(replace(order, ledger=str(path)).to_line())
        while True:
            event = process.next(2 * TIMEOUT_S)
            if event is None:
                life.killed = True
                break
            if "opened" in event:
                life.epoch, life.first_sequence = event["epoch"], event["first_sequence"]
            elif "refused" in event:
                self.refusals += 1
            elif "closed" in event:
                claims.receipt = event["closed"]
                break
            elif "failed" in event:
                self._take_failure(claims, event)
                break
        life.numbers = numbers = ledger.read(path)
        self._ledger = None
        self._before = Numbers(
            begun=self._before.begun + numbers.begun,
            stored=self._before.stored + numbers.stored,
            reconnects=self._before.reconnects + numbers.reconnects,
        )
        path.unlink()
        return life

    def _take_failure(self, claims: Claims, event: dict[str, Any]) -> None:
        """The errors that a camera of this soak may meet when somebody has died: what it wants to open or to
        close was sealed while it was away."""
        allowed = {"acquire": ("resume", "output_exists"), "append": (), "close": ("resume",)}[event["doing"]]
        if event["failed"]["code"] not in allowed:
            self._on_trouble(f"{claims.name}: {event['doing']} failed: {event['failed']}")

    def _start_again(self) -> None:
        self.deaths += 1
        self._process.close()
        self._process = started(self._places, self.name, self.seed)
        self._process.tell(json.dumps({"do": "pace", "fps": self._fps}))
        if self._finish.is_set():
            self._process.tell('{"do": "finish"}')
