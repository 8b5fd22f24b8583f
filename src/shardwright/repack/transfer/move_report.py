"""What a move is asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from shardwright.repack.runtime.throttle import Throttle

# run_task on each task, results as they come
Execute = Callable[[Iterable[dict[str, Any]]], Generator[dict[str, Any], None, None]]


@dataclass(frozen=True)
class MoveOptions:
    """``destination``: a folder or s3://BUCKET/PREFIX. ``delete_source``: once all is there and verified.
    ``order``: of the chunks in a shard."""

    destination: str
    delete_source: bool = False
    order: str = "row_major"
    throttle: Throttle = field(default_factory=Throttle)


@dataclass
class MoveReport:
    """``verified``: files that an earlier, unfinished job had sent and this one only verified; ``finished``:
    those it had verified as well.

    ``complete``: all is there. ``damaged``: shards that were sent as they are; ``kept``: source files that
    came or were changed after they were sent. With either of these two nothing was deleted, but for what an
    earlier run had deleted if it had begun to: ``deleting``. ``deleted``: source files. ``unpacked``: shards
    that this run has sent as they are, since they hold more than the array (``unknown_bytes``): nothing is
    wrong with them. ``nothing_left``: no file is here, as after a move that failed or was killed when it
    removed the folders, and a store is at the destination.
    """

    store: str
    destination: str
    complete: bool = False
    sent: int = 0
    verified: int = 0
    finished: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    interrupted: bool = False
    nothing_left: bool = False
    deleting: bool = False
    deleted: int = 0
    damaged: list[dict[str, Any]] = field(default_factory=list)
    unpacked: list[dict[str, Any]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.complete and not self.damaged and not self.kept

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def add(self, result: dict[str, Any]) -> None:
        """Count the result of one task."""
        self.bytes_read += result["bytes_read"]
        self.bytes_written += result["bytes_written"]
        if not result["ok"]:
            self.failures.append({"key": result["key"], "error": result["error"]})
            return
        if "unpacked" in result:
            self.unpacked.append({"key": result["key"], "error": result["unpacked"]})
        if result["skipped"]:
            self.verified += 1
        else:
            self.sent += 1
