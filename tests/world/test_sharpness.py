"""What the world looks at closely finds mistakes that nobody else of it does: each of these is put into the
code, is found, and is not found by a world that does not look there."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.acquire.sealer import Sealer
from shardwright.disk import beneath
from shardwright.model.errors import StorageError
from shardwright.model.names import DAMAGED
from shardwright.recovery.decide import _Judge
from shardwright.recovery.evidence import Evidence
from shardwright.scan import store_scan
from shardwright.scan.facts import JournalFact
from shardwright.shard import journal, staging
from shardwright.shard import read_back as shard_read_back
from shardwright.shard.frame_log import BLOCK_HEADER_BYTES
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.read_back import read_back
from shardwright.shard.row_checksum import written_rows
from shardwright.shard.shard_row_files import JOURNAL_SUFFIX, LOG_NAME
from shardwright.shard.shard_sums import ShardSums
from shardwright.store import frame_table_writer

from . import edits, world
from . import story as story_module
from .disk import SECTOR
from .edit_story import EditFault, EditLife, EditStory, Step
from .found import _last, _life, _shape, _story
from .mends import MENDS
from .story import IN_PLACE_FROM, READERS_FROM, WIDE_FROM, Fault, Shape, draw, seed_of
from .test_edits import PLAIN
from .world import play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import numpy as np

    from .story import Story

MOST = 60  # stories that are looked through


def _found(stories: Iterable[Story], what: str) -> Story | None:
    """The first story that fails so."""
    return next((story for story in stories if what in (play(story)[1] or "")), None)


def _needs_narrow_excuse(
    broken: pytest.MonkeyPatch, stories: Iterable[Story], name: str, wide: Callable[..., Any]
) -> Story:
    """The first story that loses what was acknowledged, and that would not be found with the ``wide`` excuse
    in place of the world's own of this ``name``."""
    story = _found(stories, "acknowledged as stored, but gone")
    assert story is not None
    broken.setattr(world, name, wide)
    assert play(story)[1] is None, "as long as more is excused"
    return story


def _end_well() -> Iterator[Story]:
    """Stories of one life, without a fault."""
    for seed in range(MOST):
        story = draw(seed_of(seed))
        life = replace(story.lives[-1], client="resends", opening=(), deaths=())
        yield replace(story, lives=(life,), torn=False, readers=())


def _with_a_bad_sector() -> Iterator[Story]:
    bad = Fault("point", 2, point="staging.before_read")
    for seed in range(READERS_FROM, READERS_FROM + MOST):
        story = draw(seed)
        if len(story.lives) > 1 and story.staging:
            lives = (story.lives[0], *(replace(life, opening=(bad,)) for life in story.lives[1:]))
            yield replace(story, lives=lives, torn=False, readers=())


def test_a_staged_frame_that_cannot_be_read_excuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad sector loses all of them."""
    read = staging.StagingArea.read

    def reads_all_or_none(self: staging.StagingArea, *others: Any) -> tuple[np.ndarray, np.ndarray]:
        records, valid = read(self, *others)
        return records, valid & bool(valid[self.undamaged(records)].all())

    with monkeypatch.context() as broken:
        broken.setattr(staging.StagingArea, "read", reads_all_or_none)
        story = _found(_with_a_bad_sector(), "acknowledged as stored, but gone")
    assert story is not None
    assert play(story)[1] is None


def test_every_shard_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the record's first writer alone are."""
    with monkeypatch.context() as broken:
        broken.setattr(ShardSums, "append", lambda *_, **__: None)
        story = _found(_end_well(), "are on record")
    assert story is not None
    assert play(story)[1] is None


@pytest.mark.parametrize(
    ("column", "taken"),
    [("camera_ns", "arrival_ns"), ("arrival_monotonic_ns", "monotonic_ns"), ("delta_t", "position_x")],
)
def test_a_column_of_the_frame_table_that_is_another_one_is_seen(
    monkeypatch: pytest.MonkeyPatch, column: str, taken: str
) -> None:
    columns_of = frame_table_writer.table_columns

    def columns(records: np.ndarray, spec: Any) -> Iterator[tuple[str, np.ndarray]]:
        for name, values in columns_of(records, spec):
            yield name, records[taken] if name == column else values

    with monkeypatch.context() as broken:
        broken.setattr(frame_table_writer, "table_columns", columns)
        assert _found(_end_well(), "is recorded") is not None


def test_who_seals_a_store_may_lose_power_right_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame table is not synced before the workspace goes."""
    with monkeypatch.context() as broken:
        broken.setattr(frame_table_writer, "synced_as_one", lambda *_: nullcontext())
        broken.setattr(story_module, "LAST_DEATHS", 1.0)
        story = _found(_end_well(), "")
        assert story is not None
        assert play(replace(story, last_deaths=()))[1] is None


def test_a_record_of_a_frame_is_not_believed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums of records are not looked at: a byte that has changed goes into the frame table."""
    monkeypatch.setattr(story_module, "ROTTEN", 1.0)
    stories = (draw(seed_of(seed)) for seed in range(MOST))
    with monkeypatch.context() as broken:
        broken.setattr(journal, "checked_rows", lambda rows, _: written_rows(rows))
        story = _found(stories, "is recorded")
        assert story is not None
        assert play(replace(story, lives=tuple(replace(life, flip=None) for life in story.lives)))[1] is None
    assert play(story)[1] is None


def test_a_chunk_is_not_believed_for_its_first_sector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut has taken other pages of it."""

    def stories() -> Iterator[Story]:
        for seed in range(WIDE_FROM, WIDE_FROM + MOST):
            story = draw(seed)
            if not story.shape.in_place:
                cut = replace(story.lives[0], ends="power", ending=False)
                yield replace(story, lives=(cut, story.lives[-1]), torn=False, readers=())

    def begins(chunk: memoryview, _: int) -> bool:
        return any(chunk[:SECTOR])

    with monkeypatch.context() as broken:
        broken.setattr(shard_read_back, "fits_checksum", begins)
        story = _found(stories(), "")
    assert story is not None
    assert play(story)[1] is None
    assert play(replace(story, shape=replace(story.shape, width=1)))[1] is None


def test_a_shard_without_a_record_is_not_taken_for_another_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frame log has lost the record of a sealed shard, and its frames come again."""
    monkeypatch.setattr(story_module, "ROTTEN", 1.0)
    stories = map(draw, range(IN_PLACE_FROM + 50, IN_PLACE_FROM + 50 + MOST))
    with monkeypatch.context() as broken:
        broken.setattr(store_scan._Scan, "_is_foreign", lambda *_: False)
        story = _found(stories, "is reported as stored")
    assert story is not None
    assert play(story)[1] is None


def _taken_up(start: int = 0) -> Iterator[Story]:
    """Stories of stores that are taken up, and of frames that wait for others, from some seed on."""
    for seed in range(READERS_FROM + start, READERS_FROM + start + MOST):
        story = draw(seed)
        if len(story.lives) > 1 and story.staging:
            yield replace(story, torn=False, readers=())


def _damage(
    monkeypatch: pytest.MonkeyPatch,
    is_damaged: Callable[[Path], bool],
    within: Callable[[np.ndarray], np.ndarray] = lambda places: places > 0,
) -> None:
    """A bit of such a table has changed, ``within`` a part of it, whenever a store is taken up."""
    places_in = world.written_places

    def places(path: Path) -> np.ndarray:
        found = places_in(path)
        return found[within(found)]

    monkeypatch.setattr(world, "written_places", places)
    monkeypatch.setattr(story_module, "ROTTEN", 1.0)
    monkeypatch.setattr(story_module, "UNREADABLE", 0.0)
    tables_in = world.tables_in
    monkeypatch.setattr(world, "tables_in", lambda store: list(filter(is_damaged, tables_in(store))))


def test_damage_in_the_frame_log_excuses_no_frame_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged frames go with the blocks that are cut off."""
    take_staged = _Judge._take_staged

    def takes_none(self: _Judge) -> None:
        if self._facts.log_torn_bytes <= BLOCK_HEADER_BYTES:
            take_staged(self)

    _damage(monkeypatch, lambda path: path.name == LOG_NAME)
    with monkeypatch.context() as broken:
        broken.setattr(_Judge, "_take_staged", takes_none)
        story = _needs_narrow_excuse(broken, _taken_up(50), "frames_at", lambda *others, **_: set(others[-1]))
    assert play(story)[1] is None


def _a_torn_slab_takes_its_shard_row(*args: Any, **kwargs: Any) -> Any:
    """In place of ``read_back``: none is whole if one is damaged."""
    found = read_back(*args, **kwargs)
    if any(map(found.was_stored, found.torn)):
        found.torn += found.whole
        found.whole = []
    return found


def _with_two_slabs(shape: Shape, **settings: Any) -> Iterator[Story]:
    """Stories in which two frames are in a shard row, a slab each, as the process is killed."""
    for schedule in range(MOST):
        life = _life("kill", 200, 3, client="writer", pauses_ms=((2, 600_000),))
        last = replace(_last(3, "nobody"), flip=schedule)
        yield _story(shape, (0, 1, 2), life, last, schedule=schedule, **settings)


def test_damage_in_a_journal_excuses_no_other_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    _damage(monkeypatch, lambda path: path.name.endswith(JOURNAL_SUFFIX), lambda places: places >= PAGE_BYTES)
    frames_at = world.frames_at
    with monkeypatch.context() as broken:
        broken.setattr(store_scan, "read_back", _a_torn_slab_takes_its_shard_row)
        story = _needs_narrow_excuse(
            broken,
            _with_two_slabs(_shape(4)),
            "frames_at",
            lambda path, _, *others, **how: frames_at(path, 0, *others, **how),
        )
    assert play(story)[1] is None


def test_a_shard_of_one_slab_that_cannot_be_read_excuses_no_other_slab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world, "FAILING_READS", 0.5)
    monkeypatch.setattr(world, "tables_in", lambda _: [])  # no bit changes
    stories = (
        replace(story, unread=story.schedule)
        for story in _with_two_slabs(_shape(1, row_shards=4, index="start"), live="index")
    )
    with monkeypatch.context() as broken:
        broken.setattr(store_scan, "read_back", _a_torn_slab_takes_its_shard_row)
        story = _needs_narrow_excuse(broken, stories, "frames_of_shard", lambda *others: set(others[-1]))
    assert play(story)[1] is None


def test_a_damaged_journal_excuses_no_frame_that_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    take_staged = _Judge._take_staged

    def takes_none(self: _Judge) -> None:
        if not any(row.journal is JournalFact.DAMAGED for row in self._facts.shard_rows):
            take_staged(self)

    _damage(monkeypatch, lambda path: path.name.endswith(JOURNAL_SUFFIX), lambda places: places < PAGE_BYTES)
    with monkeypatch.context() as broken:
        broken.setattr(_Judge, "_take_staged", takes_none)
        story = _needs_narrow_excuse(broken, _taken_up(), "frames_at", lambda *others, **_: set(others[-1]))
    assert play(story)[1] is None


def test_a_full_disk_excuses_no_file_that_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    recover_all, full = world.World._recover_all, Fault("full", 4, 60)

    def sets_aside(self: world.World) -> None:
        recover_all(self)
        (self._path / DAMAGED).mkdir()

    monkeypatch.setattr(world.World, "_recover_all", sets_aside)
    for story in _end_well():
        life = replace(story.lives[0], faults=(full,), worker_dies=None)
        settings = replace(story.settings, on_full="block")
        played, violation = play(replace(story, settings=settings, lives=(life,)))
        if played.faults.has_failed:
            break
    assert played.faults.has_failed
    assert violation == f"left behind: ['run.ome.zarr/{DAMAGED}']"


def test_what_a_power_cut_takes_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery believes that nothing worse than kills has happened."""

    def stories() -> Iterator[Story]:
        for seed in range(MOST):
            story = draw(seed_of(seed))
            cut, last = replace(story.lives[0], ends="power"), replace(story.lives[-1], client="writer")
            yield replace(story, lives=(cut, last), torn=False, readers=())

    with monkeypatch.context() as broken:
        broken.setattr(Evidence, "in_doubt", property(lambda _: False, lambda *_: None), raising=False)
        story = _found(stories(), "acknowledged before it was lost")
    assert story is not None
    assert play(story)[1] is None


@pytest.mark.parametrize("harm", ["frames_at", "frames_of_shard"])
def test_what_took_frames_excuses_no_failure(monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    """A changed byte or a read that fails once is no reason for an acquisition to fail later on."""
    harmed: list[bool] = []
    frames_of, sync = getattr(world, harm), Sealer._sync

    def noted(*others: Any, **how: Any) -> set[int] | None:
        frames: set[int] | None = frames_of(*others, **how)
        harmed.extend([True] * bool(frames))
        return frames

    def fails(self: Sealer, *others: Any) -> None:
        if harmed:
            raise StorageError("cannot sync")
        sync(self, *others)

    def stories() -> Iterator[Story]:
        for story in _taken_up():
            harmed.clear()
            lives = (replace(life, faults=(), opening=(), worker_dies=None) for life in story.lives)
            yield replace(story, lives=tuple(lives))

    _damage(monkeypatch, lambda path: path.name != LOG_NAME)
    monkeypatch.setattr(story_module, "ROTTEN", float(harm == "frames_at"))
    monkeypatch.setattr(story_module, "UNREADABLE", float(harm == "frames_of_shard"))
    monkeypatch.setattr(world, "FAILING_READS", 1.0)
    monkeypatch.setattr(world, harm, noted)
    with monkeypatch.context() as broken:
        broken.setattr(Sealer, "_sync", fails)
        story = _found(stories(), "the acquisition failed, though nothing did")
    assert story is not None
    assert play(story)[1] is None


@pytest.mark.parametrize("ends", ["kill", "power"])
def test_a_slab_that_rot_has_taken_after_its_shard_had_its_name_ends_no_other(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of another slab of its split shard row waits in the staging area."""
    _damage(monkeypatch, lambda path: path.name.endswith(JOURNAL_SUFFIX), lambda places: places >= PAGE_BYTES)
    pauses = ((2, 500), (4, 500), (5, 600_000))
    life = _life(ends, 220, 6, client="writer", pauses_ms=pauses)
    stories = [
        _story(
            Shape(((None, 2, 1),), 1, 1, row_shards=3),
            (0, 1, 2, 3, 4, 6),
            life,
            replace(_last(6, "writer"), flip=schedule),
            schedule=schedule,
            sync_interval_ms=1,
        )
        for schedule in range(MOST)
    ]
    with MENDS["named-slab-rotten"].taken_out():
        story = _found(stories, "but gone after a")
    assert story is not None
    assert play(story)[1] is None


def test_an_edit_takes_a_change_of_names_that_comes_again_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def unsettled(_: Callable[[], bool]) -> Iterator[None]:
        yield

    changes = Step("edit", ((0, 10), (1, 11)), "rewrite")

    def told() -> set[str | None]:
        """Of one answer that is lost, whichever."""
        lives = (EditLife(((changes,),), faults=(EditFault("answer", number, 1),)) for number in range(3, 6))
        stories = (EditStory(PLAIN, (1, 2, 3, 4), (life,), order) for life in lives for order in range(6))
        return {edits.play(story) for story in stories}

    assert told() == {None}
    monkeypatch.setattr(beneath, "_settled", unsettled)
    assert any(each and "nothing fails" in each for each in told())
