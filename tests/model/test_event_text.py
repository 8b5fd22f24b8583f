"""Events as sentences: what a user reads, of facts as the code emits them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardwright.codecs.degrade import DegradeLevel
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import OutputExistsError
from shardwright.model.event_text import _LEVELS, SENTENCES, event_text, facts_in, sentence

EMBRYO = {"name": "embryo-left", "stream": "cam0", "path": "/data/embryo-left.ome.zarr"}
TAKEN = ErrorText(OutputExistsError, "there is a store", "a new name", "old", "Take another")

NO_ROOM = ErrorText(OutputExistsError, "no room", "9", "8", "Free some")
NO_FACTS = [math.nan, math.inf, -math.inf, 10**400, None, [], {}, "x", [[math.nan]]]


@pytest.mark.parametrize(
    ("event", "facts", "text"),
    [
        (
            "overload_level",
            {**EMBRYO, "degrade_level": "uncompressed", "before": "faster", "backlog": 0.62},
            "embryo-left: chunks are no longer compressed; frames that wait fill 62% of the ring",
        ),
        (
            "disk_full",
            {"path": "/data/embryo-left.ome.zarr", "shard_row": 3, "reason": "no room", "hint": "Free some"},
            "embryo-left: the disk is full: no room. Free some",
        ),
        (
            "disk_low",
            {**EMBRYO, "free_bytes": 3 << 29, "low_water_bytes": 2 << 30, "shards_left": 1},
            "embryo-left: only 1.5 GiB of disk left, enough for 1 more shard row",
        ),
        (
            "frames_lost",
            {**EMBRYO, "frames": 12_345, "reason": "io_error", "index": [0, 3], "image": "b"},
            "embryo-left: 12,345 frames lost, the first at index (0, 3) of image b: io error",
        ),
        (
            "acquisition_incomplete",
            {**EMBRYO, "frames_received": 9, "frames_missing": 1, "hint": "Try"},
            "embryo-left: not every frame is in its place (9 frames received); 1 place without a frame. Try",
        ),
        (
            "acquisition_refused",
            {"name": "embryo-left", "host": "rig", **TAKEN.as_facts()},
            "embryo-left: refused to rig: there is a store; expected a new name; got old. Take another",
        ),
        (
            "web_died",
            {"url": "http://rig/", "error": "exit code 1", "again_in_s": 0.5},
            "The status page has ended, and starts again in 0.5 s: exit code 1",
        ),
        ("web_died", {"error": "no\nmore", "again": False}, "The status page has ended: no more"),
        (
            "left_to_recovery_warning",
            {"paths": ["/data/a.ome.zarr", "/data/b.ome.zarr"]},
            "Not sealed, and left to the next start: a, b",
        ),
        (
            "compaction_done",
            {**EMBRYO, "gain_bytes": 3 << 20, "seconds": 3.81235},
            "embryo-left: compacted, 3.0 MiB smaller, after 3.8 s",
        ),
        ("compaction_done", {**EMBRYO, "gain_bytes": -512}, "embryo-left: compacted, 512 B larger"),
        ("compaction_done", {**EMBRYO, "gain_bytes": 0}, "embryo-left: compacted, of the same size"),
        (
            "disk_low",
            {**EMBRYO, "free_bytes": 1 << 30, "shards_left": 0},
            "embryo-left: only 1.0 GiB of disk left, not enough for another shard row",
        ),
        (
            "frames_dropped",
            {**EMBRYO, "frames": 1, "index": [3]},
            "embryo-left: 1 frame dropped, at index (3)",
        ),
        (
            "frames_duplicate",
            {**EMBRYO, "frames": 1, "index": [3]},
            "embryo-left: 1 duplicate frame, at index (3): its place is taken",
        ),
        (
            "frames_duplicate",
            {**EMBRYO, "frames": 2},
            "embryo-left: 2 duplicate frames: their places are taken",
        ),
        (
            "io_error",
            {**EMBRYO, "shard_row": 3, "reason": "EIO", "then": "all is well"},
            "embryo-left: I/O error in shard row 3: EIO; all is well",
        ),
        (
            "staging_failed",
            {"name": "a", **NO_ROOM.as_reason(), "then": "so"},
            "a: frames are no longer staged: no room; expected 9; got 8; so. Free some",
        ),
        (
            "files_set_aside_warning",
            {**EMBRYO, "folders": ["/data/a.ome.zarr/.damaged", "/b/.damaged"]},
            "embryo-left: damaged files were set aside in /data/a.ome.zarr/.damaged, /b/.damaged",
        ),
        ("acquisition_resumed", {"name": "", "host": "rig"}, "(no name): its camera on rig is back"),
        ("acquisition_resumed", {"name": "a/b", "host": "rig"}, "a/b: its camera on rig is back"),
        (
            "leftovers_not_removed_warning",
            {"path": "/data/a.ome.zarr", "message": "no"},
            "The remains of /data/a.ome.zarr cannot be removed: no",
        ),
        ("draining", {"acquisitions": 2}, "No new acquisitions from now on; 2 acquisitions to seal"),
        (
            "stuck_warning",
            {"stall_s": 30.0, "limit_s": 30.0},
            "A disk or a thread is stuck for 30 s (limit 30 s)",
        ),
        ("client_keys_reloaded", {"added": [], "removed": []}, "The client keys are read again"),
        ("thread_died", {"thread": "disks"}, "The thread disks has died, and the daemon stops"),
    ],
)
def test_an_event_is_a_sentence(event: str, facts: dict[str, Any], text: str) -> None:
    assert event_text(event, facts) == text


def test_a_hint_is_the_second_sentence_and_repetitions_are_counted() -> None:
    facts = {**EMBRYO, "reason": "no room", "hint": "Free some", "repeated": 97}
    assert event_text("disk_full", facts).endswith("no room (and 97 more events like it). Free some")


def test_of_an_unknown_event_and_of_a_shortened_one_the_facts_are_shown() -> None:
    assert event_text("lamp_broken", {"lamp": 7, "hint": "Change it"}) == "lamp broken: lamp 7. Change it"
    line = {"number": 5, "timestamp": "2026", "level": "error", "event": "acquisition_failed"}
    assert event_text("acquisition_failed", {**line, "shortened": True}) == "acquisition failed"
    with pytest.raises(LookupError):
        sentence("acquisition_failed", line)


@pytest.mark.parametrize("fact", NO_FACTS, ids=range(len(NO_FACTS)))
def test_no_fact_of_any_type_ends_who_shows_it(fact: Any) -> None:
    for event in (*SENTENCES, "unknown"):
        names = [*facts_in(SENTENCES.get(event, "")), "free_bytes", "took_s", "message", "hint", "repeated"]
        assert event_text(event, dict.fromkeys(("name", *names), fact))
    assert event_text("unknown", {"took_s": math.nan}) == "unknown: took_s nan"


def test_what_comes_from_a_client_cannot_command_the_terminal() -> None:
    facts = {"host": "\x1b]0;owned\x07rig", "pid": 12345, "reason": "two\r\nlines", "client_key": "{pid}[x]"}
    assert event_text("client_lost", facts) == "Client lost: process 12345 on ?]0;owned?rig: two lines"
    assert "key {pid}[x]" in event_text("client_connected", {**facts, "software": "x"})
    assert "\x1b" not in event_text("\x1b[2J", {"\x1b": 1})


def test_every_level_of_encoding_has_its_words() -> None:
    assert _LEVELS.keys() == {level.label for level in DegradeLevel}


def test_sentences_are_of_one_kind() -> None:
    for event, template in SENTENCES.items():
        assert template.startswith("{store}: ") or template[0].isupper(), event
        assert not template.endswith((".", " ")), event
