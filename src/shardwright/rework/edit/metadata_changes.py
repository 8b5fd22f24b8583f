"""The change of one zarr.json of a finished store: ``metadata_edit.update_metadata``.

    STORE/.shardwright-edit/zarr.json.lock   other updates of metadata wait for it
    STORE/.compact/move.lock                 no move, copy, upgrade or next part can begin
    STORE/IMAGE/0/.compact/lock              no job of this image: it may be about to write the zarr.json that
                                             it has read

The first two are taken in each group above the store, too, which may be one of the user.
What the store records of its acquisition stays as it is: the next part finds what has changed since in
zarr.json itself (``recovery.go_on``).
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from shardwright.array.atlas_block import FIELD as BLOCK
from shardwright.array.atlas_block import MADE
from shardwright.array.contrast_window import with_windows
from shardwright.array.document import encode_document
from shardwright.array.frame_check import checked_attributes
from shardwright.array.metadata import creator_facts, group_document
from shardwright.array.metadata_update import MAY_BE_REMOVED, with_additions
from shardwright.array.ome import how_downsampled, with_channels
from shardwright.array.ome_version import ome_in
from shardwright.array.spec import MAX_ATTRIBUTES_BYTES, OWN_ATTRIBUTES
from shardwright.disk import beneath
from shardwright.disk.files import file_held, replace_file
from shardwright.model.errors import MetadataError, ShardFormatError
from shardwright.model.names import DOCUMENT, MOVE_LOCK_NAME
from shardwright.read.store import groups_above, open_store, read_metadata
from shardwright.recovery.go_on import find_finished
from shardwright.rework.change_checks import check_finished, check_not_between_versions
from shardwright.rework.consolidated_copies import without_copies
from shardwright.rework.name_changes import own_path
from shardwright.rework.runtime.work_folder import LOCK_NAME, locked
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.store.contrast_samples import ContrastSamples
from shardwright.store.store_metadata import name_of

from .region_changes import image_named
from .shard_lock import shard_locked

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from shardwright.array.metadata_update import MetadataUpdate
    from shardwright.read.store import Store
    from shardwright.recovery.go_on import RecordedStore

_OF_A_FILE = "A store in one file (.ozx) stays as it is: unzip it to a folder first"


def change_metadata(
    path: str | os.PathLike[str], attributes: Mapping[str, Any], image: str | None, remove: Iterable[str]
) -> None:
    """As ``update_metadata``."""
    where = own_path(path, _OF_A_FILE)
    read_metadata(where, foreign=True)  # before any file is made there
    if not beneath.is_file(where / DOCUMENT):
        raise ShardFormatError(
            f"{where} is of an older spelling than Zarr v3, which is read but not changed",
            hint="Make a store of today of it first: `shardwright rechunk SOURCE DEST`",
        )
    # Any of them may be the store that others move or go on with: a store may lie in a group of the user.
    folders = [where, *groups_above(where)]
    with ExitStack() as held:
        for folder in reversed(folders):
            held.enter_context(_at_rest(folder))
        target = _Target(folders, open_store(where), image)
        if target.image is not None:
            target.image.check_spelling()
            held.enter_context(locked(target.image.arrays[0].path, LOCK_NAME))
        group = read_metadata(target.folder, foreign=True)
        update = checked_attributes(
            attributes, has_image=target.image is not None, channels=_channels(group), remove=remove
        )
        document = encode_document(target.changed(group, update), foreign=True)
        with without_copies(folders[-1], [target.folder]):
            replace_file(target.folder / DOCUMENT, document)


@contextmanager
def _at_rest(store: Path) -> Iterator[None]:
    """A context in which nobody else writes, moves, renames or deletes the store, or updates its metadata.
    Raises ``LockedError``, ``StorageError``."""
    check_finished(store)
    with (
        shard_locked(store, DOCUMENT),
        locked(store, MOVE_LOCK_NAME),
        file_held(store / DOCUMENT, "store", create=False),
    ):
        # A writer, or a job, may have begun before the locks were ours; none can from now on.
        check_finished(store)
        check_not_between_versions(store)
        MoveRecord.check_none_in(store)
        yield


def _channels(group: Mapping[str, Any]) -> int:
    """Returns how many channels the zarr.json of an image describes."""
    omero = ome_in(group).get("omero")
    channels = omero.get("channels") if isinstance(omero, dict) else None
    return len(channels) if isinstance(channels, list) else 0


class _Target:
    """The group that changes. ``image``: whose it is, None for that of a collection; ``found``: the record of
    its store, None for a store that has none."""

    def __init__(self, folders: list[Path], store: Store, name: str | None) -> None:
        """``folders``: that of ``store`` and those above. Raises ``UnknownImageError``, ``ShardFormatError``,
        ``FormatVersionError``."""
        if store.group is None:
            raise ShardFormatError(f"{store.root} is no image", expected="a store, or an image in it")
        records = (find_finished(folder) for folder in folders)
        self.found: RecordedStore | None = next((found for found in records if found is not None), None)
        if self.found is not None and self.found.path == store.root:
            spec = self.found.manifest.acquisition
            if name in spec.names:  # whatever its metadata call it by now
                name = spec.folders[spec.names.index(name)] or None
        is_collection = store.collection is not None and name is None
        self.image = None if is_collection else image_named(store, name)
        self.folder = store.root if self.image is None else self.image.root

    def changed(self, group: dict[str, Any], update: MetadataUpdate) -> dict[str, Any]:
        """Returns the new zarr.json. Raises ``MetadataError``, ``ShardFormatError``."""
        there = group.get("attributes", {})
        if not isinstance(there, dict):
            raise ShardFormatError(f"{self.folder / DOCUMENT} has no attributes", got=repr(there)[:80])
        attributes = update.over(there)
        if BLOCK in update.attributes and self.found is not None and self.found.manifest.profile != "none":
            attributes[BLOCK] = self._block(there.get(BLOCK), update.attributes[BLOCK])
        changed = {**group, "attributes": attributes}
        if update.ome or not update.remove.isdisjoint(MAY_BE_REMOVED):
            changed = self._with_additions(changed, update)
        before, after = self._users_bytes(there), self._users_bytes(changed["attributes"])
        if after > max(before, MAX_ATTRIBUTES_BYTES):
            raise MetadataError(
                "metadata that are too long with those before",
                expected=f"at most {MAX_ATTRIBUTES_BYTES} bytes",
                got=after,
            )
        return changed

    def _with_additions(self, group: dict[str, Any], update: MetadataUpdate) -> dict[str, Any]:
        if "omero" in update.ome and not _channels(group):
            raise MetadataError(f"{self.folder} describes no channels", got="omero")
        added = with_additions(group, update, self._ours(group, update))
        if added is group:
            raise ShardFormatError(
                f"{self.folder / DOCUMENT} describes its image in another form than shardwright does",
                expected="one multiscale; omero with the window of each channel",
            )
        return added

    def _users_bytes(self, attributes: Mapping[str, Any]) -> int:
        """Returns how long the attributes are that users may change: of an image all, with what is short."""
        ours = () if self.image is not None else OWN_ATTRIBUTES  # of a collection it may be long
        return len(json.dumps({n: v for n, v in attributes.items() if n not in ours}, indent=2))

    def _block(self, there: Any, given: Any) -> dict[str, Any]:
        """Returns the block of a profile with new fields. Raises ``MetadataError``."""
        made = sorted(set(MADE) & given.keys()) if isinstance(given, dict) else []
        if made or not isinstance(given, dict):
            raise MetadataError(
                f"metadata: of {BLOCK!r}, the block of the profile, each end writes {', '.join(MADE)}",
                expected="a JSON object of other names",
                got=", ".join(made) or type(given).__name__,
            )
        is_block = self.image is not None and isinstance(there, dict)
        return {**(there if is_block else {}), **given}

    def _ours(self, group: dict[str, Any], update: MetadataUpdate) -> dict[str, Any]:
        """Returns what shardwright writes itself in the ``ome`` of the image."""
        assert self.image is not None, "additions are of an image"
        name, number = "", None
        if self.found is not None:
            spec, folder = (
                self.found.manifest.acquisition,
                self.folder.relative_to(self.found.path).as_posix(),
            )
            folder = "" if folder == "." else folder
            number = spec.folders.index(folder) if folder in spec.folders else None
            name = "" if number is None else spec.names[number]
        multiscale = {"name": name or name_of(self.folder), **_how_made(self.image)}
        if "ome.omero" not in update.remove:
            return {"multiscales": [multiscale]}
        if self.found is None or number is None:
            raise MetadataError(
                "the store does not record how its channels were described",
                expected="a store that this release, or a later one, has finished",
                hint='Give their fields new values: {"ome": {"omero": {"channels": [...]}}}',
            )
        made = with_channels(group_document(spec.arrays[number], name), spec.arrays[number], _channels(group))
        windows = ContrastSamples(spec).sealed_windows(self.found.path, [number])[number]
        return {**ome_in(with_windows(made, windows)), "multiscales": [multiscale]}


def _how_made(image: Store) -> dict[str, Any]:
    """Returns what a multiscale says of its levels, as the first one records it."""
    for level in image.arrays[1:2]:
        made = creator_facts(read_metadata(level.path, foreign=True))
        factors = made.get("factors") or dict.fromkeys(made.get("axes", ()), 2)
        if isinstance(made.get("method"), str):
            return how_downsampled(made["method"], factors)
    return {}
