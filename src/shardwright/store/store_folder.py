"""The store's folder while an acquisition writes into it. Owned by the sealer's thread; created or reopened
by the thread that opens the acquisition.

    NAME.ome.zarr/zarr.json          OME-Zarr group; written again when its metadata are updated, and for its
                                     contrast windows with the first sealed shard and at the end
    NAME.ome.zarr/0/zarr.json        array; its shape only ever covers sealed shards (one single image: always
                                     its shape)
    NAME.ome.zarr/0/c/...            sealed shards
    NAME.ome.zarr/frames/            frame table, written at the end
    NAME.ome.zarr/frames.parquet     the same as one file, on request: gone before the table changes, and
                                     made again of the new one
    NAME.ome.zarr/OME/               several images: their list, as JSON and as OME-XML; image k is in
                                     NAME.ome.zarr/k, made with its first sealed shard
    NAME.ome.zarr/A/1/0/             a plate: field 0 of the well in row A and column 1
    NAME.ome.zarr/.shardwright/      the workspace, removed when the acquisition has ended: lock, manifest,
                                     journals and shards in progress, staging area, frame log, ballast,
                                     updates of metadata

It is made beside its name and renamed to it (``new_store``, ``replaced_store``), so that before its end it is
never seen without a manifest. The end deletes the manifest first: a workspace without one is of no more use,
or was left by an older release that died while it made the store.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from shardwright.array.acquisition_spec import image_with_index_for
from shardwright.array.atlas_block import check_profile
from shardwright.array.document import encode_document
from shardwright.array.metadata import array_documents, collection_documents, collection_xml, group_document
from shardwright.disk import beneath
from shardwright.disk.ballast import Ballast
from shardwright.disk.choose_io import resolve_io
from shardwright.disk.failpoints import reach
from shardwright.disk.files import (
    DurableFolders,
    replace_file,
    storage_errors,
    sync_directory,
    takes_second_names,
)
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import (
    FencedError,
    LockedError,
    OutputExistsError,
    StorageError,
    StorageFullError,
)
from shardwright.model.names import DOCUMENT, WORKSPACE, checked_new_store, folders_to, numbered
from shardwright.model.write_options import index_location_of
from shardwright.model.write_settings import WriteSettings, check_second_root
from shardwright.shard.frame_log import FrameLog
from shardwright.shard.frame_record import record_of
from shardwright.shard.frames_in_place import IN_PLACE
from shardwright.shard.intact_mark import begin_intact, end_intact
from shardwright.shard.manifest import (
    Manifest,
    OpenedAs,
    delete_manifests,
    has_manifest,
    write_manifest,
)
from shardwright.shard.shard_row_files import (
    LOG_NAME,
    STAGING_NAME,
    Placement,
    frames_set_aside,
    placements_of,
)
from shardwright.shard.shared_journal import MOST_ROWS
from shardwright.shard.spill_folder import make_spill_folder, remove_spill_folder
from shardwright.shard.staging import StagingArea

from .atlas_facts import statistics_of, times_of
from .finish_record import finish_record
from .frame_table_writer import LogSurvey, write_frame_table
from .moved_store import is_moved_away, remove_moved_away
from .new_store import making_folder, publish, remove_left_beside, withdraw
from .ownership import Ownership
from .replaced_store import (
    aside_of,
    check_at_rest,
    files_removed,
    give_up,
    new_identity,
    put_back,
    replace_store,
    unfinished,
)
from .store_metadata import StoreMetadata, name_of, nothing_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec, Image
    from shardwright.model.write_options import IoMode, LiveMode

_MOST_OF_A_NAME = 10_000
_LOOK_S = 0.01  # for the end of another change of the manifest


class StoreSizes(Protocol):
    """The sizes for which a new store's files are made, from the limits of its acquisition."""

    @property
    def slab_bytes(self) -> int: ...

    @property
    def staging_frames(self) -> int:
        """Slots of the staging area, 0 without one."""

    @property
    def staged_bytes(self) -> int:
        """Of the pixels in one slot."""


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
        folders: DurableFolders | None = None,
        extents: Mapping[int, tuple[int, ...]] | None = None,
        updated: Iterable[int | None] = (),
        is_recovered: bool = False,
    ) -> None:
        self.path = path
        self.spec = spec
        self.manifest = manifest
        self.lock = lock
        self.log = log
        self.staging = staging
        self.ballast = ballast
        self._folders = folders or DurableFolders()
        self.owner = Ownership(path, manifest, lock)
        self.metadata = StoreMetadata(
            self.owner,
            self._folders,
            spec,
            manifest.created_ns // 10**9,
            extents=extents,
            updated=updated,
            is_recovered=is_recovered,
            profile=manifest.profile,
        )
        # Held while the manifest is replaced, by the sealer's thread for an image, by the one that opens an
        # acquisition for a client: whoever came last would else take away what the other has just written.
        self._manifest_lock = Lock()
        # removes the store whose name this one has taken; None before a frame is durable
        self._removal: Iterator[Path] | None = None

    @property
    def workspace(self) -> Path:
        return self.path / WORKSPACE

    @property
    def io(self) -> IoMode:
        return cast("IoMode", self.manifest.io)

    def count_client(self, opened_as: OpenedAs | None) -> int:
        """Counts one more client of this acquisition, and records what it goes on as; returns its number,
        once it is on disk. Raises ``StorageError`` or ``FencedError``."""
        with self._changing_manifest():
            self.owner.may_rename()
            counted = replace(self.manifest, client_epoch=self.manifest.client_epoch + 1, opened_as=opened_as)
            write_manifest(self.workspace, counted)
            self.manifest = counted
        return counted.client_epoch

    @contextmanager
    def _changing_manifest(self) -> Iterator[None]:
        while not self._manifest_lock.acquire(blocking=False):
            time.sleep(_LOOK_S)
        try:
            yield
        finally:
            self._manifest_lock.release()

    @property
    def is_changing_manifest(self) -> bool:
        return self._manifest_lock.locked()

    def with_image(self, image: Image) -> AcquisitionSpec:
        """Returns the specification of this acquisition with one more image, the same one if it has that.
        Raises ``SpecError``, or ``OutputExistsError`` where another program has put something."""
        manifest = self.manifest
        placed = image_with_index_for(manifest.live, image)
        spec = self.spec.with_images((placed,), manifest.row_shards, manifest.across_shards)
        check_profile(manifest.profile, spec)
        for folder in spec.folders[len(self.spec.folders) :]:
            self._check_free(image.name, folder)
        return spec

    def _check_free(self, name: str, folder: str) -> None:
        """Raises ``OutputExistsError`` or ``LinkError`` unless the store has room for the folder of an added
        image. A new store is empty, but a running one is open to others: what they have put there would be
        overwritten, or be found as the first shard is sealed, which ends all images."""
        *above, last = folders_to(folder)
        taken = [
            each for each in above if beneath.exists(path := self.path / each) and not beneath.is_dir(path)
        ]
        if not taken and beneath.exists(self.path / last):
            taken = [last]
        if taken:
            raise OutputExistsError(
                f"another program has put a file or folder in the place of the image {name!r}",
                got=self.path / taken[0],
                hint="Move it away, or add the image with another path",
            )

    def record_images(self, spec: AcquisitionSpec) -> None:
        """Records the images that ``spec`` has more. They are durable when it returns, and no frame of theirs
        may be taken before: a journal of an image that the manifest does not name counts for nothing. Raises
        ``StorageError``, ``FencedError``."""
        with self._changing_manifest():
            self.owner.may_rename()
            manifest = self.manifest.with_images(spec)
            write_manifest(self.workspace, manifest, self.owner.may_rename)
            # Behind the rename, too. A writer that takes over reads the manifest once it has the lock: so
            # that one finds this image, or nobody is told that it was added.
            self.owner.may_rename()
            self.manifest = manifest
        self.spec = spec
        self.metadata.take_images(spec)

    @classmethod
    def create(
        cls,
        path: Path,
        spec: AcquisitionSpec,
        sizes: StoreSizes,
        settings: WriteSettings,
        opened_as: OpenedAs,
    ) -> StoreFolder:
        """Makes a new store. Raises ``InvalidNameError`` for a name of ours, ``OutputExistsError`` when
        ``path`` exists (unless ``name_taken`` says to number or to overwrite it) or spilled shards of another
        store have its name, ``ConfigError`` for a spill root where the store itself lies, ``LockedError`` for
        a job at work on what is to be overwritten, ``StorageFullError`` or ``StorageError``; nothing is left
        behind then."""
        folders = DurableFolders()
        folders.make(checked_new_store(path).parent)
        remove_left_beside(path)
        if settings.name_taken == "increment":
            for number in range(1, _MOST_OF_A_NAME):
                candidate = path if number == 1 else numbered(path, number)
                with suppress(OutputExistsError):
                    return cls._make(candidate, spec, sizes, settings, opened_as, folders)
        return cls._make(path, spec, sizes, settings, opened_as, folders)

    @classmethod
    def _make(
        cls,
        path: Path,
        spec: AcquisitionSpec,
        sizes: StoreSizes,
        settings: WriteSettings,
        opened_as: OpenedAs,
        folders: DurableFolders,
    ) -> StoreFolder:
        with suppress(LockedError):
            if is_moved_away(path):
                remove_moved_away(path)
        with storage_errors("look at", path):
            replaces = settings.name_taken == "overwrite" and beneath.exists(path)
            (check_at_rest if replaces else _refuse_taken)(path)
        if settings.spill_root is not None:
            check_second_root(settings.spill_root, path.parent, path.name)
        with making_folder(path) as making:
            made = making / path.name
            folders.make(made / WORKSPACE)
            # before the store has its name: no other writer can take it over in between
            lock = StoreLock.take(made / WORKSPACE / "lock")
            # not held until the store has its name: a store with this name before is another writer's
            lock.renamed(path / WORKSPACE / "lock")
            try:
                manifest = _build(made, spec, sizes, settings, opened_as, folders)
                (replace_store if replaces else publish)(made, path)
                return cls._open_new(path, spec, sizes, settings, manifest, lock, folders)
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
        sizes: StoreSizes,
        settings: WriteSettings,
        manifest: Manifest,
        lock: StoreLock,
        folders: DurableFolders,
    ) -> StoreFolder:
        """Opens a store that has just been made. Raises ``StorageError``; ``lock`` is then still the
        caller's."""
        workspace, dtype = path / WORKSPACE, record_of(spec)
        log = FrameLog.open(workspace / LOG_NAME, dtype, manifest.identity_bytes)
        try:
            staging = None
            if sizes.staging_frames:
                staging = StagingArea.open(
                    workspace / STAGING_NAME,
                    sizes.staging_frames,
                    sizes.staged_bytes,
                    dtype,
                    manifest.identity_bytes,
                )
        except BaseException:
            log.close()
            raise
        return cls(
            path,
            spec,
            manifest,
            lock,
            log,
            staging,
            Ballast(workspace / "ballast", settings.ballast_bytes),
            folders=folders,
        )

    def remember_seen(self, stop: int, extents: tuple[int, ...]) -> None:
        """Writes to the manifest how far frames came, of which nothing else on disk may keep a trace:
        ``extents`` by image. Raises ``StorageError``."""
        if (stop, extents) != (self.manifest.seen_stop, self.manifest.seen_extents):
            self.manifest = replace(self.manifest, seen_stop=stop, seen_extents=extents)
            self.renew_manifest()

    def renew_manifest(self) -> None:
        """Writes the manifest anew: live views then read all journals again. Raises ``StorageError``."""
        write_manifest(self.workspace, self.manifest)

    def as_created(self, settings: WriteSettings) -> WriteSettings:
        """Returns the settings of a writer that goes on, with what was decided when the store was made, and
        the order of chunks that goes with it, whatever it asks for."""
        root, live, in_place = self.manifest.spill_root, self.manifest.live, self.spec.grids.in_place
        return replace(
            settings,
            io=self.io,
            # a copy that grows has its chunks as they came
            chunk_order="arrival" if live == "append" else settings.order(in_place=in_place),
            partial_chunks="in_place" if in_place else "collect",
            live=live,
            profile=self.manifest.profile,
            frame_parquet=self.manifest.frame_parquet,
            spill_root=None if root is None else beneath.user_path(root),
        )

    def staged_at(self, slots: np.ndarray) -> np.ndarray:
        """Returns int64[n]: the addresses of staged frames' pixels, or that they are in their chunks. Raises
        ``StorageError``."""
        if self.spec.grids.in_place:
            return np.full(slots.size, IN_PLACE)
        return slots if self.staging is None or not slots.size else self.staging.address_of(slots)

    def placement(self, *, spill: bool) -> Placement:
        """Returns where the files of a shard row go."""
        return self.placements()[-1 if spill else 0]

    def placements(self) -> list[Placement]:
        """Returns all placements of this store's files."""
        return placements_of(self.path, self.manifest, self._folders)

    def note_disk_error(self, error: BaseException) -> None:
        """Ends the intact mark, since acknowledged frames may leave no trace from now on; not if another
        writer has the store. A full disk destroys nothing, except by a sync that failed."""
        if isinstance(error, StorageError) and (error.in_sync or not isinstance(error, StorageFullError)):
            with suppress(StorageError):
                if self.lock.is_held():
                    end_intact(self.workspace)

    def finish(
        self,
        extents: Sequence[tuple[int, ...]],
        frames_durable: int,
        *,
        keep_workspace: bool,
        counts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Writes the final shapes (``extents`` by image; 0: no frame came) and the frame table, with the
        ``counts`` of the receipt, then removes the workspace (unless it has files for recovery). A store that
        has taken the name of another one removes that one only if frames are durable here. Else the other one
        gets a name again: its own if no frame of this store is known and no damaged file was set aside in it,
        which then goes. Raises ``StorageError`` or ``FencedError``."""
        self.owner.may_rename()
        images = [image for image, along in enumerate(extents) if all(along)]
        known = keep_workspace or images or self.log.rows or frames_set_aside(self.placements())
        if not known and aside_of(self.path) is not None:
            self.remove_store()
            return
        survey = LogSurvey.of(self.log, self.metadata.unplaced(images))
        self.metadata.finish(extents, images, survey.positions)
        if self.manifest.profile != "none":
            self.metadata.write_blocks(
                times_of(self.log, self.spec, extents, images), statistics_of(self.path, self.spec, images)
            )
        write_frame_table(
            self.path,
            self.spec,
            self.log,
            survey=survey,
            writer=self.manifest.writer_epoch,
            may_publish=self.owner.may_rename,
            has_parquet=self.manifest.frame_parquet,
            record=finish_record(self.workspace, self.manifest, self.metadata.updated, counts),
        )
        self.metadata.consolidate_again()
        if frames_durable:
            self.remove_replaced()
        if keep_workspace:
            return
        self._put_back_replaced()
        self.remove_workspace()

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

    def remove_workspace(self) -> None:
        """Removes the workspace. The manifest goes first, durably: what a crash leaves of the rest is then
        known to be a leftover. The lock is held to the end."""
        self.owner.may_rename()
        try:
            if not delete_manifests(self.workspace, up_to_epoch=self.manifest.writer_epoch):
                # another writer took over since that look, and is done: this one has not finished the store
                self.owner.may_remove()
        except StorageError:
            self.owner.may_remove()  # raises if another writer took over in between (and is perhaps done)
            if has_manifest(self.workspace):
                raise
            # gone, perhaps not durably: the other files stay until the next start, and have no use
            self.owner.is_over = True
            self.close()
            return
        self.owner.is_over = True
        # everything is sealed: files that stay have no use, and recovery removes them
        with suppress(StorageError):
            try:
                self._remove_working_files()
            except FencedError:
                # Whoever has taken the lock meanwhile found no manifest, and with that a finished store.
                if has_manifest(self.workspace):
                    raise
        self.close()

    def _remove_working_files(self) -> None:
        for placement in reversed(self.placements()):
            with storage_errors("remove", placement.workspace):
                reach("workspace.before_remove")
                self.owner.may_remove()
                if placement.spill is not None:
                    remove_spill_folder(placement.workspace, self.manifest.identity, had_frames=True)
                elif beneath.is_dir(placement.workspace):
                    beneath.remove_tree(placement.workspace)
        sync_directory(self.path)

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


def _refuse_taken(path: Path) -> None:
    if not beneath.is_link(path) and beneath.is_dir(path / WORKSPACE) and has_manifest(path / WORKSPACE):
        raise unfinished(path)
    if beneath.exists(path):
        raise OutputExistsError(
            "the output exists already",
            got=path,
            hint="Choose another name or move it away; sw.resume goes on with a finished store; if that may "
            "go, overwrite=True (name_taken: overwrite) replaces it; name_taken: increment gives the new one "
            "a number",
        )


def _build(
    store: Path,
    spec: AcquisitionSpec,
    sizes: StoreSizes,
    settings: WriteSettings,
    opened_as: OpenedAs,
    folders: DurableFolders,
) -> Manifest:
    """Makes everything that a new store begins with in a making folder, durable, with no file open; also the
    folder of its spilled shards. Raises ``StorageError``."""
    workspace, roots = store / WORKSPACE, [store]
    if settings.spill_root is not None:
        folders.make(settings.spill_root)
        roots.append(settings.spill_root)
    identity = new_identity(store.parent)
    manifest = Manifest(
        identity=identity.hex(),
        writer_epoch=1,
        client_epoch=1,
        spec=spec.to_json(),
        io=resolve_io(settings.wanted_io(sizes.slab_bytes), roots),
        created_ns=time.time_ns(),
        spill_root=None if settings.spill_root is None else str(settings.spill_root),
        live=settings.live,
        row_shards=spec.grids.row_shards,
        across_shards=spec.grids.most_across,
        partial_chunks="in_place" if spec.grids.in_place else "collect",
        opened_as=opened_as,
        profile=settings.profile,
        frame_parquet=settings.frame_parquet,
        journal_rows=MOST_ROWS if rows_share_journals(spec, settings.live) else 1,
    )
    check_live(spec, store, settings.live)
    FrameLog.create(workspace / LOG_NAME, record_of(spec), identity).close()
    make_files(workspace, manifest, sizes, settings.ballast_bytes, workspace)
    if spec.is_single:
        (array,) = spec.arrays
        arrays = map(encode_document, array_documents(array, nothing_of(array)))
        paths = [f"{path}/{DOCUMENT}" for path in spec.level_paths(0)]
        documents = dict(zip(paths, arrays, strict=True))
        group = group_document(array, name_of(store), spec.attributes, version=spec.ome_version)
        documents[DOCUMENT] = encode_document(group)
    else:
        start_s = manifest.created_ns // 10**9
        groups = collection_documents(spec, {}, spec.attributes, name=name_of(store), start_s=start_s)
        documents = collection_xml(spec, {})  # before the root, which names it
        documents |= {path: encode_document(group) for path, group in groups.items()}
    for path, document in documents.items():
        folders.make((store / path).parent)
        replace_file(store / path, document)
    begin_intact(workspace)
    write_manifest(workspace, manifest)
    if settings.spill_root is not None:  # so that a spill root that is missing later is noticed
        make_spill_folder(settings.spill_root / store.name / WORKSPACE, manifest.identity, folders)
    return manifest


def rows_share_journals(spec: AcquisitionSpec, live: LiveMode) -> bool:
    """Returns whether shard rows may share journals: those of many images that have a slab each. Not where
    readers see the row's files, or frames are in them before they are stored: their names say more then."""
    one_slab = any(grid.has_one_slab(grid.first) for grid in spec.grids.grids)
    return one_slab and not spec.is_single and live == "none" and not spec.grids.in_place


def make_files(
    workspace: Path, manifest: Manifest, sizes: StoreSizes, ballast_bytes: int, files: Path
) -> None:
    """Makes the files of a new workspace that have nothing in them yet. ``files``: where those in progress
    are. Raises ``StorageError``."""
    if sizes.staging_frames:
        StagingArea.create(
            files / STAGING_NAME,
            sizes.staging_frames,
            sizes.staged_bytes,
            record_of(manifest.acquisition),
            manifest.identity_bytes,
        ).close()
    Ballast(workspace / "ballast", ballast_bytes).fill()


def check_live(spec: AcquisitionSpec, store: Path, live: LiveMode) -> None:
    """Raises ``StorageError`` if readers cannot see the shards of this store grow."""
    location = index_location_of(live)
    sharded = [array for array in spec.distinct_arrays if array.actual_index_location != "none"]
    assert location is None or all(
        array.actual_index_location == location and array.index_checksum for array in sharded
    ), "with_index_for placed and checked it, whichever way the array came"
    if live == "index" and sharded and not takes_second_names(store / WORKSPACE / "lock"):
        raise StorageError(
            f"readers cannot see shards below {store.parent.parent} grow: files there cannot have two names",
            got="live: index",
            hint="Choose live: append or none, or a filesystem with hard links",
        )
