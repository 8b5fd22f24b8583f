"""The door for Micro-Manager (extra ``micromanager``): what pymmcore-plus acquires, into a store.

images       the images and axes of a useq sequence, or of events that come one by one
sink         frames of the engine to a writer or a stream; ``acquire`` runs the engine into it
__main__     ``python -m shardwright.integrations.micromanager``
"""

from __future__ import annotations

from shardwright.model.extras import naming_missing_extra

with naming_missing_extra("shardwright.integrations.micromanager"):
    from .images import EventImages, SequenceImages
    from .sink import Sink, acquire

__all__ = ["EventImages", "SequenceImages", "Sink", "acquire"]
