"""``shardwright view``: opens a store in napari, or in neuroglancer in the browser; of a daemon's acquisition
also by its name."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import webbrowser
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import typer

from shardwright.disk import beneath
from shardwright.disk.remote_path import RemotePath
from shardwright.model.errors import (
    ConfigError,
    InvalidNameError,
    SessionLostError,
    StorageError,
    TimedOutError,
    UnknownAcquisitionError,
)
from shardwright.model.extras import install_line
from shardwright.model.local_path import is_address
from shardwright.model.names import DOCUMENT, WORKSPACE, checked_name, is_archive_name, store_name

from .control_options import SOCKET, control_client

if TYPE_CHECKING:
    from typing import Any

_QT_BINDINGS = ("PyQt6", "PySide6", "PyQt5", "PySide2")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")


class ViewerProgram(StrEnum):
    """A viewer."""

    napari = "napari"
    browser = "browser"


def command(
    what: str = typer.Argument(
        ...,
        help="A store's folder, its file .ozx, its address (s3://BUCKET/KEY, http(s)://SERVER/PATH), or the "
        "name of an acquisition of a running daemon.",
        metavar="PATH_OR_NAME",
    ),
    program: ViewerProgram | None = typer.Option(
        None, "--in", help="By default napari, where it is installed and can open a window."
    ),
    images: list[str] = typer.Option(
        [],
        "--image",
        help="Only this image of a store of several; may be repeated. By default all, in the browser the "
        "first 64.",
        metavar="NAME",
    ),
    config: Path | None = typer.Option(
        None, "--config", help="For a NAME: the YAML file that the daemon runs with.", metavar="CONFIG"
    ),
    socket: Path | None = SOCKET,
    spill_root: Path | None = typer.Option(
        None,
        "--spill-root",
        help="In the browser: where shards of the store were spilled to.",
        metavar="PATH",
    ),
    no_open: bool = typer.Option(False, "--no-open", help="Only print the address for the browser."),
    as_json: bool = typer.Option(False, "--json", help="Print what is opened as JSON."),
) -> None:
    """Open a store in a viewer: one that is being written, too. In napari the time slider grows with it.

    In the browser neuroglancer shows it, several images side by side, from a port of this computer that is
    served until Ctrl-C. Other users of the computer cannot guess the address.
    """
    found = _found(what, config, socket)
    if isinstance(found, str):
        from shardwright.web.viewer_state import view_query

        url = found + view_query(images)
        _tell_address(url, images, as_json=as_json)
        if not no_open:
            webbrowser.open(url)
    elif (program or _program_here()) is ViewerProgram.napari:
        _open_in_napari(found, images, as_json=as_json)
    else:
        _open_in_browser(found, images, spill_root, no_open=no_open, as_json=as_json)


# ---------------------------------------------------------------------- what


def _found(what: str, config: Path | None, socket: Path | None) -> Path | str:
    """Returns the store, or an address of the daemon's page where its files are not to be had here. Raises
    ``StorageError``, ``UnknownAcquisitionError``, ``SessionLostError``."""
    if is_address(what) or is_archive_name(what):
        from shardwright.read.store import opened_path

        if isinstance(found := opened_path(what), RemotePath):
            return found
    if _is_folder(path := beneath.user_path(what)):
        if not (beneath.exists(path / DOCUMENT) or beneath.exists(path / WORKSPACE)):
            raise StorageError(f"{path} is no store", expected="a folder with zarr.json")
        return path
    no_store = partial(StorageError, f"there is no folder {what}", hint="Give the path of a store")
    if is_file := beneath.is_file(path):
        from shardwright.read.store import check_no_tiff

        check_no_tiff(path)
        no_store = partial(StorageError, f"{path} is a file", expected="the folder of a store")
    try:
        name = checked_name(what)
    except InvalidNameError:
        raise no_store() from None
    try:
        with control_client(config, socket) as daemon:
            status = daemon.ask("status")["status"]
        return _of_daemon(status, name)
    except (SessionLostError, TimedOutError, UnknownAcquisitionError) as error:
        if is_file:  # a daemon may have an acquisition of the same name
            raise no_store() from None
        if not isinstance(error, UnknownAcquisitionError):
            error.message = f"there is no folder {what}, nor a daemon to ask for it: {error.message}"
        raise


def _of_daemon(status: dict[str, Any], name: str) -> Path | str:
    """Returns the store of an acquisition that runs or is finished."""
    running = [
        Path(acquisition["path"]) for acquisition in status["acquisitions"] if acquisition["name"] == name
    ]
    path = running[0] if running else Path(status["output_root"], store_name(name))
    if _is_folder(path):
        return path
    page = status.get("status_page")
    if not running or page is None:
        raise UnknownAcquisitionError(
            f"no acquisition {name} is open in this daemon, nor finished",
            expected=f"{path}, where this user can read it",
            hint="`shardwright list --daemon` lists those that are open",
        )
    return f"{page}view/{quote(path.name)}"


def _is_folder(path: Path) -> bool:
    """False also where this user cannot see it."""
    with suppress(OSError):
        return beneath.is_dir(path) and os.access(path, os.R_OK | os.X_OK)
    return False


# ---------------------------------------------------------------------- where


def _program_here() -> ViewerProgram:
    """Returns the viewer that is installed here. Raises ``ConfigError`` where there is none."""
    if _why_no_napari() is None:
        return ViewerProgram.napari
    if _is_installed("neuroglancer"):
        return ViewerProgram.browser
    raise ConfigError(
        "view finds no viewer",
        got=_why_no_napari(),
        hint=f"{install_line('napari')} for napari, {install_line('viewer')} for the browser",
    )


def _why_no_napari() -> str | None:
    """Returns why napari cannot open a window here; None if it can."""
    if not _is_installed("napari"):
        return "napari is not installed"
    if not any(map(_is_installed, _QT_BINDINGS)):
        return "napari has no Qt to draw with: pip install pyqt6"
    if sys.platform == "linux" and not any(map(os.environ.get, _DISPLAYS)):
        return "there is no display"
    return None


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _open_in_napari(path: Path, images: list[str], *, as_json: bool) -> None:
    why = _why_no_napari()
    if why is not None:
        raise ConfigError(
            "view cannot open napari", got=why, hint=f"{install_line('napari')}, or --in browser"
        )
    from shardwright.integrations.napari.reader import show

    if as_json:
        typer.echo(json.dumps({"in": ViewerProgram.napari.value, "path": str(path)}))
    with suppress(KeyboardInterrupt):  # how it may end, too
        show(path, images)


def _open_in_browser(
    path: Path, images: list[str], spill_root: Path | None, *, no_open: bool, as_json: bool
) -> None:
    if not _is_installed("neuroglancer"):
        raise ConfigError(
            "view needs shardwright[viewer] for the browser: neuroglancer is not installed",
            hint=install_line("viewer"),
        )
    from shardwright.web.one_store import StoreForBrowser

    spill_root = None if spill_root is None else beneath.user_path(spill_root)
    served = StoreForBrowser(path, spill_root, images)
    with suppress(KeyboardInterrupt):  # how it ends
        _tell_address(served.url, images, as_json=as_json)
        if not no_open:  # some browsers, in a terminal, return when they are closed only
            threading.Thread(target=webbrowser.open, args=[served.url], daemon=True).start()
        served.serve()


def _tell_address(url: str, images: list[str], *, as_json: bool) -> None:
    from shardwright.web.viewer_state import MOST_SHOWN

    if len(images) > MOST_SHOWN:
        typer.echo(f"shardwright: the first {MOST_SHOWN} of these {len(images)} images are shown", err=True)
    typer.echo(json.dumps({"in": ViewerProgram.browser.value, "url": url}) if as_json else url)
