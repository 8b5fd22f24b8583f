"""zarr-python's own tests of stores, on an empty folder and on an empty place in a bucket."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.event_loop import sync
from tests.repack.conftest import bucket_url, object_store  # noqa: F401  (fixtures)
from zarr.buffer import cpu
from zarr.testing.store import StoreTests

import shardwright as sw
from shardwright.remote.objects import connect_bucket

from .chunked_stores import buffer

if TYPE_CHECKING:
    from collections.abc import Callable

Chunks = sw.ChunkStore


class AnyStore(Chunks):
    """Made as these tests make stores."""

    def __init__(
        self, root: str, mode: str | None = None, *, read_only: bool = False, **settings: Any
    ) -> None:
        super().__init__(root, mode or ("r" if read_only else "r+"), **settings)  # type: ignore[arg-type]


def _in_zarrs_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return sync(function(*args, **kwargs))

    return run


class Conformance(StoreTests[AnyStore, cpu.Buffer]):
    store_cls = AnyStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> Any:
        with sync(AnyStore.open(**open_kwargs)) as store:
            yield store

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> Any:
        with AnyStore(**store_kwargs) as store:
            yield store

    def test_store_repr(self, store: AnyStore) -> None:
        assert repr(store) == f"ChunkStore({store.url!r}, mode='r+')"
        assert str(store) == f"shardwright-chunks://{store.url}"

    def test_store_supports_writes(self, store: AnyStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: AnyStore) -> None:
        assert store.supports_listing


for name, function in inspect.getmembers(StoreTests, inspect.iscoroutinefunction):
    if name.startswith("test_"):
        setattr(Conformance, name, _in_zarrs_loop(function))


class TestFolder(Conformance):
    @pytest.fixture
    def store_kwargs(self, tmp_path: Any) -> dict[str, Any]:
        self.root = tmp_path
        return {"root": str(tmp_path)}

    async def set(self, store: AnyStore, key: str, value: Any) -> None:
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).write_bytes(value.to_bytes())

    async def get(self, store: AnyStore, key: str) -> Any:
        return buffer((self.root / key).read_bytes())


class TestBucket(Conformance):
    @pytest.fixture
    def store_kwargs(self, bucket_url: str) -> dict[str, Any]:  # noqa: F811
        self.bucket = connect_bucket(bucket_url)
        return {"root": bucket_url}

    async def set(self, store: AnyStore, key: str, value: Any) -> None:
        await self.bucket.put_async(key, value.to_bytes())

    async def get(self, store: AnyStore, key: str) -> Any:
        return buffer(bytes(await (await self.bucket.get_async(key)).bytes_async()))
