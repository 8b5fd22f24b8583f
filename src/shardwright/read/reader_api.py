"""``shardwright.open``, ``open_array``, ``open_xarray``, ``shard_regions`` and ``follow``."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from shardwright.model.extras import naming_missing_extra

from .follow_http import HttpFollower

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from typing import Any

    import xarray

    from .array_view import ArrayView
    from .followed_frame import FollowedFrame
    from .zarr_store import LiveStore


def open(path: str | os.PathLike[str]) -> LiveStore:  # noqa: A001  (its name for users is shardwright.open)
    """Opens a store for zarr-python 3, read-only: one that is being written, that a dead writer left, or that
    is finished. A finished one may be one file (.ozx), and have an address, s3:// or http(s)://.
    ``zarr.open(shardwright.open(path))`` shows every frame that is stored, in sealed shards or not, and
    covers them in its shape; open it again to see more frames. A frame that is stored while it is read, and
    has several shards, may be there in part. Nothing is locked or written.

    The store may be used from any thread, and be pickled to other processes. Raises ``StorageError`` when
    there is no store at ``path``, and later ``StoreGoneError`` when it is deleted, moved, or its name is
    given to another store, ``ShardFormatError`` for damaged bytes. Needs ``shardwright[zarr]``
    (``ConfigError`` where that is not installed).

    Examples
    --------
    The frames of an acquisition that goes on:

    >>> import zarr
    >>> with sw.create("run.ome.zarr", shape=(None, 64, 64), dtype="uint16", axes="tyx") as writer:
    ...     writer.append(np.full((64, 64), 7, "uint16"))
    ...     writer.flush()
    ...     image = zarr.open(sw.open("run.ome.zarr"))["0"]
    ...     print(image.shape, image[-1].max())
    (1, 64, 64) 7
    """
    with naming_missing_extra("shardwright.open"):
        from .zarr_store import LiveStore
    return LiveStore(path)


def open_array(path: str | os.PathLike[str], array: str | None = None) -> ArrayView:
    """Opens an array to read it by NumPy's selection: ``open_array("run.ome.zarr")[3]`` is a NumPy array. Of
    a store that is being written, that a dead writer left, or that is finished, as ``open``; without
    zarr-python, and faster where little is read. ``path``: as for ``open``.

    ``array``: its path in the store, as ``"pos1/0"``; without it the full resolution of a store's only image.
    ``path`` may lead to the array itself. Raises ``StorageError`` when there is no store or no such array,
    ``ConfigError`` where one of several must be named, or where ``shardwright[daemon]`` is not installed, and
    later as ``ArrayView`` does.

    Examples
    --------
    A part of each frame of an acquisition:

    >>> with sw.create("run.ome.zarr", shape=(None, 64, 64), dtype="uint16", axes="tyx") as writer:
    ...     for value in range(3):
    ...         writer.append(np.full((64, 64), value, "uint16"))
    >>> image = sw.open_array("run.ome.zarr")
    >>> image.shape, image[:, 5, -1].tolist()
    ((3, 64, 64), [0, 1, 2])
    """
    with naming_missing_extra("shardwright.open_array"):
        from .array_view import open_array
    return open_array(path, array)


def shard_regions(path: str | os.PathLike[str], array: str | None = None) -> Iterator[tuple[slice, ...]]:
    """Yields the region of each shard of an array (of each chunk without shards), as slices in storage order
    that cover the array: two writers that keep to different regions never change one file. Inside a region
    one writer at a time is safe; a region that is written whole is written once. ``path``, ``array``, and
    what is raised: as ``open_array``.

    Examples
    --------
    Each shard is changed by a thread of its own:

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with sw.create("run.ome.zarr", shape=(4, 64, 64), dtype="uint16") as writer:
    ...     writer.append_many(np.ones((4, 64, 64), "uint16"))
    >>> regions = list(sw.shard_regions("run.ome.zarr"))
    >>> with ThreadPoolExecutor() as pool:
    ...     for region in regions:
    ...         _ = pool.submit(sw.update, "run.ome.zarr", dict(zip("tyx", region)), 5)
    >>> int(sw.open_array("run.ome.zarr")[...].min())
    5
    """
    view = open_array(path, array)
    axes = (
        [slice(start, min(start + step, count)) for start in range(0, count, step)]
        for count, step in zip(view.shape, view.shards, strict=True)
    )
    return product(*axes)


def open_xarray(
    path: str | os.PathLike[str], *, image: str | None = None, level: int = 0, chunks: Any = None
) -> xarray.DataArray:
    """Opens one level of an image as an xarray ``DataArray``: dimensions by the names of the axes,
    coordinates by their scales (attribute ``units``), the names of the channels, and for a store with a frame
    table ``time``: when the first frame of each time point was given to the writer (UTC). What is read is
    read by ``open_array``, when it is asked for. ``xarray.open_dataset(path, engine="shardwright")`` gives a
    dataset with the variable ``image``.

    ``path``: as for ``open``. ``image``: its name or folder, of several. ``level``: 0 is the full resolution.
    ``chunks``: of dask, as of ``xarray.open_dataset``; without them no dask is needed. Raises as
    ``open_array``, and ``UnknownImageError``. Needs ``shardwright[xarray]`` (``ConfigError`` where that is
    not installed).

    Examples
    --------
    Frames by their times, not by their numbers:

    >>> look = {"scales": {"t": 0.5}, "units": {"t": "s"}}
    >>> with sw.create("run.ome.zarr", shape=(None, 64, 64), dtype="uint16", **look) as writer:
    ...     for value in range(3):
    ...         writer.append(np.full((64, 64), value, "uint16"))
    >>> image = sw.open_xarray("run.ome.zarr")
    >>> image.dims, float(image.sel(t=1.0, method="nearest").max()), "time" in image.coords
    (('t', 'y', 'x'), 2.0, True)
    """
    with naming_missing_extra("shardwright.open_xarray"):
        from .xarray_image import open_image
    return open_image(path, image, level, chunks)


def follow(
    path: str | os.PathLike[str], *, timeout_ms: float | None = None, only_new: bool = False
) -> Iterator[FollowedFrame]:
    """Yields each frame of an acquisition once it is stored: its ``index`` in acquisition order, the name of
    its ``image``, its ``pixels`` and its ``row`` of the frame table, each frame once, those of a shard row
    that are found together in the order in which they were sent. Ends when the acquisition has ended.
    ``path`` may be the address of a store at a rig's status page, ``http://RIG:8790/live/NAME.ome.zarr``:
    then a connection that breaks is made again. A ``row`` has the number of the frame's status as ``status``
    and ``fate``; if the array has a frame field named ``status``, that is its value, and ``fate`` alone is
    the status.

    ``only_new`` leaves out frames that are stored at the time of the call. Raises ``TimedOutError`` when no
    frame comes within ``timeout_ms`` (over HTTP it is raised up to about a second late, or five if the
    rig is silent), ``StorageError`` when there is no store at ``path`` or no rig answers, ``StoreGoneError``
    when it is deleted or moved meanwhile, as an acquisition that ends without a frame is,
    ``ShardFormatError`` for damaged bytes. Needs ``shardwright[daemon]`` but for an address (``ConfigError``
    where that is not installed).
    """
    if isinstance(path, str) and path.startswith(("http://", "https://")):
        return HttpFollower(path, only_new=only_new).frames(timeout_ms)
    with naming_missing_extra("shardwright.follow"):
        from .follow import open_follower
    return open_follower(path, only_new=only_new).frames(timeout_ms)
