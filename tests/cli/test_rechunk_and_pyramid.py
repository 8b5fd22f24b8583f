"""``shardwright rechunk`` and ``shardwright pyramid`` as people meet them: the README's lines, what is
printed, exit codes, what is refused."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.daemon import run_cli, start_cli

import shardwright as sw
from shardwright.cli.job_command import throttle_of
from shardwright.model.names import WORK_FOLDER
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.runtime.throttle import pause_files
from shardwright.rework.runtime.work_folder import PAUSE_NAME

README = (Path(__file__).parents[2] / "src/shardwright/rework/README.md").read_text(encoding="utf-8")
PIXELS = np.random.default_rng(5).poisson(90, (5, 32, 48)).astype(np.uint16)
WAIT_S = 60
HERE = ("--workers", "1", "--no-idle")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plane = [
        sw.Dimension(name=axis, count=n, chunk_size=16, shard_size_chunks=2)
        for axis, n in (("y", 32), ("x", 48))
    ]
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name="t", count=None, chunk_size=1, shard_size_chunks=4), *plane],
    )
    with sw.create("embryo.ome.zarr", spec) as writer:
        for frame in PIXELS:
            writer.append(frame)
    return tmp_path / "embryo.ome.zarr"


@pytest.fixture
def shardwright():
    """``shardwright(*arguments)``: exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        done = run_cli(*map(str, arguments))
        return done.returncode, done.stdout, done.stderr

    return run


def values(array: str) -> np.ndarray:
    return np.asarray(
        tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": array}})
        .result()
        .read()
        .result()
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(store: Path) -> None:
    """Its first chunk, wherever workers have put it: the index, of 4 x 2 x 2 pairs and a checksum, is the end
    of the file."""
    shard = store / "0/c/0/0/0"
    data = bytearray(shard.read_bytes())
    index = len(data) - 4 * 2 * 2 * 16 - 4
    data[int.from_bytes(data[index : index + 8], "little")] ^= 0xFF
    shard.write_bytes(data)


def test_the_lines_of_the_readme(store: Path, shardwright) -> None:
    lines = re.findall(r"^shardwright (?:rechunk|pyramid) .*$", README, re.MULTILINE)
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [command[0] for command in commands] == ["rechunk", "rechunk", "pyramid", "rechunk", "rechunk"]
    # the second goes to a bucket, as a test with a server does
    rechunk, _, pyramid, foreign, plain = commands
    code, out, _ = shardwright(*rechunk, *HERE)
    assert code == 0
    assert re.search(
        r"embryo-cubes\.ome\.zarr: made 0: \d+ shards made and 0 found .* written and verified", out
    )
    np.testing.assert_array_equal(values("embryo-cubes.ome.zarr/0"), PIXELS)
    code, out, _ = shardwright(*pyramid, *HERE)
    assert code == 0
    assert "embryo-cubes.ome.zarr: made 1, 2, 3, 4: " in out
    assert values("embryo-cubes.ome.zarr/4").shape == (5, 2, 3)
    code, out, _ = shardwright(*pyramid, "--json")
    assert (code, json.loads(out)["ok"], json.loads(out)["already"]) == (0, True, ["1", "2", "3", "4"])
    assert "levels 1, 2, 3, 4 were there already" in shardwright(*pyramid)[1]
    assert names(store.parent) == ["embryo-cubes.ome.zarr", "embryo.ome.zarr"]
    for command in (foreign, plain):
        _, source, new, *_ = command
        array = zarr.create_array(
            source,
            shape=(6, 8),
            chunks=(2, 4),
            shards=(6, 8),
            dtype="uint16",
            serializer={"name": "bytes", "configuration": {"endian": "big"}},
        )
        array[...] = np.arange(48).reshape(6, 8)
        assert shardwright(*command, *HERE)[0] == 0
        np.testing.assert_array_equal(values(new), np.arange(48).reshape(6, 8))


def test_what_is_damaged_is_named_and_nothing_appears(store: Path, shardwright) -> None:
    damage(store)
    code, out, _ = shardwright("rechunk", store, "new.ome.zarr", "--chunks", "t=5", "--shards", "t=5", *HERE)
    assert code == 1
    assert "NOT finished, nothing was published" in out
    assert "0/c/0/0/0: chunk 0/0/0 in" in out
    assert "run the same command again" in out
    assert not (store.parent / "new.ome.zarr").exists()
    code, out, _ = shardwright("pyramid", store, "--levels", "1", "--json", *HERE)
    report = json.loads(out)
    assert (code, report["ok"], report["made"], [failure["key"] for failure in report["failures"]]) == (
        1,
        False,
        [],
        ["1/c/0/0/0"],
    )


REFUSED = [
    (("rechunk", "embryo.ome.zarr", "embryo.ome.zarr/0/new", "--chunks", "t=2"), 2, "in the store itself"),
    (("rechunk", "embryo.ome.zarr", "embryo.ome.zarr", "--chunks", "t=2"), 1, "the output exists already"),
    (
        ("rechunk", "embryo.ome.zarr", "new", "--chunks", "x=8", "--shards", "x=12"),
        1,
        "shards of axis x do not hold whole chunks",
    ),
    (("rechunk", "embryo.ome.zarr", "new", "--chunks", "q=8"), 1, "the image has no such axes"),
    (("rechunk", "embryo.ome.zarr", "new", "--chunks", "64"), 2, "z=64,y=64,x=64"),
    (("rechunk", "embryo.ome.zarr", "new", "--chunks", "t=2", "--codec", "png"), 2, "zstd:5"),
    (("rechunk", "nowhere.ome.zarr", "new", "--chunks", "t=2"), 1, "no such file or folder"),
    (("pyramid", "embryo.ome.zarr", "--levels", "2", "--axes", "q"), 1, "there is no axis 'q'"),
    (("pyramid", "embryo.ome.zarr", "--levels", "2", "--factors", "q"), 2, "z=64,y=64,x=64"),
    (("pyramid", "embryo.ome.zarr", "--levels", "2", "--factors", "y=9"), 1, "expected 1 to 8 along y"),
    (
        ("pyramid", "embryo.ome.zarr", "--levels", "2", "--factors", "y=2", "--axes", "y"),
        2,
        "give it or --factors",
    ),
    (("pyramid", "embryo.ome.zarr", "--levels", "9"), 1, "no axis is left to reduce"),
    (("pyramid", "embryo.ome.zarr", "--levels", "1", "--method", "median"), 2, "mean, min, max, nearest"),
]


@pytest.mark.parametrize(("command", "expected_code", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_made(
    store: Path, shardwright, command, expected_code, message
) -> None:
    code, out, err = shardwright(*command)
    assert (code, out) == (expected_code, "")
    assert message in " ".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())
    assert names(store.parent) == ["embryo.ome.zarr"]
    assert names(store) == ["0", "frames", "zarr.json"]


INTERRUPTED = [
    (("rechunk", "embryo.ome.zarr", "new.ome.zarr", "--chunks", "t=2"), signal.SIGINT),
    (("pyramid", "embryo.ome.zarr", "--levels", "1"), signal.SIGTERM),
]


@pytest.mark.parametrize(("command", "number"), INTERRUPTED)
def test_an_interrupt_is_told_and_the_same_command_goes_on(
    store: Path, shardwright, command: tuple[str, ...], number: signal.Signals
) -> None:
    (store / "0/.compact").mkdir()
    pause = store / "0/.compact/pause"
    pause.touch()
    job = start_cli(*command, *HERE)
    assert job.stderr is not None
    assert any("paused by" in line for line in job.stderr), "it waits"
    job.send_signal(number)
    _, err = job.communicate(timeout=WAIT_S)
    assert (
        job.returncode,
        err.splitlines()[-1].startswith(f"shardwright: {command[0]} was interrupted"),
    ) == (1, True), err
    assert not list(store.parent.rglob("*.packed")), "no working file is left"
    pause.unlink()
    assert shardwright(*command, *HERE)[0] == 0


def test_a_store_that_is_still_being_written_is_refused(store: Path, shardwright) -> None:
    (store / ".shardwright").mkdir()
    for command in (
        ("rechunk", store, "new.ome.zarr", "--chunks", "t=2"),
        ("pyramid", store, "--levels", "1"),
    ):
        code, _, err = shardwright(*command)
        assert code == 1
        assert "is not finished: an acquisition is still running" in err
    assert names(store.parent) == ["embryo.ome.zarr"]


def test_rechunk_heeds_the_pause_file_of_the_image_and_only_workers_with_a_task_share_the_rate(
    store: Path,
) -> None:
    heeded = pause_files(store / "0")
    assert heeded[0] == str(store / "0" / WORK_FOLDER / PAUSE_NAME)
    throttle = throttle_of("6MB", 3, no_idle=True)
    assert [throttle.of_one_worker(tasks).bytes_per_s for tasks in (1, 2, 3, 9)] == [6e6, 3e6, 2e6, 2e6]
    tasks = []

    def keep(given):
        tasks.extend(given)
        return iter(())

    options = RechunkOptions({"t": 5}, {"t": 5})
    write_new_store(plan_new_store(store, options), store.with_name("new"), options, keep, throttle=throttle)
    share = 6e6 / min(3, len(tasks))
    assert [task["throttle"] for task in tasks] == [
        {"bytes_per_s": share, "pause_files": heeded, "idle": False}
    ] * len(tasks)


def test_metadata_stay(tmp_path: Path, shardwright):
    """The JSON of each frame and that of the store."""
    store, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    layout = {"shape": (None, 32, 48), "dtype": "uint16", "axes": "tyx", "frame_json_bytes": 40}
    with sw.create(store, attributes={"who": "me"}, **layout) as writer:
        for number, frame in enumerate(PIXELS):
            writer.append(frame, metadata={"note": f"{number} µ"})
        writer.update_metadata({"text": "ä"})
    for command in (
        ("compact", store),
        ("pyramid", store, "--levels", "1"),
        ("rechunk", store, new, "--chunks", "t=1"),
    ):
        code, _, errors = shardwright(*command, *HERE)
        assert code == 0, errors
    for each in (store, new):
        assert [json.loads(text)["note"] for text in sw.frame_table(each)["json"]] == [
            f"{number} µ" for number in range(len(PIXELS))
        ]
        attributes = json.loads((each / "zarr.json").read_text())["attributes"]
        assert (attributes["who"], attributes["text"]) == ("me", "ä")
        assert verify_store(each).ok


@pytest.mark.parametrize(
    ("more", "one"), [({"images": ["left", "right"]}, "1"), ({"plate": sw.Plate(rows=2, columns=2)}, "B/2/0")]
)
def test_a_collection_is_done_image_by_image(tmp_path, shardwright, more, one):
    spec = sw.AcquisitionSpec(array=sw.default_layout((2, 16, 24), "uint8", "tyx"), **more)
    name = spec.names[spec.paths.index(f"{one}/0")]
    with sw.create(tmp_path / "all.ome.zarr", spec) as writer:
        for frame in range(2):
            writer.append(np.full((16, 24), 1 + frame, np.uint8), image=name)
    rechunk = ("rechunk", "--chunks", "y=8", *HERE)
    for command in (
        (*rechunk, writer.path, tmp_path / "new.ome.zarr"),
        ("pyramid", "--levels", "1", *HERE, writer.path),
    ):
        code, _, said = shardwright(*command)
        assert code == 1
        assert "a collection of 1 images; expected the path of one image" in " ".join(said.split())
        assert f"such as {writer.path / one}" in said.replace("\n", "")
    assert shardwright(*rechunk, writer.path / one, tmp_path / "new.ome.zarr")[0] == 0
    np.testing.assert_array_equal(values(f"{tmp_path}/new.ome.zarr/0")[:, 0, 0], [1, 2])
    assert shardwright("pyramid", "--levels", "1", *HERE, writer.path / one)[0] == 0
    assert values(f"{writer.path}/{one}/1").shape == (2, 8, 12)
    assert verify_store(writer.path).ok
