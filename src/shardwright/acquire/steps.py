"""State machines as tables: which event leads from which states to which, and why an event never comes where
there is no such step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class Step(Generic[S, E]):
    """In any of these states this event leads to ``after``."""

    states: frozenset[S]
    event: E
    after: S
    why: str = ""


@dataclass(frozen=True)
class Table(Generic[S, E]):
    """``never``: of each event, why it does not come in a state for which there is no step."""

    steps: tuple[Step[S, E], ...]
    never: dict[E, str]

    def after(self, state: S, event: E) -> S:
        """The next state. An event that cannot come is a mistake of ours."""
        found = [step.after for step in self.steps if event is step.event and state in step.states]
        assert found, f"{event.value} comes while it is {state.value}: {self.never[event]}"
        return found[0]


def step(states: S | frozenset[S], event: E, after: S, why: str = "") -> Step[S, E]:
    """From one state, or any of several."""
    return Step(states if isinstance(states, frozenset) else frozenset({states}), event, after, why)
