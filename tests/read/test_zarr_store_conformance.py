"""zarr-python's own tests of stores, on a live store.

Those write through the store that they test. Here its files are written beside it, as an acquisition does, so
that all they ask of reading and listing is asked of ``LiveStore``; what it refuses is tested in
``test_zarr_store.py``.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.event_loop import sync
from zarr.buffer import cpu
from zarr.testing.store import StoreTests

from shardwright.array.document import encode_document
from shardwright.codecs.zarr_python import READ_ONLY
from shardwright.read import live_shard, zarr_store
from shardwright.read.zarr_store import LiveStore

if TYPE_CHECKING:
    from collections.abc import Callable


class WrittenBeside(LiveStore):
    """Of a live store, with files that are written and deleted in its folder."""

    supports_writes = True
    supports_deletes = True

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """These tests begin with no key, a live store with that of its group."""
        group = Path(path) / "zarr.json"
        if is_new := not any(group.parent.iterdir()):
            group.write_bytes(encode_document({"zarr_format": 3, "node_type": "group", "attributes": {}}))
        super().__init__(path)
        self.refuses = read_only
        if is_new:
            group.unlink()

    @property
    def read_only(self) -> bool:
        return self.refuses

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(WrittenBeside, read_only=self.refuses), (str(self.path),)

    def with_read_only(self, read_only: bool = False) -> WrittenBeside:
        return WrittenBeside(str(self.path), read_only=read_only)

    def set_sync(self, key: str, value: cpu.Buffer) -> None:
        if self.refuses:
            raise ValueError(READ_ONLY)
        if not isinstance(value, cpu.Buffer):
            raise TypeError(f"WrittenBeside.set(): `value` must be a Buffer instance, not {type(value)}")
        file = self.path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value.to_bytes())

    def delete_sync(self, key: str) -> None:
        if self.refuses:
            raise ValueError(READ_ONLY)
        (self.path / key).unlink(missing_ok=True)

    async def set(self, key: str, value: cpu.Buffer) -> None:
        self.set_sync(key, value)

    async def delete(self, key: str) -> None:
        self.delete_sync(key)


def _in_a_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return sync(function(*args, **kwargs))

    return run


class TestLiveStore(StoreTests[WrittenBeside, cpu.Buffer]):
    store_cls = WrittenBeside
    buffer_cls = cpu.Buffer

    @pytest.fixture(autouse=True)
    def _documents_are_plain_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """These tests take ``zarr.json`` for a key of any bytes, which a live store refuses by name."""
        for module in (live_shard, zarr_store):
            monkeypatch.setattr(module, "DOCUMENT", "a document")

    @pytest.fixture
    def store_kwargs(self, tmp_path: Any) -> dict[str, Any]:
        return {"path": str(tmp_path)}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> Any:
        return sync(WrittenBeside.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> Any:
        return WrittenBeside(**store_kwargs)

    async def set(self, store: WrittenBeside, key: str, value: Any) -> None:
        store.set_sync(key, value)

    async def get(self, store: WrittenBeside, key: str) -> Any:
        return cpu.Buffer.from_bytes((store.path / key).read_bytes())

    def test_store_repr(self, store: WrittenBeside) -> None:
        assert repr(store) == f"LiveStore({str(store.path)!r})"
        assert str(store) == f"shardwright://{store.path}"

    def test_store_supports_writes(self, store: WrittenBeside) -> None:
        assert not LiveStore.supports_writes
        assert not LiveStore.supports_deletes

    def test_store_supports_listing(self, store: WrittenBeside) -> None:
        assert store.supports_listing


for name, function in inspect.getmembers(StoreTests, inspect.iscoroutinefunction):
    if name.startswith("test_"):
        setattr(TestLiveStore, name, _in_a_loop(function))
