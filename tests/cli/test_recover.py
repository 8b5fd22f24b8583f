"""``shardwright recover`` over stores whose writers were really killed: what it prints, its exit code, and
that it may be run again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorstore
from tests.harness.daemon import run_cli, start_cli
from tests.harness.json_process import TIMEOUT_S
from tests.harness.python import start_python

import shardwright as sw
from shardwright.recovery.execute import set_aside
from shardwright.shard.manifest import read_manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Writes frames whose pixels are their number, says when so many are stored, and goes on living with its lock
# until it is killed. All at once: one that comes late finds those before it staged.
WRITER = """
import sys, time
import numpy as np
import shardwright as sw
path, frames = sys.argv[1], int(sys.argv[2])
plane = [sw.Dimension(name=axis, count=32, chunk_size=16, shard_size_chunks=2) for axis in "yx"]
spec = sw.ArraySpec(dtype="uint16", dimensions=[sw.Dimension(name="t", count=None, chunk_size=4, shard_size_chunks=2), *plane])
writer = sw.create(path, spec, threads=1, settings=sw.WriteSettings(store_within_ms=20))
writer.append_many(np.arange(frames, dtype=np.uint16)[:, None, None].repeat(32, 1).repeat(32, 2))
while writer.watermark.stored < frames:
    time.sleep(0.01)
print("stored", flush=True)
time.sleep(600)
"""  # noqa: E501
FRAMES = 21  # two sealed shards, one whole slab and one frame of the next
SLAB = 4  # frames of one


class Writer:
    def __init__(self, path: Path, frames: int = FRAMES) -> None:
        self.path = path
        self.process = start_python("-c", WRITER, path, str(frames), stdout=PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "stored\n"

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.communicate()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """Still alive; its store is unfinished."""
    writer = Writer(tmp_path / "run.ome.zarr")
    yield writer
    writer.end()


@pytest.fixture
def store(writer: Writer) -> Path:
    writer.end()
    return writer.path


def recover(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_cli("recover", *arguments)


def complaints(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Standard error without the lines that tell how far it is, which a slow machine gets."""
    return [
        line for line in result.stderr.splitlines() if not re.fullmatch(r"recover: .+ checked, .+/s", line)
    ]


def as_json(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    result = recover(*arguments, "--json")
    assert complaints(result) == []
    return result.returncode, json.loads(result.stdout)


def array_of(store: Path) -> tensorstore.TensorStore:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0"}}
    return tensorstore.open(spec).result()


def assert_whole(store: Path) -> None:
    pixels = array_of(store).read().result()
    assert pixels.shape == (FRAMES, 32, 32)
    np.testing.assert_array_equal(pixels, np.broadcast_to(np.arange(FRAMES)[:, None, None], pixels.shape))


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_killed_writers_store_is_whole_again(store: Path) -> None:
    result = recover(store.parent)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{store}: sealed, ")
    assert f"frames: {FRAMES} kept" in result.stdout
    assert "none lost" in result.stdout
    assert_whole(store)
    again = recover(store.parent)
    assert (again.returncode, again.stdout) == (0, f"{store.parent}: no store is unfinished\n")


@pytest.fixture
def rotten(tmp_path: Path) -> Path:
    """A store whose every stored frame is in one slab, and its journal has a flipped bit."""
    writer = Writer(tmp_path / "run.ome.zarr", SLAB)
    writer.end()
    journal = writer.path / ".shardwright" / "0.journal"
    header = bytearray(journal.read_bytes())
    header[19] ^= 4
    journal.write_bytes(header)
    return writer.path


def test_a_store_of_which_only_damaged_files_are_left_is_kept(rotten: Path) -> None:
    """It was removed, as one that never got a frame."""
    asked = recover(rotten, "--dry-run")
    assert f"damaged files would be kept in {rotten}/.shardwright.damaged" in asked.stdout
    result = recover(rotten)
    assert result.returncode == asked.returncode == 1
    assert result.stdout.startswith(f"{rotten}: sealed, ")
    assert f"damaged files are kept in {rotten}/.shardwright.damaged" in result.stdout
    assert {path.name for path in (rotten / ".shardwright.damaged").iterdir()} >= {"0.journal"}
    assert array_of(rotten).shape == (0, 32, 32)


def test_what_was_set_aside_stays_beside_what_comes_later(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "0.journal").write_bytes(b"%d" % number)
        set_aside(tmp_path, tmp_path / "0.journal")
    kept = {path.name: path.read_bytes() for path in (tmp_path / ".shardwright.damaged").iterdir()}
    assert kept == {"0.journal": b"1", "0.journal.2": b"2"}


def test_whoever_goes_on_keeps_it_too_and_is_told(rotten: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the first try, or after a recovery that was killed once it had set them aside."""
    sw.resume(rotten).close()
    told = f"run: damaged files were set aside in {rotten}/.shardwright.damaged. What is in them"
    assert any(message.startswith(told) for message in caplog.messages)
    assert {path.name for path in (rotten / ".shardwright.damaged").iterdir()} >= {"0.journal"}


def test_one_store_may_be_named_and_the_answer_be_json(store: Path) -> None:
    code, answer = as_json(store)
    assert (code, answer["ok"], answer["dry_run"]) == (0, True, False)
    (facts,) = answer["stores"]
    assert facts["path"] == str(store)
    assert (facts["frames_kept"], facts["frames_lost"]) == (FRAMES, 0)
    assert facts["frames_completed_from_staging"] >= 1, "the last slab was not whole"
    assert facts["receipt"]["frames_durable"] == FRAMES
    assert as_json(store) == (0, {"ok": True, "dry_run": False, "stores": [], "edits": [], "upgrades": []})


def test_a_dry_run_says_the_same_and_changes_nothing(store: Path) -> None:
    before = snapshot(store)
    code, answer = as_json(store, "--dry-run")
    assert (code, answer["dry_run"]) == (0, True)
    assert snapshot(store) == before
    would = answer["stores"][0]
    done = as_json(store)[1]["stores"][0]
    for count in ("identity", "chunks_kept", "chunks_dropped", "frames_lost"):
        assert would[count] == done[count], count


def test_frames_that_were_never_acknowledged_are_told_as_such_and_are_no_failure(
    store: Path, tmp_path: Path
) -> None:
    """The last whole slab, as if the worker had died before it journaled its chunks; one frame behind it is
    staged."""
    with (store / ".shardwright" / "2.journal").open("r+b") as file:
        entries = file.seek(8192)
        file.write(bytes((store / ".shardwright" / "2.journal").stat().st_size - entries))
    copy = tmp_path / "copy.ome.zarr"
    shutil.copytree(store, copy)
    code, answer = as_json(store)
    assert (code, answer["ok"]) == (0, True)
    (facts,) = answer["stores"]
    assert (facts["frames_kept"], facts["frames_lost"], facts["frames_unacknowledged"]) == (FRAMES - 4, 0, 4)
    result = recover(copy, "--take-over")  # of a writer that is dead: nobody can acknowledge more meanwhile
    assert result.returncode == 0
    assert (
        "none lost; 4 more were in flight when the writer died or failed, never acknowledged" in result.stdout
    )
    assert "LOST" not in result.stdout


def test_acknowledged_frames_that_are_gone_are_a_failure(store: Path) -> None:
    (rotten, *_) = sorted((store / ".shardwright").glob("c.2.*.partial"))
    with rotten.open("r+b") as file:
        file.write(b"\xff" * 64)
    result = recover(store)
    assert result.returncode == 1
    assert "4 LOST: `shardwright inspect --missing` names them" in result.stdout
    assert "never acknowledged" not in result.stdout


def test_a_store_that_is_being_written_is_refused_and_others_are_recovered(
    writer: Writer, tmp_path: Path
) -> None:
    other = Writer(tmp_path / "a-first.ome.zarr")
    other.end()
    result = recover(tmp_path)
    assert result.returncode == 1
    assert f"{other.path}: sealed" in result.stdout
    assert f"{writer.path}: not recovered: " in result.stdout
    assert str(writer.process.pid) in result.stdout, "the holder is named"
    assert_whole(other.path)
    code, answer = as_json(tmp_path)
    assert (code, answer["ok"], answer["stores"][0]["error"]["code"]) == (1, False, "locked")


def with_count(store: Path, count: int) -> None:
    """Its manifest says that it is so long, and its checksum holds."""
    manifest = read_manifest(store / ".shardwright")
    (first, *rest) = manifest.spec["dimensions"]
    write_manifest(
        store / ".shardwright",
        replace(manifest, spec={**manifest.spec, "dimensions": [{**first, "count": count}, *rest]}),
    )


def test_what_cannot_be_read_is_named_and_keeps_no_other_from_being_recovered(
    store: Path, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"\xff.ome.zarr")
    damaged = {name: tmp_path / f"{name}.ome.zarr" for name in ("a-count", "a-pipe", "a-shape")} | {
        "odd": odd
    }
    for path in damaged.values():
        shutil.copytree(store, path)
    with_count(damaged["a-count"], 2**63)
    (damaged["a-pipe"] / "0" / "zarr.json").unlink()
    os.mkfifo(damaged["a-pipe"] / "0" / "zarr.json")
    (damaged["a-shape"] / "0" / "zarr.json").write_text('{"shape": "long"}')
    (odd / ".shardwright" / "acquisition.1.json").write_bytes(b"\xff")
    dry, answer = as_json(tmp_path, "--dry-run")
    assert (dry, len(answer["stores"])) == (1, 5)
    result = recover(tmp_path)
    assert (result.returncode, complaints(result)) == (1, [])
    for path in damaged.values():
        shown = str(path).encode(errors="backslashreplace").decode()
        assert f"{shown}: not recovered: " in result.stdout, path.name
    assert f"{store}: sealed" in result.stdout
    assert_whole(store)


def test_a_writer_that_hangs_can_be_taken_over(writer: Writer) -> None:
    writer.process.send_signal(signal.SIGSTOP)
    assert recover(writer.path).returncode == 1
    assert recover(writer.path, "--take-over").returncode == 0
    assert_whole(writer.path)
    writer.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)  # whatever it does now
    writer.end(signal.SIGTERM)
    assert_whole(writer.path)


def test_it_may_be_killed_and_run_again(store: Path) -> None:
    """Killed before its first rename, the second time before it forgets the journal."""
    for point in ("shard.before_rename", "replace.before_rename"):
        killed = start_cli("recover", store, more={"SHARDWRIGHT_FAILPOINTS": f"{point}=kill"})
        _, told = killed.communicate(TIMEOUT_S)
        assert killed.returncode == -signal.SIGKILL, told
    assert recover(store).returncode == 0
    assert_whole(store)


def test_usage_is_code_2(tmp_path: Path) -> None:
    result = recover(tmp_path / "absent")
    assert result.returncode == 2
    assert "ROOT_OR_STORE" in result.stderr
