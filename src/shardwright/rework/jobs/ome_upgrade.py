"""Changes the metadata of a finished store from OME-Zarr 0.5 to 0.6: ``shardwright upgrade-ome``. May be
interrupted at any point; the same command continues, by what the groups are then.

    STORE/.compact/move.lock    held for the whole job: nobody copies a store of two versions
    STORE/.compact/ome.job      the record: whether the metadata were consolidated. Deleted last
    STORE/zarr.json             first: its scene gets the positions that the images lose. Not consolidated
    STORE/.../zarr.json         each group below; what lies in the folder of an image before the image itself
    STORE/zarr.json             consolidated again, if it was

Each zarr.json is replaced atomically and is valid by itself, of one version or the other; ``verify`` names
the mixture, and the record. All new documents are made once before the first one is written, so that what
cannot be changed is refused while nothing has changed.

Other jobs that write a zarr.json hold the lock of their array and then look for the record; this one writes
the record and then looks for such locks. So one of the two always sees the other.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardwright.array.atlas_block import FIELD as BLOCK
from shardwright.array.consolidated_metadata import FIELD as CONSOLIDATED
from shardwright.array.consolidated_metadata import consolidated_metadata, encode_consolidated
from shardwright.array.document import encode_document
from shardwright.array.ome_references import image_names
from shardwright.array.ome_version import (
    Scene,
    axes_of,
    ome_in,
    scale_and_translation,
    scene_of,
    upgraded,
    version_of,
)
from shardwright.disk import beneath
from shardwright.disk.files import file_held, replace_file, storage_errors
from shardwright.disk.lock import is_locked
from shardwright.disk.typed_errors import says_closed
from shardwright.model.errors import LockedError, ShardFormatError, StorageError
from shardwright.model.names import DOCUMENT, MOVE_LOCK_NAME, UPGRADE_RECORD, WORK_FOLDER, folders_to
from shardwright.read.store import is_between_versions, read_metadata, read_nodes
from shardwright.rework.name_changes import own_path
from shardwright.rework.runtime.job_record import delete_job, readable_job, write_job
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.work_folder import LOCK_NAME, locked
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.shard.edit_files import JOURNAL_SUFFIX, check_not_edited, journals_below
from shardwright.store.replaced_store import UPGRADE, check_at_rest

if TYPE_CHECKING:
    import os
    from collections.abc import Container, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardwright.rework.runtime.job_report import OnProgress

    Nodes = Mapping[str, dict[str, Any]]

OLD, NEW = "0.5", "0.6"
_KIND = "upgrade-ome"
_OF_A_FILE = (
    "A store in one file (.ozx) stays as it is: upgrade the one that it was made of, and make it again"
)


@dataclass(frozen=True)
class UpgradeReport:
    """The report of an upgrade. ``groups``: those of OME-Zarr in the store; ``changed``: by this run."""

    path: str
    version: str
    groups: int
    changed: int

    def to_dict(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self)}


def upgrade_store(path: str | os.PathLike[str], on_progress: OnProgress = no_progress) -> UpgradeReport:
    """Changes the metadata of a finished store to OME-Zarr 0.6, or ends an upgrade that was interrupted.
    ``on_progress`` gets groups. Nothing is changed if one of them cannot be.

    Raises ``OutputExistsError`` for what is no finished store of ours or lies elsewhere in part,
    ``LockedError`` while a job is at work on it, or a move or an update of it was interrupted,
    ``ShardFormatError`` for metadata of another version, or that OME-Zarr 0.5 does not have,
    ``StorageError``, also for a link, and for a store in one file."""
    store = own_path(path, _OF_A_FILE)
    with _at_rest(store):
        nodes = {"": read_metadata(store, foreign=True), **read_nodes(store)}
        images = _image_folders(nodes)
        groups = _groups(store, nodes, frozenset(images))
        positions = _positions(nodes, images)
        _check_below_images(store, groups, nodes, positions)
        todo = [group for group in groups if version_of(ome_in(nodes[group])) == OLD]
        for group in todo:
            _new_document(group, nodes[group], nodes, positions)  # raises before anything is changed
        record = store / WORK_FOLDER / UPGRADE_RECORD
        is_begun, found = beneath.exists(record), readable_job(record, _KIND)
        was_consolidated = consolidated_metadata(nodes[""]) is not None or (
            found is not None and found.facts.get("consolidated") is True
        )
        if todo or is_begun:
            if found is None:
                write_job(record, _KIND, {"version": NEW, "consolidated": was_consolidated})
            try:
                _check_no_job(store, nodes)
            except LockedError:
                if not is_begun:
                    delete_job(record)
                raise
            on_progress(0, len(todo))
            for done, group in enumerate(todo, 1):
                # as it is now: a job that ended meanwhile may have added levels
                node = read_metadata(store / group, foreign=True)
                replace_file(store / group / DOCUMENT, _new_document(group, node, nodes, positions))
                on_progress(done, len(todo))
            if was_consolidated:
                group_now = read_metadata(store, foreign=True)
                replace_file(store / DOCUMENT, encode_consolidated(group_now, read_nodes(store)))
            delete_job(record)
    return UpgradeReport(str(store), NEW, len(groups), len(todo))


def interrupted_upgrades(where: Path) -> list[Path]:
    """Returns the store ``where``, or the stores in that folder, whose upgrade was interrupted and is not at
    work again. Links, and folders that this user may not read, are left out. Raises ``StorageError``."""
    where = beneath.user_path(where)
    if not beneath.is_dir(where):
        return []
    with storage_errors("look into", where):
        return sorted(store for store in (where, *beneath.paths_in(where)) if _is_interrupted(store))


def _is_interrupted(store: Path) -> bool:
    try:
        return is_between_versions(store) and not is_locked(store / WORK_FOLDER / MOVE_LOCK_NAME)
    except StorageError as error:
        if says_closed(error):
            return False
        raise


@contextmanager
def _at_rest(store: Path) -> Iterator[None]:
    """A context in which nobody else writes, moves, renames or deletes the store."""
    with ExitStack() as held:
        with file_held(store / DOCUMENT, "store", create=False):
            check_at_rest(store, UPGRADE)
            held.enter_context(locked(store, MOVE_LOCK_NAME))  # which those look at that wait for the file
        for journal in journals_below(store):
            check_not_edited(journal.parent.parent, journal.name.removesuffix(JOURNAL_SUFFIX))
        MoveRecord.check_none_in(store)
        yield


def _check_no_job(store: Path, nodes: Nodes) -> None:
    """Raises ``LockedError`` while another job is at work on an image or an array of the store: it may be
    about to write the metadata that it has read."""
    for path in nodes:
        work = store / path / WORK_FOLDER
        for name in (LOCK_NAME, *([MOVE_LOCK_NAME] if path else [])):  # the store's own is ours
            if is_locked(work / name):
                raise LockedError(
                    f"a job is at work on {store / path}", hint="Wait until it has ended, then try again"
                )


def _image_folders(nodes: Nodes) -> list[str]:
    """Returns the folders of the images of a store, "" for one that is an image itself. Raises
    ``ShardFormatError``."""
    root = ome_in(nodes[""])
    try:
        return ["/".join(names) for names in image_names(root, lambda path: ome_in(nodes[path]))]
    except (LookupError, TypeError, AttributeError):
        raise ShardFormatError("the collection does not name its images", got=sorted(root)) from None


def _image_of(path: str, images: Container[str]) -> str | None:
    """Returns the image in whose folder a group lies, or which it is."""
    return "" if "" in images else next((folder for folder in folders_to(path) if folder in images), None)


def _groups(store: Path, nodes: Nodes, images: Container[str]) -> list[str]:
    """Returns the paths of the groups of OME-Zarr, in the order in which they are changed: the store's own
    first, an image behind what lies in its folder. Raises ``ShardFormatError`` for one that is not
    changed."""
    found = []
    for path, node in nodes.items():
        if not (ome := ome_in(node)):
            continue
        if (version := ome.get("version")) not in (OLD, NEW):
            if _image_of(path, images) not in (None, path):
                continue  # labels of another tool, which stay as they are
            raise ShardFormatError(
                f"{store / path} is of another version of OME-Zarr",
                expected=f"{OLD}, or {NEW} of an upgrade that was interrupted",
                got=repr(version)[:80],
                hint="Upgrade it with the program that wrote it, or move it out of the store",
            )
        if version == OLD and isinstance(node["attributes"].get(BLOCK), dict):
            raise ShardFormatError(
                f"{store / path} has the block {BLOCK!r} of the Dynamic Cell Atlas, which is of OME-Zarr "
                f"{OLD}",
                hint=f"Keep the store as it is, or delete {BLOCK} from its attributes first",
            )
        if path and consolidated_metadata(node) is not None:
            raise ShardFormatError(
                f"{store / path} has consolidated metadata, which describe what is below as it is now",
                hint="Delete consolidated_metadata from its zarr.json, and consolidate it again "
                "(zarr.consolidate_metadata) afterwards",
            )
        found.append(path)
    if "" not in found:
        raise ShardFormatError(
            f"{store} is no store of OME-Zarr", got=repr(nodes[""].get("attributes", {}))[:160]
        )
    return ["", *sorted(found, reverse=True)[:-1]]


def _positions(nodes: Nodes, images: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns the position, by axis, that the scene of the store has or gets, by the folder of each image;
    none where the images keep theirs: of a plate, of a single image, of images that differ in their axes.
    Raises ``ShardFormatError``."""
    root = ome_in(nodes[""])
    if "bioformats2raw.layout" not in root:
        return {}
    scene, at, axes = Scene(root), {}, []
    for folder in images:
        try:
            image = ome_in(nodes[folder])["multiscales"][0]
            axes.append(axes_of(image))
            names = [axis["name"] for axis in axes[-1]]
            place: dict[str, float] = {}
            if version_of(root) == NEW:
                place = scene.position_of(folder) or {}
            elif version_of(ome_in(nodes[folder])) == OLD:  # another one is not ours, and keeps what it has
                _, translation = scale_and_translation(image["datasets"][0], len(names))
                place = dict(zip(names, translation, strict=True))
            at[folder] = {name: place.get(name, 0.0) for name in names}
        except (LookupError, TypeError, AttributeError):
            raise ShardFormatError(
                f"the collection names {folder[:160]!r}, which is no image",
                hint="Put the image back, or delete its name from `series` in OME/zarr.json",
            ) from None
    differ = any(each != axes[0] for each in axes)
    return {} if version_of(root) == OLD and (differ or "scene" in root) else at


def _check_below_images(
    store: Path, groups: Sequence[str], nodes: Nodes, positions: Mapping[str, Mapping[str, float]]
) -> None:
    """Raises ``ShardFormatError`` for labels that are of the new version while their store and their image
    are not: the position of the image is a part of theirs, and cannot be told from that afterwards."""
    if version_of(ome_in(nodes[""])) != OLD:
        return
    for path in groups:
        image = _image_of(path, positions)
        if image is None or image == path or not any(positions[image].values()):
            continue
        if [version_of(ome_in(nodes[each])) for each in (path, image)] == [NEW, OLD]:
            raise ShardFormatError(
                f"{store / path} is of OME-Zarr {NEW}, and its image is not",
                hint="Another program wrote it: move it out of the store, upgrade, and write it again",
            )


def _new_document(
    path: str, node: dict[str, Any], nodes: Nodes, positions: Mapping[str, Mapping[str, float]]
) -> bytes:
    """Returns the zarr.json of a group in the new version. Raises ``ShardFormatError``."""
    # What lies in the folder of an image, such as its labels, moves with it: an image that has its position
    # in a scene already has none that could be a part of theirs.
    image = _image_of(path, positions)
    moves = image is not None and version_of(ome_in(nodes[image])) == OLD
    ome = upgraded(ome_in(node), positions[image] if moves and image is not None else {})
    if not path and positions:
        first = axes_of(ome_in(nodes[next(iter(positions))])["multiscales"][0])
        ome |= scene_of(first, {folder: list(at.values()) for folder, at in positions.items()})
    rest = {name: value for name, value in node.items() if name != CONSOLIDATED}
    return encode_document({**rest, "attributes": {**node["attributes"], "ome": ome}}, foreign=True)
