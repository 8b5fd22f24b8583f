"""The camera's side: ``connect`` to a daemon, ``acquire`` a stream, ``append`` frames, read the receipt.

The way of a frame from the user to the socket, and who owns what:

    Stream          the user's calls; copies the pixels into a slot of the ring       any thread of the user
    Outbox          whose turn it is to take slots and numbers; the end               any thread, one lock
      SendQueue     every slot and every frame, from its number to its release        under that lock
    Link            the session: frames become messages, ACKs become releases         the I/O thread
    IoThread        the connection, the next one, and what is resumed over it         the I/O thread
      DaemonSocket  one connection of ZeroMQ                                          the I/O thread

Runs on Linux, Windows and macOS with Python, numpy, pyzmq and pydantic; shared memory is used where daemon
and camera run on one Linux machine.
"""

from .connection import Connection, connect
from .curve import Curve
from .stream import Stream

__all__ = ["Connection", "Curve", "Stream", "connect"]
