"""The messages to the service manager (systemd). They are made from the snapshot, in a thread of their own;
nothing here touches a frame.

    EXTEND_TIMEOUT_USEC, STATUS   while kernels are compiled or loaded
    READY, STATUS                 once frames can come
    WATCHDOG, STATUS              every few seconds, but WATCHDOG only while ingest, workers and disks make
                                  progress: none of their calls has taken half of the watchdog's time W. So a
                                  disk that is stuck for 1.5 W ends the daemon; the next start resumes what
                                  was stored
    RELOADING ... READY, STATUS   around a reload, never after STOPPING
    STOPPING                      at the start of the end, then EXTEND_TIMEOUT_USEC while sealing progresses

A daemon without a manager has no such thread. The messages are those of sd_notify(3): lines ``NAME=value`` in
datagrams to a Unix socket.

    NOTIFY_SOCKET    /a/path, or @name in the abstract namespace
    WATCHDOG_USEC    time after a ping at which the manager ends the service; WATCHDOG_PID: of which
                     process

All three are removed from the environment, so that no child speaks for the daemon.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.model.display_text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

# of a value: systemd drops a datagram of more than 4096 bytes, and with it the READY or WATCHDOG beside a
# long STATUS
MOST_CHARACTERS = 1000
# after so long the message is dropped: a manager that does not read must never block the daemon
SEND_TIMEOUT_S = 5.0
LOOK_S = 5.0
START_EXTENSION_S = 600.0
EXTENSION_S = 30.0  # requested each time
MOST_IDLE_S = 120.0  # sealing without progress for so long (a disk that stays full) gets no more time
STUCK_S = 30.0  # without a watchdog: a call that takes longer is no progress


class NotifySocket:
    """The manager's socket. ``send`` may be called from any thread and never raises; ``on_failure`` is called
    once, with the first error."""

    def __init__(self, address: str, on_failure: Callable[[str], None]) -> None:
        if address[:1] not in ("/", "@") or len(address) < 2:
            raise ValueError(f"NOTIFY_SOCKET: expected an absolute path or @name, got {address!r}")
        self._address = "\0" + address[1:] if address[0] == "@" else address
        self._on_failure = on_failure
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_TIMEOUT_S)
        # keeps the lines of one thread in order; only threads that send wait for it
        self._lock = threading.Lock()
        self._failed = False

    def send(self, **lines: object) -> None:
        """Sends one datagram: ``send(READY=1, STATUS="2 cameras")``. Line breaks in a value become spaces,
        long ones are cut."""
        message = "\n".join(f"{name}={_one_short_line(value)}" for name, value in lines.items())
        with self._lock:
            try:
                self._socket.sendto(message.encode(errors="replace"), self._address)
            except OSError as error:
                if not self._failed:
                    self._failed = True
                    self._on_failure(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Manager:
    """The service manager according to the environment. ``watchdog_s`` None: no watchdog."""

    socket: NotifySocket
    watchdog_s: float | None = None


def take_manager(
    on_failure: Callable[[str], None], environment: MutableMapping[str, str] = os.environ
) -> Manager | None:
    """Returns the manager that has started this process, None without one. ``on_failure`` also gets variables
    that are invalid and ignored."""
    address, usec, watched = (
        environment.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    )
    if not address:
        return None
    try:
        notify = NotifySocket(address, on_failure)
    except ValueError as error:
        on_failure(str(error))
        return None
    if not usec or (watched and watched != str(os.getpid())):
        return Manager(notify)
    if not (usec.isascii() and usec.isdecimal() and int(usec) > 0):
        on_failure(f"WATCHDOG_USEC: expected microseconds, got {usec!r}")
        return Manager(notify)
    return Manager(notify, int(usec) / 1e6)


def _one_short_line(value: object) -> str:
    line = " ".join(str(value).splitlines())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def monotonic_usec() -> int:
    """Returns the time for RELOADING."""
    return time.monotonic_ns() // 1000


class ServiceManager:
    """The daemon's side of the service manager. ``run`` is its thread; the main thread calls ``ready``, the
    reload thread ``reloading`` and ``reloaded``."""

    def __init__(
        self,
        manager: Manager,
        snapshot: Callable[[], Mapping[str, Any]],
        emit: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._send = manager.socket.send
        self._watched = manager.watchdog_s is not None
        self._stuck_s = manager.watchdog_s / 2 if manager.watchdog_s else STUCK_S
        self._look_s = min(LOOK_S, manager.watchdog_s / 4) if manager.watchdog_s else LOOK_S
        self._snapshot = snapshot
        self._emit = emit
        self._remark = ""  # of the last reload, for as long as it holds
        self._stuck = False
        self._stopping = False
        # STOPPING is the last state that is sent; held for as long as one datagram takes
        self._order = threading.Lock()

    def starting(self, what: str) -> None:
        """Extends the time of the start for ``what``: a slow machine compiles for minutes."""
        self._send(EXTEND_TIMEOUT_USEC=round(START_EXTENSION_S * 1e6), STATUS=f"starting: {what}")

    def ready(self) -> None:
        self._send(READY=1, STATUS=status_text(self._snapshot()))

    def reloading(self) -> None:
        self._send_unless_stopping(RELOADING=1, MONOTONIC_USEC=monotonic_usec())

    def reloaded(self, result: str, remark: str) -> None:
        """Ends a reload. ``result``: its outcome. ``remark``: kept in the status until the next reload."""
        self._remark = remark
        self._send_unless_stopping(READY=1, STATUS=result)

    def run(self, stop: threading.Event, ended: threading.Event) -> None:
        """Sends messages until ``ended``; after ``stop`` STOPPING, and requests for the time that sealing
        takes."""
        while not stop.is_set():
            self._look()
            stop.wait(self._look_s)
        with self._order:
            self._stopping = True
            self._send(STOPPING=1, STATUS=self._status(self._snapshot()))
        moved, moved_s = None, time.monotonic()
        while not ended.is_set():
            snapshot = self._snapshot()
            if (now_moved := _moved(snapshot)) != moved:
                moved, moved_s = now_moved, time.monotonic()
            if (
                snapshot["acquisitions"]
                and snapshot["stall_s"] < self._stuck_s
                and time.monotonic() - moved_s < MOST_IDLE_S
            ):
                self._send(EXTEND_TIMEOUT_USEC=round(EXTENSION_S * 1e6), STATUS=self._status(snapshot))
            ended.wait(self._look_s)

    def _send_unless_stopping(self, **lines: object) -> None:
        with self._order:
            if not self._stopping:
                self._send(**lines)

    def _look(self) -> None:
        snapshot = self._snapshot()
        stuck = snapshot["stall_s"] >= self._stuck_s
        if self._watched and stuck != self._stuck:
            facts = {"stall_s": round(snapshot["stall_s"], 1), "limit_s": self._stuck_s}
            hint = "If it stays stuck, the watchdog ends this daemon; stored frames survive that"
            self._emit(
                "stuck_warning" if stuck else "stuck_no_more", {**facts, "hint": hint} if stuck else facts
            )
        self._stuck = stuck
        ping = {"WATCHDOG": 1} if self._watched and not stuck else {}
        self._send(**ping, STATUS=self._status(snapshot))

    def _status(self, snapshot: Mapping[str, Any]) -> str:
        return status_text(snapshot) + (f"; {self._remark}" if self._remark else "")


def status_text(snapshot: Mapping[str, Any]) -> str:
    """Returns one line for ``systemctl status``: frames, rate, ring, disk, and problems."""
    running = snapshot["acquisitions"]
    frames = snapshot["sums"]["frames_received"]
    parts = [f"{len(running)} acquisition{'' if len(running) == 1 else 's'}", f"{frames:,} frames"]
    if running:
        parts += [
            f"{snapshot['rate_hz']:,.1f} frames/s, {format_bytes(snapshot['bytes_per_s'])}/s",
            f"ring {max(one['ring_fill'] for one in running):.0%} full",
        ]
    parts += [_disk_text(disk) for disk in snapshot["disks"]]
    if snapshot["stall_s"] >= 1:
        parts.append(f"a call has taken {snapshot['stall_s']:.0f} s so far")
    return f"{snapshot['state']}: {', '.join(parts)}"


def _disk_text(disk: Mapping[str, Any]) -> str:
    name = "disk" if disk["role"] == "root" else f"{disk['role']} disk"
    if disk["free_bytes"] is None:
        return f"{name} does not answer"
    low = " (LOW)" if disk["free_bytes"] < disk["low_water_bytes"] else ""
    return f"{name} {format_bytes(disk['free_bytes'])} free{low}"


def _moved(snapshot: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns counters that change whenever sealing makes progress."""
    counted = (snapshot["sums"][name] for name in ("frames_stored", "frames_durable", "shards_sealed"))
    return (len(snapshot["acquisitions"]), *counted)
