"""Values as people write them, turned into those of a specification: units, colours, attributes with NumPy's
numbers, and the index of a frame."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.model.errors import FrameIndexError

Index = Sequence[int] | Mapping[str, int] | int  # in the order of acquisition, by axis, of the only axis
# OME-Zarr takes the names of UDUNITS-2 alone
_UNITS = {
    "angstrom": ("\u00c5", "\u212b"),
    "picometer": ("pm", "picometre"),
    "nanometer": ("nm", "nanometre"),
    "micrometer": ("um", "\u00b5m", "\u03bcm", "micron", "micrometre"),  # the sign for micro, and mu
    "millimeter": ("mm", "millimetre"),
    "centimeter": ("cm", "centimetre"),
    "meter": ("m", "metre"),
    "nanosecond": ("ns", "nsec"),
    "microsecond": ("us", "\u00b5s", "\u03bcs", "usec"),
    "millisecond": ("ms", "msec"),
    "second": ("s", "sec", "secs"),
    "minute": ("min", "mins"),
    "hour": ("h", "hr", "hrs", "hours"),
    "day": ("d", "days"),
}
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words}
_UNIT_OF |= {f"{word}s": unit for unit, words in _UNITS.items() for word in (unit, *words) if len(word) > 4}
# of all that OME-Zarr has
_LENGTHS, _TIMES = {"angstrom", "foot", "inch", "mile", "parsec", "yard"}, {"minute", "hour", "day"}
# as lamps and viewers of microscopes have them: CSS has a darker green
COLORS = {"red": "FF0000", "green": "00FF00", "blue": "0000FF", "cyan": "00FFFF", "magenta": "FF00FF"}
COLORS |= {"yellow": "FFFF00", **dict.fromkeys(("white", "gray", "grey"), "FFFFFF")}


def any_case(words: Iterable[str]) -> str:
    """Returns the regular expression of these words without regard to case, as JSON Schema takes it."""
    return "|".join("".join(f"[{c.upper()}{c}]" if c.isalpha() else c for c in word) for word in words)


COLOR_PATTERN = rf"^(#?[0-9A-Fa-f]{{6}}|{any_case(COLORS)})$"


def ome_unit(unit: Any) -> Any:
    """Returns the unit by the name that OME-Zarr has for it; as it is where there is none."""
    return _UNIT_OF.get(unit, unit) if isinstance(unit, str) else unit


def unit_kind(unit: str) -> str | None:
    """Returns the type of the axes that a unit is of, None of one that OME-Zarr does not have."""
    if unit.endswith("second") or unit in _TIMES:
        return "time"
    return "space" if unit.endswith("meter") or unit in _LENGTHS else None


def hex_color(color: Any) -> Any:
    """Returns six hexadecimal digits for a colour with ``#``, or for its name; else the value as it is."""
    return COLORS.get(color.lower(), color.removeprefix("#")) if isinstance(color, str) else color


def plain_value(value: Any) -> Any:
    """Turns NumPy's scalars and arrays into values that JSON has. Raises ``TypeError``."""
    if isinstance(value, np.longdouble):  # of which NumPy has no Python value
        return float(value)
    if isinstance(value, np.generic | np.ndarray) and not isinstance(value, np.clongdouble):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def is_whole(value: Any) -> bool:
    """Returns whether a value is a whole number, of Python or NumPy; True and False are none."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iu"
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def frame_index(given: Any, axes: Sequence[str]) -> tuple[int, ...]:
    """Returns the index of a frame along ``axes``: of numbers in their order, by the name of each, or of one
    alone. Raises ``TypeError`` where one is no whole number, ``FrameIndexError`` for other axes."""
    if isinstance(given, Mapping):
        check_axes(given, axes, "the index of a frame")
        if missing := [name for name in axes if name not in given]:
            raise FrameIndexError(
                f"the index of a frame lacks the axis {missing[0]!r}",
                expected=f"a number for each of {', '.join(axes)}",
                got=repr(dict(given))[:80],
            )
        given = [given[name] for name in axes]
    elif is_whole(given):
        if len(axes) > 1:
            raise FrameIndexError(
                f"the index of a frame is one number, and there are {len(axes)} axes",
                expected=f"a number for each of {', '.join(axes)}",
                got=given,
                hint=f"Name them: index={dict.fromkeys(axes, 0) | {axes[0]: operator.index(given)}}",
            )
        given = (given,)
    at = tuple(operator.index(i) for i in given)
    if any(isinstance(i, bool) for i in given):
        raise TypeError("True and False are no numbers of a frame")
    return at


def check_axes(given: Mapping[str, Any], axes: Sequence[str], what: object) -> None:
    """Raises ``FrameIndexError`` if ``what``, given by axis, names one that there is not."""
    if unknown := [name for name in given if name not in axes]:
        expected = f"some of {', '.join(axes)}" if axes else "no index: the image is a single frame"
        raise FrameIndexError(f"{what} has no axis {unknown[0]!r}", expected=expected)
