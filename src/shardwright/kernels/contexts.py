"""The compressor states of one worker: made once, used by every call, freed with the worker."""

from __future__ import annotations

import ctypes

import numpy as np

from shardwright.codecs import native

from .compressed import CONTEXT_LZ4, CONTEXT_LZ4HC, CONTEXT_ZSTD


class CompressorContexts:
    """Owns the native states whose addresses are in ``addresses`` (int64[4]). Belongs to one thread;
    ``close`` frees the zstd context."""

    def __init__(self) -> None:
        self.addresses = np.zeros(4, np.int64)
        self._states: list[np.ndarray] = []
        if not native.available():
            return
        library = native.library()
        for place, size_of in (
            (CONTEXT_LZ4, library.LZ4_sizeofState),
            (CONTEXT_LZ4HC, library.LZ4_sizeofStateHC),
        ):
            state = np.zeros(size_of() // 8 + 1, np.int64)
            self._states.append(state)
            self.addresses[place] = state.ctypes.data
        library.ZSTD_createCCtx.restype = ctypes.c_void_p
        self.addresses[CONTEXT_ZSTD] = library.ZSTD_createCCtx() or 0

    def close(self) -> None:
        context = int(self.addresses[CONTEXT_ZSTD])
        if context:
            native.library().ZSTD_freeCCtx(ctypes.c_void_p(context))
            self.addresses[CONTEXT_ZSTD] = 0
