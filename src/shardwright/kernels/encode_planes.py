"""The call of ``encode_chunks``, spelled once: chunks that are cut from planes in memory, or one whole chunk.

A camera's frames are planes; so are those of a box of values along its leading axes. A chunk that is decoded,
in whatever order of its axes, is one plane of one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .encode import NOT_PACKED, UNCHECKED, encode_chunks, room_for

if TYPE_CHECKING:
    import numpy.typing as npt

    from shardwright.codecs.parameters import CodecParameters

    from .encode import Encoded

    UInt8s = npt.NDArray[np.uint8]
    Int64s = npt.NDArray[np.int64]

Tools = tuple["Int64s", "UInt8s"]  # of one thread: its compressor states, ``scratch_bytes`` of the codec
# how chunks are cut from planes: bytes of a plane's row; rows of a chunk; bytes of a chunk's row; uint8 of as
# many, the fill outside of planes; whether chunks that are all fill are encoded as well. No named tuple: that
# would cost a microsecond at every call
Cut = tuple[int, int, int, "UInt8s", bool]
_NEVER_READ = np.zeros(1, np.uint8)  # the fill behind a row that is as long as its plane


def encode_planes(
    planes: Int64s,
    geometry: Int64s,
    cut: Cut,
    codec: Int64s,
    slots: Int64s,
    slot_bytes: int,
    tools: Tools,
    files: Int64s = NOT_PACKED,
    check: tuple[int, int] = UNCHECKED,
) -> Encoded:
    """Encodes chunk i of ``geometry`` into the memory at ``slots[i]``, which has room for ``slot_bytes``.
    ``planes``: int64[P], the address of each, 0 where none is; ``geometry``, ``files``, ``check``, and what
    is returned: as for ``encode_chunks``; ``codec``: ``CodecParameters.as_array()``."""
    encoded = room_for(slots.size)
    encode_chunks(planes, geometry, cut, codec, slots, slot_bytes, files, tools, check, encoded)
    return encoded


def encode_whole(chunk: UInt8s, codec: CodecParameters, out: UInt8s, tools: Tools) -> UInt8s:
    """Returns the front of ``out`` (uint8[max_encoded_bytes]) with the encoded bytes of a decoded chunk
    (uint8[chunk_bytes]), also of one that is all fill."""
    nbytes, _, _ = encode_planes(
        np.array([chunk.ctypes.data], np.int64),
        np.array([[0, 0, 1, chunk.size]], np.int64),
        (chunk.size, 1, chunk.size, _NEVER_READ, True),
        codec.as_array(),
        np.array([out.ctypes.data], np.int64),
        out.size,
        tools,
    )
    return out[: int(nbytes[0])]
