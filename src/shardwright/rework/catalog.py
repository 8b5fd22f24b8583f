"""The acquisitions in a folder, as their stores tell: ``shardwright list``, ``shardwright.acquisitions``.

There is no file of names beside the stores: it would be a second truth, and the one that goes stale. Each
store is looked at by itself; what cannot be read is named, and hides no other."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.frame_table_format import TABLE_PATH
from shardwright.disk import beneath
from shardwright.disk.lock import is_locked
from shardwright.disk.spill_links import shard_status
from shardwright.disk.typed_errors import says_absent, says_closed, storage_errors
from shardwright.model.errors import LinkError, ShardFormatError, ShardwrightError, StorageError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import ARCHIVE_SUFFIX, DOCUMENT, WORKSPACE, acquisition_name, is_archive_name
from shardwright.read.frame_table import open_frame_table
from shardwright.read.live_view import LiveView
from shardwright.read.store import open_store
from shardwright.remote.zip_path import is_archive
from shardwright.store.moved_store import is_moved_away

from .runtime.job_report import no_progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.read.frame_table import FrameTable
    from shardwright.read.store import Store

    from .runtime.job_report import OnProgress

FINISHED, RUNNING, UNFINISHED, MOVED, UNREADABLE = (
    "finished",
    "running",
    "unfinished",  # no writer holds it: `shardwright recover` ends it
    "moved away",
    "unreadable",
)


@dataclass(frozen=True)
class ListedAcquisition:
    """One acquisition. ``started_s``: when its first frame came, in seconds since 1970, None without a frame.
    ``stored_bytes``: on the disk, also below a second root. ``frames``: stored ones; None of a store whose
    table does not tell. ``trouble``: the counts of a receipt that are not 0, as far as the store tells; empty
    if every frame is in its place. ``elsewhere``: folders below another root that have some of its shards.
    ``problem``: of one that cannot be read."""

    name: str
    path: str
    state: str
    started_s: float | None = None
    stored_bytes: int = 0
    frames: int | None = None
    trouble: dict[str, int] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns what ``--json`` prints of it."""
        return {**asdict(self), "elsewhere": list(self.elsewhere)}


def listed_acquisitions(root: Path, on_progress: OnProgress = no_progress) -> Iterator[ListedAcquisition]:
    """Yields the acquisitions in a folder, by name, also those in one file each (``.ozx``); what is given may
    be one itself. Other folders, links, and what a creation has left are no acquisitions. ``on_progress``
    (done, all) is called with each. Raises ``StorageError`` for a folder that cannot be read."""
    if is_archive(root):
        stores = [root]
    elif not beneath.is_dir(root):
        raise StorageError(
            f"no such folder: {root}",
            hint=f"Give the folder in which the stores are, or one store, also a file {ARCHIVE_SUFFIX}",
        )
    else:
        stores = [root] if _may_be_store(root) else _stores_in(root)
    for number, path in enumerate(stores, 1):
        found = _look_at(path)
        if found is not None:
            yield found
        on_progress(number, len(stores))


def started_text(one: ListedAcquisition) -> str:
    """Returns when its first frame came, for people."""
    if one.started_s is None:
        return "-"
    return datetime.fromtimestamp(one.started_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _may_be_store(path: Path) -> bool:
    """Returns whether a folder has the frame table that our acquisitions end with, or a workspace."""
    return beneath.exists(path / TABLE_PATH / DOCUMENT) or beneath.is_dir(path / WORKSPACE)


def _stores_in(root: Path) -> list[Path]:
    """Returns the folders and archives in a folder, without hidden ones."""
    with storage_errors("look into", root), beneath.entries_in(root) as entries:
        names = [
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            or (is_archive_name(entry.name) and entry.is_file(follow_symlinks=False))
        ]
    return [root / name for name in sorted(names) if not name.startswith(".")]


def _look_at(path: Path) -> ListedAcquisition | None:
    """Returns what is known of a folder, None if it is no acquisition."""
    name = acquisition_name(path.name)
    try:
        if is_archive(path):
            with storage_errors("look at", path):
                stored_bytes = beneath.stat(path).st_blocks * 512
            return _finished(path, ListedAcquisition(name, str(path), FINISHED, stored_bytes=stored_bytes))
        if not _may_be_store(path):
            return ListedAcquisition(name, str(path), MOVED) if is_moved_away(path) else None
        stored_bytes, elsewhere = _size_of(path)
        whole = ListedAcquisition(
            name, str(path), FINISHED, stored_bytes=stored_bytes, elsewhere=tuple(sorted(elsewhere))
        )
        if beneath.is_dir(path / WORKSPACE):
            return _unfinished(path, whole)
        return _finished(path, whole)
    except ShardwrightError as error:
        is_named_as_one = path.suffix.lower() in (".zarr", ARCHIVE_SUFFIX)
        if isinstance(error, OSError) and says_closed(error) and not is_named_as_one:
            return None  # the lost+found of a disk
        return ListedAcquisition(name, str(path), UNREADABLE, problem=str(error))


def _finished(path: Path, whole: ListedAcquisition) -> ListedAcquisition | None:
    store = open_store(path)
    table = open_frame_table(store)
    if table is None:
        return None  # of another program
    if not table.tells_statuses:
        return replace(whole, started_s=_first_arrival_s(table))
    counts: Counter[int] = Counter()
    for chunk in range(table.chunks):
        numbers, rows = np.unique(table.read_statuses(chunk), return_counts=True)
        counts.update(dict(zip(numbers.tolist(), rows.tolist(), strict=True)))
    if unknown := counts.keys() - set(FrameStatus):
        raise ShardFormatError(
            "the frame table has statuses with unknown numbers",
            got=sorted(unknown),
            hint="`shardwright verify` tells more; a later release may have written it",
        )
    stored = counts.pop(FrameStatus.STORED, 0)
    empty = counts.pop(FrameStatus.SKIPPED, 0)  # as was said: no trouble
    trouble = {FrameStatus(number).counted_as: n for number, n in counts.items() if n}
    if missing := max(0, _places(store, table) - stored - empty):
        trouble = {"frames_missing": missing, **trouble}
    return replace(whole, started_s=_first_arrival_s(table), frames=stored, trouble=trouble)


def _unfinished(path: Path, whole: ListedAcquisition) -> ListedAcquisition:
    state = RUNNING if is_locked(path / WORKSPACE / "lock") else UNFINISHED
    acquiring, found = LiveView(path).look()
    if acquiring is None:
        return replace(whole, state=state)
    frames, first_ns = 0, []
    for records in (*acquiring.take_sealed(), *([np.concatenate(found)] if found else [])):
        stored = records[records["status"] == FrameStatus.STORED]
        frames += np.unique(stored["sequence"]).size  # one that is staged may be in its slab as well
        if stored.size:
            first_ns.append(int(stored["arrival_ns"].min()))
    started_s = min(first_ns) / 1e9 if first_ns else None
    return replace(whole, state=state, frames=frames, started_s=started_s)


def _first_arrival_s(table: FrameTable) -> float | None:
    """Returns when the first frame of a table came; rows are in the order of sending."""
    if not table.rows or "arrival_ns" not in table.columns:
        return None
    return float(table.read("arrival_ns", 0).min()) / 1e9


def _places(store: Store, table: FrameTable) -> int:
    """Returns the number of places for frames in all images of a store."""
    places = 0
    for image in store.images:
        if image.arrays:
            with suppress(ShardFormatError):  # an image that was added since
                counts = table.of(store, image.arrays[0]).frame_counts(image.arrays[0])
                places += int(np.prod(counts, dtype=object))
    return places


def _raise(error: OSError) -> None:
    with storage_errors("look into", str(error.filename)):
        beneath.raise_unless_gone(error)


def _size_of(path: Path) -> tuple[int, set[str]]:
    """Returns the bytes on disk of a store, and the folders below another root to which links of it lead.
    What goes meanwhile counts nothing."""
    nbytes, elsewhere = 0, set()
    for folder, _, names in beneath.walk(path, failed=_raise):
        for name in names:
            try:
                with storage_errors("look at", folder / name):
                    file = folder / name
                    status = beneath.stat(file)
                    if beneath.is_link(file):
                        status = shard_status(file)
                        root = beneath.read_link(file).parents[len(file.relative_to(path).parts) - 1]
                        elsewhere.add(str(root))
                    nbytes += status.st_blocks * 512
            except StorageError as error:
                if not says_absent(error) and not isinstance(error, LinkError):
                    raise
    return nbytes, elsewhere
