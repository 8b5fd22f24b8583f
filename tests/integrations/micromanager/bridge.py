"""Micro-Manager's acquisition engine as a camera of shardwright: an image for each stage position and grid
tile of a useq sequence, and each frame that the engine emits appended at its own place."""

import re
from collections import Counter, defaultdict

import numpy as np
from pymmcore_plus.mda import mda_listeners_connected
from useq import WellPlatePlan

import shardwright as sw
from shardwright.writer.writer import Writer

UNITS = {"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"}


class Images:
    """The images of a sequence. ``spec``: for ``sw.create`` or ``daemon.acquire``. Planes and channels that
    are skipped stay empty; a position may have plans of its own; a plate becomes one of OME-Zarr."""

    def __init__(self, sequence, core):
        plate = plate_of(sequence)
        self.names, counts, channels, fields = {}, defaultdict(Counter), defaultdict(dict), Counter()
        places = defaultdict(lambda: {"t": {}, "z": {}})  # of an image: seconds and micrometers by index
        for event in sequence:
            key = key_of(event)
            for axis, number in event.index.items():
                counts[key][axis] = max(counts[key][axis], number + 1)
            if event.channel is not None:
                channel = sw.Channel(name=event.channel.config, exposure_ms=event.exposure)
                channels[key].setdefault(event.index.get("c", 0), channel)
            for axis, place in (("t", event.min_start_time), ("z", event.z_pos)):
                if place is not None and axis in event.index:
                    places[key][axis].setdefault(event.index[axis], place)
            if plate is not None and key not in self.names:
                at = sequence.stage_positions[event.index["p"]]
                well = f"{plate.rows[at.plate_row]}/{plate.columns[at.plate_col]}"
                self.names[key] = f"{well}/{fields[well]}"
                fields[well] += 1
            self.names.setdefault(key, "_".join(filter(None, (*key, event.pos_name))) if key else None)
        used = set().union(*counts.values())
        order = [axis for axis in dict.fromkeys((*sequence.axis_order, *"tpgcz")) if axis in used]
        change = max((i for i, axis in enumerate(order) if axis in "pg"), default=-1)  # to another image
        self.axes = {key: [axis for axis in order if axis in "tcz" and axis in counts[key]] for key in counts}
        arrays = {
            self.names[key]: sw.default_layout(
                shape=(*(counts[key][axis] for axis in axes), core.getImageHeight(), core.getImageWidth()),
                axes=(*axes, "y", "x"),
                dtype=f"uint{8 * core.getBytesPerPixel()}",
                chunks={axis: 1 for axis in axes if axis in order[:change]},  # else all images wait
                scales=dict.fromkeys("yx", core.getPixelSizeUm())
                | {axis: step_of(places[key][axis]) for axis in axes if axis in "tz"},
                units={axis: unit for axis, unit in UNITS.items() if axis in (*axes, "y", "x")},
                channels=[channels[key][number] for number in sorted(channels[key])],
            )
            for key, axes in self.axes.items()
        }
        usual = next(iter(arrays.values()))
        several = {}
        if change >= 0:
            own = {name: array for name, array in arrays.items() if array != usual}
            names = own if plate is not None else arrays
            images = [sw.Image(name=n, array=own.get(n), path=None if plate else folder_of(n)) for n in names]
            several = {"images": images, "plate": plate}
        if change >= 0 and len({tuple(axes) for axes in self.axes.values()}) == 1:
            visits = ("p" if i == change else axis for i, axis in enumerate(order))
            several["order"] = [axis for i, axis in enumerate(visits) if i == change or axis in "tcz"]
        self.spec = sw.AcquisitionSpec(array=usual, **several)

    def place(self, event):
        """The image and the index of an event's frame."""
        key = key_of(event)
        return self.names[key], tuple(event.index[axis] for axis in self.axes[key])


def folder_of(name):
    """The folder of an image in the store: its name, as far as a folder can have it."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)


def step_of(places):
    """The distance of places, which are by index; 0, which is not known, if they are not evenly apart."""
    steps = np.abs(np.diff([places[index] for index in sorted(places)]))
    return float(steps.mean()) if steps.size and np.ptp(steps) < 1e-6 * steps.mean() else 0


def key_of(event):
    """What the events of an image have in common: stage position and tile of a grid, if the sequence has
    them."""
    return tuple(f"{axis}{event.index[axis]}" for axis in "pg" if axis in event.index)


def plate_of(sequence):
    plan = sequence.stage_positions
    if not isinstance(plan, WellPlatePlan):
        return None
    fields = plan.num_points_per_well * max(1, sequence.sizes.get("g", 0))
    return sw.Plate(rows=plan.plate.rows, columns=plan.plate.columns, fields=fields)


class FramesToWriter:
    """Listens in the engine's own thread, so that back-pressure reaches it. ``writer``: that of ``create``,
    or a stream of the daemon. ``errors`` holds what append raised, ``frames`` what was emitted, by place."""

    def __init__(self, images, writer):
        self.images, self.writer = images, writer
        self.frames = {}
        self.errors = []

    def frameReady(self, pixels, event, meta):  # the engine's name for it
        image, index = place = self.images.place(event)
        try:
            metadata = {"exposure_time": meta["exposure_ms"] / 1e3, "delta_t": meta["runner_time_ms"] / 1e3}
            # not measured for frames that the hardware triggers: where the stage was sent, then
            stage = meta.get("position", {"x": event.x_pos, "y": event.y_pos, "z": event.z_pos})
            metadata |= {f"position_{axis}": um for axis, um in stage.items() if um is not None}
            # the engine makes a new array of each frame, and nobody writes into it
            own = {"copy": False} if isinstance(self.writer, Writer) else {}
            self.writer.append(pixels, image=image, index=index, metadata=metadata, **own)
        except Exception as error:
            self.errors.append(error)
        self.frames[place] = pixels.copy()


def acquire(core, sequence, images, writer):
    """Run the sequence into the writer, to its end. Returns the frames by place, as the engine gave them."""
    listener = FramesToWriter(images, writer)
    with mda_listeners_connected(listener, mda_events=core.mda.events, asynchronous=False):
        core.mda.run(sequence)
    if listener.errors:
        raise listener.errors[0]
    return listener.frames
