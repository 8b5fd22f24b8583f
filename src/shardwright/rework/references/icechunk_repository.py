"""References as a repository of icechunk 2: zarr.json of each node, and virtual chunks.

Each has the state of its file as a checksum, without which icechunk would show whatever lies there later: the
ETag of an object, or the second in which a file was changed last and one more, as icechunk compares whole
seconds. The job therefore waits until that second is over, and looks at all files again. A server of plain
files may ignore the condition that icechunk sends: there chunks must have a checksum, as for kerchunk.

icechunk holds about 800 bytes for each chunk until the end: a million chunks take 0.8 GB of memory. To commit
them in parts takes as much, and twice as long. References of kerchunk are written as they come.
"""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shardwright.codecs.zarr_python import to_buffer
from shardwright.disk.files import FileIdentity, make_directories, write_file
from shardwright.model.errors import ConfigError
from shardwright.model.names import DOCUMENT, key_in

from .staleness import RECORD, record_of

if TYPE_CHECKING:
    from .chunk_ranges import ChunkRanges
    from .staleness import States
    from .virtual_tree import ReferredStore, VirtualArray, VirtualTree


class IcechunkRepository:
    """Writes a repository. ``containers``: the prefixes of URLs that a reader has to authorize. Raises
    ``ConfigError`` for a URL that icechunk cannot read, or a file that cannot be looked at."""

    def __init__(self, path: Path, tree: VirtualTree) -> None:
        import icechunk

        make_directories(path)
        icechunk.set_logs_filter("error")  # its warnings are of several writers at once
        self._path = path
        config = icechunk.RepositoryConfig.default()
        found = dict(_container(icechunk, part.source) for array in tree.arrays for part in array.parts)
        for prefix, place in found.items():
            config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, place))
        self.containers = list(found)
        repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config)
        self._session = repository.writable_session("main")
        asyncio.run(self._set_documents(tree))

    async def _set_documents(self, tree: VirtualTree) -> None:
        for node, document in tree.documents.items():
            await self._session.store.set(key_in(node, DOCUMENT), to_buffer(json.dumps(document).encode()))

    def add(self, array: VirtualArray, ranges: ChunkRanges) -> None:
        location = ranges.location(escaped=True)
        failed = self._session.store.set_virtual_refs_arr(
            array.path,
            ranges.counts,
            [location if nbytes else "" for nbytes in ranges.nbytes.tolist()],
            ranges.offset,
            ranges.nbytes,
            arr_offset=ranges.origin,
            checksum=_checksum(ranges),
        )
        assert not failed, "each store has a container"

    def finish(self, states: States) -> None:
        self._session.commit("references to " + ", ".join(states)[:1000])
        write_file(self._path / f"{RECORD}.json", record_of(states))


def _checksum(ranges: ChunkRanges) -> str | datetime:
    version = ranges.version
    if isinstance(version, FileIdentity):
        return datetime.fromtimestamp(version.mtime_ns // 10**9 + 1, UTC)
    if version.condition:
        return str(version.condition)
    modified: datetime = version.modified
    return modified.replace(microsecond=0) + timedelta(seconds=1)


def _container(icechunk: Any, source: ReferredStore) -> tuple[str, Any]:
    """Returns the prefix of the URLs of a store, and where icechunk finds what is below it."""
    scheme, _, rest = source.url.partition("://")
    server = f"{scheme}://{rest.partition('/')[0]}/"
    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        allow_http = bool(endpoint and endpoint.startswith("http://"))
        options = {"endpoint_url": endpoint, "allow_http": allow_http, "force_path_style": bool(endpoint)}
        return server, icechunk.s3_store(region=region, **options)
    if scheme in ("http", "https"):
        return server, icechunk.http_store()
    # A prefix with characters that a URL escapes fits no location: that of a folder above fits all.
    folder = next((str(path) for path in Path(rest).parents if str(path) == quote(str(path))), "/")
    if not source.is_seen or folder == "/":
        raise ConfigError(
            f"icechunk needs the state of each file, and a container: neither is known of {source.url}",
            expected="s3://, http(s)://, or a folder with a plain name above the store",
            hint="Write kerchunk.json instead",
        )
    return f"file://{folder}/", icechunk.local_filesystem_store(folder)
