"""The plan of an edit: where the new bytes of chunks go in a shard, and what its index is then. Pure
arithmetic.

    in_place   | a | B | c | index |            B where b lay, if it fits; one of fixed size that is absent
                                                in a free slot
    gap        | a | . | c | B | . | index |    B in unused bytes
    append     | a | . | c | (old index) | B | index |
    rewrite    | a | B | c | index |            another file

With the index at the start, ``append`` puts B at the end of the file and writes the index where it lies.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from shardwright.model.errors import StrategyError
from shardwright.shard.index import EMPTY
from shardwright.shard.layout import PAGE_BYTES, page_aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from shardwright.shard.index import ShardIndex

Strategy = Literal["auto", "in_place", "gap", "append", "rewrite"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
WITHIN: tuple[Strategy, ...] = ("in_place", "gap", "append")  # into the file that is there, cheapest first
Ranges = list[tuple[int, int]]  # [start, stop), in order, none empty


@dataclass(frozen=True)
class ShardFacts:
    """A shard as it is. ``entries``: INDEX_ENTRY[chunks], sound. ``unchangeable``: why its file cannot be
    changed where it lies; None: it can. ``are_gaps_free``: its bytes outside of chunks and index mean
    nothing. ``holes``: those of its unused bytes that take no room on the disk."""

    index: ShardIndex
    entries: npt.NDArray[np.void]
    file_bytes: int
    unchangeable: str | None = None
    are_gaps_free: bool = True
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def data_range(self) -> tuple[int, int]:
        return self.index.data_range(self.file_bytes)

    @property
    def index_range(self) -> tuple[int, int]:
        offset = self.index.offset(self.data_range[1])
        return offset, offset + self.index.nbytes

    @property
    def live(self) -> Ranges:
        """The bytes of its chunks."""
        return chunk_ranges(self.entries)

    @property
    def unused(self) -> Ranges:
        return minus([self.data_range], self.live)


@dataclass(frozen=True)
class EditPlan:
    """The plan of one edit. ``offsets``: offset of each chunk that is written. ``after``: the shard as it is
    to be. ``retired``: the old index, where it stays in the file. Both None with ``rewrite``."""

    strategy: Strategy
    offsets: dict[int, int]
    after: ShardFacts | None
    retired: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Impossible:
    why: str


def plan_edit(
    before: ShardFacts, sizes: Mapping[int, int | None], strategy: Strategy, max_unused: float
) -> EditPlan:
    """``sizes``: bytes of each chunk that is written, None for one that is erased; at least one chunk is left
    then. ``max_unused``: for ``auto``, the most unused bytes of the file for each of its bytes, unless it has
    more of them already; holes do not count.

    ``auto`` takes what writes the fewest bytes: what is changed within the file is written twice, into the
    journal first. Raises ``StrategyError`` for a strategy that cannot do it, naming those that can.
    """
    if strategy == "rewrite":
        return _REWRITE
    tries = {name: _plan_within(before, sizes, name) for name in WITHIN}
    if strategy != "auto":
        found = tries[strategy]
        if isinstance(found, EditPlan):
            return found
        able = [name for name, tried in tries.items() if isinstance(tried, EditPlan)]
        raise StrategyError(
            f"strategy {strategy!r} cannot do this: {found.why}",
            expected=f"strategy {' or '.join((*able, 'rewrite'))}",
            hint="`auto` takes the cheapest one that can",
        )
    new_bytes = sum(filter(None, sizes.values()))
    kept = before.entries["nbytes"].copy()
    kept[[*sizes]] = EMPTY
    rewritten_bytes = new_bytes + int(kept[kept != EMPTY].sum()) + before.index.nbytes
    most_unused = max(max_unused, unused_share(before))
    for found in tries.values():
        if (
            isinstance(found, EditPlan)
            and unused_share(found.after or before) <= most_unused
            and 2 * (new_bytes + before.index.nbytes) <= rewritten_bytes
        ):
            return found
    return _REWRITE


_REWRITE = EditPlan("rewrite", {}, None)


def unused_share(shard: ShardFacts) -> float:
    """Returns the unused bytes, without holes, for each byte of the file."""
    # The ends of slots are holes, and cost nothing. Counted, they would make ``auto`` rewrite each shard in
    # slots at its first edit.
    filled = sum(stop - start for start, stop in minus(shard.unused, list(shard.holes)))
    return filled / shard.file_bytes if shard.file_bytes else 0.0


def unused_bytes(shard: ShardFacts) -> int:
    return sum(stop - start for start, stop in shard.unused)


def _plan_within(
    before: ShardFacts, sizes: Mapping[int, int | None], strategy: Strategy
) -> EditPlan | _Impossible:
    if before.unchangeable is not None:
        return _Impossible(before.unchangeable)
    written = {number: nbytes for number, nbytes in sizes.items() if nbytes is not None}
    find = {"in_place": _where_they_lie, "gap": _in_gaps, "append": _behind}[strategy]
    offsets = find(before, written)
    if isinstance(offsets, _Impossible):
        return offsets
    entries = before.entries.copy()
    for number, nbytes in sizes.items():
        entries[number] = (EMPTY, EMPTY) if nbytes is None else (offsets[number], nbytes)
    file_bytes = before.file_bytes
    if strategy == "append":
        file_bytes += sum(written.values()) + before.index.behind_bytes
    touched = union(_pages(offsets[number], nbytes) for number, nbytes in written.items())
    holes = tuple(minus(before.holes, touched))
    after = ShardFacts(before.index, entries, file_bytes, None, before.are_gaps_free, holes)
    retired = before.index_range if strategy == "append" and before.index.location == "end" else None
    return EditPlan(strategy, offsets, after, retired)


def _pages(offset: int, nbytes: int) -> tuple[int, int]:
    """Returns the bytes of a file that take room once these are written."""
    return offset // PAGE_BYTES * PAGE_BYTES, page_aligned(offset + nbytes)


def _where_they_lie(before: ShardFacts, written: Mapping[int, int]) -> dict[int, int] | _Impossible:
    live = np.flatnonzero(before.entries["offset"] != EMPTY)
    order = live[np.argsort(before.entries["offset"][live], kind="stable")]
    rank = {number: i for i, number in enumerate(order.tolist())}
    starts = before.entries["offset"][order].astype(np.int64)
    ends = starts + before.entries["nbytes"][order].astype(np.int64)
    reach = np.maximum.accumulate(ends)
    next_start = np.append(starts[1:], before.data_range[1])
    absent = {number: nbytes for number, nbytes in written.items() if number not in rank}
    offsets: dict[int, int] = {}
    if absent:
        sizes = {*absent.values(), *before.entries["nbytes"][live].tolist()}
        if sizes != {before.index.most_chunk_bytes}:  # other chunks have no slot that just fits
            return _Impossible(f"chunk {min(absent)} is absent")
        if isinstance(free := _in_gaps(before, absent), _Impossible):
            return free
        offsets |= free
    for number, nbytes in written.items():
        if (i := rank.get(number)) is None:
            continue
        # Other writers store chunks of the same content once: two entries may name the same bytes, and an
        # overwritten one would change the other.
        if next_start[i] < ends[i] or (i and reach[i - 1] > starts[i]):
            return _Impossible(f"chunk {number} shares bytes with another one")
        # A chunk grows over the gap behind it only if the bytes there are known to mean nothing.
        room = int((next_start if before.are_gaps_free else ends)[i] - starts[i])
        if nbytes > room:
            return _Impossible(f"there is room for {room} bytes where chunk {number} lies, not for {nbytes}")
        offsets[number] = int(starts[i])
    return offsets


def _in_gaps(before: ShardFacts, written: Mapping[int, int]) -> dict[int, int] | _Impossible:
    """The longest chunk first, each into the first gap that it fits."""
    if not before.are_gaps_free:
        return _Impossible("the shard holds bytes of unknown meaning outside of its chunks")
    # Gaps of the shard as it is. The bytes of a chunk that is replaced are free only once the new index is
    # durable: until then a reader, or a power cut, needs the old one.
    gaps, offsets = before.unused, {}
    for number, nbytes in sorted(written.items(), key=lambda item: (-item[1], item[0])):
        fits = next((i for i, (start, stop) in enumerate(gaps) if stop - start >= nbytes), None)
        if fits is None:
            return _Impossible(f"no gap has room for the {nbytes} bytes of chunk {number}")
        start, stop = gaps[fits]
        offsets[number] = start
        gaps[fits] = (start + nbytes, stop)
    return offsets


def _behind(before: ShardFacts, written: Mapping[int, int]) -> dict[int, int] | _Impossible:
    if before.index.location == "end" and not before.index.codec.has_checksum:
        return _Impossible("the index at the end has no checksum, so that readers would take half of it")
    offsets, offset = {}, before.file_bytes
    for number, nbytes in sorted(written.items()):
        offsets[number] = offset
        offset += nbytes
    return offsets


def chunk_ranges(entries: npt.NDArray[np.void]) -> Ranges:
    """Returns the bytes that index entries name, overlapping and touching ones as one range."""
    live = entries[entries["offset"] != EMPTY]
    offsets = live["offset"].astype(np.int64)
    pairs = zip(offsets.tolist(), (offsets + live["nbytes"].astype(np.int64)).tolist(), strict=True)
    return union(pairs)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found: list[list[int]] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], stop)
        else:
            found.append([start, stop])
    return [(start, stop) for start, stop in found]


def minus(ranges: Iterable[tuple[int, int]], other: Ranges) -> Ranges:
    """Returns the parts of ``ranges`` (disjoint, in order) that are not in ``other``."""
    found, i = [], 0
    for start, stop in ranges:
        while i < len(other) and other[i][1] <= start:
            i += 1
        j, begin = i, start
        while j < len(other) and other[j][0] < stop:
            if other[j][0] > begin:
                found.append((begin, other[j][0]))
            begin = max(begin, other[j][1])
            j += 1
        if begin < stop:
            found.append((begin, stop))
    return found


def meets(piece: tuple[int, int], ranges: Ranges) -> bool:
    """Returns whether one range has bytes in common with ``ranges``."""
    i = bisect_right(ranges, piece[0], key=lambda r: r[1])
    return i < len(ranges) and ranges[i][0] < piece[1]


def common(ranges: Ranges, other: Ranges) -> Ranges:
    """Returns the parts of ``ranges`` that are in ``other``."""
    return minus(ranges, minus(ranges, other))
