"""Fuzzing of every file that we keep in a store: ``python -m tests.fuzz.stored_files``

A table of formats: where a store has a file of each, and variants of it, made field by field, whose checksums
hold: numbers at 2^31, 2^63 and -1, no numbers at all, values of other types, JSON nested deep, half of a pair
of surrogates, bytes that are no text, files that were cut, and files of nothing but a hole.

Each variant stands in a store beside a sound one. A child process with little address space and little disk
does to both what the commands do. Whatever the bytes are: an answer or one of our errors, no more disk than
before and a little, and the sound store is recovered, or its interrupted update completed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import zarr
from tests.edit.journals import hostile_journals
from tests.harness.batches import (
    IMAGES,
    SHARING,
    TIMES,
    append,
    append_first_frames,
    pixel_of,
    plate_of_one_slab_rows,
)
from tests.harness.store_contents import snapshot
from tests.harness.writing import how
from tests.repack.images import POLITE, run_here

import shardwright as sw
from shardwright.acquire.workers import WorkerPool
from shardwright.disk import failpoints
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import ShardwrightError
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store, parse_array
from shardwright.read.verify_store import verify_store
from shardwright.recovery.leftovers import unfinished_stores
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.catalog import listed_acquisitions
from shardwright.rework.edit.edit_recovery import recover_edits
from shardwright.rework.edit.region_edit import erase
from shardwright.rework.edit.shard_edit import edit_shard
from shardwright.rework.jobs import compact_store
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.runtime.compaction_queue import QueueEntry
from shardwright.rework.runtime.job_record import JobRecord
from shardwright.rework.transfer.destination import Claim
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_record import MoveRecord, SentFile
from shardwright.rework.transfer.move_store import move_store
from shardwright.scan.unfinished_store import UnfinishedStore
from shardwright.shard.checked_json import checksum, encode_checked
from shardwright.shard.edit_files import JOURNAL_SUFFIX
from shardwright.shard.file_header import file_seed
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.row_checksum import seal_rows
from shardwright.shard.shared_journal import is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.fork_server import Channel, ForkServer

SPARE_ADDRESS_SPACE_BYTES = 2 << 30
MOST_FILE_BYTES = 64 << 20
SPARE_DISK_BYTES = 16 << 20
PATIENCE_SECONDS = 60  # only so that a hang becomes a failure
PROGRESS_VARIANTS = 100
LEFT, SOUND, ARCHIVE = "left.ome.zarr", "sound.ome.zarr", "left.ozx"
SEALED_FRAMES, FRAMES = 8, 11  # two sealed shard rows, a slab in progress and a staged frame


@dataclass(frozen=True)
class Hole:
    """A file of nothing else."""

    nbytes: int


Variants = dict[str, "bytes | Hole"]


@dataclass(frozen=True)
class StoredFormat:
    """``place``: of a file, below the folder of both stores. ``variants``: of that file."""

    make: Callable[[Path], None]
    place: str
    variants: Callable[[Path], Variants]
    use: Callable[[Path], dict[str, str]]


# ---------------------------------------------------------------------- variants of texts, of JSON, of rows

NUMBERS = (-1, 2**31, 2**63 - 1, 2**63, 2**64)
VALUES: dict[str, Any] = {
    **{str(number): number for number in NUMBERS},
    "infinity": float("inf"),
    "no number": float("nan"),
    "a fraction": 0.5,
    "null": None,
    "a truth": True,
    "a list": [],
    "a list of lists": [[1], [2]],
    "an object": {"a": 1},
    "a text": "x",
    "a way out": "../../outside",
    "half of a pair": "\ud800",
    "a long text": "9" * 5000,
}


def texts(data: bytes) -> Variants:
    deep = 100_000
    return {
        "no bytes": b"",
        "cut": data[: len(data) // 2],
        "one byte less": data[:-1],
        "no text": b"\xff\xfe" * 50,
        "zeros": bytes(4096),
        "lists in lists": b"[" * deep,
        "objects in objects": b'{"a":' * deep,
        "lists that end": b"[" * 400 + b"]" * 400,
        "a huge number": b"1e999",
        "a long number": b"9" * 5000,
        "no number": b"NaN",
        "a hole": Hole(1 << 40),
    }


def of_json(facts: Any, encode: Callable[[Any], bytes]) -> Variants:
    """Each value, at any depth, replaced by each other one; and each left out."""
    found: Variants = {}
    for path in _paths(facts):
        name = "/".join(map(str, path))
        for what, value in VALUES.items():
            found[f"{name} is {what}"] = encode(_replaced(facts, path, value))
        endless = encode(_replaced(facts, path, float("inf")))
        found[f"{name} is 1e999"] = endless.replace(b"Infinity", b"1e999")
        nested: Any = 0
        for _ in range(300):
            nested = [nested]
        found[f"{name} is nested"] = encode(_replaced(facts, path, nested))
        found[f"{name} is not there"] = encode(_replaced(facts, path, _NOTHING))
    return found


_NOTHING = object()


def _paths(facts: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = facts.items() if isinstance(facts, dict) else enumerate(facts) if isinstance(facts, list) else ()
    for name, value in items:
        yield (*above, name)
        yield from _paths(value, (*above, name))


def _replaced(facts: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(facts)
    within = changed
    for name in path[:-1]:
        within = within[name]
    if value is _NOTHING:
        del within[path[-1]]
    else:
        within[path[-1]] = value
    return changed


def of_rows(table: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Copies of one record, each with a field of another number, sealed."""
    for name in table.dtype.names or ():
        kind = table.dtype[name].kind
        if name == "record_crc" or kind not in "iuf":
            continue
        width = 8 * table.dtype[name].itemsize
        for number in (0, 1, 2**31, 2 ** (width - 1) - 1, 2 ** (width - 1), 2**width - 1):
            changed = table.copy()
            bits = changed[name].view(f"<u{width // 8}")
            bits[...] = number % 2**width
            changed[name] = bits.view(changed[name].dtype)
            seal_rows(changed, seed)
            yield f"{name} is {number}", changed


def _json(facts: Any) -> bytes:
    return json.dumps(facts).encode()


def any_text(path: Path) -> Variants:
    return texts(path.read_bytes())


def json_file(path: Path) -> Variants:
    data = path.read_bytes()
    return {**texts(data), **of_json(json.loads(data), _json)}


def job_record(path: Path) -> Variants:
    """Each line changed, with a checksum that holds."""
    data = path.read_bytes()
    found, lines = texts(data), [line for line in data.splitlines() if line]
    for number, line in enumerate(lines):
        facts = json.loads(line)
        del facts["check"]
        for what, new in of_json(facts, lambda facts: _json({"check": checksum(facts), **facts})).items():
            changed = [*lines[:number], new, *lines[number + 1 :]]
            found[f"line {number}: {what}"[:80]] = b"\n".join(changed) + b"\n"
    return found


def json_lines(path: Path) -> Variants:
    """The first line is the sound one."""
    data = path.read_bytes()
    line = json.loads(next(line for line in data.splitlines() if line))
    each = {what: data + b"\n" + new + b"\n" for what, new in of_json(line, _json).items()}
    return {**texts(data), **each}


# ---------------------------------------------------------------------- unfinished stores


def dimensions() -> list[sw.Dimension]:
    plane = [sw.Dimension(name=name, count=8, chunk_size=4, shard_size_chunks=2) for name in "yx"]
    return [sw.Dimension(name="t", count=None, chunk_size=2, shard_size_chunks=2), *plane]


def frame(number: int) -> np.ndarray:
    return np.full((8, 8), number + 1, np.uint16)


def unfinished(root: Path) -> None:
    spec = sw.ArraySpec(dtype="uint16", dimensions=dimensions(), attributes={"a": [1]})
    living = root / "living.ome.zarr"
    with sw.create(living, spec, threads=1, **how(store_within_ms=1)) as writer:
        for number in range(FRAMES):
            writer.append(frame(number))
        while writer.watermark.stored < FRAMES or _logged(living) < SEALED_FRAMES:
            time.sleep(0.01)
        writer.update_metadata({"b": {"c": 2}})
        for name in (LEFT, SOUND):
            snapshot(living, root / name)
    shutil.rmtree(living)


def unfinished_plate(root: Path) -> None:
    """The first store has many images, all of whose frames are stored and no shard is sealed."""
    unfinished(root)
    shutil.rmtree(root / LEFT)
    living, seal = root / "living.ome.zarr", threading.Event()
    with plate_of_one_slab_rows(living, threads=1) as writer:
        append_first_frames(writer)
        writer.flush()
        failpoints.set_hook("shard.before_index", seal.wait)
        append(writer, 1, *range(IMAGES))
        while writer.watermark.stored < IMAGES * TIMES:
            time.sleep(0.01)
        snapshot(living, root / LEFT)
        failpoints.set_hook("shard.before_index", None)
        seal.set()
    shutil.rmtree(living)


def _logged(store: Path) -> int:
    with closing(UnfinishedStore.read(store).open_log(read_only=True)) as log:
        return log.rows


def recovered_plate(root: Path) -> dict[str, str]:
    """As ``recovered``; no frame is ever another one's."""
    outcomes = recovered(root, _plate_seen)
    _answer(lambda: _plate_seen(root / LEFT))
    return outcomes


def _plate_seen(store: Path) -> None:
    """Looks at each frame that readers see."""
    opened = sw.open(store)
    for image in range(IMAGES):
        try:
            array = zarr.open_array(opened, path=f"{image}/0", mode="r")
        except FileNotFoundError:
            continue  # it has no frame
        seen = np.asarray(array[:])
        assert len(seen) <= TIMES
        for t, pixels in enumerate(seen):
            assert set(np.unique(pixels).tolist()) <= {0, pixel_of(image, t)}


def recovered(root: Path, look_at_left: Callable[[Path], object] | None = None) -> dict[str, str]:
    """What became of each store."""
    seen = look_at_left or _seen
    outcomes = {}
    pool = WorkerPool(1)
    pool.start()
    try:
        for look in (seen, partial(recover_store, pool=pool, threads=1, dry_run=True)):
            _answer(lambda look=look: look(root / LEFT))
        for store in unfinished_stores(root):
            outcomes[store.name] = _answer(lambda store=store: recover_store(store, pool, threads=1).action)
        for left in unfinished_stores(root):
            _answer(lambda left=left: recover_store(left, pool, threads=1))
    finally:
        pool.stop()
    assert outcomes[SOUND] == "sealed", outcomes
    shown = _seen(root / SOUND)
    assert (shown == np.stack([frame(number) for number in range(FRAMES)])).all()
    _answer(lambda: verify_store(root / LEFT).problems)
    return outcomes


def _seen(store: Path) -> np.ndarray:
    """The frames that came, as readers see those that are not sealed, and the last of more. A record in the
    staging area or the frame log may be of any place, one in a journal only of a place of its shard row."""
    array = zarr.open_array(sw.open(store), path="0", mode="r")
    assert np.asarray(array[-FRAMES:]).shape[1:] == (8, 8)
    return np.asarray(array[:FRAMES])


def within_its_shard_rows(root: Path) -> dict[str, str]:
    """``recovered`` of stores whose arrays reach no further than their shard rows do."""
    with suppress(ShardwrightError):
        assert zarr.open_array(sw.open(root / LEFT), path="0", mode="r").shape[0] <= FRAMES + 1
    return recovered(root)


def _answer(call: Callable[[], Any]) -> str:
    """What a call returns, or which of our errors it raises; any other one is a defect."""
    try:
        return str(call())
    except ShardwrightError as error:
        refusal = error
    assert len(str(refusal)) < 3000, "one line, not the file"
    return type(refusal).__name__


def manifest(path: Path) -> Variants:
    data = path.read_bytes()
    facts = json.loads(data)
    del facts["crc32c"]
    return {**texts(data), **of_json(facts, encode_checked)}


def frame_log(path: Path) -> Variants:
    """A block more, of which each field of the header and of a record is another one."""
    store = UnfinishedStore.read(path.parents[1])
    data, seed = path.read_bytes(), crc32c.crc32c(store.manifest.identity_bytes)
    log = store.open_log(read_only=True)
    end, [(_, _, records)] = log._end, [next(log.blocks())]
    log.close()
    found = texts(data)
    sound = {"kind": 1, "record_bytes": records.dtype.itemsize, "shard_row": 99, "count": 1}
    for what, one in of_rows(records[:1], seed):
        for row, kind in ((99, 1), (-1, 2)):
            head = sound | {"kind": kind, "shard_row": row}
            found[f"{what}, kind {kind}"] = _with_block(data, end, head, one, seed)
    for name in sound:
        for number in (*NUMBERS, 0, 3):
            found[f"{name} is {number}"] = _with_block(data, end, sound | {name: number}, records[:1], seed)
    return found


def _with_block(data: bytes, end: int, facts: dict[str, int], records: np.ndarray, seed: int) -> bytes:
    numbers = [facts["kind"] % 2**32, facts["record_bytes"] % 2**32, facts["shard_row"] % 2**64]
    payload = records.tobytes()
    numbers += [facts["count"] % 2**64, crc32c.crc32c(payload, seed)]
    head = struct.pack("<8sIIQQI24x", b"SWFRMBLK", *numbers)
    block = head + struct.pack("<I", crc32c.crc32c(head, seed)) + payload
    return data[:end] + block + data[end + len(block) :]


def journal_records(path: Path) -> Variants:
    """Records of frames, and entries of chunks, of which each field is another one."""
    store = UnfinishedStore.read(path.parents[1])
    return texts(path.read_bytes()) | _of_tables(store, path, int(path.name.split(".")[0]))


def _of_tables(store: UnfinishedStore, path: Path, row: int) -> Variants:
    data, seed, found = path.read_bytes(), file_seed(store.manifest.identity_bytes, row), {}
    shared = store.open_shared(path, read_only=True) if is_shared(path.name) else None
    journal = store.open_journal(path, store.tables(row), read_only=True, shared=shared)
    if shared is not None:
        shared.let_go()
    records, written = journal.read_frames()
    entries, _ = journal.read_chunks(0)
    layout = journal.layout
    journal.close()
    layer, place = (int(each[0]) for each in np.nonzero(written))
    at = layout.frame_records_offset(layer) + place * records.dtype.itemsize
    for what, one in of_rows(records[layer, place : place + 1].copy(), seed):
        found[f"frame: {what}"] = data[:at] + one.tobytes() + data[at + one.nbytes :]
    at = layout.chunk_entry_offset(0, 0)
    for what, one in of_rows(entries[:1].copy(), seed):
        found[f"chunk: {what}"] = data[:at] + one.tobytes() + data[at + one.nbytes :]
    return found


def shared_journal(path: Path) -> Variants:
    """Each number of the header another one, under a checksum that holds; states; a row's records and
    entries."""
    data = path.read_bytes()
    found = texts(data)
    header = {"version": (8, "<I"), "record_bytes": (12, "<I"), "file_bytes": (32, "<q"), "epoch": (40, "<I")}
    header |= {"count": (44, "<I"), "packed": (48, "<Q"), "there": (56, "<Q")}
    rows = {f"row {k}": (64 + 16 * k, "<q") for k in range(SHARING + 1)}
    header |= rows | {f"base of {row}": (at + 8, form) for row, (at, form) in rows.items()}
    numbers = (0, 1, 2, 3, 64, 65, 4096, 4097, 8192, 2**31, 2**32 - 1, 2**40, 1 << 48, 5 << 48, 9 << 48)
    for name, (at, form) in header.items():
        for number in (*numbers, 2**63 - 1, 2**63, 2**64 - 1):
            page = bytearray(data[:PAGE_BYTES])
            field = (number % 2 ** (8 * struct.calcsize(form))).to_bytes(struct.calcsize(form), "little")
            page[at : at + len(field)] = field
            struct.pack_into("<I", page, PAGE_BYTES - 4, crc32c.crc32c(bytes(page[:-4])))
            found[f"{name} is {number}"] = bytes(page) + data[PAGE_BYTES:]
    for k in range(SHARING + 1):
        for what, state in {
            "ended": b"SWENDED\0",
            "ended, almost": b"SWENDED\1",
            "anything": b"x" * 8,
        }.items():
            at = PAGE_BYTES + 8 * k
            found[f"row {k} is {what}"] = data[:at] + state + data[at + 8 :]
    store = UnfinishedStore.read(path.parents[1])
    for k, row in enumerate(store.read_shared(path).bases):
        found |= {f"row {k}, {what}": each for what, each in _of_tables(store, path, row).items()}
    return found


def staging_records(path: Path) -> Variants:
    store = UnfinishedStore.read(path.parents[1])
    staging, data = store.open_staging(), path.read_bytes()
    assert staging is not None
    records = staging.read_records()
    slot = int(np.flatnonzero(staging.undamaged(records))[0])
    at = staging.entry_offset(slot)
    staging.close()
    found = texts(data)
    for what, one in of_rows(records[slot : slot + 1].copy(), staging.seed):
        found[what] = data[:at] + one.tobytes() + data[at + one.nbytes :]
    return found


# ---------------------------------------------------------------------- finished stores


def finished(root: Path) -> None:
    """Two stores; the sound one has an interrupted update."""
    spec = sw.ArraySpec(dtype="uint16", dimensions=dimensions())
    for name in (LEFT, SOUND):
        with sw.create(root / name, spec, threads=1) as writer:
            for number in range(FRAMES):
                writer.append(frame(number))
    interrupted(root / SOUND / "0")


def interrupted(path: Path) -> None:
    """An array with one update of which nothing but its journal was written."""
    array = parse_array(path)
    failpoints.set_hook("edit.before_write", _fail)
    failpoints.set_hook("edit.before_cut", _fail)
    try:
        _answer(lambda: edit_shard(array, (0, 0, 0), {0: None}, strategy="in_place"))
    finally:
        failpoints.set_hook("edit.before_write", None)
        failpoints.set_hook("edit.before_cut", None)


def _fail() -> None:
    raise OSError(5, "Input/output error")


class _Here:
    """An executor in this process."""

    workers = 1

    def run(self, tasks: Any, on_moved: Any = None) -> Any:
        del on_moved
        yield from run_here(tasks)

    def close(self) -> None: ...


def used(*ways: str) -> Callable[[Path], dict[str, str]]:
    """What commands do with a store of which one has such a file; interrupted updates are recovered."""
    return lambda root: _used(root, (*ways, "recover"))


def _used(root: Path, ways: tuple[str, ...]) -> dict[str, str]:
    outcomes = {}
    left, away = root / LEFT, root / "away"

    def compacted() -> Any:
        options = compact_store.Options(idle=False, recompress={"cname": "zstd", "level": 1})
        return compact_store.run(compact_store.plan(open_store(left), options), _Here()).failures

    calls: dict[str, Callable[[], Any]] = {
        "verify": lambda: verify_store(left).problems,
        "inspect": lambda: list(inspect_shards(open_store(left), open_store(left).arrays[0])),
        "recover": lambda: [edit.action for edit in recover_edits(root)],
        "queue": lambda: (QueueEntry(left).check_version(), QueueEntry(left).failures),
        "lock": lambda: StoreLock.take(left / "0/.shardwright-edit/c.0.0.0.lock").release(),
        "erase": lambda: erase(left, {"t": 0}).arrays,
        "compact": compacted,
        "pyramid": lambda: add_levels(left, PyramidOptions(1), run_here, throttle=POLITE).made,
        "move": lambda: move_store(left, MoveOptions(str(away), True, throttle=POLITE), run_here).failures,
    }
    for name in ways:
        outcomes[name] = _answer(calls[name])
    assert (root / "outside").read_bytes() == b"mine"
    assert not (root / SOUND / "0/.shardwright-edit").exists(), "its update is completed"
    assert verify_store(root / SOUND).problems == []
    return outcomes


def redo_journal(path: Path) -> Variants:
    shard = path.parents[1] / "c/0/0/0"
    found: Variants = dict(hostile_journals(b"c/0/0/0", shard.stat().st_ino, shard.read_bytes()))
    return {**texts(path.read_bytes()), **found}


def sums(path: Path) -> Variants:
    """Lines whose check holds."""
    found = json_lines(path)
    for value in VALUES.values():
        for key in ("c/0/0/0", "c/99/0/0", value):
            check = crc32c.crc32c(f"{key} {value}".encode(errors="surrogatepass"))
            line = {"version": 1, "key": key, "crc32c": value, "check": check}
            found[f"{key} {value} checked"[:80]] = path.read_bytes() + _json(line) + b"\n"
    return found


def of_work(
    place: str, data: bytes, *ways: str, variants: Callable[[Path], Variants] = job_record
) -> StoredFormat:
    """A file of a job, in a finished store."""

    def make(root: Path) -> None:
        finished(root)
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return StoredFormat(make, place, variants, used(*ways))


def edited(root: Path) -> None:
    finished(root)
    interrupted(root / LEFT / "0")


def move_record(root: Path) -> MoveRecord:
    sent = SentFile("zarr.json", [100, 1], 100, 1, "row_major", {"code": "storage"})
    files = {name: SentFile(name, [4, 1], 4, 1) for name in ("zarr.json", "0/zarr.json")}
    facts = ("0" * 32, True, True, True, {"a": sent, **files})
    return MoveRecord(root / LEFT / ".compact", str(root / "away"), *facts)


def moved(root: Path) -> None:
    finished(root)
    (root / LEFT / ".compact").mkdir()
    move_record(root).save()


def being_moved(root: Path) -> None:
    finished(root)
    record = move_record(root)
    record.folder.mkdir()
    record.complete = record.deleting = False
    record.save()
    record.add(record.sent["a"])


OPTIONS = {"order": "row_major"}


def older_move(root: Path) -> None:
    """As a release wrote it that had two files."""
    finished(root)
    older_record(root, complete=True)


def older_being_moved(root: Path) -> None:
    finished(root)
    (sent, *_), path = older_record(root, complete=False)
    path.with_suffix(".sent").write_bytes(_json(sent) + b"\n")


def older_record(root: Path, *, complete: bool) -> tuple[list[dict[str, Any]], Path]:
    record = move_record(root)
    sent = [asdict(each) for each in record.sent.values()]
    facts = {"version": 1, "destination": record.destination, "token": record.token, "claimed": True}
    facts |= {"complete": complete, "deleting": complete} | ({"sent": sent} if complete else {})
    name = hashlib.sha256(record.destination.encode()).hexdigest()[:16]
    path = record.folder / f"move.{name}.json"
    path.parent.mkdir()
    path.write_bytes(_json(facts))
    return sent, path


def archived(root: Path) -> None:
    """A store in one file."""
    finished(root)
    archive = MoveOptions(str(root / ARCHIVE), throttle=POLITE)
    assert move_store(root / LEFT, archive, run_here).ok


def being_archived(root: Path) -> None:
    """A store that a job was writing into one file when it was killed."""
    finished(root)

    def dies(tasks: Any) -> Any:
        tasks = iter(tasks)
        yield from run_here([next(tasks), next(tasks)])
        raise OSError(5, "Input/output error")

    with suppress(OSError):
        move_store(root / LEFT, MoveOptions(str(root / ARCHIVE), throttle=POLITE), dies)


# Of each record of a zip file, from its signature on: the offset and the bytes of each number.
_ZIP_FIELDS = {
    "header": ((0, 4), (4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    "entry": (
        *((0, 4), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)),
        *((42, 4),),
    ),
    "end of ZIP64": ((0, 4), (4, 8), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (48, 8)),
    "locator": ((0, 4), (4, 4), (8, 8), (16, 4)),
    "end": ((0, 4), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}
_ZIP_EXTRA = {
    "header": ((0, 2), (2, 2), (4, 8), (12, 8)),
    "entry": ((0, 2), (2, 2), (4, 8), (12, 8), (20, 8)),
}


def zip_records(path: Path) -> Variants:
    """Each number of each kind of record is another one; of a document, and of a shard."""
    data = path.read_bytes()
    found: Variants = dict(texts(data))
    end = data.rindex(b"PK\5\6")
    places = [("end", end), ("locator", end - 20), ("end of ZIP64", end - 76)]
    for name in (b"zarr.json", b"0/c/0/0/0"):
        places += [("header", data.index(b"PK\3\4", data.index(name) - 30))]
        places += [("entry", data.rindex(b"PK\1\2", 0, data.index(name, data.index(b"PK\1\2"))))]
    fields = []
    for kind, at in places:
        fields += [(kind, at + offset, nbytes) for offset, nbytes in _ZIP_FIELDS[kind]]
        if kind in _ZIP_EXTRA:
            head, name_at = (30, 26) if kind == "header" else (46, 28)
            behind = at + head + int.from_bytes(data[at + name_at : at + name_at + 2], "little")
            fields += [(kind, behind + offset, nbytes) for offset, nbytes in _ZIP_EXTRA[kind]]
    for kind, at, nbytes in fields:
        for number in (0, 1, 8, 2 ** (8 * nbytes - 1) - 1, 2 ** (8 * nbytes - 1), 2 ** (8 * nbytes) - 1):
            changed = data[:at] + number.to_bytes(nbytes, "little") + data[at + nbytes :]
            found[f"{kind}: {nbytes} bytes at {at} are {number}"] = changed
    return found


def used_archive(root: Path) -> dict[str, str]:
    """What readers do with a file of a stranger, and a job with its own."""
    archive = root / ARCHIVE
    calls: dict[str, Callable[[], Any]] = {
        "open": lambda: sw.open_array(archive, "0")[...].shape,
        "verify": lambda: len(verify_store(archive).problems),
        "list": lambda: [one.state for one in listed_acquisitions(root)],
        "inspect": lambda: len(list(inspect_shards(open_store(archive), open_store(archive).arrays[0]))),
    }
    outcomes = {name: _answer(call) for name, call in calls.items()}
    assert (root / "outside").read_bytes() == b"mine"
    assert verify_store(root / LEFT).ok
    return outcomes


def archived_again(root: Path) -> dict[str, str]:
    archive = MoveOptions(str(root / ARCHIVE), throttle=POLITE)
    outcome = _answer(lambda: move_store(root / LEFT, archive, run_here).ok)
    if (root / ARCHIVE).exists():
        assert verify_store(root / ARCHIVE).ok
    else:
        assert outcome != "True"
    assert verify_store(root / LEFT).ok
    return {"archive": outcome}


DONE = {"key": "c/0/0/0", "file_bytes": 1, "mtime_ns": 1}
JOB = {"source": {"a": [1, "x"]}, "documents": [["1", {"shape": [1]}]]}
LOCK = {"pid": 1, "host": "rig", "since": "2026-05-04T10:11:12+00:00"}

FORMATS: dict[str, StoredFormat] = {
    "manifest": StoredFormat(unfinished, f"{LEFT}/.shardwright/acquisition.1.json", manifest, recovered),
    "metadata updates": StoredFormat(unfinished, f"{LEFT}/.shardwright/metadata.json", manifest, recovered),
    "frame log": StoredFormat(unfinished, f"{LEFT}/.shardwright/frames.log", frame_log, recovered),
    "journal": StoredFormat(
        unfinished, f"{LEFT}/.shardwright/*.journal", journal_records, within_its_shard_rows
    ),
    "shared journal": StoredFormat(
        unfinished_plate, f"{LEFT}/.shardwright/rows-*.journal", shared_journal, recovered_plate
    ),
    "staging area": StoredFormat(unfinished, f"{LEFT}/.shardwright/staging", staging_records, recovered),
    "boot": StoredFormat(unfinished, f"{LEFT}/.shardwright/boot", any_text, recovered),
    "redo journal": StoredFormat(
        edited,
        f"{LEFT}/0/.shardwright-edit/*{JOURNAL_SUFFIX}",
        redo_journal,
        used("verify", "erase", "compact"),
    ),
    "record of shards": StoredFormat(
        finished, f"{LEFT}/0/shards.crc32c", sums, used("verify", "inspect", "erase", "compact")
    ),
    "lock": of_work(
        f"{LEFT}/0/.shardwright-edit/c.0.0.0.lock", _json(LOCK), "lock", "erase", variants=json_file
    ),
    "queue": of_work(f"{LEFT}/0/.compact/queued", JobRecord({"failures": 2}).encode("queue"), "queue"),
    "done list": of_work(
        f"{LEFT}/0/.compact/done", JobRecord({"options": OPTIONS}, [DONE]).encode("done"), "compact"
    ),
    "job": of_work(f"{LEFT}/0/.compact/levels/job", JobRecord(JOB).encode("build"), "pyramid"),
    "claim": of_work("away/.compact/claim", Claim.of_this_process("0" * 32).encode(), "move"),
    "move": StoredFormat(moved, f"{LEFT}/.compact/move.*.job", job_record, used("move")),
    "files sent": StoredFormat(being_moved, f"{LEFT}/.compact/move.*.job", job_record, used("move")),
    "archive": StoredFormat(archived, ARCHIVE, zip_records, used_archive),
    "keys of an archive": StoredFormat(
        being_archived, f".{ARCHIVE}.compact/entries.job", job_record, archived_again
    ),
    "older queue": of_work(
        f"{LEFT}/0/.compact/queued", b'{"version": 1, "failures": 2}', "queue", variants=json_file
    ),
    "older done list": of_work(
        f"{LEFT}/0/.compact/done", _json({**DONE, "options": OPTIONS}), "compact", variants=json_lines
    ),
    "older job": of_work(f"{LEFT}/0/.compact/levels/job.json", _json(JOB), "pyramid", variants=json_file),
    "older move": StoredFormat(older_move, f"{LEFT}/.compact/move.*.json", json_file, used("move")),
    "older files sent": StoredFormat(
        older_being_moved, f"{LEFT}/.compact/move.*.sent", json_lines, used("move")
    ),
}


# ---------------------------------------------------------------------- in a child


def try_format(
    channel: Channel, name: str, folder: Path, most: int | None, seed: int, first: int = 0
) -> None:
    """Tries variants of one format, ``most`` of them chosen by ``seed``, without the ``first`` ones; sends
    the name of each before, and at last how many there were of each outcome."""
    wanted = FORMATS[name]
    template, root = folder / "template", folder / "root"
    root.mkdir()
    wanted.make(root)
    (root / "outside").write_bytes(b"mine")
    root.rename(template)  # what names the path of its store names that of the copies
    _limit()
    [place] = sorted(template.glob(wanted.place))[:1]
    variants = wanted.variants(place)
    count = len(variants) if most is None else min(most, len(variants))
    chosen = Random(seed).sample(list(variants), count)[first:]
    outcomes: dict[str, int] = {}
    for what in chosen:
        channel.send(f"{name}: {what}")
        shutil.copytree(template, root, symlinks=True)
        _write(root / place.relative_to(template), variants[what])
        _renew(root)
        before = disk_bytes(root)
        signal.alarm(PATIENCE_SECONDS)
        for outcome in wanted.use(root).items():
            outcomes[": ".join(outcome)[:80]] = outcomes.get(": ".join(outcome)[:80], 0) + 1
        signal.alarm(0)
        assert disk_bytes(root) <= before + SPARE_DISK_BYTES, "it has filled the disk"
        shutil.rmtree(root)
    channel.send({"variants": len(variants), "tried": len(chosen), "outcomes": outcomes})


def _renew(root: Path) -> None:
    """A journal names the inode of its shard: that of the copy."""
    for journal in root.rglob(f"*{JOURNAL_SUFFIX}"):
        if journal.parent.name == ".shardwright-edit":
            data = bytearray(journal.read_bytes() if journal.stat().st_size < MOST_FILE_BYTES else b"")
            if len(data) < 64 or crc32c.crc32c(bytes(data[:-4])) != int.from_bytes(data[-4:], "little"):
                continue
            key = journal.name.removesuffix(JOURNAL_SUFFIX).replace(".", "/")
            struct.pack_into("<Q", data, 16, (journal.parents[1] / key).stat().st_ino)
            struct.pack_into("<I", data, len(data) - 4, crc32c.crc32c(bytes(data[:-4])))
            journal.write_bytes(data)
    for record in root.rglob("entries.job"):
        growing = record.with_name("archive")
        known = (root.with_name("template") / growing.relative_to(root)).stat().st_ino
        was, now = (f'"inode": {inode}}}'.encode() for inode in (known, growing.stat().st_ino))
        data = record.read_bytes() if record.stat().st_size < MOST_FILE_BYTES else b""
        lines = [_renewed(line, was, now) if was in line else line for line in data.split(b"\n")]
        record.write_bytes(b"\n".join(lines))


def _renewed(line: bytes, was: bytes, now: bytes) -> bytes:
    """A line of a job's record with another inode, and a checksum that holds if it did."""
    facts = json.loads(line)
    holds = facts.pop("check", None) == checksum(facts)
    facts = json.loads(json.dumps(facts).encode().replace(was, now))
    return _json({"check": checksum(facts) if holds else 0, **facts})


def _write(path: Path, data: bytes | Hole) -> None:
    if isinstance(data, Hole):
        path.write_bytes(b"")
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit[1], limit[1]))
        os.truncate(path, data.nbytes)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    else:
        path.write_bytes(data)


def disk_bytes(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


def _limit() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPARE_ADDRESS_SPACE_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, resource.RLIM_INFINITY))


# ---------------------------------------------------------------------- all of them


def try_whole(server: ForkServer, name: str) -> int:
    """Tries all variants of a format, behind one that fails in another child. Prints what becomes of them;
    returns how many failed."""
    from tests.fuzz import stored_files as by_name  # of ``__main__`` the server knows no function

    tried, failed, code = 0, 0, 1
    while code != 0:
        with TemporaryDirectory() as folder:
            child = server.start(by_name.try_format, name, Path(folder), None, 0, tried)
            before, what, last = tried, name, None
            while (message := child.channel.receive()) is not None:
                last = message
                if isinstance(message, str):
                    what, tried = message, tried + 1
                    if tried % PROGRESS_VARIANTS == 0:
                        print(f"{name}: {tried} tried, {failed} failed", flush=True)
            code = child.wait()
        if code != 0:
            failed += 1
            print(f"FAILED {what}: ended with {code}: {getattr(last, 'text', last)}", flush=True)
        if code != 0 and tried == before:
            break  # there is no store to try them in
    print(f"{name}: {tried} tried, {failed} failed: {last}", flush=True)
    return failed


def main() -> int:
    """All variants of all formats, or of those that are named. Returns 1 if one failed."""
    from tests.harness.fork_server import ForkServer

    failed = 0
    for name in sys.argv[1:] or FORMATS:
        with ForkServer(prepare="tests.fuzz.stored_files") as server:
            failed += try_whole(server, name)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
