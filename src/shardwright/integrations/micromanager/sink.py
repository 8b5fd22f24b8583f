"""Frames of pymmcore-plus's engine, to a writer in this process or to a stream of the daemon."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from pymmcore_plus.mda import mda_listeners_connected
from pymmcore_plus.metadata import summary_metadata
from useq import MDASequence

import shardwright as sw
from shardwright.model.error_text import ErrorText
from shardwright.model.json_text import parse_json

from .images import EventImages, SequenceImages

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    import numpy.typing as npt
    from pymmcore_plus import CMMCorePlus
    from useq import MDAEvent

    Opening = Callable[[sw.AcquisitionSpec], sw.Writer | sw.Stream]

SUMMARY_BYTES = 512 << 10  # of pymmcore-plus's metadata: half of what attributes may have


class Sink:
    """Takes the frames of one run, in the way in which pymmcore-plus calls its own sinks: ``setup``,
    ``append`` for each frame, ``close``. ``frames``: the writer or stream, None before there is one."""

    def __init__(self, output: str | os.PathLike[str] | Opening) -> None:
        """``output``: the path of a store, or what opens an acquisition, such as ``partial(daemon.acquire,
        "embryo-42")``."""
        self._open = output if callable(output) else partial(sw.create, output)
        self._images: SequenceImages | EventImages | None = None
        self._attributes: dict[str, Any] = {}
        self.frames: sw.Writer | sw.Stream | None = None

    @property
    def frames_expected(self) -> int | None:
        """The number of frames of the whole sequence; None if nobody knows."""
        return None if self._images is None else self._images.frames_expected

    def setup(self, sequence: MDASequence | None, meta: Mapping[str, Any]) -> None:
        """Opens the acquisition; of events without a sequence, the first one opens it. ``meta``:
        pymmcore-plus's summary metadata, kept in the store. Raises as ``sw.create`` or ``acquire``."""
        self._attributes = {"pymmcore_plus": {"summary_metadata": summary_of(meta)}}
        if not meta["image_infos"]:
            raise sw.errors.ConfigError("the core has no camera", hint="Load a configuration that has one")
        info = meta["image_infos"][0]
        if sequence is None:
            self._images = EventImages(info)
        else:
            self._images = SequenceImages(sequence, info, self._attributes)
            self.frames = self._open(self._images.spec)

    def append(self, pixels: npt.NDArray[Any], event: MDAEvent, meta: Mapping[str, Any]) -> None:
        """Appends a frame at the place that its event says. Raises as ``FrameSink.append`` and
        ``add_image``."""
        if isinstance(self._images, EventImages) and (image := self._images.new_image(event)):
            if self.frames is None:
                spec = sw.AcquisitionSpec(images=(sw.Image(**image),), attributes=self._attributes)
                self.frames = self._open(spec)
            else:
                self.frames.add_image(**image)
        if self.frames is None or self._images is None:
            raise sw.errors.ClosedError("a frame came before the run began", hint="Call setup first")
        name, index = self._images.place(event)
        # the engine makes a new array of each frame, and nobody writes into it
        self.frames.append(pixels, image=name, index=index, metadata=metadata_of(event, meta), copy=False)

    def close(self) -> sw.Receipt | None:
        """Seals what came; None if nothing was opened. Raises as ``FrameSink.close``."""
        return None if self.frames is None else self.frames.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        """Seals what came, also after an exception in the block, which propagates."""
        if self.frames is not None:
            self.frames.__exit__(*error)


def acquire(
    core: CMMCorePlus,
    events: Iterable[MDAEvent],
    output: str | os.PathLike[str] | Opening,
    *,
    on_frame: Callable[[int, int | None], object] | None = None,
) -> sw.Receipt | None:
    """Runs ``events``, a sequence or an iterator such as ``iter(queue.get, None)``, and writes each frame in
    the engine's own thread, so that a slow disk makes the engine wait. Blocks until the end.

    ``output``: the path of a store, or what opens an acquisition, such as ``partial(daemon.acquire,
    "embryo-42")``. ``on_frame``: called after each frame with the number of frames so far and of all, None if
    nobody knows. Returns the receipt, also of a run that was cancelled; None if no event gave a frame.

    The first frame that cannot be written ends the run. What came is sealed then, as after any other error.
    Raises that error, or a ``ShardwrightError`` for one of ``on_frame``; what the engine raises;
    ``SpecError`` for a sequence without a frame; as ``sw.create`` or ``daemon.acquire``.
    """
    sequence = events if isinstance(events, MDASequence) else None
    with Sink(output) as sink:
        sink.setup(sequence, summary_metadata(core, mda_sequence=sequence))
        listener = _Listener(sink, core.mda.cancel, on_frame)
        with mda_listeners_connected(listener, mda_events=core.mda.events, asynchronous=False):
            core.mda.run(events)
        if listener.error is not None:
            raise listener.error.to_error()
        return sink.close()


class _Listener:
    """Listens to one run. The engine only logs what a listener raises and goes on: it is cancelled instead.
    Called in the engine's thread."""

    def __init__(
        self, sink: Sink, cancel: Callable[[], None], on_frame: Callable[[int, int | None], object] | None
    ) -> None:
        self._sink, self._cancel, self._on_frame = sink, cancel, on_frame
        self._frames = 0
        self.error: ErrorText | None = None

    def frameReady(self, pixels: npt.NDArray[Any], event: MDAEvent, meta: Mapping[str, Any]) -> None:  # noqa: N802
        if self.error is not None:
            return  # those of a hardware sequence that had been triggered
        try:
            self._sink.append(pixels, event, meta)
            self._frames += 1
            if self._on_frame is not None:
                self._on_frame(self._frames, self._sink.frames_expected)
        except Exception as error:  # noqa: BLE001  (raised by ``acquire``)
            self.error = ErrorText.of(error)
            self._cancel()


def metadata_of(event: MDAEvent, meta: Mapping[str, Any]) -> dict[str, float]:
    """Returns the frame table's columns of a frame."""
    milliseconds = (("exposure_time", "exposure_ms"), ("delta_t", "runner_time_ms"))
    told = {column: meta[name] / 1e3 for column, name in milliseconds if name in meta}
    # not measured for frames that the hardware triggers: where the stage was sent, then
    stage = meta.get("position") or {"x": event.x_pos, "y": event.y_pos, "z": event.z_pos}
    places = ((axis, stage.get(axis)) for axis in "xyz")
    return told | {f"position_{axis}": um for axis, um in places if um is not None}


def summary_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns pymmcore-plus's summary metadata as JSON. Of what does not fit its largest parts are left out:
    they must not keep the run from its store."""

    def plain(value: Any) -> Any:
        return (
            value.model_dump(mode="json", exclude_unset=True) if hasattr(value, "model_dump") else str(value)
        )

    texts = {name: json.dumps(value, default=plain) for name, value in meta.items()}
    while sum(map(len, texts.values())) > SUMMARY_BYTES:
        del texts[max(texts, key=lambda name: len(texts[name]))]
    # limits of properties may be infinite, which is no JSON
    return {name: parse_json(text, nan_is_null=True) for name, text in texts.items()}
