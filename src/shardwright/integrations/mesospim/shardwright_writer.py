"""The image writer of mesoSPIM-control that writes through shardwright. mesoSPIM-control loads this file by
its path, so it imports nothing that lies beside it: it may also be copied into a folder of plug-ins.

One store takes what mesoSPIM-control's list of acquisitions has with one file name. An image of it is a stack
at one place, seen through one shutter at one angle; the lasers of that stack are its channels.
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardwright as sw

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = Mapping[str, Any]  # of mesoSPIM-control's list: an ``Acquisition``

api: Any = import_module("mesoSPIM.src.plugins.ImageWriterApi")  # of the program that loads this file

_logger = logging.getLogger(__name__)  # the program has a file for all of them

NAME = "Shardwright_Writer"
SUFFIX = ".ome.zarr"
# What rows of one tile share. Those that share shutter and angle, too, are channels of one image.
TILE = ("x_pos", "y_pos", "z_start", "z_end", "z_step", "zoom")


class ShardwrightWriter(api.ImageWriter):  # type: ignore[misc]
    """Writes OME-Zarr 0.5 with shards, in this process or through a daemon. mesoSPIM-control calls it from
    one thread: ``open`` for each row of its list, ``write_frame`` for each plane, ``finalize``; or ``abort``.

    Its configuration file may have a dictionary ``Shardwright_Writer`` with these keys, all optional:
    ``daemon``: the endpoint, such as ``"tcp://rig:5555"``, else it writes in this process (extra ``daemon``);
    ``keys``: arguments of ``sw.Curve``; ``codec``, ``levels``, ``chunks``, ``shards``: as those of
    ``sw.create``; ``overwrite``: replace a finished store, in process alone.
    """

    def __init__(self) -> None:
        self._connection: sw.Connection | None = None
        self._frames: sw.Writer | sw.Stream | None = None
        self._rows: list[Row] = []  # of the list, that this store takes
        self._number = -1  # of the row that is written
        self._image, self._channel = "", 0  # of that row
        self.receipt: sw.Receipt | None = None

    # ------------------------------------------------------------------ what it is

    @classmethod
    def api_version(cls) -> str:
        return "0.0.1"  # that this file was written for: a later major number does not load it

    @classmethod
    def name(cls) -> str:
        return NAME

    @classmethod
    def capabilities(cls) -> Any:
        return api.WriterCapabilities(
            dtype=["uint8", "uint16", "float32"],
            ndim=[3],
            supports_chunks=True,
            supports_compression=True,
            supports_multiscale=True,
            supports_overwrite=True,
            streaming_safe=True,
        )

    @classmethod
    def file_extensions(cls) -> list[str]:
        return [SUFFIX]  # as mesoSPIM-control's own writers have it: the list names the writer of each row

    @classmethod
    def file_names(cls) -> Any:
        return api.FileNaming(
            FormatSelectionOption="OME-Zarr by shardwright: ~.ome.zarr",
            WindowTitle="Autogenerate names of OME-Zarr stores",
            WindowSubTitle="All tiles, channels and shutters go into one store",
            WindowDescription=cls.name(),
            IncludeTile=False,
            IncludeFilter=False,
            IncludeShutter=False,
            IncludeRotation=False,
            SingleFileFormat=True,
        )

    # ------------------------------------------------------------------ the life of a store

    def open(self, req: Any) -> None:
        """Begins a stack: opens the store with its first one, else adds the image or goes on with the next
        channel. Raises ``SpecError`` if rows of other files are between those of this one; as ``sw.create``
        or ``acquire`` and ``add_image``."""
        self.req, row = req, req.acq
        if self._frames is None or _file_of(row) != _file_of(self._rows[0]):
            self.abort()  # of another file, whose last stacks never came
            places = [n for n, other in enumerate(req.acq_list) if _file_of(other) == _file_of(row)]
            if places[-1] - places[0] >= len(places):  # its store would be sealed, and begun again
                raise sw.errors.SpecError(
                    f"rows with the file name {row['filename']!r} are not together in the list",
                    hint="Move them together, or give each its own file name",
                )
            self._rows = [req.acq_list[n] for n in places]
        # rows may be equal: then the next one
        behind = (n for n in range(self._number + 1, len(self._rows)) if self._rows[n] == row)
        self._number = next(behind, self._number)
        same = [n for n, other in enumerate(self._rows) if _stack_of(other) == _stack_of(row)]
        self._image, self._channel = self._name(row), same.index(self._number)
        self.metadata_file_info()
        image: dict[str, Any] = {
            "name": self._image,
            "array": self._array(req, [self._rows[n] for n in same]),
            "position": {"x": float(row["x_pos"]), "y": float(row["y_pos"]), "z": _z_of(row)},
            "path": self._image,
            "attributes": {"mesoSPIM": [_as_json(self._rows[n]) for n in same]},
        }
        if self._frames is None:
            # stacks come one after the other: only one of them has chunks that wait
            self._frames = self._opened(
                sw.AcquisitionSpec(images=(sw.Image(**image),), order=("p", "c", "z"))
            )
        elif self._image not in self._frames.images.names:
            self._frames.add_image(**image)

    def write_frame(self, data: Any) -> None:
        """Appends a plane of the stack; leaves out, and logs, one beyond the last. Raises as
        ``FrameSink.append``."""
        if self._frames is None:
            raise sw.errors.ClosedError("no stack is open", hint="Call open first")
        plane, row = data.current_image_counter, self._rows[self._number]
        if plane >= self.req.shape[0]:
            # The program counts what its queue has, also a frame that came after its own stack. To raise
            # here would end the program.
            _logger.warning("%s: a frame after the last plane is left out", self._image)
            return
        where = {"position_x": row["x_pos"], "position_y": row["y_pos"], "position_z": _z_of(row, plane)}
        # a turned view of the camera's frame: it is copied here in any case
        self._frames.append(
            data.image,
            image=self._image,
            index={"c": self._channel, "z": plane},
            metadata={column: float(um) for column, um in where.items()},
        )

    def finalize(self, finalize_image: Any) -> None:
        """Ends a stack: seals the store after the last one that it takes. Raises as ``FrameSink.close``."""
        if self._number == len(self._rows) - 1:
            self.abort()

    def abort(self) -> None:
        """Seals what came. May be called at any time, and again. Raises as ``FrameSink.close``."""
        frames, connection = self._frames, self._connection
        self._frames = self._connection = None
        self._number = -1
        try:
            if frames is not None:
                self.receipt = frames.close()
        finally:
            if connection is not None:
                connection.close()

    def metadata_file_info(self) -> None:
        """Sets the names of the text file of a stack, and of its projection: both lie beside the store."""
        described = Path(str(self.req.uri)) / self._image
        beside = described.parent.with_name(f"{described.parent.name}_{self._image}_ch{self._channel}")
        self.metadata_file = f"{beside}_meta.txt"
        self.metadata_file_describes_this_path = described.as_posix()
        self.MIP_path = beside.with_name(f"MAX_{beside.name}.tif").as_posix()

    # ------------------------------------------------------------------ what it writes

    def _opened(self, spec: sw.AcquisitionSpec) -> sw.Writer | sw.Stream:
        chosen = self._chosen(self.req)
        if "daemon" not in chosen:
            return sw.create(self.req.uri, spec, overwrite=bool(chosen.get("overwrite", False)))
        curve = sw.Curve(**chosen["keys"]) if "keys" in chosen else None
        self._connection = sw.connect(chosen["daemon"], curve=curve)
        return self._connection.acquire(Path(str(self.req.uri)).name.removesuffix(SUFFIX), spec)

    def _chosen(self, req: Any) -> dict[str, Any]:
        """Returns the writer's part of mesoSPIM-control's configuration."""
        return dict(req.writer_config_file_values or {})

    def _array(self, req: Any, channels: list[Row]) -> sw.ArraySpec:
        """Returns the array of a stack. mesoSPIM-control turns its frames before it writes them: columns of
        the camera are their rows."""
        planes, columns, rows = req.shape
        chosen = self._chosen(req)
        # a channel may come long after the one before it: no shard waits for it
        apart: dict[str, Any] = {size: {"c": 1, **chosen.get(size, {})} for size in ("chunks", "shards")}
        return sw.default_layout(
            shape=(len(channels), planes, rows, columns),
            axes="czyx",
            dtype=req.dtype,
            scales={"z": abs(req.z_res), "y": req.y_res, "x": req.x_res},
            units=dict.fromkeys("zyx", "micrometer"),
            channels=[sw.Channel(name=f"{row['laser']} {row['filter']}") for row in channels],
            **apart,
            **{name: chosen[name] for name in ("codec", "levels") if name in chosen},
        )

    def _name(self, row: Row) -> str:
        """Returns the name of a stack's image, and of its folder: tile, shutter and angle."""
        tile = list(dict.fromkeys(map(_tile_of, self._rows))).index(_tile_of(row))
        return re.sub("[^A-Za-z0-9_-]", "_", f"Tile{tile}_Sh{row['shutterconfig']}_Rot{row['rot']:g}")


def _file_of(row: Row) -> tuple[Any, ...]:
    return row["folder"], row["filename"]


def _tile_of(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in TILE)


def _stack_of(row: Row) -> tuple[Any, ...]:
    return *_tile_of(row), row["shutterconfig"], row["rot"]


def _z_of(row: Row, plane: int = 0) -> float:
    """Returns the stage's z at a plane, in micrometers."""
    down = row["z_end"] < row["z_start"]
    return float(row["z_start"] + plane * abs(row["z_step"]) * (-1 if down else 1))


def _as_json(row: Row) -> dict[str, Any]:
    plain = bool | int | float | str
    return {str(name): value if isinstance(value, plain) else str(value) for name, value in row.items()}
