"""The readers of the world prove themselves: each of these takes out a look, a proof or an order on which
readers rely, and must be found within so many seeds from ``READERS_FROM`` on."""

from __future__ import annotations

import inspect
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.acquire.live_scheduler import LiveScheduler
from shardwright.read.live_acquisition import LiveAcquisition
from shardwright.read.live_staging import LiveStaging
from shardwright.read.live_view import LiveView

from .story import READERS_FROM, draw
from .surroundings import patched
from .world import play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .surroundings import Patch


@dataclass(frozen=True)
class ReaderMutant:
    """``seeds``: within so many it is found."""

    name: str
    removes: str
    patches: Callable[[], list[Patch]]
    seeds: int

    @contextmanager
    def put_in(self) -> Iterator[None]:
        with patched(self.patches()):
            yield

    def find(self) -> tuple[int, str] | None:
        """Returns the first seed that finds it, and the violation."""
        with self.put_in():
            for seed in range(READERS_FROM, READERS_FROM + self.seeds):
                violation = play(draw(seed))[1]
                if violation is not None and ("reader " in violation or " shown" in violation):
                    return seed, violation
        return None


def _changed(where: type, name: str, *changes: tuple[str, str]) -> Patch:
    """A method with other text in it: (old, new)."""
    method = inspect.getattr_static(where, name)
    source = textwrap.dedent(inspect.getsource(method))
    for old, new in changes:
        assert old in source, f"{name} has no {old!r} any more"
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(f"from __future__ import annotations\n{source}", name, "exec"), method.__globals__, made)
    return where, name, made[name]


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        ReaderMutant(
            "staged-and-sealed",
            "the frame log is not asked whether a staged frame is in a sealed shard by now",
            lambda: [(LiveAcquisition, "not_sealed", lambda _, __, staged: staged)],
            100,
        ),
        ReaderMutant(
            "extents-unread",
            "the extents of sealed shard rows are not read: frames are past the shape",
            lambda: [(LiveAcquisition, "_not_covered", lambda *_: [])],
            120,
        ),
        ReaderMutant(
            "shape-first",
            "the shape of a live store covers what came, before its shard has its name and lists it",
            lambda: [
                _changed(
                    LiveScheduler,
                    "_cover",
                    ("np.minimum(self._covered.along[image], received[image])", "received[image]"),
                )
            ],
            100,
        ),
        ReaderMutant(
            "named-shards-unread",
            "a shard that has its name is not looked for while its journal is there",
            lambda: [(LiveView, "_is_shown", lambda *_: True)],
            60,
        ),
        ReaderMutant(
            "records-read-once",
            "the records of staged frames are not read again",
            lambda: [
                _changed(
                    LiveStaging, "look", ('look("look.staging")', "if self._by_slab: return self._by_slab")
                )
            ],
            40,
        ),
        ReaderMutant(
            "log-read-once",
            "the frame log is not read on",
            lambda: [
                _changed(
                    LiveAcquisition,
                    "_read_log",
                    ("new = [row for row, _ in self._log.find_more()]", "new = []"),
                )
            ],
            50,
        ),
    )
}
