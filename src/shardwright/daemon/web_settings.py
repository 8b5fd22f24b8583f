"""The settings that the daemon gives its web process at the start: one JSON object on the command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class WebSettings:
    """The settings. ``descriptor``: the listening socket that the process inherits. ``hosts``: names in the
    Host header beside those of the loopback address."""

    control_socket: str
    descriptor: int
    hosts: tuple[str, ...]
    origins: tuple[str, ...]
    preview_hz: float
    output_root: str
    spill_root: str | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WebSettings:
        facts = json.loads(text)
        return cls(**{**facts, "hosts": tuple(facts["hosts"]), "origins": tuple(facts["origins"])})
