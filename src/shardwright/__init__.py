"""shardwright: an acquisition writer for microscope rigs.

Frames go in, OME-Zarr 0.5 stores of sharded Zarr v3 arrays come out. ``create`` makes a ``Writer`` in this
process (``resume`` after a crash; ``save`` writes what is there in one call), ``connect`` leads to a
``Stream`` through the daemon: both have the same methods. All of it is loaded when first used, NumPy and
pydantic too: a program that may record waits for none of it as it starts, and a camera's process on any
system imports neither numba nor blosc2 nor anything Linux-only. ``connect`` is all that ``pip install
shardwright`` has to work; ``create``, ``save`` and ``resume`` need ``shardwright[daemon]``.

Examples in docstrings begin after ``import numpy as np`` and ``import shardwright as sw``.

A folder is a room, and imports only rooms below it in this list:

    cli           the command line: one module for each command
    web           the web process: status page, metrics, stores for viewers
    diagnose      ``shardwright check``: will a configuration run here, will it keep up
    integrations  doors for other projects, each importable alone
    daemon        the running service: how its rooms are joined, lifecycle, events, control socket
    config        YAML to settings, and the plan derived from them
    simulate      cameras whose frames can be drawn again
    client        the camera's side of the daemon
    ingest        the daemon's sockets, clients, sessions and credit
    writer        the in-process API: create, save, resume, append, claim
    rework        changes of finished stores: pack, rechunk, pyramid, update, erase, move
    recovery      unfinished stores: scan, decide, execute; resume, take over
    acquire       frames to sealed shards: the core, workers and the sealer
    store         the folder of a store: create, own, publish, metadata, frame table
    read          stores for readers, finished or growing; verification
    scan          the files of an unfinished store, as facts
    foreign       older spellings of arrays, as documents of Zarr v3
    kernels       numba functions without the GIL, on arrays and scalars
    codecs        the codecs of inner chunks: metadata, worst sizes, C functions
    shard         shards and their journals (FORMAT.md)
    array         the description of an array: specification, chunk grid, zarr.json, OME-Zarr
    wire          the protocol of client and daemon (PROTOCOL.md), without I/O
    remote        buckets, HTTP ranges, zip files
    disk          the only access to the filesystem; failpoints
    model         errors, receipts, settings and names; standard library only
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .model import errors
from .model.extras import class_of_extra
from .model.versions import VERSION

if TYPE_CHECKING:
    from .array.acquisition_spec import AcquisitionSpec, Image
    from .array.default_layout import default_layout
    from .array.frame_claim import FrameClaim
    from .array.plate import Plate
    from .array.spec import ArraySpec, Blosc, Channel, Dimension, Gzip, Levels, Zstd
    from .client import Connection, Curve, Stream, connect
    from .config.estimate import Estimate, estimate
    from .model.receipt import Receipt, Watermark
    from .model.write_settings import WriteSettings
    from .read.array_view import ArrayView
    from .read.data_frame import frame_table
    from .read.followed_frame import FollowedFrame
    from .read.reader_api import follow, open, open_array, open_xarray, shard_regions  # noqa: A004
    from .read.zarr_store import LiveStore
    from .rework.acquisitions import acquisitions
    from .rework.chunks.chunk_store import ChunkStore
    from .rework.edit.metadata_edit import update_metadata
    from .rework.edit.region_changes import RegionReport
    from .rework.edit.region_edit import erase, update
    from .writer.in_process import create, release_memory, resume, save
    from .writer.writer import Writer

__version__ = VERSION
__all__ = [
    "AcquisitionSpec",
    "ArraySpec",
    "ArrayView",
    "Blosc",
    "Channel",
    "ChunkStore",
    "Connection",
    "Curve",
    "Dimension",
    "Estimate",
    "FollowedFrame",
    "FrameClaim",
    "Gzip",
    "Image",
    "Levels",
    "LiveStore",
    "Plate",
    "Receipt",
    "RegionReport",
    "Stream",
    "Watermark",
    "WriteSettings",
    "Writer",
    "Zstd",
    "acquisitions",
    "connect",
    "create",
    "default_layout",
    "erase",
    "errors",
    "estimate",
    "follow",
    "frame_table",
    "open",
    "open_array",
    "open_xarray",
    "release_memory",
    "resume",
    "save",
    "shard_regions",
    "update",
    "update_metadata",
]
_WHEN_USED = {
    **dict.fromkeys(("AcquisitionSpec", "Image"), "array.acquisition_spec"),
    "Plate": "array.plate",
    **dict.fromkeys(("ArraySpec", "Blosc", "Channel", "Dimension", "Gzip", "Levels", "Zstd"), "array.spec"),
    **dict.fromkeys(("Connection", "Curve", "Stream", "connect"), "client"),
    **dict.fromkeys(("create", "release_memory", "resume", "save"), "writer.in_process"),
    **dict.fromkeys(("erase", "update"), "rework.edit.region_edit"),
    **dict.fromkeys(("Estimate", "estimate"), "config.estimate"),
    "update_metadata": "rework.edit.metadata_edit",
    "acquisitions": "rework.acquisitions",
    **dict.fromkeys(("follow", "open", "open_array", "open_xarray", "shard_regions"), "read.reader_api"),
    **dict.fromkeys(("Receipt", "Watermark"), "model.receipt"),
    "FollowedFrame": "read.followed_frame",
    "FrameClaim": "array.frame_claim",
    "WriteSettings": "model.write_settings",
    "default_layout": "array.default_layout",
    "frame_table": "read.data_frame",
}
# Classes that need an extra. Of zarr-python's stores first what needs the daemon's packages: without some of
# them zarr-python fails in other ways.
_OF_EXTRAS = {
    "ArrayView": ("read.array_view",),
    "ChunkStore": ("rework.edit.shard_edit", "rework.chunks.chunk_store"),
    "LiveStore": ("read.live_view", "read.zarr_store"),
    "RegionReport": ("rework.edit.region_changes",),
    "Writer": ("writer.writer",),
}


def __getattr__(name: str) -> Any:
    if name in _WHEN_USED:
        return getattr(import_module(f".{_WHEN_USED[name]}", __name__), name)
    if name in _OF_EXTRAS:
        return class_of_extra(name, [f"{__name__}.{module}" for module in _OF_EXTRAS[name]])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
