"""The settings of an acquisition: ``WriteSettings``, which ``create`` and ``resume`` take, of which the
configuration of the daemon is made, and which the manifest records in part.

Each option is explained once, where it stands. Which values go together is said by ``write_options``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ConfigError, SpecError
from .write_options import DEFAULT_OME_VERSION, OPTIONS, SLOT_ORDER, check_options

if TYPE_CHECKING:
    from pathlib import Path

    from .write_options import (
        Durability,
        EncodeCheck,
        IoMode,
        LiveMode,
        NameTaken,
        OmeVersion,
        OnDuplicate,
        OnFull,
        Overload,
        PartialChunks,
        Profile,
        WriteOrder,
    )

T = TypeVar("T")
MAX_INTERVAL_MS = 3_600_000
CACHED_SLAB_BYTES = 256 << 10  # slabs of up to so many go through the page cache, unless told otherwise
# What was decided when the store was made, and its manifest has by these names.
OF_A_STORE = ("live", "partial_chunks", "profile", "frame_parquet")
# what a writer that resumes an acquisition goes on with. The others were decided when the store was made, and
# are in its manifest by themselves; or (those in bytes, encode_check, min_ratio) they are of the process, and
# not of the acquisition: the codec and its options are part of the spec.
RECORDED = (
    *("chunk_order", "durability", "store_within_ms", "sync_interval_ms"),
    *("overload", "on_full", "on_duplicate"),
)


def _option(default: T, text: str, *, least: int | None = None, most: int | None = None) -> T:
    """Returns a field: ``text`` explains it wherever it can be set."""
    limits = None if least is None else (least, most)
    return field(default=default, metadata={"text": text, "range": limits})


@dataclass(frozen=True)
class WriteSettings:
    """The settings by which an acquisition is written. Wrong values, and those that do not go together, raise
    ``SpecError``.

    Examples
    --------
    >>> settings = sw.WriteSettings(io="pwrite", store_within_ms=100)
    >>> shape = {"shape": (None, 64, 64), "dtype": "uint16", "axes": "tyx"}
    >>> with sw.create("run.ome.zarr", **shape, settings=settings) as writer:
    ...     writer.append(np.zeros((64, 64), "uint16"))
    >>> sw.WriteSettings(io="fast")
    Traceback (most recent call last):
    shardwright.model.errors.SpecError: unknown io; expected one of auto, mmap, pwrite, direct; got 'fast'
    """

    io: IoMode = _option(
        "auto",
        "How shards are written: direct (past the page cache), pwrite, mmap (not on copy-on-write or "
        "network filesystems; a process of the same user that truncates a working file, or a disk that "
        "dies, ends the writing process and every acquisition in it by SIGBUS); auto: direct where the "
        "filesystem takes it and is not a copy-on-write one, else pwrite; slabs of up to 256 KiB, and "
        "chunks that are read back at once, by pwrite; never mmap.",
    )
    chunk_order: WriteOrder = _option(
        "arrival",
        "Order of the chunks in each new shard: arrival, as their frames were stored (with io: mmap "
        "row_major); row_major, last axis fastest; morton (or fixed), near each other along every axis."
        " All but arrival write each chunk in a slot of its own, which costs more calls, and gaps that"
        " are given back when the shard is sealed; not with live: append. Shards in progress that are "
        "resumed keep theirs, if it is this one, and otherwise take chunks as they come.",
    )
    partial_chunks: PartialChunks = _option(
        "collect",
        "Where the frames of a chunk are until all of them have come: collect, in memory, and in the "
        "staging area if that takes long; in_place, in the chunk itself, as each comes, so that chunks "
        "may be deeper than memory. in_place needs codec: none, chunk_checksum: false and no levels of "
        "every array, live: none, and io: pwrite, mmap or auto.",
    )
    live: LiveMode = _option(
        "none",
        "Whether any Zarr reader of the files sees frames before their shard is sealed, within about a "
        "second of their slab being stored: none; index, at the start of each shard, on a filesystem "
        "with hard links (zarrita does not look there, and shows zeros); append, at the end of a copy "
        "that grows, so that encoded bytes are written twice (not with io: mmap). No shard may spill. "
        "Without shards each chunk file appears once it is stored, with any of them. "
        "FORMAT.md says what is promised.",
    )
    durability: Durability = _option(
        "stored",
        "When a frame counts as safe and leaves the camera's ring: stored survives the writer's death, "
        "durable a power cut as well.",
    )
    store_within_ms: int = _option(
        1000,
        "The longest a frame waits for its chunk to fill before it is stored by itself.",
        least=1,
        most=MAX_INTERVAL_MS,
    )
    sync_interval_ms: int = _option(
        1000,
        "Time between two syncs of all stored frames; a power cut may lose the frames between.",
        least=1,
        most=MAX_INTERVAL_MS,
    )
    encode_check: EncodeCheck = _option(
        "sample",
        "Which chunks are decoded again, and compared with their frames, before they count as stored: "
        "none; sample, one in 64, the first of each image among them; all. A chunk that differs, by a "
        "defect of a compressor or of memory, is stored uncompressed, and counted "
        "(encode_checks_failed); if that differs, too, the acquisition fails. With partial_chunks: "
        "in_place nothing is encoded, and nothing checked.",
    )
    min_ratio: float = _option(
        1.0,
        "The least ratio of compression that is worth the time to decode: a chunk that its codec makes "
        "no smaller than by this is stored uncompressed, in the codec's own framing. 1: each chunk that "
        "gets smaller is compressed.",
        least=1,
        most=1000,
    )
    overload: Overload = _option(
        "block",
        "When frames come faster than they are stored: block the camera; degrade: compress faster, then"
        " not at all, while the ring fills, and block once it is full; drop the newest (counted, "
        "recorded); or fail.",
    )
    on_full: OnFull = _option(
        "fail",
        "When the disk has no room for the next shards: block until it has, spill to spill_root, or fail.",
    )
    on_duplicate: OnDuplicate | None = _option(
        None,
        "For a frame whose place already has one, which is kept: count it (the first one of an "
        "acquisition is a warning, the rest a number), or fail: the frames before it are sealed, and "
        "whoever sent it gets the error. Left out, create fails; resume and the daemon count, since a "
        "program that goes on may send stored frames again.",
    )
    name_taken: NameTaken = _option(
        "fail",
        "What happens to an acquisition whose name a store has already: it is refused (fail), gets a "
        "number behind its name (increment), or takes the name from that store (overwrite). A store "
        "that goes must be finished, and stays until the first frame of the new one is durable.",
    )
    profile: Profile = _option(
        "none",
        "What zarr.json of each image says beside OME-Zarr's metadata: none; dynamic-cell-atlas, the "
        "block dca of the Dynamic Cell Atlas specification 0.2, written at the end: channels, statistics "
        "of a sample of the pixels, the time step, and when each time point began. FORMAT.md says which "
        "frame's time that is. Pixels must be numbers; an array that the specification refuses gives a "
        "warning.",
    )
    frame_parquet: bool = _option(
        False,
        "Whether the end also writes the frame table as one file, frames.parquet beside it, with a row "
        "for each frame. Needs shardwright[parquet].",
    )
    ome_version: OmeVersion = _option(
        DEFAULT_OME_VERSION,
        "Version of OME-Zarr of the metadata of new stores. 0.6 has named coordinate systems, and relates"
        " the images of an acquisition by their positions (scene); programs that know 0.5 alone do not "
        "open it as an image. A specification that says a version itself keeps to it. `shardwright "
        "upgrade-ome` changes finished stores.",
    )
    spill_root: Path | None = _option(
        None,
        "Folder on another disk that takes the shards of acquisitions whose on_full is spill, once the "
        "first disk is full.",
    )
    ballast_bytes: int = _option(
        16 << 20,
        "Disk space that each open acquisition reserves for sealing and recovery on a full disk.",
        least=0,
        most=2**63 - 1,
    )
    low_water_bytes: int = _option(
        0,
        "Free disk space below which events warn that the disk fills up, and the daemon's compaction "
        "stops while cameras acquire. 0: never.",
        least=0,
        most=2**63 - 1,
    )

    def __post_init__(self) -> None:
        """Raises ``SpecError``."""
        for each in fields(self):
            if each.metadata["range"] is not None:
                _check_range(each.name, getattr(self, each.name), *each.metadata["range"])
        chosen = {name: getattr(self, name) for name in _CHOICES}
        for name, value in chosen.items():
            if value not in OPTIONS[name] and not (name == "on_duplicate" and value is None):
                choices = ", ".join(map(str, OPTIONS[name]))
                raise SpecError(f"unknown {name}", expected=f"one of {choices}", got=repr(value)[:80])
        check_options(**chosen)

    def with_second_root(self, spill_root: Path | None) -> WriteSettings:
        """Returns the settings with the second root that their daemon or store has, or without it if they do
        not say to spill: others may. Raises ``SpecError`` if they say to and there is none."""
        spill_root = spill_root if self.on_full == "spill" else None
        check_options(on_full=self.on_full, spill_root=spill_root is not None)
        return replace(self, spill_root=spill_root)

    def recorded(self) -> dict[str, Any]:
        """Returns the settings for ``OpenedAs``, as JSON values."""
        return {name: getattr(self, name) for name in RECORDED}

    @property
    def puts_in_place(self) -> bool:
        return self.partial_chunks == "in_place"

    def order(self, *, in_place: bool) -> WriteOrder:
        """Returns the order of the chunks in shards; where frames are put in place there is one only,
        whatever the acquisition is resumed with."""
        return SLOT_ORDER if in_place else self.chunk_order

    def wanted_io(self, slab_bytes: int) -> IoMode:
        """Returns ``io``, but where it is left to us through the page cache if chunks are read back at once,
        or if what is written is so small that a worker would wait for the disk at each: 64 against 6
        microseconds for 20 KB."""
        cached = self.live == "append" or self.puts_in_place or slab_bytes <= CACHED_SLAB_BYTES
        return "pwrite" if cached and self.io == "auto" else self.io


# Not of a second root: ``create`` may get it here and ``on_full`` as an argument, and a store that is resumed
# has it in its manifest. So they are compared where both are known: by ``create`` and ``with_second_root``.
_CHOICES = tuple(each.name for each in fields(WriteSettings) if each.name in OPTIONS.keys() - {"spill_root"})
if WriteSettings.__doc__ is not None:  # Python may leave such texts out
    WriteSettings.__doc__ += "\n    Parameters\n    ----------\n" + "".join(
        f"    {each.name}\n{indent(fill(each.metadata['text'], 98), ' ' * 8)}\n"
        for each in fields(WriteSettings)
    )


def check_second_root(spill_root: Path, root: Path, name: str | None = None) -> None:
    """Checks that a second root is another folder than that of the stores, ``root``, and not in the store of
    this name there; all links resolved. Raises ``ConfigError``."""
    if spill_root == root or (name is not None and spill_root.is_relative_to(root / name)):
        raise ConfigError(
            "spill_root: must be another folder than that of the stores, and in none of them",
            expected="a folder on another disk",
            got=spill_root,
        )


def _check_range(name: str, value: object, least: int, most: int) -> None:
    """Raises ``SpecError``."""
    allowed: tuple[type, ...] = (int, float) if name.endswith("_ratio") else (int,)
    if type(value) not in allowed or not least <= value <= most:  # type: ignore[operator]
        unit = {"ms": " milliseconds", "bytes": " bytes"}.get(name.rpartition("_")[2], "")
        raise SpecError(f"{name} out of range", expected=f"{least} to {most}{unit}", got=repr(value)[:80])
