"""A view of a store as it is now: being written, left by a dead writer, or finished. It locks nothing, writes
nothing, and shows what recovery would find: frames that are stored, and no others.

What a reader may believe. The kernel's page cache is one for all processes: what a writer has written, mapped
or directly, is what a reader gets from then on. A writer writes data before what speaks of it:

    pixels of a staged frame -> its record        a record that fits its checksum: the frame is stored
    chunks -> entries in the journal              all entries and records of a slab: its frames are stored
    shard under its final name -> frame log -> the journal is deleted

and bytes are handed out only if they fit the checksum beside them, as far as there is one (staged pixels,
chunks that are journaled). A frame moves from the staging area to the journal to a final name and is in
the next before it leaves the last, so a reader looks in this order. Whatever it has not found then
becomes fill value only with the proof that it was never stored (``store_state``).

What happens meanwhile, and what the view does:

    a shard gets its final name          the journal's entries hold for it: the file is the same
    its journal is deleted               the row is dropped; the shard's own index counts
    a staging slot is used again         the pixels do not fit: look again, the journal or the frame log,
                                         once its shard row is sealed, has the frame
    a slab is stored                     its chunks count, staged frames of it no more
    an I/O error: files are rewritten    the journal's name is another file: it is read anew
    a shard has its final name, and is   the journal counts, as without it; staged frames are shown although
    not sealed (``live`` stores)         there is a file with the final name
    a shard row is opened again          sealed chunks count until the journal has the slab
    the writer is killed                 nothing changes; what was not stored was not shown
    recovery, resume                     what was shown is kept; the view goes on
    another writer takes over            the manifest names its folder: everything is opened anew
    a compaction replaces a shard        an open read ends in the old file; the next one finds the new
    the acquisition ends                 the manifest is gone: files count as they lie
    the store is deleted, moved, or its  ``StoreGoneError``: nothing of it is mixed with what has its
    name is given to another             name now

The view belongs to the folder that had the path when it was opened, whatever its name is later. Levels hold
the frames of a slab once the slab is stored; until then these places are fill there.
"""

from __future__ import annotations

import operator
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from shardwright.array.chunk_keys import arrays_above
from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.array.document import check_document
from shardwright.array.metadata import array_documents
from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.disk.files import FileIdentity, storage_errors
from shardwright.disk.read_file import ChangedError, ReadFile
from shardwright.disk.remote_path import RemotePath
from shardwright.disk.spill_links import open_shard
from shardwright.disk.typed_errors import says_absent
from shardwright.model.errors import (
    LinkError,
    ShardChangedError,
    ShardFormatError,
    StorageError,
    StoreChangingError,
    StoreGoneError,
)
from shardwright.model.forked_child import renew_in_child
from shardwright.model.names import DOCUMENT, WORKSPACE, key_in
from shardwright.scan.unfinished_store import UnfinishedStore, is_shown
from shardwright.shard.index import INDEX_ENTRY
from shardwright.shard.manifest import find_manifest, has_manifest, manifest_path

from .box_reader import BoxCuts, BoxPart, ChunkSearch, Located, Staged, empty_box, read_boxes
from .live_acquisition import LiveAcquisition, slots_of_layer
from .live_documents import LiveDocuments
from .live_row import identity_of
from .live_sealed import RemoteShards, SealedShards
from .live_staging import KeptPixels
from .store import opened_path, parse_array, workspace_of
from .store_state import TRIES, Identity, NeverStored, StoreState, Version, tries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardwright.shard.manifest import Manifest

    from .box_reader import FileFinder, Opener
    from .live_row import LiveRow
    from .live_staging import LiveStaging, StagedFrame
    from .store import StoredArray

TRIES_OF_FINISHED = 3  # of what cannot be read: nothing but an edit is at work there
_MANIFEST_PREFIX = "acquisition."

Coordinates = tuple[int, ...]
Layout = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class LiveArray:
    """An array as it is now. ``image``, ``level``: of the acquisition that writes it, in an unfinished
    store. ``version``: of its zarr.json, None of one that is being written."""

    stored: StoredArray
    image: int = 0
    level: int = 0
    version: Version | None = None


class LiveView:
    """The view of the store at ``path``. May be used by any number of threads. Raises ``StorageError`` when
    there is no such folder, ``ShardFormatError`` for a damaged manifest, ``StoreGoneError`` once another
    store has its name."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        expected: tuple[int, int] | None = None,
        open_key: Opener | None = None,
        kept_pixels: KeptPixels | None = None,
    ) -> None:
        """``expected``: the ``identity`` of the store when it was opened before; it is compared where it can
        be, on the same device. ``open_key`` opens the file of a key instead of its path below the store.
        ``kept_pixels``: shared by several views."""
        # Set here and never again: the store's folder, open and by its identity. While it is open no other
        # folder can have its inode, so that a store with the same name is always told from this one.
        self.path = opened_path(path)
        # At an address there is neither a folder nor an acquisition: a finished store.
        self._is_remote = isinstance(self.path, RemotePath)
        self._workspace = self.path / WORKSPACE
        with storage_errors("open", self.path):
            flags = os.O_RDONLY | os.O_DIRECTORY
            self._folder = -1 if self._is_remote else beneath.open_file(self.path, flags)
        self.identity = (-1, -1) if self._is_remote else identity_of(os.fstat(self._folder))
        if expected is not None and self.identity[0] == expected[0] and self.identity != expected:
            raise StoreGoneError(f"{self.path} is another store's name by now", hint="Open it again")
        # Guards everything below. It is held while chunks are looked for, and not while they are read and
        # decoded: these are checked behind the read instead. Reentrant, since a search looks for the state
        # again.
        self._lock = threading.RLock()
        # As of the newest manifest; None once there is none. Only ``_find_state`` writes it: every search
        # compares what it finds there before and behind its looks.
        self._acquiring: LiveAcquisition | None = None
        # Has a lock of its own, since views share it: the pixels that each would keep by itself would be
        # gigabytes for a rig with many stores.
        self._kept_pixels = kept_pixels or KeptPixels()
        # Set here and never again. Ours opens below the open folder and not by path, or it would read another
        # store that has taken the name. The daemon's web process brings one that serves no file outside of
        # its roots, whatever a link in the store says.
        open_key = open_key or partial(_open_below, self.path, self._folder)
        self._find_file: FileFinder = partial(ReadFile.find, open_key=open_key)
        # Indexes of sealed shards, each good as long as the same file has the name: a compaction or an edit
        # replaces shards of a finished store, too.
        self._sealed: SealedShards | RemoteShards = SealedShards(self.path, self._folder, open_key)
        if isinstance(self.path, RemotePath):
            self._sealed = RemoteShards(self.path)
            self._find_file = self._sealed.find_file
        # In a finished store by path, with the version of zarr.json. An entry is replaced as a whole, and a
        # read looks at it without the lock. In an unfinished store by epoch and path:
        # there the manifest says what an array is, and zarr.json may not be there yet.
        self._arrays: dict[str, tuple[Version, StoredArray]] = {}
        # Keeps no zarr.json that is on disk: a writer grows it and anybody may change it. It keeps those that
        # the writer is going to write, which are the same until an image gets its first frame.
        self._documents = LiveDocuments(self.path, self._folder, self._find_file)
        # The arrays of which zarr.json was given out, by path, with the layout that it had: None if it is not
        # read here. Who has it asks for chunks, and takes a key that is not there for fill value. A move
        # deletes the documents before the chunks.
        self.given: dict[str, Layout | None] = {}
        renew_in_child(self._renew)
        if self.is_finished:
            self._check_is_store()

    def _renew(self) -> None:
        """In a forked child, where another thread of the parent may have been in the middle of a search.
        Sealed shards, documents and arrays are replaced entry by entry; what was read of journals and of the
        frame log may be there in part."""
        self._lock = threading.RLock()
        if self._acquiring is not None:
            self._acquiring.read_again()

    def _check_is_store(self) -> None:
        if not beneath.exists(self.path / DOCUMENT):
            raise StorageError(
                f"{self.path} is no store",
                expected="a folder with zarr.json",
                hint="Give the path of a store",
            )
        workspace = workspace_of(self.path)
        if workspace is not None and has_manifest(workspace) and workspace.parent != self.path:
            raise StorageError(
                f"{self.path} is a part of an unfinished store",
                expected=workspace.parent,
                hint="Open the store, and in it the image or array by its path",
            )

    def __del__(self) -> None:
        if getattr(self, "_folder", -1) >= 0:
            beneath.close(self._folder)

    # ------------------------------------------------------------------ the state

    def check_there(self) -> None:
        """Raises ``StoreGoneError`` if the path is not this store's any more."""
        look("look.store")
        if self._is_remote:
            return  # what has the name is asked for each time
        same = False
        with storage_errors("look at", self.path), suppress(FileNotFoundError):
            same = identity_of(beneath.stat(self.path)) == self.identity
        if not same:
            raise StoreGoneError(
                f"{self.path} was deleted, moved, or is another store's name by now",
                hint="Open it again to read what has this name now",
            )

    def _find_state(self) -> LiveAcquisition | None:
        """Brings ``_acquiring`` up to date. Under the lock. Raises ``ChangedError`` when the manifest is
        replaced meanwhile, which is no end of the acquisition."""
        self.check_there()
        if self._is_remote:
            return None
        acquiring = self._acquiring
        known_epoch = None if acquiring is None else acquiring.store.manifest.writer_epoch
        version = _manifest_version(self._workspace, known_epoch)
        if version is None:
            self._acquiring = None
        elif self._acquiring is None or self._acquiring.version != version:
            look("look.manifest.read")
            manifest = find_manifest(self._workspace)
            if manifest is None:
                raise ChangedError
            before = self._acquiring
            if before is not None and _same_writer(before.store.manifest, manifest):
                # The same files, which a recovery may have changed: it begins with a manifest of its own.
                before.store.manifest, before.version = manifest, version
                before.read_again()
            else:
                # Another folder has the files, or there are more images: nothing that is open holds. Only how
                # far the frames came does, or a shape that a reader has seen would shrink.
                found = LiveAcquisition(UnfinishedStore(self.path, manifest), version, self._kept_pixels)
                if before is not None:
                    found.extents.reach_as(before.extents)
                self._acquiring = found
        return self._acquiring

    def _in_one_state(self, search: Callable[[LiveAcquisition | None], T]) -> T:
        """Returns what ``search`` gives, with the lock held, of a store that has one manifest, or none, from
        before it until after it. Raises ``ChangedError``."""
        with self._lock:
            acquiring = self._find_state()
            with self._looking(acquiring) as version:
                found = search(acquiring)
            self._check_version(version)
            return found

    @contextmanager
    def _looking(self, acquiring: LiveAcquisition | None) -> Iterator[tuple[str | int, ...] | None]:
        """A context for looks at the files of a store in this state, under the lock. It gives the version
        before them: a look that finds the same writer's manifest renewed gives ``acquiring`` the new one.
        Raises ``ChangedError``."""
        version = None if acquiring is None else acquiring.version
        try:
            yield version
        except (ShardFormatError, StorageError):
            # A file that went with its writer, or was half copied by the next one, is no damage: then the
            # version has changed, and the search comes again.
            self._check_version(version)
            raise

    def _check_version(self, version: tuple[str | int, ...] | None) -> None:
        acquiring = self._find_state()
        if version != (None if acquiring is None else acquiring.version):
            raise ChangedError

    def steady(self, search: Callable[[LiveAcquisition | None], T]) -> T:
        """Returns what ``search`` finds in one state of the store, with the lock held; searches again while
        that changes. What it has not found was not there. Raises ``StoreChangingError``,
        ``StoreGoneError``."""
        return self.until_it_stays(lambda: self._in_one_state(search))

    def until_it_stays(self, read: Callable[[], T]) -> T:
        """Returns what ``read`` gives, which raises ``ChangedError`` to be called again. Raises
        ``StoreChangingError``."""
        for _ in tries():
            with suppress(ChangedError):
                return read()
        raise StoreChangingError(
            f"{self.path} changes faster than it is read", hint="Try again; is its disk very slow?"
        )

    @property
    def second_root_and_folders(self) -> tuple[str | None, list[Path]]:
        """The second root for shards of an unfinished store, None without one, and the folders with its work
        in progress, none in a finished store. Raises as ``look``."""
        return self.steady(
            lambda now: (None, []) if now is None else (now.store.manifest.spill_root, now.folders)
        )

    @property
    def is_finished(self) -> bool:
        """True if no acquisition writes this store, nor has one left it unfinished."""
        return self.steady(lambda acquiring: acquiring is None)

    def look(self) -> tuple[LiveAcquisition | None, list[np.ndarray]]:
        """Looks at what is new. Returns the unfinished acquisition, None if it has ended, and records of
        frames that were found stored since the last look, in no order and perhaps twice. Raises
        ``StorageError``, ``StoreGoneError``."""
        return self.steady(lambda now: (now, [] if now is None else now.look()))

    # ------------------------------------------------------------------ documents

    def document(self, path: str) -> dict[str, Any] | None:
        """Returns zarr.json of the group or array in the folder ``path`` of the store (empty: the store's
        own) as it is now, None if there is none. Consolidated metadata are left out: they would describe an
        earlier state. Raises ``ShardFormatError``, ``StorageError``, ``StoreGoneError``."""

        def find(acquiring: LiveAcquisition | None) -> dict[str, Any] | None:
            if acquiring is not None:
                acquiring.look(acquiring.image_at(path))
            return self._documents.find(acquiring, path)

        document = self.steady(find)
        if document is not None:
            self._note_given(path, document)
            # They were copied at one moment, and a reader that finds them asks for no zarr.json any more.
            document.pop(CONSOLIDATED, None)
        return document

    def _note_given(self, path: str, document: dict[str, Any]) -> None:
        if document["node_type"] != "array":
            self.given.pop(path, None)
            return
        layout: Layout | None = None
        with suppress(ShardFormatError):
            layout = _layout_of(self._parsed(path, document))
        self.given[path] = layout  # in one step: other threads ask for its chunks meanwhile

    def given_above(self, key: str) -> str | None:
        """Returns the path of the array, of those whose zarr.json was given out, in which a key lies."""
        parts = key.split("/")
        paths = ("/".join(parts[:count]) for count in range(len(parts)))
        return next((path for path in paths if path in self.given), None)

    def _parsed(self, path: str, document: dict[str, Any]) -> StoredArray:
        """Returns an array by its zarr.json. Raises ``ShardFormatError``."""
        check_document(document)  # what we do not understand is left to the user's library
        return parse_array(self.path / path, document)

    def array(self, path: str) -> LiveArray | None:
        """Returns the array in the folder ``path`` of the store; None if there is none, or it is not of a
        layout that is read here. Raises ``StorageError``, ``StoreGoneError``."""
        return self.steady(partial(self._find_array, path))

    def _find_array(self, path: str, acquiring: LiveAcquisition | None) -> LiveArray | None:
        if acquiring is not None and path in acquiring.arrays:
            return self._live_array(acquiring, path)
        with suppress(ShardFormatError):
            version = self._document_version(path)
            if version is None:
                return None
            known = self._arrays.get(path)
            if known is None or known[0] != version:
                document = self._documents.find(None, path)
                if document is None:
                    return None
                known = self._arrays[path] = version, self._parsed(path, document)
            return LiveArray(known[1], version=version)
        return None

    def _document_version(self, path: str) -> Version | None:
        """Returns the version of zarr.json in a folder of the store, None if there is none."""
        look("look.document.version")
        key = key_in(path, DOCUMENT)
        try:
            if self._is_remote:
                return FileIdentity.of(beneath.stat(self.path / key))
            return FileIdentity.of(beneath.stat(key, folder=self._folder))
        except OSError as error:
            if says_absent(error):
                return None
            with storage_errors("look into", self.path / path):
                raise

    def _live_array(self, acquiring: LiveAcquisition, path: str) -> LiveArray:
        image, level = acquiring.arrays[path]
        key = f"{acquiring.store.manifest.writer_epoch}:{path}"
        if key not in self._arrays:
            array = acquiring.spec.arrays[image]
            document = array_documents(array, (1,) * len(array.growing_axes))[level]
            self._arrays[key] = (), parse_array(self.path / path, document)
        return LiveArray(self._arrays[key][1], image, level)

    # ------------------------------------------------------------------ keys

    def open_file(self, key: str, shard: tuple[str, LiveArray, Coordinates] | None) -> ReadFile | None:
        """Opens a file of the store; None if it has none. ``shard``: what it is the key of, as
        ``shard_of_key`` says. Raises ``ChangedError`` if that is another array by now, ``ShardFormatError``
        for a key of an array that was given out and is gone, ``StorageError``."""

        def find(acquiring: LiveAcquisition | None) -> ReadFile | None:
            path, version = (self.given_above(key), None) if shard is None else (shard[0], shard[1].version)
            if acquiring is not None and path in acquiring.arrays:
                path = None  # its zarr.json is not there yet, perhaps
            if path is not None and version is None:
                version = self._document_version(path)
                if version is None:  # the file itself need not be what the reader's index is of
                    self.raise_no_array(path)
            look("look.key")
            file = self._find_file(key, key)
            if file is None and path is not None and self._document_version(path) != version:
                raise ChangedError
            return file

        return self._in_one_state(find)

    def shard_of_key(self, key: str) -> tuple[str, LiveArray, Coordinates] | None:
        """Returns the array's path, the array and the coordinates if this is the key of a shard. Raises as
        ``array``, and ``ShardFormatError`` for an array that has another layout than when it was given
        out."""
        for path, below in arrays_above(key):
            array = self.array(path)
            coordinates = None if array is None else array.stored.coordinates_of(below)
            if array is None or coordinates is None:
                continue  # the key of one that lies deeper, perhaps
            self.check_given(path, array.stored)
            return path, array, coordinates
        return None

    def check_given(self, path: str, array: StoredArray) -> None:
        """Raises ``ShardFormatError`` for an array that has another layout than when it was given out."""
        given, now = self.given.get(path), _layout_of(array)
        if given is not None and given != now:
            raise changed_layout(path, given, now)

    def live_keys(self) -> set[str]:
        """Returns the keys of documents and shards that an unfinished acquisition has, on disk or not. Raises
        as ``look``."""

        def find(acquiring: LiveAcquisition | None) -> set[str]:
            if acquiring is None:
                return set()
            acquiring.look()
            above = set() if acquiring.spec.is_single else self._documents.keys_above(acquiring)
            return above | acquiring.keys()

        return self.steady(find)

    # ------------------------------------------------------------------ chunks

    def read_box(
        self,
        path: str,
        shard: Coordinates,
        low: Coordinates,
        high: Coordinates,
        *,
        listed: bool = False,
    ) -> np.ndarray[Any, Any]:
        """Returns the elements [low, high), counted from the first of a shard, of the array at ``path``: fill
        where nothing was ever stored, which with ``listed``, for chunks that an index has named, is
        ``ShardChangedError``. Raises ``ShardFormatError``, ``StorageError``, ``StoreGoneError``."""

        def read(array: LiveArray) -> np.ndarray[Any, Any]:
            out = empty_box([b - a for a, b in zip(low, high, strict=True)], array.stored.dtype)
            part = BoxPart(shard, low, high, (0,) * len(low))
            self._read_now(path, array, [part], out, listed=listed)
            return out

        return self.of_shard(path, shard, read)

    def read_into(
        self, path: str, opened: StoredArray, parts: list[BoxPart], out: np.ndarray[Any, Any]
    ) -> None:
        """Reads boxes of shards of an array as it was ``opened`` into parts of ``out`` (C order, its dtype);
        after an error anything may be there. Of a finished store all are looked for at once, and their files
        are open together. Raises as ``read_box``, and ``ShardFormatError`` for an array that has another
        layout by now."""
        if len(parts) > 1:
            # Together, once: a store that changes meanwhile, or a shard that cannot be read, is met again
            # where each is read by itself.
            with suppress(ChangedError, ShardFormatError, StorageError):
                self._read_parts(path, opened, parts, out, self.find_read_array(path))
                return
        for part in parts:
            self.of_shard(path, part.shard, partial(self._read_parts, path, opened, [part], out))

    def _read_parts(
        self,
        path: str,
        opened: StoredArray,
        parts: list[BoxPart],
        out: np.ndarray[Any, Any],
        array: LiveArray,
    ) -> None:
        layout, now = _layout_of(opened), _layout_of(array.stored)
        if layout != now:
            raise changed_layout(path, layout, now)
        ends = [
            max(part.shard[axis] * n + part.high[axis] for part in parts)
            for axis, n in enumerate(opened.shard_shape)
        ]
        if array.version is not None and any(map(operator.gt, ends, array.stored.shape)):
            raise ShardChangedError(
                f"{path} is smaller than when it was opened",
                expected=tuple(ends),
                got=array.stored.shape,
                hint="Frames that were never acknowledged are lost, or it was cropped: open it again",
            )
        self._read_now(path, array, parts, out)

    def _read_now(
        self,
        path: str,
        array: LiveArray,
        parts: list[BoxPart],
        out: np.ndarray[Any, Any],
        *,
        listed: bool = False,
    ) -> None:
        """Reads boxes of the store as it is at this moment. ``listed``: as for ``read_box``. Raises
        ``ChangedError`` if it changes meanwhile."""
        boxes = BoxCuts.of(array.stored, parts)
        located = self.locate_now(path, array, boxes.of_shards)
        if listed and not located.may_be_named.all():
            raise not_there(key_in(path, array.stored.shard_key(parts[0].shard)))
        read_boxes(array.stored, boxes, located, out)
        located.check_unchanged()

    def locate(self, path: str, shard: Coordinates, numbers: np.ndarray) -> Located:
        """Returns where the chunks ``numbers`` (int64[n], as the index counts them) of a shard are. Raises as
        ``read_box``."""
        return self.of_shard(path, shard, lambda array: self.locate_now(path, array, [(shard, numbers)]))

    def of_shard(
        self,
        path: str,
        shard: Coordinates,
        read: Callable[[LiveArray], T],
        *,
        found: LiveArray | None = None,
    ) -> T:
        """Returns what ``read`` gives of a shard; it reads again when files are replaced meanwhile, of which
        bytes that do not fit may be the first sign. ``found``: the array, as it was found just now."""
        failed = 0

        def read_once() -> T:
            nonlocal failed, found
            array, found = found or self.find_read_array(path), None
            try:
                return read(array)
            except ChangedError:
                with self._lock:
                    self._arrays.pop(path, None)
                raise
            except (ShardFormatError, StorageError):
                self.check_there()
                failed += 1
                # Damage stays, while what a writer or an edit does passes: only the number of tries tells
                # one from the other. Few for a finished store, where each try of a damaged chunk costs time.
                if failed == (TRIES if array.version is None else TRIES_OF_FINISHED):
                    raise
                with self._lock:
                    self._forget(path, array, shard)
                raise ChangedError from None

        return self.until_it_stays(read_once)

    def find_read_array(self, path: str) -> LiveArray:
        """Returns an array that is about to be read; that of a finished store as it was found before, if it
        was: ``locate_now`` compares its version in the same look as all else, so that none is spent on it
        before. Raises as ``array``, and ``ShardFormatError`` if there is none."""
        known = self._arrays.get(path)  # without the lock: it is replaced as a whole
        array = self.array(path) if known is None else LiveArray(known[1], version=known[0])
        return self.raise_no_array(path) if array is None else array

    def raise_no_array(self, path: str) -> NoReturn:
        """Raises the error of who reads the array at ``path``, which is not there any more, or is not read
        here."""
        self.check_there()
        raise ShardFormatError(f"{path} is no array that is read here", got=self.path / path)

    def read_frames(
        self, path: str, indices: list[Coordinates], *, recorded: bool = False
    ) -> list[np.ndarray[Any, Any]]:
        """Returns the frames at ``indices`` (storage order) along the frame axes of an array, each
        [rows, columns] (the last two axes of the array, unless we have written it transposed), fill where
        there is none, which is ``ShardChangedError`` with ``recorded``: a journal, the frame log or table
        has them. All are of one slab, whose chunks are decoded once. Raises as ``read_box``."""
        array = self.array(path)
        if array is None:  # it was there a moment ago: a store that ends has none of images without a frame
            self.raise_no_array(path)
        shard_shape, plane = array.stored.shard_shape, array.stored.shape[-2:]
        first = tuple(i // n for i, n in zip(indices[0], shard_shape, strict=False))
        inside = np.array(indices, np.int64).reshape(len(indices), -1) % np.array(shard_shape[:-2], np.int64)
        low, high = inside.min(axis=0, initial=1 << 62), inside.max(axis=0, initial=-1) + 1
        box = empty_box((*(high - low), *plane), array.stored.dtype)
        height, width = shard_shape[-2:]
        for y, x in np.ndindex(-(-plane[0] // height), -(-plane[1] // width)):
            part = box[..., y * height : (y + 1) * height, x * width : (x + 1) * width]
            corners = (*low.tolist(), 0, 0), (*high.tolist(), *part.shape[-2:])
            part[...] = self.read_box(path, (*first, y, x), *corners, listed=recorded)
        if array.stored.is_transposed:
            box, plane = box.swapaxes(-1, -2), plane[::-1]
        frames = [empty_box(plane, box.dtype) for _ in indices]
        for frame, index in zip(frames, inside - low, strict=True):
            frame[...] = box[tuple(index)]
        return frames

    def _forget(self, path: str, array: LiveArray, shard: Coordinates) -> None:
        # the array, too: as it was found before it may be what does not fit, and no look compares it then
        self._arrays.pop(path, None)
        self._sealed.forget(key_in(path, array.stored.shard_key(shard)))
        if self._acquiring is not None:
            self._acquiring.rows.clear()

    def locate_now(
        self, path: str, array: LiveArray, wanted: list[tuple[Coordinates, np.ndarray]]
    ) -> Located:
        """As ``locate``, of shards and chunks of each, one after the other, of the store as it is at this
        moment. Raises ``ChangedError`` if it changes meanwhile."""
        with self._lock:
            if self._acquiring is None and array.version is not None and not self._is_remote:
                located = self._locate_finished(path, array, wanted)
                if located is not None:
                    return located
            acquiring = self._find_state()
            if (array.version is None) != (acquiring is not None and path in acquiring.arrays):
                raise ChangedError
            if acquiring is not None and array.version is None:
                with self._looking(acquiring):
                    layout = acquiring.layout.arrays[array.image]
                    rows = [layout.file_of_shard(array.level, shard) for shard, _ in wanted]
                    return Located.joined(
                        [
                            self._locate_live(acquiring, path, array, *each, row_and_file)
                            for each, row_and_file in zip(wanted, rows, strict=True)
                        ]
                    )
            state = self._state_of(acquiring, path, None)
            if state.document != array.version:
                raise ChangedError
            if isinstance(self._sealed, RemoteShards):
                keys = (key_in(path, array.stored.shard_key(shard)) for shard, _ in wanted)
                self._sealed.ask_for(keys, array.stored)
            found = self._search_shards(path, array, wanted)
            # Bytes at an address come on the condition of the version that was found: they need no second
            # look, which would be a request.
            is_all_there = self._is_remote and not found.missing.size
            if not is_all_there and self._state(path, None) != state:
                raise ChangedError
            return found.conclude(NeverStored(state))

    def _locate_finished(
        self, path: str, array: LiveArray, wanted: list[tuple[Coordinates, np.ndarray]]
    ) -> Located | None:
        """As ``locate_now``, of a store that was finished at the last look; None if it, or the array, has
        changed since. A small read takes as long as its looks: so zarr.json is looked at behind the shards
        alone if all is found there.

        It was read before, and is the same behind: so it was the same between, and they are shards of this
        array. Each is compared once more when its bytes are read (``Located.check_unchanged``). That nobody
        writes must hold before, too: who goes on with a store of one shape leaves zarr.json as it is, and has
        acknowledged frames that the shards lack until they are sealed again. What is missing is fill only by
        a search between two looks."""
        if self._find_state() is not None:
            return None
        state, found = StoreState(None, document=array.version), None
        is_same = False
        try:
            with suppress(ChangedError, ShardFormatError, StorageError):  # of another layout, perhaps
                found = self._search_shards(path, array, wanted)
            is_same = found is not None and self._state(path, None) == state
        finally:
            for shard, _ in wanted if not is_same else ():
                # its index may have been read as that of this array, and is another's
                self._sealed.forget(key_in(path, array.stored.shard_key(shard)))
        if found is None or not is_same:
            return None
        if found.missing.size:
            found = self._search_shards(path, array, wanted)
            if self._state(path, None) != state:
                raise ChangedError
        return found.conclude(NeverStored(state))

    def _search_shards(
        self, path: str, array: LiveArray, wanted: list[tuple[Coordinates, np.ndarray]]
    ) -> ChunkSearch:
        """Looks for chunks of several shards of a finished store, one after the other."""
        found, first = ChunkSearch(sum(numbers.size for _, numbers in wanted)), 0
        found.recorded[:] = True  # by the frame table, which is not asked here; or it was erased
        for shard, numbers in wanted:
            where = np.arange(first, first + numbers.size)
            self._search_sealed(found, path, array, shard, numbers, where)
            first += numbers.size
        return found

    def _state(self, path: str, shard_row: int | None) -> StoreState:
        """Returns the state of the store in what its array at ``path`` needs: an array that is written, or
        without a shard row any other."""
        return self._state_of(self._find_state(), path, shard_row)

    def _state_of(self, acquiring: LiveAcquisition | None, path: str, shard_row: int | None) -> StoreState:
        manifest = None if acquiring is None else acquiring.version
        if acquiring is not None and shard_row is not None:
            return StoreState(manifest, journal=acquiring.journal_of(shard_row))
        return StoreState(manifest, document=self._document_version(path))

    def _locate_live(
        self,
        acquiring: LiveAcquisition,
        path: str,
        array: LiveArray,
        shard: Coordinates,
        numbers: np.ndarray,
        row_and_file: tuple[int, int] | None,
    ) -> Located:
        """Finds chunks of an unfinished store. ``row_and_file``: the shard row and the file in it; None past
        the array."""
        if row_and_file is None:
            return ChunkSearch(numbers.size).conclude(NeverStored(StoreState(acquiring.version)))
        found, journal = self._search_live(acquiring, path, array, shard, numbers, row_and_file)
        # What is found needs no second look: its bytes have to fit the checksums of the journal.
        if found.is_journaled:
            return found.conclude(None)
        if found.missing.size:
            # Staged frames, a journal and a shard are not looked at in the same moment. A frame that a writer
            # moves against the order of the looks, as recovery does when it takes a slab apart, may be missed
            # once; by both searches it would have had to be moved back in between.
            again = self._search_live(acquiring, path, array, shard, numbers, row_and_file)
            if again[1] != journal or not again[0].misses_the_same(found):
                raise ChangedError
            found = again[0]
            if not array.level:  # staged frames are shown in images alone
                acquiring.check_staging()
        state = StoreState(acquiring.version, journal=journal)
        if self._state(path, row_and_file[0]) != state:
            raise ChangedError
        return found.conclude(NeverStored(state))

    def _search_sealed(
        self,
        found: ChunkSearch,
        path: str,
        array: LiveArray,
        shard: Coordinates,
        numbers: np.ndarray,
        where: np.ndarray,
        final: Path | None = None,
    ) -> None:
        """Finds those of the chunks ``where`` (int64[n]) that a shard with its final name has. ``numbers``
        (int64[n]): of them there."""
        key = key_in(path, array.stored.shard_key(shard))
        if (sealed := self._sealed.find(key, array.stored, final)) is not None:
            found.put(sealed.file, where, sealed.entries[numbers])

    def _search_live(
        self,
        acquiring: LiveAcquisition,
        path: str,
        array: LiveArray,
        shard: Coordinates,
        numbers: np.ndarray,
        row_and_file: tuple[int, int],
    ) -> tuple[ChunkSearch, Identity | None]:
        """Looks for chunks of an unfinished store in the order in which a writer moves frames: staged ones,
        the journal, the frame log, the final name. Returns what is found, and the identity of the journal.

        The log comes before the shards of which it tells: a frame that was staged, and is in the log, is in a
        shard that has its name by then. The other way round a shard that is sealed between the two looks had
        the frame in neither.
        """
        found, (number, file) = ChunkSearch(numbers.size), row_and_file
        # Levels have no staged frames: their pixels are made once the slab is whole.
        staged = {} if acquiring.staging is None or array.level else acquiring.staging.look()
        row = acquiring.row(number)
        final: Path | None = None
        if row is not None:
            self._search_row(row, found, file, numbers)
            if row.placement.spill is not None:  # its link may not be made yet
                final = row.placement.final(row.layout.shard_path(number, file))
        waiting = {
            slab: frames
            for slab, frames in staged.items()
            if slab in acquiring.slabs_of(number)
            and not (row is not None and row.stored[row.slot_layer[slab]])
        }
        if waiting:
            waiting = acquiring.not_sealed(number, waiting)
        # A file that readers see grow is no shard yet: what its index lists, the journal has as well, with
        # checksums. After a power cut only the journal is right.
        if row is None or not self._is_shown(acquiring, row, file):
            where = found.missing
            self._search_sealed(found, path, array, shard, numbers[where], where, final)
        self._lay_staged(acquiring, found, array, shard, file, numbers, waiting)
        if found.missing.size and acquiring.is_logged(number):
            found.recorded[:] = True
        return found, None if row is None else row.identity

    def _is_shown(self, acquiring: LiveAcquisition, row: LiveRow, file: int) -> bool:
        """As ``scan.unfinished_store.is_shown``."""
        path, live = row.layout.shard_path(row.number, file), row.layout.live(acquiring.store.manifest.live)
        look("look.working.name")
        return is_shown(live, row.journal_fact, row.placement, path)

    def _search_row(self, row: LiveRow, found: ChunkSearch, file: int, numbers: np.ndarray) -> None:
        """Finds the chunks of stored slabs of a shard row in progress."""
        layout, plane = row.layout, row.layout.plane
        layers, entries = np.divmod(numbers, plane.layer_entries)
        of_slab = file % layout.files_per_slab
        slots, layer_slots = slots_of_layer(plane, of_slab)[entries], int(plane.layer_slots[of_slab])
        where, rows = [], []
        for layer in np.unique(layers).tolist():
            slab = row.slab_in(file, layer)
            if slab is None or not row.is_stored(slab):
                continue
            chosen = np.flatnonzero((layers == layer) & (slots >= 0))
            where.append(chosen)
            first = 0 if layout.grid.is_split else row.slot_layer[slab] * layer_slots
            rows.append(first + slots[chosen])
            found.recorded[chosen] = True
        if not where:
            return
        chosen, table = np.concatenate(where), row.tables[file][np.concatenate(rows)]
        look("look.working")
        working: ReadFile | None = None
        path = row.placement.working(row.layout.shard_path(row.number, file))
        # gone: it has got its final name, or is all fill
        with storage_errors("read", path), suppress(FileNotFoundError):
            working = ReadFile.open(path)
            # pages read ahead, of chunks still to come, would be in the way of the writer's direct I/O
            os.posix_fadvise(working.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        entries_of = np.zeros(table.size, INDEX_ENTRY)
        entries_of["offset"], entries_of["nbytes"] = table["offset"], table["nbytes"]
        found.put(working, chosen, entries_of, table["data_crc"].astype(np.int64))

    def _lay_staged(
        self,
        acquiring: LiveAcquisition,
        found: ChunkSearch,
        array: LiveArray,
        shard: Coordinates,
        file: int,
        numbers: np.ndarray,
        staged: dict[int, list[StagedFrame]],
    ) -> None:
        """Adds the staged frames of slabs that are not stored to the chunks of these slabs."""
        layout = acquiring.layout.arrays[array.image]
        layers, entries = np.divmod(numbers, layout.plane.layer_entries)
        own_slab, of_slab = divmod(file, layout.files_per_slab)
        layers[slots_of_layer(layout.plane, of_slab)[entries] < 0] = -1  # past the array
        top, left = (i * n for i, n in zip(shard[-2:], array.stored.shard_shape[-2:], strict=True))
        if array.stored.is_transposed:
            top, left = left, top
        for slab, frames in staged.items():
            index_layer, slot_layer = layout.layer_of_slab(slab)
            where = np.flatnonzero(layers == index_layer)
            if not where.size or (layout.grid.is_split and slot_layer != own_slab):
                continue
            assert acquiring.staging is not None, "it has these frames"
            pixels = partial(self._staged_pixels, acquiring.staging, at=(top, left))
            parts: Staged = [(frame.index_in_slab, partial(pixels, frame)) for frame in frames]
            found.staged.update(dict.fromkeys(where.tolist(), parts))

    def _staged_pixels(self, staging: LiveStaging, frame: StagedFrame, at: tuple[int, int]) -> np.ndarray:
        """Returns the pixels of a staged frame from the row and column ``at`` on."""
        look("look.staging.pixels")
        with self._lock:
            pixels = staging.pixels(frame)
        if pixels is None:
            raise ChangedError
        return pixels[at[0] :, at[1] :]


def _layout_of(array: StoredArray) -> Layout:
    """Returns what offsets and sizes in memory follow from."""
    return array.dtype, array.chunk_shape, array.shard_shape


def changed_layout(path: str, opened: Any, now: Any) -> ShardFormatError:
    """The error of who reads an array that was replaced by another one."""
    return ShardFormatError(
        f"{path} has another layout than when it was opened", expected=opened, got=now, hint="Open it again"
    )


def not_there(key: str) -> ShardChangedError:
    """The error of who reads a chunk of ``key``, because an index has named it, that was never stored."""
    return ShardChangedError(
        f"a chunk of {key} is asked for, and nothing was ever stored there",
        expected="a chunk that the index of this shard names",
        hint="The index that was read is another store's: open the store again",
    )


def _open_below(path: Path, folder: int, key: str) -> int:
    # O_NONBLOCK: opening a named pipe must not wait for a writer
    try:
        return beneath.open_file(key, os.O_RDONLY | os.O_NONBLOCK, folder=folder)
    except LinkError:
        return open_shard(path / key)  # a spilled one


def _manifest_version(workspace: Path, known_epoch: int | None) -> tuple[str | int, ...] | None:
    """Returns what changes when the newest manifest does; None if there is none. The one of ``known_epoch``
    is the newest while it is there and the next one is not; else the folder is listed, which takes long with
    many files in progress. Raises ``ChangedError`` when one is replaced meanwhile, ``StorageError``."""
    with storage_errors("look into", workspace):
        try:
            if known_epoch is not None:
                with suppress(FileNotFoundError):
                    newest = manifest_path(workspace, known_epoch)
                    look("look.manifest")
                    status = beneath.stat(newest)
                    look("look.manifest.next")
                    if not beneath.exists(manifest_path(workspace, known_epoch + 1)):
                        return newest.name, *FileIdentity.of(status)
            look("look.workspace")
            if not beneath.exists(workspace):
                return None
            name = _newest_manifest(workspace)
            if name is None:
                # a large folder is not listed in one moment: a take-over meanwhile may have shown neither the
                # manifest that goes nor the one that comes
                name = _newest_manifest(workspace)
            look("look.manifest.newest")
            return None if name is None else (name, *FileIdentity.of(beneath.stat(workspace / name)))
        except FileNotFoundError:
            if beneath.exists(workspace):
                raise ChangedError from None
            return None


def _newest_manifest(workspace: Path) -> str | None:
    look("look.manifests")
    with beneath.entries_in(workspace) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(_MANIFEST_PREFIX)]
    return max(names, key=lambda name: (len(name), name), default=None)


def _same_writer(one: Manifest, other: Manifest) -> bool:
    return (one.identity, one.files_epoch, one.added_images) == (
        other.identity,
        other.files_epoch,
        other.added_images,
    )
