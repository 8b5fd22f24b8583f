"""Mounts one image, recovers the store on it and holds what can be read against what was promised before the
cut.

P3  before and after recovery, every file with a final shard name is a whole shard: index and every chunk
    check, every frame in it is as it was
    sent or fill
P2  after recovery, every frame that was durable before the cut reads bit-exact; if ``close`` or a recovery
        had returned, even without another recovery
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.codecs.decode import decode_chunk_into
from shardwright.model.errors import ShardwrightError
from shardwright.model.frame_status import FrameStatus
from shardwright.read.shard_file import ShardFile, check_entries
from shardwright.read.store import StoredArray, open_store
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store

from . import machine
from .compaction import packed_again, torn_shards
from .scenario import FRAME_SHAPE, FRAMES, STORE, Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool

    from .compaction import Shards
    from .recording import Promised


@dataclass(frozen=True)
class Reading:
    """``exact``: bool[FRAMES] by index along t, whether a reader sees the frame as it was sent. ``faults``:
    what is wrong with final shards."""

    exact: np.ndarray
    faults: list[str]


class UnmountableError(Exception):
    """The filesystem on an image cannot be mounted."""


class Judge:
    """Judges the images of one scenario. Keeps what is dear from one image to the next: the mount point and
    the workers."""

    def __init__(self, scenario: Scenario, folder: Path, pool: WorkerPool, shards: Shards) -> None:
        """``shards``: what a compaction was making of them; empty when the writer was at work."""
        self._shards = shards
        self._scenario = scenario
        self._folder = folder
        self._pool = pool
        self._chunk = np.empty(0, np.uint8)

    def judge(self, loop: machine.LoopDevice, promised: Promised, *, independently: bool) -> list[str]:
        """What is wrong with the image on the loop device, empty when all is well. ``independently``:
        zarr-python and ``verify`` read as well.

        Raises ``UnmountableError``.
        """
        try:
            machine.mount(loop.device, self._folder, self._scenario.filesystem)
        except OSError as error:
            raise UnmountableError(f"{error}; {machine.kernel_says(loop.device)}") from error
        try:
            return self._judge_mounted(promised, independently)
        finally:
            machine.unmount(self._folder)

    def _judge_mounted(self, promised: Promised, independently: bool) -> list[str]:
        store = self._folder / STORE
        before = self._read(store, whole_shape=True)
        faults = [f"before recovery: {fault}" for fault in before.faults]
        faults += torn_shards(store, self._shards, promised)
        if promised.sealed:
            visible = self._read(store, whole_shape=False)
            faults += [
                f"sealed, but not to be read without recovery: {lost}"
                for lost in self._lost(visible, promised.sealed)
            ]
        try:
            for unfinished in unfinished_stores(self._folder):
                recover_store(unfinished, self._pool, threads=1)
            if left := unfinished_stores(self._folder):
                faults.append(f"still unfinished after recovery: {[path.name for path in left]}")
        except ShardwrightError as error:
            faults.append(f"recovery failed: {type(error).__name__}: {error}")
        after = self._read(store, whole_shape=False)
        faults += [f"after recovery: {fault}" for fault in after.faults]
        faults += [f"durable, but lost: {lost}" for lost in self._lost(after, promised.durable)]
        if independently and not faults and promised.durable:
            faults += self._check_independently(store, after, promised)
            if self._scenario.compaction is not None:
                faults += packed_again(store, self._scenario.compaction, self._shards)
                faults += [
                    f"packed again, but lost: {lost}"
                    for lost in self._lost(self._read(store, whole_shape=False), promised.durable)
                ]
        return faults

    def _lost(self, reading: Reading, promised: int) -> list[str]:
        order = self._scenario.order[:promised]
        return [
            f"frame {sequence} at t={place}"
            for sequence, place in enumerate(order)
            if not reading.exact[place]
        ]

    # ------------------------------------------------------------------ reading

    def _read(self, store: Path, *, whole_shape: bool) -> Reading:
        """``whole_shape``: look at all final shards, also at those that zarr.json does not yet cover."""
        exact = np.zeros(FRAMES, np.bool_)
        if not (store / "0" / "c").is_dir() and not (store / "0" / "zarr.json").is_file():
            return Reading(exact, [])
        try:
            array = open_store(store).arrays[0]
        except (ShardwrightError, IndexError) as error:
            shards = [str(path) for path in (store / "0" / "c").rglob("*") if path.is_file()]
            return Reading(exact, [f"shards without readable metadata: {shards}: {error}"] if shards else [])
        visible = FRAMES if whole_shape else min(FRAMES, array.shape[0])
        array = replace(array, shape=(visible, *FRAME_SHAPE))
        image, faults = np.zeros((FRAMES, *FRAME_SHAPE), np.uint16), []
        for key, coordinates in array.shard_files():
            if coordinates is None or not array.contains_shard(coordinates):
                faults.append(f"no shard of this array: {key}")
            else:
                faults += self._read_shard(array, key, coordinates, image)
        matches = image == self._scenario.frames
        exact[:visible] = matches[:visible].all(axis=(1, 2))
        return Reading(exact, faults)

    def _read_shard(
        self, array: StoredArray, key: str, coordinates: tuple[int, ...], image: np.ndarray
    ) -> list[str]:
        """Decode every chunk of a shard into its place of ``image``, each checked on its own."""
        faults = []
        try:
            with ShardFile(array, array.path / key) as file:
                entries = file.read_index()
                check = check_entries(array, coordinates, entries, file.data_range)
                faults += [f"{key} chunk {chunk}: {fault}" for chunk, fault in check.faults]
                for chunk in np.flatnonzero(check.sound).tolist():
                    encoded = bytearray(int(entries["nbytes"][chunk]))
                    file.read_into(int(entries["offset"][chunk]), memoryview(encoded))
                    faults += self._decode(
                        array, key, array.chunk_coordinates(coordinates, chunk), encoded, image
                    )
        except ShardwrightError as error:
            faults.append(f"{key}: {error}")
        return faults

    def _decode(
        self, array: StoredArray, key: str, chunk: tuple[int, ...], encoded: bytearray, image: np.ndarray
    ) -> list[str]:
        if self._chunk.size != array.chunk_bytes:
            self._chunk = np.empty(array.chunk_bytes, np.uint8)
        decode_chunk_into(memoryview(encoded), array.codecs, self._chunk)
        block = tuple(
            slice(i * size, (i + 1) * size) for i, size in zip(chunk, array.chunk_shape, strict=True)
        )
        seen, sent = self._chunk.view(np.uint16).reshape(array.chunk_shape), self._scenario.frames[block]
        image[block] = seen
        strange = [
            frame
            for frame in range(len(sent))
            if seen[frame].any() and not np.array_equal(seen[frame], sent[frame])
        ]
        return [f"{key}: neither fill nor what was sent, at t={block[0].start + frame}" for frame in strange]

    def _check_independently(self, store: Path, reading: Reading, promised: Promised) -> list[str]:
        """zarr-python sees the same as our reader, also in the frame table; ``verify`` finds nothing."""
        from tests.harness.levels import level_problems
        from tests.harness.stored import frame_table, stored

        faults = [f"verify: {problem}" for problem in verify_store(store, threads=1).problems]
        faults += level_problems(store)
        try:
            image, table = stored(store)[:FRAMES], frame_table(store)
            places, statuses = table["index_t"], table["fate"]
        except Exception as error:
            return [*faults, f"zarr-python: {error}"]
        seen = (image == self._scenario.frames[: len(image)]).all(axis=(1, 2))
        if not np.array_equal(seen, reading.exact[: len(image)]):
            faults.append("zarr-python reads other frames than our reader")
        untold = set(self._scenario.order[: promised.durable]) - set(
            places[statuses == FrameStatus.STORED].tolist()
        )
        return [*faults, *[f"durable, but not in the frame table: t={place}" for place in sorted(untold)]]
