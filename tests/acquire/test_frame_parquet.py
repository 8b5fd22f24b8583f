"""``frames.parquet``: what it says, that it is never beside a table which says something else, and what
``verify`` finds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from tests.harness.plain_server import PlainServer
from tests.harness.python import commands, run_python

import shardwright as sw
from shardwright.config.load import parse_config
from shardwright.config.plan import make_plan
from shardwright.disk import failpoints
from shardwright.model.errors import ConfigError, FencedError
from shardwright.read.frame_parquet import check_frame_parquet
from shardwright.read.frame_table import frame_table_of
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.store.frame_table_writer import write_frame_table

from .parquet_writers import ASKED, FRAME, SHAPE, die_with_frames, end_again, end_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool

INSTALL = "pip install 'shardwright\\[parquet\\]'"


def parquet_of(path: Path) -> Path:
    return path / "frames.parquet"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=ASKED) as writer:
        for _ in range(5):
            writer.append(FRAME)
    return path


@pytest.fixture
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)


def problems(path: Path) -> list[str]:
    return [str(problem) for problem in verify_store(path, threads=1).problems]


def assert_says_the_same(path: Path) -> None:
    found = pd.read_parquet(parquet_of(path)).sort_values("sequence", kind="stable", ignore_index=True)
    pd.testing.assert_frame_equal(found, sw.frame_table(path))
    assert problems(path) == []


def test_it_is_written_on_request_alone(tmp_path: Path, store: Path) -> None:
    assert_says_the_same(store)
    sw.save(tmp_path / "b.ome.zarr", np.zeros((3, 32, 32), np.uint16))
    assert not parquet_of(tmp_path / "b.ome.zarr").exists()


def test_every_column_of_several_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON, fields of the array's own, an image without a frame, and several chunks of the table."""
    monkeypatch.setattr("shardwright.store.frame_table_writer.rows_per_chunk", lambda _: 100)
    path = tmp_path / "a.ome.zarr"
    array = sw.default_layout(**SHAPE, frame_json_bytes=64)
    array = sw.ArraySpec.model_validate({**array.model_dump(), "frame_fields": ("power",)})
    with sw.create(path, array, images=["left", "none", "right"], settings=ASKED) as writer:
        for number in range(250):
            said = {"note": f"\N{GREEK SMALL LETTER ALPHA}{number}", "power": number / 3}
            image = ("left", "right")[number % 2]
            writer.append(FRAME, image=image, index=(number,), metadata=said if number else None)
    assert len(list((path / "frames" / "sequence" / "c").iterdir())) == 3
    assert_says_the_same(path)
    table = pd.read_parquet(parquet_of(path)).set_index("sequence")
    assert json.loads(table["json"][1])["note"] == "\N{GREEK SMALL LETTER ALPHA}1"
    assert list(table["image"].cat.categories) == ["left", "none", "right"]


def test_frames_that_were_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=ASKED, overload="drop") as writer:
        full = writer._ring._free.take(writer._limits.ring_frames)
        writer.append(FRAME)
        writer._ring._free.give_back(full)
        writer.append(FRAME)
    assert_says_the_same(path)
    assert "dropped" in set(pd.read_parquet(parquet_of(path))["status"])


def test_other_programs_read_it(store: Path) -> None:
    table = pq.read_table(parquet_of(store), columns=["index_t", "status"])
    assert table.to_pylist() == [{"index_t": t, "status": "stored"} for t in range(5)]


# What is missing
# --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_pyarrow")
def test_a_missing_package_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"frame_parquet needs shardwright.parquet.*{INSTALL}"):
        sw.create(tmp_path / "a.ome.zarr", **SHAPE, settings=ASKED)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_pyarrow")
def test_a_configuration_that_needs_it_does_not_run(tmp_path: Path) -> None:
    loaded = parse_config(f"output: {{root: {tmp_path}, frame_parquet: true}}", file="rig.yaml")
    with pytest.raises(ConfigError, match=f"rig.yaml:1: output.frame_parquet: .*{INSTALL}"):
        make_plan(loaded)


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    path = tmp_path / "u.ome.zarr"
    assert commands().start(die_with_frames, str(path), 4).wait() == 0
    return path


def test_resuming_without_the_package_is_refused(unfinished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as gone:
        gone.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(ConfigError, match=INSTALL):
            sw.resume(unfinished)
    with sw.resume(unfinished) as writer:
        writer.append(FRAME)
    assert_says_the_same(unfinished)


@pytest.mark.usefixtures("without_pyarrow")
def test_frames_are_recovered_without_the_package(
    unfinished: Path, shared_pool: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    """They count more than the file, which the log says is missing."""
    assert recover_store(unfinished, shared_pool, threads=1).frames_kept == 4
    assert not parquet_of(unfinished).exists()
    assert any("gets no frames.parquet" in record.message for record in caplog.records)
    assert problems(unfinished) == []


# What verify finds
# --------------------------------------------------------------------------------------------------------


def test_verify_needs_no_package(store: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("without_pyarrow")
    assert (problems(store), verify_store(store).warnings) == ([], [])
    parquet_of(store).write_bytes(b"anything")
    assert problems(store)


def with_a_later_first_frame(path: Path) -> None:
    table = pq.read_table(path)
    times = [1, *table["camera_ns"].to_pylist()[1:]]
    pq.write_table(table.set_column(table.schema.get_field_index("camera_ns"), "camera_ns", [times]), path)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "another number": with_a_later_first_frame,
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "another file": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_finds_another_file(store: Path, damage: str) -> None:
    DAMAGES[damage](parquet_of(store))
    (problem,) = problems(store)
    assert problem.startswith("frames.parquet: it ")
    assert problem.endswith("it is made of the table, and may be deleted")


def test_any_bit_that_differs_is_found(store: Path) -> None:
    sound, numbers = parquet_of(store).read_bytes(), np.random.default_rng(5)
    for _ in range(60):
        damaged = bytearray(sound)
        damaged[int(numbers.integers(len(sound)))] ^= 1 << int(numbers.integers(8))
        parquet_of(store).write_bytes(damaged)
        (problem,) = problems(store)
        assert "differs from the file that was written" in problem


def test_verify_finds_another_table(store: Path) -> None:
    """Whose chunks are as sound as those of which the file was made."""
    column = zarr.open_array(store / "frames" / "camera_ns")
    column[0] = int(column[0]) + 1
    (problem,) = problems(store)
    assert "it was made of another frame table" in problem


def test_a_file_that_is_gone_gives_a_warning(store: Path) -> None:
    parquet_of(store).unlink()
    report = verify_store(store, threads=1)
    assert report.ok
    assert [(each.where, each.what) for each in report.warnings] == [
        ("frames.parquet", "the frame table records it, and it is gone")
    ]


def test_a_file_at_an_address_is_read_by_pieces(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.read.frame_parquet._PIECE_BYTES", 1000)
    with PlainServer(store.parent) as server:
        report = verify_store(f"{server.url}/{store.name}", threads=1)
        assert report.problems == []
        asked = [wanted for how, what, wanted in server.asked if how == "GET" and what.endswith(".parquet")]
        assert asked
        assert None not in asked, "all of it at once"
        parquet_of(store).write_bytes(bytes(parquet_of(store).stat().st_size))
        (problem,) = verify_store(f"{server.url}/{store.name}", threads=1).problems
        assert problem.where == "frames.parquet"


def test_a_file_that_the_table_does_not_record_gives_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "b.ome.zarr"
    sw.save(path, np.zeros((3, 32, 32), np.uint16))
    parquet_of(path).write_bytes(b"of somebody else")
    report = verify_store(path, threads=1)
    assert report.ok
    (warning,) = report.warnings
    assert warning.where == "frames.parquet"


@pytest.mark.parametrize("record", [7, {}, {"nbytes": -1, "crc": 0, "table_crc": 0}, {"nbytes": 1, "x": 2}])
def test_a_record_that_is_none_is_a_finding(store: Path, record: Any) -> None:
    document = store / "frames" / "zarr.json"
    facts = json.loads(document.read_text())
    facts["attributes"]["shardwright"]["parquet"] = record
    document.write_text(json.dumps(facts))
    assert any("does not describe a frame table" in problem for problem in problems(store))


def test_verify_follows_no_link(store: Path, tmp_path: Path) -> None:
    parquet_of(store).rename(tmp_path / "elsewhere")
    parquet_of(store).symlink_to(tmp_path / "elsewhere")
    assert problems(store)


# Whoever changes the table
# --------------------------------------------------------------------------------------------------------


def test_a_kill_at_any_call_leaves_none_that_differs(tmp_path: Path, shared_pool: WorkerPool) -> None:
    once, path = tmp_path / "once.ome.zarr", tmp_path / "a.ome.zarr"
    assert commands().start(end_once, str(once)).wait() == 0
    assert parquet_of(once).exists()
    seen = set()
    for point in range(1, 200):
        shutil.copytree(once, path)
        died = commands().start(end_again, str(path), point).wait() == 0
        table = frame_table_of(path)
        assert table is None or not any(fault for *_, fault in check_frame_parquet(path, table))
        state = (table and table.rows, parquet_of(path).exists())
        if not died:
            break
        if state not in seen:
            recover_store(path, shared_pool, threads=1)
            assert_says_the_same(path)
            assert len(sw.frame_table(path)) == 5
        seen.add(state)
        shutil.rmtree(path)
    assert point > 10
    # the old table with its file, and alone; the new one alone, and with its file: there is always a table
    assert seen == {(4, True), (4, False), (5, False), (5, True)}
    assert_says_the_same(path)


@pytest.mark.parametrize("most", ["rows", "bytes"])
def test_a_row_group_has_several_chunks_up_to_its_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    monkeypatch.setattr("shardwright.store.frame_table_writer.rows_per_chunk", lambda _: 2)
    limit = {"rows": ("_GROUP_ROWS", 5), "bytes": ("_GROUP_BYTES", 1)}[most]
    monkeypatch.setattr(f"shardwright.read.frame_parquet.{limit[0]}", limit[1])
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=ASKED) as writer:
        for _ in range(7):
            writer.append(FRAME)
    made = pq.ParquetFile(parquet_of(path)).metadata
    rows = [made.row_group(number).num_rows for number in range(made.num_row_groups)]
    assert rows == {"rows": [4, 3], "bytes": [2, 2, 2, 1]}[most]
    assert_says_the_same(path)


def is_published_without(path: Path, log: pytest.LogCaptureFixture) -> bool:
    """Returns whether the table is there, and says nothing of a file that is not."""
    table = frame_table_of(path)
    assert table is not None
    assert (table.rows, table.parquet, parquet_of(path).exists()) == (1, None, False)
    assert not list(path.glob(".shardwright/*.parquet"))
    assert any("gets no frames.parquet" in record.message for record in log.records)
    report = verify_store(path, threads=1)
    return (report.problems, report.warnings) == ([], [])


def test_a_disk_that_is_full_for_it_alone_ends_with_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever the room ended: for its first byte, or only for the table's record of it."""
    for number, (call, nth) in enumerate(
        [("create", 1), ("create", 2), ("write", 1), ("write", 3), ("sync", 1), ("sync", 2)]
    ):
        path = tmp_path / f"{number}.ome.zarr"
        built = path / ".shardwright" / "frames.1.building" / "zarr.json"
        met: list[str] = []

        def full(name: str) -> None:
            if name == f"replace.before_{call}" and built.exists() and built.stat().st_size:  # noqa: B023
                met.append(name)  # noqa: B023
                if len(met) == nth:  # noqa: B023
                    raise OSError(28, os.strerror(28))

        caplog.clear()
        writer = sw.create(path, **SHAPE, settings=ASKED)
        writer.append(FRAME)
        failpoints.watch_all(full)
        try:
            writer.close()
        finally:
            failpoints.watch_all(None)
        assert len(met) == nth, "it came to it"
        assert is_published_without(path, caplog)


class Broken:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


FAILURES = [
    ImportError("a library of another release"),
    MemoryError(),
    pa.ArrowMemoryError("malloc of 64"),
    pa.ArrowInvalid("no"),
    RuntimeError("anything"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failure_of_the_package_costs_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=ASKED) as writer:
        writer.append(FRAME)
        monkeypatch.setattr("shardwright.read.frame_parquet._rows", Broken(error))
    assert is_published_without(path, caplog)


def test_a_failure_after_the_first_bytes_leaves_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, **SHAPE, settings=ASKED) as writer:
        writer.append(FRAME)
        monkeypatch.setattr(
            "shardwright.store.frame_table_writer.table_crc", Broken(RuntimeError("anything"))
        )
    assert is_published_without(path, caplog)


def test_a_package_that_cannot_be_loaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pyarrow.parquet":
                raise ImportError("libparquet.so: undefined symbol")

    monkeypatch.delitem(sys.modules, "pyarrow.parquet")
    monkeypatch.delattr("pyarrow.parquet")
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(ConfigError, match=f"cannot be loaded.*undefined symbol.*{INSTALL}"):
        sw.create(tmp_path / "a.ome.zarr", **SHAPE, settings=ASKED)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_has_its_name_does_not_stop_the_end(tmp_path: Path, kind: str) -> None:
    path, elsewhere = tmp_path / "a.ome.zarr", tmp_path / "elsewhere"
    elsewhere.write_text("of somebody else")
    with sw.create(path, **SHAPE, settings=ASKED) as writer:
        writer.append(FRAME)
        writer.flush()
        if kind == "folder":
            (parquet_of(path) / "below").mkdir(parents=True)
        else:
            parquet_of(path).symlink_to(elsewhere)
    assert_says_the_same(path)
    assert elsewhere.read_text() == "of somebody else"


def test_the_file_stays_until_this_writer_may_publish(unfinished: Path) -> None:
    """Another that has taken over has its own there."""
    writer = sw.resume(unfinished)
    parquet_of(unfinished).write_text("of the one that took over")
    folder = writer._driver.acquisition._sealer.folder

    def fenced() -> None:
        raise FencedError("taken over")

    with pytest.raises(FencedError):
        write_frame_table(unfinished, folder.spec, folder.log, may_publish=fenced, has_parquet=True)
    assert parquet_of(unfinished).read_text() == "of the one that took over"
    writer.close()
    assert_says_the_same(unfinished)


# Whoever takes the store along
# --------------------------------------------------------------------------------------------------------


def run(*arguments: str | Path) -> str:
    return str(run_python("-m", "shardwright.cli", *arguments, check=True, text=True).stdout)


def test_it_goes_with_the_store(store: Path, tmp_path: Path) -> None:
    """Through every job that makes a store of it, or works on it."""
    moved, named = tmp_path / "moved.ome.zarr", tmp_path / "named.ome.zarr"
    before = parquet_of(store).read_bytes()
    run("compact", store, "--no-idle")
    run("pyramid", store, "--levels", "1", "--no-idle")
    run("erase", store, "--frames", "3")
    assert parquet_of(store).read_bytes() == before
    assert_says_the_same(store)
    run("rechunk", store, tmp_path / "new.ome.zarr", "--chunks", "y=16", "--no-idle")
    assert parquet_of(tmp_path / "new.ome.zarr").read_bytes() == before
    run("compact", store, "--to", moved, "--move", "--no-idle")
    assert parquet_of(moved).read_bytes() == before
    run("rename", moved, "named")
    assert_says_the_same(named)
    run("delete", named, "--yes")
    assert not named.exists()


@pytest.mark.parametrize("kind", ["folder", "link", "of somebody else"])
def test_rechunking_takes_along_what_the_table_records_alone(tmp_path: Path, store: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    parquet_of(store).rename(elsewhere)
    if kind == "folder":
        parquet_of(store).mkdir()
    elif kind == "link":
        parquet_of(store).symlink_to(elsewhere)
    else:
        store = tmp_path / "b.ome.zarr"
        sw.save(store, np.zeros((3, 32, 32), np.uint16))
        parquet_of(store).write_bytes(b"of somebody else")
    run("rechunk", store, tmp_path / "new.ome.zarr", "--chunks", "y=16", "--no-idle")
    assert not parquet_of(tmp_path / "new.ome.zarr").exists()
    assert len(sw.frame_table(tmp_path / "new.ome.zarr")) == len(sw.frame_table(store))


def test_a_store_that_takes_its_name_has_its_own(store: Path) -> None:
    with sw.create(store, **SHAPE, settings=sw.WriteSettings(name_taken="overwrite")) as writer:
        writer.append(FRAME)
    assert not parquet_of(store).exists()
    assert problems(store) == []
