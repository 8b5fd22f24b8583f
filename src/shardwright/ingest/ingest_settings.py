"""What an ingest server may do: endpoints, limits and the streams it knows by name. Frozen; filled by whoever
reads the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.acquire.settings import WriteSettings

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.spec import ArraySpec

    from .transport.allow_list import AllowList


@dataclass(frozen=True)
class Access:
    """CURVE on the TCP endpoints: the daemon's secret key, and who is let in at first;
    ``IngestServer.reload_clients`` reads the folder again."""

    secret_key: bytes = field(repr=False)
    clients: AllowList


@dataclass(frozen=True)
class IngestSettings:
    """``ring_socket`` None: no shared memory, pixels travel in messages. ``memory_budget_bytes`` is for all
    open acquisitions together. ``resume_timeout_ms``: how long an acquisition whose client is gone stays open
    for it. ``write``: how frames of no named stream are treated. ``access`` None: whoever reaches a TCP
    endpoint is let in. ``max_descriptors`` is for all open acquisitions together; None: as the system says.
    ``group``: whose members may connect over Unix sockets; None: this user only."""

    endpoints: tuple[str, ...]
    output_root: Path
    memory_budget_bytes: int
    ring_socket: Path | None = None
    heartbeat_ms: int = 1000
    session_timeout_ms: int = 10_000
    max_message_bytes: int = 64 << 20
    max_control_bytes: int = 256 << 10
    max_batch_frames: int = 1024
    max_sessions: int = 16
    max_sessions_per_client: int = 8
    max_connections: int = 64
    handshake_timeout_ms: int = 5000
    max_descriptors: int | None = None
    access: Access | None = None
    group: str | None = None
    allow_client_specs: bool = True
    resume_timeout_ms: int = 60_000
    write: WriteSettings = field(default_factory=WriteSettings)

    @property
    def descriptors_per_acquisition(self) -> int | None:
        """So many that all may be open at once."""
        return None if self.max_descriptors is None else self.max_descriptors // self.max_sessions


@dataclass(frozen=True)
class StreamPolicy:
    """A camera known by name. ``spec`` None: the client brings the array, only the place and the ring are
    settled here."""

    name: str
    spec: ArraySpec | None
    output_root: Path
    ring_frames: int | None = None
    write: WriteSettings = field(default_factory=WriteSettings)
