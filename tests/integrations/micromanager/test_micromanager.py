"""Micro-Manager's own simulated cameras, driven by a multi-axis useq sequence, into the running daemon."""

import numpy as np
import pytest
import tensorstore
import yaozarrs
from pymmcore_plus.seq_tester import decode_image
from useq import MDASequence

import shardwright as sw

from .runs import run

TIMES, Z_POSITIONS = 3, (-4.0, -2.0, 0.0, 2.0, 4.0)


def spec_of(core, channels, acquired="tcz"):
    """Stored as t, c, z, y, x, as OME asks; acquired in the order named. Chunks and shards divide neither t
    nor z nor the rows."""
    rows, columns = core.getImageHeight(), core.getImageWidth()
    axes = {
        "t": sw.Dimension(name="t", count=None, chunk_size=2, type="time", unit="second"),
        "c": sw.Dimension(name="c", count=channels, chunk_size=1, type="channel"),
        "z": sw.Dimension(
            name="z",
            count=len(Z_POSITIONS),
            chunk_size=2,
            shard_size_chunks=2,
            type="space",
            unit="micrometer",
            scale=2.0,
        ),
    }
    y = sw.Dimension(
        name="y", count=rows, chunk_size=100, shard_size_chunks=2, type="space", unit="micrometer"
    )
    x = sw.Dimension(name="x", count=columns, chunk_size=columns, type="space", unit="micrometer")
    dimensions = [*(axes[name] for name in acquired), y, x]
    return sw.ArraySpec(
        dtype=str(core.getImage().dtype), dimensions=dimensions, storage_order=("t", "c", "z", "y", "x")
    )


def sequence_of(channels, axis_order="tcz"):
    return MDASequence(
        axis_order=axis_order,
        time_plan={"interval": 0, "loops": TIMES},
        channels=[{"group": "Channel", "config": name, "exposure": 1} for name in channels],
        z_plan={"absolute": Z_POSITIONS},
    )


def read(path):
    yaozarrs.validate_zarr_store(str(path))
    store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/0"}}
    return tensorstore.open(store).result().read().result()


def assert_complete(receipt, frames):
    assert (receipt.frames_received, receipt.frames_stored, receipt.frames_durable) == (
        frames,
        frames,
        frames,
    )
    assert (receipt.frames_missing, receipt.frames_duplicate, receipt.frames_late) == (0, 0, 0)


@pytest.fixture
def sequence_tester(core):
    """A camera that writes the state of stage, switcher and itself into its pixels. Channel n sets the
    switcher to n + 1."""
    core.loadDevice("THub", "SequenceTester", "THub")
    core.initializeDevice("THub")
    for device in ("TCamera-0", "TShutter-0", "TZStage-0", "TSwitcher-0"):
        core.loadDevice(device, "SequenceTester", device)
        core.setParentLabel(device, "THub")
        if device == "TCamera-0":
            core.setProperty(device, "ImageMode", "MachineReadable")
            core.setProperty(device, "ImageWidth", 128)
            core.setProperty(device, "ImageHeight", 128)
        core.initializeDevice(device)
    core.setCameraDevice("TCamera-0")
    core.setShutterDevice("TShutter-0")
    core.setFocusDevice("TZStage-0")
    for number, name in enumerate(("red", "green", "blue"), start=1):
        core.defineConfig("Channel", name, "TSwitcher-0", "State", str(number))
    core.snapImage()
    return core


@pytest.mark.parametrize("acquired", ["tcz", "tzc"])
def test_demo_camera_frames_are_stored_as_emitted(demo_camera, connection, acquired):
    """Also where the microscope goes through the channels at each z and the array has its z planes
    together."""
    channels = ("DAPI", "FITC")
    spec = spec_of(demo_camera, len(channels), acquired)
    receipt, emitted = run(
        demo_camera, sequence_of(channels, acquired), lambda _: connection.acquire(f"demo-{acquired}", spec)
    )
    assert_complete(receipt, TIMES * len(channels) * len(Z_POSITIONS))
    pixels = read(receipt.path)
    assert pixels.shape[:3] == (TIMES, len(channels), len(Z_POSITIONS))
    for (_, index), frame in emitted.frames.items():
        place = dict(zip(acquired, index, strict=True))
        np.testing.assert_array_equal(pixels[place["t"], place["c"], place["z"]], frame)


def state_in(image):
    """(number of the image, switcher's state, z in micrometres) as the camera wrote them into the pixels."""
    packet = decode_image(image)
    state = {(setting.device, setting.property): setting.value for setting in packet.current_state}
    return (
        packet.camera_info.serial_img_num,
        state["TSwitcher-0", "Position"],
        state["TZStage-0", "ZPositionUm"],
    )


@pytest.mark.parametrize("axis_order", ["tcz", "tzc"])
def test_sequence_tester_proves_every_frame_at_its_own_index(sequence_tester, connection, axis_order):
    """The oracle is in the stored pixels themselves. Frames that the engine emits in another order than the
    array's axes arrive out of order."""
    channels = ("red", "green", "blue")
    first = state_in(sequence_tester.getImage())[0] + 1
    spec = spec_of(sequence_tester, len(channels))
    receipt, _ = run(
        sequence_tester,
        sequence_of(channels, axis_order),
        lambda _: connection.acquire(f"tester-{axis_order}", spec),
    )
    assert_complete(receipt, TIMES * len(channels) * len(Z_POSITIONS))
    pixels = read(receipt.path)
    assert pixels.shape[:3] == (TIMES, len(channels), len(Z_POSITIONS))
    shape = dict(zip("tcz", pixels.shape, strict=False))
    for index in np.ndindex(pixels.shape[:3]):
        place = dict(zip("tcz", index, strict=True))
        arrival = np.ravel_multi_index(
            [place[axis] for axis in axis_order], [shape[axis] for axis in axis_order]
        )
        number, switcher, z = state_in(pixels[index])
        assert (number - first, switcher, z) == (arrival, place["c"] + 1, Z_POSITIONS[place["z"]])
