"""References as a repository of icechunk 2: zarr.json of each node, and virtual chunks.

Each has the state of its file as a checksum, without which icechunk would show whatever lies there later: the
ETag of an object, or the time of the last change, rounded up, as icechunk keeps whole seconds. The job
therefore waits until that second is over, and looks at all files again. A server of plain files may ignore
the condition that icechunk sends: there chunks must have a checksum, as for kerchunk.

icechunk holds about 800 bytes for each chunk until the end, also if it commits them in parts.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shardwright.codecs.zarr_python import to_buffer
from shardwright.disk.files import FileIdentity, make_directories, write_file
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import ConfigError, StorageError
from shardwright.model.names import DOCUMENT, key_in

from .file_record import RECORD, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .chunk_ranges import ChunkRanges
    from .file_record import FileRecord
    from .virtual_tree import VirtualArray, VirtualTree


class IcechunkRepository:
    """Writes a repository. ``containers``: the prefixes of URLs that a reader has to authorize. Raises
    ``ConfigError`` for a store that no container can have, ``StorageError``."""

    def __init__(self, path: Path, tree: VirtualTree) -> None:
        import icechunk

        make_directories(path, synced=False)
        icechunk.set_logs_filter("error")  # its warnings are of several writers at once
        self._path = path
        config = icechunk.RepositoryConfig.default()
        found = dict(_container(icechunk, part.stored.path) for array in tree.arrays for part in array.parts)
        for prefix, place in found.items():
            config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, place))
        self.containers = list(found)
        with _typed_errors(path):
            repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config)
            self._session = repository.writable_session("main")
            asyncio.run(self._set_documents(tree))

    async def _set_documents(self, tree: VirtualTree) -> None:
        for node, document in tree.documents.items():
            await self._session.store.set(key_in(node, DOCUMENT), to_buffer(json.dumps(document).encode()))

    def add(self, array: VirtualArray, ranges: ChunkRanges) -> None:
        location = url_of(ranges.path, escaped=True)
        failed = self._session.store.set_virtual_refs_arr(
            array.path,
            ranges.counts,
            [location if nbytes else "" for nbytes in ranges.nbytes.tolist()],
            ranges.offset,
            ranges.nbytes,
            arr_offset=ranges.origin,
            checksum=_checksum(ranges.version),
        )
        assert not failed, "each store has a container"

    def finish(self, record: FileRecord) -> None:
        with _typed_errors(self._path):
            self._session.commit("references")
        write_file(self._path / f"{RECORD}.json", record.encode(), synced=False)


@contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    import icechunk

    try:
        yield
    except icechunk.IcechunkError as error:
        raise StorageError(f"cannot write {path}: {str(error)[:1000]}") from None


def _checksum(version: Any) -> str | datetime:
    if not isinstance(version, FileIdentity):
        if version.condition:
            return str(version.condition)
        version = FileIdentity.of(version.status)
    return datetime.fromtimestamp(-(-version.mtime_ns // 10**9), UTC)  # rounded up


def _container(icechunk: Any, folder: Path) -> tuple[str, Any]:
    """Returns the prefix of the URLs of an array, and where icechunk finds what is below it."""
    if not isinstance(folder, RemotePath):
        # A prefix with characters that a URL escapes fits no location: that of a folder above fits all.
        above = next(str(path) for path in folder.parents if str(path) == quote(str(path)))
        if above == "/":
            raise ConfigError(f"icechunk needs a folder with a plain name above {folder}, as 'data'")
        return f"file://{above}/", icechunk.local_filesystem_store(above)
    scheme, _, rest = str(folder).partition("://")
    server = f"{scheme}://{rest.partition('/')[0]}/"
    if scheme != "s3":
        return server, icechunk.http_store()
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    allow_http = (endpoint or "").startswith("http://")
    options = {"endpoint_url": endpoint, "allow_http": allow_http, "force_path_style": bool(endpoint)}
    return server, icechunk.s3_store(region=region, **options)
