"""Keys of a daemon and its cameras, for tests of who gets in."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import shardwright as sw
from shardwright.client.curve import make_key_pair
from shardwright.ingest.transport.allow_list import Access, AllowList
from shardwright.wire.key_files import read_secret_key

if TYPE_CHECKING:
    from pathlib import Path


class Lab:
    """A folder of pairs; the daemon's is called rig. ``clients`` is its allow-list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients = folder / "clients"
        self.clients.mkdir(parents=True)
        self.rig, self.rig_secret = make_key_pair(folder, "rig")

    def make(self, name: str, *, listed: bool = True) -> sw.Curve:
        """A camera's keys."""
        public, secret = make_key_pair(self.folder, name)
        if listed:
            shutil.copy(public, self.clients)
        return sw.Curve(secret, self.rig)

    def unlist(self, name: str) -> None:
        (self.clients / f"{name}.key").unlink()

    def access(self) -> Access:
        return Access(read_secret_key(self.rig_secret), AllowList.read(self.clients))
