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
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.daemon.control_client import ControlClient
from shardwright.daemon.control_protocol import MAX_REPLY_BYTES, decode_reply, encode_request
from shardwright.model.error_text import ErrorText
from shardwright.model.extras import naming_missing_extra

with naming_missing_extra("shardwright.integrations.bluesky"):
    from event_model import ComposeStreamResource, DataKey
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
ASKED_S = 10.0  # for an answer
FLUSHED_S = 60.0  # for all frames that came to be stored and shown
END_S = 60.0  # for the daemon to seal a store
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
        """Stops the camera, then seals the store. Raises as the camera's logic, and ``TimedOutError``."""
        try:
            if self._acquire_logic is not None:
                await self._acquire_logic.ensure_stopped()
        finally:
            await super().unstage()

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
        wanted = initial_collections_written + collections_requested
        async for seen in self.data.seen_until(wanted, trigger_info):
            yield WatcherUpdate(
                name=self.name,
                current=seen // watcher_divisor,
                initial=initial_collections_written // watcher_divisor,
                target=wanted // watcher_divisor,
            )
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
    event loop of the run engine."""

    def __init__(
        self,
        control: str | os.PathLike[str],
        names: Callable[[str], str],
        spec: sw.ArraySpec | sw.AcquisitionSpec | Mapping[str, Any] | None = None,
        *,
        stream: str | None = None,
    ) -> None:
        """``control``: the path of the daemon's control socket. ``names``: called with the name of the data
        key, returns that of the next acquisition, such as a ``FilenameProvider`` of ophyd-async. ``spec``,
        ``stream``: as of ``Connection.acquire``, one of them. Raises ``SpecError``."""
        if (spec is None) == (stream is None):
            raise sw.errors.SpecError("an acquisition needs an array", expected="either a spec or a stream")
        self._request = {"stream": stream} if spec is None else {"spec": parse_acquisition(spec).to_json()}
        self.control, self._names = control, names
        self._provider: _Acquisition | None = None
        self.in_steps = True
        self.receipt: dict[str, Any] | None = None

    @property
    def acquisition(self) -> str:
        """The name of the acquisition that is armed, for the camera to open. Raises ``ClosedError``."""
        return self._now.name

    async def prepare_unbounded(self, datakey_name: str) -> StreamableDataProvider:
        """Arms the next acquisition. Raises what the daemon refuses it with, ``SessionLostError`` if there is
        none, and ``SpecError`` for arrays that cannot be announced by events."""
        await self.stop()
        name = self._names(datakey_name)
        reply = await self.ask("arm", name=name, **self._request)
        self._provider = _Acquisition(self, datakey_name, reply["description"])
        return self._provider

    def get_hinted_fields(self, datakey_name: str) -> Sequence[str]:
        return [] if self._provider is None else list(self._provider.images)

    async def stop(self) -> None:
        """Ends the acquisition: what the daemon has of it is sealed, and its camera is told. ``receipt`` is
        that of the daemon then; None if no camera came, or the daemon died. Raises ``TimedOutError``."""
        ended, self._provider = self._provider, None
        if ended is not None:
            self.receipt = await ended.end()

    async def seen_until(self, wanted: int, trigger_info: TriggerInfo) -> AsyncIterator[int]:
        """Yields how many frames of an acquisition readers see, until they see ``wanted``. Raises the error
        of the acquisition, ``VisibilityError``, ``TimedOutError``."""
        now = self._now
        now.check_event(trigger_info.collections_per_event)
        async for seen in now.seen_until(wanted, trigger_info.exposure_timeout):
            yield seen

    async def ask(self, do: str, timeout_s: float = ASKED_S, **facts: Any) -> dict[str, Any]:
        """Asks the daemon, as ``ControlClient.ask``."""

        def reply() -> dict[str, Any]:
            with ControlClient(self.control, timeout_s) as client:
                return client.ask(do, **facts)

        return await asyncio.to_thread(reply)

    @property
    def _now(self) -> _Acquisition:
        if self._provider is None:
            raise sw.errors.ClosedError("no acquisition is armed", expected="a detector that is prepared")
        return self._provider


class _Image:
    """An image of an acquisition, as documents announce it: ``event_shape`` of one event, in ``frames``."""

    def __init__(self, image: Mapping[str, Any], store: str) -> None:
        self.name = image["name"]
        self.axes, shape = image["axes"], image["shape"]
        self.event_shape = shape[1:]
        if len(shape) < 3 or None in self.event_shape or image["frame_axes"][0] != self.axes[0]:
            raise sw.errors.SpecError(
                "bluesky's events are counted along the first axis",
                expected="an axis of acquisition first, also in the order of storage; behind it counts",
                got=f"axes {', '.join(self.axes)} of {shape}",
                hint='For one frame an event: axes="tyx", shape=(None, rows, columns)',
            )
        self.dtype = np.dtype(image["dtype"]).str
        self.chunks = image["chunks"]
        # a frame of a colour camera is stored as one of each colour
        self.frame_places = math.prod(image["frame_shape"][2:])
        self.frames = math.prod(self.event_shape[:-2]) // self.frame_places
        # tiled takes paths as they are, without escapes
        self.uri = f"file://localhost{'/'.join(filter(None, (store, image['path'], '0')))}"


class _Acquisition(StreamableDataProvider):
    """One armed acquisition: the counts that the daemon pushes, and the documents of what is visible."""

    def __init__(self, data: ShardwrightDataLogic, key: str, description: Mapping[str, Any]) -> None:
        self.name = description["name"]
        images = [_Image(image, description["path"]) for image in description["images"]]
        is_single = len(images) == 1
        self.images = {key if is_single else f"{key}-{image.name}": image for image in images}
        self._data = data
        self._came = self._seen = 0  # frames, of the image that has the fewest
        self._account: Mapping[str, Any] = {"ended": False}
        self._why: ErrorText | None = None
        self._changed = asyncio.Event()
        self.collections_written_signal, self._tell = soft_signal_r_and_setter(int)
        compose = ComposeStreamResource()
        self._bundles = [
            compose(MIMETYPE, image.uri, key, {"chunk_shape": image.chunks, "join_method": "stack"})
            for key, image in self.images.items()
        ]
        self._announced = 0  # events
        self._watching = asyncio.create_task(self._watch())

    # ------------------------------------------------------------------ documents

    async def make_datakeys(self, collections_per_event: int) -> dict[str, DataKey]:
        self.check_event(collections_per_event)
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

    def check_event(self, collections_per_event: int) -> None:
        """Raises ``SpecError`` for events of another number of frames than the arrays have."""
        for image in self.images.values():
            if image.frames != collections_per_event:
                raise sw.errors.SpecError(
                    "events have another number of frames than the array along its further axes",
                    expected=f"collections_per_event={image.frames}",
                    got=collections_per_event,
                    hint="Prepare the detector with TriggerInfo(collections_per_event=...), or choose "
                    "another shape, such as (None, 5, rows, columns) for five frames an event",
                )

    async def make_stream_docs(
        self, collections_written: int, collections_per_event: int
    ) -> AsyncIterator[StreamAsset]:
        events, begin = collections_written // collections_per_event, self._announced
        if events > begin == 0:
            for bundle in self._bundles:
                yield "stream_resource", bundle.stream_resource_doc
        # bluesky wants one index for each event of a step. More came where it made an interrupted step again:
        # they get the number of that event, and the last of them counts.
        stops = range(begin + 1, events + 1) if self._data.in_steps else [events] if events > begin else []
        for stop in stops:
            for bundle in self._bundles:
                yield "stream_datum", bundle.compose_stream_datum({"start": self._announced, "stop": stop})
            self._announced = stop

    # ------------------------------------------------------------------ counts

    async def seen_until(self, wanted: int, timeout_s: float) -> AsyncIterator[int]:
        """As of ``ShardwrightDataLogic``."""
        clock = asyncio.get_running_loop().time
        until_s, came, is_flushed = clock() + timeout_s, self._came, False
        while True:
            self._check()
            yield self._seen
            if self._seen >= wanted:
                return
            if self._came >= wanted and not is_flushed:
                reply = await self._data.ask("flush", FLUSHED_S, name=self.name, level="visible")
                is_flushed = True
                self._take_watermark(reply["watermark"])
                continue
            if self._came > came:
                until_s, came = clock() + timeout_s, self._came
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed.wait()
            except TimeoutError:
                raise sw.errors.TimedOutError(
                    f"the acquisition {self.name} got no frame for {timeout_s:g} s",
                    expected=f"{wanted} frames",
                    got=self._came,
                    hint="Has the camera opened this acquisition, and was it triggered?",
                ) from None
            self._changed.clear()

    def _check(self) -> None:
        """Raises the reason why no frame may be waited for."""
        if self._why is not None:
            raise self._why.to_error()
        receipt = self._account.get("receipt") or {}
        if lost := {name: n for name in LOST if (n := receipt.get(name))}:
            raise sw.errors.LostFramesError(
                f"frames of the acquisition {self.name} are not in their places: events would get wrong ones",
                got=", ".join(f"{name}={n}" for name, n in lost.items()),
            )
        if self._account["ended"]:
            raise sw.errors.ClosedError(
                f"the acquisition {self.name} has ended before the run has all of its frames",
                got=f"{self._came} frames",
                hint="The camera must keep it open until the detector is unstaged",
            )

    async def _watch(self) -> None:
        """Hears the daemon, until the acquisition ends."""
        try:
            async for reply in self._lines("watch", name=self.name, every_s=WATCHED_S):
                self._take(reply["acquisition"])
            if not self._account["ended"]:
                raise sw.errors.SessionLostError(
                    f"the daemon has ended the watch of the acquisition {self.name}",
                    hint="Does it still run? What it stored is there: `shardwright list`",
                )
        except (sw.errors.ShardwrightError, OSError) as error:
            self._why = ErrorText.of(error)
        self._changed.set()

    async def _lines(self, do: str, **facts: Any) -> AsyncIterator[dict[str, Any]]:
        reader, writer = await asyncio.open_unix_connection(self._data.control, limit=MAX_REPLY_BYTES)
        try:
            writer.write(encode_request(do, facts))
            while line := await reader.readline():
                yield decode_reply(line)
        finally:
            writer.close()

    def _take(self, account: Mapping[str, Any]) -> None:
        self._account = account
        if error := account["error"]:
            self._why = ErrorText.from_dict(error)
        if receipt := account["receipt"]:
            came = receipt["frames_received"]
            self._came = came // sum(image.frame_places for image in self.images.values())
        if watermark := account["watermark"]:
            self._take_watermark(watermark)
        self._changed.set()

    def _take_watermark(self, watermark: Mapping[str, Any]) -> None:
        by_image = watermark["images"] if len(self.images) > 1 else {}
        seen = min(
            (by_image.get(image.name, 0) if by_image else watermark["visible"]) // image.frame_places
            for image in self.images.values()
        )
        if seen > self._seen:
            self._seen = seen
            self._tell(seen)

    # ------------------------------------------------------------------ the end

    async def end(self) -> dict[str, Any] | None:
        """As ``ShardwrightDataLogic.stop``."""
        if not self._account["ended"] and self._why is None:
            # it ends just now, or the daemon died: the watch says which
            with suppress(sw.errors.UnknownAcquisitionError, sw.errors.SessionLostError):
                await self._data.ask("stop", name=self.name)
        try:
            async with asyncio.timeout(END_S):
                await self._watching
        except TimeoutError:
            raise sw.errors.TimedOutError(
                f"the daemon did not seal the acquisition {self.name}", expected=f"its end within {END_S:g} s"
            ) from None
        return self._account["receipt"] if self._account["ended"] else None
