"""What one run of the faulty writer is told, and what it tells: plain data that travels as one JSON line each
way."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.harness.frames import Arrival


@dataclass(frozen=True)
class Fault:
    """What happens at storage calls, counted from 0 and named by their failpoint: from the ``call``-th call
    of ``point`` on, ``times`` times.

    ``point`` "*" counts all calls. ``action``: "eio", "enospc" (both raised), "fill" (the disk of
    ``Scenario.disk`` is really filled), "kill". ``room_after_s``: a filled disk gets its room back that much
    later.
    """

    action: str
    point: str = "*"
    call: int = 0
    times: int = 1
    room_after_s: float | None = None


@dataclass(frozen=True)
class Scenario:
    """``settings`` are fields of ``WriteSettings``; ``pause_s`` lies between two frames.

    Without ``finish`` the process dies by SIGKILL, ``linger_s`` after the last frame was taken in, or (None)
    once all are stored.
    """

    path: str
    arrivals: list[Arrival]
    settings: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    disk: str | None = None
    slab_frames: int = 4
    slabs: int = 2
    pause_s: float = 0.0
    resume: bool = False
    finish: bool = True
    linger_s: float | None = 0.0

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Scenario:
        facts = json.loads(line)
        facts["arrivals"] = [Arrival(**a) for a in facts["arrivals"]]
        facts["faults"] = [Fault(**f) for f in facts["faults"]]
        return cls(**facts)


@dataclass
class Outcome:
    """Everything that the writer claimed: the judge holds it against the disk.

    ``stored``, ``durable``: the watermarks; ``released``: sequences whose pixels were given back, hence
    stored (or settled). What these say after the acquisition has failed is kept apart: frames that were never
    acknowledged are settled as lost then. ``death``: the signal that ended the process, None when it lives
    on.
    """

    first_sequence: int = 0
    submitted: int = 0
    stored: int = 0
    durable: int = 0
    released: list[int] = field(default_factory=list)
    settled: int = 0
    settled_durable: int = 0
    given_up: list[int] = field(default_factory=list)
    losses: list[tuple[int, int, str]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    refused: dict[str, str] | None = None
    error: dict[str, str] | None = None
    state: str | None = None
    receipt: dict[str, Any] | None = None
    calls: list[str] = field(default_factory=list)
    death: int | None = None
    trace: str = ""

    def take(self, claims: dict[str, Any]) -> None:
        """One line of the writer: fields by name; lists grow, everything else replaces."""
        for name, value in claims.items():
            if isinstance(old := getattr(self, name), list):
                old.extend(tuple(v) if isinstance(v, list) else v for v in value)
            else:
                setattr(self, name, value)
