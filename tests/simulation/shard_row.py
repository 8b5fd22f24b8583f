"""The files of one shard row as the sealer, workers and recovery have them open, and what each of them does
to all of them. As ``shard.shard_row_files``, ``shard.read_back`` and ``shard.rewrite`` do; a generator yields
wherever its process may die."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import OutputExistsError, StorageError
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.layout import slabs_of_shard_row

from .disk import ABSENT, REWRITE, File, Name, Place, final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from shardwright.shard.layout import ArrayLayout

    from .disk import Disk

    Steps = Generator[None, None, Any]

HEADER = "header"  # of a journal: whether its shard row is ``reopened``
INDEX = "index"  # of a complete shard: its slabs

NO_RECORDS = np.zeros(0, record_dtype(0))


@dataclass(eq=False)
class Shard:
    """``entries``: slabs in it and their chunk. ``ready``: complete under its working name; ``empty``: and
    all fill, so that it is deleted."""

    file: File
    name: Name
    entries: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ready: bool = False
    empty: bool = False
    renamed: bool = False


@dataclass(eq=False)
class Journal:
    file: File
    reopened: bool


@dataclass(eq=False)
class Files:
    """``shards[f]`` None: it has its final name already. The ``sealed`` of the others have it durably, the
    ``recorded`` ones are in the record of the shards."""

    place: Place
    shard_row: int
    layout: ArrayLayout
    shards: list[Shard | None]
    journal: Journal
    sealed: set[int] = field(default_factory=set)
    recorded: set[int] = field(default_factory=set)

    @property
    def slots(self) -> list[Shard]:
        return [shard for shard in self.shards if shard is not None]

    @property
    def is_split(self) -> bool:
        return self.layout.grid.is_split

    @property
    def unsealed(self) -> dict[int, Shard]:
        return {f: shard for f, shard in enumerate(self.shards) if shard is not None and f not in self.sealed}

    @property
    def renamed(self) -> bool:
        """Whether it cannot be rewritten any more. In a split one whole slabs have their names ahead."""
        return any(
            not self.is_split if shard is None else shard.renamed and not (self.is_split and f in self.sealed)
            for f, shard in enumerate(self.shards)
        )

    @property
    def holds_frames(self) -> bool:
        return self.records().size > 0

    def hidden(self) -> Iterator[int]:
        """Stored slabs whose shards have no final names."""
        table = self.journal.file.data
        for slab in [key[1] for key in table if key[0] == "frames"]:
            of_slab = files_of_slab(self.layout, slab)
            chunks = [table.get(("chunk", f, slab)) for f in of_slab]
            shards = [self.shards[f] for f in of_slab]
            if None not in chunks and any(shard is not None and not shard.renamed for shard in shards):
                yield slab

    def records(self) -> np.ndarray:
        """Of all frames that the journal has, in order of their sequence."""
        tables = [
            value
            for key, value in self.journal.file.data.items()
            if key[0] == "frames" and isinstance(value, np.ndarray)
        ]
        records = np.concatenate([NO_RECORDS, *tables])
        ordered: np.ndarray = records[np.argsort(records["sequence"], kind="stable")]
        return ordered


def files_of_slab(layout: ArrayLayout, slab: int) -> range:
    """The files of its shard row that have a chunk of it."""
    first = layout.layer_of_slab(slab)[1] * layout.files_per_slab if layout.grid.is_split else 0
    return range(first, first + layout.files_per_slab)


def make_files(
    disk: Disk,
    place: Place,
    shard_row: int,
    layout: ArrayLayout,
    check_writer: Callable[[], None],
    *,
    reopened: bool,
    suffix: str = "",
    keep: Files | None = None,
) -> Steps:
    """Shard files, then the journal; all names are durable before its header is written. Those of ``keep``
    that have their final names stay. Raises ``StorageError``; nothing is left behind then."""
    check_writer()
    journal = place.journal(shard_row, suffix)
    if journal in disk.names:
        disk.delete(journal)
        disk.sync_folder(place.folder)
    sealed = set() if keep is None else set(keep.sealed)
    shards: list[Shard | None] = [None] * layout.files_of(shard_row)
    made: list[Shard] = []
    try:
        for file in range(len(shards)):  # no look in between
            if keep is not None and (file in sealed or keep.shards[file] is None):
                shards[file] = keep.shards[file]
                continue
            disk.take_room("create")
            name = place.working(shard_row, file, suffix)
            shards[file] = shard = Shard(disk.make(name), name)
            made.append(shard)
            yield
        disk.take_room("create")
        table = disk.make(journal)
        yield
        disk.sync_folder(place.folder)
        yield
        table.write(HEADER, reopened)
        disk.take_little("create")
        table.sync()
    except StorageError:
        disk.delete(journal)
        disk.sync_folder(place.folder)
        check_writer()
        for shard in made:
            disk.delete(shard.name)
        raise
    return Files(place, shard_row, layout, shards, Journal(table, reopened), sealed)


def take_names(disk: Disk, files: Files, check_writer: Callable[[], None]) -> Steps:
    """Drop the suffix; the journal last."""
    for shard in files.unsealed.values():
        check_writer()
        target = files.place.working(files.shard_row, shard.name[2])
        disk.call("rewrite", shard.file)
        disk.rename(shard.name, target)
        shard.name = target
        yield
    if files.journal.reopened:
        disk.sync_folder(files.place.folder)
        yield
    check_writer()
    disk.rename(files.place.journal(files.shard_row, REWRITE), files.place.journal(files.shard_row))
    yield
    disk.sync_folder(files.place.folder)


def discard_rewrite(disk: Disk, files: Files, check_writer: Callable[[], None]) -> None:
    with suppress(StorageError):
        for name in (files.place.journal(files.shard_row, REWRITE), *(shard.name for shard in files.slots)):
            if name[0].endswith(REWRITE):
                check_writer()
                disk.delete(name)


def sync_files(disk: Disk, files: Files) -> Steps:
    """Data, then journal."""
    unsealed = files.unsealed.values()
    if len(unsealed) > disk.synced_alone:
        disk.sync_everything(files.journal.file, "sync shard row")
        yield
        return
    for shard in unsealed:
        disk.sync_shard_rows_file(shard.file, "sync shard row")
        yield
    disk.sync_shard_rows_file(files.journal.file, "sync shard row")
    yield


def seal_files(
    disk: Disk, files: Files, check_writer: Callable[[], None], numbers: Iterable[int] | None = None
) -> Steps:
    """Complete every file, or those of these numbers, sync the journal, then give them their final names one
    after another; of a split shard row in any order. Returns how many shards there are."""
    todo = {f: shard for f, shard in files.unsealed.items() if numbers is None or f in numbers}
    together = len(todo) > disk.synced_alone
    yield from _complete(disk, files, todo, synced=not together)
    if together:
        disk.sync_everything(files.journal.file, "seal")
    else:
        disk.sync_shard_rows_file(files.journal.file, "seal")
    yield
    if not todo or todo.keys() - files.recorded:
        check_writer()
        disk.take_little("seal")
        _record(disk, files, todo)
        yield
    for shard in _in_turn(disk, files, todo):
        if not shard.empty:
            yield from _take_name(disk, files, shard, check_writer, synced=not together)
        elif not shard.renamed:
            check_writer()
            disk.delete(shard.name)
            shard.renamed = True
            yield
    failure: StorageError | None = None
    if together:
        try:
            disk.sync_everything(files.journal.file, "seal")
        except StorageError as error:
            failure = error
            disk.call("seal")
            disk.sync_folder("final")
        yield
    files.sealed |= todo.keys()
    if failure is not None:
        raise failure
    return sum(not shard.empty or _older_stays(disk, files, shard) for shard in files.slots)


def _complete(disk: Disk, files: Files, todo: dict[int, Shard], *, synced: bool) -> Steps:
    for shard in _in_turn(disk, files, todo):
        if shard.ready:
            continue
        disk.take_little("seal")
        if not shard.entries:
            shard.empty = True
        else:
            shard.file.write(INDEX, frozenset(shard.entries))
            yield
            if synced:
                disk.sync_shard_rows_file(shard.file, "seal")
        shard.ready = True
        yield


def _in_turn(disk: Disk, files: Files, todo: dict[int, Shard]) -> list[Shard]:
    """In any order where several threads are at it."""
    shards = list(todo.values())
    if files.is_split:
        disk.rng.shuffle(shards)
    return shards


def _record(disk: Disk, files: Files, todo: dict[int, Shard]) -> None:
    for f, shard in todo.items():
        if f in files.recorded or (shard.empty and _older_stays(disk, files, shard)):
            continue
        content = None if shard.empty else _content(shard.file, frozenset(shard.entries))
        disk.sums.setdefault((files.shard_row, f), []).append(content)
    files.recorded |= todo.keys()


def _older_stays(disk: Disk, files: Files, shard: Shard) -> bool:
    """Of a shard row that was sealed once: what it had was not copied, but lost."""
    return files.journal.reopened and final(files.shard_row, shard.name[2]) in disk.names


def _take_name(
    disk: Disk, files: Files, shard: Shard, check_writer: Callable[[], None], *, synced: bool
) -> Steps:
    target = final(files.shard_row, shard.name[2])
    if not shard.renamed:
        disk.take_little("seal")
        check_writer()
        if not files.journal.reopened and target in disk.names:
            raise OutputExistsError(f"there is a shard {target} already")
        disk.rename(shard.name, target)
        shard.renamed = True
        yield
    if synced:
        disk.call("seal")
        disk.sync_folder("final")
        yield


def _content(file: File, slabs: frozenset[int]) -> dict[int, Any]:
    return {slab: file.data.get(slab) for slab in slabs}


def sealed_content(file: File) -> dict[int, Any]:
    """What readers find in a shard that has its final name."""
    return _content(file, file.data.get(INDEX, frozenset()))


@dataclass
class Found:
    """What the files of a shard row hold: slabs that are ``whole`` and the others that were begun, with the
    records of their frames; ``stored``: of the latter those all of whose chunks are journaled."""

    whole: dict[int, np.ndarray] = field(default_factory=dict)
    torn: dict[int, np.ndarray] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    has_all_records: set[int] = field(default_factory=set)


def read_back(disk: Disk, layout: ArrayLayout, files: Files, lost: frozenset[int] = frozenset()) -> Found:
    """As ``shard.read_back.read_back``."""
    found, table = Found(), files.journal.file
    shards = [None if f in files.sealed else shard for f, shard in enumerate(files.shards)]
    for slab in slabs_of_shard_row(layout, files.shard_row):
        records = table.data.get(("frames", slab), NO_RECORDS)
        records = records if isinstance(records, np.ndarray) else NO_RECORDS
        mine = files_of_slab(layout, slab)
        chunks = [table.data.get(("chunk", f, slab)) for f in mine]
        good = [
            f not in lost and _is_good(shards[f], slab, chunk) for f, chunk in zip(mine, chunks, strict=True)
        ]
        complete = records.size > 0 and bool((records["slab_frames"] == records.size).all())
        if all(good) and complete:
            found.whole[slab] = records
        elif records.size or any(chunk is not None for chunk in chunks):
            found.torn[slab] = records
            if all(chunk is not None for chunk in chunks):
                found.stored.add(slab)
            if complete:
                found.has_all_records.add(slab)
    return found


def _is_good(shard: Shard | None, slab: int, chunk: Any) -> bool:
    """Whether a chunk is journaled, and its bytes fit; those of a sealed shard are believed."""
    if not isinstance(chunk, tuple) and chunk != ABSENT:
        return False
    if shard is None or chunk == ABSENT:
        return True
    return slab not in shard.file.bad and shard.file.data.get(slab) == chunk


def rewrite_files(
    disk: Disk,
    layout: ArrayLayout,
    old: Files,
    stored: frozenset[int],
    held: frozenset[int],
    check_writer: Callable[[], None],
) -> Steps:
    """(new files, slabs saved in them, records of the frames that are lost), as
    ``shard.rewrite.rewrite_shard_row``."""
    found = read_back(disk, layout, old)
    new = yield from make_files(
        disk,
        old.place,
        old.shard_row,
        layout,
        check_writer,
        reopened=old.journal.reopened,
        suffix=REWRITE,
        keep=old,
    )
    saved = sorted(found.whole.keys() & stored)
    try:
        for slab in saved:
            for f in files_of_slab(layout, slab):
                source, target = old.shards[f], new.shards[f]
                if source is None or target is None or f in old.sealed:
                    continue
                if slab in source.file.data and slab in source.entries:
                    copy_chunk(disk, target, slab, source.file.data[slab])
                    yield
            chunks = [old.journal.file.data[("chunk", f, slab)] for f in files_of_slab(layout, slab)]
            note_slab(new, slab, found.whole[slab], chunks)
            yield
        yield from sync_files(disk, new)
        yield from take_names(disk, new, check_writer)
    except BaseException:
        discard_rewrite(disk, new, check_writer)
        raise
    lost = sorted(stored - held - set(saved))
    tables = [found.torn[slab] for slab in lost if slab in found.torn]
    return new, set(saved), np.concatenate([NO_RECORDS, *tables])


def copy_chunk(disk: Disk, target: Shard, slab: int, chunk: tuple[int, ...]) -> None:
    disk.call("rewrite", target.file)
    target.file.write(slab, chunk)
    target.entries[slab] = chunk


def note_slab(files: Files, slab: int, records: np.ndarray, chunks: list[Any]) -> None:
    files.journal.file.write(("frames", slab), records)
    for file, chunk in zip(files_of_slab(files.layout, slab), chunks, strict=True):
        files.journal.file.write(("chunk", file, slab), chunk)
