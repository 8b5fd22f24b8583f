"""``Writer`` and ``Stream``: the same calls, with the same texts, each of which stands once."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from shardwright.array.frame_sink import FrameSink

SINKS = (sw.Writer, sw.Stream)
# of a connection to a daemon, which a writer has not
OF_A_STREAM = {"losses", "reconnects", "transport"}
# of release 0.2
OLDER = {"frames_durable", "frames_sent", "frames_stored"}
COMMON = {
    *("add_image", "append", "append_many", "claim", "close", "flush", "skip", "update_metadata"),
    *("copied", "frames", "frames_dropped", "images", "path", "receipt", "released", "spec", "watermark"),
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def called(member: object) -> list[inspect.Parameter]:
    """The parameters of a method; none of a property."""
    return list(inspect.signature(member).parameters.values()) if inspect.isfunction(member) else []


def test_they_have_the_same_names():
    assert public(sw.Writer) == COMMON
    assert public(sw.Stream) == COMMON | OF_A_STREAM | OLDER


@pytest.mark.parametrize("name", sorted(COMMON))
def test_each_is_called_alike_and_has_one_text(name):
    of_writer, of_stream = (inspect.getattr_static(kind, name) for kind in SINKS)
    assert type(of_writer) is type(of_stream)
    assert called(of_writer) == called(of_stream) == called(inspect.getattr_static(FrameSink, name))
    assert inspect.getdoc(of_writer) == inspect.getdoc(of_stream) == inspect.getdoc(getattr(FrameSink, name))
    assert inspect.getdoc(of_writer)
    for kind in SINKS:
        own = vars(kind).get(name)
        assert own is None or own.__doc__ is None, "its text stands in FrameSink"


@pytest.mark.parametrize("name", sorted(OF_A_STREAM))
def test_what_a_stream_alone_has_is_explained(name):
    assert inspect.getdoc(getattr(sw.Stream, name))


def test_both_classes_say_what_holds_for_both():
    common = inspect.getdoc(FrameSink)
    for kind in SINKS:
        said = inspect.getdoc(kind)
        assert said.endswith(f"\n\n{common}")
        assert said != common


def frames(count: int, rows: int = 16) -> np.ndarray:
    return np.arange(count * rows * 16, dtype=np.uint16).reshape(count, rows, 16)


def use(sink: sw.Writer | sw.Stream) -> sw.Receipt | None:
    """A program of either; returns what ``close`` does."""
    sink.append(frames(1)[0], copy=False)
    with sink.claim(metadata={"exposure_time": 0.5}) as pixels:
        pixels[:] = 7
    sink.append_many(frames(4), copy=False)
    sink.update_metadata({"stain": "DAPI"}, timeout_s=60)
    sink.flush(60)
    assert sink.spec == sink.images.arrays[0]
    assert sink.watermark.durable == 6
    assert (sink.frames, sink.released, sink.frames_dropped) == (6, 6, 0)
    assert Path(sink.path).exists()
    return sink.close()


def test_one_program_runs_with_either(tmp_path, endpoint):
    array = sw.default_layout((None, 16, 16), "uint16", "tyx", chunks={"t": 2})
    writer = sw.create(tmp_path / "a.ome.zarr", array)
    assert use(writer) == writer.receipt == writer.close()
    assert writer.copied == 0, "a writer reads them where they lie"
    with sw.connect(endpoint) as daemon, daemon.acquire("b", array) as stream:
        assert use(stream) == stream.receipt == stream.close()
        assert stream.copied == 5, "they lie in no memory of the daemon's"
        for ended in (writer, stream):
            with pytest.raises(sw.errors.ClosedError):
                ended.append(frames(1)[0])
    counts = [ended.receipt.counts for ended in (writer, stream)]
    assert counts[0] == counts[1]


def test_older_names_of_a_stream_work_with_a_warning_that_shows_the_new_one(endpoint):
    array = sw.default_layout((None, 16, 16), "uint16", "tyx")
    with sw.connect(endpoint) as daemon, daemon.acquire("older", array) as stream:
        stream.append_many(frames(3))
        stream.flush()
        for name, spelled in (
            ("frames_sent", r"stream\.frames"),
            ("frames_stored", r"stream\.watermark\.stored"),
            ("frames_durable", r"stream\.watermark\.durable"),
        ):
            with pytest.warns(DeprecationWarning, match=rf"write {spelled}\b") as told:
                assert getattr(stream, name) == 3
            assert told[0].filename == __file__


def test_an_update_of_metadata_that_takes_too_long_is_over_in_time(tmp_path, monkeypatch):
    array = sw.default_layout((None, 16, 16), "uint16", "tyx")
    with sw.create(tmp_path / "a.ome.zarr", array) as writer:
        monkeypatch.setattr(type(writer._acquisition), "take_updates", lambda _: [])
        with pytest.raises(sw.errors.TimedOutError, match="not everything is durable yet"):
            writer.update_metadata({"stain": "DAPI"}, timeout_s=0.01)
        monkeypatch.undo()
        writer.update_metadata({"stain": "DAPI"})
        writer.append(frames(1)[0])
