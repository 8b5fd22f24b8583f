"""The seal of shard rows: one function, ``seal``, in the order of what happens. Its steps 2 to 10 are
``name_shards``, since shards may take these ahead of their row. FORMAT.md, "Sealing", has the same steps
under the same numbers, with the failpoints of each.

A kill, a power cut or a take-over may come between any two calls. The order keeps three promises:
- a final name has a whole, durable shard: readers take it as it is, and so does recovery (row ``named``);
- the record of each stored frame is in the journal or in the frame log, where recovery looks for it;
- what another writer or another program has made is neither replaced nor deleted.

All rows take each step before the next one: so one sync stands for all of them, however many they are. A
shard row that fails stops at its step, and recovery or the next try goes on from there.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shardwright.array.grid import image_of
from shardwright.disk.side_by_side import side_by_side
from shardwright.model.errors import StorageError
from shardwright.shard.shard_row_files import record_sums

from .commands import ShardRowSealed
from .together import Together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from shardwright.model.error_text import ErrorText
    from shardwright.shard.open_shard import OpenShard
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
    together = Together(rows, explain, folder.ballast)
    records: dict[int, np.ndarray] = {}

    # 1. The image's array is there before its first shard. Readers of files find shards through zarr.json:
    # without it a kill would leave frames that nobody sees until recovery.
    together.in_one(lambda rows: make_images(folder, {image_of(files.shard_row) for files in rows}))

    # 2 to 10. Bytes, sums and names.
    name_shards(together, may_rename, step)

    # 11. The frames go to the log once their shards have their names. A live view relies on it: a frame that
    # is in the log is in a shard with its final name. The log is synced before any journal goes, since until
    # then the journals alone have these records. One sync serves all rows.
    def log(rows: Sequence[ShardRowFiles]) -> None:
        found = {files.shard_row: files.frame_records() for files in rows}
        folder.log.append_rows(found)
        records.update(found)

    together.in_one(log)
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
    together: Together,
    may_rename: Callable[[], None],
    step: Callable[[], None],
    numbers: Mapping[int, Iterable[int]] | None = None,
) -> None:
    """Gives shards of rows their final names: steps 2 to 10. ``numbers``: of files, by shard row; by default
    of all. Others are of stored slabs of a split row, whose shards take their names ahead of it.
    ``may_rename`` raises ``FencedError`` when another writer has taken over. After a ``StorageFullError``,
    once there is room, it may be called again for a row, which continues where it stopped."""
    rows = together.going
    todo = {row.shard_row: row.unsealed(None if numbers is None else numbers[row.shard_row]) for row in rows}
    shares = together.shares(sum(map(len, todo.values())))

    def shards_of(files: ShardRowFiles) -> list[OpenShard]:
        return list(todo[files.shard_row].values())

    # 2 to 4. Index, gaps and tail: the last change of these files. It comes before the sync, which makes all
    # of it durable at once. No file is named before each has had its room for this: a row that is named in
    # part can no longer be written to other files.
    def complete(files: ShardRowFiles) -> None:
        shards = shards_of(files)

        def complete_one(number: int) -> None:
            shards[number].complete(step)
            step()

        side_by_side(complete_one, len(shards))

    together.side_by_side(complete)

    # 5 and 6. Data, then the journal: the other way round a power cut would leave entries without their
    # chunks. Both before the first name: a final name, or a file that is gone, tells recovery that the seal
    # has begun, and that the journal has every frame of the row.
    together.sync(shares, lambda files: files.sync_shards(shards_of(files), step))

    # 7. The sums are on record before the names, too: of a shard without a line nobody could tell later that
    # it was deleted or altered. A line too many is legal, also in a store that another writer has: one look
    # at the owner is enough for all. The record of a spilled row is in the store: a sync of the second root
    # does not reach it.
    together.at_once(may_rename)
    lined = {files for files in shares if files.placement.spill is None}
    together.in_one(lambda rows: record_sums([each for each in rows if each in lined], todo, synced=False))
    together.sync(lined, lambda files: record_sums([files], todo, again=files in lined))

    # 8. Looks: at all names, so that no row is named in part because another file has one of them, and at the
    # owner before each name: one look for the whole row would be old at its last shard, and the folders of a
    # store that was deleted meanwhile would come back without it. A take-over that comes behind the look does
    # no harm. The new writer deletes the working names, so that the rename finds nothing, or it finds the
    # shard under its final name.
    def take_names(files: ShardRowFiles) -> None:
        shards = shards_of(files)
        for shard in shards if len(shards) > 1 else ():  # one alone is looked at as it takes its name
            shard.check_names()

        def take_name(number: int) -> None:
            may_rename()
            # 9. Never in place of another file, which would be another writer's shard or a stranger's. Only a
            # row that was opened again, or that readers saw grow, replaces its own earlier file.
            # ``take_name`` looks at the owner again: making the folders may have taken long.
            shards[number].take_name(may_rename, synced=files not in shares)
            # 10. A power cut may undo a rename. Once the journal is gone, the name alone leads to the frames.
            if files not in shares:
                shards[number].sync_name()
            step()

        side_by_side(take_name, len(shards))

    together.side_by_side(take_names, syncs=not shares)
    together.sync(shares, lambda files: files.sync_names(shards_of(files)), shares)

    # The link to a spilled shard comes last: one whose target has lost its name is an error to readers, while
    # a shard without a link is not there yet.
    def end(files: ShardRowFiles) -> None:
        for file in todo[files.shard_row]:
            files.end_sealed(file, may_rename)

    together.one_by_one(end)


def make_images(folder: StoreFolder, images: Iterable[int]) -> None:
    """Writes the metadata of images that have none yet, and their contrast windows once there are samples.
    Raises ``StorageError`` or what ``may_rename`` raises."""
    folder.metadata.make_images(sorted(images))
    with suppress(StorageError):  # windows are written again at the end: no reason to keep a shard waiting
        folder.metadata.show(sorted(images))


def _report(
    files: ShardRowFiles, error: ErrorText | None, seal_ns: int, records: Mapping[int, np.ndarray]
) -> ShardRowSealed:
    if error is not None:
        return ShardRowSealed(files.shard_row, 0, files.renamed, error, 0, None)
    shards = sum(sealed.path is not None for sealed in files.sealed.values())
    return ShardRowSealed(files.shard_row, shards, files.renamed, None, seal_ns, records[files.shard_row])
