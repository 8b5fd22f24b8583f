"""A store with other chunks sent to a destination such as a bucket: made whole beside its source, where no
reader looks, then moved. May be interrupted at any point.

    FOLDER/.NAME.rechunk.HASH            the job's folder, of one store and one destination (job_folder.py)
    FOLDER/.NAME.rechunk.HASH/move.*     the claim on the destination, made before anything else, and what has
                                         been sent (see ``move_record``)
    FOLDER/.NAME.rechunk.HASH/store      the new store from when it is complete until its last file is at the
                                         destination (see ``rechunk_store``)

A job (the file ``job``) without a record of the move says that all has arrived.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shardwright.disk import beneath
from shardwright.model.errors import FormatVersionError, OutputExistsError, ShardFormatError
from shardwright.model.names import REBUILD_SUFFIX
from shardwright.rework.runtime.job_folder import JobFolder
from shardwright.rework.runtime.job_report import BuildReport, no_progress
from shardwright.rework.runtime.throttle import Throttle, sending_pause_files
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.rework.transfer.move_store import bytes_to_move, claimed_record, move_store

from .rechunk_store import write_new_store

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.rework.runtime.job_report import OnProgress
    from shardwright.rework.runtime.tasks import RunTasks

    from .rechunk_store import RechunkOptions, RechunkPlan


def staging_folder(store: Path, url: str) -> Path:
    """The job's folder."""
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return store.with_name(f".{store.name}{REBUILD_SUFFIX}.{digest}")


class RechunkTransfer:
    """One job, its lock and its claim on the destination held: ``make``, then ``send``, then ``close``.

    Raises ``OutputExistsError`` or ``LockedError`` when the destination is taken, also by an unfinished job
    of ours that made something else; ``ConfigError``, ``StorageError``.
    """

    def __init__(self, plan: RechunkPlan, url: str, options: RechunkOptions) -> None:
        self._plan = plan
        self._options = options
        self._destination = open_destination(url)
        self._held = ExitStack()
        self._folder = self._held.enter_context(
            JobFolder.locked(staging_folder(plan.store.root, self._destination.url))
        )
        self._store = self._folder.path / "store"
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        job, found = self._plan.job(), self._folder.found()
        record = self._found_record()
        self._sent_already = found is not None and (
            record is None or (record.complete and not beneath.exists(self._store))
        )
        self._made_already = self._sent_already or beneath.exists(self._store)
        complete = self._sent_already or (record is not None and record.complete)
        if not complete:
            claimed_record(self._folder.path, self._destination)
        if self._made_already and found != job:
            raise OutputExistsError(
                "an unfinished job has claimed this destination, with other options or of a source that has "
                "changed since",
                got=self._destination.url,
                hint=f"Run that job with its own options, or delete {self._folder.path} and everything at "
                f"the destination, {self._destination.url}/.compact included",
            )
        if not complete:
            self._folder.save(job)

    def _found_record(self) -> MoveRecord | None:
        """Raises as ``MoveRecord.find``; without its record this job would count as sent."""
        try:
            return MoveRecord.find(self._folder.path, self._destination.url)
        except FormatVersionError:
            raise
        except ShardFormatError as error:
            raise ShardFormatError(
                error.message,
                hint=f"Delete {self._folder.path} and everything at the destination, {self._destination.url}"
                "/.compact included, and run the same `shardwright rechunk` again. The source is as it was",
            ) from None

    def make(
        self, run: RunTasks, *, throttle: Throttle | None = None, on_progress: OnProgress = no_progress
    ) -> BuildReport:
        """Make the new store on this side. Raises as ``write_new_store`` does."""
        if self._made_already:
            report = BuildReport("", made=self._plan.names)
        else:
            report = write_new_store(
                self._plan, self._store, self._options, run, throttle=throttle, on_progress=on_progress
            )
        report.path = self._destination.url
        return report

    def bytes_to_send(self) -> dict[str, int]:
        """By key, also of files that an earlier run has sent, which are only checked."""
        if self._sent_already:
            return {}
        return bytes_to_move(
            self._store, MoveOptions(self._destination.url, delete_source=True), records=self._folder.path
        )

    def send(self, run: RunTasks, report: BuildReport, throttle: Throttle | None = None) -> None:
        """Send what ``make`` made, each file verified, metadata last; then delete it on this side. Adds to
        ``report`` what was sent and what was not.

        After an interrupt it clears up and raises ``KeyboardInterrupt`` again.
        """
        if not self._sent_already:
            pause = sending_pause_files(self._plan.store.arrays[0].path)
            throttle = (throttle or Throttle()).waiting_for(pause)
            moved = move_store(
                self._store,
                MoveOptions(self._destination.url, delete_source=True, throttle=throttle),
                run,
                records=self._folder.path,
            )
            report.bytes_sent += moved.bytes_written
            report.failures += moved.failures + moved.damaged
            if moved.interrupted:
                raise KeyboardInterrupt
            if not moved.ok:
                report.made = []
                return
        elif record := MoveRecord.find(self._folder.path, self._destination.url):
            self._destination.release(record.token)
            record.delete()
        self._folder.clear()

    def close(self) -> None:
        """Release the lock. Unfinished work stays for the next run."""
        self._held.close()
