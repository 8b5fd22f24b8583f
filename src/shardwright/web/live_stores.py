"""Stores as a live view has them, over HTTP: running acquisitions, those that a dead daemon has left, and
finished ones.

    /live/NAME.ome.zarr/KEY      zarr.json as it is now, shards in which each chunk has one offset for ever
                                 (``read.live_shard``), and files
    /live/NAME.ome.zarr/.frames  each frame once it is stored (``web.frame_stream``)

What a client has read of an acquisition goes together with all that it reads later of it: frames are only
added. So ``ETag`` changes with every slab, and ``If-Match`` fails only for another store of that name, or one
that this process has opened anew since: after ``MOST_VIEWS`` others were read.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardwright.disk import beneath
from shardwright.disk.typed_errors import says_absent
from shardwright.model.errors import (
    LinkError,
    ShardFormatError,
    StorageError,
    StoreChangingError,
    StoreGoneError,
)
from shardwright.read.live_staging import KeptPixels

from .served_files import ElsewhereError, NotServedError, check_not_gone, is_plain, open_in_store
from .stores import ServedKey

if TYPE_CHECKING:
    from shardwright.daemon.web_child import WebSettings
    from shardwright.read.live_shard import ComposedShard, KeptChunks, KeyBytes, KeyFile, LiveKeys
    from shardwright.read.live_view import LiveView

    from .stores import Served

PREFIX = "/live/"
# A client's tags hold as long as its store stays open, so there is a view for each store that may be read at
# the same time. Their pixels and chunks share one memory; ``web.connections`` counts their descriptors.
MOST_VIEWS = 32
MOST_GONE = 1024


class _LiveKey(ServedKey):
    """A key of a live view that is being served."""

    def __init__(self, store: str, key: KeyFile | KeyBytes | ComposedShard) -> None:
        """``store``: the tag of the open store."""
        super().__init__(key)
        self._store = store
        self.etag = f'"{store}-{key.generation}"'

    def agrees_with(self, etag: str) -> bool:
        return etag.startswith(f'"{self._store}-')

    def close(self) -> None: ...  # its file is closed when nobody has it any more


class _OpenStore(NamedTuple):
    """An open store. ``tag``: another one each time that a store is opened, since numbers of files are used
    again."""

    view: LiveView
    keys: LiveKeys
    tag: str


class LiveStores:
    """The live views of the stores below the output root. Used by several threads."""

    def __init__(self, settings: WebSettings) -> None:
        self._root = settings.output_root
        self._spill_root = settings.spill_root
        self._lock = threading.Lock()
        self._keys: OrderedDict[str, _OpenStore] = OrderedDict()
        self._gone: OrderedDict[str, None] = (
            OrderedDict()
        )  # names of stores that were open, those of late last
        self._kept: KeptChunks | None = None
        self._kept_pixels = KeptPixels()  # also of followers
        self._held: dict[str, _OpenStore] = {}  # only ever added to, before anything is served

    def hold(self, store: str, view: LiveView) -> None:
        """Serves a finished store that lies elsewhere, at an address, under a name that no other has here.
        Its files are served as they are."""
        from shardwright.read.live_shard import LiveKeys

        self._held[store] = _OpenStore(view, LiveKeys(view), secrets.token_hex(6))

    def holds(self, store: str) -> bool:
        return store in self._held

    def find(self, path: str) -> Served:
        """Returns what ``path`` is, which begins with the store. Raises ``NotServedError``, ``OSError``,
        ``ShardwrightError``, of these ``StoreGoneError`` for a store that was read here: to who has its
        metadata, a key that is not found would be fill value."""
        store, _, key = path.partition("/")
        if not all(map(is_plain, path.split("/"))):
            raise NotServedError
        if store in self._held:
            return self._find(store, key)
        try:
            return self._find(store, key)
        except ShardFormatError:
            check_not_gone(self._root, path.split("/"))
            raise
        except NotServedError:
            # Its view, if there is one, may have been opened after the metadata were read. It tells of arrays
            # itself: a running store need not have their documents yet.
            check_not_gone(self._root, path.split("/"), only_store=True)
            raise

    def _find(self, store: str, key: str) -> Served:
        known = self._of(store)
        self._check(known.view)
        found = known.keys.find(key)
        if found is None:
            raise NotServedError
        return _LiveKey(known.tag, found)

    def view(self, store: str) -> LiveView:
        """Returns the view of a store. Raises as ``find``."""
        try:
            view = self._of(store).view
        except StoreGoneError:
            raise NotServedError from None
        self._check(view)
        return view

    def open(self, store: str) -> LiveView:
        """Opens a view of a store for one user. Raises as ``find``."""
        from shardwright.read.live_view import LiveView  # its decoders take time to load and memory

        if not is_plain(store):
            raise NotServedError
        path = Path(self._root, store)
        try:
            status = beneath.stat(path)
            open_key = partial(self._open_key, store)
            view = LiveView(path, open_key=open_key, kept_pixels=self._kept_pixels)
        except OSError as error:
            is_no_store = isinstance(error, StorageError) and error.__cause__ is None
            if isinstance(error, StoreChangingError | LinkError) or not (is_no_store or says_absent(error)):
                raise  # it is there, and cannot be opened now
            raise NotServedError from None
        if not stat.S_ISDIR(status.st_mode) or view.identity != (status.st_dev, status.st_ino):
            raise NotServedError
        self._check(view)
        return view

    def _of(self, store: str) -> _OpenStore:
        from shardwright.read.live_shard import KeptChunks, LiveKeys

        if store in self._held:
            return self._held[store]
        with self._lock:
            known = self._keys.pop(store, None)
            if known is None or not self._is_current(store, known.view):
                was_there = known is not None or store in self._gone
                try:
                    view = self.open(store)
                except NotServedError:
                    if was_there:
                        self._note_gone(store)
                        raise StoreGoneError(f"{store} was deleted or moved") from None
                    raise
                self._gone.pop(store, None)
                kept = self._kept = self._kept or KeptChunks()
                keys = LiveKeys(view, fixed_slots=True, kept=kept)
                known = _OpenStore(view, keys, secrets.token_hex(6))
            self._keys[store] = known
            while len(self._keys) > MOST_VIEWS:
                self._keys.popitem(last=False)
            return known

    def _note_gone(self, store: str) -> None:
        self._gone[store] = None
        while len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)

    def _is_current(self, store: str, view: LiveView) -> bool:
        try:
            status = beneath.stat(Path(self._root, store))
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == view.identity

    def _check(self, view: LiveView) -> None:
        """Raises ``ElsewhereError`` for a store whose shards, sealed or in progress, may lie in a folder that
        is not served."""
        second_root, folders = view.second_root_and_folders
        if second_root not in (None, self._spill_root):
            raise ElsewhereError(
                "Shards of this acquisition may lie in a second folder, which is not served here. Run "
                "`shardwright view` on the store, or set output.spill_root to that folder."
            )
        for folder in folders:
            try:
                is_elsewhere = beneath.is_link(folder)
            except LinkError:
                is_elsewhere = True
            if is_elsewhere:
                raise ElsewhereError("A link in the path of this acquisition's folders leads elsewhere.")

    def _open_key(self, store: str, key: str) -> int:
        try:
            parts = [store, *key.split("/")]
            return open_in_store(self._root, self._spill_root, parts, unfinished=True)
        except NotServedError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key) from None
