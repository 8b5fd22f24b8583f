"""The zarr.json of every group and array of an acquisition, while it is written and at its end: shapes,
contrast windows, attributes. Owned by the sealer's thread."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardwright.array.atlas_block import FIELD as BLOCK
from shardwright.array.atlas_block import atlas_block
from shardwright.array.consolidated_metadata import consolidated_metadata, encode_consolidated
from shardwright.array.contrast_window import look_alike, with_windows
from shardwright.array.document import (
    MAX_METADATA_BYTES,
    as_read,
    decode_document,
    encode_document,
    group_node,
)
from shardwright.array.metadata import array_documents, collection_documents, collection_xml, image_group
from shardwright.array.metadata_update import OME, MetadataUpdate, with_additions
from shardwright.array.ome import at_position, ome_attributes, with_channels
from shardwright.array.ome_version import ome_in
from shardwright.array.spec import OWN_ATTRIBUTE, json_attributes
from shardwright.array.stage_position import has_places
from shardwright.disk import beneath
from shardwright.disk.files import read_regular, replace_file, storage_errors
from shardwright.disk.replace_files import replace_files
from shardwright.model.errors import LinkError, MetadataError, ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, WORKSPACE, folders_to
from shardwright.read.store import read_metadata, read_nodes
from shardwright.shard.metadata_updates import read_updates, write_updates

from .contrast_samples import ContrastSamples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.atlas_block import TimePoints
    from shardwright.array.spec import ArraySpec
    from shardwright.array.stage_position import StagePosition
    from shardwright.disk.files import DurableFolders
    from shardwright.model.write_options import Profile

    from .atlas_facts import Statistics
    from .contrast_samples import Windows
    from .ownership import Ownership

_COLLECT_S = 1.0
_MOST_SHOWN = 8192  # contrast windows that are remembered: 200 to 450 bytes each
_MOST_OPEN = 64  # documents that are replaced together: new ones, each open until all are synced


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
        is_recovered: bool = False,
        profile: Profile = "none",
    ) -> None:
        self.samples = ContrastSamples(spec)
        self._owner, self._folders = owner, folders
        self._path, self._workspace = owner.path, owner.path / WORKSPACE
        self._spec, self._profile = spec, profile
        self._start_s = start_s
        # by image: what zarr.json of its array covers of the growing axes, without those that have none yet
        self._extents = {0: nothing_of(spec.arrays[0])} if spec.is_single else {}
        self._extents.update(extents or {})
        self._is_recovered = is_recovered  # from a writer that did not end it
        self._is_resumed = extents is not None  # there are no samples of what was stored before
        self._shown: dict[int, Windows] = {}  # by image: contrast windows that were written
        self._shown_count = 0  # windows in it
        self._updated = set(updated)
        self._told: dict[int, StagePosition] | None = None if self._updated else {}  # see ``_positions``
        self._first: Mapping[int, StagePosition] = {}  # of first frames, once the end has looked
        self._in_scene = spec.scene_axes is not None
        self._collected: dict[str, bytes] = {}  # the metadata of the collection, as written
        self._collected_s = -math.inf  # when they were
        self._is_collection_stale = False  # an image was made, or its position told, since

    def take_images(self, spec: AcquisitionSpec) -> None:
        """Takes the specification with images that were added."""
        self._spec = spec
        self.samples.take_images(spec)

    def make_images(self, images: Iterable[int]) -> None:
        """Writes the metadata of images that have none yet, and those of the collection to which they belong.
        Raises ``StorageError`` or what ``may_rename`` raises."""
        missing = [image for image in images if image not in self._extents]
        for some in self._in_pieces(missing):
            windows = {image: self.samples.windows(image) for image in some}
            groups = {
                image: with_windows(self._group_document(image, self._updates(image)), windows[image])
                for image in some
            }
            documents = {
                self._group_folder(image) / DOCUMENT: encode_document(group)
                for image, group in groups.items()
            }
            nothing = {image: nothing_of(self._spec.arrays[image]) for image in some}
            # The arrays come last: an image that has one has all.
            self._replace_all([documents, *self._documents_of_arrays(nothing)])
            self._remember({image: found for image, found in windows.items() if found})
            # Only now: where the disk was full the next call makes the arrays, below whose folders their
            # shards, and the records of their sums, are to be.
            self._extents.update(nothing)
            self._is_collection_stale = True
        self._collect()

    def _collect(self) -> None:
        """Writes the metadata of the collection if they lack something, once a second at most. Called again
        with each step after that: an image is listed soon after it was made, however many came at once."""
        if self._is_collection_stale and time.monotonic() - self._collected_s > _COLLECT_S:
            self._write_collection()

    def show(self, images: Iterable[int]) -> None:
        """Writes the contrast windows of images that were made without any, as soon as there are samples: for
        those who open them while they are written. Raises ``StorageError`` or what ``may_rename`` raises."""
        if not self._is_resumed:
            self._write_windows(
                {image: (self.samples.windows(image), None) for image in images if image not in self._shown}
            )

    def _write_windows(self, images: Mapping[int, tuple[Windows, int | None]]) -> None:
        """``images``: their windows and, once it is known, the number of the channels of an axis without a
        count: these are described, too, each with the window of the samples that they share."""
        known = [
            image
            for image, (windows, channels) in images.items()
            if not self._has_windows(image, windows) or channels is not None or image in self._first
        ]
        for some in self._in_pieces(known):
            documents = {
                image: self._document_with(image, *images[image], self._first.get(image)) for image in some
            }
            self._replace_all(
                [{self._group_folder(i) / DOCUMENT: new for i, new in documents.items() if new is not None}]
            )
            # one that could not be read is looked at again at the end
            self._remember({i: {} if new is None else images[i][0] for i, new in documents.items()})

    def _remember(self, shown: Mapping[int, Windows]) -> None:
        """Notes that windows were written, without the values of very many: the end reads those."""
        for image, windows in shown.items():
            self._shown_count -= len(self._shown.get(image, {}))  # those that these replace
            has_room = self._shown_count + len(windows) <= _MOST_SHOWN
            self._shown[image] = windows if has_room else {}
            self._shown_count += len(self._shown[image])

    def _has_windows(self, image: int, windows: Windows) -> bool:
        """Returns whether zarr.json of an image says as much already, as far as is known without a look: a
        plate has thousands. So a window that another program has put there since stays until ours moves. A
        user may have taken back windows of an image that was updated."""
        if not windows:
            return True
        group = None if self._spec.is_single else image
        return group not in self._updated and look_alike(self._shown.get(image, {}), windows)

    def _document_with(
        self, image: int, windows: Windows, channels: int | None, position: StagePosition | None
    ) -> bytes | None:
        """Returns the new zarr.json of an image's group, None if it stays as it is."""
        try:
            group = read_metadata(self._group_folder(image), foreign=True)
            updated = group
            if channels is not None:
                updated = with_channels(group, self._spec.arrays[image], channels)
                if updated is not group:
                    windows = {number: window for window in windows.values() for number in range(channels)}
            updated = with_windows(updated, windows)
            if position is not None:
                array, in_scene = self._spec.arrays[image], self._in_scene
                updated = at_position(updated, array, position, in_scene=in_scene)
            return None if updated == group else encode_document(updated, foreign=True)
        except (ShardFormatError, StorageError):
            return None  # damage from outside does not hinder the end; `verify` reports it

    def _write_collection(self, end_s: int | None = None) -> None:
        """Writes the metadata that name the images of a collection, those of which there is an array."""
        extents = dict(sorted(self._extents.items()))
        # a plate has thousands of images, whose positions are their own
        placed = extents if self._spec.plate is None else ()
        places = {image: self._position(image, self._first.get(image)) for image in placed}
        positions = {image: place for image, place in places.items() if place is not None}
        groups = collection_documents(
            self._spec,
            extents,
            self._attributes(None),
            name=name_of(self._path),
            start_s=self._start_s,
            end_s=end_s,
            positions=positions,
        )
        root = as_read(groups.pop(DOCUMENT))
        documents = {path: encode_document(group) for path, group in groups.items()}
        documents |= collection_xml(self._spec, extents, positions.get)
        new = [path for path, document in documents.items() if self._collected.get(path) != document]
        for first in range(0, len(new), _MOST_OPEN):
            some = new[first : first + _MOST_OPEN]
            self._replace_all([{self._path / path: documents[path] for path in some}])
        self._update_group(self._path, root["attributes"], root, self._updates(None))
        self._collected, self._collected_s = documents, time.monotonic()
        self._is_collection_stale = False

    def update_metadata(self, image: int | None, attributes: dict[str, Any]) -> None:
        """Changes the attributes of an image's group, or of the store's (None), by an update as JSON, durable
        when it returns. They are in its zarr.json at once, if it is there, and at the latest at the end.
        Raises ``MetadataError`` when all of them are too long, or the block of the profile is no object,
        ``StorageError`` or what ``may_rename`` raises."""
        new = MetadataUpdate.of_json(attributes)
        if self._profile != "none" and not isinstance(new.attributes.get(BLOCK, {}), dict):
            raise MetadataError(
                f"metadata: {BLOCK!r} is the block of the profile, which others may add to",
                expected="a JSON object",
                got=type(new.attributes[BLOCK]).__name__,
            )
        if new.position is not None:
            new = replace(new, position=new.position.over(self._position(image or 0)))
        updates = new.after(self._updates(image))
        try:
            json_attributes({**updates.over(self._spec.attributes_of(image)), OME: updates.ome})
        except ValueError as error:
            raise MetadataError("metadata that are too long with those before", got=str(error)) from None
        writer, may_rename = self._owner.writer_epoch, self._owner.may_rename
        write_updates(self._workspace, image, updates, may_rename, writer=writer)
        self._updated.add(image)
        if new.position is not None:
            self._positions()[image or 0] = new.position
            # where the images are listed with it
            self._is_collection_stale |= image in self._extents and not self._spec.is_single
        with suppress(StorageError):  # they are safe, and the end writes them again
            self._write_updated(image)
            self._collect()

    def _write_updated(self, image: int | None) -> None:
        """Writes zarr.json of a group whose metadata were updated, if the group is there."""
        if image is None and not self._spec.is_single:
            self._write_collection()
        elif image is None or image in self._extents:
            folder, updates = self._group_folder(image), self._updates(image)
            document = self._group_document(image, updates)
            attributes = updates.over(self._spec.attributes_of(image))
            self._update_group(folder, attributes, document, updates, image or 0)

    def _update_group(
        self,
        folder: Path,
        attributes: dict[str, Any],
        document: dict[str, Any],
        updates: MetadataUpdate,
        image: int | None = None,
    ) -> None:
        """Writes attributes to zarr.json of a group, without those that ``updates`` remove, and of an
        ``image`` its additions, and the position if that was told; what others have written there stays.
        ``document`` is written where there is none, and in place of what is no group. Raises
        ``StorageError``, also where the file cannot be read: it may be sound."""
        path, there = folder / DOCUMENT, None
        try:
            with storage_errors("read", path), suppress(FileNotFoundError):
                text = read_regular(path, MAX_METADATA_BYTES)
                there = _group_in(text, path)
            if there is not None:
                kept = replace(updates, attributes=attributes).over(there.get("attributes", {}))
                document = {**there, "attributes": kept}
                if image is not None:
                    document = self._with_updates(document, image, updates)
            replacing = None if document == there else encode_document(document, foreign=True)
        except ShardFormatError:
            return  # longer than we read, with all that others have there; `verify` reports it
        if replacing is not None:
            self._replace(path, replacing)

    def _attributes(self, image: int | None) -> dict[str, Any]:
        """The attributes of a group beside ours, with all updates. Raises ``StorageError``."""
        return self._updates(image).over(self._spec.attributes_of(image))

    def _updates(self, image: int | None) -> MetadataUpdate:
        return read_updates(self._workspace, image) if image in self._updated else MetadataUpdate()

    def _with_updates(self, group: dict[str, Any], image: int, updates: MetadataUpdate) -> dict[str, Any]:
        """Returns zarr.json of an image's group with its additions, and where it is if that was told."""
        if not updates.is_plain:
            name = self._spec.names[image] or name_of(self._path)
            ours = ome_attributes(self._spec.arrays[image], name, version=self._spec.ome_version)
            group = with_additions(group, updates, ours)
        if (position := self._positions().get(image)) is None:
            return group
        array, in_scene = self._spec.arrays[image], self._in_scene
        return at_position(group, array, position, again=True, in_scene=in_scene)

    def _positions(self) -> dict[int, StagePosition]:
        """The positions that were told since the images were declared. Raises ``StorageError``."""
        if self._told is None:  # to writers before this one
            told = {image or 0: self._updates(image).position for image in self._updated}
            self._told = {image: position for image, position in told.items() if position is not None}
        return self._told

    def unplaced(self, images: Iterable[int]) -> set[int]:
        """Returns those of the images that may have a position, and of which none is known."""
        return {
            image
            for image in images
            if not ((known := self._position(image)) and known.is_placed)
            and has_places(self._spec.arrays[image].dimensions)
        }

    def _position(self, image: int, found: StagePosition | None = None) -> StagePosition | None:
        """Returns where an image is: as it was told, or declared, and else as it was ``found``. Raises
        ``StorageError``."""
        known = self._positions().get(image, self._spec.position_of(image))
        return found if known is None else known.over(found)

    def _group_document(self, image: int | None, updates: MetadataUpdate) -> dict[str, Any]:
        name = self._spec.names[image or 0] or name_of(self._path)
        position = self._position(image or 0)
        return image_group(self._spec, image, name, updates, position)

    def _group_folder(self, image: int | None) -> Path:
        return self._path / self._spec.folders[image or 0]

    def is_made(self, image: int) -> bool:
        return image in self._extents

    def extents_of(self, image: int) -> tuple[int, ...]:
        """Returns how much of its growing axes zarr.json of an image that is made covers."""
        return self._extents[image]

    @property
    def covered(self) -> dict[int, tuple[int, ...]]:
        """By image, as ``extents_of``, of all that are made."""
        return dict(self._extents)

    def grow(self, extents: Mapping[int, tuple[int, ...]]) -> None:
        """Lets zarr.json of images cover ``extents`` elements of their growing axes; never shrinks one. They
        were made. Raises ``StorageError``."""
        grown = {image: tuple(map(max, self._extents[image], along)) for image, along in extents.items()}
        for some in self._in_pieces(
            [image for image, along in grown.items() if along != self._extents[image]]
        ):
            growing = {image: grown[image] for image in some}
            self._replace_all(self._documents_of_arrays(growing))
            self._extents.update(growing)

    def finish(
        self,
        extents: Sequence[tuple[int, ...]],
        images: list[int],
        positions: Mapping[int, StagePosition],
    ) -> None:
        """Writes the final shapes, contrast windows and attributes. ``extents`` by image; ``images``: those
        to which frames came; ``positions``: of the first frame of those that are ``unplaced``.
        Raises ``StorageError`` or what ``may_rename`` raises."""
        self._first = positions
        made = [*images, *self._begun()]
        self.make_images(made)
        self.grow({image: extents[image] for image in made})
        sealed = self.samples.sealed_windows(self._path, images) if self._is_resumed else {}
        arrays = self._spec.arrays
        self._write_windows(
            {
                image: (
                    self.samples.windows(image) | sealed.get(image, {}),
                    extents[image][0] if arrays[image].channels_grow else None,
                )
                for image in images
            }
        )
        if not self._spec.is_single:
            # one that was recovered, perhaps days after its last frame, has no known end
            self._write_collection(None if self._is_recovered else int(time.time()))
        for updated in self._updated:
            if updated is not None or self._spec.is_single:  # else the collection has them
                self._write_updated(updated)
        self._keep_unmade()

    def _keep_unmade(self) -> None:
        """Writes what users say of images to which no frame came: to a group without ``ome`` in their
        folders, which no reader takes for an image. What others have put there stays."""
        documents: dict[Path, bytes] = {}
        for image in range(len(self._spec.arrays)):
            is_told = image in self._updated or self._spec.attributes_of(image)
            if image in self._extents or not is_told:
                continue
            folder, above = self._group_folder(image), folders_to(self._spec.folders[image])[:-1]
            there = _kept_group(folder)
            if there is None or there == (told := self._told_in(there, image)):
                continue
            missing = [file for each in above if not beneath.exists(file := self._path / each / DOCUMENT)]
            documents |= dict.fromkeys(missing, encode_document(group_node({})))
            documents[folder / DOCUMENT] = encode_document(told, foreign=True)
        files = list(documents.items())
        for first in range(0, len(files), _MOST_OPEN):
            self._replace_all([dict(files[first : first + _MOST_OPEN])])

    def _told_in(self, group: dict[str, Any], image: int) -> dict[str, Any]:
        """Returns the group of an image to which no frame came, with what users say of it by now."""
        updates = self._updates(image)
        own = replace(updates, remove=frozenset()).to_json()
        ours = {**own.get(OWN_ATTRIBUTE, {}), **({OME: own[OME]} if OME in own else {})}
        attributes = {**group.get("attributes", {}), **self._spec.attributes_of(image)}
        attributes.pop(OWN_ATTRIBUTE, None)
        told = {**updates.over(attributes), **({OWN_ATTRIBUTE: ours} if ours else {})}
        return {**group, "attributes": told} if told else group

    def write_blocks(
        self, times: Iterable[Mapping[int, TimePoints]], statistics: Mapping[int, Statistics]
    ) -> None:
        """Writes the block of the profile ``dynamic-cell-atlas`` to zarr.json of images, once all else of
        them is written. ``times``: of some images each, as ``times_of`` yields them. Raises ``StorageError``
        or what ``may_rename`` raises."""
        for began in times:
            for some in self._in_pieces(list(began)):
                documents = {
                    self._group_folder(image) / DOCUMENT: new
                    for image in some
                    if (new := self._document_with_block(image, began[image], statistics.get(image, {})))
                }
                self._replace_all([documents])

    def _document_with_block(self, image: int, times: TimePoints, statistics: Statistics) -> bytes | None:
        """Returns the new zarr.json of an image's group, None if it cannot be read."""
        # What users say there, and not what an end that was cut short has written: that may be out of date.
        # What is said of all images is said of each, which may say otherwise.
        said = [self._attributes(None), *([] if self._spec.is_single else [self._attributes(image)])]
        blocks = [each[BLOCK] for each in said if isinstance(each.get(BLOCK), dict)]
        declared = {name: value for block in blocks for name, value in block.items()}
        try:
            group = read_metadata(self._group_folder(image), foreign=True)
            there = group.get("attributes") or {}
            if not isinstance(there, dict):
                return None
            block = atlas_block(self._spec.arrays[image], group, declared, times, statistics)
            return encode_document({**group, "attributes": {**there, BLOCK: block}}, foreign=True)
        except (ShardFormatError, StorageError):
            return None  # damage from outside does not hinder the end; `verify` reports it

    def _begun(self) -> list[int]:
        """The images that a writer had begun to make when it died, with frames that no disk has: they are
        made, as those are that it had made by then."""
        if not self._is_resumed or self._spec.is_single:
            return []
        missing = [image for image in range(len(self._spec.arrays)) if image not in self._extents]
        return [image for image in missing if beneath.is_dir(self._path / self._spec.paths[image])]

    @property
    def updated(self) -> frozenset[int | None]:
        """The groups whose attributes were updated: images, None for the store's."""
        return frozenset(self._updated)

    def consolidate_again(self) -> None:
        """Renews consolidated metadata that a user made while the store grew: shape and frame table have
        changed. Raises ``StorageError``, ``FencedError``."""
        try:
            group = read_metadata(self._path, foreign=True)
            document = (
                None
                if consolidated_metadata(group) is None
                else encode_consolidated(group, read_nodes(self._path))
            )
        except (ShardFormatError, StorageError):
            return  # damage from outside does not hinder the end; `verify` reports it
        if document is not None:
            replace_file(
                self._path / DOCUMENT, document, self._owner.may_rename, writer=self._owner.writer_epoch
            )

    def _documents_of_arrays(self, extents: Mapping[int, tuple[int, ...]]) -> list[dict[Path, bytes]]:
        """Returns zarr.json of images' arrays and of their levels, in the steps of ``replace_files``: those
        of the arrays last, which say what there is."""
        levels: dict[Path, bytes] = {}
        arrays: dict[Path, bytes] = {}
        encoded: dict[tuple[int, tuple[int, ...]], list[bytes]] = {}  # images of a plate have the same
        for image, along in extents.items():
            array = self._spec.arrays[image]
            if (id(array), along) not in encoded:
                documents = array_documents(array, along)
                encoded[id(array), along] = [encode_document(document) for document in documents]
            (path, document), *others = zip(
                self._spec.level_paths(image), encoded[id(array), along], strict=True
            )
            arrays[self._path / path / DOCUMENT] = document
            levels.update((self._path / path / DOCUMENT, document) for path, document in others)
        return [levels, arrays]

    def _in_pieces(self, images: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yields as many images at a time as may be written together."""
        documents = 1 + max((len(self._spec.level_paths(image)) for image in images), default=1)
        most = max(1, _MOST_OPEN // documents)
        for first in range(0, len(images), most):
            yield images[first : first + most]

    def _replace(self, path: Path, document: bytes) -> None:
        self._replace_all([{path: document}])

    def _replace_all(self, steps: list[dict[Path, bytes]]) -> None:
        self._owner.may_rename()  # else it would make folders under the name of a store that is gone
        writer = self._owner.writer_epoch
        replace_files(self._path, self._folders, steps, self._owner.may_rename, writer=writer)


def nothing_of(array: ArraySpec) -> tuple[int, ...]:
    """Returns the extents of an image along its growing axes before any frame."""
    return (0,) * len(array.growing_axes)


def _kept_group(folder: Path) -> dict[str, Any] | None:
    """Returns zarr.json of the group that has what users say of an image without a frame, as an end has left
    it, or as it is made; None where others have put anything else. Raises ``StorageError``."""
    if beneath.exists(folder) and not beneath.is_dir(folder):
        return None
    if not beneath.exists(folder / DOCUMENT):
        return group_node({})
    with suppress(ShardFormatError, LinkError):
        there = read_metadata(folder, foreign=True)
        return there if there["node_type"] == "group" and not ome_in(there) else None
    return None


def _group_in(text: bytes, path: Path) -> dict[str, Any] | None:
    """Returns the group that a zarr.json describes; None for other bytes."""
    with suppress(ShardFormatError):
        node = decode_document(text, path, foreign=True)
        if node["node_type"] == "group" and isinstance(node.get("attributes", {}), dict):
            return node
    return None


def name_of(store: Path) -> str:
    """Returns the name of the image in a store of one."""
    return store.name.split(".")[0]
