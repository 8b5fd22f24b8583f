"""One acquisition: its core, which decides, with the threads, files and clocks that carry out its commands.
Who has an acquisition asks it, and never its core.

    submit ─▶ core ─▶ Encode, Stage ─▶ workers ─┐
               ▲  └─▶ all other commands ─▶ sealer ─┤
               └── reports, through one queue ◀─┘

Single owner: every method is called from one thread (ingest, or the user's own under its writer's lock),
which never waits for a worker or a disk here. ``wake`` signals the owner that ``poll`` has something to do.
``poll`` must also be called several times a second for the clocks in the core. A frame's pixels belong to the
pipeline from ``submit`` until ``poll`` returns its sequence.
"""

from __future__ import annotations

import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.grid import image_of
from shardwright.codecs.degrade import DegradeLevel
from shardwright.model.errors import ResumeError
from shardwright.model.receipt import Watermark
from shardwright.model.write_settings import WriteSettings
from shardwright.shard.frames_in_place import FramesInPlace
from shardwright.shard.layout import StoreLayout
from shardwright.shard.manifest import OpenedAs
from shardwright.store.store_folder import StoreFolder

from .call_time import Now
from .commands import Encode, ImageAdded, Stage
from .core import Core
from .encoding import SlabEncoder, SlabJob, SlabTask, StageTask, join_frames
from .sealer import Sealer
from .states import AcquisitionState
from .visible_at_start import begin_visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec, Image
    from shardwright.array.spec import ArraySpec
    from shardwright.model.error_text import ErrorText
    from shardwright.model.errors import ShardwrightError
    from shardwright.model.receipt import Receipt
    from shardwright.model.write_options import Extent, FlushLevel

    from .commands import MoreImages, Report
    from .limits import Limits
    from .recovered_state import RecoveredState
    from .workers import WorkerPool

__all__ = ["Acquisition", "AcquisitionState"]
_ENDED = (AcquisitionState.SEALED, AcquisitionState.FAILED)


class Acquisition:
    """Creates the store and prepares its first shards before it returns. Raises ``OutputExistsError``,
    ``StorageError``, ``StorageFullError``.

    ``restored``: resumes what ``recovery`` found on disk instead. ``stream``, ``frames_expected``: as in
    ``OpenedAs``, of a new store.
    """

    def __init__(
        self,
        path: Path,
        spec: AcquisitionSpec | ArraySpec,
        limits: Limits,
        pool: WorkerPool,
        wake: Callable[[], None],
        settings: WriteSettings | None = None,
        *,
        restored: RecoveredState | None = None,
        stream: str | None = None,
        frames_expected: int | None = None,
    ) -> None:
        settings = settings or WriteSettings()
        if restored is None:
            opened_as = OpenedAs(settings.recorded(), limits.ring_frames, stream, frames_expected)
            self.folder = StoreFolder.create(path, parse_acquisition(spec), limits, settings, opened_as)
        else:
            self.folder = restored.folder
            settings = self.folder.as_created(settings)
        self._is_new = restored is None
        try:
            self._assemble(limits, pool, wake, settings, restored)
        except BaseException:
            if self._is_new:
                self.folder.remove_store()
            raise
        try:
            if restored is None:
                # on a full disk the acquisition is refused here, before any frame
                prepared = self._core.shard_rows.prepare_first(self._sealer.prepare)
                self._core.visible.cover(self.folder.metadata.covered)
                self._core.begin(prepared)
            else:
                self._restore(restored)
            self._sealer.start()  # last: a failure before it leaves no thread behind
        except BaseException:
            self.withdraw()
            raise

    def _assemble(
        self,
        limits: Limits,
        pool: WorkerPool,
        wake: Callable[[], None],
        settings: WriteSettings,
        restored: RecoveredState | None,
    ) -> None:
        folder = self.folder
        self._pool = pool
        self._updates_asked = 0
        self._encoding_line, self._staging_line = pool.line(), pool.line(staging=True)
        self._encoders: Sequence[SlabEncoder] = SlabEncoder.of_images(folder.spec, settings)
        self._task_ranges = [encoder.task_ranges for encoder in self._encoders]
        self._layout = StoreLayout(tuple(encoder.layout for encoder in self._encoders), folder.spec.grids)
        self._reports: SimpleQueue[Report] = SimpleQueue()
        # What is made here refers to the queue, never to this object: without a reference cycle an ended
        # acquisition and its tables are freed at once, without the garbage collector.
        self._report = partial(_report, self._reports, wake)
        order = settings.order(in_place=folder.spec.grids.in_place)
        self._sealer = Sealer(
            folder, self._layout, self._encoders, self._report, limits.shared_journal_rows, order
        )
        self._core = Core(
            folder.path,
            folder.spec,
            limits,
            settings,
            self._layout,
            [
                level
                for level in DegradeLevel
                if all(level in encoder.degrade_levels for encoder in self._encoders)
            ],
            threads=pool.threads,
            staging_slots=0 if folder.staging is None else folder.staging.slots,
            staged_slots=() if restored is None else restored.standing.staged_slots,
            accounts=None if restored is None else restored.standing.accounts,
        )
        # Constants, for those who have the acquisition; what changes is read where it is written. These two
        # are replaced when an image is added: other threads have the old ones or the new ones.
        self.spec, self.limits = folder.spec, limits
        self.path = folder.path
        self.identity = folder.manifest.identity  # 32 hex digits, unique to this acquisition
        self.accounts, self.measures = self._core.accounts, self._core.measures

    def _restore(self, restored: RecoveredState) -> None:
        for found in restored.shard_rows:
            self._sealer.adopt(found.files)
        slots = np.array(restored.standing.staged_slots, np.int64)
        self._core.arrivals.set_client(self.folder.manifest.client_epoch)
        joined = None
        if self.spec.grids.in_place:
            in_place = FramesInPlace(self._layout, self.folder.placements())
            joined = join_frames(in_place, self._encoders, restored.standing.staged)
        begin_visible(self._core.visible, restored)
        self._core.restore(restored, self.folder.staged_at(slots), _now(), joined)
        self._carry_out()

    # ------------------------------------------------------------------ the way of a frame

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        """As ``Core.submit``; handles the reports that are there before, so that one step does for both."""
        self._handle_reports()
        self._core.submit(descriptors, addresses, _now())
        self._carry_out()

    def poll(self, timeout_s: float | None = None) -> np.ndarray:
        """Handles the reports of workers and sealer. Returns int64 sequences whose pixels are no longer
        needed.

        With a timeout, first waits that long for a report (for an owner that has nothing else to wait for).
        """
        alive = self._pool.alive()
        # read before the reports are taken: then every report of the ended workers is among them
        ended = not alive and self._pool.ended()
        self._handle_reports(timeout_s)
        now = _now()
        if not alive:
            self._core.workers_failed(str(self._pool.failure), now, ended=ended)
        self._core.tick(now)
        self._carry_out()
        return self.take_released()

    def take_released(self) -> np.ndarray:
        """As ``Core.take_released``."""
        return self._core.take_released()

    def _handle_reports(self, timeout_s: float | None = None) -> None:
        try:
            report = (
                self._reports.get(timeout=timeout_s) if timeout_s is not None else self._reports.get_nowait()
            )
            now = _now()
            while True:
                self._core.handle(report, now)
                if type(report) is ImageAdded and report.images is not None:
                    self._take_images(report.images)
                report = self._reports.get_nowait()
        except Empty:
            pass

    def _carry_out(self) -> None:
        """Passes the core's commands to workers and sealer."""
        for command in self._core.take_commands():
            match command:
                case Encode():
                    image = image_of(command.slab)
                    encoder, ranges = self._encoders[image], self._task_ranges[image]
                    job = SlabJob(
                        command,
                        encoder,
                        self._core.encoders.overload,
                        len(ranges),
                        time.monotonic_ns(),
                        self._report,
                        self.folder.metadata.samples,
                    )
                    self._pool.put(
                        self._encoding_line, [SlabTask(job, first, stop) for first, stop in ranges]
                    )
                case Stage():
                    assert self.folder.staging is not None, "the core knows its number of slots"
                    encoder, samples = self._encoders[image_of(command.slab)], self.folder.metadata.samples
                    task = StageTask(command, self.folder.staging, encoder, samples, self._report)
                    self._pool.put(self._staging_line, [task])
                case _:
                    self._sealer.put(command)

    # ------------------------------------------------------------------ the owner's other calls

    def see_ring(self, used_frames: int, ring_frames: int) -> None:
        """Sets how many frames of the camera's ring are in use. The ring's owner calls it before each
        ``poll``."""
        self._core.encoders.see_ring(used_frames, ring_frames)

    def new_client(self, stream: str | None, frames_expected: int | None) -> int:
        """Counts a client that takes over; returns its epoch. Writes the manifest, so never in the ingest
        thread; a manifest of an earlier release records from now on what the acquisition is. Raises
        ``ResumeError`` unless open, ``StorageError``, ``FencedError``."""
        if self.state is not AcquisitionState.OPEN:
            raise ResumeError(f"{self.path} is being ended", got=self.state.value)
        opened_as = OpenedAs(self._core.settings.recorded(), self.limits.ring_frames, stream, frames_expected)
        epoch = self.folder.count_client(opened_as)
        self._core.arrivals.set_client(epoch)
        return epoch

    def count_writer(self) -> None:
        """Counts the owner's process as a client, if it has taken the store up. A client of the daemon that
        wrote before would else go on where it was, and take this writer's frames for its own. Raises
        ``StorageError``, ``FencedError``."""
        manifest = self.folder.manifest
        if manifest.writer_epoch > 1:
            self.folder.ballast.spent_on(lambda: self.folder.count_client(manifest.opened_as))
            self._core.arrivals.set_client(self.folder.manifest.client_epoch)

    def missing(self, stop: int) -> list[tuple[int, int]]:
        """Returns (first, last) ranges of sequences below ``stop`` that never came."""
        return self.accounts.seen.missing(stop)

    def settle_missing(self) -> None:
        """As ``Core.settle_missing``."""
        self._core.settle_missing(_now())
        self._carry_out()

    def flush(self, level: FlushLevel = "durable", *, answered: bool = True) -> int:
        """As ``Core.flush``. Returns the number by which ``take_updates`` answers, as that of an update;
        nobody remembers one that need not be ``answered``."""
        self._updates_asked += 1
        self._core.flush(_now(), level, self._updates_asked if answered else None)
        self._carry_out()
        return self._updates_asked

    def finish(self, *, keep_empty: bool = True, extent: Extent = "frames") -> None:
        """As ``Core.finish``. Keep calling ``poll`` until the state is SEALED (or FAILED)."""
        self._core.finish(_now(), keep_empty=keep_empty, extent=extent)
        self._carry_out()

    def update_metadata(self, image: int | None, attributes: dict[str, Any]) -> int:
        """Adds JSON values to the attributes of an image, or of the store (None). Returns the number by which
        ``take_updates`` answers. Raises ``ClosedError``."""
        self._updates_asked += 1
        self._core.update_metadata(self._updates_asked, image, attributes)
        self._carry_out()
        return self._updates_asked

    def add_image(self, image: Image, room_bytes: int) -> int:
        """Adds an image, whose frames may come once ``take_updates`` has the answer; ``spec`` has it then.
        ``room_bytes``: the memory that there is for it. Returns the number by which that answers, as that of
        an update. Raises ``ClosedError``."""
        self._updates_asked += 1
        self._core.add_image(self._updates_asked, image, room_bytes)
        self._carry_out()
        return self._updates_asked

    def _take_images(self, images: MoreImages) -> None:
        self._encoders, self._layout = self._sealer.encoders, images.layout
        self._task_ranges = [encoder.task_ranges for encoder in self._encoders]
        self.spec, self.limits = self._core.spec, self._core.limits

    def take_updates(self) -> list[tuple[int, ErrorText | None]]:
        """As ``Notifications.take_updates``."""
        return self._core.notifications.take_updates()

    def wait_for_room_no_longer(self) -> None:
        """As ``Core.wait_for_room_no_longer``."""
        self._core.wait_for_room_no_longer(_now())
        self._carry_out()

    def warn_below(self, low_water_bytes: int) -> None:
        """Sets the free disk space below which an event warns. From any thread."""
        self._core.warn_below(low_water_bytes)

    def take_losses(self) -> list[tuple[int, int, ErrorText]]:
        """Returns (first, last, why) of frames that were taken in, perhaps acknowledged, and could not be
        kept. Each is returned once."""
        return self._core.notifications.take_losses()

    def take_events(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns (name, facts) of each event for the operator, once."""
        return self._core.notifications.take_events(self.accounts)

    def take_duplicates(self) -> ErrorText | None:
        """As ``Notifications.take_duplicates``."""
        return self._core.notifications.take_duplicates(self.accounts)

    def receipt(self) -> Receipt:
        return self._core.receipt()

    def close(self) -> None:
        """Ends the sealer's thread, which has nothing left to do after SEALED or FAILED. In any other state
        the store is left to recovery."""
        if self.state not in _ENDED:
            self._await_workers()
        self._sealer.stop()
        self._sealer.join()
        self.folder.close()

    def withdraw(self) -> None:
        """Closes an acquisition that was never handed out (instead of ``close``). A store made for it is
        removed, so that its name is free again. A resumed one stays as it is, for recovery."""
        if not self._is_new:
            self.close()
            return
        self._sealer.stop()
        self._sealer.join()
        self.folder.remove_store()

    def _await_workers(self) -> None:
        """Waits until no worker reads or writes: then files may be closed and the staging area unmapped."""
        while self.in_flight and self._pool.alive():
            self.poll(0.1)

    # ------------------------------------------------------------------ state

    @property
    def state(self) -> AcquisitionState:
        return self._core.state

    @property
    def why(self) -> ErrorText | None:
        """The reason why it failed or is about to fail, with the line of code that raised a defect."""
        return self._core.end.why

    @property
    def error(self) -> ShardwrightError | None:
        """The reason why it failed or is about to fail, as a new exception at each call."""
        return None if self.why is None else self.why.to_error()

    @property
    def settings(self) -> WriteSettings:
        """The present ones: ``warn_below`` replaces them."""
        return self._core.settings

    @property
    def waits_for_disk(self) -> bool:
        """True while it waits for room on a full disk. From any thread."""
        return self._core.full_disk.is_waited_for

    @property
    def left_to_recovery(self) -> bool:
        """As ``Core.left_to_recovery``."""
        return self._core.left_to_recovery

    @property
    def client_epoch(self) -> int:
        """The number of clients that have sent to this acquisition, one after the other."""
        return self.folder.manifest.client_epoch

    @property
    def next_sequence(self) -> int:
        return self.accounts.seen.stop

    @property
    def is_finishing(self) -> bool:
        return self._core.end.is_asked

    @property
    def stored_watermark(self) -> int:
        """The number of frames, from sequence 0 without a hole, that a kill of this process cannot lose.
        Settled ones (duplicate, late, dropped, lost) count."""
        return self.accounts.stored.value

    @property
    def durable_watermark(self) -> int:
        """Likewise for frames that a power cut cannot lose."""
        return self.accounts.durable.value

    @property
    def visible_watermark(self) -> int:
        """Likewise for frames that a plain reader of the files sees, or that will never be stored."""
        return self._core.visible.watermark(self.accounts.stored.value)

    @property
    def watermark(self) -> Watermark:
        """The three of them, counted in places. From any thread."""
        # each first of which the next is at least as much
        visible, durable = self.visible_watermark, self.durable_watermark
        names = self.spec.names
        images = {names[image]: count for image, count in self.visible_of_images().items()}
        return Watermark(self.stored_watermark, durable, visible, images)

    def visible_of_images(self) -> dict[int, int]:
        """Returns how many places of each image with any are visible, by its number; none of a single image.
        From any thread."""
        known = 0 if self.spec.is_single else len(self.spec.names)  # one that is just being added comes later
        counts = self._core.visible.by_image()[:known]
        return {image: count for image, count in enumerate(counts) if count}

    @property
    def visible_changes(self) -> int:
        """As ``VisibleFrames.changes``."""
        return self._core.visible.changes

    @property
    def in_flight(self) -> int:
        """As ``Core.in_flight``."""
        return self._core.in_flight

    @property
    def held_frames(self) -> int:
        """As ``Core.held_frames``."""
        return self._core.held_frames

    @property
    def unrecorded_frames(self) -> int:
        """The number of frames that are not stored and whose record is not in the log yet."""
        return self._core.recorder.frames

    @property
    def flush_is_stuck(self) -> bool:
        """As ``Core.flush_is_stuck``."""
        return self._core.flush_is_stuck

    @property
    def slabs_used(self) -> int:
        """Rows of the slab table that hold a slab, of ``limits.rows``. From any thread."""
        return self._core.table.rows_used

    @property
    def degrade_level(self) -> DegradeLevel:
        """The level at which chunks are encoded now. From any thread."""
        return self._core.encoders.overload.level

    @property
    def sealer_busy_s(self) -> float:
        """The duration of the sealer's present call so far. From any thread."""
        return self._sealer.busy.busy_s()


def _now() -> Now:
    return Now(time.monotonic_ns(), time.time_ns())


def _report(reports: SimpleQueue[Report], wake: Callable[[], None], report: Report) -> None:
    """Called from workers and sealer."""
    reports.put(report)
    wake()
