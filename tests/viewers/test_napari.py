"""Our plugin in a real napari with a window: finished stores, and running ones that grow in it."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import zarr

import shardwright as sw

from .napari_process import NapariWindow, display

CHANNELS = [{"name": "DAPI", "color": "0000FF", "window": (0, 300)}, {"name": "FITC", "color": "00FF00"}]
SIZE = 64
DOWNWARDS = "bool(s[20, 100] + 50 < s[180, 100] and s[100, 20] == s[100, 180])"  # the canvas grows brighter


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    with display(tmp_path_factory.mktemp("home")) as environment:
        yield environment


@pytest.fixture(scope="module")
def open_window(napari, settings):
    with NapariWindow(napari, settings) as window:
        yield window
        errors = window.close()
    assert "Traceback" not in errors, errors


@pytest.fixture
def window(open_window):
    yield open_window
    open_window.ask("(viewer.layers.clear(), told.clear())")


def opened(window, path):
    """The names of the layers."""
    return window.ask(f"[layer.name for layer in viewer.open({str(path)!r}, plugin='shardwright')]")


def pixels(window, tmp_path, number, level=None):
    data = f"viewer.layers[{number}].data" + ("" if level is None else f"[{level}]")
    window.ask(f"np.save({str(tmp_path / 'pixels.npy')!r}, np.asarray({data}))")
    return np.load(tmp_path / "pixels.npy")


def ramp(number, axis=1):
    """uint16[SIZE, SIZE], growing along an axis from ``100 * number`` on."""
    return (100 * number + np.indices((SIZE, SIZE))[axis]).astype(np.uint16)


def running_spec(**more):
    """Slabs of four frames: the last ones are staged."""
    size = {"count": SIZE, "chunk_size": 32, "shard_size_chunks": 2, "type": "space"}
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=4, shard_size_chunks=2, type="time"),
            *(sw.Dimension(name=name, **size) for name in "yx"),
        ],
        **more,
    )


def test_the_manifest_is_found_and_valid(napari):
    done = subprocess.run(
        [napari, "-m", "npe2", "validate", "shardwright"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "valid" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_finished_store_with_channels_and_levels(window, tmp_path):
    path = tmp_path / "a.ome.zarr"
    spec = sw.default_layout(
        (2, 2, 3, 40, 60),
        "uint16",
        "tczyx",
        channels=CHANNELS,
        levels=2,
        scales={"t": 5, "z": 2, "y": 0.5, "x": 0.25},
        units={"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"},
    )
    values = np.random.default_rng(0).integers(50, 900, (2, 2, 3, 40, 60)).astype(np.uint16)
    with sw.create(path, spec) as writer:
        writer.append_many(values.reshape(-1, 40, 60))
    assert opened(window, path) == ["a: DAPI", "a: FITC"]
    blue, green = window.ask(
        "[[l.contrast_limits, l.colormap.name, l.scale, [str(u) for u in l.units], l.axis_labels, l.blending,"
        " l.multiscale, l.rgb] for l in viewer.layers]"
    )
    assert blue[0] == [0, 300]
    low, high = green[0]
    assert 50 <= low < high <= 900
    assert (blue[1], green[1]) == ("blue", "green")
    facts = [
        [5, 2, 0.5, 0.25],
        ["second", *["micrometer"] * 3],
        ["t", "z", "y", "x"],
        "additive",
        True,
        False,
    ]
    assert (blue[2:], green[2:]) == (facts, facts)
    for channel in range(2):
        for level in range(3):
            expected = zarr.open_array(path / str(level), mode="r")[:, channel]
            np.testing.assert_array_equal(pixels(window, tmp_path, channel, level), expected)
    assert window.ask("told") == []
    assert not window.ask("growing()")


def test_frames_of_a_colour_camera_are_shown_in_their_colours(window, tmp_path):
    """With one window for all, so that white stays white."""
    frames = np.random.default_rng(0).integers(0, 200, (2, 40, 60, 4), dtype=np.uint8)
    frames[..., 1] //= 4
    sw.save(tmp_path / "a.ome.zarr", frames, axes="tyxc")
    assert opened(window, tmp_path / "a.ome.zarr") == ["a: red", "a: green", "a: blue", "a: alpha"]
    layers = window.ask(
        "[[l.colormap.name, l.visible, l.contrast_limits, l.blending] for l in viewer.layers]"
    )
    assert [layer[:2] for layer in layers[:3]] == [["red", True], ["green", True], ["blue", True]]
    assert layers[0][2:] == layers[1][2:] == layers[2][2:]
    assert (layers[0][3], layers[3][1]) == ("additive", False)
    for channel in range(4):
        np.testing.assert_array_equal(pixels(window, tmp_path, channel), frames[..., channel])


def test_what_is_no_store_of_images_is_left_to_other_readers(window, tmp_path):
    zarr.create_group(tmp_path / "old.zarr", zarr_format=2)
    zarr.create_array(tmp_path / "plain.zarr", shape=(4, 4), dtype="u1")
    (tmp_path / "empty.zarr").mkdir()
    for name in ("old.zarr", "plain.zarr", "empty.zarr", "absent.zarr"):
        assert window.ask(f"get_reader({str(tmp_path / name)!r}) is None"), name
    assert window.ask("get_reader('http://rig/live/a.ome.zarr') is None")


def test_a_running_store_grows_and_keeps_its_contrast(window, tmp_path):
    """Frames are staged, stored and sealed meanwhile, and the canvas shows the newest."""
    path = tmp_path / "a.ome.zarr"
    place = "[int(viewer.dims.current_step[0]), int(viewer.dims.nsteps[0])]"
    with sw.create(path, running_spec()) as writer:
        writer.append_many(np.stack([ramp(0)] * 3))
        writer.flush()
        assert opened(window, path) == ["a"]
        assert window.ask(place) == [2, 3], "on the newest frame"
        limits = window.ask("list(viewer.layers[0].contrast_limits)")
        assert limits == [0, SIZE - 1], "of the newest frame"
        for i in range(3, 11):
            writer.append(ramp(0, axis=i % 2))
        window.until(place, [10, 11])
        assert window.ask("list(viewer.layers[0].contrast_limits)") == limits
        window.until(f"(lambda s: {DOWNWARDS})(np.array(canvas(), int))", True)
        window.ask(
            "(viewer.dims.set_current_step(0, 4), setattr(viewer.layers[0], 'contrast_limits', (5, 50)))"
        )
        writer.append(ramp(7))
        window.until(place, [4, 12])
        assert window.ask("list(viewer.layers[0].contrast_limits)") == [5, 50]
        np.testing.assert_array_equal(pixels(window, tmp_path, 0)[10:], [ramp(0, axis=0), ramp(7)])
        writer.append(ramp(8))
    window.until("growing()", 0)
    assert window.ask(place) == [4, 13]
    np.testing.assert_array_equal(pixels(window, tmp_path, 0)[-1], ramp(8))
    assert window.ask("told") == []


def test_frames_that_fill_places_within_the_shape_are_shown(window, tmp_path):
    """The second channel of a time point comes after the first: its layer's shape was there before."""
    spec = sw.default_layout(
        (None, 2, SIZE, SIZE), "uint16", "tcyx", channels=[{"name": "one"}, {"name": "two"}]
    )
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        writer.append(ramp(1), index=(0, 0))
        writer.flush()
        assert opened(window, writer.path) == ["a: one", "a: two"]
        assert window.ask("list(viewer.layers[1].contrast_limits)") == [0, 65535], "nothing to find it from"
        writer.append(ramp(2), index=(0, 1))
        window.until("list(viewer.layers[1].contrast_limits)", [200, 200 + SIZE - 1])
        np.testing.assert_array_equal(pixels(window, tmp_path, 1)[0], ramp(2))
    window.until("growing()", 0)


def test_images_that_begin_later_become_layers(window, tmp_path):
    """Once: a layer that the user has removed does not come back. Only the first image is shown."""
    names = ["left", "middle", "right"]
    with sw.create(tmp_path / "a.ome.zarr", sw.AcquisitionSpec(array=running_spec(), images=names)) as writer:
        writer.append(ramp(0), image="left")
        writer.flush()
        assert opened(window, writer.path) == ["left"]
        unknown = window.ask(f"problem(lambda: show({str(writer.path)!r}, ['right']))")
        assert "has no image of this name, or none with frames yet; expected left; got right" in unknown
        writer.append(ramp(1), image="right")
        shown = "[[layer.name, layer.visible] for layer in viewer.layers]"
        window.until(shown, [["left", True], ["right", False]])
        np.testing.assert_array_equal(pixels(window, tmp_path, 1)[0], ramp(1))
        window.ask("viewer.layers.remove(viewer.layers[0])")
        writer.append(ramp(2), image="left")
        writer.append(ramp(3), image="right")
        window.until("viewer.layers[0].data.shape[0]", 2)
        assert window.ask(shown) == [["right", False]]
        assert window.ask("int(viewer.dims.current_step[0])") == 0, "no layer is visible whose end it follows"
        window.ask("viewer.layers.clear()")
        assert window.ask("growing()") == 0, "nothing is left that could grow"


def test_tiles_lie_side_by_side_where_the_stage_was(window, tmp_path):
    """Two by two of them, each of one brightness; the window shows four quarters."""
    places = [(100, 200), (100, 232), (132, 200), (132, 232)]
    tiles = [{"name": f"tile{i}", "position": {"y": y, "x": x}} for i, (y, x) in enumerate(places)]
    size = {"scales": {"y": 0.5, "x": 0.5}, "units": {"y": "um", "x": "um"}}
    with sw.create(
        tmp_path / "a.ome.zarr", images=tiles, shape=(1, SIZE, SIZE), dtype="uint16", axes="tyx", **size
    ) as writer:
        for i in range(4):
            writer.append(np.full((SIZE, SIZE), 1000 * (i + 1), np.uint16), image=f"tile{i}")
    assert opened(window, writer.path) == [tile["name"] for tile in tiles]
    assert window.ask("[layer.translate[-2:].tolist() for layer in viewer.layers]") == [
        list(map(float, place)) for place in places
    ]
    window.ask(
        "[setattr(layer, 'visible', True) or setattr(layer, 'contrast_limits', (0, 5000)) "
        "for layer in viewer.layers] and viewer.reset_view()"
    )
    shown = window.ask(
        "(lambda s: [int(s[s.shape[0] * y // 4, s.shape[1] // 2 + d * s.shape[0] // 4, 0]) "
        "for y in (1, 3) for d in (-1, 1)])(viewer.screenshot(canvas_only=True, flash=False))"
    )
    assert shown == sorted(shown)
    assert len(set(shown)) == 4


def test_a_plate_is_one_picture_of_its_wells(window, tmp_path):
    """Also while wells are visited: a new one, an earlier one, and another number of frames in each."""
    spec = sw.AcquisitionSpec(array=running_spec(), plate=sw.Plate(rows=2, columns=3, name="cells"))
    visits = ["B/2/0", "A/3/0", "B/2/0", "A/1/0"]
    expected = np.zeros((2, 2 * SIZE, 3 * SIZE), np.uint16)
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        for i, well in enumerate(visits):
            row, column, t = "AB".index(well[0]), int(well[2]) - 1, visits[:i].count(well)
            place = np.s_[t, row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE]
            expected[place] = ramp(i + 1)
            writer.append(ramp(i + 1), image=well)
            writer.flush()
            frames = max(map(visits[: i + 1].count, visits))
            if i == 0:
                assert opened(window, writer.path) == ["cells"]
            until = (
                f"bool((viewer.layers[0].data[{t}, {place[1].start}, {place[2].start}] == {100 * i + 100}))"
            )
            window.until(f"len(viewer.layers[0].data) > {t} and {until}", True)
            np.testing.assert_array_equal(pixels(window, tmp_path, 0), expected[:frames])
            assert window.ask("len(viewer.layers)") == 1
    window.until("growing()", 0)
    window.ask(f"np.save({str(tmp_path / 'part.npy')!r}, viewer.layers[0].data[::-1, 1:-1:3, 70].compute())")
    np.testing.assert_array_equal(np.load(tmp_path / "part.npy"), expected[::-1, 1:-1:3, 70])


def test_of_many_images_the_first_are_shown_and_the_others_told(window, tmp_path):
    names = ["a", "b", "c", "d", "e"]
    with sw.create(tmp_path / "a.ome.zarr", sw.AcquisitionSpec(array=running_spec(), images=names)) as writer:
        for name in names:
            writer.append(ramp(0), image=name)
    most = window.ask("layers.MOST_IMAGES")
    window.ask("setattr(layers, 'MOST_IMAGES', 3)")
    assert opened(window, writer.path) == names[:3]
    window.ask(f"setattr(layers, 'MOST_IMAGES', {most})")
    (told,) = window.ask("told")
    assert told.startswith("2 more images of a.ome.zarr are not shown")


def test_a_store_that_is_deleted_is_one_notification(window, tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", running_spec()) as writer:
        writer.append(ramp(0))
        writer.flush()
        opened(window, writer.path)
        writer.path.rename(tmp_path / "elsewhere.ome.zarr")
        window.until("growing()", 0)
        (told,) = window.ask("told")
        assert "was deleted, moved" in told
        (tmp_path / "elsewhere.ome.zarr").rename(writer.path)


def test_a_store_without_a_frame_says_so(window, tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", running_spec()) as writer:
        reader = f"get_reader({str(writer.path)!r})"
        assert window.ask(f"problem(lambda: {reader}(''))").startswith(f"no frame of {writer.path} is stored")
        writer.append(ramp(0))
        writer.flush()
        assert window.ask(f"len({reader}(''))") == 1
        window.until("growing()", 0)  # its layers were not added


def test_a_window_that_is_closed_ends_what_grows_in_it(window, tmp_path):
    """Another window stays."""
    with sw.create(tmp_path / "a.ome.zarr", running_spec()) as writer:
        writer.append(ramp(0))
        writer.flush()
        opening = f"napari.Viewer().open({str(writer.path)!r}, plugin='shardwright')"
        assert window.ask(f"[{opening}[0].name, growing()]") == ["a", 1]
        window.ask("napari.current_viewer().window._qt_window.close()")
        window.until(
            "[growing(), [t.name for t in threading.enumerate() if t.name == 'shardwright view']]", [0, []]
        )


VIEW = """
import json, napari, sys
from shardwright.cli.app import main
def run():
    viewer = napari.current_viewer()
    print(json.dumps([viewer.title, [layer.name for layer in viewer.layers]]))
    viewer.close()
napari.run = run
main(sys.argv[1:])
"""


def test_the_command_opens_a_window(napari, settings, tmp_path):
    """By itself, where napari is installed and there is a display; of several images those that are named."""
    spec = sw.AcquisitionSpec(array=running_spec(), images=["left", "middle", "right"])
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        for name in spec.names:
            writer.append(ramp(0), image=name)
    command = [napari, "-c", VIEW, "view", writer.path, "--json", "--image", "middle", "--image", "right"]

    shown = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    told, title = map(json.loads, shown.stdout.splitlines())
    assert told == {"in": "napari", "path": str(writer.path)}
    assert title == ["a.ome.zarr · shardwright", ["middle", "right"]]
