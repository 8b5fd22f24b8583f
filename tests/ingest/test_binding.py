"""A server that cannot bind all of its sockets leaves none of their files behind."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.acquire.workers import WorkerPool
from shardwright.config.model import Config, Output
from shardwright.ingest import IngestServer
from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def server(folder: Path, **changes: Any) -> IngestServer:
    settings = Config(output=Output(root=folder)).ingest_settings(None)
    facts = {"endpoints": (f"ipc://{folder}/in.sock",), "ring_socket": folder / "ring.sock"}
    return IngestServer(replace(settings, **{**facts, **changes}), WorkerPool(1))


def test_a_later_endpoint_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=other):
            server(tmp_path, endpoints=(f"ipc://{tmp_path}/in.sock", other)).bind()
    assert list(tmp_path.iterdir()) == []


def test_a_ring_socket_that_cannot_be_bound(tmp_path: Path) -> None:
    (tmp_path / "ring.sock").touch()
    with pytest.raises(ConfigError, match=r"ring\.sock"):
        server(tmp_path).bind()
    assert [path.name for path in tmp_path.iterdir()] == ["ring.sock"], "not ours, and not removed"


def test_a_socket_of_another_server_stays(tmp_path: Path) -> None:
    first = server(tmp_path)
    first.bind()
    try:
        with pytest.raises(ConfigError, match=r"in\.sock is in use"):
            server(tmp_path, endpoints=(f"ipc://{tmp_path}/new.sock", f"ipc://{tmp_path}/in.sock")).bind()
        assert {path.name for path in tmp_path.iterdir()} == {"in.sock", "ring.sock"}
    finally:
        first.close()
    assert list(tmp_path.iterdir()) == []


def test_a_second_close_leaves_what_is_bound_since(tmp_path: Path) -> None:
    """Also after a bind that failed, which has closed already."""
    first, other = server(tmp_path), server(tmp_path)
    first.bind()
    with pytest.raises(ConfigError, match=r"in\.sock is in use"):
        other.bind()
    first.close()
    second = server(tmp_path)
    second.bind()
    try:
        first.close()
        other.close()
        assert {path.name for path in tmp_path.iterdir()} == {"in.sock", "ring.sock"}
    finally:
        second.close()


def test_a_socket_that_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such group"):
        server(tmp_path, group="no-such-group-here").bind()
    assert list(tmp_path.iterdir()) == []
