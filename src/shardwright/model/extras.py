"""The extras of this distribution: the extra that provides a module, and the line that installs it.

``pip install shardwright`` is the client's side. The imports of the daemon's side need
``shardwright[daemon]`` or an extra that builds on it.
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
    **dict.fromkeys(("dask", "napari", "qtpy"), "napari"),
    "distributed": "cluster",
    "neuroglancer": "viewer",
    "obstore": "s3",
    "pandas": "table",
    "zarr": "zarr",
}
LINUX_MODULES = frozenset({"fcntl", "grp", "pwd", "resource", "termios"})  # of the standard library


def install_line(extra: str) -> str:
    """Returns the command line that installs an extra."""
    return f"pip install 'shardwright[{extra}]'"


@contextmanager
def naming_missing_extra(what: str) -> Iterator[None]:
    """A context that raises ``ConfigError`` when an import inside fails for want of an extra: that ``what``
    needs it, and how to install it."""
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
