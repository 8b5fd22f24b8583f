"""The web process: ``python -m shardwright.web SETTINGS``, started only by the daemon (web_child.py)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import sys

from shardwright.daemon.web_child import WebSettings

from .connections import DESCRIPTORS, serve
from .daemon_link import DaemonLink
from .web_app import make_app

NICE = 5  # behind the daemon's threads
STDOUT = 1
PULSE_S = 1.0


def yield_to_daemon() -> None:
    """Lowers this process's priority and descriptor limit, since the daemon comes first."""
    os.nice(NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most), most),
    )


async def pulse() -> None:
    """Writes a byte every second, by which the daemon sees that the loop runs."""
    while True:
        with contextlib.suppress(BlockingIOError):
            os.write(STDOUT, b".")
        await asyncio.sleep(PULSE_S)


async def run(settings: WebSettings, listener: socket.socket) -> None:
    link = DaemonLink(settings.control_socket, settings.preview_hz)
    beside = [asyncio.create_task(work) for work in (pulse(), link.keep_watching())]
    try:
        await serve(make_app(settings, link), listener)
    finally:
        for task in beside:
            task.cancel()


def main() -> None:
    yield_to_daemon()
    # to standard error, which the daemon reads
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    settings = WebSettings.from_json(sys.argv[1])
    listener = socket.socket(fileno=settings.descriptor)
    listener.setblocking(False)
    os.set_blocking(STDOUT, False)
    asyncio.run(run(settings, listener))


if __name__ == "__main__":
    main()
