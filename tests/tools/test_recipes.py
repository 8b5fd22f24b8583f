"""Each recipe gives what it says, by the blocks as they stand."""

import json
import os
import re
import signal
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import tensorstore
from tests.cli.test_view import base_of, viewing
from tests.harness.daemon import serving
from tests.harness.daemon_config import write_config
from tests.harness.documents import blocks, commands_of, dying_at, run_block, run_in_shell
from tests.harness.json_process import TIMEOUT_S, wait_for
from tests.harness.ome_forms import check_ome_forms, places_of
from tests.harness.python import start_python
from tests.harness.store_contents import listed_images
from tests.integrations.bluesky.rig import end_loop
from tests.repack.conftest import object_store  # noqa: F401  (fixture)
from tests.repack.object_store import BUCKET
from tests.web.web_process import ask
from tests.wire.c_camera import need_compiler

import shardwright as sw
from shardwright.model.extras import EXTRA_OF_MODULE
from shardwright.read.verify_store import verify_store

TEXT = (Path(__file__).parents[2] / "src/shardwright/RECIPES.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"(?ms)^## (.*?)\n(.*?)(?=^## |\Z)", TEXT))
# The camera of "Live view" waits for the test after its first frame.
WAITS = "import sys, time; time.sleep = lambda _: sys.stdin.readline()\n"
# That of "Resume after a crash" is killed when it has some frames.
DIES_AT = 37


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def pixels_of(path):
    """As tensorstore reads them."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return tensorstore.open(spec).result().read().result()


def assert_numbered(pixels, frames):
    """Each frame's pixels are its number."""
    assert len(pixels) == frames
    assert all((frame == i).all() for i, frame in enumerate(pixels))


def test_two_cameras(capsys):
    run_block(*blocks(RECIPES["Two cameras"]))
    assert "frames_durable=40" in capsys.readouterr().out
    for image, shape in enumerate(((20, 512, 512), (20, 240, 320))):
        pixels = pixels_of(f"two.ome.zarr/{image}/0")
        assert pixels.shape == shape
        assert_numbered(pixels, 20)


def test_a_plate(tmp_path, capsys):
    run_block(*blocks(RECIPES["A plate"]))
    assert "(2, 256, 256)" in capsys.readouterr().out
    images = listed_images(tmp_path / "plate.ome.zarr")
    assert images == [f"{well}/{field}" for well in ("A/1", "A/2", "B/3") for field in range(2)]
    for image in images:
        first = 10 * int(image[-1])
        assert_numbered(pixels_of(f"plate.ome.zarr/{image}/0") - first, 2)


def test_metadata_that_become_known_later():
    run_block(*blocks(RECIPES["Metadata that become known later"]))
    attributes = json.loads(Path("dish.ome.zarr/zarr.json").read_text())["attributes"]
    first, second = attributes.pop("ome")["omero"]["channels"]
    assert attributes == {"stain": "DAPI", "shardwright": {"windows": [1]}}
    assert (first["label"], first["color"]) == ("nuclei", "0000FF")
    assert (second["window"]["start"], second["window"]["end"]) == (0, 900)


def test_tiles_of_a_mosaic():
    run_block(*blocks(RECIPES["Tiles of a mosaic"]))
    assert listed_images(Path("mosaic.ome.zarr").absolute()) == ["Pos00", "Pos01", "Pos10", "Pos11"]
    (multiscale,) = json.loads(Path("mosaic.ome.zarr/Pos11/zarr.json").read_text())["attributes"]["ome"][
        "multiscales"
    ]
    scale, translation = multiscale["datasets"][0]["coordinateTransformations"]
    assert (scale["scale"], translation["translation"]) == ([1.0, 0.5, 0.5], [0.0, 115.2, 115.2])


def test_newer_metadata(capsys):
    (script,), (command,) = (blocks(RECIPES["Newer metadata"], language) for language in ("python", "sh"))
    run_block(script)
    assert capsys.readouterr().out.split() == ["115.2"]
    old, new = Path("old.ome.zarr").absolute(), Path("new.ome.zarr").absolute()
    check_ome_forms(old, "0.5")
    run_in_shell(command)
    check_ome_forms(old, "0.6")
    assert places_of(old) == places_of(new)


def test_a_detector_decides(capsys):
    run_block(*blocks(RECIPES["A detector decides"]))
    told = capsys.readouterr().out
    assert "'cell_3_300_240': {'frames_received': 8, 'frames_stored': 8, 'frames_missing': 0}" in told
    store = Path("screen.ome.zarr").absolute()
    assert listed_images(store) == ["0", "1", "2"]
    assert pixels_of(store / "0/0").shape == (5, 512, 512)
    assert_numbered(pixels_of(store / "2/0"), 8)
    group = json.loads((store / "2/zarr.json").read_text())["attributes"]
    (multiscale,) = group["ome"]["multiscales"]
    _, translation = multiscale["datasets"][0]["coordinateTransformations"]
    assert (translation["translation"], group["found_at"]) == ([0.0, 150.0, 120.0], 3)


def test_days_as_one_array(capsys):
    script, reader = blocks(RECIPES["Days as one array"])
    (command,) = blocks(RECIPES["Days as one array"], "sh")
    run_block(script)
    run_in_shell(command)
    run_block(reader)
    assert capsys.readouterr().out.endswith("(40, 256, 256) 1\n")


def test_which_acquisitions_are_there(capsys):
    run_block(*blocks(RECIPES["Which acquisitions are there"]))
    told = capsys.readouterr().out
    assert re.search(r"monday +finished +3 +0\n", told)
    assert re.search(r"tuesday +finished +2 +1\n", told)
    assert "data/tuesday.ome.zarr']" in told


def test_rgb(capsys):
    run_block(*blocks(RECIPES["RGB"]))
    assert "\n200\n" in capsys.readouterr().out
    pixels = pixels_of("rgb.ome.zarr/0")
    assert pixels.shape == (10, 3, 256, 320)
    assert [pixels[:, c].max() for c in range(3)] == [200, 0, 0]


def test_a_camera_in_c(folder, monkeypatch):
    need_compiler()
    monkeypatch.chdir(folder)
    Path("data").mkdir()
    with serving(write_config(folder, folder / "data")):
        run_in_shell(*blocks(RECIPES["A camera in C"], "sh"))
    assert_numbered(pixels_of("data/embryo.ome.zarr/0"), 20)


def test_a_plan_that_is_not_the_camera(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("data").mkdir()
    plan, camera = blocks(RECIPES["A plan that is not the camera"])
    told = []
    with serving(write_config(folder, folder / "data")), ThreadPoolExecutor(1) as threads:
        planning = threads.submit(run_block, plan, {"print": lambda *what: told.append(what)})
        wait_for(lambda: told or planning.done(), "the arming")
        run_block(camera)
        planning.result(TIMEOUT_S)
    (uri,), *states = told
    assert uri == (folder / "data/run-17.ome.zarr").as_uri()
    assert states[-1] == ("ended", {"stored": 20, "durable": 20, "visible": 20, "images": {}})
    assert_numbered(pixels_of("data/run-17.ome.zarr/0"), 20)


def test_micro_manager(tmp_path, capsys):
    run_block(*blocks(RECIPES["Micro-Manager"]))
    assert "frames_durable=20" in capsys.readouterr().out
    assert listed_images(tmp_path / "cells.ome.zarr") == ["p0", "p1"]
    assert pixels_of("cells.ome.zarr/p1/0").shape == (2, 5, 512, 512)


def test_mesospim():
    """Its name is that of the writer in that folder, which tests/integrations/mesospim drives."""
    names = run_block(*blocks(RECIPES["mesoSPIM"]))
    (folder,) = names["plugins"]["path_list"]
    writer = Path(folder, "shardwright_writer.py").read_text(encoding="utf-8")
    name = names["plugins"]["first_image_writer"]
    assert f'NAME = "{name}"' in writer
    assert isinstance(names[name], dict)


def test_bluesky(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (script,) = blocks(RECIPES["bluesky"])
    for name, here in (("ingest.sock", "in.sock"), ("control.sock", "control.sock")):
        script = script.replace(f"/run/shardwright/{name}", str(folder / here))
    with serving(write_config(folder, folder / "data", output=", create: true, live: append")):
        names = run_block(script)
    end_loop(names["run"])
    path, frames = capsys.readouterr().out.split()[-2:]
    assert frames == "5"
    assert_numbered(pixels_of(f"{path}/0"), 5)


def test_live_view(capsys):
    """Both readers of frames see the first before the second is taken."""
    writes, reads = blocks(RECIPES["Live view"])
    (view,) = blocks(RECIPES["Live view"], "sh")
    ((name, store, *options),) = commands_of(view)
    assert (name, store) == ("view", "live.ome.zarr")
    with start_python("-c", WAITS + writes, stdin=PIPE, cwd=os.getcwd()) as camera:  # noqa: PTH109
        wait_for(lambda: os.path.exists("live.ome.zarr/zarr.json"), "the store")  # noqa: PTH110
        next(sw.follow("live.ome.zarr", timeout_ms=TIMEOUT_S * 1000))
        with viewing(store, *options) as url:
            assert ask(url.port, f"{base_of(url)}/view/{store}").status == 302
        said = []

        def tell(*what):
            said.append(what)
            if what == ((0,), 0.0):
                camera.stdin.close()

        run_block(reads, {"print": tell})
        assert camera.wait(TIMEOUT_S) == 0
    assert said[:2] == [((1, 256, 256), 0.0), ((0,), 0.0)]
    assert sorted(said[1:]) == [((i,), float(i)) for i in range(300)]


def test_archive_to_s3(tmp_path, object_store, monkeypatch, capsys):  # noqa: F811
    asked = set(re.findall(r"`(AWS_\w+)`", RECIPES["Archive to S3"]))
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    assert asked == object_store.environment.keys() - {"AWS_ALLOW_HTTP"}
    (commands,) = blocks(RECIPES["Archive to S3"], "sh")
    assert f"s3://{BUCKET}/" in commands
    write, read = blocks(RECIPES["Archive to S3"])
    run_block(write)
    expected = pixels_of("embryo.ome.zarr/0")
    # at its own, lowest priority it may hardly move beside other tests
    run_in_shell(commands.replace("--move", "--move --no-idle"))
    assert not (tmp_path / "embryo.ome.zarr").exists()
    run_block(read)
    assert capsys.readouterr().out.endswith(f"\n{expected[19].max()}\n")
    moved = sw.open_array(commands.split()[-1])
    np.testing.assert_array_equal(moved[...], expected)


def test_one_file_to_hand_on(capsys):
    (commands,) = blocks(RECIPES["One file to hand on"], "sh")
    write, read = blocks(RECIPES["One file to hand on"])
    run_block(write)
    expected = pixels_of("embryo.ome.zarr/0")
    run_in_shell(commands.replace(".ozx\n", ".ozx --no-idle\n", 1))
    run_block(read)
    assert capsys.readouterr().out.endswith(f"\n{expected[19].max()}\n")
    (packed,) = [word for word in commands.split() if word.endswith(".ozx")][1:]
    with zipfile.ZipFile(packed) as archive:
        assert archive.namelist()[0] == "zarr.json"
    np.testing.assert_array_equal(sw.open_array(packed)[...], expected)


def test_what_a_disk_has_lost():
    (write,) = blocks(RECIPES["What a disk has lost"])
    (commands,) = blocks(RECIPES["What a disk has lost"], "sh")
    run_block(write)
    pack, cut, repair = commands.replace("embryo.ome.zarr\n", "embryo.ome.zarr --no-idle\n").splitlines()
    run_in_shell(pack)
    expected = pixels_of("embryo.ome.zarr/0")
    shard = Path("embryo.ome.zarr/0/c/0/0/0")
    packed = shard.read_bytes()
    run_in_shell(cut)
    assert len(shard.read_bytes()) == len(packed) - 50_000
    run_in_shell(repair)
    assert shard.read_bytes() == packed
    np.testing.assert_array_equal(pixels_of("embryo.ome.zarr/0"), expected)


def test_hdf5_without_a_copy(capsys):
    (command,) = blocks(RECIPES["HDF5 without a copy"], "sh")
    write, read = blocks(RECIPES["HDF5 without a copy"])
    run_block(write)
    expected = pixels_of("embryo.ome.zarr/0")
    run_in_shell(command.replace("hdf5\n", "hdf5 --no-idle\n"))
    run_block(read)
    assert capsys.readouterr().out.endswith("(20, 256, 256) True\n")
    np.testing.assert_array_equal(pixels_of("embryo.ome.zarr/0"), expected)


@pytest.fixture
def crash(tmp_path):
    """The script of "Resume after a crash", killed once; its store is unfinished."""
    (script,) = blocks(RECIPES["Resume after a crash"])
    with start_python("-c", dying_at(DIES_AT) + script, cwd=tmp_path) as writer:
        assert writer.wait(TIMEOUT_S) == -signal.SIGKILL
    return script


def test_resume_after_a_crash(crash, capsys):
    run_block(crash)
    assert "frames_durable=50" in capsys.readouterr().out
    assert_numbered(pixels_of("crash.ome.zarr/0"), 50)


def test_what_a_crash_left_is_sealed(crash):
    (seal,) = blocks(RECIPES["Resume after a crash"], "sh")
    run_in_shell(seal)
    assert_numbered(pixels_of("crash.ome.zarr/0"), DIES_AT)


def test_go_on_with_a_finished_store(capsys):
    run_block(*blocks(RECIPES["Go on with a finished store"]))
    printed = capsys.readouterr().out
    assert "30 frames so far" in printed
    assert "frames_durable=50" in printed
    assert_numbered(pixels_of("embryo.ome.zarr/0"), 50)


def test_frames_from_ome_writers(capsys):
    run_block(*blocks(RECIPES["Frames from ome-writers"]))
    assert "frames_durable=20" in capsys.readouterr().out
    for position in range(2):
        pixels = pixels_of(f"cells.ome.zarr/Pos{position}/0")
        assert pixels.shape == (5, 2, 256, 256)
        assert [frame.max() for frame in pixels.reshape(-1, 256, 256)] == [
            4 * t + 2 * position + c for t in range(5) for c in range(2)
        ]


def test_when_each_time_point_began(tmp_path, capsys):
    run_block(*blocks(RECIPES["When each time point began"]))
    printed = capsys.readouterr().out
    assert len(json.loads(printed.splitlines()[0])) == 4
    assert "stored" in printed
    block = json.loads(Path("lapse.ome.zarr/zarr.json").read_text())["attributes"]["dca"]
    assert block["study"] == {"title": "Spindles"}
    assert block["acquisition"]["time_increment_s"] == 2.0
    assert sw.frame_table(tmp_path / "lapse.ome.zarr").shape[0] == 8


def test_several_writers():
    (code,), (accept,) = (blocks(RECIPES["Several writers"], language) for language in ("python", "sh"))
    run_block(code)
    (problem,) = verify_store("cells.ome.zarr").problems
    assert problem.is_change
    run_in_shell(accept)
    assert verify_store("cells.ome.zarr").problems == []
    expected = np.arange(8 * 256 * 256, dtype=np.uint16).reshape(8, 256, 256) // 2
    expected[3, 5, 7] = 1000
    np.testing.assert_array_equal(pixels_of("cells.ome.zarr/0"), expected)


def test_every_recipe_is_run_here_and_names_its_extra():
    tested = {name.removeprefix("test_").replace("_", " ") for name in globals() if name.startswith("test_")}
    assert {title.lower().replace("-", " ") for title in RECIPES} <= tested
    for title, text in RECIPES.items():
        assert set(re.findall(r"\(extra\s+`([\w-]+)`", text)) <= set(EXTRA_OF_MODULE.values())
        assert "(extra" in text, title
