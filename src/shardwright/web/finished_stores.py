"""The finished stores below the output root, newest first, for /api/stores and the viewer. A collection of
images is shown by the first of them that is there.

A store is finished once its workspace is gone. A scan never blocks the page: one thread scans, at most every
``LOOK_EVERY_S``; a request meanwhile, or while the disk is stuck, gets the last result.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.to_thread

from shardwright.array.document import MAX_METADATA_BYTES, array_chain, decode_document
from shardwright.array.ome_references import image_names
from shardwright.codecs.decode import ChunkCodecs, decode_chunk
from shardwright.disk import beneath
from shardwright.disk.typed_errors import says_absent, says_closed, storage_errors
from shardwright.model.errors import LinkError, ShardFormatError, StorageError
from shardwright.model.frame_status import FrameStatus, status_column
from shardwright.model.names import WORKSPACE, acquisition_name
from shardwright.wire.messages import MAX_IMAGES

from .served_files import NotServedError, open_in_store
from .viewer_state import MOST_SHOWN, StoredImage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from shardwright.read.live_view import LiveView

MOST_LISTED = 50
MOST_REASON = 500  # characters
LOOK_EVERY_S = 2.0
WAIT_S = 1.0  # for a scan, before the last list is given
MOST_SOUGHT = 64  # images of a collection that are tried until one can be shown
MOST_NAMED = 16  # images in a message
MOST_COUNTED = 1000  # images of a collection whose places for frames are counted
NO_IMAGE = "This store holds no image that can be shown."
STATUS_CODECS = ChunkCodecs("gzip", checksum=True)
MAX_ROWS_PER_CHUNK = 1 << 20
_UNREADABLE = (
    NotServedError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
)  # raised by what is no store of ours


# reads zarr.json of the folder with these parts below a store; raises one of ``_UNREADABLE``
Documents: TypeAlias = "Callable[..., dict[str, Any]]"


def document_of(view: LiveView, *folder: str) -> dict[str, Any]:
    """As ``Documents``, of a live view."""
    document = view.document("/".join(folder))
    if document is None:
        raise NotServedError
    return document


class NotViewableError(Exception):
    """Raised for a store that is not there, not finished or not an image; the message says which."""


class UnreadableError(NotViewableError):
    """Raised for a store whose metadata cannot be read; the message says which and why."""


class _StoreReads:
    """The reads of one look at a store. ``refused``: the system or the disk refused one. That says nothing of
    the store, and the next one may succeed: nothing that this look has found may be kept."""

    def __init__(self, root: Path, store: str) -> None:
        self.store, self.path = store, root / store
        self.refused = False
        self._root = root
        self._is_store = False  # a document of it was read
        self._why_refused = ""

    def read(self, most_bytes: int, *parts: str) -> bytes:
        """Returns the first bytes of the store's regular file, following no link. Raises ``NotServedError``,
        also for a link, or ``StorageError``."""
        with self.noting(*parts):
            try:
                descriptor = open_in_store(str(self._root), None, (self.store, *parts))
            except LinkError:
                raise NotServedError from None
            with os.fdopen(descriptor, "rb") as file:
                return file.read(most_bytes)

    def document(self, *folder: str) -> dict[str, Any]:
        """Returns a zarr.json that we know. Raises ``ShardFormatError``, which is a ``ValueError``, and as
        ``read``."""
        path = "/".join((self.store, *folder, "zarr.json"))
        data = self.read(MAX_METADATA_BYTES + 1, *folder, "zarr.json")
        self._is_store = True
        return decode_document(data, path)

    @contextmanager
    def noting(self, *parts: str) -> Iterator[None]:
        """A context of a read. It raises ``StorageError`` for any other ``OSError``."""
        try:
            with storage_errors("read", "/".join((self.store, *parts))):
                yield
        except StorageError as error:
            if not says_absent(error):
                self.refused = True
                # a folder that this user may not look into need not be a store: the lost+found of a disk
                if self._is_store or not says_closed(error):
                    self._why_refused = self._why_refused or str(error)
            raise

    def check_not_refused(self) -> None:
        """Raises ``UnreadableError`` if a read of a store was refused."""
        if self._why_refused:
            raise UnreadableError(f"This store cannot be read: {self._why_refused}")


@dataclass(frozen=True)
class FinishedStore:
    """A store that no acquisition writes any more. ``changed_ns``: when an entry of its folder last appeared
    or went, which is when it was finished. ``image``: the one that is shown, in the folder ``image_path`` of
    the store, which is empty where the store is that image."""

    reads: _StoreReads
    changed_ns: int
    image: StoredImage
    image_path: str

    @property
    def path(self) -> Path:
        return self.reads.path

    @property
    def name(self) -> str:
        return acquisition_name(self.path.name)

    def facts(self) -> dict[str, Any]:
        """Returns the store's entry of the list. ``frames``: places for frames in all its images, None for
        a collection of very many; ``frames_missing``: those without a stored frame, None where this is
        unknown; axes, shape and dtype are those of the image that is shown."""
        images, frames = self._images_and_frames()
        stored = None if frames is None else _stored_frames(self.reads)
        return {
            "store": self.path.name,
            "name": self.name,
            "path": str(self.path),
            "images": images,
            "image": self.image.name,
            "frames": frames,
            "frames_missing": None if frames is None or stored is None else max(0, frames - stored),
            "axes": list(self.image.axes),
            "shape": list(self.image.shape),
            "dtype": self.image.dtype,
            "finished_s": self.changed_ns / 1e9,
        }

    def _images_and_frames(self) -> tuple[int, int | None]:
        """Returns the number of images, and of places for frames in all of them."""
        if not self.image_path:
            return 1, self.image.frames
        read = self.reads.document
        paths = list(_image_paths(read, read()))
        if len(paths) > MOST_COUNTED:
            return len(paths), None
        images = [found for path in paths if (found := _image_if_sound(read, path)) is not None]
        return len(images), sum(image.frames for image in images)


class FinishedStores:
    """The list of finished stores. ``listed`` runs in the event loop; everything else reads the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # by store and time of change; None: no image
        self._known: dict[tuple[str, int], dict[str, Any] | None] = {}
        self._list: list[dict[str, Any]] = []
        self.more = False  # True if there are older ones that the list leaves out, as of the last scan
        self._looked_s = -LOOK_EVERY_S
        self._looking = False
        self._thread = anyio.CapacityLimiter(1)

    async def listed(self) -> list[dict[str, Any]]:
        if not self._looking and time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            with anyio.move_on_after(WAIT_S):
                await anyio.to_thread.run_sync(self._look, limiter=self._thread, abandon_on_cancel=True)
        return self._list

    def find(self, store: str) -> FinishedStore:
        """Returns one finished store. ``store``: the name of a folder below the root, not a link. Raises
        ``NotViewableError``."""
        return self._find(_StoreReads(self._root, store))

    def _find(self, reads: _StoreReads) -> FinishedStore:
        try:
            image, image_path = find_image(reads.document)
            with reads.noting():
                is_finished = not beneath.exists(reads.path / WORKSPACE)
                changed_ns = beneath.stat(reads.path).st_mtime_ns
        except NotViewableError:
            reads.check_not_refused()
            raise
        except StorageError:
            reads.check_not_refused()
            raise NotViewableError(NO_IMAGE) from None
        if not is_finished:
            raise NotViewableError("This acquisition is not finished.")
        if not _is_utf8(reads.store):
            raise UnreadableError("Its name is not UTF-8, and no address leads to it: rename its folder.")
        return FinishedStore(reads, changed_ns, image, image_path)

    def _look(self) -> None:
        self._looking = True
        try:
            with beneath.entries_in(self._root) as entries:
                folders = [
                    (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name)
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False)
                ]
            newest = sorted((entry for entry in folders if not entry[1].startswith(".")), reverse=True)
            known: dict[tuple[str, int], dict[str, Any] | None] = {}
            listed: list[dict[str, Any]] = []
            more = False
            for changed_ns, store in newest:
                key = (store, changed_ns)
                if key in self._known:
                    facts = known[key] = self._known[key]
                else:
                    reads = _StoreReads(self._root, store)
                    facts = self._facts(reads, changed_ns)
                    if not reads.refused:
                        known[key] = facts
                more = facts is not None and len(listed) == MOST_LISTED
                if more:
                    break
                if facts is not None:
                    listed.append(facts)
            self._known, self._list, self.more = known, listed, more
        except OSError:
            pass  # the root is gone for a moment, or a store was: the next scan repeats it
        finally:
            self._looked_s = time.monotonic()
            self._looking = False

    def _facts(self, reads: _StoreReads, changed_ns: int) -> dict[str, Any] | None:
        """Returns the entry of one store. Whatever is wrong with it keeps no other from the list."""
        try:
            return self._find(reads).facts()
        except UnreadableError as error:
            why = str(error)
        except (NotViewableError, *_UNREADABLE):  # the latter: it went, or was changed, meanwhile
            return None
        except Exception as error:  # noqa: BLE001  (of metadata that nobody has thought of)
            why = f"{type(error).__name__}: {error}"
        return {
            "store": reads.store,
            "name": acquisition_name(reads.store),
            "path": str(reads.path),
            "unreadable": why[:MOST_REASON],
            "finished_s": changed_ns / 1e9,
        }


def _is_utf8(name: str) -> bool:
    """Returns whether a name of the disk can be in an address: a script that makes one of other bytes fails,
    and the whole list with it."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def find_image(read: Documents) -> tuple[StoredImage, str]:
    """Returns the first image of a store that can be shown, and its folder in the store. Raises
    ``NotViewableError``."""
    group: dict[str, Any] | None = None
    why: ShardFormatError | None = None
    try:
        group = read()
        for image_path in islice(_image_paths(read, group), MOST_SOUGHT):
            try:
                if (image := _image(read, image_path)) is not None:
                    return image, image_path
            except ShardFormatError as error:
                why = why or error
    except NotServedError:
        if group is None:
            raise NotViewableError("There is no such store.") from None
    except ShardFormatError as error:
        why = why or error
    except _UNREADABLE:
        pass
    if why is not None:
        raise UnreadableError(f"This store cannot be read: {why}")
    raise NotViewableError(NO_IMAGE)


def find_images(read: Documents, names: Collection[str]) -> list[tuple[StoredImage, str]]:
    """Returns the images of a store that can be shown, and their folders in it: those of these names or
    folders, all if there are none. At most ``MOST_SHOWN``. Raises ``NotViewableError``, also for a name that
    is not there."""
    find_image(read)  # there is one
    wanted, missing = set(names), set(names)
    found: list[tuple[StoredImage, str]] = []
    known: list[str] = []
    with suppress(*_UNREADABLE):  # what the metadata name before is shown
        for image_path in _image_paths(read, read()):
            image = _image_if_sound(read, image_path)
            if image is None:
                continue
            its_names = {image.name, image_path}
            known.append(image.name or image_path)
            if not wanted or its_names & wanted:
                found.append((image, image_path))
                missing -= its_names
            if len(found) == MOST_SHOWN:
                break
    # a folder may have the name of another image, which counts first
    named_so = {image.name for image, _ in found} & wanted
    found = [(image, at) for image, at in found if not wanted or image.name in wanted or at not in named_so]
    if len(found) == MOST_SHOWN:
        return found
    if missing:
        named = ", ".join(known[:MOST_NAMED]) + ", ..." * (len(known) > MOST_NAMED)
        raise NotViewableError(f"This store has no image {', '.join(sorted(missing))}. It has {named}")
    return found


def _image_paths(read: Documents, group: dict[str, Any]) -> Iterator[str]:
    """Yields the folders of a store's images, as its metadata name them, at most ``MAX_IMAGES``; an empty
    name if the store is one image. A well is read when its first image is asked for, and left out if that
    fails. Raises one of ``_UNREADABLE``."""
    ome = group["attributes"]["ome"]

    def ome_of(path: str) -> Any:
        return read(*path.split("/"))["attributes"]["ome"]

    names = image_names(ome, ome_of, most=MAX_IMAGES, left_out=_UNREADABLE)
    yield from islice(map("/".join, names), MAX_IMAGES)


def _image(read: Documents, image_path: str) -> StoredImage | None:
    """Returns the image in a folder of a store; None if there is none that can be shown. Raises
    ``ShardFormatError`` for metadata that cannot be read."""
    folder = image_path.split("/") if image_path else []
    try:
        group = read(*folder)
        dataset = str(group["attributes"]["ome"]["multiscales"][0]["datasets"][0]["path"])
        return StoredImage.of(group, read(*folder, *dataset.split("/")))
    except ShardFormatError:
        raise
    except (*_UNREADABLE, StopIteration):
        return None


def _image_if_sound(read: Documents, image_path: str) -> StoredImage | None:
    try:
        return _image(read, image_path)
    except ShardFormatError:
        return None


def _stored_frames(reads: _StoreReads) -> int | None:
    """Counts the rows of stored frames in the frame table; None where there is no table, or one of another
    layout."""
    try:
        table = ("frames",)  # as array.frame_table_format describes it
        facts = reads.document(*table)["attributes"]["shardwright"]
        column = (*table, status_column(facts))
        described = reads.document(*column)
        (rows,), (rows_per_chunk,) = (
            described["shape"],
            described["chunk_grid"]["configuration"]["chunk_shape"],
        )
        codecs = ChunkCodecs.of(array_chain(described))
        if codecs != STATUS_CODECS or not 0 < rows_per_chunk <= MAX_ROWS_PER_CHUNK:
            return None
        stored = 0
        for chunk in range(-(-rows // rows_per_chunk)):
            packed = reads.read(2 * MAX_ROWS_PER_CHUNK, *column, "c", str(chunk))
            statuses = decode_chunk(packed, STATUS_CODECS, rows_per_chunk)[: rows - chunk * rows_per_chunk]
            stored += int((statuses == FrameStatus.STORED).sum())
    except _UNREADABLE:
        return None
    return stored
