"""Shards that describe themselves: a lone file is decoded by its own description, which packs and edits keep
and nobody trusts against the index."""

import json
import shutil

import h5py
import numpy as np
import pytest
import tensorstore
import zarr
from tests.harness.daemon import run_cli
from tests.harness.writing import how

import shardwright as sw
from shardwright.model.errors import (
    OutputExistsError,
    ShardFormatError,
    StrategyError,
)
from shardwright.read.inspect_shards import Totals, inspect_shards
from shardwright.read.standalone_shard import inspect_alone
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.compact_store import Options
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.shard.shard_description import FIELDS, encode_description, find_description
from shardwright.shard.shard_sums import ShardSums

from .images import POLITE
from .moving_store import execute
from .test_hdf5_container import SHAPE, compact, pixels, shards_of

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
DESCRIBE = Options(describe=True, idle=False)
ZSTD = {"cname": "zstd", "clevel": 9, "shuffle": None}
FORMS = {
    "index at the end": ({}, DESCRIBE),
    "index at the start": ({"live": "index"}, DESCRIBE),
    "HDF5 too": ({}, Options(container="hdf5", describe=True, idle=False)),
}


@pytest.fixture
def store_of(tmp_path):
    def write(name="run.ome.zarr", **fields):
        settings = {key: fields.pop(key) for key in ("live",) if key in fields}
        dimensions = [
            sw.Dimension(name=axis, count=None if axis == "t" else count, chunk_size=k, shard_size_chunks=2)
            for axis, count, k in zip("tyx", SHAPE, (2, 32, 32), strict=True)
        ]
        spec = sw.ArraySpec(dtype="uint16", dimensions=dimensions, **{"codec": sw.Blosc(), **fields})
        with sw.create(tmp_path / name, spec, **how(**settings)) as writer:
            writer.append_many(pixels())
        return tmp_path / name

    return write


def alone(store, tmp_path, key="0/c/1/0/1"):
    """A copy of one shard where nothing else is."""
    path = tmp_path / "lone" / "shard"
    path.parent.mkdir(exist_ok=True)
    shutil.copy(store / key, path)
    return path


def values_of(array, *shard) -> np.ndarray:
    """A whole shard as zarr-python reads it, zeros past the edge."""
    stored = parse_array(array)
    found = np.zeros(stored.shard_shape, stored.dtype)
    part = zarr.open_array(array, mode="r")[
        tuple(slice(at * n, (at + 1) * n) for at, n in zip(shard, stored.shard_shape, strict=True))
    ]
    found[tuple(map(slice, part.shape))] = part
    return found


def described(store) -> list[bool]:
    """Of each shard of the image, in the order of their names."""
    array, found = parse_array(store / "0"), []
    for path in shards_of(store):
        shard = array.coordinates_of(path.relative_to(store / "0").as_posix())
        with array.open_shard(shard) as sealed:
            found.append(find_description(sealed, array.described, shard) is not None)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_lone_shard_is_decoded_without_any_zarr_json(store_of, tmp_path, form) -> None:
    settings, options = FORMS[form]
    store = store_of(**settings)
    assert compact(store, options)["ok"]
    assert verify_store(store).problems == []
    lone, target = alone(store, tmp_path), tmp_path / "lone.npy"
    facts = inspect_alone(lone, target)
    np.testing.assert_array_equal(np.load(target), values_of(store / "0", 1, 0, 1))
    assert (facts["shard"], facts["problems"], facts["dtype"]) == ([1, 0, 1], [], "uint16")
    assert facts["container"] == ("hdf5" if form == "HDF5 too" else None)
    assert facts["index_location"] == ("end" if form == "index at the end" else "start")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store / "0")}}
    np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), pixels())
    with pytest.raises(OutputExistsError):
        inspect_alone(lone, target)


@pytest.mark.parametrize("form", ["index at the end", "index at the start"])
def test_shards_that_are_merged_are_described_again(store_of, form) -> None:
    settings, options = FORMS[form]
    store = store_of(**settings)
    compact(store, options)
    assert compact(store, Options(shards={"t": 8}, idle=False))["merged"] == ["0"]
    assert all(described(store))
    assert not verify_store(store).problems


def test_shards_that_are_hdf5_are_not_merged(store_of) -> None:
    store = store_of()
    compact(store, FORMS["HDF5 too"][1])
    before = {path: path.read_bytes() for path in shards_of(store)}
    report = compact(store, Options(shards={"t": 8}, idle=False))
    assert "hdf5 files as well" in report["unmerged"]["0"]
    assert {path: path.read_bytes() for path in shards_of(store)} == before


@pytest.mark.parametrize(
    "fields",
    [
        {"codec": sw.Zstd(), "chunk_checksum": True},
        {"codec": sw.Gzip(), "fill_value": 7},
        {"codec": None, "storage_order": ("t", "x", "y")},
        {"index_checksum": False},
    ],
    ids=str,
)
def test_every_codec_is_described(store_of, tmp_path, fields) -> None:
    store = store_of(**fields)
    assert compact(store, DESCRIBE)["ok"]
    assert verify_store(store).problems == []
    target = tmp_path / "lone.npy"
    assert inspect_alone(alone(store, tmp_path, "0/c/0/0/0"), target)["problems"] == []
    np.testing.assert_array_equal(np.load(target), values_of(store / "0", 0, 0, 0))


def test_a_description_has_the_recorded_sum_and_costs_little(store_of) -> None:
    store = store_of()
    assert compact(store, Options(idle=False))["ok"]
    before = {path: path.stat().st_size for path in shards_of(store)}
    report = compact(store, DESCRIBE)
    assert report["packed"] == len(before)
    array = parse_array(store / "0")
    longest = len(encode_description(array.described, (99, 99, 99), 0))
    assert all(0 < path.stat().st_size - size <= longest < 700 for path, size in before.items())
    with array.open_shard((1, 0, 1)) as sealed:
        found = find_description(sealed, array.described, (1, 0, 1))
    assert {int(found.facts["crc32c"], 16)} == ShardSums(array.path).of("c/1/0/1")
    assert {name: found.facts[name] for name in FIELDS} == array.described
    again = compact(store, DESCRIBE)
    assert (again["packed"], again["skipped"]) == (0, len(before))
    store_facts, totals = open_store(store), Totals()
    for shard in inspect_shards(store_facts, store_facts.arrays[0]):
        totals.add(shard)
    assert (totals.described, totals.gap_bytes) == (len(before), 0)


def test_packs_and_moves_keep_it(store_of, tmp_path) -> None:
    store = store_of()
    assert compact(store, DESCRIBE)["ok"]
    for options in (Options("column_major", idle=False), Options(recompress=ZSTD, idle=False)):
        report = compact(store, options)
        assert report["ok"]
        assert report["packed"] > 0
        assert all(described(store))
        assert verify_store(store).problems == []
    away = tmp_path / "away.ome.zarr"
    moved = move_store(store, MoveOptions(str(away), order="row_major", throttle=POLITE), execute)
    assert (moved.ok, moved.unpacked) == (True, [])
    assert all(described(away))
    assert verify_store(away).problems == []
    inspect_alone(alone(away, tmp_path), target := tmp_path / "lone.npy")
    np.testing.assert_array_equal(np.load(target), values_of(store / "0", 1, 0, 1))


def test_a_move_sums_chunks_with_checksums_of_their_own(store_of, tmp_path) -> None:
    store, away = store_of(chunk_checksum=True), tmp_path / "away.ome.zarr"
    assert compact(store, DESCRIBE)["ok"]
    assert move_store(store, MoveOptions(str(away), throttle=POLITE), execute).ok
    assert all(described(away))
    assert verify_store(away).problems == []


def test_edits_write_it_again(store_of, tmp_path) -> None:
    store = store_of()
    assert compact(store, DESCRIBE)["ok"]
    with pytest.raises(StrategyError, match="describes itself"):
        sw.update(store, {"t": (0, 2), "y": (0, 32), "x": (0, 32)}, 9, strategy="in_place")
    report = sw.update(store, {"t": (4, 6)}, 9)
    assert set(report.arrays[0].strategies) == {"rewrite"}
    sw.erase(store, {"t": 10})
    zarr.open(sw.ChunkStore(store))["0"][0:2, :32, :32] = 3
    keys = [path.relative_to(store / "0").as_posix() for path in shards_of(store)]
    without = [key for key, has_one in zip(keys, described(store), strict=True) if not has_one]
    assert without == ["c/1/0/0"]  # which was absent before
    assert verify_store(store).problems == []
    inspect_alone(alone(store, tmp_path), target := tmp_path / "lone.npy")
    np.testing.assert_array_equal(np.load(target), values_of(store / "0", 1, 0, 1))


def test_a_packed_store_that_describes_itself_goes_on(store_of) -> None:
    store = store_of()
    assert compact(store, DESCRIBE)["ok"]
    with sw.resume(store) as writer:
        writer.append(pixels()[0])
    np.testing.assert_array_equal(
        zarr.open_array(store / "0", mode="r")[...], np.concatenate([pixels(), pixels()[:1]])
    )
    assert verify_store(store).problems == []


def test_a_changed_shard_and_its_description_are_told_apart(store_of, tmp_path) -> None:
    """The description never stands in for the index, nor the other way round."""
    store = store_of(codec=None)
    assert compact(store, DESCRIBE)["ok"]
    path = store / "0/c/1/0/1"
    sound, array = path.read_bytes(), parse_array(store / "0")
    with array.open_shard((1, 0, 1)) as sealed:
        start = find_description(sealed, array.described, (1, 0, 1)).start
        offset = int(sealed.entries[sealed.index.live[0]]["offset"])
    changed = bytearray(sound)
    changed[offset + 5] ^= 1  # a pixel
    path.write_bytes(changed)
    assert inspect_alone(path, None)["problems"] == [
        "the chunks are not those that the description says: the file was changed since"
    ]
    problems = [str(problem) for problem in verify_store(path).problems]
    assert any(
        "its description is not of this array, this place and these chunks" in problem for problem in problems
    )
    other = encode_description(array.described, (5, 0, 1), 0)
    path.write_bytes(sound[:start] + other + sound[-array.index_bytes :])
    problems = [str(problem) for problem in verify_store(path).problems]
    assert any(
        "its description is not of this array, this place and these chunks" in problem for problem in problems
    )
    bent = bytearray(sound)
    bent[-array.index_bytes] ^= 1  # of the index
    path.write_bytes(bent)
    with pytest.raises(ShardFormatError, match="index fails its crc32c"):
        inspect_alone(path, None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 64, 64]}}},
            "no description",
        ),
        ({"data_type": "r99"}, "not understood"),
        ({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}, "not understood"),
        ({"codecs": 5}, "not understood"),
        ({"chunk_grid": None}, "not understood"),
        ({"fill_value": "x"}, "not understood"),
    ],
)
def test_a_forged_description_is_refused(store_of, tmp_path, fields, said) -> None:
    store = store_of()
    assert compact(store, Options(idle=False))["ok"]
    array, data = parse_array(store / "0"), (store / "0/c/1/0/1").read_bytes()
    forged = encode_description({**array.described, **fields}, (1, 0, 1), 0)
    path = tmp_path / "forged"
    path.write_bytes(data[: -array.index_bytes] + forged + data[-array.index_bytes :])
    with pytest.raises(ShardFormatError, match=said):
        inspect_alone(path, None)


def test_files_without_one_are_told_how_to_get_it(store_of, tmp_path) -> None:
    store = store_of()
    with pytest.raises(ShardFormatError, match="no description of itself") as caught:
        inspect_alone(store / "0/c/0/0/0", None)
    assert "compact --describe" in caught.value.hint
    for data in (b"", b"SWSHARD1", b"x" * 5000, b"SWSHARD1" * 3000):
        (tmp_path / "none").write_bytes(data)
        with pytest.raises(ShardFormatError, match="no description of itself"):
            inspect_alone(tmp_path / "none", None)


def test_arrays_without_shards_are_refused(tmp_path) -> None:
    store = tmp_path / "plain.ome.zarr"
    with sw.create(store, shape=(2, 32, 32), dtype="uint16", axes="tyx", shards=False) as writer:
        writer.append_many(np.ones((2, 32, 32), "uint16"))
    with pytest.raises(ShardFormatError, match="cannot describe itself"):
        compact(store, DESCRIBE)


def test_the_commands(store_of, tmp_path) -> None:
    store = store_of()
    done = run_cli("compact", store, "--container", "hdf5", "--describe", "--no-idle", "--json")
    assert json.loads(done.stdout)["ok"], done.stderr
    shown = run_cli("inspect", store)
    assert "an HDF5 file as well" in shown.stdout
    assert "shards describe themselves" in shown.stdout
    lone, target = alone(store, tmp_path), tmp_path / "out.npy"
    said = json.loads(run_cli("inspect", "--standalone", lone, "--to", target, "--json").stdout)
    assert (said["ok"], said["container"]) == (True, "hdf5")
    with h5py.File(lone) as file:
        np.testing.assert_array_equal(np.load(target), file["data"][...])
    text = run_cli("inspect", "--standalone", lone)
    assert text.returncode == 0
    assert "container       hdf5" in text.stdout
    for wrong in (
        ("compact", store, "--container", "tiff"),
        ("compact", store, "--container", "hdf5", "--to", tmp_path / "x.ozx"),
        ("compact", store, "--describe", "--to", tmp_path / "x.ozx"),
        ("compact", store, "--container", "hdf5", "--trim"),
        ("inspect", lone, "--to", tmp_path / "y.npy"),
    ):
        refused = run_cli(*wrong)
        assert refused.returncode == 2, refused.stderr
