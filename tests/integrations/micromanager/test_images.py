"""Sequences of stage positions, grids and plates with Micro-Manager's simulated microscope: each position and
tile is an image of one store."""

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import yaozarrs
import zarr
from tests.properties.readers import READERS
from useq import MDASequence, Position, WellPlatePlan

import shardwright as sw
from shardwright.read.verify_store import verify_store

from .bridge import Images, acquire

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


def sequence_of(axis_order, **more):
    plans = {"stage_positions": POSITIONS, "channels": CHANNELS, "time_plan": TIMES, "z_plan": PLANES}
    return MDASequence(axis_order=axis_order, **(plans | more))


def check(store, receipt, images, frames, sequence):
    """Every frame is in its image, by all readers, nothing else is there, and the frame table tells the stage
    position at which it was taken."""
    yaozarrs.validate_zarr_store(str(store))
    assert verify_store(store).ok
    spec = images.spec
    assert (receipt.frames_stored, receipt.frames_durable) == (len(frames), len(frames))
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
            expected[index] = frame
        skipped += math.prod(expected.shape[:-2]) - len(taken)
        names = [d.name for d in array.dimensions]
        expected = expected.transpose([names.index(d.name) for d in array.stored_dimensions])
        for reader, read in READERS.items():
            np.testing.assert_array_equal(read(store / path), expected, err_msg=f"{reader} of {name}")
    assert receipt.frames_missing == skipped
    rows = sw.frame_table(store).to_dict("records")
    assert len(rows) == len(frames)
    axes = {images.names[key]: axes for key, axes in images.axes.items()}
    taken_at = {
        (name, tuple(row[f"index_{axis}"] for axis in axes[name])): (row["position_x"], row["position_y"])
        for row in rows
        for name in (row.get("image"),)
    }
    for event in sequence:
        if event.x_pos is not None:
            expected = pytest.approx((event.x_pos, event.y_pos), abs=0.1)
            assert taken_at[images.place(event)] == expected, event.index


def written(folder, camera, sequence):
    images = Images(sequence, camera)
    with sw.create(folder / "mda.ome.zarr", images.spec, threads=2) as writer:
        frames = acquire(camera, sequence, images, writer)
    check(writer.path, writer.receipt, images, frames, sequence)
    return writer, images, frames


@pytest.mark.parametrize("axis_order", ORDERS)
def test_every_order_of_positions_channels_times_and_planes(tmp_path, camera, axis_order):
    """With an autofocus offset: the engine focuses when it comes to a position, which is no frame."""
    autofocus = {"autofocus_motor_offset": 25, "axes": ("p",)}
    sequence = sequence_of(axis_order, autofocus_plan=autofocus)
    assert {event.action.type for event in sequence} == {"acquire_image", "hardware_autofocus"}
    writer, images, frames = written(tmp_path, camera, sequence)
    assert images.spec.names == ("p0_left", "p1", "p2")
    assert len(frames) == 3 * 2 * 2 * 3
    assert images.spec.order == tuple(axis_order)
    group = zarr.open_group(writer.path / "p1", mode="r").attrs["ome"]
    assert [channel["label"] for channel in group["omero"]["channels"]] == ["DAPI", "FITC"]
    assert group["multiscales"][0]["axes"][-1] == {"name": "x", "type": "space", "unit": "micrometer"}


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
    writer, _, _ = written(tmp_path, camera, sequence)
    frames = sw.frame_table(writer.path)
    for image, z_step in (("p0_left", 0.5), ("p1", 1.5)):
        ome = zarr.open_group(writer.path / image, mode="r").attrs["ome"]
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
    spec = Images(sequence_of("tpcz", time_plan=uneven), camera).spec
    assert {d.name: d.scale for d in spec.arrays[0].dimensions}["t"] == 1
    assert {d.name: d.scale for d in spec.arrays[0].dimensions}["z"] == 1, "which is its step"


@pytest.mark.parametrize("axis_order", GRID_ORDERS[::7])
def test_orders_with_a_grid_at_each_position(tmp_path, camera, axis_order):
    """An image for each tile, wherever the engine goes through tiles and positions."""
    sequence = sequence_of(axis_order, grid_plan=GRID, stage_positions=POSITIONS[:2], z_plan=None)
    _, images, frames = written(tmp_path, camera, sequence)
    assert sorted(images.spec.names) == ["p0_g0_left", "p0_g1_left", "p1_g0", "p1_g1"]
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
    writer, images, _ = written(tmp_path, camera, sequence)
    assert sorted(images.spec.names) == ["p0_left", "p1", "p2", "p3_g0", "p3_g1"]
    planes = [d.count for d in images.spec.arrays[2].dimensions if d.name == "z"]
    assert planes == [5]
    assert writer.receipt.frames_missing > 0, "FITC has one plane"


def test_a_single_position_is_a_store_of_one_image(tmp_path, camera):
    sequence = sequence_of("tpcz", stage_positions=())
    writer, images, _ = written(tmp_path, camera, sequence)
    assert images.spec.is_single
    assert (writer.path / "0/zarr.json").exists()


def plate_of(**more):
    return WellPlatePlan(plate="96-well", a1_center_xy=(0, 0), selected_wells=([0, 0, 7], [0, 3, 11]), **more)


@pytest.mark.parametrize("axis_order", ["tpgcz", "ptcz", "ctpz"])
def test_a_plate_of_wells_and_fields(tmp_path, camera, axis_order):
    sequence = sequence_of(axis_order, stage_positions=plate_of(well_points_plan=GRID))
    writer, _, frames = written(tmp_path, camera, sequence)
    assert sorted({image for image, _ in frames}) == ["A/1/0", "A/1/1", "A/4/0", "A/4/1", "H/12/0", "H/12/1"]
    plate = zarr.open_group(writer.path, mode="r").attrs["ome"]["plate"]
    assert [well["path"] for well in plate["wells"]] == ["A/1", "A/4", "H/12"]


@pytest.mark.parametrize("plan", [POSITIONS, plate_of(well_points_plan=GRID)], ids=["positions", "plate"])
@pytest.mark.parametrize("axis_order", ["tpcz", "zpct"])
def test_through_the_daemon(camera, connection, plan, axis_order):
    sequence = sequence_of(axis_order, stage_positions=plan)
    images = Images(sequence, camera)
    name = f"mda-{axis_order}-{len(plan)}"
    with connection.acquire(name, images.spec) as stream:
        frames = acquire(camera, sequence, images, stream)
    check(Path(stream.path), stream.receipt, images, frames, sequence)
