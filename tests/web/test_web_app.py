"""The web app without its process: what it answers where a wrong answer would be fill value to a Zarr reader,
or the store of somebody else."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from numcodecs import Zstd
from tests.harness.writing import how
from tests.read.live_judge import frame
from tests.read.test_live_view import QUICK, spec

import shardwright as sw
from shardwright.daemon import web_child
from shardwright.disk import failpoints
from shardwright.model.errors import ShardChangedError, StoreChangingError
from shardwright.read.live_view import LiveView
from shardwright.shard.index import LITTLE_ENDIAN_CRC32C
from shardwright.web import api, stores
from shardwright.web.api import DEAD_AFTER_S, Json
from shardwright.web.daemon_link import DaemonLink
from shardwright.web.web_app import make_app

from .web_process import settings_for

STORE, FILES, LIVE = "a.ome.zarr", "/stores/a.ome.zarr", "/live/a.ome.zarr"
SHARD = "0/c/0/0/0"
ELSEWHERE = "https://elsewhere.example"


class App:
    """The app over the stores of a folder, whose daemon does not answer."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self._app = make_app(
            settings_for(root, **settings), DaemonLink(str(root / "nobody.sock"), preview_hz=2)
        )

    def ask(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, path, headers=named)

        return anyio.run(ask)

    def status(self, path: str, **headers: str) -> int:
        return self.ask(path, **headers).status_code


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path, origins=())


def write(path: Path, frames: int = 2) -> None:
    with sw.create(path, shape=(None, 64, 64), dtype="uint16", axes="tyx") as writer:
        for number in range(frames):
            writer.append(np.full((64, 64), 1 + number, np.uint16))


LIVE_AND_READY = [
    ("starting", 0.0, 200, 503),
    ("serving", 0.0, 200, 200),
    ("serving", DEAD_AFTER_S - 1, 200, 200),
    ("serving", DEAD_AFTER_S, 503, 503),
    ("disk_full", 5.0, 200, 200),
    ("draining", 5.0, 200, 503),
    ("of a later release", 0.0, 200, 503),
]


@pytest.mark.parametrize(("state", "stall_s", "live", "ready"), LIVE_AND_READY)
def test_probes_are_answered_by_the_state(
    app: App, monkeypatch: pytest.MonkeyPatch, state: str, stall_s: float, live: int, ready: int
) -> None:
    async def status(_: DaemonLink) -> dict[str, Any]:
        return {"state": state, "stall_s": stall_s}

    monkeypatch.setattr(DaemonLink, "status", status)
    answers = [app.ask(f"/healthz{which}") for which in ("", "/live", "/ready")]
    assert [answer.status_code for answer in answers] == [ready, live, ready]
    for answer in answers:
        assert answer.json() == {"live": live == 200, "ready": ready == 200, "state": state}
        assert answer.headers["Cache-Control"] == "no-store"


def test_the_probe_of_the_readme_outlives_a_page_that_hangs() -> None:
    """The daemon replaces that process, which may take its longest wait. A container ends with all
    acquisitions."""
    readme = Path(api.__file__).with_name("README.md").read_text(encoding="utf-8")
    (probe,) = re.findall(
        r"^livenessProbe: .*periodSeconds: (\d+), .*failureThreshold: (\d+)", readme, re.MULTILINE
    )
    period_s, failures = map(int, probe)
    assert period_s * (failures - 1) > web_child._SILENCE_S + web_child._LONGEST_WAIT_S + 20


def test_what_is_there_and_not_served_is_no_absent_key(tmp_path: Path, app: App) -> None:
    write(tmp_path / STORE)
    (tmp_path / "secret").write_bytes(b"not for everybody")
    (tmp_path / STORE / "0" / "up").symlink_to("../../secret")
    os.mkfifo(tmp_path / STORE / "0" / "pipe")
    (tmp_path / STORE / ".shardwright").mkdir()
    (tmp_path / STORE / ".shardwright" / "secret").write_bytes(b"not for everybody")
    statuses = {key: app.status(f"{FILES}/0/{key}") for key in ("up", "pipe", "zarr.json", "c/9/0/0")}
    assert statuses == {"up": 409, "pipe": 409, "zarr.json": 200, "c/9/0/0": 404}
    assert app.status(f"{FILES}/.shardwright/secret") == app.status(f"{LIVE}/.shardwright/secret") == 404


def test_chunks_of_an_array_that_goes_are_gone(tmp_path: Path, app: App) -> None:
    """Its metadata go first: who has read them asks for chunks that are not there any more."""
    write(tmp_path / STORE)
    assert app.status(f"{FILES}/0/c/9/0/0") == 404
    (tmp_path / STORE / "0" / "zarr.json").unlink()
    assert [app.status(f"{FILES}/0/{key}") for key in ("c/9/0/0", "zarr.json")] == [410, 404]


def test_chunks_of_a_plate_that_goes_are_gone_at_each_address(tmp_path: Path, app: App) -> None:
    """In a column of such a name, too; also to who has read the metadata before this process began."""
    path, image = tmp_path / STORE, "A/c/0/0"
    plate = sw.Plate(rows=["A"], columns=["c"])
    facts: dict[str, Any] = {"shape": (None, 64, 64), "dtype": "uint16", "axes": "tyx", "shards": False}
    with sw.create(path, plate=plate, **facts) as writer:
        writer.append(np.ones((64, 64), np.uint16), image="A/c/0")
    keys = [f"{address}/{image}/{key}" for address in (FILES, LIVE) for key in ("c/0/0/0", "c/9/0/0")]
    assert [app.status(key) for key in keys] == [200, 404] * 2
    assert app.status(f"{LIVE}/{image}/zarr.json") == 200
    (path / image / "zarr.json").unlink()
    assert [app.status(key) for key in keys] == [200, 410, 410, 410]
    later = App(tmp_path, origins=())
    assert later.status(f"{LIVE}/zarr.json") == 200
    (path / "zarr.json").unlink()
    assert [it.status(keys[-1]) for it in (app, later, App(tmp_path, origins=()))] == [410] * 3


def test_a_live_store_that_went_or_was_replaced_is_another_one(tmp_path: Path, app: App) -> None:
    for name in (STORE, "b.ome.zarr"):
        write(tmp_path / name)
    tag = app.ask(f"{LIVE}/0/zarr.json").headers["etag"]
    assert app.status(f"{LIVE}/0/zarr.json", If_Match=tag) == 200
    (tmp_path / STORE).rename(tmp_path / "elsewhere")
    assert [app.status(f"{LIVE}/{key}") for key in (SHARD, "0/c/9/0/0", "zarr.json")] == [410] * 3
    assert app.status("/live/never.ome.zarr/zarr.json") == 404
    (tmp_path / "b.ome.zarr").rename(tmp_path / STORE)
    assert app.status(f"{LIVE}/{SHARD}", Range="bytes=-20") == 206
    assert app.status(f"{LIVE}/0/zarr.json", If_Match=tag) == 412, "of the store that had the name"


def test_a_live_store_that_is_replaced_at_once_is_not_served_as_it_was(tmp_path: Path, app: App) -> None:
    write(tmp_path / STORE)
    write(tmp_path / "b.ome.zarr", frames=3)
    first = app.ask(f"{LIVE}/0/zarr.json").json()
    (tmp_path / STORE).rename(tmp_path / "elsewhere")
    (tmp_path / "b.ome.zarr").rename(tmp_path / STORE)
    assert [first["shape"][0], app.ask(f"{LIVE}/0/zarr.json").json()["shape"][0]] == [2, 3]


def test_a_store_that_changes_too_fast_is_asked_for_again(
    tmp_path: Path, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*_: Any, **__: Any) -> None:
        raise StoreChangingError("it changes faster than it is read")

    write(tmp_path / STORE)
    monkeypatch.setattr(LiveView, "__init__", changing)
    answer = app.ask(f"{LIVE}/{SHARD}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), "404 would be fill value"


def test_bytes_of_a_chunk_that_nobody_stored_are_no_absent_key(tmp_path: Path, app: App) -> None:
    with sw.create(tmp_path / STORE, spec(), **how(**QUICK)) as writer:
        for number in range(9):
            writer.append(frame(number))
        writer.flush()
        assert app.status(f"{LIVE}/0/c/9/0/0") == 404
        assert app.status(f"{LIVE}/0/c/9/0/0", Range="bytes=-20") == 404, "whoever asks has no index yet"
        assert app.status(f"{LIVE}/0/c/9/0/0", Range="bytes=0-99") == 409
        assert app.status(f"{LIVE}/{SHARD}", Range="bytes=0-99") == 206


def test_an_absent_store_is_404_at_each_address_however_it_is_asked_for(tmp_path: Path, app: App) -> None:
    write(tmp_path / STORE)
    for name in ("absent.ome.zarr", "x" * 300):
        for path in (f"/stores/{name}/zarr.json", f"/live/{name}/zarr.json", f"/live/{name}/.frames"):
            statuses = [app.ask(path, method).status_code for method in ("GET", "HEAD")]
            assert statuses == [404, 404], path
    assert app.ask(f"{LIVE}/.frames", "HEAD").status_code == 200


def test_each_chunk_has_one_place_and_length_to_the_end(tmp_path: Path, app: App) -> None:
    """A reader that has an older index finds it where it was; codecs refuse a chunk of another length."""
    entries, chunk = [], np.stack([frame(number) for number in range(4)])[:, :12, :20]
    with sw.create(tmp_path / STORE, spec(codec=sw.Zstd()), **how(**QUICK)) as writer:
        for number in range(8):
            writer.append(frame(number))
            writer.flush()
            shard = app.ask(f"{LIVE}/{SHARD}").content
            entries.append(LITTLE_ENDIAN_CRC32C.decode(shard[-68:], 4)[0].tolist())
            if number >= 3:
                start, nbytes = entries[-1]
                decoded = Zstd().decode(shard[start : start + nbytes])
                assert bytes(decoded) == chunk.tobytes()
    shard = app.ask(f"{LIVE}/{SHARD}").content
    entries.append(LITTLE_ENDIAN_CRC32C.decode(shard[-68:], 4)[0].tolist())
    assert len(set(entries)) == 1


def test_pages_of_other_origins_read_no_store(tmp_path: Path, app: App) -> None:
    write(tmp_path / STORE)
    for path in (f"{FILES}/zarr.json", f"{LIVE}/zarr.json", f"{LIVE}/.frames"):
        answer = app.ask(path, Origin=ELSEWHERE)
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (403, False), path
        own = app.ask(path, "HEAD", Origin="http://localhost")
        assert (own.status_code, own.headers["cross-origin-resource-policy"]) == (200, "same-origin"), path
    allowed = App(tmp_path, origins=(ELSEWHERE,))
    for path in (f"{FILES}/zarr.json", f"{LIVE}/zarr.json", f"{LIVE}/.frames"):
        answer = allowed.ask(path, "HEAD", Origin=ELSEWHERE)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ELSEWHERE), path


def test_no_page_elsewhere_shows_what_is_no_store(tmp_path: Path) -> None:
    """As an image of its own, for which a browser asks no leave. Stores have a setting."""
    app = App(tmp_path, origins=("*",))
    paths = (
        "/",
        "/metrics",
        "/api/status",
        "/api/preview/a.png",
        "/api/stores",
        "/absent",
        f"{FILES}/zarr.json",
    )
    policies = {path: app.ask(path).headers["cross-origin-resource-policy"] for path in paths}
    assert policies == {**dict.fromkeys(paths, "same-origin"), f"{FILES}/zarr.json": "cross-origin"}


def test_a_file_that_was_written_anew_has_another_tag(tmp_path: Path, app: App) -> None:
    write(tmp_path / STORE)
    document = tmp_path / STORE / "zarr.json"
    tag = app.ask(f"{FILES}/zarr.json").headers["etag"]
    assert app.status(f"{FILES}/zarr.json", If_None_Match=tag) == 304
    with document.open("r+b") as file:  # the same file, of the same length
        file.write(file.read(1))
    os.utime(document, ns=(1, 1))
    assert app.status(f"{FILES}/zarr.json", If_Match=tag) == 412
    assert app.status(f"{FILES}/zarr.json", If_None_Match=tag) == 200


def test_a_file_that_changes_while_it_is_sent_is_not_sent_as_one(
    tmp_path: Path, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it would be what it was, half what it is, under one tag."""
    write(tmp_path / STORE)
    shard = tmp_path / STORE / SHARD
    whole = shard.read_bytes()
    monkeypatch.setattr(stores, "PIECE_BYTES", len(whole) // 2)

    def overwrite() -> None:
        with shard.open("r+b") as file:
            file.write(b"x")
        os.utime(shard, ns=(1, 1))

    def cut() -> None:
        os.truncate(shard, 1)

    for change in (overwrite, cut):
        for changes_at in (1, 3):  # of two looks at each piece
            shard.write_bytes(whole)
            hook = failpoints.at_time(changes_at, change)
            failpoints.hold_looks(lambda _, hook=hook: hook())  # type: ignore[misc]
            try:
                answer = app.ask(f"{FILES}/{SHARD}")
                assert (answer.status_code, "was changed while it was read" in answer.text) == (409, True)
                assert changes_at == 1
            except ShardChangedError:  # the connection is cut: a status is said before the first piece
                assert changes_at == 3
            finally:
                failpoints.hold_looks(None)
    shard.write_bytes(whole)
    assert app.ask(f"{FILES}/{SHARD}").content == whole


def test_a_store_whose_name_holds_a_lines_end_is_found(tmp_path: Path, app: App) -> None:
    write(tmp_path / "a\nb.ome.zarr")
    assert app.status("/stores/a%0Ab.ome.zarr/zarr.json") == 200
    assert app.status("/live/a%0Ab.ome.zarr/zarr.json") == 200


def test_an_answer_with_half_of_a_surrogate_pair_can_be_sent() -> None:
    facts = {"client": "\ud800"}
    assert json.loads(bytes(Json(facts).body)) == facts


def test_a_store_whose_name_is_no_utf8_is_listed_with_the_reason(tmp_path: Path, app: App) -> None:
    """No address leads to it, and a script that makes one fails at the whole list."""
    write(tmp_path / STORE)
    write(tmp_path / os.fsdecode(b"b\xff.ome.zarr"))
    stores = app.ask("/api/stores").json()["stores"]
    assert sorted("UTF-8" in store.get("unreadable", "") for store in stores) == [False, True]


@pytest.mark.parametrize("after", ["", "-1", "1.0", "x", "9" * 19, "9" * 5000])
def test_events_after_no_number_are_refused(app: App, after: str) -> None:
    assert app.status(f"/api/events?after={after}") == 400


def test_a_request_for_another_host_is_refused(app: App) -> None:
    assert app.status("/", Host="rebound.example") == 421
    assert app.status("/", Host="127.0.0.1:8790") == 200
