"""shardwright's daemon in a process of its own, with the number of threads it chooses itself; this process is its camera."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import yaml

import shardwright as sw
from benchmarks.contender import Contender, check_last_shard
from shardwright.config.load import load_config
from shardwright.config.plan import make_plan


class DaemonSharedMemory(Contender):
    kind = "ours"
    transport: Literal["shm", "message"] = "shm"

    def start(self, folder: Path) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix="shardwright-bench-"))
        config = {
            "output": {"root": str(folder), "in_memory": True},
            "ingest": {"endpoints": [f"ipc://{self._sockets}/ingest.sock"]},
            "streams": [{"name": "bench", "array": self.case.spec().model_dump(mode="json")}],
        }
        path = self._sockets / "bench.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self._planned_memory_bytes = make_plan(load_config(path)).memory_peak_bytes
        self._daemon = subprocess.Popen([sys.executable, "-m", "shardwright.cli", "serve", str(path)], stdout=sys.stderr)
        self._connection = sw.connect(f"ipc://{self._sockets}/ingest.sock", timeout_ms=60_000, transport=self.transport)

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
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait(30)
        shutil.rmtree(self._sockets)

    def processes(self) -> list[int]:
        return [self._daemon.pid, os.getpid()]

    def frames_held_bytes(self) -> int:
        return 0  # the daemon holds none of the bench's frames

    def planned_memory_bytes(self) -> int:
        return self._planned_memory_bytes


class DaemonMessage(DaemonSharedMemory):
    transport = "message"
