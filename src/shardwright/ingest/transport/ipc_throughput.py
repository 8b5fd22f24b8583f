"""The ipc throughput of this machine: how fast messages with pixels go through a Unix socket, ZeroMQ's two
ends with nothing behind them."""

from __future__ import annotations

import tempfile
import threading
import time
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUED_MESSAGES = 16
_PATIENCE_MS = 10_000


def ipc_rate(messages: Sequence[memoryview], seconds: float) -> tuple[float, int]:
    """Returns (seconds, bytes received) while ``messages`` were sent in turn for about ``seconds``, at least
    one of them; received without a further copy."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder, zmq.Context() as context:
        endpoint = f"ipc://{folder}/s"
        with context.socket(zmq.PAIR) as receiver, context.socket(zmq.PAIR) as sender:
            for end in (receiver, sender):
                end.set_hwm(QUEUED_MESSAGES)
                end.linger = 0
                end.rcvtimeo = end.sndtimeo = _PATIENCE_MS
            receiver.bind(endpoint)
            sender.connect(endpoint)
            until_s = time.monotonic() + seconds
            thread = threading.Thread(
                target=_send, args=(sender, messages, until_s), name="ipc-throughput", daemon=True
            )
            begin_s, received = time.monotonic(), 0
            thread.start()
            while size := len(receiver.recv(copy=False)):
                received += size
            took_s = time.monotonic() - begin_s
            thread.join()
    return took_s, received


def _send(sender: zmq.Socket[bytes], messages: Sequence[memoryview], until_s: float) -> None:
    """The last message is empty: the end."""
    number = 0
    while not number or time.monotonic() < until_s:
        sender.send(messages[number % len(messages)], copy=False)
        number += 1
    sender.send(b"")
