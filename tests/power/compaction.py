"""Power cuts while a sealed store is packed: what of each shard may be there afterwards, and the job that is
run again.

P13  each shard is the whole old file or the whole new one; the new one, once the job said so. (That all
     frames are there: ``judge``.)
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.rework.runtime.tasks import run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .recording import Promised

HOW = ("pack", "recode")
_OPTIONS = {
    "pack": Options("morton", idle=False),
    "recode": Options("column_major", {"cname": "zstd", "clevel": 9, "shuffle": None}, idle=False),
}

# (key, digest before, digest after), in the order in which they are packed
Shards = list[tuple[str, str, str]]


class _Here:
    """An executor that works in this process and tells of each shard that is done."""

    workers = 1

    def __init__(self, on_packed: Callable[[int], None]) -> None:
        self._on_packed = on_packed

    def run(self, tasks: Any, _on_moved: Any = None) -> Iterator[dict[str, Any]]:
        for number, task in enumerate(tasks, 1):
            result = run_task(task)
            assert result["ok"], result
            self._on_packed(number)
            yield result

    def close(self) -> None: ...


def pack_store(store: Path, how: str, on_packed: Callable[[int], None] = lambda _: None) -> Shards:
    """``on_packed(n)``: the first n shards are packed, durably."""
    job = plan(open_store(store), _OPTIONS[how])
    image = store / "0"
    keys = [shard.shard.key for shard in job.todo if shard.shard.array.path == image]
    assert keys == [shard.shard.key for shard in job.todo][: len(keys)], "the image comes first"
    before = [digest(image / key) for key in keys]
    report = run(job, _Here(lambda number: on_packed(min(number, len(keys)))))
    assert report.ok, report
    return list(zip(keys, before, [digest(image / key) for key in keys], strict=True))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"


def torn_shards(store: Path, shards: Shards, promised: Promised) -> list[str]:
    """Shards that are not what they may be at a cut with these promises."""
    faults = []
    for number, (key, before, after) in enumerate(shards):
        allowed = (after,) if number < promised.packed else (before, after)
        if (found := digest(store / "0" / key)) not in allowed:
            what = (
                "was packed, but the old file is back"
                if found == before
                else ("neither the old file nor the new one")
            )
            faults.append(f"{key}: {what}")
    return faults


def packed_again(store: Path, how: str, shards: Shards) -> list[str]:
    """The job that the cut ended is run again: all shards are as they were to be, and nothing is left
    over."""
    try:
        pack_store(store, how)
    except Exception as error:
        return [f"run again: {error!r}"]
    faults = [
        f"run again: {key} is not packed" for key, _, after in shards if digest(store / "0" / key) != after
    ]
    return faults + [f"run again: left over: {path}" for path in store.rglob(".compact*")]
