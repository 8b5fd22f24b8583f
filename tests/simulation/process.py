"""One life of an acquisition: the real core, driven as ``acquire.acquisition`` does, with a simulated ring,
sealer and workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.acquire.assembly import IN_PLACE
from shardwright.acquire.commands import Discard, Encode, Stage
from shardwright.acquire.core import AcquisitionState, Core, Now

from .oracle import Oracle, ViolationError
from .sealer import Sealer
from .workers import NOT_JOINED, STAGING, Workers, tokens_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.acquire.commands import Report
    from shardwright.acquire.limits import Limits
    from shardwright.acquire.recovered_state import RecoveredState

    from .disk import Disk
    from .story import Life, Plan, Story


POISON = -2  # where no pixels are any more
ENDED = (AcquisitionState.SEALED, AcquisitionState.FAILED)


class Ring:
    """Pixels by address, 1 to ``frames``; a slot that comes back is the next one taken."""

    def __init__(self, frames: int) -> None:
        self.tokens = [POISON] * frames
        self._free = list(range(frames))
        self._slot_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self._slot_of)

    def put(self, sequence: int, token: int) -> int:
        slot = self._free.pop()
        self.tokens[slot] = token
        self._slot_of[sequence] = slot
        return slot + 1

    def release(self, sequences: list[int]) -> None:
        for sequence in sequences:
            if sequence not in self._slot_of:
                raise ViolationError(f"released twice, or never taken: the pixels of sequence {sequence}")
            slot = self._slot_of.pop(sequence)
            self.tokens[slot] = POISON
            self._free.append(slot)


class Process:
    """``fenced``: another writer has taken over, so that nothing it says counts any more."""

    def __init__(
        self,
        story: Story,
        plan: Plan,
        life: Life,
        disk: Disk,
        oracle: Oracle,
        limits: Limits,
        now: Callable[[], Now],
        trace: Callable[[str], None] | None,
        restored: RecoveredState | None,
    ) -> None:
        assert disk.manifest is not None, "it has a store"
        self.fenced = False
        self.losses_told = False
        self._disk, self._oracle, self._now, self._trace = disk, oracle, now, trace
        self._reports: list[Report] = []
        self._staging = disk.staging
        self.ring = Ring(story.ring)
        dies = None if life.worker_dies is None else (life.worker_dies, life.told)
        self.workers = Workers(story.workers, disk, story.shape.files, story.shape.tasks, self._read, dies)
        self.sealer = Sealer(
            disk,
            plan.layout,
            disk.manifest.writer_epoch,
            self.workers.at_files,
            live=story.settings.live != "none",
        )
        self.core = Core(
            Path("store"),
            plan.spec,
            limits,
            story.settings,
            plan.layout,
            plan.levels,
            threads=story.workers,
            staging_slots=story.staging,
            staged_slots=() if restored is None else restored.standing.staged_slots,
        )
        self.workers.level = lambda: self.core.encoders.overload.level
        if restored is None:
            self.core.begin(self.core.shard_rows.prepare_first(self.sealer.run_now))  # type: ignore[arg-type]
            return
        for found in restored.shard_rows:
            self.sealer.files[found.files.shard_row] = found.files  # type: ignore[assignment]
        self.core.client_epoch = disk.manifest.client_epoch
        standing = restored.standing
        addresses, joined = STAGING + np.array(standing.staged_slots, np.int64), None
        if plan.spec.grids.in_place:
            addresses[:] = IN_PLACE
            positions = standing.staged["position"].tolist() if standing.staged.size else ()
            joined = dict.fromkeys(map(plan.spec.grids.slab_of_position, positions), NOT_JOINED)
        self.core.restore(restored, addresses, now(), joined)
        self._carry_out()

    def _read(self, addresses: np.ndarray, records: np.ndarray) -> list[int]:
        return tokens_at(addresses, records, self.ring.tokens, self._staging, self._oracle.token)

    # ------------------------------------------------------------------ the client's calls

    def submit(self, descriptors: np.ndarray, addresses: np.ndarray) -> None:
        self.core.submit(descriptors, addresses, self._now())
        self._carry_out()

    def settle_missing(self) -> None:
        self._oracle.write_off(self.core.accounts)
        self.core.settle_missing(self._now())
        self._carry_out()

    def flush(self) -> None:
        self.core.flush(self._now())
        self._carry_out()

    def finish(self, *, keep_empty: bool) -> None:
        self.core.finish(self._now(), keep_empty=keep_empty)
        self._carry_out()

    # ------------------------------------------------------------------ the rounds of its owner

    @property
    def has_reports(self) -> bool:
        return bool(self._reports) or bool(self.workers.reports)

    def poll(self) -> list[int]:
        """One round; the sequences whose pixels came back."""
        core, now = self.core, self._now()
        alive, ended = self.workers.alive(), self.workers.ended()
        reports, self._reports = [*self._reports, *self.workers.reports], []
        self.workers.reports.clear()
        for report in reports:
            if self._trace is not None:
                self._trace(f"  report {told(report)}")
            core.handle(report, now)
        if not alive:
            core.workers_failed("it was killed", now, ended=ended)
        core.see_ring(self.ring.used, len(self.ring.tokens))
        core.tick(now)
        self._carry_out()
        released = core.take_released()
        self._look(released, changed=bool(reports))
        sequences: list[int] = released.tolist()
        self.ring.release(sequences)
        return sequences

    def _look(self, released: np.ndarray, *, changed: bool) -> None:
        """Whether what it says and keeps is right."""
        core, oracle = self.core, self._oracle
        if len(core.shard_rows.by_number) > core.limits.open_shard_rows:
            raise ViolationError(
                f"{len(core.shard_rows.by_number)} shard rows are open, "
                f"more than {core.limits.open_shard_rows}"
            )
        events = core.notices.take_events(core.accounts)
        losses = core.notices.take_losses()
        if self._trace is not None:
            for name, facts in events:
                self._trace(
                    f"  event {name} "
                    f"{ ({key: value for key, value in facts.items() if key not in ('hint', 'then')}) }"
                )
            if released.size:
                self._trace(f"  released {released.tolist()}")
        if self.fenced:
            return
        oracle.closed_for_good = oracle.closed_for_good or any(
            name == "row_reopening_failed" for name, _ in events
        )
        if core.why is None or core.why.code != "fenced":
            oracle.hear_losses(losses, self._disk)
        if changed:
            oracle.observe(core.accounts)
        if released.size:
            oracle.released(released, core)

    def _carry_out(self) -> None:
        for command in self.core.take_commands():
            if self._trace is not None:
                self._trace(f"  command {told(command)}")
            match command:
                case Encode():
                    self._check_files(command)
                    self.workers.encode(command)
                case Stage():
                    if command.files is not None:
                        self._check_files(command)
                    self.workers.stage(command)
                case _:
                    if (
                        isinstance(command, Discard)
                        and self.core.why is None
                        and self.sealer.has_frames(command.shard_row)
                    ):
                        raise ViolationError(
                            f"illegal command: Discard of shard row {command.shard_row}, which has frames"
                        )
                    self.sealer.put(command)

    def _check_files(self, command: Encode | Stage) -> None:
        """Slabs go only to files that are there, and that nobody is sealing or rewriting."""
        assert command.files is not None
        shard_row = command.files.shard_row
        files: object = self.sealer.files.get(shard_row)
        if files is not command.files:
            raise ViolationError(
                f"illegal command: slab {command.slab} to files of shard row {shard_row} that are "
                f"sealed, rewritten or given up"
            )
        for other in (self.sealer.command, *self.sealer.queue):
            if (
                other is not None
                and type(other).__name__ in ("Seal", "Rewrite", "Discard", "Abandon")
                and other.shard_row == shard_row
            ):  # type: ignore[union-attr]
                raise ViolationError(
                    f"illegal command: slab {command.slab} to files of shard row {shard_row}, "
                    f"which has a {type(other).__name__}"
                )
        if not command.frames.any():
            raise ViolationError(f"illegal command: slab {command.slab} without a frame")

    def sealer_step(self) -> None:
        report = self.sealer.step()
        if report is not None:
            self._reports.append(report)

    @property
    def is_over(self) -> bool:
        return self.core.state in ENDED and not self.sealer.busy

    def waits_for(self) -> str:
        """For people: what everybody waits for."""
        core = self.core
        shard_rows = {
            n: f"{g.state.value}, left {g.slabs_left}, in flight {g.in_flight}, waiting {g.waiting}, retry "
            f"{g.retry_s}, files {g.files is not None}"
            for n, g in core.shard_rows.by_number.items()
        }
        return (
            f"core {core.state.value}, why {core.why}, pending "
            f"{[b.positions[b.first :].tolist() for b in core._pending]}, shard rows {shard_rows}, "
            f"incomplete {core.table.incomplete()}, "
            f"rows {core.table.rows_used} of {core.limits.rows}, ring {self.ring.used} of "
            f"{len(self.ring.tokens)}, "
            f"slots free {core.scheduler.free_slots} of {core.scheduler.slots}, "
            f"committing {core._ledger.committing}, "
            f"unrecorded {core.unrecorded_frames}, "
            f"waits for stage {sorted(core._waits_for_stage)}, sealer {self.sealer.command} "
            f"{list(self.sealer.queue)}"
        )


def told(what: Any) -> str:
    """A command or a report in short."""
    facts = []
    for name, value in (what._asdict() if isinstance(what, tuple) else vars(what)).items():
        if name in (
            "records",
            "tasks",
            "seal_ns",
            "open_ns",
            "commit_ns",
            "free_bytes",
            "stored_bytes",
            "release",
            "settled",
        ):
            if name == "records" and value is not None and value.dtype.names:
                facts.append(f"sequences {value['sequence'].tolist()}")
            continue
        if name in ("files", "made"):
            facts.append(f"{name} {'-' if value is None else 'there'}")
        elif isinstance(value, np.ndarray):
            facts.append(f"{name} {(value['sequence'] if value.dtype.names else value).tolist()}")
        elif value is not None:
            facts.append(f"{name} {getattr(value, 'message', value)}")
    return f"{type(what).__name__} {', '.join(facts)}"
