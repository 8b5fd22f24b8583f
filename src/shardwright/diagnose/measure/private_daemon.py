"""A daemon with the user's configuration, but an output folder and sockets of its own, for measuring: whoever
may be acquiring is not touched."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.client import connect
from shardwright.daemon.child import end_child, start_child, take
from shardwright.model.errors import SessionLostError, StorageError

if TYPE_CHECKING:
    import subprocess
    from types import TracebackType

    from shardwright.client.connection import Connection
    from shardwright.config.model import Config
    from shardwright.storage.slot_file import IoMode

    from .results import Transport

START_TIMEOUT_S = 120.0  # a first start compiles the kernels
_END_TIMEOUT_S = 30.0


def private_configuration(
    config: Config, root: Path, endpoint: str, io: IoMode, ring_frames: dict[str, int]
) -> dict[str, Any]:
    """What such a daemon is told: every limit but the rings as the user has it; nobody else may come, and
    nothing but acquiring is done."""
    facts = config.model_dump(mode="json")
    facts["output"] |= {"root": str(root), "io": io, "create": False, "spill_root": None, "in_memory": True}
    facts["ingest"] |= {
        "endpoints": [endpoint],
        "ring_socket": "auto",
        "group": None,
        "curve": None,
        "insecure": False,
    }
    facts["control"] = {"socket": "none"}
    facts["compaction"] = {"enabled": False}
    facts["http"] = {"enabled": False}
    facts["log"] = {"format": "json", "level": "error"}
    facts["reliability"] |= {"overload": "block", "on_full": "fail"}
    for stream in facts["streams"]:
        stream |= {"overload": None, "on_full": None, "ring_frames": ring_frames[stream["name"]]}
    return facts


class PrivateDaemon:
    """Started by the constructor, ended by ``close``, or with this process. A context manager; the thread
    that makes it must outlive it.

    Raises ``StorageError`` when it does not start.
    """

    def __init__(self, config: Config, root: Path, io: IoMode, ring_frames: dict[str, int]) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix="sw-"))  # short enough for a socket's address
        self._endpoint = f"ipc://{self._sockets}/ingest.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = b""
        try:
            path = self._sockets / "plan.yaml"
            path.write_text(
                json.dumps(private_configuration(config, root, self._endpoint, io, ring_frames)),
                encoding="utf-8",
            )  # JSON is YAML
            self._process = start_child([sys.executable, "-m", "shardwright.cli", "serve", str(path)])
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def connect(self, transport: Transport) -> Connection:
        """A camera's connection. Raises ``SessionLostError``."""
        assert transport != "in-process"
        return connect(self._endpoint, transport=transport, reconnect_timeout_ms=0)

    def why(self) -> str:
        """What it said last on its way down."""
        process = self._process
        if (
            process is not None
            and process.stdout is not None
            and process.stderr is not None
            and not process.stderr.closed
        ):
            self._errors += take(process.stdout) + take(process.stderr)
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing was said"

    def close(self) -> None:
        if self._process is not None:
            end_child(self._process, _END_TIMEOUT_S)
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def __enter__(self) -> PrivateDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        until_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                connect(self._endpoint, timeout_ms=200, reconnect_timeout_ms=0).close()
            except SessionLostError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > until_s:
                    raise StorageError(
                        "the daemon to measure with did not start",
                        got=self.why(),
                        hint="Does `shardwright serve` start with this configuration?",
                    ) from None
            else:
                return
