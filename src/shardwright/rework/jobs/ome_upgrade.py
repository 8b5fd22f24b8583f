"""Changes the metadata of a finished store from OME-Zarr 0.5 to 0.6: ``shardwright upgrade-ome``. May be
interrupted at any point; the same command continues, by what the groups are then.

    STORE/.compact/move.lock    held for the whole job: nobody copies a store of two versions
    STORE/.compact/ome.job      the record: whether the metadata were consolidated. Deleted last
    STORE/zarr.json             first: its scene gets the positions that the images lose. Not consolidated
    STORE/.../zarr.json         each group below, the image's array locked as ``pyramid`` locks it
    STORE/zarr.json             consolidated again, if it was

Each zarr.json is replaced atomically and is valid by itself, of one version or the other; ``verify`` names
the mixture, and the record.
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
    axes_of,
    position_in_scene,
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
from shardwright.read.store import inside, read_metadata, read_nodes
from shardwright.rework.name_changes import own_path
from shardwright.rework.runtime.job_record import delete_job, readable_job, write_job
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.work_folder import WorkFolder, locked
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.shard.edit_files import JOURNAL_SUFFIX, check_not_edited, journals_below
from shardwright.store.replaced_store import UPGRADE, check_at_rest

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardwright.rework.runtime.job_report import OnProgress

    Nodes = Mapping[str, dict[str, Any]]

OLD, NEW = "0.5", "0.6"
_KIND = "upgrade-ome"


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
    ``StorageError``, also for a link."""
    store = own_path(path)
    with _at_rest(store):
        nodes = {"": read_metadata(store, foreign=True), **read_nodes(store)}
        groups = _groups(store, nodes)
        positions = _positions(nodes)
        todo = [group for group in groups if version_of(_ome(nodes[group])) == OLD]
        for group in todo:
            _new_document(group, nodes[group], nodes, positions)  # raises before anything is changed
        record = store / WORK_FOLDER / UPGRADE_RECORD
        found = readable_job(record, _KIND)
        was_consolidated = consolidated_metadata(nodes[""]) is not None or (
            found is not None and found.facts.get("consolidated") is True
        )
        if todo and found is None:
            write_job(record, _KIND, {"version": NEW, "consolidated": was_consolidated})
        on_progress(0, len(todo))
        for done, group in enumerate(todo, 1):
            with _image_held(store / group, nodes[group]):
                # as it is now: levels may have been added since it was read
                node = read_metadata(store / group, foreign=True)
                new = _new_document(group, node, nodes, positions)
                replace_file(store / group / DOCUMENT, encode_document(new, foreign=True))
            on_progress(done, len(todo))
        if todo or found is not None:
            if was_consolidated:
                group_now = read_metadata(store, foreign=True)
                replace_file(store / DOCUMENT, encode_consolidated(group_now, read_nodes(store)))
            delete_job(record)
    return UpgradeReport(str(store), NEW, len(groups), len(todo))


def interrupted_upgrades(where: Path) -> list[Path]:
    """Returns the store ``where``, or the stores in that folder, whose upgrade was interrupted and is not at
    work again. Folders that this user may not read are left out. Raises ``StorageError``."""
    where = beneath.user_path(where)
    if not beneath.is_dir(where):
        return []
    with storage_errors("look into", where):
        return sorted(store for store in (where, *beneath.paths_in(where)) if _is_interrupted(store))


def _is_interrupted(store: Path) -> bool:
    work = store / WORK_FOLDER
    try:
        return beneath.exists(work / UPGRADE_RECORD) and not is_locked(work / MOVE_LOCK_NAME)
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
        if destinations := MoveRecord.destinations_in(store / WORK_FOLDER):
            raise LockedError(
                f"a move or a copy of {store} to {destinations[0]} was interrupted",
                hint=f"End it first: `shardwright compact {store} --to {destinations[0]}`",
            )
        yield


@contextmanager
def _image_held(folder: Path, node: dict[str, Any]) -> Iterator[None]:
    """A context in which no other job changes the image of a group."""
    with ExitStack() as held:
        for multiscale in _ome(node).get("multiscales", ())[:1]:
            array = inside(folder, str(multiscale["datasets"][0]["path"]))
            if beneath.is_dir(array):
                held.enter_context(WorkFolder.locked(array))
        yield


def _ome(node: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of OME-Zarr that a group has; none of other nodes."""
    attributes = node.get("attributes")
    ome = attributes.get("ome") if node["node_type"] == "group" and isinstance(attributes, dict) else None
    return ome if isinstance(ome, dict) else {}


def _groups(store: Path, nodes: Nodes) -> list[str]:
    """Returns the paths of the groups of OME-Zarr, in the order in which they are changed. Raises
    ``ShardFormatError`` for one that is not changed."""
    found = [path for path, node in nodes.items() if _ome(node)]
    if "" not in found:
        raise ShardFormatError(
            f"{store} is no store of OME-Zarr", got=sorted(nodes[""].get("attributes", {}))
        )
    for path in found:
        version = _ome(nodes[path]).get("version")
        if version not in (OLD, NEW):
            raise ShardFormatError(
                f"{store / path} is of another version of OME-Zarr",
                expected=f"{OLD}, or {NEW} of an upgrade that was interrupted",
                got=repr(version)[:80],
            )
        if version == OLD and isinstance(nodes[path]["attributes"].get(BLOCK), dict):
            raise ShardFormatError(
                f"{store / path} has the block {BLOCK!r} of the Dynamic Cell Atlas, which is of OME-Zarr "
                f"{OLD}",
                hint=f"Keep the store as it is, or delete {BLOCK} from its attributes first",
            )
        if path and CONSOLIDATED in nodes[path]:
            raise ShardFormatError(
                f"{store / path} has consolidated metadata, which describe what is below as it is now",
                hint="Delete consolidated_metadata from its zarr.json, and consolidate it again "
                "(zarr.consolidate_metadata) afterwards",
            )
    return sorted(found)  # the store's own first


def _positions(nodes: Nodes) -> dict[str, dict[str, float]]:
    """Returns the position, by axis, that the scene of the store has or gets, by the folder of each image;
    none where the images keep theirs: of a plate, of a single image, of images that differ in their axes.
    Raises ``ShardFormatError``."""
    root = _ome(nodes[""])
    if "bioformats2raw.layout" not in root:
        return {}
    try:
        folders = ["/".join(names) for names in image_names(root, lambda path: _ome(nodes[path]))]
        images = {folder: _ome(nodes[folder])["multiscales"][0] for folder in folders}
        axes = {folder: [axis["name"] for axis in axes_of(image)] for folder, image in images.items()}
        at = {}
        for folder, image in images.items():
            if version_of(root) == NEW:
                place = position_in_scene(root, folder, len(axes[folder])) or [0.0] * len(axes[folder])
            elif version_of(_ome(nodes[folder])) == OLD:
                _, place = scale_and_translation(image["datasets"][0], len(axes[folder]))
            else:  # not ours: it keeps what it has
                place = [0.0] * len(axes[folder])
            at[folder] = dict(zip(axes[folder], place, strict=True))
        differ = any(axes_of(image) != axes_of(images[folders[0]]) for image in images.values())
    except (LookupError, TypeError, AttributeError):
        raise ShardFormatError("the collection does not name its images", got=sorted(root)) from None
    return {} if version_of(root) == OLD and (differ or "scene" in root) else at


def _new_document(
    path: str, node: dict[str, Any], nodes: Nodes, positions: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Returns the zarr.json of a group in the new version. Raises ``ShardFormatError``."""
    # what lies in the folder of an image, such as its labels, moves with it
    image = next((folder for folder in folders_to(path) if folder in positions), None)
    ome = upgraded(_ome(node), {} if image is None else positions[image])
    if not path and positions:
        first = axes_of(_ome(nodes[next(iter(positions))])["multiscales"][0])
        ome |= scene_of(first, {folder: list(at.values()) for folder, at in positions.items()})
    rest = {name: value for name, value in node.items() if name != CONSOLIDATED}
    return {**rest, "attributes": {**node["attributes"], "ome": ome}}
