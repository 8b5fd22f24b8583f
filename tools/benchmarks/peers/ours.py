"""shardwright in this process, and its daemon with this process as the camera, with the number of threads it
chooses itself.

Three ways to hand a frame over: ``append`` copies it; ``append(copy=False)`` has it read where it lies, among
the bench's frames; with ``claim`` the camera writes it into the slot, and that copy is counted as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import shardwright as sw
from benchmarks.peers import Contender, check_last_shard
from benchmarks.testbed import Daemon, Sink
from shardwright.acquire.limits import Limits, default_threads
from shardwright.client.stream import Stream
from shardwright.kernels.copy import copy_streaming
from shardwright.model.write_options import IoMode
from shardwright.writer.writer import Writer


class InProcess(Contender):
    kind = "ours"
    io: IoMode = "auto"
    levels = 0  # of 2 x 2 means

    def spec(self) -> sw.ArraySpec:
        return self.case.spec().model_copy(
            update={"levels": sw.Levels(count=self.levels) if self.levels else None}
        )

    def write(self, path: Path) -> int:
        with sw.create(path, self.spec(), settings=sw.WriteSettings(io=self.io)) as writer:
            self.send(writer)
        assert writer.receipt.frames_durable == self.case.frames
        return writer.receipt.bytes_stored

    def send(self, writer: Writer) -> None:
        for i in range(self.case.frames):
            writer.append(self.frame(i))

    def verify(self, path: Path) -> None:
        check_last_shard(path / "0", self)

    def planned_memory_bytes(self) -> int:
        return Limits.derive(self.spec(), threads=default_threads()).memory_bytes


class InProcessLevels(InProcess):
    """As many as acquire-zarr makes of this image: until a level is one chunk."""

    levels = 3


class InProcessMapped(InProcess):
    """Through the page cache, as peers that do not use O_DIRECT."""

    io = "mmap"


class InProcessPwrite(InProcess):
    io = "pwrite"


class InProcessDirect(InProcess):
    io = "direct"


class InProcessUncopied(InProcess):
    def send(self, writer: Writer) -> None:
        for i in range(self.case.frames):
            writer.append(self.frame(i), copy=False)


def fill_claims(contender: Contender, sink: Sink) -> None:
    """The camera's driver: one copy, past the caches, as cheap as they come."""
    for i in range(contender.case.frames):
        frame = contender.frame(i)
        with sink.claim() as pixels:
            copy_streaming(pixels.ctypes.data, frame.ctypes.data, frame.nbytes)


class InProcessClaim(InProcess):
    def send(self, writer: Writer) -> None:
        fill_claims(self, writer)


class DaemonSharedMemory(Contender):
    kind = "ours"
    transport: Literal["shm", "message"] = "shm"

    def start(self, folder: Path) -> None:
        self._daemon = Daemon(folder, [{"name": "bench", "array": self.case.spec().model_dump(mode="json")}])
        self._connection = sw.connect(self._daemon.endpoint, timeout_ms=60_000, transport=self.transport)

    def write(self, path: Path) -> int:
        with self._connection.acquire(path.name, stream="bench") as stream:
            self.send(stream)
        assert stream.receipt.frames_durable == self.case.frames
        self._written = Path(stream.path)
        return stream.receipt.bytes_stored

    def send(self, stream: Stream) -> None:
        for i in range(self.case.frames):
            stream.append(self.frame(i))

    def verify(self, path: Path) -> None:
        check_last_shard(self._written / "0", self)

    def stop(self) -> None:
        self._connection.close()
        self._daemon.stop()

    def processes(self) -> list[int]:
        return [self._daemon.pid, os.getpid()]

    def frames_held_bytes(self) -> int:
        return 0  # the daemon holds none of the bench's frames

    def planned_memory_bytes(self) -> int:
        return self._daemon.planned_memory_bytes


class DaemonMessage(DaemonSharedMemory):
    transport = "message"


class DaemonClaim(DaemonSharedMemory):
    def send(self, stream: Stream) -> None:
        fill_claims(self, stream)
