"""shardwright in this process, with the number of threads it chooses itself."""

from __future__ import annotations

from pathlib import Path

import shardwright as sw
from benchmarks.peers.contender import Contender, check_last_shard
from shardwright.acquire.limits import Limits, default_threads
from shardwright.storage.slot_file import IoMode


class InProcess(Contender):
    kind = "ours"
    io: IoMode = "auto"

    def write(self, path: Path) -> int:
        with sw.create(path, self.case.spec(), io=self.io) as writer:
            for i in range(self.case.frames):
                writer.append(self.frame(i))
        assert writer.receipt.frames_durable == self.case.frames
        return writer.receipt.bytes_stored

    def verify(self, path: Path) -> None:
        check_last_shard(path / "0", self)

    def planned_memory_bytes(self) -> int:
        return Limits.derive(self.case.spec(), threads=default_threads()).memory_bytes


class InProcessMapped(InProcess):
    """Through the page cache, as peers that do not use O_DIRECT."""

    io = "mmap"


class InProcessPwrite(InProcess):
    io = "pwrite"


class InProcessDirect(InProcess):
    io = "direct"
