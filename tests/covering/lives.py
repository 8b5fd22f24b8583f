"""The lives of stores: what the table of options (``model.write_options``) and the forms of arrays and deaths
say, as one row of the covering array."""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.crash.kills.processes import kill_at
from tests.harness.frames import WAYS, hand_over
from tests.harness.json_process import wait_for
from tests.harness.plain_arrays import without_shards
from tests.harness.writing import how
from tests.properties.acquisitions import Acquired, Arrival, Expected, expected, pixels, places
from tests.properties.image_acquisitions import Frame

import shardwright as sw
from shardwright.acquire import full_disk
from shardwright.array.acquisition_spec import AcquisitionSpec
from shardwright.disk import failpoints
from shardwright.model.errors import LayoutWarning, StorageFullError
from shardwright.model.write_options import OPTIONS, refusal_of

from .trouble import Crowd, Listener, Met, NoRoom, is_flushed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import Channel

    from shardwright.array.grid import Grids

    from .rows import Row

# what follows from another option: a spill root from on_full, overwrite is name_taken by another name
_FOLLOW = ("spill_root", "overwrite")
OF_THE_PROGRAM = {name: values for name, values in OPTIONS.items() if name not in _FOLLOW}
# what else differs between stores, how their writers die, and what comes after
OWN: dict[str, tuple[Any, ...]] = {
    "axes": ("t", "plane", "tcz", "ragged"),
    "frames_per_chunk": (1, 3),
    "stored": ("as acquired", "frame axes reversed", "columns first"),
    "images": ("one", "several", "plate", "paths"),
    "fill_value": (0, 1),
    "frame_json_bytes": (0, 64),
    "named": ("index", "nothing"),
    "arrival": ("in order", "shuffled"),
    "part_before": (0.6, 0.1, 0.85),
    "death": ("flushed", "at a storage call", "as it closes"),
    "ends": ("resumed", "recovered"),
    "chunk_order_after": ("same", "another"),
    "take_over": (False, True),
}
LIFE = {**OF_THE_PROGRAM, **OWN}
# what meets only where three do: a dead writer's files are of one form for each of these
THREES = (
    *(("chunk_order", "death", after) for after in ("ends", "chunk_order_after")),
    ("chunk_order", "part_before", "chunk_order_after"),
    *(("io", "live", after) for after in ("death", "ends")),
    *(("io", "partial_chunks", after) for after in ("death", "ends")),
    *(
        ("partial_chunks", name, after)
        for name in ("axes", "frames_per_chunk", "stored", "fill_value", "shards", "part_before")
        for after in ("death", "ends")
    ),
    *(("ome_version", "images", after) for after in ("levels", "live")),
    *(("levels", name, "death") for name in ("frames_per_chunk", "ends", "part_before")),
    *(("shards", name, "death") for name in ("codec", "frames_per_chunk", "ends", "part_before")),
)
# what makes no sense together: a frame without a place has the next one, which is not known there; and who
# recovers a store says nothing of how it goes on
_SENSELESS: tuple[Row, ...] = (
    {"named": "nothing", "axes": "ragged"},
    {"named": "nothing", "arrival": "shuffled"},
    {"named": "nothing", "death": "at a storage call"},
    {"ends": "recovered", "chunk_order_after": "another"},
    {"ends": "recovered", "take_over": True},
)
QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20, "threads": 2}
ROWS, COLUMNS = 12, 22
PATHS = {"left": "dish.1/left", "right": "dish.1/0/c"}  # of images, if they have some
CLOSES = "closes"
_STEPS = {"t": 9, "tcz": 3}  # of the axis that grows
_BLOSC = [(cname, shuffle) for cname in ("lz4", "zstd", "zlib", "lz4hc") for shuffle in (0, 1, 2)]


def is_refused(values: Row) -> bool:
    """By the program, or since a life would make no sense."""
    facts = {name: value for name, value in values.items() if name in OPTIONS}
    if "on_full" in facts:
        facts["spill_root"] = facts["on_full"] == "spill"
    senseless = any(all(values.get(name) == each[name] for name in each) for each in _SENSELESS)
    return senseless or refusal_of(facts) is not None


GROUPS = [
    *itertools.combinations(LIFE, 2),
    *dict.fromkeys(tuple(name for name in LIFE if name in three) for three in THREES),
]


def write_settings(row: Row) -> dict[str, Any]:
    """The arguments of ``create`` beside the array."""
    names = ("io", "chunk_order", "partial_chunks", "live", "durability", "overload", "on_full")
    names = (*names, "on_duplicate", "name_taken", "profile", "frame_parquet", "ome_version", "encode_check")
    return {name: row[name] for name in names}


def array_of(row: Row, number: int = 0) -> sw.ArraySpec:
    """``number``: what is left open differs by it, such as the settings of a codec."""
    depth, two = row["frames_per_chunk"], 2
    axes: dict[str, list[tuple[str, int | None, int, int]]] = {
        "plane": [],
        "t": [("t", None, depth, two)],
        "tcz": [("t", None, 1, two), ("c", 2, 1, 1), ("z", 4, depth, two)],
        "ragged": [("t", None, 1, 1), ("z", None, depth, two)],
    }
    before = axes[row["axes"]]
    # as many chunks of a shard along x that Morton's order is not row-major
    sizes = (*before, ("y", ROWS, 5, two), ("x", COLUMNS, 5, 4))
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shard)
        for name, count, chunk, shard in sizes
    ]
    names = [name for name, *_ in before]
    orders = {"frame axes reversed": (*names[::-1], "y", "x"), "columns first": (*names, "x", "y")}
    located = {} if row["index_location"] is None else {"index_location": row["index_location"]}
    methods = ["min", "max", "nearest", "mean"]
    if row["stored"] == "columns first" and "float" in row["dtype"]:
        methods[3] = "min"  # of rows and columns in turn the sums are rounded otherwise
    spec = sw.ArraySpec(
        dtype=row["dtype"],
        dimensions=dimensions,
        codec=_codec(row["codec"], number),
        index_checksum=row["index_checksum"],
        chunk_checksum=row["chunk_checksum"],
        write_empty_chunks=row["write_empty_chunks"],
        fill_value=row["fill_value"],
        storage_order=orders.get(row["stored"]),
        frame_json_bytes=row["frame_json_bytes"],
        levels={"count": 1, "method": methods[number % 4]} if row["levels"] else None,
        **located,
    )
    return spec if row["shards"] else without_shards(spec)


def _codec(name: str, number: int) -> Any:
    if name == "blosc":
        cname, shuffle = _BLOSC[number % len(_BLOSC)]
        return sw.Blosc(cname=cname, shuffle=("noshuffle", "shuffle", "bitshuffle")[shuffle])
    return {"zstd": sw.Zstd(level=-1), "gzip": sw.Gzip(level=1), "none": None}[name]


@dataclass(frozen=True)
class Life:
    """One row, and the frames of its acquisition."""

    row: Row
    number: int

    @cached_property
    def spec(self) -> AcquisitionSpec:
        array = array_of(self.row, self.number)
        if self.row["images"] == "plate":
            return AcquisitionSpec(array=array, plate=sw.Plate(rows=1, columns=2))
        paths = {"one": {}, "several": dict.fromkeys(("left", "right")), "paths": PATHS}[self.row["images"]]
        return AcquisitionSpec(array=array, images=[sw.Image(name=n, path=p) for n, p in paths.items()])

    @cached_property
    def frames(self) -> list[Frame]:
        """Images in turn, as they are sent. The first half of each is sent before the other."""
        numbers = random.Random(self.number)
        steps = self._visits()
        if self.row["arrival"] == "shuffled":
            half = len(steps) // 2
            steps = [*numbers.sample(steps[:half], half), *numbers.sample(steps[half:], len(steps) - half)]
        looks = ("noise", "few values", "noise", "fill")
        return [
            Frame(image, place, numbers.choice(looks), 100 * self.number + n)
            for n, (place, image) in enumerate(
                (place, image) for place in steps for image in range(len(self.spec.names))
            )
        ]

    def _visits(self) -> list[int]:
        counts = places(self.spec.arrays[0])
        if not counts:
            return [0]
        if self.row["axes"] == "ragged":  # stacks of another depth each time
            return [int(np.ravel_multi_index((t, z), counts)) for t in range(3) for z in range((2, 3, 1)[t])]
        return list(range(_STEPS[self.row["axes"]] * int(np.prod(counts[1:], dtype=int))))

    @property
    def before(self) -> int:
        """So many frames are stored before the writer dies."""
        return max(1, round(len(self.frames) * self.row["part_before"]))

    def send(self, writer: sw.Writer, frames: list[Frame], *, by_index: bool = False) -> None:
        for frame in frames:
            facts: dict[str, Any] = {} if self.spec.is_single else {"image": self.spec.names[frame.image]}
            if by_index or self.row["named"] == "index":
                facts["index"] = self.index(frame)
            if self.row["frame_json_bytes"]:
                facts["metadata"] = {"note": frame.seed}
            hand_over(writer, WAYS[frame.seed % len(WAYS)], self.pixels(frame), **facts)

    @property
    def is_crowded(self) -> bool:
        """Whether the first writer surely is: a worker gets each frame, and one more may come at any time."""
        return self.row["frames_per_chunk"] == 1 and self.row["named"] == "index"

    def beyond(self, frames: list[Frame], grids: Grids) -> tuple[list[bool], bool]:
        """Of each frame whether it is in other shards than those that are there before any frame comes, and
        whether these are needed now: for a whole slab, or any frame that is put in place."""
        # ragged images have other positions than places, which count as few steps as there are
        positions = [grids.grids[frame.image].position_of(self.index(frame)) for frame in frames]
        slabs = [grids.slab_of_position(position) for position in positions]
        is_live = self.row["live"] != "none" and self.row["shards"]
        beyond = [
            grids.shard_row_of_slab(slab) > 0 or (is_live and self._shard(frame) > 0)
            for slab, frame in zip(slabs, frames, strict=True)
        ]
        counts = Counter(itertools.compress(slabs, beyond))
        whole = any(count == grids.of(slab).frames_in_slab(slab) for slab, count in counts.items())
        return beyond, whole or (self.row["partial_chunks"] == "in_place" and any(beyond))

    def _shard(self, frame: Frame) -> int:
        """0 for the first. Those that readers see while they grow are made one by one."""
        axes = self.spec.arrays[frame.image].dimensions[:-2]
        sizes = (axis.chunk_size * (axis.shard_size_chunks or 1) for axis in axes)
        return sum(at // size for at, size in zip(self.index(frame), sizes, strict=True))

    def send_before(self, writer: sw.Writer, met: Met) -> None:
        """Until all are stored, or a full disk is an error: then each is stored before the next is sent."""
        frames, are_last = self.frames[: self.before], self.row["ends"] == "recovered"
        parts = [[frame] for frame in frames] if self.row["on_full"] == "fail" else [frames]
        try:
            for part in parts:
                self.send_part(writer, part, met, is_last=are_last and part[-1] is frames[-1])
                wait_for(lambda: is_flushed(writer), "room on the disk")
                met.stored += len(part)
        except StorageFullError as error:
            met.full = str(error)

    def send_part(self, writer: sw.Writer, frames: list[Frame], met: Met, *, is_last: bool) -> None:
        """With one more for a place that is taken: at once, or behind the last one where frames have no place
        but their number, which the next would not get."""
        crowd = Crowd(self, writer, met)
        if self.row["named"] == "nothing":
            alone = len(frames) - is_last
            self.send(writer, frames[:alone])
            frames = frames[alone:]
        for frame in frames:
            crowd.send(frame)
        if is_last or self.row["named"] == "index":
            crowd.finish()

    def index(self, frame: Frame) -> tuple[int, ...]:
        counts = places(self.spec.arrays[frame.image])
        return tuple(int(i) for i in np.unravel_index(frame.place, counts)) if counts else ()

    def row_of(self, frame: Frame) -> tuple[Any, ...]:
        """(image, index, note), as in the frame table."""
        note = frame.seed if self.row["frame_json_bytes"] else None
        return self.spec.names[frame.image], self.index(frame), note

    def pixels(self, frame: Frame) -> np.ndarray:
        return pixels(self.spec.arrays[frame.image], frame.content, frame.seed)

    def expected(self, frames: list[Frame]) -> dict[int, Expected]:
        """By image with a frame: what must be read when these came."""
        found = {}
        for image in sorted({frame.image for frame in frames}):
            array, mine = self.spec.arrays[image], [frame for frame in frames if frame.image == image]
            arrivals = tuple(Arrival("index", each.place, each.content, each.seed, None) for each in mine)
            found[image] = expected(
                Acquired(array, arrivals, 1, "auto"), [self.pixels(each) for each in mine]
            )
        return found


def write_and_die(channel: Channel, life: Life, folder: Path) -> None:
    """Says what it ``Met`` once all frames that are sent before are stored, and then that it ``CLOSES`` if it
    gets so far; then dies."""
    warnings.simplefilter("ignore", LayoutWarning)
    full_disk.RETRY_S = 0.01
    path, row, met = folder / "a.ome.zarr", life.row, Met()
    if row["name_taken"] != "fail":  # another store is there
        with sw.create(path, shape=(1, 4, 4), dtype="uint8", axes="tyx", **how(**QUICK)) as earlier:
            earlier.append(np.ones((4, 4), np.uint8))
    spill = {"spill_root": folder / "second"} if row["on_full"] == "spill" else {}
    logging.getLogger("shardwright").addHandler(Listener(met))
    writer = sw.create(path, life.spec, **how(**write_settings(row), **spill, **QUICK))
    is_said = threading.Event()

    def die_at_the_end() -> None:
        is_said.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    # a writer for which a full disk is an error ends by itself
    failpoints.set_hook("workspace.before_manifest", die_at_the_end)
    disk = NoRoom(folder, folder / "second", met)  # the first shards have theirs already
    met.beyond, met.needs_files = life.beyond(life.frames[: life.before], writer._acquisition._core.grids)
    # not before there is a frame: a store without one goes with its writer
    disk.ends = row["on_full"] == "fail" and met.beyond[0]
    life.send_before(writer, met)
    wait_for(lambda: ("disk_full" in met.events) == ("disk_has_room" in met.events), "room on the disk")
    wait_for(lambda: "spilling" not in met.events or met.spilled, "room elsewhere")
    met.path = str(writer.path)
    channel.send(met)
    disk.ends = row["on_full"] == "fail"
    if row["death"] == "flushed":
        os._exit(0)
    is_said.set()
    if row["death"] == "at a storage call":
        kill_at(1 + life.number % 7)
        if not met.full:
            life.send(writer, life.frames[life.before :])
            wait_for(lambda: is_flushed(writer), "room on the disk")
    channel.send(CLOSES)
    writer.close()


def order_after(row: Row) -> str:
    """The ``chunk_order`` that it is resumed with."""
    another = {"arrival": "row_major", "row_major": "morton", "morton": "arrival", "fixed": "row_major"}
    order: str = row["chunk_order"]
    return order if row["chunk_order_after"] == "same" else another[order]


def go_on(life: Life, path: Path, before: Met, met: Met) -> sw.Receipt:
    """What came back of the dead writer's acquisition goes on to its end. A frame that was lost can be sent
    again only to a place that it names."""
    row, is_known = life.row, life.row["death"] != "at a storage call"
    writer = sw.resume(
        path,
        durability=row["durability"],
        overload=row["overload"],
        on_full=row["on_full"],
        take_over=row["take_over"],
        **how(
            chunk_order=order_after(row), on_duplicate=row["on_duplicate"] if is_known else "count", **QUICK
        ),
    )
    with writer, Listener(met):
        met.lost = writer.frames - before.frames
        assert met.lost in (0, bool(before.full)) if is_known else met.lost >= 0
        next_frame = before.stored + (met.lost if row["named"] == "nothing" else 0)
        life.send_part(writer, life.frames[next_frame:], met, is_last=True)
    return writer.receipt
