"""A reader that knows nothing of us, in a process of its own: zarr-python on the files of a store, again and
again. It says how many frames it sees, and ends with exit code 1 at the first wrong pixel, or when a frame
goes back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import zarr

SHAPE = (20, 36)


def frame(number: int) -> np.ndarray:
    """No pixel of it is fill value, and no two frames are alike anywhere."""
    size = SHAPE[0] * SHAPE[1]
    noise = np.random.default_rng(number).integers(0, 4, size)
    return (256 + 61 * number + noise).astype(np.uint16).reshape(SHAPE)


def judge(path: Path) -> int:
    """Returns how many frames are seen, all of them right. Raises ``AssertionError`` for a wrong pixel, and
    whatever zarr-python raises."""
    if not path.exists():
        return 0
    pixels = zarr.open_array(path / "0", mode="r")[...]
    for i, seen in enumerate(pixels):
        assert np.array_equal(seen, frame(i)), f"frame {i}: {seen[:2, :8]}"
    return len(pixels)


def main(path: Path) -> None:
    most = refused = looks = 0
    while True:
        looks += 1
        try:
            seen = judge(path)
        except AssertionError:
            raise
        except Exception as error:  # an index in the middle of its change: asked again
            refused += 1
            print(json.dumps({"error": repr(error)[:300], "looks": looks}), flush=True)
            continue
        assert seen >= most, f"{most} frames were seen, now {seen}"
        if seen > most:
            print(json.dumps({"seen": seen, "looks": looks, "refused": refused}), flush=True)
        most = seen


if __name__ == "__main__":
    main(Path(sys.argv[1]))
