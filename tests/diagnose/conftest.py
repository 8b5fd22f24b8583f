"""The daemon's configuration serves here, too."""

from tests.daemon.conftest import config

__all__ = ["config"]
