"""Memory for kernels: frames at odd addresses, slots of exactly the promised size between guard bytes that
must stay untouched.

``SHARDWRIGHT_TEST_WITHOUT_NATIVE=1`` runs these tests as on a machine whose blosc2 lacks the functions we
need; ``test_other_modes.py`` sets it.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import crc32c as crc32c_package
import numcodecs
import numpy as np
import pytest

from shardwright.codecs import native_library

if os.environ.get("SHARDWRIGHT_TEST_WITHOUT_NATIVE"):

    def _nowhere() -> Path:
        return Path("/nonexistent/libblosc2.so")

    native_library.library_path = _nowhere

from typing import TYPE_CHECKING

from shardwright.codecs.parameters import KIND_BLOSC, KIND_GZIP, KIND_NONE, KIND_ZSTD, CodecParameters
from shardwright.kernels.compressed_forms import CompressorContexts
from shardwright.kernels.encode import NOT_PACKED, encode_chunks
from shardwright.kernels.encode_check import CHECK_ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GUARD = 0xA5
GUARD_BYTES = 64


class GuardedMemory:
    """``count`` bytes at an address that is a multiple of nothing, between guard bytes."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._bytes = np.full(count + 2 * GUARD_BYTES + 1, GUARD, np.uint8)
        self.first = GUARD_BYTES + 1
        self.address = int(self._bytes.ctypes.data) + self.first

    @property
    def view(self) -> np.ndarray:
        return self._bytes[self.first : self.first + self.count]

    def untouched_outside(self, used: int | None = None) -> bool:
        """Whether nothing was written before the memory or after its first ``used`` bytes (all of it by
        default)."""
        stop = self.first + (self.count if used is None else used)
        return bool((self._bytes[: self.first] == GUARD).all() and (self._bytes[stop:] == GUARD).all())


@dataclass
class Source:
    """A slab's frames in memory and one way to cut chunks from them."""

    frames: list[np.ndarray | None]  # uint8 (rows, bytes of a row)
    plane: np.ndarray
    chunk_rows: int
    row_bytes: int
    fill_row: np.ndarray

    def __post_init__(self) -> None:
        self.plane = np.ascontiguousarray(self.plane, np.int64)
        self.memory = [None if frame is None else GuardedMemory(frame.size) for frame in self.frames]
        for memory, frame in zip(self.memory, self.frames, strict=True):
            if memory is not None and frame is not None:
                memory.view[:] = frame.ravel()
        self.addresses = np.array([0 if m is None else m.address for m in self.memory], np.int64)

    @property
    def chunk_bytes(self) -> int:
        return len(self.frames) * self.chunk_rows * self.row_bytes

    @property
    def frame_row_bytes(self) -> int:
        return next((frame.shape[1] for frame in self.frames if frame is not None), self.row_bytes)

    def cut(self, keep_empty: bool) -> tuple[int, int, int, np.ndarray, bool]:
        return (self.frame_row_bytes, self.chunk_rows, self.row_bytes, self.fill_row, keep_empty)

    def for_kernel(self, chunk: int) -> tuple:
        """The ``source`` tuple that the kernels hand to each other."""
        fill = int(self.fill_row.ctypes.data)
        return (
            self.addresses,
            self.frame_row_bytes,
            self.plane[chunk],
            self.chunk_rows,
            self.row_bytes,
            fill,
            self.chunk_bytes,
        )


@pytest.fixture(scope="session")
def guarded() -> Callable[[int], GuardedMemory]:
    return GuardedMemory


@pytest.fixture(scope="session")
def source_of() -> type[Source]:
    return Source


@pytest.fixture(scope="session")
def one_piece() -> Callable[[bytes], Source]:
    """Makes a source whose only chunk is the given bytes."""

    def make(data: bytes) -> Source:
        frame = np.frombuffer(data, np.uint8).reshape(1, -1)
        return Source([frame], np.array([[0, 0, 1, len(data)]]), 1, len(data), np.zeros(len(data), np.uint8))

    return make


@pytest.fixture(scope="session")
def contexts() -> Iterator[CompressorContexts]:
    made = CompressorContexts()
    yield made
    made.close()


@pytest.fixture(scope="session")
def encode(contexts: CompressorContexts) -> Callable[..., list[tuple[bytes, int]]]:
    """Encode every chunk of a source, with the encode check; checks the guards; returns (encoded bytes, form)
    for each."""

    def run(source: Source, codec: CodecParameters, keep_empty: bool = True) -> list[tuple[bytes, int]]:
        slots = [GuardedMemory(codec.max_encoded_bytes) for _ in source.plane]
        scratch = GuardedMemory(codec.scratch_bytes)
        nbytes, forms, crcs = encoded = (
            np.full(len(slots), -1, np.int64),
            np.full(len(slots), 255, np.uint8),
            np.full(len(slots), 7, np.uint32),
        )
        encode_chunks(
            source.addresses,
            source.plane,
            source.cut(keep_empty),
            codec.as_array(),
            np.array([s.address for s in slots], np.int64),
            codec.max_encoded_bytes,
            NOT_PACKED,
            (contexts.addresses, scratch.view),
            (CHECK_ALL, 0),
            encoded,
        )
        assert scratch.untouched_outside()
        for slot, used, crc in zip(slots, nbytes.tolist(), crcs.tolist(), strict=True):
            end = used - 4 if codec.checksum and used else used
            assert crc == crc32c_package.crc32c(slot.view[:end].tobytes()), (
                "of the encoded bytes without their inner checksum; 0 for none"
            )
            assert 0 <= used <= codec.max_encoded_bytes
            assert slot.untouched_outside(None if used else 0), (
                "written outside the slot, or into the slot of an absent chunk"
            )
        return [
            (s.view[:n].tobytes(), f) for s, n, f in zip(slots, nbytes.tolist(), forms.tolist(), strict=True)
        ]

    return run


@pytest.fixture(scope="session")
def decode() -> Callable[[bytes, CodecParameters], bytes]:
    """What independent decoders make of an encoded chunk: c-blosc and zstd of numcodecs, zlib of the standard
    library, the crc32c package."""
    by_kind = {
        KIND_BLOSC: numcodecs.Blosc().decode,
        KIND_ZSTD: numcodecs.Zstd().decode,
        KIND_GZIP: gzip.decompress,
        KIND_NONE: bytes,
    }

    def run(data: bytes, codec: CodecParameters) -> bytes:
        if codec.checksum:
            data, recorded = data[:-4], int.from_bytes(data[-4:], "little")
            assert crc32c_package.crc32c(data) == recorded
        return bytes(by_kind[codec.kind](data))

    return run


@pytest.fixture(scope="session")
def has_native() -> bool:
    return native_library.available()


def _codecs(typesize: int, chunk_bytes: int, names: Sequence[str] = ()) -> dict[str, CodecParameters]:
    from shardwright.array.spec import ArraySpec, Blosc, Dimension, Gzip, Zstd

    chosen = {
        f"blosc {cname} {shuffle} {clevel}": Blosc(cname=cname, shuffle=shuffle, clevel=clevel)
        for cname, clevel in (
            ("lz4", 1),
            ("lz4", 0),
            ("lz4", 9),
            ("lz4hc", 4),
            ("zlib", 1),
            ("zlib", 9),
            ("zstd", 1),
            ("zstd", 5),
        )
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    }
    chosen |= (
        {f"zstd {level}": Zstd(level=level) for level in (-7, 1, 6)}
        | {f"gzip {level}": Gzip(level=level) for level in (0, 1, 6)}
        | {"none": None}
    )
    dtype = {1: "uint8", 2: "uint16", 4: "float32", 8: "float64"}[typesize]
    axes = [Dimension(name=n, count=1, chunk_size=1) for n in "yx"]
    made = {}
    for name, codec in chosen.items():
        for checksum in (False, True):
            spec = ArraySpec(dtype=dtype, dimensions=axes, codec=codec, chunk_checksum=checksum)
            made[name + (" crc32c" if checksum else "")] = CodecParameters.of(spec, chunk_bytes)
    return {name: made[name] for name in names} if names else made


@pytest.fixture(scope="session")
def codecs_of() -> Callable[..., dict[str, CodecParameters]]:
    """Every codec, compressor, filter and some levels, with and without checksum, for a typesize and chunk
    size; or only those named."""
    return _codecs
