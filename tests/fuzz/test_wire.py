"""A few thousand damaged messages for each side; a million behind ``python -m tests.fuzz.wire``. And that the
fuzzing has teeth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shardwright.client import link
from shardwright.ingest import credit, server, session
from shardwright.ingest.transport import client_connections
from shardwright.wire import controls
from shardwright.wire.in_flight import InFlight

from .campaign import tally_of
from .wire import run


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        (
            "daemon",
            {
                "connection given up",
                "frames taken",
                "open admitted",
                "open refused",
                "session running",
                "session draining",
                "session detached",
                "ring refused",
            },
        ),
        ("client", {"refused", "running", "failed", "connection", "no ring"}),
    ],
)
def test_damaged_messages_hurt_neither_side(side: str, expected: set[str]):
    outcomes = tally_of("wire", "--side", side, "--inputs", "3000", "--seed", "1")["outcomes"]
    assert expected <= outcomes.keys()
    assert outcomes["frames taken" if side == "daemon" else "running"] > 100


def _believe_positions(batch, spec, grid):
    pass


def _believe_slots(slots, slot_in_flight):
    pass


def _believe_parts(parts, slots, frame_bytes):
    start = np.frombuffer(parts[0], np.uint8).ctypes.data if parts else 0
    return start + slots.astype(np.int64) * frame_bytes


def _release_twice(self, first, last, release=InFlight.release_known):
    return np.repeat(release(self, first, last), 2)


MUTANTS = {
    "descriptors as they come": ("daemon", session, "check_content", _believe_positions),
    "any ring slot": ("daemon", credit, "check_ring_slots", _believe_slots),
    "pixel parts of any length": ("daemon", credit, "addresses_in_parts", _believe_parts),
    "any sequence": ("daemon", credit, "check_sequences", lambda *arguments: None),
    "as much memory as a number says": (
        "daemon",
        server,
        "check_parts",
        lambda header, sizes: np.zeros(header.sequence % 2**26),
    ),
    "daemon: JSON as it comes": (
        "daemon",
        client_connections,
        "decode_control",
        lambda data: json.loads(bytes(data)),
    ),
    "client: JSON as it comes": ("client", link, "decode_control", lambda data: json.loads(bytes(data))),
    "numbers as they come": ("client", controls, "number", lambda body, key, *bounds: body[key]),
    "frames released twice": ("client", InFlight, "release_known", _release_twice),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_side_that_lacks_a_check_is_caught(monkeypatch, mutant: str):
    side, owner, name, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Exception) as caught:  # noqa: PT011  (whichever way it shows)
        run(side, 4000, seed=2)
    assert not isinstance(caught.value, TimeoutError)
