"""Edits that are killed at every call of storage, or that fail there: afterwards the shard has all of the old
chunks or all of the new ones, once recovery has run, which may be killed as well."""

import errno
import itertools
import os
import shutil
import signal
from dataclasses import replace

import pytest
import zarr
from tests.harness.fork_server import ForkServer

from shardwright.disk import failpoints
from shardwright.model.errors import (
    FormatVersionError,
    LockedError,
    ShardFormatError,
    ShardwrightError,
    StorageFullError,
    StrategyError,
)
from shardwright.model.names import EDIT_FOLDER
from shardwright.read.inspect_shards import inspect_shard
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit import redo_journal
from shardwright.rework.edit.edit_recovery import (
    DECISIONS,
    EditAction,
    FileState,
    JournalState,
    decide,
    recover_edits,
)
from shardwright.rework.edit.redo_journal import RedoJournal
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.jobs.new_arrays import fingerprint
from shardwright.rework.jobs.pack_shard import pack_shard
from shardwright.rework.runtime.throttle import Throttle
from shardwright.shard.edit_files import INTERRUPTED, JOURNAL_SUFFIX, edit_file, interrupted_edits

from .arrays import contents, encoded, make_array
from .editor import edit, recover
from .journals import hostile_journals
from .test_shard_edit import assert_sound, full

SHARD = (0, 0)
PLACES = {"index at the end": {"recorded": True}, "index at the start": {"index": "start"}}
WHAT = {
    "in_place": ("in_place", {1: 5, 2: None, 4: 40}),
    "gap": ("gap", {0: 30, 4: 20}),
    "append": ("append", {1: 250, 2: None, 4: 100}),
    "rewrite": ("rewrite", {1: 250, 2: None, 4: 100}),
    "delete": ("auto", dict.fromkeys(range(6))),
}


@pytest.fixture(scope="module")
def server():
    with ForkServer(prepare="tests.edit.editor:load_kernels") as made:
        yield made


def killed(server, function, path, *arguments, call):
    """Killed at this storage call; 0: lives, and returns which calls there are."""
    child = server.start(function, path, *arguments, call)
    said = child.drain()
    assert child.wait() == (-signal.SIGKILL if call else 0), said
    return said[0] if said else []


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def array(request, tmp_path):
    """Its shard has gaps."""
    array = make_array(tmp_path / "a", **request.param)
    edit_shard(array, SHARD, full(array))
    edit_shard(array, SHARD, {3: None, 5: encoded(array, 6, 10)}, strategy="in_place")
    return array


def changes(array, what):
    """Strategy, chunks to change, the old chunks and the new ones."""
    strategy, noises = WHAT[what]
    chunks = {n: None if noise is None else encoded(array, n + 50, noise) for n, noise in noises.items()}
    old = contents(array, *SHARD)
    new = {n: data for n, data in {**old, **chunks}.items() if data is not None}
    return strategy, chunks, old, new


def copy_of(array):
    """The array again, in a folder of its own."""
    copies = array.path.parent / "copies"
    path = copies / str(len(list(copies.iterdir())) if copies.exists() else 0)
    shutil.copytree(array.path, path)
    return parse_array(path)


def as_readers_find_it(array):
    """The chunks, or None where the index fails its checksum."""
    try:
        return contents(array, *SHARD)
    except ValueError:
        return None


@pytest.mark.parametrize("what", WHAT)
def test_a_kill_at_every_call_leaves_the_old_chunks_or_the_new_ones(server, array, what):
    strategy, chunks, old, new = changes(array, what)
    whole, states = copy_of(array), set()
    points = killed(server, edit, whole.path, SHARD, chunks, strategy, call=0)
    assert_sound(whole, new, *SHARD)
    for call in range(1, len(points) + 1):
        tried = copy_of(array)
        killed(server, edit, tried.path, SHARD, chunks, strategy, call=call)
        states.add(assert_whole_after_recovery(tried, what, old, new))
        shutil.rmtree(tried.path)
    assert states == {"old", "new"}
    expected = {
        "rewrite": {"compact.before_write", "compact.before_sync", "compact.before_rename"},
        "delete": {"edit.before_delete_shard"},
    }.get(what, {"edit_journal.before_rename", "edit.before_write", "edit.before_sync", "edit.before_clear"})
    assert expected <= set(points)


def assert_whole_after_recovery(array, what, old, new):
    """Returns which chunks are there in the end."""
    pending = bool(interrupted_edits(array.path))
    found = as_readers_find_it(array)
    if what == "in_place":  # a chunk that was being written
        assert all(found[n] == data for n, data in old.items() if n not in WHAT[what][1])
    else:
        assert found in (old, new)
    assert pending == any(problem.what == INTERRUPTED for problem in verify_store(array.path).problems)
    if (array.path / array.shard_key(SHARD)).exists():
        assert pending == (INTERRUPTED in inspect_shard(array, SHARD).problems)
    recovered = recover_edits(array.path)
    assert [edit.action for edit in recovered] == ["completed"] * pending
    found = contents(array, *SHARD)
    assert found == new if pending else found in (old, new)
    assert_sound(array, found, *SHARD)
    return "old" if found == old else "new"


@pytest.mark.parametrize("what", ["in_place", "append"])
def test_a_kill_at_every_call_of_a_recovery_is_recovered(server, array, what):
    strategy, chunks, _, new = changes(array, what)
    points = killed(server, edit, copy_of(array).path, SHARD, chunks, strategy, call=0)
    broken = copy_of(array)
    at = 1 + points.index("edit.before_sync")
    killed(server, edit, broken.path, SHARD, chunks, strategy, call=at)
    assert interrupted_edits(broken.path)
    whole = copy_of(broken)
    points = killed(server, recover, whole.path, call=0)
    assert_sound(whole, new, *SHARD)
    assert len(points) > 4
    for call in range(1, len(points) + 1):
        tried = copy_of(broken)
        killed(server, recover, tried.path, call=call)
        recover_edits(tried.path)
        assert_sound(tried, new, *SHARD)


@pytest.fixture
def fail_at():
    """``fail_at(number, error)``: the call of storage of this number raises it."""

    def set_up(number, failure):
        calls = itertools.count(1)

        def watch(name):
            if next(calls) == number:
                seen.append(name)
                raise OSError(failure, os.strerror(failure))

        seen = []
        failpoints.watch_all(watch)
        return seen

    yield set_up
    failpoints.watch_all(None)


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO], ids=["full disk", "I/O error"])
@pytest.mark.parametrize("what", WHAT)
def test_an_error_at_any_call_leaves_the_old_chunks_or_a_journal_of_the_new_ones(
    array, fail_at, what, failure
):
    strategy, chunks, old, new = changes(array, what)
    for number in itertools.count(1):
        tried = copy_of(array)
        seen = fail_at(number, failure)
        try:
            edit_shard(tried, SHARD, chunks, strategy=strategy)
            error = None
        except ShardwrightError as caught:
            error = caught
        failpoints.watch_all(None)
        if not seen:
            break
        pending = bool(interrupted_edits(tried.path))
        is_done = seen[0] in (
            "edit.before_delete_journal",
            "lock.before_delete",
            "compact.before_remove_work_folder",
        )
        is_named = seen == ["directory.before_sync"]  # the name is there, and perhaps not durable
        if pending and not is_done and not is_named:
            assert "interrupted" in error.message or "interrupted" in str(error)
        if error is not None and not pending and not is_done and not is_named:
            assert contents(tried, *SHARD) == old, seen
        recover_edits(tried.path)
        found = contents(tried, *SHARD)
        assert found == new if pending or error is None else found in (old, new)
        assert_sound(tried, found, *SHARD)
        shutil.rmtree(tried.path)
    assert error is None


def test_what_cannot_be_taken_back_is_completed_later(array):
    strategy, chunks, _, new = changes(array, "append")

    def fail():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for point in ("edit.before_write", "edit.before_cut"):
        failpoints.set_hook(point, fail)
    try:
        with pytest.raises(StorageFullError, match=r"was interrupted.*shardwright recover"):
            edit_shard(array, SHARD, chunks, strategy=strategy)
    finally:
        for point in ("edit.before_write", "edit.before_cut"):
            failpoints.set_hook(point, None)
    assert [edit.action for edit in recover_edits(array.path)] == ["completed"]
    assert_sound(array, new, *SHARD)


def test_each_combination_of_facts_matches_one_row_of_the_table():
    for journal in JournalState:
        for file in FileState:
            rows = [action for state, files, action in DECISIONS if state is journal and file in files]
            assert len(rows) == 1
            assert decide(journal, file) is rows[0]
    assert {action for _, _, action in DECISIONS} == set(EditAction)


class _Killed(BaseException):
    """Nobody recovers from it, as from a kill."""


def kill_edit(array, shard, chunks, strategy, at):
    """An edit that ends at the first ``at`` behind its journal, as a kill would end it."""
    journal = edit_file(array.path, array.shard_key(shard), JOURNAL_SUFFIX)

    def kill():
        if journal.exists():
            raise _Killed

    failpoints.set_hook(at, kill)
    try:
        with pytest.raises(_Killed):
            edit_shard(array, shard, chunks, strategy=strategy)
    finally:
        failpoints.set_hook(at, None)


def interrupted(array, what="in_place", at="edit.before_sync"):
    """The array with an edit that was killed at this point; the new chunks."""
    strategy, chunks, _, new = changes(array, what)
    kill_edit(array, SHARD, chunks, strategy, at)
    return new


def test_a_copy_of_a_store_with_an_interrupted_edit_is_recovered(array):
    for what, at in (("gap", "edit.before_write"), ("append", "edit.before_clear")):
        new = interrupted(array, what, at)
        copied = copy_of(array)
        assert [edit.action for edit in recover_edits(copied.path)] == ["completed"]
        assert_sound(copied, new, *SHARD)
        recover_edits(array.path)
        edit_shard(array, SHARD, {3: None, 5: encoded(array, 6, 10)}, strategy="rewrite")


def test_the_next_edit_completes_an_interrupted_one(array):
    new = interrupted(array)
    edit_shard(array, SHARD, {1: None}, strategy="in_place")
    del new[1]
    assert_sound(array, new, *SHARD)


def test_a_shard_that_was_replaced_since_is_left_with_the_journal(array):
    interrupted(array, "append", "edit.before_sync")
    path = array.path / array.shard_key(SHARD)
    path.unlink()
    path.write_bytes(b"x" * 1000)
    [refused] = recover_edits(array.path)
    assert (refused.action, refused.error["code"]) == ("refused", "shard_format")
    with pytest.raises(ShardFormatError, match="another file has its place"):
        edit_shard(array, SHARD, {1: None})
    assert path.read_bytes() == b"x" * 1000
    path.unlink()
    assert [edit.action for edit in recover_edits(array.path)] == ["discarded"]
    assert not (array.path / EDIT_FOLDER).exists()


@pytest.mark.parametrize("in_its_place", [True, False], ids=["in its place", "as another file"])
def test_a_shard_that_another_program_has_written_anew_is_not_overwritten(tmp_path, in_its_place):
    """Without compression all chunks have one length: the index is the same whatever they hold."""
    path = tmp_path / "a"
    made = zarr.create_array(
        path, shape=(4, 8, 8), shards=(4, 8, 8), chunks=(1, 8, 8), dtype="uint8", compressors=None
    )
    made[...] = 1
    array, shard = parse_array(path), (0, 0, 0)
    chunks = {2: bytes([7]) * 64}
    kill_edit(array, shard, chunks, "in_place", "edit.before_write")
    place = path / array.shard_key(shard)
    data = bytearray(place.read_bytes())
    data[: 4 * 64] = bytes([5]) * (4 * 64)
    if in_its_place:
        with place.open("r+b") as file:
            file.write(data)
    else:
        place.unlink()
        place.write_bytes(data)
    assert (zarr.open_array(path)[...] == 5).all()
    assert [edit.action for edit in recover_edits(path)] == ["refused"]
    assert (zarr.open_array(path)[...] == 5).all()


def test_a_damaged_journal_or_one_of_another_release_is_left(array):
    interrupted(array)
    path = edit_file(array.path, array.shard_key(SHARD), JOURNAL_SUFFIX)
    data = path.read_bytes()
    shard = (array.path / array.shard_key(SHARD)).read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        kind = FormatVersionError if 8 <= place < 12 else ShardFormatError
        with pytest.raises(kind):
            RedoJournal.parse(path.read_bytes(), path)
    [refused] = recover_edits(array.path)
    assert refused.action == "refused"
    assert path.read_bytes() == damaged
    assert (array.path / array.shard_key(SHARD)).read_bytes() == shard
    other = replace(RedoJournal.parse(data, path), key="c/1/0")
    new, saved = path.with_name("new"), path.with_name("saved")
    other.save(saved, new, _allowed())
    saved.replace(path)
    assert "its shard is 'c/1/0'" in recover_edits(array.path)[0].error["message"]


def _allowed():
    from contextlib import nullcontext

    return nullcontext()


def test_a_shard_of_an_interrupted_edit_is_not_packed(array):
    new = interrupted(array)
    task = {"array": str(array.path), "shard": list(SHARD), "order": "row_major"}
    with pytest.raises(LockedError, match="is being updated, or its update was interrupted"):
        pack_shard(task, Throttle(idle=False))
    recover_edits(array.path)
    pack_shard(task, Throttle(idle=False))
    assert_sound(array, new, *SHARD)


def test_no_array_is_made_of_half_an_edit(array):
    """Also if the edit began once the job had, and had been cut short when it ended."""
    before = fingerprint(array)
    interrupted(array)
    with pytest.raises(LockedError, match="is being updated, or its update was interrupted"):
        fingerprint(array)
    recover_edits(array.path)
    assert fingerprint(array) != before


def test_a_dry_run_only_tells(array):
    interrupted(array)
    assert [edit.action for edit in recover_edits(array.path.parent, dry_run=True)] == ["interrupted"]
    assert interrupted_edits(array.path) == ["c.0.0"]


def test_a_journal_that_no_edit_writes_is_damaged_and_the_rest_goes_on(array):
    """Nothing of it is applied, and the interrupted edits of other shards and arrays are completed."""
    new = interrupted(array)
    other = array.path.parent / "other"
    shutil.copytree(array.path, other)
    path = array.path / array.shard_key(SHARD)
    data, status = path.read_bytes(), path.stat()
    journal = edit_file(array.path, array.shard_key(SHARD), JOURNAL_SUFFIX)
    sound = journal.read_bytes()
    for what, damaged in hostile_journals(array.shard_key(SHARD).encode(), status.st_ino, data).items():
        journal.write_bytes(damaged)
        [refused] = recover_edits(array.path)
        assert refused.action == "refused", what
        assert refused.error["code"] == "shard_format", what
        assert str(journal) in refused.error["message"] + refused.error["hint"], what
        assert path.stat().st_size == status.st_size, what
        assert path.read_bytes() == data, what
        assert journal.read_bytes() == damaged, what
    actions = {edit.path.parts[-4]: edit.action for edit in recover_edits(array.path.parent)}
    assert actions.pop("other") == "completed"
    assert set(actions.values()) == {"refused"}
    assert_sound(parse_array(other), new, *SHARD)
    journal.write_bytes(sound)
    assert [edit.action for edit in recover_edits(array.path)] == ["completed"]
    assert_sound(array, new, *SHARD)


def test_a_journal_of_holes_is_not_read(array):
    interrupted(array)
    journal = edit_file(array.path, array.shard_key(SHARD), JOURNAL_SUFFIX)
    os.truncate(journal, 1 << 40)
    [refused] = recover_edits(array.path)
    assert "too long" in refused.error["message"]


@pytest.mark.parametrize("strategy", ["auto", "append"])
def test_no_journal_is_written_that_recovery_would_refuse(array, monkeypatch, strategy):
    monkeypatch.setattr(redo_journal, "MOST_BYTES", 200)
    old, new = contents(array, *SHARD), {0: encoded(array, 50, 100)}
    if strategy == "append":
        with pytest.raises(StrategyError, match="too long to be recovered"):
            edit_shard(array, SHARD, new, strategy=strategy)
        assert_sound(array, old, *SHARD)
        return
    assert edit_shard(array, SHARD, new, strategy=strategy, max_unused=1.0).strategy == "rewrite"
    assert_sound(array, {**old, **new}, *SHARD)
