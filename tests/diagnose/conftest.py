"""The daemon's configuration serves here, too."""

from tests.daemon.conftest import config, folder

__all__ = ["config", "folder"]
