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
    from collections.abc import Callable, Generator

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
    """``shards[f]`` None: it has its final name already. ``sealed`` of the others have it durably."""

    place: Place
    shard_row: int
    shards: list[Shard | None]
    journal: Journal
    sealed: int = 0
    recorded: bool = False

    @property
    def slots(self) -> list[Shard]:
        return [shard for shard in self.shards if shard is not None]

    @property
    def renamed(self) -> bool:
        return None in self.shards or any(shard.renamed for shard in self.slots)

    @property
    def holds_frames(self) -> bool:
        return self.records().size > 0

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


def make_files(
    disk: Disk,
    place: Place,
    shard_row: int,
    files: int,
    check_writer: Callable[[], None],
    *,
    reopened: bool,
    suffix: str = "",
) -> Steps:
    """Shard files, then the journal; all names are durable before its header is written. Raises
    ``StorageError``; nothing is left behind then."""
    check_writer()
    journal = place.journal(shard_row, suffix)
    if journal in disk.names:
        disk.delete(journal)
        disk.sync_folder(place.folder)
    made: list[Shard] = []
    try:
        for file in range(files):  # no look in between
            disk.take_room("create")
            name = place.working(shard_row, file, suffix)
            made.append(Shard(disk.make(name), name))
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
    return Files(place, shard_row, list(made), Journal(table, reopened))


def take_names(disk: Disk, files: Files, check_writer: Callable[[], None]) -> Steps:
    """Drop the suffix; the journal last."""
    for shard in files.slots:
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
    for shard in files.slots:
        disk.sync_shard_rows_file(shard.file, "sync shard row")
        yield
    disk.sync_shard_rows_file(files.journal.file, "sync shard row")
    yield


def seal_files(disk: Disk, files: Files, check_writer: Callable[[], None]) -> Steps:
    """Complete every file, sync the journal, then give them their final names one after another. Returns how
    many shards there are."""
    for shard in files.slots:
        if shard.ready:
            continue
        disk.take_little("seal")
        if not shard.entries:
            shard.empty = True
        else:
            shard.file.write(INDEX, frozenset(shard.entries))
            yield
            disk.sync_shard_rows_file(shard.file, "seal")
        shard.ready = True
        yield
    disk.sync_shard_rows_file(files.journal.file, "seal")
    yield
    if not files.recorded:
        check_writer()
        disk.take_little("seal")
        for shard in files.slots:
            if shard.empty and _older_stays(disk, files, shard):
                continue
            content = None if shard.empty else _content(shard.file, frozenset(shard.entries))
            disk.sums.setdefault((files.shard_row, shard.name[2]), []).append(content)
        files.recorded = True
        yield
    for shard in files.slots[files.sealed :]:
        if not shard.empty:
            yield from _seal_shard(disk, files, shard, check_writer)
        elif not shard.renamed:
            check_writer()
            disk.delete(shard.name)
            shard.renamed = True
            yield
        files.sealed += 1
    return sum(not shard.empty or _older_stays(disk, files, shard) for shard in files.slots)


def _older_stays(disk: Disk, files: Files, shard: Shard) -> bool:
    """Of a shard row that was sealed once: what it had was not copied, but lost."""
    return files.journal.reopened and final(files.shard_row, shard.name[2]) in disk.names


def _seal_shard(disk: Disk, files: Files, shard: Shard, check_writer: Callable[[], None]) -> Steps:
    target = final(files.shard_row, shard.name[2])
    if not shard.renamed:
        disk.take_little("seal")
        check_writer()
        if not files.journal.reopened and target in disk.names:
            raise OutputExistsError(f"there is a shard {target} already")
        disk.rename(shard.name, target)
        shard.renamed = True
        yield
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
    for slab in slabs_of_shard_row(layout, files.shard_row):
        records = table.data.get(("frames", slab), NO_RECORDS)
        records = records if isinstance(records, np.ndarray) else NO_RECORDS
        chunks = [table.data.get(("chunk", f, slab)) for f in range(len(files.shards))]
        good = [
            f not in lost and _is_good(shard, slab, chunk)
            for f, (shard, chunk) in enumerate(zip(files.shards, chunks, strict=True))
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
        layout.files_of(old.shard_row),
        check_writer,
        reopened=old.journal.reopened,
        suffix=REWRITE,
    )
    saved = sorted(found.whole.keys() & stored)
    try:
        for slab in saved:
            for source, target in zip(old.slots, new.slots, strict=True):
                if slab in source.file.data and slab in source.entries:
                    copy_chunk(disk, target, slab, source.file.data[slab])
                    yield
            chunks = [old.journal.file.data[("chunk", f, slab)] for f in range(len(old.shards))]
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
    for file, chunk in enumerate(chunks):
        files.journal.file.write(("chunk", file, slab), chunk)
