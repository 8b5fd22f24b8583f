"""Compressors that make errors: the functions of the native library, with one bit of their input changed.
What they give decodes without an error, to other pixels: the worst that a defect, or bad memory, can do.

Kernels find functions by name when they are loaded, and what is named here before comes first. So it takes a
process of its own, which breaks them before it does anything else.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from shardwright.codecs import native_library

if TYPE_CHECKING:
    from collections.abc import Callable

_I32, _I64 = ctypes.c_int32, ctypes.c_int64
# result and arguments; which of these are the address and the length of the input
COMPRESSORS = {
    "LZ4_compress_fast_extState": ((_I32, _I64, _I64, _I64, _I32, _I32, _I32), 1, 3),
    "ZSTD_compressCCtx": ((_I64, _I64, _I64, _I64, _I64, _I64, _I32), 3, 4),
    "zng_compress2": ((_I32, _I64, _I64, _I64, _I64, _I32), 2, 3),
}
ROOT = Path(__file__).parents[2]
_BEGINS = """
import json, sys
from tests.harness import broken_compressor
asked = json.loads(sys.argv[1])
broken = [True]
broken_compressor.break_compressors(lambda: broken[-1])
if asked.get("memory"):
    broken_compressor.break_comparison()
"""
_kept: list[Any] = []  # machine code calls these: they live as long as the process


def run_broken(program: str, **asked: Any) -> Any:
    """Runs a program of Python whose compressors are broken while the last element of ``broken`` is true, and
    with ``memory=True`` the comparison as well. It finds ``asked``; what it prints at last is JSON, and
    returned."""
    command = [sys.executable, "-W", "ignore", "-c", _BEGINS + program, json.dumps(asked)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def break_compressors(is_broken: Callable[[], bool] = lambda: True) -> None:
    """Breaks them all. ``is_broken``: asked at each call; from any thread."""
    for name, (types, source, length) in COMPRESSORS.items():
        kind = ctypes.CFUNCTYPE(*types)
        real = kind(ctypes.cast(getattr(native_library.library(), name), ctypes.c_void_p).value)
        _put(name, kind(_breaking(real, source, length, is_broken)))


def _breaking(real: Any, source: int, length: int, is_broken: Callable[[], bool]) -> Callable[..., int]:
    def compress(*arguments: int) -> int:
        if not is_broken():
            return int(real(*arguments))
        data = ctypes.create_string_buffer(ctypes.string_at(arguments[source], arguments[length]))
        data[arguments[length] // 2] = bytes([data.raw[arguments[length] // 2] ^ 1])
        given = list(arguments)
        given[source] = ctypes.addressof(data)
        return int(real(*given))

    return compress


def break_comparison() -> None:
    """Lets no two pieces of memory be equal, as kernels see it: not even the uncompressed form of a chunk."""
    _put("memcmp", ctypes.CFUNCTYPE(_I32, _I64, _I64, _I64)(lambda *_: 1))


def _put(name: str, function: Any) -> None:
    _kept.append(function)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    binding.add_symbol(name, address)
