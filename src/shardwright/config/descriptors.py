"""The open files that the acquisitions of a daemon may share, once its connections have theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.acquire.limits import SPARE_DESCRIPTORS, most_descriptors

if TYPE_CHECKING:
    from .model import Ingest


def descriptors_for_acquisitions(ingest: Ingest) -> int:
    """Of those that this process may open at most. 0 or less: not even the connections fit."""
    from shardwright.ingest.transport.endpoints import connection_descriptors

    return (
        most_descriptors()
        - SPARE_DESCRIPTORS
        - connection_descriptors(ingest.endpoints, ingest.max_connections)
    )
