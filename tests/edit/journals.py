"""Redo journals as EDIT.md draws them, also such that no edit writes; their checksums always hold."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import crc32c

HUGE = (2**31, 2**63 - 1, 2**64 - 1)


@dataclass
class RawJournal:
    """``writes``, ``kept``: (offset, bytes); ``clears``: (offset, number of bytes). ``head``: fields of the
    head that lie, by name; ``lengths``: numbers of bytes that lie, by the place of their range."""

    key: bytes
    inode: int
    old_bytes: int
    new_bytes: int
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    clears: list[tuple[int, int]] = field(default_factory=list)
    head: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        head = {
            "key": len(self.key),
            "inode": self.inode,
            "old_bytes": self.old_bytes,
            "new_bytes": self.new_bytes,
            "old_index": 0,
            "new_index": 0,
            "writes": len(self.writes),
            "clears": len(self.clears),
            "harmless": 0,
            "kept": len(self.kept),
        } | self.head
        with_bytes = [*self.writes, *self.kept]
        ranges = [*((offset, len(data)) for offset, data in with_bytes), *self.clears]
        for place, nbytes in self.lengths.items():
            ranges[place] = ranges[place][0], nbytes
        body = struct.pack("<8sIIQQQIIIIII", b"SWEDITJN", 1, *head.values()) + self.key
        body += b"".join(struct.pack("<QQ", *each) for each in ranges)
        body += b"".join(data for _, data in with_bytes)
        return body + struct.pack("<I", crc32c.crc32c(body))


def hostile_journals(key: bytes, inode: int, data: bytes) -> dict[str, bytes]:
    """Journals of the shard ``key`` with these bytes that say what no edit does, by what is wrong."""
    size = len(data)

    def of(**facts: object) -> bytes:
        facts = {"key": key, "inode": inode, "old_bytes": size, "new_bytes": size} | facts
        return RawJournal(**facts).encode()

    one = {"writes": [(0, b"x")], "kept": [(0, data[:1])]}
    found = {
        "a key that is no text": of(key=b"\xff\xfe"),
        "a key of half a surrogate": of(key=b"\xed\xa0\x80"),
        "a key that leads out": of(key=b"c/0/../../../x"),
        "more harmless writes than writes": of(**one, head={"harmless": 2}),
        "shorter afterwards": of(**one, new_bytes=size - 1),
        "no bytes": of(writes=[(0, b"")]),
        "bytes that were not kept": of(writes=[(0, b"xy")], kept=[(0, data[:1])]),
        "kept bytes that are not changed": of(**one | {"kept": [(0, data[:2])]}),
        "ranges that overlap": of(writes=[(0, b"xy"), (1, b"z")], kept=[(0, data[:2])]),
        "a clear over a write": of(**one, clears=[(0, 1)]),
        "a clear past the shard": of(clears=[(size - 1, 2)], kept=[(size - 1, data[-1:])]),
        "a clear that was not kept": of(clears=[(0, size)]),
        "longer than it writes": of(new_bytes=size + 4096, writes=[(size, b"x")]),
        "a hole behind the shard": of(new_bytes=size + 4096, writes=[(size + 4095, b"x")]),
        "bytes behind the ranges": of(**one, lengths={1: 0}),
    }
    for huge in HUGE:
        found |= {
            f"a clear of {huge}": of(clears=[(0, huge)]),
            f"a clear at {huge}": of(clears=[(huge, 1)]),
            f"a write at {huge}": of(writes=[(huge, b"x")]),
            f"a write at {huge} of a longer shard": of(writes=[(huge, b"x")], new_bytes=huge),
            f"a write of {huge} bytes": of(**one, lengths={0: huge}),
            f"kept at {huge}": of(writes=[(0, b"x")], kept=[(huge, b"x")]),
            f"a shard of {huge} bytes": of(**one, old_bytes=huge, new_bytes=huge),
            f"{huge} bytes afterwards": of(**one, new_bytes=huge),
        }
    for name in ("key", "writes", "clears", "kept", "harmless"):
        found |= {f"{count} of {name}": of(**one, head={name: count}) for count in (1000, 2**31, 2**32 - 1)}
    whole = of(**one)
    found |= {f"cut at {stop}": _sealed(whole[:stop]) for stop in range(12, len(whole) - 4)}
    return found


def _sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", crc32c.crc32c(body))
