"""Folders short enough for sockets serve here, too."""

from tests.daemon.conftest import folder

__all__ = ["folder"]
