"""shardwright: an acquisition writer for microscope rigs.

Frames go in, OME-Zarr 0.5 stores of sharded Zarr v3 arrays come out. ``create`` writes in this process
(``resume`` after a crash), ``connect`` through the daemon. Both are loaded when first used, so that a
camera's process on any system imports neither numba nor blosc2 nor anything Linux-only. ``connect`` is all
that ``pip install shardwright`` has to work; ``create`` and ``resume`` need ``shardwright[daemon]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .array.acquisition_spec import AcquisitionSpec, Image, Plate
from .array.default_layout import default_layout
from .array.frame_claim import FrameClaim
from .array.spec import ArraySpec, Blosc, Channel, Dimension, Gzip, Levels, Zstd
from .model import errors
from .model.receipt import Receipt, Watermark
from .model.write_settings import WriteSettings

if TYPE_CHECKING:
    from .client import Curve, connect
    from .edit.chunk_store import ChunkStore
    from .edit.region_edit import erase, update
    from .read.data_frame import frame_table
    from .read.live import follow, open  # noqa: A004
    from .writer.in_process import create, release_memory, resume

__version__ = "0.2.0"
__all__ = [
    "AcquisitionSpec",
    "ArraySpec",
    "Blosc",
    "Channel",
    "ChunkStore",
    "Curve",
    "Dimension",
    "FrameClaim",
    "Gzip",
    "Image",
    "Levels",
    "Plate",
    "Receipt",
    "Watermark",
    "WriteSettings",
    "Zstd",
    "connect",
    "create",
    "default_layout",
    "erase",
    "errors",
    "follow",
    "frame_table",
    "open",
    "release_memory",
    "resume",
    "update",
]


def __getattr__(name: str) -> Any:
    if name in ("create", "release_memory", "resume"):
        from .writer import in_process

        return getattr(in_process, name)
    if name == "frame_table":
        from .read.data_frame import frame_table

        return frame_table
    if name == "ChunkStore":
        from .edit.chunks import chunk_store_class

        return chunk_store_class()
    if name in ("erase", "update"):
        from .edit import region_edit

        return getattr(region_edit, name)
    if name in ("follow", "open"):
        from .read import live

        return getattr(live, name)
    if name in ("connect", "Curve"):
        from . import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
