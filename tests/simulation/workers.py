"""The workers: they take tasks in order, and carry them out in steps that interleave in any way. They read
pixels at the moment they act."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardwright.acquire.assembly import IN_PLACE
from shardwright.acquire.commands import Encode, FramesStaged, SlabEncoded, TaskTimes
from shardwright.codecs.degrade import DegradeLevel
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import StorageError, WorkerError

from .disk import ABSENT, TORN
from .oracle import ViolationError
from .shard_row import files_of_slab
from .story import FILL

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from shardwright.acquire.commands import Stage, WorkerReport

    from .disk import Disk, File
    from .shard_row import Files

    Steps = Generator[None, None, ErrorText | None]
    Read = Callable[[np.ndarray, np.ndarray], list[int]]

NOT_JOINED = np.zeros(0, np.uint32), np.zeros(0, np.bool_)  # the core only passes checksums on
STAGING = 1_000_000  # addresses from here on: pixels in slots of the staging area; below: of the ring


@dataclass(eq=False)
class Job:
    """What the tasks of one command share."""

    command: Encode | Stage
    left: int
    error: ErrorText | None = None
    done: list[TaskTimes] = field(default_factory=list)

    def report(self) -> WorkerReport:
        command = self.command
        if isinstance(command, Encode):
            return SlabEncoded(command.row, len(self.done), self.error, tuple(self.done))
        joined = NOT_JOINED if command.files is not None and self.error is None else None
        return FramesStaged(command.row, command.places, command.slots, self.error, joined)


@dataclass(eq=False)
class Task:
    job: Job
    steps: Steps


class Workers:
    """``dies``: (number of a task, whether it is told of) at which one of them dies. ``read(addresses,
    records)``: tokens of the pixels there."""

    def __init__(
        self, count: int, disk: Disk, files: int, tasks: int, read: Read, dies: tuple[int, bool] | None
    ) -> None:
        self.queue: deque[Task] = deque()
        self.at: list[Task | None] = [None] * count
        self.failure: str | None = None
        self.reports: list[WorkerReport] = []
        self.level: Callable[[], DegradeLevel] = lambda: DegradeLevel.CONFIGURED
        self._gone: set[int] = set()
        self._begun = 0
        self._disk = disk
        self._staging = disk.staging
        self._ranges = [range(files)] if tasks == 1 else [range(f, f + 1) for f in range(files)]
        self._read = read
        self._dies = dies
        self._slabs: dict[Files, set[int]] = {}  # that are being encoded, or stored

    def at_files(self, files: Files) -> int:
        """Tasks that write to them, or will; once nobody is left, none."""
        return not self.ended() and sum(
            getattr(task.job.command, "files", None) is files
            for task in (*self.queue, *self.at)
            if task is not None
        )

    def alive(self) -> bool:
        return self.failure is None

    def ended(self) -> bool:
        """Whether nobody is left to carry anything out."""
        return self.failure is not None and not self.ready()

    def ready(self) -> list[int]:
        """Workers that can go on."""
        if not any(self.at) and not self.queue:
            return []
        return [
            i for i, task in enumerate(self.at) if i not in self._gone and (task is not None or self.queue)
        ]

    def encode(self, command: Encode) -> None:
        job = Job(command, len(self._ranges))
        self._put([Task(job, self._encode(command, list(files))) for files in self._ranges])

    def stage(self, command: Stage) -> None:
        self._put([Task(Job(command, 1), self._stage(command))])

    def _put(self, tasks: list[Task]) -> None:
        """Once one has died the others carry out what was queued before, and nothing else."""
        if self.failure is None:
            self.queue.extend(tasks)

    def step(self, worker: int) -> None:
        """Take a task, or go on with it."""
        task = self.at[worker]
        if task is None:
            task = self.at[worker] = self.queue.popleft()
            self._begun += 1
            if self._dies is not None and self._begun > self._dies[0] and self.failure is None:
                self._die(worker, task, told=self._dies[1])
                return
        try:
            next(task.steps)
        except StopIteration as done:
            self.at[worker] = None
            self._end(task.job, done.value)

    def _die(self, worker: int, task: Task, *, told: bool) -> None:
        self._gone.add(worker)
        self.at[worker] = None
        self.failure = "it was killed"
        if told:
            self._end(task.job, ErrorText(WorkerError, "a worker thread died"))

    def _end(self, job: Job, error: ErrorText | None) -> None:
        job.left -= 1
        job.error = job.error or error
        if error is None:
            job.done.append(TaskTimes(1, 1, self.level(), 1))
        if not job.left:
            self.reports.append(job.report())

    def _encode(self, command: Encode, mine: Iterable[int]) -> Steps:
        files: Files = command.files  # type: ignore[assignment]
        slab, disk = command.slab, self._disk
        of_slab = files_of_slab(files.layout, slab)
        try:
            chunks = {}
            for f in mine:
                shard = files.shards[of_slab[f]]
                assert shard is not None, "it is not sealed"
                if shard.renamed or shard.ready:
                    raise ViolationError(f"slab {slab} is encoded into a shard that is being sealed")
                tokens = tuple(self._read(command.frames, command.records))
                chunks[f] = tokens if any(token not in (0, FILL) for token in tokens) else ABSENT
                content = chunks[f] if command.joined is None else _completed(shard.file, command)
                self._write(shard.file, slab, content if chunks[f] != ABSENT else ABSENT)
                yield
            if 0 in chunks:
                disk.call("journal", files.journal.file)
                filled = command.frames != 0
                files.journal.file.write(("frames", slab), command.records[filled].copy())
                yield
            for f, chunk in chunks.items():
                disk.call("journal", files.journal.file)
                files.journal.file.write(("chunk", of_slab[f], slab), chunk)
                if chunk != ABSENT:
                    files.shards[of_slab[f]].entries[slab] = chunk  # type: ignore[union-attr, assignment]
                yield
        except StorageError as error:
            return ErrorText.of(error)
        return None

    def _write(self, file: File, slab: int, chunk: tuple[int, ...] | str) -> None:
        try:
            self._disk.call("chunk", file)
        except StorageError:
            if chunk != ABSENT and self._disk.rng.random() < 0.5:
                file.write(slab, TORN)
            raise
        if chunk != ABSENT:
            file.write(slab, chunk)

    def _stage(self, command: Stage) -> Steps:
        assert self._staging is not None, "the core was told of its slots"
        try:
            for k, slot in enumerate(command.slots.tolist()):
                self._disk.call("stage")
                (token,) = self._read(command.frames[k : k + 1], command.records[k : k + 1])
                if command.files is None:
                    self._staging.write(("pixels", slot), token)
                    yield
                else:
                    yield from self._put_in_place(command, int(command.places[k]), token)
                if slot < 0:
                    continue
                self._staging.write(("record", slot), (command.records[k].copy(), token))
                yield
        except StorageError as error:
            return ErrorText.of(error)
        return None

    def _put_in_place(self, command: Stage, place: int, token: int) -> Generator[None, None, None]:
        files: Files = command.files  # type: ignore[assignment]
        for f in files_of_slab(files.layout, command.slab):
            shard = files.shards[f]
            assert shard is not None, "it is not sealed"
            if shard.renamed or shard.ready:
                raise ViolationError(f"a frame of slab {command.slab} goes into a shard that is being sealed")
            self._disk.call("chunk", shard.file)
            shard.file.write(("part", command.slab, place), token)
            yield


def _completed(file: File, command: Encode) -> tuple[int, ...]:
    """What is in a chunk once its empty places are filled."""
    for place in np.flatnonzero(command.frames == 0).tolist():
        file.clear(("part", command.slab, place))
    return tuple(file.data.get(("part", command.slab, place), 0) for place in range(command.frames.size))


def tokens_at(
    addresses: np.ndarray,
    records: np.ndarray,
    ring: list[int],
    staging: File | None,
    expected: Callable[[int], int],
) -> list[int]:
    """Of the pixels at each address, 0 where there is none. Raises ``ViolationError`` when they are no longer
    those of the frame."""
    tokens = []
    for address, sequence in zip(addresses.tolist(), records["sequence"].tolist(), strict=True):
        if address in (0, IN_PLACE):
            tokens.append(expected(sequence) if address else 0)
            continue
        token = (
            ring[address - 1]
            if address < STAGING
            else staging.data.get(("pixels", address - STAGING))
            if staging is not None
            else None
        )
        if token != expected(sequence):
            raise ViolationError(
                f"pixels that were released are read: of sequence {sequence}, at "
                f"{address}, where {token} is now"
            )
        tokens.append(token)
    return tokens
