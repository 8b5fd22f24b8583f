"""The manifest of an unfinished acquisition: the facts that recovery needs before it can read anything else.
``.shardwright/acquisition.EPOCH.json``.

Each writer has its own file, named by its epoch, and the highest epoch counts: a writer that was taken over
can still change its own manifest at any time, but never its successor's. It is replaced as a whole,
atomically and synced. A JSON object with the fields of ``Manifest``, ``format`` and ``crc32c``
(``checked_json``).
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from shardwright.array.acquisition_spec import AcquisitionSpec, in_chunks_as, parse_acquisition, parse_image
from shardwright.array.grid import MOST_ROW_FILES, MOST_ROW_SHARDS, Extents
from shardwright.disk import beneath
from shardwright.disk.failpoints import reach
from shardwright.disk.files import replace_file, storage_errors, sync_directory
from shardwright.model.errors import ConfigError, FencedError, ShardFormatError, SpecError, StorageError
from shardwright.model.json_text import parse_json
from shardwright.model.local_path import local_path
from shardwright.model.names import NAME_PATTERN
from shardwright.model.versions import check_version
from shardwright.model.write_options import OPTIONS, LiveMode, PartialChunks, Profile
from shardwright.model.write_settings import OF_A_STORE, RECORDED, WriteSettings
from shardwright.wire.messages import MAX_IMAGES

from .checked_json import encode_checked, read_checked
from .shared_journal import MOST_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NAME = re.compile(r"acquisition\.([1-9][0-9]{0,9})\.json")
# 10: each shard row has its own journal; 9: no image was added; 8: of OME-Zarr 0.5, with no profile, and no
# frames.parquet; 7: by a writer that did not record ``opened_as``; 6: frames are collected; 5: shards, one a
# row along the frame axes; 4: not live; 3: one image, of what 0.2 knows, and channels; 2: no channels; 1: of
# a store never taken over
FORMAT = 11
_MAX_BYTES = 16 << 20
_MOST_RING_FRAMES = 2**31 - 1
_MOST_FRAMES = 2**63 - 1
_MOST_SETTINGS = 64


@dataclass(frozen=True)
class OpenedAs:
    """The request by which an acquisition was opened: whoever resumes it continues with that, and need not
    guess from its array, which several streams may have. ``settings``: ``WriteSettings.recorded``, not
    checked yet. ``stream``: None if it is no daemon's. ``frames_expected``: None if nobody said."""

    settings: dict[str, Any]
    ring_frames: int
    stream: str | None = None
    frames_expected: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The manifest of an acquisition. ``identity``: 32 hex digits, unique to each acquisition.
    ``writer_epoch`` counts the writers that opened it, ``client_epoch`` the clients that sent to it, both
    from 1. ``spec``: the ``ArraySpec``, or with several images the ``AcquisitionSpec``, as JSON values.
    ``io``: how its shards are filled. ``created_ns``: UTC nanoseconds. ``spill_root``: the second root, None
    if there is none. ``seen_stop``, ``seen_extents``: frames below this sequence, and of each image places
    below these indices of its growing axes (one image behind the other), are known to have come, although
    recovery has cleared other traces of them; no extents if none are known (before format 4, ``seen_extent``
    of the only image). ``files_epoch``: of the writer that took the store over last, 0 if none did; its shard
    rows are in a folder of that number. ``live``: whether shards in progress may have their final names, and
    how readers then see them grow. ``row_shards``, ``across_shards``: the most shards of a shard row along
    the frame axes, and of one that stays open while frames of other images come (``Grid.split_row``).
    ``partial_chunks``: whether the pixels of frames whose slab is not full are in the staging area or in
    their chunks. ``opened_as``: None of a store that a writer of an earlier release made. ``profile``,
    ``frame_parquet``: what the end writes beside OME-Zarr's metadata and the frame table. ``added_images``:
    those that were added while it ran, as JSON values, with the numbers behind those of ``spec``.
    ``journal_rows``: the most shard rows that share a journal (``shared_journal``).
    """

    identity: str
    writer_epoch: int
    client_epoch: int
    spec: dict[str, Any]
    io: str
    created_ns: int
    spill_root: str | None = None
    seen_stop: int = 0
    seen_extents: tuple[int, ...] = ()
    files_epoch: int = 0
    live: LiveMode = "none"
    row_shards: int = 1
    across_shards: int = 1
    partial_chunks: PartialChunks = "collect"
    opened_as: OpenedAs | None = None
    profile: Profile = "none"
    frame_parquet: bool = False
    added_images: tuple[Any, ...] = ()
    journal_rows: int = 1

    @property
    def acquisition(self) -> AcquisitionSpec:
        """The specification of the acquisition. Raises ``SpecError``."""
        declared = parse_acquisition(self.spec).in_rows(self.row_shards, self.across_shards)
        spec = in_chunks_as(self.partial_chunks, declared)
        # Behind the others, whose shard rows were split as there were fewer images: they stay as they are.
        return spec.with_images(map(parse_image, self.added_images), self.row_shards, self.across_shards)

    def with_images(self, spec: AcquisitionSpec) -> Manifest:
        """Returns the manifest with the added images of ``spec``, which has those of this one, too."""
        seen = self.seen_extents
        if seen:
            before, now = Extents(self.acquisition.grids), Extents(spec.grids)
            before.cover(seen)
            now.reach_as(before)
            seen = tuple(now.along.ravel().tolist())
        return replace(self, added_images=tuple(spec.added_json()), seen_extents=seen)

    @property
    def identity_bytes(self) -> bytes:
        """The 16 bytes that seed the checksums of journal, staging area and frame log."""
        return bytes.fromhex(self.identity)


# by format: the fields that came with it, and what they are in an earlier one
_ADDED: dict[int, dict[str, Any]] = {
    2: {"files_epoch": 0},
    5: {"live": "none"},
    6: {"row_shards": 1, "across_shards": 1},
    7: {"partial_chunks": "collect"},
    8: {"opened_as": None},
    9: {"profile": "none", "frame_parquet": False},
    10: {"added_images": []},
    11: {"journal_rows": 1},
}
_FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "identity": str,
    "writer_epoch": int,
    "client_epoch": int,
    "spec": dict,
    "io": str,
    "created_ns": int,
    "spill_root": (str, type(None)),
    "seen_stop": int,
    "seen_extents": (tuple, list),
    "files_epoch": int,
    "live": str,
    "row_shards": int,
    "across_shards": int,
    "partial_chunks": str,
    "opened_as": (dict, type(None)),
    "profile": str,
    "frame_parquet": bool,
    "added_images": (tuple, list),
    "journal_rows": int,
}


def recorded_settings(manifest: Manifest, opened_as: OpenedAs) -> WriteSettings:
    """Returns the settings that an acquisition was opened with. Raises ``ShardFormatError`` for settings that
    no writer has."""
    recorded = opened_as.settings
    if recorded.keys() != set(RECORDED):
        raise ShardFormatError(
            "the settings in a manifest are incomplete or unknown",
            expected=", ".join(RECORDED),
            got=", ".join(sorted(recorded))[:160],
        )
    root = None if manifest.spill_root is None else local_path(manifest.spill_root)
    try:
        of_store = {name: getattr(manifest, name) for name in OF_A_STORE}
        settings = WriteSettings(**recorded, **of_store)
        return settings.with_second_root(root)
    except SpecError as error:
        raise ShardFormatError(
            f"the settings in a manifest are damaged: {error.message}",
            expected=error.expected,
            got=error.got,
        ) from None


def manifest_path(workspace: Path, writer_epoch: int) -> Path:
    return workspace / _name(writer_epoch)


def _name(writer_epoch: int) -> str:
    return f"acquisition.{writer_epoch}.json"


def has_manifest(workspace: Path) -> bool:
    """Returns whether there is a manifest. A workspace without one never took a frame, or is of no more use.
    Raises ``StorageError``."""
    return bool(_epochs(workspace))


def delete_manifests(workspace: Path, *, up_to_epoch: int) -> bool:
    """Deletes the manifests of this writer and of older ones, the oldest first, durably: an older one must
    never count again when the highest is deleted. Returns whether it was this call that deleted that of
    ``up_to_epoch``: a writer that takes over deletes it, too. Raises ``StorageError``."""
    deleted = -1
    for epoch in _epochs(workspace):
        if epoch <= up_to_epoch:
            with storage_errors("remove", workspace), suppress(FileNotFoundError):
                reach("workspace.before_manifest")
                beneath.unlink(manifest_path(workspace, epoch))
                deleted = epoch
            sync_directory(workspace)
    return deleted == up_to_epoch


def _epochs(workspace: Path) -> list[int]:
    with storage_errors("look into", workspace):
        names = beneath.names_in(workspace) if beneath.is_dir(workspace) else []
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)


def write_manifest(
    workspace: Path,
    manifest: Manifest,
    may_replace: Callable[[], None] = lambda: None,
    *,
    is_first: bool = False,
) -> None:
    """Writes a manifest. ``may_replace`` is called last. ``is_first``: of its writer's epoch, which is the
    writer's from then on; raises ``OutputExistsError`` if it is another's. Raises ``StorageError``, or what
    ``may_replace`` raises; the old manifest is then still there."""
    # two take-overs at once may write the same epoch: neither deletes what the other is about to rename
    path, writer = manifest_path(workspace, manifest.writer_epoch), secrets.token_hex(8)
    replace_file(path, encode_checked(manifest_facts(manifest)), may_replace, writer=writer, is_new=is_first)


def manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """Returns the JSON of a manifest, without its checksum, in the lowest format that can say it."""
    # as JSON values: the checksum covers the facts as they will be read
    facts: dict[str, Any] = parse_json(json.dumps({"format": FORMAT, **asdict(manifest)}))
    spec = manifest.spec
    if manifest.journal_rows == 1:
        del facts["journal_rows"]
        facts["format"] = 10
    if facts["format"] == 10 and not manifest.added_images:
        del facts["added_images"]
        facts["format"] = 9
    plain = "ome_version" not in spec and all(facts[name] == value for name, value in _ADDED[9].items())
    if facts["format"] == 9 and plain:
        for name in _ADDED[9]:
            del facts[name]
        facts["format"] = 8
    if facts["format"] == 8 and manifest.opened_as is None:
        del facts["opened_as"]
        facts["format"] = 7
    if facts["format"] == 7 and manifest.partial_chunks == "collect":
        del facts["partial_chunks"]
        facts["format"] = 6
    # one image, as earlier releases know it
    grown = any(dimension["count"] is None for dimension in spec.get("dimensions", ())[1:])
    if facts["format"] == 6 and manifest.row_shards == 1 and not _is_plain(spec):
        del facts["row_shards"], facts["across_shards"]
        facts["format"] = 5
    if facts["format"] == 5 and manifest.live == "none":
        del facts["live"]
        facts["format"] = 4
    if facts["format"] == 4 and not grown and not spec.keys() & {"images", "levels", "frame_json_bytes"}:
        facts["format"] = 3 if spec.get("channels") else 2 if manifest.files_epoch else 1
        extent = {"seen_extent": sum(facts["seen_extents"])}  # of the only image, if it is known
        facts = {
            name: value
            for old, old_value in facts.items()
            for name, value in (extent if old == "seen_extents" else {old: old_value}).items()
        }
        if facts["format"] == 1:
            del facts["files_epoch"]
    return facts


def _is_plain(spec: dict[str, Any]) -> bool:
    """Returns whether an array of a specification has no shards."""
    images = [image for image in spec.get("images") or () if isinstance(image, dict)]
    arrays = [array for array in (spec, spec.get("array"), *(i.get("array") for i in images)) if array]
    dimensions = (d for array in arrays for d in array.get("dimensions", ()))
    return any(d.get("shard_size_chunks", 1) is None for d in dimensions)


def read_manifest(workspace: Path) -> Manifest:
    """Returns the newest manifest. Raises ``ShardFormatError`` when it is damaged, ``FormatVersionError``
    when it is of another version, ``StorageError`` when it cannot be read or there is none."""
    path = manifest_path(workspace, max(_epochs(workspace), default=1))
    manifest = parse_manifest(path, read_checked(path, _MAX_BYTES))
    if path != manifest_path(workspace, manifest.writer_epoch):
        raise ShardFormatError(
            f"{path} is not what its name says",
            expected=f"writer epoch {manifest.writer_epoch}",
            got=path.name,
        )
    return manifest


def find_manifest(workspace: Path) -> Manifest | None:
    """As ``read_manifest``; None if there is none: the acquisition has ended, or never took a frame."""
    try:
        return read_manifest(workspace)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def is_current_epoch(folder: int, epoch: int) -> bool:
    """Returns whether a workspace, open as ``folder``, has the manifest of this epoch, and none of the next:
    a writer that takes over writes its own, then deletes ours. Raises ``OSError``."""
    return _has_name(_name(epoch), folder) and not _has_name(_name(epoch + 1), folder)


def _has_name(name: str, folder: int) -> bool:
    try:
        beneath.stat(name, folder=folder)
    except FileNotFoundError:
        return False
    return True


def check_writer_epoch(workspace: Path, epoch: int) -> None:
    """Checks that no other writer has taken the acquisition over or finished it, before every rename to a
    final name. Raises ``FencedError``, ``StorageError``."""
    current = max(_epochs(workspace), default=None)  # the highest counts
    if current is None:
        raise FencedError(
            f"the acquisition of {workspace.parent} was taken over and finished by another writer",
            expected=f"writer epoch {epoch}",
        )
    if current != epoch:
        raise FencedError(
            f"another writer has taken {workspace.parent} over", expected=f"writer epoch {epoch}", got=current
        )


def parse_manifest(path: Path, facts: dict[str, Any]) -> Manifest:
    """Returns the manifest that ``manifest_facts`` says in the file at ``path``. Raises
    ``ShardFormatError``, ``FormatVersionError``."""
    version = facts.pop("format", None)
    check_version(version, FORMAT, path)
    for since, added in _ADDED.items():
        if version < since and not added.keys() & facts.keys():
            facts = {**facts, **added}
    if version < 4 and type(facts.get("seen_extent")) is int:
        facts["seen_extents"] = [extent] if (extent := facts.pop("seen_extent")) else []
    for name, kind in _FIELD_TYPES.items():
        known = isinstance(facts.get(name, ...), kind)
        if not known or (isinstance(facts[name], bool) and kind is not bool):
            raise ShardFormatError(
                f"{path}: field {name!r} is missing or of the wrong type", got=repr(facts.get(name))[:80]
            )
    if facts.keys() != _FIELD_TYPES.keys():
        raise ShardFormatError(f"{path}: unknown fields", got=sorted(facts.keys() - _FIELD_TYPES.keys()))
    opened_as = None if facts["opened_as"] is None else _opened_as(path, facts["opened_as"])
    lists = {name: tuple(facts[name]) for name in ("seen_extents", "added_images")}
    manifest = Manifest(**{**facts, **lists, "opened_as": opened_as})
    _check_values(path, manifest)
    return manifest


def _check_values(path: Path, manifest: Manifest) -> None:
    """Raises ``ShardFormatError``."""
    most_of = {"row_shards": MOST_ROW_SHARDS, "across_shards": MOST_ROW_FILES, "journal_rows": MOST_ROWS}
    for name, most in most_of.items():
        if not 1 <= (value := getattr(manifest, name)) <= most:
            raise ShardFormatError(f"{path}: {name} is out of range", expected=f"1 to {most}", got=value)
    if len(manifest.added_images) > MAX_IMAGES:
        raise ShardFormatError(f"{path}: too many added_images", expected=f"at most {MAX_IMAGES}")
    if manifest.spill_root is not None:
        try:
            local_path(manifest.spill_root)
        except ConfigError as error:
            raise ShardFormatError(f"{path}: spill_root is no path of a folder", got=error.got) from None
    seen = [manifest.seen_stop, *manifest.seen_extents]
    if not all(type(number) is int and 0 <= number <= _MOST_FRAMES for number in seen):
        raise ShardFormatError(
            f"{path}: seen_stop or seen_extents are out of range",
            expected=f"0 to {_MOST_FRAMES}",
            got=repr(seen)[:80],
        )
    for name in ("live", "partial_chunks", "profile"):
        if (value := getattr(manifest, name)) not in OPTIONS[name]:
            raise ShardFormatError(f"{path}: {name} is not known", got=repr(value)[:80])
    if len(manifest.identity) != 32 or set(manifest.identity) - set("0123456789abcdef"):
        raise ShardFormatError(f"{path}: identity is not 32 hex digits", got=repr(manifest.identity)[:80])


def _opened_as(path: Path, facts: dict[str, Any]) -> OpenedAs:
    """Raises ``ShardFormatError``."""
    expected = {field.name for field in fields(OpenedAs)}
    if facts.keys() != expected:
        raise ShardFormatError(f"{path}: unknown or missing fields in opened_as", got=sorted(facts)[:8])
    stream, settings = facts["stream"], facts["settings"]
    if stream is not None and not (isinstance(stream, str) and re.fullmatch(NAME_PATTERN, stream)):
        raise ShardFormatError(f"{path}: opened_as.stream is no name", got=repr(stream)[:80])
    if not isinstance(settings, dict) or len(settings) > _MOST_SETTINGS:
        raise ShardFormatError(f"{path}: opened_as.settings are none", got=repr(settings)[:80])
    for name, most in (("ring_frames", _MOST_RING_FRAMES), ("frames_expected", _MOST_FRAMES)):
        value = facts[name]
        if value is None and name == "frames_expected":
            continue
        if type(value) is not int or not 1 <= value <= most:
            raise ShardFormatError(
                f"{path}: opened_as.{name} is out of range", expected=f"1 to {most}", got=repr(value)[:80]
            )
    return OpenedAs(**facts)
