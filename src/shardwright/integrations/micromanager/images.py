"""The images of an acquisition of pymmcore-plus, their axes, and the place of each frame.

An image of the store is what lies at one place and is seen by one camera: the indices of stage position
(``p``), tile of a grid (``g``) and camera (``cam``) of an event say which one. All other indices, ``t``,
``c``, ``z``, are axes of the image. Frames of a colour camera have a channel axis of their own already, so
optical channels are images, too, if the camera is one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from useq import AcquireImage, HardwareAutofocus, WellPlatePlan

import shardwright as sw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from useq import MDAEvent, MDASequence

    Key = tuple[str, ...]  # of an image: p0, g1, cam0
    Index = dict[str, int]

CAMERA = "cam"  # pymmcore-plus's axis for the cameras of its Multi Camera
EVENT_SHARD = 64  # frames of a shard where nobody knows how many follow
UNITS = {"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"}


@dataclass(frozen=True)
class FrameForm:
    """The form of all frames: ``shape`` (rows, columns), or of colours (rows, columns, 3). ``cameras``: how
    many take a frame at each event."""

    shape: tuple[int, ...]
    dtype: str
    pixel_um: float
    cameras: int = 1

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> FrameForm:
        """Takes it from the first of ``image_infos`` in pymmcore-plus's summary metadata."""
        cameras = info.get("num_camera_adapter_channels", 1)
        return cls(tuple(info["plane_shape"]), info["dtype"], info["pixel_size_um"] or 0.0, cameras)

    @property
    def image_axes(self) -> str:
        return "pgc" if len(self.shape) > 2 else "pg"

    @property
    def own_axes(self) -> str:
        return "yxc" if len(self.shape) > 2 else "yx"

    def key_of(self, event: MDAEvent, camera: int | None = None) -> Key:
        """Returns what the events of an image have in common; empty if there is one image only."""
        camera = event.index.get(CAMERA) if camera is None else camera
        cameras = () if camera is None or self.cameras == 1 else (f"{CAMERA}{camera}",)
        return *(f"{axis}{event.index[axis]}" for axis in self.image_axes if axis in event.index), *cameras

    def index_of(self, event: MDAEvent) -> Index:
        """Returns the place of an event's frame in its image."""
        others = (*self.image_axes, CAMERA)
        return {axis: number for axis, number in event.index.items() if axis not in others}

    def array(
        self, counts: Mapping[str, int | None], steps: Mapping[str, float], **facts: Any
    ) -> sw.ArraySpec:
        """Returns the array of an image with these frame axes, slowest first. ``steps``: 0 if unknown."""
        axes = (*counts, *self.own_axes)
        return sw.default_layout(
            shape=(*counts.values(), *self.shape),
            axes=axes,
            dtype=self.dtype,
            scales=dict.fromkeys("yx", self.pixel_um) | dict(steps),
            units={axis: unit for axis, unit in UNITS.items() if axis in axes},
            **facts,
        )


@dataclass
class _Places:
    """The places (seconds, micrometers) of an axis' indices, of which only those outside of ``low`` to
    ``high`` are new. ``step``: from one index to the next; 0 if it is not known or they are not evenly
    apart."""

    first: tuple[int, float] | None = None
    low: int = 0
    high: int = 0
    step: float | None = None

    def add(self, index: int, place: float) -> None:
        if self.first is None:
            self.first, self.low, self.high = (index, place), index, index
        elif not self.low <= index <= self.high:
            self.low, self.high = min(self.low, index), max(self.high, index)
            step = (place - self.first[1]) / (index - self.first[0])
            if self.step is None:
                self.step = step
            elif abs(step - self.step) > 1e-6 * abs(self.step):
                self.step = 0.0


@dataclass
class _Seen:
    """The facts of one image in a sequence."""

    counts: Counter[str] = field(default_factory=Counter)
    channels: dict[int, sw.Channel] = field(default_factory=dict)
    places: dict[str, _Places] = field(default_factory=lambda: {"t": _Places(), "z": _Places()})
    position: dict[str, float] = field(default_factory=dict)
    autofocus: dict[str, Any] = field(default_factory=dict)

    def add(self, event: MDAEvent, index: Index) -> None:
        for axis, number in index.items():
            self.counts[axis] = max(self.counts[axis], number + 1)
        if event.channel is not None:
            channel = sw.Channel(name=event.channel.config, exposure_ms=event.exposure)
            self.channels.setdefault(index.get("c", 0), channel)
        for axis, place in (("t", event.min_start_time), ("z", event.z_pos)):
            if place is not None and axis in index:
                self.places[axis].add(index[axis], place)
        self.position = self.position or position_of(event)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the image declares. Where the hardware focuses, z is known once the first frame is
        taken: the store then takes the position of that one."""
        if self.autofocus:
            return {"attributes": {"autofocus": self.autofocus}}
        return {"position": self.position or None}


class SequenceImages:
    """The images of a sequence. ``spec``: for ``sw.create`` or ``daemon.acquire``. Frames that are skipped
    (``acquire_every``, ``do_stack``) stay empty; a position may have plans of its own; a ``WellPlatePlan``
    becomes a plate of OME-Zarr. ``frames_expected``: of all events."""

    def __init__(
        self, sequence: MDASequence, info: Mapping[str, Any], attributes: Mapping[str, Any] | None = None
    ) -> None:
        """``info``: see ``FrameForm.of``. ``attributes``: for the store's group."""
        self._frames = FrameForm.of(info)
        self._names: dict[Key, str | None] = {}
        self.frames_expected = 0
        seen = self._look_through(sequence)
        used = set().union(*(image.counts for image in seen.values()))
        order = [
            axis for axis in dict.fromkeys((*sequence.axis_order, *"tpgcz")) if axis in used | self._moves
        ]
        change = max(
            (i for i, axis in enumerate(order) if axis in self._moves), default=-1
        )  # to another image
        if self._frames.cameras > 1:
            change = len(order)
        arrays = {key: self._array(image, order, change) for key, image in seen.items()}
        usual = next(iter(arrays.values()))
        several: dict[str, Any] = {}
        if change >= 0:
            several = self._several(sequence, seen, arrays, [axis for axis in order[:change] if axis in used])
        elif seen[()].autofocus:
            attributes = {**(attributes or {}), **seen[()].facts["attributes"]}
        self.spec = sw.AcquisitionSpec(array=usual, attributes=dict(attributes or {}), **several)

    def _several(
        self,
        sequence: MDASequence,
        seen: Mapping[Key, _Seen],
        arrays: Mapping[Key, sw.ArraySpec],
        slower: list[str],
    ) -> dict[str, Any]:
        """Returns what an acquisition of several images says of them. ``slower``: the axes that change slower
        than the image."""
        plate = plate_of(sequence)
        usual = next(iter(arrays.values()))
        images = []
        for key, array in arrays.items():
            name, facts = str(self._names[key]), seen[key].facts
            own = None if array == usual else array
            if plate is None:
                images.append(sw.Image(name=name, array=own, path=folder_of(name), **facts))
            elif own is not None or seen[key].autofocus:  # else the plate says it: it has thousands
                images.append(sw.Image(name=name, array=own, **facts))
        several: dict[str, Any] = {"images": images, "plate": plate}
        axes = {tuple(d.name for d in array.dimensions[:-2]) for array in arrays.values()}
        if len(axes) == 1:
            several["order"] = [*slower, "p", *(axis for axis in axes.pop() if axis not in slower)]
        return several

    def _look_through(self, sequence: MDASequence) -> dict[Key, _Seen]:
        seen: defaultdict[Key, _Seen] = defaultdict(_Seen)
        autofocus: dict[Key, dict[str, Any]] = {}
        plate, fields = plate_of(sequence), Counter[str]()
        self._moves: set[str] = set()
        for event in looked_through(sequence):
            if isinstance(event.action, HardwareAutofocus):
                told = event.action.model_dump(mode="json", exclude={"type"}, exclude_none=True)
                autofocus.setdefault(self._frames.key_of(event), told)
            if not isinstance(event.action, AcquireImage):
                continue
            self._moves |= event.index.keys() & set(self._frames.image_axes)
            self.frames_expected += self._frames.cameras
            for camera in range(self._frames.cameras):
                key = self._frames.key_of(event, camera)
                seen[key].add(event, self._frames.index_of(event))
                if key in self._names:
                    continue
                self._names[key] = name_of(key, event) if key else None
                if plate is not None and isinstance(sequence.stage_positions, WellPlatePlan):
                    at: Any = sequence.stage_positions[event.index["p"]]
                    well = f"{plate.rows[at.plate_row]}/{plate.columns[at.plate_col]}"
                    self._names[key] = f"{well}/{fields[well]}"
                    fields[well] += 1
        if not seen:
            raise sw.errors.SpecError("the sequence takes no image", hint="Give it a time plan, or channels")
        for key, told in autofocus.items():
            for image in (image for of, image in seen.items() if of[: len(key)] == key):
                image.autofocus = told
        return seen

    def _array(self, image: _Seen, order: list[str], change: int) -> sw.ArraySpec:
        counts = {axis: image.counts[axis] for axis in order if axis in image.counts}
        return self._frames.array(
            counts,
            {axis: abs(image.places[axis].step or 0.0) for axis in counts if axis in "tz"},
            chunks={axis: 1 for axis in counts if axis in order[: max(change, 0)]},  # else all images wait
            channels=[image.channels[n] for n in sorted(image.channels)] if "c" in counts else [],
        )

    def place(self, event: MDAEvent) -> tuple[str | None, Index]:
        """Returns the image and the index of an event's frame. Raises ``UnknownImageError`` for an event that
        the sequence did not have."""
        key = self._frames.key_of(event)
        if key not in self._names:
            raise sw.errors.UnknownImageError(f"no event of the sequence had the place {dict(event.index)}")
        return self._names[key], self._frames.index_of(event)


class EventImages:
    """The images of events of which nobody knows what follows, as of a queue. Each begins with its first
    event, whose indices are its axes, of any length; without one frames are counted along ``t``. Their shards
    are of one size, since an acquisition plans for those of its first image."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        self._frames = FrameForm.of(info)
        self._known: set[str] = set()
        self.frames_expected = None

    def place(self, event: MDAEvent) -> tuple[str, Index | None]:
        """Returns the image and the index of an event's frame."""
        return name_of(self._frames.key_of(event), event) or "image", self._frames.index_of(event) or None

    def new_image(self, event: MDAEvent) -> dict[str, Any] | None:
        """Returns the arguments of ``add_image`` for an event of an image that has not begun, else None."""
        name, index = self.place(event)
        if name in self._known:
            return None
        self._known.add(name)
        axes = sorted(index or "t", key="ctz".find)  # channels without a count must be the slowest axis
        ones = dict.fromkeys(axes, 1)
        array = self._frames.array(
            dict.fromkeys(axes), {}, chunks=ones, shards={**ones, axes[-1]: EVENT_SHARD}
        )
        return {"name": name, "array": array, "position": position_of(event) or None}


def looked_through(sequence: MDASequence) -> MDASequence:
    """Returns a sequence whose events may be asked for before it runs. useq's autofocus plans remember where
    they focused, and the run would not focus there again: such a sequence is made anew, since a copy would
    share its positions. Others are the same one, since the second look at it gives the same random points."""
    plans = (sequence, *(at.sequence for at in sequence.stage_positions if at.sequence is not None))
    if all(plan.autofocus_plan is None for plan in plans):
        return sequence
    return type(sequence)(**sequence.model_dump(exclude={"uid"}))


def name_of(key: Key, event: MDAEvent) -> str | None:
    return "_".join(filter(None, (*key, event.pos_name))) or None


def folder_of(name: str) -> str:
    """Returns the folder of an image in the store: its name, as far as a folder can have it."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)


def position_of(event: MDAEvent) -> dict[str, float]:
    """Returns where an event sends the stage, in micrometers."""
    places = (("x", event.x_pos), ("y", event.y_pos), ("z", event.z_pos))
    return {axis: place for axis, place in places if place is not None}


def plate_of(sequence: MDASequence) -> sw.Plate | None:
    plan = sequence.stage_positions
    if not isinstance(plan, WellPlatePlan):
        return None
    fields = plan.num_points_per_well * max(1, sequence.sizes.get("g", 0))
    return sw.Plate(rows=plan.plate.rows, columns=plan.plate.columns, fields=fields)
