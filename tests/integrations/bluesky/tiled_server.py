"""A tiled server on loopback, in a process and an environment of its own: ours need its client alone."""

from __future__ import annotations

import socket
import subprocess
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.harness.cached_environment import CannotInstallError, cached_python
from tests.harness.json_process import wait_for
from tiled.client import from_uri

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tiled.client.container import Container

KEY = "secret"


def tiled_python() -> Path:
    try:
        return cached_python("tiled", (f"tiled[server]=={version('tiled')}",))
    except CannotInstallError as error:
        pytest.skip(f"NOT TESTED: a tiled server; pip cannot install it here: {error}")


@contextmanager
def serving_tiled(readable: Path, log: Path) -> Iterator[Container]:
    """A client of a server with an empty catalog, which reads files below ``readable``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [tiled_python(), "-m", "tiled", "serve", "catalog", "--temp", "--read", readable]
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, "--api-key", KEY, "--port", str(port)], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(lambda: _answers(port, server, log), f"a tiled server: {log.read_text()}")
        client = from_uri(f"http://127.0.0.1:{port}", api_key=KEY)
        with client.context:
            yield client
    finally:
        server.terminate()
        server.wait()


def _answers(port: int, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text()
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/v1/").is_success
    except httpx.TransportError:
        return False
