"""shardwright's daemon in a process of its own, with the number of threads it chooses itself; this process is
its camera."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import shardwright as sw
from benchmarks.peers.contender import Contender, check_last_shard
from benchmarks.testbed import Daemon


class DaemonSharedMemory(Contender):
    kind = "ours"
    transport: Literal["shm", "message"] = "shm"

    def start(self, folder: Path) -> None:
        self._daemon = Daemon(folder, [{"name": "bench", "array": self.case.spec().model_dump(mode="json")}])
        self._connection = sw.connect(self._daemon.endpoint, timeout_ms=60_000, transport=self.transport)

    def write(self, path: Path) -> int:
        with self._connection.acquire(path.name, stream="bench") as stream:
            for i in range(self.case.frames):
                stream.append(self.frame(i))
        assert stream.receipt.frames_durable == self.case.frames
        self._written = Path(stream.path)
        return stream.receipt.bytes_stored

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
