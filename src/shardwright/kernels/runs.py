"""LZ4 blocks of byte planes that are mostly runs, as the high bytes of a camera are. LZ4's own search takes
twice the time for them.

    LZ4 block   sequences: token (literals << 4 | match - 4; 15: length bytes follow) | length bytes of the
                literals | literals | u16 distance | length bytes of the match; the last one ends with its
                literals (lz4_Block_format)

64 bytes at a time are compared with the bytes before them: the bits that differ tell where runs begin and
end. Those of a part of the plane are listed first, then written: in one loop, each run would be mispredicted.
A run becomes a match with the longest run of the same byte so far, begun as many bytes earlier as are equal
there; one that is longer itself, with its own first byte. All else is literals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .cache import njit
from .native_calls import CACHE, as_pointer, bytes_at, memcpy, memset

VECTOR_BYTES = 64
LEAST_BYTES = 2 * VECTOR_BYTES  # of a plane
RUN_BYTES = 6  # shorter runs are literals (5: blocks are 2 to 5 % smaller, for more time); as _starts has it
PART_BYTES = 64 * VECTOR_BYTES  # of the plane, whose runs are listed together
LEAST_LISTED = 4  # positions that are written for each vector, set or not
LIST_LENGTH = PART_BYTES // RUN_BYTES + 2 + VECTOR_BYTES
LONGEST_LENGTH = 256  # the longest run of each byte: position << 32 | bytes
WORK_WORDS = LONGEST_LENGTH + 2 * LIST_LENGTH

MIN_MATCH, MAX_DISTANCE = 4, 65535
LAST_LITERALS = 5  # a block ends with them
COPIED_BYTES = 32  # of literals, in any case
LAST_MATCH = COPIED_BYTES  # no match begins later, as copies read so far; LZ4 asks for 12
LEAST_CHANGES = 16  # of a vector of noise
BYTES_COMPARED = 8  # before a run
# more than a sequence takes beside its literals and length bytes, and than a copy goes too far
SLACK_BYTES = COPIED_BYTES + 24

_NONE, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_1, _2, _62, _63, _64 = np.uint64(1), np.uint64(2), np.uint64(62), np.uint64(63), np.uint64(64)


@intrinsic
def _changes_at(typingctx: Any, address: Any) -> Any:
    """Returns a bit for each of 64 bytes: whether it differs from the byte before it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i64 = ir.IntType(64)
        vector = ir.VectorType(ir.IntType(8), VECTOR_BYTES)
        here, before = (
            builder.load(builder.inttoptr(builder.sub(arguments[0], i64(back)), vector.as_pointer()), align=1)
            for back in (0, 1)
        )
        return builder.bitcast(builder.icmp_unsigned("!=", here, before), i64)

    return types.uint64(types.int64), codegen


@intrinsic
def _lowest(typingctx: Any, bits: Any) -> Any:
    """Returns the number of the lowest bit that is set; of none, 64."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), codegen


@intrinsic
def _count(typingctx: Any, bits: Any) -> Any:
    """Returns the number of bits that are set."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen


@intrinsic
def _equal_before(typingctx: Any, one: Any, other: Any) -> Any:
    """Returns how many bytes before two addresses are equal, from the last one back, at most 8."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i64 = ir.IntType(64)
        words = [
            builder.load(builder.inttoptr(builder.sub(address, i64(8)), i64.as_pointer()), align=1)
            for address in arguments
        ]
        zeros = builder.ctlz(builder.xor(*words), ir.IntType(1)(0))
        return builder.lshr(zeros, i64(3))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _copy_literals(typingctx: Any, to: Any, source: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), COPIED_BYTES).as_pointer()
        loaded = builder.load(builder.inttoptr(arguments[1], vector), align=1)
        builder.store(loaded, builder.inttoptr(arguments[0], vector), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@njit(inline="always")
def _changes(source: int, base: int, count: int) -> Any:
    """Returns ``_changes_at`` of bytes [base, base + 64) of the plane: set for its first byte, and for all
    behind its last one."""
    if base >= count:
        return _ALL
    if base == 0:
        return (_changes_at(source + 1) << _1) | _1
    if base + VECTOR_BYTES <= count:
        return _changes_at(source + base)
    rest = np.uint64(count - base)
    return (_changes_at(source + count - VECTOR_BYTES) >> (_64 - rest)) | (_ALL << rest)


@njit(inline="always")
def _starts(changes: Any, after: Any) -> Any:
    """Returns the bits of ``changes`` that are followed by five zeros: there runs begin. ``after``: the next
    64."""
    near, far = (changes >> _1) | (after << _63), after >> _1  # 1 ahead
    near, far = near | (near >> _1) | (far << _63), far | (far >> _1)  # 1 to 2
    near, far = near | (near >> _2) | (far << _62), far | (far >> _2)  # 1 to 4
    return changes & ~(near | (near >> _1) | (far << _63))  # 1 to 5


@njit(inline="always")
def _stops(changes: Any, before: Any) -> Any:
    """Returns the bits of ``changes`` that follow on five zeros: there runs have ended. ``before``: the last
    64."""
    near, far = (changes << _1) | (before >> _63), before << _1
    near, far = near | (near << _1) | (far >> _63), far | (far << _1)
    near, far = near | (near << _2) | (far >> _62), far | (far << _2)
    return changes & ~(near | (near << _1) | (far >> _63))


@njit(inline="always")
def _list_bits(bits: Any, base: int, positions: Any, listed: int) -> int:
    """Appends the positions of bits to a list; returns its new length. A few positions are written in any
    case: the end of a loop over the bits would be mispredicted for every vector."""
    length, i = listed + _count(bits), listed
    for _ in range(LEAST_LISTED):
        positions[i] = base + _lowest(bits)
        bits &= bits - _1
        i += 1
    while bits != _NONE:
        positions[i] = base + _lowest(bits)
        bits &= bits - _1
        i += 1
    return length


@njit(inline="always")
def _put_length(out: Any, to: int, position: int, count: int) -> int:
    """Writes the length bytes of a count, none below 15; returns the position after them. One or none are
    written without a branch, since both are common."""
    rest = count - 15
    if rest >= 255:
        full = rest // 255
        memset(to + position, np.int32(255), full)
        position += full
        rest -= 255 * full
    out[position] = rest & 0xFF
    return position + int(rest >= 0)


@njit(inline="always")
def has_constant_part(source: int, count: int) -> bool:
    """Returns whether one of 16 samples of a plane (``LEAST_BYTES`` or more) is mostly runs: planes that were
    noise in another block are not here, as a frame is missing or its pixels are saturated."""
    for i in range(16):
        if _count(_changes_at(source + 1 + (count - 1 - VECTOR_BYTES) * i // 15)) < LEAST_CHANGES:
            return True
    return False


@njit(nogil=True, cache=CACHE)
def compress_runs(source: int, count: int, to: int, capacity: int, work: int) -> int:
    """Writes ``count`` bytes, at least ``LEAST_BYTES``, as one LZ4 block; returns its size, 0 when it might
    not fit into ``capacity``. ``work``: the address of int64[WORK_WORDS] that may be overwritten."""
    out, data = bytes_at(to, capacity), bytes_at(source, count)
    longest = carray(as_pointer(work), (LONGEST_LENGTH,), np.int64)
    starts = carray(as_pointer(work + 8 * LONGEST_LENGTH), (LIST_LENGTH,), np.int64)
    stops = carray(as_pointer(work + 8 * (LONGEST_LENGTH + LIST_LENGTH)), (LIST_LENGTH,), np.int64)
    memset(work, np.int32(0), 8 * LONGEST_LENGTH)
    position = anchor = started = np.int64(0)  # in ``out``; of the first byte that is not written; listed
    changes, after = _ALL, _changes(source, 0, count)
    for part in range(0, count + 1, PART_BYTES):  # the bit behind the last byte ends the last run
        stopped = 0
        for base in range(part, min(part + PART_BYTES, count + 1), VECTOR_BYTES):
            before, changes, after = changes, after, _changes(source, base + VECTOR_BYTES, count)
            if changes != _NONE:
                started = _list_bits(_starts(changes, after), base, starts, started)
                stopped = _list_bits(_stops(changes, before), base, stops, stopped)
        for number in range(stopped):
            run, stop = starts[number], min(stops[number], count - LAST_LITERALS)
            known, length = longest[data[run]], stop - run
            run_at = known >> 32
            if length <= known & 0xFFFFFFFF and run - run_at <= MAX_DISTANCE:
                start = run - min(_equal_before(source + run, source + run_at), run - anchor)
                distance = run - run_at
            else:
                start, distance = run + 1, np.int64(1)
                if run >= BYTES_COMPARED:
                    longest[data[run]] = run << 32 | length
            if stop - start < MIN_MATCH or start > count - LAST_MATCH:
                continue
            literals, more = start - anchor, stop - start - MIN_MATCH
            if position + literals + ((literals + more) >> 7) + SLACK_BYTES > capacity:
                return 0
            out[position] = min(literals, 15) << 4 | min(more, 15)
            position = _put_length(out, to, position + 1, literals)
            _copy_literals(to + position, source + anchor)
            for i in range(COPIED_BYTES, literals, COPIED_BYTES):
                _copy_literals(to + position + i, source + anchor + i)
            position += literals
            out[position], out[position + 1] = distance & 0xFF, distance >> 8
            position = _put_length(out, to, position + 2, more)
            anchor = stop
        started -= stopped
        starts[0] = starts[stopped]  # of a run that goes on, if one does
    literals = count - anchor
    if position + 2 + literals + literals // 255 > capacity:
        return 0
    out[position] = min(literals, 15) << 4
    position = _put_length(out, to, position + 1, literals)
    memcpy(to + position, source + anchor, literals)
    return int(position + literals)
