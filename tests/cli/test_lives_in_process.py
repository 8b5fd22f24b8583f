"""A life of each command that works on a store, in this process: its tasks run in no worker, and no browser
opens. What the processes around them add is tested in the files of the commands."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.compaction.jobs import Here
from tests.harness.store_contents import snapshot, stored
from tests.kernels import reference
from tests.repack import gappy_store as gappy
from tests.web.web_process import Answer, ask

import shardwright as sw
from shardwright.cli import view
from shardwright.cli.app import main
from shardwright.rework.runtime import executors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHARDS = 2


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executors, "open_executor", lambda **_: Here())
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in signals.items():  # those of a long job turn every interrupt into its own
        signal.signal(number, handler)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return gappy.write(tmp_path / "run.ome.zarr", SHARDS)


@pytest.fixture
def shardwright(capsys: pytest.CaptureFixture[str]):
    """``shardwright(*arguments)``: what it prints, as JSON, when it ends well."""

    def run(*arguments: object) -> dict:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments), "--json"])
        told = capsys.readouterr()
        assert ended.value.code == 0, told
        return json.loads(told.out)

    return run


def test_compact(store: Path, shardwright) -> None:
    assert set(gappy.gaps(store).values()) != {0}
    (told,) = shardwright("compact", store, "--no-idle")["stores"]
    assert (told["packed"], told["failures"]) == (SHARDS, {})
    gappy.assert_packed(store, SHARDS)


def test_rechunk(store: Path, shardwright) -> None:
    new = store.with_name("new.ome.zarr")
    told = shardwright("rechunk", store, new, "--chunks", "t=2,y=32,x=32", "--no-idle")
    assert (told["made"], told["failures"]) == (["0"], [])
    np.testing.assert_array_equal(stored(new), gappy.pixels(SHARDS))
    gappy.assert_pixels(store, SHARDS)


def test_pyramid(store: Path, shardwright) -> None:
    told = shardwright("pyramid", store, "--levels", 1, "--no-idle")
    assert (told["made"], told["failures"]) == (["1"], [])
    expected = reference.downsample(gappy.pixels(SHARDS), (1, 2, 2), "mean")
    np.testing.assert_array_equal(gappy.read(store / "1"), expected)


def test_recover(tmp_path: Path, shardwright) -> None:
    """Of a store as a kill would leave it: one shard and a half."""
    frames = gappy.pixels(SHARDS)[: gappy.FRAMES_PER_SHARD + 1]
    with sw.create(tmp_path / "run.ome.zarr", gappy.spec()) as writer:
        for frame in frames:
            writer.append(frame)
        writer.flush()
        dead = snapshot(tmp_path / "run.ome.zarr", tmp_path / "dead.ome.zarr")
    (told,) = shardwright("recover", dead)["stores"]
    assert (told["ok"], told["frames_lost"]) == (True, 0)
    np.testing.assert_array_equal(stored(dead)[: len(frames)], frames)


def test_a_name_that_is_no_text_ends_no_command(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store after it is compacted, too."""
    later = gappy.write(store.with_name("zz.ome.zarr"), SHARDS)
    odd = store.rename(store.with_name(os.fsdecode(b"odd\xff.ome.zarr")))
    assert isinstance(sys.stderr, io.TextIOWrapper)
    sys.stderr.reconfigure(errors="backslashreplace")  # as Python has it outside of a test
    for arguments in (
        ["compact", str(odd), str(later), "--dry-run", "--no-idle"],
        ["compact", str(odd), str(later), "--no-idle"],
        ["inspect", str(odd)],
        ["recover", str(odd)],
        ["erase", str(odd), "--frames", "0"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        told = capsys.readouterr()
        assert (ended.value.code, "odd\\udcff.ome.zarr" in told.out) == (0, True), (arguments, told)
    gappy.assert_packed(later, SHARDS)


def test_view(store: Path, shardwright, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser asks for a chunk; then comes Ctrl-C."""
    answers: list[Answer] = []

    def browse(url: str) -> None:
        port, shown = urlsplit(url).port, urlsplit(url).path
        assert port is not None
        chunk = shown.replace("/view/", "/stores/") + "/0/c/0/0/0"
        try:
            answers.extend(ask(port, path) for path in (shown, chunk))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(view.webbrowser, "open", browse)
    told = shardwright("view", store, "--in", "browser")
    assert urlsplit(told["url"]).path.endswith(f"/view/{store.name}")
    page, chunk = answers
    assert (page.status, chunk.status) == (302, 200)
    assert chunk.body == (store / "0/c/0/0/0").read_bytes()
