"""How an acquisition treats its frames: what is promised when, and what is done when the disk or the writer cannot follow. Frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.storage.slot_file import IoMode

Durability = Literal["stored", "durable"]
Overload = Literal["block", "drop", "fail"]
OnFull = Literal["block", "spill", "fail"]


@dataclass(frozen=True)
class WriteSettings:
    """``durability``: at which level a frame's pixels are given back to the camera. ``store_within_ms``: the longest a frame of an unfinished slab
    waits before it is staged. ``sync_interval_ms``: how often what is stored is made durable. ``overload``: what the camera's side does without
    credit. ``on_full``: what happens when the next shard cannot be preallocated. ``ballast_bytes`` are kept on disk for sealing and recovery;
    ``low_water_bytes`` of free disk raise a warning (0: never)."""

    io: IoMode = "auto"
    durability: Durability = "stored"
    store_within_ms: int = 1000
    sync_interval_ms: int = 1000
    overload: Overload = "block"
    on_full: OnFull = "fail"
    spill_root: Path | None = None
    ballast_bytes: int = 16 << 20
    low_water_bytes: int = 0
