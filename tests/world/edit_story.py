"""Stories of edits: the shards of one small array, who changes or packs them, and what ends that."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from .story import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.rework.edit.edit_plan import Strategy

Codec = Literal["none", "blosc", "zstd", "gzip"]
Kind = Literal["edit", "update", "pack"]
EditFaultKind = Literal["error", "sync", "full", "short", "answer"]
ROWS = 2  # of a chunk: an update may change one of them alone


@dataclass(frozen=True)
class Layout:
    """``chunks`` of each shard, one above the other, of rows of ``width`` pixels. ``gaps``: bytes of zeros
    before each chunk of the shards as they are made."""

    shards: int
    chunks: int
    width: int
    codec: Codec
    index: Literal["start", "end"]
    index_checksum: bool
    chunk_checksum: bool
    recorded: bool
    gaps: tuple[int, ...]

    @property
    def shard_rows(self) -> int:
        return self.chunks * ROWS


@dataclass(frozen=True)
class Step:
    """What a process does. ``rows``: (row, its new value), of whole chunks of one shard with "edit", that
    follow each other with "update"; 0 is fill. ``recompress``: a level of zstd, ``describe``: shards get a
    description, with "pack"."""

    kind: Kind
    rows: tuple[tuple[int, int], ...] = ()
    strategy: Strategy = "auto"
    max_unused: float = 0.25
    recompress: int | None = None
    describe: bool = False


@dataclass(frozen=True)
class EditFault:
    """The disk fails at calls ``after`` to ``after + times`` of this kind in one life. "short": a write does,
    halfway. "answer": a change of names is made, and then an error."""

    kind: EditFaultKind
    after: int
    times: int


@dataclass(frozen=True)
class EditLife:
    """Processes that change the store at once, each by its steps, and ``ends``: how. "kill": of the first of
    them at its call ``at``, "power": of all, then or at the end. ``inside``: calls within a shard's file
    alone are counted. ``recovers``: a process recovers what they left, which is killed at the calls
    ``deaths`` first; else the next edit does. ``looks``: a reader does, after every call."""

    editors: tuple[tuple[Step, ...], ...]
    ends: Literal["finish", "kill", "power"] = "finish"
    at: int = 0
    inside: bool = False
    faults: tuple[EditFault, ...] = ()
    recovers: bool = True
    deaths: tuple[int, ...] = ()
    looks: bool = True


@dataclass(frozen=True)
class EditStory:
    layout: Layout
    rows: tuple[int, ...]  # the values as they are made
    lives: tuple[EditLife, ...]
    schedule: int


@lru_cache(maxsize=4096)
def pixels_of(value: int, width: int) -> bytes:
    """A row of uint16; more of it is noise, and so longer when encoded, with some values than with others."""
    row = np.full(width, value, "<u2")
    if value:
        rng = np.random.default_rng(value)
        noise = (0, width // 8, width // 2, width)[value % 4]
        row[:noise] = rng.integers(0, 1 << 16, noise)
    return row.tobytes()


def draw(seed: int) -> EditStory:
    """The story of a seed."""
    rng = random.Random(f"edits {seed}")
    values = iter(range(1, 1 << 16))
    layout = _layout(rng)
    rows = [next(values) if rng.random() < 0.9 else 0 for _ in range(layout.shards * layout.shard_rows)]
    if rng.random() < 0.1:
        rows[: layout.shard_rows] = [0] * layout.shard_rows
    lives = tuple(_life(rng, layout, values) for _ in range(rng.choice((1, 1, 2, 3))))
    story = EditStory(layout, tuple(rows), lives, rng.getrandbits(32))
    return _with_lost_answers(random.Random(f"answers {seed}"), story)


def _with_lost_answers(rng: random.Random, story: EditStory) -> EditStory:
    """Drawn apart, so that the other stories stay what they are."""
    lives = []
    for life in story.lives:
        lost = EditFault("answer", rng.randint(0, 20), rng.choice((1, 1, 2, FOREVER)))
        lives.append(replace(life, faults=(*life.faults, lost)) if rng.random() < 0.3 else life)
    return replace(story, lives=tuple(lives))


def _layout(rng: random.Random) -> Layout:
    chunks = rng.randint(1, 5)
    manner = rng.random()
    if manner < 0.3:
        gaps = [0] * chunks
    elif manner < 0.6:
        gaps = [rng.choice((0, 0, 60, 700, 6000)) for _ in range(chunks)]
    else:
        gaps = [rng.choice((0, 0, 0, 20000)) for _ in range(chunks)]
    return Layout(
        shards=rng.choice((1, 1, 2)),
        chunks=chunks,
        width=rng.choice((32, 300, 1200)),
        codec=rng.choice(get_args(Codec)),
        index=rng.choice(("start", "end")),
        index_checksum=rng.random() < 0.8,
        chunk_checksum=rng.random() < 0.5,
        recorded=rng.random() < 0.6,
        gaps=tuple(gaps),
    )


def _life(rng: random.Random, layout: Layout, values: Iterator[int]) -> EditLife:
    editors = tuple(
        tuple(_step(rng, layout, values) for _ in range(rng.choice((1, 2, 3))))
        for _ in range(rng.choice((1, 2)))
    )
    ends = rng.choice(("finish", "kill", "kill", "power", "power"))
    inside = rng.random() < 0.5
    faults = tuple(_fault(rng) for _ in range(rng.choice((0, 0, 1, 2))))
    return EditLife(
        editors=editors,
        ends=ends,
        at=rng.randint(1, 18 if inside else 50 * max(map(len, editors))),
        inside=inside,
        faults=faults,
        recovers=rng.random() < 0.6,
        deaths=tuple(int(rng.expovariate(1 / 10)) for _ in range(rng.choice((0, 0, 1, 2)))),
        looks=rng.random() < 0.5,
    )


def _fault(rng: random.Random) -> EditFault:
    kind: EditFaultKind = rng.choice(("error", "sync", "full", "short"))
    after = rng.randint(0, {"error": 120, "sync": 20, "full": 30, "short": 12}[kind])
    return EditFault(kind, after, rng.choice((1, 1, 2, 3, FOREVER)))


def _step(rng: random.Random, layout: Layout, values: Iterator[int]) -> Step:
    kind = rng.choices(("edit", "update", "pack"), (5, 3, 2))[0]
    if kind == "pack":
        again = layout.codec in ("blosc", "zstd") and rng.random() < 0.4
        return Step("pack", recompress=rng.choice((1, 9)) if again else None, describe=rng.random() < 0.3)
    strategy = rng.choice(("in_place", "gap", "append", "rewrite", "auto", "auto"))
    most = rng.choice((0.0, 0.25, 0.25, 1.0))
    fills = rng.choice((0.0, 0.0, 0.3, 1.0))  # how likely a row becomes fill
    if kind == "edit":
        first = rng.randrange(layout.shards) * layout.shard_rows
        chunks = sorted(rng.sample(range(layout.chunks), rng.randint(1, layout.chunks)))
        rows = [first + chunk * ROWS + row for chunk in chunks for row in range(ROWS)]
        whole = {chunk: rng.random() < fills for chunk in chunks}
        changed = [(row, 0 if whole[(row - first) // ROWS] else next(values)) for row in rows]
        return Step("edit", tuple(changed), strategy, most)
    start = rng.randrange(layout.shards * layout.shard_rows)
    stop = min(layout.shards * layout.shard_rows, start + rng.choice((1, 1, 2, 3, 8)))
    erases = fills == 1.0
    changed = [(row, 0 if erases else next(values)) for row in range(start, stop)]
    return Step("update", tuple(changed), strategy, most)


def smaller(story: EditStory) -> Iterator[EditStory]:
    """Yields stories with one thing less, the largest things first."""
    lives = story.lives
    for i in range(len(lives) if len(lives) > 1 else 0):
        yield replace(story, lives=(*lives[:i], *lives[i + 1 :]))
    for i, life in enumerate(lives):
        for changed in _simpler(life):
            yield replace(story, lives=(*lives[:i], changed, *lives[i + 1 :]))
    for simple in (replace(story.layout, recorded=False), replace(story.layout, codec="none")):
        if simple != story.layout:
            yield replace(story, layout=simple)


def _simpler(life: EditLife) -> Iterator[EditLife]:
    if len(life.editors) > 1:
        yield from (replace(life, editors=(steps,)) for steps in life.editors)
    for i, steps in enumerate(life.editors):
        for j in range(len(steps) if len(steps) > 1 else 0):
            fewer = (*steps[:j], *steps[j + 1 :])
            yield replace(life, editors=(*life.editors[:i], fewer, *life.editors[i + 1 :]))
    for i in range(len(life.faults)):
        yield replace(life, faults=(*life.faults[:i], *life.faults[i + 1 :]))
    for i in range(len(life.deaths)):
        yield replace(life, deaths=(*life.deaths[:i], *life.deaths[i + 1 :]))
    if life.looks:
        yield replace(life, looks=False)
    if life.ends != "finish":
        yield replace(life, ends="finish")
    if life.at > 1:
        yield from (replace(life, at=at) for at in (life.at // 2, life.at - 1))
