"""``shardwright compact`` as people meet it: what a dry run says, the summary, exit codes, progress on a
terminal and in a log."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorstore
from tests.harness.daemon import run_cli, start_cli
from tests.harness.writing import how

import shardwright as sw
from shardwright.cli.app import main
from shardwright.cli.compact import _done
from shardwright.cli.job_command import parse_rate
from shardwright.codecs.recompress import parse_recompress
from shardwright.model.errors import ConfigError, StorageError
from shardwright.rework.jobs.compact_store import Report
from shardwright.rework.runtime.throttle import (
    RIG_PAUSE_NAME,
    ROOM_PAUSE_NAME,
    RigPause,
    pause_files,
    pause_note,
    pausing_file,
)
from shardwright.rework.transfer import move_store

if TYPE_CHECKING:
    import subprocess

    from shardwright.rework.transfer.move_plan import MoveOptions

README = (Path(__file__).parents[2] / "src/shardwright/rework/README.md").read_text(encoding="utf-8")
SHARDS = 3


def write(store: Path, shards: int = SHARDS) -> Path:
    """Shards of 16 chunks, each far smaller than its slot of a page."""
    plane = [sw.Dimension(name=axis, count=32, chunk_size=8, shard_size_chunks=4) for axis in "yx"]
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name="t", count=None, chunk_size=4, shard_size_chunks=1), *plane],
    )
    with sw.create(
        store, spec, **how(io="mmap")
    ) as writer:  # slots with gaps, so that there is something to pack
        for i in range(4 * shards):
            writer.append(np.arange(i, i + 32 * 32, dtype=np.uint16).reshape(32, 32))
    return store


def pixels(store: Path) -> np.ndarray:
    return (
        tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0"}})
        .result()
        .read()
        .result()
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "run.ome.zarr")


def compact(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_cli("compact", *map(str, arguments))


def as_json(*arguments: object) -> dict[str, Any]:
    done = compact(*arguments, "--json")
    return json.loads(done.stdout)


def shard_files(store: Path) -> list[Path]:
    return [path for path in (store / "0/c").rglob("*") if path.is_file()]


def test_a_dry_run_says_what_a_run_then_saves(store: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.ome.zarr", shards=1)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}
    would = as_json("--dry-run", store, other)
    text = compact("--dry-run", store, other)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")} == before
    first, second = would["stores"]
    file_bytes = sum(path.stat().st_size for path in shard_files(store))
    assert (first["shards"], first["shards_todo"], first["shards_packed"], first["file_bytes"]) == (
        SHARDS,
        SHARDS,
        0,
        file_bytes,
    )
    assert first["gap_bytes"] + first["expected_bytes"] == first["file_bytes"]
    assert would["total"] == {name: first[name] + second[name] for name in would["total"]}
    assert text.returncode == 0
    assert [line.split(": ")[0] for line in text.stdout.splitlines()] == [str(store), str(other), "in total"]
    assert f"{SHARDS + 1} of {SHARDS + 1} shards to do" in text.stdout.splitlines()[-1]
    done = as_json(store)
    assert done["stores"][0]["gain_bytes"] == first["gap_bytes"]
    assert sum(path.stat().st_size for path in shard_files(store)) == first["expected_bytes"]
    assert as_json("--dry-run", store)["stores"][0]["gap_bytes"] == 0


def test_one_bad_store_keeps_no_other_from_being_done(store: Path, tmp_path: Path) -> None:
    before = pixels(store)
    done = compact(tmp_path / "absent", store)
    assert done.returncode == 1
    assert f"{tmp_path / 'absent'}: not compacted: " in done.stdout
    assert f"{store}: {SHARDS} shards packed" in done.stdout
    np.testing.assert_array_equal(pixels(store), before)


def test_a_store_is_taken_through_a_linked_folder(store: Path, tmp_path: Path) -> None:
    """As a rig has it whose /data leads to its largest disk. Also for a move."""
    linked = tmp_path / "linked"
    linked.symlink_to(store.parent)
    done = compact(linked / store.name)
    assert done.returncode == 0, done.stderr
    assert f"{SHARDS} shards packed" in done.stdout
    sent = compact(linked / store.name, "--to", tmp_path / "away.ome.zarr")
    assert sent.returncode == 0, sent.stderr
    np.testing.assert_array_equal(pixels(tmp_path / "away.ome.zarr"), pixels(store))


USAGE = [
    (("--order", "hilbert"), "unknown --order"),
    (("--recompress", "zstd:"), "recompress does not name a codec"),
    (("--recompress", f"zstd:{'9' * 5000}"), "recompress does not name a codec"),
    (("--recompress", "zstd:99"), "cannot recompress with zstd:99: Input should be less than or equal to 9"),
    (
        ("--recompress", "gzip:5"),
        "does not cover this codec; expected lz4, lz4hc, zlib or zstd, inside blosc",
    ),
    (("--recompress", "gzip:5", "--dry-run"), "does not cover this codec"),
    (("--rate", "fast"), "--rate"),
    (("--workers", "0"), "--workers"),
    (("--workers", "2", "--scheduler", "tcp://127.0.0.1:1"), "--workers and --scheduler do not go together"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_usage_is_code_2(
    store: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compact", str(store), *arguments, "--no-idle"])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_values_of_options() -> None:
    assert parse_recompress("zstd:5") == {"cname": "zstd", "clevel": 5, "shuffle": None}
    assert parse_recompress("lz4") == {"cname": "lz4", "clevel": None, "shuffle": None}
    assert (parse_rate("50MB"), parse_rate("1.5MiB/s"), parse_rate("1000"), parse_rate(None)) == (
        50e6,
        1.5 * 2**20,
        1000.0,
        None,
    )
    with pytest.raises(ConfigError):
        parse_recompress(":5")


def paused(store: Path) -> Path:
    """Nothing moves in this store until the file goes."""
    pause = store / "0/.compact/pause"
    pause.parent.mkdir()
    pause.touch()
    return pause


def test_a_log_gets_plain_lines(store: Path) -> None:
    pause = paused(store)
    with start_cli("compact", store) as job:
        assert job.stderr is not None
        # shards are examined first, which a slow machine is told of
        line = next(line for line in job.stderr if "examining" not in line)
        pause.unlink()
        job.communicate(timeout=120)
    assert job.returncode == 0
    assert re.fullmatch(
        rf"compact: run\.ome\.zarr: 0 B of [\d.]+ KiB packed, 0 B/s, paused by {re.escape(str(pause))}\n",
        line,
    )


def test_looking_at_many_shards_is_told_and_can_be_interrupted(store: Path) -> None:
    rig = RigPause(store.parent)
    rig.begin()
    with start_cli("compact", store) as job:
        assert job.stderr is not None
        line = job.stderr.readline()
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=120)
    rig.end()
    why = f"paused: the cameras of the daemon at {store.parent} need the machine"
    assert line == f"compact: run.ome.zarr: examining shards 0/{SHARDS}, {why}\n"
    assert job.returncode == 1
    assert err.splitlines()[-1] == (
        "shardwright: interrupted while the shards were examined; nothing was changed"
    )
    assert not list(store.rglob(".compact"))


def test_a_store_is_sent_away_while_cameras_need_the_room_on_the_disk(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a bucket: what waits for room would wait for the job that makes some."""
    sent: list[MoveOptions] = []

    def keep(_store: Path, options: MoveOptions, _run: object) -> None:
        sent.append(options)
        raise StorageError("sent no further")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setattr(move_store, "bytes_to_move", lambda *_: {})
    monkeypatch.setattr(move_store, "move_store", keep)
    with pytest.raises(SystemExit):
        main(["compact", str(store), "--to", "s3://archive/run.ome.zarr", "--move", "--no-idle"])
    (options,) = sent
    room, machine = RigPause(store.parent, ROOM_PAUSE_NAME), RigPause(store.parent)
    room.begin()
    assert pausing_file(options.throttle.pause_files) is None
    assert pause_note(pause_files(store / "0")) == (
        f"paused: the cameras of the daemon at {store.parent} need the room on the disk"
    )
    machine.begin()
    assert pausing_file(options.throttle.pause_files) == str(store.parent / RIG_PAUSE_NAME)
    machine.end()
    room.end()


def test_an_interrupt_before_anything_is_sent_is_told(store: Path) -> None:
    interrupted = """
import signal
import shardwright.rework.transfer.move_store as move_store
move_store.plan_move = lambda *_: signal.raise_signal(signal.SIGTERM)
"""
    job = run_cli("compact", store, "--to", store.with_name("away"), first=interrupted)
    told = (
        "shardwright: compact --to was interrupted; what has arrived is kept: run the same command again "
        "to continue"
    )
    assert (job.returncode, job.stderr.splitlines()[-1]) == (1, told)


LOOKED_AT_ONCE_MORE = """
import shardwright.cli.progress as progress
from contextlib import contextmanager

every = progress._every

@contextmanager
def then_once_more(interval_s, look):
    with every(interval_s, look):
        yield
    look()

progress._every = then_once_more
"""


def test_a_terminal_gets_a_bar(store: Path) -> None:
    """With rate and time left; standard output stays clean for what was asked for. The job may end before
    the bar is due again, so the bar looks at its end as well."""
    pause = paused(store)
    ours, theirs = pty.openpty()
    wide = {"TERM": "xterm", "COLUMNS": "200"}
    with start_cli("compact", store, "--json", first=LOOKED_AT_ONCE_MORE, stderr=theirs, more=wide) as job:
        os.close(theirs)
        shown, end = "", time.monotonic() + 120
        while "paused by" not in shown:
            assert time.monotonic() < end, shown
            shown += os.read(ours, 4096).decode(errors="replace")
        pause.unlink()
        try:
            while piece := os.read(ours, 4096):
                shown += piece.decode(errors="replace")
        except OSError:  # the other side has closed
            pass
        assert job.stdout is not None
        out = job.stdout.read()
        assert job.wait(120) == 0
    os.close(ours)
    assert json.loads(out)["stores"][0]["packed"] == SHARDS
    assert "compact: run.ome.zarr" in shown
    assert re.search(r"\d+(\.\d+)?/\d+(\.\d+)? [KM]iB", shown), shown  # done and total
    assert re.search(r"\d+ s left", shown), shown  # time left


def test_the_readme_s_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "embryo.ome.zarr")
    lines = re.findall(r"^shardwright compact .*embryo.*$", README, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        arguments = shlex.split(line.replace("/mnt/archive", str(tmp_path / "archive")), comments=True)[1:]
        if any(argument.startswith("s3:") for argument in arguments):
            continue  # the tests of moving run it, with a server
        done = run_cli(*arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("gain", "text"), [(-512, "512 B larger"), (0, "of the same size"), (2048, "2.0 KiB smaller")]
)
def test_lengths_are_told_without_a_sign(gain: int, text: str) -> None:
    facts = Report("embryo.ome.zarr", packed=1).to_dict()
    assert f"files are {text};" in _done({**facts, "gain_bytes": gain, "seconds": 0.1})
