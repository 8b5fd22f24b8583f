"""A store gets its name when it is complete, and loses it as a whole: what others do meanwhile, and what is
not ours."""

from __future__ import annotations

import errno
import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.store_contents import snapshot
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.model.errors import LockedError, OutputExistsError, StorageError, StorageFullError
from shardwright.model.names import numbered
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.shard.manifest import manifest_path
from shardwright.store.new_store import abandoned, making_folder, remove_abandoned

if TYPE_CHECKING:
    from pathlib import Path

FRAME = np.ones((4, 6), np.uint16)


@pytest.fixture
def at_point():
    """``at_point(name, action)``: once, when a creation gets there."""
    names = []

    def set_action(name, action) -> None:
        names.append(name)
        failpoints.set_hook(name, failpoints.at_time(1, action))

    yield set_action
    for name in names:
        failpoints.set_hook(name, None)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def begin_and_die(path, spec) -> Path:
    """A copy of a store whose creation has ended, no frame come: what a kill leaves then."""
    living = path.with_name("living.zarr")
    with sw.create(living, spec):
        snapshot(living, path)
    return path


def test_a_creation_that_is_under_way_is_left_alone(tmp_path, spec_of, at_point):
    seen = []

    def meanwhile() -> None:
        (making,) = [path for path in tmp_path.iterdir() if path.name.startswith(".shardwright-")]
        seen.append(making)
        assert abandoned(tmp_path) == []
        assert unfinished_stores(tmp_path) == []
        with pytest.raises(LockedError):
            remove_abandoned(making)
        with sw.create(tmp_path / "other.zarr", spec_of()) as other:
            other.append(FRAME)

    at_point("log.before_create", meanwhile)
    with sw.create(tmp_path / "a.zarr", spec_of()) as writer:
        writer.append(FRAME)
    assert seen
    assert names(tmp_path) == ["a.zarr", "other.zarr"]


def test_a_file_with_the_name_of_a_making_folder_is_left_alone(tmp_path, spec_of):
    """A disk that lost its tables may show the folder that was removed as a file."""
    file = tmp_path / ".shardwright-0123456789abcdef.making"
    file.write_bytes(b"of another file")
    with sw.create(tmp_path / "a.zarr", spec_of()) as writer:
        assert unfinished_stores(tmp_path) == [tmp_path / "a.zarr"]
        writer.append(FRAME)
    assert unfinished_stores(tmp_path) == []
    assert file.read_bytes() == b"of another file"


def test_a_creation_whose_folder_is_taken_for_abandoned_begins_anew(tmp_path, spec_of, at_point):
    """It is not locked from its very first moment."""

    def tidy_up() -> None:
        for folder in abandoned(tmp_path):
            remove_abandoned(folder)

    at_point("lock.before_open", tidy_up)
    with sw.create(tmp_path / "a.zarr", spec_of()) as writer:
        writer.append(FRAME)
    assert names(tmp_path) == ["a.zarr"]


def test_of_two_creations_of_one_name_one_begins_and_the_other_is_refused(tmp_path, spec_of, at_point):
    first = []

    def quicker() -> None:
        first.append(sw.create(tmp_path / "a.zarr", spec_of()))

    at_point("store.before_rename", quicker)
    with pytest.raises(OutputExistsError, match="is unfinished, and being written"):
        sw.create(tmp_path / "a.zarr", spec_of())
    (writer,) = first
    writer.append(FRAME)
    assert writer.close().frames_stored == 1
    assert names(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize("how", ["create", "recover", "resume"])
def test_a_store_that_has_just_got_its_name_is_its_creator_s(tmp_path, spec_of, shared_pool, at_point, how):
    """Nobody takes it for one that a kill left, or goes on with it."""
    path, tried = tmp_path / "a.zarr", []
    ways = {
        "create": lambda: sw.create(path, spec_of()),
        "recover": lambda: recover_store(path, shared_pool, threads=1),
        "resume": lambda: sw.resume(path),
    }

    def others() -> None:
        refused = {"create": OutputExistsError, "recover": LockedError, "resume": LockedError}
        tried.append(path.exists())
        with pytest.raises(refused[how]):
            ways[how]()

    at_point("store.before_rename", lambda: at_point("directory.before_sync", others))
    with sw.create(path, spec_of()) as writer:
        writer.append(FRAME)
    assert tried == [True]
    assert writer.receipt.frames_stored == 1
    assert names(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize("again", [False, True])
def test_a_creation_that_fails_when_the_store_has_its_name_takes_back_only_its_own(
    tmp_path, spec_of, at_point, again
):
    path, held = tmp_path / "a.zarr", []

    def fail() -> None:
        if again:
            path.rename(tmp_path / "b.zarr")
            held.append(sw.create(path, spec_of()))
        raise OSError(5, "Input/output error")

    at_point("store.before_rename", lambda: at_point("directory.before_sync", fail))
    with pytest.raises(sw.errors.StorageError, match="Input/output error"):
        sw.create(path, spec_of())
    for writer in held:
        writer.append(FRAME)
        assert writer.close().frames_stored == 1
    assert names(tmp_path) == (["a.zarr", "b.zarr"] if again else [])


@pytest.mark.parametrize("kind", ["file", "full folder", "dangling link"])
def test_what_has_the_name_already_stays_as_it_is(tmp_path, spec_of, kind):
    path = tmp_path / "a.zarr"
    if kind == "file":
        path.write_text("mine")
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match="exists already"):
        sw.create(path, spec_of())
    assert names(tmp_path) == ["a.zarr"]
    if kind == "full folder":
        assert (path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("point", ["staging.before_create", "store.before_rename", "journal.before_create"])
def test_a_creation_that_fails_leaves_nothing(tmp_path, spec_of, at_point, point):
    def fail() -> None:
        raise OSError(5, "Input/output error")

    spill = tmp_path / "second"
    spill.mkdir()
    root = tmp_path / "root"
    at_point(point, fail)
    with pytest.raises(sw.errors.StorageError):
        sw.create(root / "a.zarr", spec_of(), on_full="spill", **how(spill_root=spill))
    assert names(root) == names(spill) == []


@pytest.mark.parametrize("how", ["create", "recover"])
def test_what_an_older_release_left_of_a_creation_goes(tmp_path, spec_of, shared_pool, how):
    """It made stores under their names, the manifest last."""
    left = begin_and_die(tmp_path / "left.zarr", spec_of())
    manifest_path(left / ".shardwright", 1).unlink()
    if how == "recover":
        assert recover_store(left, shared_pool, threads=1).action == "leftovers removed"
        assert names(tmp_path) == []
    else:
        with sw.create(left, spec_of()) as writer:
            writer.append(FRAME)
        assert names(tmp_path) == ["left.zarr"]


@pytest.mark.parametrize("theirs", ["notes.txt", "0/c/0/0/0", "frames/zarr.json"])
def test_what_somebody_else_put_there_keeps_the_store(tmp_path, spec_of, shared_pool, theirs):
    left = begin_and_die(tmp_path / "left.zarr", spec_of())
    manifest_path(left / ".shardwright", 1).unlink()
    file = left / theirs
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(OutputExistsError):
        sw.create(left, spec_of())
    recover_store(left, shared_pool, threads=1)
    assert file.read_text() == "mine"
    assert json.loads((left / "zarr.json").read_bytes())["node_type"] == "group"


@pytest.mark.parametrize("trace", ["lock", "another writer", "shard", "frame", "power cut"])
def test_a_name_is_freed_only_where_no_frame_can_have_come(tmp_path, spec_of, trace):
    left = begin_and_die(tmp_path / "left.zarr", spec_of())
    holder = None
    if trace == "another writer":
        manifest = manifest_path(left / ".shardwright", 1)
        facts = manifest.read_text().replace('"client_epoch": 1', '"client_epoch": 2')
        manifest.write_text(facts)  # its checksum fails now: damaged, and to be looked at by whoever knows
    elif trace == "shard":
        (left / "0" / "c" / "0" / "0").mkdir(parents=True)
        (left / "0" / "c" / "0" / "0" / "0").write_bytes(b"?")
    elif trace == "frame":
        with (left / ".shardwright" / "0.journal").open("r+b") as file:
            file.seek(4096)
            file.write(b"?")
    elif trace == "power cut":
        (left / ".shardwright" / "boot").write_text("00000000-0000-0000-0000-000000000000")
    else:
        holder = sw.resume(left)
    with pytest.raises(OutputExistsError):
        sw.create(left, spec_of())
    assert (left / ".shardwright").exists()
    if holder is not None:
        holder.append(FRAME)
        holder.close()


def test_a_store_whose_first_frames_a_power_cut_may_have_taken_is_sealed_not_removed(
    tmp_path, spec_of, shared_pool
):
    left = begin_and_die(tmp_path / "left.zarr", spec_of())
    (left / ".shardwright" / "boot").write_text("00000000-0000-0000-0000-000000000000")
    assert recover_store(left, shared_pool, threads=1, dry_run=True).action == "would be sealed"
    assert recover_store(left, shared_pool, threads=1).action == "sealed"
    assert names(left) == ["0", "frames", "zarr.json"]


def test_a_folder_in_the_making_is_gone_whatever_happens(tmp_path):
    def fail(folder) -> None:
        (folder / "a.zarr").mkdir()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), making_folder(tmp_path / "a.zarr") as folder:
        fail(folder)
    assert names(tmp_path) == []


def test_a_removal_that_was_killed_is_finished_by_whoever_comes_next(
    tmp_path, spec_of, shared_pool, at_point
):
    def die() -> None:
        raise OSError(5, "Input/output error")

    at_point("store.before_withdraw", lambda: at_point("store.before_remove", die))
    sw.create(tmp_path / "a.zarr", spec_of()).close()
    (left,) = unfinished_stores(tmp_path)
    assert left.name.startswith(".shardwright-"), "the name is free"
    assert recover_store(left, shared_pool, threads=1).action == "leftovers removed"
    assert names(tmp_path) == []


def test_a_creation_that_fails_beside_a_quicker_one_leaves_that_one_alone(tmp_path, spec_of, at_point):
    """The disk is full because the other one, of the same name, has just taken the room."""
    path, quicker = tmp_path / "a.zarr", []

    def fail() -> None:
        quicker.append(sw.create(path, spec_of()))
        raise OSError(28, "No space left on device")

    at_point("replace.before_rename", fail)
    with pytest.raises(StorageError):
        sw.create(path, spec_of())
    (writer,) = quicker
    writer.append(np.full((4, 6), 7, np.uint16))
    assert writer.close().frames_stored == 1
    assert names(tmp_path) == ["a.zarr"]


def test_a_name_is_given_back_in_the_room_of_the_ballast(tmp_path, spec_of, at_point):
    """On a full copy-on-write filesystem no name can be changed without room."""
    path = tmp_path / "refused.zarr"

    def full() -> None:
        assert (path / ".shardwright" / "ballast").exists()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    at_point("shard.before_preallocate", full)
    at_point("store.before_take_name", full)
    with pytest.raises(StorageFullError):
        sw.create(path, spec_of())
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("embryo.ome.zarr", ["embryo.ome.zarr", "embryo_2.ome.zarr", "embryo_3.ome.zarr"]),
        ("embryo.zarr", ["embryo.zarr", "embryo_2.zarr", "embryo_3.zarr"]),
        ("embryo.1.ome.zarr", ["embryo.1.ome.zarr", "embryo.1_2.ome.zarr", "embryo.1_3.ome.zarr"]),
    ],
)
def test_a_name_that_is_taken_may_get_a_number(tmp_path, spec_of, name, names):
    for expected in names:
        with sw.create(tmp_path / name, spec_of(), **how(name_taken="increment")) as writer:
            assert writer.path == tmp_path / expected
            writer.append(np.zeros(writer.spec.frame_shape, writer.spec.dtype))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)
    with pytest.raises(sw.errors.OutputExistsError, match="name_taken: increment"):
        sw.create(tmp_path / name, spec_of())
    with pytest.raises(sw.errors.SpecError, match="unknown name_taken"):
        sw.create(tmp_path / name, spec_of(), **how(name_taken="replace"))


@pytest.mark.parametrize("name", ["a.ome.zarr", "a.zarr", "a.1.ome.zarr", "a"])
def test_a_resume_of_a_name_that_got_numbers_names_the_newest_that_is_unfinished(tmp_path, spec_of, name):
    path = tmp_path / name
    (tmp_path / "a_x.ome.zarr").mkdir()
    (tmp_path / "a_99.ome.zarr").write_text("no store")
    with ExitStack() as writers:
        for _ in range(3):
            writer = writers.enter_context(sw.create(path, spec_of(), **how(name_taken="increment")))
            writer.append(np.zeros(writer.spec.frame_shape, writer.spec.dtype))
            if writer.path == path:
                writer.close()
        with pytest.raises(sw.errors.ResumeError, match="is finished: complete and sealed") as caught:
            sw.resume(path)
        assert f" is unfinished ({numbered(path, 3)}): resume" in str(caught.value.hint)
    sw.resume(path).close()  # now none of these is unfinished


def test_a_name_is_free_again_after_an_acquisition_without_a_frame(tmp_path, spec_of):
    for _ in range(2):
        with sw.create(tmp_path / "a.ome.zarr", spec_of(), **how(name_taken="increment")) as writer:
            assert writer.path == tmp_path / "a.ome.zarr"


@pytest.mark.parametrize("point", ["lock.before_open", "lock.before_take"])
@pytest.mark.parametrize("began", [True, False])
def test_a_store_that_another_process_ends_meanwhile_is_finished(
    tmp_path, spec_of, shared_pool, at_point, point, began
):
    """Between the look at the store and its lock: nothing is left to do, and nothing of ours stays."""
    path = begin_and_die(tmp_path / "left.zarr", spec_of())
    if began:
        (path / ".shardwright" / "boot").write_text("00000000-0000-0000-0000-000000000000")
    actions = []
    at_point(point, lambda: actions.append(recover_store(path, shared_pool, threads=1).action))
    action = recover_store(path, shared_pool, threads=1).action
    assert action == ("finished by another process" if began else "removed, no frame ever came")
    assert actions == ["sealed" if began else "removed, no frame ever came"]
    assert names(tmp_path) == ["left.zarr"] * began
    assert names(path) == ["0", "frames", "zarr.json"] if began else not path.exists()


def test_a_name_that_another_process_frees_meanwhile_is_free(tmp_path, spec_of, shared_pool, at_point):
    left = begin_and_die(tmp_path / "left.zarr", spec_of())
    at_point("lock.before_open", lambda: recover_store(left, shared_pool, threads=1))
    with sw.create(left, spec_of()) as writer:
        writer.append(FRAME)
    assert names(tmp_path) == ["left.zarr"]


def test_to_resume_a_store_that_is_sealed_meanwhile_is_refused(tmp_path, spec_of, shared_pool, at_point):
    path = begin_and_die(tmp_path / "left.zarr", spec_of())
    (path / ".shardwright" / "boot").write_text("00000000-0000-0000-0000-000000000000")
    at_point("lock.before_open", lambda: recover_store(path, shared_pool, threads=1))
    with pytest.raises(sw.errors.ResumeError, match="is finished"):
        sw.resume(path)


def test_a_lock_that_was_made_anew_in_a_workspace_that_goes_does_not_keep_it(
    tmp_path, spec_of, shared_pool, at_point
):
    """The end of an acquisition deletes the manifest, then the other files in any order."""
    path = begin_and_die(tmp_path / "left.zarr", spec_of())
    (path / ".shardwright" / "boot").write_text("00000000-0000-0000-0000-000000000000")

    def half_ended() -> None:
        for file in (path / ".shardwright").iterdir():
            file.unlink()

    at_point("lock.before_open", half_ended)
    assert recover_store(path, shared_pool, threads=1).action == "finished by another process"
    assert not (path / ".shardwright").exists()
