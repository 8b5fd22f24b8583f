"""Several processes at one array: no update is lost, whichever of them comes first."""

import threading
from contextlib import suppress

import pytest
from tests.harness.python import start_python
from tests.repack.stores import frame, spec

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.disk.files import file_held
from shardwright.model.errors import LockedError, ShardChangedError, ShardFormatError, StorageError
from shardwright.model.names import EDIT_FOLDER
from shardwright.rework.edit.edit_recovery import recover_edits
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.edit.shard_lock import shard_locked
from shardwright.rework.jobs.pack_shard import pack_shard
from shardwright.rework.runtime.throttle import Throttle
from shardwright.rework.transfer.move_plan import MoveOptions, plan_move
from shardwright.shard.shard_sums import ShardSums

from .arrays import contents, encoded, make_array
from .test_shard_edit import assert_sound, full

SHARD = (0, 0)
COUNTS = 12

# Adds to a counter, the value of chunk 0 of a shard, as a caller does that reads it first; and writes a chunk
# of its own.
COUNTER = """
import sys
from pathlib import Path
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.model.errors import ShardChangedError
from shardwright.read.store import parse_array
from shardwright.disk.files import FileIdentity
from tests.edit.arrays import contents, encoded
array, own = parse_array(Path(sys.argv[1])), int(sys.argv[2])
strategies = sys.argv[3].split(",")
for turn in range(COUNTS):
    strategy = strategies[turn % len(strategies)]
    while True:
        seen = FileIdentity.at(array.path / "c/0/0")
        try:
            counted = contents(array, 0, 0)[0]
            number = next(n for n in range(200) if encoded(array, n) == counted)
            chunks = {0: encoded(array, number + 1), own: encoded(array, own, turn)}
            edit_shard(array, (0, 0), chunks, strategy=strategy, expected=seen)
            break
        except (ShardChangedError, ValueError, KeyError, StopIteration):
            pass  # it was changed while it was read, or since
"""


def start(array, own, strategies):
    code = COUNTER.replace("COUNTS", str(COUNTS))
    return start_python("-c", code, array.path, str(own), strategies)


def end(*processes):
    for process in processes:
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("strategies", ["auto", "rewrite,append", "append,rewrite"])
def test_two_processes_that_update_one_shard_lose_no_update(tmp_path, strategies):
    array = make_array(tmp_path / "a", recorded=True)
    expected = {**full(array), 0: encoded(array, 0)}
    edit_shard(array, SHARD, expected)
    end(*(start(array, own, strategies) for own in (1, 2)))
    last = {own: encoded(array, own, COUNTS - 1) for own in (1, 2)}
    assert_sound(array, {**expected, **last, 0: encoded(array, 2 * COUNTS)}, *SHARD)


def test_a_compaction_beside_an_editor_loses_no_update(tmp_path):
    array = make_array(tmp_path / "a")
    expected = {**full(array), 0: encoded(array, 0)}
    edit_shard(array, SHARD, expected)
    process, packed = start(array, 1, "append"), 0
    while process.poll() is None:
        # the editor was faster, or is at work
        with suppress(LockedError, StorageError, ShardFormatError):
            packed += not pack(array)["skipped"]
    assert process.returncode == 0
    assert packed
    last = {0: encoded(array, COUNTS), 1: encoded(array, 1, COUNTS - 1)}
    assert_sound(array, {**expected, **last}, *SHARD)


def pack(array):
    task = {"array": str(array.path), "shard": list(SHARD), "order": "row_major"}
    return pack_shard(task, Throttle(idle=False))


@pytest.fixture
def once_at():
    """``once_at(point, action)``: the first time that storage reaches it."""
    names = []

    def hook(point, action):
        names.append(point)
        failpoints.set_hook(point, failpoints.at_time(1, action))

    yield hook
    for name in names:
        failpoints.set_hook(name, None)


@pytest.fixture(params=[False, True], ids=["no record", "a record"])
def gappy(request, tmp_path):
    """An array of which a shard has gaps."""
    array = make_array(tmp_path / "a", recorded=request.param)
    edit_shard(array, SHARD, full(array))
    edit_shard(array, SHARD, {1: None, 3: None}, strategy="in_place")
    return array


@pytest.mark.parametrize("strategy", ["in_place", "gap", "append", "rewrite"])
@pytest.mark.parametrize(
    "point", ["compact.before_write", "compact.before_read_back", "compact.before_rename"]
)
def test_an_edit_during_a_compaction_stays(gappy, once_at, point, strategy):
    new = {4: encoded(gappy, 99, 20)}
    if strategy == "rewrite" and point != "compact.before_rename":
        once_at(point, lambda: edit_in_thread(gappy, new, strategy))
    else:
        once_at(point, lambda: edit_shard(gappy, SHARD, new, strategy=strategy))
    expected = {**contents(gappy, *SHARD), **new}
    with pytest.raises(StorageError, match="was changed while it was packed"):
        pack(gappy)
    assert_sound(gappy, expected, *SHARD)


def edit_in_thread(array, chunks, strategy):
    """The buffers of a working file are a thread's."""
    thread = threading.Thread(target=edit_shard, args=(array, SHARD, chunks), kwargs={"strategy": strategy})
    thread.start()
    thread.join()


@pytest.mark.parametrize("strategy", ["in_place", "append", "rewrite"])
def test_an_edit_is_planned_again_for_a_shard_that_was_packed_meanwhile(gappy, once_at, strategy):
    new = {4: encoded(gappy, 99, 20)}
    expected = {**contents(gappy, *SHARD), **new}
    point = "compact.before_rename" if strategy == "rewrite" else "edit_journal.before_rename"
    once_at(point, lambda: pack(gappy))
    edit_shard(gappy, SHARD, new, strategy=strategy)
    assert_sound(gappy, expected, *SHARD)


def test_an_edit_of_what_was_read_is_refused_for_a_shard_that_was_packed_meanwhile(gappy, once_at):
    before = contents(gappy, *SHARD)
    seen = edit_shard(gappy, SHARD, {0: before[0]}, strategy="in_place").identity
    once_at("edit_journal.before_rename", lambda: pack(gappy))
    with pytest.raises(ShardChangedError):
        edit_shard(gappy, SHARD, {4: None}, strategy="in_place", expected=seen)
    assert_sound(gappy, before, *SHARD)


def test_a_second_edit_of_a_shard_waits_and_others_do_not(gappy):
    with shard_locked(gappy.path, "c/0/0"):
        with pytest.raises(LockedError, match=r"being updated by another.*process \d+"):
            edit_shard(gappy, SHARD, {0: None}, timeout_s=0.05)
        edit_shard(gappy, (1, 0), {0: encoded(gappy, 1)}, timeout_s=0)
        assert recover_edits(gappy.path) == []
    edit_shard(gappy, SHARD, {0: None}, timeout_s=0)


# Takes the lock of a shard, and counts in a file of its own name what only one may count at a time.
LOCKER = """
import sys
from pathlib import Path
from shardwright.rework.edit.shard_lock import shard_locked
folder, key, turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
count = folder / f"{key}.count"
for _ in range(turns):
    with shard_locked(folder, key):
        count.write_text(str(int(count.read_text()) + 1))
"""


def test_locks_of_one_array_are_taken_by_several_processes_without_an_error(tmp_path):
    """Each removes the folder of locks with its own, if it is the last one in it."""
    turns, keys = 400, ["one", "one", "other"]
    for key in keys:
        (tmp_path / f"{key}.count").write_text("0")
    end(*(start_python("-c", LOCKER, tmp_path, key, str(turns)) for key in keys))
    assert int((tmp_path / "one.count").read_text()) == 2 * turns
    assert int((tmp_path / "other.count").read_text()) == turns
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.count", "other.count"]


@pytest.mark.parametrize("point", ["lock.before_open", "directory.before_look"])
def test_a_folder_of_locks_that_goes_meanwhile_is_made_again(gappy, once_at, point):
    folder = gappy.path / EDIT_FOLDER
    if point == "directory.before_look":
        once_at("directory.before_create", folder.mkdir)
    once_at(point, folder.rmdir)
    edit_shard(gappy, SHARD, {0: None})
    assert not folder.exists()


def test_one_lock_of_an_array_with_a_record_and_without(gappy):
    record = ShardSums(gappy.path)
    held = record.path if record.exists() else gappy.path / "zarr.json"
    with (
        record.held(create=False),
        pytest.raises(StorageError, match="another process has held"),
        file_held(held, "sums", create=False, timeout_s=0.05),
    ):
        pass


def test_a_move_sends_no_file_of_an_edit(gappy):
    with shard_locked(gappy.path, "c/0/0"):
        plan = plan_move(gappy.path, MoveOptions(str(gappy.path.parent / "away")))
    assert {name for name in plan.file_bytes if "edit" in name} == set()


def test_a_store_of_which_a_shard_is_edited_is_not_overwritten(tmp_path):
    store = tmp_path / "a.ome.zarr"
    with sw.create(store, spec()) as writer:
        writer.append(frame(0))
    with shard_locked(store / "0", "c/0/0/0"), pytest.raises(LockedError, match="or an update, has ended"):
        sw.create(store, spec(), overwrite=True)
