"""``shardwright.open_array``: an array of a store, read by NumPy's selection.

    key ──▶ Selection: boxes of the array ──▶ parts of shards, some at a time ──▶ LiveView.read_into ──▶ block

The live view finds and decodes. Boxes that are taken whole are read straight into the block; of the others a
part is taken, and no temporary box is larger than ``MOST_BOX_BYTES`` or a chunk.
"""

from __future__ import annotations

import itertools
import math
import uuid
import weakref
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.disk.files import FileIdentity
from shardwright.model.errors import ConfigError, FrameDtypeError, FrameShapeError, StorageError
from shardwright.model.forked_child import RenewedLock
from shardwright.remote.source_path import source_path
from shardwright.shard.manifest import has_manifest
from shardwright.shard.shard_sums import SUMS_NAME

from .box_reader import BoxPart, empty_box
from .live_view import LiveView, changed_layout
from .selection import AxisRun, select
from .store import dataset_paths, inside, parse_array, workspace_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from .selection import Selection
    from .store import StoredArray

MOST_AT_ONCE = 16  # shards, whose files are open together
MOST_BOX_BYTES = 64 << 20  # decoded, of parts that are read together, or of a box of which a part is taken

Coordinates = tuple[int, ...]


class ArrayView:
    """An array as it was when this was opened: its shape stays until ``refresh``, and what is read is what is
    stored at that moment. ``view[0]``, ``view[:, 10:20, ::2]`` and ``numpy.asarray(view)`` return NumPy
    arrays; dask takes it by ``dask.array.from_array``. What was never stored is fill value. May be used by
    any number of threads, and be pickled. Made by ``shardwright.open_array``.

    shape, dtype      as of a NumPy array; and ``ndim``, ``size``, ``nbytes``, ``len``
    chunks, shards    the shapes of its inner chunks and of its shards
    dimension_names   a name or None for each axis; None if there are no names
    fill_value        one element
    path, array       of the store, and of the array in it
    """

    def __init__(self, view: LiveView, array: str) -> None:
        self._view = view
        self.array = array
        found = view.array(array)
        if found is None:
            parse_array(self.path / array)  # says why it is not read
            raise StorageError(f"{array} in {view.path} is not read here", hint="Open it with zarr-python")
        self._stored = found.stored
        self.shape, self.dtype = found.stored.shape, found.stored.dtype
        self._is_written = found.version is None
        if self._is_written:
            if (document := view.document(array)) is None:
                raise StorageError(
                    f"no frame of {array} in {view.path} is stored yet", hint="Try again later"
                )
            self.shape = tuple(document["shape"])
        self._version = found.version

    def refresh(self) -> ArrayView:
        """Lets the shape cover what is stored by now, without opening the store anew; returns itself. Raises
        ``ShardFormatError`` if the array was given other chunks meanwhile, ``StorageError``,
        ``StoreGoneError``."""
        now = ArrayView(self._view, self.array)
        if (now.ndim, now.dtype, now.chunks, now.shards) != (self.ndim, self.dtype, self.chunks, self.shards):
            raise changed_layout(self.array, (self.shape, self.dtype), (now.shape, now.dtype))
        self._stored, self._version, self._is_written = now._stored, now._version, now._is_written
        self.shape = now.shape
        return self

    @property
    def path(self) -> Path:
        return self._view.path

    @property
    def stored(self) -> StoredArray:
        """The array as its metadata describe it."""
        return self._stored

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> Coordinates:
        return self._stored.chunk_shape

    @property
    def shards(self) -> Coordinates:
        return self._stored.shard_shape

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        return self._stored.dimension_names

    @property
    def fill_value(self) -> Any:
        return self._stored.fill_element[()]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        names = "" if self.dimension_names is None else f", {''.join(map(str, self.dimension_names))}"
        return f"ArrayView({str(self.path)!r}, {self.array!r}, {self.shape}, {self.dtype.name}{names})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (str(self.path), self._view.identity, self.array, self.shape, self.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # Of one that is written an element may be fill now and a frame later; ``update`` changes pixels, and
        # the record of sums before them.
        sums = FileIdentity.at(self.path / self.array / SUMS_NAME)
        version = uuid.uuid4().hex if self._is_written else self._version
        return str(self.path), self._view.identity, self.array, self.shape, version, sums

    # ------------------------------------------------------------------ reading

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("it is read from files, so there is no array without a copy")
        values: np.ndarray[Any, Any] = self[...]
        return values if dtype is None else values.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        """Returns a new array, or an element. Raises ``IndexError``, ``ShardFormatError``, ``StorageError``,
        ``StoreGoneError``."""
        selection = select(key, self.shape, self.chunks)
        block = empty_box(selection.block, self.dtype)
        self._fill(block, selection)
        if selection.is_whole and self.shape:
            return block
        return block[key if not self.shape else selection.key]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def read_into(self, out: np.ndarray[Any, Any], key: Any = ...) -> None:
        """Reads a selection into an array of its shape and dtype; without a copy if that is contiguous, and
        the selection is of single elements and slices without a step. After an error anything may be in it.
        Raises ``FrameShapeError``, ``FrameDtypeError``, ``ValueError`` if it is read-only, and as ``[]``."""
        if out.dtype != self.dtype:
            raise FrameDtypeError(
                "out has another data type than the array", expected=self.dtype.name, got=out.dtype.name
            )
        selection = select(key, self.shape, self.chunks)
        if out.shape != selection.shape:
            raise FrameShapeError(
                "out has another shape than the selection", expected=selection.shape, got=out.shape
            )
        if not out.flags.writeable:
            raise ValueError("out is read-only")
        if selection.is_reshaped and out.flags.c_contiguous:
            self._fill(out.reshape(selection.block), selection)
        else:
            out[...] = self[key]

    def _fill(self, block: np.ndarray[Any, Any], selection: Selection) -> None:
        whole: list[tuple[AxisRun, ...]] = []
        for box in selection.boxes():
            if all(run.within is None for run in box):
                whole.append(box)
            else:
                self._take(block, box)
        self._read(whole, block)

    def _take(self, block: np.ndarray[Any, Any], box: tuple[AxisRun, ...]) -> None:
        """Reads a box of which a part is taken, piece by piece."""
        pieces = [box]
        while pieces:
            runs = pieces.pop()
            halves = self._halves(runs)
            if len(halves) > 1:
                pieces += halves
                continue
            corner = tuple(AxisRun(run.low, run.high, slice(0, run.high - run.low)) for run in runs)
            values = empty_box([run.high - run.low for run in runs], self.dtype)
            self._read([corner], values)
            block[tuple(run.at for run in runs)] = values[np.ix_(*(run.taken for run in runs))]

    def _halves(self, runs: tuple[AxisRun, ...]) -> list[tuple[AxisRun, ...]]:
        """Returns a box in two along the axis with the most chunks; itself if it is small, or a chunk."""
        if math.prod(run.high - run.low for run in runs) * self.dtype.itemsize <= MOST_BOX_BYTES:
            return [runs]
        chunks = [-(-run.high // n) - run.low // n for run, n in zip(runs, self.chunks, strict=True)]
        axis = chunks.index(max(chunks))
        halves = runs[axis].halves(self.chunks[axis])
        return [(*runs[:axis], half, *runs[axis + 1 :]) for half in halves]

    def _read(self, boxes: list[tuple[AxisRun, ...]], out: np.ndarray[Any, Any]) -> None:
        """Reads boxes that are taken whole, parts of shards some at a time: together they cost one look at
        the store, but then one that changes, or cannot be read, has all read again."""
        some: list[BoxPart] = []
        nbytes = 0
        for part in itertools.chain.from_iterable(map(self._parts, boxes)):
            count = math.prod(b - a for a, b in zip(part.low, part.high, strict=True)) * self.dtype.itemsize
            if some and (len(some) == MOST_AT_ONCE or nbytes + count > MOST_BOX_BYTES):
                self._view.read_into(self.array, self._stored, some, out)
                some, nbytes = [], 0
            some.append(part)
            nbytes += count
        if some:
            self._view.read_into(self.array, self._stored, some, out)

    def _parts(self, runs: tuple[AxisRun, ...]) -> Iterator[BoxPart]:
        along = [
            [
                (i, max(run.low, i * n), min(run.high, (i + 1) * n), run)
                for i in range(run.low // n, -(-run.high // n))
            ]
            for run, n in zip(runs, self.shards, strict=True)
        ]
        for part in itertools.product(*along):
            shard = tuple(i for i, _, _, _ in part)
            corner = [i * n for i, n in zip(shard, self.shards, strict=True)]
            yield BoxPart(
                shard,
                tuple(low - c for (_, low, _, _), c in zip(part, corner, strict=True)),
                tuple(high - c for (_, _, high, _), c in zip(part, corner, strict=True)),
                tuple(run.at.start + low - run.low for _, low, _, run in part),
            )


def open_array(path: str | os.PathLike[str], array: str | None = None) -> ArrayView:
    """As ``reader_api.open_array``."""
    view, below = open_view(path, array or "")
    return ArrayView(view, _array_at(view, below))


def open_view(path: str | os.PathLike[str], below: str = "") -> tuple[LiveView, str]:
    """Returns the view of a store, and the path in it of what is meant by a path and one below it. Raises
    ``ConfigError``, ``StorageError``."""
    folder, below = source_path(path), _path_of(below)
    workspace = workspace_of(folder)
    if workspace is not None and has_manifest(workspace) and workspace.parent != folder:
        # a part of a store that is being written: only the store itself tells what is in it
        within = folder.relative_to(workspace.parent).as_posix()
        folder, below = workspace.parent, f"{within}/{below}".rstrip("/")
    return _shared(LiveView(folder)), below


def _opened(
    path: str, identity: tuple[int, int], array: str, shape: Coordinates, dtype: np.dtype[Any]
) -> ArrayView:
    view = ArrayView(_shared(LiveView(path, expected=identity)), array)
    if (len(view.shape), view.dtype) != (len(shape), dtype):
        raise changed_layout(array, (shape, dtype), (view.shape, view.dtype))
    view.shape = shape
    return view


def _shared(view: LiveView) -> LiveView:
    """Returns the view of this store that there is already, if there is one: each keeps shards open, and
    pixels. The images of a plate are opened one by one."""
    with _lock:
        return _views.setdefault((str(view.path), view.identity), view)


_lock = RenewedLock()
_views: weakref.WeakValueDictionary[tuple[str, tuple[int, int]], LiveView] = weakref.WeakValueDictionary()


def _path_of(array: str) -> str:
    """Returns the path of an array in its store as the view has it: no other spelling of it is the array
    that is being written. Raises ``ConfigError`` for one that leads elsewhere."""
    parts = [part for part in array.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigError(
            "the path of an array leads out of its store", expected="as in the store: 0, pos1/0", got=array
        )
    return "/".join(parts)


def _array_at(view: LiveView, below: str) -> str:
    """Returns the array that is meant by a path in the store: itself, or the full resolution of an image.
    Raises ``ConfigError``, ``StorageError``."""
    document = view.document(below)
    if view.array(below) is not None or (document is not None and document["node_type"] == "array"):
        return below
    if document is None:
        raise StorageError(f"there is no array {below} in {view.path}", hint=_hint_of(view))
    paths = dataset_paths(document.get("attributes"))
    if not paths:
        what = f"{below} in {view.path}" if below else str(view.path)
        raise ConfigError(
            f"{what} has no image of its own", expected="the path of an array", hint=_hint_of(view)
        )
    return inside(PurePosixPath(below), paths[0]).as_posix()


def _hint_of(view: LiveView) -> str:
    return f'`shardwright inspect {view.path}` lists its arrays: shardwright.open_array(path, "0")'
