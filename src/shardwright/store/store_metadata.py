"""The zarr.json of every group and array of an acquisition, while it is written and at its end: shapes,
contrast windows, attributes. Owned by the sealer's thread."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardwright.array.consolidated_metadata import consolidated, consolidated_metadata
from shardwright.array.contrast_window import with_windows
from shardwright.array.document import as_read, encode_document
from shardwright.array.metadata import array_documents, collection_documents, collection_xml, group_document
from shardwright.array.spec import group_attributes
from shardwright.disk import beneath
from shardwright.disk.files import replace_file
from shardwright.model.errors import MetadataError, ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, WORKSPACE
from shardwright.read.store import read_metadata, read_nodes
from shardwright.shard.metadata_updates import read_updates, write_updates

from .contrast_samples import ContrastSamples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.disk.files import DurableFolders

    from .contrast_samples import Windows
    from .ownership import Ownership

_COLLECT_S = 1.0


class StoreMetadata:
    """The metadata of a store that is written. ``folders``: those of the store. ``start_s``: when the
    acquisition began. ``extents``: by image, what zarr.json of its array covers already, of a store that is
    taken up. ``updated``: the groups whose attributes were updated: images, None for the store's."""

    def __init__(
        self,
        owner: Ownership,
        folders: DurableFolders,
        spec: AcquisitionSpec,
        start_s: int,
        *,
        extents: Mapping[int, tuple[int, ...]] | None = None,
        updated: Iterable[int | None] = (),
    ) -> None:
        self.samples = ContrastSamples(spec)
        self._owner, self._folders = owner, folders
        self._path, self._workspace = owner.path, owner.path / WORKSPACE
        self._spec = spec
        self._start_s = start_s
        # by image: what zarr.json of its array covers of the growing axes, without those that have none yet
        self._extents = {0: nothing_of(spec.arrays[0])} if spec.is_single else {}
        self._extents.update(extents or {})
        self._is_resumed = extents is not None  # there are no samples of what was stored before
        self._shown: set[int] = set()  # images whose contrast windows were written
        self._updated = set(updated)
        self._collected: dict[str, bytes] = {}  # the metadata of the collection, as written
        self._collected_s = -math.inf  # when they were

    def make_image(self, image: int) -> None:
        """Writes the metadata of an image that has none yet, and those of the collection to which it belongs;
        the latter once a second at most, since they name every image. Raises ``StorageError`` or what
        ``may_rename`` raises."""
        if image in self._extents:
            return
        windows = self.samples.windows(image)
        group = with_windows(self._group_document(image, self._attributes(image)), windows)
        self._replace(self._group_folder(image) / DOCUMENT, encode_document(group))
        if windows:
            self._shown.add(image)
        nothing = nothing_of(self._spec.arrays[image])
        self._write_array(image, nothing)  # last: an image that has it has all
        # Only now: where the disk was full the next call makes the array, below whose folder its shards, and
        # the record of their sums, are to be.
        self._extents[image] = nothing
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
        if (updated := with_windows(group, windows)) != group:
            self._replace(folder / DOCUMENT, encode_document(updated, foreign=True))
        self._shown.add(image)

    def _write_collection(self, end_s: int | None = None) -> None:
        """Writes the metadata that name the images of a collection, those of which there is an array."""
        extents = dict(sorted(self._extents.items()))
        groups = collection_documents(
            self._spec,
            extents,
            self._attributes(None),
            name=name_of(self._path),
            start_s=self._start_s,
            end_s=end_s,
        )
        root = as_read(groups.pop(DOCUMENT))
        documents = {path: encode_document(group) for path, group in groups.items()}
        documents |= collection_xml(self._spec, extents)
        for path, document in documents.items():
            if self._collected.get(path) != document:
                self._replace(self._path / path, document)
        self._update_group(self._path, root["attributes"], root)
        self._collected, self._collected_s = documents, time.monotonic()

    def update_metadata(self, image: int | None, attributes: dict[str, Any]) -> None:
        """Adds to the attributes of an image's group, or of the store's (None), durable when it returns. They
        are in its zarr.json at once, if it is there, and at the latest at the end. Raises ``MetadataError``
        when all of them are too long, ``StorageError`` or what ``may_rename`` raises."""
        before = read_updates(self._workspace, image) if image in self._updated else {}
        updates = {**before, **attributes}
        try:
            group_attributes({**self._spec.attributes_of(image), **updates})
        except ValueError as error:
            raise MetadataError("metadata that are too long with those before", got=str(error)) from None
        writer = self._owner.writer_epoch
        write_updates(self._workspace, image, updates, self._owner.may_rename, writer=writer)
        self._updated.add(image)
        with suppress(StorageError):  # they are safe, and the end writes them again
            self._write_updated(image)

    def _write_updated(self, image: int | None) -> None:
        """Writes zarr.json of a group whose metadata were updated, if the group is there."""
        if image is None and not self._spec.is_single:
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
        self._replace(folder / DOCUMENT, encode_document(document, foreign=True))

    def _attributes(self, image: int | None) -> dict[str, Any]:
        """The attributes of a group beside ours, with all updates. Raises ``StorageError``."""
        updates = read_updates(self._workspace, image) if image in self._updated else {}
        return {**self._spec.attributes_of(image), **updates}

    def _group_document(self, image: int | None, attributes: dict[str, Any]) -> dict[str, Any]:
        number = image or 0
        name = self._spec.names[number] or name_of(self._path)
        return group_document(self._spec.arrays[number], name, attributes)

    def _group_folder(self, image: int | None) -> Path:
        return self._array_folder(image or 0).parent

    def is_made(self, image: int) -> bool:
        return image in self._extents

    def grow(self, image: int, extents: tuple[int, ...]) -> None:
        """Lets zarr.json of an image cover ``extents`` elements of its growing axes; never shrinks it. The
        image was made. Raises ``StorageError``."""
        covered = self._extents[image]
        grown = tuple(map(max, covered, extents))
        if grown != covered:
            self._write_array(image, grown)
            self._extents[image] = grown

    def finish(self, extents: Sequence[tuple[int, ...]], images: list[int]) -> None:
        """Writes the final shapes, contrast windows and attributes. ``extents`` by image; ``images``: those
        to which frames came. Raises ``StorageError`` or what ``may_rename`` raises."""
        for image in [*images, *self._begun()]:
            self.make_image(image)
            self.grow(image, extents[image])
        sealed = self.samples.sealed_windows(self._path, images) if self._is_resumed else {}
        for image in images:
            self._write_windows(image, self.samples.windows(image) | sealed.get(image, {}))
        if not self._spec.is_single:
            # one that was taken up later, perhaps days after its last frame, has no known end
            first = self._owner.writer_epoch == 1
            self._write_collection(int(time.time()) if first else None)
        for updated in self._updated:
            if updated is not None or self._spec.is_single:  # else the collection has them
                self._write_updated(updated)

    def _begun(self) -> list[int]:
        """The images that a writer had begun to make when it died, with frames that no disk has: they are
        made, as those are that it had made by then."""
        if not self._is_resumed or self._spec.is_single:
            return []
        missing = [image for image in range(len(self._spec.arrays)) if image not in self._extents]
        return [image for image in missing if beneath.is_dir(self._group_folder(image))]

    @property
    def unwritten(self) -> tuple[int, ...]:
        """The images whose attributes were updated, and that have no zarr.json since no frame came."""
        return tuple(sorted(i for i in self._updated if i is not None and i not in self._extents))

    def consolidate_again(self) -> None:
        """Renews consolidated metadata that a user made while the store grew: shape and frame table have
        changed. Raises ``StorageError``, ``FencedError``."""
        try:
            group = read_metadata(self._path, foreign=True)
            document = (
                None
                if consolidated_metadata(group) is None
                else encode_document(consolidated(group, read_nodes(self._path)), foreign=True)
            )
        except (ShardFormatError, StorageError):
            return  # damage from outside does not hinder the end; `verify` reports it
        if document is not None:
            replace_file(
                self._path / DOCUMENT, document, self._owner.may_rename, writer=self._owner.writer_epoch
            )

    def _array_folder(self, image: int) -> Path:
        return self._path / self._spec.paths[image]

    def _write_array(self, image: int, extents: tuple[int, ...]) -> None:
        """Writes zarr.json of the image's array and of its levels, that of the array last: it says what there
        is."""
        array = self._spec.arrays[image]
        documents = array_documents(array, extents)
        for path, document in reversed(list(zip(self._spec.level_paths(image), documents, strict=True))):
            self._replace(self._path / path / DOCUMENT, encode_document(document))

    def _replace(self, path: Path, document: bytes) -> None:
        self._owner.may_rename()  # else it would make folders under the name of a store that is gone
        self._folders.make(path.parent)
        replace_file(path, document, self._owner.may_rename, writer=self._owner.writer_epoch)


def nothing_of(array: ArraySpec) -> tuple[int, ...]:
    """Returns the extents of an image along its growing axes before any frame."""
    return (0,) * len(array.growing_axes)


def name_of(store: Path) -> str:
    """Returns the name of the image in a store of one."""
    return store.name.split(".")[0]
