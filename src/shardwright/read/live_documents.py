"""zarr.json of the groups and arrays of a store as they are now: those on disk, and for an unfinished
acquisition what its writer will write once the frames that are stored are sealed."""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardwright.array.document import MAX_METADATA_BYTES, as_read, decode_document
from shardwright.array.fields import sizes
from shardwright.array.metadata import array_documents, collection_documents, collection_xml, image_group
from shardwright.array.metadata_update import MetadataUpdate
from shardwright.array.ome_version import ome_in
from shardwright.disk import beneath
from shardwright.disk.failpoints import look
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, WORKSPACE, key_in
from shardwright.shard.metadata_updates import read_updates, updates_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from shardwright.array.stage_position import StagePosition

    from .box_reader import FileFinder
    from .live_acquisition import LiveAcquisition


class LiveDocuments:
    """Used under the lock of its view. ``folder``: the open folder of the store at ``path``; ``find_file``
    opens the file of a key, if there is one."""

    def __init__(self, path: Path, folder: int, find_file: FileFinder) -> None:
        self._path = path
        self._folder = folder
        self._find_file = find_file
        # The images of which the documents above them were made last, the positions that were told of them,
        # and these: a plate has thousands of wells, and readers ask for one document after the other.
        self._collection: tuple[Any, dict[str, dict[str, Any]]] = (None, {})
        # By image, of the file with what was told of it: its stamp, and the position.
        self._told: dict[int, tuple[Any, StagePosition | None]] = {}

    def find(self, acquiring: LiveAcquisition | None, path: str) -> dict[str, Any] | None:
        """Returns zarr.json of the folder ``path`` of the store; None if there is none. Raises
        ``ShardFormatError``, ``StorageError``."""
        document = self._on_disk(path)
        return document if acquiring is None else self._of_now(acquiring, path, document)

    def _on_disk(self, path: str) -> dict[str, Any] | None:
        key = key_in(path, DOCUMENT)
        look("look.document")
        file = self._find_file(self._path / key, key)
        if file is None or not stat.S_ISREG(file.status.st_mode):
            return None
        text = file.read(0, min(file.status.st_size, MAX_METADATA_BYTES + 1))
        return decode_document(bytes(text), self._path / key, foreign=True)

    def _of_now(
        self, acquiring: LiveAcquisition, path: str, document: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        spec = acquiring.spec
        if path in acquiring.arrays:
            image, level = acquiring.arrays[path]
            if not acquiring.has_frames(image) and document is None:
                return None
            array = spec.arrays[image]
            made = array_documents(array, acquiring.extents_of(image))[level]
            if document is None:
                return as_read(made)
            shape = made["shape"]
            # of the disk: a level is replaced at its end
            known = sizes("shape", document.get("shape"), least=0, rank=len(shape))
            return {**document, "shape": [max(pair) for pair in zip(shape, known, strict=True)]}
        if spec.is_single:
            return document
        if (number := acquiring.image_at(path)) is not None:  # first: what is above asks for all images
            # nothing yet, or what was said of it without a frame
            return document if ome_in(document) else self._image_group(acquiring, number) or document
        if (made_above := self._collected(acquiring).get(key_in(path, DOCUMENT))) is not None:
            above = as_read(made_above)
            attributes = (document or {}).get("attributes")
            theirs = attributes if isinstance(attributes, dict) else {}
            return {**above, "attributes": {**theirs, **above.get("attributes", {})}}
        return document

    def _image_group(self, acquiring: LiveAcquisition, image: int) -> dict[str, Any] | None:
        """Returns the group of an image of which nothing is sealed yet."""
        if not acquiring.has_frames(image):
            return None
        spec, updates = acquiring.spec, MetadataUpdate()
        with suppress(ShardFormatError, StorageError):
            if beneath.exists(updates_path(self._path / WORKSPACE, image)):
                updates = read_updates(self._path / WORKSPACE, image)
        position = updates.position or spec.position_of(image)
        return image_group(spec, image, spec.names[image], updates, position)

    def keys_above(self, acquiring: LiveAcquisition) -> set[str]:
        """Returns the keys of the documents that name the images of a collection."""
        return {*self._collected(acquiring), *collection_xml(acquiring.spec, {})}

    def _collected(self, acquiring: LiveAcquisition) -> dict[str, dict[str, Any]]:
        """Returns the groups that name the images of a collection, by the paths of their zarr.json."""
        spec = acquiring.spec
        on_disk = [self._status(key_in(path, DOCUMENT)) is not None for path in spec.paths]
        images = tuple(i for i in range(len(spec.paths)) if acquiring.has_frames(i) or on_disk[i])
        positions = self._positions(images) if spec.scene_axes is not None else {}
        if self._collection[0] != (images, positions):
            extents = {i: acquiring.extents_of(i) for i in images}
            start_s = acquiring.store.manifest.created_ns // 10**9
            name = self._path.name.split(".")[0]
            # attributes of users: those on disk, which are newer than what was declared
            made = collection_documents(spec, extents, {}, name=name, start_s=start_s, positions=positions)
            self._collection = (images, positions), made
        return self._collection[1]

    def _positions(self, images: Iterable[int]) -> dict[int, StagePosition]:
        """Returns the positions of images that were told since these were declared."""
        found: dict[int, StagePosition] = {}
        for image in images:
            path = updates_path(self._path / WORKSPACE, image)
            status = self._status(f"{WORKSPACE}/{path.name}")
            if status is None:
                continue
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
            if self._told.get(image, (None, None))[0] != stamp:
                try:
                    self._told[image] = stamp, read_updates(self._path / WORKSPACE, image).position
                except (ShardFormatError, StorageError):
                    continue
            if (told := self._told[image][1]) is not None:
                found[image] = told
        return found

    def _status(self, key: str) -> os.stat_result | None:
        look("look.document.name")
        with suppress(OSError):
            return beneath.stat(key, folder=self._folder)
        return None
