"""The image writer for mesoSPIM-control, found in its folder and driven as the program does."""

import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import yaozarrs
import zarr
from tests.harness.daemon import serving
from tests.harness.json_process import TIMEOUT_S, environment
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.integrations import mesospim
from shardwright.read.verify_store import verify_store

from . import interface

CONFIG = """
output: {root: data, create: true, in_memory: true}
ingest: {endpoints: ["ipc://ingest.sock"]}
workers: {threads: 2}
memory: {budget: 1GiB}
"""
MODULE = "mesoSPIM.src.plugins.ImageWriterApi"


@pytest.fixture
def kind(monkeypatch):
    """The writer, from the folder that the configuration names."""
    parts = MODULE.split(".")
    for depth in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), types.ModuleType(parts[depth - 1]))
    monkeypatch.setitem(sys.modules, MODULE, interface)
    return interface.writers_in(mesospim.FOLDER)["Shardwright_Writer"]


class Camera:
    """Frames that are all different; ``frames``: those that were taken, as the program turns them."""

    shape = (48, 64)

    def __init__(self):
        self._rng = np.random.default_rng(1)
        self.frames = []

    def take(self):
        frame = self._rng.integers(0, 4000, self.shape, dtype=np.uint16)
        self.frames.append(frame.T[::-1])
        return frame


@pytest.fixture
def camera():
    return Camera()


def row(folder, **more):
    usual = {"x_pos": 0.0, "y_pos": 100.0, "z_start": 10, "z_end": 40, "z_step": 5, "rot": 0, "zoom": "2x"}
    lights = {
        "laser": "488 nm",
        "filter": "515LP",
        "shutterconfig": "Left",
        "intensity": 10,
        "etl_l_offset": 2.5,
    }
    return usual | lights | {"folder": str(folder), "filename": "brain.ome.zarr", "processing": "MAX"} | more


def tiles_and_lasers(folder, *, lasers_last=True):
    """Two tiles, two lasers; the second tile from the right, at an angle."""
    tiles = [{}, {"x_pos": 500.5, "shutterconfig": "Right", "rot": -22.5}]
    lasers = [{"laser": "488 nm"}, {"laser": "561 nm", "filter": "Empty"}]
    if lasers_last:
        return [row(folder, **tile, **laser) for tile in tiles for laser in lasers]
    return [row(folder, **tile, **laser) for laser in lasers for tile in tiles]


def assert_holds(store, rows, frames):
    """Each stack is in its channel of its image."""
    yaozarrs.validate_zarr_store(str(store))
    assert verify_store(store).ok
    expected = {}
    taken = iter(frames)
    for each in rows:
        name = "Tile0_ShLeft_Rot0" if each["x_pos"] == 0 else "Tile1_ShRight_Rot-22_5"
        stack = np.stack([next(taken) for _ in range(interface.planes_of(each))])
        expected.setdefault(name, []).append(stack)
    for name, stacks in expected.items():
        for reader, read in READERS.items():
            np.testing.assert_array_equal(
                read(store / name / "0"), np.stack(stacks), err_msg=f"{reader} of {name}"
            )


@pytest.mark.parametrize("lasers_last", [True, False], ids=["tile by tile", "laser by laser"])
def test_tiles_shutters_and_angles_are_images_and_lasers_are_channels(tmp_path, kind, camera, lasers_last):
    rows = tiles_and_lasers(tmp_path, lasers_last=lasers_last)
    writer = interface.run(kind, rows, camera)
    store = tmp_path / "brain.ome.zarr"
    assert writer.receipt.frames_stored == len(camera.frames) == 4 * 7
    assert not writer.receipt.trouble
    assert_holds(store, rows, camera.frames)
    second = zarr.open_group(store / "Tile1_ShRight_Rot-22_5", mode="r").attrs
    (multiscale,) = second["ome"]["multiscales"]
    scale, translation = multiscale["datasets"][0]["coordinateTransformations"]
    assert scale["scale"] == [1, 5, 0.5, 0.5]
    assert translation["translation"] == [0, 10, 100, 500.5]
    labels = [channel["label"] for channel in second["ome"]["omero"]["channels"]]
    assert labels == ["488 nm 515LP", "561 nm Empty"]
    assert [told["laser"] for told in second["mesoSPIM"]] == ["488 nm", "561 nm"]
    assert second["mesoSPIM"][0]["etl_l_offset"] == 2.5
    table = sw.frame_table(store)
    assert table["position_z"].tolist()[:7] == [10, 15, 20, 25, 30, 35, 40]
    assert len(list(tmp_path.glob("brain.ome.zarr_*_meta.txt"))) == 4


@pytest.fixture
def endpoint(tmp_path):
    config = tmp_path / "daemon.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    with serving(config) as daemon:
        yield daemon.endpoint


def test_through_a_daemon(tmp_path, kind, camera, endpoint):
    rows = tiles_and_lasers(tmp_path)
    writer = interface.run(kind, rows, camera, config={"daemon": endpoint})
    store = Path(writer.receipt.path)
    assert store.name.startswith("brain")
    assert not (tmp_path / "brain.ome.zarr").exists()
    assert_holds(store, rows, camera.frames)


def test_stop_through_a_daemon(tmp_path, kind, camera, endpoint):
    rows = tiles_and_lasers(tmp_path)
    writer = interface.run(kind, rows, camera, config={"daemon": endpoint}, stop_at=10)
    assert writer.receipt.frames_stored == 10
    assert verify_store(writer.receipt.path).ok


CLIENT_ALONE = """
import json, sys, types
for name in ("blosc2", "crc32c", "numba", "structlog", "yaml", "zarr"):
    sys.modules[name] = None
from tests.integrations.mesospim import interface
for name in ("mesoSPIM", "mesoSPIM.src", "mesoSPIM.src.plugins"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["mesoSPIM.src.plugins.ImageWriterApi"] = interface
from shardwright.integrations import mesospim
kind = interface.writers_in(mesospim.FOLDER)["Shardwright_Writer"]
import numpy as np
class Camera:
    shape = (48, 64)
    def take(self):
        return np.full(self.shape, 7, np.uint16)
rows, endpoint = json.loads(sys.argv[1])
print(interface.run(kind, rows, Camera(), config={"daemon": endpoint}).receipt.to_json())
"""


def test_the_client_alone_suffices(tmp_path, endpoint):
    """Without the daemon's packages."""
    told = json.dumps([tiles_and_lasers(tmp_path), endpoint])
    command = [sys.executable, "-c", CLIENT_ALONE, told]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    receipt = json.loads(done.stdout)
    assert receipt["frames_stored"] == 28
    assert (sw.open_array(f"{receipt['path']}/Tile0_ShLeft_Rot0")[...] == 7).all()


@pytest.mark.parametrize("stop_at", [0, 3, 7, 17])
def test_stop_seals_what_is_there(tmp_path, kind, camera, stop_at):
    rows = tiles_and_lasers(tmp_path)
    writer = interface.run(kind, rows, camera, stop_at=stop_at)
    store = tmp_path / "brain.ome.zarr"
    assert store.exists() == (stop_at > 0), "a store without a frame is removed"
    if stop_at:
        assert writer.receipt.frames_stored == stop_at
        assert verify_store(store).ok
        first = sw.open_array(store / "Tile0_ShLeft_Rot0")[0]
        for plane, frame in enumerate(camera.frames[: min(stop_at, 7)]):
            np.testing.assert_array_equal(first[plane], frame)
    writer.abort()


def test_each_file_name_is_a_store(tmp_path, kind, camera):
    """As time points are, and rows of which somebody changed the name."""
    rows = [row(tmp_path, filename=f"brain_{number}.ome.zarr") for number in range(2)]
    interface.run(kind, rows, camera)
    for number in range(2):
        pixels = sw.open_array(tmp_path / f"brain_{number}.ome.zarr/Tile0_ShLeft_Rot0")[0]
        np.testing.assert_array_equal(pixels, np.stack(camera.frames[7 * number : 7 * number + 7]))


def test_rows_of_a_file_with_others_between_are_refused_before_a_frame(tmp_path, kind, camera):
    """Else the second of them would find its store finished, and with ``overwrite`` replace it."""
    names = ["a.ome.zarr", "b.ome.zarr", "a.ome.zarr"]
    rows = [row(tmp_path, filename=name, intensity=n) for n, name in enumerate(names)]
    with pytest.raises(sw.errors.SpecError, match="not together"):
        interface.run(kind, rows, camera, config={"overwrite": True})
    assert not camera.frames
    assert not list(tmp_path.iterdir())


def test_equal_rows_are_channels_of_their_own(tmp_path, kind, camera):
    """The program makes its writer anew at a row that equals the first one, so these follow another."""
    rows = [row(tmp_path, x_pos=500.5), row(tmp_path), row(tmp_path)]
    writer = interface.run(kind, rows, camera)
    assert writer.receipt.frames_stored == 21
    assert sw.open_array(tmp_path / "brain.ome.zarr/Tile1_ShLeft_Rot0").shape[0] == 2


def test_what_the_configuration_chooses(tmp_path, kind, camera):
    config = {"codec": "zstd", "chunks": {"z": 7}, "levels": 2}
    interface.run(kind, [row(tmp_path)], camera, config=config)
    image = zarr.open_group(tmp_path / "brain.ome.zarr/Tile0_ShLeft_Rot0", mode="r")
    assert image["0"].chunks[:2] == (1, 7)
    assert image["1"].shape[-2:] == (32, 24)
    assert "zstd" in str(image["0"].metadata.to_dict())
    with pytest.raises(sw.errors.OutputExistsError):
        interface.run(kind, [row(tmp_path)], camera)
    interface.run(kind, [row(tmp_path)], camera, config={"overwrite": True})
    np.testing.assert_array_equal(
        sw.open_array(tmp_path / "brain.ome.zarr/Tile0_ShLeft_Rot0")[0], np.stack(camera.frames[-7:])
    )


def test_a_frame_beyond_the_last_plane_is_left_out_and_logged(tmp_path, kind, camera, caplog):
    """The program's queue may hold one that came after its own stack."""
    rows = [row(tmp_path), row(tmp_path, laser="561 nm")]
    finalize = kind.finalize

    def one_more(writer, finalized):
        extra = np.zeros((64, 48), np.uint16)
        writer.write_frame(interface.WriteImage(extra, 7, finalized.acq, finalized.acq_list))
        finalize(writer, finalized)

    kind.finalize = one_more
    writer = interface.run(kind, rows, camera)
    assert (writer.receipt.frames_received, writer.receipt.frames_stored) == (14, 14)
    assert caplog.text.count("Tile0_ShLeft_Rot0: a frame after the last plane is left out") == 2


def test_what_the_program_asks_a_writer(kind):
    assert kind.file_extensions() == [".ome.zarr"]
    assert kind.capabilities().streaming_safe
    assert kind.file_names().SingleFileFormat
    assert kind.file_names().WindowDescription == kind.name() == "Shardwright_Writer"
