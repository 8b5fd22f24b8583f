"""A reader that is held between any two of its looks, while anything happens to the store, never takes a
stored frame for fill value: it gives its pixels, or a typed error."""

from __future__ import annotations

import itertools
import os
import random
import signal
import struct
import threading
import time
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.json_process import wait_for
from tests.harness.python import start_python
from tests.harness.store_contents import snapshot
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.limits import Limits
from shardwright.disk import failpoints
from shardwright.model.errors import (
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StoreChangingError,
)
from shardwright.model.names import WORKSPACE
from shardwright.model.write_settings import WriteSettings
from shardwright.read.live_shard import LiveKeys
from shardwright.read.live_view import LiveView
from shardwright.read.store_state import TRIES
from shardwright.recovery.resume import restore
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard.file_header import file_seed
from shardwright.shard.manifest import manifest_path
from shardwright.shard.row_checksum import seal_rows

from .held_readers import (
    AGAIN_AND_AGAIN,
    FINISHED_AGAIN_AND_AGAIN,
    FINISHED_ONCE,
    ONCE,
    QUICK,
    READERS,
    ROW,
    Scene,
    held_before,
    judge,
    spec,
)
from .live_judge import SHAPE, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
]
ROOT = Path(__file__).parents[2]
Kind = tuple[dict[str, Any], dict[str, Any]]
KINDS: dict[str, Kind] = {
    "none": ({}, {}),
    "uncompressed": ({"codec": None}, {}),
    "live index": ({"index_location": "start"}, {"live": "index"}),
    "live append": ({}, {"live": "append"}),
    "without shards": ({"shard": None}, {}),
    "in place": ({"codec": None}, {"partial_chunks": "in_place"}),
    "direct": ({}, {"io": "direct"}),
}
WRITTEN, FINISHED = {**AGAIN_AND_AGAIN, **ONCE}, {**FINISHED_AGAIN_AND_AGAIN, **FINISHED_ONCE}
EVENTS = {**WRITTEN, **{f"{name}, finished": event for name, event in FINISHED.items()}}
TERMINAL = {*ONCE, *(f"{name}, finished" for name in FINISHED_ONCE)}


def product() -> Iterator[Any]:
    """Each event with one reader of one kind in the quick suite; among the slow ones each event of each kind
    with two readers, and of one kind with the followers and with all looks of two readers."""
    # a follower looks again and again, which takes its time
    patient = [name for name in READERS if name != "follow"]
    readers, kinds = itertools.cycle(patient), itertools.cycle(KINDS)
    quick = {(event, next(readers), next(kinds)) for event in EVENTS}
    quick |= {("taken over", "boxes", "none"), ("sealed", "ranges", "live append")}
    quick |= {("taken over", "follow", "none"), ("updated, finished", "boxes", "uncompressed")}
    pairs = {(event, next(readers), kind) for event in EVENTS for kind in KINDS for _ in range(2)}
    pairs |= {(event, "follow", "none") for event in EVENTS}
    # chunks that are written in place are nowhere else, so that an I/O error ends the acquisition
    pairs = {case for case in pairs if (case[0], case[2]) != ("rewritten", "in place")}
    for case in sorted(quick | pairs):
        marks = [] if case in quick else [pytest.mark.slow]
        yield pytest.param(*case, True, marks=marks, id="-".join(case))
    for event, reader in itertools.product(EVENTS, ("boxes", "ranges")):
        yield pytest.param(
            event, reader, "none", False, marks=pytest.mark.slow, id=f"{event}-{reader}-all looks"
        )


def looks_of(scene: Scene, reader: str, *, some: bool) -> list[int]:
    """The numbers of the looks of one reading; ``some``: of each name only the first and the last."""
    with held_before(1 << 30, lambda: None) as names:
        READERS[reader](scene.path).read(scene.first)
    if not some:
        return list(range(len(names) + 8))  # what happens makes some more
    last = {name: number for number, name in enumerate(names)}
    return sorted({*last.values(), *(names.index(name) for name in last)})


@pytest.mark.parametrize(("event", "reader", "kind", "some"), list(product()))
def test_a_reader_that_is_held_at_any_look_gives_what_is_stored(tmp_path, event, reader, kind, some):
    with zarr.config.set({"async.concurrency": 1}):  # one look at a time
        hold_at_every_look(tmp_path, event, reader, kind, some=some)


def hold_at_every_look(folder: Path, event: str, reader: str, kind: str, *, some: bool) -> None:
    array, writer = KINDS[kind]
    array = dict(array)

    def make(number: int) -> Scene:
        path = folder / str(number) / "a.ome.zarr"
        return Scene(path, finished=event not in WRITTEN, array=array, writer=writer)

    scene = make(0)
    try:
        numbers = looks_of(scene, reader, some=some)
        read = 0
        for number in numbers:
            if event in TERMINAL and number != numbers[0]:
                scene.close()
                scene = make(1 + number)
            read += hold(scene, EVENTS[event], reader, number)
        assert read or event in TERMINAL, "every reading was an error"
    finally:
        scene.close()


def hold(scene: Scene, event: Callable[[Scene], None], reader: str, number: int) -> bool:
    """Returns whether the held reader gave pixels, which were right."""
    first, stored, happened = scene.first, scene.stored, []

    def happen() -> None:
        happened.append(True)
        event(scene)

    with held_before(number, happen) as names:
        try:
            pixels = READERS[reader](scene.path).read(first)
        except ShardwrightError:
            return False
        finally:
            if happened:
                names.append("")
    try:
        judge(pixels, first, stored)
    except AssertionError as error:
        error.add_note(f"held before look {number}, {names[number] if happened else 'not at all'}")
        raise
    return True


# ---------------------------------------------------------------------- the end of patience


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "a.ome.zarr", finished=False, array={}, writer={})
    yield scene
    scene.close()


@pytest.mark.parametrize("reader", ["boxes", "ranges", "frames", "sparse"])
def test_a_store_that_changes_without_end_is_an_error(scene, reader):
    manifest, changes = manifest_path(scene.path / ".shardwright", 1), itertools.count(1)
    reading = READERS[reader](scene.path)

    def change(name: str) -> None:
        if name == "look.shard.name":
            os.utime(manifest, ns=(0, next(changes)))

    failpoints.hold_looks(change)
    try:
        with pytest.raises(StoreChangingError, match="changes faster than it is read"):
            reading.read(0)
    finally:
        failpoints.hold_looks(None)
    assert next(changes) <= TRIES**2
    judge(reading.read(0), 0, scene.stored)


def test_a_chunk_that_a_journal_names_and_no_file_has_is_an_error(scene):
    """A shard in progress was lost, so that its chunks are neither there nor sealed."""
    for working in (scene.path / ".shardwright").glob("*.partial"):
        working.unlink()
    with pytest.raises(StoreChangingError):
        READERS["boxes"](scene.path).read(0)


@pytest.mark.parametrize("damage", [8, 64])
def test_chunks_of_a_shard_row_with_a_damaged_journal_are_an_error(scene, damage):
    journal = scene.path / ".shardwright" / "1.journal"
    with journal.open("r+b") as file:
        file.seek(damage)
        file.write(b"\xff\xff\xff")
    view = LiveView(scene.path)
    with pytest.raises(ShardFormatError, match="journal"):
        view.read_frames("0", [(4,)])
    np.testing.assert_array_equal(view.read_frames("0", [(0,)])[0], frame(0))  # of another shard row


@pytest.mark.parametrize("damage", [0, 8, 64])
def test_a_frame_that_may_be_in_a_damaged_staging_area_is_an_error(scene, damage):
    with (scene.path / ".shardwright" / "staging").open("r+b") as file:
        file.seek(damage)
        file.write(b"\xff\xff\xff")
    view = LiveView(scene.path)
    with pytest.raises(ShardFormatError, match="staging"):
        view.read_frames("0", [(scene.stored - 1,)])
    np.testing.assert_array_equal(view.read_frames("0", [(0,)])[0], frame(0))  # in a shard


def test_a_staging_area_that_is_not_written_yet_says_nothing(scene):
    staging = scene.path / ".shardwright" / "staging"
    staging.write_bytes(bytes(staging.stat().st_size))
    np.testing.assert_array_equal(LiveView(scene.path).read_frames("0", [(0,)])[0], frame(0))
    assert not LiveView(scene.path).read_frames("0", [(scene.stored - 1,)])[0].any()


@pytest.mark.parametrize("position", [0, 5, 2**31, 2**62])
def test_a_frame_of_another_place_is_not_believed(scene, position):
    """Its position would decide how far the array reaches."""
    store = UnfinishedStore.read(scene.path)
    journal, record = scene.path / ".shardwright" / "1.journal", store.record_dtype
    tables = store.tables(1)
    with journal.open("r+b") as file:
        file.seek(tables.frame_records_offset(0))
        one = np.frombuffer(file.read(record.itemsize), record).copy()
        one["position"] = position
        seal_rows(one, file_seed(store.manifest.identity_bytes, 1))
        file.seek(tables.frame_records_offset(0))
        file.write(one.tobytes())
    view = LiveView(scene.path)
    assert view.document("0")["shape"][0] <= scene.stored
    with pytest.raises(ShardFormatError, match="a frame record of a stored slab is damaged"):
        view.read_frames("0", [(4,)])
    np.testing.assert_array_equal(view.read_frames("0", [(0,)])[0], frame(0))


def test_a_journal_that_is_not_written_yet_says_nothing(scene):
    journal = scene.path / ".shardwright" / "1.journal"
    made = journal.with_name("7.journal")
    made.write_bytes(bytes(journal.stat().st_size))
    judge(READERS["boxes"](scene.path).read(0), 0, scene.stored)
    made.unlink()


# ---------------------------------------------------------------------- an index and its chunks


def test_bytes_of_a_chunk_that_was_never_stored_are_no_fill_value(scene):
    keys = LiveKeys(LiveView(scene.path))
    there = keys.find("0/c/1/0/0")
    assert there.has(0, there.nbytes)
    absent = keys.find("0/c/9/0/0")
    assert not absent.has(0, absent.nbytes)
    assert not absent.has(absent.nbytes - 20, absent.nbytes)  # its index: who asks for it has none yet
    with pytest.raises(ShardChangedError, match="nothing was ever stored there"):
        absent.has(0, 100)


def test_a_frame_that_is_on_record_is_never_fill(scene):
    view = LiveView(scene.path)
    np.testing.assert_array_equal(view.read_frames("0", [(4,)], recorded=True)[0], frame(4))
    assert not view.read_frames("0", [(40,)])[0].any()
    with pytest.raises(ShardChangedError, match="nothing was ever stored there"):
        view.read_frames("0", [(40,)], recorded=True)


@pytest.mark.parametrize("fields", [{}, {"codec": None}])
def test_a_chunk_that_was_listed_while_staged_and_is_all_fill_is_readable(tmp_path, fields):
    """An index that was read before its slab was stored names it for good."""
    path, dark = tmp_path / "a.ome.zarr", np.full(SHAPE, 7, np.uint16)
    with sw.create(path, spec(fill_value=7, **fields), **how(**QUICK)) as writer:
        writer.append(dark)
        writer.flush()
        keys = LiveKeys(LiveView(path), fixed_slots=True)
        listed = keys.find("0/c/0/0/0")
        start, stop = 0, listed.nbytes // 8
        assert listed.has(start, stop)
        chunk = listed.read(start, stop)
        for i in range(1, 8):
            writer.append(dark if i < 4 else frame(i))
        writer.flush()
        assert keys.find("0/c/0/0/0").has(start, stop)
        assert keys.find("0/c/0/0/0").read(start, stop) == chunk
    assert not (path / "0/c/0").exists()
    assert keys.find("0/c/0/0/0").read(start, stop) == chunk


def test_an_index_and_its_chunks_come_from_one_file(tmp_path):
    """Compaction gives a shard another place between the index and the first chunk of a sparse selection."""
    scene = Scene(tmp_path / "a.ome.zarr", finished=True, array={}, writer={})
    reading, names = READERS["sparse"](scene.path), []
    reading.read(0)

    def compact(name: str) -> None:
        names.append(name)
        if names.count("look.bytes") == 3:  # zarr.json, the index, a chunk
            failpoints.hold_looks(None)
            scene.compact()

    failpoints.hold_looks(compact)
    judge(reading.read(0), 0, scene.stored)
    assert names.count("look.bytes") == 3


# ---------------------------------------------------------------------- at random


_READER = """
import sys, mmap, struct, pathlib
from tests.read.live_judge import Judge
path, told, place = pathlib.Path(sys.argv[1]), sys.argv[2], 8 * int(sys.argv[3])
import shardwright as sw
judge = Judge(path)
with open(told, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 24)
print("begun", flush=True)
errors = 0
while True:
    (judge.stored,) = struct.unpack("<q", shared[:8])
    if judge.stored < 0:
        break
    try:
        judge.look(again=judge.looks % 3 == 0)
    except sw.errors.ShardwrightError:
        errors += 1
    shared[place:place + 8] = struct.pack("<q", judge.looks)
print(judge.looks, errors, flush=True)
"""


class Told:
    """Eight bytes for how many frames are stored, and for how often each of two readers has looked, which
    have mapped them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(24))

    def tell(self, stored: int) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("<q", stored))

    def looks(self) -> tuple[int, int]:
        _, one, other = struct.unpack("<3q", self.path.read_bytes())
        return one, other


@pytest.mark.parametrize("seed", range(3))
def test_readers_that_are_stopped_at_random_beside_take_overs_see_no_fill(tmp_path, seed):
    rng, told = random.Random(seed), Told(tmp_path / "told")
    scene = Scene(tmp_path / "a.ome.zarr", finished=False, array={}, writer={})
    arguments = "-c", _READER, scene.path, told.path
    readers = [start_python(*arguments, place, stdout=PIPE, stderr=PIPE) for place in ("1", "2")]
    over = threading.Event()

    def stop_and_continue() -> None:
        while not over.wait(rng.uniform(0, 0.01)):
            reader = rng.choice(readers)
            reader.send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0, 0.2))
            reader.send_signal(signal.SIGCONT)

    stopping = threading.Thread(target=stop_and_continue)
    try:
        for reader in readers:
            assert reader.stdout.readline() == "begun\n"
        stopping.start()
        for _ in range(10):
            before = told.looks()
            scene.take_over()
            scene.seal()
            told.tell(scene.stored)
            wait_for(  # a reader that never runs beside them would see nothing
                lambda before=before: (
                    all(now > then for now, then in zip(told.looks(), before, strict=True))
                    or any(reader.poll() is not None for reader in readers)
                ),
                "a look of each reader",
            )
    finally:
        over.set()
        stopping.join()
        told.tell(-1)
        said = [reader.communicate() for reader in readers]
        scene.close()
    for out, wrong in said:
        assert wrong == ""
        looks, errors = map(int, out.split())
        assert looks > errors


def test_a_staged_frame_that_a_power_cut_took_is_gone_once_its_store_is_resumed(tmp_path):
    """Its record was on the disk, its pixels were not. While a writer lives, such a record is that of a frame
    which is in its slab by now, for which a reader looks again."""
    scene = Scene(tmp_path / "alive.ome.zarr", finished=False, array={}, writer={})
    lost = scene.stored - 1
    store = snapshot(scene.path, tmp_path / "run.ome.zarr")
    scene.close()
    area = UnfinishedStore.read(store).open_staging()
    assert area is not None
    (slot,) = np.flatnonzero(area.read()[1] & (area.read_records()["sequence"] == lost)).tolist()
    with area.path.open("r+b") as file:
        file.seek(area.data_offset(slot))
        file.write(bytes(64))
    area.close()
    with sw.resume(store, **how(**QUICK)):
        pixels = zarr.open_array(sw.open(store), path="0", mode="r")[lost - 1 :]
    assert len(pixels) == 1
    np.testing.assert_array_equal(pixels[0], frame(lost - 1))


def test_a_slab_that_recovery_drops_is_dropped_by_a_reader_that_has_it(tmp_path):
    """One of its chunks was lost in a power cut. A reader looked at its entries before they were cleared, and
    read another chunk."""
    unstaged = {"store_within_ms": 60_000}
    scene = Scene(tmp_path / "alive.ome.zarr", finished=False, array={"codec": None}, writer=unstaged)
    store = snapshot(scene.path, tmp_path / "run.ome.zarr")
    scene.close()
    first = scene.first + ROW  # of the newest shard row
    with (store / WORKSPACE / f"c.{first // ROW}.0.0.partial").open("r+b") as file:
        file.write(b"\xff\xff")
    reader = zarr.open_array(sw.open(store), path="0", mode="r")
    low = slice(SHAPE[0] // 2, None)  # in another shard
    looks = []

    def look_before(point: str) -> None:
        if point == "journal.before_clear" and not looks:
            looks.append(reader[first, low].any())

    limits, settings = partial(Limits.derive, threads=1), WriteSettings(ballast_bytes=0)
    failpoints.watch_all(look_before)
    try:
        recovered, _ = restore(
            store, limits, settings, threads=1
        )  # as a daemon does; nobody sends frames yet
    finally:
        failpoints.watch_all(None)
    try:
        assert looks == [True]
        assert not reader[first, low].any()
    finally:
        recovered.close()
