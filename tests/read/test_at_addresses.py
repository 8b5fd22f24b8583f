"""Finished stores at an address: in a bucket of a real S3 server, after ``compact --to --move``, and behind a
server of plain files. The same readers and commands as for a folder, by few requests."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
import pytest
import xarray
import zarr
from tests.cli.test_view import base_of, viewing
from tests.harness.plain_server import PlainServer
from tests.repack.conftest import bucket_url, object_store  # noqa: F401  (fixtures)
from tests.web.web_process import ask

import shardwright as sw
from shardwright.cli.app import main
from shardwright.disk.remote_path import RemotePath
from shardwright.integrations.napari.layers import DisplayedStore
from shardwright.model.errors import ConfigError, ShardwrightError, StorageError
from shardwright.read.verify_store import verify_store
from shardwright.read.xarray_image import ShardwrightBackend
from shardwright.remote.object_shard import ObjectRanges
from shardwright.remote.objects import Objects
from shardwright.remote.source_path import source_path

NAME = "my embryo.ome.zarr"
PIXELS = np.random.default_rng(7).poisson(300, (20, 2, 64, 96)).astype(np.uint16)
GONE = 3  # the frame that never came: its shard has others


def write(path):
    layout = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=3),
            sw.Dimension(name="c", count=2, chunk_size=1, shard_size_chunks=1),
            sw.Dimension(name="y", count=64, chunk_size=32, shard_size_chunks=2),
            sw.Dimension(name="x", count=96, chunk_size=32, shard_size_chunks=3),
        ],
    )
    with sw.create(path, layout) as writer:
        for t, c in np.ndindex(PIXELS.shape[:2]):
            if (t, c) != (GONE, 1):
                writer.append(PIXELS[t, c], index=(t, c))
    return path


EXPECTED = PIXELS.copy()
EXPECTED[GONE, 1] = 0


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rig") / NAME)


@pytest.fixture
def store(original, tmp_path):
    shutil.copytree(original, path := tmp_path / "served" / NAME)
    return path


@pytest.fixture
def plain(store):
    with PlainServer(store.parent) as server:
        yield server


@pytest.fixture(scope="module")
def archived():
    return {}  # the objects, once they were sent


@pytest.fixture
def sent(store, bucket_url, archived):  # noqa: F811
    """The address of the store, which has been sent there by our own command and deleted here."""
    url = f"{bucket_url}/{NAME}"
    objects = Objects(url)
    if not archived:
        run("compact", str(store), "--to", url, "--move", "--no-idle")
        assert not (store / "zarr.json").exists()
        archived.update({key: objects.read(key) for key, _ in objects.sizes()})
    else:
        for key, data in archived.items():
            objects.put(key, data)
    return url


@pytest.fixture(params=["s3", "http"])
def url(request):
    if request.param == "s3":
        return request.getfixturevalue("sent")
    return f"{request.getfixturevalue('plain').url}/{NAME}"


def run(*arguments, status=0):
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert end.value.code == status


def test_our_tools_verify_the_archive(url, original, capsys):
    here = verify_store(original).to_dict()
    run("verify", url, "--json")
    there = json.loads(capsys.readouterr().out.splitlines()[-1])
    facts = ("shards", "shards_recorded", "shards_absent", "chunks", "chunks_absent", "frame_rows", "ok")
    assert {name: there[name] for name in facts} == {name: here[name] for name in facts}
    assert there["path"] == url
    cannot_list = [warning["what"] for warning in there["warnings"]]
    assert cannot_list == [] if url.startswith("s3") else "cannot be listed" in cannot_list[0]


def test_inspect_shows_shards_and_missing_frames(url, capsys):
    run("inspect", url, "--json", "--chunks")
    (array,) = json.loads(capsys.readouterr().out.splitlines()[-1])["arrays"]
    assert (array["totals"]["shards"], array["totals"]["problems"]) == (8, 0)
    assert array["path"] == f"{url}/0"
    assert all("blosc" in chunk["form"] for shard in array["shards"] for chunk in shard["chunk_reports"])
    run("inspect", url, "--missing")
    assert f"frame {2 * GONE + 1} (t={GONE} c=1): never came" in capsys.readouterr().out
    run("inspect", f"{url}/0/c/1/0/0/0", "--json")  # one shard
    (array,) = json.loads(capsys.readouterr().out.splitlines()[-1])["arrays"]
    assert [shard["key"] for shard in array["shards"]] == ["c/1/0/0/0"]


def test_pixels_and_tables_are_those_of_the_folder(url, original):
    image = sw.open_array(url)
    assert (image.shape, image.dtype, str(image.path)) == (PIXELS.shape, PIXELS.dtype, url)
    np.testing.assert_array_equal(image[...], EXPECTED)
    np.testing.assert_array_equal(image[3:17:5, 1, [3, 40], ::7], EXPECTED[3:17:5, 1, [3, 40], ::7])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(image))[5], EXPECTED[5])
    np.testing.assert_array_equal(sw.open_array(f"{url}/0")[1], EXPECTED[1])
    np.testing.assert_array_equal(zarr.open(sw.open(url))["0"][...], EXPECTED)
    np.testing.assert_array_equal(sw.open_xarray(url).isel(t=2).values, EXPECTED[2])
    assert sw.frame_table(url).equals(sw.frame_table(original))


def test_a_bucket_has_lists_for_zarr_python(sent):
    group = zarr.open(sw.open(sent))
    assert sorted(name for name, _ in group.members()) == ["0", "frames"]
    assert sw.open(sent).supports_listing


def test_what_is_no_shard_is_found_in_a_bucket(sent):
    Objects(sent).put("0/c/notes.txt", b"")
    Objects(sent).put("0/c/9/0/0/0", b"short")  # outside the shape
    report = verify_store(sent)
    assert [problem.where for problem in report.problems] == ["0/c/9/0/0/0", "0/c/notes.txt"]
    assert [warning.where for warning in report.warnings] == ["0/c/9/0/0/0"]


@pytest.mark.parametrize("kind", ["s3", "http"])
def test_images_of_a_collection(kind, tmp_path, bucket_url):  # noqa: F811
    path = tmp_path / "positions.ome.zarr"
    with sw.create(path, shape=(2, 16, 16), dtype="uint8", axes="tyx", images=["left", "right"]) as writer:
        for t, image in itertools.product(range(2), ("left", "right")):
            writer.append(np.full((16, 16), 10 * t + len(image), np.uint8), image=image, index=(t,))
    with PlainServer(tmp_path) as server:
        url = f"{server.url if kind == 'http' else bucket_url}/{path.name}"
        if kind == "s3":
            for file in filter(Path.is_file, path.rglob("*")):
                Objects(bucket_url).put(file.relative_to(tmp_path).as_posix(), file.read_bytes())
        assert verify_store(url).ok
        right = xarray.open_dataset(url, engine=ShardwrightBackend, image="right").image
        assert right.mean(("y", "x")).values.tolist() == [5, 15]
        assert not np.isnat(right.time.values).any()
        assert sw.frame_table(url)["image"].tolist() == ["left", "right"] * 2
        np.testing.assert_array_equal(sw.open_array(url, "0/0")[1], 14)
        np.testing.assert_array_equal(sw.open_array(f"{url}/0")[1], 14)


def test_a_server_of_files_has_none(plain):
    assert not sw.open(f"{plain.url}/{NAME}").supports_listing


def test_the_browser_shows_it(url):
    with viewing(url) as address:
        answer = ask(address.port, address.path)
        assert answer.status == 302
        (layer,) = json.loads(unquote(answer.headers["Location"].partition("#!")[2]))["layers"][:1]
        source = layer["source"]["url"] if isinstance(layer["source"], dict) else layer["source"]
        served = source.removesuffix("|zarr3:").partition(str(address.port))[2]
        assert served.startswith(base_of(address))
        assert json.loads(ask(address.port, f"{served}zarr.json").body)["node_type"] == "group"
        index = ask(address.port, f"{served}0/c/0/0/0/0", headers={"Range": "bytes=-100"})
        assert (index.status, len(index.body)) == (206, 100)
        assert ask(address.port, f"{served}0/c/9/0/0/0").status == 404
        assert ask(address.port, f"{base_of(address)}/stores/{quote(NAME)}/zarr.json").status == 404


def test_napari_has_layers_of_it(url):
    """Its window is tested in tests/viewers: what it shows comes from here."""
    layers = DisplayedStore(url).layers()
    assert [layer.facts["name"] for layer in layers] == ["my embryo: channel 0", "my embryo: channel 1"]
    np.testing.assert_array_equal(layers[1].levels[0][GONE : GONE + 2], EXPECTED[GONE : GONE + 2, 1])


def test_few_requests(plain):
    image = sw.open_array(f"{plain.url}/{NAME}")
    plain.asked.clear()
    image[...]
    by_method = [method for method, path, _ in plain.asked if "/c/" in path]
    assert by_method == ["GET"] * 8, "each shard is short: it comes whole"
    plain.asked.clear()
    image[4, 1]
    assert [(method, path.partition(".zarr/0/")[2]) for method, path, _ in plain.asked] == [
        ("HEAD", "zarr.json"),
        ("GET", "c/0/1/0/0"),
    ]


def test_indexes_of_several_shards_are_asked_for_side_by_side(plain):
    image = sw.open_array(f"{plain.url}/{NAME}")
    both = threading.Barrier(2, timeout=20)

    def together(_method, path):
        if "/c/" in path and not both.broken and both.n_waiting + len(met) < 2:
            met.append(both.wait())

    met = []
    plain.answer = together
    np.testing.assert_array_equal(image[0, :, 0, 0], EXPECTED[0, :, 0, 0])
    assert sorted(met) == [0, 1]


def test_verify_reads_chunk_after_chunk_by_few_requests(plain):
    report = verify_store(f"{plain.url}/{NAME}")
    shards = [path for method, path, _ in plain.asked if "/0/c/" in path and method == "GET"]
    assert report.ok
    assert report.chunks > 6 * len(set(shards))
    assert len(shards) <= 2 * len(set(shards)), "the index, and all chunks"


@pytest.mark.parametrize("has_record", [True, False])
def test_shards_that_are_not_there(store, has_record, plain):
    """On record they are missing; without a record all of the grid were asked for."""
    (store / "0/c/2/0/0/0").unlink()
    if not has_record:
        (store / "0/shards.crc32c").unlink()
    report = verify_store(f"{plain.url}/{NAME}")
    assert (report.ok, report.shards, report.shards_absent) == (not has_record, 7, 1)
    assert ["missing, although it was sealed" in str(each) for each in report.problems] == [True] * has_record


def test_a_bucket_that_may_be_read_and_not_listed(sent, monkeypatch):
    """It answers 403 for what is absent."""
    head = Objects.head

    def denied(*_):
        raise StorageError("403")

    monkeypatch.setattr(Objects, "head", lambda objects, key: head(objects, key) or denied())
    monkeypatch.setattr(Objects, "sizes", denied)
    np.testing.assert_array_equal(sw.open_array(sent)[...], EXPECTED)
    assert "time" in sw.open_xarray(sent).coords
    with pytest.raises(StorageError, match="403"):
        sw.open_array(sent.removesuffix(NAME))


def test_a_large_grid_is_not_asked_for_shard_by_shard(store, plain, monkeypatch):
    from shardwright.read import store as read_store

    monkeypatch.setattr(read_store, "MOST_ASKED", 3)
    assert verify_store(f"{plain.url}/{NAME}").shards == 8, "all are on record"
    (store / "0/shards.crc32c").unlink()
    plain.asked.clear()
    with pytest.raises(StorageError, match="cannot be listed") as caught:
        verify_store(f"{plain.url}/{NAME}")
    assert "at most 3 shards" in str(caught.value)
    assert not [path for _, path, _ in plain.asked if "/0/c/" in path]


def test_a_damaged_chunk_is_found(url, store, request):
    key = "0/c/1/1/0/0"
    if url.startswith("s3"):
        objects = Objects(url)
        data = bytearray(objects.read(key))
        data[50] ^= 1
        objects.put(key, bytes(data))
    else:
        data = bytearray((store / key).read_bytes())
        data[50] ^= 1
        (store / key).write_bytes(data)
    run("verify", url, status=1)
    report = verify_store(url)
    assert [problem.where for problem in report.problems] == [key]


@pytest.mark.parametrize("has_suffixes", [True, False])
def test_a_server_that_knows_no_last_bytes(store, has_suffixes):
    with PlainServer(store.parent, has_suffixes=has_suffixes) as server:
        np.testing.assert_array_equal(sw.open_array(f"{server.url}/{NAME}")[...], EXPECTED)
        assert verify_store(f"{server.url}/{NAME}").ok


def test_a_server_without_ranges_is_told_as_such(store):
    with (
        PlainServer(store.parent, has_ranges=False) as server,
        pytest.raises(StorageError, match="answers requests for ranges"),
    ):
        sw.open_array(f"{server.url}/{NAME}")[0]


def test_a_shard_that_is_replaced_meanwhile_is_read_again(sent):
    image = sw.open_array(sent)
    np.testing.assert_array_equal(image[0:6, 0], EXPECTED[0:6, 0])
    objects = Objects(sent)
    objects.put("0/c/0/0/0/0", objects.read("0/c/0/1/0/0"))  # with another index
    np.testing.assert_array_equal(image[0:6, 0], EXPECTED[0:6, 1])
    objects.delete("0/c/0/0/0/0")
    np.testing.assert_array_equal(image[0:6, 0], 0)
    objects.delete("0/zarr.json")
    with pytest.raises(ShardwrightError, match="no array"):
        image[0:6, 0]


@pytest.mark.parametrize("kind", ["s3", "http"])
def test_a_store_that_is_being_written_has_no_remote_form(kind, request, tmp_path, bucket_url):  # noqa: F811
    writer = sw.create(tmp_path / "served" / "running.ome.zarr", shape=(None, 32, 32), dtype="uint8")
    with writer, PlainServer(tmp_path / "served") as server:
        writer.append(np.ones((32, 32), np.uint8))
        writer.flush()
        if kind == "s3":
            url = f"{bucket_url}/running.ome.zarr"
            for path in (tmp_path / "served").rglob("*"):
                if path.is_file():
                    key = path.relative_to(tmp_path / "served").as_posix()
                    Objects(bucket_url).put(key, path.read_bytes())
        else:
            url = f"{server.url}/running.ome.zarr"
        for opened in (sw.open, sw.open_array, sw.open_xarray, sw.frame_table, verify_store):
            with pytest.raises(StorageError, match="still being written") as caught:
                opened(url)
            assert caught.value.expected == "a finished store: no other is read at an address"


def test_nothing_at_the_address(plain, bucket_url, capsys):  # noqa: F811
    for url in (f"{plain.url}/nothing.ome.zarr", f"{bucket_url}/nothing.ome.zarr"):
        with pytest.raises(StorageError, match=f"there is no store at {url}; expected zarr.json"):
            sw.open_array(url)
        run("verify", url, status=1)
        assert "Check the address" in capsys.readouterr().err


def test_what_is_missing_for_an_address_is_named(monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(
        ConfigError, match="no credentials for s3://bucket; expected one of AWS_ACCESS_KEY_ID"
    ):
        sw.open_array("s3://bucket/x.ome.zarr")
    no_obstore = (
        "import sys; sys.modules['obstore'] = None; import shardwright as sw\n"
        "try: sw.open_array('http://127.0.0.1:9/x.ome.zarr')\n"
        "except sw.errors.ConfigError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", no_obstore], capture_output=True, text=True, check=True)
    assert "needs shardwright[s3]: obstore is not installed" in said.stdout
    with pytest.raises(ConfigError, match="gs://bucket/x is an address"):
        sw.open_array("gs://bucket/x")


@pytest.mark.parametrize(
    "address",
    ["http://me:secret@rig/x.ome.zarr", "https://rig/x.ome.zarr?key=secret", "s3://me:secret@bucket/x"],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(address):
    with pytest.raises(ConfigError, match="password or a query") as caught:
        sw.open_array(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["s3://b/../x", "http://rig/a/%2e%2e/x", "http://rig/\0", "s3://b/a\nb", "s3://b/\udc80"]
)
def test_an_address_that_no_object_can_have(address):
    with pytest.raises(ConfigError, match="no object has such an address"):
        sw.open_array(address)


def test_a_shard_that_is_replaced_while_it_is_verified_is_a_problem_of_its_own(sent, monkeypatch):
    objects, key = Objects(sent), "0/c/0/0/0/0"
    read_into = ObjectRanges.read_into

    def replaced_before(file, offset, buffer):
        if str(file.path).endswith(key):
            assert file.nbytes, "its version is known"
            objects.put(key, objects.read("0/c/0/1/0/0"))
        read_into(file, offset, buffer)

    monkeypatch.setattr(ObjectRanges, "read_into", replaced_before)
    problems = {problem.where: problem.what for problem in verify_store(sent).problems}
    assert problems == {key: "was changed while it was read"}


def test_a_server_that_is_not_there_was_asked_for_a_while(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "0.1")
    with pytest.raises(StorageError, match=r"up to 0.1 s \(SHARDWRIGHT_S3_RETRY_S\)"):
        sw.open_array("http://127.0.0.1:9/x.ome.zarr")


def test_a_server_that_fails(plain, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "0")
    image = sw.open_array(f"{plain.url}/{NAME}")
    plain.answer = lambda method, path: 500 if "/c/" in path else None
    with pytest.raises(StorageError, match="500"):
        image[0]
    plain.answer = lambda method, path: None
    np.testing.assert_array_equal(image[0], EXPECTED[0])
    plain.answer = lambda method, path: 403 if "/c/" in path else None
    with pytest.raises(StorageError, match=r"403.*nothing is sent by which"):  # and not fill value
        sw.open_array(f"{plain.url}/{NAME}")[8]


def test_a_path_at_an_address_is_no_file_here():
    for text in ("s3://b/x/0", "s3:/b/x/0", "S3://b/x/0/", "./s3://b/x/0"):
        path = source_path(text)
        assert isinstance(path, RemotePath)
        assert (str(path), path.name, str(path.parent)) == ("s3://b/x/0", "0", "s3://b/x")
        assert path == pickle.loads(pickle.dumps(path)) == source_path(path)
        assert (path / "c" / "1").relative_to(path).as_posix() == "c/1"
        for local in (open, lambda p: p.read_bytes(), lambda p: p.unlink()):
            with pytest.raises((ConfigError, StorageError), match="s3://b"):
                local(path)
    assert str(source_path("http://rig:80/a%20b")) == "http://rig:80/a b"
