"""Values as people read them: sizes, durations, text that came from elsewhere, and objects in a console or a
Jupyter cell."""

from __future__ import annotations

from abc import abstractmethod
from html import escape


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


MOST_SHOWN = 240  # characters of one fact


class FactSheet:
    """An object that shows facts of itself: in a line as its ``repr``, in Jupyter as a small table. What is
    long is cut."""

    @abstractmethod
    def _facts(self) -> dict[str, object]:
        """Returns the facts by name. Raises nothing: a debugger asks, too."""

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={_cut(value)}" for name, value in self._facts().items())
        return f"<{type(self).__name__} {facts}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(_cut(value))}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"


def _cut(value: object) -> str:
    text = plain(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def plain(text: object) -> str:
    """The text without control characters: names of hosts come from clients."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def one_line(text: object) -> str:
    """Returns a text, or that of an error, in one line."""
    return " ".join(str(text).split())
