"""The one way in which JSON is read: of stores, of files of ours and of peers: anybody may have written it.

Python's own reader takes any depth up to the interpreter's limit of recursion, and code that then copies or
writes the values (``copy.deepcopy``, ``json.dumps``) reaches that limit at a third of it. It also takes NaN,
and makes an infinity of 1e999, of which ``int`` raises an error that no check of a number expects. Both are
refused here, once. Who reads the text bounds its length.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# attributes may have 64 levels (``array.spec``), shards within shards 32; consolidated metadata add 4 more
MOST_DEPTH = 128
_OF_USERS = ("attributes", "consolidated_metadata")


def parse_json(text: bytes | str, *, may_be_nan: bool = False, nan_is_null: bool = False) -> Any:
    """Returns the value of a JSON text. Raises ``ValueError`` for any other text, and for one that is nested
    too deep or has a number that is not finite. ``may_be_nan``: NaN and the infinities are taken, as other
    programs write them into attributes. ``nan_is_null``: they become None, of values that are to be JSON."""
    text = text if isinstance(text, str) else text.decode()
    try:
        value = (_NULLING if nan_is_null else _LENIENT if may_be_nan else STRICT_JSON).decode(text)
    except RecursionError:
        raise _too_deep() from None
    for _ in _levels(value):
        pass
    return value


def parse_metadata(text: bytes | str) -> Any:
    """As ``parse_json``, for the metadata of a group or an array: only its attributes, and copies of those of
    other nodes, may hold NaN and the infinities."""
    value = parse_json(text, may_be_nan=True)
    named = value if isinstance(value, dict) else {"": value}
    for level in _levels([part for name, part in named.items() if name not in _OF_USERS]):
        if not all(math.isfinite(each) for each in level if type(each) is float):
            raise ValueError("a number is not finite")
    return value


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yields the values at each depth. Not by recursion, which would need as much of the stack as what it is
    to prevent. Raises ``ValueError``."""
    level = [value]
    for depth in itertools.count():
        yield level
        if not (nested := [each for each in level if isinstance(each, dict | list)]):
            return
        if depth == MOST_DEPTH:
            raise _too_deep()
        level = [inner for each in nested for inner in (each.values() if isinstance(each, dict) else each)]


def _too_deep() -> ValueError:
    return ValueError(f"it is nested too deep, more than {MOST_DEPTH} lists and objects in each other")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no number of JSON")
    return number


STRICT_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_LENIENT = json.JSONDecoder()
_NULLING = json.JSONDecoder(parse_constant=lambda _: None)
