"""Runs over the door, with the frames as the engine emits them."""

from collections import Counter

import numpy as np
from pymmcore_plus.mda import mda_listeners_connected
from pymmcore_plus.metadata import summary_metadata
from useq import MDASequence

from shardwright.integrations.micromanager import EventImages, SequenceImages, acquire


def image_info(core):
    return summary_metadata(core)["image_infos"][0]


class Emitted:
    """Listens beside the door. ``frames``: copies, by image and index; ``events``: how many began."""

    def __init__(self, images):
        self.images = images
        self.frames, self.events, self.seen = {}, 0, Counter()

    def eventStarted(self, event):
        self.events += 1

    def frameReady(self, pixels, event, meta):
        image, index = place = self.place(event)
        if not index:
            place = image, (self.seen[image],)
        self.seen[image] += 1
        self.frames[place] = np.array(pixels)

    def place(self, event):
        """The image, and the index in the order of the array's axes."""
        image, index = self.images.place(event)
        axes = sorted(index or {}, key="tcz".find)
        if isinstance(self.images, SequenceImages):
            spec = self.images.spec
            axes = axes_of(spec.arrays[spec.names.index(image or "")])
        return image, tuple(index[axis] for axis in axes)


def axes_of(array):
    """The axes of a frame's index."""
    return [d.name for d in array.dimensions[:-2]][: -1 if array.interleaved else None]


def run(core, events, output, **options):
    """Returns the receipt, and what was emitted."""
    info = image_info(core)
    is_sequence = isinstance(events, MDASequence)
    emitted = Emitted(SequenceImages(events, info) if is_sequence else EventImages(info))
    with mda_listeners_connected(emitted, mda_events=core.mda.events, asynchronous=False):
        receipt = acquire(core, events, output, **options)
    return receipt, emitted
