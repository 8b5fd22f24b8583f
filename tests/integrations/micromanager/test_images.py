"""Sequences of stage positions, grids and plates with Micro-Manager's simulated microscope: each position and
tile is an image of one store."""

import math
from functools import partial
from itertools import count, permutations
from pathlib import Path
from queue import Queue
from unittest.mock import Mock

import numpy as np
import pytest
import yaozarrs
import zarr
from pymmcore_plus.mda import mda_listeners_connected
from tests.properties.readers import READERS
from useq import AcquireImage, MDAEvent, MDASequence, Position, WellPlatePlan

import shardwright as sw
from shardwright.integrations.micromanager import EventImages, SequenceImages, acquire
from shardwright.read.verify_store import verify_store

from .runs import Emitted, axes_of, image_info, run

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
POSITIONS = [
    {"x": 0, "y": 0, "z": 10, "name": "left"},
    {"x": 200, "y": 0, "z": 20},
    {"x": 400, "y": 0, "z": 30},
]
CHANNELS = [{"config": "DAPI", "exposure": 1}, {"config": "FITC", "exposure": 1}]
TIMES = {"interval": 0, "loops": 2}
PLANES = {"range": 2, "step": 1}  # three, about the position's own z
GRID = {"rows": 1, "columns": 2}
ORDERS = ["".join(order) for order in permutations("tpcz")]
GRID_ORDERS = ["".join(order) for order in permutations("tpgcz")]


@pytest.fixture
def camera(demo_camera):
    demo_camera.setProperty("Camera", "OnCameraCCDXSize", "32")
    demo_camera.setProperty("Camera", "OnCameraCCDYSize", "24")
    demo_camera.setProperty("XY", "Velocity", "1000000")  # from one end of a plate to the other
    demo_camera.snapImage()
    return demo_camera


EVERY_TWO_SECONDS = {"interval": 2, "loops": 7}


def sequence_of(axis_order, **more):
    plans = {"stage_positions": POSITIONS, "channels": CHANNELS, "time_plan": TIMES, "z_plan": PLANES}
    return MDASequence(axis_order=axis_order, **(plans | more))


def check(store, receipt, spec, emitted, sequence):
    """Every frame is in its image, by all readers, nothing else is there, and the frame table tells the stage
    position at which it was taken."""
    yaozarrs.validate_zarr_store(str(store))
    assert verify_store(store).ok
    frames, colours = emitted.frames, spec.frame_places
    rows_of_frames = len(frames) * colours
    assert (receipt.frames_stored, receipt.frames_durable) == (rows_of_frames, rows_of_frames)
    assert receipt.trouble.keys() <= {"frames_missing"}, "planes and channels that the sequence skips"
    assert len({frame.tobytes() for frame in frames.values()}) == len(frames), "the camera's frames differ"
    skipped = 0
    for number, (name, path) in enumerate(zip(spec.names, spec.paths, strict=True)):
        taken = {index: frame for (image, index), frame in frames.items() if image in (name, None)}
        assert (store / path).exists() == bool(taken), name
        if not taken:
            continue
        array = spec.arrays[number]
        expected = np.zeros([d.count for d in array.dimensions], array.dtype)
        for index, frame in taken.items():
            expected[index] = frame if colours == 1 else np.moveaxis(frame, -1, 0)
        skipped += math.prod(expected.shape[:-2]) - len(taken) * colours
        names = [d.name for d in array.dimensions]
        expected = expected.transpose([names.index(d.name) for d in array.stored_dimensions])
        for reader, read in READERS.items():
            np.testing.assert_array_equal(read(store / path), expected, err_msg=f"{reader} of {name}")
    assert receipt.frames_missing == skipped
    rows = sw.frame_table(store).to_dict("records")
    assert len(rows) == rows_of_frames
    axes = {name or None: axes_of(array) for name, array in zip(spec.names, spec.arrays, strict=True)}
    taken_at = {
        (name, tuple(row[f"index_{axis}"] for axis in axes[name])): (row["position_x"], row["position_y"])
        for row in rows
        for name in (row.get("image"),)
    }
    for event in sequence:
        if event.x_pos is not None and isinstance(event.action, AcquireImage):
            expected = pytest.approx((event.x_pos, event.y_pos), abs=0.1)
            assert taken_at[emitted.place(event)] == expected, event.index


def written(folder, camera, sequence):
    receipt, emitted = run(camera, sequence, folder / "mda.ome.zarr")
    spec = emitted.images.spec
    check(Path(receipt.path), receipt, spec, emitted, sequence)
    return Path(receipt.path), receipt, spec, emitted.frames


@pytest.mark.parametrize("axis_order", ORDERS)
def test_every_order_of_positions_channels_times_and_planes(tmp_path, camera, axis_order):
    """With an autofocus offset: the engine focuses when it comes to a position, which is no frame."""
    autofocus = {"autofocus_motor_offset": 25, "axes": ("p",)}
    sequence = sequence_of(axis_order, autofocus_plan=autofocus)
    assert {event.action.type for event in sequence} == {"acquire_image", "hardware_autofocus"}
    store, _, spec, frames = written(tmp_path, camera, sequence)
    assert spec.names == ("p0_left", "p1", "p2")
    assert len(frames) == 3 * 2 * 2 * 3
    assert spec.order == tuple(axis_order)
    attributes = zarr.open_group(store / "p1", mode="r").attrs
    assert attributes["autofocus"]["autofocus_motor_offset"] == 25
    group = attributes["ome"]
    assert [channel["label"] for channel in group["omero"]["channels"]] == ["DAPI", "FITC"]
    assert group["multiscales"][0]["axes"][-1] == {"name": "x", "type": "space", "unit": "micrometer"}


@pytest.mark.parametrize("is_own", [False, True], ids=["of the sequence", "of a position"])
def test_the_engine_focuses_as_without_us_and_frames_have_the_z_that_was_found(
    tmp_path, camera, monkeypatch, is_own
):
    """Looking through a sequence is no run of it: useq's plan remembers where it focused."""
    focus = Mock(side_effect=lambda: camera.setZPosition(camera.getZPosition() + 50))
    monkeypatch.setattr(camera, "fullFocus", focus)
    plan = {"autofocus_motor_offset": 25, "axes": ("p",)}
    own = [{"x": 0, "y": 0, "z": 10, "sequence": {"autofocus_plan": plan}}]
    plans = {"stage_positions": own} if is_own else {"stage_positions": [(0, 0, 10)], "autofocus_plan": plan}
    sequence = sequence_of("tpcz", time_plan=None, channels=(), **plans)
    store, _, _, _ = written(tmp_path, camera, sequence)
    assert focus.call_count == 1
    found = sw.frame_table(store)["position_z"]
    assert found.max() > 50
    (multiscale,) = zarr.open_group(store / "p0", mode="r").attrs["ome"]["multiscales"]
    _, translation = multiscale["datasets"][0]["coordinateTransformations"]
    assert translation["translation"][0] == pytest.approx(found[0])


def test_steps_of_time_and_z_and_exposures_are_in_the_metadata(tmp_path, camera):
    """Also of a position with planes of its own; times that are not evenly apart have no step."""
    channels = [CHANNELS[0], CHANNELS[1] | {"exposure": 2.5}]
    own = Position(x=600, y=0, z=40, sequence={"z_plan": {"range": 3, "step": 1.5}})
    sequence = sequence_of(
        "tpcz",
        channels=channels,
        stage_positions=[POSITIONS[0], own],
        time_plan={"interval": 0.05, "loops": 3},
        z_plan={"range": 1, "step": 0.5},
    )
    store, _, _, _ = written(tmp_path, camera, sequence)
    frames = sw.frame_table(store)
    for image, z_step in (("p0_left", 0.5), ("p1", 1.5)):
        ome = zarr.open_group(store / image, mode="r").attrs["ome"]
        (multiscale,) = ome["multiscales"]
        units = [axis.get("unit") for axis in multiscale["axes"]]
        assert units == ["second", None, "micrometer", "micrometer", "micrometer"]
        scale, translation = multiscale["datasets"][0]["coordinateTransformations"]
        pixel = camera.getPixelSizeUm() or 1
        assert scale["scale"] == pytest.approx([0.05, 1, z_step, pixel, pixel])
        first = frames[frames["image"] == multiscale["name"]].iloc[0]
        where = [first[f"position_{axis}"] for axis in "zyx"]
        assert translation["translation"] == pytest.approx([0, 0, *where]), "of its first frame"
        assert [channel["exposure_ms"] for channel in ome["omero"]["channels"]] == [1, 2.5]
    uneven = {"phases": [{"interval": 1, "loops": 2}, {"interval": 3, "loops": 2}]}
    spec = SequenceImages(sequence_of("tpcz", time_plan=uneven), image_info(camera)).spec
    assert {d.name: d.scale for d in spec.arrays[0].dimensions}["t"] == 1
    assert {d.name: d.scale for d in spec.arrays[0].dimensions}["z"] == 1, "which is its step"
    every = sequence_of("tpcz", channels=[CHANNELS[0] | {"acquire_every": 3}], time_plan=EVERY_TWO_SECONDS)
    times = SequenceImages(every, image_info(camera)).spec.arrays[0].dimensions[0]
    assert (times.count, times.scale) == (7, 2), "the step between indices, of which it takes every third"


@pytest.mark.parametrize("axis_order", GRID_ORDERS[::7])
def test_orders_with_a_grid_at_each_position(tmp_path, camera, axis_order):
    """An image for each tile, wherever the engine goes through tiles and positions."""
    sequence = sequence_of(axis_order, grid_plan=GRID, stage_positions=POSITIONS[:2], z_plan=None)
    _, _, spec, frames = written(tmp_path, camera, sequence)
    assert sorted(spec.names) == ["p0_g0_left", "p0_g1_left", "p1_g0", "p1_g1"]
    assert len(frames) == 2 * 2 * 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("axis_order", GRID_ORDERS)
def test_every_order_with_a_grid_at_each_position(tmp_path, camera, axis_order):
    written(tmp_path, camera, sequence_of(axis_order, grid_plan=GRID))


@pytest.mark.parametrize("axis_order", ["tpcz", "ptzc", "pcz", "cpz"])
def test_positions_with_plans_of_their_own(tmp_path, camera, axis_order):
    """More planes at one, its own grid at another; channels that skip times and planes."""
    channels = [CHANNELS[0], CHANNELS[1] | {"do_stack": False}]
    others = [
        Position(x=600, y=0, z=40, sequence={"z_plan": {"range": 4, "step": 1}}),
        Position(x=800, y=0, z=50, sequence={"grid_plan": GRID}),
    ]
    more = {} if "t" in axis_order else {"time_plan": None}
    sequence = sequence_of(axis_order, channels=channels, stage_positions=POSITIONS[:2] + others, **more)
    _, receipt, spec, _ = written(tmp_path, camera, sequence)
    assert sorted(spec.names) == ["p0_left", "p1", "p2", "p3_g0", "p3_g1"]
    planes = [d.count for d in spec.arrays[2].dimensions if d.name == "z"]
    assert planes == [5]
    assert receipt.frames_missing > 0, "FITC has one plane"


def test_a_single_position_is_a_store_of_one_image(tmp_path, camera):
    sequence = sequence_of("tpcz", stage_positions=())
    store, _, spec, _ = written(tmp_path, camera, sequence)
    assert spec.is_single
    assert (store / "0/zarr.json").exists()
    assert zarr.open_group(store, mode="r").attrs["pymmcore_plus"]["summary_metadata"]["devices"]


def plate_of(**more):
    return WellPlatePlan(plate="96-well", a1_center_xy=(0, 0), selected_wells=([0, 0, 7], [0, 3, 11]), **more)


@pytest.mark.parametrize("axis_order", ["tpgcz", "ptcz", "ctpz"])
def test_a_plate_of_wells_and_fields(tmp_path, camera, axis_order):
    sequence = sequence_of(axis_order, stage_positions=plate_of(well_points_plan=GRID))
    store, _, _, frames = written(tmp_path, camera, sequence)
    assert sorted({image for image, _ in frames}) == ["A/1/0", "A/1/1", "A/4/0", "A/4/1", "H/12/0", "H/12/1"]
    plate = zarr.open_group(store, mode="r").attrs["ome"]["plate"]
    assert [well["path"] for well in plate["wells"]] == ["A/1", "A/4", "H/12"]


@pytest.mark.parametrize("plan", [POSITIONS, plate_of(well_points_plan=GRID)], ids=["positions", "plate"])
@pytest.mark.parametrize("axis_order", ["tpcz", "zpct"])
def test_through_the_daemon(camera, connection, plan, axis_order):
    sequence = sequence_of(axis_order, stage_positions=plan)
    receipt, emitted = run(camera, sequence, partial(connection.acquire, f"mda-{axis_order}-{len(plan)}"))
    check(Path(receipt.path), receipt, emitted.images.spec, emitted, sequence)


@pytest.fixture(params=["32bitRGB", "64bitRGB"])
def colour_camera(camera, request):
    camera.setProperty("Camera", "PixelType", request.param)
    camera.setProperty("Camera", "Mode", "Color Test Pattern")
    camera.snapImage()
    return camera


@pytest.mark.parametrize("more", [{"stage_positions": ()}, {}], ids=["single", "positions"])
def test_colours_are_the_channels_red_green_and_blue(tmp_path, colour_camera, more, monkeypatch):
    """Each optical channel is an image then. The camera's test pattern is the same each time: the property
    that the frames differ is given to it by the test."""
    sequence = sequence_of("tpcz", z_plan=None, **more)
    numbers = count(1)
    take = colour_camera.getImage
    monkeypatch.setattr(colour_camera, "getImage", lambda *a, **k: marked(take(*a, **k), next(numbers)))
    store, receipt, spec, frames = written(tmp_path, colour_camera, sequence)
    names = [name for name, _ in frames]
    assert sorted(set(names)) == (
        ["c0", "c1"]
        if more
        else [f"p{p}_c{c}{n}" for p, n in ((0, "_left"), (1, ""), (2, "")) for c in (0, 1)]
    )
    channels = zarr.open_group((store / spec.paths[0]).parent, mode="r").attrs["ome"]["omero"]["channels"]
    assert [channel["color"] for channel in channels] == ["FF0000", "00FF00", "0000FF"]
    assert receipt.frames_received == 3 * len(frames)


def marked(frame, number):
    frame[0, 0] = number
    return frame


def test_colours_through_the_daemon(camera, connection):
    camera.setProperty("Camera", "PixelType", "32bitRGB")
    camera.setProperty("Camera", "Mode", "Noise")
    sequence = sequence_of("tpcz", stage_positions=(), channels=(), z_plan=None)
    receipt, emitted = run(camera, sequence, partial(connection.acquire, "mda-colours"))
    pixels = READERS["tensorstore"](Path(receipt.path) / "0")
    for (_, (t,)), frame in emitted.frames.items():
        np.testing.assert_array_equal(np.moveaxis(frame, -1, 0), pixels[t])


@pytest.mark.parametrize("is_sequenced", [False, True])
def test_each_camera_has_its_own_images(tmp_path, camera, is_sequenced):
    camera.loadDevice("Camera2", "DemoCamera", "DCam")
    camera.loadDevice("Both", "Utilities", "Multi Camera")
    for device in ("Both", "Camera2"):
        camera.initializeDevice(device)
    for name, value in {
        "Mode": "Noise",
        "OnCameraCCDXSize": "32",
        "OnCameraCCDYSize": "24",
        "PixelType": "8bit",
    }.items():
        for device in ("Camera", "Camera2"):
            camera.setProperty(device, name, value)
    for number in (1, 2):
        camera.setProperty("Both", f"Physical Camera {number}", "Camera2" if number == 2 else "Camera")
    camera.setCameraDevice("Both")
    camera.mda.engine.use_hardware_sequencing = is_sequenced
    sequence = sequence_of("tpcz", z_plan=None, stage_positions=POSITIONS[:2])
    receipt, emitted = run(camera, sequence, tmp_path / "both.ome.zarr")
    assert sorted({image for image, _ in emitted.frames}) == [
        "p0_cam0_left",
        "p0_cam1_left",
        "p1_cam0",
        "p1_cam1",
    ]
    for (image, index), frame in emitted.frames.items():
        np.testing.assert_array_equal(sw.open_array(tmp_path / "both.ome.zarr" / image)[index], frame)
    assert receipt.frames_stored == len(emitted.frames) == 2 * 2 * 2 * 2


def queued(events):
    """As an experiment that decides while it runs puts them."""
    waiting = Queue()
    for event in (*events, None):
        waiting.put(event)
    return iter(waiting.get, None)


@pytest.mark.parametrize("where", ["in process", "daemon"])
def test_events_of_a_queue_add_images(tmp_path, camera, connection, where):
    """An overview, and a stack wherever it shows something; later events may name a place again."""
    overview = [MDAEvent(index={"t": t}, x_pos=0, y_pos=0, z_pos=0, pos_name="overview") for t in range(4)]
    cell = [
        MDAEvent(index={"t": 0, "z": z}, x_pos=50, y_pos=60, z_pos=z, pos_name="cell 7", channel="DAPI")
        for z in range(3)
    ]
    events = [*overview[:2], *cell[:2], overview[2], cell[2], overview[3]]
    output = (
        tmp_path / "queue.ome.zarr" if where == "in process" else partial(connection.acquire, "mda-queue")
    )
    receipt, emitted = run(camera, queued(events), output)
    assert receipt.frames_stored == len(emitted.frames) == 7
    assert not receipt.trouble
    assert {name: account["frames_stored"] for name, account in receipt.images.items()} == {
        "overview": 4,
        "cell 7": 3,
    }
    store = Path(receipt.path)
    yaozarrs.validate_zarr_store(str(store))
    for name, folder in (("overview", "0"), ("cell 7", "1")):
        pixels = READERS["tensorstore"](store / folder / "0")
        for (image, index), frame in emitted.frames.items():
            if image == name:
                np.testing.assert_array_equal(pixels[index], frame)
    (multiscale,) = zarr.open_group(store / "1", mode="r").attrs["ome"]["multiscales"]
    translation = multiscale["datasets"][0]["coordinateTransformations"][1]["translation"]
    assert translation == [0, 0, 60, 50]


@pytest.mark.parametrize("where", ["in process", "daemon"])
def test_events_of_a_queue_have_channels_and_images_their_own_axes(tmp_path, camera, connection, where):
    """Also an image that is added with fewer axes than the first one began with."""
    colours = [MDAEvent(index={"t": t, "c": c, "z": 0}, pos_name="a") for t in range(3) for c in range(2)]
    events = [*colours, *(MDAEvent(index={"t": t}, pos_name="b") for t in range(5)), MDAEvent(pos_name="c")]
    output = tmp_path / "axes.ome.zarr" if where == "in process" else partial(connection.acquire, "mda-axes")
    receipt, emitted = run(camera, queued(events), output)
    assert (receipt.frames_stored, receipt.trouble) == (len(events), {})
    store = Path(receipt.path)
    yaozarrs.validate_zarr_store(str(store))
    for folder, (name, shape) in enumerate({"a": (3, 2, 1), "b": (5,), "c": (1,)}.items()):
        pixels = READERS["tensorstore"](store / str(folder) / "0")
        assert pixels.shape[:-2] == shape
        for (image, index), frame in emitted.frames.items():
            if image == name:
                np.testing.assert_array_equal(pixels[index], frame)


def test_events_without_an_index_are_counted(tmp_path, camera):
    receipt, emitted = run(camera, queued([MDAEvent() for _ in range(3)]), tmp_path / "plain.ome.zarr")
    pixels = READERS["tensorstore"](Path(receipt.path) / "0/0")
    assert pixels.shape == (3, 24, 32)
    for (_, (t,)), frame in emitted.frames.items():
        np.testing.assert_array_equal(pixels[t], frame)


def test_no_frame_is_copied_in_process(tmp_path, camera, monkeypatch):
    writers, asked, append = [], [], sw.Writer.append

    def open_(spec):
        writers.append(sw.create(tmp_path / "a.ome.zarr", spec))
        return writers[0]

    def listening(writer, *arguments, copy=True, **options):
        asked.append(copy)
        append(writer, *arguments, copy=copy, **options)

    monkeypatch.setattr(sw.Writer, "append", listening)
    receipt, _ = run(camera, sequence_of("tpcz"), open_)
    assert asked == [False] * 36
    assert (receipt.frames_stored, writers[0].copied) == (36, 0), "each could be read as it lay"


@pytest.mark.parametrize("where", ["in process", "daemon"])
def test_the_first_error_ends_the_run(tmp_path, camera, connection, where):
    """The camera's binning changes under way: frames of another shape. What came before is sealed."""
    events = [MDAEvent(index={"t": t}) for t in range(6)]
    events[3] = events[3].model_copy(update={"properties": [("Camera", "Binning", "2")]})
    path = tmp_path / "short.ome.zarr"
    emitted = Emitted(EventImages(image_info(camera)))
    output = path if where == "in process" else partial(connection.acquire, "mda-short")
    with (
        mda_listeners_connected(emitted, mda_events=camera.mda.events, asynchronous=False),
        pytest.raises(sw.errors.FrameShapeError),
    ):
        acquire(camera, queued(events), output)
    assert emitted.events == 4
    if where == "daemon":
        with connection.acquire("mda-short", reopen=True) as stream:
            path = Path(stream.path)
    assert READERS["tensorstore"](path / "0/0").shape == (3, 24, 32)
    assert verify_store(path).ok


def test_a_name_that_is_taken_is_told_before_the_run(tmp_path, camera):
    (tmp_path / "taken.ome.zarr").mkdir()
    (tmp_path / "taken.ome.zarr/file").touch()
    began = []
    camera.mda.events.sequenceStarted.connect(lambda *_: began.append(1))
    with pytest.raises(sw.errors.OutputExistsError):
        acquire(camera, sequence_of("tpcz"), tmp_path / "taken.ome.zarr")
    assert not began


def test_a_sequence_without_an_image_is_refused(tmp_path, camera):
    with pytest.raises(sw.errors.SpecError, match="takes no image"):
        acquire(camera, MDASequence(), tmp_path / "empty.ome.zarr")


def test_a_cancelled_run_is_sealed(tmp_path, camera):
    receipt, _ = run(
        camera,
        sequence_of("tpcz"),
        tmp_path / "cancelled.ome.zarr",
        on_frame=lambda frames, expected: camera.mda.cancel() if (frames, expected) == (5, 36) else None,
    )
    assert receipt.frames_stored == 5
    assert verify_store(receipt.path).ok
