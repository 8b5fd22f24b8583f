"""Arguments of ``create`` and ``resume`` from options by name, as tests draw and combine them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import shardwright as sw

_OWN = {"durability", "overload", "on_full", "live"}  # arguments of their own
_NAMES = {field.name for field in fields(sw.WriteSettings)} - _OWN


def how(**options: Any) -> dict[str, Any]:
    """Returns the options with those that are no arguments of their own in ``settings``."""
    mine = {name: value for name, value in options.items() if name in _NAMES}
    others = {name: value for name, value in options.items() if name not in _NAMES}
    return others | ({"settings": sw.WriteSettings(**mine)} if mine else {})
