"""The settings of an acquisition: when frames are acknowledged and given back, and the policies for a full
disk and overload. Frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError, SpecError
from shardwright.model.write_options import OPTIONS, SLOT_ORDER, check_options

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.write_options import (
        Durability,
        IoMode,
        LiveMode,
        NameTaken,
        OnDuplicate,
        OnFull,
        Overload,
        PartialChunks,
        WriteOrder,
    )
    from shardwright.shard.manifest import Manifest

MAX_INTERVAL_MS = 3_600_000
CACHED_SLAB_BYTES = 256 << 10  # slabs of up to so many go through the page cache, unless told otherwise
_CHOICES = (
    *("io", "chunk_order", "partial_chunks", "live", "durability"),
    *("overload", "on_full", "on_duplicate", "name_taken"),
)
# what a writer that resumes an acquisition goes on with. The others were decided when the store was made, and
# are in its manifest by themselves; or (those in bytes) they are of the process, and not of the acquisition.
_RECORDED = (
    *("chunk_order", "durability", "store_within_ms", "sync_interval_ms"),
    *("overload", "on_full", "on_duplicate"),
)


@dataclass(frozen=True)
class WriteSettings:
    """``durability``: the level at which a frame's pixels are given back to the camera. ``store_within_ms``:
    the longest time that a frame of an unfinished slab waits before it is staged. ``sync_interval_ms``: how
    often stored frames are made durable. ``overload``: what the client does without credit; with ``degrade``
    chunks are encoded faster while the ring fills (``overload_level``), and without credit the camera waits.
    ``on_full``: what happens when the next shard cannot be preallocated. ``on_duplicate``: whether a frame
    whose place is taken is counted or an error; the first frame of a place is kept either way.
    ``name_taken``: whether a name that a store has already is an error, gets a number behind it, or is taken
    from that store if it is a finished one, which goes once a frame of the new one is durable.
    ``ballast_bytes`` are reserved on disk for sealing and recovery. Less than ``low_water_bytes`` of free
    disk raise a warning (0: never). ``chunk_order``: of the chunks in each shard: as slabs are stored (with
    ``io`` ``mmap`` row-major), or each at a place that is known before, row-major or by Morton's curve, in
    slots whose unused ends are given back when the shard is sealed. ``partial_chunks``: where the frames of a
    slab are until all of them have come: in memory, or with ``in_place`` in its chunks. ``live``: whether
    readers of files see frames before their shard is sealed, and how (``shard.live_index``,
    ``shard.growing_copy``)."""

    io: IoMode = "auto"
    chunk_order: WriteOrder = "arrival"
    partial_chunks: PartialChunks = "collect"
    live: LiveMode = "none"
    durability: Durability = "stored"
    store_within_ms: int = 1000
    sync_interval_ms: int = 1000
    overload: Overload = "block"
    on_full: OnFull = "fail"
    on_duplicate: OnDuplicate = "count"
    name_taken: NameTaken = "fail"
    spill_root: Path | None = None
    ballast_bytes: int = 16 << 20
    low_water_bytes: int = 0

    @classmethod
    def checked(cls, **values: Any) -> WriteSettings:
        """Makes settings from a user's arguments. Raises ``SpecError`` for invalid ones."""
        for name in _CHOICES:
            if name in values and values[name] not in OPTIONS[name]:
                choices = ", ".join(map(str, OPTIONS[name]))
                raise SpecError(f"unknown {name}", expected=f"one of {choices}", got=repr(values[name]))
        for name in ("store_within_ms", "sync_interval_ms"):
            if name in values and (type(values[name]) is not int or not 1 <= values[name] <= MAX_INTERVAL_MS):
                raise SpecError(
                    f"{name} out of range",
                    expected=f"1 to {MAX_INTERVAL_MS} milliseconds",
                    got=repr(values[name])[:80],
                )
        if "spill_root" in values:
            check_options(on_full=values.get("on_full"), spill_root=values["spill_root"] is not None)
        settings = cls(**values)
        settings.check()
        return settings

    def recorded(self) -> dict[str, Any]:
        """Returns the settings for ``OpenedAs``, as JSON values."""
        return {name: getattr(self, name) for name in _RECORDED}

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> WriteSettings | None:
        """Returns the settings that an acquisition was opened with; None if its manifest does not record
        them. Raises ``ShardFormatError`` for settings that no writer has."""
        if manifest.opened_as is None:
            return None
        recorded = manifest.opened_as.settings
        if recorded.keys() != set(_RECORDED):
            raise ShardFormatError(
                "the settings in a manifest are incomplete or unknown",
                expected=", ".join(_RECORDED),
                got=", ".join(sorted(recorded))[:160],
            )
        if recorded["on_full"] == "spill" and manifest.spill_root is None:
            raise ShardFormatError("the settings in a manifest say on_full: spill, without a second root")
        try:
            return cls.checked(**recorded, live=manifest.live, partial_chunks=manifest.partial_chunks)
        except SpecError as error:
            raise ShardFormatError(
                f"the settings in a manifest are damaged: {error.message}",
                expected=error.expected,
                got=error.got,
            ) from None

    def check(self) -> None:
        """Raises ``SpecError`` for settings that do not go with each other."""
        check_options(**{name: getattr(self, name) for name in _CHOICES})

    @property
    def puts_in_place(self) -> bool:
        return self.partial_chunks == "in_place"

    def spec_for(self, spec: AcquisitionSpec) -> AcquisitionSpec:
        """Returns the specification of an acquisition with these settings. Raises ``SpecError`` for arrays
        whose frames cannot be put into chunks."""
        return spec.in_place() if self.puts_in_place else spec

    def order_for(self, spec: AcquisitionSpec) -> WriteOrder:
        """Returns the order of the chunks in shards of an acquisition; it has one only where frames are put
        in place, whatever it is resumed with."""
        return SLOT_ORDER if spec.grids.in_place else self.chunk_order

    def wanted_io(self, slab_bytes: int) -> IoMode:
        """Returns ``io``, but where it is left to us through the page cache if chunks are read back at once,
        or if what is written is so small that a worker would wait for the disk at each: 64 against 6
        microseconds for 20 KB."""
        cached = self.live == "append" or self.puts_in_place or slab_bytes <= CACHED_SLAB_BYTES
        return "pwrite" if cached and self.io == "auto" else self.io
