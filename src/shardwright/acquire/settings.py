"""The settings of an acquisition: when frames are acknowledged and given back, and the policies for a full
disk and overload. Frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from shardwright.model.errors import ShardFormatError, SpecError
from shardwright.model.live_mode import LIVE_MODES
from shardwright.model.partial_chunks import PARTIAL_CHUNKS
from shardwright.shard.chunk_order import WRITE_ORDERS
from shardwright.shard.frames_in_place import SLOT_ORDER
from shardwright.storage.slot_file import IO_MODES

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.live_mode import LiveMode
    from shardwright.model.partial_chunks import PartialChunks
    from shardwright.shard.chunk_order import WriteOrder
    from shardwright.shard.manifest import Manifest
    from shardwright.storage.slot_file import IoMode

Durability = Literal["stored", "durable"]
Overload = Literal["block", "degrade", "drop", "fail"]
OnFull = Literal["block", "spill", "fail"]
OnDuplicate = Literal["count", "fail"]
NameTaken = Literal["fail", "increment", "overwrite"]
MAX_INTERVAL_MS = 3_600_000
CACHED_SLAB_BYTES = 256 << 10  # slabs of up to so many go through the page cache, unless told otherwise
_CHOICES = {
    "io": IO_MODES,
    "chunk_order": WRITE_ORDERS,
    "partial_chunks": PARTIAL_CHUNKS,
    "live": LIVE_MODES,
    "durability": get_args(Durability),
    "overload": get_args(Overload),
    "on_full": get_args(OnFull),
    "on_duplicate": get_args(OnDuplicate),
    "name_taken": get_args(NameTaken),
}
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
        for name, choices in _CHOICES.items():
            if name in values and values[name] not in choices:
                raise SpecError(
                    f"unknown {name}", expected=f"one of {', '.join(choices)}", got=repr(values[name])
                )
        for name in ("store_within_ms", "sync_interval_ms"):
            if name in values and (type(values[name]) is not int or not 1 <= values[name] <= MAX_INTERVAL_MS):
                raise SpecError(
                    f"{name} out of range",
                    expected=f"1 to {MAX_INTERVAL_MS} milliseconds",
                    got=repr(values[name])[:80],
                )
        if (values.get("on_full") == "spill") != (
            values.get("spill_root") is not None
        ) and "spill_root" in values:
            raise SpecError(
                "on_full='spill' and spill_root belong together",
                got=f"on_full={values.get('on_full')!r}, {values.get('spill_root')}",
            )
        settings = cls(**values)
        if problem := settings.problem():
            raise SpecError(problem)
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

    def problem(self) -> str | None:
        """Returns why settings do not go with each other, and which do; None if all do."""
        return self._live_problem() or (self._in_place_problem() if self.puts_in_place else None)

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

    def _live_problem(self) -> str | None:
        if self.live != "none" and self.on_full == "spill":
            return "shards that readers see grow cannot spill: choose on_full block or fail, or live none"
        if self.live == "append" and self.io == "mmap":
            return "a copy that grows is made of files that are written: choose io pwrite, direct or auto"
        if self.live == "append" and self.chunk_order != "arrival":
            return "a copy that grows has its chunks as they came: choose chunk_order arrival, or live index"
        return None

    def _in_place_problem(self) -> str | None:
        if self.live != "none":
            return "frames that are put into their chunks are for sw.open to see: choose live none"
        if self.io == "direct":
            return "parts of chunks are not whole pages, as direct writes are: choose io pwrite, mmap or auto"
        if self.chunk_order not in ("arrival", SLOT_ORDER):
            return f"parts are found where {SLOT_ORDER} slots are: choose no other chunk_order"
        return None

    def wanted_io(self, slab_bytes: int) -> IoMode:
        """Returns ``io``, but where it is left to us through the page cache if chunks are read back at once,
        or if what is written is so small that a worker would wait for the disk at each: 64 against 6
        microseconds for 20 KB."""
        cached = self.live == "append" or self.puts_in_place or slab_bytes <= CACHED_SLAB_BYTES
        return "pwrite" if cached and self.io == "auto" else self.io
