"""mesoSPIM-control's interface of image writers, as far as a writer and the program touch each other: written
from its documents for plug-ins. The release on the package index (1.8.0) is older and has no plug-ins.

``run`` plays the program: it finds a writer in a folder, and gives it the rows of a list as the program does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

API_VERSION = "0.0.1"


@dataclass(frozen=True)
class WriterCapabilities:
    dtype: Any
    ndim: Any
    supports_chunks: bool
    supports_compression: bool
    supports_multiscale: bool
    supports_overwrite: bool
    streaming_safe: bool


@dataclass
class WriteRequest:
    uri: str
    shape: tuple[int, int, int]
    dtype: str
    axes: str
    x_res: float
    y_res: float
    z_res: float
    unit: str
    acq: dict[str, Any]
    acq_list: list[dict[str, Any]]
    writer_config_file_values: dict[str, Any] | None


@dataclass
class WriteImage:
    image: np.ndarray
    current_image_counter: int
    acq: dict[str, Any]
    acq_list: list[dict[str, Any]]


@dataclass
class FinalizeImage:
    acq: dict[str, Any]
    acq_list: list[dict[str, Any]]


@dataclass
class FileNaming:
    FormatSelectionOption: str
    WindowTitle: str
    WindowSubTitle: str
    WindowDescription: str
    IncludeMag: bool = True
    IncludeTile: bool = True
    IncludeChannel: bool = True
    IncludeFilter: bool = True
    IncludeShutter: bool = True
    IncludeRotation: bool = True
    IncludeSuffix: str | None = None
    SingleFileFormat: bool = True
    IncludeAllChannelsInSingleFileFormat: bool = True


@runtime_checkable
class ImageWriter(Protocol):
    """A protocol that is inherited, with a hook before ``open`` that swallows what goes wrong in it."""

    @classmethod
    def api_version(cls): ...
    @classmethod
    def name(cls): ...
    @classmethod
    def capabilities(cls): ...
    @classmethod
    def file_extensions(cls): ...
    def open(self, req): ...
    def write_frame(self, data): ...
    def finalize(self, finalize_image): ...
    def abort(self): ...

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if name != "open":
            return found

        def opened(request):
            self.req = request
            with contextlib.suppress(Exception):
                self.metadata_file_info()
            return found(request)

        return opened


def writers_in(folder: str) -> dict[str, type]:
    """The writers of the modules of a folder: those classes that a module itself defines."""
    found = {}
    for path in Path(folder).glob("*.py"):
        if path.name == "__init__.py":
            continue
        name = f"mesospim_plugin_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == name and issubclass(kind, ImageWriter):
                assert kind.api_version()[:2] == API_VERSION[:2], "else the program leaves it out"
                found[kind.name()] = kind
    return found


def planes_of(row):
    return abs(round((row["z_end"] - row["z_start"]) / row["z_step"])) + 1


def run(kind, rows, camera, *, config=None, stop_at=None, pixel_um=0.5):
    """Runs a list: the writer is made at its first row; each frame is handed over turned; Stop is an abort,
    after which a finalize may still come. ``camera``: frames, (rows, columns). Returns the writer."""
    writer, taken = None, 0
    for row in rows:
        if row == rows[0]:
            writer = kind()
        height, width = camera.shape
        uri = os.path.realpath(f"{row['folder']}/{row['filename'].replace(' ', '_')}")
        request = {"dtype": "uint16", "axes": "ZYX", "unit": "microns", "acq": row, "acq_list": rows}
        sizes = {"x_res": pixel_um, "y_res": pixel_um, "z_res": row["z_step"]}
        shape = (planes_of(row), height, width)
        writer.open(WriteRequest(uri, shape, **sizes, **request, writer_config_file_values=config))
        Path(writer.metadata_file).write_text(str(writer.metadata_file_describes_this_path))
        assert Path(writer.MIP_path).parent == Path(uri).parent
        for plane in range(shape[0]):
            if taken == stop_at:
                writer.abort()
                writer.finalize(FinalizeImage(row, rows))
                return writer
            writer.write_frame(WriteImage(camera.take().T[::-1], plane, row, rows))
            taken += 1
        writer.finalize(FinalizeImage(row, rows))
    return writer
