"""Feels a daemon's pulse from a process of its own: how long it is silent between two heartbeats.

    python -m tests.faults.pulse ENDPOINT       a line of JSON after the welcome: ready; and one when standard
                                                input ends: beats, longest_gap_ms

Speaks the wire protocol by hand: nothing of the client library stands between the socket and the clock.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import zmq

from shardwright.wire.controls import Hello
from shardwright.wire.messages import CONNECTION, Counter, Kind, decode_control, decode_header


def main() -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(sys.argv[1])
    channel = Counter(CONNECTION)
    socket.send_multipart(channel.control(Kind.HELLO, Hello("pulse", "here", 1).to_body()))
    welcome = socket.recv_multipart()
    assert decode_header(welcome[0]).kind is Kind.WELCOME
    beat_s = decode_control(welcome[1])["heartbeat_ms"] / 1000
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    beats, longest_s, heard_s, sent_s = 0, 0.0, time.monotonic(), 0.0
    while not over.is_set():
        if time.monotonic() - sent_s >= beat_s:
            socket.send_multipart(channel.control(Kind.HEARTBEAT))
            sent_s = time.monotonic()
        if socket.poll(round(1000 * beat_s / 2) or 1):
            header = decode_header(socket.recv_multipart()[0])
            now_s = time.monotonic()
            assert header.kind is Kind.HEARTBEAT, header.kind
            beats, longest_s, heard_s = beats + 1, max(longest_s, now_s - heard_s), now_s
    longest_s = max(longest_s, time.monotonic() - heard_s)
    print(json.dumps({"beats": beats, "longest_gap_ms": round(1000 * longest_s, 1)}), flush=True)
    context.destroy(linger=0)


if __name__ == "__main__":
    main()
