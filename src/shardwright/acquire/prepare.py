"""The preparation of shard rows: one function, ``prepare``, in the order of what happens. All rows take each
step before the next one, so that one sync stands for all of them.

A kill or a power cut may come between any two calls. A journal that has its header says that the shards of
its row have their names: without one of them the row would count as sealed (rows ``named``, ``all-fill`` of
``scan.table``). A shard in progress without a journal, and a journal without a header, hold nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardwright.disk.files import sync_directory
from shardwright.disk.side_by_side import side_by_side

from .together import Together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardwright.model.error_text import ErrorText
    from shardwright.shard.shard_row_files import ShardRowFiles
    from shardwright.shard.shared_journal import SharedJournal


def shares_journal(files: ShardRowFiles) -> bool:
    return files.journal.is_shared


def prepare(
    rows: Sequence[int],
    create: Callable[[int], ShardRowFiles],
    explain: Callable[[Exception], ErrorText],
    may_rename: Callable[[], None],
    shared: SharedJournal | None = None,
) -> dict[int, ShardRowFiles | ErrorText]:
    """Prepares shard rows by their numbers; returns the files of each, or the error. ``create`` makes and
    preallocates them, in any of a few threads; some of them may have a ``shared`` journal."""
    made: dict[int, ShardRowFiles] = {}
    failed: dict[int, ErrorText] = {}
    try:
        may_rename()  # raises if the names in the workspace belong to another writer
    except Exception as error:  # noqa: BLE001  (travels in the reports)
        return dict.fromkeys(rows, explain(error))

    # Real blocks for shards and journals.
    def create_one(number: int) -> None:
        try:
            made[rows[number]] = create(rows[number])
        except Exception as error:  # noqa: BLE001  (travels in the report)
            failed[rows[number]] = explain(error)

    side_by_side(create_one, len(rows))
    together = Together([made[row] for row in rows if row in made], explain)
    if shared is not None:
        together.at_once(shared.make, shares_journal)

    # The names: of all rows of a root they lie in one folder.
    def sync_names(rows: Sequence[ShardRowFiles]) -> None:
        for folder in dict.fromkeys(files.placement.files for files in rows):
            sync_directory(folder)

    together.in_one(sync_names)

    # The headers of the journals, behind all names.
    together.one_by_one(
        lambda files: files.journal.begin(), [files for files in together.going if not shares_journal(files)]
    )
    if shared is not None:
        there = [files.shard_row for files in together.going if shares_journal(files)]
        together.at_once(partial(shared.begin, there), shares_journal)
        together.at_once(shared.sync, shares_journal)
    if own := [files for files in together.going if not shares_journal(files)]:
        shares = [files for files in together.shares(len(own)) if files in own]
        together.sync(shares, lambda files: files.journal.sync(), own)

    for row, why in together.failed.items():
        made.pop(row).give_back(may_rename)
        failed[row] = why
    return {**made, **failed}
