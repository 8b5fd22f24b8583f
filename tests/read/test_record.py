"""A shard that was deleted, swapped, replaced or altered after it was sealed is an error, whatever its bytes
look like."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import warnings
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.cli.app import main
from shardwright.disk.failpoints import at_time, set_hook, watch_all
from shardwright.model.errors import FormatVersionError
from shardwright.read.store import open_store
from shardwright.read.verify_store import VerifyReport, verify_store
from shardwright.rework.jobs.pack_shard import pack_shard
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import Throttle
from shardwright.shard.shard_sums import SUMS_NAME, ShardSums, data_crc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FRAMES = 8
CODECS: dict[str, dict[str, Any]] = {
    "none": {"codec": None},
    "checksum": {"codec": sw.Blosc(), "chunk_checksum": True},
    "start": {"codec": sw.Zstd(), "index_location": "start"},
}


def spec(**options: Any) -> sw.ArraySpec:
    """Four shard rows of two shards, of chunks that are all of one size where nothing compresses."""
    t = sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=2)
    y, x = (
        sw.Dimension(name=name, count=16, chunk_size=8, shard_size_chunks=n)
        for name, n in (("y", 2), ("x", 1))
    )
    return sw.ArraySpec(dtype="uint16", dimensions=[t, y, x], **options)


def frame(number: int) -> np.ndarray:
    return np.random.default_rng(number).poisson(90, (16, 16)).astype(np.uint16) + 1


def write(
    path: Path, io: str = "mmap", frames: int = FRAMES, *, in_turn: bool = False, **options: Any
) -> Path:
    """``in_turn``: each frame is stored before the next, so that no shard row is sealed ahead of an earlier
    one whose slab a worker still has."""
    with (
        warnings.catch_warnings(action="ignore", category=sw.errors.LayoutWarning),
        sw.create(path, spec(**options), **how(io=io)) as writer,
    ):
        for number in range(frames):
            writer.append(frame(number))
            while in_turn and writer.watermark.stored <= number:
                time.sleep(0.001)
    return path


def verified(path: Path) -> VerifyReport:
    return verify_store(path, threads=2)


def found(path: Path) -> list[str]:
    return [str(problem) for problem in verified(path).problems]


def assert_whole(path: Path, shards: int = 8) -> None:
    report = verified(path)
    assert (report.problems, report.warnings) == ([], [])
    assert (report.shards, report.shards_recorded) == (shards, shards)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sealed")
    return {
        name: write(folder / f"{name}.ome.zarr", io="pwrite" if name == "none" else "mmap", **CODECS[name])
        for name in CODECS
    }


@pytest.fixture(params=CODECS)
def store(request: pytest.FixtureRequest, sealed: dict[str, Path], tmp_path: Path) -> Path:
    path = tmp_path / "a.ome.zarr"
    shutil.copytree(sealed[request.param], path)
    return path


@pytest.fixture
def plain(sealed: dict[str, Path], tmp_path: Path) -> Path:
    path = tmp_path / "a.ome.zarr"
    shutil.copytree(sealed["none"], path)
    return path


@pytest.fixture
def hook() -> Iterator[Callable[[str, Callable[[], None]], None]]:
    points: list[str] = []

    def at(point: str, action: Callable[[], None]) -> None:
        points.append(point)
        set_hook(point, action)

    yield at
    for point in points:
        set_hook(point, None)


def test_what_is_on_record_of_a_chunk_is_its_crc32c_without_an_inner_one():
    body = b"an encoded chunk"
    inner = crc32c.crc32c(body).to_bytes(4, "little")
    found = [
        data_crc(body, has_inner=False),
        data_crc(body + inner, has_inner=True),
        data_crc(b"a damaged one..." + inner, has_inner=True, inner_is_believed=True),
        data_crc(inner, has_inner=True, inner_is_believed=True),
    ]
    assert found == [crc32c.crc32c(body)] * 4
    assert data_crc(b"a damaged one..." + inner, has_inner=True) != found[0]


def test_what_was_sealed_is_all_on_record(store: Path) -> None:
    assert_whole(store)
    assert len(ShardSums(store / "0").read()) == 8


@pytest.mark.parametrize(("one", "other"), [("c/0/0/0", "c/0/0/1"), ("c/1/0/1", "c/3/0/0")])
def test_shards_that_were_swapped(store: Path, one: str, other: str) -> None:
    swap(store / "0" / one, store / "0" / other)
    assert found(store) == [
        f"0/{one}: not the shard that was sealed: it is {other} (record: {SUMS_NAME})",
        f"0/{other}: not the shard that was sealed: it is {one} (record: {SUMS_NAME})",
    ]
    (problem,) = found(store / "0" / one)
    assert "it is" in problem


def test_a_shard_that_was_deleted(store: Path) -> None:
    (store / "0/c/2/0/1").unlink()
    assert found(store) == [f"0/c/2/0/1: missing, although it was sealed (record: {SUMS_NAME})"]
    shutil.rmtree(store / "0/c/1")
    assert [problem.split(":")[0] for problem in found(store)] == ["0/c/1/0/0", "0/c/1/0/1", "0/c/2/0/1"]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("inside", [(), ("0",)])
def test_a_folder_in_the_place_of_a_shard(plain: Path, recorded: bool, inside: tuple[str, ...]) -> None:
    if not recorded:
        (plain / "0" / SUMS_NAME).unlink()
    (plain / "0/c/2/0/1").unlink()
    (plain / "0/c/2/0/1").joinpath(*inside).mkdir(parents=True)
    (problem,) = found(plain)
    assert problem.startswith("0/c/2/0/1: ")
    assert "is not a regular file" in problem


def test_a_shard_of_another_store(plain: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "b.ome.zarr", codec=None, frames=2)
    shutil.copy(other / "0/c/0/0/1", plain / "0/c/3/0/0")
    (problem,) = found(plain)
    assert problem == f"0/c/3/0/0: not the shard that was sealed: it is c/0/0/1 (record: {SUMS_NAME})"


def test_any_flipped_bit_of_a_chunk_without_a_checksum(plain: Path) -> None:
    shard = plain / "0/c/1/0/0"
    sound = bytearray(shard.read_bytes())
    for position in (0, 77, 8 * 8 * 2 - 1):
        sound[position] ^= 4
        shard.write_bytes(sound)
        assert found(plain) == [
            (
                f"0/c/1/0/0: not the shard that was sealed: it was altered or replaced "
                f"since; every chunk decodes (record: {SUMS_NAME})"
            )
        ]
        sound[position] ^= 4
    shard.write_bytes(sound)
    assert_whole(plain)


def test_a_shard_that_is_all_fill_value_needs_no_file(tmp_path: Path) -> None:
    with sw.create(tmp_path / "a.ome.zarr", spec()) as writer:
        for number in range(4):
            writer.append(frame(number) * (number // 2))
    assert_whole(tmp_path / "a.ome.zarr", 2)
    assert ShardSums(tmp_path / "a.ome.zarr/0").of("c/0/0/1") == {None}


def test_a_store_of_an_earlier_release(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no record: verify says so, and warns where the frame table tells of shards that are not
    there."""
    (plain / "0" / SUMS_NAME).unlink()
    assert run("verify", plain) == 0
    assert "8 shards are not on record" in capsys.readouterr().out
    swap(plain / "0/c/0/0/0", plain / "0/c/1/0/0")
    (plain / "0/c/2/0/1").unlink()
    assert run("verify", plain) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "warning: frames: 1 shards of stored frames are absent, such as c/2/0/1: all fill value, or deleted"
    )


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def test_a_single_image_of_an_earlier_release(tmp_path: Path) -> None:
    dimensions = [sw.Dimension(name=name, count=16, chunk_size=8, shard_size_chunks=1) for name in "yx"]
    with sw.create(tmp_path / "a.ome.zarr", sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as writer:
        writer.append(frame(0))
    assert_whole(tmp_path / "a.ome.zarr", 4)
    (tmp_path / "a.ome.zarr/0" / SUMS_NAME).unlink()
    assert verified(tmp_path / "a.ome.zarr").warnings == []
    (tmp_path / "a.ome.zarr/0/c/1/1").unlink()
    (warning,) = verified(tmp_path / "a.ome.zarr").warnings
    assert "c/1/1" in str(warning)


# ---------------------------------------------------------------------- the record itself


def test_a_line_that_was_cut_or_damaged_says_nothing(tmp_path: Path) -> None:
    sums = ShardSums(tmp_path)
    sums.append({"c/0": 1, "c/1": None})
    with sums.path.open("ab") as file:
        check = crc32c.crc32c(b"c/3 [4]")
        file.write(
            f'{{"version": 1, "key": "c/3", "crc32c": [4], "check": {check}}}\n[]\n'.encode()
            + b"[" * 100_000
            + b"\n"
        )
        file.write(
            b'{"version": 1, "key": "c/2", "crc32c": 3, "check": 1}\n{"version": 1, "key": "c/0", "crc3'
        )
    sums.append({"c/0": 2})
    assert sums.read() == {"c/0": {1, 2}, "c/1": {None}}
    assert (sums.of("c/0"), sums.of("c/1"), sums.of("c/2")) == ({1, 2}, {None}, set())


def test_another_version_is_not_believed(plain: Path) -> None:
    path = plain / "0" / SUMS_NAME
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(FormatVersionError):
        ShardSums(plain / "0").read()
    (problem,) = found(plain)
    assert problem.startswith(f"0/{SUMS_NAME}: ")


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    children = []
    for worker in range(4):
        child = os.fork()
        if child == 0:
            try:
                for number in range(25):
                    ShardSums(tmp_path).append({f"c/{worker}/{number}": number})
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0, 0]
    assert ShardSums(tmp_path).read() == {
        f"c/{worker}/{number}": {number} for worker in range(4) for number in range(25)
    }


# ---------------------------------------------------------------------- kept true


def task(store: Path, key: str, **options: Any) -> dict[str, Any]:
    coordinates = [int(part) for part in key.split("/")[1:]]
    return {
        "kind": "pack",
        "array": str(store / "0"),
        "shard": coordinates,
        "order": "morton",
        "throttle": {"idle": False},
        **options,
    }


RECOMPRESS = {"recompress": {"cname": "zstd", "clevel": 9, "shuffle": "bitshuffle"}}


@pytest.mark.parametrize("options", [{}, RECOMPRESS])
def test_compaction_keeps_it_true(tmp_path: Path, options: dict[str, Any]) -> None:
    for checksum in (False, True):
        store = write(
            tmp_path / f"{checksum}.ome.zarr", codec=sw.Blosc(cname="lz4", clevel=0), chunk_checksum=checksum
        )
        recoded = 0
        for key, _ in list(open_store(store).arrays[0].shard_files()):
            result = run_task(task(store, key, **options))
            assert result["ok"]
            recoded += result["chunks_recoded"]
        assert bool(recoded) == bool(options)
        assert_whole(store)
        swap(store / "0/c/0/0/0", store / "0/c/1/0/0")
        assert len(found(store)) == 2


def test_a_shard_that_is_another_one_is_not_recoded_into_the_right_one(tmp_path: Path) -> None:
    """Its sum would be on record ever after. Packing changes no sum, and does no harm."""
    store = write(tmp_path / "a.ome.zarr", codec=sw.Blosc(cname="lz4", clevel=0))
    swap(store / "0/c/0/0/0", store / "0/c/1/0/0")
    before = (store / "0/c/0/0/0").read_bytes()
    result = run_task(task(store, "c/0/0/0", **RECOMPRESS))
    assert "is not the shard that" in result["error"]["message"]
    assert (store / "0/c/0/0/0").read_bytes() == before
    assert run_task(task(store, "c/0/0/0"))["ok"]
    assert len(found(store)) == 2
    (store / "0" / SUMS_NAME).unlink()
    assert run_task(task(store, "c/0/0/0", **RECOMPRESS))["ok"]
    assert not (store / "0" / SUMS_NAME).exists()


def test_what_is_trimmed_is_not_missed(tmp_path: Path) -> None:
    store = write(tmp_path / "a.ome.zarr", codec=None)
    document = json.loads((store / "0/zarr.json").read_text())
    (store / "0/zarr.json").write_text(json.dumps({**document, "shape": [5, 8, 8]}))
    for key, _ in list(open_store(store).arrays[0].shard_files()):
        assert run_task(task(store, key, trim=True))["ok"]
    (store / "0/zarr.json").write_text(json.dumps(document))
    report = verified(store)
    assert (report.problems, report.shards, report.shards_recorded) == ([], 3, 3)


def test_a_recompression_that_is_killed_at_any_point_leaves_it_true(tmp_path: Path) -> None:
    original = write(tmp_path / "original.ome.zarr", codec=sw.Blosc(cname="lz4", clevel=0), frames=2)
    store, number = tmp_path / "a.ome.zarr", 0
    lived = False
    while not lived:
        number += 2
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(original, store)
        at_this_call = at_time(number, lambda: os.kill(os.getpid(), signal.SIGKILL))

        def job(at_this_call: Callable[[], None] = at_this_call) -> None:
            watch_all(lambda _: at_this_call())
            pack_shard(task(store, "c/0/0/1", **RECOMPRESS), Throttle(idle=False))

        lived = not killed(job)
        assert_whole(store, 2)
    assert number > 10


def killed(job: Callable[[], Any]) -> bool:
    """Whether a child process that runs ``job`` was killed in it."""
    child = os.fork()
    if child == 0:
        try:
            job()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def run_here(tasks: Any) -> Iterator[dict[str, Any]]:
    for each in tasks:
        yield run_task(each)


def test_new_stores_and_levels_have_one(store: Path, tmp_path: Path) -> None:
    new = tmp_path / "b.ome.zarr"
    chosen = RechunkOptions(chunks={"t": 2, "x": 16}, shards={"t": 4})
    assert write_new_store(
        plan_new_store(store, chosen), new, chosen, run_here, throttle=Throttle(idle=False)
    ).ok
    assert add_levels(new, PyramidOptions(1), run_here, throttle=Throttle(idle=False)).ok
    report = verified(new)
    assert (report.problems, report.warnings, report.shards) == ([], [], report.shards_recorded)
    swap(new / "0/c/0/0/0", new / "0/c/1/0/0")
    (new / "1/c/0/0/0").unlink()
    assert [problem.split(":")[0] for problem in found(new)] == ["0/c/0/0/0", "0/c/1/0/0", "1/c/0/0/0"]


def test_a_move_takes_it_along(plain: Path, tmp_path: Path) -> None:
    assert run("compact", plain, "--to", tmp_path / "b.ome.zarr", "--workers", "1", "--no-idle") == 0
    assert_whole(tmp_path / "b.ome.zarr")


# ---------------------------------------------------------------------- while it is written


def test_it_is_durable_before_a_shard_has_its_name(
    tmp_path: Path, hook: Callable[[str, Callable[[], None]], None]
) -> None:
    """Two shard rows may be sealed side by side, each in a thread, or each step of both together."""
    order: list[str] = []  # of all threads: a line may be synced in another one than the names are given in
    for point in ("sums.before_sync", "shard.before_rename"):
        hook(point, lambda point=point: order.append(point))
    write(tmp_path / "a.ome.zarr", frames=4)
    assert sorted(order) == 4 * ["shard.before_rename"] + 2 * ["sums.before_sync"]
    names = lines = 0
    for point in order:
        names += point == "shard.before_rename"
        lines += point == "sums.before_sync"
        assert names <= 2 * lines, f"a shard got its name before its line was durable: {order}"


def test_a_full_disk_at_the_record_is_gone_through(
    tmp_path: Path, hook: Callable[[str, Callable[[], None]], None]
) -> None:
    """As any other write of a seal: the ballast is given, and the seal goes on."""

    def full() -> None:
        raise OSError(28, "No space left on device")

    hook("sums.before_write", at_time(2, full))
    write(tmp_path / "a.ome.zarr")
    assert_whole(tmp_path / "a.ome.zarr")


POINTS = [
    (point, number)
    for point in ("sums.before_open", "sums.before_write", "sums.before_sync", "shard.before_rename")
    for number in (1, 2)
]


@pytest.mark.parametrize(
    ("point", "number"), [*POINTS, ("shard.before_rename", 3), ("shard.before_rename", 4)]
)
def test_a_writer_that_is_killed_around_it_and_goes_on(tmp_path: Path, point: str, number: int) -> None:
    """Whichever process seals a shard, and with however many frames: it is on record, and nothing else is
    missed."""
    store = tmp_path / "a.ome.zarr"

    def job() -> None:
        set_hook(point, at_time(number, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        write(store, io="mmap" if number % 2 else "pwrite", frames=3, in_turn=True)

    assert killed(job)
    with sw.resume(store) as writer:
        for count in range(writer.frames, 5):
            writer.append(frame(count))
    assert_whole(store, 6)


@pytest.mark.parametrize("other", ["./0", "0/"])
def test_an_array_that_is_named_twice_is_one(plain: Path, other: str) -> None:
    """By verify, and by a compaction, which locks each array once."""
    document = json.loads((plain / "zarr.json").read_text())
    datasets = document["attributes"]["ome"]["multiscales"][0]["datasets"]
    datasets.append({**datasets[0], "path": other})
    (plain / "zarr.json").write_text(json.dumps(document))
    assert [array.path for array in open_store(plain).arrays] == [plain / "0"]
    assert run("verify", plain) == 0
    assert run("compact", plain, "--workers", "1", "--no-idle", "--order", "morton") == 0
    assert_whole(plain)


# ---------------------------------------------------------------------- on record in part


def lines_of(store: Path) -> list[str]:
    return [line for line in (store / "0" / SUMS_NAME).read_text().splitlines() if line]


def leave_out(store: Path, *keys: str) -> None:
    """As of rows that an earlier release has sealed, before this one went on."""
    kept = [line for line in lines_of(store) if json.loads(line)["key"] not in keys]
    (store / "0" / SUMS_NAME).write_text("\n".join(kept) + "\n")


ABSENT_IS_LEGAL = "an absent shard is legal"


def test_a_shard_without_a_line_that_was_deleted_is_warned_of(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_out(plain, "c/0/0/0", "c/0/0/1")
    assert run("verify", plain) == 0
    assert ABSENT_IS_LEGAL not in capsys.readouterr().out
    (plain / "0/c/0/0/1").unlink()
    assert run("verify", plain) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "warning: frames: 1 shards of stored frames are absent, such as c/0/0/1: all fill value, or deleted"
    )
    assert lines[-1].startswith(ABSENT_IS_LEGAL)


def test_an_absent_shard_of_fill_value_that_is_on_record_is_nothing_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside one without a line, which is there."""
    store = tmp_path / "a.ome.zarr"
    with sw.create(store, spec()) as writer:
        for number in range(4):
            writer.append(frame(number) * (number // 2))
    leave_out(store, "c/1/0/0")
    report = verified(store)
    assert (report.shards, report.shards_recorded, report.shards_absent, report.shards_absent_unrecorded) == (
        2,
        1,
        2,
        0,
    )
    assert run("verify", store) == 0
    assert ABSENT_IS_LEGAL not in capsys.readouterr().out


def test_a_damaged_line_is_warned_of_and_one_that_a_crash_cut_short_is_not(plain: Path) -> None:
    lines = lines_of(plain)
    record = plain / "0" / SUMS_NAME
    record.write_text("\n".join([*lines[:3], lines[3][:40], *lines[3:], lines[0][:-20]]))
    assert_whole(plain)
    first = json.loads(lines[0])
    record.write_text("\n".join([json.dumps({**first, "crc32c": first["crc32c"] ^ 1}), *lines[1:]]))
    report = verified(plain)
    (warning,) = report.warnings
    assert str(warning).startswith(f"0/{SUMS_NAME}: 1 lines are damaged, such as line 1: ")
    assert (report.problems, report.shards_recorded) == ([], 7)


def test_a_new_shard_that_is_all_fill_value_is_on_record(tmp_path: Path) -> None:
    """So that verify knows that it was never there."""
    store, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    with sw.create(store, spec()) as writer:
        for number in range(4):
            writer.append(frame(number) * (number // 2))
    chosen = RechunkOptions(chunks={"t": 2}, shards={"t": 2})
    assert write_new_store(
        plan_new_store(store, chosen), new, chosen, run_here, throttle=Throttle(idle=False)
    ).ok
    record = ShardSums(new / "0").read()
    assert {key for key, known in record.items() if None in known} == {"c/0/0/0", "c/0/0/1"}
    report = verified(new)
    assert (report.problems, report.shards_absent, report.shards_absent_unrecorded) == ([], 2, 0)
