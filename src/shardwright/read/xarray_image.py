"""``shardwright.open_xarray``, and the engine ``shardwright`` of xarray: one level of an image, lazily.

dims     names of the axes
coords   scale and translation of the level with the axis' unit (attribute ``units``); the names of channels;
         ``time`` along the time axis, from the frame table
values   read by ``ArrayView`` when they are asked for
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core import indexing

from shardwright.array.layout_costs import TIME_AXES
from shardwright.array.ome import multiscale_of
from shardwright.array.ome_references import image_names
from shardwright.array.ome_version import Scene, axes_of, ome_in, scale_and_translation
from shardwright.model.errors import ConfigError, ShardFormatError, StorageError, UnknownImageError
from shardwright.model.frame_status import FrameStatus
from shardwright.model.names import key_in

from .array_view import ArrayView, open_view
from .frame_table import open_frame_table
from .store import Store, position_below

if TYPE_CHECKING:
    import os

    from .frame_table import FrameTable
    from .live_view import LiveView

VARIABLE = "image"
_MOST_NAMED = 16  # images in a message


class ShardwrightBackend(BackendEntrypoint):
    """The engine of ``xarray.open_dataset(path, engine="shardwright", image=…, level=…)``, which gives a
    dataset with the variable ``image``."""

    description = "Images of OME-Zarr stores, also while shardwright writes them, and at s3:// and http(s)://"
    open_dataset_parameters = ("filename_or_obj", "drop_variables", "image", "level")

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: Any = None,
        image: str | None = None,
        level: int = 0,
    ) -> xarray.Dataset:
        """Raises as ``shardwright.open_xarray``."""
        view, below = open_view(filename_or_obj)
        folder, attributes = _image(view, below, image)
        found = xarray.Dataset({VARIABLE: _variable(view, folder, attributes, level)})
        return found.drop_vars(drop_variables or [], errors="ignore")


def open_image(path: str | os.PathLike[str], image: str | None, level: int, chunks: Any) -> xarray.DataArray:
    """As ``reader_api.open_xarray``."""
    dataset = xarray.open_dataset(
        path, engine=ShardwrightBackend, chunks=chunks, cache=False, image=image, level=level
    )
    return dataset[VARIABLE]


def _image(view: LiveView, below: str, name: str | None) -> tuple[str, dict[str, Any] | None]:
    """Returns the folder of an image and its attributes; None for an array alone. Raises ``ConfigError``,
    ``UnknownImageError``, ``StorageError``."""

    def attributes_of(folder: str) -> dict[str, Any]:
        document = view.document(folder)
        found = {} if document is None else document.get("attributes", {})
        return found if isinstance(found, dict) else {}

    document = view.document(below)
    if document is None:
        raise StorageError(f"no frame of {view.path} is stored yet", hint="Try again later")
    if document["node_type"] == "array":
        return below, None
    ome = ome_in(document)
    try:
        found = image_names(ome, lambda folder: attributes_of(key_in(below, folder))["ome"])
        folders = [key_in(below, "/".join(names)) if names else below for names in found]
        if name is None and len(folders) == 1:
            return folders[0], attributes_of(folders[0])
        known: list[Any] = []
        at_path = None
        for folder in folders:
            if attributes := attributes_of(folder):
                known.append(attributes["ome"]["multiscales"][0].get("name"))
                if name is not None and name == known[-1]:
                    return folder, attributes
                if name == folder:
                    at_path = folder, attributes
        if at_path is not None:  # a folder may have the name of another image, which counts first
            return at_path
    except (LookupError, TypeError, AttributeError):
        raise ShardFormatError(
            f"the metadata of {view.path} are no images of OME-Zarr",
            hint="`sw.open_array` reads an array",
        ) from None
    some = ", ".join(map(str, known[:_MOST_NAMED])) + ", ..." * (len(known) > _MOST_NAMED)
    if name is None:
        raise ConfigError(f"{view.path} has several images", expected="image= one of them", got=some)
    raise UnknownImageError(f"{view.path} has no such image with frames", expected=some, got=name)


def _variable(view: LiveView, folder: str, attributes: dict[str, Any] | None, level: int) -> xarray.DataArray:
    if attributes is None:
        array = ArrayView(view, folder)
        names = [name or f"dim_{i}" for i, name in enumerate(array.dimension_names or [None] * array.ndim)]
        return _lazy(array, names, {}, _attrs(view, None, 0))
    multiscale = multiscale_of(attributes)
    axes, datasets = axes_of(multiscale), multiscale["datasets"]
    if not 0 <= level < len(datasets):
        raise ConfigError(
            f"{view.path} has no such level", expected=f"level=0 to {len(datasets) - 1}", got=level
        )
    array = ArrayView(view, key_in(folder, datasets[level]["path"]))
    if array.ndim != len(axes):
        raise ShardFormatError("an array has other axes than its image", expected=len(axes), got=array.ndim)
    scales, own = scale_and_translation(datasets[level], len(axes))
    position = position_below(
        view.path, folder, lambda group: Scene(ome_in(view.document(group))), multiscale
    )
    translations = [t + position.get(axis["name"], 0.0) for t, axis in zip(own, axes, strict=True)]
    coords: dict[str, Any] = {}
    for axis, count, scale, translation in zip(axes, array.shape, scales, translations, strict=True):
        units = {"units": axis["unit"]} if "unit" in axis else {}
        values: Any = translation + scale * np.arange(count)
        if axis.get("type") == "channel":
            labels = _channel_labels(attributes)
            values = labels if len(labels) == count else np.arange(count)
        coords[axis["name"]] = (axis["name"], values, units)
    names = [str(axis["name"]) for axis in axes]
    is_time = [axis.get("type") == "time" for axis in axes]
    if not any(is_time):
        is_time = [name.lower() in TIME_AXES for name in names]
    if any(is_time):
        time = names[is_time.index(True)]
        full = array if level == 0 else ArrayView(view, key_in(folder, datasets[0]["path"]))
        times = _times(view, full, time)
        if times is not None and times.size == array.shape[names.index(time)]:  # no level along time
            coords["frame_time" if "time" in names else "time"] = (time, times)
    return _lazy(array, names, coords, _attrs(view, multiscale.get("name"), level))


def _channel_labels(attributes: dict[str, Any]) -> list[str]:
    try:
        return [str(each.get("label", i)) for i, each in enumerate(attributes["ome"]["omero"]["channels"])]
    except (LookupError, TypeError, AttributeError):
        return []  # "omero" is for display alone, and whoever else wrote the store need not have it


def _attrs(view: LiveView, name: Any, level: int) -> dict[str, Any]:
    named = {} if name is None else {"image": str(name)}
    return {**named, "level": level, "store": str(view.path)}


def _times(view: LiveView, array: ArrayView, axis: str) -> np.ndarray | None:
    """Returns datetime64[ns] for each index along the time axis: when the first of its stored frames was
    given to the writer, NaT without one; None where no frame table tells of this array."""
    if not view.is_finished:
        return None
    stored = array.stored
    try:
        store = Store(view.path, (view.document("") or {}).get("attributes"), (stored,))
        table = open_frame_table(store)
        if table is None or (table.images and array.array not in table.images):
            return None
        table = table.of(store, stored)
        if not table.tells_statuses or axis not in table.axes:
            return None
        return _first_times(table, axis, array.shape[(stored.dimension_names or ()).index(axis)])
    except (ShardFormatError, StorageError) as error:
        warnings.warn(f"no times: the frame table cannot be read: {error}", stacklevel=2)
        return None


def _first_times(table: FrameTable, axis: str, count: int) -> np.ndarray:
    most = np.iinfo(np.int64).max
    first = np.full(count, most)
    for chunk in range(table.chunks):
        index = table.read(f"index_{axis}", chunk)
        camera, arrival = table.read("camera_ns", chunk), table.read("arrival_ns", chunk)
        here = (table.read_statuses(chunk) == FrameStatus.STORED) & (index >= 0) & (index < count)
        np.minimum.at(first, index[here], np.where(camera > 0, camera, arrival)[here])
    return np.where(first == most, np.iinfo(np.int64).min, first).view("datetime64[ns]")  # the least: NaT


def _lazy(
    array: ArrayView, names: list[str], coords: dict[str, Any], attrs: dict[str, Any]
) -> xarray.DataArray:
    values = indexing.LazilyIndexedArray(_LazyValues(array))
    found = xarray.DataArray(values, coords, names, attrs=attrs)
    found.encoding = {"preferred_chunks": dict(zip(names, array.chunks, strict=True))}
    return found


class _LazyValues(BackendArray):
    """The values of an array, as xarray indexes them."""

    def __init__(self, array: ArrayView) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        support = indexing.IndexingSupport.OUTER_1VECTOR
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        # An integer beside a list would move axes in NumPy; xarray expects them in their places.
        single = [isinstance(each, int | np.integer) for each in key]
        places = [int(k) % n if one else k for k, n, one in zip(key, self.shape, single, strict=True)]
        taken = [slice(k, k + 1) if one else k for k, one in zip(places, single, strict=True)]
        return self._array[tuple(taken)][tuple(0 if one else slice(None) for one in single)]
