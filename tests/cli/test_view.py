"""``shardwright view``: which viewer it takes, what it serves for the browser, and how it finds a daemon's
acquisition. napari's window itself is tested in tests/viewers."""

from __future__ import annotations

import json
import re
import signal
from contextlib import contextmanager
from urllib.parse import unquote, urljoin, urlsplit

import numpy as np
import pytest
from tests.daemon.browser import Browser
from tests.harness.daemon import camera, run_cli, serving, start_cli
from tests.harness.json_process import TIMEOUT_S
from tests.harness.writing import how
from tests.web.web_process import ask

import shardwright as sw
from shardwright.cli.view import _tell_address
from shardwright.web.one_store import ICON
from shardwright.web.viewer import CLIENT

NOWHERE = (
    "import os; [os.environ.pop(name, None) for name in ('DISPLAY', 'WAYLAND_DISPLAY', 'QT_QPA_PLATFORM')];"
)


def without(*modules, found=()):
    """Python in whose process these modules are not installed, and others are."""
    return (
        f"{NOWHERE} import importlib.util as u; find = u.find_spec; u.find_spec = lambda name, *a: "
        f"None if name in {modules!r} else 1 if name in {found!r} else find(name, *a)"
    )


def write(path, frames=3):
    """A ramp along the columns, from left to right."""
    with sw.create(path, sw.default_layout((frames, 64, 96), "uint16", "tyx")) as writer:
        for _ in range(frames):
            writer.append(np.broadcast_to(np.arange(96, dtype=np.uint16) * 10, (64, 96)).copy())
    return path


def base_of(url):
    """The secret below which all addresses lie."""
    base, _, rest = url.path.partition("/view/")
    assert rest
    assert re.fullmatch(r"/[A-Za-z0-9_-]{40,}", base)
    return base


@contextmanager
def viewing(*arguments):
    """``shardwright view`` for the browser: the address. It ends in good order by Ctrl-C."""
    with start_cli("view", *arguments, "--in", "browser", "--no-open", "--json") as process:
        told = json.loads(process.stdout.readline())
        assert told["in"] == "browser"
        url = urlsplit(told["url"])
        # served: a signal before that ends it at once
        assert ask(url.port, f"{base_of(url)}/icon.svg").status == 200
        yield url
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0


def test_a_store_is_served_alone_to_this_computer(tmp_path):
    store, other = write(tmp_path / "one.ome.zarr"), write(tmp_path / "other.ome.zarr")
    with viewing(store) as url:
        base = base_of(url)
        assert (url.hostname, url.path) == ("127.0.0.1", f"{base}/view/one.ome.zarr")
        answer = ask(url.port, url.path)
        assert answer.status == 302
        client, _, state = answer.headers["Location"].partition("#!")
        (layer,) = json.loads(unquote(state))["layers"]
        source = layer["source"].removesuffix("|zarr3:")
        assert source == f"http://127.0.0.1:{url.port}{base}/stores/one.ome.zarr/"
        files = f"{base}/stores/{store.name}/"
        assert ask(url.port, files + "zarr.json").body == (store / "zarr.json").read_bytes()
        assert ask(url.port, files + "0/c/0/0/0").body == (store / "0/c/0/0/0").read_bytes()
        assert client.startswith(f"{base}/")
        assert ask(url.port, client).status == 200
        (icon,) = re.findall(r'rel="icon" href="([^"]+)"', ask(url.port, client).body.decode())
        assert ask(url.port, urljoin(client, icon)).status == 200
        for absent in (
            *("/", "/metrics", "/api/stores", "/api/status", f"/stores/{other.name}/zarr.json"),
            *(f"/view/{other.name}", f"/stores/{store.name}/../{other.name}/zarr.json", "/stores/"),
        ):
            assert ask(url.port, base + absent).status == 404, absent
        assert ask(url.port, url.path, headers={"Host": "foreign.example"}).status == 421
        foreign = ask(url.port, files + "zarr.json", headers={"Origin": "http://foreign.example"})
        assert "Access-Control-Allow-Origin" not in foreign.headers


def test_nobody_who_has_not_the_address_reads_a_store(tmp_path):
    """Every user of the computer reaches the port, also those who may not enter the store's folder."""
    store = write(tmp_path / "one.ome.zarr")
    with viewing(store) as url:
        base = base_of(url)
        document = f"/stores/{store.name}/zarr.json"
        shown = (f"/view/{store.name}", document, f"/live/{store.name}/zarr.json", CLIENT, ICON)
        for path in shown:
            assert ask(url.port, base + path).status in (200, 302), path
            for guess in ("", "/", "/x", base[:-1], f"{base}x", base.swapcase(), f"{base[:-1]}%C3%A9"):
                assert ask(url.port, guess + path).status == 404, (guess, path)
        assert ask(url.port, base).status == 404


def test_spilled_shards_are_served_from_the_folder_that_is_named(tmp_path):
    store, spill = write(tmp_path / "one.ome.zarr"), tmp_path / "spill"
    shard = store / "0/c/0/0/0"
    place = spill / shard.relative_to(tmp_path)
    place.parent.mkdir(parents=True)
    moved = shard.rename(place)
    shard.symlink_to(moved)
    bases = set()
    for options, status in (([], 409), (["--spill-root", spill], 200)):
        with viewing(store, *options) as url:
            bases.add(base_of(url))
            assert ask(url.port, f"{base_of(url)}/stores/{store.name}/0/c/0/0/0").status == status
    assert len(bases) == 2, "another one each time"


def test_a_running_store_names_the_folder_of_its_spilled_shards_itself(tmp_path):
    spec = sw.default_layout((None, 64, 64), "uint16", "tyx")
    spill = {"spill_root": tmp_path / "spill", "on_full": "spill"}
    with sw.create(tmp_path / "a.ome.zarr", spec, **how(**spill)) as writer:
        writer.append(np.zeros((64, 64), np.uint16))
        writer.flush()
        with viewing(writer.path) as url:
            assert ask(url.port, url.path).status == 302
            assert ask(url.port, f"{base_of(url)}/live/{writer.path.name}/0/zarr.json").status == 200
        with viewing(writer.path, "--spill-root", tmp_path) as url:
            refused = ask(url.port, url.path)
            assert (refused.status, b"may lie in a second folder" in refused.body) == (404, True)


def write_two(path):
    """Ramps from left to right, in the second image from right to left."""
    with sw.create(path, shape=(1, 64, 96), dtype="uint16", axes="tyx", images=["left", "a b"]) as writer:
        for name, ramp in (("left", np.arange(96)), ("a b", np.arange(96)[::-1])):
            writer.append(np.broadcast_to(ramp * 10, (64, 96)).astype(np.uint16), image=name)
    return path


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["left", "a b"]),
        (["--image", "a b"], ["two · a b"]),
        (["--image", "0"], ["two · left"]),
        (["--image", "a b", "--image", "left"], ["left", "a b"]),
    ],
)
def test_every_image_is_shown_or_those_that_are_named(tmp_path, options, shown):
    with viewing(write_two(tmp_path / "two.ome.zarr"), *options) as url:
        answer = ask(url.port, f"{url.path}?{url.query}")
        assert answer.status == 302
        state = json.loads(unquote(answer.headers["Location"].partition("#!")[2]))
    assert [layer["name"] for layer in state["layers"]] == shown


def test_more_names_than_are_shown_are_said(capsys):
    _tell_address("http://here/", ["left"] * 100, as_json=True)
    told = capsys.readouterr()
    assert told.err == "shardwright: the first 64 of these 100 images are shown\n"
    assert json.loads(told.out)["url"] == "http://here/"


def test_an_image_that_is_not_there_is_told_at_once(tmp_path):
    store = write_two(tmp_path / "two.ome.zarr")
    told = run_cli("view", store, "--in", "browser", "--image", "left", "--image", "right")
    assert (told.returncode, told.stderr) == (
        1,
        f"shardwright: a browser cannot show {store}; got This store has no image right. It has left, a b\n",
    )


@pytest.mark.browser
def test_the_browser_shows_both_images(tmp_path):
    with viewing(write_two(tmp_path / "two.ome.zarr")) as url, Browser() as browser:
        browser.open(url.geturl())

        def seen():
            shot = browser.screenshot()[400:550, :, 0].astype(float)
            tiles = [shot[:, 140:500], shot[:, 785:1145]]  # each within its half of the window
            return tiles if min(tile.std() for tile in tiles) > 40 else None

        left, right = browser.wait(seen, "both images")
    for tile, sign in ((left, 1), (right, -1)):
        columns = np.broadcast_to(np.arange(tile.shape[1]), tile.shape)
        assert sign * np.corrcoef(tile.ravel(), columns.ravel())[0, 1] > 0.95


@pytest.mark.browser
def test_the_browser_shows_the_store(tmp_path):
    with viewing(write(tmp_path / "a b#c%41?d.ome.zarr")) as url, Browser() as browser:
        browser.open(url.geturl())

        def seen():
            middle = browser.screenshot()[400:600, 300:700, 0].astype(float)
            return (middle,) if middle.std() > 10 else None

        (shown,) = browser.wait(seen, "the image")
    columns = np.broadcast_to(np.arange(shown.shape[1]), shown.shape)
    assert np.corrcoef(shown.ravel(), columns.ravel())[0, 1] > 0.95


def test_an_acquisition_is_found_by_its_name(monkeypatch, folder):
    """Running or finished, below the daemon's output root; where its files cannot be read, the daemon's own
    page shows it."""
    config, endpoint = folder / "rig.yaml", f"ipc://{folder}/ingest.sock"
    config.write_text(
        f"output: {{root: {folder}/data, spill_root: {folder}/spill, create: true, in_memory: true}}\n"
        f"ingest: {{endpoints: ['{endpoint}']}}\nhttp: {{enabled: true, listen: '127.0.0.1:*'}}\n"
        "reliability: {on_full: spill}\n"
    )
    (folder / "spill").mkdir()
    for name in ("running", "notes"):  # no store, and it hides none
        (folder / name).touch()
    monkeypatch.chdir(folder)
    with serving(config) as daemon:
        camera(endpoint, "finished", "--frames", "4", "--shape", "64x64")
        with viewing("finished", "--socket", folder / "control.sock") as url:
            assert ask(url.port, url.path).status == 302
        with sw.connect(endpoint) as client:
            array = sw.default_layout((None, 64, 64), "uint16", "tyx")
            with client.acquire("running", array) as stream:
                stream.append(np.zeros((64, 64), np.uint16))
                with viewing("running", "--config", config) as url:
                    base = base_of(url)
                    assert url.path == f"{base}/view/running.ome.zarr"
                    stream.flush()
                    shown = unquote(ask(url.port, url.path).headers["Location"])
                    assert f"http://127.0.0.1:{url.port}{base}/live/running.ome.zarr/|zarr3:" in shown
                    document = json.loads(ask(url.port, f"{base}/live/running.ome.zarr/0/zarr.json").body)
                    assert document["shape"] == [1, 64, 64]
                (folder / "data").rename(folder / "elsewhere")
                shown = run_cli("view", "running", "--config", config, "--no-open")
                (folder / "elsewhere").rename(folder / "data")
        page = next(event["status_page"] for event in daemon.events if "status_page" in event)
        assert (shown.returncode, shown.stdout) == (0, f"{page}view/running.ome.zarr?all\n"), shown.stderr
        unknown = run_cli("view", "unknown", "--config", config)
        assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)
        assert "no acquisition unknown is open in this daemon, nor finished" in unknown.stderr
        notes = run_cli("view", "notes", "--config", config)
        assert (notes.returncode, f"{folder}/notes is a file; expected the folder" in notes.stderr) == (
            1,
            True,
        )


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        (".", "is no store; expected a folder with zarr.json"),
        ("absent/a.ome.zarr", "there is no folder absent/a.ome.zarr"),
        ("absent", "there is no folder absent, nor a daemon to ask for it: no daemon answers at"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, what, problem):
    shown = run_cli("view", tmp_path if what == "." else what, "--socket", tmp_path / "control.sock")
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 1)
    assert problem in shown.stderr


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("a.ome.zarr/0", "Give the store that it is a part of: {folder}/a.ome.zarr"),
        ("a.ome.zarr/frames/sequence", "Give the store that it is a part of: {folder}/a.ome.zarr"),
        (".hidden.ome.zarr", "expected a name that does not begin with a dot"),
        ("running.ome.zarr/0", "is a part of an unfinished store; expected {folder}/running.ome.zarr"),
        ("empty.zarr", "a browser cannot show {folder}/empty.zarr; got This store holds no image"),
    ],
)
def test_what_a_browser_cannot_be_shown_is_told_at_once(tmp_path, what, problem):
    for name in ("a.ome.zarr", ".hidden.ome.zarr"):
        write(tmp_path / name)
    (tmp_path / "empty.zarr").mkdir()
    (tmp_path / "empty.zarr/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    spec = sw.default_layout((None, 64, 64), "uint16", "tyx")
    with sw.create(tmp_path / "running.ome.zarr", spec) as writer:
        writer.append(np.zeros((64, 64), np.uint16))
        writer.flush()
        shown = run_cli("view", tmp_path / what, "--in", "browser", "--no-open")
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 1), shown.stderr
    assert problem.format(folder=tmp_path) in shown.stderr


@pytest.mark.parametrize(
    ("options", "first", "problem"),
    [
        ([], without("napari", "neuroglancer"), "view finds no viewer; got napari is not installed"),
        (
            [],
            without("neuroglancer", found=("napari",)),
            "napari has no Qt to draw with: pip install pyqt6",
        ),
        (["--in", "browser"], without("neuroglancer"), "pip install 'shardwright[viewer]'"),
        (["--in", "napari"], without("napari"), "pip install 'shardwright[napari]'"),
        (["--in", "napari"], without(found=("napari", "PyQt6")), "got there is no display"),
    ],
)
def test_a_viewer_that_is_missing_is_named_with_what_installs_it(tmp_path, options, first, problem):
    shown = run_cli("view", write(tmp_path / "a.ome.zarr"), *options, first=first)
    assert (shown.returncode, len(shown.stderr.splitlines())) == (2, 1), shown.stderr
    assert problem in shown.stderr
    if "finds no viewer" in problem:
        assert "'shardwright[napari]' for napari, pip install 'shardwright[viewer]' for the" in shown.stderr


def test_the_browser_is_opened_at_the_address(tmp_path):
    """That of BROWSER, which may run as long as it likes."""
    store, told = write(tmp_path / "a.ome.zarr"), tmp_path / "told"
    (tmp_path / "browser").write_text(f'#!/bin/sh\necho "$1" > {told}.new; mv {told}.new {told}; sleep 60\n')
    (tmp_path / "browser").chmod(0o700)
    browser = {"BROWSER": f"{tmp_path}/browser %s"}
    with start_cli("view", store, "--in", "browser", more=browser) as process:
        url = process.stdout.readline().strip()
        while not told.exists():
            assert process.poll() is None
        assert told.read_text().strip() == url
        assert ask(urlsplit(url).port, urlsplit(url).path).status == 302
