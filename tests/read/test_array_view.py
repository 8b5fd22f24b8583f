"""``sw.open_array``: an array of a store in any state, read as NumPy reads its own."""

from __future__ import annotations

import json
import pickle

import dask.array
import numpy as np
import pytest
import zarr
from dask.base import tokenize
from tests.harness.python import run_python

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.read import array_view
from shardwright.read.array_view import MOST_AT_ONCE
from shardwright.read.box_reader import empty_box
from shardwright.read.selection import select

SHAPE = (24, 40)


def spec(*, order: str = "tyx", codec: str | None = "lz4", across: int = 2, shard: int = 2) -> sw.ArraySpec:
    axes = {"t": (None, 2, shard), "y": (SHAPE[0], 8, across), "x": (SHAPE[1], 16, 1)}
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=shards)
            for name, (count, chunk, shards) in ((name, axes[name]) for name in order)
        ],
        codec=None if codec is None else sw.Blosc(cname=codec),
    )


def frames(count: int) -> np.ndarray:
    """The pixels of frames. Two of them, which have chunks together, are fill value, and are not stored."""
    values = np.random.default_rng(3).integers(1, 60_000, (count, *SHAPE), np.uint16)
    values[4:6] = 0
    return values


def write(writer, values) -> None:
    for frame in values:
        writer.append(frame)


@pytest.fixture
def finished(tmp_path):
    values = frames(13)
    with sw.create(tmp_path / "a.ome.zarr", spec()) as writer:
        write(writer, values)
    return tmp_path / "a.ome.zarr", values


KEYS = [np.s_[...], np.s_[5], np.s_[-1, 3, 7], np.s_[2:11, 5:20, 30:], np.s_[::-3, ::2], np.s_[[12, 0], :, 4]]


def test_it_is_read_as_an_array(finished):
    path, values = finished
    view = sw.open_array(path)
    assert (view.shape, view.dtype, view.ndim, len(view)) == (values.shape, values.dtype, 3, 13)
    assert (view.size, view.nbytes, view.chunks, view.shards) == (
        values.size,
        values.nbytes,
        (2, 8, 16),
        (4, 16, 16),
    )
    assert (view.dimension_names, view.fill_value, view.array) == (("t", "y", "x"), 0, "0")
    assert repr(view) == f"ArrayView({str(path)!r}, '0', (13, 24, 40), uint16, tyx)"
    for key in KEYS:
        np.testing.assert_array_equal(view[key], values[key])
    np.testing.assert_array_equal(np.asarray(view), values)
    assert np.asarray(view, np.float32).dtype == np.float32
    np.testing.assert_array_equal(list(view), values)
    assert isinstance(view[0, 0, 0], np.uint16)
    with pytest.raises(ValueError, match="without a copy"):
        view.__array__(copy=False)
    with pytest.raises(IndexError, match="out of bounds"):
        view[13]


@pytest.mark.parametrize(
    "spec",
    [spec(order="txy"), spec(codec=None), spec(codec="zstd"), spec(across=1, shard=1), spec(codec="zlib")],
    ids=["columns before rows", "uncompressed", "zstd", "plain chunks", "zlib"],
)
@pytest.mark.filterwarnings("ignore:axes. columns are stored before rows")
def test_any_layout_is_read(tmp_path, spec):
    seen = frames(7) if spec.dimensions[-1].name == "x" else frames(7).swapaxes(1, 2)
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        write(writer, seen)
        writer.flush()
        for key in KEYS[:1] + KEYS[2:5:2]:
            np.testing.assert_array_equal(sw.open_array(tmp_path / "a.ome.zarr")[key], seen[key])
    for key in KEYS[:1] + KEYS[2:5:2]:
        np.testing.assert_array_equal(sw.open_array(tmp_path / "a.ome.zarr")[key], seen[key])


def test_a_store_that_is_written_is_read_as_far_as_it_was_when_it_was_opened(tmp_path):
    values, path = frames(11), tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec())
    assert sw.open_array(path)[...].shape == (0, *SHAPE)
    write(writer, values[:5])
    writer.flush()
    early, within = sw.open_array(path), sw.open_array(path / "0")
    write(writer, values[5:])
    writer.flush()
    assert (early.shape[0], within.shape[0], sw.open_array(path).shape[0]) == (5, 5, 11)
    np.testing.assert_array_equal(early[...], values[:5])
    assert tokenize(early) != tokenize(early), "a level of it may still be fill"
    writer.close()
    np.testing.assert_array_equal(early[...], values[:5])
    np.testing.assert_array_equal(within[-1], values[4])
    np.testing.assert_array_equal(sw.open_array(path / "0")[...], values)


def test_a_part_is_read_into_memory_that_is_there(finished):
    path, values = finished
    view = sw.open_array(path)
    for key in (np.s_[3], np.s_[2:9, :, 5:], np.s_[4, None, 2], np.s_[::2], np.s_[[7, 1]]):
        out = np.zeros(values[key].shape, np.uint16)
        view.read_into(out, key)
        np.testing.assert_array_equal(out, values[key])
    wide = np.zeros((13, 24, 80), np.uint16)[:, :, ::2]
    view.read_into(wide)
    np.testing.assert_array_equal(wide, values)
    with pytest.raises(sw.errors.FrameShapeError, match="another shape"):
        view.read_into(np.zeros((24, 41), np.uint16), 0)
    with pytest.raises(sw.errors.FrameDtypeError, match="another data type"):
        view.read_into(np.zeros(SHAPE, np.int16), 0)


def test_a_small_read_of_a_finished_store_looks_at_each_thing_once(finished):
    """It is as fast as its looks are few: that nobody writes before and behind, the document behind. What is
    fill needs one more look at both."""
    path, values = finished
    view, looks = sw.open_array(path), []
    nobody, state = (
        ["look.store", "look.workspace"],
        ["look.store", "look.workspace", "look.document.version"],
    )
    for key, names, fill in ((np.s_[1, 2:7, :9], 1, False), (np.s_[2:7, 3, 5], 2, True)):
        view[key]  # opens the shards
        failpoints.hold_looks(looks.append)
        try:
            np.testing.assert_array_equal(view[key], values[key])
        finally:
            failpoints.hold_looks(None)
        shards = ["look.shard.name"] * names * (1 + fill)
        assert sorted(looks) == sorted(
            [*shards, *nobody, *state * (1 + fill), "look.chunks", *["look.bytes.after"] * names]
        )
        looks.clear()


def test_shards_far_apart_are_read_some_at_a_time(tmp_path):
    values = frames(4 * MOST_AT_ONCE)
    with sw.create(tmp_path / "a.ome.zarr", spec(shard=1)) as writer:
        write(writer, values)
    np.testing.assert_array_equal(sw.open_array(tmp_path / "a.ome.zarr")[:, 7, 9], values[:, 7, 9])


@pytest.mark.parametrize("most_bytes", [1, 700, 5000])
def test_memory_for_what_is_left_out_is_bounded(finished, monkeypatch, most_bytes):
    path, values = finished
    monkeypatch.setattr(array_view, "MOST_BOX_BYTES", most_bytes)
    rooms = []

    def noted(shape, dtype):
        rooms.append(int(np.prod(shape)) * dtype.itemsize)
        return empty_box(shape, dtype)

    monkeypatch.setattr(array_view, "empty_box", noted)
    view = sw.open_array(path)
    chunk_bytes = int(np.prod(view.chunks)) * 2
    for key in (np.s_[::2, ::5, ::3], np.s_[[1, 2, 4, 9]], np.s_[::-3, 3:21, ::7], np.s_[2:9]):
        rooms.clear()
        np.testing.assert_array_equal(view[key], values[key])
        assert max(rooms[1:], default=0) <= max(most_bytes, chunk_bytes)


def test_of_points_only_the_chunks_that_hold_one_are_read(finished):
    path, values = finished
    t, y, x = np.array([0, 12, 5]), np.array([23, 0, 10]), np.array([1, 39, 20])
    view = sw.open_array(path)
    boxes = list(select((t, y, x), view.shape, view.chunks).boxes())
    assert len(boxes) == 3
    np.testing.assert_array_equal(view[t, y, x], values[t, y, x])
    np.testing.assert_array_equal(view[t[:, None], y], values[t[:, None], y])


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
def test_indices_of_any_integer_type(dtype):
    signed = np.dtype(dtype).kind == "i"
    key = np.array([0, -1 if signed else 100, 100], dtype)
    selection = select(key, (300, 2), (4, 2))
    assert selection.shape == (3, 2)
    assert [run.low for run in selection.runs[0]] == ([0, 100, 299] if signed else [0, 100])


def test_an_array_that_is_changed_has_another_name_in_dask(finished):
    path, values = finished
    view = sw.open_array(path)
    before = tokenize(view)
    sw.update(path, {"t": 3}, np.full(SHAPE, 7, np.uint16))
    assert tokenize(view) != before
    assert (view[3] == 7).all()
    np.testing.assert_array_equal(view[7:], values[7:])


def test_dask_and_other_processes_take_it(finished):
    path, values = finished
    view = sw.open_array(path)
    array = dask.array.from_array(view, chunks=view.chunks)
    np.testing.assert_array_equal(array[3:9].compute(scheduler="threads"), values[3:9])
    assert tokenize(view) == tokenize(sw.open_array(path))
    other = pickle.loads(pickle.dumps(view))
    np.testing.assert_array_equal(other[4], values[4])
    assert tokenize(sw.open_array(path, "frames/sequence")) != tokenize(view)


# Threads stay in the middle of a read, and have each lock that readers share, while another one forks.
FORK = """
import multiprocessing, sys, threading
import shardwright as sw
from shardwright.codecs import zarr_chunks
from shardwright.disk import failpoints
from shardwright.read import array_view
from shardwright.read.live_shard import LiveKeys

path, end = sys.argv[1], threading.Event()
array = sw.open_array(path)
array[0]
keys = LiveKeys(array._view)
held = [threading.Event(), threading.Event()]

def stay(name):
    if threading.current_thread() is reader and name == "look.store":
        held[0].set()
        end.wait()

def hold():
    pixels, chunks = array._view._kept_pixels, keys._kept
    with array_view._lock, zarr_chunks._filters, pixels._lock, chunks._lock, chunks._making, chunks._making:
        held[1].set()
        end.wait()

def read():
    again = sw.open_array(path)
    right = all((each[i] == i + 1).all() for each in (array, again) for i in range(5))
    with zarr_chunks._without_warnings():
        sys.exit(0 if right and keys._kept.get((0, 0), bytes) == b"" else "it reads other pixels")

failpoints.hold_looks(stay)
reader = threading.Thread(target=lambda: array[1])
holder = threading.Thread(target=hold)
for thread, event in zip((reader, holder), held):
    thread.start()
    event.wait()
child = multiprocessing.get_context("fork").Process(target=read)
child.start()
child.join(30)
hangs = child.is_alive()
child.kill()
end.set()
sys.exit("the child hangs" if hangs else child.exitcode)
"""


@pytest.mark.parametrize("is_written", [False, True], ids=["finished", "written"])
def test_a_child_that_is_forked_while_others_read_reads_on(tmp_path, is_written):
    """As the workers of PyTorch's ``DataLoader`` are."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec()) as writer:
        write(writer, [np.full(SHAPE, i + 1, np.uint16) for i in range(5)])
        if is_written:
            writer.flush()  # the last frame is staged
        else:
            writer.close()
        run_python("-c", FORK, path, check=True)


def test_what_cannot_be_read_is_an_error_and_what_was_never_stored_is_fill(finished):
    path, values = finished
    view = sw.open_array(path)
    (path / "0/c/1/0/0").unlink()
    expected = values.copy()
    expected[4:8, :16, :16] = 0
    np.testing.assert_array_equal(view[...], expected)
    shard = path / "0/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(sw.errors.ShardFormatError, match="fails its crc32c"):
        view[0]
    np.testing.assert_array_equal(view[8:], values[8:])


@pytest.mark.parametrize(
    "change",
    [{"dtype": "f8"}, {"chunks": (2, 8, 20)}, {"shards": (8, 16, 16)}, {"shape": (5, *SHAPE)}],
    ids=lambda change: next(iter(change)),
)
def test_an_array_that_was_replaced_by_another_layout_is_opened_again(finished, change):
    path, _ = finished
    view = sw.open_array(path)
    view[0]
    facts = {"shape": (13, *SHAPE), "dtype": "u2", "chunks": (2, 8, 16), "shards": (4, 16, 16), **change}
    facts["shards"] = tuple(c * 2 for c in facts["chunks"]) if "chunks" in change else facts["shards"]
    zarr.create_array(str(path / "0"), overwrite=True, **facts)
    expected = (
        (sw.errors.ShardChangedError, "is smaller than when it was opened")
        if "shape" in change
        else (sw.errors.ShardFormatError, "another layout than when it was opened")
    )
    with pytest.raises(expected[0], match=expected[1]):
        view[9]
    assert sw.open_array(path).shape == facts["shape"]
    if "dtype" in change:
        with pytest.raises(sw.errors.ShardFormatError, match="another layout"):
            pickle.loads(pickle.dumps(view))


@pytest.mark.parametrize("change", [{"shape": [5, *SHAPE]}, {"data_type": "float64"}], ids=["shape", "dtype"])
def test_an_array_that_is_as_it_was_again_is_read_again(finished, change):
    path, values = finished
    view, file = sw.open_array(path), path / "0/zarr.json"
    view[9]
    document = file.read_text()
    file.write_text(json.dumps({**json.loads(document), **change}))
    with pytest.raises((sw.errors.ShardChangedError, sw.errors.ShardFormatError), match="when it was opened"):
        view[9]
    file.write_text(document)
    np.testing.assert_array_equal(view[9], values[9])


def test_a_shard_that_is_damaged_is_an_error_of_its_own(finished):
    """Boxes of several shards are read together; that of a sound one comes all the same."""
    path, values = finished
    view, shard = sw.open_array(path), path / "0/c/1/0/0"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(sw.errors.ShardFormatError, match="0/c/1/0/0"):
        view[:, :4, :4]
    np.testing.assert_array_equal(view[8:, :4, :4], values[8:, :4, :4])


def test_a_store_that_is_replaced_is_gone(finished):
    path, _ = finished
    view = sw.open_array(path)
    with sw.create(path, spec(), overwrite=True) as writer:
        write(writer, frames(13))
    with pytest.raises(sw.errors.StoreGoneError, match="another store"):
        view[0]


@pytest.mark.parametrize("name", ["../b.ome.zarr/0", "0/../0", "/../0"])
def test_no_path_leads_out_of_a_store(finished, name):
    with pytest.raises(sw.errors.ConfigError, match="leads out of its store"):
        sw.open_array(finished[0], name)


def test_an_array_that_is_written_is_found_by_any_spelling(tmp_path):
    values, path = frames(3), tmp_path / "a.ome.zarr"
    with sw.create(path, spec()) as writer:
        write(writer, values)
        writer.flush()  # the frames are staged, or in shards that are not sealed
        for name in ("0", "./0", "/0/", "0//."):
            np.testing.assert_array_equal(sw.open_array(path, name)[...], values)


def test_metadata_of_others_lead_nowhere(finished):
    path, _ = finished
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["ome"]["multiscales"][0]["datasets"][0]["path"] = "../b.ome.zarr/0"
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(sw.errors.ShardFormatError, match="leads out of the group"):
        sw.open_array(path)


def test_arrays_of_one_store_share_what_is_open(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, sw.AcquisitionSpec(array=spec(), images=["left", "right"])) as writer:
        for name in ("left", "right"):
            writer.append(frames(1)[0], image=name)
    left, right = (sw.open_array(path, name) for name in ("0/0", "1/0"))
    assert left._view is right._view
    assert sw.open_array(path, "1").array == "1/0"


def test_what_is_not_read_here_says_why(finished):
    path, _ = finished
    (path / "0/zarr.json").write_text((path / "0/zarr.json").read_text().replace('"bytes"', '"strange"'))
    with pytest.raises(sw.errors.ShardwrightError, match="strange"):
        sw.open_array(path)


def test_an_array_without_axes(tmp_path):
    zarr.create_array(str(tmp_path / "a.zarr"), shape=(), dtype="u2", compressors=zarr.codecs.BloscCodec())[
        ...
    ] = 7
    view = sw.open_array(tmp_path / "a.zarr")
    assert (view[()], view[...].shape, view[None].tolist(), float(np.asarray(view))) == (7, (), [7], 7.0)
    with pytest.raises(TypeError, match="without axes"):
        len(view)
    chunk = tmp_path / "a.zarr/c"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(sw.errors.ShardFormatError):
        view[()]


def test_of_several_images_one_is_named(tmp_path):
    path = tmp_path / "a.ome.zarr"
    one = sw.AcquisitionSpec(images=[sw.Image(name=name, array=spec()) for name in ("left", "right")])
    with sw.create(path, one) as writer:
        writer.append(frames(2)[0], image="right")
        writer.flush()
        with pytest.raises(sw.errors.StorageError, match="no frame of 0/0"):
            sw.open_array(path, "0/0")
    with pytest.raises(sw.errors.ConfigError, match="no image of its own"):
        sw.open_array(path)
    with pytest.raises(sw.errors.StorageError, match="no array left"):
        sw.open_array(path, "left")
    with pytest.raises(sw.errors.StorageError, match="no array 0/0"):
        sw.open_array(path, "0/0")  # no frame came to it
    found = sw.open_array(path, "1/0")
    np.testing.assert_array_equal(found[0], frames(2)[0])
