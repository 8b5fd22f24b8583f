"""The door for bluesky (extra ``bluesky``): a detector of ophyd-async that takes part in the run. Frames go
from the camera to the daemon; the detector tells the daemon over its control socket what to expect, and hears
from it what readers of the files see.

    plan                   detector                              daemon
    stage             ──▶  the camera's logic is ready
    prepare           ──▶  arm, watch                       ──▶  waits for the camera
    trigger           ──▶  the camera's logic starts        ──▶  stores the frames
    kickoff, complete ──▶  all came: flush("visible")       ◀──  readers see them
    read, collect     ◀──  stream_resource, stream_datum
    unstage           ──▶  the camera's logic stops; stop   ──▶  seals the store

One stage is one acquisition, and one store. An event is one index along the first axis of its arrays.
"""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.daemon.control_client import PATIENT_S, ControlClient
from shardwright.model.error_text import ErrorText
from shardwright.model.extras import naming_missing_extra

with naming_missing_extra("shardwright.integrations.bluesky"):
    from event_model import ComposeStreamResource, DataKey, StreamRange
    from ophyd_async.core import (
        AsyncStatus,
        DetectorAcquireLogic,
        DetectorDataLogic,
        DetectorTriggerLogic,
        StandardDetector,
        StreamableDataProvider,
        WatcherUpdate,
        soft_signal_r_and_setter,
    )

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from bluesky.protocols import StreamAsset
    from ophyd_async.core import TriggerInfo, WatchableAsyncStatus

MIMETYPE = "application/x-zarr"  # of tiled's own adapter
WATCHED_S = 0.01  # between two looks of the daemon at what has come
END_S = 60.0  # the longest that the daemon may take to seal a store
# Counts of a receipt: with such frames, the n-th that came is not that of the n-th place.
LOST = ("frames_dropped", "frames_duplicate", "frames_late", "frames_lost")


class ShardwrightDetector(StandardDetector):
    """A detector whose frames a daemon stores. ``data`` arms the acquisitions; ``logics`` drive the camera,
    as in any detector of ophyd-async, and their detector may have further data.

    ``trigger`` and ``complete`` are done once readers of the files see the frames. They fail with the error
    of the acquisition, and with ``TimedOutError`` if no frame comes for ``exposure_timeout``.
    """

    def __init__(
        self,
        data: ShardwrightDataLogic,
        *logics: DetectorTriggerLogic | DetectorAcquireLogic | DetectorDataLogic,
        name: str = "",
    ) -> None:
        self.data = data
        self._step: WatchableAsyncStatus[int] | None = None
        self.add_detector_logics(data, *logics)
        super().__init__(name=name)

    def trigger(self) -> WatchableAsyncStatus[int]:
        self.data.in_steps = True
        self._step = super().trigger()
        return self._step

    def kickoff(self) -> AsyncStatus[None]:
        self.data.in_steps, self._step = False, None
        return super().kickoff()

    async def pause(self) -> None:
        """Waits for the exposure of a step. The run engine makes an interrupted step again; a frame that came
        only then would be taken for that of the second exposure."""
        if self._step is not None:
            await asyncio.wait([self._step.task])

    async def resume(self) -> None:
        """Does nothing: bluesky wants both."""

    @AsyncStatus.wrap
    async def unstage(self) -> None:
        """Stops the camera, and only then seals the store: what it has sent by then is in it. A status that
        still waits for frames is done. Raises as the camera's logic, and ``TimedOutError``."""
        self.data.leave()
        try:
            if self._acquire_logic is not None:
                await self._acquire_logic.ensure_stopped()  # type: ignore[no-untyped-call]  # ophyd-async's
        finally:
            await asyncio.gather(*(logic.stop() for logic in self._data_logics))

    async def _wait_for_index(
        self,
        data_providers: Sequence[StreamableDataProvider],
        trigger_info: TriggerInfo,
        initial_collections_written: int,
        collections_requested: int,
        wait_for_idle: bool,
        watcher_divisor: int = 1,
    ) -> AsyncIterator[WatcherUpdate[int]]:
        """The one private method of ophyd-async that is changed here: it observes a signal, which can neither
        ask for frames to be shown nor fail."""
        wanted, armed = initial_collections_written + collections_requested, self.data.armed
        async for seen in armed.seen_until(wanted, trigger_info):
            yield WatcherUpdate(
                name=self.name,
                current=seen // watcher_divisor,
                initial=initial_collections_written // watcher_divisor,
                target=wanted // watcher_divisor,
            )
        if armed.is_left:
            return
        async for update in super()._wait_for_index(
            data_providers,
            trigger_info,
            initial_collections_written,
            collections_requested,
            wait_for_idle,
            watcher_divisor,
        ):
            yield update


class ShardwrightDataLogic(DetectorDataLogic):
    """Arms an acquisition in each stage, as far as it is triggered or prepared. All calls are made in the
    event loop of the run engine.

    ``receipt``: the daemon's account of the acquisition that ended last, as JSON; None if no camera came, or
    the daemon died.
    """

    def __init__(
        self,
        control: str | os.PathLike[str],
        names: Callable[[str], str],
        spec: sw.ArraySpec | sw.AcquisitionSpec | dict[str, Any] | None = None,
        *,
        stream: str | None = None,
    ) -> None:
        """``control``: the path of the daemon's control socket. ``names``: called with the name of the data
        key, returns that of the next acquisition, such as a ``FilenameProvider`` of ophyd-async. ``spec``,
        ``stream``: as of ``Connection.acquire``. Raises ``SpecError``."""
        self._control, self._names, self._stream = control, names, stream
        self._spec = None if spec is None else parse_acquisition(spec).to_json()
        self._armed: _ArmedAcquisition | None = None
        self._lock = asyncio.Lock()  # held to change it: an end waits for what is being armed
        self.in_steps = True  # each event is announced by itself
        self.receipt: dict[str, Any] | None = None

    @property
    def armed(self) -> _ArmedAcquisition:
        """The acquisition of this stage; ``armed.name`` is for the camera to open. Raises ``ClosedError``."""
        if self._armed is None:
            raise sw.errors.ClosedError("no acquisition is armed", expected="a detector that is prepared")
        return self._armed

    async def prepare_unbounded(self, datakey_name: str) -> StreamableDataProvider:
        """Arms the next acquisition. Raises what the daemon refuses it with, ``SessionLostError`` if there is
        none, and ``SpecError`` for arrays that events cannot announce."""
        name = self._names(datakey_name)
        async with self._lock:
            await self._end()  # of a prepare that failed behind this, or is made again
            description = await self.ask(
                lambda daemon: daemon.arm(name, stream=self._stream, spec=self._spec)
            )
            try:
                self._armed = _ArmedAcquisition(self, datakey_name, description)
            except sw.errors.SpecError:
                await self.ask(lambda daemon: daemon.ask("stop", name=name))
                raise
            return self._armed

    def get_hinted_fields(self, datakey_name: str) -> Sequence[str]:
        return [] if self._armed is None else list(self._armed.images)

    def leave(self) -> None:
        """Ends ``seen_until`` without an error."""
        if self._armed is not None:
            self._armed.leave()

    async def stop(self) -> None:
        """Ends the acquisition: what the daemon has of it is sealed, and its camera is told. Returns at once
        if the daemon has died. Raises ``TimedOutError``."""
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        if self._armed is not None:
            self._armed.leave()
            self.receipt = await self._armed.end()
            self._armed = None

    async def ask(self, request: Callable[[ControlClient], Any]) -> Any:
        """Asks the daemon, in a thread."""

        def answer() -> Any:
            with ControlClient(self._control, PATIENT_S) as daemon:
                return request(daemon)

        return await asyncio.to_thread(answer)

    def watch(
        self, name: str, take: Callable[[dict[str, Any]], None], fail: Callable[[ErrorText], None]
    ) -> None:
        """Calls ``take`` with each state of an acquisition, or ``fail`` at last, in the event loop that calls
        this. The thread that listens never keeps the interpreter from its end."""
        loop = asyncio.get_running_loop()

        def listen() -> None:
            with suppress(RuntimeError):  # the loop has ended, with a run that was halted
                try:
                    for account in ControlClient(self._control, PATIENT_S).watch(name, every_s=WATCHED_S):
                        loop.call_soon_threadsafe(take, account)
                except sw.errors.ShardwrightError as error:
                    loop.call_soon_threadsafe(fail, ErrorText.of(error))

        threading.Thread(target=listen, name=f"watch {name}", daemon=True).start()


class _AnnouncedImage:
    """An image of an acquisition as documents announce it. ``frames``: of the camera, for one event."""

    def __init__(self, image: Mapping[str, Any], store: str) -> None:
        self.name, self.axes, self.chunks = image["name"], image["axes"], image["chunks"]
        self.event_shape = image["shape"][1:]
        is_one_frame = len(self.axes) <= len(image["frame_shape"])
        if is_one_frame or None in self.event_shape or image["frame_axes"][0] != self.axes[0]:
            raise sw.errors.SpecError(
                "events are counted along the first axis of an array",
                expected="first the axis of the events, and counts along all others",
                got=f"{', '.join(self.axes)}: {image['shape']}",
                hint='For one frame an event: axes="tyx", shape=(None, rows, columns)',
            )
        self.dtype = np.dtype(image["dtype"]).str
        self.colours = math.prod(image["frame_shape"][2:])  # each is a plane, and a row of the receipt
        self.frames = math.prod(self.event_shape[:-2]) // self.colours
        # tiled takes paths as they are, without escapes
        self.uri = f"file://localhost{store}/{image['path']}"


class _ArmedAcquisition(StreamableDataProvider):
    """One armed acquisition: what the daemon tells of it, and the documents of what readers see."""

    def __init__(self, data: ShardwrightDataLogic, key: str, description: Mapping[str, Any]) -> None:
        self.name: str = description["name"]
        images = [_AnnouncedImage(image, description["path"]) for image in description["images"]]
        # the names of a plate's images have slashes, which tiled does not take
        keys = [f"{key}-{image.name.replace('/', '-')}" for image in images] if images[1:] else [key]
        self.images = dict(zip(keys, images, strict=True))
        self.collections_written_signal, self._tell = soft_signal_r_and_setter(int)
        self._bundles = [
            ComposeStreamResource()(
                MIMETYPE, image.uri, key, {"chunk_shape": image.chunks, "join_method": "stack"}
            )
            for key, image in self.images.items()
        ]
        self._data = data
        self._announced = 0  # events
        self._told: list[Any] = []  # documents, of the last reading
        self._came = self._seen = 0  # frames, of the image that has the fewest
        self._empty = 0  # places
        self._account: Mapping[str, Any] = {}
        self._why: ErrorText | None = None  # nothing more can be waited for
        self._changed, self._over = asyncio.Event(), asyncio.Event()
        self.is_left = False  # unstaged: an end is no error
        data.watch(self.name, self._take, self._fail)

    # ------------------------------------------------------------------ documents

    async def make_datakeys(self, collections_per_event: int) -> dict[str, DataKey]:
        self._check_events(collections_per_event)
        return {
            key: DataKey(
                source=f"shardwright://{self.name}",
                shape=image.event_shape,
                dims=image.axes[1:],
                dtype="array",
                dtype_numpy=image.dtype,
                external="STREAM:",
            )
            for key, image in self.images.items()
        }

    async def make_stream_docs(
        self, collections_written: int, collections_per_event: int
    ) -> AsyncIterator[StreamAsset]:
        events = collections_written // collections_per_event
        # bluesky fills in the documents that it publishes. Those that it read for an event which it then
        # dropped, such as by a pause before its save, are told again: readers count what they are told.
        if self._told and self._told[-1][1]["descriptor"]:
            self._told.clear()
        if events and not self._announced:
            self._told += [("stream_resource", bundle.stream_resource_doc) for bundle in self._bundles]
        # bluesky takes one index at a time for the event of a step. There are more after an exposure that was
        # interrupted and made again: all get the number of that event, and the last one counts.
        while self._announced < events:
            stop = self._announced + 1 if self._data.in_steps else events
            indices = StreamRange(start=self._announced, stop=stop)
            self._told += [("stream_datum", bundle.compose_stream_datum(indices)) for bundle in self._bundles]
            self._announced = stop
        for document in self._told:
            yield document

    # ------------------------------------------------------------------ frames

    async def seen_until(self, wanted: int, trigger_info: TriggerInfo) -> AsyncIterator[int]:
        """Yields how many frames of each image readers see, until they see ``wanted`` or it is left. Raises
        the error of the acquisition, ``VisibilityError``, ``TimedOutError``."""
        self._check_events(trigger_info.collections_per_event)
        clock, timeout_s = asyncio.get_running_loop().time, trigger_info.exposure_timeout
        until_s, came, is_flushed = clock() + timeout_s, self._came, False
        while not self.is_left:
            self._check()
            yield self._seen
            if self._seen >= wanted:
                return
            if self._came >= wanted and not is_flushed:
                is_flushed = True
                with suppress(sw.errors.UnknownAcquisitionError):  # it has just ended: the watch tells how
                    self._take(await self._data.ask(self._flushed))
                continue
            if self._came > came:
                until_s, came = clock() + timeout_s, self._came
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed.wait()
            except TimeoutError:
                raise sw.errors.TimedOutError(
                    f"the acquisition {self.name} got no frame for {timeout_s:g} s",
                    expected=f"{wanted} frames, each in its place",
                    got=f"{self._came}, {self._empty} places empty",
                    hint="Has the camera opened this acquisition, and was it triggered?",
                ) from None
            self._changed.clear()

    def _flushed(self, daemon: ControlClient) -> dict[str, Any]:
        daemon.flush(self.name, "visible")
        return daemon.counts(self.name)

    def _check_events(self, collections_per_event: int) -> None:
        for image in self.images.values():
            if image.frames != collections_per_event:
                raise sw.errors.SpecError(
                    "an event has another number of frames than the array along its further axes",
                    expected=f"TriggerInfo(collections_per_event={image.frames})",
                    got=collections_per_event,
                    hint=f"Or choose a shape such as (None, {collections_per_event}, rows, columns)",
                )

    def _check(self) -> None:
        """Raises the reason why nothing may be waited for."""
        if self._why is not None:
            raise self._why.to_error()
        if self._over.is_set():
            raise sw.errors.ClosedError(
                f"the acquisition {self.name} has ended before the run",
                got=f"{self._came} frames",
                hint="The camera must keep it open until the detector is unstaged",
            )

    def _take(self, account: Mapping[str, Any]) -> None:
        """Takes what the daemon tells. Frames that were not kept count as seen: what comes behind one of them
        is not announced."""
        self._account = account
        receipt, watermark = account["receipt"] or {}, account["watermark"]
        if account["error"]:
            self._why = ErrorText.from_dict(account["error"])
        if lost := {name: receipt[name] for name in LOST if receipt.get(name)}:
            self._why = ErrorText(
                sw.errors.LostFramesError,
                f"frames of the acquisition {self.name} were not kept: events would get those of others",
                got=", ".join(f"{name}={count}" for name, count in lost.items()),
            )
        elif watermark is not None:
            self._came = receipt["frames_received"] // sum(image.colours for image in self.images.values())
            by_image = [watermark["images"].get(image.name, 0) for image in self.images.values()]
            seen = min(by_image) if len(by_image) > 1 else watermark["visible"]
            self._empty = receipt["frames_missing"]  # before the newest: frames do not come in order
            if seen > self._seen and not self._empty:
                self._seen = seen
                self._tell(seen)
        if account["ended"]:
            self._over.set()
        self._changed.set()

    def _fail(self, why: ErrorText) -> None:
        self._why = why
        self._over.set()
        self._changed.set()

    # ------------------------------------------------------------------ the end

    def leave(self) -> None:
        self.is_left = True
        self._changed.set()

    async def end(self) -> dict[str, Any] | None:
        """As ``ShardwrightDataLogic.stop``; returns the receipt."""
        if not self._account.get("ended"):  # also where the watch failed alone
            # it has just ended, or the daemon has died: the watch tells which
            with suppress(sw.errors.UnknownAcquisitionError, sw.errors.SessionLostError):
                await self._data.ask(lambda daemon: daemon.ask("stop", name=self.name))
        try:
            async with asyncio.timeout(END_S):
                await self._over.wait()
        except TimeoutError:
            raise sw.errors.TimedOutError(
                f"the daemon has not sealed the acquisition {self.name}",
                expected=f"its end within {END_S:g} s",
            ) from None
        return self._account["receipt"] if self._account.get("ended") else None
