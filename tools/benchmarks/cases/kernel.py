"""The part ``kernel``: frames to encoded chunks in memory on one core, beside the same compression by the
Blosc libraries.

A pass encodes a slab of 16 frames, 134 MB. Ours gathers the chunks from the frames and computes the checksum
of each; *numcodecs* (c-blosc) and *blosc2* (c-blosc2) get chunks that are contiguous already, and choose
their block sizes. Passes are in turn, in processor time; each figure is a median, each ratio one of passes
side by side. *sample* and *all*: ours with that encode check, as a multiple of the time without one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from statistics import mean, median
from typing import Any

import blosc2
import numcodecs.blosc
import numpy as np
import numpy.typing as npt

from benchmarks.peers.kernel_floor import SlabKernel
from benchmarks.processes import say
from benchmarks.testbed import Places
from shardwright.kernels.encode_check import CHECK_ALL, CHECK_SAMPLE

from . import SCENES, Asked, Case, least_and_most

CODECS = (("lz4", "shuffle"), ("lz4", "bitshuffle"), ("zstd", "shuffle"))
LEVEL, ROUNDS = 1, 15
ASKED = (Asked("of_blosc2", "on one core: at least as fast as c-blosc2 by itself", 1.0, at_least=True),)
COLUMNS = {
    "GB/s": "gb_per_s",
    "ratio": "ratio",
    "blosc2 GB/s": "blosc2_gb_per_s",
    "ratio of blosc2": "blosc2_ratio",
    "numcodecs GB/s": "numcodecs_gb_per_s",
    "ratio of numcodecs": "numcodecs_ratio",
    "sample": "sample_of_none",
    "all": "all_of_none",
    "of blosc2": "of_blosc2",
    "least": "of_blosc2_spread.least",
    "most": "of_blosc2_spread.most",
}
Chunks = list[npt.NDArray[np.uint16]]
Pass = Callable[[], int]  # returns the encoded bytes


def measure(places: Places, quick: bool) -> dict[str, Any]:
    rounds = 2 if quick else ROUNDS
    rows = []
    for scene in SCENES:
        case = Case(scene=scene, distinct=Case.chunk[0])
        frames = case.draw()
        rows += [one(frames, cname, shuffle, scene, rounds) for cname, shuffle in CODECS]
    return {"settings": {"level": LEVEL, "rounds": rounds}, "rows": rows}


def one(frames: npt.NDArray[np.uint16], cname: str, shuffle: str, scene: str, rounds: int) -> dict[str, Any]:
    """The row of a scene and a codec. ``frames``: those of one slab."""
    height, width = frames.shape[1:]
    case = Case(scene=scene, cname=cname, shuffle=shuffle, clevel=LEVEL, shape=(height, width))
    kernel = SlabKernel(case, frames)
    chunks, slabs = contiguous(frames, case.chunk), itertools.count(1)
    passes: dict[str, Pass] = {
        "ours": lambda: kernel.encode(0, kernel.chunks),
        "sample": lambda: kernel.encode(0, kernel.chunks, (CHECK_SAMPLE, next(slabs) * kernel.chunks)),
        "all": lambda: kernel.encode(0, kernel.chunks, (CHECK_ALL, 0)),
        "blosc2": lambda: by_blosc2(chunks, cname, shuffle),
        "numcodecs": lambda: by_numcodecs(chunks, cname, shuffle),
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    sizes: dict[str, int] = {}
    for number in range(rounds + 1):  # the first one warms up
        for name, run in passes.items():
            begin_s = time.thread_time()
            sizes[name] = run()
            if number:
                seconds[name].append(time.thread_time() - begin_s)
    found = row(f"{cname}-{shuffle}/{scene}", scene, frames.nbytes, seconds, sizes)
    say(f"{found['name']}: {found['gb_per_s']:.2f} GB/s, {found['of_blosc2']:.2f} of blosc2")
    return found


def row(
    name: str, scene: str, raw_bytes: int, seconds: dict[str, list[float]], sizes: dict[str, int]
) -> dict[str, Any]:
    figures: dict[str, Any] = {"name": name, "headline": scene == SCENES[0]}
    for writer in ("ours", "blosc2", "numcodecs"):
        times = seconds[writer]
        prefix = "" if writer == "ours" else f"{writer}_"
        figures[f"{prefix}gb_per_s"] = round(raw_bytes / median(times) / 1e9, 3)
        figures[f"{prefix}ratio"] = round(raw_bytes / sizes[writer], 3)
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["blosc2"], strict=True)]
    for check in ("sample", "all"):
        # the mean of a sample: most of its passes have one chunk to check, some none or two
        figures[f"{check}_of_none"] = round(mean(seconds[check]) / mean(seconds["ours"]), 4)
    return {**figures, "of_blosc2": round(median(ratios), 4), "of_blosc2_spread": least_and_most(ratios)}


def contiguous(frames: npt.NDArray[np.uint16], chunk: tuple[int, int, int]) -> Chunks:
    """The chunks of a slab, each in memory of its own."""
    _, height, width = chunk
    _, rows, columns = frames.shape
    return [
        np.ascontiguousarray(frames[:, top : top + height, left : left + width])
        for top in range(0, rows, height)
        for left in range(0, columns, width)
    ]


def by_blosc2(chunks: Chunks, cname: str, shuffle: str) -> int:
    filters = {"shuffle": blosc2.Filter.SHUFFLE, "bitshuffle": blosc2.Filter.BITSHUFFLE}
    settings = blosc2.CParams(
        codec=blosc2.Codec[cname.upper()], clevel=LEVEL, typesize=2, nthreads=1, filters=[filters[shuffle]]
    )
    return sum(len(blosc2.compress2(chunk, cparams=settings)) for chunk in chunks)


def by_numcodecs(chunks: Chunks, cname: str, shuffle: str) -> int:
    filters = {"shuffle": numcodecs.blosc.SHUFFLE, "bitshuffle": numcodecs.blosc.BITSHUFFLE}
    codec = numcodecs.blosc.Blosc(cname, LEVEL, filters[shuffle])
    numcodecs.blosc.use_threads = False
    return sum(len(codec.encode(chunk)) for chunk in chunks)
