"""Stores over HTTP: every byte that is a store's, to every reader that knows the way, and not one byte of
anything else."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import numpy as np
import obstore.store
import pytest
import tensorstore
import zarr
from zarr.storage import FsspecStore, ObjectStore

import shardwright as sw
from shardwright.config.model import Http
from shardwright.disk import beneath
from shardwright.simulate.photons import PhotonFrames
from shardwright.web import stores
from shardwright.web.daemon_link import DaemonLink
from shardwright.web.finished_stores import FinishedStores
from shardwright.web.served_files import open_in_store
from shardwright.web.web_app import make_app

from .web_process import Answer, WebProcess, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "embryo 3.ome.zarr"  # as a person names a folder: the address of it has %20
SECRET = b"not for everybody"
SHARD = "0/c/0/0/0"
FRAMES = 10


def make_store(path: Path) -> np.ndarray:
    y, x = (sw.Dimension(name=name, count=64, chunk_size=32, shard_size_chunks=2) for name in "yx")
    spec = sw.ArraySpec(
        dtype="uint16",
        dimensions=[sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=2), y, x],
    )
    source = PhotonFrames((64, 64), seed=5)
    with sw.create(path, spec) as writer:
        for i in range(FRAMES):
            writer.append(source.frame(i))
    return np.stack([source.frame(i) for i in range(FRAMES)])


class Site:
    """A root with a store and all kinds of things that are none, a second root for spilled shards, and a
    folder that is nobody's business."""

    def __init__(self, folder: Path) -> None:
        self.root, self.spill, self.private = (folder / name for name in ("root", "spill", "private"))
        for each in (self.root, self.spill, self.private):
            each.mkdir()
        self.store = self.root / NAME
        self.pixels = make_store(self.store)
        self.files = [path for path in self.store.rglob("*") if path.is_file()]
        (self.private / "secret").write_bytes(SECRET)
        (self.private / "zarr.json").write_bytes(SECRET)
        (self.root / "secret").write_bytes(SECRET)
        (self.root / "notes").mkdir()
        (self.root / "notes" / "secret").write_bytes(SECRET)
        (self.root / ".hidden.ome.zarr").mkdir()
        (self.root / ".hidden.ome.zarr" / "zarr.json").write_bytes(SECRET)
        (self.store / ".shardwright").mkdir()
        (self.store / ".shardwright" / "secret").write_bytes(SECRET)
        (self.root / "linked.ome.zarr").symlink_to(self.private)
        (self.store / "0" / "out").symlink_to(self.private / "secret")
        (self.store / "0" / "up").symlink_to("../../secret")
        (self.store / "0" / "folder").symlink_to(self.private)
        (self.store / "0" / "spilled-out").symlink_to(self.spill / ".." / "private" / "secret")
        (self.store / "0" / "like-spill").symlink_to(f"{self.spill}-other/secret")
        Path(f"{self.spill}-other").mkdir()
        (Path(f"{self.spill}-other") / "secret").write_bytes(SECRET)
        os.mkfifo(self.store / "0" / "pipe")
        os.link(self.private / "secret", self.store / "0" / "unreadable")
        self._spill_a_shard()

    def _spill_a_shard(self) -> None:
        """As the daemon does it: the file below the second root, a link under its key."""
        shard, spilled = self.store / "0/c/1/0/0", self.spill / NAME / "0/c/1/0/0"
        spilled.parent.mkdir(parents=True)
        shard.rename(spilled)
        shard.symlink_to(spilled)
        (self.spill / NAME / "through").symlink_to(self.private / "secret")
        (self.store / "0" / "two-links").symlink_to(self.spill / NAME / "through")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def web(site: Site) -> Iterator[WebProcess]:
    with WebProcess(settings_for(site.root, spill_root=site.spill)) as web:
        yield web
        assert web.errors() == ""


def get(web: WebProcess, key: str, method: str = "GET", **headers: str) -> Answer:
    return web.ask(
        f"/stores/{quote(NAME)}/{key}",
        method,
        {name.replace("_", "-"): value for name, value in headers.items()},
    )


def test_every_file_of_the_store_is_served_as_it_is(web: WebProcess, site: Site) -> None:
    files = [
        path
        for path in site.store.rglob("*")
        if path.is_file() and path.name in ("zarr.json", "0", "1", "2") and "." not in path.parent.name[:1]
    ]
    assert len(files) > 20
    for path in files:
        answer = get(web, path.relative_to(site.store).as_posix())
        assert (answer.status, answer.body) == (200, path.read_bytes()), path
        assert answer.headers["Content-Type"] == (
            "application/json" if path.suffix == ".json" else "application/octet-stream"
        )


@pytest.mark.parametrize(
    "header",
    ["bytes=0-9", "bytes=100-", "bytes=-1", "bytes=-500", "bytes=7-7", "bytes=0-99999999", "bytes=-99999999"],
)
def test_ranges(web: WebProcess, site: Site, header: str) -> None:
    data = (site.store / SHARD).read_bytes()
    first, _, last = header.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, len(data) - int(last))
    stop = min(int(last) + 1, len(data)) if first and last else len(data)
    answer = get(web, SHARD, Range=header)
    assert (answer.status, answer.body) == (206, data[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(data)}"
    head = get(web, SHARD, "HEAD", Range=header)
    assert (head.status, head.body, head.headers["Content-Length"]) == (206, b"", str(stop - start))


def test_bytes_that_are_not_there(web: WebProcess, site: Site) -> None:
    size = (site.store / SHARD).stat().st_size
    answer = get(web, SHARD, Range=f"bytes={size}-")
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{size}")


def test_what_a_head_says_is_what_a_get_says(web: WebProcess) -> None:
    head, get_ = get(web, SHARD, "HEAD"), get(web, SHARD)
    same = ("Content-Length", "Content-Type", "ETag", "Accept-Ranges", "Cache-Control")
    assert [head.headers[name] for name in same] == [get_.headers[name] for name in same]
    assert (head.status, head.body, head.headers["Accept-Ranges"]) == (200, b"", "bytes")


def test_a_file_that_was_replaced_is_another_one(web: WebProcess, site: Site) -> None:
    path = site.store / "0" / "replaced"
    path.write_bytes(b"first")
    tag = get(web, "0/replaced").headers["ETag"]
    assert get(web, "0/replaced", If_None_Match=tag).status == 304
    new = path.with_name("new")
    new.write_bytes(b"other")
    new.replace(path)  # as compaction does it
    assert get(web, "0/replaced", If_None_Match=tag).body == b"other"
    assert get(web, "0/replaced", Range="bytes=0-1", If_Range=tag).status == 200
    path.unlink()


def test_absent_chunks_and_folders_are_404(web: WebProcess) -> None:
    for key in (
        "0/c/9/0/0",
        "0/c/0/0/0/0",
        "1/zarr.json",
        "0",
        "0/",
        "0/c/0",
        "",
        "/",
        "0//zarr.json",
        "zarr.json/",
        "x" * 300,
        "x/" * 3000,
    ):
        assert get(web, key).status == 404, key
    for path in (
        "/stores/",
        "/stores/nobody.ome.zarr/zarr.json",
        f"/stores/{quote(NAME)}",
        "/stores//zarr.json",
    ):
        assert web.ask(path).status == 404, path


OUTSIDE = [
    "/stores/secret",
    "/stores/notes/secret",
    "/stores/.hidden.ome.zarr/zarr.json",
    "/stores/{name}/.shardwright/secret",
    "/stores/{name}/../secret",
    "/stores/{name}/%2e%2e/secret",
    "/stores/{name}/%2E%2E%2Fsecret",
    "/stores/{name}/0/..%2f..%2fsecret",
    "/stores/{name}/..%5csecret",
    "/stores/{name}/..;/secret",
    "/stores/{name}/%252e%252e/secret",
    "/stores/{name}/%c0%ae%c0%ae/secret",
    "/stores/{name}/.%00./secret",
    "/stores/{name}/zarr.json%00",
    "/stores/{name}/0/./zarr.json",
    "/stores/{private}/secret",
    "/stores//{private}/secret",
    "/stores/%2f{private}/secret",
    "/stores/../private/secret",
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/stores/{name}/0/c/../../../../private/secret",
]


# there is a name, and a Zarr reader would take 404 for fill value
REFUSED = [
    "/stores/linked.ome.zarr/secret",
    "/stores/linked.ome.zarr/zarr.json",
    "/stores/{name}/0/out",
    "/stores/{name}/0/up",
    "/stores/{name}/0/folder/secret",
    "/stores/{name}/0/spilled-out",
    "/stores/{name}/0/like-spill",
    "/stores/{name}/0/two-links",
    "/stores/{name}/0/pipe",
]


@pytest.mark.parametrize(
    ("path", "status"), [*((path, 404) for path in OUTSIDE), *((path, 409) for path in REFUSED)]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_nothing_else_is_served(web: WebProcess, site: Site, path: str, status: int, method: str) -> None:
    answer = web.ask(path.format(name=quote(NAME), private=quote(str(site.private).lstrip("/"))), method)
    assert answer.status == status, answer
    assert SECRET not in answer.body
    assert str(site.private).encode() not in answer.body


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EIO, errno.ENXIO, errno.EMFILE])
def test_a_file_that_cannot_be_read_is_not_told_as_absent(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """To a Zarr reader that would be fill value."""
    real = beneath.open_file

    def refused(path: Path, flags: int, *args: Any, **more: Any) -> int:
        if Path(path).name != "zarr.json":
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *args, **more)

    monkeypatch.setattr(beneath, "open_file", refused)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        open_in_store(str(site.root), None, [NAME, *SHARD.split("/")])


def test_chunks_of_a_store_that_is_being_moved_are_gone(tmp_path: Path) -> None:
    """Its metadata go first. Who has read them would take 404 for fill value."""
    store = tmp_path / "a.ome.zarr"
    with sw.create(store, shape=(None, 64, 64), dtype="uint16", axes="tyx") as writer:
        writer.append(np.zeros((64, 64), np.uint16))
    with WebProcess(settings_for(tmp_path)) as web:
        url = "/stores/a.ome.zarr/"
        assert web.ask(f"{url}0/c/9/0/0").status == 404
        (store / "0" / "zarr.json").unlink()
        assert [web.ask(f"{url}{key}").status for key in ("0/c/9/0/0", "0/zarr.json")] == [410, 404]
        (store / "zarr.json").unlink()
        assert [web.ask(f"{url}{key}").status for key in ("0/c/0/0/0", "zarr.json")] == [410, 404]
        shutil.rmtree(store)
        assert [web.ask(f"{url}{key}").status for key in ("0/c/0/0/0", "zarr.json")] == [410, 404]
        assert web.errors() == ""


def test_a_root_that_is_a_link_itself_is_fine(site: Site, tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to(site.root)
    with WebProcess(settings_for(tmp_path / "root")) as web:
        assert get(web, "zarr.json").status == 200
        assert get(web, "0/c/1/0/0").status == 409, "without a spill root no link is followed"
        assert web.errors() == ""


def test_a_store_with_the_longest_attributes_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=(None, 64, 64), dtype="uint16", axes="tyx") as writer:
        writer.append(np.zeros((64, 64), np.uint16))
        writer.update_metadata({"notes": "x" * ((1 << 20) - 64)})
    assert (path / "zarr.json").stat().st_size > 1 << 20
    assert FinishedStores(tmp_path).find(path.name).facts()["frames"] == 1


def test_an_image_that_is_added_is_served_while_it_grows(tmp_path: Path) -> None:
    shape = {"shape": (None, 64, 64), "dtype": "uint16", "chunks": {"t": 1}}
    with (
        sw.create(tmp_path / "a.ome.zarr", images=["overview"], **shape) as writer,
        WebProcess(settings_for(tmp_path)) as web,
    ):
        writer.append(np.zeros((64, 64), np.uint16), image="overview")
        writer.flush()
        live = "/live/a.ome.zarr"
        assert [web.ask(f"{live}/{key}").status for key in ("0/0/zarr.json", "cell/0/zarr.json")] == [
            200,
            404,
        ]
        writer.add_image("cell", path="cell")
        writer.append(np.ones((64, 64), np.uint16), image="cell")
        writer.flush()
        assert json.loads(web.ask(f"{live}/cell/0/zarr.json").body)["shape"] == [1, 64, 64]
        series = json.loads(web.ask(f"{live}/OME/zarr.json").body)["attributes"]["ome"]["series"]
        assert series == ["0", "cell"]
        assert web.errors() == ""


def test_pages_elsewhere_may_read_stores_where_the_configuration_lets_them(
    web: WebProcess, site: Site
) -> None:
    answer = get(web, "zarr.json", Origin="https://viewer.example")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Content-Range" in answer.headers["Access-Control-Expose-Headers"]
    preflight = get(
        web, SHARD, "OPTIONS", Origin="https://viewer.example", Access_Control_Request_Headers="range"
    )
    assert (preflight.status, preflight.body, preflight.headers["Access-Control-Allow-Origin"]) == (
        204,
        b"",
        "*",
    )
    assert "Range" in preflight.headers["Access-Control-Allow-Headers"]
    assert (
        get(web, "nothing", Origin="https://viewer.example").headers["Access-Control-Allow-Origin"] == "*"
    ), "an absent chunk is an answer, too"
    with WebProcess(settings_for(site.root, origins=("https://viewer.example",))) as strict:
        for origin, allowed in {
            "https://viewer.example": "https://viewer.example",
            "https://evil.example": None,
            "null": None,
        }.items():
            answer = get(strict, "zarr.json", Origin=origin)
            headers = answer.headers
            assert (headers.get("Access-Control-Allow-Origin"), headers["Vary"]) == (allowed, "Origin")
            assert answer.status == (403 if allowed is None else 200)
        assert strict.errors() == ""


@pytest.mark.parametrize("key", ["zarr.json", SHARD, "nothing"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_no_page_elsewhere_reads_a_store_unless_the_configuration_says_so(
    site: Site, key: str, method: str
) -> None:
    by_default = Http().allowed_origins
    with WebProcess(settings_for(site.root, origins=by_default)) as strict:
        for origin in ("https://viewer.example", "null", f"http://127.0.0.1:{strict.port + 1}", ""):
            answer = get(strict, key, method, Origin=origin)
            assert answer.status == 403
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert method == "HEAD" or b"http.allowed_origins" in answer.body
        mine = get(strict, key, method, Origin=f"http://127.0.0.1:{strict.port}")
        none = get(strict, key, method)
        expected = 204 if method == "OPTIONS" else 404 if key == "nothing" else 200
        assert (mine.status, none.status) == (expected, expected)
        assert strict.errors() == ""


def test_no_browser_runs_what_lies_in_a_store(web: WebProcess, site: Site) -> None:
    (site.store / "0" / "page.html").write_text("<script>alert(1)</script>")
    headers = get(web, "0/page.html").headers
    assert (headers["Content-Type"], headers["X-Content-Type-Options"]) == (
        "application/octet-stream",
        "nosniff",
    )
    assert headers["Content-Security-Policy"].startswith("sandbox")


class TestReaders:
    """Readers that know nothing of this software open the store, a spilled shard included."""

    def address(self, web: WebProcess) -> str:
        return f"http://127.0.0.1:{web.port}/stores/{quote(NAME)}"

    def test_zarr_by_way_of_obstore(self, web: WebProcess, site: Site) -> None:
        store = ObjectStore(
            obstore.store.HTTPStore.from_url(self.address(web), client_options={"allow_http": True}),
            read_only=True,
        )
        np.testing.assert_array_equal(np.asarray(zarr.open_group(store, mode="r")["0"]), site.pixels)

    def test_zarr_by_way_of_fsspec(self, web: WebProcess, site: Site) -> None:
        store = FsspecStore.from_url(self.address(web), read_only=True)
        group = zarr.open_group(store, mode="r")
        np.testing.assert_array_equal(np.asarray(group["0"]), site.pixels)
        rows = np.sort(np.asarray(group["frames/sequence"]))  # they come group by group, as those are sealed
        np.testing.assert_array_equal(rows, np.arange(FRAMES))

    def test_a_store_of_chunks(self, web: WebProcess, site: Site) -> None:
        with sw.ChunkStore(self.address(web), "r") as store:
            image = zarr.open_group(store, mode="r")["0"]
            assert image.shards is None
            np.testing.assert_array_equal(np.asarray(image), site.pixels)

    def test_tensorstore(self, web: WebProcess, site: Site) -> None:
        spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": self.address(web) + "/0/"}}
        array = tensorstore.open(spec, read=True).result()
        np.testing.assert_array_equal(array.read().result(), site.pixels)
        np.testing.assert_array_equal(array[7, 3:9, 60].read().result(), site.pixels[7, 3:9, 60])


def test_a_stuck_disk_costs_stores_and_not_the_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, real = threading.Event(), stores.open_in_store

    def slow(*arguments: Any) -> int:
        stuck.wait()
        return real(*arguments)

    async def ask_many() -> tuple[int, int, list[int]]:
        app = make_app(settings_for(site.root), DaemonLink(str(site.root / "nobody.sock"), 2))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost", timeout=None
        ) as client:
            asked = [
                asyncio.create_task(client.get(f"/stores/{quote(NAME)}/zarr.json"))
                for _ in range(stores.THREADS + stores.MOST_WAITING + 5)
            ]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            page = await client.get("/")
            stuck.set()
            return (
                done.pop().result().status_code,
                page.status_code,
                [answer.status_code for answer in await asyncio.gather(*asked)],
            )

    monkeypatch.setattr(stores, "open_in_store", slow)
    first, page, statuses = asyncio.run(ask_many())
    assert (first, page) == (503, 200)
    assert (statuses.count(503), statuses.count(200)) == (5, stores.THREADS + stores.MOST_WAITING)
