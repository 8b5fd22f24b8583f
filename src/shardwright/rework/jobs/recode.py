"""Chunks decoded and encoded again, denser, within what the array's metadata already cover
(codecs/recompress.py).

With ``AS_CONFIGURED`` chunks are encoded as the metadata say: for chunks that were written faster or
uncompressed under overload. Those whose first bytes show that they are so already are not decoded.

Each new chunk is decoded again and its values compared before it is used. A chunk that would not get smaller
stays as it is.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.codecs.decode import HEAD_BYTES, ChunkCodecs, decode_chunk_into
from shardwright.codecs.degrade import DegradeLevel, degrade_ladder
from shardwright.codecs.parameters import FILTERS, KIND_BLOSC
from shardwright.codecs.recompress import AS_CONFIGURED, DEFAULT_LEVEL, codec_within
from shardwright.kernels.compressed_forms import CompressorContexts
from shardwright.kernels.encode_planes import encode_whole
from shardwright.model.errors import CodecError, ConfigError, ShardFormatError, SpecError
from shardwright.rework.pack_plan import PackPlan, chunk_error, runs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from shardwright.codecs.decode import ChunkForm
    from shardwright.codecs.parameters import CodecParameters
    from shardwright.read.store import StoredArray
    from shardwright.rework.source_shard import PackedBytes

    UInt8s = npt.NDArray[np.uint8]
    UInt32s = npt.NDArray[np.uint32]

BATCH_BYTES = 32 << 20  # encoded bytes that are read, and at most held, at once; never less than one chunk


def denser_codec(array: StoredArray, wish: dict[str, Any]) -> CodecParameters:
    """The codec that ``wish`` names: cname (of Blosc; for other arrays their own codec's name; or
    ``AS_CONFIGURED``, alone), clevel (None: ``DEFAULT_LEVEL``) and shuffle (None: as the metadata say).

    Raises ``ConfigError`` for a codec that this array's metadata do not cover.
    """
    if wish["cname"] == AS_CONFIGURED:
        return _as_configured(array)
    if not isinstance(array.codecs, ChunkCodecs):
        raise ConfigError(
            f"cannot recompress {array.path}: its chunks are of a codec chain that shardwright only reads",
            got=array.codecs.name,
            hint="`shardwright rechunk` writes the same values with another codec to a new store",
        )
    compressor, level = array.codecs.compressor, wish.get("clevel")
    level = DEFAULT_LEVEL if level is None else level
    try:
        shuffle = wish.get("shuffle") or _shuffle_of(array)
        codec = codec_within(compressor, str(wish["cname"]), level, shuffle)
    except ValueError as error:
        # of a model's validation, without its frame
        reasons = [reason["msg"] for reason in getattr(error, "errors", list)()] or [str(error)]
        raise ConfigError(f"cannot recompress with {wish['cname']}:{level}: {', '.join(reasons)}") from None
    if codec is None:
        covered = {
            None: "nothing: it has no compressor",
            "blosc": "lz4, lz4hc, zlib or zstd, inside blosc",
        }.get(compressor, f"{compressor} of any level")
        raise ConfigError(
            f"the metadata of {array.path} does not cover this codec", expected=covered, got=wish["cname"]
        )
    return array.codec_parameters(codec)


def _as_configured(array: StoredArray) -> CodecParameters:
    try:
        return array.configured_codec()
    except SpecError as error:
        raise ConfigError(
            f"cannot recompress {array.path} as its metadata says: {error.message}", got=error.got
        ) from None


def _shuffle_of(array: StoredArray) -> str:
    """The filter that the array's metadata name."""
    blosc = next((codec for codec in array.chain.codecs if codec.name == "blosc"), None)
    return "shuffle" if blosc is None else str(blosc.configuration.get("shuffle", "shuffle"))


class Recoder:
    """Encodes chunks again. One thread's. Holds compressor states and buffers for one decoded, one encoded
    and one checked chunk."""

    def __init__(self, array: StoredArray, codec: CodecParameters, *, degraded_only: bool = False) -> None:
        """``degraded_only``: chunks that show that they are encoded with ``codec`` stay."""
        assert isinstance(array.codecs, ChunkCodecs), "checked in denser_codec"
        self._array = array
        self._codecs = array.codecs
        self._codec = codec
        self._sound_form = _form_at_level(codec) if degraded_only else None
        self._contexts = CompressorContexts()
        self._decoded, self._again = (
            np.empty(array.chunk_bytes, np.uint8),
            np.empty(array.chunk_bytes, np.uint8),
        )
        self._encoded = np.empty(codec.max_encoded_bytes, np.uint8)
        self._scratch = np.empty(codec.scratch_bytes, np.uint8)

    def recode(self, chunk: UInt8s) -> UInt8s:
        """The chunk's new bytes, or ``chunk`` itself when they would not be fewer. Raises
        ``ShardFormatError`` when it does not decode."""
        if self._sound_form is not None and self._sound_form == str(self._form(chunk)):
            return chunk
        decode_chunk_into(chunk.data, self._codecs, self._decoded)
        tools = self._contexts.addresses, self._scratch
        # a chunk that is there stays there, even when all of it is fill value
        new = encode_whole(self._decoded, self._codec, self._encoded, tools)
        if new.size >= chunk.size:
            return chunk
        decode_chunk_into(new.data, self._codecs, self._again)
        if not np.array_equal(self._again, self._decoded):
            raise CodecError("a chunk that was encoded again does not decode to the same values")
        return new.copy()

    def _form(self, chunk: UInt8s) -> ChunkForm:
        return self._array.describe(chunk[:HEAD_BYTES].data, chunk.size)

    def close(self) -> None:
        self._contexts.close()


def _form_at_level(codec: CodecParameters) -> str | None:
    """The form, as ``describe_chunk`` names it, that only chunks of ``codec`` at its level have; None where
    the first bytes do not show it."""
    faster = degrade_ladder(codec).get(DegradeLevel.FASTER)
    if codec.kind != KIND_BLOSC or (
        faster is not None and (faster.format, faster.filter) == (codec.format, codec.filter)
    ):
        return None
    compressor = {number: name for name, number in (("lz4", 1), ("zlib", 3), ("zstd", 4))}[codec.format]
    shuffle = {number: name for name, number in FILTERS.items()}[codec.filter]
    return f"blosc {compressor} {shuffle}"


def recode_chunks(
    chunks: PackedBytes,
    plan: PackPlan,
    codec: CodecParameters,
    put: Callable[[UInt8s], None],
    take: Callable[[int], None],
    threads: int,
    *,
    degraded_only: bool = False,
) -> tuple[PackPlan, int, UInt32s]:
    """Recode every chunk of a shard and hand it to ``put`` in the order of ``plan``. Returns the plan for the
    new sizes, how many chunks changed, and the crc32c of each as it was handed over.

    ``take`` is called before bytes are read, and before they are put. Raises ``ShardFormatError`` naming a
    chunk that does not decode, ``StorageError``.
    """
    nbytes, recoded, crcs = plan.nbytes.copy(), 0, np.zeros(len(plan.chunks), np.uint32)
    recoders: list[Recoder] = []
    of_thread = threading.local()

    def begin_thread() -> None:
        of_thread.recoder = Recoder(plan.array, codec, degraded_only=degraded_only)
        recoders.append(of_thread.recoder)

    def recode(i: int, chunk: UInt8s) -> UInt8s:
        try:
            new: UInt8s = of_thread.recoder.recode(chunk)
        except (ShardFormatError, CodecError) as error:
            raise chunk_error(plan.array, plan.shard, int(plan.chunks[i]), str(error)) from error
        return new

    try:
        with ThreadPoolExecutor(threads, "shardwright-recode", begin_thread) as pool:
            for run in runs_of(plan.nbytes, BATCH_BYTES):
                first, stop = run.start, run.stop
                batch = np.empty(int(plan.nbytes[run].sum()), np.uint8)
                take(batch.size)
                chunks.read_into(batch)
                old = np.split(batch, np.cumsum(plan.nbytes[run])[:-1])
                for i, new in enumerate(pool.map(recode, range(first, stop), old), first):
                    recoded += new.size < nbytes[i]
                    nbytes[i], crcs[i] = new.size, crc32c.crc32c(new.data)
                    take(new.size)
                    put(new)
    finally:
        for recoder in recoders:
            recoder.close()
    return replace(plan, nbytes=nbytes), int(recoded), crcs
