"""Written stories: each shows one mend that is taken out, as small as it was made, and passes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.acquire.limits import least_ring_frames
from shardwright.model.write_settings import WriteSettings

from .story import FOREVER, Fault, Frame, Life, Reading, Shape, Story, plan_of


@dataclass(frozen=True)
class Found:
    """``mend``: without which the ``story`` fails; ``fails_as``: a part of the violation."""

    name: str
    mend: str
    fails_as: str
    story: Story


def _story(
    shape: Shape,
    frames: tuple[int, ...],
    *lives: Life,
    schedule: int,
    fills: tuple[int, ...] = (),
    **others: Any,
) -> Story:
    """``frames``: their positions, ``fills``: of those that are fill value. ``others``: settings, or fields
    of the story; where one is not named it is the least that the shape needs."""
    grids = plan_of(shape).spec.grids
    fields = {name: others.pop(name) for name in list(others) if name in Story.__dataclass_fields__}
    settings = {
        "store_within_ms": 20,
        "sync_interval_ms": 50,
        "on_full": "block",
        "ballast_bytes": 1,
        **others,
    }
    ring = least_ring_frames(grids, 1)
    least = {
        "ring": ring,
        "rows": grids.open_slabs + 1,
        "shard_rows": grids.open_shard_rows + 2,
        "staging": 0 if grids.frames_per_slab == 1 else min(ring, 2 * grids.held_frames),
        "workers": 1,
        "frames": tuple(Frame(position, position in fills) for position in frames),
    }
    return Story(
        shape=shape, settings=WriteSettings(**settings), lives=lives, schedule=schedule, **{**least, **fields}
    )


def _life(
    ends: Any, at: int, frames: int, *, client: Any = "resends", ending: bool = False, **others: Any
) -> Life:
    return Life(client, ends, at, ending, frames, **others)


def _last(frames: int, client: Any = "resends") -> Life:
    """It ends well."""
    return _life("finish", 0, frames, client=client)


def _shape(depth: int, chunk: int = 1, **others: Any) -> Shape:
    """An endless time axis; shards are ``depth`` chunks deep."""
    return Shape(((None, chunk, depth),), 1, 1, **others)


def _reader_of_files(at: int, *, pause: int) -> Reading:
    """It reads quickly, again and again."""
    return Reading("files", at, times=40, pause=pause, pace=40, held=(0.0, 1), seed=1)


_IMAGE = 1 << 48  # from the positions of one image to those of the next

FOUND = (
    Found(
        "frames that come back from a rewrite are durable then",
        "held-rows-dropped",
        "sealed, but durable only up to 1 of 2",
        _story(
            _shape(4),
            (0, 1),
            _life("kill", 496, 2, faults=(Fault("journal", 1),)),
            _last(2),
            schedule=234703,
            durability="durable",
            ring=8,
            rows=8,
        ),
    ),
    Found(
        "a shard row that is closed for another image's passes nothing over",
        "all-passed-over",
        "though it came in order",
        _story(
            _shape(2, 2, images=3),
            (0, _IMAGE, 2 * _IMAGE, 1),
            _last(4),
            schedule=254764,
            ring=16,
            rows=8,
            shard_rows=2,
        ),
    ),
    Found(
        "a shard row of an image that rests while those of another are sealed, and a kill",
        "few-rows-remembered",
        "though it came in order",
        _story(
            _shape(2, images=3),
            (_IMAGE, 0, 2, 4, 6, _IMAGE + 1),
            _life("kill", 360, 5, client="writer"),
            _last(6),
            schedule=0,
            shard_rows=2,
        ),
    ),
    Found(
        "a seal for which there was no room is tried again",
        "no-retry",
        "nothing can go on",
        _story(
            _shape(1),
            (0,),
            _life("kill", 243, 1, faults=(Fault("full", 16, 60),)),
            _last(1),
            schedule=584031,
        ),
    ),
    Found(
        "a shape that is asked for again and again",
        "asked-again",
        "it does not end",
        _story(
            _shape(1, 2, row_shards=2),
            (0, 2, 3, 4),
            _life(
                "kill",
                13_794,
                4,
                client="writer",
                flushes=frozenset({3}),
                faults=(Fault("stage", 0, FOREVER),),
            ),
            _last(4),
            schedule=822494,
            ring=12,
            rows=4,
        ),
    ),
    Found(
        "a flush that comes while files are made",
        "flush-while-making",
        "told that it is stuck",
        _story(
            _shape(1),
            (0, 5, 6),
            _life("finish", 0, 3, client="writer", flushes=frozenset({2}), pauses_ms=((1, 3000),)),
            schedule=244879,
            sync_interval_ms=1,
        ),
    ),
    Found(
        "a slab that is encoded before its first frame is staged",
        "waits-for-stage",
        "nothing can go on",
        _story(
            _shape(2, 2),
            (0, 1),
            _life("kill", 247, 2, faults=(Fault("stall", 0),), pace=(16, 4, 4, 4)),
            _last(2),
            schedule=2,
            workers=2,
            store_within_ms=2,
        ),
    ),
    Found(
        "frames that a sealed shard has got later, before it was sealed again",
        "old-shard-believed",
        "is reported as stored",
        _story(
            _shape(3),
            (0, 1),
            _life("kill", 58, 1, ending=True),
            _life("kill", 68, 2),
            _last(2),
            schedule=3,
            sync_interval_ms=1,
        ),
    ),
    Found(
        "rows held while their shard row is rewritten",
        "held-rows-come-back",
        "though it came in order",
        _story(
            Shape(((None, 2, 1), (2, 1, 1)), 1, 1),
            (0, 1, 2, 3, 4, 5, 6),
            _life("kill", 496, 7, faults=(Fault("sync shard row", 5),), pace=(16, 1, 4, 1)),
            _last(7),
            schedule=342400,
            ring=12,
            rows=2,
            durability="durable",
            store_within_ms=1000,
            sync_interval_ms=1000,
        ),
    ),
    Found(
        "a page that a failed sync has left in memory alone",
        "written-once",
        "durable, but gone after a power cut",
        _story(
            _shape(2),
            (0, 1),
            _life("kill", 49, 2, faults=(Fault("sync shard row", 0, 2),)),
            _life("power", 19, 2, client="writer", flushes=frozenset({1})),
            _last(2, "nobody"),
            schedule=12446,
            sync_interval_ms=1,
        ),
    ),
    Found(
        "a frame in a chunk that is not whole, and a worker that dies",
        "parts-hold-files",
        "acknowledged as stored, but gone after a kill",
        _story(
            _shape(1, 3, in_place=True),
            (0,),
            _life("kill", 40, 1, worker_dies=1, told=False),
            _last(1),
            schedule=440051,
            staging=6,
        ),
    ),
    Found(
        "pixels that come back while a worker still stages them",
        "released-while-staged",
        "acknowledged as stored, but gone after a kill",
        _story(
            _shape(3, 2),
            (0, 1, 2, 3, 4),
            _life(
                "kill",
                198,
                4,
                client="writer",
                pauses_ms=((1, 30), (2, 1000), (3, 60_000)),
                faults=(Fault("stall", 0, point="staging.before_write"),),
                pace=(4, 4, 4, 4),
            ),
            _last(5),
            schedule=794772,
            workers=2,
            ring=8,
            staging=1,
            store_within_ms=2,
        ),
    ),
    Found(
        "an entry of a chunk that never reached the disk, and a shard without any other",
        "entries-alone",
        "acknowledged as stored, but gone after a kill",
        _story(
            _shape(2),
            (0, 1),
            _life("power", 53, 2, client="writer", flushes=frozenset({1})),
            _life("kill", 12, 1, client="writer", ending=True),
            _last(1, "nobody"),
            schedule=898485,
            fills=(0,),
            sync_interval_ms=1000,
        ),
    ),
    Found(
        "a sync that fails as a shard is to get its name ahead of its shard row",
        "shown-in-silence",
        "durable, but gone after a power cut",
        _story(
            _shape(1, row_shards=3, index="start"),
            (0, 1, 2),
            _life(
                "kill",
                79,
                3,
                client="writer",
                pauses_ms=((1, 200), (2, 20_000)),
                faults=(Fault("point", 0, point="shard.before_sync"),),
            ),
            _life("power", 1, 2, client="writer"),
            _life("finish", 0, 3, client="nobody", pauses_ms=((2, 3000),)),
            schedule=2,
            sync_interval_ms=5000,
            io="mmap",
        ),
    ),
    Found(
        "a sync of the frame log that fails on a full disk, as shard rows are sealed",
        "full-in-silence",
        "durable, but gone after a power cut",
        _story(
            _shape(2),
            (0, 1, 2),
            _life(
                "kill", 136, 3, client="writer", faults=(Fault("point", 0, FOREVER, point="log.before_sync"),)
            ),
            _life("power", 12, 3),
            _last(3),
            schedule=27,
            sync_interval_ms=1000,
        ),
    ),
    Found(
        "a shard row that is given up before its image could be made",
        "abandoned-covered",
        "KeyError(0)",
        _story(
            Shape(((None, 4, 1),), 2, 1, images=2, order=1, row_shards=2, across=3, index="start"),
            (0, _IMAGE, 1, _IMAGE + 1, 2, _IMAGE + 2, 3, _IMAGE + 3, 4),
            _life(
                "take over",
                33,
                9,
                ending=True,
                faults=(Fault("answer", 5, 9),),
                worker_dies=3,
                pace=(1, 16, 4, 4),
            ),
            _last(9, "nobody"),
            schedule=8,
            io="pwrite",
            ring=25,
            rows=3,
            shard_rows=7,
            staging=16,
            durability="durable",
            overload="drop",
            on_full="fail",
            chunk_order="morton",
            store_within_ms=2,
            synced_alone=1,
        ),
    ),
    Found(
        "a take-over that is cut short, and the old writer in the files of the next one",
        "cut-short-forgotten",
        "acknowledged as stored, but gone after a kill",
        _story(
            _shape(4, 2),
            (0, 2, 4, 6),
            _life(
                "take over",
                65,
                3,
                client="writer",
                pauses_ms=((2, 60_000),),
                faults=(Fault("stall", 0, point="staging.before_write"),),
            ),
            _life("kill", 142, 4, client="writer", pauses_ms=((3, 60_000),), deaths=(23,)),
            _last(4, "nobody"),
            schedule=783607,
            workers=2,
            ring=12,
            rows=6,
            staging=6,
        ),
    ),
    Found(
        "more rows than the staging area has slots for, which nothing frees",
        "slots-are-made",
        "nothing can go on",
        _story(
            _shape(4, 32, in_place=True),
            (*range(31), *range(32, 63), *range(64, 90)),
            _life("kill", 301, 63, client="writer", pauses_ms=((62, 60_000),)),
            _last(80, "writer"),
            schedule=885440,
            staging=64,
        ),
    ),
    Found(
        "given up, and found again by recovery",
        "lost-and-stored",
        "has two statuses",
        _story(
            _shape(2),
            (0, 1),
            _life(
                "kill",
                9000,
                2,
                client="writer",
                faults=(Fault("point", 1, FOREVER, point="journal.after_chunks"),),
            ),
            _last(2, "writer"),
            schedule=885440,
        ),
    ),
    Found(
        "passed over by frames that were never stored",
        "passed-over-by-nothing",
        "though it came in order",
        _story(
            _shape(8, 2),
            (0, 1, 2, 3, 4, 5, 6, 7, 8, 10),
            _life(
                "kill",
                65,
                10,
                client="writer",
                pauses_ms=((8, 1),),
                faults=(Fault("stall", 0, point="sealer.before_command"),),
                pace=(16, 4, 1, 1),
            ),
            _last(10, "writer"),
            schedule=583957,
            ring=7,
            staging=0,
            overload="drop",
            store_within_ms=1000,
        ),
    ),
    Found(
        "a file that the old writer renames long after its look at the fence",
        "same-names",
        "the acquisition failed, though nothing did",
        _story(
            _shape(2),
            (0, 1),
            _life("take over", 69, 1, ending=True, faults=(Fault("late", 0, point="shard.before_rename"),)),
            _life("finish", 0, 2, pauses_ms=((1, 30_000),)),
            schedule=794772,
        ),
    ),
    Found(
        "a shape that covers a slab that waits for a stage",
        "staged-are-covered",
        "which the shape (6, 1, 1) covers",
        _story(
            _shape(1, 3, row_shards=3),
            (0, 1, 2, 3, 4, 5, 6),
            _life(
                "kill",
                199,
                7,
                client="writer",
                pauses_ms=((1, 30), (2, 30), (6, 8000)),
                faults=(Fault("stall", 1, point="staging.before_write"),),
                pace=(4, 4, 4, 4),
            ),
            _last(7),
            schedule=794772,
            workers=2,
            ring=20,
            rows=4,
            staging=12,
            store_within_ms=2,
            readers=(_reader_of_files(60, pause=5),),
        ),
    ),
    Found(
        "a shape that covers a shard row that has found no room for its names",
        "hidden-rows",
        "which the shape (1, 1, 1) covers",
        _story(
            _shape(1, row_shards=3),
            (0, 1, 2),
            _life(
                "kill",
                115,
                3,
                client="writer",
                pauses_ms=((1, 4000),),
                faults=(Fault("full", 6, 20),),
            ),
            _last(3),
            schedule=88994,
            readers=(_reader_of_files(15, pause=3),),
        ),
    ),
    Found(
        "a shape that covers the rest of a step, which its sealed shard row takes when it is opened again",
        "half-steps-covered",
        "which the shape (1, 2, 1, 1) covers",
        _story(
            Shape(((None, 1, 1), (2, 2, 1)), 1, 1),
            (0, 1),
            _life("kill", 50, 1, ending=True),
            _life("finish", 0, 2, pauses_ms=((1, 3000),)),
            schedule=1,
            readers=(_reader_of_files(200, pause=3),),
        ),
    ),
    Found(
        "a shape that covers a frame which waits until its sealed shard row is opened again",
        "waiting-covered",
        "which the shape (1, 2, 1, 1) covers",
        _story(
            Shape(((None, 1, 1), (2, 2, 1)), 1, 1),
            (0, 1),
            _life("kill", 50, 1, ending=True),
            _life("finish", 0, 2, pauses_ms=((2, 3000),), pace=(16, 1, 1, 1)),
            schedule=2,
            readers=(_reader_of_files(200, pause=3),),
        ),
    ),
    Found(
        "a shape that grows over a shard row which is opened again, and whose worker stalls",
        "opened-again-covered",
        "which the shape (6, 1, 1) covers",
        _story(
            _shape(1, 3),
            (0, 1, 2, 3, 4, 5),
            _life("kill", 50, 1, ending=True),
            _life(
                "finish",
                0,
                6,
                pauses_ms=((2, 100), (6, 60_000)),
                faults=(Fault("stall", 0, point="slots.before_store"),),
            ),
            schedule=1,
            workers=2,
            ring=20,
            rows=4,
            staging=12,
            store_within_ms=2,
            readers=(_reader_of_files(200, pause=10),),
        ),
    ),
    Found(
        "a name that the old writer gives and does not sync, and a cut as the copies begin to count",
        "final-names-kept",
        "missing, although it was sealed",
        _story(
            _shape(1),
            (0, 1),
            _life(
                "take over",
                60,
                2,
                client="writer",
                pauses_ms=((1, 60_000),),
                faults=(Fault("late", 0, point="shard.before_rename"),),
            ),
            _life(
                "finish",
                0,
                2,
                deaths=(60,),
                opening=(
                    Fault("stall", 0, point="take_over.before_copy"),
                    Fault("stall", 12, point="directory.before_sync"),
                ),
            ),
            schedule=52,
            sync_interval_ms=1000,
        ),
    ),
    Found(
        "a shard that is shown again from before its shard row was sealed and reopened",
        "shown-from-before",
        "is reported as stored at 1, where",
        _story(
            _shape(1, 2, row_shards=2),
            (2, 3, 0, 4, 8, 1, 12, 16),
            _life("finish", 0, 8, client="writer", pace=(1, 16, 16, 1)),
            schedule=112,
            workers=2,
            ring=16,
            rows=3,
            shard_rows=2,
            staging=8,
        ),
    ),
    Found(
        "a shard of a row that the log has lost, and the same chunk in the row that is written again",
        "earlier-shard-taken",
        "durable, but gone after a power cut",
        _story(
            Shape(((None, 1, 1), (None, 3, 2)), 2, 1, images=2, levels=1),
            (
                *(0, 65536, 65537, 131072, 131073),
                *(
                    (1 << 48) + position
                    for position in (0, 65536, 65537, 131072, 131073, 131074, 196608, 196609, 196610)
                ),
            ),
            _life(
                "kill",
                37,
                14,
                client="writer",
                ending=True,
                pace=(1, 16, 16, 4),
                opening=(Fault("full", 16, times=3),),
            ),
            _life("power", 85, 14, client="writer", pace=(1, 4, 4, 4), flip=1300789762),
            _life("finish", 8, 14, client="writer", pace=(1, 4, 16, 4)),
            schedule=2142975886,
            fills=((1 << 48) + 131074, (1 << 48) + 196609),
            ring=13,
            rows=3,
            shard_rows=4,
            staging=12,
            workers=3,
            synced_alone=1,
            io="mmap",
            chunk_order="row_major",
            store_within_ms=1,
            sync_interval_ms=1000,
            on_full="fail",
        ),
    ),
)
