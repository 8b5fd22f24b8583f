"""Of all that waits for room in an acquisition, one full disk is told, from the first to the last."""

from __future__ import annotations

from typing import Any

from shardwright.acquire.full_disk import END, RECORDS, FullDisk


def test_it_begins_with_the_first_and_ends_with_the_last() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    disk = FullDisk(lambda name, facts: events.append((name, facts)))
    disk.has_room(3)
    assert not disk.is_waited_for
    assert not events, "nothing waited"
    disk.wait(3, "no room")
    disk.wait(3, "no room")  # tried again
    disk.wait(RECORDS, "no room")
    disk.has_room(3)
    assert disk.is_waited_for
    disk.has_room(RECORDS)
    assert not disk.is_waited_for
    disk.wait(END, "no room", "hint of its own")
    disk.has_room(END)
    assert [(name, facts.get("shard_row"), facts.get("for")) for name, facts in events] == [
        ("disk_full", 3, None),
        ("disk_has_room", None, RECORDS),
        ("disk_full", None, END),
        ("disk_has_room", None, END),
    ]
    assert events[2][1]["hint"] == "hint of its own"
