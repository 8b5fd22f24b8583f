"""What is decided about an unfinished store, from facts alone. What chance may leave of one is tried in
``tests/world``."""

from __future__ import annotations

import ast
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardwright
from shardwright.acquire import closed_shard_rows
from shardwright.acquire.limits import Limits
from shardwright.acquire.verdicts import Stored
from shardwright.array.acquisition_spec import AcquisitionSpec
from shardwright.array.spec import ArraySpec, Dimension
from shardwright.model.errors import ShardFormatError
from shardwright.model.frame_status import FrameStatus, Reason
from shardwright.recovery.decide import decide
from shardwright.scan.facts import (
    FileFacts,
    JournalFact,
    ShardRowFacts,
    SlabFacts,
    StagedFacts,
    StoreFacts,
)
from shardwright.scan.table import Action
from shardwright.scan.unfinished_store import store_layout
from shardwright.shard.frame_log import BlockKind
from shardwright.shard.frame_record import PASSED_OVER, record_dtype
from shardwright.wire.messages import IMAGE_SHIFT

# t x 4 x 6; slabs of 2 frames, shard rows of 2 slabs, one shard a shard row
_FRAME = [Dimension(name=name, count=count, chunk_size=count) for name, count in (("y", 4), ("x", 6))]
SPEC = ArraySpec(
    dtype="uint16",
    dimensions=[Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=2), *_FRAME],
    codec=None,
)
LAYOUT = store_layout(AcquisitionSpec(array=SPEC))
TWO_IMAGES = store_layout(AcquisitionSpec(array=SPEC, images=["a", "b"]))
LIMITS = Limits.derive(SPEC, threads=1)
PURE = ("recovery.decide", "recovery.evidence", "scan.facts", "scan.table")


def records(*sequences: int, **changes: int) -> np.ndarray:
    """Of frames in order: each at the position of its number."""
    found = np.zeros(len(sequences), record_dtype(0))
    found["sequence"] = found["position"] = sequences
    for name, value in changes.items():
        found[name] = value
    return found


def slab(
    number: int, *, frames: int = 2, whole: bool = True, journaled: bool = True, told: bool = True
) -> SlabFacts:
    here = [2 * number + i for i in range(frames)]
    return SlabFacts(number, number % 2, records(*here), np.arange(2) < frames, whole, journaled, told)


def shard_row(
    number: int,
    *slabs: SlabFacts,
    journal: JournalFact = JournalFact.VALID,
    working: bool = True,
    final: bool = False,
) -> ShardRowFacts:
    facts = FileFacts(journal, working=working, final=final, holds=bool(slabs))
    return ShardRowFacts(number, journal, (facts,), (100 * len(slabs),), (7 if final else 0,), slabs)


def staged(*sequences: int, spoiled: tuple[int, ...] = (), unreadable: bool = False) -> StagedFacts:
    return StagedFacts(np.arange(len(sequences)), records(*sequences), records(*spoiled), unreadable)


EMPTY = StoreFacts(
    seen_stop=0,
    seen_extents=(),
    intact=True,
    taking_over=False,
    set_aside=False,
    log_shard_rows=frozenset(),
    log_torn_bytes=0,
    shard_rows=(),
    staged=None,
    sealed_shards=0,
    sealed_bytes=0,
)


def decided(*blocks: tuple[BlockKind, int, np.ndarray], **facts):
    logged = frozenset(number for kind, number, _ in blocks if kind is BlockKind.SHARD_ROW)
    return decide(replace(EMPTY, **{"log_shard_rows": logged, **facts}), blocks, LAYOUT, LIMITS)


@pytest.mark.parametrize("module", PURE)
def test_what_decides_sees_no_file(module):
    source = Path(shardwright.__file__).parent / f"{module.replace('.', '/')}.py"
    tree = ast.parse(source.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {
        "",
        "__future__",
        "collections.abc",
        "dataclasses",
        "decide",
        "enum",
        "evidence",
        "facts",
        "itertools",
        "math",
        "numpy",
        "table",
        "typing",
    }
    ours = {name for name in imported if name.startswith("shardwright.")}
    assert imported - ours <= allowed
    rooms = ("disk", "store", "recovery", "scan")
    ours = {name.removeprefix("shardwright.") for name in ours}
    assert not [name for name in ours - {*PURE} if name.split(".")[0] in rooms]


def test_a_shard_row_goes_on_with_its_whole_slabs_and_forgets_the_others():
    made = decided(shard_rows=(shard_row(0, slab(0), slab(1, frames=1, whole=False, journaled=False)),))
    (one,) = made.shard_rows
    assert one.actions == (Action.CONTINUE,)
    assert (one.standing.whole_slabs, one.standing.frames, one.standing.slabs) == ([0], 2, 2)
    assert [torn.slab for torn in one.torn] == [1]
    assert made.standing.accounts.frames_stored == 2
    assert (made.remember_seen, made.frames_forgotten) == (False, 1), "nobody had been told of it"


def test_a_loss_is_remembered_before_what_tells_of_it_is_cleared():
    made = decided(shard_rows=(shard_row(0, slab(0, whole=False), slab(1)),))
    assert made.remember_seen
    assert made.standing.accounts.missing_acknowledged() == 2


def test_no_loss_is_remembered_where_the_frames_are_staged():
    made = decided(shard_rows=(shard_row(0, slab(0, whole=False), slab(1)),), staged=staged(0, 1))
    assert not made.remember_seen
    assert made.standing.staged["sequence"].tolist() == [0, 1]


def test_frames_that_a_manifest_cannot_have_seen_are_an_error():
    """In a hole of that length every frame would be settled."""
    sealed = (BlockKind.SHARD_ROW, 0, records(0, 1, 2, 3))
    for stop in (2**31, 2**63 - 1, 2**64):
        with pytest.raises(ShardFormatError, match="a sequence that cannot be"):
            decided(sealed, seen_stop=stop)


@pytest.mark.parametrize("extents", [(1, 1), (-1,), (1 << 62,)], ids=str)
def test_extents_are_those_of_the_images(extents):
    assert decided(seen_stop=3, seen_extents=(3,)).standing.accounts.extents.tolist() == [[3]]
    with pytest.raises(ShardFormatError, match="seen_extents are not those of its images"):
        decided(seen_stop=3, seen_extents=extents)


@pytest.mark.parametrize("intact", [True, False])
def test_a_slab_cannot_have_frames_that_nobody_sent(intact):
    for number in (2**31, 2**63 - 1):
        unfinished = slab(0, whole=False, journaled=intact)
        unfinished.records["sequence"][1] = number
        with pytest.raises(ShardFormatError, match="a sequence that cannot be"):
            decided(shard_rows=(shard_row(0, unfinished),), intact=intact)


def test_a_long_hole_is_counted_without_memory_for_its_frames():
    most = (1 << 28) + 2
    tracemalloc.start()
    try:
        accounts = decided(shard_rows=(shard_row(0, slab(0)),), seen_stop=most).standing.accounts
        assert accounts.missing_acknowledged() == most - 2
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_loss_is_told_however_many_frames_came_before_it(monkeypatch):
    """Here more than a sequence may be ahead of the first missing one: in truth 2^28."""
    monkeypatch.setattr("shardwright.acquire.accounts._MOST_AHEAD", 16)
    blocks = [(BlockKind.SHARD_ROW, row, records(*range(4 * row, 4 * row + 4))) for row in range(8)]
    accounts = decided(*blocks, shard_rows=(shard_row(8, slab(16, whole=False)),)).standing.accounts
    assert accounts.missing_acknowledged() == 2


@pytest.mark.parametrize("doubt", [{"intact": False}, {"set_aside": True}, {"log_torn_bytes": 65}], ids=str)
def test_in_doubt_what_is_missing_may_have_been_acknowledged(doubt):
    unfinished = slab(0, whole=False, journaled=False)
    assert not decided(
        shard_rows=(shard_row(0, unfinished, slab(1)),)
    ).standing.accounts.missing_acknowledged()
    made = decided(shard_rows=(shard_row(0, unfinished, slab(1)),), **doubt)
    assert (made.remember_seen, made.standing.accounts.missing_acknowledged()) == (True, 2)


def test_a_shard_row_that_the_log_has_loses_its_journal():
    made = decided(
        (BlockKind.SHARD_ROW, 0, records(0, 1, 2, 3)),
        shard_rows=(shard_row(0, working=False, final=True),),
        sealed_shards=1,
        sealed_bytes=7,
    )
    (one,) = made.shard_rows
    assert (one.standing, one.set_aside) == (None, False)
    assert made.standing.closed_shard_rows == {0}
    assert list(made.standing.earlier) == [], "it was full"
    assert (made.standing.accounts.shards, made.standing.accounts.stored_bytes) == (1, 7)


def test_a_damaged_journal_is_set_aside_and_leaves_doubt():
    made = decided(shard_rows=(shard_row(0, journal=JournalFact.DAMAGED), shard_row(1, slab(2))))
    assert [(one.set_aside, one.standing is None) for one in made.shard_rows] == [
        (True, True),
        (False, False),
    ]
    assert made.shard_rows[0].actions == (Action.SET_ASIDE,)
    assert made.standing.accounts.missing_acknowledged() == 4


def test_a_row_that_was_sealed_early_can_be_opened_again():
    made = decided((BlockKind.SHARD_ROW, 0, records(0, 1, 2)))
    assert made.standing.closed_shard_rows == {0}
    assert list(made.standing.earlier) == [0]
    assert list(made.standing.earlier[0].fillable_slabs()) == [1]


def begun(rows: int) -> list[tuple[BlockKind, int, np.ndarray]]:
    """Shard rows that were sealed with their first frame alone."""
    blocks = []
    for number in range(rows):
        first = records(100 + number)
        first["position"] = 4 * number
        blocks.append((BlockKind.SHARD_ROW, number, first))
    return blocks


@pytest.mark.parametrize("stored", [(0, 1, 2), ()], ids=["with_frames", "without"])
def test_a_row_can_be_opened_again_however_many_of_another_image_were_sealed_since(stored):
    """More than may be open at once: a restart forgets none that the writer would have known."""
    image, many = 1 << IMAGE_SHIFT, LIMITS.open_shard_rows + 20
    found = records(*stored)
    found["position"] += image
    blocks = ([(BlockKind.SHARD_ROW, image, found)] if stored else []) + begun(many)
    facts = replace(EMPTY, log_shard_rows=frozenset({image, *range(many)}))
    standing = decide(facts, blocks, TWO_IMAGES, LIMITS).standing
    assert image in standing.earlier
    assert len(list(standing.earlier)) == 1 + many


def test_as_many_holes_are_remembered_as_by_the_writer(monkeypatch):
    """The more images, the more: of a slab that is forgotten a late frame would be a duplicate."""
    monkeypatch.setattr(closed_shard_rows, "REMEMBERED_HOLES", 1)
    facts = replace(EMPTY, log_shard_rows=frozenset(range(12)))
    holes = decide(facts, begun(12), TWO_IMAGES, LIMITS).standing.holes
    assert holes.stored(0, np.array([0, 1])).tolist() == [Stored.FRAME, Stored.CLOSED]
    assert holes.stored(1, np.array([0])).tolist() == [Stored.NO_SLAB]


PASSED_BY = {
    "nothing newer is kept": ((), True),
    "the slab's last place is taken": ((BlockKind.EVENTS, -1, records(3, status=FrameStatus.LATE)), False),
    "a newer frame is kept": ((BlockKind.EVENTS, -1, records(6, status=FrameStatus.LATE)), False),
}


@pytest.mark.parametrize(("kept", "opens"), PASSED_BY.values(), ids=PASSED_BY)
def test_a_slab_stays_passed_over_only_by_frames_that_are_kept(kept, opens):
    """A camera in order goes on with its places otherwise; also where sealing had begun."""
    blocks, found = (kept,) if kept else (), slab(1, frames=1)
    found.records["flags"] = PASSED_OVER
    for files in ({"working": True}, {"working": False, "final": True}):
        made = decided(*blocks, shard_rows=(shard_row(0, slab(0), found, **files),))
        assert list(made.shard_rows[0].standing.fillable_slabs) == ([1] if opens else [])


@pytest.mark.parametrize(("kept", "opens"), PASSED_BY.values(), ids=PASSED_BY)
def test_a_sealed_row_stays_passed_over_only_by_frames_that_are_kept(kept, opens):
    blocks, sealed = (kept,) if kept else (), records(0, 1, 2)
    sealed["flags"][2] = PASSED_OVER
    made = decided((BlockKind.SHARD_ROW, 0, sealed), *blocks)
    assert list(made.standing.earlier[0].fillable_slabs()) == ([1] if opens else [])


def test_a_row_that_took_frames_again_is_what_its_new_files_hold():
    """The old shard keeps the final name, and is not counted: the new one takes its place."""
    log = (BlockKind.SHARD_ROW, 0, records(0, 1, 2))
    reopened = shard_row(0, slab(0), journal=JournalFact.REOPENED, final=True)
    made = decided(log, shard_rows=(reopened,), staged=staged(2), sealed_shards=1, sealed_bytes=7)
    (one,) = made.shard_rows
    assert (one.reopened, one.actions) == (True, (Action.CONTINUE,))
    assert made.standing.closed_shard_rows == set()
    assert (made.standing.accounts.shards, made.standing.accounts.stored_bytes) == (0, 100)
    assert (made.standing.accounts.frames_stored, made.standing.accounts.missing_acknowledged()) == (3, 0)
    assert decided(log, shard_rows=(reopened,)).standing.accounts.missing_acknowledged() == 1, (
        "it was acknowledged, and is nowhere"
    )


def test_a_row_of_which_a_shard_has_its_name_takes_nothing_more():
    made = decided(shard_rows=(shard_row(0, slab(0), working=False, final=True),), staged=staged(2))
    (one,) = made.shard_rows
    assert (one.actions, one.standing.sealing_begun) == ((Action.SEALED,), True)
    assert made.standing.staged_slots == []
    assert made.standing.accounts.missing_acknowledged() == 1, "the frame that it should have had is told"


# a shard row of two slabs again, each with its own shard
_UNSHARDED = Dimension(name="t", count=None, chunk_size=2)
_SPLIT = AcquisitionSpec(
    array=ArraySpec(dtype="uint16", dimensions=[_UNSHARDED, *_FRAME], codec=None)
).in_rows(2)


@pytest.mark.parametrize("cleared", [False, True], ids=["the bit has changed", "the next recovery"])
def test_a_slab_that_rot_has_taken_after_its_shard_had_its_name_ends_no_other(cleared):
    """What tells a shard that has its name ahead of its shard row from one whose sealing has begun."""
    named = FileFacts(JournalFact.VALID, working=False, final=True, holds=True)
    waits = FileFacts(JournalFact.VALID, working=True, final=False, holds=False)
    torn = () if cleared else (slab(0, whole=False),)
    row = ShardRowFacts(0, JournalFact.VALID, (named, waits), (0, 0), (7, 0), torn)

    def with_staged(*sequences: int):
        facts = replace(EMPTY, shard_rows=(row,), staged=staged(*sequences))
        return decide(facts, (), store_layout(_SPLIT), LIMITS)

    made = with_staged(2)
    standing = made.shard_rows[0].standing
    assert made.standing.staged["sequence"].tolist() == [2]
    assert not standing.sealing_begun
    assert (standing.whole_slabs, standing.named_slabs) == ([], [0])
    assert not standing.fillable_slabs[0].any(), "its frames wait until the shard row is opened again"
    for none in (with_staged(), with_staged(0)):
        assert none.shard_rows[0].standing.sealing_begun
        assert none.standing.staged_slots == []


@pytest.mark.parametrize("in_place", [False, True])
def test_frames_in_place_are_gone_with_a_damaged_journal(in_place):
    """Their chunks are set aside: their records in the staging area would lead readers to nothing."""
    spec = AcquisitionSpec(array=SPEC)
    layout = store_layout(spec.in_place() if in_place else spec)
    damaged = shard_row(0, journal=JournalFact.DAMAGED)
    made = decide(replace(EMPTY, shard_rows=(damaged,), staged=staged(0, 5)), (), layout, LIMITS)
    assert made.standing.staged["sequence"].tolist() == ([5] if in_place else [0, 5])
    assert made.spoiled_slots.tolist() == ([0] if in_place else [])


def test_staged_frames_go_on_once_each_unless_they_are_stored_or_settled():
    dropped = records(3, status=FrameStatus.DROPPED)
    made = decided(
        (BlockKind.EVENTS, -1, dropped), shard_rows=(shard_row(0, slab(0)),), staged=staged(0, 2, 2, 3, 4)
    )
    assert made.standing.staged["sequence"].tolist() == [2, 4]
    assert made.standing.staged_slots == [2, 4], "of two copies the later one"
    assert made.standing.accounts.frames_stored == 4


GIVEN_UP = {"status": FrameStatus.LOST, "reason": Reason.NOT_ACKNOWLEDGED}


def test_a_staged_frame_that_was_given_up_goes_on():
    """The worker that staged it died before it told: readers have seen the frame."""
    made = decided((BlockKind.EVENTS, -1, records(2, 3, **GIVEN_UP)), staged=staged(2, 4))
    account = made.standing.accounts
    assert made.standing.staged["sequence"].tolist() == [2, 4]
    assert (account.frames_stored, account.frames_durable, account.frames_received) == (2, 2, 3)
    assert account.frames_by_status[FrameStatus.LOST] == 1


def test_a_place_of_a_frame_that_was_given_up_belongs_to_the_one_that_came_for_it():
    waiting = staged(2, 3, 4)
    waiting.records["position"][1] = waiting.records["position"][0]
    made = decided((BlockKind.EVENTS, -1, records(2, **GIVEN_UP)), staged=waiting)
    assert made.standing.staged["sequence"].tolist() == [3, 4]
    assert made.standing.accounts.frames_by_status[FrameStatus.LOST] == 1


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_staged_frame_that_was_given_up_stays_lost_where_none_is_taken(is_sealed):
    """Its slab is whole with another frame in its place, or its shard row is sealed without it."""
    waiting = staged(5)
    waiting.records["position"] = 1
    given_up = BlockKind.EVENTS, -1, records(5, **GIVEN_UP)
    if is_sealed:
        made = decided((BlockKind.SHARD_ROW, 0, records(0)), given_up, staged=waiting)
    else:
        made = decided(given_up, shard_rows=(shard_row(0, slab(0)),), staged=waiting)
    assert made.standing.staged_slots == []
    assert made.standing.accounts.frames_by_status[FrameStatus.LOST] == 1


def test_frames_that_are_lost_are_missing_in_the_receipt_of_who_goes_on():
    """They come no more: no place waits for them."""
    lost = BlockKind.EVENTS, -1, records(2, 3, **GIVEN_UP)
    account = decided(lost, staged=staged(0, 1, 4, 5)).standing.accounts
    assert account.images_waiting.tolist() == [0]
    assert account.receipt(Path("a"), [""], over=True, failed=False).frames_missing == 2


def test_a_frame_that_is_lost_twice_came_once():
    """In between it was found, and a disk error took it."""
    lost = (BlockKind.EVENTS, -1, records(2, **GIVEN_UP))
    account = decided(lost, lost).standing.accounts
    assert (account.frames_received, account.frames_by_status[FrameStatus.LOST]) == (1, 1)


def test_a_staged_frame_that_cannot_be_read_is_a_loss_unless_it_is_elsewhere():
    made = decided(shard_rows=(shard_row(0, slab(0)),), staged=staged(3, spoiled=(0, 2)))
    assert made.standing.accounts.missing_acknowledged() == 1
    assert made.remember_seen


def test_there_is_room_for_all_that_is_taken_up():
    waiting = staged(*range(0, 40, 2))
    made = decided(staged=waiting)
    assert made.standing.limits.rows == LIMITS.rows + 20
    assert made.standing.limits.open_shard_rows >= 10 + 2


def test_a_frame_that_was_given_up_and_is_there_has_one_status():
    """Its write had said that it failed, or the worker died before it told."""
    given_up = records(0, 1, 2, status=FrameStatus.LOST, reason=Reason.ACQUISITION_FAILED)
    accounts = decided(
        (BlockKind.EVENTS, -1, given_up), shard_rows=(shard_row(0, slab(0)),)
    ).standing.accounts
    assert (
        accounts.frames_received,
        accounts.frames_stored,
        accounts.frames_by_status[FrameStatus.LOST],
    ) == (3, 2, 1)
    assert accounts.stored.value == 3


@pytest.mark.parametrize(
    ("status", "extent"), [(FrameStatus.DUPLICATE, 2), (FrameStatus.DROPPED, 6)], ids=str
)
def test_a_duplicate_of_a_frame_that_is_gone_makes_the_array_no_longer(status, extent):
    settled = records(9, position=5, status=status, reason=Reason.PLACE_TAKEN)
    made = decided((BlockKind.EVENTS, -1, settled), shard_rows=(shard_row(0, slab(0)),))
    assert made.standing.accounts.extents.tolist() == [[extent]]


def test_a_shard_row_below_the_second_root_goes_on_there():
    """New files of it, after an I/O error, would else lie where its journal is not."""
    (here, there) = decided(
        shard_rows=(shard_row(0, slab(0)), replace(shard_row(1, slab(2)), spilled=True))
    ).shard_rows
    assert (here.standing.spilled, there.standing.spilled) == (False, True)
