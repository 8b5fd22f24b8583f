"""What recovery, live views and compaction take for the files of an unfinished store, by the one scanner that
they share."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.writing import how
from tests.read.live_judge import frame
from tests.read.test_live_view import QUICK, leave
from tests.upgrades.conftest import unpack
from tests.upgrades.states import PLATE_SENT, RECORDED

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.model.errors import ShardFormatError
from shardwright.read.live_view import LiveView
from shardwright.read.store import open_store
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.jobs.sealed_shards import sealed_shards
from shardwright.scan.facts import FileFacts, JournalFact
from shardwright.scan.store_scan import scan
from shardwright.scan.table import Action, action_for
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard.manifest import read_manifest, write_manifest
from shardwright.wire.messages import IMAGE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
HEIGHT, WIDTH = frame(0).shape
SPEC = sw.ArraySpec(
    dtype="uint16",
    dimensions=[
        sw.Dimension(name="t", count=16, chunk_size=4, shard_size_chunks=1),
        sw.Dimension(name="y", count=HEIGHT, chunk_size=HEIGHT),
        sw.Dimension(name="x", count=WIDTH, chunk_size=WIDTH),
    ],
)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(2)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Left by a writer that died with six frames, four of them in the chunk of shard row 0."""
    writer = sw.create(tmp_path / "a.ome.zarr", SPEC, **how(**QUICK))
    for i in range(6):
        writer.append(frame(i))
    writer.flush()
    leave(writer)
    return tmp_path / "a.ome.zarr"


def of_another_row(store: Path, name: str) -> Path:
    """Gives the journal of the first shard row another name as well."""
    journal = store / ".shardwright" / "0.journal"
    return shutil.copy(journal, journal.with_name(name))


@pytest.mark.parametrize("name", ["0a.journal", "00.journal", "٣.journal", "-1.journal", "1.journals"])
def test_a_file_that_no_writer_names_so_is_no_journal(store: Path, pool: WorkerPool, name: str) -> None:
    found = UnfinishedStore.read(store)
    before = found.look_into(found.placements[0])
    of_another_row(store, name)
    assert found.look_into(found.placements[0]) == before
    assert LiveView(store).document("0")["shape"][0] == 6
    assert sealed_shards(open_store(store)).in_progress
    assert recover_store(store, pool, threads=1).frames_kept == 6


@pytest.mark.parametrize("row", [4, 99, 1 << 40, 1 << 60])
def test_a_journal_of_a_shard_row_that_no_array_has(store: Path, pool: WorkerPool, row: int) -> None:
    """Also of an image that there is not."""
    of_another_row(store, f"{row}.journal")
    np.testing.assert_array_equal(LiveView(store).read_frames("0", [(1,)])[0], frame(1))
    assert sealed_shards(open_store(store)).in_progress
    assert recover_store(store, pool, threads=1).frames_kept == 6


@pytest.mark.parametrize(
    "reads",
    [LiveView, UnfinishedStore.read, lambda path: sealed_shards(open_store(path))],
    ids=["live view", "recovery", "compaction"],
)
def test_a_manifest_that_describes_no_acquisition_is_damaged(
    store: Path, reads: Callable[[Path], object]
) -> None:
    manifest = read_manifest(store / ".shardwright")
    write_manifest(store / ".shardwright", replace(manifest, spec={**manifest.spec, "dtype": "nothing"}))
    with pytest.raises(ShardFormatError, match="does not describe an acquisition"):
        reads(store)


# Of a shared journal: the bytes that are changed, and what it is then for each row that was in progress. What
# a power cut leaves of one whose header was not durable has nothing behind it.
STATES = {
    "in progress": (JournalFact.VALID, 0, b""),
    "ended": (JournalFact.NONE, 4096, b"SWENDED\0" * 4),
    "damaged": (JournalFact.DAMAGED, 40, b"\xff"),
    "not begun": (JournalFact.NONE, 0, bytes(40960)),
    "short": (JournalFact.NONE, 4096, b""),
}


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("working", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_every_state_of_a_shared_journal_meets_one_row_of_the_table(
    tmp_path: Path, state: str, working: bool, final: bool
) -> None:
    store = UnfinishedStore.read(unpack(RECORDED / "plate-11.tar.xz", tmp_path) / "plate.ome.zarr")
    (placement,) = store.placements
    (shared,) = placement.files.glob("rows-*.journal")
    fact, at, data = STATES[state]
    with shared.open("r+b") as file:
        file.seek(at)
        file.write(data)
        if state == "short":
            file.truncate()
    rows = [image << IMAGE_SHIFT for image in PLATE_SENT if image > 2]  # the others have ended, or their own
    paths = {row: store.layout.of(row).shard_path(row, 0) for row in rows}
    for path in paths.values():
        if final:
            placement.final(path).parent.mkdir(parents=True)
            placement.final(path).hardlink_to(placement.working(path))  # a rename in two steps
        if not working:
            placement.working(path).unlink()
    with (
        closing(store.open_log(read_only=True)) as log,
        closing(store.open_staging(read_only=True)) as staging,
    ):
        scanned = scan(store, log, staging, threads=1)
    for row, path in paths.items():
        found = [each for each in scanned.facts.shard_rows if each.number == row]
        is_stray = placement.working(path) in scanned.strays
        if fact is JournalFact.VALID:
            (facts,) = found
            (shard,) = facts.files
            assert shard == FileFacts(fact, working=working, final=final, holds=row == 3 << IMAGE_SHIFT)
            assert (facts.journal, is_stray) == (fact, False)
        elif fact is JournalFact.DAMAGED and working:
            ((facts,), (shard,)) = found, found[0].files
            assert (facts.journal, action_for(shard), is_stray) == (fact, Action.SET_ASIDE, False)
        else:
            none = FileFacts(fact, working=working, final=final, holds=False)
            assert not found
            assert is_stray == (action_for(none) is Action.DELETE)
    assert (shared in scanned.strays) == (fact is JournalFact.NONE)
    assert [path for _, path in scanned.damaged] == [shared] * (fact is JournalFact.DAMAGED)
