"""The options of writing: the values of each, and which do not go together, and why.

One table. An array's specification, the settings of an acquisition and ``create`` refuse by it, each with the
options that it knows: ``check_options`` looks at the rows whose options it is given. So a row holds at every
border at which its two options meet, and in the same words.

Of ``shards``, ``levels`` and ``spill_root`` the table knows whether there are any. ``index_location`` is None
where an array leaves it open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from .errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = str | bool | None
IoMode = Literal["auto", "mmap", "pwrite", "direct"]
IO_MODES: tuple[IoMode, ...] = get_args(IoMode)
# of the chunks in a shard. arrival: slab by slab as they are stored; fixed: Morton's, as ``morton``
WriteOrder = Literal["arrival", "fixed", "row_major", "morton"]
PartialChunks = Literal["collect", "in_place"]  # where frames are until their slab is full
LiveMode = Literal["none", "index", "append"]  # whether readers of files see shards before they are sealed
Durability = Literal["stored", "durable"]
EncodeCheck = Literal["none", "sample", "all"]  # which chunks are decoded again before they count as stored
Overload = Literal["block", "degrade", "drop", "fail"]
OnFull = Literal["block", "spill", "fail"]
OnDuplicate = Literal["count", "fail"]
NameTaken = Literal["fail", "increment", "overwrite"]
Extent = Literal["frames", "declared"]  # of an array that is closed
FlushLevel = Literal["stored", "durable", "visible"]
Profile = Literal["none", "dynamic-cell-atlas"]  # metadata beyond OME-Zarr's
OmeVersion = Literal["0.5", "0.6"]
DEFAULT_OME_VERSION: Final = "0.5"
DTYPES = (
    "bool",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
CODEC_NAMES = ("blosc", "zstd", "gzip", "none")
BLOSC_NAMES = ("lz4", "lz4hc")  # by which people know codecs that Blosc has
SLOT_ORDER: Final = "row_major"  # of chunks with frames in place; never another, so that parts are found

OPTIONS: dict[str, tuple[Value, ...]] = {
    "io": IO_MODES,
    "chunk_order": get_args(WriteOrder),
    "partial_chunks": get_args(PartialChunks),
    "live": get_args(LiveMode),
    "durability": get_args(Durability),
    "encode_check": get_args(EncodeCheck),
    "overload": get_args(Overload),
    "ome_version": get_args(OmeVersion),
    "on_full": get_args(OnFull),
    "spill_root": (False, True),
    "on_duplicate": get_args(OnDuplicate),
    "name_taken": get_args(NameTaken),
    "overwrite": (False, True),
    "profile": get_args(Profile),
    "frame_parquet": (False, True),
    "dtype": DTYPES,
    "codec": CODEC_NAMES,
    "chunk_checksum": (False, True),
    "levels": (False, True),
    "shards": (True, False),
    "index_location": (None, "start", "end"),
    "index_checksum": (True, False),
    "write_empty_chunks": (False, True),
}


@dataclass(frozen=True)
class Refusal:
    """A row: ``of`` names two options, and of each the values that do not go with those of the other. In the
    texts ``{NAME}`` stands for the value that an option has."""

    of: dict[str, tuple[Value, ...]]
    reason: str
    expected: str | None = None
    got: str | None = None
    hint: str | None = None

    def applies_to(self, values: Mapping[str, Value]) -> bool:
        return all(name in values and values[name] in refused for name, refused in self.of.items())

    def error(self, values: Mapping[str, Value]) -> SpecError:
        got = None if self.got is None else self.got.format(**values)
        return SpecError(self.reason.format(**values), expected=self.expected, got=got, hint=self.hint)


def _no_frame_has_its_bytes(name: str, values: tuple[Value, ...], got: str) -> Refusal:
    """A row for chunks whose bytes are not those of their frames, one behind the other."""
    return Refusal(
        {"partial_chunks": ("in_place",), name: values},
        "partial_chunks: in_place puts the pixels of each frame into chunks that have no codec",
        expected="codec none, chunk_checksum false and no levels, of every array",
        got=got,
        hint="Choose partial_chunks: collect; `shardwright compact --recompress` and `pyramid` compress, and "
        "make levels, later",
    )


REFUSALS = (
    Refusal(
        {"on_full": ("spill",), "spill_root": (False,)},
        "on_full='spill' and spill_root belong together",
        expected="a spill_root, on another disk",
        got="on_full='spill' and no spill_root",
    ),
    Refusal(
        {"on_full": ("block", "fail"), "spill_root": (True,)},
        "on_full='spill' and spill_root belong together",
        got="on_full='{on_full}' and a spill_root",
    ),
    Refusal(
        {"overwrite": (True,), "name_taken": ("increment",)},
        "create() got overwrite, and also name_taken='increment', which keeps the old store",
    ),
    # Readers look for a shard at its key; one that spilled becomes a link there only when it is sealed.
    Refusal(
        {"live": ("index", "append"), "on_full": ("spill",)},
        "shards that readers see grow cannot spill: choose on_full block or fail, or live none",
    ),
    Refusal(
        {"live": ("append",), "io": ("mmap",)},
        "a copy that grows is made of files that are written: choose io pwrite, direct or auto",
    ),
    Refusal(
        {"live": ("append",), "chunk_order": ("fixed", "row_major", "morton")},
        "a copy that grows has its chunks as they came: choose chunk_order arrival, or live index",
    ),
    # The index may be read while it is written.
    Refusal(
        {"live": ("index", "append"), "index_checksum": (False,)},
        "live: {live} needs a checksum of the index: who meets one that is being written must see that it is "
        "none",
        expected="index_checksum: true",
    ),
    Refusal(
        {"live": ("index",), "index_location": ("end",)},
        "live: index needs the index at the start of each shard",
        expected="index_location: start, or none given",
        got="{index_location}",
    ),
    Refusal(
        {"live": ("append",), "index_location": ("start",)},
        "live: append needs the index at the end of each shard",
        expected="index_location: end, or none given",
        got="{index_location}",
    ),
    # The journal of such a shard row names frames; what readers of files would see are chunks.
    Refusal(
        {"partial_chunks": ("in_place",), "live": ("index", "append")},
        "frames that are put into their chunks are for sw.open to see: choose live none",
    ),
    Refusal(
        {"partial_chunks": ("in_place",), "io": ("direct",)},
        "parts of chunks are not whole pages, as direct writes are: choose io pwrite, mmap or auto",
    ),
    Refusal(
        {"partial_chunks": ("in_place",), "chunk_order": ("fixed", "morton")},
        f"parts are found where {SLOT_ORDER} slots are: choose no other chunk_order",
    ),
    _no_frame_has_its_bytes("codec", ("blosc", "zstd", "gzip"), got="codec {codec}"),
    _no_frame_has_its_bytes("chunk_checksum", (True,), got="chunk_checksum true"),
    _no_frame_has_its_bytes("levels", (True,), got="levels"),
    Refusal(
        {"shards": (False,), "index_location": ("start",)},
        "index_location: is of shards, and an array of shard_size_chunks null has none",
    ),
    Refusal(
        {"shards": (False,), "index_checksum": (False,)},
        "index_checksum: is of shards, and an array of shard_size_chunks null has none",
    ),
    # That specification demands percentiles, mean and deviation of the pixels of every channel.
    Refusal(
        {"profile": ("dynamic-cell-atlas",), "dtype": ("bool",)},
        "profile: dynamic-cell-atlas wants statistics of intensities, which pixels that are true or false do "
        "not have",
        expected="a dtype of numbers, best uint8 or uint16",
        got="dtype bool",
    ),
    # That specification, 0.2, is of OME-Zarr 0.5: whoever reads the block looks for the axes of 0.5.
    Refusal(
        {"profile": ("dynamic-cell-atlas",), "ome_version": ("0.6",)},
        "profile: the Dynamic Cell Atlas specification 0.2 is of OME-Zarr 0.5",
        expected="ome_version 0.5",
        got="ome_version 0.6",
    ),
    # The kernels have no mean of half floats.
    Refusal(
        {"levels": (True,), "dtype": ("float16",)},
        "levels: not of float16 while frames come; `shardwright pyramid` makes them later",
    ),
)


def refusal_of(values: Mapping[str, Value]) -> Refusal | None:
    """Returns the first row that applies to ``values``, by the names of options. Options that are not among
    them are not known here, and refused elsewhere."""
    return next((row for row in REFUSALS if row.applies_to(values)), None)


def check_options(**values: Value) -> None:
    """Raises ``SpecError`` for values that do not go together."""
    if (row := refusal_of(values)) is not None:
        raise row.error(values)


def live_form(live: LiveMode, *, shards: bool) -> LiveMode:
    """Returns by what readers see the shards of an array grow: nothing without shards, where a file is one
    chunk, and has its name once it is stored."""
    return live if shards else "none"


def index_location_of(live: LiveMode) -> Literal["start", "end"] | None:
    """Returns where shards must have their index; None: anywhere."""
    return {"none": None, "index": "start", "append": "end"}[live]
