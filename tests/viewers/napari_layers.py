"""python napari_layers.py STORE FOLDER: what napari's reader for OME-Zarr makes of a store, without a
display. Saves the pixels of each channel as N.npy, and prints their facts as JSON."""

import contextlib
import json
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
from napari_ome_zarr import napari_get_reader  # noqa: E402


def channels(levels, facts):
    """Before release 0.11 one layer has all channels of an image, along an axis."""
    axis = facts.get("channel_axis")
    if axis is None:
        yield facts["name"], facts["contrast_limits"], levels[0]
        return
    for i, (name, limits) in enumerate(zip(facts["name"], facts["contrast_limits"], strict=True)):
        yield name, limits, np.take(levels[0], i, axis)


store, folder = sys.argv[1:]
with contextlib.redirect_stdout(sys.stderr):
    layers = napari_get_reader(store)(store)
    found = [channel for levels, facts, _ in layers for channel in channels(levels, facts)]
    for number, (_, _, pixels) in enumerate(found):
        np.save(f"{folder}/{number}.npy", np.asarray(pixels))
print(json.dumps([[name, limits] for name, limits, _ in found]))
