"""The seal of shard rows: one function, ``seal``, in the order of what happens. Its steps 2 to 10 are
``name_shards``, since shards may take these ahead of their row. FORMAT.md, "Sealing", has the same steps
under the same numbers, with the failpoints of each.

A kill, a power cut or a take-over may come between any two calls. The order keeps three promises:
- a final name has a whole, durable shard: readers take it as it is, and so does recovery (row ``named``);
- the record of each stored frame is in the journal or in the frame log, where recovery looks for it;
- what another writer or another program has made is neither replaced nor deleted.

A shard row that fails stops at its step, and recovery or the next try goes on from there.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardwright.array.grid import image_of
from shardwright.disk.side_by_side import side_by_side
from shardwright.model.errors import StorageError, StorageFullError
from shardwright.shard.frame_log import BlockKind

from .commands import ShardRowSealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from shardwright.disk.ballast import Ballast
    from shardwright.model.error_text import ErrorText
    from shardwright.shard.shard_row_files import ShardRowFiles
    from shardwright.store.store_folder import StoreFolder


def seal(
    rows: Sequence[ShardRowFiles],
    folder: StoreFolder,
    explain: Callable[[Exception], ErrorText],
    step: Callable[[], None],
) -> list[ShardRowSealed]:
    """Seals shard rows of a store; returns a report of each, in their order. ``explain`` returns the cause of
    an error, in any of the threads that name shards; ``step`` is called after each file."""
    begun_ns, may_rename = time.monotonic_ns(), folder.owner.may_rename
    together = _Together(rows, folder.ballast, explain)
    records: dict[int, np.ndarray] = {}

    # 1. The image's array is there before its first shard. Readers of files find shards through zarr.json:
    # without it a kill would leave frames that nobody sees until recovery.
    together.one_by_one(lambda files: make_image(folder, image_of(files.shard_row)))

    # 2 to 10. Shard rows side by side, so that one commit of the filesystem's journal serves the syncs of
    # several.
    together.side_by_side(lambda files: name_shards(files, may_rename, step))

    # 11. The frames go to the log once their shards have their names. A live view relies on it: a frame that
    # is in the log is in a shard with its final name. The log is synced before any journal goes, since until
    # then the journals alone have these records. One sync serves all rows.
    def log(files: ShardRowFiles) -> None:
        found = files.frame_records()
        folder.log.append(BlockKind.SHARD_ROW, files.shard_row, found)
        records[files.shard_row] = found

    together.one_by_one(log)
    together.at_once(folder.log.sync)

    # 12. The journal goes last: without it only the final names and the log have these frames. The look
    # before it is for a store that was taken over or moved meanwhile: no deletion can be undone. No sync
    # follows. A journal that a power cut brings back is of a row that the log has, and recovery deletes it;
    # that of a row that was opened again is taken up (row ``replaced``), and the row is sealed once more.
    together.at_once(may_rename)
    together.one_by_one(lambda files: files.journal.delete())

    # Only the report lets the owner forget the row, and release what it kept to write it once more.
    seal_ns = time.monotonic_ns() - begun_ns
    return [_report(files, together.failed.get(files.shard_row), seal_ns, records) for files in rows]


def name_shards(
    files: ShardRowFiles,
    may_rename: Callable[[], None],
    step: Callable[[], None],
    numbers: Iterable[int] | None = None,
) -> None:
    """Gives shards of a row their final names: steps 2 to 10. ``numbers``: of files; by default of all.
    Others are of stored slabs of a split row, whose shards take their names ahead of it. ``may_rename``
    raises ``FencedError`` when another writer has taken over.

    Raises ``StorageError``. After a ``StorageFullError``, once there is room, it may be called again and
    continues where it stopped.
    """
    todo = files.unsealed(numbers)
    shards = list(todo.values())
    is_one_sync = files.synced_together(shards)

    # 2 to 4. Index, gaps and tail: the last change of these files. It comes before the sync, which makes all
    # of it durable at once. No file is named before each has had its room for this: a row that is named in
    # part can no longer be written to other files.
    def complete(number: int) -> None:
        shards[number].complete(step)
        step()

    side_by_side(complete, len(shards))

    # 5 and 6. Data, then the journal: the other way round a power cut would leave entries without their
    # chunks. Both before the first name: a final name, or a file that is gone, tells recovery that the seal
    # has begun, and that the journal has every frame of the row.
    files.sync_shards(shards, step)

    # 7. The sums are on record before the names, too: of a shard without a line nobody could tell later that
    # it was deleted or altered. A line too many is legal.
    files.record_sums(todo, may_rename)

    # 8. Looks: at all names, so that no row is named in part because another file has one of them, and at the
    # owner before each name: one look for the whole row would be old at its last shard. A take-over that
    # comes behind the look does no harm. The new writer deletes the working names, so that the rename finds
    # nothing, or it finds the shard under its final name.
    for shard in shards:
        shard.check_names()

    def take_name(number: int) -> None:
        may_rename()
        # 9. Never in place of another file, which would be another writer's shard or a stranger's. Only a row
        # that was opened again, or that readers saw grow, replaces its own earlier file. ``take_name`` looks
        # at the owner again: making the folders may have taken long.
        shards[number].take_name(may_rename, synced=not is_one_sync)
        # 10. A power cut may undo a rename. Once the journal is gone, the name alone leads to the frames.
        if not is_one_sync:
            shards[number].sync_name()
        step()

    side_by_side(take_name, len(shards))
    if is_one_sync:
        files.sync_names(shards)

    # The link to a spilled shard comes last: one whose target has lost its name is an error to readers, while
    # a shard without a link is not there yet.
    for file in todo:
        files.end_sealed(file, may_rename)


def make_image(folder: StoreFolder, image: int) -> None:
    """Writes the metadata of an image that has none yet, and its contrast windows once there are samples.
    Raises ``StorageError`` or what ``may_rename`` raises."""
    folder.metadata.make_image(image)
    with suppress(StorageError):  # windows are written again at the end: no reason to keep a shard waiting
        folder.metadata.show(image)


def _report(
    files: ShardRowFiles, error: ErrorText | None, seal_ns: int, records: Mapping[int, np.ndarray]
) -> ShardRowSealed:
    if error is not None:
        return ShardRowSealed(files.shard_row, 0, files.renamed, error, 0, None)
    shards = sum(sealed.path is not None for sealed in files.sealed.values())
    return ShardRowSealed(files.shard_row, shards, files.renamed, None, seal_ns, records[files.shard_row])


class _Together:
    """Shard rows that are sealed at one time. One that fails stops at its step; the others go on."""

    def __init__(
        self, rows: Sequence[ShardRowFiles], ballast: Ballast, explain: Callable[[Exception], ErrorText]
    ) -> None:
        self._rows = rows
        self._ballast = ballast
        self._explain = explain
        self.failed: dict[int, ErrorText] = {}  # by shard row; each is written by the thread that has the row

    def one_by_one(self, work: Callable[[ShardRowFiles], None]) -> None:
        """Does work for each row, on a full disk in the room of the ballast, which is held for this work: an
        acquisition must be able to end."""
        self._with_ballast(self._going, work)

    def side_by_side(self, work: Callable[[ShardRowFiles], None]) -> None:
        """Does work for each row, in a few threads. Rows that find no room come once more, one by one: the
        ballast is there once, and another row may have given room back meanwhile."""
        rows = self._going
        full: list[ShardRowFiles] = []

        def attempt(number: int) -> None:
            files = rows[number]
            try:
                work(files)
            except StorageFullError:
                full.append(files)
            except Exception as error:  # noqa: BLE001  (travels in the report)
                self.failed[files.shard_row] = self._explain(error)

        side_by_side(attempt, len(rows), syncs=True)
        self._with_ballast(full, work)

    def at_once(self, work: Callable[[], None]) -> None:
        """Does work that stands for all rows, if any is left: all of them fail with it."""
        if going := self._going:
            try:
                work()
            except Exception as error:  # noqa: BLE001  (travels in the reports)
                self.failed.update(dict.fromkeys((each.shard_row for each in going), self._explain(error)))

    @property
    def _going(self) -> list[ShardRowFiles]:
        return [files for files in self._rows if files.shard_row not in self.failed]

    def _with_ballast(self, rows: list[ShardRowFiles], work: Callable[[ShardRowFiles], None]) -> None:
        for files in rows:
            try:
                self._ballast.spent_on(partial(work, files))
            except Exception as error:  # noqa: BLE001  (travels in the report)
                self.failed[files.shard_row] = self._explain(error)
