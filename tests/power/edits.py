"""Power cuts while chunks of one shard are updated, by one strategy after another.

The shard has, once recovery has run, all chunks as they were after an update that had been told done, or all
as after the next one; compaction knows every byte of it, and it is the shard on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.edit.arrays import contents, encoded, make_array

from shardwright.model.errors import ShardwrightError
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.edit.edit_recovery import recover_edits
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.source_shard import SourceShard
from shardwright.rework.unknown_bytes import unknown_bytes
from shardwright.shard.edit_files import interrupted_edits

from . import machine
from .judge import UnmountableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.read.store import StoredArray

    from .recording import Promised
    from .scenario import Scenario

_FOLDER = "updated"  # below the root of the disk
_SIDE = 128  # chunks of up to 16 KiB: several pages
_SHARD = (0, 0)
Chunks = dict[int, bytes]

# strategy, and the noise of each chunk (its bytes, about); None: erased
_EDITS: tuple[tuple[str, dict[int, int | None]], ...] = (
    ("rewrite", {0: 12000, 1: 12000, 2: 9000, 3: 5000, 4: 14000}),
    ("in_place", {1: 11000, 4: 13900}),
    ("append", {2: 16000}),
    ("in_place", {0: 11990, 3: None}),
    ("gap", {3: 8000}),
    ("append", {1: 16000, 5: 300, 2: None}),
    ("in_place", {1: 15000, 0: 11000, 4: 13000}),
    ("rewrite", {1: 4000, 2: 16000}),
    ("in_place", {1: 3900, 2: 15900}),
    ("append", {4: 16000, 0: 16000}),
)


def lay(root: Path, scenario: Scenario) -> None:
    """The shard before the first update that is recorded."""
    checked = scenario.codec != "none"  # the record of its shards, with or without sums within the chunks
    array = make_array(
        root / _FOLDER,
        index=scenario.index_location,
        chunk_checksum=checked,
        recorded=scenario.io != "mmap",
        side=_SIDE,
    )
    edit_shard(array, _SHARD, _changes(array, 0))


def do(root: Path, on_done: Callable[[int], None]) -> None:
    array = parse_array(root / _FOLDER)
    for number in range(1, len(_EDITS)):
        edit_shard(array, _SHARD, _changes(array, number), strategy=_EDITS[number][0])
        on_done(number)


def _changes(array: StoredArray, number: int) -> dict[int, bytes | None]:
    return {
        chunk: None if noise is None else encoded(array, 10 * number + chunk, noise)
        for chunk, noise in _EDITS[number][1].items()
    }


def _states(array: StoredArray) -> list[Chunks]:
    """The chunks after each update."""
    states: list[Chunks] = []
    for number in range(len(_EDITS)):
        chunks = {**(states[-1] if states else {}), **_changes(array, number)}
        states.append({chunk: data for chunk, data in chunks.items() if data is not None})
    return states


def _before_recovery(array: StoredArray) -> Chunks | None:
    """The chunks as other programs find them; None for an index that fails its checksum."""
    try:
        return contents(array, *_SHARD)
    except ValueError:
        return None


def _may_be_met(found: Chunks, states: list[Chunks], number: int) -> bool:
    """Whether these chunks may be met before recovery makes them those after update ``number`` (EDIT.md)."""
    if found in (states[number], states[max(0, number - 1)]):
        return True
    strategy, changed = _EDITS[number]
    same = {chunk: data for chunk, data in found.items() if chunk not in changed}
    return strategy == "in_place" and same == {
        chunk: data for chunk, data in states[number].items() if chunk not in changed
    }


class EditJudge:
    """See ``judge.Judge``."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._filesystem = scenario.filesystem
        self._folder = folder

    def judge(self, loop: machine.LoopDevice, promised: Promised, *, independently: bool) -> list[str]:
        """What is wrong. Raises ``UnmountableError``."""
        del independently  # the shard is read by a reader of the tests
        try:
            machine.mount(loop.device, self._folder, self._filesystem)
        except OSError as error:
            raise UnmountableError(str(error)) from error
        try:
            return self._judge_mounted(promised.packed)
        except (ShardwrightError, ValueError) as error:
            return [repr(error)]
        finally:
            machine.unmount(self._folder)

    def _judge_mounted(self, done: int) -> list[str]:
        array = parse_array(self._folder / _FOLDER)
        is_pending, before = bool(interrupted_edits(array.path)), _before_recovery(array)
        faults = [f"refused: {edit.error}" for edit in recover_edits(array.path) if edit.error]
        states, found = _states(array), contents(array, *_SHARD)
        number = next((i for i, state in enumerate(states) if state == found), None)
        if number is None or not done <= number <= done + 1:
            return [*faults, f"after {done} updates there are the chunks after {number}"]
        if not is_pending if before is None else not _may_be_met(before, states, number):
            faults.append(f"before recovery: not what update {number} may leave")
        faults += [str(problem) for problem in verify_store(array.path).problems]
        with SourceShard(array, _SHARD) as source:
            if unknown := unknown_bytes(source, source.pack_plan("row_major"), lambda _: None):
                faults.append(str(unknown.error()))
        if number + 1 < len(states):
            edit_shard(array, _SHARD, _changes(array, number + 1))
            if contents(array, *_SHARD) != states[number + 1]:
                faults.append("the next update is not what the shard has then")
        faults += [f"left over: {path}" for path in array.path.glob(".shardwright-edit*")]
        return faults
