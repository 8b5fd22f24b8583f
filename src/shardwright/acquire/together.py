"""Shard rows that take the same steps at one time, so that one sync stands for many files, names and images.
Used by the sealer's thread."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardwright.disk.side_by_side import side_by_side
from shardwright.model.errors import StorageError, StorageFullError
from shardwright.shard.shard_row_files import sharing, synced_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardwright.disk.ballast import Ballast
    from shardwright.model.error_text import ErrorText
    from shardwright.shard.shard_row_files import ShardRowFiles


class Together:
    """Shard rows that take the same steps at one time. One that fails stops at its step; the others go on.
    ``explain`` returns the cause of an error, in any of the threads that do a step. ``ballast``: None if a
    full disk may stop them."""

    def __init__(
        self,
        rows: Sequence[ShardRowFiles],
        explain: Callable[[Exception], ErrorText],
        ballast: Ballast | None = None,
    ) -> None:
        self._rows = rows
        self._ballast = ballast
        self._explain = explain
        # by shard row; each is written by the thread that has the row
        self.failed: dict[int, ErrorText] = {}

    @property
    def going(self) -> list[ShardRowFiles]:
        """The rows that have not failed."""
        return [files for files in self._rows if files.shard_row not in self.failed]

    def one_by_one(
        self, work: Callable[[ShardRowFiles], None], rows: Iterable[ShardRowFiles] | None = None
    ) -> None:
        """Does work for each row, on a full disk in the room of the ballast, which is held for this work: an
        acquisition must be able to end."""
        for files in self.going if rows is None else rows:
            try:
                self._with_ballast(partial(work, files))
            except Exception as error:  # noqa: BLE001  (travels in the report)
                self.failed[files.shard_row] = self._explain(error)

    def side_by_side(
        self,
        work: Callable[[ShardRowFiles], None],
        rows: Sequence[ShardRowFiles] | None = None,
        *,
        syncs: bool = False,
    ) -> None:
        """Does work for each row, in a few threads. Rows that find no room come once more, one by one, if
        there is a ballast: it is there once, and another row may have given room back meanwhile. ``syncs``:
        as for ``side_by_side``."""
        chosen = self.going if rows is None else rows
        full: list[ShardRowFiles] = []

        def attempt(number: int) -> None:
            files = chosen[number]
            try:
                work(files)
            except Exception as error:  # noqa: BLE001  (travels in the report)
                if isinstance(error, StorageFullError) and self._ballast is not None:
                    full.append(files)
                else:
                    self.failed[files.shard_row] = self._explain(error)

        side_by_side(attempt, len(chosen), syncs=syncs)
        self.one_by_one(work, full)

    def in_one(self, work: Callable[[Sequence[ShardRowFiles]], None]) -> None:
        """Does work for all rows by one call. If that fails, it is done for each by itself: the others do not
        fail with one of them."""
        going = self.going
        try:
            self._with_ballast(partial(work, going))
        except Exception as error:  # noqa: BLE001  (travels in the report)
            why = self._explain(error)
            if len(going) == 1:
                self.failed[going[0].shard_row] = why
            else:
                self.one_by_one(lambda files: work([files]))

    def at_once(
        self, work: Callable[[], None], of: Callable[[ShardRowFiles], bool] = lambda files: True
    ) -> None:
        """Does work that stands for all rows, or for those ``of`` which it is true, if any is left: all of
        them fail with it."""
        if going := list(filter(of, self.going)):
            try:
                work()
            except Exception as error:  # noqa: BLE001  (travels in the reports)
                why = self._explain(error)
                self.failed.update((files.shard_row, why) for files in going)

    def shares(self, files: int) -> list[ShardRowFiles]:
        """As ``sharing``; none if filesystems cannot be looked at, which each row then tells by itself."""
        with suppress(StorageError):
            return sharing(self.going, files)
        return []

    def sync_all(self, step: Callable[[], None]) -> None:
        """Makes all files of the rows durable that are not sealed."""
        shares = self.shares(sum(len(files.unsealed()) for files in self.going))
        self.sync(shares, lambda files: files.sync(step))

    def sync(
        self,
        shares: Iterable[ShardRowFiles],
        alone: Callable[[ShardRowFiles], None],
        rows: Iterable[ShardRowFiles] | None = None,
    ) -> None:
        """Makes durable what ``rows`` (all) have done so far: those of ``shares`` by one sync, all for which
        that does not stand by ``alone``."""
        going = set(self.going)
        done = set(synced_whole([files for files in shares if files in going]))
        left = [
            files for files in (self._rows if rows is None else rows) if files in going and files not in done
        ]
        self.side_by_side(alone, left, syncs=True)

    def _with_ballast(self, work: Callable[[], None]) -> None:
        if self._ballast is None:
            work()
        else:
            self._ballast.spent_on(work)
