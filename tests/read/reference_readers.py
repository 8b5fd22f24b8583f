"""Who reads references, and knows nothing of us: fsspec with zarr-python, VirtualiZarr, icechunk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore

from shardwright.rework.references.make_references import make_references

KINDS = ("json", "parquet", "icechunk")
NEWER = sys.version_info >= (3, 12)
without_newer = pytest.mark.skipif(not NEWER, reason="NOT TESTED: icechunk 2, VirtualiZarr 2.8; Python 3.12")
EACH_KIND = [pytest.param(kind, marks=[without_newer] if kind == "icechunk" else []) for kind in KINDS]


def refer(kind: str, folder: Path, *stores: Any, **options: Any) -> dict[str, Any]:
    """The report of references of a kind to stores, in a folder."""
    to = f"icechunk:{folder / 'repository'}" if kind == "icechunk" else str(folder / f"refs.{kind}")
    return make_references([str(store) for store in stores], to, lambda _done, _total: None, **options)


def read(kind: str, report: dict[str, Any], **options: Any) -> zarr.Group:
    """The group that references show. ``options``: of the filesystem that has the chunks."""
    if kind == "icechunk":
        import icechunk

        access = options.get("credentials", icechunk.credentials.LocalFileSystemAccess)
        allowed: Any = icechunk.containers_credentials(dict.fromkeys(report["containers"], access))
        storage = icechunk.local_filesystem_storage(report["path"])
        repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)
        return zarr.open_group(repository.readonly_session("main").store, mode="r")
    protocol = options.get("protocol", "file")
    remote = {"asynchronous": True, **options.get("remote_options", {})} if protocol != "file" else {}
    files = fsspec.filesystem(
        "reference",
        fo=report["path"],
        remote_protocol=protocol,
        remote_options=remote,
        asynchronous=True,
        skip_instance_cache=True,
    )
    return zarr.open_group(FsspecStore(files, read_only=True, path=""), mode="r", use_consolidated=False)


def read_by_virtualizarr(kind: str, report: dict[str, Any], group: str | None = None) -> zarr.Group:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import KerchunkJSONParser, KerchunkParquetParser

    parser = (KerchunkJSONParser if kind == "json" else KerchunkParquetParser)(group=group)
    return zarr.open_group(
        parser(f"file://{report['path']}", ObjectStoreRegistry({"file://": LocalStore()})), mode="r"
    )


def assert_same(found: zarr.Group, store: Path) -> int:
    """Compares each array of a store. Returns their number."""
    ours = zarr.open_group(store, mode="r", use_consolidated=False)
    arrays = [path for path, node in ours.members(max_depth=None) if isinstance(node, zarr.Array)]
    for path in arrays:
        expected, got = ours[path], found[path]
        assert got.shards is None
        assert got.chunks == expected.chunks
        np.testing.assert_array_equal(got[...], expected[...], err_msg=path)
    return len(arrays)


def chunk_references(path: str) -> dict[str, Any]:
    """Those of a JSON file, without zarr.json."""
    refs = json.loads(Path(path).read_text())["refs"]
    return {key: value for key, value in refs.items() if not key.endswith("zarr.json")}
