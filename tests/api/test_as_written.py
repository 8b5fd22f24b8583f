"""What people write first works: ``create`` without axes, ``save``, indexes, units, colours and numbers in
many forms; objects that show what they are; the progress of a writer and of a stream."""

from __future__ import annotations

import gc
import logging
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.harness.full_disk import full_below

import shardwright as sw
from shardwright.array.as_written import COLORS
from shardwright.array.spec import json_attributes
from shardwright.disk import slot_file
from shardwright.model import progress_teller
from shardwright.model.display_text import MOST_SHOWN
from shardwright.writer import in_process

LINE: dict[str, Any] = {"shape": (None, 8, 8), "dtype": "uint16"}
FRAMES = np.arange(6 * 64, dtype=np.uint16).reshape(6, 8, 8)


def pixels(store: object) -> np.ndarray:
    return zarr.open_array(f"{store}/0", mode="r")[...]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((8, 8), "yx"), ((None, 8, 8), "tyx"), ((None, 3, 8, 8), "tcyx"), ((None, 3, 5, 8, 8), "tczyx")],
)
def test_axes_follow_from_their_number(tmp_path, shape, axes):
    with sw.create(tmp_path / "a.ome.zarr", shape=shape, dtype="uint8") as writer:
        assert [d.name for d in writer.spec.dimensions] == list(axes)
    assert sw.default_layout(shape, "uint8") == sw.default_layout(shape, "uint8", axes)


def test_an_axis_named_time_is_one_of_time(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", **LINE, axes=["time", "y", "x"]) as writer:
        writer.append(FRAMES[0])
        assert writer.spec.dimensions[0].axis_type == "time"
    (multiscale,) = zarr.open_group(writer.path, mode="r").attrs["ome"]["multiscales"]
    assert multiscale["axes"][0] == {"name": "time", "type": "time"}


def test_an_empty_folder_is_taken_and_any_other_stays(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    assert sw.save(tmp_path / "a", FRAMES).frames_stored == 6
    with pytest.raises(sw.errors.OutputExistsError):
        sw.save(tmp_path / "b", FRAMES)
    assert (tmp_path / "b" / "notes.txt").read_text() == "mine"


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.mark.parametrize("mode", [0o700, 0o2770])
def test_an_empty_folder_gives_its_mode(tmp_path, mode):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    sw.save(tmp_path / "a", FRAMES)
    assert mode_of(tmp_path / "a") == mode


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("a", {"units": {"t": "um"}}, sw.errors.SpecError),
        ("a.tif", {}, sw.errors.InvalidNameError),
        ("a", {"on_full": "spill", "settings": "below"}, sw.errors.ConfigError),
        ("a", {}, sw.errors.StorageFullError),
    ],
)
def test_a_creation_that_fails_leaves_the_empty_folder(tmp_path, monkeypatch, name, options, error):
    (tmp_path / name).mkdir()
    (tmp_path / name).chmod(0o2770)
    made = (tmp_path / name).stat().st_ino
    if error is sw.errors.StorageFullError:
        monkeypatch.setattr(slot_file, "preallocate", full_below(tmp_path))
    if options.get("settings") == "below":
        options = {**options, "settings": sw.WriteSettings(on_full="spill", spill_root=tmp_path / name)}
    with pytest.raises(error):
        sw.create(tmp_path / name, **LINE, **options)
    assert mode_of(tmp_path / name) == 0o2770
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert error is sw.errors.StorageFullError or (tmp_path / name).stat().st_ino == made


def test_the_folder_of_this_process_stays(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    for path in (".", tmp_path / "a"):
        with pytest.raises(sw.errors.OutputExistsError, match=r"this program is; expected .*run\.ome"):
            sw.save(path, FRAMES)
    assert Path.cwd() == tmp_path / "a"


# ---------------------------------------------------------------------- save


class FileOfFrames:
    """As of h5py: it has no ndim, and is read by its index alone."""

    def __init__(self, frames: np.ndarray) -> None:
        self._frames, self.shape, self.dtype = frames, frames.shape, frames.dtype
        self.largest = 0

    def __getitem__(self, index: Any) -> np.ndarray:
        self.largest = max(self.largest, self._frames[index].nbytes)
        return self._frames[index]


@pytest.mark.parametrize("frames", [FRAMES[0], FRAMES, FRAMES.reshape(3, 2, 8, 8), FRAMES.astype(">u2")])
@pytest.mark.parametrize("kind", [np.asarray, FileOfFrames])
def test_an_array_is_saved_in_one_call(tmp_path, frames, kind):
    receipt = sw.save(tmp_path / "a.ome.zarr", kind(frames))
    assert (receipt.frames_stored, receipt.trouble) == (frames.size // 64, {})
    assert receipt.frames_durable == receipt.frames_stored
    assert (pixels(receipt.path) == frames).all()
    assert pixels(receipt.path).shape == frames.shape


def test_an_array_is_read_piece_by_piece(tmp_path):
    frames = FileOfFrames(np.random.default_rng(1).integers(0, 99, (2, 40, 512, 512), np.uint16))
    receipt = sw.save(tmp_path / "a.ome.zarr", frames, axes="tzyx")
    assert frames.largest <= 8 << 20
    assert (pixels(receipt.path) == frames._frames).all()


@pytest.mark.parametrize("frames", [list(FRAMES), iter(FRAMES), (frame.astype(">u2") for frame in FRAMES)])
def test_frames_that_are_no_array_are_saved_as_they_come(tmp_path, frames):
    receipt = sw.save(tmp_path / "a.ome.zarr", frames, scales={"t": 0.5}, units={"t": "s"})
    assert (pixels(receipt.path) == FRAMES).all()


def test_frames_of_several_axes_are_saved_with_their_shape(tmp_path):
    receipt = sw.save(tmp_path / "a.ome.zarr", iter(FRAMES), shape=(3, 2, 8, 8), axes="zcyx")
    assert (pixels(receipt.path) == FRAMES.reshape(3, 2, 8, 8).transpose(1, 0, 2, 3)).all()


def test_what_came_before_a_wrong_frame_stays(tmp_path):
    with pytest.raises(sw.errors.FrameShapeError):
        sw.save(tmp_path / "a.ome.zarr", [*FRAMES[:2], FRAMES[2, :4]])
    assert (pixels(tmp_path / "a.ome.zarr")[:2] == FRAMES[:2]).all()


def test_colours_are_saved_where_the_axes_say_that_they_are_none(tmp_path):
    frames = FRAMES[:, :, :3]
    receipt = sw.save(tmp_path / "a.ome.zarr", frames, axes="tyx")
    assert (pixels(receipt.path) == frames).all()
    colours = np.stack([FRAMES] * 3, axis=-1)
    receipt = sw.save(tmp_path / "b.ome.zarr", np.moveaxis(colours, -1, -3), axes="tcyx")
    assert (pixels(receipt.path)[:, 2] == FRAMES).all()


@pytest.mark.parametrize(
    ("chunks", "starts"),
    [
        ((1, 40, 512, 512), [0]),
        ((1, 24, 512, 512), [0, 24]),
        (((1, 1), (24, 16), (512,), (512,)), [0, 24]),
        ((1, 5, 512, 512), [0, 15, 30]),
        (None, [0, 16, 32]),
        ((1, 4096, 512, 512), [0]),
    ],
)
def test_an_array_in_chunks_is_read_by_whole_ones(chunks, starts):
    read = []

    class InChunks:
        shape, dtype = (1, 40, 512, 512), np.dtype("uint16")

        def __getitem__(self, index: Any) -> np.ndarray:
            read.append(index[-1].start)
            return np.zeros((1, 512, 512), "uint16")

    InChunks.chunks = chunks
    assert list(in_process._pieces(InChunks()))
    assert read == starts


def test_a_piece_has_no_more_than_its_bound(monkeypatch):
    monkeypatch.setattr(in_process, "_MOST_PIECE_BYTES", 10 * 128)
    frames = FileOfFrames(np.zeros((40, 8, 8), "uint16"))
    frames.chunks = (40, 8, 8)
    assert sum(map(len, in_process._pieces(frames))) == 40
    assert frames.largest == 10 * 128


class Unmeasured(list):
    def __len__(self) -> None:  # as of a loader that reads on demand
        return None  # noqa: PLE0303


def test_frames_whose_number_nobody_knows_are_saved(tmp_path):
    receipt = sw.save(tmp_path / "a.ome.zarr", Unmeasured(FRAMES), dtype=None)
    assert receipt.frames_stored == 6


def test_a_wrong_later_frame_is_told_with_its_own_shape(tmp_path):
    with pytest.raises(sw.errors.FrameShapeError) as raised:
        sw.save(tmp_path / "a.ome.zarr", [FRAMES[0], np.stack([FRAMES[0]] * 3, axis=-1)])
    assert raised.value.got == "(8, 8, 3)"
    assert raised.value.hint.endswith('with shape=(None, 8, 8, 3) and axes="tyxc"')


def test_warnings_point_at_the_line_of_the_user(tmp_path):
    with pytest.warns(sw.errors.LayoutWarning) as saved:
        sw.save(tmp_path / "a.ome.zarr", FRAMES.astype(bool))
    with pytest.warns(sw.errors.LayoutWarning) as created:
        sw.create(tmp_path / "b.ome.zarr", shape=(None, 8, 8), dtype="bool").close()
    with pytest.warns(DeprecationWarning, match="WriteSettings") as older:
        sw.save(tmp_path / "c.ome.zarr", FRAMES, io="mmap")
    assert {warning.filename for warning in (*saved, *created, *older)} == {__file__}


# ---------------------------------------------------------------------- indexes

INDEXES = [
    (1, 2),
    [1, 2],
    np.array([1, 2]),
    {"t": np.array(1), "c": 2},
    {"t": 1, "c": 2},
    {"c": np.int64(2), "t": 1},
]


def use_indexes(sink: sw.Writer | sw.Stream) -> None:
    for number, index in enumerate(({"t": 1, "c": 0}, [0, 1])):
        sink.append(FRAMES[number], index=index)
    with sink.claim(index={"c": 1, "t": 1}) as memory:
        memory[:] = FRAMES[2]
    for wrong in (
        {"t": 1},
        {"t": 1, "z": 0},
        {"t": 1, "c": 0.5},
        1,
        {"t": 1, "c": 2},
        [True, 0],
        {"t": 1, "c": np.True_},
        True,
    ):
        for call in (
            lambda index=wrong: sink.append(FRAMES[0], index=index),
            lambda index=wrong: sink.claim(index=index),
        ):
            with pytest.raises(sw.errors.FrameIndexError):
                call()


def test_both_sinks_take_an_index_by_axis(tmp_path, endpoint):
    array = sw.default_layout((None, 2, 8, 8), "uint16", "tcyx")
    with sw.create(tmp_path / "a.ome.zarr", array) as writer:
        use_indexes(writer)
    with sw.connect(endpoint) as daemon, daemon.acquire("b", array) as stream:
        use_indexes(stream)
    for store in (writer.path, stream.path):
        found = pixels(store)
        assert (found[1, 0] == FRAMES[0]).all()
        assert (found[0, 1] == FRAMES[1]).all()
        assert (found[1, 1] == FRAMES[2]).all()
        assert not found[0, 0].any()


@pytest.mark.parametrize("index", INDEXES, ids=repr)
def test_an_index_has_several_forms(tmp_path, index):
    with sw.create(tmp_path / "a.ome.zarr", shape=(2, 3, 8, 8), dtype="uint16") as writer:
        writer.append(FRAMES[5], index=index)
    assert (pixels(writer.path)[1, 2] == FRAMES[5]).all()


def test_of_a_single_axis_an_integer_is_an_index(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", **LINE) as writer:
        writer.append(FRAMES[3], index=3)
        writer.append(FRAMES[1], index=np.array(1, np.uint8))
        with writer.claim(index=0) as memory:
            memory[:] = FRAMES[0]
        writer.append_many(FRAMES[[5, 2, 4]], indices=[5, 2, 4])
    assert (pixels(writer.path) == FRAMES).all()
    sw.update(writer.path, {"t": np.int64(2)}, 7)
    sw.update(writer.path, np.array(3), 8)
    sw.erase(writer.path, {"t": 4})
    found = pixels(writer.path)
    assert [int(found[t, 0, 0]) for t in (2, 3, 4)] == [7, 8, 0]


@pytest.mark.parametrize("index", [{"t": 1}, [1], np.array([1])])
def test_an_index_is_that_of_the_claim(tmp_path, index):
    with sw.create(tmp_path / "a.ome.zarr", **LINE) as writer, writer.claim(index=index) as memory:
        memory[:] = FRAMES[1]
        index["t" if isinstance(index, dict) else 0] = 3
    assert pixels(writer.path).shape[0] == 2
    assert (pixels(writer.path)[1] == FRAMES[1]).all()


# ---------------------------------------------------------------------- words


def test_units_colours_and_numbers_are_taken_as_people_write_them(tmp_path):
    channels = [{"label": "DAPI", "color": "#0000ff"}, sw.Channel(label="GFP", color="green")]
    with sw.create(
        tmp_path / "a.ome.zarr",
        shape=(None, np.int64(2), *FRAMES.shape[1:]),
        dtype=np.uint16,
        channels=channels,
        codec="lz4",
        scales={"t": np.float32(0.5), "y": np.float64(0.1), "x": 0.1},
        units={"t": "sec", "y": "um", "x": "\u00b5m"},
        attributes={"gain": np.float32(0.5), "roi": np.arange(2), "bits": [np.uint8(12)], "on": np.True_},
    ) as writer:
        writer.append(FRAMES[0])
        writer.update_metadata({"laser": np.float64(2.5)})
    assert writer.spec.codec == sw.Blosc(cname="lz4")
    attributes = zarr.open_group(writer.path, mode="r").attrs
    facts = {name: attributes[name] for name in ("gain", "roi", "bits", "on", "laser")}
    assert facts == {"gain": 0.5, "roi": [0, 1], "bits": [12], "on": True, "laser": 2.5}
    shown = [(each["label"], each["color"]) for each in attributes["ome"]["omero"]["channels"]]
    assert shown == [("DAPI", "0000FF"), ("GFP", "00FF00")]
    axes = attributes["ome"]["multiscales"][0]["axes"]
    assert [axis.get("unit") for axis in axes] == ["second", None, "micrometer", "micrometer"]


def test_each_word_for_a_colour_is_one():
    assert all(sw.Channel(name="a", color=word).color == digits for word, digits in COLORS.items())


def test_words_are_taken_without_regard_to_case():
    assert sw.Channel(name="a", color="Green").color == COLORS["green"]
    array = sw.default_layout((None, 8, 8), "uint8", codec="LZ4")
    assert array.codec == sw.Blosc(cname="lz4")
    assert sw.default_layout((None, 8, 8), "uint8", codec="None").codec is None
    assert sw.default_layout((None, 8, 8), "uint8", codec="Zstd").codec == sw.Zstd()


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("micrometers micrometres microns", "micrometer"),
        ("nanometers", "nanometer"),
        ("millimeters", "millimeter"),
        ("meters metres", "meter"),
        ("milliseconds", "millisecond"),
        ("microseconds usec", "microsecond"),
        ("seconds", "second"),
        ("minutes", "minute"),
        ("hours", "hour"),
    ],
)
def test_units_are_taken_in_the_plural(words, unit):
    for word in words.split():
        assert sw.Dimension(name="x", count=1, chunk_size=1, unit=word).unit == unit


def test_attributes_of_long_doubles_and_deep_objects():
    written = {"a": np.longdouble(0.5), "b": np.ones(2, np.longdouble), "c": np.array([[1], None], object)}
    assert json_attributes(written) == {"a": 0.5, "b": [1.0, 1.0], "c": [[1], None]}
    deep: Any = []
    for _ in range(4000):
        deep = [deep]
    hidden = np.empty(1, object)
    hidden[0] = deep
    single = np.empty((), object)
    single[()] = hidden
    itself = np.empty(1, object)
    itself[0] = itself
    for value in (hidden, single, itself):
        with pytest.raises(ValueError, match="nested too deep"):
            json_attributes({"a": value})
    with pytest.raises(ValueError, match="clongdouble is not JSON"):
        json_attributes({"a": np.clongdouble(1)})


def test_a_unit_of_another_name_stays():
    assert sw.Dimension(name="x", count=1, chunk_size=1, unit="parsec").unit == "parsec"


# ---------------------------------------------------------------------- what objects show


def test_objects_show_what_they_are(tmp_path):
    path = tmp_path / "<b>&'.ome.zarr"
    layout = {"chunks": {"t": 2}, "shards": {"t": 4}, "scales": {"x": 0.1}, "units": {"x": "um"}}
    with sw.create(path, **LINE, **layout) as writer:
        array = (
            "axes=tyx, shape=(None, 8, 8), dtype=uint16, chunks=(2, 8, 8), shards=(4, 8, 8), "
            "scales={'x': '0.1 micrometer'}, codec=blosc lz4 1 shuffle"
        )
        writer.append_many(FRAMES[:3])
        writer.flush()
        assert (
            repr(writer)
            == f"<Writer path={path}, state=open, frames=3, stored=3, durable=3, visible=0, {array}>"
        )
        assert repr(writer.spec) == str(writer.spec) == f"<ArraySpec {array}>"
    assert f"{path}, state=closed, frames=3" in repr(writer)
    assert repr(writer.receipt) == (
        f"<Receipt path={path}, frames_received=3, frames_stored=3, frames_durable=3, bytes_raw=384 B, "
        f"bytes_stored={writer.receipt.bytes_stored} B, shards=1>"
    )
    several = sw.AcquisitionSpec(array=writer.spec, images=list("abcde"), order=("t", "p"))
    assert repr(several) == (
        f"<AcquisitionSpec images=5: a, b, c, d, ..., order=('t', 'p'), arrays=(<ArraySpec {array}>,)>"
    )


def test_in_jupyter_they_are_tables_in_which_nothing_is_markup(tmp_path):
    with sw.create(tmp_path / "<b>&'.ome.zarr", **LINE, channels=["<script>"]) as writer:
        writer.append(FRAMES[0])
        tables = [writer._repr_html_(), writer.spec._repr_html_(), writer.images._repr_html_()]
    tables.append(writer.receipt._repr_html_())
    for table in tables:
        assert table.startswith("<table><caption>")
        rest = table
        for tag in ("table", "caption", "tr", "th", "td"):
            rest = rest.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
        assert not {"<", ">", "'", '"'} & set(rest)
    assert "&lt;b&gt;&amp;&#x27;.ome.zarr" in tables[-1]


def test_what_is_long_is_cut(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", **LINE) as writer:
        images = sw.AcquisitionSpec(
            array=writer.spec.model_copy(update={"attributes": {"a": "b" * 100_000}}), images=["a"]
        )
    assert len(repr(images)) < 4 * MOST_SHOWN
    assert len(images.array._repr_html_()) < 8 * MOST_SHOWN


def test_a_stream_shows_what_it_is(endpoint):
    with (
        sw.connect(endpoint) as daemon,
        daemon.acquire("b", sw.default_layout((None, 8, 8), "uint8")) as stream,
    ):
        assert "state=open, frames=0, stored=0, durable=0, visible=0, axes=tyx" in repr(stream)
    assert "state=closed" in repr(stream)
    assert repr(stream.receipt).startswith("<Receipt path=")


# ---------------------------------------------------------------------- progress


def test_progress_is_told_of_from_a_thread_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_teller, "INTERVAL_S", 0.01)
    told, threads, first = [], set(), threading.Event()

    def tell(done: int, total: int | None) -> None:
        told.append((done, total))
        threads.add(threading.current_thread())
        first.set()

    with sw.create(tmp_path / "a.ome.zarr", shape=(6, 8, 8), dtype="uint16", on_progress=tell) as writer:
        assert first.wait(60)
        writer.append_many(FRAMES)
    assert told[0] == (0, 6)
    assert told[-1] == (6, 6)
    assert [done for done, _ in told] == sorted({done for done, _ in told}), "only of what is new"
    assert len(threads) == 1
    assert threading.main_thread() not in threads


def test_the_end_is_told_of_however_short_it_was(tmp_path):
    told = []
    sw.save(tmp_path / "a.ome.zarr", iter(FRAMES), on_progress=lambda *counts: told.append(counts))
    assert told[-1] == (6, None)
    sw.save(tmp_path / "whole.ome.zarr", np.stack(FRAMES))
    with pytest.raises(sw.errors.ResumeError):
        sw.resume(tmp_path / "whole.ome.zarr", on_progress=print)


def test_progress_of_a_stream_is_told_as_that_of_a_writer(endpoint, monkeypatch):
    monkeypatch.setattr(progress_teller, "INTERVAL_S", 0.01)
    told, threads, some = [], set(), threading.Event()

    def tell(done: int, total: int | None) -> None:
        told.append((done, total))
        threads.add(threading.current_thread())
        if done >= 4:
            some.set()

    layout = sw.default_layout((None, 8, 8), "uint16")
    with sw.connect(endpoint) as daemon:
        with daemon.acquire("a", layout, frames_expected=6, on_progress=tell) as stream:
            stream.append_many(FRAMES[:4])
            assert some.wait(60), "while it is open"
            stream.append_many(FRAMES[4:])
        assert told[-1] == (6, 6), "before close returned"
        with pytest.raises(sw.errors.SpecError, match="on_progress is called with two numbers"):
            daemon.acquire("b", layout, on_progress=5)
        assert daemon.acquire("b", layout).close().frames_stored == 0
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(threads) == 1
    assert threading.main_thread() not in threads


def test_a_forgotten_stream_with_progress_is_sealed(endpoint):
    told = []
    with sw.connect(endpoint) as daemon:
        layout = sw.default_layout((6, 8, 8), "uint16")
        stream = daemon.acquire("a", layout, on_progress=lambda *counts: told.append(counts))
        stream.append_many(FRAMES)
        with pytest.warns(ResourceWarning, match="was not closed"):
            del stream
        assert told[-1] == (6, 6)
        assert "shardwright-progress" not in {thread.name for thread in threading.enumerate()}


def test_progress_may_close_its_stream(endpoint):
    streams: list[sw.Stream] = []
    closed = threading.Event()

    def close(done: int, _: int | None) -> None:
        if done == 6:
            streams[0].close()
            closed.set()

    layout = sw.default_layout((None, 8, 8), "uint16")
    with sw.connect(endpoint) as daemon:
        streams.append(daemon.acquire("a", layout, on_progress=close))
        streams[0].append_many(FRAMES)
        assert closed.wait(60)
        assert streams[0].receipt.frames_durable == 6


def test_progress_that_fails_costs_no_frame(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(progress_teller, "INTERVAL_S", 0.01)
    calls = []

    def fail(done: int, total: int | None) -> None:
        calls.append(done)
        raise ValueError("no such widget")

    with caplog.at_level(logging.WARNING, "shardwright"):
        receipt = sw.save(tmp_path / "a.ome.zarr", FRAMES, on_progress=fail)
    assert receipt.frames_durable == 6
    assert len(calls) == 1
    (record,) = caplog.records
    assert "in fail" in logging.Formatter().format(record), "with its traceback"
    assert record.getMessage() == (
        "on_progress failed, and is not called again: ValueError('no such widget')"
    )


def test_progress_that_hangs_costs_no_frame_and_ends_no_later(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_teller, "LAST_CALL_S", 0.01)
    ended = threading.Event()
    try:
        receipt = sw.save(tmp_path / "a.ome.zarr", FRAMES, on_progress=lambda *_: ended.wait(60))
        assert receipt.frames_durable == 6
        assert not ended.is_set()
    finally:
        ended.set()


def test_progress_may_close_its_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_teller, "INTERVAL_S", 0.01)
    writers: list[sw.Writer] = []
    closed = threading.Event()

    def close(done: int, _: int | None) -> None:
        if done == 6:
            writers[0].close()
            closed.set()

    writers.append(
        sw.create(
            tmp_path / "a.ome.zarr", **LINE, on_progress=close, settings=sw.WriteSettings(store_within_ms=1)
        )
    )
    writers[0].append_many(FRAMES)
    assert closed.wait(60)
    assert writers[0].close().frames_durable == 6


def test_a_forgotten_writer_with_progress_is_sealed(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_teller, "INTERVAL_S", 0.01)
    told = []
    writer = sw.create(tmp_path / "a.ome.zarr", **LINE, on_progress=lambda *counts: told.append(counts))
    writer.append_many(FRAMES)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del writer
    assert told[-1] == (6, None)
    assert Path(tmp_path / "a.ome.zarr" / "frames").is_dir()
    assert "shardwright-progress" not in {thread.name for thread in threading.enumerate()}


def test_progress_that_exits_is_logged(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "shardwright"):
        assert sw.save(tmp_path / "a.ome.zarr", FRAMES, on_progress=lambda *_: sys.exit(3)).frames_stored == 6
    assert [record.getMessage() for record in caplog.records] == [
        "on_progress failed, and is not called again: SystemExit(3)"
    ]


def test_progress_never_passes_the_total(tmp_path):
    told = []
    settings = sw.WriteSettings(on_duplicate="count")
    with sw.create(
        tmp_path / "a.ome.zarr",
        shape=(2, 8, 8),
        dtype="uint16",
        settings=settings,
        on_progress=lambda *counts: told.append(counts),
    ) as writer:
        for _ in range(5):
            writer.append(FRAMES[0], index=0)
        writer.append(FRAMES[1], index=1)
    assert told[-1] == (2, 2)


class Owner:
    """A window that has a writer and shows its progress."""

    def __init__(self, path: Path, told: list[int]) -> None:
        self.told = told
        self.writer = sw.create(path, **LINE, on_progress=self.show)

    def show(self, done: int, _: int | None) -> None:
        self.told.append(done)


def test_a_writer_that_is_forgotten_with_the_owner_of_its_progress_is_sealed(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_teller, "INTERVAL_S", 0.01)
    owner = Owner(tmp_path / "a.ome.zarr", told := [])
    owner.writer.append_many(FRAMES)
    owner.writer.flush()
    while 6 not in told:
        time.sleep(0.01)
    del owner
    with pytest.warns(ResourceWarning, match="was not closed"):
        gc.collect()
    assert (pixels(tmp_path / "a.ome.zarr") == FRAMES).all()


def test_progress_of_an_owner_that_nobody_else_has_is_told(tmp_path):
    class Bar:
        def show(self, done: int, _: int | None) -> None:
            told.append(done)

    told: list[int] = []
    sw.save(tmp_path / "a.ome.zarr", FRAMES, on_progress=Bar().show)
    assert told[-1] == 6
