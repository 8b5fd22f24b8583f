"""The encode check: a chunk that was just encoded is decoded again, where it lies, and compared with the
frames that it was cut from. A compressor with a defect, or memory that flips a bit, is found while the pixels
are still there.

It decodes with the functions by which readers decode (``cuts``), not with a reading of our own: an encoder
and a decoder of one author may share an error. It needs no memory: ``scratch`` is free again once a chunk is
encoded. Of a Blosc chunk one block at a time is decoded, which stays in L2 until it is compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from shardwright.codecs.parameters import KIND_BLOSC, KIND_GZIP, KIND_NONE

from .cache import njit
from .compressed_forms import CONTEXT_STREAM
from .cuts import BLOSC, IN_PLACE, NOTHING, PLAIN, ZSTD, content_of
from .gather import GOLDEN, is_in_range
from .native_calls import CACHE, as_pointer, zlib_inflate, zlib_inflate_end, zlib_inflate_init

CHECK_NONE, CHECK_SAMPLE, CHECK_ALL = range(3)
SAMPLED_BITS = 6  # one chunk in 2^6
_FINISH, _STREAM_END, _GZIP_WINDOW_BITS = 4, 1, 15 + 16  # zlib.h
# of the zng_stream of zlib-ng, in int64: 32-bit counts have the lower half of theirs
_NEXT_IN, _AVAIL_IN, _NEXT_OUT, _AVAIL_OUT = 0, 1, 3, 4


@njit(inline="always")
def is_due(mode: int, number: int) -> bool:
    """Returns whether chunk ``number`` of its image is to be checked.

    The golden ratio spreads a sample evenly whatever the step between numbers is: with each 64th chunk, an
    array of 64 chunks a frame would always have the same place checked, and never another. Number 0 is in
    each sample, so that images of few chunks are reached, too."""
    if mode != CHECK_SAMPLE:
        return bool(mode == CHECK_ALL)
    return bool(((number * GOLDEN) & np.int64(2**63 - 1)) >> (63 - SAMPLED_BITS) == 0)


@njit(inline="always")
def _inflates(address: int, nbytes: int, contexts: Any, scratch: int, chunk_bytes: int) -> bool:
    """Decodes a gzip member, checksum included, into ``scratch``."""
    stream, at = contexts[CONTEXT_STREAM:], contexts.ctypes.data + 8 * CONTEXT_STREAM
    stream[:] = 0
    if zlib_inflate_init(at, _GZIP_WINDOW_BITS) != 0:
        return False
    stream[_NEXT_IN], stream[_AVAIL_IN] = address, nbytes
    stream[_NEXT_OUT], stream[_AVAIL_OUT] = scratch, chunk_bytes
    ended = zlib_inflate(at, _FINISH) == _STREAM_END and stream[_AVAIL_IN] == 0 and stream[_AVAIL_OUT] == 0
    zlib_inflate_end(at)
    return ended


@njit(nogil=True, cache=CACHE)
def decodes_to(address: int, nbytes: int, codec: Any, contexts: Any, scratch: int, source: Any) -> bool:
    """Returns whether the ``nbytes`` at ``address``, a chunk without its inner checksum, decode to
    ``source`` (``gather``). ``scratch``: the codec's scratch_bytes."""
    kind, chunk_bytes, first = codec[0], source[6], np.int64(0)
    if kind == KIND_GZIP:
        if not _inflates(address, nbytes, contexts, scratch, chunk_bytes):
            return False
        return bool(is_in_range(source, first, chunk_bytes, scratch))
    compressor, step = PLAIN if kind == KIND_NONE else ZSTD, chunk_bytes
    if kind == KIND_BLOSC:
        compressor, step = BLOSC, codec[8]
    whole = carray(as_pointer(scratch), (chunk_bytes,), np.uint8)  # of a Blosc chunk only its size counts
    for start in range(0, chunk_bytes, step):
        count = min(step, chunk_bytes - start)
        target = scratch if kind == KIND_BLOSC else first
        content = content_of(compressor, address, nbytes, (start, count), whole, target)
        if content == NOTHING:
            return False
        at = scratch if content == IN_PLACE else content + start
        if not is_in_range(source, start, start + count, at):
            return False
    return True
