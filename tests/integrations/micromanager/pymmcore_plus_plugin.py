"""A plug-in for pymmcore-plus's own tests, in their process: every run of its engine writes over the door.

The runner has no public way to a sink of others, so its own class is replaced here. A run that names an
output which we can write goes there; one without an output into a folder that is thrown away. At the end of
the session ``SHARDWRIGHT_ACCOUNT`` gets what was written.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from functools import partial
from itertools import count
from pathlib import Path

import pymmcore_plus.mda._runner as runner
from pymmcore_plus.mda._generator_sequence import GeneratorMDASequence
from pymmcore_plus.mda._sink import OmeWritersSink

import shardwright as sw
from shardwright.integrations.micromanager import Sink

_folder = tempfile.TemporaryDirectory(prefix="sw-pmm-")
_numbers = count()
account = {"runs": 0, "frames": 0, "outputs": 0}


class DoorSink:
    """One run. ``is_asked``: it names an output; others may have an engine that tells nothing of frames."""

    def __init__(self, path, *, overwrite, is_asked):
        self._sink = Sink(partial(sw.create, path, overwrite=overwrite))
        self._is_asked, self._is_on = is_asked, False

    @classmethod
    def from_output(cls, output, overwrite=False, dimension_overrides=None):
        theirs = OmeWritersSink.from_output(output, overwrite, dimension_overrides)
        settings = theirs._settings
        if settings.format.name == "ome-tiff":
            return theirs
        account["outputs"] += 1
        path = settings.root_path if settings.format.name == "ome-zarr" else scratch()
        path = path if path.endswith(".zarr") else f"{path}.ome.zarr"
        return cls(path, overwrite=overwrite or settings.overwrite, is_asked=True)

    def setup(self, sequence, meta):
        self._is_on = self._is_asked or isinstance((meta or {}).get("image_infos"), list | tuple)
        if not self._is_on:
            return
        known = None if isinstance(sequence, GeneratorMDASequence) else sequence
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", sw.errors.LayoutWarning)
                self._sink.setup(known, meta)
        except sw.errors.SpecError:
            if self._is_asked or known is None or list(known):
                raise
            self._is_on = False  # a sequence without events, whose frames nobody wants

    def append(self, pixels, event, meta):
        if self._is_on:
            account["frames"] += 1
            self._sink.append(pixels, event, meta)

    def skip(self, *, frames=1):
        """Nothing: each frame has a place of its own."""

    def close(self):
        if self._is_on and self._sink.close() is not None:
            account["runs"] += 1

    def get_view(self):
        return None if not self._is_asked or self._sink.frames is None else View(self._sink.frames)


class View:
    """All images in one array, the images first if there are several."""

    def __init__(self, frames):
        root = Path(frames.path)
        self._images = [sw.open_array(root / path) for path in frames.images.paths]
        several = (len(self._images),) if len(self._images) > 1 else ()
        self.shape = several + tuple(self._images[0].shape)


def scratch():
    return f"{_folder.name}/{next(_numbers)}.ome.zarr"


def pytest_configure():
    coerced = runner.MDARunner._coerce_outputs

    def coerce_outputs(output, overwrite=False, dimension_overrides=None):
        handlers, sink = coerced(output, overwrite=overwrite, dimension_overrides=dimension_overrides)
        return handlers, sink or DoorSink(scratch(), overwrite=False, is_asked=False)

    runner.OmeWritersSink = DoorSink
    runner.MDARunner._coerce_outputs = staticmethod(coerce_outputs)


def pytest_sessionfinish():
    Path(os.environ["SHARDWRIGHT_ACCOUNT"]).write_text(json.dumps(account), encoding="utf-8")
    _folder.cleanup()
