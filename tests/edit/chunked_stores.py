"""Stores of several arrays, with and without shards, and a server of their files that counts what it is
asked."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

from aiohttp import web
from tests.harness.event_loop import collected, sync
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

Json = dict[str, Any]
LITTLE: Json = {"name": "bytes", "configuration": {"endian": "little"}}
CRC: Json = {"name": "crc32c"}
ZSTD: Json = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
SHAPE, SHARD, CHUNK = (7, 12), (4, 6), (2, 3)  # the last row of shards reaches beyond the shape
CHUNK_BYTES = 6

# of a key of four bytes and of an empty one: a server answers most of them with an error
RANGES_AT_THE_END = (
    *(RangeByteRequest(start, stop) for start, stop in ((10, 20), (4, 5), (2, 9), (3, 3), (0, 1))),
    *(OffsetByteRequest(start) for start in (0, 3, 4, 9)),
    *(SuffixByteRequest(count) for count in (0, 1, 9)),
)


def sharding(codecs: list[Json], index: list[Json] | None = None, place: str = "end") -> Json:
    facts = {"chunk_shape": list(CHUNK), "codecs": codecs, "index_codecs": index or [LITTLE, CRC]}
    return {"name": "sharding_indexed", "configuration": {**facts, "index_location": place}}


def document(codecs: list[Json], grid: Iterable[int] = SHARD, keys: Json | None = None) -> Json:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(SHAPE),
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(grid)}},
        "chunk_key_encoding": keys or {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 9,
        "codecs": codecs,
        "attributes": {},
    }


PLAIN_BYTES = [{"name": "bytes"}]
ARRAYS: dict[str, Json] = {
    "raw": document([sharding(PLAIN_BYTES)]),
    "a/zstd": document([sharding([*PLAIN_BYTES, ZSTD], [LITTLE], "start")]),
    "a/dotted": document([sharding(PLAIN_BYTES)], keys={"name": "v2", "configuration": {"separator": "."}}),
    "plain": document(PLAIN_BYTES, CHUNK),
    "around": document([sharding(PLAIN_BYTES), ZSTD]),  # codecs around the shards: chunks are whole shards
}
SHARDED = ("raw", "a/zstd", "a/dotted")


def documents() -> dict[str, bytes]:
    """The zarr.json of every node of a store, by key."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    names = {"": group, "a": group, **ARRAYS}
    return {f"{name}/zarr.json".lstrip("/"): json.dumps(node).encode() for name, node in names.items()}


def make_store(path: Path) -> Path:
    for key, data in documents().items():
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(data)
    return path


def buffer(data: bytes) -> Any:
    return default_buffer_prototype().buffer.from_bytes(data)


def get(store: Any, key: str, byte_range: Any = None) -> bytes | None:
    found = sync(store.get(key, default_buffer_prototype(), byte_range))
    return None if found is None else found.to_bytes()


def get_many(store: Any, keys: Iterable[Any]) -> list[bytes | None]:
    """``keys``: or pairs of a key and a range."""
    asked = [key if isinstance(key, tuple) else (key, None) for key in keys]
    found = sync(store.get_partial_values(default_buffer_prototype(), asked))
    return [None if data is None else data.to_bytes() for data in found]


def listed(store: Any, prefix: str = "") -> list[str]:
    return sorted(collected(store.list_prefix(prefix)))


def names_in(store: Any, prefix: str) -> list[str]:
    return sorted(collected(store.list_dir(prefix)))


class FileServer:
    """Serves the files of a folder over HTTP on loopback, with ETags, ranges and conditions. ``asked``: of
    every request its method, path and range. ``before``: called before a request is answered. ``headers``:
    taken from each answer."""

    def __init__(self, folder: Path, *, without: Iterable[str] = ()) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self.before: Callable[[web.Request], None] = lambda request: None
        self._folder = folder
        self._without = tuple(without)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FileServer:
        self._thread.start()
        self._port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def take_asked(self) -> list[tuple[str, str, str | None]]:
        asked, self.asked = self.asked, []
        return asked

    async def _start(self) -> int:
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer)
        application.on_response_prepare.append(self._strip)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        self.asked.append((request.method, path, request.headers.get("Range")))
        self.before(request)
        file = self._folder / path
        if not file.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(file)

    async def _strip(self, request: web.Request, response: web.StreamResponse) -> None:
        del request
        for name in self._without:
            response.headers.pop(name, None)
