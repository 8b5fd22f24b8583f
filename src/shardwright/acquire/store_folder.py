"""The store's folder while an acquisition writes into it. Owned by the sealer's thread; created or reopened
by the thread that opens the acquisition.

    NAME.ome.zarr/zarr.json          OME-Zarr group; written again when its metadata are updated, and for its
                                     contrast windows with the first sealed shard and at the end
    NAME.ome.zarr/0/zarr.json        array; its shape only ever covers sealed shards (one single image: always
                                     its shape)
    NAME.ome.zarr/0/c/...            sealed shards
    NAME.ome.zarr/frames/            frame table, written at the end
    NAME.ome.zarr/OME/               several images: their list, as JSON and as OME-XML; image k is in
                                     NAME.ome.zarr/k, made with its first sealed shard
    NAME.ome.zarr/A/1/0/             a plate: field 0 of the well in row A and column 1
    NAME.ome.zarr/.shardwright/      the workspace, removed when the acquisition has ended: lock, manifest,
                                     journals and shards in progress, staging area, frame log, ballast,
                                     updates of metadata

It is made beside its name and renamed to it (``new_store``, ``replaced_store``), so that before its end it is
never seen without a manifest. The end deletes the manifest first: a workspace without one is of no more use,
or was left by an older release that died while it made the store.

The workspace's file ``boot`` is the intact mark: the kernel's boot id, as long as nothing worse than kills
has happened to the store. After a power cut or on another machine the id differs; an I/O error, a rewrite and
a take-over delete the file.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from shardwright.array.consolidated import consolidated, consolidated_metadata
from shardwright.array.contrast_window import with_windows
from shardwright.array.document import encode_document
from shardwright.array.frame_table_format import TABLE_PATH
from shardwright.array.levels import array_documents
from shardwright.array.metadata import array_shape, group_document
from shardwright.array.ome import collection_documents
from shardwright.array.spec import group_attributes
from shardwright.codecs.parameters import codec_metadata
from shardwright.model.errors import (
    FencedError,
    MetadataError,
    OutputExistsError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
    StoreGoneError,
    StoreMovedError,
)
from shardwright.model.machine import boot_id
from shardwright.model.names import WORKSPACE, numbered
from shardwright.read.store import read_metadata, read_nodes
from shardwright.shard.frame_log import FrameLog
from shardwright.shard.frame_record import record_of
from shardwright.shard.manifest import (
    Manifest,
    check_writer_epoch,
    delete_manifests,
    has_manifest,
    manifest_path,
    read_manifest,
    write_manifest,
)
from shardwright.shard.metadata_updates import read_updates, write_updates
from shardwright.shard.shard_row_files import LOG_NAME, STAGING_NAME, Placement, placements_of
from shardwright.shard.staging import StagingArea
from shardwright.storage.ballast import Ballast
from shardwright.storage.choose_io import resolve_io
from shardwright.storage.failpoints import reach
from shardwright.storage.files import (
    make_directories,
    read_range,
    replace_file,
    storage_errors,
    sync_directory,
    write_file,
)
from shardwright.storage.lock import StoreLock

from .contrast_samples import ContrastSamples
from .frame_table_writer import write_frame_table
from .new_store import abandoned, making_folder, publish, remove_abandoned, withdraw
from .replaced_store import (
    aside_of,
    check_replaceable,
    files_removed,
    give_up,
    new_identity,
    put_back,
    replace_store,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.storage.slot_file import IoMode

    from .contrast_samples import Windows
    from .limits import Limits
    from .settings import WriteSettings

_BOOT = "boot"
_MAX_BOOT_BYTES = 64
_COLLECT_S = 1.0
_MOST_OF_A_NAME = 10_000


class StoreFolder:
    """Made by ``create``, or by ``recovery.resume`` from the files on disk. ``staging`` is None if a slab is
    a single frame."""

    def __init__(
        self,
        path: Path,
        spec: AcquisitionSpec,
        manifest: Manifest,
        lock: StoreLock,
        log: FrameLog,
        staging: StagingArea | None,
        ballast: Ballast,
        *,
        extents: Mapping[int, tuple[int, ...]] | None = None,
        updated: Iterable[int | None] = (),
    ) -> None:
        self.path = path
        self.spec = spec
        self.manifest = manifest
        self.lock = lock
        self.log = log
        self.staging = staging
        self.ballast = ballast
        self._over = False  # our own manifest is gone: no other writer can take over a finished store
        # by image: what zarr.json of its array covers of the growing axes, without those that have none yet
        self._extents = {0: _nothing_of(spec.arrays[0])} if spec.is_single else {}
        self._extents.update(extents or {})
        self.samples = ContrastSamples(spec)
        self._is_resumed = extents is not None  # there are no samples of what was stored before
        self._shown: set[int] = set()  # images whose contrast windows were written
        self._updated = set(updated)  # the groups whose metadata were updated: images, None for the store's
        self._collected: dict[str, bytes] = {}  # the metadata of the collection, as written
        self._collected_s = -math.inf  # when they were
        # removes the store whose name this one has taken; None before a frame is durable
        self._removal: Iterator[Path] | None = None

    @property
    def workspace(self) -> Path:
        return self.path / WORKSPACE

    @property
    def io(self) -> IoMode:
        return cast("IoMode", self.manifest.io)

    def count_client(self) -> int:
        """Counts one more client of this acquisition; returns its number, once it is on disk. Raises
        ``StorageError`` or ``FencedError``."""
        self.may_rename()
        counted = replace(self.manifest, client_epoch=self.manifest.client_epoch + 1)
        write_manifest(self.workspace, counted)
        self.manifest = counted
        return counted.client_epoch

    @classmethod
    def create(
        cls, path: Path, spec: AcquisitionSpec, limits: Limits, settings: WriteSettings
    ) -> StoreFolder:
        """Makes a new store. Raises ``OutputExistsError`` when ``path`` exists (unless ``name_taken`` says to
        number or to overwrite it), ``LockedError`` when a job is at work on what is to be overwritten,
        ``StorageFullError`` or ``StorageError``; nothing is left behind then."""
        make_directories(path.parent)
        for folder in abandoned(path.parent):
            with suppress(ShardwrightError):
                remove_abandoned(folder)
        if settings.name_taken == "increment":
            for number in range(1, _MOST_OF_A_NAME):
                candidate = path if number == 1 else numbered(path, number)
                with suppress(OutputExistsError):
                    return cls._make(candidate, spec, limits, settings)
        return cls._make(path, spec, limits, settings)

    @classmethod
    def _make(cls, path: Path, spec: AcquisitionSpec, limits: Limits, settings: WriteSettings) -> StoreFolder:
        replaces = settings.name_taken == "overwrite" and os.path.lexists(path)
        (check_replaceable if replaces else _refuse_taken)(path)
        with making_folder(path.parent) as making:
            made = making / path.name
            make_directories(made / WORKSPACE)
            # before the store has its name: no other writer can take it over in between
            lock = StoreLock.take(made / WORKSPACE / "lock")
            # not held until the store has its name: a store with this name before is another writer's
            lock.renamed(path / WORKSPACE / "lock")
            try:
                manifest = _build(made, spec, limits, settings)
                (replace_store if replaces else publish)(made, path)
                return cls._open_new(path, spec, limits, settings, manifest, lock)
            except BaseException as error:
                # a store that stays under its name is recovered as one that never got a frame
                with suppress(StorageError, FencedError):
                    if lock.is_held():
                        withdraw(path, lock, epoch=1)
                lock.release()
                if isinstance(error, OutputExistsError) and not replaces:
                    _refuse_taken(path)
                raise

    @classmethod
    def _open_new(
        cls,
        path: Path,
        spec: AcquisitionSpec,
        limits: Limits,
        settings: WriteSettings,
        manifest: Manifest,
        lock: StoreLock,
    ) -> StoreFolder:
        """Opens a store that has just been made. Raises ``StorageError``; ``lock`` is then still the
        caller's."""
        workspace, dtype = path / WORKSPACE, record_of(spec)
        log = FrameLog.open(workspace / LOG_NAME, dtype, manifest.identity_bytes)
        try:
            staging = None
            if limits.staging_frames:
                staging = StagingArea.open(
                    workspace / STAGING_NAME,
                    limits.staging_frames,
                    limits.frame_bytes,
                    dtype,
                    manifest.identity_bytes,
                )
        except BaseException:
            log.close()
            raise
        return cls(
            path, spec, manifest, lock, log, staging, Ballast(workspace / "ballast", settings.ballast_bytes)
        )

    def remember_seen(self, stop: int, extents: tuple[int, ...]) -> None:
        """Writes to the manifest how far frames came, of which nothing else on disk may keep a trace:
        ``extents`` by image. Raises ``StorageError``."""
        if (stop, extents) != (self.manifest.seen_stop, self.manifest.seen_extents):
            self.manifest = replace(self.manifest, seen_stop=stop, seen_extents=extents)
            write_manifest(self.workspace, self.manifest)

    def placement(self, *, spill: bool) -> Placement:
        """Returns where the files of a shard row go."""
        return self.placements()[-1 if spill else 0]

    def placements(self) -> list[Placement]:
        """Returns all places where files of this store may lie."""
        return placements_of(self.path, self.manifest)

    def may_rename(self) -> None:
        """Checks that this writer still owns the store. Called right before every change that readers see or
        that cannot be taken back. Raises ``FencedError`` if another writer has taken the store over,
        ``StoreGoneError`` if it was deleted or moved."""
        try:
            if not self._over:
                check_writer_epoch(self.workspace, self.manifest.writer_epoch)
            self._may_remove()
        except FencedError as error:
            raise self._gone() or error from None

    def check_there(self) -> None:
        """Raises ``StoreGoneError`` if the store was deleted or moved. Needed, and cheap, before a sync:
        every write to a deleted file, and every sync of it, succeeds."""
        with storage_errors("look at", self.path):
            there = self.lock.is_held() and manifest_path(self.workspace, self.manifest.writer_epoch).exists()
        if not there and (gone := self._gone()) is not None:
            raise gone

    def _gone(self) -> StoreGoneError | None:
        """Returns the error for a folder that was moved or deleted, None if another writer has it: that one
        leaves its lock and a manifest or, when done, the frame table."""
        lock = self.lock.current_path()
        if lock is not None and not self.lock.is_held():
            now = lock.parent.parent
            return StoreMovedError(
                f"{self.path} was moved away while it was recorded",
                got=now,
                hint=f"`shardwright recover {now}` seals it there",
            )
        if not self.path.exists():
            return StoreGoneError(
                f"{self.path} was deleted while it was recorded", hint="Its frames are gone"
            )
        if has_manifest(self.workspace):
            another = read_manifest(self.workspace).identity != self.manifest.identity
            return (
                StoreGoneError(
                    f"{self.path} was deleted while it was recorded, and its name is another store's"
                )
                if another
                else None
            )
        if lock is None and (self.lock.path.exists() or (self.path / TABLE_PATH).exists()):
            return None
        hint = "Only shards that were sealed before may be left"
        return StoreGoneError(
            f"the working files of {self.path} were deleted while it was recorded", hint=hint
        )

    def _may_remove(self) -> None:
        if not self.lock.is_held():
            raise FencedError(f"another writer has taken {self.path} over", got="a new lock file")

    def note_disk_error(self, error: BaseException, *, in_sync: bool = False) -> None:
        """Ends the intact mark, since acknowledged frames may leave no trace from now on; not if another
        writer has the store. A full disk destroys nothing, except by a sync that failed (``in_sync``)."""
        if isinstance(error, StorageError) and (in_sync or not isinstance(error, StorageFullError)):
            with suppress(StorageError):
                if self.lock.is_held():
                    end_intact(self.workspace)

    def make_image(self, image: int) -> None:
        """Writes the metadata of an image that has none yet, and those of the collection to which it belongs;
        the latter once a second at most, since they name every image. Raises ``StorageError`` or what
        ``may_rename`` raises."""
        if image in self._extents:
            return
        windows = self.samples.windows(image)
        group = with_windows(self._group_document(image, self._attributes(image)), windows)
        self._replace(self._group_folder(image) / "zarr.json", encode_document(group))
        if windows:
            self._shown.add(image)
        self._extents[image] = _nothing_of(self.spec.arrays[image])
        self._write_array(image, self._extents[image])  # last: an image that has it has all
        if time.monotonic() - self._collected_s > _COLLECT_S:
            self._write_collection()

    def show(self, image: int) -> None:
        """Writes the contrast windows of an image that was made without any, as soon as there are samples:
        for those who open it while it is written. Raises ``StorageError`` or what ``may_rename`` raises."""
        if image not in self._shown and not self._is_resumed:
            self._write_windows(image, self.samples.windows(image))

    def _write_windows(self, image: int, windows: Windows) -> None:
        if not windows:
            return
        folder = self._group_folder(image)
        try:
            group = read_metadata(folder, foreign=True)
        except (ShardFormatError, StorageError):
            return  # damage from outside does not hinder the end; `verify` reports it
        if (shown := with_windows(group, windows)) != group:
            self._replace(folder / "zarr.json", encode_document(shown))
        self._shown.add(image)

    def _write_collection(self, end_s: int | None = None) -> None:
        """Writes the metadata that name the images of a collection, those of which there is an array."""
        images = sorted(self._extents)
        shapes = {i: array_shape(self.spec.arrays[i], self._extents[i]) for i in images}
        documents = collection_documents(
            self.spec,
            shapes,
            self._attributes(None),
            name=_name_of(self.path),
            start_s=self.manifest.created_ns // 10**9,
            end_s=end_s,
        )
        root = json.loads(documents.pop("zarr.json"))
        for path, document in documents.items():
            if self._collected.get(path) != document:
                self._replace(self.path / path, document)
        self._update_group(self.path, root["attributes"], root)
        self._collected, self._collected_s = documents, time.monotonic()

    def update_metadata(self, image: int | None, attributes: dict[str, Any]) -> None:
        """Adds to the attributes of an image's group, or of the store's (None), durable when it returns. They
        are in its zarr.json at once, if it is there, and at the latest at the end. Raises ``MetadataError``
        when all of them are too long, ``StorageError`` or what ``may_rename`` raises."""
        before = read_updates(self.workspace, image) if image in self._updated else {}
        updates = {**before, **attributes}
        try:
            group_attributes({**self.spec.attributes_of(image), **updates})
        except ValueError as error:
            raise MetadataError("metadata that are too long with those before", got=str(error)) from None
        writer = self.manifest.writer_epoch
        write_updates(self.workspace, image, updates, self.may_rename, writer=writer)
        self._updated.add(image)
        with suppress(StorageError):  # they are safe, and the end writes them again
            self._write_updated(image)

    def _write_updated(self, image: int | None) -> None:
        """Writes zarr.json of a group whose metadata were updated, if the group is there."""
        if image is None and not self.spec.is_single:
            self._write_collection()
        elif image is None or image in self._extents:
            attributes = self._attributes(image)
            document = self._group_document(image, attributes)
            self._update_group(self._group_folder(image), attributes, document)

    def _update_group(self, folder: Path, attributes: dict[str, Any], document: dict[str, Any]) -> None:
        """Adds attributes to zarr.json of a group; what others have written there stays. Where it is damaged,
        ``document`` replaces it."""
        with suppress(ShardFormatError, StorageError):
            there = read_metadata(folder, foreign=True)
            if isinstance(others := there.get("attributes", {}), dict):
                document = {**there, "attributes": {**others, **attributes}}
            if document == there:
                return
        self._replace(folder / "zarr.json", encode_document(document))

    def _attributes(self, image: int | None) -> dict[str, Any]:
        """The attributes of a group beside ours, with all updates. Raises ``StorageError``."""
        updates = read_updates(self.workspace, image) if image in self._updated else {}
        return {**self.spec.attributes_of(image), **updates}

    def _group_document(self, image: int | None, attributes: dict[str, Any]) -> dict[str, Any]:
        number = image or 0
        name = self.spec.names[number] or _name_of(self.path)
        return group_document(self.spec.arrays[number], name, attributes)

    def _group_folder(self, image: int | None) -> Path:
        return self._array_folder(image or 0).parent

    def grow(self, image: int, extents: tuple[int, ...]) -> None:
        """Lets zarr.json of an image cover ``extents`` elements of its growing axes; never shrinks it. Raises
        ``StorageError``."""
        covered = self._extents[image]
        grown = tuple(map(max, covered, extents))
        if grown != covered:
            self._write_array(image, grown)
            self._extents[image] = grown

    def finish(
        self, extents: Sequence[tuple[int, ...]], frames_durable: int, *, keep_workspace: bool
    ) -> tuple[int, ...]:
        """Writes the final shapes (``extents`` by image; 0: no frame came) and the frame table, then
        removes the workspace (unless it has files for recovery). A store that has taken the name of another
        one removes that one only if frames are durable here. Else the other one gets a name again: its own if
        no frame of this store is known, which then goes. Returns the images whose updates went with the
        workspace, since no frame came. Raises ``StorageError`` or ``FencedError``."""
        self.may_rename()
        images = [image for image, along in enumerate(extents) if all(along)]
        known = keep_workspace or images or self.log.rows
        if not known and aside_of(self.path) is not None:
            self.remove_store()
            return ()
        for image in images:
            self.make_image(image)
            self.grow(image, extents[image])
        sealed = self.samples.sealed_windows(self.path, images) if self._is_resumed else {}
        for image in images:
            self._write_windows(image, self.samples.windows(image) | sealed.get(image, {}))
        if not self.spec.is_single:
            # one that was taken up later, perhaps days after its last frame, has no known end
            self._write_collection(int(time.time()) if self.manifest.writer_epoch == 1 else None)
        for updated in self._updated:
            if updated is not None or self.spec.is_single:  # else the collection has them
                self._write_updated(updated)
        write_frame_table(
            self.path, self.spec, self.log, writer=self.manifest.writer_epoch, may_publish=self.may_rename
        )
        self._consolidate_again()
        if frames_durable:
            self.remove_replaced()
        if keep_workspace:
            return ()
        self._put_back_replaced()
        self.remove_workspace()
        return tuple(sorted(i for i in self._updated if i is not None and i not in self._extents))

    def remove_replaced(self, most_files: int | None = None) -> None:
        """Removes the store whose name this one has taken, at most so many files of it: to be called, again
        and again, once a frame is durable. What cannot be removed is a leftover."""
        with suppress(StorageError):
            if self._removal is None:
                aside = aside_of(self.path)
                self._removal = iter(()) if aside is None else files_removed(give_up(aside))
            for _ in islice(self._removal, most_files):
                pass

    def _put_back_replaced(self) -> None:
        """Gives the store whose name this one has taken another, if it is there still: no frame was stored,
        and this one records those that were lost. Raises ``StorageError``."""
        if self._removal is None and (aside := aside_of(self.path)) is not None:
            put_back(aside)

    def _consolidate_again(self) -> None:
        """Renews consolidated metadata that a user made while the store grew: shape and frame table have
        changed. Raises ``StorageError``, ``FencedError``."""
        try:
            group = read_metadata(self.path, foreign=True)
            document = (
                None
                if consolidated_metadata(group) is None
                else encode_document(consolidated(group, read_nodes(self.path)))
            )
        except (ShardFormatError, StorageError):
            return  # damage from outside does not hinder the end; `verify` reports it
        if document is not None:
            replace_file(
                self.path / "zarr.json", document, self.may_rename, writer=self.manifest.writer_epoch
            )

    def remove_workspace(self) -> None:
        """Removes the workspace. The manifest goes first, durably: what a crash leaves of the rest is then
        known to be a leftover. The lock is held to the end."""
        self.may_rename()
        try:
            delete_manifests(self.workspace, up_to_epoch=self.manifest.writer_epoch)
        except StorageError:
            self._may_remove()  # raises if another writer took over in between (and is perhaps done)
            if has_manifest(self.workspace):
                raise
            # gone, perhaps not durably: the other files stay until the next start, and have no use
            self._over = True
            self.close()
            return
        self._over = True
        # everything is sealed: files that stay have no use, and recovery removes them
        with suppress(StorageError):
            for placement in reversed(self.placements()):
                with storage_errors("remove", placement.workspace):
                    reach("workspace.before_remove")
                    self._may_remove()
                    if placement.workspace.is_dir():
                        shutil.rmtree(placement.workspace)
                    if placement.spill is not None and not any(placement.root.iterdir()):
                        placement.root.rmdir()
            sync_directory(self.path)
        self.close()

    def close(self) -> None:
        """Closes the files and releases the lock; what is on disk stays."""
        self.log.close()
        if self.staging is not None:
            self.staging.close()
        self.lock.release()

    def remove_store(self) -> None:
        """Removes a store that never got a frame, so that its name is free again; not if another writer has
        taken over."""
        self.log.close()
        if self.staging is not None:
            self.staging.close()
        # on an error it stays for recovery to remove, or is another writer's
        with suppress(StorageError, FencedError):
            if self.lock.is_held():
                withdraw(self.path, self.lock, epoch=self.manifest.writer_epoch)
        self.lock.release()

    def _array_folder(self, image: int) -> Path:
        return self.path / self.spec.paths[image]

    def _write_array(self, image: int, extents: tuple[int, ...]) -> None:
        """Writes zarr.json of the image's array and of its levels, that of the array last: it says what there
        is."""
        array = self.spec.arrays[image]
        documents = array_documents(array, extents, codec_metadata(array))
        for path, document in reversed(list(zip(self.spec.level_paths(image), documents, strict=True))):
            self._replace(self.path / path / "zarr.json", document)

    def _replace(self, path: Path, document: bytes) -> None:
        make_directories(path.parent)
        replace_file(path, document, self.may_rename, writer=self.manifest.writer_epoch)


def _nothing_of(array: ArraySpec) -> tuple[int, ...]:
    """Returns the extents of an image along its growing axes before any frame."""
    return (0,) * len(array.growing_axes)


def _name_of(store: Path) -> str:
    """Returns the name of the image in a store of one."""
    return store.name.split(".")[0]


def _refuse_taken(path: Path) -> None:
    if os.path.lexists(path):
        raise OutputExistsError(
            "the output exists already",
            got=path,
            hint="Choose another name, move the old store away, or set name_taken to increment, or to "
            "overwrite if a finished store may go",
        )


def _build(store: Path, spec: AcquisitionSpec, limits: Limits, settings: WriteSettings) -> Manifest:
    """Makes everything that a new store begins with in a making folder, durable, with no file open; also the
    folder of its spilled shards. Raises ``StorageError``."""
    workspace, roots = store / WORKSPACE, [store]
    if settings.spill_root is not None:
        make_directories(settings.spill_root)
        roots.append(settings.spill_root)
    identity, dtype = new_identity(store.parent), record_of(spec)
    manifest = Manifest(
        identity=identity.hex(),
        writer_epoch=1,
        client_epoch=1,
        spec=spec.to_json(),
        io=resolve_io(settings.io, roots),
        created_ns=time.time_ns(),
        spill_root=None if settings.spill_root is None else str(settings.spill_root),
    )
    FrameLog.create(workspace / LOG_NAME, dtype, identity).close()
    if limits.staging_frames:
        StagingArea.create(
            workspace / STAGING_NAME, limits.staging_frames, limits.frame_bytes, dtype, identity
        ).close()
    Ballast(workspace / "ballast", settings.ballast_bytes).fill()
    if spec.is_single:
        (array,) = spec.arrays
        arrays = array_documents(array, _nothing_of(array), codec_metadata(array))
        paths = [f"{path}/zarr.json" for path in spec.level_paths(0)]
        documents = dict(zip(paths, arrays, strict=True))
        documents["zarr.json"] = encode_document(group_document(array, _name_of(store), spec.attributes))
    else:
        start_s = manifest.created_ns // 10**9
        documents = collection_documents(spec, {}, spec.attributes, name=_name_of(store), start_s=start_s)
    for path, document in documents.items():
        make_directories((store / path).parent)
        replace_file(store / path, document)
    _begin_intact(workspace)
    write_manifest(workspace, manifest)
    if settings.spill_root is not None:  # so that a spill root that is missing later is noticed
        make_directories(settings.spill_root / store.name / WORKSPACE)
    return manifest


def _begin_intact(workspace: Path) -> None:
    """Writes the intact mark of a new store. Raises ``StorageError``."""
    if (boot := boot_id()) is not None:
        write_file(workspace / _BOOT, boot.encode())


def is_intact(workspace: Path) -> bool:
    """Returns whether nothing worse than kills has happened to the store."""
    boot = boot_id()
    try:
        return boot is not None and read_range(workspace / _BOOT, 0, _MAX_BOOT_BYTES) == boot.encode()
    except StorageError:
        return False


def is_marked(workspace: Path) -> bool:
    """Returns whether the intact mark exists. If not, a sync may have failed: the page cache, if it is still
    the same, may hold bytes that the disk does not."""
    return (workspace / _BOOT).exists()


def end_intact(workspace: Path) -> None:
    """Deletes the intact mark: from now on, acknowledged frames may leave no trace. Raises
    ``StorageError``."""
    path = workspace / _BOOT
    with storage_errors("remove", path):
        reach("boot.before_remove")
        path.unlink(missing_ok=True)
