"""A store with other chunks sent to a destination such as a bucket: made whole beside its source, where no
reader looks, then moved.

    FOLDER/.NAME.rechunk.HASH/lock          held for the whole job
    FOLDER/.NAME.rechunk.HASH/move.*        the claim on the destination, made before anything else, and what
                                            has been sent (see ``move_record``)
    FOLDER/.NAME.rechunk.HASH/job.json      what is being made of which shards; without a record: all of it
                                            has arrived
    FOLDER/.NAME.rechunk.HASH/store         the new store once it is complete, until its last file is at the
                                            destination (see ``rechunk_job``)

May be killed at any moment, and goes on when it is run again.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import OutputExistsError
from shardwright.repack.runtime.throttle import Throttle
from shardwright.repack.transfer.move_record import MoveRecord
from shardwright.repack.transfer.move_report import MoveOptions
from shardwright.repack.transfer.move_store import bytes_to_move, move_store
from shardwright.repack.transfer.open_destination import open_destination
from shardwright.repack.transfer.send_store import claimed_record
from shardwright.storage.failpoints import reach
from shardwright.storage.files import make_directories, read_regular, replace_file, storage_errors
from shardwright.storage.lock import StoreLock

from .new_arrays import BuildReport
from .rechunk_store import describe, working_folder, write_new_store

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.repack.transfer.move_report import Execute

    from .new_arrays import Progress, RunTasks
    from .rechunk_store import RechunkOptions, RechunkPlan


def staging_folder(store: Path, url: str) -> Path:
    return store.with_name(f".{store.name}.rechunk.{hashlib.sha256(url.encode()).hexdigest()[:16]}")


class RechunkTo:
    """One job, its lock and its claim on the destination held: ``make``, then ``send``, then ``close``.

    Raises ``OutputExistsError`` or ``LockedError`` when the destination is taken, also by an unfinished job
    of ours that made something else; ``ConfigError``, ``StorageError``.
    """

    def __init__(self, plan: RechunkPlan, url: str, options: RechunkOptions) -> None:
        self._plan = plan
        self._options = options
        self._destination = open_destination(url)
        self._folder = staging_folder(plan.store.root, self._destination.url)
        self._store = self._folder / "store"
        make_directories(self._folder)
        self._lock = StoreLock.take(self._folder / "lock")
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        job, facts = self._folder / "job.json", describe(self._plan)
        record = MoveRecord.find(self._folder, self._destination.url)
        with storage_errors("look at", job):
            found = read_regular(job) if job.exists() else None
        self._sent_already = found is not None and (
            record is None or (record.complete and not self._store.exists())
        )
        self._made_already = self._sent_already or self._store.exists()
        complete = self._sent_already or (record is not None and record.complete)
        if not complete:
            claimed_record(self._folder, self._destination)
        if self._made_already and found != facts:
            raise OutputExistsError(
                "an unfinished job with other options, or of a source that has changed since, is sending to "
                "this destination",
                got=self._destination.url,
                hint=f"Run it as it was begun, or delete {self._folder} and what is at the destination, "
                f"{self._destination.url}/.compact included",
            )
        if not complete:
            replace_file(job, facts)

    def make(
        self, run: RunTasks, *, throttle: dict[str, Any] | None = None, on_progress: Progress | None = None
    ) -> BuildReport:
        """The new store on this side. Raises as ``write_new_store`` does."""
        if self._made_already:
            report = BuildReport(
                "", made=[name for name, _ in self._plan.arrays] + [level.name for level in self._plan.levels]
            )
        else:
            report = write_new_store(
                self._plan, self._store, self._options, run, throttle=throttle, on_progress=on_progress
            )
        report.path = self._destination.url
        return report

    def bytes_to_send(self) -> dict[str, int]:
        """By key; what an earlier run has sent is to be checked only."""
        if self._sent_already:
            return {}
        return bytes_to_move(
            self._store, MoveOptions(self._destination.url, delete_source=True), records=self._folder
        )

    def send(self, execute: Execute, report: BuildReport, throttle: Throttle | None = None) -> None:
        """What ``make`` made, each file verified, metadata last; then it is deleted on this side. Adds to
        ``report`` what was sent and what was not.

        Raises ``KeyboardInterrupt`` once it has stopped cleanly.
        """
        if not self._sent_already:
            moved = move_store(
                self._store,
                MoveOptions(self._destination.url, delete_source=True, throttle=throttle or Throttle()),
                execute,
                records=self._folder,
            )
            report.bytes_sent += moved.bytes_written
            report.failures += moved.failures + moved.damaged
            if moved.interrupted:
                raise KeyboardInterrupt
            if not moved.ok:
                report.made = []
                return
        elif record := MoveRecord.find(self._folder, self._destination.url):
            self._destination.release(record.token)
            record.delete()
        with storage_errors("delete", self._folder):
            reach("compact.before_clear")
            # the latter of a run that was killed just after it had made all
            for left in (self._store, working_folder(self._store)):
                shutil.rmtree(left, ignore_errors=True)
            (self._folder / "job.json").unlink()

    def close(self) -> None:
        """Let go; what is unfinished stays for the next run."""
        try:
            if {path.name for path in self._folder.iterdir()} <= {self._lock.path.name}:
                self._lock.delete()
        finally:
            self._lock.release()
        with suppress(OSError):  # not empty: unfinished
            reach("compact.before_remove_work_folder")
            self._folder.rmdir()
