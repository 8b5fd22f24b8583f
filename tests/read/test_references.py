"""References to the chunks of stores, read by software that knows nothing of us: every array of a store, and
no pixel of a file that has changed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import pytest
import zarr
from tests.harness.plain_server import PlainServer
from tests.harness.writing import how
from tests.repack.conftest import bucket_url, object_store  # noqa: F401  (fixtures)
from tests.repack.images import POLITE, run_here, write_image
from tests.repack.test_compact_store import compact_here
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec

import shardwright as sw
from shardwright.cli.app import main
from shardwright.disk.failpoints import set_hook
from shardwright.disk.files import raise_errno
from shardwright.model.errors import (
    ConfigError,
    LockedError,
    OutputExistsError,
    ShardChangedError,
    ShardFormatError,
    StorageError,
    StoreChangingError,
)
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options
from shardwright.rework.references import kerchunk_files
from shardwright.rework.references import make_references as make_references_module
from shardwright.rework.references.file_record import check_references
from shardwright.rework.references.make_references import make_references
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store

from .reference_readers import (
    EACH_KIND,
    assert_same,
    chunk_references,
    read,
    read_by_virtualizarr,
    refer,
    without_newer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# fsspec reads Parquet so, unless it is told otherwise, and has no way to tell it in a URL
pytestmark = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
STORED = {"chunk_checksum": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "blosc": STORED,
    "levels": STORED | {"levels": 2},
    "uncompressed": STORED | {"codec": None},
    "zstd, index at the start": STORED | {"codec": sw.Zstd(), "index_location": "start"},
    "gzip": STORED | {"codec": sw.Gzip()},
    "no shards": {"shard_chunks": None},
    "floats": STORED | {"dtype": "float32", "fill_value": "NaN"},
    "bool": STORED | {"dtype": "bool"},
}


def dimensions(sizes: Any) -> list[sw.Dimension]:
    """``sizes``: name, count, and sizes of chunks and shards, of each."""
    return [sw.Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=s) for n, c, k, s in sizes]


def no_steps(_done: int, _total: int) -> None:
    """Nobody looks."""


def check(report: dict[str, Any]) -> dict[str, Any]:
    return check_references(Path(report["path"]), no_steps)


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_array_is_read(layout: str, kind: str, tmp_path: Path) -> None:
    store = tmp_path / "a b#.ome.zarr"
    write_image(store, **LAYOUTS[layout])
    report = refer(kind, tmp_path, store)
    found = read(kind, report)
    assert assert_same(found, store) == report["arrays"] > 10
    if kind != "parquet":
        assert dict(found.attrs) == open_store(store).group
        assert found["0"].metadata.dimension_names == ("z", "y", "x")
    assert check(report) == {
        "ok": True,
        "path": report["path"],
        "files": report["shards"] + report["arrays"] + 2,
        "stale": {},
    }


@pytest.mark.parametrize("kind", EACH_KIND)
def test_arrays_of_others(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Big endian, codecs behind codecs, records of Parquet without a chunk, no axis, short spelling."""
    monkeypatch.setattr(kerchunk_files, "_RECORD_SIZE", 2)
    group = zarr.open_group(a_store(tmp_path))
    layout: dict[str, Any] = {"shape": (8, 12), "chunks": (4, 4), "shards": (8, 8)}
    big = {"dtype": "f8", "serializer": BytesCodec(endian="big"), "fill_value": float("-inf")}
    several = [Crc32cCodec(), GzipCodec(), BloscCodec(), Crc32cCodec()]
    turned = {"dtype": "f4", "filters": [TransposeCodec(order=(1, 0))], "compressors": [Crc32cCodec()]}
    for name, more in {
        "big": {**big, "compressors": [BloscCodec(shuffle="bitshuffle"), Crc32cCodec()]},
        "several": {"dtype": "f4", "compressors": several, "fill_value": float("nan")},
        "turned": {**turned, "fill_value": 1.5},
    }.items():
        group.create_array(name, **layout, **more)[4:, 8:] = np.arange(16).reshape(4, 4)
    group.create_array("scalar", shape=(), dtype="u2")[...] = 7
    group.create_array("empty", shape=(0, 4), chunks=(1, 2), dtype="u2")
    group.create_array("short", shape=(4,), chunks=(2,), dtype="u1", compressors=None)[...] = 3
    document = tmp_path / "a.ome.zarr/short/zarr.json"
    read_back = json.loads(document.read_text())
    found = read(kind, refer(kind, tmp_path, tmp_path / "a.ome.zarr"))
    for name in ("big", "several", "turned", "scalar", "empty", "short"):
        np.testing.assert_array_equal(found[name][...], group[name][...], err_msg=name)
    document.write_text(json.dumps({**read_back, "codecs": ["bytes"], "chunk_key_encoding": "default"}))
    (tmp_path / "again").mkdir()
    found = read(kind, refer(kind, tmp_path / "again", tmp_path / "a.ome.zarr"))
    assert found["short"][...].tolist() == [3] * 4


@pytest.mark.parametrize("kind", EACH_KIND)
def test_no_byte_of_a_chunk_is_copied(kind: str, tmp_path: Path) -> None:
    write_image(tmp_path / "a.ome.zarr", **STORED)
    report = refer(kind, tmp_path, tmp_path / "a.ome.zarr")
    if kind == "json":
        found = chunk_references(report["path"])
        assert len(found) == report["chunks"]
        assert all(
            isinstance(value, list) and Path(value[0].removeprefix("file://")).is_file()
            for value in found.values()
        )
        image = [value for key, value in found.items() if key.startswith("0/")]
        assert {len(value) for value in image} == {3}
    elif kind == "icechunk":
        import icechunk

        storage = icechunk.local_filesystem_storage(report["path"])
        session = icechunk.Repository.open(storage).readonly_session("main")

        async def kinds() -> list[Any]:
            places = session.chunk_coordinates("/0")
            return [await session.chunk_type_async("/0", where) async for where in places]

        found_kinds = asyncio.run(kinds())
        assert len(found_kinds) == report["chunks"] - (report["arrays"] - 1), "a column has one chunk"
        assert all(each == icechunk.ChunkType.virtual for each in found_kinds)
    else:
        names = {path.name for path in Path(report["path"]).rglob("*") if path.is_file()}
        assert names == {".zmetadata", "shardwright.json", "refs.0.parq"}


@without_newer
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_virtualizarr_reads_files_of_kerchunk(kind: str, tmp_path: Path) -> None:
    """Joined, since it reads no Parquet with groups in groups."""
    expected = write_image(tmp_path / "a.ome.zarr", **STORED, levels=2)
    report = refer(kind, tmp_path, tmp_path / "a.ome.zarr", axis="z")
    found = read_by_virtualizarr(kind, report)
    np.testing.assert_array_equal(found["0"][...], expected)
    np.testing.assert_array_equal(found["1"][...], sw.open_array(tmp_path / "a.ome.zarr", "1")[...])


def test_parquet_is_written_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a file come from several shards, and shards have chunks of several files."""
    monkeypatch.setattr(kerchunk_files, "_RECORD_SIZE", 7)
    write_image(tmp_path / "a.ome.zarr", **STORED)
    held: list[int] = []
    add = kerchunk_files.KerchunkParquet.add

    def watched(self: Any, *given: Any) -> None:
        add(self, *given)
        held.append(len(self._records))

    monkeypatch.setattr(kerchunk_files.KerchunkParquet, "add", watched)
    report = refer("parquet", tmp_path, tmp_path / "a.ome.zarr")
    assert len([*tmp_path.glob("refs.parquet/0/refs.*.parq")]) == 15  # of 99 chunks
    assert max(held) <= 7, "those of one row of shards: 4 * 9 chunks"
    assert_same(read("parquet", report), tmp_path / "a.ome.zarr")


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_plate_comes_with_its_groups(kind: str, tmp_path: Path) -> None:
    sizes = (("t", None, 1, 4), ("y", 16, 8, 2), ("x", 16, 8, 2))
    array = sw.ArraySpec(dtype="uint16", dimensions=dimensions(sizes), **STORED)
    spec = sw.AcquisitionSpec(array=array, plate=sw.Plate(rows=2, columns=1))
    with sw.create(tmp_path / "plate.ome.zarr", spec) as writer:
        for value, well in enumerate(("A/1/0", "B/1/0"), 1):
            writer.append(np.full((16, 16), value, np.uint16), image=well, index=(0,))
    found = read(kind, refer(kind, tmp_path, tmp_path / "plate.ome.zarr"))
    assert assert_same(found, tmp_path / "plate.ome.zarr")
    if kind != "parquet":
        assert "plate" in found.attrs["ome"]
        assert "well" in found["A/1"].attrs["ome"]


@pytest.mark.parametrize("kind", EACH_KIND)
def test_spilled_shards_are_read(kind: str, tmp_path: Path) -> None:
    write_image(tmp_path / "a.ome.zarr", **STORED)
    shard = tmp_path / "a.ome.zarr/0/c/0/0/0"
    elsewhere = tmp_path / "spill/a.ome.zarr/0/c/0/0/0"
    elsewhere.parent.mkdir(parents=True)
    shard.rename(elsewhere)
    shard.symlink_to(elsewhere)
    report = refer(kind, tmp_path, tmp_path / "a.ome.zarr")
    assert_same(read(kind, report), tmp_path / "a.ome.zarr")
    elsewhere.unlink()
    assert check(report)["stale"] == {str(shard): "gone"}


@pytest.mark.parametrize("kind", [EACH_KIND[0], EACH_KIND[2]])
def test_a_bucket_is_read_by_its_address(
    kind: str,
    tmp_path: Path,
    bucket_url: str,  # noqa: F811
    object_store: Any,  # noqa: F811
) -> None:
    write_image(tmp_path / "a.ome.zarr")
    assert move_store(tmp_path / "a.ome.zarr", MoveOptions(bucket_url, throttle=POLITE), run_here).ok
    report = refer(kind, tmp_path, bucket_url)
    options: dict[str, Any] = {
        "protocol": "s3",
        "remote_options": {
            "key": os.environ["AWS_ACCESS_KEY_ID"],
            "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
            "endpoint_url": object_store.endpoint,
        },
    }
    if kind == "icechunk":
        import icechunk

        options = {"credentials": icechunk.s3_credentials(from_env=True)}
    assert_same(read(kind, report, **options), tmp_path / "a.ome.zarr")
    assert check(report)["ok"]
    image = open_store(bucket_url).arrays[0]
    with sw.ChunkStore(bucket_url) as chunks:
        asyncio.run(chunks.delete("0/c/0/0/0"))
    assert check(report)["stale"] == {str(image.path / "c/0/0/0"): "changed"}
    if kind == "icechunk":
        with pytest.raises(Exception, match="checksum"):
            read(kind, report, **options)["0"][0]


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_server_of_files_is_read_by_its_address(kind: str, tmp_path: Path) -> None:
    """It has neither lists nor ETags: the image and its levels, and the time of each file."""
    expected = write_image(tmp_path / "a b#.ome.zarr", **STORED, levels=2)
    with PlainServer(tmp_path) as server:
        report = refer(kind, tmp_path, f"{server.url}/a%20b%23.ome.zarr")
        options: dict[str, Any] = {"protocol": "http"}
        if kind == "icechunk":
            import icechunk

            options = {"credentials": icechunk.credentials.HttpAccess}
        found = read(kind, report, **options)
        np.testing.assert_array_equal(found["0"][...], expected)
        assert sorted(found.keys()) == ["0", "1", "2"]
        assert check(report)["ok"]
        os.utime(tmp_path / "a b#.ome.zarr/0/c/0/0/0", (2e9, 2e9))
        assert [*check(report)["stale"].values()] == ["changed"]


@without_newer
def test_a_server_of_files_may_ignore_what_icechunk_asks(tmp_path: Path) -> None:
    gappy(tmp_path / "a.ome.zarr")
    with PlainServer(tmp_path) as server, pytest.raises(ConfigError, match="no checksum"):
        refer("icechunk", tmp_path, f"{server.url}/a.ome.zarr")


# ---------------------------------------------------------------------- staleness


def pack(store: Path) -> None:
    assert compact_here(store)["ok"]


def gappy(path: Path, **options: Any) -> np.ndarray[Any, Any]:
    """An uncompressed store with gaps between its chunks."""
    values = np.random.default_rng(3).integers(0, 60_000, (8, 24, 40)).astype(np.uint16)
    sizes = (("t", None, 1, 4), ("y", 24, 8, 3), ("x", 40, 8, 5))
    spec = sw.ArraySpec(dtype="uint16", dimensions=dimensions(sizes), codec=None, **options)
    with sw.create(path, spec, **how(io="mmap")) as writer:
        writer.append_many(values)
    return values


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_chunks_that_may_move_unnoticed_are_refused_until_they_are_packed(kind: str, tmp_path: Path) -> None:
    values = gappy(tmp_path / "a.ome.zarr")
    with pytest.raises(ConfigError, match="no checksum: once it is packed") as refused:
        refer(kind, tmp_path, tmp_path / "a.ome.zarr")
    assert "compact" in str(refused.value.hint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ome.zarr"], "nothing is left"
    pack(tmp_path / "a.ome.zarr")
    report = refer(kind, tmp_path, tmp_path / "a.ome.zarr")
    assert "wrong pixels" in report["warnings"][0]
    np.testing.assert_array_equal(read(kind, report)["0"][...], values)


@pytest.mark.parametrize("options", [{"describe": True}, {"container": "hdf5"}], ids=str)
def test_shards_that_describe_themselves_or_are_hdf5_count_as_packed(options: Any, tmp_path: Path) -> None:
    values = gappy(tmp_path / "a.ome.zarr")
    assert compact_here(tmp_path / "a.ome.zarr", Options(idle=False, **options))["ok"]
    report = refer("json", tmp_path, tmp_path / "a.ome.zarr")
    np.testing.assert_array_equal(read("json", report)["0"][...], values)


def test_chunks_that_share_bytes_are_not_packed(tmp_path: Path) -> None:
    """A gap of the same size does not make up for them: packing moves chunks."""
    group = zarr.open_group(a_store(tmp_path))
    array = group.create_array("x", shape=(4, 8), chunks=(4, 2), shards=(4, 8), dtype="u1", compressors=None)
    array[...] = np.arange(32).reshape(4, 8) + 1
    shard = tmp_path / "a.ome.zarr/x/c/0/0"
    entries = np.frombuffer(shard.read_bytes()[-68:-4], "<u8").copy()
    entries[2] = entries[0]  # where the second chunk was is a gap now
    index = entries.tobytes()
    shard.write_bytes(shard.read_bytes()[:-68] + index + crc32c.crc32c(index).to_bytes(4, "little"))
    with pytest.raises(ConfigError, match="no checksum: once it is packed"):
        refer("json", tmp_path, tmp_path / "a.ome.zarr")


@pytest.mark.parametrize("kind", EACH_KIND)
def test_no_reader_shows_chunks_that_have_moved(kind: str, tmp_path: Path) -> None:
    store = tmp_path / "a.ome.zarr"
    gappy(store, **(STORED if kind != "icechunk" else {}))
    report = refer(kind, tmp_path, store)
    assert report["warnings"] == []
    found = read(kind, report)["0"]
    found[...]
    pack(store)
    with pytest.raises(Exception, match="checksum"):
        found[...]
    stale = check(report)["stale"]
    assert stale == {str(store / f"0/c/{i}/0/0"): "changed" for i in range(2)}


@without_newer
def test_a_change_within_the_second_of_the_last_one_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "a.ome.zarr")
    shard = tmp_path / "a.ome.zarr/0/c/0/0/0"
    second = int(time.time()) + 1  # is not over soon
    os.utime(shard, (second,) * 2)
    report = refer("icechunk", tmp_path, tmp_path / "a.ome.zarr")
    read("icechunk", report)["0"][0]
    os.utime(shard, (second + 0.5,) * 2)
    with pytest.raises(Exception, match="checksum"):
        read("icechunk", report)["0"][0]


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("what", ["touched", "gone", "went on"])
def test_a_check_names_what_has_changed(what: str, kind: str, tmp_path: Path) -> None:
    store = tmp_path / "a.ome.zarr"
    frames = np.zeros((4, 16, 16), np.uint16) + 7
    sizes = (("t", None, 1, 2), ("y", 16, 8, 2), ("x", 16, 8, 2))
    with sw.create(store, sw.ArraySpec(dtype="uint16", dimensions=dimensions(sizes), **STORED)) as writer:
        writer.append_many(frames)
    report = refer(kind, tmp_path, store)
    shard = store / "0/c/0/0/0"
    expected = {str(shard): "changed"}
    if what == "touched":
        os.utime(shard)
    elif what == "gone":
        shard.unlink()
        expected = {str(shard): "gone"}
    else:
        with sw.resume(store) as writer:
            writer.append(frames[0])
        expected = {str(store / "0/zarr.json"): "changed"}
    stale = check(report)["stale"]
    assert expected.items() <= stale.items()
    assert len(stale) == 1 or what == "went on"


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    write_image(tmp_path / "a.ome.zarr", **STORED)

    def touch(done: int, total: int) -> None:
        if done == total:
            os.utime(tmp_path / "a.ome.zarr/0/c/0/0/0")

    with pytest.raises(ShardChangedError, match="0/c/0/0/0 is changed since"):
        make_references([str(tmp_path / "a.ome.zarr")], str(tmp_path / "refs.json"), touch)
    assert not (tmp_path / "refs.json").exists()


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_shard_that_is_gone_is_no_fill_value(kind: str, tmp_path: Path) -> None:
    report = refer(kind, tmp_path, a_store(tmp_path))
    found = read(kind, report)["0"]
    (tmp_path / "a.ome.zarr/0/c/0/0/0").unlink()
    with pytest.raises(Exception, match="0/c/0/0/0"):
        found[0]


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_shard_that_is_new_is_stale(kind: str, tmp_path: Path) -> None:
    store = a_store(tmp_path)
    sw.erase(store, {"z": (0, 4)})
    report = refer(kind, tmp_path, store)
    found = read(kind, report)["0"]
    assert not found[:4].any(), "what is absent is fill value"
    assert found[5:].any()
    assert check(report)["ok"]
    sw.update(store, {"z": (0, 4)}, 9)
    assert check(report)["stale"] == {str(path): "new" for path in sorted((store / "0/c/0").glob("*/*"))}


def test_a_shard_that_is_made_meanwhile_is_an_error(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    sw.erase(store, {"z": (0, 4)})

    def update(done: int, total: int) -> None:
        if done == total:
            sw.update(store, {"z": (0, 4)}, 9)

    with pytest.raises(ShardChangedError, match="is new since"):
        make_references([str(store)], str(tmp_path / "refs.json"), update)


@pytest.mark.parametrize("server", [False, True])
def test_a_shard_that_goes_meanwhile_is_an_error(
    server: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(tmp_path)
    listed_shards = make_references_module.listed_shards

    def listed(array: Any) -> Any:
        found = listed_shards(array)
        (store / "0/c/0/0/0").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(make_references_module, "listed_shards", listed)
    with PlainServer(tmp_path) as served, pytest.raises((StoreChangingError, StorageError)):
        refer("json", tmp_path, f"{served.url}/a.ome.zarr" if server else store)
    assert list(tmp_path.iterdir()) == [store]


@without_newer
def test_a_disk_that_takes_no_more_is_told(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(_done: int, _total: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))

    try:
        with pytest.raises(StorageError, match="cannot write"):
            make_references([str(store)], f"icechunk:{tmp_path / 'repository'}", limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == [store]


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("point", ["references.before_sync", "store.before_rename"])
def test_references_have_no_name_before_they_are_on_the_disk(kind: str, point: str, tmp_path: Path) -> None:
    store = a_store(tmp_path)
    set_hook(point, lambda: raise_errno(errno.EIO))
    try:
        with pytest.raises(StorageError):
            refer(kind, tmp_path, store)
    finally:
        set_hook(point, None)
    assert list(tmp_path.iterdir()) == [store]


# ---------------------------------------------------------------------- refusals


def a_store(folder: Path) -> Path:
    write_image(folder / "a.ome.zarr", **STORED)
    return folder / "a.ome.zarr"


def unfinished(folder: Path) -> Path:
    store = a_store(folder)
    (store / ".shardwright").mkdir()
    return store


def without_a_shard(folder: Path) -> Path:
    store = a_store(folder)
    (store / "0/c/0/0/0").unlink()
    return store


def edited(folder: Path) -> Path:
    store = a_store(folder)
    (store / "0/.shardwright-edit").mkdir()
    (store / "0/.shardwright-edit/c.0.0.0.journal").write_bytes(b"x")
    return store


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (unfinished, LockedError, "still being written"),
        (without_a_shard, ShardFormatError, "on record, and not there"),
        (edited, LockedError, "being updated"),
        (lambda folder: a_store(folder) / "0", ConfigError, "cannot be referred to"),
        (lambda folder: folder / "none", StorageError, "no such file"),
    ],
)
def test_what_has_no_references_that_hold_is_refused(
    made: Callable[[Path], Path], error: type[Exception], message: str, tmp_path: Path
) -> None:
    store = made(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        refer("json", tmp_path, store)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"to": "refs.txt"}, ConfigError, "unknown kind"),
        ({"to": "a.ome.zarr/refs.json"}, ConfigError, "lies in the store"),
        ({"to": "there.json"}, OutputExistsError, "exists already"),
        ({"paths": ["a.ome.zarr"] * 2}, ConfigError, "one by an axis"),
    ],
)
def test_wrong_wishes_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    a_store(tmp_path)
    (tmp_path / "there.json").touch()
    paths = [str(tmp_path / path) for path in options.get("paths", ["a.ome.zarr"])]
    to = str(tmp_path / options.get("to", "refs.json"))
    with pytest.raises(error, match=message):
        make_references(paths, to, no_steps)


def test_parquet_refuses_what_zarr_v2_does_not_have(tmp_path: Path) -> None:
    write_image(tmp_path / "a.ome.zarr", storage_order=("z", "x", "y"), **STORED)
    with pytest.raises(ConfigError, match="Parquet describe arrays of Zarr v2"):
        refer("parquet", tmp_path, tmp_path / "a.ome.zarr")
    assert_same(read("json", refer("json", tmp_path, tmp_path / "a.ome.zarr")), tmp_path / "a.ome.zarr")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"shardwright": 7}',
        '{"shardwright": {"format": 2, "files": {}, "arrays": []}}',
        '{"shardwright": {"format": 1, "files": {"a": 7}, "arrays": []}}',
    ],
)
def test_a_record_that_is_not_understood_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text(text)
    with pytest.raises(ShardFormatError, match="no record of files"):
        check_references(tmp_path / "refs.json", no_steps)


# ---------------------------------------------------------------------- the command


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(str(ended.value.code)), capsys.readouterr().out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, refs = a_store(tmp_path), tmp_path / "refs.json"
    code, told = ran(capsys, "refs", store, "--to", refs, "--json")
    report = json.loads(told)
    assert (code, report["ok"], report["path"]) == (0, True, str(refs))
    code, told = ran(capsys, "refs", "--check", refs)
    assert (code, told) == (0, f"{report['shards'] + report['arrays'] + 2} files: nothing is stale\n")
    os.utime(store / "0/c/0/0/0")
    code, told = ran(capsys, "refs", "--check", refs)
    assert (code, told.splitlines()[0]) == (1, f"{store / '0/c/0/0/0'}: changed")
    assert "1 of them stale" in told
    code, told = ran(capsys, "refs", "--check", refs, "--json")
    assert (code, json.loads(told)["stale"]) == (1, {str(store / "0/c/0/0/0"): "changed"})
    assert ran(capsys, "refs", "--check", refs, "--to", refs)[0] == 2
    assert ran(capsys, "refs", store)[0] == 2
