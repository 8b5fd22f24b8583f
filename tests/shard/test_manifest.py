"""The manifest comes back as it was written; damage, other formats and other writers are told apart."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path

import crc32c
import pytest

from shardwright.disk import beneath, failpoints
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import FencedError, ShardFormatError, StorageError
from shardwright.model.write_settings import WriteSettings
from shardwright.shard.manifest import (
    FORMAT,
    Manifest,
    OpenedAs,
    check_writer_epoch,
    delete_manifests,
    has_manifest,
    read_manifest,
    recorded_settings,
    write_manifest,
)
from shardwright.store.ownership import Ownership

SPEC = {
    "dtype": "uint16",
    "dimensions": [{"name": "t", "count": None}],
    "fill_value": "NaN",
    "attributes": {"µ": [1, 2.5, None, 10]},
}
PLAIN = {"dimensions": [{"name": "t", "count": 4, "shard_size_chunks": None}]}
MANIFEST_NAME = "acquisition.1.json"
MANIFEST = Manifest("0123456789abcdef" * 2, 1, 3, SPEC, "mmap", 1_700_000_000_000_000_000)
OPENED_AS = OpenedAs(WriteSettings(durability="durable").recorded(), 200, "right", 10**6)


def rewrite(workspace, change):
    rewrite_file(workspace / MANIFEST_NAME, change)


def rewrite_file(path, change):
    """Change the facts and make the checksum right again."""
    facts = json.loads(path.read_text())
    del facts["crc32c"]
    change(facts)
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**facts, "crc32c": crc32c.crc32c(text.encode())}, indent=2))


@pytest.mark.parametrize(
    "manifest",
    [
        MANIFEST,
        dataclasses.replace(MANIFEST, spill_root="/data/second", writer_epoch=2),
        dataclasses.replace(MANIFEST, opened_as=OPENED_AS),
        dataclasses.replace(MANIFEST, opened_as=OpenedAs({}, 1)),
    ],
)
def test_round_trip(tmp_path, manifest):
    write_manifest(tmp_path, MANIFEST)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert manifest.identity_bytes.hex() == manifest.identity
    assert {p.name for p in tmp_path.iterdir()} == {
        MANIFEST_NAME,
        f"acquisition.{manifest.writer_epoch}.json",
    }


@pytest.mark.parametrize(
    ("changes", "format_version"),
    [
        ({"seen_extents": (7,)}, 1),
        ({"files_epoch": 1}, 2),
        ({"spec": {"channels": [{}]}}, 3),
        ({"spec": {"images": [{}]}, "seen_extents": (3, 0, 5)}, 4),
        ({"live": "append"}, 5),
        ({"partial_chunks": "in_place"}, 7),
        ({"opened_as": OPENED_AS}, 8),
        ({"row_shards": 64}, 6),
        ({"profile": "dynamic-cell-atlas"}, 9),
        ({"journal_rows": 64}, 11),
        ({"spec": PLAIN}, 6),
        ({"spec": {"array": PLAIN, "images": ["a"]}}, 6),
        ({"spec": {"array": SPEC, "images": ["a", {"name": "b", "array": PLAIN}]}}, 6),
    ],
)
def test_the_format_is_the_oldest_that_has_what_is_in_it(tmp_path, changes, format_version):
    """So that earlier releases read it, or say which one they need."""
    manifest = dataclasses.replace(MANIFEST, **changes)
    write_manifest(tmp_path, manifest)
    assert json.loads((tmp_path / MANIFEST_NAME).read_text())["format"] == format_version
    assert read_manifest(tmp_path) == manifest


def test_the_checksum_covers_what_json_makes_of_the_spec(tmp_path):
    """Keys become strings, which sort in another order."""
    write_manifest(tmp_path, dataclasses.replace(MANIFEST, spec={"attributes": {2: "two", 10: "ten"}}))
    assert read_manifest(tmp_path).spec == {"attributes": {"2": "two", "10": "ten"}}


def test_every_flipped_bit_is_found(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    path = tmp_path / MANIFEST_NAME
    sound = path.read_bytes()
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ShardFormatError):
            read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(format=FORMAT + 1), "another version"),
        (lambda f: f.pop("format"), "another version"),
        (lambda f: f.pop("io"), "'io' is missing"),
        (lambda f: f.update(writer_epoch="1"), "'writer_epoch' is missing or of the wrong type"),
        (lambda f: f.update(client_epoch=True), "'client_epoch'"),
        (lambda f: f.update(spill_root=5), "'spill_root'"),
        (lambda f: f.update(spill_root="\ud800"), "spill_root is no path"),
        (lambda f: f.update(spill_root="/data\0"), "spill_root is no path"),
        (lambda f: f.update(spill_root="9" * 5000), "spill_root is no path"),
        (lambda f: f.update(spill_root="s3://bucket/x"), "spill_root is no path"),
        (lambda f: f.update(more=5), "unknown fields"),
        (lambda f: f.update(seen_stop=-1), "seen_stop or seen_extents are out of range"),
        (lambda f: f.update(seen_stop=1 << 63), "seen_stop or seen_extents are out of range"),
        (lambda f: f.update(seen_extent=-1), "seen_stop or seen_extents are out of range"),
        (lambda f: f.update(identity="0" * 31), "32 hex digits"),
        (lambda f: f.update(identity="G" * 32), "32 hex digits"),
    ],
)
def test_what_is_not_ours(tmp_path, change, message):
    write_manifest(tmp_path, MANIFEST)
    rewrite(tmp_path, change)
    with pytest.raises(ShardFormatError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize("extents", [["x"], [[1]], [True], [1.5], [-1], [1 << 63]], ids=str)
def test_extents_that_are_no_numbers_of_frames(tmp_path, extents):
    write_manifest(tmp_path, dataclasses.replace(MANIFEST, live="append"))
    rewrite(tmp_path, lambda facts: facts.update(seen_extents=extents))
    with pytest.raises(ShardFormatError, match="seen_stop or seen_extents are out of range"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o.update(stream="../right"), "stream is no name"),
        (lambda o: o.update(stream=5), "stream is no name"),
        (lambda o: o.update(settings=[]), "settings are none"),
        (lambda o: o.update(settings=dict.fromkeys(map(str, range(65)), 1)), "settings are none"),
        (lambda o: o.update(ring_frames=0), "ring_frames is out of range"),
        (lambda o: o.update(ring_frames=True), "ring_frames is out of range"),
        (lambda o: o.update(ring_frames=None), "ring_frames is out of range"),
        (lambda o: o.update(ring_frames=1 << 40), "ring_frames is out of range"),
        (lambda o: o.update(frames_expected=-1), "frames_expected is out of range"),
        (lambda o: o.update(frames_expected=1 << 70), "frames_expected is out of range"),
        (lambda o: o.update(more=1), "unknown or missing fields in opened_as"),
        (lambda o: o.pop("stream"), "unknown or missing fields in opened_as"),
    ],
)
def test_what_nothing_was_opened_as(tmp_path, change, message):
    write_manifest(tmp_path, dataclasses.replace(MANIFEST, opened_as=OPENED_AS))
    rewrite(tmp_path, lambda facts: change(facts["opened_as"]))
    with pytest.raises(ShardFormatError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"durability": "eternal"}, "unknown durability"),
        ({"durability": ["durable"]}, "unknown durability"),
        ({"store_within_ms": 0}, "store_within_ms out of range"),
        ({"sync_interval_ms": 1e9}, "sync_interval_ms out of range"),
        ({"on_full": "spill"}, "on_full='spill' and spill_root belong together"),
        ({"more": 1}, "incomplete or unknown"),
    ],
)
def test_recorded_settings_are_checked_when_they_are_read(change, message):
    changed = dataclasses.replace(OPENED_AS, settings={**OPENED_AS.settings, **change})
    with pytest.raises(ShardFormatError, match=message):
        recorded_settings(MANIFEST, changed)
    sound = recorded_settings(MANIFEST, OPENED_AS)
    assert sound == WriteSettings(durability="durable")


@pytest.mark.parametrize(("on_full", "used"), [("spill", Path("/second")), ("block", None)])
def test_a_second_root_is_of_those_who_spill(on_full, used):
    """A writer that resumed the store may have chosen to do so no longer."""
    with_root = dataclasses.replace(MANIFEST, spill_root="/second")
    opened_as = dataclasses.replace(OPENED_AS, settings={**OPENED_AS.settings, "on_full": on_full})
    assert recorded_settings(with_root, opened_as).spill_root == used


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, "null", "1" * 5000])
def test_other_json(tmp_path, text):
    (tmp_path / MANIFEST_NAME).write_text(text)
    with pytest.raises(ShardFormatError):
        read_manifest(tmp_path)


def test_a_file_without_end(tmp_path):
    with (tmp_path / MANIFEST_NAME).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ShardFormatError, match="too long"):
        read_manifest(tmp_path)


def test_the_writer_epoch_fences(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    check_writer_epoch(tmp_path, 1)
    write_manifest(tmp_path, dataclasses.replace(MANIFEST, writer_epoch=2))
    with pytest.raises(FencedError, match="taken"):
        check_writer_epoch(tmp_path, 1)
    delete_manifests(tmp_path, up_to_epoch=2)
    with pytest.raises(FencedError, match="finished"):
        check_writer_epoch(tmp_path, 2)
    with pytest.raises(StorageError, match="cannot read"):
        read_manifest(tmp_path)


def test_what_an_older_writer_does_late_is_not_done_to_its_successor(tmp_path):
    """It was stopped between its last look and the call that replaces or deletes: the call comes, to a name
    of its own."""
    successor = dataclasses.replace(MANIFEST, writer_epoch=2, client_epoch=7)
    write_manifest(tmp_path, MANIFEST)
    write_manifest(tmp_path, successor)
    delete_manifests(tmp_path, up_to_epoch=1)
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == successor
    delete_manifests(tmp_path, up_to_epoch=1)
    assert read_manifest(tmp_path) == successor
    write_manifest(tmp_path, MANIFEST)
    delete_manifests(tmp_path, up_to_epoch=2)
    assert not has_manifest(tmp_path), "the older one counts no more when the newer has gone"


def test_two_that_write_the_same_epoch_do_not_delete_each_others_new_file(tmp_path):
    """One hung at its beginning, was fenced meanwhile, and gives up while the other is about to rename."""

    def fenced() -> None:
        raise FencedError("another writer has the store")

    def other() -> None:
        failpoints.set_hook("replace.before_rename", None)
        with pytest.raises(FencedError):
            write_manifest(tmp_path, MANIFEST, fenced)

    failpoints.set_hook("replace.before_rename", other)
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST


def test_a_manifest_under_another_s_name_is_refused(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    (tmp_path / MANIFEST_NAME).rename(tmp_path / "acquisition.3.json")
    with pytest.raises(ShardFormatError, match="not what its name says"):
        read_manifest(tmp_path)


def test_a_folder_that_cannot_be_looked_at_is_no_take_over(tmp_path, monkeypatch):
    """A server may not answer for a moment; the error names the folder, and nothing is given up."""

    def stale(*_: object, **__: object) -> int:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    owner = Ownership(tmp_path, MANIFEST, StoreLock.take(tmp_path / "lock"))
    monkeypatch.setattr(beneath, "open_file", stale)
    with pytest.raises(StorageError, match=f"cannot look at {tmp_path}.*: Stale file handle"):
        owner.may_rename()
    with pytest.raises(StorageError, match=f"cannot look at {tmp_path}: Stale file handle"):
        check_writer_epoch(tmp_path, 1)
