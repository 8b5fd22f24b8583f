"""The table of slots against a plain dict, whatever the order in which frames go."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.free_slots import FreeSlots
from shardwright.writer.frame_buffers import SlotTable

SLOTS = 7


@given(st.lists(st.tuples(st.integers(0, SLOTS), st.sets(st.integers(0, SLOTS - 1))), max_size=30))
def test_every_frame_has_the_slot_it_was_given(steps: list[tuple[int, set[int]]]) -> None:
    """Some come, some go; one that stays for long sees many laps of the others."""
    table, free, slot_of, sequence = SlotTable(SLOTS), FreeSlots(SLOTS), dict[int, int](), 0
    for coming, going in steps:
        slots = free.take(coming)
        table.add(sequence, slots)
        slot_of.update(zip(range(sequence, sequence + slots.size), slots.tolist(), strict=True))
        sequence += slots.size
        chosen = [list(slot_of)[i] for i in going if i < len(slot_of)]
        gone = table.pop(np.array(chosen, np.int64))
        assert sorted(gone.tolist()) == sorted(slot_of.pop(one) for one in chosen)
        free.give_back(gone)
        assert table.used == len(slot_of)
    assert sorted(table.pop(np.array(list(slot_of), np.int64)).tolist()) == sorted(slot_of.values())
    assert table.used == 0
