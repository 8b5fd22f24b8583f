"""Running acquisitions over HTTP: what readers that know nothing of this software see of them, and what is
kept from them."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import quote

import anyio
import numpy as np
import obstore.store
import pytest
import tensorstore
import zarr
from starlette.requests import Request
from tests.compaction.jobs import Here
from tests.harness.plain_arrays import without_shards
from tests.harness.writing import how
from tests.read.live_judge import SHAPE, frame
from tests.read.test_follow import Following
from tests.read.test_live_view import QUICK, expected, leave, spec
from tests.viewers.test_images import HERE, zarrita
from zarr.storage import FsspecStore, ObjectStore

import shardwright as sw
from shardwright.model.errors import (
    ShardChangedError,
    ShardwrightError,
    StorageError,
    StoreChangingError,
    StoreGoneError,
    TimedOutError,
)
from shardwright.read.followed_frame import MOST_RANGES, MetSequences
from shardwright.read.live_sealed import MOST_OPEN_SHARDS
from shardwright.read.live_view import LiveView
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.web import frame_stream, viewer
from shardwright.web.connections import VIEW_DESCRIPTORS
from shardwright.web.contrast import live_windows
from shardwright.web.finished_stores import FinishedStores
from shardwright.web.live_stores import MOST_VIEWS, LiveStores
from shardwright.web.stores import Stores

from .test_stores import NAME, OUTSIDE, REFUSED, SECRET, Site
from .web_process import WebProcess, settings_for

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
__all__ = ["zarrita"]
STORE = "a.ome.zarr"
SHARD = "0/c/0/0/0"


@pytest.fixture
def web(tmp_path):
    with WebProcess(settings_for(tmp_path)) as web:
        yield web
        assert web.errors() == ""


@pytest.fixture
def writing(tmp_path):
    """A writer of which 11 frames are stored: a sealed shard row, and staged frames."""
    with sw.create(tmp_path / STORE, spec(), **how(**QUICK)) as writer:
        for i in range(11):
            writer.append(frame(i))
        writer.flush()
        yield writer


def address(web, scheme="http"):
    return f"{scheme}://127.0.0.1:{web.port}/live/{STORE}"


def get(web, key, method="GET", store=STORE, **headers):
    return web.ask(
        f"/live/{quote(store)}/{key}", method, {name.replace("_", "-"): v for name, v in headers.items()}
    )


def by_tensorstore(web):
    kvstore = {"driver": "http", "base_url": f"{address(web)}/0/"}
    return tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result()


def by_obstore(web):
    store = obstore.store.HTTPStore.from_url(address(web), client_options={"allow_http": True})
    return zarr.open_group(ObjectStore(store, read_only=True), mode="r")["0"]


def by_fsspec(web):
    return zarr.open_group(FsspecStore.from_url(address(web), read_only=True), mode="r")["0"]


READERS = {
    "tensorstore": lambda web: by_tensorstore(web).read().result(),
    "zarr-python by obstore": lambda web: by_obstore(web)[...],
    "zarr-python by fsspec": lambda web: by_fsspec(web)[...],
}


# each reader and each kind of array once; every pair among the slow ones
KINDS = ({}, {"codec": None, "index_location": "start"}, {"codec": sw.Zstd(), "chunk_checksum": True})
PAIRS = [
    pytest.param(reader, number, marks=[pytest.mark.slow] * (number != i), id=f"{reader}-{number}")
    for i, reader in enumerate(READERS)
    for number in range(len(KINDS))
]


@pytest.mark.parametrize(("reader", "kind"), PAIRS)
@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_readers_see_each_stored_frame(tmp_path, web, reader, kind):
    with sw.create(tmp_path / STORE, spec(**KINDS[kind]), **how(**QUICK)) as writer:
        for i in range(19):
            writer.append(frame(i))
            if i in (1, 5, 18):
                writer.flush()
                np.testing.assert_array_equal(READERS[reader](web), expected(i + 1))
        leave(writer)
    np.testing.assert_array_equal(READERS[reader](web), expected(19))  # as a dead writer left it
    with sw.resume(tmp_path / STORE, **how(**QUICK)) as writer:
        writer.append(frame(19))
    np.testing.assert_array_equal(READERS[reader](web), expected(20))  # finished


@pytest.mark.parametrize(("reader", "kind"), PAIRS)
def test_readers_see_each_stored_frame_of_an_array_without_shards(tmp_path, web, reader, kind):
    """A reader opened once goes on while chunks are staged, sealed, and when the acquisition has ended."""
    fields = {name: value for name, value in KINDS[kind].items() if name != "index_location"}
    with sw.create(tmp_path / STORE, without_shards(spec(**fields)), **how(**QUICK)) as writer:
        lengths = set()
        for i in range(19):
            writer.append(frame(i))
            if i in (1, 5, 18):
                writer.flush()
                np.testing.assert_array_equal(READERS[reader](web), expected(i + 1))
                whole = get(web, SHARD)
                assert get(web, SHARD, Range="bytes=3-40").body == whole.body[3:41]
                lengths.add(len(whole.body))
        leave(writer)
    assert len(lengths) == 1
    kept = by_tensorstore(web)
    np.testing.assert_array_equal(READERS[reader](web), expected(19))  # as a dead writer left it
    with sw.resume(tmp_path / STORE, **how(**QUICK)) as writer:
        writer.append(frame(19))
    np.testing.assert_array_equal(READERS[reader](web), expected(20))  # finished
    np.testing.assert_array_equal(kept.read().result(), expected(19))


def test_zarrita(web, writing, zarrita):
    see_with_zarrita(web, zarrita)


def test_zarrita_without_shards(tmp_path, web, zarrita):
    with sw.create(tmp_path / STORE, without_shards(spec()), **how(**QUICK)) as writer:
        for i in range(11):
            writer.append(frame(i))
        writer.flush()
        see_with_zarrita(web, zarrita)
    see_with_zarrita(web, zarrita)


def see_with_zarrita(web, zarrita):
    command = ["node", HERE / "zarrita.mjs", zarrita, address(web), "/0"]
    (line,) = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.splitlines()
    found = json.loads(line)
    pixels = np.frombuffer(base64.b64decode(found["data"]), found["dtype"]).reshape(found["shape"])
    np.testing.assert_array_equal(pixels, expected(11))


@pytest.mark.parametrize("fields", [{}, {"codec": None}, {"codec": sw.Zstd(), "chunk_checksum": True}])
def test_a_reader_that_has_an_older_index_finds_each_chunk_where_it_was(tmp_path, web, fields):
    """An array that was opened once, with the indexes that it keeps, while shards are sealed, the acquisition
    ends and is compacted."""

    def chunks():
        there = [place for place in places.tolist() if place[1] != 2**64 - 1]
        return [get(web, SHARD, Range=f"bytes={at}-{at + nbytes - 1}").body for at, nbytes in there]

    with sw.create(tmp_path / STORE, spec(shard=4, **fields), **how(io="mmap", **QUICK)) as writer:
        for i in range(6):
            writer.append(frame(i))
        writer.flush()
        kept = by_tensorstore(web)
        lengths = {get(web, SHARD, "HEAD").headers["Content-Length"]}
        index = get(web, SHARD, Range="bytes=-132").body
        places = np.frombuffer(index[:128], "<u8").reshape(-1, 2)
        np.testing.assert_array_equal(kept[:6].read().result(), expected(6))
        assert set(map(len, chunks())) == set(places[places[:, 0] != 2**64 - 1][:, 1].tolist())
        for i in range(6, 16):
            writer.append(frame(i))
        writer.flush()
        lengths.add(get(web, SHARD, "HEAD").headers["Content-Length"])
        np.testing.assert_array_equal(kept[:6].read().result(), expected(6))
    before = chunks()
    assert len(before) == 4, "two slabs, one of them staged"
    run(plan(open_store(tmp_path / STORE), Options(order="row_major")), Here())
    lengths.add(get(web, SHARD, "HEAD").headers["Content-Length"])
    assert len(lengths) == 1
    assert chunks() == before
    np.testing.assert_array_equal(kept[:6].read().result(), expected(6))


def test_a_tag_is_of_one_state_and_what_goes_together_is_known(tmp_path, web, writing):
    tag = get(web, SHARD, "HEAD").headers["ETag"]
    document = get(web, "0/zarr.json")
    last = "0/c/1/0/0"
    open_tag = get(web, last, "HEAD").headers["ETag"]
    assert get(web, SHARD, If_None_Match=tag).status == 304
    assert get(web, last, If_None_Match=open_tag).status == 304
    assert get(web, "0/zarr.json", If_None_Match=document.headers["ETag"]).status == 304
    assert document.headers["Cache-Control"] == "no-cache"
    writing.append(frame(11))
    writing.flush()
    assert json.loads(get(web, "0/zarr.json").body)["shape"] == [12, *SHAPE]
    for key, old in (("0/zarr.json", document.headers["ETag"]), (last, open_tag)):
        assert get(web, key, If_None_Match=old).status == 200
        assert get(web, key, If_Match=old).status == 200, "frames are only added"
        assert get(web, key, Range="bytes=0-9", If_Range=old).status == 200
    assert get(web, SHARD, If_None_Match=tag).status == 304, "it was sealed before"
    writing.close()
    with sw.create(tmp_path / STORE, spec(), overwrite=True, **how(**QUICK)) as other:
        for i in range(11):
            other.append(frame(i + 50))
        other.flush()
        answer = get(web, SHARD, If_Match=tag)
        assert (answer.status, get(web, SHARD, If_Match=answer.headers["ETag"]).status) == (412, 200)
        np.testing.assert_array_equal(by_obstore(web)[10], frame(60))


@pytest.mark.parametrize("header", ["bytes=0-9", "bytes=5000-9000", "bytes=-264", "bytes=0-99999999999"])
def test_ranges(web, writing, header):
    whole = get(web, SHARD).body
    first, _, last = header.removeprefix("bytes=").partition("-")
    start = int(first) if first else len(whole) - int(last)
    stop = min(int(last) + 1, len(whole)) if first else len(whole)
    answer = get(web, SHARD, Range=header)
    assert (answer.status, answer.body) == (206, whole[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
    assert get(web, SHARD, Range=f"bytes={len(whole)}-").status == 416


def test_what_is_not_there(web, writing):
    keys = (
        "",
        "0",
        "0/c/9/0/0",
        "0/c/0/0",
        "0/c/-1/0/0",
        "1/zarr.json",
        "0//zarr.json",
        "zarr.json/",
        "0/c/x",
    )
    for key in keys:
        assert get(web, key).status == 404, key
    for path in ("/live/", "/live//zarr.json", f"/live/{STORE}", "/live/nobody.ome.zarr/zarr.json"):
        assert web.ask(path).status == 404, path


def test_a_chunk_that_is_damaged_is_an_error_and_no_pixels(tmp_path, web):
    with sw.create(tmp_path / STORE, spec(codec=None), **how(**QUICK)) as writer:
        for i in range(4):
            writer.append(frame(i))
        writer.flush()
        (working,) = (tmp_path / STORE / ".shardwright").glob("c.0.0.0.partial")
        with working.open("r+b") as file:
            file.seek(10)
            file.write(b"\xff\xff")
        answer = get(web, SHARD)
        assert (answer.status, b"does not fit its checksum" in answer.body) == (500, True)


# ---------------------------------------------------------------------- what is kept from them


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def finished(site):
    with WebProcess(settings_for(site.root, spill_root=site.spill)) as web:
        yield web
        assert web.errors() == ""


def test_a_finished_store_and_its_spilled_shards_are_served(finished, site):
    url = f"http://127.0.0.1:{finished.port}/live/{quote(NAME)}"
    store = obstore.store.HTTPStore.from_url(url, client_options={"allow_http": True})
    group = zarr.open_group(ObjectStore(store, read_only=True), mode="r")
    np.testing.assert_array_equal(group["0"][...], site.pixels)
    assert sorted(group["frames/sequence"][...].tolist()) == list(range(len(site.pixels)))


LIVE_STATUS = {
    "/stores/linked.ome.zarr/secret": 404,  # no store: nobody has read its metadata
    "/stores/linked.ome.zarr/zarr.json": 404,
    "/stores/{name}/0/pipe": 500,
}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((path, 404) for path in (*OUTSIDE, "/stores/{name}/.frames/secret", "/stores/../.frames")),
        *((path, LIVE_STATUS.get(path, 409)) for path in REFUSED),
    ],
)
def test_nothing_else_is_served(finished, site, path, status):
    path = path.replace("/stores/", "/live/")
    answer = finished.ask(path.format(name=quote(NAME), private=quote(str(site.private).lstrip("/"))))
    assert answer.status == status, answer
    assert SECRET not in answer.body


@pytest.mark.parametrize("store", ["linked.ome.zarr", "notes", ".hidden.ome.zarr", "nobody", "..", "%2e%2e"])
def test_no_other_folder_is_followed(finished, store):
    assert finished.ask(f"/live/{store}/.frames").status == 404


def test_links_in_a_running_store_lead_nowhere(tmp_path, web, writing):
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    for name in ("out", "c"):
        (tmp_path / STORE / "0" / "linked" / name).parent.mkdir(exist_ok=True)
        (tmp_path / STORE / "0" / "linked" / name).symlink_to(secret)
    (tmp_path / STORE / "0" / "linked" / "zarr.json").symlink_to(tmp_path / STORE / "0" / "zarr.json")
    shard = tmp_path / STORE / SHARD
    shard.unlink()
    shard.symlink_to(secret)
    for key in ("0/linked/out", "0/linked/c", "0/linked/zarr.json", SHARD):
        answer = get(web, key)
        assert (answer.status, SECRET in answer.body) == (409, False), key
    shard.unlink()


def test_a_linked_workspace_leads_nowhere(tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "root" / STORE).mkdir(parents=True)
    with sw.create(tmp_path / "private" / STORE, spec(), **how(**QUICK)) as writer:
        for i in range(11):
            writer.append(frame(i))
        writer.flush()
        (tmp_path / "root" / STORE / "zarr.json").write_bytes((writer.path / "zarr.json").read_bytes())
        (tmp_path / "root" / STORE / ".shardwright").symlink_to(writer.path / ".shardwright")
        with WebProcess(settings_for(tmp_path / "root")) as web:
            # errors that name the link, not 404, which is fill value to a Zarr reader
            for key in ("zarr.json", "0/zarr.json", SHARD):
                answer = get(web, key)
                assert (answer.status, b"it is a link" in answer.body) == (409, True), (key, answer.body)
            answer = get(web, ".frames")
            assert (answer.status, b"symbolic link" in answer.body) == (500, True), answer.body


@pytest.mark.parametrize(
    "key", [f"0/c/{2**63}/0/0", f"0/c/{2**40}/0/0", f"{'x' * 300}/c/0/0/0", "0/zarr.json/c/0"]
)
def test_a_key_that_cannot_be_is_not_there(web, writing, key):
    assert get(web, key).status == 404
    writing.close()
    assert get(web, key).status == 404


def test_a_tag_is_of_one_opening(tmp_path, writing):
    """Numbers of files are used again: what was opened anew may be another store."""
    tags = []
    for _ in range(2):
        with WebProcess(settings_for(tmp_path)) as web:
            tags.append(get(web, SHARD, "HEAD").headers["ETag"])
            assert get(web, SHARD, If_Match=tags[0]).status == (200 if len(tags) == 1 else 412)
    assert len(set(tags)) == 2


def open_below(web, folder):
    """What the process has open there."""
    paths = []
    for link in Path(f"/proc/{web.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            paths.append(link.readlink())
    return [path for path in paths if path.is_relative_to(folder)]


def test_32_stores_are_read_at_once_and_the_views_are_bounded(tmp_path, web):
    writer = sw.create(tmp_path / STORE, spec(), **how(**QUICK))
    for i in range(11):
        writer.append(frame(i))
    writer.flush()
    leave(writer)
    stores = [f"{i}.ome.zarr" for i in range(MOST_VIEWS + 3)]
    for store in stores:
        shutil.copytree(tmp_path / STORE, tmp_path / store)
    tags = [get(web, SHARD, store=store).headers["ETag"] for store in stores[:32]]
    for store, tag in zip(stores, tags, strict=False):
        assert get(web, SHARD, store=store, If_Match=tag).status == 200
    for store in stores:
        assert get(web, SHARD, store=store).status == 200
    folders = [path for path in open_below(web, tmp_path) if path.parent == tmp_path]
    assert len(folders) == MOST_VIEWS
    assert get(web, SHARD, store=stores[0], If_Match=tags[0]).status == 412


def test_the_descriptors_of_a_view_are_bounded(tmp_path, web):
    with sw.create(tmp_path / STORE, spec(chunk=1, shard=1), **how(**QUICK)) as writer:
        for i in range(50):
            writer.append(frame(i))
        writer.flush()
        shards = tmp_path / STORE / "0/c"
        end = time.monotonic() + 60
        while (
            sum(path.is_file() for path in shards.rglob("*")) < 100
        ):  # those without a name are not kept open
            assert time.monotonic() < end
            time.sleep(0.01)
        for i in range(50):
            for row in (0, 1):
                assert get(web, f"0/c/{i}/{row}/0").status == 200
        assert MOST_OPEN_SHARDS <= len(open_below(web, tmp_path)) <= VIEW_DESCRIPTORS


def test_a_store_with_shards_elsewhere_is_not_served(tmp_path, web):
    (tmp_path / "root").mkdir()
    path = tmp_path / STORE
    with sw.create(
        path, spec(), on_full="spill", **how(spill_root=tmp_path / "elsewhere", **QUICK)
    ) as writer:
        writer.append(frame(0))
        writer.flush()
        assert get(web, "zarr.json").status == 409
        assert get(web, ".frames").status == 404
        assert b"may lie in a second folder, which is not served here" in web.ask(f"/view/{STORE}").body
        with WebProcess(settings_for(tmp_path, spill_root=tmp_path / "elsewhere")) as allowed:
            assert get(allowed, "zarr.json").status == 200


def test_the_viewer_is_told_the_contrast_of_a_running_acquisition_at_once(tmp_path, writing, monkeypatch):
    """On a busy machine a program that measures it came too late, and the viewer showed black."""
    settings = settings_for(tmp_path)
    shown = viewer.Viewer(FinishedStores(tmp_path), LiveStores(settings))
    monkeypatch.setattr(viewer, "_find_windows", None)  # the program for finished stores

    async def windows():
        return await shown._windows_of(shown._find(STORE, None))

    (found,) = anyio.run(windows)
    ((low, high),) = found
    assert found == live_windows(LiveView(tmp_path / STORE), "")
    assert frame(0).min() <= low < high < np.iinfo(np.uint16).max


# ---------------------------------------------------------------------- following


def test_frames_are_followed_over_http(web, writing):
    received = []
    following = threading.Thread(
        target=lambda: received.extend(sw.follow(address(web), timeout_ms=120_000)), daemon=True
    )
    following.start()
    for i in range(11, 23):
        writing.append(frame(i), metadata={"exposure_time": i / 8})
    writing.close()
    following.join(120)
    local = {each.index: each for each in sw.follow(writing.path)}
    assert len(received) == len(local) == 23
    for each in received:
        np.testing.assert_array_equal(each.pixels, frame(each.index[0]))
        here = local[each.index]
        assert each.row.keys() == here.row.keys()
        assert [v for k, v in each.row.items() if v == v] == [v for k, v in here.row.items() if v == v]


def test_a_connection_that_breaks_is_made_again_and_no_frame_comes_twice(tmp_path, writing):
    settings = settings_for(tmp_path)
    with WebProcess(settings) as web:
        port = web.port
        frames = sw.follow(address(web), timeout_ms=120_000)
        received = [next(frames).index[0] for _ in range(4)]
    for i in range(11, 14):
        writing.append(frame(i))
    writing.flush()
    with WebProcess(settings, port=port) as web:
        received += [next(frames).index[0] for _ in range(10)]
        writing.close()
        assert list(frames) == []
    assert sorted(received) == list(range(14))


class Relay:
    """A way to a server that can be cut. ``sent``: the bytes that came along each connection."""

    def __init__(self, port):
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._near, self._threads = None, []
        self.port = self._listener.getsockname()[1]
        self.sent = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self):
        with contextlib.suppress(OSError):  # it is shut down
            while True:
                near, far, sent = self._listener.accept()[0], socket.create_connection(self._to), bytearray()
                ways = (near, far, bytearray()), (far, near, sent)
                threads = [threading.Thread(target=self._carry, args=way, daemon=True) for way in ways]
                self._near, self._threads = near, threads
                for thread in threads:
                    thread.start()
                self.sent.append(sent)

    def _carry(self, one, other, carried):
        with contextlib.suppress(OSError), one:
            while data := one.recv(1 << 16):
                carried += data
                other.sendall(data)
            for each in (one, other):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self):
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut()


@pytest.mark.parametrize("only_new", [False, True])
def test_frames_that_came_are_not_sent_again_where_others_were_never_stored(tmp_path, web, only_new):
    """Each duplicate has a sequence of its own, which never comes."""
    options = {"on_duplicate": "count", **QUICK}
    with Relay(web.port) as relay, sw.create(tmp_path / STORE, spec(), **how(**options)) as writer:

        def append(*numbers):
            for number in (*numbers, *numbers):
                writer.append(frame(number), frame_id=number)
            writer.flush()

        append(*range(9))
        following = Following(address(relay), only_new=only_new)
        while not (relay.sent and b'{"met":' in relay.sent[0]):
            time.sleep(0.01)
        for count, number in enumerate((9, 10, 11), 1 if only_new else 10):
            append(number)
            following.wait_for(count)
            if number < 11:
                relay.cut()
        writer.close()
        received = [each.index[0] for each in following.end()]
    assert sorted(received) == list(range(9 if only_new else 0, 12))
    # a connection that a slow machine gave up before any frame came is none
    assert [n for sent in relay.sent if (n := sent.count(b'{"frame":'))] == [1 if only_new else 10, 1, 1]


def test_what_is_said_of_met_sequences_is_bounded():
    met = MetSequences()
    met.meet([(0, 5)])
    assert met.ranges_beyond() == []
    long = [(100 * i, 100 * i + 50) for i in range(1, MOST_RANGES + 1)]
    met.meet([*long, (7, 9), (200_000, 200_001)])
    assert met.ranges_beyond() == long


def test_only_new_frames_if_so_wished(web, writing):
    frames = sw.follow(address(web), only_new=True, timeout_ms=120_000)
    first: list[int] = []
    reader = threading.Thread(target=lambda: first.append(next(frames).index[0]), daemon=True)
    reader.start()
    number = 11
    while not first:  # it may not have connected yet when a frame comes
        writing.append(frame(number))
        writing.flush()
        number += 1
        reader.join(0.2)
    assert first[0] >= 11
    assert [each.index[0] for each in _until_end(frames, writing)] == list(range(first[0] + 1, number))


def _until_end(frames, writer):
    writer.close()
    return sorted(frames, key=lambda each: each.index)


def test_what_cannot_be_followed(tmp_path, web, writing):
    with pytest.raises(StorageError, match="There is no such store"):
        next(iter(sw.follow(f"http://127.0.0.1:{web.port}/live/nobody.ome.zarr")))
    with pytest.raises(StorageError, match="no rig answers"):
        next(iter(sw.follow("http://127.0.0.1:9/live/a.ome.zarr")))
    for timeout_ms in (0, 300):
        frames = sw.follow(address(web), timeout_ms=timeout_ms)
        received = []
        with pytest.raises(TimedOutError, match="no new frame"):
            received.extend(each.index[0] for each in frames)
    assert get(web, ".frames?after=-1").status == 400
    many = ",".join(f"{2 * i}-{2 * i + 1}" for i in range(MOST_RANGES + 1))
    for met in ("", "4", "4-4", "5-4", "-1-4", "1-2,", "1-x", many, f"8-{10**15}"):
        assert get(web, f".frames?after=7&met={met}").status == 400, met


def test_an_error_of_the_store_is_one_of_the_follower(tmp_path, web):
    with sw.create(tmp_path / STORE, spec(codec=None), **how(**QUICK)) as writer:
        for i in range(4):
            writer.append(frame(i))
        writer.flush()
        (working,) = (tmp_path / STORE / ".shardwright").glob("c.0.0.0.partial")
        with working.open("r+b") as file:
            file.seek(10)
            file.write(b"\xff\xff")
        with pytest.raises(ShardwrightError, match="does not fit its checksum"):
            list(sw.follow(address(web), timeout_ms=60_000))


def test_an_error_that_nobody_foresaw_ends_it_and_is_logged(tmp_path):
    with sw.create(tmp_path / STORE, spec(), **how(**QUICK)) as writer:
        writer.append(frame(0))
    sabotage = """
from shardwright.read.follow import Follower
def defect(*_): raise KeyError("sequence")
Follower._finished = defect
"""
    with WebProcess(settings_for(tmp_path), sabotage=sabotage) as web:
        with pytest.raises(ShardwrightError, match=r"failed to read its store; got KeyError.*sequence"):
            list(sw.follow(address(web), timeout_ms=120_000))
        logged = web.errors()
    assert "a follower cannot be served" in logged
    assert "KeyError: 'sequence'" in logged


def test_pages_elsewhere_may_follow_where_the_configuration_lets_them(tmp_path, web, writing):
    for key in (".frames?after=-1", "zarr.json"):
        for method in ("GET", "HEAD", "OPTIONS"):
            headers = get(web, key, method, Origin="https://viewer.example").headers
            assert headers["Access-Control-Allow-Origin"] == "*", (key, method)
            assert "sandbox" in headers["Content-Security-Policy"]
    both = [get(web, key, "OPTIONS").headers for key in (".frames", "zarr.json")]
    for name in ("Allow", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers"):
        assert both[0][name] == both[1][name], name
    writing.close()
    with WebProcess(settings_for(tmp_path, origins=("https://viewer.example",))) as strict:
        for origin, allowed in (("https://viewer.example",) * 2, ("https://evil.example", None)):
            followed = get(strict, ".frames", Origin=origin)
            assert followed.status == (403 if allowed is None else 200)
            assert followed.body.endswith(b'{"end":true}\n') == (allowed is not None)
            assert followed.headers["Access-Control-Allow-Origin"] == allowed
            assert followed.headers["Vary"] == "Origin"


def test_so_many_follow_at_a_time_however_they_come(web, writing):
    connections = [web.connect() for _ in range(3 * frame_stream.MOST_FOLLOWERS)]
    for each in connections:
        each.sendall(f"GET /live/{STORE}/.frames HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    said = [each.recv(12) for each in connections]
    for each in connections:
        each.close()
    assert said.count(b"HTTP/1.1 200") == frame_stream.MOST_FOLLOWERS
    assert said.count(b"HTTP/1.1 503") == 2 * frame_stream.MOST_FOLLOWERS


@pytest.fixture
def no_garbage_collection():
    gc.disable()
    yield
    gc.enable()


def test_a_head_of_the_stream_ends(web, writing):
    """So that the connection's next request is answered."""
    head = f"HEAD /live/{STORE}/.frames HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert (
        web.say(f"{head}GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()).count(
            b"HTTP/1.1 200"
        )
        == 2
    )


def test_so_many_follow_at_a_time(web, writing, no_garbage_collection):
    """Who left gives the seat back at once, not when garbage is collected."""
    frames = [sw.follow(address(web)) for _ in range(frame_stream.MOST_FOLLOWERS)]
    for each in frames:
        next(each)
    assert get(web, ".frames").status == 503
    for each in frames:
        each.close()
    while True:  # the server learns of it when it has something to say
        try:
            next(sw.follow(address(web)))
            break
        except StorageError as error:
            if "others follow" not in str(error):
                raise


# ---------------------------------------------------------------------- never fill for what is stored


def test_bytes_of_a_chunk_that_was_never_stored_are_no_absent_key(web, writing):
    """Who asks for them has another store's index. To a Zarr reader 404 would be fill value."""
    absent, size = "0/c/9/0/0", int(get(web, SHARD, "HEAD").headers["Content-Length"])
    assert get(web, absent).status == get(web, absent, "HEAD").status == 404
    assert get(web, absent, Range="bytes=-20").status == 404  # its index: who asks for it has none yet
    assert get(web, absent, Range=f"bytes={size - 20}-").status == 404
    answer = get(web, absent, Range="bytes=0-99")
    assert answer.status == 409
    assert b"open the store again" in answer.body
    assert get(web, SHARD, Range="bytes=0-99").status == 206


def test_a_store_that_was_read_and_is_gone_is_not_fill(tmp_path, web):
    with sw.create(tmp_path / STORE, spec(), **how(**QUICK)) as writer:
        for i in range(9):
            writer.append(frame(i))
    arrays = {"tensorstore": by_tensorstore(web), "obstore": by_obstore(web), "fsspec": by_fsspec(web)}
    (tmp_path / STORE).rename(tmp_path / "elsewhere.ome.zarr")
    for key in (SHARD, "0/c/9/0/0", "zarr.json"):
        assert get(web, key).status == 410, key
    with pytest.raises(ValueError, match="NOT_FOUND"):
        arrays["tensorstore"].read().result()
    for name in ("obstore", "fsspec"):
        with pytest.raises(Exception, match="410"):
            arrays[name][...]
    (tmp_path / "elsewhere.ome.zarr").rename(tmp_path / STORE)
    assert get(web, SHARD).status == 200
    assert get(web, "zarr.json", store="b.ome.zarr").status == 404  # never read here


@pytest.mark.parametrize(
    ("error", "status"), [(StoreChangingError, 503), (ShardChangedError, 409), (StoreGoneError, 410)]
)
def test_what_changes_is_never_an_absent_key(tmp_path, error, status):
    def find(path):
        raise error(f"{path} is not what it was")

    answers = []

    async def send(message):
        answers.append(message)

    async def receive():
        await anyio.sleep_forever()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/live/a/0",
        "path_params": {"path": "a/0"},
        "headers": [],
        "query_string": b"",
    }

    async def ask():
        await (await Stores(settings_for(tmp_path), find).respond(Request(scope)))(scope, receive, send)

    anyio.run(ask)
    assert answers[0]["status"] == status
    assert (b"retry-after" in dict(answers[0]["headers"])) == (status == 503)
