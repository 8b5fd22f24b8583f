"""The extras of this distribution: the extra that provides a module, and the line that installs it.

``pip install shardwright`` is the client's side. The imports of the daemon's side need
``shardwright[daemon]`` or an extra that builds on it.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from .error_text import ErrorText
from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXTRA_OF_MODULE = {
    **dict.fromkeys(("blosc2", "crc32c", "llvmlite", "numba", "structlog", "yaml"), "daemon"),
    **dict.fromkeys(("PIL", "anyio", "prometheus_client", "starlette", "uvicorn"), "web"),
    **dict.fromkeys(("bluesky", "event_model", "ophyd_async"), "bluesky"),
    **dict.fromkeys(("dask", "napari", "qtpy"), "napari"),
    **dict.fromkeys(("pymmcore_plus", "useq"), "micromanager"),
    "distributed": "cluster",
    "icechunk": "refs",
    "neuroglancer": "viewer",
    "h5py": "hdf5",
    "numcodecs": "zarr",
    "obstore": "s3",
    "ome_writers": "ome-writers",
    "pandas": "table",
    "par2": "parity",
    "pyarrow": "parquet",
    "xarray": "xarray",
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


def class_of_extra(name: str, modules: Sequence[str]) -> type:
    """Returns a class of the last of ``modules``, which are imported one after the other; where an extra is
    missing, one that raises ``ConfigError`` when it is called, so that every public name is there."""
    try:
        with naming_missing_extra(f"shardwright.{name}"):
            *_, module = map(import_module, modules)
    except ConfigError as error:
        why = ErrorText.of(error)
    else:
        found: type = getattr(module, name)
        return found

    def needs_extra(*_: object, **__: object) -> NoReturn:
        raise why.to_error() from None

    return type(name, (), {"__new__": needs_extra, "__doc__": str(why.to_error())})
