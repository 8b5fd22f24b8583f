"""The calls by which a user gives the frames of an acquisition: the same of a ``Writer`` in this process and
of a ``Stream`` to a daemon, with one text for each.

    FrameAdmission    which image, which place
    FrameLine      slots, and numbers in the order in which calls began
    FrameSink      both, and what becomes of a call that fails
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from copy import copy as copy_of
from functools import partial
from inspect import cleandoc
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np

from shardwright.model.display_text import FactSheet
from shardwright.model.errors import ShardwrightError
from shardwright.model.write_options import Extent, FlushLevel

from .acquisition_spec import parse_image
from .frame_check import checked_update
from .frame_claim import FrameClaim
from .frame_order import Begun
from .stage_position import parsed_position

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

    import numpy.typing as npt

    from shardwright.model.receipt import Receipt, Watermark

    from .acquisition_spec import AcquisitionSpec, Image
    from .as_written import Index
    from .frame_admission import AdmittedFrame, FrameAdmission
    from .spec import ArraySpec


class FrameLine(Protocol):
    """The part of a ``Driver`` or an ``Outbox`` that is the same. From any thread."""

    @property
    def next_sequence(self) -> int: ...
    def check_process(self) -> None: ...
    def check_open(self) -> None: ...
    def stand_in_line(self, stack: Begun[Any], frames: int) -> None: ...
    def leave_line(self, stack: Begun[Any]) -> None: ...
    def give_up(self, begun: Begun[Any]) -> bool: ...
    def flush(self, level: FlushLevel, timeout_s: float | None) -> None: ...


class FrameSink(FactSheet, ABC):
    """Takes the frames of one acquisition; a context manager that closes it.

    Any thread may call it, several at once. Frames that name no place are counted in the order in which their
    calls began. A call that waits for a free frame buffer holds nothing: others go on, and ``close`` ends it
    with ``ClosedError``. A signal handler or a finalizer may call it too, unless it has interrupted the same
    thread in the middle of a step (``NestedCallError``): a ``close`` then returns at once and the end goes on
    meanwhile, what only reads works always. In a forked child every call raises ``ForkedError``.

    If nobody closes it, what came is sealed when the last reference goes or the interpreter ends
    (``ResourceWarning``).
    """

    def __init_subclass__(cls) -> None:
        """Puts the text above behind that of the class."""
        if cls.__doc__ is not None and FrameSink.__doc__ is not None:  # Python may leave such texts out
            cls.__doc__ = f"{cleandoc(cls.__doc__)}\n\n{cleandoc(FrameSink.__doc__)}"

    def __init__(self, line: FrameLine, admission: FrameAdmission) -> None:
        self._line = line
        self._admission = admission  # which has the specification: images may be added
        self._places = admission.spec.frame_places
        self._copied = 0  # frames of copy=False that could not be read as they lie

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"path": self.path, "state": "open"}
        try:
            self._line.check_open()
        except ShardwrightError as error:
            facts["state"] = error.code
        with suppress(ShardwrightError):  # in a forked child
            facts |= {"frames": self.frames, "stored": self.watermark.stored}
            facts["durable"] = self.watermark.durable
            facts["visible"] = self.watermark.visible
        array = self.spec._facts()  # noqa: SLF001
        images = self.images
        return facts | ({} if images.is_single else {"images": len(images.names)}) | array

    @property
    @abstractmethod
    def path(self) -> str | os.PathLike[str]:
        """The folder of the store, on the machine that writes it."""

    @property
    def images(self) -> AcquisitionSpec:
        """The specification of the acquisition."""
        return self._admission.spec

    @property
    def spec(self) -> ArraySpec:
        """The specification of the array; of the first one if there are several images."""
        return self.images.arrays[0]

    @property
    def frames(self) -> int:
        """The number of frames appended to this acquisition so far, also before a crash and dropped ones: the
        number that the next one gets. One of colours counts once, here and in all counts but those of the
        receipt, which are of places."""
        self._line.check_process()
        return self._line.next_sequence // self._places

    @property
    @abstractmethod
    def frames_dropped(self) -> int:
        """The number of frames that the overload policy ``drop`` has dropped; the frame table names each. A
        stream counts its own."""

    @property
    @abstractmethod
    def released(self) -> int:
        """The number of frames, as ``frames`` counts them, from the first on without a hole, whose memory is
        not read any more: the caller may change that of frames below it. With ``copy=True``, and always in a
        stream, that is every frame whose ``append`` has returned."""

    @property
    def copied(self) -> int:
        """The number of frames that were given with ``copy=False`` and had to be copied all the same."""
        self._line.check_process()
        return self._copied

    @property
    @abstractmethod
    def watermark(self) -> Watermark:
        """The number of frames from the acquisition's first on, without holes, that a kill of the process
        that writes them (``stored``) or a power cut (``durable``) cannot lose, or that any reader of the
        files sees (``visible``; ``images``, of each image). For a stream as of the daemon's last message; a
        daemon of an earlier release says nothing of visible ones."""

    @property
    @abstractmethod
    def receipt(self) -> Receipt:
        """The receipt, final once closed. Before, a writer has the counts so far; a stream has none, and
        raises ``SessionLostError``, as also when it was lost."""

    def append(
        self,
        frame: npt.ArrayLike,
        *,
        image: str | None = None,
        index: Index | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        copy: bool = True,
    ) -> None:
        """Appends one frame (rows, columns), or of a colour camera (rows, columns, 3 or 4), whose channels
        are stored one by one (``ArraySpec.interleaved``). Its place is ``index``, by the axes before the
        frame's own: (3, 1) in the order of acquisition, {"t": 3, "c": 1}, or 3 where there is one. Else it is
        ``frame_id``, counted from 0, else the number of frames of the acquisition before it. With several
        images ``image`` names its own; then the frames of that image without an index are counted, after
        ``resume`` from behind its newest one; after a stream's ``reopen`` each needs an index. With an
        ``order`` of the acquisition no frame need name anything.

        A frame whose place is taken is not stored, the first one is; unless ``on_duplicate`` is ``count``,
        ``DuplicateFrameError`` is raised: from this call, or where frames had to wait for their place from a
        later one, at the latest ``flush`` or ``close``. A writer continues; a stream has ended.

        ``metadata``: ``delta_t``, ``exposure_time`` in seconds, ``position_x/y/z`` in micrometres, and what
        the array's ``frame_fields`` name; anything else that is JSON, text included, where the array has
        ``frame_json_bytes``. If that is longer, the frame is kept without it (``frame_json_dropped``).

        The frame is copied before this returns. With ``copy=False`` it need not be: a writer reads the
        caller's memory until the frame is stored (durable, with that ``durability``) and keeps a reference to
        it as long; the caller must not change it before ``released`` has passed the frame. It takes a slot
        of the ring like any other. A frame that cannot be read as it lies (not in C order, not aligned, in a
        mapped file, which may be truncated; of colours; to a daemon any) is copied and counted (``copied``).

        While the ring is full, since the disk or the daemon is slow, or the daemon away, the call waits
        (``block``, ``degrade``), drops the frame (counted and recorded) or fails, as ``overload`` says.
        Raises ``FrameShapeError``, ``FrameDtypeError``, ``FrameIndexError``, ``UnknownImageError``,
        ``MetadataError`` for a frame that is not taken (others may follow), ``OverloadError``,
        ``ClosedError``, or what broke the pipeline or ended the session.
        """
        pixels = frame if type(frame) is np.ndarray else np.asarray(frame)
        admitted = self._admission.one(pixels, image, index, frame_id, metadata)
        begun: Begun[Any] = Begun()
        try:
            self._take(begun, None, self._by_channel(pixels), admitted, frame_id, copy=copy)
        except BaseException:
            self._give_up(begun, admitted)
            raise

    @abstractmethod
    def _take(
        self,
        begun: Begun[Any],
        claimed: Any,
        pixels: npt.NDArray[Any],
        admitted: AdmittedFrame,
        frame_id: int | None,
        *,
        copy: bool,
    ) -> None:
        """Begins and completes one frame, (rows, columns) or (channels, rows, columns). ``claimed``: the slot
        of its pixels, from ``_claim``; None: it gets one."""

    def _by_channel(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns frames of colours, uncopied, with the channels before rows and columns; others as they
        are."""
        return pixels if self._places == 1 else np.moveaxis(pixels, -1, -3)

    def _give_up(self, begun: Begun[Any], admitted: AdmittedFrame) -> None:
        """Gives back the slot and the place of a frame that is not taken."""
        if self._line.give_up(begun) and not admitted.named and admitted.position is not None:
            self._admission.give_back(range(admitted.position, admitted.position + self._places))

    def claim(
        self,
        *,
        image: str | None = None,
        index: Index | None = None,
        frame_id: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> FrameClaim:
        """Claims memory for one frame, into which a camera's driver writes: no copy is made.

            with writer.claim(index=(7, 0)) as pixels:  # (rows, columns) of the image's dtype, any content
                camera.read_into(pixels)

        Of a frame of colours it is (channels, rows, columns).

        Leaving the block takes the frame as ``append`` does, with ``metadata`` as they are then; an exception
        gives the memory back. Several may be claimed at once, by any thread, and committed in any order:
        frames that name no place are counted as they are committed. ``pixels`` must not be written after the
        block.

        While the ring is full, ``block`` and ``degrade`` wait here and ``fail`` raises; with ``drop`` the
        frame goes into memory that is not kept, and is recorded as dropped at the end of the block. Raises as
        ``append`` does, here what is wrong already, at the end of the block what becomes wrong meanwhile;
        ``OverloadError`` also where the ring is full of claims, and frames that may wait for them. Claims
        that are open at the end are given back: a later commit raises ``ClosedError``. Over a reconnection of
        a stream they stay open.
        """
        self._line.check_open()
        if index is not None and type(index) is not tuple:  # as it is now, whatever the caller changes
            index = dict(index) if isinstance(index, Mapping) else copy_of(index)
        form = self._admission.form(image, index, frame_id, metadata)
        if self.images.is_single and index is None and frame_id is None:
            self._admission.check_count(self._line.next_sequence)
        pixels, claimed, give_back = self._claim(self._by_channel(form))
        commit = partial(self._commit, claimed, give_back, image, index, frame_id, metadata)
        return FrameClaim(pixels, commit, give_back)

    @abstractmethod
    def _claim(self, form: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Any, Callable[[], None]]:
        """Claims a slot. Returns its pixels, of the shape and dtype of ``form``; the slot, for ``_take``;
        and what gives it back."""

    def _commit(
        self,
        claimed: Any,
        give_back: Callable[[], None],
        image: str | None,
        index: Index | None,
        frame_id: int | None,
        metadata: Mapping[str, Any] | None,
        pixels: npt.NDArray[Any],
    ) -> None:
        begun: Begun[Any] = Begun()
        admitted = None
        try:
            self._line.check_open()
            frame = pixels if self._places == 1 else np.moveaxis(pixels, 0, -1)
            admitted = self._admission.one(frame, image, index, frame_id, metadata)
            self._take(begun, claimed, pixels, admitted, frame_id, copy=True)
        except BaseException:
            if not begun.serial:
                give_back()
            if admitted is not None:
                self._give_up(begun, admitted)
            raise

    def append_many(
        self,
        frames: npt.ArrayLike,
        *,
        image: str | None = None,
        indices: npt.ArrayLike | None = None,
        frame_ids: npt.ArrayLike | None = None,
        metadata: Mapping[str, Any] | None = None,
        copy: bool = True,
    ) -> None:
        """Appends each of ``frames``, a count before the shape of a frame, in turn, with one copy and almost
        no Python for each: for small frames at a high rate. To a daemon it may return while the last of them
        wait to be sent.

        ``indices``: integers (count, axes); ``frame_ids``: integers (count,); each value of ``metadata``: one
        for all, or a list or array of one for each. All are of one ``image``, or without its name the next
        ones in the acquisition's ``order``. ``copy``: as for ``append``; the whole stack is kept while any of
        its frames is read. Waits, drops, fails and raises as ``append`` does. A fault of one frame is raised
        before any of them is taken.
        """
        self._line.check_open()
        pixels, records, counted, named = self._admission.many(frames, image, indices, frame_ids, metadata)
        pixels, places = self._by_channel(pixels), self._places
        self._take_all(
            records,
            lambda done: self._take_part(
                pixels[done // places :], records[done:], counted=counted, copy=copy
            ),
            counted=counted,
            named=named,
        )

    def skip(self, frames: int = 1) -> None:
        """Leaves the places of the next ``frames`` empty, in the order of those that name no place: the rest
        of a stack that was cut short, say. They stay fill value; the frame table has a row for each,
        ``skipped``, and the receipt counts them as ``places_skipped``, which are not missing. The array
        reaches over them, also along a first axis of None. Of colours a frame has a place in each channel.

        Waits while thousands wait to be recorded. Raises ``FrameIndexError`` where nothing says which places
        come next (several images without an ``order``, stacks of different depths) or there are no more, else
        as ``append`` does; ``VersionError`` for a daemon of an earlier release."""
        self._line.check_open()
        self._check_declares()
        records, counted = self._admission.skipped(frames)
        self._take_all(
            records,
            lambda done: self._skip_part(records[done:], counted=counted),
            counted=counted,
            named=counted,
        )

    def _take_all(
        self, records: npt.NDArray[np.void], take: Callable[[int], int], *, counted: bool, named: bool
    ) -> None:
        """Takes all of ``records``: ``take`` gets how many are done, and returns how many more are."""
        done = 0
        stack: Begun[Any] = Begun()
        stands = counted and len(records) > 0
        try:
            if stands:
                self._line.stand_in_line(stack, len(records))
            while done < len(records):
                done += take(done)
        except BaseException:
            if not named:
                self._admission.give_back(records["position"][done:].tolist())
            raise
        finally:
            if stands:
                self._line.leave_line(stack)

    @abstractmethod
    def _take_part(
        self, pixels: npt.NDArray[Any], records: npt.NDArray[np.void], *, counted: bool, copy: bool
    ) -> int:
        """Begins and completes the first of these frames, as many as there is room for at once, or drops as
        many. Returns how many places they have."""

    @abstractmethod
    def _skip_part(self, records: npt.NDArray[np.void], *, counted: bool) -> int:
        """Begins and completes the first of these places, as many as there is room for at once. Returns how
        many."""

    def _check_declares(self) -> None:
        """Raises ``VersionError`` for a daemon that knows neither skipped places nor a declared extent."""

    def flush(self, level: FlushLevel | float | None = "durable", timeout_s: float | None = None) -> None:
        """Waits until every frame appended so far is ``durable``: it survives a power cut. Or ``stored``: it
        survives a kill of the process that writes; nothing is synced for that. Or ``visible``: any reader of
        the files sees it, such as zarr-python; what is stored is shown at once for that, and nothing is
        sealed early. A number in place of the level is the timeout.

        Raises ``VisibilityError`` as soon as only more frames, or the end, can make a frame visible: with
        ``live: none`` its shard is not full, else its chunk is not. ``TimedOutError`` after ``timeout_s``, or
        what broke the pipeline or ended the session; ``DuplicateFrameError`` as ``append`` does, once the
        others are there; ``VersionError`` for a daemon of an earlier release, which knows nothing of
        ``visible``."""
        if not isinstance(level, str):  # the timeout, as in release 0.2
            timeout_s, level = level if timeout_s is None else timeout_s, "durable"
        if level not in get_args(FlushLevel):
            raise ValueError(f"flush({level!r}): the level is one of {', '.join(get_args(FlushLevel))}")
        self._line.flush(level, timeout_s)

    def update_metadata(
        self,
        attributes: Mapping[str, Any] = MappingProxyType({}),
        *,
        image: str | None = None,
        position: Mapping[str, Any] | None = None,
        remove: Iterable[str] = (),
        timeout_s: float | None = None,
    ) -> None:
        """Adds JSON to the attributes in the zarr.json of the store's group, or of an ``image``'s; a name
        that is there gets the new value. ``remove``: names of attributes that go; one that is not there is no
        error. ``position``: where the image is on the stage, as that of ``Image``; what it does not name
        stays as it was declared or told before.

        Below the name ``ome`` an image takes additions to what shardwright writes there: ``name`` and
        ``metadata`` of its multiscale, and ``omero``, whose ``channels`` are in their order, each with the
        fields that change (``label``, ``color``, ``window``, ``active`` and others), ``{}`` for none. A
        window has at least ``start`` and ``end``; one that is given here is kept in place of the one that is
        found from the pixels. To remove ``"ome.name"``, ``"ome.metadata"`` or ``"ome.omero"`` takes these
        additions back.

        Once it returned, a kill or a power cut loses nothing of it. While the daemon is away it waits, and
        while 64 others of this stream have no answer yet. What is told of an image that never gets a frame
        is in a group without an image, in its folder. ``shardwright.update_metadata`` changes a finished
        store.

        Raises ``UnknownImageError``, ``MetadataError`` (no JSON, what is ours, no position, too long for a
        message, or with all before more than 1 MiB), ``StorageError`` when they cannot be written,
        ``TimedOutError``, ``ClosedError``, or what broke the pipeline or ended the session; ``VersionError``
        for a daemon of an earlier release.
        """
        self._line.check_process()
        number = None if image is None else self.images.number_of(image)
        told = None if position is None else parsed_position(position)
        update = checked_update(attributes, told, self.images.array_of(number), remove)
        self._update(number, update.to_json(), timeout_s)

    @abstractmethod
    def _update(self, image: int | None, attributes: dict[str, Any], timeout_s: float | None) -> None:
        """As ``update_metadata``, of checked arguments."""

    def add_image(
        self,
        name: str,
        *,
        array: ArraySpec | Mapping[str, Any] | None = None,
        position: Mapping[str, Any] | None = None,
        path: str | None = None,
        attributes: Mapping[str, Any] = MappingProxyType({}),
        timeout_s: float | None = None,
    ) -> None:
        """Adds an image to a running acquisition of named images, or a field to one of a plate
        (``"C/5/0"``, in a well that need not have been declared). Once it returned ``append`` takes frames
        with ``image=name``, and a kill or a power cut loses nothing of it. To call it again with the same
        arguments changes nothing. ``array``: the acquisition's without it; ``position``, ``path`` and
        ``attributes`` as those of ``Image``. As of declared images, those without a frame have no folder.

        With an order the acquisition's must begin with "p": the places of the new image are the last ones. To
        a daemon that is away it waits.

        Raises ``SpecError`` for what cannot be, or does not go with the other images; ``OutputExistsError``
        or ``LinkError`` where another program has put something in place of its folder; ``BudgetError`` for
        frames, chunks or shards larger than what the acquisition has made room for, or for more chunks that
        are open at once; ``StorageError``, ``TimedOutError``, ``ClosedError``, or what broke the pipeline or
        ended the session; ``VersionError`` for a daemon of an earlier release.
        """
        self._line.check_open()
        facts = {"name": name, "array": array, "position": position, "path": path, "attributes": attributes}
        if isinstance(attributes, Mapping):  # else the parser says what is wrong with them
            facts["attributes"] = dict(attributes)
        image = parse_image(facts)
        if name not in self.images.names:  # else whoever has the store compares them
            self.images.with_images((image,))
        self._add(image, timeout_s)

    @abstractmethod
    def _add(self, image: Image, timeout_s: float | None) -> None:
        """As ``add_image``, of checked arguments."""

    @abstractmethod
    def close(self, *, extent: Extent = "frames") -> Receipt | None:
        """Ends the acquisition: seals every shard, writes the final metadata, and returns the receipt. A
        store that never got a frame is removed. Each array ends with its newest frame along the first axis;
        with ``extent="declared"`` one to which a frame came keeps the length that was declared, if there is
        one: the rest is fill value, and counts as missing.

        Raises what broke the pipeline or ended the session; ``DuplicateFrameError`` as ``append`` does, once
        everything is sealed. Later calls raise nothing, and return the same receipt; None for a stream that
        was lost.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it. After an exception in the block the frames that came are still sealed, and that
        exception propagates."""
        try:
            self.close()
        except Exception as closing:
            if error is None:
                raise
            error.add_note(f"closing the {type(self).__name__.lower()} also failed: {closing}")
