"""Stores in zip files (``.ozx``): read where they lie, here, behind a server and in a bucket, without
unzipping; whatever a stranger's file says."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import zarr
from tests.cli.test_view import viewing
from tests.harness.plain_server import PlainServer
from tests.repack.conftest import bucket_url, object_store  # noqa: F401  (fixtures)
from tests.repack.images import POLITE, run_here
from tests.web.web_process import ask

import shardwright as sw
from shardwright.cli.app import main
from shardwright.disk.read_file import ReadFile
from shardwright.integrations.napari.layers import DisplayedStore
from shardwright.model.errors import ConfigError, ShardFormatError, ShardwrightError, StorageError
from shardwright.read.verify_store import verify_store
from shardwright.remote.objects import Objects
from shardwright.remote.source_path import source_path
from shardwright.remote.zip_directory import MOST_DIRECTORY_BYTES, ZipDirectory
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store

from .test_at_addresses import EXPECTED, GONE, PIXELS, write

NAME = "my embryo.ozx"
SHARD = "0/c/1/1/0/0"


def zipped(folder, target, **options):
    """As another program does it: in no order, with entries for folders, without ZIP64."""
    with zipfile.ZipFile(target, "w", **options) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder).as_posix())
    return target


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rig") / "my embryo.ome.zarr")


@pytest.fixture(scope="module", params=["ours", "another program's"])
def packed(request, original, tmp_path_factory):
    target = tmp_path_factory.mktemp("one file") / NAME
    if request.param == "ours":
        assert move_store(original, MoveOptions(str(target), throttle=POLITE), run_here).ok
    else:
        zipped(original, target)
    return target


@pytest.fixture
def archive(packed, tmp_path):
    return shutil.copy(packed, tmp_path / NAME)


@pytest.fixture(scope="module")
def served(packed):
    with PlainServer(packed.parent) as server:
        yield server


@pytest.fixture(params=["here", "http", "s3"])
def place(request, packed):
    if request.param == "here":
        return str(packed)
    if request.param == "http":
        return f"{request.getfixturevalue('served').url}/{NAME}"
    url = f"{request.getfixturevalue('bucket_url')}/{NAME}"
    Objects(url.rpartition("/")[0]).put(NAME, packed.read_bytes())
    return url


def run(*arguments, status=0):
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert end.value.code == status


def test_pixels_and_tables_are_those_of_the_folder(place, original):
    image = sw.open_array(place)
    assert (image.shape, image.dtype, str(image.path)) == (PIXELS.shape, PIXELS.dtype, place)
    np.testing.assert_array_equal(image[...], EXPECTED)
    np.testing.assert_array_equal(image[3:17:5, 1, [3, 40], ::7], EXPECTED[3:17:5, 1, [3, 40], ::7])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(image))[5], EXPECTED[5])
    np.testing.assert_array_equal(sw.open_array(f"{place}/0")[1], EXPECTED[1])
    store = sw.open(place)
    np.testing.assert_array_equal(zarr.open(store)["0"][...], EXPECTED)
    assert store.supports_listing
    assert sorted(name for name, _ in zarr.open(store).members()) == ["0", "frames"]
    np.testing.assert_array_equal(sw.open_xarray(place).isel(t=2).values, EXPECTED[2])
    assert sw.frame_table(place).equals(sw.frame_table(original))
    layers = DisplayedStore(place).layers()
    np.testing.assert_array_equal(layers[1].levels[0][GONE : GONE + 2], EXPECTED[GONE : GONE + 2, 1])


def test_our_tools_read_it(place, original, capsys):
    here = verify_store(original).to_dict()
    run("verify", place, "--json")
    there = json.loads(capsys.readouterr().out.splitlines()[-1])
    facts = ("shards", "shards_recorded", "shards_absent", "chunks", "chunks_absent", "frame_rows", "ok")
    assert {name: there[name] for name in facts} == {name: here[name] for name in facts}
    assert (there["path"], there["warnings"]) == (place, [])
    run("inspect", place, "--json", "--chunks")
    (array,) = json.loads(capsys.readouterr().out.splitlines()[-1])["arrays"]
    assert (array["totals"]["shards"], array["totals"]["problems"]) == (8, 0)
    run("inspect", place, "--missing")
    assert f"frame {2 * GONE + 1} (t={GONE} c=1): never came" in capsys.readouterr().out
    run("inspect", f"{place}/{SHARD}", "--json")
    (array,) = json.loads(capsys.readouterr().out.splitlines()[-1])["arrays"]
    assert [shard["key"] for shard in array["shards"]] == [SHARD.removeprefix("0/")]


def test_the_browser_shows_it(archive):
    with viewing(str(archive)) as address:
        assert ask(address.port, address.path).status == 302


def test_lists_have_it(archive, original, capsys):
    shutil.copytree(original, archive.parent / original.name)
    (archive.parent / "broken.ozx").write_bytes(b"PK" * 100)
    (archive.parent / "link.ozx").symlink_to(archive)
    run("list", archive.parent, "--json")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["acquisitions"]
    assert [(one["name"], one["state"]) for one in found] == [
        ("broken", "unreadable"),
        ("my embryo", "finished"),
        ("my embryo", "finished"),
    ]
    folder, file = found[1:]
    assert {**folder, "path": "", "stored_bytes": 0} == {**file, "path": "", "stored_bytes": 0}
    assert file["stored_bytes"] == archive.stat().st_blocks * 512
    assert sw.acquisitions(archive)["frames"].tolist() == [file["frames"]]
    (archive.parent / "link.ozx").unlink()
    run("verify", archive.parent, "--json", status=1)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(one["path"], one["ok"]) for one in report["stores"]] == [
        (str(archive.parent / "broken.ozx"), False),
        (str(archive.parent / original.name), True),
        (str(archive), True),
    ]
    run("list", archive.parent / "nothing.ozx", status=1)
    assert "no such folder" in capsys.readouterr().err


def test_few_requests(served):
    image = sw.open_array(f"{served.url}/{NAME}")
    image[4, 1]
    served.asked.clear()
    image[5, 1]
    assert [method for method, _, _ in served.asked] == ["GET"], "what is known is not asked for again"
    served.asked.clear()
    image[...]
    ranges = [asked for _, path, asked in served.asked if path.endswith(".ozx")]
    assert len(ranges) == len(served.asked) <= 3 * 8, "of each shard header, index and chunks"
    served.asked.clear()
    sw.open_array(f"{served.url}/{NAME}")
    assert len(served.asked) < 10


def test_a_folder_may_end_so(original, tmp_path):
    """As ``--to x.ozx`` has made them."""
    folder = tmp_path / "old.ozx"
    shutil.copytree(original, folder / "a.ome.zarr")
    np.testing.assert_array_equal(sw.open_array(folder / "a.ome.zarr")[2], EXPECTED[2])
    inner = zipped(original, folder / "b.ozx")
    np.testing.assert_array_equal(sw.open_array(inner)[2], EXPECTED[2])
    assert source_path(inner / "0") == inner / "0"


@pytest.mark.parametrize("kind", ["here", "http"])
def test_what_is_replaced_is_read_anew(archive, original, tmp_path, kind):
    with PlainServer(archive.parent) as server:
        place = str(archive) if kind == "here" else f"{server.url}/{NAME}"
        image = sw.open_array(place)
        np.testing.assert_array_equal(image[2], EXPECTED[2])
        other = tmp_path / "other.ome.zarr"
        shutil.copytree(original, other)
        zarr.open_array(other / "0", mode="r+")[...] = 7
        (tmp_path / "new").mkdir()
        new = zipped(other, tmp_path / "new" / NAME)
        os.utime(new, (1, 1))
        new.replace(archive)
        assert (image[2] == 7).all()
        assert (sw.open_array(place)[3] == 7).all()
        archive.unlink()
        with pytest.raises(ShardwrightError):
            sw.open_array(place)


def test_it_is_no_folder(archive):
    path = source_path(archive / "0")
    with pytest.raises(ConfigError, match="is a zip file, or lies in one"):
        os.fspath(path)
    with pytest.raises(StorageError):
        sw.open_array(archive / "nothing")
    assert pickle.loads(pickle.dumps(path)) == path
    assert list(path.present(["zarr.json", "no"])) == ["zarr.json"]


# ---------------------------------------------------------------------- strangers' files


def stored(names, **options):
    """A zip file with these names, in memory."""
    path = options.pop("path")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), b"data")
    return path


def opened(path):
    return ZipDirectory.read(ReadFile.open(path))


NAMES = {
    "the way out": ["a", "../b"],
    "in the middle": ["a/../../b"],
    "absolute": ["/etc/passwd"],
    "two slashes": ["a//b"],
    "a dot": ["./a"],
    "a backslash": ["a\\b"],
    "a folder and a file": ["a", "a/b"],
    "a file below a file": ["a/b/c", "a/b"],
    "an empty one": ["/"],
}


@pytest.mark.parametrize("what", NAMES)
def test_names_that_are_no_paths_in_a_store(tmp_path, what):
    with pytest.raises(ShardFormatError, match="the zip file"):
        opened(stored(NAMES[what], path=tmp_path / "a.ozx"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name(tmp_path):
    with pytest.raises(ShardFormatError, match="two files of one name"):
        opened(stored(["a", "a"], path=tmp_path / "a.ozx"))


def test_a_few_deep_names_cost_bounded_memory(tmp_path):
    """Not a text for each folder above each file."""
    deep = "/a" * 2040
    path = stored([f"{number}{deep}" for number in range(30)], path=tmp_path / "a.ozx")
    tracemalloc.start()
    try:
        opened(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_a_null_character_in_a_name(tmp_path):
    path = stored(["abcd"], path=tmp_path / "a.ozx")
    path.write_bytes(path.read_bytes().replace(b"abcd", b"ab\0d"))
    with pytest.raises(ShardFormatError, match="no path in a store"):
        opened(path)


def in_entry(data, offset, form, value, name=SHARD.encode()):
    """Changes a field of the entry of a shard in the directory."""
    at = data.rindex(name) - 46
    assert data[at : at + 4] == b"PK\1\2"
    struct.pack_into(form, data, at + offset, value)


def in_header(data, offset, form, value):
    at = data.index(SHARD.encode()) - 30
    assert data[at : at + 4] == b"PK\3\4"
    struct.pack_into(form, data, at + offset, value)


def hide_next(data):
    """The entry of a shard says that the one behind it is its comment."""
    behind = data.index(b"PK\1\2", data.rindex(SHARD.encode()))
    in_entry(data, 32, "<H", data.index(b"PK\1\2", behind + 4) - behind)


# What is changed, and what is said of it: in the directory, where the file is opened, or of the one shard.
DAMAGE = {
    "its offset is that of the end": (lambda data: in_entry(data, 42, "<I", len(data) - 40), "not lie in it"),
    "its offset is beyond the end": (lambda data: in_entry(data, 42, "<I", 2**32 - 2), "not lie in it"),
    "its size reaches into the directory": (lambda d: in_entry(d, 20, "<II", *[2**31]), "not lie in it"),
    "its sizes differ": (lambda data: in_entry(data, 24, "<I", 7), "not lie in it"),
    "it is on another disk": (lambda data: in_entry(data, 34, "<H", 3), "one part of several"),
    "its comment is the next entry": (hide_next, "is damaged; expected"),
    "it needs a later zip": (lambda data: in_entry(data, 6, "<H", 99), "zip file"),
    "its header has another name": (lambda d: in_header(d, 30, "<B", 120), "does not lie where"),
    "its header is none": (lambda data: in_header(data, 0, "<B", 0), "does not lie where"),
    "its header's name is long": (lambda data: in_header(data, 26, "<H", 2**16 - 1), "does not lie where"),
    "an extra field up to the end": (lambda data: in_header(data, 28, "<H", 2**16 - 1), "does not lie where"),
    "it is encrypted": (lambda data: in_entry(data, 8, "<H", 1), "encrypted"),
    "its header says it is encrypted": (lambda data: in_header(data, 6, "<H", 1), "does not lie where"),
    "it is compressed": (lambda data: in_entry(data, 10, "<H", 8), "compressed by zip"),
    "its header says it is compressed": (lambda data: in_header(data, 8, "<H", 8), "does not lie where"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_the_directory_or_a_header_says_is_checked(original, tmp_path, what):
    path = zipped(original, tmp_path / "a.ozx")
    data = bytearray(path.read_bytes())
    change, said = DAMAGE[what]
    if what == "its size reaches into the directory":
        in_entry(data, 20, "<I", 2**31)
        in_entry(data, 24, "<I", 2**31)
    else:
        change(data)
    path.write_bytes(data)
    with pytest.raises(ShardFormatError, match=said):
        sw.open_array(path)[...]
    report = None
    if said in ("encrypted", "compressed by zip", "does not lie where"):
        np.testing.assert_array_equal(sw.open_array(path)[:6, 0], EXPECTED[:6, 0])
        report = verify_store(path)
        assert [problem.where for problem in report.problems] == [SHARD]


def test_a_compressed_document_is_refused_with_what_to_do(original, tmp_path):
    path = zipped(original, tmp_path / "a.ozx", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ShardFormatError, match="compressed by zip") as refused:
        sw.open_array(path)
    assert "compact FOLDER --to NEW.ozx" in refused.value.hint


def test_a_document_with_another_byte_fails_its_checksum(original, tmp_path):
    path = zipped(original, tmp_path / "a.ozx")
    data = bytearray(path.read_bytes())
    data[data.index(b'"uint16"') + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardFormatError, match="fails its checksum"):
        sw.open_array(path)


def test_a_store_in_a_folder_of_the_zip_file_is_none(original, tmp_path):
    path = tmp_path / "a.ozx"
    with zipfile.ZipFile(path, "w") as archive:
        for file in original.rglob("*"):
            archive.write(file, file.relative_to(original.parent))
    with pytest.raises(ShardwrightError) as refused:
        sw.open_xarray(path)
    assert "unzip" in str(refused.value) or "no store" in str(refused.value)
    np.testing.assert_array_equal(sw.open_array(path / original.name)[2], EXPECTED[2])


def test_bytes_before_the_archive_are_passed_over(original, tmp_path):
    """As of a program that unzips itself."""
    path = tmp_path / "a.ozx"
    path.write_bytes(b"#!/bin/sh\n" * 10 + zipped(original, tmp_path / "b.ozx").read_bytes())
    np.testing.assert_array_equal(sw.open_array(path)[...], EXPECTED)


def test_a_directory_of_any_length_costs_bounded_memory(tmp_path):
    path = stored(["zarr.json"], path=tmp_path / "a.ozx")
    data = path.read_bytes()
    end = data.index(b"PK\5\6")
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(data[end : end + 12] + struct.pack("<II", MOST_DIRECTORY_BYTES + 1, 0) + bytes(2))
    with pytest.raises(ShardFormatError, match="too many files"):
        opened(path)


def test_no_end_of_it_is_taken_for_a_whole_one(packed, tmp_path):
    data = packed.read_bytes()
    for nbytes in [*range(len(data) - 200, len(data)), *range(0, len(data), len(data) // 100)]:
        (tmp_path / "a.ozx").write_bytes(data[:nbytes])
        with pytest.raises(ShardFormatError):
            opened(tmp_path / "a.ozx")


@pytest.mark.parametrize("seed", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_the_directory_changes_no_pixel_unseen(packed, tmp_path, seed):
    """A name that has changed is a shard that is missing: that is what ``verify`` tells."""
    data = packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:
        start = archive.start_dir
    bits = range(8 * start, 8 * len(data))
    seen = 0
    path = tmp_path / "a.ozx"
    for bit in random.Random(seed).sample(bits, 60) if seed else bits:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            is_same = np.array_equal(sw.open_array(path)[...], EXPECTED)
            assert is_same or not verify_store(path).ok, bit
        except ShardwrightError:
            seen += 1
    assert seen > 10
