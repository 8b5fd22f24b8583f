"""The images of a store as layers of napari: one for each channel of each image, whose levels are dask arrays
over a live view.

A dask array is cached by the names of its parts. Those made here have new names each time, since the same
chunk holds more frames later.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, product
from string import hexdigits
from typing import TYPE_CHECKING, Any

import dask.array
import numpy as np

from shardwright.array.contrast_window import contrast_window
from shardwright.array.ome import display_range, stated_window
from shardwright.array.ome_references import image_names
from shardwright.array.ome_version import Scene, axes_of, ome_in, scale_and_translation
from shardwright.codecs.zarr_python import open_array
from shardwright.model.errors import ShardFormatError, StorageError, UnknownImageError
from shardwright.read.store import position_below
from shardwright.read.zarr_store import LiveStore

from .stitched_level import StitchedLevel

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

MOST_IMAGES = 24  # that have layers, where none are asked for by name: the first ones
MARK = "shardwright"  # in the metadata of a layer: which layer it is, of which store, opened as which
MOST_STITCHED_PIXELS = 1 << 26  # of a frame of a plate's coarsest level, which is read as a whole
TASK_BYTES = 32 << 20  # of chunks that dask reads at once, unless one is larger
# The units of OME-Zarr, all of which napari knows.
_PREFIXES = (
    *("", "yotta", "zetta", "exa", "peta", "tera", "giga", "mega", "kilo", "hecto", "deca"),
    *("deci", "centi", "milli", "micro", "nano", "pico", "femto", "atto", "zepto", "yocto"),
)
_UNITS = frozenset(
    [
        *(f"{prefix}{unit}" for prefix in _PREFIXES for unit in ("meter", "second")),
        *("angstrom", "foot", "inch", "mile", "parsec", "yard", "day", "hour", "minute"),
    ]
)

_openings = count()

Window = tuple[float, float]
LayerKey = tuple[str, int]  # of a layer in its store: the path of the image, the channel


@dataclass(frozen=True)
class DisplayedLayer:
    """A layer as it is now. ``levels``: arrays without the channel axis, the finest first; ``window``: the
    values shown as black and as the full colour, None while there is no frame to take them from; ``facts``:
    the other arguments of napari's Image."""

    key: LayerKey
    levels: list[dask.array.Array]
    window: Window | None
    facts: dict[str, Any]

    @property
    def data(self) -> Any:
        """The data as napari takes them."""
        return self.levels if len(self.levels) > 1 else self.levels[0]

    def as_tuple(self) -> tuple[Any, dict[str, Any], str]:
        """Returns what a reader hands to napari."""
        limits = self.window or display_range(self.levels[0].dtype.name)
        return self.data, {**self.facts, "contrast_limits": limits}, "image"


@dataclass(frozen=True)
class _ImageFacts:
    """An image in the metadata. ``levels``: path, scale and translation of each."""

    path: str
    name: str
    axes: list[dict[str, Any]]
    levels: list[tuple[str, list[float], list[float]]]
    channels: list[dict[str, Any]]


class DisplayedStore:
    """The store at ``path`` as layers of napari; of the images with these names or paths, by default of the
    first, and of a plate as a whole. One thread at a time. Raises as ``shardwright.open``."""

    def __init__(self, path: str | os.PathLike[str], images: Sequence[str] = ()) -> None:
        self.store = LiveStore(path)
        self.opening = next(_openings)  # of this process: a viewer may show a store twice
        self.left_out = 0  # images that have no layer, since there are so many
        self._wanted = tuple(images)
        self._chosen: dict[str, None] = {}  # paths of images with layers, where none are asked for
        self._windows: dict[LayerKey, Window] = {}
        self._facts: dict[str, _ImageFacts] = {}  # by path; an image keeps its own
        self._scenes: dict[str, Scene] = {}  # by path, of groups

    def layers(self) -> list[DisplayedLayer]:
        """Returns the layers as they are now. Raises ``StorageError`` while no frame is stored,
        ``UnknownImageError``, ``ShardFormatError`` for metadata that are no images, and as the store does."""
        images = self._images()
        stitched = None if self._wanted else self._stitched(images)
        if stitched is not None:
            frames = self._levels(images[0])[0]
            return list(self._layers_of(*stitched, frames, is_first=True))
        if not self._wanted:
            images = self._first(images)
        opened = [(image, self._levels(image)) for image in images]
        return [
            layer
            for number, (image, levels) in enumerate(opened)
            for layer in self._layers_of(image, levels, levels[0], is_first=number == 0)
        ]

    def _first(self, images: list[_ImageFacts]) -> list[_ImageFacts]:
        """Returns the images that have layers: at most ``MOST_IMAGES``, always the same once chosen."""
        for image in images:
            if len(self._chosen) < MOST_IMAGES:
                self._chosen.setdefault(image.path)
        self.left_out = len(images) - len(self._chosen)
        return [image for image in images if image.path in self._chosen]

    @property
    def _store_name(self) -> str:
        return self.store.path.name.split(".")[0]

    # ------------------------------------------------------------------ metadata

    def check_is_image(self) -> None:
        """Raises ``ShardFormatError`` for metadata that are no images, also before the first frame."""
        if not self.store.view.is_finished:
            return
        with _as_ome(self.store):
            for path in self._image_paths()[:1]:
                self._image(path)

    def _images(self) -> list[_ImageFacts]:
        self._scenes.clear()
        with _as_ome(self.store):
            images = [image for path in self._image_paths() if (image := self._image(path)) is not None]
        if not images:
            raise StorageError(
                f"no frame of {self.store.path} is stored yet", hint="Open it again once there is one"
            )
        for name in self._wanted:
            if not any(name in (image.name, image.path) for image in images):
                raise UnknownImageError(
                    f"{self.store.path} has no image of this name, or none with frames yet",
                    expected=", ".join(image.name for image in images[:MOST_IMAGES]),
                    got=name,
                )
        return [i for i in images if not self._wanted or {i.name, i.path} & set(self._wanted)]

    def _image_paths(self) -> list[str]:
        """Returns the folders of the images, the store's own as an empty name."""
        return ["/".join(names) for names in image_names(self._ome(""), self._ome)]

    def _ome(self, folder: str) -> dict[str, Any]:
        document = self.store.view.document(folder)
        ome: dict[str, Any] = {} if document is None else document["attributes"]["ome"]
        return ome

    def _image(self, path: str) -> _ImageFacts | None:
        """Returns an image; None before its first frame."""
        if path in self._facts:
            return self._facts[path]
        ome = self._ome(path)
        if not ome:
            return None
        multiscale = ome["multiscales"][0]
        axes = [dict(axis) for axis in axes_of(multiscale)]
        position = position_below(self.store.path, path, self._scene, multiscale)
        levels = []
        for dataset in multiscale["datasets"]:
            folder = f"{path}/{dataset['path']}".lstrip("/")
            document = self.store.view.document(folder)
            if document is not None and all(document["shape"]):
                scale, translation = scale_and_translation(dataset, len(axes))
                at = [t + position.get(a["name"], 0.0) for t, a in zip(translation, axes, strict=True)]
                levels.append((folder, scale, at))
        name = multiscale.get("name") or path or self._store_name
        channels = [dict(channel) for channel in (ome.get("omero") or {}).get("channels") or []]
        if len(levels) < len(multiscale["datasets"]):
            return None
        self._facts[path] = _ImageFacts(path, str(name), axes, levels, channels)
        return self._facts[path]

    def _scene(self, folder: str) -> Scene:
        """Returns the scene of a group as it was when the images were looked at: each of thousands asks for
        those above it."""
        if folder not in self._scenes:
            self._scenes[folder] = Scene(ome_in(self.store.view.document(folder)))
        return self._scenes[folder]

    # ------------------------------------------------------------------ layers

    def _levels(self, image: _ImageFacts) -> list[dask.array.Array]:
        """Returns the levels of an image."""
        arrays = [open_array(self.store, path=path, mode="r") for path, _, _ in image.levels]
        levels = [_as_dask(array, array.shape, array.chunks) for array in arrays]
        return _cut_alike(levels, [scale for _, scale, _ in image.levels])

    def _stitched(self, images: list[_ImageFacts]) -> tuple[_ImageFacts, list[dask.array.Array]] | None:
        """Returns a plate as one image, the first of each well side by side, and its levels; None for what is
        no plate, or one that is too large to be seen as a whole."""
        with _as_ome(self.store):
            plate = self._ome("").get("plate")
            if plate is None:
                return None
            grid = len(plate["rows"]), len(plate["columns"])
            wells_at = {w["path"]: (int(w["rowIndex"]), int(w["columnIndex"])) for w in plate["wells"]}
            wells = {wells_at[image.path.rpartition("/")[0]]: image for image in reversed(images)}
            name = str(plate.get("name") or self._store_name)
        first = images[0]
        levels = [self._stitched_level(wells, grid, number) for number in range(len(first.levels))]
        if math.prod(levels[-1].shape[-2:]) > MOST_STITCHED_PIXELS:
            return None
        whole = replace(first, path="", name=name)
        return whole, _cut_alike(levels, [scale for _, scale, _ in first.levels])

    def _stitched_level(
        self, wells: dict[tuple[int, int], _ImageFacts], grid: tuple[int, int], number: int
    ) -> dask.array.Array:
        arrays = {
            key: open_array(self.store, path=image.levels[number][0], mode="r")
            for key, image in wells.items()
            if number < len(image.levels)
        }
        chunks = next(iter(arrays.values())).chunks
        if any(array.ndim != len(chunks) for array in arrays.values()):
            raise ShardFormatError(f"the images of {self.store.path} have different axes")
        level = StitchedLevel(arrays, grid)
        return _as_dask(level, level.tile_shape, chunks, grid)

    def _layers_of(
        self, image: _ImageFacts, levels: list[dask.array.Array], frames: dask.array.Array, *, is_first: bool
    ) -> Iterator[DisplayedLayer]:
        """Yields a layer for each channel of an image, or one for an image without channels. ``frames``: in
        which a window is sought."""
        axis = next((i for i, a in enumerate(image.axes) if a.get("type") == "channel"), None)
        for channel in range(1 if axis is None else levels[0].shape[axis]):
            look = image.channels[channel] if channel < len(image.channels) else {}
            at = () if axis is None else (*(slice(None),) * axis, channel)
            displayed, key = [level[at] for level in levels], (image.path, channel)
            window = self._window(key, look, frames[at])
            facts = {
                "name": image.name if axis is None else f"{image.name}: {look.get('label', channel)}",
                "colormap": _colormap(look, alone=axis is None),
                "blending": "translucent_no_depth" if axis is None else "additive",
                "visible": is_first and bool(look.get("active", True)),
                "metadata": {MARK: self._mark(key, has_window=window is not None)},
                "multiscale": len(displayed) > 1,
                "rgb": False,
                **_axes_facts(image, axis),
            }
            yield DisplayedLayer(key, displayed, window, facts)

    def _mark(self, key: LayerKey, *, has_window: bool) -> dict[str, Any]:
        path = str(self.store.path)
        return {"store": path, "opening": self.opening, "key": key, "has_window": has_window}

    def _window(self, key: LayerKey, look: dict[str, Any], frames: dask.array.Array) -> Window | None:
        """Returns the window of a channel, which stays as it was found first."""
        if key not in self._windows:
            window = stated_window(look, frames.dtype.name) or _window_of_newest(frames)
            if window is None:
                return None
            self._windows[key] = window
        return self._windows[key]


@contextmanager
def _as_ome(store: LiveStore) -> Iterator[None]:
    """Raises ``ShardFormatError`` where metadata are not as OME-Zarr has them."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise ShardFormatError(
            f"the metadata of {store.path} are no images of OME-Zarr",
            got=f"{type(error).__name__}: {error}",
            hint="Is it another program's store? Another reader may open it",
        ) from None


def _as_dask(
    array: Any, tile_shape: tuple[int, ...], chunks: tuple[int, ...], grid: tuple[int, int] = (1, 1)
) -> dask.array.Array:
    """Returns an array of ``grid`` tiles, rows and columns of them. dask reads as many whole chunks side by
    side in a frame of a tile as fit into ``TASK_BYTES``, so that none is decoded twice for a frame."""
    task = list(chunks)
    nbytes = math.prod(task) * array.dtype.itemsize
    for axis in (-1, -2):
        count = max(1, min(-(-tile_shape[axis] // task[axis]), TASK_BYTES // max(1, nbytes)))
        task[axis] *= count
        nbytes *= count
    parts = [
        tuple(min(size, n - first) for first in range(0, n, size))
        for size, n in zip(task, tile_shape, strict=True)
    ]
    repeated = [*parts[:-2], parts[-2] * grid[0], parts[-1] * grid[1]]
    made: dask.array.Array = dask.array.from_array(  # type: ignore[no-untyped-call]
        array, chunks=tuple(repeated), name=False
    )
    return made


def _cut_alike(levels: list[dask.array.Array], scales: list[list[float]]) -> list[dask.array.Array]:
    """Returns the levels such that one that was looked at later, when it had grown, ends with the first.
    Raises ``ShardFormatError`` where an array has other axes than the metadata say."""
    cut = []
    for level, scale in zip(levels, scales, strict=True):
        if level.ndim != len(scale):
            raise ShardFormatError("an array has other axes than its image", expected=len(scale))
        factors = [max(1, round(s / finest)) for s, finest in zip(scale, scales[0], strict=True)]
        ends = [-(-n // factor) for n, factor in zip(levels[0].shape, factors, strict=True)]
        cut.append(level[tuple(slice(end) for end in ends)])
    return cut


def _axes_facts(image: _ImageFacts, channel_axis: int | None) -> dict[str, Any]:
    """Returns scale, translation, names and units of the axes but the channel's."""
    kept = [i for i in range(len(image.axes)) if i != channel_axis]
    _, scale, translation = image.levels[0]
    units = [image.axes[i].get("unit") for i in kept]
    return {
        "scale": [scale[i] for i in kept],
        "translate": [translation[i] for i in kept],
        "axis_labels": tuple(str(image.axes[i]["name"]) for i in kept),
        "units": tuple(unit if unit in _UNITS else "pixel" for unit in units),
    }


def _colormap(look: dict[str, Any], *, alone: bool) -> str:
    color = str(look.get("color", ""))
    if len(color) != 6 or set(color) - set(hexdigits) or (alone and color.upper() == "FFFFFF"):
        return "gray"
    return f"#{color.lower()}"


def _window_of_newest(frames: dask.array.Array) -> Window | None:
    """Returns the window of the newest frame that is not all of one value. It is sought at the first and the
    middle index of the other axes, in the last two time points: the very last may not be complete."""
    counts = frames.shape[:-2]
    if not all(frames.shape):
        return None
    others = [sorted({0, n // 2}) for n in counts[1:]]
    times = [(n,) for n in range(counts[0] - 1, max(-1, counts[0] - 3), -1)] if counts else [()]
    for index in (time + rest for time in times for rest in product(*others)):
        frame = np.asarray(frames[index])
        if frame.size and (frame != frame.flat[0]).any():
            window = contrast_window(frame)
            return None if window is None else (float(window.start), float(window.end))
    return None
