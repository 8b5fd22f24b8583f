"""Finished stores and the viewer over HTTP, without a browser: what is listed, where a link leads to, and
what is kept from going elsewhere."""

from __future__ import annotations

import errno
import json
import os
from urllib.parse import quote, unquote

import anyio
import numpy as np
import pytest
from tests.harness.writing import how

import shardwright as sw
from shardwright.array.document import MAX_METADATA_BYTES
from shardwright.disk import beneath
from shardwright.model.names import WORKSPACE
from shardwright.read.store import open_store
from shardwright.web import finished_stores, viewer
from shardwright.web.api import Json
from shardwright.web.contrast import windows
from shardwright.web.viewer_state import (
    MOST_SHOWN,
    ChannelLook,
    ShownImage,
    StoredImage,
    view_query,
    viewer_state,
)

from .web_process import WebProcess, settings_for


def write_store(path, frames=3, shape=(40, 70), codec=None):
    """Values of frame i: 100 i + 0..99 in a ramp along the columns."""
    dimensions = [
        sw.Dimension(
            name="t", count=None, chunk_size=2, shard_size_chunks=1, type="time", unit="second", scale=0.5
        ),
        sw.Dimension(
            name="y",
            count=shape[0],
            chunk_size=32,
            shard_size_chunks=2,
            type="space",
            unit="micrometer",
            scale=0.25,
        ),
        sw.Dimension(
            name="x",
            count=shape[1],
            chunk_size=32,
            shard_size_chunks=2,
            type="space",
            unit="micrometer",
            scale=0.25,
        ),
    ]
    ramp = np.broadcast_to(np.linspace(0, 99, shape[1]).astype(np.uint16), shape)
    with sw.create(path, sw.ArraySpec(dtype="uint16", dimensions=dimensions, codec=codec)) as writer:
        for i in range(frames):
            writer.append(np.ascontiguousarray(ramp + 100 * i))
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def web(root):
    with WebProcess(settings_for(root)) as process:
        yield process


def forget_windows(store):
    """As a store of another program, which says nothing of contrast."""
    facts = json.loads((store / "zarr.json").read_text())
    del facts["attributes"]["ome"]["omero"]
    (store / "zarr.json").write_text(json.dumps(facts))


def look(root):
    """The list, after one look at the disk."""
    stores = finished_stores.FinishedStores(root)
    return anyio.run(stores.listed)


def state_of(answer):
    assert answer.status == 302
    address, _, fragment = answer.headers["Location"].partition("#!")
    assert address == viewer.CLIENT
    return json.loads(unquote(fragment))


def test_finished_stores_are_listed_newest_first(tmp_path):
    for age, name in enumerate(["new.ome.zarr", "old.ome.zarr"]):
        os.utime(write_store(tmp_path / name), (1e9 - age, 1e9 - age))
    (write_store(tmp_path / "running.ome.zarr") / WORKSPACE).mkdir()
    (tmp_path / "link.ome.zarr").symlink_to(tmp_path / "old.ome.zarr")
    (tmp_path / "notes").mkdir()
    (tmp_path / "broken.ome.zarr").mkdir()
    (tmp_path / "broken.ome.zarr" / "zarr.json").write_text('{"attributes": {"ome": {"multiscales": []}}}')
    broken, new, old = look(tmp_path)  # it was written last
    assert (broken["store"], new["name"], old["name"]) == ("broken.ome.zarr", "new", "old")
    assert broken["unreadable"]
    assert (new["store"], new["frames"], new["shape"], new["axes"], new["dtype"]) == (
        "new.ome.zarr",
        3,
        [3, 40, 70],
        ["t", "y", "x"],
        "uint16",
    )
    assert new["finished_s"] == 1e9
    assert new["path"] == str(tmp_path / "new.ome.zarr")


def test_frames_that_are_missing_are_told_by_the_store_itself(tmp_path):
    """Whichever daemon wrote it, and however long ago."""
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=1),
            sw.Dimension(name="y", count=4, chunk_size=4, shard_size_chunks=1),
            sw.Dimension(name="x", count=4, chunk_size=4, shard_size_chunks=1),
        ],
    )
    with sw.create(tmp_path / "holes.ome.zarr", spec, **how(on_duplicate="count")) as writer:
        for frame_id in (0, 1, 5, 5, 7):
            writer.append(np.full((4, 4), frame_id, np.uint16), frame_id=frame_id)
    receipt = writer.receipt
    assert (receipt.frames_missing, receipt.frames_duplicate) == (4, 1)
    (told,) = look(tmp_path)
    assert (told["frames"], told["frames_missing"]) == (8, 4)
    (tmp_path / "holes.ome.zarr" / "frames" / "fate" / "c" / "0").unlink()
    assert look(tmp_path)[0]["frames_missing"] == 4

    statuses = tmp_path / "holes.ome.zarr" / "frames" / "status" / "c" / "0"
    sound = statuses.read_bytes()
    for damaged in (b"damaged", sound[:-1] + bytes([sound[-1] ^ 1])):  # the latter is of another checksum
        statuses.write_bytes(damaged)
        assert look(tmp_path)[0]["frames_missing"] is None


@pytest.mark.parametrize(
    "place", ["zarr.json", "0/zarr.json", "frames/zarr.json", "frames/status/zarr.json", "frames/status/c/0"]
)
def test_pipes_and_links_in_a_store_hold_nothing_up_and_lead_nowhere(tmp_path, place):
    other = write_store(tmp_path / "elsewhere" / "other.ome.zarr")
    piped, linked = (write_store(tmp_path / "root" / f"{name}.ome.zarr") for name in ("piped", "linked"))
    for store in (piped, linked):
        (store / place).unlink()
    os.mkfifo(piped / place)
    (linked / place).symlink_to(other / place)
    told = {store["name"]: store.get("frames_missing", "unreadable") for store in look(tmp_path / "root")}
    # a pipe is there, and no file: that its store has no image is not known
    of_the_array = {"piped": "unreadable"} if place == "0/zarr.json" else {}
    assert told == ({"piped": None, "linked": None} if place.startswith("frames") else of_the_array)


SMALL = sw.default_layout((3, 24, 32), "uint16", "tyx")
COLLECTIONS = {  # the specification, the images that get frames, and the folder of the first of these
    "positions": (sw.AcquisitionSpec(array=SMALL, images=["never", "left", "right"]), ("right", "left"), "1"),
    "plate": (
        sw.AcquisitionSpec(array=SMALL, plate=sw.Plate(rows=2, columns=2)),
        ("B/1/0", "A/2/0"),
        "A/2/0",
    ),
}


def write_collection(path, kind):
    """Two frames of three in each image that gets any: a ramp from 1000 to 1500 in the image that is visited
    first, from 2000 to 2500 in the second."""
    spec, visited, _ = COLLECTIONS[kind]
    with sw.create(path, spec) as writer:
        for number, name in enumerate(visited, 1):
            for t in (0, 2):
                ramp = np.linspace(1000 * number, 1000 * number + 500, 24 * 32).astype(np.uint16)
                writer.append(ramp.reshape(24, 32), image=name, index=(t,))
    return path


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_a_collection_is_listed_and_opened_by_its_first_image(tmp_path, kind, monkeypatch):
    name = f"{kind}.ome.zarr"
    path = write_collection(tmp_path / name, kind)
    first = COLLECTIONS[kind][2]
    with WebProcess(settings_for(tmp_path)) as web:
        (told,) = json.loads(web.ask("/api/stores").body)["stores"]
        layer = state_of(web.ask(f"/view/{name}"))["layers"][0]
        assert web.errors() == ""
    shown = {"positions": "left", "plate": "A/2/0"}[kind]
    assert (told["images"], told["image"], told["shape"]) == (2, shown, [3, 24, 32])
    assert (told["frames"], told["frames_missing"]) == (6, 2)
    assert layer["source"] == f"http://127.0.0.1:{web.port}/stores/{name}/{first}/|zarr3:"
    assert layer["name"] == f"{kind} · {shown}"
    low, high = layer["shaderControls"]["normalized"]["range"]
    # the images of a plate have one window for all
    assert 1000 * (kind == "positions") + 1000 <= low < high <= 2500
    (path / first / "zarr.json").unlink()
    (told,) = look(tmp_path)
    assert (told["images"], told["frames"]) == (1, 3), "an image that is gone is passed over"
    monkeypatch.setattr(finished_stores, "MOST_COUNTED", 1)
    assert (look(tmp_path)[0]["images"], look(tmp_path)[0]["frames"]) == (2, None)
    monkeypatch.setattr(finished_stores, "MOST_SOUGHT", 1)
    assert look(tmp_path) == [], "reads are bounded"


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_all_images_of_a_collection_are_shown_side_by_side_or_those_that_are_named(tmp_path, kind):
    name = f"{kind}.ome.zarr"
    write_collection(tmp_path / name, kind)
    one, two = {"positions": ("left", "right"), "plate": ("A/2/0", "B/1/0")}[kind]
    with WebProcess(settings_for(tmp_path)) as web:
        first = state_of(web.ask(f"/view/{name}"))
        assert state_of(web.ask(f"/view/{name}?image={quote(one)}")) == first, "the first one"
        state = state_of(web.ask(f"/view/{name}?all"))
        assert state_of(web.ask(f"/view/{name}?image={quote(two)}&image={quote(one)}")) == state
        absent = web.ask(f"/view/{name}?image=nowhere")
        assert web.errors() == ""
    assert (absent.status, absent.body.decode()) == (
        404,
        f"This store has no image nowhere. It has {one}, {two}\n",
    )
    assert [layer["name"] for layer in state["layers"]] == [one, two]
    assert state["layers"][0]["source"] == first["layers"][0]["source"] != state["layers"][1]["source"]
    assert all("shaderControls" in layer for layer in state["layers"]), "each with its grey levels"
    (row,) = state["layout"]["children"]
    assert [tile["layers"] for tile in row["children"]] == [[one], [two]]
    assert state["position"] == first["position"]


def test_very_many_images_are_shown_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(finished_stores, "MOST_SHOWN", 3)
    names = [f"p{i}" for i in range(5)]
    with sw.create(
        tmp_path / "a.ome.zarr", shape=(1, 8, 8), dtype="uint8", axes="tyx", images=names
    ) as writer:
        for name in names:
            writer.append(np.zeros((8, 8), np.uint8), image=name)
    read = finished_stores.FinishedStores(tmp_path).find("a.ome.zarr").reads.document
    assert view_query(["a"] * 100).count("image=a") == MOST_SHOWN
    for wanted, shown in (((), names[:3]), (["p4", "1"], ["p1", "p4"])):
        assert [image.name for image, _ in finished_stores.find_images(read, wanted)] == shown


def test_images_of_a_collection_that_is_sound_only_at_its_start_are_shown(tmp_path):
    path = write_collection(tmp_path / "plate.ome.zarr", "plate")
    facts = json.loads((path / "zarr.json").read_text())
    facts["attributes"]["ome"]["plate"]["wells"].append({})
    (path / "zarr.json").write_text(json.dumps(facts))
    read = finished_stores.FinishedStores(tmp_path).find(path.name).reads.document
    assert [image.name for image, _ in finished_stores.find_images(read, ())] == ["A/2/0", "B/1/0"]
    with pytest.raises(finished_stores.NotViewableError, match=r"has no image C\. It has A/2/0, B/1/0"):
        finished_stores.find_images(read, ["C"])


@pytest.mark.parametrize(("count", "channels", "least"), [(64, 4, 40), (64, 1, 64), (64, 8, 20), (9, 4, 9)])
def test_the_address_of_very_many_images_is_as_long_as_browsers_take(count, channels, least):
    """Chromium refuses 64 images of four channels. The title says how many are shown."""
    looks = tuple(ChannelLook(f"channel {n}", "00FF00") for n in range(channels))
    axes, units = ("t", "c", "y", "x"), ("second", None, "micrometer", "micrometer")
    image = StoredImage(axes, units, (1, 1, 0.25, 0.25), (9, channels, 64, 64), "uint16", channels=looks)
    url = "http://127.0.0.1:40000/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/stores/plate.ome.zarr"
    windows = [(100.0, 4000.0)] * channels
    shown = [ShownImage(image, f"position {n}", f"{url}/{n}/", windows) for n in range(count)]
    fragment = viewer._fragment("plate", shown, newest=False)
    state = json.loads(unquote(fragment.removeprefix("#!")))
    images = len(state["layers"]) // channels
    assert least <= images <= count
    assert len(fragment) <= viewer.MOST_ADDRESS_BYTES
    said = f" · first {images} images" if count == 64 else ""
    assert state["title"] == f"plate{said} · shardwright"


def test_many_images_with_channels_stand_in_rows():
    looks = (ChannelLook("DAPI", "0000FF"), ChannelLook("GFP", "00FF00"))
    image = StoredImage(
        ("t", "c", "y", "x"), (None,) * 4, (1, 1, 1, 1), (3, 2, 8, 8), "uint8", channels=looks
    )
    shown = [ShownImage(image, f"p{n // 2}", f"http://rig/{n}/", []) for n in range(5)]
    state = viewer_state("five", shown, newest=True)
    names = [layer["name"] for layer in state["layers"]]
    assert names[:3] == ["p0 · DAPI", "p0 · GFP", "p0 · DAPI (2)"]
    assert len(set(names)) == 10
    rows = [[tile["layers"] for tile in row["children"]] for row in state["layout"]["children"]]
    assert [len(row) for row in rows] == [3, 2]
    assert [name for row in rows for tile in row for name in tile] == names
    assert state["position"][0] == 2, "the newest frame"


@pytest.mark.parametrize(
    "series", [["../outside.ome.zarr"], [".hidden"], ["a/../../outside.ome.zarr"], {}, 7, []]
)
def test_a_collection_leads_nowhere_else(tmp_path, series):
    root = tmp_path / "root"
    write_store(tmp_path / "outside.ome.zarr", frames=1)
    document = write_collection(root / "bad.ome.zarr", "positions") / "OME/zarr.json"
    facts = json.loads(document.read_text())
    facts["attributes"]["ome"]["series"] = series
    document.write_text(json.dumps(facts))
    assert look(root) == []


def test_the_list_is_bounded_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(finished_stores, "MOST_LISTED", 2)
    for i in range(3):
        os.utime(write_store(tmp_path / f"s{i}.ome.zarr", frames=1), (1e9 + i, 1e9 + i))
        stores = finished_stores.FinishedStores(tmp_path)
        listed = [store["name"] for store in anyio.run(stores.listed)]
        assert (listed, stores.more) == ([f"s{j}" for j in range(i, max(-1, i - 2), -1)], i == 2)
    with WebProcess(settings_for(tmp_path)) as unbounded:
        told = json.loads(unbounded.ask("/api/stores").body)
    assert (len(told["stores"]), told["more"]) == (3, False)


def test_a_root_that_is_away_leaves_what_was_known(tmp_path):
    stores = finished_stores.FinishedStores(tmp_path / "root")
    (tmp_path / "root").mkdir()
    write_store(tmp_path / "root" / "one.ome.zarr")
    stores._look()
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    stores._look()
    assert [store["name"] for store in stores._list] == ["one"]


def test_a_read_that_was_refused_once_hides_nothing_for_ever(tmp_path, monkeypatch):
    """It says nothing of the store, whose folder does not change."""
    monkeypatch.setattr(finished_stores, "LOOK_EVERY_S", 0)
    store, real, places, reads = write_store(tmp_path / "a.ome.zarr"), beneath.open_file, [], []

    def refused(path, *args, **more):
        if path in places:
            raise OSError(number, os.strerror(number), str(path))
        reads.append(path)
        return real(path, *args, **more)

    def told():
        found = anyio.run(stores.listed)
        return found[0].get("unreadable", found[0].get("frames_missing")) if found else "nothing"

    monkeypatch.setattr(beneath, "open_file", refused)
    for number in (errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES):
        for place in ("zarr.json", "0/zarr.json", "frames/status/c/0"):
            stores = finished_stores.FinishedStores(tmp_path)
            places.append(store / place)
            if place.startswith("frames"):
                assert told() is None, "unknown"
            elif (place, number) == ("zarr.json", errno.EACCES):
                assert told() == "nothing", "it need not be a store: the lost+found of a disk"
            else:
                assert f"cannot read a.ome.zarr/{place}: {os.strerror(number)}" in told()
            places.clear()
            assert told() == 0, (number, place)
            reads.clear()
            assert (told(), reads) == (0, [tmp_path]), "what is known is not read again"


def test_a_link_leads_to_the_client_with_the_store_in_it(root, web):
    write_store(root / "embryo.ome.zarr")
    told = json.loads(web.ask("/api/stores").body)
    assert told["viewer"] == viewer.VIEW
    assert "embryo.ome.zarr" in [store["store"] for store in told["stores"]]
    state = state_of(web.ask("/view/embryo.ome.zarr"))
    layer = state["layers"][0]
    assert layer["source"] == f"http://127.0.0.1:{web.port}/stores/embryo.ome.zarr/|zarr3:"
    assert layer["shaderControls"]["normalized"]["range"] == pytest.approx([0, 299], abs=3), "of all frames"
    assert state["dimensions"] == {
        "t": [0.5, "s"],
        "y": [pytest.approx(2.5e-7), "m"],
        "x": [pytest.approx(2.5e-7), "m"],
    }
    assert state["displayDimensions"] == ["x", "y", "t"]
    assert state["position"] == [0, 19.5, 34.5]


ODD = "a b#c%41?d|e\nf\\g"


def test_odd_names_lead_to_their_store(tmp_path):
    """The source in the state is an address, which the client asks as it stands."""
    store = write_collection(tmp_path / f"{ODD}.ome.zarr", "positions")
    (store / "1").rename(store / ODD)
    document = store / "OME/zarr.json"
    document.write_text(document.read_text().replace('"1"', json.dumps(ODD)))
    with (
        WebProcess(settings_for(tmp_path)) as web,
        sw.create(tmp_path / f"{ODD} too.ome.zarr", SMALL) as writer,
    ):
        writer.append(np.zeros((24, 32), np.uint16))
        writer.flush()
        for path, image in ((store, f"{ODD}/"), (writer.path, "")):
            (layer,) = state_of(web.ask(f"/view/{quote(path.name)}"))["layers"]
            source = layer["source"].removesuffix("|zarr3:").removeprefix(f"http://127.0.0.1:{web.port}")
            assert not set(source) & set(" #?|")
            answer = web.ask(f"{source}zarr.json")
            assert answer.status == 200
            assert (
                json.loads(answer.body)["attributes"]
                == json.loads((path / image / "zarr.json").read_text())["attributes"]
            )


def test_a_store_whose_pixels_cannot_be_read_is_opened_all_the_same(root, web):
    store = write_store(root / "cut.ome.zarr")
    forget_windows(store)
    for shard in (store / "0" / "c").rglob("*"):
        if shard.is_file():
            shard.write_bytes(b"")
    assert "shaderControls" not in state_of(web.ask("/view/cut.ome.zarr"))["layers"][0]


def test_only_finished_stores_of_the_root_are_opened(tmp_path, root, web):
    outside = write_store(tmp_path / "outside.ome.zarr")
    (root / "link.ome.zarr").symlink_to(outside)
    (write_store(root / "running.ome.zarr") / WORKSPACE).mkdir()
    leading_out = write_store(root / "out.ome.zarr") / "zarr.json"
    to_outside = os.path.relpath(outside / "0", root / "out.ome.zarr")
    leading_out.write_text(leading_out.read_text().replace('"path": "0"', f'"path": "{to_outside}"'))
    for store in (
        "absent.ome.zarr",
        "..",
        "%2e%2e",
        ".hidden",
        "link.ome.zarr",
        "running.ome.zarr",
        "out.ome.zarr",
        "a%00b",
    ):
        assert web.ask(f"/view/{store}").status == 404, store


def test_the_client_is_served_with_a_policy_that_keeps_everything_here(web):
    index = web.ask(viewer.CLIENT)
    assert index.status == 200
    assert index.body.startswith(b'<!doctype html><html><head><script src="session_stub.js"></script>')
    script = next(part.split(b'"')[0].decode() for part in index.body.split(b'src="')[2:])
    for name, media_type in (
        ("", "text/html"),
        ("session_stub.js", "text/javascript"),
        (script, "text/javascript"),
    ):
        answer = web.ask(viewer.CLIENT + name)
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith(media_type)
        policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'self'"
        assert policy["connect-src"] == "'self' data: blob:"
    assert web.ask(viewer.CLIENT + script, "HEAD").body == b""
    for name in ("../../server.py", "..%2f..%2fserver.py", "absent.js"):
        assert web.ask(viewer.CLIENT + name).status == 404


def test_without_the_package_the_page_says_how_to_get_it(tmp_path):
    write_store(tmp_path / "one.ome.zarr", frames=1)
    sabotage = (
        "import importlib.util as u; find = u.find_spec; u.find_spec = lambda name, *a: None if name "
        "== 'neuroglancer' else find(name, *a)"
    )
    with WebProcess(settings_for(tmp_path), sabotage=sabotage) as web:
        told = json.loads(web.ask("/api/stores").body)
        assert (told["viewer"], len(told["stores"])) == (None, 1)
        for path in (viewer.CLIENT, "/view/one.ome.zarr"):
            answer = web.ask(path)
            assert (answer.status, b"shardwright[viewer]" in answer.body) == (404, True)


def test_the_workspace_is_what_the_writer_calls_it():
    assert finished_stores.WORKSPACE == WORKSPACE


def test_grey_levels_are_those_of_the_pixels(tmp_path):
    store = write_store(tmp_path / "s.zarr", frames=1)
    forget_windows(store)
    ((low, high),) = windows(open_store(store))
    assert (0 <= low <= 5, 94 <= high <= 99) == (True, True)


def test_grey_levels_of_an_array_in_which_nothing_can_be_read(tmp_path):
    store = write_store(tmp_path / "s.zarr")
    forget_windows(store)
    for shard in (store / "0" / "c").rglob("*"):
        if shard.is_file():
            os.truncate(shard, 3)
    assert windows(open_store(store)) == [None]


def test_grey_levels_come_from_the_metadata_first(tmp_path):
    store = write_store(tmp_path / "s.zarr", frames=1)
    document = store / "zarr.json"
    facts = json.loads(document.read_text())
    window = facts["attributes"]["ome"]["omero"]["channels"][0]["window"]
    for start, end, expected in [
        (20, 50, (20, 50)),
        (0, 65535, None),
        (50, 20, None),
        ("low", 20, None),
        (0, 10**400, None),
    ]:
        window |= {"start": start, "end": end}
        document.write_text(json.dumps(facts))
        ((low, high),) = windows(open_store(store))
        assert (low, high) == expected if expected else (0 <= low <= 5 and 94 <= high <= 99), (start, end)
    for shard in (store / "0" / "c").rglob("*"):
        if shard.is_file():
            os.truncate(shard, 3)
    window |= {"start": 20, "end": 50}
    document.write_text(json.dumps(facts))
    assert windows(open_store(store)) == [(20, 50)], "no chunk is decoded"


def test_five_axes_show_a_slice_and_scroll_through_depth():
    image = StoredImage(
        ("t", "c", "z", "y", "x"),
        ("second", None, "micrometer", "micrometer", "micrometer"),
        (2, 1, 1.5, 0.5, 0.5),
        (4, 2, 9, 100, 200),
        "uint8",
    )
    state = viewer_state("stack", [ShownImage(image, "stack", "http://rig/stores/stack.ome.zarr/", [])])
    assert state["displayDimensions"] == ["x", "y", "z"]
    assert state["position"] == [0, 0, 0, 49.5, 99.5]
    assert state["dimensions"]["c"] == [1, ""]
    assert image.frames == 72


def test_units_that_the_viewer_may_not_know_leave_the_place_to_it():
    image = StoredImage(("t", "y", "x"), (None, "parsec", "parsec"), (1, 1, 1), (1, 8, 8), "uint8")
    shown = ShownImage(image, "sky", "http://rig/stores/sky.ome.zarr/", [(0, 1)])
    assert "position" not in viewer_state("sky", [shown])


@pytest.mark.parametrize(
    ("dtype", "window", "slider"),
    [
        ("uint16", (0, 300), [0, 450]),
        ("uint16", (400, 65000), [0, 65535]),
        ("int8", (-128, 127), [-128, 127]),
        ("float32", (0, 1), [-0.25, 1.5]),
        ("uint99999999", (0, 2), [-0.5, 3.0]),  # no number of so many bits is made
    ],
)
def test_the_slider_stays_within_the_pixel_type(dtype, window, slider):
    """neuroglancer drops a wider one, and with it the grey levels."""
    image = StoredImage(("y", "x"), (None, None), (1.0, 1.0), (4, 4), dtype)
    (layer,) = viewer_state("a", [ShownImage(image, "a", "http://rig/stores/a.ome.zarr/", [window])])[
        "layers"
    ]
    assert layer["shaderControls"]["normalized"] == {"range": list(window), "window": slider}


@pytest.mark.parametrize("where", ["name", "axis", "dtype", "channel"])
def test_metadata_of_any_length_have_a_short_entry(tmp_path, where):
    store, long = write_store(tmp_path / "a.ome.zarr"), "x" * 1_000_000
    group = json.loads((store / "zarr.json").read_text())
    ome = group["attributes"]["ome"]
    if where == "dtype":
        array = json.loads((store / "0/zarr.json").read_text())
        (store / "0/zarr.json").write_text(json.dumps({**array, "data_type": long}))
    elif where == "channel":
        ome["omero"]["channels"][0]["label"] = long
    else:
        (ome["multiscales"][0] if where == "name" else ome["multiscales"][0]["axes"][0])["name"] = long
    (store / "zarr.json").write_text(json.dumps(group))
    (facts,) = look(tmp_path)
    assert facts["frames"] == 3
    assert len(Json(facts).body) < 2000
    image = finished_stores.FinishedStores(tmp_path).find("a.ome.zarr").image
    assert all(len(channel.name) < 1000 for channel in image.channels)
    assert len(json.dumps(viewer_state("a", [ShownImage(image, "a", "http://rig/", [])]))) < 4000


def test_channels_that_are_not_as_they_should_be_hide_no_store(tmp_path):
    names = {write_store(tmp_path / "a.ome.zarr").name.removesuffix(".ome.zarr")}
    for i, omero in enumerate((None, [], {"channels": None}, {"channels": {"a": 1}}, {"channels": ["x"]})):
        odd = write_store(tmp_path / f"odd{i}.ome.zarr")
        facts = json.loads((odd / "zarr.json").read_text())
        facts["attributes"]["ome"]["omero"] = omero
        (odd / "zarr.json").write_text(json.dumps(facts))
        names.add(f"odd{i}")
        assert {store["name"] for store in look(tmp_path)} == names, omero
    with WebProcess(settings_for(tmp_path)) as web:
        for name in names:
            assert state_of(web.ask(f"/view/{name}.ome.zarr"))["layers"]


DEEP = "[" * 1000 + "]" * 1000
DAMAGES = {
    "nested 1000 deep": lambda text: text.replace('"attributes": {', f'"attributes": {{"a": {DEEP}, ', 1),
    "nested 100000 deep": lambda text: "[" * 100_000,
    "not finite": lambda text: (
        text.replace('"shape": [', '"shape": [1e999, ', 1) if '"shape"' in text else "1e999"
    ),
    "no integer": lambda text: (
        text.replace('"shape": [', f'"shape": [{"9" * 5000}, ', 1) if '"shape"' in text else "9" * 5000
    ),
    "cut": lambda text: text[:-9],
    "another format": lambda text: text.replace('"zarr_format": 3', '"zarr_format": 4', 1),
    "not UTF-8": lambda text: text.replace('"zarr_format"', '"\udcff"', 1),
    "half a surrogate pair": lambda text: text.replace('"node_type"', '"\\ud800": 1, "node_type"', 1),
}


@pytest.mark.parametrize("document", ["zarr.json", "0/zarr.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damaged_store_hides_no_other(tmp_path, damage, document):
    write_store(tmp_path / "sound.ome.zarr")
    bad = write_store(tmp_path / "bad.ome.zarr") / document
    bad.write_text(DAMAGES[damage](bad.read_text()), errors="surrogateescape")
    told = {store["store"]: store for store in look(tmp_path)}
    assert sorted(told) == ["bad.ome.zarr", "sound.ome.zarr"]
    assert told["sound.ome.zarr"]["frames"] == 3
    assert document in told["bad.ome.zarr"]["unreadable"]
    assert "nested" not in damage or "nested too deep" in told["bad.ome.zarr"]["unreadable"]
    assert Json({"stores": look(tmp_path)}).status_code == 200


def test_metadata_that_would_hold_up_the_page_are_not_read(tmp_path):
    write_store(tmp_path / "sound.ome.zarr")
    bad = write_store(tmp_path / "bad.ome.zarr") / "zarr.json"
    os.truncate(bad, MAX_METADATA_BYTES + 1)
    told = {store["store"]: store for store in look(tmp_path)}
    assert told["sound.ome.zarr"]["frames"] == 3
    assert "zarr.json is too long; expected at most 67108864 bytes" in told["bad.ome.zarr"]["unreadable"]


def test_the_page_lists_what_cannot_be_read(tmp_path):
    write_store(tmp_path / "sound.ome.zarr")
    bad = write_store(tmp_path / "bad.ome.zarr") / "0/zarr.json"
    bad.write_text(DAMAGES["nested 1000 deep"](bad.read_text()))
    (tmp_path / "no store").mkdir()
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / os.fsdecode(b"\xff") / "zarr.json").write_text("[" * 1000)
    write_store(tmp_path / "sound too").rename(tmp_path / os.fsdecode(b"\xfe"))
    with WebProcess(settings_for(tmp_path)) as web:
        answer = web.ask("/api/stores")
        assert answer.status == 200
        told = {store["store"]: store for store in json.loads(answer.body)["stores"]}
        assert sorted(told) == ["bad.ome.zarr", "sound.ome.zarr", "\udcfe", "\udcff"]
        # encodeURIComponent() of the page throws for it: a link to it would cost the whole list
        assert "not UTF-8" in told["\udcfe"]["unreadable"]
        viewed = web.ask("/view/bad.ome.zarr")
        assert (viewed.status, "nested too deep" in viewed.body.decode()) == (404, True)
        assert web.errors() == ""


def test_a_fault_that_nobody_has_thought_of_hides_no_other_store(tmp_path, monkeypatch):
    for name in ("one", "two"):
        write_store(tmp_path / f"{name}.ome.zarr")
    of = StoredImage.of

    def fail(group, array):
        if group["attributes"]["ome"]["multiscales"][0]["name"] == "one":
            raise ArithmeticError("of some kind")
        return of(group, array)

    monkeypatch.setattr(StoredImage, "of", fail)
    told = {store["name"]: store.get("unreadable") for store in look(tmp_path)}
    assert told == {"one": "ArithmeticError: of some kind", "two": None}
