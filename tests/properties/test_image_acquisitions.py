"""Whatever images an acquisition has, in whatever order they are visited, and whoever dies on the way: every
reader sees in each image exactly what was sent to it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaozarrs
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.python import commands
from tests.harness.store_contents import listed_images

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.array.ome import acquisition_warnings
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store

from .acquisitions import bits
from .image_acquisitions import image_acquisitions
from .readers import READERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.fork_server import Channel, ForkServer

    from .acquisitions import Expected
    from .image_acquisitions import Images

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")

some = settings()
if settings.get_current_profile_name() == "quick":
    some = settings(max_examples=15)


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return commands()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2)
    pool.start()
    yield pool
    pool.stop()


def check(images: Images, path: Path, sent: int, receipt: sw.Receipt | None = None) -> None:
    """``sent``: so many frames came. Without one there is no store."""
    if not sent:
        assert not path.exists()
        return
    spec, models = images.spec, images.expected(sent)
    for image, model in models.items():
        for level, found_at in enumerate(spec.level_paths(image)):
            for name, read in READERS.items():
                check_array(read(path / found_at), model.arrays[level], level, f"{name}, {found_at}")
    folders = [spec.paths[image].rpartition("/")[0] for image in models]
    assert listed_images(path) == folders
    assert [p for p in spec.paths if (path / p).parent.exists()] == [f"{folder}/0" for folder in folders]
    table = sw.frame_table(path).sort_values("sequence")
    assert table.image.tolist() == [spec.names[frame.image] for frame in images.frames[:sent]]
    assert verify_store(path).ok
    if receipt is not None:
        check_receipt(images, receipt, models)
    if not any(warning.startswith("axes:") for warning in acquisition_warnings(spec)):
        yaozarrs.validate_zarr_store(str(path))


def check_array(found: np.ndarray, array: np.ndarray, level: int, what: str) -> None:
    assert (found.shape, found.dtype) == (array.shape, array.dtype), what
    # which NaN the mean of several is, nobody promises
    assert np.array_equal(bits(found), bits(array)) or (
        level and np.array_equal(found, array, equal_nan=array.dtype.kind == "f")
    ), what


def check_receipt(images: Images, receipt: sw.Receipt, models: dict[int, Expected]) -> None:
    counts = [(model.received, model.stored, model.missing) for model in models.values()]
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_missing) == tuple(
        map(sum, zip(*counts, strict=True))
    )
    if len(images.spec.names) > 1:
        names = ("frames_received", "frames_stored", "frames_missing")
        assert receipt.images == {
            images.spec.names[image]: dict(zip(names, each, strict=True))
            for image, each in zip(models, counts, strict=True)
        }


@some
@given(images=image_acquisitions())
def test_readers_see_every_frame_in_its_image(disk: Path, images: Images) -> None:
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        path = Path(folder) / "a.ome.zarr"
        with sw.create(path, images.spec) as writer:
            images.send(writer, 0, len(images.frames))
        check(images, path, len(images.frames), writer.receipt)


def write_and_die(_: Channel, path: Path, images: Images, sent: int) -> None:
    writer = sw.create(path, images.spec)
    images.send(writer, 0, sent)
    writer.flush()
    os._exit(0)


@some
@given(images=image_acquisitions(), data=st.data())
def test_a_killed_writer_loses_no_image(
    disk: Path, server: ForkServer, pool: WorkerPool, images: Images, data: st.DataObject
) -> None:
    """Killed once its frames are durable, whatever slabs and shards they leave open; then sealed by
    ``recover``, or resumed and sent on."""
    sent = data.draw(st.integers(0, len(images.frames)))
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        path = Path(folder) / "a.ome.zarr"
        assert server.start(write_and_die, path, images, sent).wait() == 0
        if data.draw(st.booleans()):
            receipt = recover_store(path, pool, threads=2).receipt
            check(images, path, sent, receipt)
            return
        with sw.resume(path) as writer:
            assert writer.frames == sent
            images.send(writer, sent, len(images.frames))
        check(images, path, len(images.frames), writer.receipt)
