"""Keeps the layers of a running store up to date: their shapes, their newest pixels, and layers of images
that begin later.

    thread of its own    looks at the store every LOOK_S; what has changed waits in ``_news``
    viewer's thread      a timer takes it, gives the layers their new data, and moves the sliders that stood
                         on the last frame

It ends with the acquisition, when the last of its layers is removed, and with the window.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from napari.layers import Layer
from napari.utils.notifications import show_warning
from qtpy.QtCore import QTimer

from shardwright.model.errors import ShardwrightError, StoreGoneError
from shardwright.read.live_view import LiveView

from .layers import MARK

if TYPE_CHECKING:
    from napari.viewer import Viewer

    from .layers import DisplayedLayer, DisplayedStore, LayerKey

LOOK_S = 0.5
REST = 4  # times as long as a look took: of a store of very many images
TAKE_MS = 100
_growing: set[GrowingLayers] = set()  # viewers hold their callbacks weakly


@dataclass(frozen=True)
class _News:
    """The result of a look. ``problem``: why it failed; ``is_over``: nothing comes any more."""

    layers: list[DisplayedLayer]
    is_over: bool = False
    problem: str | None = None


class GrowingLayers:
    """The layers of a running store in a viewer. Made in the viewer's thread, before the layers are added."""

    def __init__(self, viewer: Viewer, displayed: DisplayedStore) -> None:
        self._viewer = viewer
        self._displayed = displayed
        self._changes = _Changes(LiveView(displayed.store.path, expected=displayed.store.view.identity))
        self._layers: dict[LayerKey, Layer] = {}
        self._known: set[LayerKey] = set()  # keys whose layer there is, or was until the user removed it
        self._news: _News | None = None  # set by the thread while it is None, taken by the viewer's
        self._has_warned = False
        self._ended = threading.Event()
        viewer.layers.events.inserted.connect(self._on_inserted, position="last")
        viewer.layers.events.removed.connect(self._on_removed)
        self._timer = QTimer(viewer.window._qt_window)  # noqa: SLF001  (plugins have no other name for it)
        self._timer.setInterval(TAKE_MS)
        self._timer.timeout.connect(self._take)
        self._timer.destroyed.connect(self._end)  # with its window
        self._timer.start()
        self._thread = threading.Thread(target=self._watch, name="shardwright view", daemon=True)
        self._thread.start()
        _growing.add(self)

    def stop(self) -> None:
        """Leaves the layers as they are. In the viewer's thread."""
        if not self._ended.is_set():
            self._end()
            self._timer.stop()
            self._timer.deleteLater()
            self._viewer.layers.events.inserted.disconnect(self._on_inserted)
            self._viewer.layers.events.removed.disconnect(self._on_removed)

    def _end(self) -> None:
        _growing.discard(self)
        self._ended.set()

    # ------------------------------------------------------------------ the thread

    def _watch(self) -> None:
        pause_s = LOOK_S
        while not self._ended.wait(pause_s):
            if self._news is None:
                begin_s = time.monotonic()
                self._news = self._look()
                pause_s = max(LOOK_S, REST * (time.monotonic() - begin_s))
                if self._news is not None and self._news.is_over:
                    return

    def _look(self) -> _News | None:
        try:
            changed, is_over = self._changes.look()
            return _News(self._displayed.layers(), is_over) if changed else None
        except ShardwrightError as error:
            return _News([], isinstance(error, StoreGoneError), str(error))

    # ------------------------------------------------------------------ the viewer

    def _on_inserted(self, event: Any) -> None:
        """Takes in one of our layers. The first puts the slider on the last frame."""
        layer, mark = event.value, event.value.metadata.get(MARK, {})
        if mark.get("opening") != self._displayed.opening or mark["key"] in self._known:
            return
        is_first = not self._known
        self._known.add(mark["key"])
        self._layers[mark["key"]] = layer
        if is_first:
            for axis, last in list(self._last_frames().items())[:1]:
                self._viewer.dims.set_point(axis, last)

    def _on_removed(self, event: Any) -> None:
        self._layers = {key: layer for key, layer in self._layers.items() if layer is not event.value}
        if not self._layers:
            self.stop()

    def _take(self) -> None:
        """Takes what the thread has found."""
        if not self._layers:
            self.stop()  # they were not added to this viewer
        news = self._news
        if news is None or not self._layers:
            return
        problem = news.problem
        try:
            self._grow(news.layers)
        except ShardwrightError as error:
            problem = str(error)
        finally:
            self._news = None
            if news.is_over:
                self.stop()
        if problem is not None and not self._has_warned:
            show_warning(problem)
        self._has_warned = problem is not None

    def _grow(self, displayed: list[DisplayedLayer]) -> None:
        """Gives layers their new data. Sliders on the last frame go to the new last one."""
        dims = self._viewer.dims
        on_last = [
            axis
            for axis, last in self._last_frames().items()
            if abs(dims.point[axis] - last) < dims.range[axis].step / 2
        ]
        for layer in displayed:
            self._renew(layer)
        last_frames = self._last_frames()
        for axis in on_last:
            dims.set_point(axis, last_frames[axis])

    def _renew(self, displayed: DisplayedLayer) -> None:
        layer = self._layers.get(displayed.key)
        if layer is None:
            if displayed.key not in self._known:
                self._viewer.add_layer(Layer.create(*displayed.as_tuple()))
            return
        layer.data = displayed.data
        if not layer.metadata[MARK]["has_window"] and displayed.window is not None:
            layer.metadata[MARK]["has_window"] = True
            layer.contrast_limits = displayed.window

    def _last_frames(self) -> dict[int, float]:
        """Returns where the visible layers end along each axis but a frame's own, by the viewer's numbers of
        the axes and in its units."""
        ends: dict[int, float] = {}
        for layer in self._layers.values():
            shape = (layer.data[0] if layer.multiscale else layer.data).shape
            for axis in range(layer.ndim - 2 if layer.visible else 0):
                last = float(layer.translate[axis] + layer.scale[axis] * (shape[axis] - 1))
                number = int(self._viewer.dims.ndim) - int(layer.ndim) + axis
                ends[number] = max(last, ends.get(number, last))
        return ends


class _Changes:
    """Tells whether frames were stored since the last look, by a view of its own: a view tells of each slab
    once."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._sequences = b""

    def look(self) -> tuple[bool, bool]:
        """Returns whether there is something new, and whether the acquisition has ended. Raises as
        ``LiveView.look``."""
        acquiring, records = self._view.look()
        if acquiring is None:
            return True, True
        sealed = list(acquiring.take_sealed())
        before, told = self._sequences, [some["sequence"] for some in (*sealed, *records)]
        self._sequences = np.unique(np.concatenate([np.zeros(0, np.int64), *told])).tobytes()
        return bool(sealed) or self._sequences != before, False
