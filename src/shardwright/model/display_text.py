"""Values as people read them: sizes, durations, and text that came from elsewhere."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Returns a size for display, in binary units: ``128.0 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop ends at TiB")


def size_change(gain_bytes: int) -> str:
    """``3.0 MiB smaller``, ``512 B larger``, ``of the same size``."""
    if gain_bytes == 0:
        return "of the same size"
    return f"{format_bytes(abs(gain_bytes))} {'smaller' if gain_bytes > 0 else 'larger'}"


def duration(seconds: float) -> str:
    """``48 s``, ``5 min``, ``3 h 20 min``, ``12 d 4 h``."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{seconds:.0f} s" if seconds < 59.5 else "1 min"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def plain(text: object) -> str:
    """The text without control characters: names of hosts come from clients."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
