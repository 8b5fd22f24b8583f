"""Copies one frame past the caches into a ring that is larger than any cache: an ordinary copy first reads
the lines that it is about to overwrite.

Measured with frames of 8 MiB into a ring of 411 MB: 0.155 CPU seconds per GB by NumPy's copy, 0.116 by this.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .cache import njit
from .native_calls import CACHE, memcpy

LINE_BYTES = 64


@intrinsic
def _stream_line(typingctx: Any, to: Any, source: Any) -> Any:
    """Copies one cache line; ``to`` must be a multiple of its length."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), LINE_BYTES // 8).as_pointer()
        loaded = builder.load(builder.inttoptr(arguments[1], line), align=1)
        stored = builder.store(loaded, builder.inttoptr(arguments[0], line), align=LINE_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _fence(typingctx: Any) -> Any:
    """Orders streaming stores before it ahead of all later stores, as ordinary ones would be."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@njit(nogil=True, cache=CACHE)
def copy_streaming(to: int, source: int, count: int) -> None:
    """Copies ``count`` bytes from ``source`` to ``to``, which must not overlap. The next read of them comes
    from memory, not from a cache."""
    head = min(count, -to % LINE_BYTES)
    memcpy(to, source, head)
    lines = (count - head) // LINE_BYTES
    for i in range(lines):
        _stream_line(to + head + LINE_BYTES * i, source + head + LINE_BYTES * i)
    done = head + LINE_BYTES * lines
    memcpy(to + done, source + done, count - done)
    _fence()
