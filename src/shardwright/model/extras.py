"""The extras of this distribution: which of them brings a module, and the line that installs it.

``pip install shardwright`` is the camera's side. What a module of the daemon's side imports is there with
``shardwright[daemon]`` or with an extra that builds on it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRA_OF_MODULE = {
    **dict.fromkeys(("blosc2", "crc32c", "llvmlite", "numba", "structlog", "yaml"), "daemon"),
    **dict.fromkeys(("PIL", "anyio", "prometheus_client", "starlette", "uvicorn"), "web"),
    "distributed": "cluster",
    "neuroglancer": "viewer",
    "obstore": "s3",
}
LINUX_MODULES = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})  # of the standard library


def install_line(extra: str) -> str:
    """As a user types it."""
    return f"pip install 'shardwright[{extra}]'"


@contextmanager
def naming_missing_extra(what: str) -> Iterator[None]:
    """Where an import inside fails for want of an extra, raises ``ConfigError``: ``what`` needs it, and how
    it is installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in LINUX_MODULES:
            raise ConfigError(f"{what} needs Linux", got=f"a system without {module}") from None
        if module not in EXTRA_OF_MODULE:
            raise
        extra = EXTRA_OF_MODULE[module]
        raise ConfigError(
            f"{what} needs shardwright[{extra}]: {module} is not installed", hint=install_line(extra)
        ) from None
