"""Parity of shard rows: made by `compact --parity`, never older than its shards, applied by `repair`, and by
par2 alone."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from par2.cli import par2_executable
from tests.harness.daemon import run_cli, start_cli
from tests.harness.writing import how
from tests.repack import gappy_store as gappy

import shardwright as sw
from shardwright.model.errors import LinkError, LockedError
from shardwright.model.names import PARITY_FOLDER
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.repair_store import RepairReport, repair_store
from shardwright.rework.jobs.shard_parity import make_parity
from shardwright.rework.runtime.throttle import UNHURRIED
from shardwright.shard.parity_set import ParitySet, forget_parity
from shardwright.shard.shard_sums import ShardSums

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
FRAMES, SIDE = 8, 128
PIXELS = np.random.default_rng(3).integers(0, 1 << 16, (FRAMES, SIDE, SIDE), dtype=np.uint16)
PAGE = 4096
PERCENT = 30  # more than one of the four shards of a row


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shard rows of four shards, packed, of noise without a codec: any byte may change, and is read."""
    dimensions = [sw.Dimension(name="t", count=None, chunk_size=4, shard_size_chunks=1)]
    dimensions += [sw.Dimension(name=n, count=SIDE, chunk_size=32, shard_size_chunks=2) for n in "yx"]
    path = tmp_path_factory.mktemp("parity") / "run.ome.zarr"
    with sw.create(path, sw.ArraySpec(dtype="uint16", dimensions=dimensions, codec=None), **how()) as writer:
        for frame in PIXELS:
            writer.append(frame)
    done = run_cli("compact", "--no-idle", "--parity", f"{PERCENT}%", "--json", path)
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)["stores"]
    assert facts["parity_rows"] == 2
    return path


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run.ome.zarr")  # with the times of the files


def shards(store: Path) -> dict[str, bytes]:
    return {key: path.read_bytes() for key, path in gappy.files(store).items()}


def repair(store: Path, **options: Any) -> RepairReport:
    return repair_store(store, UNHURRIED, **options)


def rows(store: Path) -> list[str]:
    folder = store / "0" / PARITY_FOLDER
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def rot(path: Path, pages: list[int], seed: int = 0) -> None:
    """Other bytes in these pages; no time of the file changes, as nobody has written to it."""
    status, data = path.stat(), bytearray(path.read_bytes())
    for page in pages:
        at = page * PAGE + random.Random(seed + page).randrange(min(PAGE, len(data) - page * PAGE))
        data[at] ^= 0x40
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def recovery_blocks(store: Path, row: str) -> int:
    return parity_of(store, row).blocks


def parity_of(store: Path, row: str = "0") -> ParitySet:
    return ParitySet.read(store / "0" / PARITY_FOLDER / row, ShardSums(store / "0").read())


def assert_sound(store: Path) -> None:
    report = verify_store(store)
    assert report.ok, report.problems
    assert not report.warnings
    assert report.parity_rows == 2
    assert gappy.leftovers(store) == []


def test_it_is_there_fresh_and_whole_and_no_reader_sees_it(store: Path) -> None:
    assert rows(store) == ["0", "1"]
    assert_sound(store)
    assert "parity: 2 shard rows" in run_cli("verify", store).stdout
    assert sorted(zarr.open_group(store, mode="r").array_keys()) == ["0"]
    np.testing.assert_array_equal(gappy.read(store / "0"), PIXELS)
    sizes = sum(path.stat().st_size for path in gappy.files(store).values())
    parity = sum(path.stat().st_size for path in (store / "0" / PARITY_FOLDER).rglob("*.par2"))
    assert PERCENT / 100 * sizes <= parity < 2 * PERCENT / 100 * sizes


def test_a_line_that_says_a_sum_once_more_leaves_it_fresh(store: Path) -> None:
    record = ShardSums(store / "0")
    (key, sums) = next(iter(record.read().items()))
    record.append(dict.fromkeys([key], *sums))
    assert_sound(store)


def test_what_is_there_already_is_not_made_again(store: Path) -> None:
    files = {path: path.stat().st_ino for path in (store / "0" / PARITY_FOLDER).rglob("*")}
    assert make_parity(open_store(store), PERCENT, UNHURRIED, 1) == (2, {})
    assert {path: path.stat().st_ino for path in (store / "0" / PARITY_FOLDER).rglob("*")} == files
    assert make_parity(open_store(store), PERCENT + 20, UNHURRIED, 1) == (2, {})
    assert recovery_blocks(store, "0") > PERCENT / 100 * sum(map(len, shards(store).values())) / PAGE / 2
    assert_sound(store)


@pytest.mark.parametrize("seed", range(4))
def test_random_loss_up_to_the_stated_amount_is_restored_bit_for_bit(store: Path, seed: int) -> None:
    draw, before = random.Random(seed), shards(store)
    for row in rows(store):
        keys = [key for key in before if key.startswith(f"c/{row}/")]
        pages = [(key, page) for key in keys for page in range(-(-len(before[key]) // PAGE))]
        for key, page in draw.sample(pages, draw.randint(1, recovery_blocks(store, row))):
            rot(store / "0" / key, [page], seed)
    assert not verify_store(store).ok
    changed = shards(store)
    looked = repair(store, dry_run=True)
    assert (looked.ok, looked.restored, shards(store)) == (False, [], changed)
    report = repair(store)
    assert report.ok
    assert sorted(report.restored) == sorted(f"0/{key}" for key in before if changed[key] != before[key])
    assert shards(store) == before
    assert_sound(store)


def test_more_than_that_is_refused_with_what_is_lost_and_nothing_changes(store: Path) -> None:
    before = shards(store)
    lost = sorted(before)[:2]
    for key in lost:
        rot(store / "0" / key, list(range(recovery_blocks(store, "0") // 2 + 1)))
    other = max(before)
    rot(store / "0" / other, [2])
    changed = shards(store)
    done = run_cli("repair", "--no-idle", "--json", store)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["ok"], facts["restored"]) == (1, False, [f"0/{other}"])
    (error,) = facts["failures"].values()
    assert all(key in error["message"] for key in lost)
    assert "Nothing was changed" in error["hint"]
    assert {problem["where"] for problem in facts["problems"]} == {f"0/{key}" for key in lost}
    assert shards(store) == {**changed, other: before[other]}


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(range(256)) * 20)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [cut, lengthen, empty, os.unlink], ids=lambda each: each.__name__)
def test_a_shard_that_is_missing_or_has_another_length_is_restored(
    store: Path, damage: Callable[[Path], None]
) -> None:
    before, path = shards(store), gappy.files(store)["c/1/0/1"]
    mode = path.stat().st_mode
    damage(path)
    report = repair(store)
    assert (report.ok, report.restored) == (True, ["0/c/1/0/1"])
    assert shards(store) == before
    assert damage is os.unlink or path.stat().st_mode == mode
    assert_sound(store)


def test_a_shard_with_a_page_that_cannot_be_read_is_restored(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other pages are used: both shards of it together are more than there is parity."""
    before, paths = shards(store), [gappy.files(store)[key] for key in ("c/0/0/0", "c/0/0/1")]
    bad, read = {path.stat().st_ino for path in paths}, os.pread

    def fail(descriptor: int, nbytes: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino in bad and offset < 2 * PAGE:
            if offset >= PAGE:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            nbytes = min(nbytes, PAGE - offset)
        return read(descriptor, nbytes, offset)

    monkeypatch.setattr(os, "pread", fail)
    report = repair(store)
    assert (report.ok, sorted(report.restored)) == (True, ["0/c/0/0/0", "0/c/0/0/1"])
    assert shards(store) == before


def test_parity_that_is_damaged_itself_restores_what_it_can(store: Path) -> None:
    before, row = shards(store), store / "0" / PARITY_FOLDER / "0"
    (volume,) = row.glob("*.vol*")
    rot(volume, [3])
    next(path for path in row.iterdir() if ".vol" not in path.name).unlink()  # the other tells the same
    report = verify_store(store)
    assert report.ok
    (warning,) = report.warnings
    assert "so that less can be restored" in str(warning)
    rot(gappy.files(store)["c/0/0/0"], [0, 1, 2])
    assert repair(store).ok
    assert shards(store) == before
    shutil.rmtree(row)
    assert make_parity(open_store(store), PERCENT, UNHURRIED, 1) == (2, {})
    assert_sound(store)


def test_par2_alone_repairs_the_folder(store: Path) -> None:
    """The command of FORMAT.md."""
    before = shards(store)
    rot(gappy.files(store)["c/0/0/0"], [0, 1])
    gappy.files(store)["c/0/1/0"].unlink()
    par2 = [
        par2_executable(),
        "repair",
        "-q",
        "-B.",
        *map(str, sorted((store / "0" / PARITY_FOLDER / "0").iterdir())),
    ]
    subprocess.run(par2, cwd=store / "0", check=True, capture_output=True)
    assert {key: (store / "0" / key).read_bytes() for key in before} == before


# ---------------------------------------------------------------------- never older than its shards


def other_values(store: Path) -> None:
    sw.update(store, {"t": 1, "y": slice(0, 8), "x": slice(0, 8)}, np.zeros((1, 8, 8), np.uint16))


def test_an_edit_and_a_pack_delete_the_parity_of_their_row(store: Path) -> None:
    other_values(store)
    assert rows(store) == ["1"]
    report = verify_store(store)
    assert (report.ok, report.warnings, report.parity_rows) == (True, [], 1)
    assert make_parity(open_store(store), PERCENT, UNHURRIED, 1) == (2, {})
    assert_sound(store)
    assert run_cli("compact", "--no-idle", "--order", "column_major", store).returncode == 0
    assert rows(store) == []
    assert not (store / "0" / PARITY_FOLDER).exists()


@pytest.mark.parametrize("recorded", [True, False])
def test_no_new_parity_takes_the_place_of_one_that_could_still_restore_a_shard(
    store: Path, *, recorded: bool
) -> None:
    before = shards(store)
    if not recorded:
        (store / "0/shards.crc32c").unlink()
        shutil.rmtree(store / "0" / PARITY_FOLDER)
        assert make_parity(open_store(store), PERCENT, UNHURRIED, 1) == (2, {})
    rot(gappy.files(store)["c/0/0/0"], [1])
    (store / "0/c/1/0/0").unlink()
    made, failures = make_parity(open_store(store), PERCENT + 20, UNHURRIED, 1)
    assert (made, sorted(failures)) == (0, [f"0/{PARITY_FOLDER}/{row}" for row in "01"])
    repair(store)
    assert shards(store) == before
    assert make_parity(open_store(store), PERCENT + 20, UNHURRIED, 1) == (2, {})


def test_parity_of_which_no_file_is_left_restores_nothing(store: Path) -> None:
    for path in (store / "0" / PARITY_FOLDER / "0").glob("*.par2"):
        path.unlink()
    rot(gappy.files(store)["c/0/0/0"], [1])
    (error,) = repair(store).failures.values()
    assert "there are no files in" in error["message"]


def test_a_shard_that_its_acquisition_seals_again_loses_its_parity(tmp_path: Path) -> None:
    store, pixels = tmp_path / "run.ome.zarr", gappy.pixels(3)
    with sw.create(store, gappy.spec(), **how(io="mmap")) as writer:
        for frame in pixels[:10]:
            writer.append(frame)
    assert make_parity(open_store(store), 50, UNHURRIED, 1) == (3, {})
    with sw.resume(store) as writer:
        with pytest.raises(LockedError):
            make_parity(open_store(store), 50, UNHURRIED, 1)
        with pytest.raises(LockedError):
            repair(store)
        for frame in pixels[10:]:
            writer.append(frame)
    assert rows(store) == [], "they are one row to the acquisition, which is written again"
    assert verify_store(store).ok
    gappy.assert_pixels(store, 3)


def test_what_was_edited_by_a_release_that_knows_no_parity_is_never_undone(store: Path) -> None:
    kept = shutil.copytree(store / "0" / PARITY_FOLDER, store.parent / "kept")
    other_values(store)
    shutil.copytree(kept, store / "0" / PARITY_FOLDER, dirs_exist_ok=True)
    after = shards(store)
    (warning,) = verify_store(store).warnings
    assert "a shard of" in str(warning)
    assert "was changed after the parity was made" in str(warning)
    rot(gappy.files(store)["c/0/0/1"], [1])
    report = repair(store)
    (error,) = report.failures.values()
    assert "was changed after the parity was made" in error["message"]
    assert report.restored == []
    assert {key: data for key, data in shards(store).items() if key != "c/0/0/1"} == {
        key: data for key, data in after.items() if key != "c/0/0/1"
    }


def test_what_another_program_has_changed_stays_until_it_is_deleted(store: Path) -> None:
    before = shards(store)
    zarr.open_array(store / "0", mode="r+")[0, :4, :4] = 7
    after = shards(store)
    assert after != before
    report = repair(store)
    (error,) = report.failures.values()
    assert "changed by another program" in error["message"]
    assert shards(store) == after
    gappy.files(store)["c/0/0/0"].unlink()
    assert repair(store).ok
    assert shards(store) == before


def test_a_shard_that_changes_meanwhile_fails_its_row(store: Path, at_point: Callable[..., None]) -> None:
    at_point("parity.before_publish", lambda: other_values(store))
    made, failures = make_parity(open_store(store), PERCENT + 10, UNHURRIED, 1)
    assert (made, [*failures]) == (1, [f"0/{PARITY_FOLDER}/0"])
    assert rows(store) == ["1"]
    assert verify_store(store).ok
    assert gappy.leftovers(store) == []


def test_a_shard_that_changes_while_it_is_repaired_is_not_replaced(
    store: Path, at_point: Callable[..., None]
) -> None:
    path = gappy.files(store)["c/0/0/0"]
    rot(path, [1])
    at_point("compact.before_rename", lambda: path.write_bytes(b"another's"))
    report = repair(store)
    (error,) = report.failures.values()
    assert "was changed while it was repaired" in error["message"]
    assert path.read_bytes() == b"another's"


# ---------------------------------------------------------------------- kills


def killed(point: str, *arguments: str | Path) -> int:
    """The exit code of a command that is killed when it reaches the point (``NAME`` or ``*@N``)."""
    name, _, at = point.partition("@")
    order = f"{name}=kill@{at}" if at else f"{name}=kill"
    child = start_cli(*arguments, more={"SHARDWRIGHT_FAILPOINTS": order})
    child.communicate(gappy.WAIT_S)
    assert child.returncode is not None
    return int(child.returncode)


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_while_parity_is_made_leaves_the_store_and_the_next_run_makes_it(
    store: Path, seed: int
) -> None:
    before, make = shards(store), ("compact", "--no-idle", "--parity", "60%", store)
    named = (
        "parity.before_sync",
        "parity.before_publish",
        "parity.before_delete",
        "parity.before_delete_sync",
    )
    drawn = [f"*@{number}" for number in random.Random(seed).sample(range(1, 30), 2)]
    for point in (named[seed], named[-1 - seed], "folder.before_rename", *drawn):
        assert killed(point, *make) == -9
        assert shards(store) == before
        assert verify_store(store).ok
    assert run_cli(*make).returncode == 0
    assert_sound(store)
    sizes = sum(len(data) for key, data in before.items() if key.startswith("c/0/"))
    assert recovery_blocks(store, "0") * PAGE * 100 >= 60 * sizes


@pytest.mark.parametrize("strategy", ["rewrite", "in_place"])
@pytest.mark.parametrize(
    "point",
    ["parity.before_delete", "parity.before_delete_sync", "edit.before_write", "compact.before_rename"],
)
def test_a_kill_of_an_edit_never_leaves_parity_that_would_undo_it(
    store: Path, strategy: str, point: str
) -> None:
    before = shards(store)
    edit = ("update", store, "--region", "t=1,y=0:8,x=0:8", "--value", "0", "--strategy", strategy)
    code = killed(point, *edit)
    if shards(store) == before and rows(store) == ["0", "1"] and repair(store).rows:
        assert code == -9, "before anything had changed"
    assert shards(store) == before or "0" not in rows(store)
    assert run_cli("recover", store).returncode == 0
    after = shards(store)
    repair(store)
    assert shards(store) == after


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_of_a_repair_leaves_each_shard_as_it_was_or_restored(store: Path, seed: int) -> None:
    before, keys = shards(store), ("c/0/0/0", "c/1/1/1")
    rot(store / "0" / keys[0], [0])
    (store / "0" / keys[1]).unlink()
    damaged = shards(store)
    drawn = [f"*@{number}" for number in random.Random(seed).sample(range(1, 40), 2)]
    for point in ("compact.before_rename", "parity.before_put_back", "parity.before_time", *drawn):
        assert killed(point, "repair", "--no-idle", store) in (0, -9)
        found = shards(store)
        assert {key for key in before if found.get(key) != before[key]} <= set(keys)
        assert all(found.get(key) in (before[key], damaged.get(key)) for key in keys)
    assert run_cli("repair", "--no-idle", store).returncode == 0
    assert shards(store) == before
    assert_sound(store)


def test_par2_waits_with_its_job_and_dies_with_it(store: Path, tmp_path: Path) -> None:
    program, pause = tmp_path / "par2", store / "0/.compact/pause"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    first = f"from par2 import cli\ncli.par2_executable = lambda: {str(program)!r}\n"
    shutil.rmtree(store / "0" / PARITY_FOLDER)
    job = start_cli("compact", "--no-idle", "--parity", "50%", store, first=first)
    below = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    (par2,) = gappy.wait_until(
        lambda: [pid for pid in map(int, below.read_text().split()) if _is(pid, "S")], "par2"
    )
    pause.touch()
    gappy.wait_until(lambda: _is(par2, "T"), "its stop")
    job.kill()
    job.communicate(gappy.WAIT_S)
    gappy.wait_until(lambda: not _is(par2, "T") and not _is(par2, "S"), "its end")
    pause.unlink()
    assert run_cli("compact", "--no-idle", "--parity", "50%", store).returncode == 0
    assert_sound(store)


def _is(pid: int, state: str) -> bool:
    """Whether a process is the program of this test, and in this state."""
    with suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return name.endswith("(sleep") and rest.split()[0] == state
    return False


# ---------------------------------------------------------------------- what is not trusted; where it goes


@pytest.mark.parametrize("name", ["outside", "0/zarr.json", "0/c/1/0/0", "0/c/0/9/9", "0/c/0/x"])
def test_names_in_par2_files_lead_nowhere(store: Path, tmp_path: Path, name: str) -> None:
    """A set of a file that is no shard of the row."""
    row = store / "0" / PARITY_FOLDER / "0"
    kept = {path.name for path in row.iterdir()}
    shutil.rmtree(row)
    row.mkdir(parents=True)
    base = tmp_path / "base" / "0"
    target = base.parent / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bytes(range(256)) * 64)
    par2 = [par2_executable(), "create", "-q", "-q", "-s4096", "-c9", "-n1"]
    above = base if target.is_relative_to(base) else base.parent
    index = row / next(each for each in kept if ".vol" not in each)
    subprocess.run([*par2, f"-B{above}", str(index), str(target)], check=True, capture_output=True)
    rot(gappy.files(store)["c/0/0/0"], [1])
    damaged, files = shards(store), sorted(tmp_path.rglob("*"))
    assert not repair(store).ok
    assert (shards(store), sorted(tmp_path.rglob("*"))) == (damaged, files)


def test_a_link_in_place_of_the_folder_is_not_followed(store: Path, tmp_path: Path) -> None:
    folder, elsewhere = store / "0" / PARITY_FOLDER, tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    kept = sorted(elsewhere.rglob("*"))
    rot(gappy.files(store)["c/0/0/0"], [1])
    report = repair(store)
    assert (report.rows, report.restored) == (0, [])
    with pytest.raises(LinkError):
        forget_parity(store / "0", store / "0/c/0/0/0")
    assert sorted(elsewhere.rglob("*")) == kept


def test_it_goes_with_a_renamed_store_and_not_with_a_copy(store: Path, tmp_path: Path) -> None:
    assert run_cli("rename", store, "other").returncode == 0
    renamed = tmp_path / "other.ome.zarr"
    assert_sound(renamed)
    copy, there = tmp_path / "copy.ome.zarr", tmp_path / "there.ome.zarr"
    assert run_cli("compact", "--no-idle", renamed, "--to", copy).returncode == 0
    assert rows(copy) == []
    assert_sound(renamed)
    assert run_cli("compact", "--no-idle", renamed, "--to", there, "--move").returncode == 0
    assert (rows(there), renamed.exists()) == ([], False)
    assert verify_store(there).ok
    refused = run_cli("compact", "--parity", "10%", "--to", tmp_path / "more.ome.zarr", there)
    assert (refused.returncode, "do not go together" in refused.stderr) == (2, True)
    assert run_cli("compact", "--no-idle", "--parity", "10%", there).returncode == 0
    assert run_cli("delete", "--yes", there).returncode == 0
    assert not there.exists()


def test_a_new_array_does_not_get_that_of_the_one_whose_name_it_has(store: Path) -> None:
    array = zarr.create_array(store / "labels", shape=(64, 64), shards=(64, 64), chunks=(16, 64), dtype="u2")
    array[...] = 5
    assert make_parity(open_store(store / "labels"), 50, UNHURRIED, 1) == (1, {})
    with sw.ChunkStore(store, mode="r+") as chunks:
        zarr.open_group(chunks, mode="r+").create_array(
            "labels", shape=(8, 8), chunks=(8, 8), dtype="u1", overwrite=True
        )
    assert list(store.rglob(PARITY_FOLDER)) == [store / "0" / PARITY_FOLDER]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_makes_is_of_the_owner_whose_updates_delete_it(store: Path) -> None:
    shutil.rmtree(store / "0" / PARITY_FOLDER)
    for path in (store, *store.rglob("*")):
        os.chown(path, 1234, 1235)
    assert make_parity(open_store(store), PERCENT, UNHURRIED, 1) == (2, {})
    made = [store / "0" / PARITY_FOLDER, *(store / "0" / PARITY_FOLDER).rglob("*")]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(1234, 1235)}


def test_a_store_in_one_file_and_a_link_are_refused(store: Path, tmp_path: Path) -> None:
    assert run_cli("compact", "--no-idle", store, "--to", tmp_path / "run.ozx").returncode == 0
    refused = run_cli("repair", tmp_path / "run.ozx")
    assert (refused.returncode, "has no parity" in refused.stderr) == (1, True)
    (tmp_path / "link").symlink_to(store)
    assert "is a link" in run_cli("repair", tmp_path / "link").stderr


@pytest.mark.parametrize("text", ["0", "101%", "ten", "-3", "10.5%"])
def test_what_is_no_percentage_is_refused(store: Path, text: str) -> None:
    refused = run_cli("compact", f"--parity={text}", store)
    assert (refused.returncode, "1% to 100%" in refused.stderr) == (2, True)
