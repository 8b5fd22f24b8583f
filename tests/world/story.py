"""A story: everything that a simulated acquisition will meet, drawn from one seed before it begins. What is
left to chance while it runs (who acts next, what a power cut keeps) comes from ``Story.schedule``."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Literal

import shardwright as sw
from shardwright.acquire.encoding import SlabEncoder
from shardwright.acquire.limits import Limits, least_ring_frames
from shardwright.array.frame_admission import in_order
from shardwright.model.write_settings import WriteSettings
from shardwright.scan.unfinished_store import store_layout
from shardwright.shard.frame_record import record_of
from shardwright.shard.layout import page_aligned

from .points import DRAWN, OF_BATCHES, OPENING, changes_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardwright.array.grid import Grid, Grids
    from shardwright.codecs.degrade import DegradeLevel
    from shardwright.model.write_options import WriteOrder
    from shardwright.shard.layout import StoreLayout

FILL = 0  # pixels of a frame that is all fill value
FOREVER = 1 << 30
_MOST_STALLS = 20
MOST_PLACES = 40  # of an acquisition with an order
_MOST_FRAMES, _FEW_IMAGES = 26, 3  # of an image, where an acquisition has no more images than these few
BATCH = 3  # frames at most in one call of ``submit``
ROTTEN = 0.1  # of takings up: a bit of what is written about frames has changed
UNREADABLE = 0.5  # of stories: some reads of shards in progress fail
LAST_DEATHS = 0.3  # of stories: whoever ends the store is killed, and so may be who recovers it
# seeds below are of one image, so that those found before images still tell the same story
MANY_IMAGES_FROM = 100_000_000
GROWING_FROM = 300_000_000  # from here on, half of the arrays have two axes without a count
LIVE_FROM = 400_000_000  # from here on, readers of half of the stores see shards grow
SPLIT_FROM = 500_000_000  # from here on, shard rows of most stories have several shards along the frame axes
IN_PLACE_FROM = 600_000_000  # from here on, most stores have frames in their chunks as they come
READERS_FROM = 700_000_000  # from here on, there are readers, and fewer frames in place
WIDE_FROM = 800_000_000  # from here on, most chunks span sectors, many of them pages
COLOURS_FROM = 900_000_000  # from here on, frames are of a colour camera
ADDED_FROM = 1_000_000_000  # from here on, most of several images are added while it runs
# From here on, most acquisitions have many images, whose shard rows are a slab each, and share journals.
PLATES_FROM = 8_000_000_000
GOES_ON_FROM = 7_000_000_000  # from here on, most stores that are finished go on
FEW_FILES_FROM = 200_000_000  # from here on, not every image that is filled may have a shard row open

ReaderKind = Literal["frames", "boxes", "ranges", "files"]
READER_KINDS: tuple[ReaderKind, ...] = ("frames", "boxes", "ranges", "files")
KINDS = (0, FEW_FILES_FROM, GROWING_FROM, LIVE_FROM, SPLIT_FROM, IN_PLACE_FROM, READERS_FROM, WIDE_FROM)
KINDS += (COLOURS_FROM, ADDED_FROM, GOES_ON_FROM, PLATES_FROM)


def seed_of(number: int) -> int:
    """The seed of the story of this number, each kind by turns; a number that is a seed of a later kind
    already is taken as it is."""
    return number if number >= MANY_IMAGES_FROM else KINDS[number % len(KINDS)] + number // len(KINDS)


Client = Literal["writer", "resends", "nobody"]
Ending = Literal["finish", "kill", "power", "take over"]


@dataclass(frozen=True)
class Shape:
    """Frame axes as (count or None, chunk, shard in chunks); ``files`` of a shard row, each so many columns
    wide; ``tasks`` that a slab is encoded by, 1 or one for each file."""

    axes: tuple[tuple[int | None, int, int], ...]
    files: int
    tasks: int
    images: int = 1
    added: int = 0  # of these images, the last ones: when a frame of theirs is to come
    order: int | None = None  # how many axes change slower than the images; None: images come as they like
    row_shards: int = 1  # along the frame axes, where a shard is one slab deep
    across: int = 1  # likewise, of shard rows that stay open while frames of other images come
    in_place: bool = False  # frames are put into their chunks as they come
    index: Literal["start", "end"] = "end"  # where the index of a shard is
    levels: int = 0  # of lower resolution, written with the image
    width: int = 1
    colours: int = 1  # of a frame: the last of the axes, unless 1


@dataclass(frozen=True)
class Frame:
    """Sequence n of the acquisition is ``Story.frames[n]``."""

    position: int
    fill: bool = False


@dataclass(frozen=True)
class Fault:
    """The disk fails at calls ``after`` to ``after + times`` of this ``kind`` in one life, or is ``full``
    meanwhile. ``stall``: whoever makes the call gets no answer for long. ``late``: likewise within a change
    of names, behind the look at the fence that allows it. ``answer``: a change of names is made, and then an
    error. ``short``: a part of a write is made. ``point``: the calls are those at this failpoint alone.
    ``rot``: some of what is in a shard in progress can never be read again."""

    kind: str
    after: int
    times: int = 1
    rot: bool = False
    point: str = ""


@dataclass(frozen=True)
class Life:
    """One process that has the acquisition. ``ends``: how, ``at`` so many steps after it begins or
    (``ending``) after it was asked to finish. ``frames``: how many of the story's the client sends, then it
    finishes. ``flushes``, ``pauses_ms``: before the frame of that number; with ``levels`` a flush also asks
    for what is stored and visible. ``deaths``: recovery is killed at these calls of the disk, and begun
    again. ``pace``: weights of camera, sealer, workers, clock."""

    client: Client
    ends: Ending
    at: int
    ending: bool
    frames: int
    flushes: frozenset[int] = frozenset()
    levels: bool = False
    pauses_ms: tuple[tuple[int, int], ...] = ()
    deaths: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()
    opening: tuple[Fault, ...] = ()  # those before it has the acquisition
    worker_dies: int | None = None  # at its task of that number
    told: bool = True  # whether the one that dies tells of its task
    pace: tuple[int, int, int, int] = (4, 4, 4, 1)
    new_client_at: int | None = None  # before that frame: the client vanishes and connects again
    # Before it takes the store up a bit of a journal, of the staging area or of the frame log has changed:
    # which one is drawn from this seed.
    flip: int | None = None
    frees_name: bool = False  # once it has failed since a name was taken, a user deletes that shard


@dataclass(frozen=True)
class LastDeath:
    """Once no life is left to begin, whoever ends the store is killed: right behind its end, or at call
    ``at`` of its recovery; None: that comes to its end. ``power``: the power is cut then. ``faults``: of that
    recovery. ``flip``: as of a life, before it."""

    at: int | None
    power: bool
    faults: tuple[Fault, ...] = ()
    flip: int | None = None


@dataclass(frozen=True)
class Reading:
    """A reader that begins at the moment ``at``, and reads ``times`` times, with a ``pause`` of so many
    moments in between. ``pace``: looks at each moment, below 1 at one of so many. Before some looks, of which
    it is so likely, it is ``held`` for up to so many moments. ``seed``: of its choices."""

    kind: ReaderKind
    at: int
    times: int
    pause: int
    pace: float
    held: tuple[float, int]
    seed: int


@dataclass(frozen=True)
class Story:
    shape: Shape
    settings: WriteSettings
    ring: int
    rows: int
    shard_rows: int
    staging: int
    workers: int
    frames: tuple[Frame, ...]
    lives: tuple[Life, ...]
    schedule: int
    synced_alone: int = FOREVER  # files of a shard row; more are synced by one call for the whole filesystem
    readers: tuple[Reading, ...] = ()
    torn: bool = False  # processes are killed within writes, too
    in_no_order: bool = False  # folders give their entries so
    unread: int | None = None  # some reads of shards by recovery fail: by chance, of this seed
    last_deaths: tuple[LastDeath, ...] = ()
    again: tuple[Life, ...] = ()  # of the finished store, which goes on


@dataclass(frozen=True)
class Plan:
    """What follows from a shape."""

    spec: sw.AcquisitionSpec  # with all images, in the end
    declared: sw.AcquisitionSpec  # with which it begins
    layout: StoreLayout
    levels: tuple[DegradeLevel, ...]


@lru_cache(maxsize=4096)
def plan_of(shape: Shape) -> Plan:
    names = "tz" if shape.colours == 1 else f"{'tz'[: len(shape.axes) - 1]}c"
    dimensions = [
        sw.Dimension(name=names[i], count=n, chunk_size=c, shard_size_chunks=s)
        for i, (n, c, s) in enumerate(shape.axes)
    ]
    dimensions += [
        sw.Dimension(name="y", count=1, chunk_size=1),
        sw.Dimension(name="x", count=shape.files * shape.width, chunk_size=shape.width),
    ]
    codec = None if shape.in_place else sw.Blosc()
    array = sw.ArraySpec(
        dtype="uint16",
        dimensions=tuple(dimensions),
        codec=codec,
        index_location=shape.index,
        levels=shape.levels or None,
        interleaved=shape.colours > 1,
    )
    # some in folders that have names of their own
    paths = [f"at.{i}" if shape.images == 3 else None for i in range(shape.images)]
    several = (sw.Image(name=f"image {i}", path=path) for i, path in enumerate(paths))
    images, added = (() if shape.images == 1 else tuple(several)), ()
    if shape.added:
        images, added = images[: -shape.added], images[-shape.added :]
    order = None
    if shape.order is not None:
        axes = names[: len(shape.axes)]
        order = (*axes[: shape.order], "p", *axes[shape.order :])
    spec = sw.AcquisitionSpec(array=array, images=images, order=order).in_rows(shape.row_shards, shape.across)
    declared = spec.in_place() if shape.in_place else spec
    # as the manifest of that store says it
    spec = declared.with_images(added, declared.grids.row_shards, declared.grids.most_across)
    return Plan(spec, declared, store_layout(spec), SlabEncoder(array, spec.grids.grids[0]).degrade_levels)


@lru_cache(maxsize=4096)
def derived(shape: Shape, ring: int) -> Limits:
    return Limits.derive(plan_of(shape).spec, threads=1, ring_frames=ring, descriptors=400)


def limits_of(story: Story) -> Limits:
    limits = derived(story.shape, story.ring)
    staging = story.staging
    if story.shape.in_place and staging:  # an area without pixels fills its pages
        record_bytes = record_of(plan_of(story.shape).spec).itemsize
        staging = page_aligned(staging * record_bytes) // record_bytes
    return replace(limits, rows=story.rows, open_shard_rows=story.shard_rows, staging_frames=staging)


def draw(seed: int) -> Story:
    """The story of a seed."""
    rng = random.Random(seed)
    shape = _shape_of(rng, seed)
    grid = plan_of(shape).spec.grids
    ring = least_ring_frames(grid, 1) + rng.choice((0, 0, 1, 3, 8))
    filled = grid.open_shard_rows
    if seed >= FEW_FILES_FROM and grid.slower_axes is None and rng.random() < 0.5:
        filled = grid.open_shard_rows_of_one
    settings = _settings(rng)
    if seed >= LIVE_FROM and rng.random() < (0.2 if seed >= PLATES_FROM else 0.5):
        settings = replace(settings, live="index")
    if settings.live != "none":
        shape = replace(shape, index="start")
    if shape.in_place or (shape.row_shards > 1 and rng.random() < 0.7):
        settings = replace(settings, live="none")  # then shards get their names ahead of their row
    rows = grid.open_slabs + rng.choice((1, 1, 2, 3, 8))
    staging = min(ring, rng.choice((grid.held_frames, 2 * grid.held_frames, 4 * grid.held_frames)))
    if grid.in_place:
        staging = rows * grid.frames_per_slab + rng.choice((0, 0, 1, 9))
    story = Story(
        shape=shape,
        settings=settings,
        ring=ring,
        rows=rows,
        shard_rows=filled + rng.choice((2, 2, 3, 5)),
        staging=0 if grid.frames_per_slab == 1 else staging,
        workers=rng.choice((1, 2, 3)),
        frames=_by_channel(frames := _of_all_images(rng, grid, shape.colours), shape.colours),
        lives=tuple(_of_whole_frames(life, shape.colours) for life in _lives(rng, len(frames))),
        schedule=rng.getrandbits(32),
        synced_alone=rng.choice((1, 4, FOREVER)) if seed >= SPLIT_FROM else FOREVER,
    )
    story = _drawn_apart(random.Random(-seed), story)
    apart = random.Random(f"torn {seed}")
    story = replace(story, torn=apart.random() < 0.3, in_no_order=apart.random() < 0.5)
    story = _with_rot(random.Random(f"rot {seed}"), story)
    story = _with_late_ends(random.Random(f"ends {seed}"), story)
    story = _with_failing_recoveries(random.Random(f"recoveries {seed}"), story)
    if seed >= PLATES_FROM:
        story = _with_batches(random.Random(f"plates {seed}"), story)
    if seed >= GOES_ON_FROM:
        story = _going_on(random.Random(f"again {seed}"), story)
    return _with_readers(random.Random(f"readers {seed}"), story) if seed >= READERS_FROM else story


def _shape_of(rng: random.Random, seed: int) -> Shape:
    shape = _shape(rng)
    if seed >= MANY_IMAGES_FROM:
        shape = replace(shape, images=rng.choice((1, 2, 2, 3)))
        if shape.images > 1 and rng.random() < 0.5:
            least = 0 if shape.axes[0][0] else 1  # an unlimited axis ends no image
            shape = replace(shape, order=rng.randint(least, len(shape.axes)))
    if seed >= GROWING_FROM and rng.random() < 0.5:
        depths = (rng.randint(1, 3), rng.randint(1, 3))
        shape = replace(shape, axes=((None, 1, 1), (None, *depths)), order=None)
    if seed >= SPLIT_FROM and rng.random() < 0.8:
        shape = _split(rng, shape)
    if seed >= IN_PLACE_FROM:
        shape = replace(shape, in_place=rng.random() < 0.8)
    shape = shape if seed < READERS_FROM else _shape_for_readers(rng, shape)
    if seed >= PLATES_FROM and rng.random() < 0.9:
        shape = _plate(rng, shape)
    coloured = seed >= COLOURS_FROM and not (seed >= PLATES_FROM and rng.random() < 0.8)
    if coloured and (seed < ADDED_FROM or seed % 4 == 0):
        shape = _of_colours(rng, shape)
    if seed >= ADDED_FROM and (seed < GOES_ON_FROM or seed % 2):
        shape = _with_added(random.Random(f"added {seed}"), shape)
    if seed < WIDE_FROM or rng.random() < 0.2:
        return shape
    return replace(shape, width=2 * rng.choice((150, 300, 1500, rng.randint(100, 1500))))


def _plate(rng: random.Random, shape: Shape) -> Shape:
    """Many images with a few frames each, in shards that are a slab deep."""
    axes = tuple(
        (count and min(count, 6), min(chunk, rng.choice((1, 1, 2, 3))), 1) for count, chunk, _ in shape.axes
    )
    images = rng.choice((2, 3, 4, 5, 7, 10))
    order = shape.order
    if order is None and rng.random() < 0.3:
        order = len(axes) if axes[0][0] is None else rng.randint(0, len(axes))
    return replace(shape, axes=axes, images=images, order=order, row_shards=1, across=1, in_place=False)


def _with_added(rng: random.Random, shape: Shape) -> Shape:
    """Several images, of which the last ones are added; in an order only where images come one by one."""
    shape = replace(shape, images=max(2, shape.images))
    shape = replace(shape, order=0 if shape.axes[0][0] and rng.random() < 0.5 else None)
    return replace(shape, added=rng.randint(1, shape.images - 1) if rng.random() < 0.9 else 0)


def _of_colours(rng: random.Random, shape: Shape) -> Shape:
    """Fewer frames, each with a place for every channel, in one slab or several."""
    colours = rng.choice((3, 3, 4))
    chunk = rng.choice((1, 1, 2, colours))
    shard = 1 if shape.row_shards > 1 else rng.randint(1, -(-colours // chunk))
    return replace(shape, axes=(*shape.axes, (colours, chunk, shard)), colours=colours)


def _of_whole_frames(life: Life, colours: int) -> Life:
    """A life drawn in frames, in places: a camera gives all channels of a frame at once."""
    new_client = life.new_client_at
    return replace(
        life,
        frames=life.frames * colours,
        flushes=frozenset(n * colours for n in life.flushes),
        pauses_ms=tuple((n * colours, ms) for n, ms in life.pauses_ms),
        new_client_at=None if new_client is None else new_client * colours,
    )


def _shape_for_readers(rng: random.Random, shape: Shape) -> Shape:
    """More of the shapes in which frames wait for others of their chunk, and are staged meanwhile."""
    shape = replace(shape, in_place=shape.in_place and rng.random() < 0.25)
    if rng.random() < 0.6:
        shape = replace(shape, row_shards=1, across=1)  # as a live store has most often
    (count, chunk, depth), *faster = shape.axes
    if rng.random() < 0.6 and all(count for count, _, _ in faster):
        shape = replace(shape, axes=((count, max(chunk, rng.randint(2, 5)), depth), *faster))
    return shape


def _drawn_apart(rng: random.Random, story: Story) -> Story:
    """What came later, so that the other stories stay what they are."""
    shape, frames = story.shape, len(story.frames)
    if shape.row_shards > 1 and rng.random() < 0.05:
        story = replace(story, lives=_lives_without_a_name(rng, frames))
    if not shape.in_place and shape.files > 1 and rng.random() < 0.5:
        story = replace(story, shape=replace(shape, levels=1))
    story = _with_other_files(rng, story)
    story = replace(story, lives=tuple(_with_more_faults(rng, life) for life in story.lives))
    return replace(story, lives=tuple(_with_faults_at_points(rng, life) for life in story.lives))


def _with_rot(rng: random.Random, story: Story) -> Story:
    """What time takes: bits of tables, sectors, and who is at work last."""
    lives = tuple(
        replace(
            life,
            flip=rng.getrandbits(32) if rng.random() < ROTTEN else None,
            frees_name=rng.random() < 0.5,
        )
        for life in story.lives
    )
    unread = rng.getrandbits(32) if rng.random() < UNREADABLE else None
    deaths = rng.randint(1, 3) if rng.random() < LAST_DEATHS else 0
    return replace(story, lives=lives, unread=unread, last_deaths=tuple(_death(rng) for _ in range(deaths)))


def _with_late_ends(rng: random.Random, story: Story) -> Story:
    """An early end takes some hundred calls, seals and last documents included: the others die in its first
    few."""
    lives = tuple(
        replace(life, at=int(rng.expovariate(1 / 100))) if life.ending and rng.random() < 0.3 else life
        for life in story.lives
    )
    return replace(story, lives=lives)


def _with_batches(rng: random.Random, story: Story) -> Story:
    """Frames of many images come before the sealer has made a shard row for one of them: it makes a batch of
    rows then, and the disk fills or fails within it."""
    images, some = story.shape.images, rng.choice
    return replace(
        story,
        ring=story.ring + some((0, images, 2 * images, 3 * images)),
        rows=story.rows + some((0, images)),
        shard_rows=story.shard_rows + some((0, images // 2, images)),
        lives=tuple(_in_batches(rng, each) for each in story.lives),
    )


def _in_batches(rng: random.Random, life: Life) -> Life:
    if life.client == "nobody" and rng.random() < 0.7:
        life = replace(life, client="resends")
    if rng.random() < 0.6:
        life = replace(life, pace=(rng.choice((4, 16)), 1, rng.choice((4, 16)), 1))
    if rng.random() < 0.3:
        full = Fault("full", rng.randint(0, 200), rng.choice((2, 6, 20, 60)))
        life = replace(life, faults=(*life.faults, full))
    if life.ends != "finish" and rng.random() < 0.2:
        life = replace(life, faults=(*life.faults, fault_at(rng, OF_BATCHES)))
    return life


def _with_failing_recoveries(rng: random.Random, story: Story) -> Story:
    """The disk fails whoever recovers the store last, killed or not."""
    deaths = story.last_deaths
    if deaths and rng.random() < 0.5:
        deaths = (*deaths, LastDeath(at=None, power=False))
    failing = tuple(
        replace(
            death,
            faults=tuple(fault_at(rng, DRAWN) for _ in range(rng.choice((0, 1, 1, 2)))),
            flip=rng.getrandbits(32) if rng.random() < ROTTEN else None,
        )
        for death in deaths
    )
    return replace(story, last_deaths=failing)


def _going_on(rng: random.Random, story: Story) -> Story:
    """A life that ends well before all frames came, and then others: most die."""
    if rng.random() < 0.15:
        return story
    colours, (*before, last) = story.shape.colours, story.lives
    frames = len(story.frames) // colours
    first = replace(last, client=rng.choice(("writer", "resends")), frames=colours * rng.randint(1, frames))
    again = tuple(_of_whole_frames(life, colours) for life in _lives(rng, frames))
    again = tuple(_with_faults_at_points(rng, life) for life in again)
    return replace(story, lives=(*before, first), again=again)


def _death(rng: random.Random) -> LastDeath:
    return LastDeath(at=int(rng.expovariate(1 / rng.choice((10, 60, 200)))), power=rng.random() < 0.5)


def _with_other_files(rng: random.Random, story: Story) -> Story:
    """Other ways to fill the same files, and a copy of them that grows for readers."""
    settings, shape = replace(story.settings, io=rng.choice(("mmap", "pwrite"))), story.shape
    if settings.live == "index" and rng.random() < 0.4:
        settings, shape = replace(settings, live="append", io="pwrite"), replace(shape, index="end")
    elif settings.live == "none" and not shape.in_place:
        order: WriteOrder = rng.choice(("arrival", "arrival", "row_major", "morton"))
        settings = replace(settings, chunk_order=order)
    return replace(story, settings=settings, shape=shape)


def _with_more_faults(rng: random.Random, life: Life) -> Life:
    if life.ends == "finish" or rng.random() < 0.8:
        return life
    kind = rng.choice(LATER_FAULTS)
    return replace(life, faults=(*life.faults, Fault(kind, rng.randint(0, 40), rng.choice((1, 1, 4)))))


def _with_readers(rng: random.Random, story: Story) -> Story:
    """Readers, and more often lives in which frames are staged before their chunk is full."""
    if rng.random() < 0.7:
        story = replace(story, settings=replace(story.settings, store_within_ms=1))
    slow = [rng.random() < 0.6 for _ in story.lives]
    lives = tuple(
        replace(life, pace=(1, *life.pace[1:3], 4)) if is_slow else life
        for life, is_slow in zip(story.lives, slow, strict=True)
    )
    return replace(story, lives=lives, readers=_readers(rng))


def _readers(rng: random.Random) -> tuple[Reading, ...]:
    return tuple(
        Reading(
            kind=rng.choice(READER_KINDS),
            at=int(rng.expovariate(1 / rng.choice((30, 150, 500)))),
            times=rng.choice((1, 5, 50)),
            pause=rng.choice((5, 20, 60)),
            pace=rng.choice((0.3, 1, 5, 40, 40)),
            held=(rng.choice((0.01, 0.03, 0.1)), rng.choice((10, 50, 200))),
            seed=rng.getrandbits(32),
        )
        for _ in range(rng.randint(2, 8))
    )


def _with_faults_at_points(rng: random.Random, life: Life) -> Life:
    """Half of the faults by the name of their call, so that each is met; and such as opening meets."""
    faults = tuple(
        fault if fault.kind == "full" or rng.random() < 0.5 else fault_at(rng, DRAWN) for fault in life.faults
    )
    opening = tuple(fault_at(rng, OPENING) for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 2))))
    if opening and rng.random() < 0.1:
        opening = (*opening, Fault("full", rng.randint(0, 60), rng.choice((3, 20, FOREVER))))
    return replace(life, faults=faults, opening=opening)


def fault_at(rng: random.Random, points: tuple[str, ...]) -> Fault:
    """At a random one of these failpoints."""
    point, chance = rng.choice(points), rng.random()
    kind = "stall" if chance < 0.05 else "point"
    if changes_names(point) and 0.05 <= chance < 0.5:
        kind = "late" if chance < 0.1 else "answer"
    after = rng.choice((0, 0, 0, 1, 2, rng.randint(0, 20)))
    times = rng.choice((1, 1, 1, 2, FOREVER))
    if kind in ("stall", "late"):  # a disk each of whose calls takes that long has no end to wait for
        times = min(times, _MOST_STALLS)
    return Fault(kind, after, times, rot=False, point=point)


def _lives_without_a_name(rng: random.Random, frames: int) -> tuple[Life, ...]:
    """The disk fails while shards get their names, then a kill, and a power cut soon after it."""
    failing = Fault("seal", rng.randint(0, 3))
    killed = Life(
        "resends", "kill", rng.randint(15, 60), False, frames, faults=(failing,), pace=(4, 16, 16, 1)
    )
    cut = Life("resends", "power", rng.randint(1, 30), False, frames)
    return (killed, cut, Life("resends", "finish", 0, False, frames))


def _split(rng: random.Random, shape: Shape) -> Shape:
    """A shape whose shards are one slab deep, so that several make a shard row."""
    (count, chunk, _), *faster = shape.axes
    axes = [(count and 2 * count, min(chunk, rng.choice((1, 2, 4))), 1)]
    axes += [(count or 3, chunk, 1) for count, chunk, _ in faster]
    return replace(shape, axes=tuple(axes), row_shards=rng.randint(2, 4), across=rng.randint(1, 3))


def _shape(rng: random.Random) -> Shape:
    axes: list[tuple[int | None, int, int]] = [
        (None if rng.random() < 0.5 else rng.randint(1, 10), rng.randint(1, 4), rng.randint(1, 4))
    ]
    if rng.random() < 0.4:
        axes[0] = (axes[0][0] and min(axes[0][0], 5), rng.randint(1, 3), rng.randint(1, 2))
        axes.append((rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 2)))
    files = rng.choice((1, 1, 2))
    return Shape(tuple(axes), files, rng.randint(1, files))


def _settings(rng: random.Random) -> WriteSettings:
    return WriteSettings(
        durability=rng.choice(("stored", "durable")),
        overload=rng.choice(("block", "block", "degrade", "drop")),
        on_full=rng.choice(("block", "fail")),
        store_within_ms=rng.choice((2, 20, 1000)),
        sync_interval_ms=rng.choice((1, 50, 1000)),
        ballast_bytes=1,
    )


def _by_channel(frames: Iterable[Frame], colours: int) -> tuple[Frame, ...]:
    """The places of frames, given by the first of each."""
    return tuple(replace(f, position=f.position + channel) for f in frames for channel in range(colours))


def _of_all_images(rng: random.Random, grids: Grids, colours: int) -> tuple[Frame, ...]:
    """The frames of each image, one image after the other or mixed, each keeping its own order; or in the
    order of the acquisition."""
    if grids.slower_axes is not None:
        places = list(islice(in_order(grids), MOST_PLACES // colours * colours))[::colours]
        return _frames(rng, places, grids.total_frames is None)
    most = _MOST_FRAMES if len(grids.grids) <= _FEW_IMAGES else _MOST_FRAMES // len(grids.grids) + 2
    images = [list(_frames(rng, *_first_places(grid, colours, most))) for grid in grids.grids]
    if len(images) == 1:
        return tuple(images[0])
    stays = rng.choice((0.0, 0.5, 0.9, 1.0))  # how likely the next frame is of the same image
    frames, image = [], 0
    while any(images):
        if not images[image] or rng.random() > stays:
            image = rng.choice([i for i, left in enumerate(images) if left])
        frames.append(images[image].pop(0))
    return tuple(frames)


def _first_places(grid: Grid, colours: int, most: int) -> tuple[list[int], bool]:
    """Its first positions, and whether there are more; where a further axis has no count, those of a few
    steps along both."""
    if grid.is_ragged:
        channel = () if colours == 1 else (0,)
        places = [grid.position_of((t, z, *channel)) for t in range(6) for z in range(1 + t % 5)]
        return places[:most], True
    most = most if colours == 1 else min(most, 10)
    frames = most if grid.total_frames is None else min(grid.total_frames // colours, most)
    return [grid.first + p * colours for p in range(frames)], grid.total_frames is None


def _frames(rng: random.Random, places: list[int], endless: bool) -> tuple[Frame, ...]:
    """In order, or with what cameras do: gaps, frames that swap places, come much later or twice."""
    most = rng.randint(1, len(places)) if endless else len(places)
    order = places[: most if endless or rng.random() < 0.6 else rng.randint(1, most)]
    manner = rng.random()
    if manner > 0.45:
        order = [p for p in order if rng.random() > 0.1] or places[:1]
    if manner > 0.6:
        for _ in range(rng.randint(0, 4)):
            place = rng.randrange(len(order))
            order.insert(min(len(order), place + rng.choice((1, 1, 2, 5, 20))), order.pop(place))
    if manner > 0.75:
        for _ in range(rng.randint(0, 3)):
            order.insert(rng.randint(0, len(order)), rng.choice(order))
    fill = rng.choice((0.0, 0.0, 0.2, 0.9))
    return tuple(Frame(p, rng.random() < fill) for p in order)


def _lives(rng: random.Random, frames: int) -> tuple[Life, ...]:
    lives = [_life(rng, frames, last=False) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return (*lives, _life(rng, frames, last=True))


def _life(rng: random.Random, frames: int, *, last: bool) -> Life:
    client: Client = "nobody" if last and rng.random() < 0.2 else rng.choice(("writer", "resends", "resends"))
    early = not last and rng.random() < 0.5
    deaths = tuple(int(rng.expovariate(1 / 12)) for _ in range(rng.choice((0, 0, 0, 1, 2))))
    life = Life(
        client=client,
        ends="finish" if last else rng.choice(("kill", "kill", "kill", "power", "power", "take over")),
        at=int(rng.expovariate(1 / (15 if early else 10 + 6 * frames))),
        ending=early,
        frames=rng.randint(0, frames) if early else frames,
        flushes=frozenset(rng.randrange(frames + 1) for _ in range(rng.choice((0, 0, 1, 2)))),
        pauses_ms=tuple(
            (rng.randrange(frames + 1), rng.choice((1, 30, 600, 3000)))
            for _ in range(rng.choice((0, 0, 1, 3)))
        ),
        deaths=deaths,
        pace=(rng.choice((1, 4, 16)), rng.choice((1, 4, 16)), rng.choice((1, 4, 16)), rng.choice((1, 1, 4))),
        new_client_at=rng.randrange(frames + 1) if rng.random() < 0.2 else None,
    )
    life = replace(life, levels=life.at % 3 == 0)  # of a number that is drawn: others stay as they were
    if last or rng.random() < 0.5:
        return life
    if rng.random() < 0.15:
        return replace(life, worker_dies=rng.randint(0, frames), told=rng.random() < 0.5)
    return replace(life, faults=tuple(_fault(rng, frames) for _ in range(rng.choice((1, 1, 2)))))


FAULTS = (
    "chunk",
    "journal",
    "stage",
    "sync shard row",
    "sync stage",
    "sync log",
    "log",
    "create",
    "seal",
    "reopen",
    "rewrite",
    "finish",
    "copy",
    "look",
)


LATER_FAULTS = ("stall", "answer", "write back", "short")


def _fault(rng: random.Random, frames: int) -> Fault:
    if rng.random() < 0.35:
        return Fault("full", rng.randint(0, 4 * frames), rng.choice((3, 20, 60, FOREVER)))
    kind = rng.choice(FAULTS)
    often = math.ceil(frames / 2) if kind in ("chunk", "journal", "stage") else 4
    return Fault(kind, rng.randint(0, often), rng.choice((1, 1, 2, FOREVER)), rot=rng.random() < 0.3)
