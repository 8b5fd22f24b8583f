"""A rig without a camera: frames in memory, an acquisition driven by hand, the store read back by
zarr-python."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import zarr

from shardwright.acquire.acquisition import Acquisition, AcquisitionState
from shardwright.acquire.encoding import SlabEncoder
from shardwright.acquire.limits import Limits
from shardwright.acquire.workers import WorkerPool
from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.disk import filesystems
from shardwright.model.errors import StorageFullError
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.journal import CHUNK_ENTRY, JournalLayout, ShardRowJournal
from shardwright.shard.shard_row_files import ShardRowFiles
from shardwright.wire.descriptor import DESCRIPTOR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.model.write_settings import WriteSettings

ENDED = (AcquisitionState.SEALED, AcquisitionState.FAILED)
GIVE_UP_S = 60.0  # only so that a hang becomes a failure


@pytest.fixture
def each_file_syncs_alone(monkeypatch):
    """No sync stands for the files of several shard rows. Where one does, an error of it is mended by the
    syncs of each file; and which rows are due together depends on how fast the disk is."""
    monkeypatch.setattr(filesystems, "MOST_SYNCED_ALONE", 1 << 30)


def _files(store: Path) -> Path:
    """Where the files in progress are; a writer that took the store over has its own."""
    taken = list(store.glob(".shardwright/taken-*"))
    return taken[0] if taken else store / ".shardwright"


def _first_chunk(store: Path, spec: ArraySpec, slab: int) -> tuple[int, int]:
    """(offset in file 0 of shard row 0, place of its journal entry) of the first chunk of a slab."""
    layout = SlabEncoder(spec, Grid.of(spec)).layout
    (manifest,) = store.glob(".shardwright/acquisition.*.json")
    identity = bytes.fromhex(json.loads(manifest.read_text())["identity"])
    tables = JournalLayout.of(layout, 0, record_dtype(len(spec.frame_fields)))
    journal = ShardRowJournal.open(_files(store) / "0.journal", tables, identity, 0)
    slot = layout.layer_of_slab(slab)[1] * int(layout.plane.layer_slots[0])
    offset = int(journal.read_chunks(0)[0]["offset"][slot])
    journal.close()
    return offset, tables.chunk_entry_offset(0, slot)


def _unfinish(store: Path, spec: ArraySpec, slab: int) -> None:
    """As if the worker had died before it journaled the first chunk of a slab of shard row 0."""
    with (_files(store) / "0.journal").open("r+b") as file:
        file.seek(_first_chunk(store, spec, slab)[1])
        file.write(bytes(CHUNK_ENTRY.itemsize))


@pytest.fixture
def unfinish() -> Callable[[Path, ArraySpec, int], None]:
    return _unfinish


def _rot(store: Path, spec: ArraySpec, slab: int) -> None:
    """Spoil the first chunk of a slab of shard row 0, wherever in its shard in progress it lies."""
    offset, _ = _first_chunk(store, spec, slab)
    with (store / ".shardwright" / "c.0.0.0.partial").open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 8)


@pytest.fixture
def rot() -> Callable[[Path, ArraySpec, int], None]:
    return _rot


def _forget(store: Path, spec: ArraySpec, slab: int) -> None:
    """Clears the frame records of a slab of shard row 0, as a power cut may have left the journal's page."""
    tables = JournalLayout.of(SlabEncoder(spec, Grid.of(spec)).layout, 0, record_dtype(0))
    with (store / ".shardwright" / "0.journal").open("r+b") as file:
        file.seek(tables.frame_records_offset(slab))
        file.write(bytes(tables.slab_record_bytes))


@pytest.fixture
def forget() -> Callable[[Path, ArraySpec, int], None]:
    return _forget


class Mark(NamedTuple):
    """A command of the tests' own: the sealer got here."""

    done: threading.Event


def sealer_is_done(acquisition):
    """Until it has done all that it was asked for so far."""
    sealer, mark = acquisition._sealer, Mark(threading.Event())
    do = type(sealer)._do
    sealer._do = lambda command: command.done.set() if isinstance(command, Mark) else do(sealer, command)
    sealer.put(mark)
    assert mark.done.wait(GIVE_UP_S)


class Drive:
    """Owns the pixels of what it submits until ``poll`` gives them back; counts every sequence in and out."""

    def __init__(
        self, path: Path, spec: ArraySpec, pool: WorkerPool, settings: WriteSettings | None = None, **limits
    ) -> None:
        self.spec, self.grid = spec, Grid.of(spec)
        self.limits = Limits.derive(spec, threads=pool.threads, **limits)
        self.acquisition = Acquisition(path, spec, self.limits, pool, lambda: None, settings)
        self.path = path
        self.sent: dict[int, np.ndarray] = {}  # position -> pixels that came first
        self.submitted = 0
        self.released: Counter[int] = Counter()
        self._pixels: dict[int, np.ndarray] = {}  # sequence -> memory still owned by the pipeline

    def pixels(self, seed: int) -> np.ndarray:
        dtype = np.dtype(self.spec.dtype)
        noise = np.random.default_rng(seed).integers(1, 100, self.spec.frame_shape)
        return noise.astype(dtype)

    def submit(self, *positions: int, seed: int = 0) -> list[int]:
        """One batch; the frame at a position has pixels of its own, other ``seed``s other pixels. Returns the
        sequences."""
        batch, addresses = np.zeros(len(positions), DESCRIPTOR), np.zeros(len(positions), np.int64)
        for i, position in enumerate(positions):
            frame = self.pixels(1000 * seed + position)
            self._pixels[self.submitted] = frame
            batch[i]["sequence"], batch[i]["position"] = self.submitted, position
            addresses[i] = frame.ctypes.data
            self.submitted += 1
        self.acquisition.submit(batch, addresses)
        return batch["sequence"].tolist()

    def poll(self, timeout_s: float | None = None) -> list[int]:
        self.acquisition.see_ring(len(self._pixels), self.limits.ring_frames)
        out = self.acquisition.poll(timeout_s).tolist()
        for sequence in out:
            self.released[sequence] += 1
            self._pixels.pop(sequence)[...] = 0  # whoever still reads it now stores zeros, which no frame has
        return out

    def until(self, condition) -> None:
        end = time.monotonic() + GIVE_UP_S
        while not condition():
            assert time.monotonic() < end, f"hangs: {self.acquisition.state}, {self.acquisition.receipt()}"
            self.poll(0.05)

    def quiet(self) -> None:
        """Until workers hold nothing."""
        self.until(lambda: self.acquisition.in_flight == 0)

    def still(self) -> None:
        """Until the sealer has nothing more to do either."""
        for _ in range(3):  # what it reports may lead to one more command
            self.quiet()
            sealer_is_done(self.acquisition)
            self.poll()

    def finish(self):
        self.acquisition.finish()
        self.until(lambda: self.acquisition.state in ENDED and self.acquisition.in_flight == 0)
        self.poll()
        assert self.released == Counter(range(self.submitted)), "every sequence comes out exactly once"
        self.acquisition.close()
        return self.acquisition.receipt()

    def expected(self, positions, seeds=None, extent: int | None = None) -> np.ndarray:
        """The array that zarr-python must read when these positions were stored."""
        counts = list(self.grid.counts)
        if counts:
            steps = int(np.prod(counts[1:], dtype=int))
            counts[0] = extent if extent is not None else max((p // steps + 1 for p in positions), default=0)
        fill = np.frombuffer(self.spec.fill_bytes(), np.dtype(self.spec.dtype))[0]
        array = np.full((*counts, *self.spec.frame_shape), fill, self.spec.dtype)
        for position in positions:
            array[self.grid.index_of(position)] = self.pixels(
                1000 * (seeds or {}).get(position, 0) + position
            )
        order = [[d.name for d in self.spec.dimensions].index(d.name) for d in self.spec.stored_dimensions]
        return array.transpose(order)

    def read(self) -> np.ndarray:
        return zarr.open_array(self.path / "0", mode="r")[...]


def tyx(count=None, chunk=2, shard=2, y=(4, 2, 1), x=(6, 4, 2), **fields) -> ArraySpec:
    axes = [("t", count, chunk, shard), ("y", *y), ("x", *x)]
    return ArraySpec(
        dtype="uint16",
        dimensions=[Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=s) for n, c, k, s in axes],
        **fields,
    )


@pytest.fixture(scope="session")
def spec_of():
    return tyx


@pytest.fixture
def pool():
    made = WorkerPool(2)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def shared_pool():
    """For tests that break nothing."""
    made = WorkerPool(2)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def drive_of():
    return Drive


@pytest.fixture
def full_first_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's own root has room for its first shard row alone."""
    create = ShardRowFiles.create.__func__

    def with_a_full_first_root(cls, placement, layout, shard_row, *arguments, **more):
        if placement.spill is None and shard_row > 0:
            raise StorageFullError("no room")
        return create(cls, placement, layout, shard_row, *arguments, **more)

    monkeypatch.setattr(ShardRowFiles, "create", classmethod(with_a_full_first_root))
