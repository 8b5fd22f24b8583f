"""Whatever is asked for and however frames arrive: every reader sees exactly what was sent, and the receipt's
counts are exact."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaozarrs
from hypothesis import given, settings
from tests.harness.frames import hand_over
from tests.harness.writing import how

import shardwright as sw
from shardwright.array.ome import layout_warnings
from shardwright.read.inspect_shards import Totals, inspect_shards
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store

from .acquisitions import (
    LARGE,
    SMALL,
    Acquired,
    acquisitions,
    bits,
    expected,
    in_order,
    in_stored_order,
    live_chunks,
    pixels,
    places,
)
from .readers import READERS, with_tensorstore

# Axes in any order are part of what is tried; the writer says that validators will refuse some.
pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")

# The quick suite has a fixed share of two busy cores; ``tools/prove round-trip`` searches longer.
small = large = settings()
if settings.get_current_profile_name() == "quick":
    small, large = settings(max_examples=40), settings(max_examples=10)


def write(acquired: Acquired, path: Path) -> tuple[sw.Receipt, list[np.ndarray]]:
    """Run the acquisition in this process: its receipt and the frames as they were sent."""
    counts, sent = places(acquired.spec), []
    with sw.create(
        path, acquired.spec, threads=acquired.threads, **how(io=acquired.io, on_duplicate="count")
    ) as writer:
        for i, arrival in enumerate(acquired.arrivals):
            frame = pixels(acquired.spec, arrival.content, arrival.seed)
            sent.append(frame.copy())
            index = tuple(int(n) for n in np.unravel_index(arrival.position, counts)) if counts else ()
            names = {
                "count": {},
                "index": {"index": index},
                "frame_id": {"frame_id": arrival.position},
                "both": {"index": index, "frame_id": 1000 + i},
            }
            if arrival.after_refused:
                refused(writer, acquired.spec, arrival.after_refused)
            hand_over(writer, arrival.way, frame, **names[arrival.how])
            if arrival.way != "lent":
                frame.fill(0)  # the writer has its own copy
    return writer.receipt, sent


def refused(writer: Any, spec: sw.ArraySpec, what: str) -> None:
    """Append a frame that cannot be taken; it must leave no trace in counts or pixels."""
    rows, columns = spec.frame_shape
    frame = pixels(spec, "noise", 0)
    if what == "shape":
        with pytest.raises(sw.errors.FrameShapeError):
            writer.append(np.zeros((rows, columns + 1), spec.dtype))
    elif what == "dtype":
        with pytest.raises(sw.errors.FrameDtypeError):
            writer.append(np.zeros((rows, columns), complex))
    else:
        outside = (*(d.count or 0 for d in spec.dimensions[:-2]), 0)  # one axis too many
        with pytest.raises(sw.errors.FrameIndexError):
            writer.append(frame, index=outside)
        with pytest.raises(sw.errors.FrameIndexError):
            writer.append(frame, frame_id=-1)


def check(acquired: Acquired, disk: Path) -> None:
    spec = acquired.spec
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        path = Path(folder) / "image.ome.zarr"
        receipt, sent = write(acquired, path)
        if not sent:
            assert (receipt.frames_received, path.exists()) == (0, False), "a store of no frame is none"
            return
        model = expected(acquired, sent)
        for name, read in READERS.items():
            for level, array in enumerate(model.arrays):
                found = read(path / str(level))
                assert (found.shape, found.dtype) == (array.shape, array.dtype), (name, level)
                # which NaN the mean of several is, nobody promises
                assert np.array_equal(bits(found), bits(array)) or (
                    level and np.array_equal(found, array, equal_nan=array.dtype.kind == "f")
                ), (name, level)
        check_receipt(receipt, acquired, model, path)
        check_store(acquired, model, path)
        if not any(warning.startswith("axes:") for warning in layout_warnings(spec)):
            yaozarrs.validate_zarr_store(path)


def check_receipt(receipt: sw.Receipt, acquired: Acquired, model, path: Path) -> None:
    assert receipt.path == str(path)
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_duplicate) == (
        model.received,
        model.stored,
        model.duplicate,
    )
    assert (receipt.frames_missing, receipt.frames_late, receipt.frames_durable) == (
        model.missing,
        0,
        model.stored,
    )
    assert receipt.bytes_raw == model.stored * acquired.spec.frame_bytes
    store, totals = open_store(path), Totals()
    assert len(store.arrays) == len(model.arrays)
    for array in store.arrays:
        for shard in inspect_shards(store, array):
            assert not shard.problems
            assert shard.chunks_page_aligned == shard.chunks_present or acquired.io != "mmap", (
                "encoded in place, each chunk in its slot"
            )
            totals.add(shard)
    assert receipt.shards == totals.shards
    assert receipt.bytes_stored == totals.encoded_bytes + totals.shards * store.arrays[0].index_bytes


def check_store(acquired: Acquired, model, path: Path) -> None:
    report = verify_store(path, threads=1)
    assert report.problems == []
    spec = acquired.spec
    chunks = [
        [d.chunk_size for d in spec.stored_dimensions],
        *(in_stored_order(spec, level.chunk) for level in spec.level_shapes),
    ]
    live = sum(live_chunks(spec, *each) for each in zip(model.arrays, chunks, strict=True))
    if not acquired.spec.write_empty_chunks:
        assert report.chunks == live, "chunks that are all fill value are absent, all others are there"
    elif not model.missing:
        assert (report.shards_absent, report.chunks_absent) == (0, 0), "every chunk was asked for"
    arrays = set(map(str, range(len(model.arrays))))
    assert {entry.name for entry in path.iterdir()} <= {"zarr.json", "frames"} | arrays, (
        "no work in progress is left"
    )


@small
@given(acquisitions(SMALL))
def test_readers_see_what_was_sent(disk: Path, acquired: Acquired) -> None:
    check(acquired, disk)


@large
@given(acquisitions(LARGE))
def test_chunks_of_several_blocks(disk: Path, acquired: Acquired) -> None:
    """Frames large enough that a chunk spans several Blosc, zstd and deflate blocks."""
    check(acquired, disk)


@large
@given(in_order(SMALL))
def test_what_can_be_read_while_frames_arrive_is_true(disk: Path, acquired: Acquired) -> None:
    """The shape in zarr.json never runs ahead: whatever lies inside it is sealed and holds the frames that
    were sent."""
    spec = acquired.spec
    first = spec.dimensions[0].name
    axis = [d.name for d in spec.stored_dimensions].index(first)
    sent = [pixels(spec, arrival.content, arrival.seed) for arrival in acquired.arrivals]
    model = expected(acquired, sent)
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        path = Path(folder) / "image.ome.zarr"
        extents = []
        with sw.create(path, spec, threads=acquired.threads) as writer:
            for frame in sent:
                writer.append(frame)
                array = open_store(path).arrays[0]
                if array.shape[axis] not in extents[-1:]:
                    extents.append(array.shape[axis])
                    found = with_tensorstore(path / "0")
                    assert found.shape[axis] >= array.shape[axis]
                    visible = model.arrays[0].take(range(found.shape[axis]), axis)
                    assert np.array_equal(bits(found), bits(visible))
        assert extents == sorted(extents)
        assert with_tensorstore(path / "0").shape == model.arrays[0].shape
