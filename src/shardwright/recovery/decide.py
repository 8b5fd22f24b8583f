"""Decides, from the facts of an unfinished store, what is done with its files, and with which account its
acquisition is resumed. Reads and changes no file: ``execute`` carries out ``Decisions``, a dry run only
reports them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.acquire.accounts import Accounts
from shardwright.acquire.closed_shard_rows import EarlierMemory, EarlierShardRow, HoleMemory
from shardwright.acquire.recovered_state import ShardRowStanding, Standing
from shardwright.array.grid import image_of, number_in_image
from shardwright.kernels.place import slabs_and_indices
from shardwright.model.frame_status import FrameStatus
from shardwright.scan.facts import JournalFact
from shardwright.scan.table import Action, action_for
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.frame_record import PASSED_OVER
from shardwright.shard.layout import frames_of_shard_row, slabs_of_shard_row

from .evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardwright.acquire.limits import Limits
    from shardwright.scan.facts import ShardRowFacts, SlabFacts, StoreFacts
    from shardwright.shard.layout import StoreLayout


@dataclass(frozen=True)
class ShardRowDecision:
    """The decision for one shard row. ``actions``: for each of its shards. ``standing``: the state with which
    the shard row is resumed, once its ``torn`` slabs are cleared. None: its journal is set aside if it is
    damaged (``set_aside``), and deleted if the frame log has the shard row."""

    number: int
    actions: tuple[Action, ...]
    reopened: bool = False
    set_aside: bool = False
    torn: tuple[SlabFacts, ...] = ()
    standing: ShardRowStanding | None = None


@dataclass(frozen=True)
class Decisions:
    """The decisions for a store. ``standing``: the state with which the acquisition is resumed.
    ``remember_seen``: the manifest must record how far frames came before anything is cleared, since nothing
    else will. ``frames_forgotten``: the number of frames known to have come, never acknowledged, with
    sequences behind all that are kept. ``spoiled_slots`` int64[n]: of frames in place whose chunks are set
    aside."""

    standing: Standing
    shard_rows: tuple[ShardRowDecision, ...]
    remember_seen: bool
    frames_forgotten: int
    spoiled_slots: np.ndarray


def decide(
    facts: StoreFacts,
    blocks: Iterable[tuple[BlockKind, int, np.ndarray]],
    layout: StoreLayout,
    limits: Limits,
) -> Decisions:
    """Makes the decisions. ``blocks``: of the frame log, in its order, a shard row's records in one or
    several pieces. Raises ``ShardFormatError`` for sequences that cannot be."""
    return _Judge(facts, layout, limits).run(blocks)


class _Judge:
    def __init__(self, facts: StoreFacts, layout: StoreLayout, limits: Limits) -> None:
        self._facts = facts
        self._layout, self._grids = layout, layout.grids
        accounts = Accounts(self._grids)
        self._standing = Standing(
            accounts,
            limits,
            HoleMemory(len(self._grids.grids)),
            EarlierMemory(self._grids),
            closed_shard_rows=set(facts.log_shard_rows),
        )
        self._accounts = accounts
        self._evidence = Evidence(accounts, facts)
        self._reopened = {
            shard_row.number for shard_row in facts.shard_rows if shard_row.journal is JournalFact.REOPENED
        }
        self._lost: list[np.ndarray] = []  # from the log: records, as far as they are counted
        self._logged: set[int] = set()  # shard rows whose records are in the frame log
        self._shut: set[int] = set()  # shard rows that take no staged frame
        self._closed_slabs: set[int] = set()  # that take none: they are whole, or their shards have names

    def run(self, blocks: Iterable[tuple[BlockKind, int, np.ndarray]]) -> Decisions:
        facts = self._facts
        self._standing.closed_shard_rows -= self._reopened
        self._shut |= self._standing.closed_shard_rows
        self._accounts.shards, self._accounts.stored_bytes = facts.sealed_shards, facts.sealed_bytes
        self._take_log(blocks)
        for shard_row in facts.shard_rows:
            self._take_slabs(shard_row)
        waiting = self._staged_nowhere_else()
        shard_rows = tuple(self._shard_row(shard_row, waiting) for shard_row in facts.shard_rows)
        self._take_staged()
        self._settle_lost()
        forgotten = self._evidence.conclude()
        self._standing.in_doubt = self._evidence.in_doubt
        self._open_beyond_newest(shard_rows)
        self._make_room(shard_rows)
        return Decisions(
            self._standing,
            shard_rows,
            remember_seen=self._accounts.missing_acknowledged() > 0,
            frames_forgotten=forgotten,
            spoiled_slots=self._spoiled_slots(),
        )

    # ------------------------------------------------------------------ the frame log

    def _take_log(self, blocks: Iterable[tuple[BlockKind, int, np.ndarray]]) -> None:
        """Takes frames of sealed shard rows, and frames that were settled without being stored. Records of a
        reopened shard row are out of date: its frames are in the new files, or staged, or lost."""
        accounts = self._accounts
        pieces: dict[int, list[np.ndarray]] = {}  # the records of the shard row whose block is being read
        for kind, shard_row, records in blocks:
            if shard_row in self._reopened:
                self._evidence.take_reopened(records)
            elif kind is BlockKind.SHARD_ROW:
                if shard_row not in pieces:
                    self._remember_shard_rows(pieces)
                    pieces = {shard_row: []}
                pieces[shard_row].append(records)
                accounts.find(records)
            else:
                self._receive(records)
                lost = records["status"] == FrameStatus.LOST
                accounts.settle(records[~lost])
                self._note_settled(records["sequence"][~lost].astype(np.int64))
                if lost.any():
                    self._lost.append(records[["sequence", "position", "status", "reason"]][lost])
        self._remember_shard_rows(pieces)
        for shard_row in sorted(self._standing.closed_shard_rows - self._logged, key=number_in_image):
            self._remember_shard_rows({shard_row: []})

    def _receive(self, records: np.ndarray) -> None:
        """Counts frames of an events block as come. One that is lost twice, in between it was found, came
        once."""
        fresh = records[~self._accounts.seen.holds(records["sequence"].astype(np.int64))]
        # the first frame has the place; if that was never acknowledged, none has
        twice = fresh["status"] == FrameStatus.DUPLICATE
        self._accounts.receive(
            fresh["sequence"].astype(np.int64), fresh["position"].astype(np.int64), without_place=twice
        )
        self._accounts.count_json(fresh)

    def _settle_lost(self) -> None:
        """Settles frames that the log records as lost, unless they were found: a write that had failed, or
        whose report was missing, may be whole, and readers have seen it. Those count as stored, in the frame
        table as well. To be called after all that holds frames."""
        for records in self._lost:
            gone = records[~self._accounts.stored.holds(records["sequence"].astype(np.int64))]
            self._accounts.settle(gone)
            self._note_settled(gone["sequence"].astype(np.int64))

    def _note_settled(self, sequences: np.ndarray) -> None:
        self._accounts.stored.add(sequences)
        self._accounts.durable.add(sequences)

    def _remember_shard_rows(self, pieces: dict[int, list[np.ndarray]]) -> None:
        """Keeps the records of sealed shard rows that are not full: such a shard row can be reopened, and a
        frame for a place that stays closed is late, not a duplicate."""
        standing = self._standing
        for shard_row, records in pieces.items():
            self._logged.add(shard_row)
            layout = self._layout.of(shard_row)
            if sum(piece.size for piece in records) == frames_of_shard_row(layout, shard_row):
                continue
            earlier = EarlierShardRow.of(
                self._grids,
                np.concatenate(records) if records else np.zeros(0, [("position", np.int64)]),
            )
            for slab in slabs_of_shard_row(layout, shard_row):
                if slab in earlier.holes or not earlier.begins(slab):
                    standing.holes.remember(slab, earlier.holes.get(slab))
            # in the order in which they were sealed; no frame waits for its place
            standing.earlier.remember(shard_row, earlier, lambda: self._accounts.newest)

    # ------------------------------------------------------------------ shard rows

    def _is_put_away(self, shard_row: ShardRowFacts) -> bool:
        damaged = shard_row.journal is JournalFact.DAMAGED
        return damaged or shard_row.number in self._standing.closed_shard_rows

    def _take_slabs(self, shard_row: ShardRowFacts) -> None:
        """Takes the frames of slabs that are whole, and notes the others."""
        damaged = shard_row.journal is JournalFact.DAMAGED
        self._evidence.in_doubt = self._evidence.in_doubt or damaged
        if damaged and self._grids.in_place:  # its files are set aside, and frames in them with these
            self._shut.add(shard_row.number)
        if self._is_put_away(shard_row):
            return
        for slab in shard_row.slabs:
            if slab.whole:
                self._accounts.find(slab.records)
                self._closed_slabs.add(slab.slab)
            else:
                self._evidence.take_torn(slab)

    def _shard_row(self, shard_row: ShardRowFacts, waiting: set[int]) -> ShardRowDecision:
        """``waiting``: slabs with a staged frame that is nowhere else."""
        actions = tuple(action_for(file) for file in shard_row.files)
        damaged, reopened = (
            shard_row.journal is JournalFact.DAMAGED,
            shard_row.journal is JournalFact.REOPENED,
        )
        if self._is_put_away(shard_row):
            return ShardRowDecision(shard_row.number, actions, reopened, damaged)
        whole, torn = (
            [slab for slab in shard_row.slabs if slab.whole],
            tuple(slab for slab in shard_row.slabs if not slab.whole),
        )
        settled = self._named_without_frames(shard_row.number, actions, whole)
        # A frame that waits for one of the other slabs tells that the sealing has not begun: rot has taken a
        # slab whose shards had their names ahead of it.
        goes_on = bool(waiting.intersection(self._slabs_of(shard_row.number)) - settled)
        sealing_begun = bool(settled) and not goes_on
        if sealing_begun:
            self._shut.add(shard_row.number)
        self._closed_slabs |= settled
        # what may come for them waits until the shard row is sealed and opened again
        empty = {
            slab: np.zeros(self._grids.of(slab).frames_per_slab, np.bool_) for slab in settled if goes_on
        }
        holes = {
            slab.slab: slab.filled
            for slab in whole
            if slab.records.size < self._grids.of(slab.slab).frames_in_slab(slab.slab)
        }
        passed_over = {slab.slab for slab in whole if (slab.records["flags"] & PASSED_OVER).any()}
        standing = ShardRowStanding(
            slabs=len(self._slabs_of(shard_row.number)),
            whole_slabs=sorted(slab.slab for slab in whole),
            named_slabs=sorted(empty),
            frames=sum(slab.records.size for slab in whole),
            holes=holes | empty,
            fillable_slabs={slab: holes[slab] for slab in holes.keys() - passed_over} | empty,
            stored_bytes=self._count_bytes(shard_row, actions),
            sealing_begun=sealing_begun,
            spilled=shard_row.spilled,
        )
        return ShardRowDecision(shard_row.number, actions, reopened, torn=torn, standing=standing)

    def _slabs_of(self, shard_row: int) -> list[int]:
        return slabs_of_shard_row(self._layout.of(shard_row), shard_row)

    def _named_without_frames(
        self, shard_row: int, actions: tuple[Action, ...], whole: list[SlabFacts]
    ) -> set[int]:
        """Returns the slabs that take no frame since a shard of theirs has its name, or was deleted (rows
        ``named``, ``named-twice``, ``replaced``, ``all-fill``, ``all-fill-again``): all of a shard row that
        is not split, as its sealing came that far. Of a split one those that are not whole: shards of whole
        slabs get their names ahead of the sealing."""
        layout, slabs = self._layout.of(shard_row), self._slabs_of(shard_row)
        named = {
            file // layout.files_per_slab
            for file, action in enumerate(actions)
            if action in (Action.SEALED, Action.ALL_FILL)
        }
        if not layout.grid.is_split:
            return set(slabs) if named else set()
        of_whole = {slab.slab for slab in whole}
        return {slab for slab in slabs if layout.layer_of_slab(slab)[1] in named} - of_whole

    def _open_beyond_newest(self, shard_rows: Iterable[ShardRowDecision]) -> None:
        """Lets slabs that reach beyond every frame of the account take frames again, whatever had passed them
        over: that is gone, and a camera in order goes on with their places."""
        known = self._standing.earlier
        for number in known:
            beyond = self._beyond_newest(known[number].passed_over)
            known.change(number, replace(known[number], passed_over=known[number].passed_over - beyond))
        for shard_row in shard_rows:
            if (standing := shard_row.standing) is not None:
                beyond = self._beyond_newest(standing.holes)
                standing.fillable_slabs.update({slab: standing.holes[slab] for slab in beyond})

    def _beyond_newest(self, slabs: Iterable[int]) -> frozenset[int]:
        return frozenset(
            slab
            for slab in slabs
            if self._grids.of(slab).last_position_in_slab(slab)
            > self._accounts.newest_position(image_of(slab))
        )

    def _count_bytes(self, shard_row: ShardRowFacts, actions: tuple[Action, ...]) -> int:
        """Returns the bytes of the shard row's shards and adds them to the account, except those of shards
        with final names, which are in it already."""
        accounts, stored_bytes = self._accounts, 0
        for file, action in enumerate(actions):
            if action not in (Action.CONTINUE, Action.LOST):
                stored_bytes += shard_row.final_bytes[file]
                continue
            stored_bytes += shard_row.good_bytes[file]
            accounts.stored_bytes += shard_row.good_bytes[file]
            # rows ``shown``, ``replacing``: of its own, or of one that it replaces, and counted as sealed
            if shard_row.files[file].final:
                accounts.shards -= 1
                accounts.stored_bytes -= shard_row.final_bytes[file]
        return stored_bytes

    # ------------------------------------------------------------------ the staging area

    def _staged_nowhere_else(self) -> set[int]:
        """Returns the slabs of staged frames that are neither stored nor settled."""
        if (staged := self._facts.staged) is None:
            return set()
        # only the log can have told of a frame by now that is not stored: that it is lost
        nowhere = ~self._accounts.seen.holds(staged.records["sequence"].astype(np.int64))
        slabs, _ = slabs_and_indices(
            staged.records["position"][nowhere].astype(np.int64), *self._grids.tables
        )
        return set(slabs.tolist()) - self._closed_slabs

    def _take_staged(self) -> None:
        """Takes staged frames whose slab is not stored: the others are in their chunks. Frames that are
        settled otherwise than as lost are left out."""
        staged = self._facts.staged
        if staged is None:
            return
        sequences, positions = (staged.records[name].astype(np.int64) for name in ("sequence", "position"))
        wanted = np.array([self._is_open(position) for position in positions.tolist()], np.bool_)
        wanted &= ~self._accounts.stored.holds(sequences)
        # one copy of each frame: a slab that was reloaded leaves older copies behind
        row_of = {int(sequences[i]): i for i in np.flatnonzero(wanted).tolist()}
        # One frame at each place: another may have come for that of a lost one (seen, and not stored).
        lost = self._accounts.seen.holds(sequences)
        frame_at: dict[int, int] = {}
        for sequence in sorted(row_of, key=lambda each: (bool(lost[row_of[each]]), each)):
            frame_at.setdefault(int(positions[row_of[sequence]]), sequence)
        rows = [row_of[sequence] for sequence in sorted(frame_at.values())]
        self._standing.staged, self._standing.staged_slots = (
            staged.records[rows],
            staged.slots[rows].tolist(),
        )
        self._standing.staged["pixels_crc"] = self._standing.staged["record_crc"] = 0
        self._accounts.find(self._standing.staged)
        self._evidence.take_staged(staged)

    def _spoiled_slots(self) -> np.ndarray:
        staged, grids = self._facts.staged, self._grids
        if staged is None or not grids.in_place:
            return np.zeros(0, np.int64)
        damaged = {each.number for each in self._facts.shard_rows if each.journal is JournalFact.DAMAGED}
        slabs = map(grids.slab_of_position, staged.records["position"].tolist())
        spoiled = [grids.shard_row_of_slab(slab) in damaged for slab in slabs]
        slots: np.ndarray = staged.slots[np.array(spoiled, np.bool_)]
        return slots

    def _is_open(self, position: int) -> bool:
        """Returns whether a position's slab still waits for frames."""
        grid = self._grids.of(position)
        slab = grid.slab_of_position(position)
        return slab not in self._closed_slabs and grid.shard_row_of_slab(slab) not in self._shut

    def _make_room(self, found: tuple[ShardRowDecision, ...]) -> None:
        """Raises the limits of rows and shard rows to what was found: this time they may be derived from
        other settings."""
        standing = self._standing
        slabs = (
            {self._grids.slab_of_position(position) for position in standing.staged["position"].tolist()}
            if standing.staged.size
            else set()
        )
        shard_rows = {self._grids.shard_row_of_slab(slab) for slab in slabs} | {
            shard_row.number for shard_row in found if shard_row.standing is not None
        }
        limits = standing.limits
        standing.limits = replace(
            limits,
            rows=limits.rows + len(slabs),
            open_shard_rows=max(limits.open_shard_rows, len(shard_rows) + 2),
        )
