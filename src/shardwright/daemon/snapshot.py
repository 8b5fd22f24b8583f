"""The state of the daemon as plain JSON. What is measured in the daemon's threads is collected here, once for
everyone who shows it: `shardwright status` and its --json, /metrics, the status page, the service manager.

    {"version": 1, "software", "pid", "host", "config", "state": "starting|serving|disk_full|draining",
                     "disk_full": an acquisition waits for room on a full disk, and so does its camera
     "waits_for": the reason why it is still starting, only while there is one, "uptime_s",
     "endpoints", "output_root", "status_page": its address, null while there is none,
     "memory": {"used_bytes", "budget_bytes"},
     "disks": [{"path", "role": "root|spill", "free_bytes", "total_bytes", "low_water_bytes", "full_in_s"}],
               free and total null where the disk does not answer; full_in_s null while nothing is stored
     "clients", "foreign_messages",
     "stall_s": the time so far of the longest ingest round, worker task or sealer's call that still runs: a
                stuck disk shows here
     "rate_hz", "bytes_per_s": of the frames that come, all acquisitions together
     "streams": {name: totals since the start, present gauges, "histograms"},
     "sums": the same over all streams, without histograms; the highest degrade_level
     "acquisitions": [those that run; "state" is "disk_full" of one that waits for room, else its session's],
     "armed": [{"name", "stream", "path", "left_s"}], which wait for their camera,
     "compaction": {"enabled", "died": true after an error, "queued", "running", "paused", "done", "failed"},
     "notifications": {"receivers", "waiting", "sent", "failed", "dropped"},
     "events": {"lines_dropped", "lines_unwritten", "by_name"}}

Built in the caller's thread. It never waits for the frame path, nor the frame path for it.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any, Literal

import shardwright
from shardwright.model.disk_full import DISK_FULL

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.ingest import IngestServer

    from .compaction import CompactionService
    from .disks import DiskSpace
    from .events import EventLog
    from .notifier import Notifier

State = Literal["starting", "serving", "disk_full", "draining"]
VERSION = 1


class SnapshotTaker:
    """Takes snapshots. ``take`` may be called from any thread; the main thread calls ``starting`` and
    ``serve``."""

    def __init__(
        self,
        config_file: str,
        output_root: Path,
        server: IngestServer,
        compaction: CompactionService,
        disks: DiskSpace,
        notifier: Notifier,
        events: EventLog,
    ) -> None:
        self._endpoints: Sequence[str] = ()
        self._status_page: str | None = None
        self._stop: threading.Event | None = None
        self._waits_for = ""
        self._config_file = config_file
        self._output_root = output_root
        self._server = server
        self._compaction = compaction
        self._disks = disks
        self._notifier = notifier
        self._events = events
        self._begun_s = time.monotonic()
        self._software = f"shardwright {shardwright.__version__}"

    def starting(self, waits_for: str) -> None:
        """Sets the reason why the daemon is still starting."""
        self._waits_for = waits_for

    def serve(self, endpoints: Sequence[str], status_page: str | None, stop: threading.Event) -> None:
        """Marks the daemon as serving, until ``stop``."""
        self._endpoints, self._status_page = endpoints, status_page
        self._stop, self._waits_for = stop, ""

    def _state(self, acquisitions: list[dict[str, Any]]) -> State:
        if self._stop is None:
            return "starting"
        if self._stop.is_set():
            return "draining"
        return "disk_full" if any(one["state"] == DISK_FULL for one in acquisitions) else "serving"

    def take(self) -> dict[str, Any]:
        ingest = self._server.snapshot()
        return {
            "version": VERSION,
            "software": self._software,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "config": self._config_file,
            "state": self._state(ingest["acquisitions"]),
            **({"waits_for": self._waits_for} if self._waits_for else {}),
            "uptime_s": time.monotonic() - self._begun_s,
            "endpoints": list(self._endpoints),
            "output_root": str(self._output_root),
            "status_page": self._status_page,
            "disks": self._disks.snapshot(),
            **ingest,
            "compaction": self._compaction.snapshot(),
            "notifications": self._notifier.snapshot(),
            "events": self._events.snapshot(),
        }
