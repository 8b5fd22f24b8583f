"""Which chunks of a shard in progress can be believed, wherever in the file they lie."""

from __future__ import annotations

import crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.shard.index import EMPTY as ABSENT
from shardwright.shard.journal import CHUNK_ENTRY
from shardwright.shard.read_back import _check_chunks


class Memory:
    """A shard in progress; counts what is read of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.read_bytes = data, 0

    def read(self, offset: int, nbytes: int) -> bytes:
        assert nbytes > 0
        self.read_bytes += nbytes
        return self.data[offset : offset + nbytes]


@given(
    chunks=st.lists(
        st.tuples(st.integers(1, 3000), st.integers(0, 5000), st.sampled_from(["good", "absent", "rotten"])),
        max_size=12,
    ),
    data=st.data(),
)
def test_chunks_in_any_order_with_any_gaps(chunks, data):
    order = data.draw(st.permutations(range(len(chunks))))
    rng = np.random.default_rng(len(chunks))
    table, content = np.zeros(len(chunks), CHUNK_ENTRY), b""
    for slot in order:
        nbytes, gap, state = chunks[slot]
        if state == "absent":
            table[slot]["offset"] = table[slot]["nbytes"] = ABSENT
            continue
        chunk = rng.bytes(nbytes)
        table[slot]["offset"], table[slot]["nbytes"], table[slot]["data_crc"] = (
            len(content),
            nbytes,
            crc32c.crc32c(chunk),
        )
        content += (chunk if state == "good" else bytes([chunk[0] ^ 1]) + chunk[1:]) + bytes(gap)
    believed, shard = np.ones(len(chunks), np.bool_), Memory(content)
    checked_bytes = _check_chunks(map, shard, table, believed, None)
    assert believed.tolist() == [state != "rotten" for _, _, state in chunks]
    live = sum(nbytes for nbytes, _, state in chunks if state != "absent")
    assert live <= checked_bytes == shard.read_bytes <= 2 * live, (
        "each chunk once, and no gap that is longer than the chunk behind it"
    )
