"""The backend of ome-writers (extra ``ome-writers``): ``register`` makes shardwright a backend of that
package, in process or through a daemon; ``writer_of`` leads from its stream to our writer.

    settings of ome-writers ──▶ facts_of ──▶ create, or connect and acquire ──▶ Writer or Stream
    stream.append ──▶ OmeWritersBackend.write ──▶ append(image, index, metadata)

ome-writers has no place for backends of others. ``register`` therefore changes its tables and two fields of
its settings; nothing else here knows a private name of it but ``writer_of``.
"""

from __future__ import annotations

import json
import re
import warnings
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import shardwright as sw
from shardwright.model.extras import naming_missing_extra
from shardwright.model.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KNOWN_VERSIONS = ("0.3.2",)  # of ome-writers, whose own tests were run over this backend
FRAME_JSON_BYTES = 2048
# Of frame metadata, as JSON with a line for each value, that are also written where readers of ome-writers'
# stores look: they wait in memory for the end. The frame table has those of every frame.
MOST_TOLD_BYTES = 1 << 19
OWN = "ome_writers"  # its attribute
CODECS: dict[str, dict[str, Any] | None] = {  # at the levels of its other backends
    "none": None,
    "blosc-lz4": {"name": "blosc", "cname": "lz4", "clevel": 5, "shuffle": "shuffle"},
    "blosc-zstd": {"name": "blosc", "cname": "zstd", "clevel": 3, "shuffle": "shuffle"},
    "zstd": {"name": "zstd", "level": 3},
}


@dataclass(frozen=True)
class BackendOptions:
    """The arguments of ``register`` for each stream, and the version of ome-writers."""

    daemon: str | None
    frame_json_bytes: int
    more: dict[str, Any]
    version: str


def register(
    *,
    name: str = "shardwright",
    daemon: str | None = None,
    replacing: Sequence[str] = (),
    frame_json_bytes: int = FRAME_JSON_BYTES,
    any_version: bool = False,
    **options: Any,
) -> None:
    """Makes shardwright a backend of ome-writers: ``AcquisitionSettings(format="shardwright")``. To call it
    again with the same ``name`` changes its options for streams that are created from then on.

    ``daemon``: the endpoint of a daemon, such as ``"ipc:///run/shardwright/ingest.sock"``, which then writes
    below its own root, under the last name of ``root_path``. It does not hear of ``overwrite`` in the
    settings: ``name_taken`` of its configuration says what becomes of a store of that name. ``replacing``:
    the names of other Zarr backends in whose place this one works, such as ``["tensorstore"]``.
    ``frame_json_bytes``: as of ``ArraySpec``, for frame metadata other than times and positions.
    ``options``: further ones of ``create``, with a daemon of ``connect``.

    Raises ``ConfigError`` where ome-writers is not installed or of a version that was not tested
    (``any_version`` tries it all the same), and for names that cannot be.
    """
    with naming_missing_extra("shardwright.integrations.ome_writers"):
        import_module("ome_writers")
    found = version("ome-writers")
    if found not in KNOWN_VERSIONS and not any_version:
        raise sw.errors.ConfigError(
            "this version of ome-writers was not tested with shardwright",
            expected=" or ".join(KNOWN_VERSIONS),
            got=found,
            hint="Run `pip install 'shardwright[ome-writers]'`, or try it: register(any_version=True)",
        )
    schema: Any = import_module("ome_writers._schema")
    stream: Any = import_module("ome_writers._stream")
    backends, names = stream.AVAILABLE_BACKENDS, stream.VALID_BACKEND_NAMES
    zarr = [each.name for each in stream.BACKENDS if each.format == "ome-zarr"]
    is_new = name not in names
    if is_new and not re.fullmatch("[a-z0-9][a-z0-9_-]*", name):  # it looks names up in lower case
        raise sw.errors.ConfigError(
            "no name for a backend of ome-writers", expected="lower case, digits, _ and -", got=name
        )
    is_its_own = not is_new and getattr(backends.get(name), "module_path", None) != __name__
    if is_its_own or (is_new and schema._cast_format(name) != name):  # noqa: SLF001  (zarr, tiff, memory, ...)
        hint = (
            f"`register(replacing=[{name!r}])` works in its place" if name in zarr else "Choose another one"
        )
        raise sw.errors.ConfigError("ome-writers has this name for its own", got=name, hint=hint)
    if unknown := [other for other in replacing if other not in zarr]:
        raise sw.errors.ConfigError(
            "ome-writers has no such Zarr backend", expected=f"some of {', '.join(zarr)}", got=unknown[0]
        )
    kept = BackendOptions(daemon, frame_json_bytes, options, found)
    for each in (name, *replacing):
        entry = stream.BackendMetadata(each, __name__, "OmeWritersBackend", "ome-zarr", lambda: True)
        entry.create = lambda: OmeWritersBackend(kept)
        backends[each] = entry
    if is_new:
        stream.BACKENDS.append(backends[name])
        names.append(name)
        _take_name(schema, name)


def _take_name(schema: Any, name: str) -> None:
    """Lets the settings of ome-writers take ``name`` as a backend of OME-Zarr, and as a format by itself."""
    zarr, settings = schema.OmeZarrFormat, schema.AcquisitionSettings

    def named(value: Any) -> Any:
        given = value if isinstance(value, dict) else {"_backend_str": value}
        if str(given.get("_backend_str")).lower() != name:
            return value
        return zarr(backend=name, **({"suffix": given["suffix"]} if given.get("suffix") else {}))

    backend = zarr.model_fields["backend"]
    backend.annotation = backend.annotation | Literal[name]
    settings.model_fields["format"].metadata.append(schema.BeforeValidator(named))  # the last is asked first
    for model in (zarr, settings):
        model.model_rebuild(force=True)


def writer_of(stream: Any) -> sw.Writer | sw.Stream:
    """Returns our writer of a stream that ``ome_writers.create_stream`` made: its watermark, and its receipt,
    also after the end. Raises ``ConfigError`` for a stream of another backend."""
    backend = stream._backend  # noqa: SLF001  (there is no public name)
    if not isinstance(backend, OmeWritersBackend):
        raise sw.errors.ConfigError("this stream has another backend", got=type(backend).__name__)
    return backend.writer


class OmeWritersBackend:
    """The backend of one stream, with what ``ArrayBackend`` of ome-writers asks for. Indices come in the
    order of storage, and leave in that of acquisition. Errors are ours, as they are."""

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._writer: sw.Writer | sw.Stream | None = None
        self._ends = ExitStack()  # closes the writer, then the connection
        self._is_open = False
        self._names: list[str | None] = []  # of the images, by the numbers of the positions
        self._folders: list[str] = []  # likewise
        self._order: tuple[int, ...] = ()  # where each axis of acquisition is in an index of storage
        self._shape: list[int] = []
        self._grows: int | None = None  # the axis of storage that has no count
        self._begun: set[int] = set()  # positions with a frame
        self._told: dict[int, list[str]] = {}  # frame metadata by position
        self._told_bytes = 0
        self._flushed = 0
        self._given: dict[str, dict[str, Any]] = {}  # by get_metadata, and to update_metadata

    @property
    def writer(self) -> sw.Writer | sw.Stream:
        """Raises ``ClosedError`` before ``prepare``."""
        if self._writer is None:
            raise sw.errors.ClosedError("nothing is written yet", expected="create_stream(...)")
        return self._writer

    def is_incompatible(self, settings: Any) -> Literal[False]:
        """Returns False: what cannot be written raises in ``prepare``, with its reason."""
        del settings
        return False

    def prepare(self, settings: Any, router: object) -> None:
        """Creates the store. Raises as ``create``, with a daemon as ``connect`` and ``acquire``. Coordinates
        of positions that cannot be written are a ``LayoutWarning``."""
        del router  # which the stream follows; each frame comes with its place
        facts = facts_of(settings, self._options)
        if lost := _unplaced(settings):
            # no error: programs give the height of the stage also where an image has no planes
            text = f"positions have coordinates along {lost}: axes that the image lacks, or that have no unit"
            warnings.warn(f"{text}; these coordinates are not written", sw.errors.LayoutWarning, stacklevel=3)
        path, more = Path(settings.output_path).expanduser(), self._options.more
        with ExitStack() as ends:
            if self._options.daemon is None:
                writer: sw.Writer | sw.Stream = sw.create(path, facts, overwrite=settings.overwrite, **more)
            else:
                connection = ends.enter_context(sw.connect(self._options.daemon, **more))
                writer = connection.acquire(path.name, facts)
            self._writer = writer
            ends.callback(writer.close)
            if writer.images.is_single and (place := _place_of(settings, settings.positions[0])):
                writer.update_metadata(position=place)
            self._ends = ends.pop_all()
        self._is_open = True
        self._names = _image_names(settings)
        self._folders = [writer.images.folders[writer.images.number_of(name)] for name in self._names]
        stored = settings.array_storage_dimensions
        axes = [d.name for d in stored]
        self._order = tuple(axes.index(d.name) for d in settings.index_dimensions)
        self._shape = [d.count or 0 for d in stored]
        self._grows = next((axis for axis, d in enumerate(stored) if d.count is None), None)

    def write(
        self,
        position_index: int,
        index: tuple[int, ...],
        frame: np.ndarray,
        *,
        frame_metadata: dict[str, Any] | None = None,
    ) -> None:
        """Appends a frame. Raises as ``Writer.append``."""
        place = tuple(index[axis] for axis in self._order) or None
        self.writer.append(frame, image=self._names[position_index], index=place, metadata=frame_metadata)
        self._begun.add(position_index)
        self.advance([(position_index, index)])
        if frame_metadata is not None and self._told_bytes <= MOST_TOLD_BYTES:
            # As text: the caller may change them, and NumPy's numbers are none of JSON. With as much space
            # as it takes in zarr.json, or more: short lists of numbers become four times as long there.
            told = {**frame_metadata, "storage_index": index}
            text = json.dumps(told, indent=12, default=lambda value: value.tolist())
            self._told.setdefault(position_index, []).append(text)
            self._told_bytes += len(text)

    def advance(self, indices: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Leaves places without a frame: they are fill value. Raises ``ClosedError``."""
        if not self._is_open:
            raise sw.errors.ClosedError("the stream is closed")
        if self._grows is not None:
            longest = max(index[self._grows] + 1 for _, index in indices)
            self._shape[self._grows] = max(self._shape[self._grows], longest)

    def finalize(self) -> None:
        """Seals the store, and disconnects. Arrays keep the shape that the settings declare, as in its other
        backends. Later calls do nothing. Raises as ``Writer.close``."""
        if not self._is_open:
            return
        self._is_open = False
        with self._ends:
            for position, texts in self._told.items() if self._told_bytes <= MOST_TOLD_BYTES else ():
                # times may be NaN, in the frame table; JSON has none
                told = [parse_json(text, nan_is_null=True) for text in texts]
                own = {"version": self._options.version, "frame_metadata": told}
                self.writer.update_metadata({OWN: own}, image=self._names[position])
            self.writer.close(extent="declared" if self._grows is None else "frames")

    def get_arrays(self) -> list[PositionArray]:
        return [PositionArray(self, position) for position in range(len(self._names))]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each position: what was declared, along an axis without a count what came."""
        return tuple(self._shape)

    def stored(self, position: int) -> sw.ArrayView | None:
        """Opens the array of a position, with every frame that was appended; None before its first one.
        Raises as ``flush`` and ``open_array``."""
        if position not in self._begun:
            return None
        frames = self.writer.frames
        if self._is_open and self._flushed < frames:
            self.writer.flush("stored")
            self._flushed = frames
        folder = self._folders[position]
        return sw.open_array(self.writer.path, f"{folder}/0" if folder else "0")

    def get_metadata(self) -> dict[str, dict[str, Any]]:
        """Returns the attributes of each image's group by its folder, "." for one alone, as far as they are
        written, and on this machine."""
        from shardwright.read.live_view import LiveView  # no public name reads the attributes of a group

        try:
            view = LiveView(self.writer.path)
        except sw.errors.StorageError:
            if self._options.daemon is None and self._begun:
                raise
            return {}  # a daemon has it on another machine, or it ended without a frame: then there is none
        documents = {folder or ".": view.document(folder) for folder in self._folders}
        found = {path: dict(d.get("attributes", {})) for path, d in documents.items() if d is not None}
        self._given = deepcopy(found)
        return found

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Writes what differs from the last ``get_metadata``, also after the end: the store itself changes
        meanwhile, such as the windows of channels. Raises ``KeyError`` for a path that it does not have, and
        as ``Writer.update_metadata``, after the end as ``shardwright.update_metadata``."""
        names = {folder or ".": name for folder, name in zip(self._folders, self._names, strict=True)}
        if not self._given:
            self.get_metadata()
        for path, wanted in metadata.items():
            if path not in names:
                raise KeyError(f"Unknown path: {path}")
            there = self._given.get(path, {})
            changed = {name: value for name, value in wanted.items() if there.get(name) != value}
            if "ome" in changed:  # of it only what differs can be said
                changed["ome"] = _difference(there.get("ome"), changed["ome"])
            if changed or there.keys() - wanted.keys():
                self._update(changed, names[path], there.keys() - wanted.keys())
                self._given[path] = deepcopy(dict(wanted))

    def set_global_metadata(self, namespace: str, metadata: Mapping[str, Any]) -> None:
        """Writes metadata of the acquisition into the store's group, also after the end. Raises as
        ``update_metadata`` does."""
        self._update({namespace: dict(metadata)}, None)

    def _update(self, attributes: dict[str, Any], image: str | None, remove: Iterable[str] = ()) -> None:
        if self._is_open:
            self.writer.update_metadata(attributes, image=image, remove=remove)
        else:
            sw.update_metadata(self.writer.path, attributes, image=image, remove=remove)


class PositionArray:
    """The array of one position for ome-writers' views: what is not stored is 0. From any thread."""

    def __init__(self, backend: OmeWritersBackend, position: int) -> None:
        self._backend, self._position = backend, position
        self.dtype = np.dtype(backend.writer.spec.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._backend.shape

    def __getitem__(self, key: Any) -> np.ndarray:
        """Takes integers, and slices that go upwards. Raises ``IndexError``, ``TypeError`` for other kinds of
        keys, ``ValueError`` for more of them than axes, and as ``flush`` and ``open_array``."""
        keys = key if isinstance(key, tuple) else (key,)
        keys += (slice(None),) * (len(self.shape) - len(keys))
        taken = [range(size)[each] for each, size in zip(keys, self.shape, strict=True)]
        spans = [range(each, each + 1) if isinstance(each, int) else each for each in taken]
        if any(span.step < 0 for span in spans):
            raise IndexError("slices go upwards")
        result = np.zeros([len(span) for span in spans], self.dtype)
        if (view := self._backend.stored(self._position)) is not None:
            # as long as frames come, what is stored ends earlier than what was declared
            ends = map(min, (span.stop for span in spans), view.shape)
            there = [range(span.start, end, span.step) for span, end in zip(spans, ends, strict=True)]
            if all(there):
                source = tuple(slice(each.start, each.stop, each.step) for each in there)
                result[tuple(slice(len(each)) for each in there)] = view[source]
        return result[tuple(0 if isinstance(each, int) else slice(None) for each in taken)]


def _difference(there: Any, wanted: Any) -> Any:
    """Returns what ``wanted`` has that is not ``there``, through objects and lists of as many."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        return {
            name: _difference(there.get(name), value)
            for name, value in wanted.items()
            if there.get(name) != value
        }
    if isinstance(there, list) and isinstance(wanted, list) and len(there) == len(wanted):
        return [_difference(before, after) for before, after in zip(there, wanted, strict=True)]
    return wanted


def facts_of(settings: Any, options: BackendOptions) -> dict[str, Any]:
    """Returns the specification of an acquisition, as JSON, of settings of ome-writers. Raises ``SpecError``
    for a translation that no image can have."""
    stored = settings.array_storage_dimensions
    is_sharded = any(d.shard_size_chunks is not None for d in stored)
    names, plate = _image_names(settings), settings.plate
    array = {
        "dtype": settings.dtype,
        "dimensions": [
            {
                **d.model_dump(include={"name", "count", "type", "unit"}),
                "chunk_size": d.chunk_size or whole,
                "shard_size_chunks": (d.shard_size_chunks or 1) if is_sharded else None,
                "scale": 1.0 if d.scale is None else d.scale,
            }
            for d, whole in (
                *((d, 1) for d in settings.index_dimensions),
                *((d, d.count) for d in settings.frame_dimensions),
            )
        ],
        "storage_order": [d.name for d in stored],
        "codec": CODECS[settings.compression or "none"],
        "channels": _channels_of(stored),
        "frame_json_bytes": options.frame_json_bytes,
    }
    facts: dict[str, Any] = {"array": array, "attributes": {OWN: {"version": options.version}}}
    if names == [None]:
        return facts
    facts["order"] = ["p" if d.type == "position" else d.name for d in settings.dimensions[:-2]]
    facts["images"] = [
        {"name": name, "path": path, "position": _place_of(settings, position)}
        for name, position in zip(names, settings.positions, strict=True)
        for path in [None if plate is not None else _folder_of(name or "")]
    ]
    if plate is not None:
        fields = list(dict.fromkeys(position.name for position in settings.positions))
        facts["plate"] = {"rows": plate.row_names, "columns": plate.column_names, "fields": fields}
        facts["plate"] |= {"name": plate.name} if plate.name else {}
    return facts


def _image_names(settings: Any) -> list[str | None]:
    """Returns the name of the image of each position; None for one alone, which has none."""
    positions = settings.positions
    if settings.plate is not None:
        return [f"{each.plate_row}/{each.plate_column}/{each.name}" for each in positions]
    if len(positions) == 1:
        return [None]
    return [
        each.name if each.grid_row is None else f"{each.name}_{each.grid_row}_{each.grid_column}"
        for each in positions
    ]


def _folder_of(name: str) -> str | None:
    """Returns the folder of a position: its name, as far as a folder can have it; None: its number."""
    return re.sub("[^A-Za-z0-9._-]", "_", name).lstrip("._-").rstrip(".") or None


def _channels_of(dimensions: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": channel.name,
            # as six digits; those behind them say how opaque it is
            "color": "FFFFFF" if channel.color is None else channel.color.as_hex(format="long")[1:7],
            "excitation_nm": channel.excitation_wavelength_nm,
            "emission_nm": channel.emission_wavelength_nm,
        }
        for channel in next((d.coords for d in dimensions if d.type == "channel" and d.coords), ())
    ]


def _unplaced(settings: Any) -> str:
    """Returns along which axes positions have coordinates that ``_place_of`` leaves out."""
    placed = {d.name for d in settings.array_dimensions if d.unit is not None}
    given = (a for a in "xyz" if any(getattr(p, f"{a}_coord") is not None for p in settings.positions))
    return ", ".join(axis for axis in given if axis not in placed)


def _place_of(settings: Any, position: Any) -> dict[str, Any] | None:
    """Returns where a position is: its coordinates along axes that have a unit, else the translation of the
    axis; its place in a grid. None where nothing is known. Raises ``SpecError``."""
    place: dict[str, Any] = {}
    units = set()
    for d in settings.array_dimensions:
        given = getattr(position, f"{d.name}_coord", None) if d.unit is not None else None
        value = d.translation if given is None else given
        if value is not None and (value or d.name in ("x", "y", "z")):
            place[d.name] = value
            units.add(d.unit)
    if len(units) > 1 or not place.keys() <= {"x", "y", "z"}:
        raise sw.errors.SpecError(
            "an image has a translation along x, y and z alone, in one unit", got=f"{place} in {units}"
        )
    if unit := next(iter(units), None):
        place["unit"] = unit
    grid = {name: getattr(position, name) for name in ("grid_row", "grid_column")}
    return place | {name: number for name, number in grid.items() if number is not None} or None
