"""Which ZeroMQ this is, and what it was built with."""

from __future__ import annotations

from dataclasses import dataclass

import zmq


@dataclass(frozen=True)
class ZmqLibrary:
    """libzmq itself, not its Python binding."""

    version: tuple[int, ...]
    has_ipc: bool
    has_curve: bool


def zmq_library() -> ZmqLibrary:
    return ZmqLibrary(zmq.zmq_version_info(), zmq.has("ipc"), zmq.has("curve"))
