"""What the stories of a campaign have crossed with journals that shard rows share. A promise that holds in
stories which never come near them says nothing about them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import shardwright.acquire.sealer as sealer_module
from shardwright.model.errors import StorageFullError
from shardwright.model.names import WORKSPACE
from shardwright.shard.shard_row_files import ShardRowFiles
from shardwright.shard.shared_journal import SharedJournal, is_shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .story import Story


class Crossings:
    """Counts by name. ``instead``: calls of the code that it listens to."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.counts: Counter[str] = Counter()

    def _count(self, what: str, times: int = 1) -> None:
        self.counts[f"shared {what}"] += times

    def taken_up(self, path: Path, *, how: str) -> None:
        """A store is about to be taken up, or recovered at last."""
        if any(is_shared(file.name) for file in (path / WORKSPACE).glob("**/rows-*.journal")):
            self._count(how)

    def instead(self) -> tuple[tuple[Any, str, Any], ...]:
        return (
            (sealer_module, "prepare", self._prepares(sealer_module.prepare)),
            (sealer_module, "reopen_row", self._reopens(sealer_module.reopen_row)),
            (ShardRowFiles, "replace", self._rewrites(ShardRowFiles.replace)),
            (SharedJournal, "begin", self._begins(SharedJournal.begin)),
            (SharedJournal, "end", self._ends(SharedJournal.end)),
        )

    def _prepares(self, prepare: Callable[..., dict[int, Any]]) -> Callable[..., dict[int, Any]]:
        def prepared(*args: Any) -> dict[int, Any]:
            found = prepare(*args)
            if args[-1] is not None:
                failed = [each for each in found.values() if not isinstance(each, ShardRowFiles)]
                full = any(why.is_a(StorageFullError) for why in failed)
                self._count("batches with a full disk", full)
                self._count("batches that another error cut", bool(failed) and not full)
                self._count("batches of which a part was made", 0 < len(failed) < len(found))
            return found

        return prepared

    def _reopens(self, reopen: Callable[..., Any]) -> Callable[..., Any]:
        def reopened(folder: Any, *args: Any, **how: Any) -> Any:
            self._count("rows reopened", folder.manifest.journal_rows > 1)
            return reopen(folder, *args, **how)

        return reopened

    def _rewrites(self, replace: Callable[..., None]) -> Callable[..., None]:
        def replaced(files: ShardRowFiles, old: ShardRowFiles, *args: Any, **how: Any) -> None:
            self._count("rows rewritten", old.journal.is_shared)
            replace(files, old, *args, **how)

        return replaced

    def _begins(self, begin: Callable[..., None]) -> Callable[..., None]:
        def begun(shared: SharedJournal, there: Any) -> None:
            begin(shared, there)
            self._count("journals")
            self._count("rows", len(there))
            self._count("journals of an acquisition with an order", self._story.shape.order is not None)

        return begun

    def _ends(self, end: Callable[..., None]) -> Callable[..., None]:
        def ended(shared: SharedJournal, row: int, *, durably: bool = False) -> None:
            end(shared, row, durably=durably)
            self._count("rows ended durably", durably)

        return ended
