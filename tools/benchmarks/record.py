"""The record: a file of one JSON object a line, each a run with its date, machine and commit. Lines are
appended, never changed.

version       of this format
date          the end of the run, UTC, to the second
commit, dirty the checkout's commit; true where the code differed from it
machine       processors, memory, kernel, filesystem
software      versions of the writers and their libraries; null: not installed
quick         true where sizes were cut for a trial: such a run is no measurement
comparisons   name -> seconds it took, cores busy with other work before it, rounds, case, one row a
              contender: medians, spread, rounds
parts         name (latency, small, cameras, overload, flat, prediction, reading, seen, ...) -> the same two,
              settings, rows: one for each way
outcomes      each figure that is asked: measured, its spread, and the limit that is asked of it; earlier runs
              also say what kept it from being reached (``binds``, ``verdict``)
notes         further facts for a reader, such as a writer that could not take part
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from .cases.throughput import COMPARISONS

PATH = Path(__file__).resolve().parent / "RECORD.jsonl"
VERSION: Literal[1] = 1
PARTS = (
    "latency",
    "small",
    "cameras",
    "overload",
    "fair",
    "flat",
    "prediction",
    "reading",
    "seen",
    "shards",
    "plates",
    "opening",
    "kernel",
    "scaling",
    "start",
)
BUSY_CORES = 0.2  # busy with other work before a run: above this it is said


class RecordError(Exception):
    """A line that is no record, or a file without the record that is needed."""


class Machine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    filesystem: str
    python: str


class Record(BaseModel):
    """One run. The names of this level are fixed; what is below is as the parts wrote it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: Literal[1] = VERSION
    date: str
    commit: str | None
    dirty: bool
    machine: Machine
    software: dict[str, str | None]
    quick: bool
    comparisons: dict[str, dict[str, Any]]
    parts: dict[str, dict[str, Any]]
    outcomes: list[dict[str, Any]]
    notes: list[str]

    @property
    def is_whole(self) -> bool:
        """Every comparison and every part was run, at full size."""
        return (
            not self.quick
            and set(self.comparisons) >= {c.name for c in COMPARISONS}
            and set(self.parts) >= set(PARTS)
        )

    @property
    def cores_busy(self) -> float:
        """The most that other work took of the machine before any comparison or part."""
        measured = (*self.comparisons.values(), *self.parts.values())
        return max((float(one.get("cores_busy_before", 0)) for one in measured), default=0.0)


def joined(earlier: Record, later: Record) -> Record:
    """``later`` with all that only ``earlier`` has: comparisons, parts and their figures, in the order of the
    table. Both are of the same commit."""
    order = [*(c.name for c in COMPARISONS), *PARTS]
    again = {*later.comparisons, *later.parts}

    def owner(outcome: dict[str, Any]) -> str:
        """The comparison or part that gave a figure."""
        return next(name for name in order if f"{outcome['measured_in']}/".startswith(f"{name}/"))

    def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return dict(sorted((one | other).items(), key=lambda item: order.index(item[0])))

    outcomes = [*(one for one in earlier.outcomes if owner(one) not in again), *later.outcomes]
    return later.model_copy(
        update={
            "comparisons": both(earlier.comparisons, later.comparisons),
            "parts": both(earlier.parts, later.parts),
            "outcomes": sorted(outcomes, key=lambda one: order.index(owner(one))),
        }
    )


def append(record: Record, path: Path = PATH) -> None:
    """One write of one line, so that a file that is read meanwhile never holds half of it."""
    line = record.model_dump_json() + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(descriptor, line.encode())
        assert written == len(line.encode()), "a regular file takes the whole line"
    finally:
        os.close(descriptor)


def load(path: Path = PATH) -> list[Record]:
    """Every record, oldest first. Raises ``RecordError`` naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read: {error.strerror}. Make one with tools/bench record"
        ) from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError as error:
            raise RecordError(
                f"{path}, line {number} is no record of version {VERSION}: "
                f"{error.errors()[0]['msg']}. Take the line out."
            ) from error
    return records


def newest(path: Path = PATH) -> Record:
    """The last whole record, else, when a comparison or a part was added since, the last of those with most
    comparisons. Raises ``RecordError``."""
    records = load(path)
    if not records:
        raise RecordError(f"{path} is empty. Make a record with tools/bench record")
    measured = {id(record): 0 if record.quick else len(record.comparisons) for record in records}
    return max(reversed(records), key=lambda record: (record.is_whole, measured[id(record)]))
