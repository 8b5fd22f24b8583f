"""The daemon's sockets: clients, sessions, credit. One thread, one poll loop; the pipeline does the work."""

from .server import IngestServer
from .settings import IngestSettings, StreamPolicy

__all__ = ["IngestServer", "IngestSettings", "StreamPolicy"]
