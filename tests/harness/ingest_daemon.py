"""A daemon in this process: its ingest server in a thread."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardwright.config.model import Config, Output
from shardwright.ingest import IngestServer, StreamSettings
from shardwright.model.write_settings import WriteSettings

from . import evidence, told_events
from .json_process import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool


class KilledError(Exception):
    """The daemon of a test was killed: its sockets go, nothing is sealed."""


class IngestDaemon:
    """An ingest server in a thread. ``stop`` joins it and raises what ended it."""

    def __init__(
        self,
        root: Path,
        pool: WorkerPool,
        streams: tuple[StreamSettings, ...] = (),
        *,
        doubled: type | None = None,
        adopt: Iterable[Path] = (),
        held: bool = False,
        **changes: Any,
    ) -> None:
        self.root = root
        self.acquisitions: list[Any] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        facts = {
            "endpoints": (f"ipc://{root}/ingest.sock", "tcp://127.0.0.1:*"),
            "streams": streams,
            "write": WriteSettings(),
            "max_descriptors": 1 << 20,
            "memory_budget_bytes": 8 << 30,
            "ring_socket": root / "ring.sock",
            "heartbeat_ms": 50,
            "session_timeout_ms": 60_000,
        }
        settings = replace(Config(output=Output(root=root)).ingest_settings(None), **{**facts, **changes})
        opening = {}
        if doubled is not None:
            opening = {
                "open_acquisition": self._remember(doubled),
                "resume_acquisition": self._remember(doubled.resume),
            }
        self.server = IngestServer(
            settings,
            pool,
            on_event=lambda name, more: self.events.append((name, dict(more))),
            **opening,
        )
        self.server.bind()
        self.server.adopt(adopt)
        if held:
            self.server.hold()
        self.ipc, *more = self.server.endpoints
        self.tcp = more[0] if more else ""
        self._stop = threading.Event()
        self.started_s = time.monotonic()
        self.ended_s: float | None = None
        evidence.register(self)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _remember(self, doubled: Callable[..., Any]) -> Callable[..., Any]:
        def make(*arguments: Any, **named: Any) -> Any:
            self.acquisitions.append(doubled(*arguments, **named))
            return self.acquisitions[-1]

        return make

    def _run(self) -> None:
        try:
            self.server.run(self._stop)
        except BaseException as error:
            self._error = error

    def kill(self) -> None:
        """As SIGKILL would, as far as others can see: no goodbye, nothing sealed."""

        def die() -> None:
            raise KilledError

        self.server._round = die
        self._thread.join()
        self.ended_s = time.monotonic()
        assert isinstance(self._error, KilledError), self._error
        self._error = None

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.ended_s = time.monotonic()
        if self._error is not None:
            raise self._error
        for name, facts in self.events:
            told_events.check(name, facts)

    def testify(self, folder: Path) -> dict[str, list[str]]:
        """Its events; its threads are those of the test."""
        return {f"ingest daemon in {self.root}": [f"{name} {facts}" for name, facts in list(self.events)]}

    def event(self, name: str) -> dict[str, Any]:
        """The first event of that name, waited for."""
        return wait_for(
            lambda: next((facts for event, facts in list(self.events) if event == name), None), name
        )

    def wait_for_frames(self, name: str, frames: int) -> None:
        """Until so many frames of an open acquisition have come here. A client's own count says what it was
        given, not what it has sent."""

        def received() -> list[int]:
            running = self.server.snapshot()["acquisitions"]
            return [one["frames_received"] for one in running if one["name"] == name]

        wait_for(lambda: received() == [frames], lambda: f"{frames} frames of {name}, not {received()}")

    def count(self, name: str) -> int:
        return sum(event == name for event, _ in self.events)
