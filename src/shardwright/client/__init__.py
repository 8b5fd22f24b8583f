"""The camera's side: ``connect`` to a daemon, ``acquire`` a stream, ``append`` frames, read the receipt.

Runs on Linux, Windows and macOS with Python, numpy, pyzmq and pydantic; shared memory is used where daemon
and camera run on one Linux machine.
"""

from .connection import Connection, connect
from .curve import Curve
from .stream import Stream

__all__ = ["Connection", "Curve", "Stream", "connect"]
