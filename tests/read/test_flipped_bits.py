"""Any flipped bit of a shard that shardwright wrote is found, or changes nothing that any reader sees.

What else is committed to disk is flipped bit by bit where it is tested: frame table (``test_frame_table``),
journal, staging area, frame log and manifest (``tests/shard``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.shard.sealed_shard import SealedShard

if TYPE_CHECKING:
    from pathlib import Path

CODECS = {"blosc": sw.Blosc(), "zstd": sw.Zstd(), "gzip": sw.Gzip(), "none": None}


def write(path: Path, codec: str, location: str) -> np.ndarray:
    """One shard of three chunks of 4 x 1 x 4 bytes; the one in the middle is all fill and absent. There is a
    gap behind the first."""
    axes = [
        sw.Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=s)
        for n, c, k, s in [("t", 12, 4, 3), ("y", 1, 1, 1), ("x", 4, 4, 1)]
    ]
    spec = sw.ArraySpec(
        dtype="uint8", dimensions=axes, codec=CODECS[codec], index_location=location, chunk_checksum=True
    )
    frames = np.random.default_rng(1).integers(1, 256, (12, 1, 4)).astype(np.uint8)
    frames[:4], frames[4:8] = 7, 0
    with sw.create(path, spec) as writer:
        for frame in frames:
            writer.append(frame)
    return frames


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
@pytest.mark.parametrize(
    ("codec", "location"),
    [
        ("blosc", "end"),
        ("none", "start"),
        *(
            pytest.param(codec, location, marks=pytest.mark.slow)
            for codec in CODECS
            for location in ("end", "start")
        ),
    ],
)
def test_every_bit_of_a_shard(tmp_path, codec, location):
    frames = write(tmp_path / "a.ome.zarr", codec, location)
    shard = tmp_path / "a.ome.zarr/0/c/0/0/0"
    meant = committed_bytes(shard)
    sound = bytearray(shard.read_bytes())
    gaps = np.flatnonzero(~meant)
    flipped = [*np.flatnonzero(meant).tolist(), *gaps[:: max(1, len(gaps) // 20)].tolist()]
    for place in flipped:
        for bit in range(8):
            with shard.open("r+b") as file:
                file.seek(place)
                file.write(bytes([sound[place] ^ 1 << bit]))
            found = verify_store(shard, threads=1).problems
            assert bool(found) == meant[place], f"bit {bit} of byte {place}: {found}"
            if not found:
                np.testing.assert_array_equal(
                    zarr.open_array(tmp_path / "a.ome.zarr/0", mode="r")[...], frames
                )
        with shard.open("r+b") as file:
            file.seek(place)
            file.write(sound[place : place + 1])
    assert verify_store(tmp_path / "a.ome.zarr", threads=1).ok


def committed_bytes(shard: Path) -> np.ndarray:
    """bool[file bytes]: which bytes belong to a chunk or to the index."""
    (array,) = open_store(shard).arrays
    with SealedShard.open(shard, array.index) as file:
        meant = np.zeros(file.file.nbytes, bool)
        meant[file.index_offset : file.index_offset + array.index_bytes] = True
        entries = file.entries
    live = entries[entries["nbytes"] != 2**64 - 1]
    assert len(live) == 2
    for offset, nbytes in live.tolist():
        meant[offset : offset + nbytes] = True
    assert not meant.all(), "there is a gap"
    return meant
