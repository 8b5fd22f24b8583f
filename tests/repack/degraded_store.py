"""A store as an overloaded writer leaves it: each slab at a level of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import shardwright as sw
from shardwright.acquire.overload_level import OverloadLevel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy as np

    from shardwright.codecs.degrade import DegradeLevel
    from shardwright.model.receipt import Receipt


def write(
    path: Path, spec: sw.ArraySpec, slabs: Iterable[Sequence[np.ndarray]], levels: Sequence[DegradeLevel]
) -> Receipt:
    """``slabs``: the frames of each; they take the levels in turn, whatever the ring says."""
    with (
        mock.patch.object(OverloadLevel, "look", return_value=None),
        sw.create(path, spec, overload="degrade") as writer,
    ):
        for i, frames in enumerate(slabs):
            writer._acquisition._core.encoders.overload.level = levels[i % len(levels)]
            for frame in frames:
                writer.append(frame)
            writer.flush()  # written at this level before the next one
    return writer.receipt
