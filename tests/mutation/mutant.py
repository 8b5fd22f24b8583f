"""A mutant, the suites that must catch one, and the gear that has what catches it.

``tests`` is the suite of named tests: those that the mutant gives as its options.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Literal

from tests.harness.gears import ROOT, is_whole

PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
SUITES: dict[str, tuple[str, ...]] = {
    "kills": ("-m", "tests.crash.kills", "--count", "120", "--daemon-count", "0", "--until-violation"),
    "fencing": (*PYTEST, "tests/crash/test_fencing.py", "-m", "not slow"),
    "power": ("-m", "tests.power", "--images", "400", "--images-per-round", "200", "--until-violation"),
    "power-compaction": (
        "-m",
        "tests.power",
        "--compaction",
        "--images",
        "300",
        "--images-per-round",
        "100",
        "--until-violation",
    ),
    "power-move": (
        "-m",
        "tests.power",
        "--job",
        "move",
        "--images",
        "180",
        "--images-per-round",
        "60",
        "--no-every-prefix",
        "--until-violation",
    ),
    "move": (
        *PYTEST,
        *(f"tests/repack/{name}.py" for name in ("test_move", "test_move_again", "test_moved_away")),
        "-m",
        "not slow",
    ),
    "compaction": (*PYTEST, "tests/compaction"),
    "faults": (*PYTEST, "tests/faults", "-m", "not slow"),
    "formats": (*PYTEST, "tests/shard", "tests/read", "-m", "not slow"),
    "take-over": (*PYTEST, "tests/acquire/test_resume.py", "-k", "taken_over"),
    "recovery": (*PYTEST, "tests/acquire/test_resume.py", "-k", "chunk"),
    "tests": PYTEST,
}
NAMED = "tests"
Gear = Literal["test", "all"]  # ./tools/test, and ./tools/test --all


@dataclass(frozen=True)
class Mutant:
    """``sabotage``: text that runs at the start of every process. ``options`` lead the suite to the place
    sooner; of a suite of named tests they are the tests. ``quick``: tests of the quicker gear that catch it
    as well. ``error``: Python's own, where it is the broken promise and no mistake of the mutant."""

    name: str
    removes: str
    suite: str
    sabotage: str
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    error: str = ""

    @property
    def definition(self) -> str:
        """Another one as soon as its text or its tests are: what an earlier run found is then of no use."""
        parts = self.sabotage, SUITES[self.suite], self.options, self.quick, self.error
        return sha256(repr(parts).encode()).hexdigest()[:8]

    @property
    def gear(self) -> Gear:
        """The quicker one of the gears that catch it."""
        if self.quick:
            return "test"
        places = [word for word in (*SUITES[self.suite], *self.options) if word.startswith("tests/")]
        is_quick = places and not any(map(is_whole, places))
        return "test" if is_quick else "all"

    @property
    def room(self) -> str:
        """The room of the first module that it changes; empty for one of Python's own."""
        found = re.search(r"shardwright\.(\w+)", self.sabotage)
        return found[1] if found else ""

    @property
    def caught_by(self) -> str:
        return ", ".join(self.options if self.suite == NAMED else (self.suite, *self.quick))

    @property
    def tried_by(self) -> dict[Gear, Mutant]:
        """The mutant as each gear tries it: by the quicker tests as well, where it has some."""
        if not self.quick:
            return {self.gear: self}
        return {"test": replace(self, suite=NAMED, options=self.quick), "all": self}


def changed(module: str, old: str, new: str) -> str:
    """Returns the sabotage that gives a module of ours other text in one place."""
    return f"change({'shardwright.' + module!r}, {old!r}, {new!r})"


def is_marked(place: str, mark: str) -> bool:
    """Returns whether a test (``FILE::NAME``) has a mark where it stands; no folder or file has one. Raises
    ``KeyError`` for a test that is not there."""
    file, _, name = place.partition("::")
    return bool(name) and f"pytest.mark.{mark}" in _decorators(file)[name]


@cache
def _decorators(file: str) -> dict[str, list[str]]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: [ast.unparse(mark) for mark in node.decorator_list] for node in functions}
