"""The in-process writer as a user meets it: what it takes, what it refuses and then leaves as it was, how it
ends."""

from __future__ import annotations

import errno
import os
import threading
import time
import traceback
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
from tests.harness.json_process import TIMEOUT_S
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.acquisition import Acquisition
from shardwright.acquire.limits import RUNTIME_BYTES, Limits
from shardwright.disk import failpoints
from shardwright.model.errors import (
    BudgetError,
    ClosedError,
    DuplicateFrameError,
    FrameDtypeError,
    FrameIndexError,
    FrameShapeError,
    MetadataError,
    OutputExistsError,
    ShardwrightError,
    SpecError,
    StorageError,
)
from shardwright.model.write_settings import WriteSettings
from shardwright.writer.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.usefixtures("each_file_syncs_alone")


def frame(i: int, dtype: str = "uint16") -> np.ndarray:
    return (np.arange(24, dtype=dtype).reshape(4, 6) + i + 1).astype(dtype)


def read(path) -> np.ndarray:
    return zarr.open_array(path / "0", mode="r")[...]


def workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("shardwright")]


@pytest.fixture
def path(tmp_path):
    before = workers()
    yield tmp_path / "a.ome.zarr"
    assert workers() == before, "no thread of a writer outlives it"


def test_an_append_with_a_free_slot_takes_one_step_and_polls_for_nothing(path, spec_of, monkeypatch):
    polling, poll = [], Acquisition.poll
    with sw.create(path, spec_of(), threads=2) as writer:
        monkeypatch.setattr(
            Acquisition,
            "poll",
            lambda acquisition, *wait: polling.append(threading.current_thread()) or poll(acquisition, *wait),
        )
        for i in range(9):
            writer.append(frame(i))
    assert polling, "the writer's own thread does"
    assert threading.current_thread() not in polling
    assert writer.receipt.frames_stored == 9


def test_write_and_read_back(path, spec_of):
    with sw.create(path, spec_of(), threads=2) as writer:
        for i in range(9):
            writer.append(frame(i))
        assert writer.path == path
    receipt = writer.receipt
    assert (
        receipt.frames_received,
        receipt.frames_stored,
        receipt.frames_durable,
        receipt.frames_missing,
    ) == (9, 9, 9, 0)
    assert receipt == writer.close(), "closing again changes nothing"
    assert np.array_equal(read(path), [frame(i) for i in range(9)])
    assert receipt.path == str(path)


def test_an_acquisition_without_a_frame_leaves_no_store(path, spec_of):
    for wrong, error in ((frame(0)[1:], FrameShapeError), (frame(0, "float32"), FrameDtypeError)):
        with pytest.raises(error), sw.create(path, spec_of()) as writer:
            writer.append(wrong)
        assert writer.receipt.frames_received == 0
        assert not list(path.parent.iterdir())
    with sw.create(path, spec_of()) as writer:
        writer.append(frame(0))
    assert np.array_equal(read(path), [frame(0)])


def test_a_frame_that_is_refused_after_others_keeps_them(path, spec_of):
    writer = sw.create(path, spec_of())
    writer.append(frame(0))
    with pytest.raises(FrameShapeError), writer:
        writer.append(frame(1)[1:])
    assert writer.receipt.frames_stored == 1
    assert np.array_equal(read(path), [frame(0)])


def test_many_frames_at_once_are_what_single_ones_would_be(path, tmp_path, spec_of):
    frames, ids = np.stack([frame(i) for i in range(200)]), np.random.default_rng(1).permutation(200)
    metadata = {"delta_t": ids / 10, "exposure_time": 0.5, "laser": -ids}
    one_by_one = tmp_path / "b.ome.zarr"
    with sw.create(one_by_one, spec_of(frame_fields=("laser",)), threads=2) as writer:
        for i in ids.tolist():
            writer.append(
                frames[i], frame_id=i, metadata={"delta_t": i / 10, "exposure_time": 0.5, "laser": -i}
            )
    with sw.create(path, spec_of(frame_fields=("laser",)), threads=2) as writer:
        for first, stop in ((0, 1), (1, 1), (1, 150), (150, 200)):
            part = slice(first, stop)
            writer.append_many(
                frames[ids[part]],
                frame_ids=ids[part],
                metadata={n: v if np.ndim(v) == 0 else v[part] for n, v in metadata.items()},
            )
    assert np.array_equal(read(path), frames)
    assert (writer.receipt.frames_stored, writer.frames) == (200, 200)
    theirs, ours = (zarr.open_group(store / "frames", mode="r") for store in (one_by_one, path))
    orders = [
        np.argsort(table["sequence"][:]) for table in (ours, theirs)
    ]  # shard rows are sealed in any order
    for name in (
        "frame_id",
        "sequence",
        "index_t",
        "delta_t",
        "exposure_time",
        "laser",
        "position_x",
        "status",
    ):
        np.testing.assert_array_equal(ours[name][:][orders[0]], theirs[name][:][orders[1]])


def test_many_frames_go_on_counting_whatever_the_ring_holds(path, spec_of):
    frames = np.stack([frame(i) for i in range(60)])
    with sw.create(path, spec_of(), threads=2) as writer:
        writer._ring._free.take(writer._limits.ring_frames - 5)  # four or five find room at a time
        writer.append(frames[0])
        writer.append_many(frames[1:50])
        writer.append(frames[50])
        writer.append_many(frames[51:])
    assert np.array_equal(read(path), frames)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_an_interrupted_copy_costs_no_slot(path, spec_of, monkeypatch, many, copy):
    """More often than the ring has slots; then everything goes on."""

    frames = np.stack([frame(i) for i in range(12)])
    with sw.create(path, spec_of(), threads=2) as writer:
        ring = writer._ring
        ring._free.take(writer._limits.ring_frames - 5)
        for _ in range(7):
            with monkeypatch.context() as patched:
                for name in ("put", "put_many", "lend"):
                    patched.setattr(ring, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    writer.append_many(frames[:3], copy=copy) if many else writer.append(frames[0], copy=copy)
        assert ring.used == 0
        writer.append_many(frames, copy=copy)
    assert np.array_equal(read(path), frames)


def test_many_frames_are_dropped_together_where_there_is_no_room(path, spec_of):
    frames = np.stack([frame(i) for i in range(12)])
    with sw.create(path, spec_of(), threads=2, overload="drop") as writer:
        free = writer._ring._free.take(writer._limits.ring_frames)
        writer.append_many(frames[:5])
        assert (writer.frames_dropped, writer.frames) == (5, 5)
        writer._ring._free.give_back(free)
        writer.append_many(frames[5:])
    receipt = writer.receipt
    assert (receipt.frames_dropped, receipt.frames_stored, receipt.frames_missing) == (5, 7, 5)
    assert np.array_equal(read(path)[5:], frames[5:])


def test_what_is_wrong_with_one_of_many_is_said_before_any_is_stored(path, spec_of):
    frames = np.stack([frame(i) for i in range(4)])
    with sw.create(path, spec_of(count=8), threads=2) as writer:
        for options, error in (
            ({"frame_ids": [0, 1, 2, 8]}, FrameIndexError),
            ({"indices": [[0], [1], [2], [-1]]}, FrameIndexError),
            ({"metadata": {"delta_t": [0.0]}}, MetadataError),
        ):
            with pytest.raises(error):
                writer.append_many(frames, **options)
        with pytest.raises(FrameShapeError):
            writer.append_many(frames[0])
        with pytest.raises(FrameDtypeError):
            writer.append_many(frames.astype("int16"))
        with pytest.raises(FrameIndexError):
            writer.append_many(np.concatenate([frames] * 3))
        assert writer.frames == 0
        writer.append_many(frames, indices=[[3], [2], [1], [0]])
    assert np.array_equal(read(path)[:4], frames[::-1])
    with pytest.raises(ClosedError):
        writer.append_many(frames)


@pytest.mark.parametrize("io", ["mmap", "pwrite", "auto"])
def test_every_io_mode_writes_the_same_bytes(path, tmp_path, spec_of, io):
    with sw.create(path, spec_of(), threads=1, **how(io=io)) as writer:
        for i in range(9):
            writer.append(frame(i))
    assert np.array_equal(read(path), [frame(i) for i in range(9)])


def test_indices_and_ids_place_frames(path, spec_of):
    with sw.create(path, spec_of(), threads=1) as writer:
        writer.append(frame(3), index=(3,))
        writer.append(frame(0), frame_id=0)
        writer.append(frame(2))  # the third append
        writer.append(frame(5), index=(np.int64(5),), frame_id=77)
    seen = read(path)
    for i in (0, 2, 3, 5):
        assert np.array_equal(seen[i], frame(i))
    assert (seen[[1, 4]] == 0).all()
    assert writer.receipt.frames_missing == 2


def test_frames_are_copied_before_append_returns(path, spec_of):
    buffer = frame(0)
    with sw.create(path, spec_of(), threads=1) as writer:
        for i in range(40):
            buffer[...] = frame(i)
            writer.append(buffer)
    assert np.array_equal(read(path), [frame(i) for i in range(40)])


def test_non_contiguous_frames_and_lists(path, spec_of):
    wide = np.zeros((8, 12), np.uint16)
    wide[::2, ::2] = frame(0)
    with sw.create(path, spec_of(), threads=1) as writer:
        writer.append(wide[::2, ::2])
        writer.append(np.asfortranarray(frame(1)))
        writer.append(frame(2)[::-1, ::-1])
        backed = frame(3)
        backed.flags.writeable = False
        writer.append(backed)
    assert np.array_equal(read(path), [frame(0), frame(1), frame(2)[::-1, ::-1], frame(3)])


def lose_the_disk(path, spec, failing):
    with sw.create(path, spec, threads=1) as writer:
        failing("shard.before_sync", OSError(errno.EIO, "gone"))
        writer.append(frame(0))


FAILURES = {
    "a store is there": lambda path, spec, _: (path.touch(), sw.create(path, spec)),
    "no folder above": lambda path, spec, _: (path.touch(), sw.create(path / "a", spec)),
    "nothing to resume": lambda path, spec, _: sw.resume(path),
    "no room in the budget": lambda path, spec, _: sw.create(path, spec, memory_bytes=1),
    "the disk dies": lose_the_disk,
}


@pytest.mark.parametrize("name", FAILURES)
def test_an_error_is_one_traceback(path, spec_of, failing, name):
    """What a user sees at the end of a program: the error that says what to do, not the three that led to
    it."""
    with pytest.raises(ShardwrightError) as caught:
        FAILURES[name](path, spec_of(count=8), failing)
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("Traceback (most recent call last)") == 1, told
    assert str(caught.value) in told


T3 = np.zeros((4, 6), np.uint16)
REFUSED = {
    "shape": (
        lambda w: w.append(np.zeros((6, 4), np.uint16)),
        FrameShapeError,
        r"expected \(4, 6\); got \(6, 4\)",
    ),
    "no frame": (lambda w: w.append(3), FrameShapeError, r"got \(\)"),
    "dtype": (lambda w: w.append(T3.astype(np.float32)), FrameDtypeError, "expected uint16; got float32"),
    "byte order": (lambda w: w.append(T3.astype(">u2")), FrameDtypeError, "expected uint16; got >u2"),
    "index past the end": (
        lambda w: w.append(T3, index=(8,)),
        FrameIndexError,
        "along axis 0; expected 0 to 7",
    ),
    "index negative": (lambda w: w.append(T3, index=(-1,)), FrameIndexError, "expected 0 to 7"),
    "index too long": (lambda w: w.append(T3, index=(0, 0)), FrameIndexError, "expected 1 numbers"),
    "index a fraction": (lambda w: w.append(T3, index=(0.5,)), FrameIndexError, "no whole number"),
    "id past the end": (lambda w: w.append(T3, frame_id=8), FrameIndexError, "expected 0 to 7"),
    "id negative": (lambda w: w.append(T3, frame_id=-2), FrameIndexError, "expected 0 to 7"),
    "unknown metadata": (
        lambda w: w.append(T3, metadata={"mood": 1}),
        MetadataError,
        "expected one of delta_t",
    ),
    "metadata no number": (
        lambda w: w.append(T3, metadata={"delta_t": "soon"}),
        MetadataError,
        "'delta_t' is not a number",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_frame_leaves_nothing_behind(path, spec_of, name):
    refuse, kind, message = REFUSED[name]
    with sw.create(path, spec_of(count=8), threads=1) as writer:
        writer.append(frame(0))
        with pytest.raises(kind, match=message):
            refuse(writer)
        writer.append(frame(1))
    assert (writer.receipt.frames_received, writer.receipt.frames_stored) == (2, 2)
    assert np.array_equal(read(path), [frame(0), frame(1)])


def test_an_array_that_is_full_takes_no_more(path, spec_of):
    with sw.create(path, spec_of(count=3), threads=1) as writer:
        for i in range(3):
            writer.append(frame(i))
        with pytest.raises(FrameIndexError, match=r"the image is full.*at most 3 frames; got frame 4"):
            writer.append(frame(3))
    assert writer.receipt.frames_durable == 3


def test_append_after_close(path, spec_of):
    with sw.create(path, spec_of(), threads=1) as writer:
        writer.append(frame(0))
    with pytest.raises(ClosedError, match="closed"):
        writer.append(frame(1))
    assert len(read(path)) == 1


def test_an_exception_in_the_body_goes_on_and_what_came_is_sealed(path, spec_of):
    with pytest.raises(ZeroDivisionError), sw.create(path, spec_of(), threads=1) as writer:  # noqa: PT012  (the body is what is tested)
        writer.append(frame(0))
        1 / 0  # noqa: B018
    assert np.array_equal(read(path), [frame(0)])
    assert writer.receipt.frames_durable == 1


def test_existing_output(path, spec_of):
    path.mkdir()
    (path / "notes.txt").touch()
    with pytest.raises(OutputExistsError, match="exists already"):
        sw.create(path, spec_of(), threads=1)
    assert [each.name for each in path.iterdir()] == ["notes.txt"]


def test_two_writers_of_one_name(path, spec_of):
    with sw.create(path, spec_of(), threads=1) as writer:
        with pytest.raises(OutputExistsError):
            sw.create(path, spec_of(), threads=1)
        writer.append(frame(0))
    assert np.array_equal(read(path), [frame(0)])


def test_two_writers_at_once(path, spec_of):
    other = path.with_name("b.ome.zarr")
    with sw.create(path, spec_of(), threads=1) as a, sw.create(other, spec_of(), threads=1) as b:
        for i in range(12):
            a.append(frame(i))
            b.append(frame(100 + i))
    assert np.array_equal(read(path), [frame(i) for i in range(12)])
    assert np.array_equal(read(other), [frame(100 + i) for i in range(12)])


def test_too_little_memory_is_refused_before_anything_is_made(path, spec_of):
    with pytest.raises(
        BudgetError, match=r"does not fit the memory budget; expected at most 335,544,320 bytes in all"
    ):
        sw.create(path, spec_of(), threads=1, memory_bytes=RUNTIME_BYTES)
    assert not path.exists()


def test_unknown_io(path, spec_of):
    with pytest.raises(SpecError, match="expected one of auto, mmap, pwrite, direct; got 'magic'"):
        sw.create(path, spec_of(), **how(io="magic"))
    assert not path.exists()


@pytest.mark.parametrize("frames", [1, 30])
def test_a_disk_that_fails_is_told_on_the_way_or_at_the_end(path, spec_of, failing, frames):
    failing("shard.before_sync", OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(StorageError, match="sync"), sw.create(path, spec_of(), threads=1) as writer:  # noqa: PT012
        for i in range(frames):
            writer.append(frame(i))
    assert len(read(path)) == 0
    assert writer.receipt.frames_durable == 0


def test_a_failed_writer_keeps_the_error_of_the_body(path, spec_of, failing):
    failing("shard.before_sync", OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(ZeroDivisionError), sw.create(path, spec_of(), threads=1) as writer:  # noqa: PT012
        writer.append(frame(0))
        1 / 0  # noqa: B018


def test_a_layout_that_validators_refuse_is_a_warning(path):
    axes = [("z", 4), ("t", 2), ("y", 8), ("x", 8)]
    spec = sw.ArraySpec(
        dtype="uint8", dimensions=[sw.Dimension(name=n, count=c, chunk_size=1) for n, c in axes]
    )
    with (
        pytest.warns(sw.errors.LayoutWarning, match="wants time, then channel, then space"),
        sw.create(path, spec, threads=1) as writer,
    ):
        writer.append(np.zeros((8, 8), np.uint8))
    assert writer.receipt.frames_stored == 1


def test_a_receipt_that_is_not_perfect_is_a_warning(path, tmp_path, spec_of, caplog):
    with sw.create(tmp_path / "whole.ome.zarr", spec_of()) as whole:
        whole.append_many(np.stack([frame(i) for i in range(4)]))
    assert whole.receipt.trouble == {}
    assert not caplog.records
    with sw.create(path, spec_of()) as writer:
        writer.append(frame(0), index=(0,))
        writer.append(frame(1), index=(3,))
    assert writer.receipt.trouble == {"frames_missing": 2}
    (record,) = caplog.records
    assert record.getMessage() == (
        "a: not every frame is in its place (2 frames received); 2 places without a frame. "
        f"`shardwright inspect --missing {path}` lists them"
    )


def test_a_frame_whose_place_is_taken_is_an_error_that_names_both(path, spec_of):
    """Said at once; the frame before it stays, and the writer goes on."""
    with sw.create(path, spec_of()) as writer:
        for i in range(3):
            writer.append(frame(i))
        with pytest.raises(
            DuplicateFrameError,
            match=r"the place of frame 3 \(id 77\) is taken.*index \(1,\). Check the index.*on_duplicate",
        ) as caught:
            writer.append(frame(9), index=(1,), frame_id=77)
        assert caught.value.code == "duplicate_frame"
        writer.append(frame(3), index=(3,))
        writer.flush()  # each is told once
        with pytest.raises(DuplicateFrameError, match=r"frame 5 .*index \(0,\), and 2 more such frames"):
            writer.append_many(np.stack([frame(i) for i in (9, 9, 4, 9)]), indices=[[0], [1], [4], [2]])
    assert (
        writer.receipt.frames_received,
        writer.receipt.frames_stored,
        writer.receipt.frames_duplicate,
    ) == (9, 5, 4)
    assert np.array_equal(read(path), [frame(i) for i in range(5)])


def test_positions_without_an_axis_for_them_end_at_the_first_repeated_place(path, spec_of):
    """A sequence with positions, written to an array that has no axis for them."""
    positions, times = range(3), range(4)
    order = iter([t for _ in positions for t in times])
    with sw.create(path, spec_of()) as writer:
        with pytest.raises(DuplicateFrameError, match="several positions"):
            append_at_each(writer, order)
        assert len(list(order)) == len(positions) * len(times) - 5, "the first that came a second time"
    assert (writer.receipt.frames_stored, writer.receipt.frames_duplicate) == (4, 1)


def append_at_each(writer: Writer, places: Iterable[int]) -> None:
    for place in places:
        writer.append(frame(place), index=(place,))


def unhurried(places: Iterable[int]) -> Iterator[int]:
    """Leaves the interpreter to the sealer between two frames, as a camera does."""
    for place in places:
        yield place
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["flush", "close", "append"])
def test_a_duplicate_that_had_to_wait_is_told_by_a_later_call(path, spec_of, how):
    """The frames before it wait for a shard row, and so does it: nobody can know yet."""
    spec = spec_of()
    limits = replace(Limits.derive(spec, threads=1), open_shard_rows=2)
    writer = Writer(
        lambda pool, wake: Acquisition(path, spec, limits, pool, wake, WriteSettings(on_duplicate="fail")), 1
    )
    go_on = threading.Event()
    failpoints.set_hook("slots.before_store", go_on.wait)
    try:
        for i in range((limits.open_shard_rows + 1) * 4):  # a shard row has two slabs of two frames
            writer.append(frame(i))
        writer.append(frame(9), index=(0,))
    finally:
        failpoints.set_hook("slots.before_store", None)
        go_on.set()
    later = {
        "flush": writer.flush,
        "close": writer.close,
        "append": partial(append_at_each, writer, unhurried(range(13, 1000))),
    }
    with pytest.raises(DuplicateFrameError, match=r"index \(0,\)"):
        later[how]()
    assert writer.close().frames_duplicate == 1


def test_duplicates_are_counted_where_that_is_asked_for(path, spec_of, caplog):
    with sw.create(path, spec_of(), **how(on_duplicate="count")) as writer:
        for i in (0, 1, 1, 1, 2):
            writer.append(frame(i), index=(i,))
    assert (writer.receipt.frames_stored, writer.receipt.frames_duplicate) == (3, 2)
    first, last = (record.getMessage() for record in caplog.records)
    name = path.name.removesuffix(".ome.zarr")
    assert first.startswith(
        f"{name}: 1 duplicate frame, at index (1): its place is taken. Check the index: "
    ), "one line, at the first one"
    assert last.endswith(f"; 2 duplicates. `shardwright inspect --missing {path}` lists them")
    with pytest.raises(SpecError, match="unknown on_duplicate; expected one of count, fail"):
        sw.create(path.with_name("b.zarr"), spec_of(), **how(on_duplicate="ignore"))


@pytest.fixture
def slow_files():
    """Until it is set, no shard file can be preallocated (but for those of ``create``)."""
    go_on, full = threading.Event(), threading.Event()

    def hook() -> None:
        assert go_on.wait(TIMEOUT_S)
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    go_on.full = full  # type: ignore[attr-defined]
    yield lambda: (failpoints.set_hook("shard.before_preallocate", hook), go_on)[1]
    failpoints.set_hook("shard.before_preallocate", None)


def flush_in_a_thread(writer: sw.Writer) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def flush() -> None:
        try:
            writer.flush(60)
        except StorageError as error:
            errors.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    while True:
        with writer._driver.lock.held:
            if writer._acquisition._core._ledger._flush_goal:
                return thread, errors


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_flush_waits_for_files_that_are_being_made(path, spec_of, slow_files, chunk):
    """Frames of a chunk of one are never staged: only their files can make them durable."""
    with sw.create(path, spec_of(chunk=chunk)) as writer:
        go_on = slow_files()
        for place in range(20, 20 + chunk):
            writer.append(frame(place), index=(place,))
        thread, errors = flush_in_a_thread(writer)
        with writer._driver.lock.held:
            assert not writer._acquisition.flush_is_stuck
        go_on.set()
        thread.join()
        assert errors == []
        assert writer.watermark.durable == chunk
    assert np.array_equal(read(path)[20], frame(20))


def test_a_flush_on_a_full_disk_says_so_where_frames_cannot_be_staged(path, spec_of, slow_files):
    with sw.create(path, spec_of(chunk=1), on_full="block") as writer:
        go_on = slow_files()
        go_on.full.set()
        go_on.set()
        writer.append(frame(20), index=(20,))
        with pytest.raises(StorageError, match="no room"):
            writer.flush(60)
        go_on.full.clear()
    assert np.array_equal(read(path)[20], frame(20))


def test_an_array_may_be_given_as_json(path, spec_of):
    with sw.create(path, spec_of().model_dump(mode="json")) as writer:
        writer.append(frame(0))
    assert np.array_equal(read(path)[0], frame(0))


@pytest.mark.parametrize("spec", [{"dtype": "uint17"}, {}, "t,y,x"])
def test_what_is_no_array_is_a_typed_error(path, spec):
    with pytest.raises(sw.errors.SpecError, match="the array specification is wrong"):
        sw.create(path, spec)
    assert not path.exists()
