"""Runs over the door, with the frames as the engine emits them."""

from collections import Counter

import numpy as np
from pymmcore_plus.mda import mda_listeners_connected
from pymmcore_plus.metadata import image_info
from useq import MDASequence

from shardwright.integrations.micromanager import EventImages, SequenceImages, acquire


class Emitted:
    """Listens beside the door. ``frames``: copies, by image and index; ``events``: how many began."""

    def __init__(self, images):
        self.images = images
        self.frames, self.events, self.seen = {}, 0, Counter()

    def eventStarted(self, event):
        self.events += 1

    def frameReady(self, pixels, event, meta):
        image, index = self.images.place(event)
        place = tuple(index.values()) if index else (self.seen[image],)
        self.seen[image] += 1
        self.frames[image, place] = np.array(pixels)


def run(core, events, output, **options):
    """Returns the receipt, and what was emitted."""
    info = image_info(core)
    is_sequence = isinstance(events, MDASequence)
    emitted = Emitted(SequenceImages(events, info) if is_sequence else EventImages(info))
    with mda_listeners_connected(emitted, mda_events=core.mda.events, asynchronous=False):
        receipt = acquire(core, events, output, **options)
    return receipt, emitted
