"""Replaces many small files, such as the metadata of the images of a plate, with the syncs of a few.

write all ──▶ sync ──▶ names of the first step ──▶ sync ──▶ names of the next step ──▶ sync ...
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from .files import NewFile, sync_directory
from .filesystems import WholeSync, shares_sync
from .side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from .files import DurableFolders


def replace_files(
    root: Path,
    folders: DurableFolders,
    steps: Sequence[Mapping[Path, bytes]],
    may_replace: Callable[[], None] = lambda: None,
    *,
    writer: int | str | None = None,
) -> None:
    """As ``replace_file``, of many files below ``root``, whose folders are made. The names of a step are
    durable before the next one begins; within a step they come in any order. A failure leaves some of the
    files, of the steps so far, as they are to be. Raises as ``replace_file``."""
    if not shares_sync(root, sum(map(len, steps))):
        _replace(folders, steps, may_replace, writer, None)
        return
    # Before anything is written: only a descriptor that was open then is told of what has failed.
    with closing(WholeSync(root)) as whole:
        _replace(folders, steps, may_replace, writer, whole)


def _replace(
    folders: DurableFolders,
    steps: Sequence[Mapping[Path, bytes]],
    may_replace: Callable[[], None],
    writer: int | str | None,
    whole: WholeSync | None,
) -> None:
    documents = [document for step in steps for document in step.items()]
    parents = list(dict.fromkeys(path.parent for path, _ in documents))
    side_by_side(lambda number: folders.make(parents[number], synced=whole is None), len(parents))
    with ExitStack() as stack:
        new: dict[Path, NewFile] = {}

        def write(number: int) -> None:
            path, data = documents[number]
            new[path] = stack.enter_context(NewFile(path, data, writer))

        side_by_side(write, len(documents))
        if whole is None or not whole.sync("replace"):
            for parent in parents if whole is not None else ():
                folders.make(parent)
            for file in new.values():
                file.sync()
        for step in steps:
            # One look for all: it comes when they are written, and a writer that takes over behind it deletes
            # those that have not taken their names yet (``delete_new_files``).
            if step:
                may_replace()
            _take_names([new[path] for path in step])
            if step and (whole is None or not whole.sync("directory")):
                for parent in dict.fromkeys(path.parent for path in step):
                    sync_directory(parent)


def _take_names(new: Sequence[NewFile]) -> None:
    side_by_side(lambda number: new[number].replace(lambda: None, synced=False), len(new))
