"""Numbers in metadata that anybody may have written: bounded before anything is made of them, for every
command, in one line."""

from __future__ import annotations

import json
import math
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.read.spellings import BIG, CRC, LITTLE, numcodec, sharded, transpose
from tests.read.test_spellings import run
from tests.repack.images import run_here

import shardwright as sw
from shardwright.model.errors import ShardwrightError
from shardwright.rework.runtime.executors import LocalProcesses
from shardwright.web.finished_stores import FinishedStores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_PEAK_BYTES = 48 << 20
LONG = 2**31 - 4
PLANE = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 16, 16]}}}


def grid(*shape: int) -> dict[str, Any]:
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}}}


def sized(name: str, fill_value: Any, length_bytes: int = LONG) -> dict[str, Any]:
    data_type = {"name": name, "configuration": {"length_bytes": length_bytes}}
    return {"data_type": data_type, "fill_value": fill_value, "codecs": [{"name": "bytes"}]}


# what is changed in the zarr.json of an array; those in LEGAL are read, all others refused
LEGAL: dict[str, dict[str, Any]] = {
    "planes of 2^40": {"shape": [8, 2**40, 2**40]},
    "10^15 frames": {"shape": [10**15, 16, 16]},
    "10^15 frames in shards": {
        "shape": [10**15, 16, 16],
        **grid(16, 16, 16),
        "codecs": [sharded([LITTLE], chunk=(1, 16, 16))],
    },
    "longest": {"shape": [2**63 - 1] * 3},
}
REFUSED: dict[str, dict[str, Any]] = {
    "longer": {"shape": [2**63] * 3},
    "one chunk": {"shape": [8, 2**40, 2**40], **grid(1, 2**40, 2**40)},
    "one chunk of zarr-python": {"shape": [8, 2**40, 2**40], **grid(1, 2**40, 2**40), "codecs": [BIG]},
    "chunks of a shard": {**grid(1, 2**40, 2**40), "codecs": [sharded([LITTLE], chunk=(1, 16, 16))]},
    "an index of zarr-python": {
        **grid(1, 2**40, 2**40),
        "codecs": [sharded([LITTLE], chunk=(1, 1, 1), index=[BIG, CRC])],
    },
    "axes": {"shape": [1] * 1000, **grid(*[1] * 1000)},
    "names": {"dimension_names": ["a" * 10] * 10**5},
    "one name too many": {"dimension_names": ["t", "z", "y", "x"]},
    "raw": sized("raw_bytes", "AAA="),
    "raw of the core": {"data_type": f"r{8 * LONG}", "fill_value": [0], "codecs": [{"name": "bytes"}]},
    "text": sized("fixed_length_utf32", ""),
    "bytes": sized("null_terminated_bytes", ""),
    "bytes of 2^63": sized("null_terminated_bytes", "", 2**63),
    "fields": {
        "data_type": {
            "name": "structured",
            "configuration": {"fields": [["a", sized("null_terminated_bytes", "")["data_type"]]]},
        },
        "fill_value": "",
        "codecs": [{"name": "bytes"}],
    },
    "a filter": {
        "codecs": [numcodec("astype", encode_dtype=f"|S{LONG}", decode_dtype="<u2"), {"name": "bytes"}]
    },
    "an order": {"codecs": [transpose(*range(10**5)), LITTLE]},
    "codecs": {"codecs": [LITTLE, *[CRC] * 10**5]},
    "a fill value of digits": {"fill_value": 10**4000},
    "a fill value of bits": {"data_type": "float32", "fill_value": "0x" + "f" * 10**5},
}
# the same for a .zarray of Zarr v2
LEGAL_V2: dict[str, dict[str, Any]] = {
    "planes of 2^40": {"shape": [8, 2**40, 2**40]},
    "10^15 frames": {"shape": [10**15, 16, 16]},
}
REFUSED_V2: dict[str, dict[str, Any]] = {
    "raw": {"dtype": "|V2147483647"},
    "raw in one chunk": {"dtype": "|V2147483647", "shape": [1, 1, 1], "chunks": [1, 1, 1]},
    "bytes": {"dtype": f"|S{LONG}"},
    "text": {"dtype": f"<U{LONG // 4}"},
    "time": {"dtype": f"<m8[{'9' * 30}s]"},
    "a filter": {"filters": [{"id": "delta", "dtype": f"|V{LONG}"}]},
    "a filter to text": {"filters": [{"id": "astype", "encode_dtype": f"|S{LONG}", "decode_dtype": "<u2"}]},
    "filters": {"filters": [{"id": "shuffle", "elementsize": 2}] * 10**4},
    "axes": {"shape": [1] * 1000, "chunks": [1] * 1000},
    "a fill value of digits": {"fill_value": 10**400},
    "a fill value of digits as a float": {"dtype": "<f4", "fill_value": 10**400},
}
NESTED = "[" * 800 + "]" * 800
# what takes the place of the attributes
TEXTS = {"nested": NESTED, "cut": "[" * 10**5, "digits": "9" * 5000}


def write_v3(folder: Path, changes: dict[str, Any], attributes: str | None = None) -> Path:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8, 16, 16],
        "data_type": "uint16",
        **PLANE,
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [LITTLE],
        "attributes": {"a": 0},
        **changes,
    }
    (folder / "c/0/0").mkdir(parents=True)
    text = json.dumps(document)
    (folder / "zarr.json").write_text(
        text if attributes is None else text.replace('{"a": 0}', f'{{"a": {attributes}}}')
    )
    (folder / "c/0/0/0").write_bytes(bytes(512))
    return folder


def write_image(folder: Path, changes: dict[str, Any], attributes: str = "0", copied: str = "{}") -> Path:
    """An image of one such array. ``attributes``: of the group; ``copied``: in its consolidated metadata."""
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    datasets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 1]}]}]
    ome = {"version": "0.5", "multiscales": [{"name": "x", "axes": axes, "datasets": datasets}]}
    copy = {"kind": "inline", "must_understand": False, "metadata": {"0": "@copied"}}
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"ome": ome, "a": "@"},
        "consolidated_metadata": copy,
    }
    write_v3(folder / "0", {"dimension_names": ["z", "y", "x"], **changes})
    text = json.dumps(group).replace('"@"', attributes).replace('"@copied"', copied)
    (folder / "zarr.json").write_text(text)
    return folder


def write_v2(folder: Path, changes: dict[str, Any], attributes: str | None = None) -> Path:
    document = {
        "zarr_format": 2,
        "shape": [8, 16, 16],
        "chunks": [1, 16, 16],
        "dtype": "<u2",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        **changes,
    }
    folder.mkdir()
    (folder / ".zarray").write_text(json.dumps(document))
    (folder / "0.0.0").write_bytes(bytes(512))
    if attributes is not None:
        (folder / ".zattrs").write_text(f'{{"a": {attributes}}}')
    return folder


def looked(root: Path) -> list[dict[str, Any]]:
    """The page's list of finished stores."""
    stores = FinishedStores(root)
    stores._look()
    return stores._list


STORES: dict[str, Callable[[Path], Path]] = {
    **{f"v3 {name}": lambda p, c=changes: write_v3(p, c) for name, changes in (LEGAL | REFUSED).items()},
    **{f"v3 image {name}": lambda p, c=changes: write_image(p, c) for name, changes in LEGAL.items()},
    **{
        f"v2 {name}": lambda p, c=changes: write_v2(p, c) for name, changes in (LEGAL_V2 | REFUSED_V2).items()
    },
    **{f"v3 attributes {name}": lambda p, t=text: write_v3(p, {}, t) for name, text in TEXTS.items()},
    **{f"v2 attributes {name}": lambda p, t=text: write_v2(p, {}, t) for name, text in TEXTS.items()},
    **{f"image attributes {name}": lambda p, t=text: write_image(p, {}, t) for name, text in TEXTS.items()},
    **{
        f"consolidated {name}": lambda p, t=text: write_image(p, {}, copied=t) for name, text in TEXTS.items()
    },
}
IS_READ = {
    *(f"v3 {name}" for name in LEGAL),
    *(f"v3 image {name}" for name in LEGAL),
    *(f"v2 {name}" for name in LEGAL_V2),
}
COMMANDS: dict[str, tuple[object, ...]] = {
    "verify": (),
    "inspect": (),
    "inspect --json": ("--json",),
    "inspect --missing": ("--missing",),
    "rechunk": ("DEST", "--no-idle", "--workers", "1"),
    "compact": ("--no-idle", "--workers", "1"),
    "pyramid": ("--levels", "2", "--no-idle", "--workers", "1"),
    "recover": (),
}


def put(options: tuple[object, ...], folder: Path) -> list[object]:
    return [folder / "new.ome.zarr" if option == "DEST" else option for option in options]


def few_frames(store: Path, count: int | None, last: int) -> sw.Receipt:
    """Frames 0, 1, 2 and ``last`` of ``count``, each of one value."""
    writer = sw.create(
        store, shape=(count, 16, 16), dtype="uint16", axes="tyx", chunks={"t": 4}, shards={"t": 8}, threads=1
    )
    for place in (0, 1, 2, last):
        writer.append(np.full((16, 16), place % 1000 + 1, np.uint16), index=(place,))
    return writer.close()


@pytest.fixture(autouse=True, scope="module")
def here() -> Iterator[None]:
    """Tasks run in this process: a worker of its own costs a second."""

    def run_in_this_process(self: Any, tasks: Any, on_moved: Any = None) -> Any:
        return run_here({**task, "throttle": {"idle": False}} for task in tasks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "run", run_in_this_process)
        yield


@pytest.fixture(autouse=True, scope="module")
def compiled(here: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each command has run once before memory is measured: what it imports, and the kernels that it compiles
    in a fresh checkout, take more than any number may."""
    folder = tmp_path_factory.mktemp("compiled")
    few_frames(folder / "a.ome.zarr", None, 8)
    for command, options in COMMANDS.items():
        assert run(command.split()[0], folder / "a.ome.zarr", *put(options, folder)) == 0


@pytest.mark.parametrize("name", STORES)
def test_each_command_ends_in_bounded_memory_and_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for command, options in COMMANDS.items():
        folder = tmp_path / command.replace(" ", "")
        folder.mkdir()
        store = STORES[name](folder / "a.zarr")
        tracemalloc.start()
        try:
            status = run(command.split()[0], store, *put(options, folder))
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        out, err = capsys.readouterr()
        assert peak_bytes < MOST_PEAK_BYTES, command
        assert "Traceback" not in out + err, command
        assert len(out) < 8000, command
        if name not in IS_READ and command not in ("inspect --missing", "recover"):
            assert status == 1, command
        if command in ("inspect", "inspect --json") and name in IS_READ and "in shards" not in name:
            assert status == 0, (command, out, err)
        if status == 1 and command not in ("verify", "compact"):
            complaint = err or out
            assert len(complaint) < 2000, command
    for read in (sw.open, sw.frame_table):
        with suppress(ShardwrightError):
            read(tmp_path / "verify" / "a.zarr")
    unreadable = [str(facts.get("unreadable", "")) for facts in looked(tmp_path / "verify")]
    assert [len(why) < 1000 for why in unreadable] in ([], [True])


def scaled(*numbers: Any) -> dict[str, Any]:
    return {"coordinateTransformations": [{"type": "scale", "scale": [*numbers]}]}


@pytest.mark.parametrize(
    "dataset",
    [
        scaled(1, 10**400, 1),
        scaled(1, math.nan, 1),
        scaled(1, math.inf, 1),
        scaled(1, "1", 1),
        scaled(1, None, 1),
        scaled(1, 1),
        {"coordinateTransformations": [{"type": ["scale"]}]},
        {"coordinateTransformations": ["scale"]},
        {"coordinateTransformations": None},
        {"path": 0},
        {"path": "\ud800"},
        {"path": "a" * 5000},
    ],
    ids=lambda dataset: json.dumps(dataset)[:60],
)
def test_a_dataset_that_is_none_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dataset: dict[str, Any]
) -> None:
    store = write_image(tmp_path / "a.zarr", {})
    group = json.loads((store / "zarr.json").read_text())
    group["attributes"]["ome"]["multiscales"][0]["datasets"][0] |= dataset
    (store / "zarr.json").write_text(json.dumps(group))
    for command, *options in (
        ("pyramid", store, "--levels", "1"),
        ("rechunk", store, tmp_path / "new.zarr", "--levels", "1"),
    ):
        assert run(command, *options, "--no-idle", "--workers", "1") == 1, command
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err, command
        assert "not supported" in err or "no OME-Zarr image" in err or "dataset path" in err, (command, err)
        assert len(err) < 1000, command
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]
    for command, *options in (("verify",), ("inspect",), ("compact", "--no-idle"), ("recover",)):
        run(command, store, *options)
        assert "Traceback" not in "".join(capsys.readouterr()), command
    told = "".join(str(facts.get("unreadable")) for facts in looked(tmp_path))
    assert "Error" not in told, "a fault that nobody has thought of"


@pytest.mark.parametrize("count", [None, 2**41])
def test_one_wrong_frame_index_of_our_own_writer_costs_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int | None
) -> None:
    store = tmp_path / "a.ome.zarr"
    last = 2**40
    receipt = few_frames(store, count, last)
    assert (receipt.frames_stored, receipt.shards) == (4, 2)
    tracemalloc.start()
    try:
        for command, options in COMMANDS.items():
            assert run(command.split()[0], store, *put(options, tmp_path)) == 0, command
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_PEAK_BYTES
    out, _ = capsys.readouterr()
    assert len(out) < 8000 * len(COMMANDS)
    assert sw.frame_table(store)["index_t"].tolist() == [0, 1, 2, last]
    for made in (store, tmp_path / "new.ome.zarr"):
        pixels = zarr.open_array(sw.open(made), path="0", mode="r")
        assert [int(pixels[place].max()) for place in (2, 3, last // 2, last)] == [3, 0, 0, last % 1000 + 1]
    (told,) = (facts for facts in looked(tmp_path) if facts["store"] == store.name)
    assert (told["frames"], told["frames_missing"]) == (last + 1, last - 3)
