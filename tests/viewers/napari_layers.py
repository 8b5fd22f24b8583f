"""python napari_layers.py STORE FOLDER: what napari's reader for OME-Zarr makes of a store, without a
display. Saves the pixels of each layer as N.npy, and prints their facts as JSON."""

import contextlib
import json
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
from napari_ome_zarr import napari_get_reader  # noqa: E402

store, folder = sys.argv[1:]
with contextlib.redirect_stdout(sys.stderr):
    layers = napari_get_reader(store)(store)
    for number, (levels, _, _) in enumerate(layers):
        np.save(f"{folder}/{number}.npy", np.asarray(levels[0]))
print(json.dumps([[facts["name"], facts["contrast_limits"]] for _, facts, _ in layers]))
