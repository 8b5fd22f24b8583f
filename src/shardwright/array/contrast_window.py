"""Contrast windows: the pixel values between which viewers show a channel, found from a sample of its pixels,
and their form in the metadata of an image.

    "omero": {"channels": [{"window": {"min": 0, "max": 4095, "start": 101, "end": 2210}, ...}, ...]}

``start`` and ``end`` are shown as black and as the full colour, ``min`` and ``max`` are the ends of the
slider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .fields import is_finite
from .spec import OWN_ATTRIBUTE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

# Of so many pixels the darkest and the brightest are left out: percentiles 0.1 and 99.9. Hot and dead pixels
# are fewer, a bright cell in a dark field has more.
_ONE_OF = 1000
_LEAST_BITS = 8
_ALIKE = 0.02  # of its width: two windows that differ by less look the same
MARK = "windows"
"""Below our attribute of an image's group: the numbers of the channels whose window a user has chosen."""


class ContrastWindow(NamedTuple):
    """Pixel values, ``min`` <= ``start`` < ``end`` <= ``max``."""

    min: float
    max: float
    start: float
    end: float


def contrast_window(values: npt.NDArray[Any]) -> ContrastWindow | None:
    """Returns the window of a sample of pixels of any shape and dtype; None if no finite one is among them.

    The slider ends where as many bits as the largest value has end: a 12-bit camera's at 4095. That of floats
    has the range of the sample.
    """
    if values.dtype.kind == "b":
        return ContrastWindow(0, 1, 0, 1) if values.size else None
    kept = np.sort(values[np.isfinite(values)] if values.dtype.kind == "f" else values.ravel())
    if not kept.size:
        return None
    last = kept.size - 1
    start, end = kept[last // _ONE_OF].item(), kept[last - last // _ONE_OF].item()
    least, most = _slider(kept[0].item(), kept[-1].item(), kept.dtype)
    if start == end:  # one value alone is shown as black, or as the full colour if it is the brightest
        step = 1 if kept.dtype.kind in "iu" else max(1.0, abs(start) * 1e-3)
        limit = most if kept.dtype.kind in "iu" else float(np.finfo(kept.dtype).max)
        start, end = (start, start + step) if start + step <= limit else (start - step, start)
    return ContrastWindow(min(least, start), max(most, end), start, end)


def _slider(lowest: float, highest: float, dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "f":
        return lowest, highest
    info, signed = np.iinfo(dtype), lowest < 0
    negative = (-1 - int(lowest)).bit_length() if signed else 0
    bits = max(_LEAST_BITS - signed, int(highest).bit_length(), negative)
    return max(int(info.min), -(2**bits)) if signed else 0, min(int(info.max), 2**bits - 1)


def with_windows(group: dict[str, Any], windows: Mapping[int, ContrastWindow]) -> dict[str, Any]:
    """Returns the zarr.json of an image's group with ``windows`` by number of the channel, as far as it
    describes these channels; all else stays as it is, whoever wrote it. So does a window that a user has
    chosen, and one that nobody could tell from the new one: with very many images most need not be written
    again then."""
    try:
        attributes = group["attributes"]
        omero = attributes["ome"]["omero"]
        chosen, channels = user_windows(attributes), omero["channels"]
        new = {
            number: {**channels[number], "window": window._asdict()}
            for number, window in windows.items()
            if number not in chosen and not _looks_alike(channels[number].get("window"), window)
        }
        if not new:
            return group
        described = [new.get(number, channel) for number, channel in enumerate(channels)]
        ome = {**attributes["ome"], "omero": {**omero, "channels": described}}
    except (LookupError, TypeError, AttributeError):
        return group
    return {**group, "attributes": {**attributes, "ome": ome}}


def user_windows(attributes: Mapping[str, Any]) -> set[int]:
    """Returns the channels of an image whose window a user has chosen (``MARK``)."""
    own = attributes.get(OWN_ATTRIBUTE)
    marked = own.get(MARK) if isinstance(own, dict) else None
    return {number for number in marked if type(number) is int} if isinstance(marked, list) else set()


def look_alike(old: Mapping[int, ContrastWindow], new: Mapping[int, ContrastWindow]) -> bool:
    """Returns whether nobody could tell the ``new`` windows, by number of the channel, from the ``old``."""
    return all(n in old and _looks_alike(old[n]._asdict(), window) for n, window in new.items())


def _looks_alike(old: Any, new: ContrastWindow) -> bool:
    try:
        slider, start, end = (old["min"], old["max"]), old["start"], old["end"]
    except (LookupError, TypeError):
        return False
    # anybody may have written it: an integer past every float raises in arithmetic with one
    if slider != (new.min, new.max) or not (is_finite(start) and is_finite(end)):
        return False
    moved: float = max(abs(start - new.start), abs(end - new.end))
    return moved <= _ALIKE * (new.end - new.start)
