"""The files of one shard row as a whole: nothing leaks or goes missing when the making or the replacing of
them fails half-way."""

from __future__ import annotations

import errno
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardwright.acquire import together
from shardwright.acquire.prepare import prepare
from shardwright.acquire.seal import name_shards
from shardwright.acquire.together import Together
from shardwright.array.grid import Grid
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.disk import failpoints, filesystems, system
from shardwright.disk import files as disk_files
from shardwright.disk.files import DurableFolders
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import FencedError, StorageError, StorageFullError, StoreGoneError
from shardwright.model.names import REWRITE_SUFFIX, WORKSPACE
from shardwright.shard import shard_row_files
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.index import EMPTY
from shardwright.shard.journal import CHUNK_ENTRY, JournalLayout, ShardRowJournal
from shardwright.shard.layout import PAGE_BYTES, ArrayLayout, chunks_of_slab
from shardwright.shard.open_shard import OpenShard, make_link
from shardwright.shard.row_checksum import seal_rows
from shardwright.shard.shard_row_files import (
    Placement,
    ShardRowFiles,
    shard_of_working,
    sharing,
    synced_whole,
)
from shardwright.shard.shard_sums import ShardSums
from shardwright.shard.shared_journal import SharedJournal, read_header, shared_name
from shardwright.shard.spill_folder import make_spill_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardwright.model.write_options import LiveMode


def nothing() -> None:
    pass


def layout_of(shard: int) -> ArrayLayout:
    frame = [Dimension(name=n, count=8, chunk_size=4) for n in "yx"]
    spec = ArraySpec(
        dtype="uint16",
        dimensions=[Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=shard), *frame],
    )
    return ArrayLayout.of(Grid.of(spec), 4096, "end")


LAYOUT, DEEP = layout_of(1), layout_of(4)


def create(
    store: Path,
    suffix: str = "",
    *,
    layout: ArrayLayout = LAYOUT,
    packed: bool | None = None,
    live: LiveMode = "none",
    shard_row: int = 0,
    begins: bool = True,
    shared: SharedJournal | None = None,
    leftovers: frozenset[str] | None = None,
) -> ShardRowFiles:
    files = ShardRowFiles.create(
        Placement(store),
        layout,
        shard_row,
        "pwrite",
        bytes(16),
        1,
        record_dtype(0),
        packed=packed,
        suffix=suffix,
        live=live,
        shared=shared,
        leftovers=leftovers,
    )
    if begins:
        files.begin_alone(nothing)
    return files


def named(
    files: ShardRowFiles,
    may_rename: Callable[[], None] = nothing,
    numbers: Iterable[int] | None = None,
) -> None:
    """Names shards of one row. Raises what it meets."""
    row = Together([files], ErrorText.of)
    name_shards(row, may_rename, nothing, None if numbers is None else {files.shard_row: numbers})
    for why in row.failed.values():
        raise why.to_error()


def descriptors_below(folder: Path) -> list[str]:
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [str(link.readlink()) for link in links if str(link.readlink()).startswith(str(folder))]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / WORKSPACE).mkdir()
    return tmp_path


@pytest.mark.parametrize("fails", ["journal.before_sync", "directory.before_sync"])
def test_shards_of_a_journal_that_could_not_be_made_go_when_it_is_gone_for_good(store, fails):
    """Otherwise a power cut may bring the journal back, without them."""
    calls: list[str] = []

    def fail(point: str) -> None:
        calls.append(point)
        if point == fails and "journal.before_preallocate" in calls:
            raise OSError(errno.EIO, "input/output error")

    failpoints.watch_all(fail)
    try:
        with pytest.raises(StorageError):
            create(store, layout=DEEP)
    finally:
        failpoints.watch_all(None)
    left = {path.suffix for path in (store / WORKSPACE).iterdir()}
    if fails == "journal.before_sync":
        assert not left
        assert "directory.before_sync" in calls[calls.index(fails) :]
    else:
        assert left == {".partial"}, "nobody can say that the journal is gone"
    assert not descriptors_below(store)
    create(store, layout=DEEP).discard()
    assert not any((store / WORKSPACE).iterdir())


def test_once_the_filesystem_tells_of_a_failure_each_file_is_synced_by_itself(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells once, perhaps as other shards of the row are synced: the shard whose pages are lost got its
    name without them."""
    synced: list[int] = []
    told: list[int] = []

    def sync_filesystem(descriptor: int) -> None:
        told.append(descriptor)
        if len(told) == 1:
            raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(filesystems, "MOST_SYNCED_ALONE", 0)
    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: True)
    monkeypatch.setattr(system.calls, "sync_filesystem", sync_filesystem)
    monkeypatch.setattr(system.calls, "sync", lambda descriptor, **_: synced.append(descriptor))
    files = create(store, layout=DEEP)
    shards, synced[:] = list(files.unsealed().values()), []
    everything = [*(shard.descriptor for shard in shards), files.journal._file.descriptor]
    files.sync()
    assert synced == everything
    files.sync()
    assert synced == 2 * everything
    assert not synced_whole([files]), "nor are their names"
    assert len(told) == 1
    files.abandon()


def test_one_sync_stands_for_rows_of_which_the_oldest_hears_of_every_failed_write(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells a descriptor of failures since it was opened, once: a row that is younger would not
    hear of a write of an older one, and none of them would hear of it a second time."""
    told: list[int] = []
    failures = [OSError(errno.EIO, "input/output error")]

    def sync_filesystem(descriptor: int) -> None:
        told.append(descriptor)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: True)
    monkeypatch.setattr(system.calls, "sync_filesystem", sync_filesystem)
    rows = [create(store, layout=DEEP, shard_row=number) for number in range(3)]
    assert synced_whole([rows[2], rows[1]]) == []
    assert told == [rows[1].journal.descriptor]
    assert synced_whole(rows) == [rows[0]]
    assert told[1:] == [rows[0].journal.descriptor]
    for row in rows:
        row.abandon()


def test_rows_that_are_prepared_together_begin_when_all_names_are_durable(store: Path) -> None:
    reached: list[str] = []
    failpoints.watch_all(reached.append)
    try:
        found = prepare(
            range(4),
            lambda row: create(store, layout=DEEP, shard_row=row, begins=False),
            ErrorText.of,
            nothing,
        )
    finally:
        failpoints.watch_all(None)
    steps = [point for point in reached if point.startswith(("directory", "journal"))]
    assert steps[-1] == "journal.before_sync"
    made, begun = steps.index("directory.before_sync"), steps.index("journal.before_header")
    assert steps[:made].count("journal.before_preallocate") == 4
    assert begun == made + 1, "one sync for the names of all"
    assert steps[begun:].count("journal.before_header") == 4
    for files in found.values():
        assert isinstance(files, ShardRowFiles)
        files.abandon()


def test_a_row_whose_journal_cannot_be_begun_leaves_nothing_and_the_others_begin(
    store: Path, failing
) -> None:
    failing("journal.before_header", at=2)
    found = prepare(
        range(3), lambda row: create(store, layout=DEEP, shard_row=row, begins=False), ErrorText.of, nothing
    )
    assert [isinstance(found[row], ShardRowFiles) for row in range(3)] == [True, False, True]
    assert sorted(path.name for path in (store / WORKSPACE).glob("*.journal")) == ["0.journal", "2.journal"]
    assert len(list((store / WORKSPACE).glob("*.partial"))) == 8
    for files in found.values():
        if isinstance(files, ShardRowFiles):
            files.abandon()


SHARED_ROWS, FILES = range(4), 4


def prepared_together(
    store: Path, leftovers: frozenset[str] | None = None
) -> dict[int, ShardRowFiles | ErrorText]:
    """Rows that share a journal."""
    tables = [JournalLayout.of(LAYOUT, row, record_dtype(0)) for row in SHARED_ROWS]
    shared = SharedJournal.plan(store / WORKSPACE / shared_name(1, 1), tables, bytes(16), 1)
    make = partial(create, store, begins=False, shared=shared, leftovers=leftovers)
    return prepare(SHARED_ROWS, lambda row: make(shard_row=row), ErrorText.of, nothing, shared)


def test_journals_that_are_left_are_looked_for_once(store: Path) -> None:
    """By their caller, who tells the names that there were."""
    told, not_told = Placement(store).journal(2), Placement(store).journal(3)
    told.touch()
    not_told.touch()
    found = prepared_together(store, frozenset({told.name}))
    assert (told.exists(), not_told.exists()) == (False, True)
    for files in found.values():
        assert isinstance(files, ShardRowFiles)
        files.abandon()


def filled_together(store: Path) -> list[ShardRowFiles]:
    """Rows that share a journal, a chunk in each of their files."""
    rows = [files for files in prepared_together(store).values() if isinstance(files, ShardRowFiles)]
    for files in rows:
        for file in range(FILES):
            files.slots[file].copy_in(0, b"chunk")
            files.note_stored(*(np.array([n], np.int64) for n in (file, 0, 0, 5)))
        entries = [np.array([(0, 5, 0, 1, 0, 0)], CHUNK_ENTRY) for _ in range(FILES)]
        for entry in entries:
            seal_rows(entry, files.journal.seed)
        files.journal.copy_slab(0, np.zeros(2, record_dtype(0)), entries)
    (store / "0").mkdir()
    return rows


def test_nothing_of_a_store_that_is_deleted_in_the_middle_of_a_batch_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "a.zarr"
    (store / WORKSPACE).mkdir(parents=True)
    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: True)
    rows = filled_together(store)
    together = Together(rows, ErrorText.of)

    def look() -> None:
        if not store.exists():
            raise StoreGoneError("it was deleted")

    def delete() -> None:
        failpoints.set_hook("shard.before_rename", None)
        shutil.rmtree(store)

    failpoints.set_hook("shard.before_rename", delete)
    try:
        name_shards(together, look, nothing)
    finally:
        failpoints.set_hook("shard.before_rename", None)
    assert not store.exists()
    assert {files.shard_row for files in rows} == together.failed.keys()
    for files in rows:
        files.abandon()


def test_rows_take_their_steps_together(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all rows one write of their sums, which are in one array. No thread begins to sync journals that
    they do not have."""
    threads: list[int] = []
    side_by_side = together.side_by_side

    def noted(action: Callable[[int], None], count: int, *, syncs: bool = False) -> None:
        threads.append(count if syncs else 0)
        side_by_side(action, count, syncs=syncs)

    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: True)
    monkeypatch.setattr(together, "side_by_side", noted)
    rows = filled_together(store)
    reached: list[str] = []
    failpoints.watch_all(reached.append)
    try:
        name_shards(Together(rows, ErrorText.of), lambda: reached.append("look"), nothing)
    finally:
        failpoints.watch_all(None)
    names = len(SHARED_ROWS) * FILES
    assert len(ShardSums(store / "0").read()) == names
    assert reached.count("sums.before_write") == 1
    assert reached.count("shard.before_rename") == names
    assert reached.count("look") == 1 + 2 * names
    assert all(reached[n + 1] == "look" for n, point in enumerate(reached) if point == "shard.before_rename")
    assert not any(threads)
    for files in rows:
        files.abandon()


def rows_in_shared(store: Path) -> list[int]:
    path = store / WORKSPACE / shared_name(1, 1)
    return [*read_header(path, bytes(16), record_dtype(0).itemsize, lambda row: row in SHARED_ROWS).bases]


def test_rows_that_share_a_journal_begin_when_all_names_are_durable(store: Path) -> None:
    """A header without a shard of a row would mean, after a power cut, that the row was sealed."""
    reached: list[str] = []
    failpoints.watch_all(reached.append)
    try:
        found = prepared_together(store)
    finally:
        failpoints.watch_all(None)
    steps = [point for point in reached if point.startswith(("directory", "journal"))]
    ends = ["directory.before_sync", "journal.before_header", "journal.before_sync"]
    assert steps == ["journal.before_create", "journal.before_preallocate", *ends]
    assert rows_in_shared(store) == [*SHARED_ROWS]
    for files in found.values():
        assert isinstance(files, ShardRowFiles)
        files.abandon()
    assert not descriptors_below(store)


@pytest.mark.parametrize(
    ("fails", "left"),
    [
        ("shard.before_preallocate", 3),
        ("journal.before_create", 0),
        ("journal.before_preallocate", 0),
        ("journal.before_header", 0),
        ("journal.before_sync", 0),
    ],
)
def test_rows_of_a_batch_that_fails_leave_nothing(store: Path, failing, fails: str, left: int) -> None:
    failing(fails, at=1)
    found = prepared_together(store)
    there = sorted(row for row, files in found.items() if isinstance(files, ShardRowFiles))
    assert len(there) == left
    assert len(list((store / WORKSPACE).glob("*.partial"))) == left * FILES
    if left:
        assert rows_in_shared(store) == there
    else:
        assert not any((store / WORKSPACE).iterdir())
    for files in found.values():
        if isinstance(files, ShardRowFiles):
            files.discard()
    assert not any((store / WORKSPACE).iterdir())
    assert not descriptors_below(store)


def test_a_row_that_is_rewritten_leaves_the_shared_journal_when_its_own_has_its_name(store: Path) -> None:
    """For good: once its own is gone, the row would be in progress again."""
    rows = prepared_together(store)
    old, new = rows[1], create(store, REWRITE_SUFFIX, shard_row=1)
    assert isinstance(old, ShardRowFiles)
    reached: list[str] = []
    failpoints.watch_all(reached.append)
    try:
        new.replace(old)
    finally:
        failpoints.watch_all(None)
    taken = reached[reached.index("journal.before_replace") :]
    assert [p for p in taken if p != "directory.before_sync"][1:] == [
        "journal.before_end",
        "journal.before_sync",
    ]
    assert "directory.before_sync" in taken[: taken.index("journal.before_end")]
    assert rows_in_shared(store) == [0, 2, 3]
    for files in (new, *(rows[row] for row in (0, 2, 3))):
        assert isinstance(files, ShardRowFiles)
        files.discard()
    assert not any((store / WORKSPACE).iterdir())
    assert not descriptors_below(store)


def test_a_row_that_is_rewritten_stays_in_the_shared_journal_for_a_take_over(store: Path) -> None:
    """Which has listed the journals before the row's own got its name, and copies the shared one later: the
    row would be in neither, and its shard would be deleted."""
    rows = prepared_together(store)
    old, new = rows[1], create(store, REWRITE_SUFFIX, shard_row=1)
    assert isinstance(old, ShardRowFiles)
    own = store / WORKSPACE / f"1{shard_row_files.JOURNAL_SUFFIX}"

    def may_rename() -> None:
        if own.exists():
            raise FencedError("taken over")

    with pytest.raises(FencedError):
        new.replace(old, may_rename)
    assert rows_in_shared(store) == [*SHARED_ROWS]
    for files in (new, *rows.values()):
        assert isinstance(files, ShardRowFiles)
        files.abandon()
    assert not descriptors_below(store)


def test_a_row_is_discarded_only_when_it_has_ended_for_good(store: Path) -> None:
    """A power cut that took its end back would leave it without its shards, which means sealed."""
    rows = prepared_together(store)
    reached: list[str] = []
    failpoints.watch_all(reached.append)
    try:
        for files in rows.values():
            assert isinstance(files, ShardRowFiles)
            files.discard()
    finally:
        failpoints.watch_all(None)
    ended = ["journal.before_end", "journal.before_sync"]
    shards = ["shard.before_delete"] * FILES
    first = [*ended, *shards] * (len(SHARED_ROWS) - 1)
    assert reached == [*first, *ended, "journal.before_delete", *shards]


def test_an_older_journal_goes_before_the_shards_that_it_speaks_of(store: Path) -> None:
    create(store, layout=DEEP).abandon()
    there: list[bool] = []

    def look(point: str) -> None:
        if point == "shard.before_preallocate":
            there.append(any((store / WORKSPACE).glob("*.journal")))

    failpoints.watch_all(look)
    try:
        create(store, layout=DEEP).abandon()
    finally:
        failpoints.watch_all(None)
    assert there == [False] * 4


def test_shards_of_an_earlier_attempt_go_when_its_journal_is_gone_for_good(store: Path) -> None:
    """The attempt had deleted it, and nobody knows whether that is durable."""
    create(store, layout=DEEP).abandon()
    (journal,) = (store / WORKSPACE).glob("*.journal")
    journal.unlink()
    calls: list[str] = []
    failpoints.watch_all(calls.append)
    try:
        create(store, layout=DEEP).abandon()
    finally:
        failpoints.watch_all(None)
    assert "directory.before_sync" in calls[: calls.index("shard_row.before_remove")]


def test_a_writer_that_was_taken_over_while_it_discards_keeps_the_shards(store: Path) -> None:
    """The new one may have copied the journal, and looks for them."""
    looks = iter([None, FencedError("another writer has taken over")])

    def may_rename() -> None:
        if (error := next(looks)) is not None:
            raise error

    with pytest.raises(FencedError):
        create(store, layout=DEEP).discard(may_rename)
    assert [path.suffix for path in (store / WORKSPACE).iterdir()] == [".partial"] * 4
    assert not descriptors_below(store)


def test_a_journal_says_that_it_is_one_only_when_all_names_are_durable(store: Path) -> None:
    """A power cut in between could keep the journal alone, and recovery would take the row for sealed: frames
    that were staged for it would be dropped."""
    there: list[tuple[list[str], bytes]] = []

    def look(point: str) -> None:
        if point == "journal.before_header":
            (journal,) = (store / WORKSPACE).glob("*.journal")
            there.append((calls[-1:], journal.read_bytes()[:8]))
        calls.append(point)

    calls: list[str] = []
    failpoints.watch_all(look)
    try:
        create(store, layout=DEEP).abandon()
    finally:
        failpoints.watch_all(None)
    assert there == [(["directory.before_sync"], bytes(8))]
    assert "directory.before_sync" not in calls[calls.index("journal.before_header") :]


def test_files_that_cannot_be_made_are_all_closed(store, failing, monkeypatch):
    """Even when what was made cannot be deleted either."""

    def refuse(shard: OpenShard) -> None:
        shard.abandon()
        raise StorageError("cannot delete")

    monkeypatch.setattr(OpenShard, "discard", refuse)
    failing("shard.before_preallocate", at=4)
    with pytest.raises(StorageError, match="Input/output"):
        create(store)
    assert descriptors_below(store) == []


def test_shards_stay_while_the_journal_that_leads_to_them_may_be_there(store, monkeypatch):
    files = create(store)
    names = {path.name for path in (store / WORKSPACE).iterdir()}

    def refuse(journal: ShardRowJournal, *, durably: bool = False) -> None:
        raise StorageError("cannot delete")

    monkeypatch.setattr(ShardRowJournal, "delete", refuse)
    with pytest.raises(StorageError, match="cannot delete"):
        files.discard()
    assert {path.name for path in (store / WORKSPACE).iterdir()} == names
    assert descriptors_below(store) == []


@pytest.mark.parametrize("live", ["index", "append"])
def test_what_readers_saw_of_lost_chunks_goes_before_the_journal(store, failing, live):
    """Otherwise a kill in between leaves a shard that nobody has on record."""
    files = create(store, live=live)
    shard = files.slots[0]
    shard.copy_in(0, b"seven!!")
    note(files, 0, 0, 7)
    files.list_stored([chunks_of_slab(LAYOUT, 0)])
    assert files.show(nothing, nothing)
    assert shard.final_path.exists()
    failing("journal.before_delete")
    with pytest.raises(StorageError):
        files.discard()
    assert not shard.final_path.exists()
    assert descriptors_below(store) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_rewrite_that_takes_only_some_names_leaves_every_shard_in_its_place(store, failing, number):
    old, new = create(store), create(store, REWRITE_SUFFIX)
    failing("shard.before_replace", at=number)
    with pytest.raises(StorageError, match="Input/output"):
        new.replace(old)
    new.discard_rewrite()
    old.abandon()
    shards = {shard.working_path.name for shard in old.slots}
    assert {path.name for path in (store / WORKSPACE).iterdir()} == {*shards, "0.journal"}
    assert descriptors_below(store) == []


def note(files: ShardRowFiles, entry: int, offset: int, nbytes: int) -> None:
    files.note_stored(np.array([0]), np.array([entry]), np.array([offset]), np.array([nbytes]))


def test_chunks_that_are_all_fill_stay_absent(store):
    files = create(store, layout=DEEP)
    one, two = np.array([0, 0]), np.array([2, 1])
    files.note_stored(one, two, np.array([PAGE_BYTES, 3 * PAGE_BYTES]), np.array([9, 0]))
    here = files.slots[0].entries["offset"] != EMPTY
    assert np.flatnonzero(here).tolist() == [2]
    assert files.slots[0].entries[2].tolist() == (PAGE_BYTES, 9)
    files.abandon()


def test_packed_shards_go_on_behind_what_is_kept_with_room_for_all_that_may_come(store):
    """What a crash left of chunks that are not believed lies between the kept ones and is not used again: at
    worst the file must become longer."""
    files = create(store, layout=DEEP)
    shard = files.slots[0]
    assert files.journal.packed
    assert files.cursors[0] == shard.layout.data_start
    size = shard.working_path.stat().st_size
    last = (shard.layout.slots - 1) * shard.layout.slot_bytes
    note(files, 1, last, shard.layout.slot_bytes)
    files.continue_behind()
    assert files.cursors[0] == shard.layout.slots * shard.layout.slot_bytes
    assert shard.working_path.stat().st_size >= size + (shard.layout.slots - 1) * shard.layout.slot_bytes
    assert shard.working_path.stat().st_blocks * 512 >= shard.working_path.stat().st_size, "real blocks"
    files.abandon()


def test_without_room_for_that_the_writes_to_come_will_say_so(store, failing):
    files = create(store, layout=DEEP)
    shard = files.slots[0]
    note(files, 1, shard.layout.slot_bytes + 5, 7)
    note(files, 2, (shard.layout.slots - 1) * shard.layout.slot_bytes, 5)
    failing("shard.before_reserve", errno.ENOSPC)
    files.continue_behind()
    assert files.cursors[0] == (shard.layout.slots - 1) * shard.layout.slot_bytes + PAGE_BYTES
    files.abandon()


@pytest.mark.parametrize("punches", [True, False], ids=["punched", "written"])
def test_the_index_of_a_seal_that_a_crash_cut_short_is_gone_from_packed_shards(store, monkeypatch, punches):
    """Its beginning would stay between two runs, as bytes that nobody knows."""
    files = create(store, layout=DEEP)
    shard = files.slots[0]
    shard.copy_in(0, b"\1" * (PAGE_BYTES + 700))
    note(files, 1, 0, PAGE_BYTES + 100)
    if not punches:
        monkeypatch.setattr("shardwright.disk.slot_file.punch_hole", lambda *_: False)
    files.continue_behind()
    assert files.cursors[0] == 2 * PAGE_BYTES
    assert shard.read(0, 2 * PAGE_BYTES) == (b"\1" * (PAGE_BYTES + 100)).ljust(2 * PAGE_BYTES, b"\0")
    files.abandon()


def test_slotted_shards_keep_their_places(store):
    files = create(store, layout=DEEP, packed=False)
    note(files, 1, 4096, 7)
    files.continue_behind()
    assert files.cursors[0] == 0
    files.abandon()


def test_a_shard_without_a_chunk_stays_until_the_journal_is_synced(store, failing):
    """That it is gone tells recovery that sealing has begun, and the journal must know every frame by then:
    none is looked for elsewhere."""
    files = create(store)
    working = [shard.working_path for shard in files.slots]
    failing("journal.before_sync", at=1)
    with pytest.raises(StorageError, match="Input/output"):
        named(files)
    assert all(path.exists() for path in working)
    assert not files.renamed
    files.abandon()


def test_a_seal_goes_on_behind_shards_without_a_chunk_that_are_gone(store, failing):
    """On a full disk it stopped at the first name. They have no file to be synced once more."""
    files = create(store)
    (store / "0").mkdir()
    files.slots[3].copy_in(0, b"seven!!")
    files.slots[3].entries[0] = (0, 7)
    failing("shard.before_rename", errno.ENOSPC, at=1)
    with pytest.raises(StorageFullError):
        named(files)
    named(files)
    assert [path.read_bytes()[:7] for path in (store / "0").rglob("c/*/*/*")] == [b"seven!!"]
    files.abandon()


def test_a_shard_without_a_chunk_that_found_no_room_to_be_deleted_is_deleted_later(store, failing):
    """A deletion takes room on copy-on-write filesystems. It closed the file, which the next try synced."""
    files = create(store)
    (store / "0").mkdir()
    failing("shard.before_delete", errno.ENOSPC, at=1)
    with pytest.raises(StorageFullError):
        named(files)
    named(files)
    assert not list((store / WORKSPACE).glob("*.partial"))
    files.abandon()


def test_no_link_s_folder_is_made_in_a_store_that_is_gone(tmp_path):
    def gone() -> None:
        raise StoreGoneError("deleted")

    with pytest.raises(StoreGoneError):
        make_link(tmp_path / "a.ome.zarr/0/c/0", tmp_path / "spilled", DurableFolders(), gone)
    assert not list(tmp_path.iterdir())


def test_a_writer_that_was_taken_over_deletes_no_shard_when_it_seals(store):
    files = create(store)

    def fenced() -> None:
        raise FencedError("another writer has taken the store over")

    working = [shard.working_path for shard in files.slots]
    with pytest.raises(FencedError):
        named(files, fenced)
    assert all(path.exists() for path in working)
    files.abandon()


def test_only_its_own_files_are_discarded(store):
    """Another writer, which has taken over, has files of the same names."""
    files = create(store)
    names = [*(shard.working_path for shard in files.slots), files.journal.path]
    for path in names:
        path.unlink()
        path.write_bytes(b"another's")
    files.discard()
    assert [path.read_bytes() for path in names] == [b"another's"] * len(names)


@pytest.mark.parametrize("array_path", ["0", "0/0", "12/0", "A/1/0/0", "c/1/0/0", "c/c/0/0", "0/c/0/0"])
def test_a_working_name_stands_for_one_shard(tmp_path, array_path):
    """Of a single image, of a series, of a plate, whatever its rows are called."""
    shard = f"{array_path}/c/0/3/1"
    name = Placement(tmp_path).working(shard).name
    assert shard_of_working(name) == shard
    assert (name == "c.0.3.1.partial") == (array_path == "0"), "as earlier releases name it"


def test_a_shard_row_with_a_sealed_shard_counts_as_renamed_after_a_crash_too(store):
    files = create(store)
    assert not files.renamed
    half = ShardRowFiles(0, files.placement, [None, *files.slots[1:]], files.journal, "0")
    assert half.renamed
    files.abandon()


def test_names_are_taken_only_by_who_may(store):
    old, new = create(store), create(store, REWRITE_SUFFIX)
    before = {path: path.stat().st_ino for path in (store / WORKSPACE).iterdir()}

    def fenced() -> None:
        raise FencedError("another writer has taken the store over")

    with pytest.raises(FencedError):
        new.replace(old, fenced)
    assert {path: path.stat().st_ino for path in (store / WORKSPACE).iterdir()} == before
    new.abandon()
    old.abandon()


def test_a_rewrite_whose_names_are_not_durable_keeps_its_journal(store, failing):
    """The last thing that fails is the sync of the folder: the journal has the old one's name by then, and is
    the only one."""
    old, new = create(store), create(store, REWRITE_SUFFIX)
    failing("directory.before_sync", at=1)
    with pytest.raises(StorageError, match="Input/output"):
        new.replace(old)
    new.discard_rewrite()
    old.abandon()
    assert Placement(store).journal(0).exists()
    assert descriptors_below(store) == []


def split_layout(slabs: int) -> ArrayLayout:
    frame = [Dimension(name=n, count=8, chunk_size=4, shard_size_chunks=2) for n in "yx"]
    spec = ArraySpec(
        dtype="uint16",
        dimensions=[Dimension(name="t", count=slabs, chunk_size=1, shard_size_chunks=1), *frame],
    )
    return ArrayLayout.of(Grid.of(spec).split_row(slabs, 0), 4096, "end")


def test_a_sync_of_many_names_that_fails_costs_no_shard(store: Path) -> None:
    """What failed may be a write of another program: each folder is synced by itself."""
    layout = split_layout(8)
    files = create(store, layout=layout)
    for file in range(8):
        files.slots[file].copy_in(0, b"chunk")
        files.note_stored(*(np.array([n], np.int64) for n in (file, 0, 0, 5)))
    whole, folders = [], []

    def watch(point: str) -> None:
        if point == "directory.before_sync":
            folders.append(len(whole))
        if point == "journal.before_sync":
            whole.append(1)
            if len(whole) == 2:  # the first makes the bytes durable
                raise OSError(errno.EIO, "input/output error")

    failpoints.watch_all(watch)
    try:
        named(files, numbers=range(8))
    finally:
        failpoints.watch_all(None)
    assert len(files.sealed) == 8
    assert folders.count(2) >= 8, "of each shard, behind the sync that failed"
    assert len([path for path in (store / "0/c").rglob("*") if path.is_file()]) == 8
    files.abandon()


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_sums_are_durable_before_names_wherever_their_record_lies(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spilled: bool, fails: bool
) -> None:
    """One sync of the second root does not reach the store. Where one fails, the lines come again, and
    those do not know that the first ones have made the file."""
    spill = tmp_path / "second" / "store"
    make_spill_folder(spill / WORKSPACE, "identity", DurableFolders())
    (store / "0").mkdir()
    placement = Placement(store, spill if spilled else None, identity="identity")
    layout = split_layout(8)
    files = ShardRowFiles.create(placement, layout, 0, "pwrite", bytes(16), 1, record_dtype(0))
    files.begin_alone(nothing)
    calls: list[str] = []
    whole: list[int] = []

    def sync_filesystem(descriptor: int) -> None:
        calls.append("whole")
        whole.append(descriptor)
        if fails and len(whole) == 2:  # the first makes the bytes durable
            raise OSError(errno.EIO, "input/output error")

    synced_folder = shard_row_files.sync_directory

    def sync_directory(folder: Path) -> None:
        calls.append(f"name in {folder.name}")
        synced_folder(folder)

    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: True)
    monkeypatch.setattr(system.calls, "sync_filesystem", sync_filesystem)
    monkeypatch.setattr(shard_row_files, "sync_directory", sync_directory)
    monkeypatch.setattr(disk_files, "sync_directory", sync_directory)
    failpoints.watch_all(calls.append)
    try:
        named(files)
    finally:
        failpoints.watch_all(None)
    lines = [n for n, call in enumerate(calls) if call == "sums.before_write"]
    behind = calls[lines[-1] : calls.index("shard.before_delete")]
    if spilled:
        assert behind[1] == "sums.before_sync"
        assert "name in 0" in behind
    elif fails:
        assert len(lines) == 2
        assert behind[1] == "sums.before_sync"
        assert "name in 0" in behind
    else:
        assert "whole" in behind
        assert "sums.before_sync" not in calls
    files.abandon()


def test_a_seal_that_goes_on_with_few_files_syncs_the_folders_that_it_made_with_many(
    store: Path, monkeypatch: pytest.MonkeyPatch, failing
) -> None:
    """One sync was to stand for them, and did not come, as there was no room for another shard's name."""
    files = create(store, layout=split_layout(8))
    for file in range(8):
        files.slots[file].copy_in(0, b"chunk")
        files.note_stored(*(np.array([n], np.int64) for n in (file, 0, 0, 5)))
    monkeypatch.setattr(filesystems, "syncs_as_one", lambda _: True)
    failing("shard.before_rename", at=5, number=errno.ENOSPC)
    with pytest.raises(StorageFullError):
        named(files, numbers=range(5))
    renamed = [shard.final_path for shard in files.slots if shard.renamed]
    assert renamed
    synced: list[Path] = []
    synced_folder = disk_files.sync_directory

    def sync_directory(folder: Path) -> None:
        synced.append(folder)
        synced_folder(folder)

    monkeypatch.setattr(disk_files, "sync_directory", sync_directory)
    named(files, numbers=range(4))
    for final in renamed:
        assert final.parent.parent in synced
        assert final.parent.parent.parent in synced
    files.abandon()


def test_a_shard_whose_sync_has_failed_is_not_made_durable_by_one_of_all_files(store: Path, failing) -> None:
    """The kernel tells of lost pages once: a sync of the whole filesystem would succeed behind that."""
    files = create(store, layout=split_layout(8))
    failing("shard.before_sync", at=1)
    with pytest.raises(StorageError):
        files.slots[0].sync()
    assert not sharing([files], len(files.slots))
    with pytest.raises(StorageError, match="failed before"):
        files.sync()
    files.abandon()
