"""A daemon in a process of its own that is stopped, or killed and started again over one root."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from shardwright.daemon.control_client import ControlClient

from .daemon import DaemonProcess
from .daemon_config import write_config
from .store_contents import stored

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

DIES_AT = """
import os, signal
from shardwright.disk import failpoints
failpoints.set_hook("{}", lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


class RestartedDaemon:
    """``start`` and ``kill`` daemons over one root."""

    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir()
        self._folder = folder
        self.endpoint = f"ipc://{folder}/in.sock"
        self._daemon: DaemonProcess | None = None

    def start(self, *, dies_at: str | None = None, **facts: Any) -> None:
        """``dies_at``: at the first such storage call. ``facts`` are those of ``write_config``."""
        config = write_config(self._folder, self._folder / "data", **facts)
        sabotage = "" if dies_at is None else DIES_AT.format(dies_at)
        self._daemon = DaemonProcess(config, sabotage=sabotage)
        assert self._daemon.ready

    def control(self) -> ControlClient:
        assert self._daemon is not None
        return ControlClient(self._daemon.ready["control_socket"], timeout_s=60)

    def signal(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.signal(number)

    def kill(self) -> None:
        if self._daemon is not None:
            self.signal(signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Until it has ended: its exit code."""
        assert self._daemon is not None
        with self._daemon as daemon:
            self._daemon = None
            return daemon.exit_code()

    def path(self, name: str = "a") -> Path:
        return self._folder / "data" / f"{name}.ome.zarr"

    def stored(self, name: str = "a") -> np.ndarray[Any, Any]:
        return stored(self.path(name))
