"""Data types and fill values of the spellings that name them as NumPy does, in terms of Zarr v3.

Zarr v2 specification, "Data type encoding" and "Fill value encoding". The names of those that are not in the
core of Zarr v3 are zarr-python's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardwright.array.fields import check_item_bytes

from .older_array import not_supported

Endian = Literal["little", "big"] | None
_DESCRIPTION = re.compile(r"[<>|]?([biufcmMSUVO])([0-9]*)(\[[0-9]*[a-zA-Zμ]+\])?")
_KNOWN = "bool, integers, floats, complex, datetime64, timedelta64, text or bytes, such as '<u2'"
_ENDIANS: dict[str, Endian] = {"<": "little", ">": "big", "=": "little", "|": None}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class NumpyType:
    """A data type that an older document names as NumPy does. ``data_type``: as in zarr.json. ``kind``,
    ``itemsize``: NumPy's. ``endian``: None for single bytes."""

    data_type: Any
    kind: str
    itemsize: int
    endian: Endian


def numpy_type(field: str, value: Any) -> NumpyType:
    """Returns the type of a description such as ``<u2``. Raises ``ShardFormatError`` naming ``field``."""
    if not isinstance(value, str) or not _DESCRIPTION.fullmatch(value):
        raise not_supported(field, _KNOWN, value, 160)
    check_item_bytes(field, value)
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError, OverflowError):
        raise not_supported(field, _KNOWN, value, 160) from None
    data_type = _data_type(dtype)
    if data_type is None:
        raise not_supported(field, _KNOWN, value, 160)
    return NumpyType(data_type, dtype.kind, dtype.itemsize, _ENDIANS[dtype.byteorder])


def _data_type(dtype: np.dtype[Any]) -> Any:
    bits = 8 * dtype.itemsize
    if dtype.kind == "b":
        return "bool"
    if dtype.kind in "iufc":
        name = {"i": "int", "u": "uint", "f": "float", "c": "complex"}[dtype.kind]
        return f"{name}{bits}" if bits <= (128 if dtype.kind == "c" else 64) else None
    if dtype.kind == "O":
        return "string"
    if dtype.kind in "mM":
        unit, count = np.datetime_data(dtype)
        name = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
        return {"name": name, "configuration": {"unit": unit, "scale_factor": count}}
    name = {"S": "null_terminated_bytes", "U": "fixed_length_utf32", "V": "raw_bytes"}[dtype.kind]
    return {"name": name, "configuration": {"length_bytes": dtype.itemsize}} if dtype.itemsize else None


def fill_value(field: str, value: Any, of: NumpyType) -> Any:
    """Returns the fill value as in zarr.json. None, for elements that may be anything, becomes zero. Raises
    ``ShardFormatError`` naming ``field``."""
    found = _fill_value(value, of)
    if found is None:
        raise not_supported(field, f"a {of.data_type}", value)
    return found


def _fill_value(value: Any, of: NumpyType) -> Any:
    """Returns None for one that is none of this type."""
    if of.kind in "SUVO":
        # base64 for bytes in both, text as it is
        absent = "" if of.kind != "V" else "A" * (-(-of.itemsize // 3) * 4)
        return (
            absent if value in (None, 0) and value is not False else value if isinstance(value, str) else None
        )
    if of.kind == "c":
        parts = [0.0, 0.0] if value in (None, 0) else value
        if not isinstance(parts, list) or len(parts) != 2:
            return None
        both = [_number(part) for part in parts]
        return None if None in both else both
    value = 0 if value is None else value
    if of.kind == "b":
        return bool(value) if value in (0, 1) else None
    if of.kind == "f":
        return _number(value)
    if of.kind in "mM" and value == "NaT":
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return value if value in _NOT_FINITE else None
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:  # an integer of any length
        return None
