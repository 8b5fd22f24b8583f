"""JSON of files of ours and of stores, which anybody may have written."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: bytes | str) -> Any:
    """Returns the value of a JSON text. Raises ``ValueError`` for any other text, and for one that is nested
    too deep or has a number that is not finite: ``int`` of such a one raises yet another error."""
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no number of JSON")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
