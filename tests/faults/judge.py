"""Holds what a writer claimed against what the disk holds. Reads with zarr-python, knows nothing of how
shardwright writes.

claim      sequences whose pixels were given back, and everything below a watermark
verdict    each claimed frame is at its place, bit for bit, or the frame table and a report say what became of
           it; no place holds anything else
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.harness.frames import FRAME, Arrival, pixels
from tests.harness.store_contents import frame_table, stored

from shardwright.model.frame_status import FrameStatus

if TYPE_CHECKING:
    from pathlib import Path

    from .scenario import Outcome, Scenario

FILL = None  # what a place without a frame holds


@dataclass
class Evidence:
    """What is on disk: for each place the copy of the frame that it holds (or ``FILL``), and the frame
    table's rows by sequence."""

    held: list[int | None]
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def holds(self, arrival: Arrival) -> bool:
        return arrival.frame_id < len(self.held) and self.held[arrival.frame_id] == arrival.copy

    @property
    def missing(self) -> list[int]:
        return [place for place, copy in enumerate(self.held) if copy is FILL]


def read_evidence(store: Path, copies: int = 2) -> Evidence:
    """Raises ``AssertionError`` for a place that holds what no camera sent."""
    held = [which_copy(place, frame, copies) for place, frame in enumerate(stored(store))]
    return Evidence(held, read_rows(store))


def read_rows(store: Path) -> dict[int, dict[str, Any]]:
    """The frame table, by sequence; nothing where there is no table."""
    if not (store / "frames").exists():
        return {}
    columns = {name: column.tolist() for name, column in frame_table(store).items()}
    rows: dict[int, dict[str, Any]] = {}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        assert row["sequence"] not in rows, f"two rows for sequence {row['sequence']}"
        rows[row["sequence"]] = row
    return rows


def which_copy(place: int, frame: np.ndarray, copies: int) -> int | None:
    if not frame.any():
        return FILL
    for copy in range(copies):
        if np.array_equal(frame, pixels(place, copy)):
            return copy
    right = np.flatnonzero((frame == pixels(place)).all(axis=1))
    raise AssertionError(f"place {place} holds pixels that no camera sent (rows as sent: {right.tolist()})")


def arrivals_by_sequence(scenario: Scenario, outcome: Outcome) -> dict[int, Arrival]:
    return dict(enumerate(scenario.arrivals[: outcome.submitted], outcome.first_sequence))


def judge(store: Path, *runs: tuple[Scenario, Outcome], disk_lost_writes: bool = False) -> Evidence:
    """All claims of the runs that wrote this store, one after another. Raises ``AssertionError`` with every
    violation.

    ``disk_lost_writes``: the disk dropped what was written but not synced, as in a power cut. A run that
    failed, or died of it, may then miss frames that were stored and not durable; one that ended well may not.
    """
    evidence = read_evidence(store)
    violations: list[str] = []
    for scenario, outcome in runs:
        reported = {sequence for first, last, _ in outcome.losses for sequence in range(first, last + 1)}
        claimed = set(outcome.released) | set(range(outcome.stored))
        if disk_lost_writes and (outcome.error is not None or outcome.death is not None):
            claimed &= set(range(outcome.durable))
        for sequence, arrival in arrivals_by_sequence(scenario, outcome).items():
            if sequence in claimed and (
                fault := _judge_one(sequence, arrival, evidence, reported, durable=sequence < outcome.durable)
            ):
                violations.append(fault)
    assert not violations, f"{len(violations)} violations: " + "; ".join(violations[:10])
    return evidence


def _judge_one(
    sequence: int, arrival: Arrival, evidence: Evidence, reported: set[int], *, durable: bool
) -> str | None:
    name = f"sequence {sequence} (frame {arrival.frame_id}, {arrival.how})"
    row = evidence.rows.get(sequence)
    status = None if row is None else row["status"]
    if row is not None and row["frame_id"] != arrival.frame_id:
        return f"{name}: the table says frame {row['frame_id']}"
    if arrival.how == FRAME and evidence.holds(arrival):
        return (
            None
            if status in (None, FrameStatus.STORED)
            else (f"{name}: stored, but the table says {FrameStatus(status).name}")
        )
    if status is None:
        return f"{name}: acknowledged, not at its place, and the table has no row"
    if status == FrameStatus.STORED:
        return (
            f"{name}: the table says stored, but its place holds "
            f"{evidence.held[arrival.frame_id : arrival.frame_id + 1]}"
        )
    if status == FrameStatus.LOST and arrival.how == FRAME and sequence not in reported:
        return f"{name}: lost after it was acknowledged, and nobody was told"
    if status == FrameStatus.LOST and arrival.how == FRAME and durable:
        return f"{name}: lost after it was told to be durable"
    return None


def judge_account(outcome: Outcome, evidence: Evidence) -> None:
    """Exact accounting of a run that ended by itself: each frame has one row, and the receipt counts them."""
    receipt = outcome.receipt
    assert receipt is not None, outcome
    statuses = [row["status"] for row in evidence.rows.values()]
    counts = {status: statuses.count(status) for status in FrameStatus}
    told = {status: receipt[status.counted_as] for status in FrameStatus}
    assert told == counts, f"the receipt says {told}, the table {counts}"
    assert receipt["frames_received"] == sum(told.values()) == len(statuses)
    assert receipt["frames_stored"] == len(evidence.held) - len(evidence.missing)
