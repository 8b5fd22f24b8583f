"""The settings of an ingest server: endpoints, limits, and the streams that it knows by name.
``Config.ingest_settings`` builds them; the defaults of what a user may configure stand in the configuration
alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.write_settings import WriteSettings

    from .transport.allow_list import Access


@dataclass(frozen=True)
class StreamSettings:
    """A camera known by name, with the array that it sends. ``ring_frames`` None: derived from the layout."""

    name: str
    spec: AcquisitionSpec
    ring_frames: int | None
    write: WriteSettings


@dataclass(frozen=True)
class IngestSettings:
    """Fields that are named as in the configuration mean the same."""

    endpoints: tuple[str, ...]
    ring_socket: Path | None  # None: no shared memory, pixels travel in messages
    group: str | None  # whose members may connect over Unix sockets; None: this user only
    access: Access | None  # None: every client that reaches a TCP endpoint may connect
    heartbeat_ms: int
    session_timeout_ms: int
    handshake_timeout_ms: int
    max_message_bytes: int
    max_connections: int
    max_sessions: int
    max_sessions_per_client: int
    max_descriptors: int  # of all open acquisitions together
    memory_budget_bytes: int  # of all open acquisitions together
    resume_timeout_ms: int  # how long an acquisition whose client is gone stays open for it
    allow_client_specs: bool
    output_root: Path
    write: WriteSettings  # of acquisitions without a named stream
    streams: tuple[StreamSettings, ...] = ()
    max_control_bytes: int = 256 << 10
    max_batch_frames: int = 1024

    @property
    def descriptors_per_acquisition(self) -> int:
        """The most descriptors of one acquisition, such that all can be open at once."""
        return self.max_descriptors // self.max_sessions
