"""A daemon that keeps nothing, and may say anything: its answers are made by the real code, then spoilt."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import zmq
from tests.harness.ack_ranges import encode_ranges
from tests.harness.frames import array_spec

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.model.machine import boot_id
from shardwright.model.receipt import Receipt
from shardwright.wire.controls import Opened, Welcome
from shardwright.wire.messages import (
    CONNECTION,
    Counter,
    Header,
    Kind,
    Level,
    decode_control,
    decode_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Messages = list[list[bytes]]
    Spoil = Callable[[Kind, Messages], Messages]

SESSION = 0x8123456789ABCDEF
SLOTS = 16
SPEC = parse_acquisition(array_spec()).to_json(for_client=True)
SLOT_BYTES = 32 * 48 * 2


def welcome_body(ring_socket: str | None = None) -> dict[str, Any]:
    return Welcome(
        boot_id=boot_id() if ring_socket else None,
        ring_socket=ring_socket,
        heartbeat_ms=50,
        session_timeout_ms=60_000,
        max_message_bytes=1 << 28,
        max_control_bytes=1 << 20,
        max_batch_frames=1024,
        software="fake",
        resume_timeout_ms=1000,
        instance="a" * 32,
    ).to_body()


def opened_body(request: int, *, shared: bool = False) -> dict[str, Any]:
    return Opened(
        request=request,
        path="/data/a.ome.zarr",
        spec=SPEC,
        transport="shm" if shared else "message",
        credit_bytes=SLOTS * SLOT_BYTES,
        ring_slots=SLOTS,
        slot_bytes=SLOT_BYTES,
        ring_token="b" * 32 if shared else None,
        acquisition="c" * 32,
        client_epoch=1,
        next_sequence=0,
        missing=(),
        overload="block",
        durability="stored",
    ).to_body()


def receipt_body(frames: int) -> dict[str, Any]:
    return {"receipt": Receipt("/data/a.ome.zarr", frames, frames, frames, *[0] * 6).to_dict()}


class FakeDaemon:
    """``spoil`` gets the messages of each answer and returns those to send instead; it may be replaced at any
    time. ``ring``: makes the answer to a ring request, with files that are sent along, or None to hang up."""

    def __init__(
        self, folder: Path, *, ring: Callable[[], tuple[bytes, list[int]] | None] | None = None
    ) -> None:
        self.endpoint = f"ipc://{folder}/fake.sock"
        self.spoil: Spoil = lambda _, messages: messages
        self._ring = ring
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.bind(self.endpoint)
        self._path = str(folder / "ring.sock")
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._serve)]
        self._listener: socket.socket | None = None
        if ring is not None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(self._path)
            self._listener.listen()
            self._threads.append(threading.Thread(target=self._hand_over))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        if self._listener is not None:
            self._listener.close()
        self._router.close()
        self._context.term()

    def _serve(self) -> None:
        counters: dict[bytes, tuple[Counter, Counter]] = {}
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            client, *parts = self._router.recv_multipart()
            header = decode_header(parts[0])
            if header.kind is Kind.HELLO:
                counters[client] = Counter(CONNECTION), Counter(SESSION)
            messages = self._answer(*counters[client], header, parts[1:])
            for message in self.spoil(header.kind, messages):
                self._router.send_multipart([client, *message])

    def _answer(self, connection: Counter, session: Counter, header: Header, parts: list[bytes]) -> Messages:
        shared = self._ring is not None
        if header.kind is Kind.HELLO:
            return [connection.control(Kind.WELCOME, welcome_body(self._path if shared else None))]
        if header.kind is Kind.OPEN:
            request = decode_control(parts[0])["request"]
            return [session.control(Kind.OPENED, opened_body(request, shared=shared))]
        if header.kind is Kind.FRAMES:
            first = struct.unpack_from("<Q", parts[0], 16)[0]
            last = first + header.count - 1
            ranges = [(Level.RELEASED, first, last), (Level.STORED, 0, last), (Level.DURABLE, 0, last)]
            return [session.message(Kind.ACK, [encode_ranges(ranges)], count=3)]
        if header.kind is Kind.FINISH:
            return [session.control(Kind.RECEIPT, receipt_body(decode_control(parts[0])["frames"]))]
        return [connection.control(Kind.HEARTBEAT)] if header.kind is Kind.HEARTBEAT else []

    def _hand_over(self) -> None:
        assert self._listener is not None
        assert self._ring is not None
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                if not connection.recv(32):
                    continue  # it only asked whether somebody listens
                answer = self._ring()
                if answer is not None:
                    data, files = answer
                    socket.send_fds(connection, [data], files)
                    for file in files:
                        os.close(file)
