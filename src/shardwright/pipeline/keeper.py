"""The shard keeper: one thread per acquisition that does everything slow around shards, off the frame path.

It prepares shards (preallocated and mapped) before they are needed, seals them, and grows zarr.json behind the sealed ones.
The store's folder:

    NAME.ome.zarr/zarr.json          group, written once
    NAME.ome.zarr/0/zarr.json        array; its shape only ever covers sealed shards (one single image: always its shape)
    NAME.ome.zarr/0/c/...            sealed shards
    NAME.ome.zarr/frames/            frame table, written at the end
    NAME.ome.zarr/.shardwright/      shards in progress and frame records; gone when the acquisition has ended
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from shardwright.array.metadata import array_metadata, array_shape, group_metadata
from shardwright.array.ome import IMAGE_PATH
from shardwright.codecs.parameters import codec_metadata
from shardwright.model.errors import OutputExistsError, ShardwrightError, StorageError, WorkerError
from shardwright.shard.open_shard import OpenShard
from shardwright.storage.files import make_directories, replace_file, storage_errors, sync_directory
from shardwright.storage.slot_file import IoMode, resolve_io

from .frame_records import FrameRecords

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from shardwright.array.spec import ArraySpec
    from shardwright.shard.layout import ArrayLayout

WORKSPACE = ".shardwright"


@dataclass(frozen=True)
class GroupSealed:
    """The keeper's report: the files of one group carry their final names (or were all fill), or ``error`` says why not."""

    group: int
    shards: int
    error: Exception | None


@dataclass(frozen=True)
class GroupPrepared:
    """The future of a group's files is done, well or badly."""

    group: int


@dataclass(frozen=True)
class KeeperFailed:
    """A command failed that nobody waits for; the keeper goes on."""

    error: Exception


@dataclass(frozen=True)
class StoreFinished:
    """The keeper's last report."""

    error: Exception | None


KeeperReport = GroupPrepared | GroupSealed | KeeperFailed | StoreFinished


class ShardKeeper:
    """Commands may come from the acquisition's thread only; reports go to ``report`` from the keeper's thread."""

    def __init__(self, path: Path, spec: ArraySpec, layout: ArrayLayout, io: IoMode, report: Callable[[KeeperReport], None]) -> None:
        self.path = path
        self._spec = spec
        self._layout = layout
        self._report = report
        self._extent = 0
        self._records_error: Exception | None = None
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._create_store()
        try:
            self.io = resolve_io(io, path / WORKSPACE)
            self._records = FrameRecords(path, path / WORKSPACE, spec)
        except BaseException:
            self.remove_store()
            raise
        self._thread = threading.Thread(target=self._work, name=f"shardwright-keeper-{path.name}", daemon=True)
        self._thread.start()

    def prepare(self, group: int) -> Future[list[OpenShard]]:
        """Preallocate and map the files of a group; the future fails with ``StorageFullError`` or ``StorageError``."""
        future: Future[list[OpenShard]] = Future()

        def run() -> None:
            try:
                future.set_result(self._open_group(group))
            except Exception as error:  # noqa: BLE001  (travels in the future)
                future.set_exception(error)
            self._report(GroupPrepared(group))

        self._commands.put(run)
        return future

    def seal(self, group: int, shards: Future[list[OpenShard]]) -> None:
        """Seal the files of a group, in order; reports ``GroupSealed``. After a failure the rest is closed under its working name."""

        def run() -> None:
            try:
                sealed = [shard.seal() for shard in shards.result()]
            except Exception as error:  # noqa: BLE001  (travels in the report)
                for shard in shards.result() if shards.exception() is None else []:
                    shard.abandon()
                self._report(GroupSealed(group, 0, error))
            else:
                self._report(GroupSealed(group, sum(s.path is not None for s in sealed), None))

        self._commands.put(run)

    def discard(self, shards: Future[list[OpenShard]]) -> None:
        """Delete prepared shards that no frame came for."""

        def run() -> None:
            if shards.exception() is None:
                for shard in shards.result():
                    shard.discard()

        self._commands.put(run)

    def abandon(self, shards: Future[list[OpenShard]]) -> None:
        """Close shards that failed, leaving their working files for recovery."""

        def run() -> None:
            if shards.exception() is None:
                for shard in shards.result():
                    shard.abandon()

        self._commands.put(run)

    def record(self, descriptors: np.ndarray) -> None:
        """Keep the descriptors of frames that were placed; the array must not change afterwards.

        A failure (a full disk, say) costs the table, not the pixels: it is kept for ``finish`` to report.
        """

        def run() -> None:
            try:
                if self._records_error is None:
                    self._records.add(descriptors)
            except Exception as error:  # noqa: BLE001  (reported by finish)
                self._records_error = error

        self._commands.put(run)

    def grow(self, extent: int) -> None:
        """Let zarr.json cover ``extent`` elements of the first frame axis; never shrinks it.

        If that fails, readers see the shards later: after the next seal, or at the end, where a failure counts.
        """

        def run() -> None:
            with suppress(StorageError):
                self._write_extent(extent)

        self._commands.put(run)

    def finish(self, extent: int) -> None:
        """Write the final shape, take the workspace away, report ``StoreFinished``, end the thread."""

        def run() -> None:
            error: Exception | None = None
            try:
                self._write_extent(extent)
                if self._records_error is not None:
                    raise self._records_error  # noqa: TRY301
                self._records.write_table()
                self._remove_workspace()
            except Exception as failure:  # noqa: BLE001  (travels in the report)
                error = failure
            self._report(StoreFinished(error))

        self._commands.put(run)
        self._commands.put(None)

    def stop(self) -> None:
        """End the thread after what is queued, without finishing the store."""
        self._commands.put(None)

    def join(self) -> None:
        self._thread.join()

    def _work(self) -> None:
        """A command that fails ends the acquisition, not this thread: the owner waits for the reports of later commands."""
        try:
            while (command := self._commands.get()) is not None:
                try:
                    command()
                except Exception as error:  # noqa: BLE001  (travels in the report)
                    failure = error if isinstance(error, ShardwrightError) else WorkerError(f"the shard keeper failed: {error!r}")
                    self._report(KeeperFailed(failure))
        finally:
            self._records.close()

    def _create_store(self) -> None:
        """Raises ``OutputExistsError`` when something is there already."""
        make_directories(self.path.parent)
        try:
            with storage_errors("create", self.path):
                self.path.mkdir()
        except ShardwrightError as error:
            if isinstance(error.__cause__, FileExistsError):
                raise OutputExistsError(
                    "the output exists already", got=self.path, hint="Choose another name, or move the old store away: nothing is ever overwritten"
                ) from error
            raise
        try:
            make_directories(self.path / WORKSPACE)
            make_directories(self.path / IMAGE_PATH)
            self._write_array(0)
            replace_file(self.path / "zarr.json", group_metadata(self._spec, self.path.name.split(".")[0]))
            sync_directory(self.path.parent)
        except BaseException:
            self.remove_store()
            raise

    def remove_store(self) -> None:
        """Take back a store that never got a frame, so that its name is free for the next try. Only what this keeper made is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write_array(self, extent: int) -> None:
        replace_file(self.path / IMAGE_PATH / "zarr.json", array_metadata(self._spec, extent, codec_metadata(self._spec)))

    def _write_extent(self, extent: int) -> None:
        if extent > self._extent and array_shape(self._spec, extent) != array_shape(self._spec, self._extent):
            self._write_array(extent)
            self._extent = extent

    def _open_group(self, group: int) -> list[OpenShard]:
        opened: list[OpenShard] = []
        try:
            for file in range(self._layout.files_per_group):
                key = self._layout.shard_key(group, file)
                working = self.path / WORKSPACE / f"{key.replace('/', '.')}.partial"
                opened.append(OpenShard(self._layout.shard(group, file), working, self.path / IMAGE_PATH / key, self.io))
        except BaseException:
            for shard in opened:
                shard.discard()
            raise
        return opened

    def _remove_workspace(self) -> None:
        """Unless shards that failed are left in it."""
        with storage_errors("remove", self.path / WORKSPACE):
            if any((self.path / WORKSPACE).iterdir()):
                return
            (self.path / WORKSPACE).rmdir()
        sync_directory(self.path)
