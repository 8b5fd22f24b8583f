"""The reader that napari finds by the manifest, and the window of ``shardwright view``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import napari
from napari.layers import Layer
from napari.utils.notifications import show_info

from shardwright.model.errors import ConfigError, ShardwrightError

from .layers import DisplayedStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from napari.viewer import Viewer

    Reader = Callable[[str], list[tuple[Any, dict[str, Any], str]]]


QT_LINE = "pip install pyqt6"


def get_reader(path: str | list[str]) -> Reader | None:
    """Returns a function that reads the store at ``path``; None for what this plugin cannot open, which is
    left to other readers."""
    if not isinstance(path, str) or "://" in path:
        return None
    try:
        displayed = DisplayedStore(path)
        displayed.check_is_image()
    except ShardwrightError:
        return None

    def read(_: str) -> list[tuple[Any, dict[str, Any], str]]:
        layers = [layer.as_tuple() for layer in displayed.layers()]
        _tell_left_out(displayed)
        viewer = napari.current_viewer()
        if viewer is not None:  # else it is read by a program without a window
            _let_grow(viewer, displayed)
        return layers

    return read


def show(path: str | os.PathLike[str], images: Sequence[str] = ()) -> None:
    """Shows a store, or some of its images by their names or paths, in a window of its own; returns when it
    is closed. Raises ``ConfigError`` where napari cannot open a window, and as ``DisplayedStore``."""
    displayed = DisplayedStore(path, images)
    layers = displayed.layers()
    try:
        viewer = napari.Viewer(title=f"{displayed.store.path.name} · shardwright")
    except ImportError as error:
        raise ConfigError(
            "napari finds no Qt to open a window with", got=str(error).split("\n")[0], hint=QT_LINE
        ) from None
    _tell_left_out(displayed)
    _let_grow(viewer, displayed)
    for layer in layers:
        viewer.add_layer(Layer.create(*layer.as_tuple()))
    napari.run()


def _let_grow(viewer: Viewer, displayed: DisplayedStore) -> None:
    if not displayed.store.view.is_finished:
        from .growing_layers import GrowingLayers  # needs a Qt

        GrowingLayers(viewer, displayed)


def _tell_left_out(displayed: DisplayedStore) -> None:
    if displayed.left_out:
        path = displayed.store.path
        show_info(
            f"{displayed.left_out} more images of {path.name} are not shown; those that you name are opened "
            f"by `shardwright view {path} --image NAME`"
        )
