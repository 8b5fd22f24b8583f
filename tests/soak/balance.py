"""Holds what a camera sent and was told against what is on disk, for one acquisition. No clock and no files
in here: plain facts in, faults out.

    sent   every call of append, also the one in which the camera was killed
      = stored      its place holds it, bit for bit
      + duplicate   its place was taken: only of frames that were sent again
      + late        its place was closed: only of frames that were sent again
      + dropped     the camera's side had no room, and its policy is to drop
      + lost        the daemon had heard of it and died; so did the camera, which had not been told that the
      frame is safe
      + gone        died with the camera before the daemon heard of it

Each is a row of the frame table, but for those that are gone: and each row is exactly one frame that was
sent. What was acknowledged, as stored or as durable, is never lost and never gone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from shardwright.model.frame_status import FrameStatus

from .evidence import EMPTY, RIGHT, WRONG
from .ledger import Numbers
from .settings import FRAME_BYTES, PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .evidence import Evidence, Row

MOST_TOLD = 20  # faults of one acquisition that are kept


@dataclass
class Life:
    """What one process of the camera sent: ``numbers.begun`` frames, from ``first_frame`` on. ``epoch`` 0: it
    never got that far."""

    first_frame: int
    epoch: int = 0
    first_sequence: int = 0
    numbers: Numbers = field(default_factory=Numbers)
    killed: bool = False


@dataclass
class Claims:
    """All that was sent to one acquisition, and all that its cameras were told. ``receipt`` None: no camera
    got one (killed, or the daemon was)."""

    name: str
    number: int
    camera: str
    lives: list[Life] = field(default_factory=list)
    receipt: dict[str, int] | None = None


@dataclass
class Balance:
    acquisitions: int = 0
    sent: int = 0
    stored: int = 0
    duplicate: int = 0
    late: int = 0
    dropped: int = 0
    lost: int = 0
    gone: int = 0
    missing: int = 0  # places of the images without a frame

    def add(self, other: Balance) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def difference(self) -> int:
        """0, or the soak has failed."""
        return self.sent - (self.stored + self.duplicate + self.late + self.dropped + self.lost + self.gone)


def judge(claims: Claims, evidence: Evidence | None) -> tuple[Balance, list[str]]:
    """The account of one acquisition that has ended, and everything that is wrong with it."""
    if evidence is None:
        sent = sum(life.numbers.begun for life in claims.lives)
        told = max((life.numbers.stored for life in claims.lives), default=0)
        # one that got no frame is removed
        told = max(told, claims.receipt["frames_received"] if claims.receipt is not None else 0)
        faults = [f"{claims.name}: nothing is there of {sent} frames"] if told else []
        return Balance(1, sent=sent, gone=sent), faults
    trial = _Trial(claims, evidence)
    faults = [f"{claims.name}: {fault}" for check in _CHECKS for fault in check(trial)]
    statuses = Counter(row.status for row in evidence.rows)
    balance = Balance(
        1,
        sent=trial.sent,
        gone=trial.sent - trial.heard,
        missing=len(evidence.holds) - len(trial.stored),
        **{s.name.lower(): statuses[s] for s in FrameStatus if s is not FrameStatus.SKIPPED},
    )
    if balance.difference:
        faults.append(
            f"{claims.name}: {balance.difference} of {balance.sent} frames that were sent are not "
            f"accounted for"
        )
    return balance, faults[:MOST_TOLD] + (
        [f"{claims.name}: and {len(faults) - MOST_TOLD} faults more"] if len(faults) > MOST_TOLD else []
    )


class _Trial:
    """What several checks need to know."""

    def __init__(self, claims: Claims, evidence: Evidence) -> None:
        self.claims, self.evidence = claims, evidence
        self.lives = [life for life in claims.lives if life.epoch]
        self.sent = sum(life.numbers.begun for life in self.lives)
        self.rows = {row.sequence: row for row in evidence.rows}
        ends = [*(life.first_sequence for life in self.lives[1:]), len(self.rows)]
        self.spans = [
            (life, range(life.first_sequence, end)) for life, end in zip(self.lives, ends, strict=False)
        ]  # what was heard of each
        self.heard = sum(len(span) for _, span in self.spans)
        self.stored = {row.place for row in evidence.rows if row.status == FrameStatus.STORED}


def _each_frame_has_one_row(trial: _Trial) -> Iterator[str]:
    if len(trial.rows) != len(trial.evidence.rows):
        yield f"{len(trial.evidence.rows) - len(trial.rows)} rows repeat a sequence"
    if len(trial.rows) != trial.heard:
        yield f"{len(trial.rows)} rows, and {trial.heard} frames that were heard"
    if absent := [sequence for sequence in range(len(trial.rows)) if sequence not in trial.rows]:
        yield f"no row for sequences {_few(absent)}"
    for life, span in trial.spans:
        if not 0 <= span.stop - span.start <= life.numbers.begun:
            yield (
                f"client {life.epoch} sent {life.numbers.begun} frames, and sequences {span.start} to "
                f"{span.stop - 1} are said to be its own"
            )
        for sequence in span:
            row = trial.rows.get(sequence)
            if row is not None and (fault := _not_as_sent(row, life)):
                yield fault


def _not_as_sent(row: Row, life: Life) -> str | None:
    frame_id = life.first_frame + row.sequence - life.first_sequence
    if row.status in (FrameStatus.LOST, FrameStatus.DROPPED) and row.frame_id == -1:
        return None  # nothing but its sequence was known any more
    if (row.frame_id, row.place, row.epoch) != (frame_id, frame_id, life.epoch):
        sent = f"frame {frame_id} of client {life.epoch}"
        return (
            f"sequence {row.sequence} was {sent}, and its row says frame {row.frame_id} of client "
            f"{row.epoch} at place {row.place}"
        )
    return None


def _what_is_stored_is_there(trial: _Trial) -> Iterator[str]:
    holds = trial.evidence.holds
    for row in trial.evidence.rows:
        if row.status == FrameStatus.STORED and (row.place >= len(holds) or holds[row.place] == EMPTY):
            yield f"frame {row.frame_id} is called stored, and its place is empty"
    for place, held in enumerate(holds):
        if held == WRONG:
            yield f"place {place} holds pixels that were not sent there"
        elif held == RIGHT and place not in trial.stored:
            yield f"place {place} holds a frame that no row calls stored"


def _what_was_acknowledged_is_safe(trial: _Trial) -> Iterator[str]:
    """A later client's watermark also passes over what is settled: what a client was told counts for its own
    frames and those before."""
    for life, span in trial.spans:
        for level, told in (("durable", life.numbers.durable), ("stored", life.numbers.stored)):
            if told > span.stop:
                yield (
                    f"client {life.epoch} was told that {told} frames are {level}, and {span.stop} were heard"
                )
            for sequence in range(span.start, min(told, span.stop)):
                row = trial.rows.get(sequence)
                if row is None or row.status == FrameStatus.LOST:
                    yield f"sequence {sequence} was lost after it was told to be {level}"


def _every_other_status_has_its_reason(trial: _Trial) -> Iterator[str]:
    sent_before = 0  # frames below were sent by an earlier client
    for number, (life, span) in enumerate(trial.spans):
        statuses = Counter()
        for sequence in span:
            row = trial.rows.get(sequence)
            if row is None:
                continue
            statuses[row.status] += 1
            if row.status in (FrameStatus.DUPLICATE, FrameStatus.LATE) and row.frame_id >= sent_before:
                called = FrameStatus(row.status).name.lower()
                yield f"frame {row.frame_id} was sent once, and is called {called}"
        if statuses[FrameStatus.LOST] and not life.killed:
            yield f"{statuses[FrameStatus.LOST]} frames of client {life.epoch} were lost, and it lived"
        if statuses[FrameStatus.DROPPED] and trial.claims.camera == PATIENT:
            yield f"client {life.epoch} dropped {statuses[FrameStatus.DROPPED]} frames, and is one that waits"
        last = number == len(trial.spans) - 1
        if last and not life.killed and statuses[FrameStatus.DROPPED] != life.numbers.dropped:
            yield (
                f"client {life.epoch} dropped {life.numbers.dropped} frames, and the table says "
                f"{statuses[FrameStatus.DROPPED]}"
            )
        if not life.killed and len(span) != life.numbers.begun:
            yield (
                f"client {life.epoch} sent {life.numbers.begun} frames, {len(span)} were heard, and it lived"
            )
        sent_before = max(sent_before, life.first_frame + life.numbers.begun)


def _the_receipt_counts_the_rows(trial: _Trial) -> Iterator[str]:
    receipt = trial.claims.receipt
    if receipt is None:
        return
    statuses = Counter(row.status for row in trial.evidence.rows)
    expected = {status.counted_as: statuses[status] for status in FrameStatus}
    expected["frames_received"] = trial.heard
    expected["frames_durable"] = statuses[FrameStatus.STORED]
    expected["frames_missing"] = len(trial.evidence.holds) - len(trial.stored)
    expected["bytes_raw"] = FRAME_BYTES * statuses[FrameStatus.STORED]
    for name, value in expected.items():
        if receipt[name] != value:
            yield f"the receipt says {name} {receipt[name]}, and there are {value}"


def _the_holes_are_listed(trial: _Trial) -> Iterator[str]:
    end = max([len(trial.evidence.holds), *(row.place + 1 for row in trial.evidence.rows)])
    holes = set(range(end)) - trial.stored
    if listed_wrongly := holes ^ set(trial.evidence.listed):
        yield f"inspect --missing is wrong about places {_few(sorted(listed_wrongly))}"


def _nothing_is_left_behind(trial: _Trial) -> Iterator[str]:
    if trial.evidence.left_behind:
        yield f"left behind: {', '.join(trial.evidence.left_behind)}"


_CHECKS = (
    _each_frame_has_one_row,
    _what_is_stored_is_there,
    _what_was_acknowledged_is_safe,
    _every_other_status_has_its_reason,
    _the_receipt_counts_the_rows,
    _the_holes_are_listed,
    _nothing_is_left_behind,
)


def _few(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]} ({len(numbers)} of them)"
