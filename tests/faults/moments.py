"""The moments of a run: which storage calls it makes, and at which of them a fault is worth trying."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .scenario import Fault, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .writer_process import WriterProcess


NO_CALLS = {
    "sealer.before_command",
    "sealer.before_commit",
    "slots.before_store",
    "slots.after_store",
    "journal.after_chunks",
}


def calls_of(writer: WriterProcess, scenario: Scenario) -> list[str]:
    """The storage calls of a run without faults, in order. ``NO_CALLS`` are points between calls: moments to
    die at, where no error can come from."""
    outcome = writer.run(scenario)
    assert outcome.state == "sealed", (outcome.error, outcome.refused, outcome.trace)
    return [call for call in outcome.calls if call not in NO_CALLS]


def first_and_last(calls: Sequence[str]) -> list[tuple[str, int]]:
    """Each point at its first and its last call: (point, which call of it)."""
    last = {point: number - 1 for point, number in Counter(calls).items()}
    return sorted({(point, call) for point in last for call in (0, last[point])})


def spread(moments: list[tuple[str, int]], number: int) -> list[tuple[str, int]]:
    """About so many of the moments, evenly from all over the list: what a quick suite has time for."""
    return moments[:: max(1, len(moments) // number)]


def every_call(calls: Sequence[str]) -> list[tuple[str, int]]:
    """All calls, as (point, which call of it): the same call even when threads change places."""
    seen: Counter[str] = Counter()
    moments = []
    for point in calls:
        moments.append((point, seen[point]))
        seen[point] += 1
    return moments


def fault_at(moment: tuple[str, int], action: str, **more) -> Fault:
    point, call = moment
    return Fault(action, point, call, **more)


def try_each(moments: Sequence[tuple[str, int]], attempt: Callable[[tuple[str, int]], str]) -> dict[str, int]:
    """``attempt`` at every moment; counts what it returns. Raises one ``AssertionError`` with all moments
    that it failed at."""
    ended: Counter[str] = Counter()
    failed: list[str] = []
    for moment in moments:
        try:
            ended[attempt(moment)] += 1
        except AssertionError as error:
            failed.append(f"{moment[0]} number {moment[1]}: {error}")
    assert not failed, f"{len(failed)} of {len(moments)} moments failed:\n" + "\n".join(failed[:40])
    return dict(ended)
