"""A shard may be a file of another format as well: what lies between, before and behind its chunks is kept,
or the shard is left alone and named."""

import json
import os

import numpy as np
import pytest
from tests.harness.daemon import run_cli

import shardwright as sw
from shardwright.read.store import parse_array
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.shard.index import EMPTY, LITTLE_ENDIAN_CRC32C
from shardwright.shard.sealed_shard import SealedShard

from . import gappy_store
from .images import POLITE
from .moving_store import execute
from .stores import leftovers, spec, task

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
SUPERBLOCK = b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 8  # as HDF5 begins, its tables behind it


def rebuilt(array, key: str, *, before=b"", between=b"", behind=b"", pad=0) -> bytes:
    """The shard with these bytes before, between and behind its chunks, each of which begins at a multiple of
    ``pad``."""
    with SealedShard.open(array.path / key, array.index) as file:
        entries, data = file.entries.copy(), (array.path / key).read_bytes()
    live = np.flatnonzero(entries["offset"] != EMPTY)
    live = live[np.argsort(entries["offset"][live])]
    at_start = array.index_location == "start"
    made = bytearray(bytes(array.index_bytes) if at_start else b"") + before
    for number, chunk in enumerate(live):
        offset, nbytes = map(int, entries[chunk].tolist())
        made += (between if number else b"") + bytes(
            -len(made + (between if number else b"")) % pad if pad else 0
        )
        entries["offset"][chunk] = len(made)
        made += data[offset : offset + nbytes]
    made += behind
    index = LITTLE_ENDIAN_CRC32C.encode(entries)
    if at_start:
        made[: len(index)] = index
        return bytes(made)
    return bytes(made) + index


def old_index(array, key: str) -> bytes:
    """An index as this shard may have had it before."""
    with SealedShard.open(array.path / key, array.index) as file:
        entries = file.entries.copy()
    entries["offset"][3:], entries["nbytes"][3:] = EMPTY, EMPTY
    return LITTLE_ENDIAN_CRC32C.encode(entries)


def put(array, key: str, data: bytes) -> None:
    (array.path / key).write_bytes(data)


UNKNOWN = {
    "a header before the first chunk": {"before": SUPERBLOCK},
    "a trailer before the index": {"behind": b"trailer"},
    "a table between chunks": {"between": b"TREE" + bytes(40)},
    "one byte behind a page of zeros": {"before": bytes(5000) + b"\1"},
    "a trailer behind slots": {"behind": b"x", "pad": 4096},
}


@pytest.mark.parametrize("recompress", [None, {"cname": "zstd", "clevel": 5}], ids=["pack", "recompress"])
@pytest.mark.parametrize("index_location", ["end", "start"])
@pytest.mark.parametrize("more", UNKNOWN.values(), ids=UNKNOWN)
def test_a_shard_with_bytes_that_nobody_knows_stays_and_is_named(store_of, more, index_location, recompress):
    array = store_of(spec(index_location=index_location))
    values = gappy_store.read(array.path)
    data = rebuilt(array, "c/0/0/0", **more)
    put(array, "c/0/0/0", data)
    assert np.array_equal(gappy_store.read(array.path), values), "it is a shard all the same"
    result = run_task(task(array, 0, 0, 0, recompress=recompress))
    assert (result["ok"], result["error"]["code"]) == (False, "shard_format")
    place = int(result["error"]["message"].split("from byte ")[1].split()[0])
    (unknown,) = (value.lstrip(b"\0") for value in more.values() if isinstance(value, bytes))
    assert data[place:].startswith(unknown)
    assert (array.path / "c/0/0/0").read_bytes() == data
    assert not leftovers(array.path)


KNOWN = {
    "zeros": lambda _: {"before": bytes(9000), "between": bytes(3), "behind": bytes(5000)},
    "an older index right behind a chunk": lambda index: {"between": index + bytes(77)},
    "an older index right before newer chunks": lambda index: {"between": bytes(77) + index},
    "older indexes at both ends of a gap": lambda index: {
        "between": index + bytes(9) + index,
        "behind": index,
    },
    "what an encoder left in slots": lambda _: {"between": b"left", "pad": 4096},
}


@pytest.mark.parametrize("index_location", ["end", "start"])
@pytest.mark.parametrize("more", KNOWN.values(), ids=KNOWN)
def test_what_means_nothing_goes(store_of, more, index_location):
    array = store_of(spec(index_location=index_location))
    values = gappy_store.read(array.path)
    start = 4096 - array.index_bytes if index_location == "start" else 0
    more = more(old_index(array, "c/0/0/0"))
    if "pad" in more:
        more["before"] = bytes(start)
    put(array, "c/0/0/0", rebuilt(array, "c/0/0/0", **more))
    result = run_task(task(array, 0, 0, 0))
    assert result["ok"], result
    assert result["gain_bytes"] > 0
    assert np.array_equal(gappy_store.read(array.path), values)


def test_an_index_that_does_not_check_is_no_index(store_of):
    array = store_of()
    index = bytearray(old_index(array, "c/0/0/0"))
    index[5] ^= 1
    put(array, "c/0/0/0", rebuilt(array, "c/0/0/0", between=bytes(index)))
    assert "neither to a chunk nor to the index" in run_task(task(array, 0, 0, 0))["error"]["message"]


def test_holes_are_not_read(store_of, monkeypatch):
    """A gap of a terabyte that the filesystem holds nothing of."""
    array = store_of()
    data = rebuilt(array, "c/0/0/0", before=bytes(4096))
    path = array.path / "c/0/0/0"
    put(array, "c/0/0/0", data)
    with SealedShard.open(path, array.index) as file:
        entries = file.entries.copy()
    live = entries["offset"] != EMPTY
    hole = 1 << 40
    entries["offset"][live] += hole
    tail = data[4096 : len(data) - array.index_bytes] + LITTLE_ENDIAN_CRC32C.encode(entries)
    with path.open("wb") as file:
        try:
            file.truncate(hole)
        except OSError:
            pytest.skip("NOT TESTED: this filesystem has no files of a terabyte")
        os.pwrite(file.fileno(), tail, 4096 + hole)
    result = run_task(task(array, 0, 0, 0))
    assert result["ok"], result
    assert result["gain_bytes"] > hole


def test_the_command_names_the_shard_packs_the_others_and_fails(tmp_path):
    store = gappy_store.write(tmp_path / "a.ome.zarr", shards=3)
    array = parse_array(store / "0")
    data = rebuilt(array, "c/1/0/0", before=SUPERBLOCK)
    put(array, "c/1/0/0", data)
    ran = run_cli("compact", "--json", store, "--no-idle")
    (told,) = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 1
    (failure,) = (told.get("stores") or [told])[0]["failures"].items()
    assert failure[0] == "0/c/1/0/0"
    assert "neither to a chunk nor to the index, from byte 0 on" in failure[1]["message"]
    assert (array.path / "c/1/0/0").read_bytes() == data
    assert [gap for key, gap in gappy_store.gaps(store).items() if key != "c/1/0/0"] == [0, 0]


@pytest.mark.parametrize("delete_source", [False, True], ids=["copied", "moved"])
def test_on_its_way_to_another_place_it_is_kept_as_it_is_and_named(tmp_path, delete_source):
    store = gappy_store.write(tmp_path / "a.ome.zarr", shards=2)
    values = gappy_store.read(store / "0")
    array = parse_array(store / "0")
    data = rebuilt(array, "c/1/0/0", before=SUPERBLOCK, behind=b"trailer")
    put(array, "c/1/0/0", data)
    away = tmp_path / "away"
    report = move_store(store, MoveOptions(str(away), delete_source=delete_source, throttle=POLITE), execute)
    assert report.ok
    assert report.complete
    assert [told["key"] for told in report.to_dict()["unpacked"]] == ["0/c/1/0/0"]
    assert (away / "0/c/1/0/0").read_bytes() == data
    assert gappy_store.gaps(away)["c/0/0/0"] == 0
    assert np.array_equal(gappy_store.read(away / "0"), values)
    assert store.exists() is not delete_source


@pytest.mark.parametrize("io", ["mmap", "pwrite", "direct"])
@pytest.mark.parametrize(
    "codec",
    [sw.Blosc(cname="lz4", clevel=1), sw.Blosc(cname="zstd", clevel=1), sw.Zstd(), sw.Gzip(), None],
    ids=str,
)
def test_whatever_our_writer_leaves_is_known(store_of, io, codec):
    array = store_of(spec(codec), io=io)
    for _, shard in array.shard_files():
        assert run_task(task(array, *shard))["ok"]
    assert set(gappy_store.gaps(array.path).values()) == {0}
