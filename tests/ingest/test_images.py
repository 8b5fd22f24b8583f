"""Acquisitions of several images through the daemon."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaozarrs
import zarr

import shardwright as sw
from shardwright.client.stream import _first_of
from shardwright.model import errors
from shardwright.read.verify_store import verify_store
from shardwright.wire.messages import IMAGE_SHIFT, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ["shm", "message"]
pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")


def array(
    axes: dict[str, int | None], shape: tuple[int, int] = (12, 16), dtype: str = "uint16"
) -> sw.ArraySpec:
    """Chunks of one frame, shards of all but a first axis without end."""
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=1, shard_size_chunks=count or 1)
        for name, count in axes.items()
    ]
    dimensions += [sw.Dimension(name=n, count=c, chunk_size=c) for n, c in zip("yx", shape, strict=True)]
    return sw.ArraySpec(dtype=dtype, dimensions=tuple(dimensions))


def pixels(spec: sw.ArraySpec, number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(1, 200, spec.frame_shape).astype(spec.dtype)


@pytest.mark.parametrize("transport", WAYS)
def test_cameras_of_other_shapes_in_one_acquisition(start, transport):
    daemon = start()
    left, right = array({"t": None, "z": 3}), array({"t": None}, (10, 31), "uint8")
    spec = sw.AcquisitionSpec(images={"left": left, "right": right})
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec) as stream,
    ):
        for t in range(4):
            stream.append_many([pixels(left, 10 * t + z) for z in range(3)], image="left")
            stream.append(pixels(right, 100 + t), image="right")
    assert stream.receipt.frames_stored == 16
    assert {name: each["frames_stored"] for name, each in stream.receipt.images.items()} == {
        "left": 12,
        "right": 4,
    }
    store = Path(stream.path)
    found = zarr.open_group(store, mode="r")
    for t in range(4):
        assert np.array_equal(found["1/0"][t], pixels(right, 100 + t))
        assert all(np.array_equal(found["0/0"][t, z], pixels(left, 10 * t + z)) for z in range(3))
    yaozarrs.validate_zarr_store(str(store))


@pytest.mark.parametrize("transport", WAYS)
def test_images_in_folders_of_their_own_whose_positions_are_told_later(start, transport):
    """Who opens the acquisition learns the folders."""
    daemon, units = start(), {"y": "um", "x": "um"}
    layout = sw.default_layout((None, 12, 16), "uint16", "tyx", scales={"y": 1, "x": 2}, units=units)
    paths = {"left": "dish.1/Pos0", "right": "dish.1/b/Pos1"}
    spec = sw.AcquisitionSpec(array=layout, images=[sw.Image(name=n, path=p) for n, p in paths.items()])
    with sw.connect(daemon.ipc, transport=transport) as first:
        stream = first.acquire("a", spec)
        for number, name in enumerate(paths):
            stream.append(pixels(layout, number), image=name, metadata={"position_x": 70})
        stream.update_metadata(position={"x": 7, "y": 8}, image="left")
        stream.flush()
    with (
        sw.connect(daemon.ipc, transport=transport) as second,
        second.acquire("b", spec) as stream,
    ):
        assert stream.images.folders == tuple(paths.values())
        for number, name in enumerate(paths):
            stream.append(pixels(layout, number), image=name, metadata={"position_x": 70})
        stream.update_metadata({"seen": True}, image="right", position={"x": -5, "unit": "mm"})
        with pytest.raises(errors.MetadataError, match="the position is of one image"):
            stream.update_metadata(position={"x": 7})
    for name, told in (("a", [[0, 8, 7], [0, 0, 70]]), ("b", [[0, 0, 70], [0, 0, -5000]])):
        store = Path(stream.path).parent / f"{name}.ome.zarr"
        yaozarrs.validate_zarr_store(str(store))
        assert verify_store(store).ok
        for number, path in enumerate(paths.values()):
            group = zarr.open_group(store / path, mode="r")
            assert np.array_equal(group["0"][0], pixels(layout, number))
            (multiscale,) = group.attrs["ome"]["multiscales"]
            found = multiscale["datasets"][0]["coordinateTransformations"][1]["translation"]
            assert found == pytest.approx(told[number])


PLATE = sw.Plate(rows=8, columns=12, fields=4)
PART_OF_A_PLATE = sw.Plate(rows=3, columns=4, fields=4)


def send_fields(stream: sw.Stream, fields: tuple[int, ...], pace: Callable[[], object] = int) -> None:
    """Three channels of two planes of these fields of all wells, one well after the other. ``pace``: called
    before each field."""
    for number, name in enumerate(stream.images.names):
        if int(name[-1]) in fields:
            pace()
            frames = [pixels(stream.images.arrays[number], 6 * number + place) for place in range(6)]
            for place, frame in enumerate(frames[:4]):
                stream.append(frame, image=name, index=divmod(place, 2))
            stream.append_many(frames[4:], image=name, indices=[(2, 0), (2, 1)])


def check_plate(stream: sw.Stream, images: int) -> None:
    """Every pixel of every field, and what other programs and the frame table say of them."""
    receipt, store = stream.receipt, Path(stream.path)
    assert (receipt.frames_stored, receipt.frames_missing, receipt.trouble) == (6 * images, 0, {})
    yaozarrs.validate_zarr_store(str(store))
    assert verify_store(store).ok
    for number, (name, array) in enumerate(zip(stream.images.names, stream.images.arrays, strict=True)):
        found = zarr.open_array(store / name / "0", mode="r")[...]
        expected = np.stack([pixels(array, 6 * number + place) for place in range(6)])
        assert np.array_equal(found, expected.reshape(found.shape)), name
    table = sw.frame_table(store)
    assert table.groupby("image", observed=True).size().eq(6).all()
    assert table.image.nunique() == images


def all_at_once(*works: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(work) for work in works]:
            done.result()


def test_a_plate_whose_fields_come_from_two_cameras_at_once(start, tmp_path):
    """96 wells of 4 fields, in one acquisition: each camera has half of the fields, of the same well. If it
    falls behind by more fields than may be open it is late."""
    spec = sw.AcquisitionSpec(array=array({"c": 3, "z": 2}, (8, 8)), plate=PLATE, order=("p", "c", "z"))
    with sw.connect(start(root=tmp_path / "data").ipc) as connection:
        with connection.acquire("plate", spec) as stream:
            both = threading.Barrier(2, timeout=60)
            all_at_once(*(partial(send_fields, stream, fields, both.wait) for fields in ((0, 1), (2, 3))))
        check_plate(stream, 384)


def test_a_plate_of_each_of_two_cameras_at_once(start, tmp_path):
    """A smaller plate through two cameras of other shapes, each with its own acquisition and connection, one
    through shared memory, one in messages."""
    endpoint = start(root=tmp_path / "data").ipc
    cameras = {"left": array({"c": 3, "z": 2}, (8, 8)), "right": array({"c": 3, "z": 2}, (6, 10), "uint8")}
    streams, transports = {}, dict(zip(cameras, WAYS, strict=True))

    def camera(name: str) -> None:
        spec = sw.AcquisitionSpec(array=cameras[name], plate=PART_OF_A_PLATE, order=("p", "c", "z"))
        with (
            sw.connect(endpoint, transport=transports[name]) as connection,
            connection.acquire(name, spec) as streams[name],
        ):
            send_fields(streams[name], (0, 1, 2, 3))

    all_at_once(*(partial(camera, name) for name in cameras))
    for stream in streams.values():
        check_plate(stream, 48)


def test_a_frame_of_an_image_that_was_not_declared_is_refused_and_the_rest_goes_on(start):
    spec = sw.AcquisitionSpec(array=array({"t": None}), images=["a", "b"])
    with sw.connect(start().ipc) as connection, connection.acquire("a", spec) as stream:
        for image in (None, "c"):
            with pytest.raises(errors.UnknownImageError):
                stream.append(pixels(spec.arrays[0], 0), image=image)
        stream.append(pixels(spec.arrays[0], 0), image="b")
    assert stream.receipt.frames_stored == 1


@pytest.mark.parametrize(
    "position", [2 << IMAGE_SHIFT, (1 << IMAGE_SHIFT) + 5, -1, -(1 << 62), (1 << 63) - 1]
)
def test_positions_outside_every_image_are_a_violation(start, monkeypatch, position):
    spec = sw.AcquisitionSpec(array=array({"t": 5}), images=["a", "b"])
    with sw.connect(start().ipc) as connection:
        stream = connection.acquire("a", spec)
        check = stream._admission._check_of(0)
        monkeypatch.setattr(check, "position", lambda *_: position)
        stream.append(pixels(spec.arrays[0], 0), image="a")
        with pytest.raises(errors.FrameIndexError, match="frame index outside the array"):
            stream.close()


def test_a_client_that_comes_back_names_the_places_of_its_frames(start):
    """Only the daemon knows how many frames of each image came before."""
    spec = sw.AcquisitionSpec(array=array({"t": None}), images=["a", "b"])
    with sw.connect(start().ipc) as connection, connection.acquire("a", spec) as stream:
        stream.append(pixels(spec.arrays[0], 1), image="b")
        stream._admission._first_of = partial(_first_of, 2)  # as of one that has reopened it
        with pytest.raises(errors.FrameIndexError, match="without a place after a reopen"):
            stream.append(pixels(spec.arrays[0], 2), image="a")
        stream.append(pixels(spec.arrays[0], 2), image="b", index=(1,))
    assert stream.receipt.frames_stored == 2
    assert zarr.open_array(Path(stream.path) / "1/0", mode="r").shape == (2, 12, 16)


def test_arrays_as_they_are_stored_and_frames_in_the_order_of_the_acquisition(start):
    """As JSON, which is how configurations and clients of other languages give it."""
    daemon, spec = start(), array({"t": None, "c": 2, "z": 3})
    facts = {"array": spec.model_dump(mode="json"), "images": ["a", "b"], "order": ["t", "p", "z", "c"]}
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", facts) as stream:
        for number in range(24):
            stream.append(pixels(spec, number))
    found = [zarr.open_array(Path(stream.path) / f"{i}/0", mode="r") for i in range(2)]
    assert [each.shape for each in found] == [(2, 2, 3, 12, 16)] * 2
    for number, (t, p, z, c) in enumerate(np.ndindex(2, 2, 3, 2)):
        assert np.array_equal(found[p][t, c, z], pixels(spec, number))


def test_one_image_may_have_an_order_too(start):
    daemon, spec = start(), array({"t": None, "c": 2})
    facts = {"array": array({"c": 2, "t": 3}).model_dump(mode="json"), "order": ["t", "c"]}
    with sw.connect(daemon.ipc) as connection:
        with connection.acquire("a", facts) as stream:
            for number in range(6):
                stream.append(pixels(spec, number))
        with pytest.raises(errors.SpecError, match="every frame axis of every image once"):
            connection.acquire("b", facts | {"order": ["t"]})
    found = zarr.open_array(Path(stream.path) / "0", mode="r")
    assert found.shape == (2, 3, 12, 16)
    assert all(np.array_equal(found[n % 2, n // 2], pixels(spec, n)) for n in range(6))


SMALL_PLATE = sw.Plate(rows=2, columns=2, fields=2)
BAD_SPECS = {
    "two images of one name": ({"images": ["a", "a"]}, "names must differ, got 'a' twice"),
    "an image outside the plate": (
        {"plate": {"rows": 2, "columns": 2, "fields": 2}, "images": ["C/1/0"]},
        "'C/1/0' is no field of the plate",
    ),
    "two rows of one name": ({"plate": {"rows": ["A", "a"], "columns": 2}}, "names must differ"),
    "a well that leaves the store": ({"plate": {"rows": [".."], "columns": 2}}, "not of letters and digits"),
    "an order without the images": ({"images": ["a", "b"], "order": ["t"]}, "'p' for the images, once"),
    "an image of no name": ({"images": [""]}, "name"),
    "images that are a number": ({"images": 7}, "images"),
}
BAD_FRAMES = {
    "an image that was not declared": ({"image": "C"}, errors.UnknownImageError),
    "a well outside the plate": ({"image": "C/1/0"}, errors.UnknownImageError),
    "a field that the well has not": ({"image": "A/1/2"}, errors.UnknownImageError),
    "a well by number": ({"image": 0}, errors.UnknownImageError),
    "an index past its axis": ({"image": "A/1/0", "index": (3,)}, errors.FrameIndexError),
    "an index of too many": ({"image": "A/1/0", "index": (0, 0)}, errors.FrameIndexError),
    "an id past the last": ({"image": "A/1/0", "frame_id": 3}, errors.FrameIndexError),
}


def test_bad_specifications_and_frames_are_typed_errors_and_the_rest_goes_on(start, raw):
    """The specifications as they reach the daemon from any client."""
    daemon, spec = start(), array({"t": 3})
    with (
        sw.connect(daemon.ipc) as connection,
        connection.acquire("good", sw.AcquisitionSpec(array=spec, plate=SMALL_PLATE)) as stream,
    ):
        client = raw(daemon.ipc)
        for number, (name, (more, message)) in enumerate(BAD_SPECS.items()):
            facts = {"array": spec.model_dump(mode="json"), **more}
            with pytest.raises(errors.SpecError, match=message):
                connection.acquire(f"bad-{number}", facts)
            request = {"request": number, "name": f"bad-{number}", "spec": facts, "stream": None}
            client.send(client.connection.control(Kind.OPEN, {**request, "transport": "message"}))
            _, problem = client.receive_error()
            assert (problem["code"], problem["fatal"]) == ("spec", False), name
            assert message in str(problem["got"]), name
        for given, error in BAD_FRAMES.values():
            with pytest.raises(error):
                stream.append(pixels(spec, 0), **given)
        stream.append(pixels(spec, 1), image="B/2/1", index=(2,))
    assert (stream.receipt.frames_received, stream.receipt.frames_stored) == (1, 1)
    assert [path.name for path in Path(stream.path).parent.iterdir() if path.is_dir()] == ["good.ome.zarr"]
    assert np.array_equal(zarr.open_array(Path(stream.path) / "B/2/1/0", mode="r")[2], pixels(spec, 1))


@pytest.mark.parametrize("transport", WAYS)
def test_images_whose_further_axes_have_no_count(start, transport):
    daemon = start()
    spec = sw.AcquisitionSpec(images={"a": array({"t": None, "z": None}), "b": array({"t": None})})
    places = [(t, z) for t, depth in enumerate((3, 1, 4)) for z in range(depth)]
    with (
        sw.connect(daemon.ipc, transport=transport) as connection,
        connection.acquire("a", spec) as stream,
    ):
        with pytest.raises(errors.FrameIndexError, match="Give index"):
            stream.append(pixels(spec.arrays[0], 0), image="a")
        for number, place in enumerate(places):
            stream.append(pixels(spec.arrays[0], number), image="a", index=place)
        stream.append(pixels(spec.arrays[1], 0), image="b")
    found = zarr.open_array(Path(stream.path) / "0" / "0", mode="r")
    assert found.shape[:2] == (3, 4)
    for number, place in enumerate(places):
        assert np.array_equal(found[place], pixels(spec.arrays[0], number))
    assert stream.receipt.images["a"]["frames_missing"] == 0, "nobody knows how many were to come"
    assert verify_store(Path(stream.path)).ok
