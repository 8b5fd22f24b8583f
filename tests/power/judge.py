"""Mounts one image, recovers the store on it and holds what can be read against what was promised before the
cut.

P3  before and after recovery, every file with a final shard name is a whole shard: index and every chunk
    check, every frame in it is as it was
    sent or fill
P2  after recovery, every frame that was durable before the cut reads bit-exact; if ``close`` or a recovery
        had returned, even without another recovery, also while the store goes on: its frame table is there
        with these frames and with the receipts of the parts that have ended, and ``verify`` finds nothing

Of several images each is judged; after recovery, the store's metadata name those that have an array. An image
for which ``add_image`` had returned is recorded with all that was said of it; once a frame of it is durable,
its metadata say that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.ome import multiscale_of
from shardwright.codecs.decode import decode_chunk_into
from shardwright.model.errors import ShardwrightError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import WORKSPACE
from shardwright.read.frame_table import frame_table_of
from shardwright.read.store import StoredArray, open_store, read_metadata
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.recovery.resume import manifest_of
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shared_journal import is_shared

from . import machine
from .compaction import packed_again, torn_shards
from .scenario import FRAME_SHAPE, FRAMES, STORE, Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool
    from shardwright.read.frame_table import FrameTable

    from .compaction import Shards
    from .recording import Promised


@dataclass(frozen=True)
class Reading:
    """``exact``: bool[FRAMES] by number in ``Scenario.frames``, whether a reader sees the frame as it was
    sent. ``faults``: what is wrong with final shards."""

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
        self.shared_journals = 0  # images that had one
        self.going_on = 0  # images of a finished store that was going on
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
        self.shared_journals += any(is_shared(path.name) for path in store.glob(f"{WORKSPACE}/**/*.journal"))
        before = self._read(store, whole_shape=True)
        # shards that readers see grow are for recovery after a power cut
        faults = [f"before recovery: {fault}" for fault in before.faults if self._scenario.live == "none"]
        faults += torn_shards(store, self._shards, promised)
        if promised.sealed:
            faults += self._check_sealed(store, promised)
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
        if promised.durable and len(self._scenario.parts) > 1:
            faults += self._check_named(store)
        try:
            faults += self._check_added(store, promised)
            faults += check_receipts(frame_table_of(store), promised) if promised.receipts else []
        except ShardwrightError as error:
            faults.append(f"added images, or receipts: {error}")
        if independently and not faults and promised.durable:
            faults += self._check_independently(store, after, promised)
            if self._scenario.compaction is not None:
                faults += packed_again(store, self._scenario.compaction, self._shards)
                faults += [
                    f"packed again, but lost: {lost}"
                    for lost in self._lost(self._read(store, whole_shape=False), promised.durable)
                ]
        return faults

    def _check_sealed(self, store: Path, promised: Promised) -> list[str]:
        """What does not hold, before recovery, of a store that was finished, and may be going on."""
        try:
            table = frame_table_of(store)
            faults, lost = check_receipts(table, promised), self._untold(columns_of(table), promised.sealed)
        except ShardwrightError as error:
            faults, lost = [f"frame table: {error}"], []
        goes_on = (store / WORKSPACE).exists()
        self.going_on += goes_on
        if not (goes_on and self._scenario.live != "none"):  # whose shards are opened again, and grow
            lost += self._lost(self._read(store, whole_shape=False), promised.sealed)
        if not goes_on:
            faults += [f"verify: {problem}" for problem in verify_store(store, threads=1).problems]
        return [
            *(f"finished: {fault}" for fault in faults),
            *(f"sealed, but not to be read without recovery: {each}" for each in lost),
        ]

    def _check_added(self, store: Path, promised: Promised) -> list[str]:
        """What does not hold of added images, after recovery."""
        scenario = self._scenario
        told = scenario.added_images[: promised.added]
        manifest = manifest_of(store) if told else None
        recorded = None if manifest is None else manifest.acquisition
        # raises for one that is recorded as another image
        if told and (recorded is None or recorded.with_images(told) is not recorded):
            return [f"added, but not recorded: {[image.name for image in told]}"]
        faults = []
        for number in {scenario.place(frame)[0] for frame in scenario.sent[: promised.durable]}:
            if number >= scenario.declared_images:
                image = scenario.added_images[number - scenario.declared_images]
                group = read_metadata(store / scenario.acquisition.folders[number])["attributes"]
                steps = multiscale_of(group)["datasets"][0]["coordinateTransformations"]
                moves = [step["translation"][-2:] for step in steps if step["type"] == "translation"]
                wanted = [] if image.position is None else [[image.position.y, image.position.x]]
                if (moves, group.get("found")) != (wanted, image.attributes["found"]):
                    faults.append(f"added as {image!r}, and its metadata say {moves}, {group.get('found')}")
        return faults

    def _lost(self, reading: Reading, promised: int) -> list[str]:
        return [
            f"frame {sequence} of (image, t) {self._scenario.place(frame)}"
            for sequence, frame in enumerate(self._scenario.sent[:promised])
            if not reading.exact[frame]
        ]

    def _check_named(self, store: Path) -> list[str]:
        from tests.harness.store_contents import listed_images

        # a folder alone may hold what was said of an image that got no frame
        arrays = (path for path in self._scenario.acquisition.paths if (store / path).exists())
        there = [path.rpartition("/")[0] for path in arrays]
        try:
            named = listed_images(store)
        except Exception as error:
            return [f"the metadata of the images: {error!r}"]
        return [] if named == there else [f"the metadata name the images {named}, but {there} are there"]

    # ------------------------------------------------------------------ reading

    def _read(self, store: Path, *, whole_shape: bool) -> Reading:
        """``whole_shape``: look at all final shards, also at those that zarr.json does not yet cover."""
        exact, faults = np.zeros(FRAMES, np.bool_), []
        for path, part in self._images(store):
            faults += self._read_image(path, part, exact[part], whole_shape=whole_shape)
        return Reading(exact, faults)

    def _images(self, store: Path) -> list[tuple[Path, slice]]:
        """The folder of each image's array, and which frames are its own."""
        scenario = self._scenario
        return [
            (store / path, part)
            for path, part in zip(scenario.acquisition.paths, scenario.parts, strict=False)  # some wells
        ]

    def _read_image(self, path: Path, part: slice, exact: np.ndarray, *, whole_shape: bool) -> list[str]:
        """Fills ``exact``; returns faults."""
        if not (path / "c").is_dir() and not (path / "zarr.json").is_file():
            return []
        try:
            array = open_store(path.parent).arrays[0]
        except (ShardwrightError, IndexError) as error:
            shards = [str(path) for path in (path / "c").rglob("*") if path.is_file()]
            return [f"shards without readable metadata: {shards}: {error}"] if shards else []
        sent = self._scenario.frames[part]
        visible = len(sent) if whole_shape else min(len(sent), array.shape[0])
        array = replace(array, shape=(visible, *FRAME_SHAPE))
        image, faults = np.zeros(sent.shape, np.uint16), []
        for key, coordinates in array.shard_files():
            if coordinates is None or not array.contains_shard(coordinates):
                faults.append(f"no shard of this array: {key}")
            else:
                faults += self._read_shard(array, key, coordinates, image, sent)
        exact[:visible] = (image == sent)[:visible].all(axis=(1, 2))
        return faults

    def _read_shard(
        self,
        array: StoredArray,
        key: str,
        coordinates: tuple[int, ...],
        image: np.ndarray,
        sent: np.ndarray,
    ) -> list[str]:
        """Decode every chunk of a shard into its place of ``image``, each checked on its own."""
        faults = []
        try:
            with SealedShard.open(array.path / key, array.index) as file:
                entries = file.entries
                faults += [f"{key} chunk {chunk}: {fault}" for chunk, fault in file.index.faults()]
                for chunk in file.index.live.tolist():
                    encoded = file.file.read(int(entries["offset"][chunk]), int(entries["nbytes"][chunk]))
                    faults += self._decode(
                        array, key, array.chunk_coordinates(coordinates, chunk), encoded, image, sent
                    )
        except ShardwrightError as error:
            faults.append(f"{key}: {error}")
        return faults

    def _decode(
        self,
        array: StoredArray,
        key: str,
        chunk: tuple[int, ...],
        encoded: memoryview,
        image: np.ndarray,
        sent: np.ndarray,
    ) -> list[str]:
        if self._chunk.size != array.chunk_bytes:
            self._chunk = np.empty(array.chunk_bytes, np.uint8)
        decode_chunk_into(encoded, array.codecs, self._chunk)
        block = tuple(
            slice(i * size, (i + 1) * size) for i, size in zip(chunk, array.chunk_shape, strict=True)
        )
        seen, sent = self._chunk.view(np.uint16).reshape(array.chunk_shape), sent[block]
        image[block] = seen
        strange = [
            frame
            for frame in range(len(sent))
            if seen[frame].any() and not np.array_equal(seen[frame], sent[frame])
        ]
        return [f"{key}: neither fill nor what was sent, at t={block[0].start + frame}" for frame in strange]

    def _check_independently(self, store: Path, reading: Reading, promised: Promised) -> list[str]:
        """zarr-python sees the same as our reader, also in the frame table; ``verify`` finds nothing."""
        import yaozarrs
        from tests.harness.levels import level_problems
        from tests.harness.store_contents import frame_table
        from tests.properties.readers import with_zarr_python

        faults = [f"verify: {problem}" for problem in verify_store(store, threads=1).problems]
        faults += level_problems(store)
        try:
            for path, part in self._images(store):
                if (path / "zarr.json").is_file():
                    image, sent = (
                        with_zarr_python(path)[: part.stop - part.start],
                        self._scenario.frames[part],
                    )
                    seen = (image == sent[: len(image)]).all(axis=(1, 2))
                    if not np.array_equal(seen, reading.exact[part][: len(image)]):
                        faults.append(f"zarr-python reads other frames of {path} than our reader")
            if len(self._scenario.parts) > 1:
                yaozarrs.validate_zarr_store(str(store))
            table = frame_table(store)
        except Exception as error:
            return [*faults, f"zarr-python: {error}"]
        return [*faults, *[f"durable, but {lost}" for lost in self._untold(table, promised.durable)]]

    def _untold(self, table: Mapping[str, np.ndarray], promised: int) -> list[str]:
        """Which of the first frames a frame table does not have as stored."""
        rows = table["status"] == FrameStatus.STORED
        images = table.get("image", np.zeros(rows.size, np.int32))
        told = set(zip(images[rows].tolist(), table["index_t"][rows].tolist(), strict=True))
        places = {self._scenario.place(frame) for frame in self._scenario.sent[:promised]}
        return [f"not in the frame table: (image, t) {place}" for place in sorted(places - told)]


def check_receipts(table: FrameTable | None, promised: Promised) -> list[str]:
    """Whether the parts that had ended have the receipts that they had."""
    found = () if table is None else table.receipts[: len(promised.receipts)]
    return [] if found == promised.receipts else [f"receipts {found}, and told were {promised.receipts}"]


def columns_of(table: FrameTable | None) -> dict[str, np.ndarray]:
    """The columns that say where stored frames are; of no table without rows."""
    names = ("index_t",) if table is None or "image" not in table.columns else ("index_t", "image")
    chunks = range(0 if table is None else table.chunks)
    found = {name: [table.read(name, chunk) for chunk in chunks] for name in names}
    found["status"] = [table.read_statuses(chunk) for chunk in chunks]
    return {name: np.concatenate([np.zeros(0, np.int64), *parts]) for name, parts in found.items()}
