"""The daemon's sockets: clients, sessions, credit. One thread, one poll loop; the pipeline does the work."""

from .ingest_settings import IngestSettings, StreamSettings
from .server import IngestServer

__all__ = ["IngestServer", "IngestSettings", "StreamSettings"]
