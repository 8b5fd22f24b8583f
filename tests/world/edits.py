"""Edits and packing in the simulated world: processes change, erase and pack the shards of one array, are
killed or lose power at any call of the disk, and recovery as well. The code is as it stands; threads that
write behind or read back are run where they are asked for.

Judged is after every call (``EditLife.looks``), before recovery, after it, and at the end: each shard is as
the edits so far allow (``edited_shard``), packing changes no pixel, nothing is left behind, and what a reader
holds of chunks that no edit names stays.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import shardwright as sw
import shardwright.disk.files as files_module
import shardwright.disk.working_file as working_file_module
import shardwright.read.verify_store as verify_module
import shardwright.rework.edit.region_changes as region_changes_module
import shardwright.rework.edit.shard_lock as shard_lock_module
import shardwright.rework.jobs.recode as recode_module
from shardwright.disk import beneath
from shardwright.disk.files import make_directories, write_file
from shardwright.model.errors import (
    LockedError,
    ShardChangedError,
    ShardFormatError,
    ShardwrightError,
    StorageError,
    StorageFullError,
    StrategyError,
)
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.chunk_encoder import chunk_encoder
from shardwright.rework.edit.edit_recovery import recover_edits
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.shard.sealed_shard import SealedShard
from shardwright.shard.shard_sums import SUMS_NAME, ShardSums, shard_sum

from .at_once import AtOnce, InThisProcess, OfThisGreenlet
from .disk import DefectError, Descriptors, Wrong
from .edit_faults import Disk, Faults
from .edit_story import ROWS, EditLife, Step, draw, pixels_of, smaller
from .edited_array import Held, document_of, laid_out, read
from .edited_shard import EditedShard, Pending
from .oracle import ViolationError, violation_of
from .process import Actor, let_others_act
from .surroundings import simulated
from .world import MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from shardwright.disk.read_file import ReadFile
    from shardwright.read.store import StoredArray
    from shardwright.rework.edit.edit_recovery import RecoveredEdit

    from .edit_story import EditStory, Layout

__all__ = ["draw", "play", "smaller"]

MOST_CALLS = 20_000  # of one life
PIECE_BYTES = 8192  # that a copy is written and read back by, so that small shards have several
HASTE = 100.0  # how much faster than a waiting process thinks the others are not
_REFUSALS = (LockedError, StrategyError, ShardChangedError)  # nothing was changed
_LAST_VALUE = 60_000


class Editor:
    """A process that does steps, one after the other."""

    def __init__(self, world: EditWorld, steps: tuple[Step, ...], name: str) -> None:
        self.name = name
        self.calls = Descriptors()
        self.pending: list[int] = []  # edits that it has begun and not told of
        self.actor = Actor(world.disk, self.calls, lambda: world.work(self, steps))


class EditWorld:
    """``trace`` hears of everything that happens, for people."""

    def __init__(self, story: EditStory, trace: Callable[[str], None] | None = None) -> None:
        self._story, self._trace = story, trace
        self._layout = story.layout
        self._rng = rng = random.Random(story.schedule)
        self._root = MEMORY / f"shardwright-edits-{os.getpid()}"
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        self._path = self._root / "array.zarr"
        self.disk = Disk(self._root, rng)
        self.disk.pause = self._pause
        self.disk.full = lambda: self._faults.is_full
        self.disk.refused = lambda: setattr(self._faults, "met", True)
        apart = random.Random(f"torn {story.schedule}")
        self.disk.torn = apart if apart.random() < 0.3 else None
        self._faults = Faults(())
        self._answers = random.Random(f"answers {story.schedule}")  # that are lost: what comes instead
        self._editor: Editor | None = None  # that goes on now
        self._alive: list[Editor] = []
        self._edits = 0
        self._point = ""  # that was reached last
        self._s = 0.0
        per = self._layout.shard_rows
        self._shards = [EditedShard(story.rows[i * per : (i + 1) * per]) for i in range(self._layout.shards)]
        self._last = last_life(self._layout)
        steps = [step for life in (*story.lives, self._last) for steps in life.editors for step in steps]
        values = {0, *story.rows, *(value for step in steps for _, value in step.rows)}
        self._value_of = {pixels_of(value, self._layout.width): value for value in values}
        self._looked: list[bytes | None] = [None] * self._layout.shards
        self._held: dict[int, Held] = {}
        self.crashes = self.calls = 0

    def play(self) -> None:
        """The whole story. Raises ``ViolationError``."""
        try:
            with self._simulated():
                self._make()
                try:
                    self._play()
                finally:
                    for editor in self._alive:
                        self._kill(editor)
                    self._forget_held()
        finally:
            self.disk.end()
            shutil.rmtree(self._root, ignore_errors=True)

    def _play(self) -> None:
        for number, life in enumerate(self._story.lives):
            self._note(f"life {number}: {life}")
            self._live(life)
            self._look()
            if life.recovers:
                self._recover(life.deaths)
        self._recover(())
        self._end()

    # ------------------------------------------------------------------ what is simulated

    def _simulated(self) -> AbstractContextManager[None]:
        wait = SimpleNamespace(monotonic=self._now, sleep=self._sleep)
        instead = (
            *((module, "ThreadPoolExecutor", AtOnce) for module in (verify_module, recode_module)),
            (working_file_module, "ThreadPoolExecutor", AtOnce),
            (working_file_module, "_of_this_thread", OfThisGreenlet()),
            (working_file_module, "PIECE_BYTES", PIECE_BYTES),
            (region_changes_module, "time", wait),
            *((files_module, name, getattr(wait, name)) for name in ("monotonic", "sleep")),
            *((shard_lock_module, name, getattr(wait, name)) for name in ("monotonic", "sleep")),
        )
        schedule = self._story.schedule
        return simulated(self.disk, self._reach, schedule, instead, random.Random(f"order {schedule}"))

    def _now(self) -> float:
        return self._s

    def _sleep(self, seconds: float) -> None:
        self._s += HASTE * seconds
        self._pause()

    def _reach(self, point: str) -> None:
        if self._editor is None:
            return
        self._pause()
        if self._editor is None:
            raise DefectError("an actor goes on past the world")
        self._point, actor = point, self._editor.actor
        actor.wrong = None
        if self._trace is not None:
            self._note(f"    {self._editor.name} {point}")
        if self._faults.fails_sync(point):
            actor.wrong = Wrong()
        elif self._faults.cuts_short(point):
            self.disk.cut_short = True
            for shard in self._shards:
                shard.torn = True
        else:
            self._faults.reach(point)
            if self._faults.loses_answer(point):
                actor.wrong = Wrong(self._answers.choice((errno.EIO, None)), done=True)

    def _pause(self) -> None:
        if self._editor is not None:
            let_others_act(self.disk)

    def _note(self, what: str) -> None:
        if self._trace is not None:
            self._trace(what)

    # ------------------------------------------------------------------ the store as it is made

    def _make(self) -> None:
        """Everything is durable."""
        layout = self._layout
        make_directories(self._path)
        write_file(self._path / "zarr.json", json.dumps(document_of(layout)).encode())
        self._array = array = parse_array(self._path)
        record = ShardSums(self._path)
        if layout.recorded:
            write_file(record.path, b"")
        for number, shard in enumerate(self._shards):
            ((rows, _),) = shard.seen
            chunks = self._encoded(array, {n: rows[n * ROWS : (n + 1) * ROWS] for n in range(layout.chunks)})
            data, numbers, sizes, crcs = laid_out(array, chunks, layout)
            if not numbers:
                continue
            path = array.path / array.shard_key((number, 0))
            make_directories(path.parent)
            write_file(path, data)
            if layout.recorded:
                total = shard_sum(np.array(numbers), np.array(sizes), np.array(crcs))
                record.append({array.shard_key((number, 0)): total})
        descriptor = beneath.open_file(self._path, os.O_RDONLY | os.O_DIRECTORY)
        self.disk.sync_filesystem(descriptor)
        beneath.close(descriptor)

    def _encoded(self, array: StoredArray, rows: dict[int, tuple[int, ...]]) -> dict[int, bytes | None]:
        encoder = chunk_encoder(array, lossy=False)
        try:
            return {
                chunk: next(encoder.encode(self._values(values), (chunk, 0))).bytes_of(0)
                for chunk, values in rows.items()
            }
        finally:
            encoder.close()

    def _values(self, rows: Iterable[int]) -> np.ndarray:
        width = self._layout.width
        return np.frombuffer(b"".join(pixels_of(row, width) for row in rows), "<u2").reshape(-1, width)

    # ------------------------------------------------------------------ what processes do

    def work(self, editor: Editor, steps: tuple[Step, ...]) -> None:
        """Called within its greenlet."""
        for step in steps:
            self._note(f"  {editor.name} begins {step}")
            if step.kind == "pack":
                self._pack(editor, step.recompress, describe=step.describe)
                continue
            editor.pending = list(self._begun(step))
            try:
                self._change(step)
            except ShardwrightError as error:
                self._note(f"  {editor.name} fails: {error!r}")
                self._failed(editor, step, error)
            else:
                self._note(f"  {editor.name} is done")
                for number in editor.pending:
                    self._check(self._shard_of(number).acknowledge(number))
            editor.pending = []

    def _begun(self, step: Step) -> Iterator[int]:
        """Yields the number of the edit of each shard that a step changes."""
        per = self._layout.shard_rows
        for place in sorted({row // per for row, _ in step.rows}):
            rows = {row % per: value for row, value in step.rows if row // per == place}
            chunks = frozenset(row // ROWS * ROWS + i for row in rows for i in range(ROWS))
            within = step.strategy != "rewrite"
            mixes = step.strategy in ("in_place", "auto")
            tears = step.strategy == "append" and self._layout.index == "end"
            number = self._edits * len(self._shards) + place
            self._shards[place].begin(number, Pending(rows, chunks, mixes, tears, within))
            if place in self._held:
                self._held[place].named |= chunks
            yield number
        self._edits += 1

    def _shard_of(self, number: int) -> EditedShard:
        return self._shards[number % len(self._shards)]

    def _change(self, step: Step) -> None:
        settings: dict[str, Any] = {"strategy": step.strategy, "max_unused": step.max_unused}
        if step.kind == "edit":
            array = self._array
            shard = step.rows[0][0] // self._layout.shard_rows
            chunks: dict[int, list[int]] = {}
            for row, value in step.rows:
                chunks.setdefault(row % self._layout.shard_rows // ROWS, []).append(value)
            new = self._encoded(array, {chunk: tuple(values) for chunk, values in chunks.items()})
            edit_shard(array, (shard, 0), new, **settings)
            return
        region = {"y": (step.rows[0][0], step.rows[-1][0] + 1)}
        if any(value for _, value in step.rows):
            sw.update(self._path, region, self._values(value for _, value in step.rows), **settings)
        else:
            sw.erase(self._path, region, **settings)

    def _failed(self, editor: Editor, step: Step, error: ShardwrightError) -> None:
        if isinstance(error, ShardFormatError) and step.kind == "edit":
            raise ViolationError(f"a shard is taken for damaged: {error}")
        if isinstance(error, StorageError | ShardFormatError) and not self._faults.met:
            raise ViolationError(f"nothing fails, and yet: {error!r}")
        for number in editor.pending:
            if isinstance(error, _REFUSALS) and step.kind == "edit":
                self._check(self._shard_of(number).refuse(number))
            else:
                self._shard_of(number).end(number)

    def _pack(self, editor: Editor, level: int | None, *, describe: bool) -> None:
        """As ``shardwright compact`` does, in this process."""
        alone = all(other is editor or other.actor.is_over for other in self._alive)
        try:
            recover_edits(self._path)
            wish = None if level is None else {"cname": "zstd", "clevel": level, "shuffle": None}
            job = plan(open_store(self._path), Options(recompress=wish, idle=False, describe=describe))
            report = run(job, InThisProcess())
        except ShardwrightError as error:
            self._note(f"  {editor.name} does not pack: {error!r}")
            if not (isinstance(error, LockedError | StorageFullError) or self._faults.met):
                raise ViolationError(f"nothing fails, and yet it does not pack: {error!r}") from None
            return
        self._note(f"  {editor.name} has packed: {report}")
        for failure in report.failures.values():  # beside others a shard may change while it is packed
            if failure["code"] == ShardwrightError.code or (alone and not self._faults.met):
                raise ViolationError(f"a pack failed: {failure['message']}")

    # ------------------------------------------------------------------ lives and recovery

    def _live(self, life: EditLife) -> None:
        editors = [Editor(self, steps, f"editor {i}") for i, steps in enumerate(life.editors)]
        self._alive = list(editors)
        self._faults = Faults(life.faults)
        calls = counted = 0
        while running := [editor for editor in self._alive if not editor.actor.is_over]:
            self._point = ""
            self._let(self._rng.choice(running))
            calls += 1
            counts = not life.inside or self._point.startswith("edit.")
            counted += counts
            if life.looks:
                self._look()
            ends = life.ends if counts and counted == life.at else "finish"
            if ends == "power":
                break
            if ends == "kill" and editors[0] in running:
                self._note(f"{editors[0].name} is killed")
                self.crashes += 1
                self._kill(editors[0])
            if calls > MOST_CALLS:
                raise ViolationError("it does not end")
        self._faults = Faults(())
        self.calls += calls
        if life.ends == "power":
            self._lose_power()
        for editor in self._alive:
            self._kill(editor)

    def _let(self, editor: Editor) -> None:
        self._editor = editor
        try:
            editor.actor.step()
        finally:
            self._editor = None

    def _kill(self, editor: Editor) -> None:
        editor.calls.is_dead = True
        if not editor.actor.is_over:
            editor.actor.kill()
            if self.disk.torn is not None:
                for shard in self._shards:
                    shard.torn = True
        self.disk.kill(editor.calls)
        for number in editor.pending:
            self._shard_of(number).end(number)
        editor.pending = []
        self._alive = [other for other in self._alive if other is not editor]

    def _lose_power(self) -> None:
        self._note("power cut")
        self.crashes += 1
        for editor in list(self._alive):
            self._kill(editor)
        self._forget_held()
        self.disk.lose_power()
        for shard in self._shards:
            shard.lose_power()
        self._looked = [None] * len(self._shards)

    def _recover(self, deaths: tuple[int, ...]) -> None:
        """Until it is done, having been killed at these calls."""
        for calls in (*deaths, MOST_CALLS):
            recovery = Editor(self, (), "recovery")
            found: list[RecoveredEdit] = []
            recovery.actor = Actor(self.disk, recovery.calls, partial(self._recover_into, found))
            self._alive = [recovery]
            while calls and not recovery.actor.is_over:
                self._let(recovery)
                calls -= 1
            is_over = recovery.actor.is_over
            self._kill(recovery)
            for each in found:
                if each.error is not None:
                    raise ViolationError(f"recovery refuses: {each.error}")
            if is_over:
                for shard in self._shards:
                    shard.recovered()
                self._looked = [None] * len(self._shards)
                self._look(recovered=True)
                return
            self._note("recovery is killed")
            self.crashes += 1
            if self._rng.random() < 0.3:
                self._lose_power()
        raise ViolationError("recovery does not end")

    def _recover_into(self, found: list[RecoveredEdit]) -> None:
        found += recover_edits(self._path)

    # ------------------------------------------------------------------ what readers find

    def _look(self, *, recovered: bool = False) -> None:
        array = self._array
        for place, shard in enumerate(self._shards):
            path = self._path / array.shard_key((place, 0))
            raw = path.read_bytes() if path.exists() else b""
            if raw == self._looked[place]:
                continue
            self._looked[place] = raw
            if shard.torn and shard.pending and not (recovered or array.index_codec.has_checksum):
                continue  # an index that was torn cannot be told
            if (held := self._held.get(place)) is not None:
                self._check(held.look(self._value_of))
            if raw and (held is None or self._rng.random() < 0.3):
                self._hold(place, array, path)
            self._check(shard.look(self._found(array, path), recovered=recovered), place)

    def _found(self, array: StoredArray, path: Path) -> list[int | None] | None:
        """The value of each row, None for one that cannot be read; None: the index fails its checksum."""
        if not path.exists():
            return [0] * self._layout.shard_rows
        with SealedShard.open(path, array.index) as file:
            try:
                entries = file.entries
            except ShardFormatError:
                return None
            return self._rows(array, file.file, entries)

    def _rows(self, array: StoredArray, file: ReadFile, entries: np.ndarray) -> list[int | None]:
        return [
            v for entry in entries[: self._layout.chunks] for v in read(array, file, entry, self._value_of)
        ]

    def _hold(self, place: int, array: StoredArray, path: Path) -> None:
        if (held := self._held.pop(place, None)) is not None:
            held.file.close()
        file = SealedShard.open(path, array.index)
        try:
            entries = file.entries
        except ShardFormatError:
            file.close()
            return
        rows = self._rows(array, file.file, entries)
        named = {row for edit in self._shards[place].pending.values() for row in edit.chunks}
        self._held[place] = Held(array, file.file, entries, rows, named)

    def _forget_held(self) -> None:
        for held in self._held.values():
            held.file.close()
        self._held.clear()

    def _check(self, wrong: str | None, place: int | None = None) -> None:
        if wrong is not None:
            raise ViolationError(wrong if place is None else f"shard {place}: {wrong}")

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        """All is well and stays so, whatever is done next."""
        self._verified("once all was recovered")
        self._live(self._last)
        self._look(recovered=True)
        self._verified("after one more edit")
        for folder, _, names in os.walk(self._path):
            for name in names:
                path = Path(folder, name).relative_to(self._path).as_posix()
                if path not in ("zarr.json", SUMS_NAME) and not re.fullmatch(r"c/\d+/0", path):
                    raise ViolationError(f"left behind: {path}")

    def _verified(self, when: str) -> None:
        report = verify_store(self._path, threads=1)
        if not report.ok:
            raise ViolationError(f"{when}, verify finds: {report.problems[:3]}")


def last_life(layout: Layout) -> EditLife:
    """One more edit of every shard, and a pack, of which nothing fails."""
    rows = [
        [(place * layout.shard_rows + row, _LAST_VALUE + place * ROWS + row) for row in range(ROWS)]
        for place in range(layout.shards)
    ]
    return EditLife(((*(Step("edit", tuple(each)) for each in rows), Step("pack")),))


def play(story: EditStory, trace: Callable[[str], None] | None = None) -> str | None:
    """Returns what was wrong: None when every promise was kept."""
    return violation_of(EditWorld(story, trace).play)
