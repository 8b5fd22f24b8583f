"""Sizes by axis, as users write them: ``z=64,y=64,x=64``."""

from __future__ import annotations

import re

_SIZE = r"[A-Za-z][A-Za-z0-9_]*=[1-9][0-9]{0,9}"
AXIS_SIZES_PATTERN = rf"^{_SIZE}(,{_SIZE})*$"


def parse_axis_sizes(text: str) -> dict[str, int]:
    """Returns elements by axis. Raises ``ValueError``."""
    text = text.replace(" ", "")
    pairs = [part.partition("=") for part in text.split(",")]
    if not re.fullmatch(AXIS_SIZES_PATTERN, text) or len({name for name, _, _ in pairs}) < len(pairs):
        raise ValueError(f"expected axes and sizes such as z=64,y=64,x=64, each axis once, got {text!r}")
    return {name: int(size) for name, _, size in pairs}
