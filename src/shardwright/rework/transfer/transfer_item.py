"""One transfer item: a file of a store sent to a destination and verified there. A shard is packed on its
way, any other file is sent as it is.

A shard is read in the order of the packed file, sent in parts as it is read, and read back. The crc32c of
what came back is compared with that of what was read from the source: of each chunk and the index of a shard,
of the whole of another file. It takes the memory of a few parts, whatever the size of the shard.

A damaged shard cannot be packed. It is sent as it is, so that nothing that may still be read of it is lost,
and readers meet the same errors there as here. So is a shard with bytes that packing would drop without
knowing them (``unknown_bytes``).

Nothing is deleted at the source; ``move_store`` does that when everything has arrived.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from shardwright.array.document import encode_document
from shardwright.array.ome import moved_document
from shardwright.disk.files import open_regular, storage_errors
from shardwright.disk.spill_links import shard_status
from shardwright.model.errors import ShardFormatError, StorageError
from shardwright.read.store import parse_array, read_metadata
from shardwright.rework.shard_copy import SegmentChecksums
from shardwright.rework.shard_record import sum_in_place
from shardwright.rework.source_shard import PackedBytes, SourceShard
from shardwright.rework.unknown_bytes import unknown_bytes

from .address import open_destination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardwright.rework.pack_plan import Int64s, PackPlan
    from shardwright.rework.runtime.throttle import Throttle

    from .destination import Destination, Part

PART_BYTES = 8 << 20


def move_shard(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """Do the task {kind: "move", destination, key, file}, for a shard also {array, shard, order}; ``file`` is
    the path of what is sent. ``moved``: by so much, along each axis, the image that it describes. The
    destination must be claimed.

    The result adds ``nbytes`` and ``crc32c`` of what is now at the destination, ``source`` (of the file that
    was sent, see ``is_as_sent``) and ``skipped`` (it was there already, and was only verified); for a shard
    that was sent as it is, ``damaged`` or ``unpacked``: the error that says why. Raises ``StorageError`` or
    ``OutputExistsError``. A key whose bytes came back wrong is deleted.
    """
    destination, key, path = open_destination(task["destination"]), task["key"], Path(task["file"])
    with _unchanged(path) as source:
        if "moved" in task:
            document = moved_document(read_metadata(path.parent, foreign=True), task["moved"])
            text = encode_document(document, foreign=True)
            item = TransferItem(key, np.array([len(text)]), lambda: iter([text]), lambda _: str(path))
            return {**_deliver(item, destination, throttle), "source": source[:2]}
        why: dict[str, Any] = {}
        if "shard" in task:
            array, shard = parse_array(Path(task["array"])), tuple(task["shard"])
            try:
                with SourceShard(array, shard) as shard_file:
                    plan = shard_file.pack_plan(task["order"])
                    if array.container is None:
                        if (unknown := unknown_bytes(shard_file, plan, throttle.take)) is None:
                            item = _packed(key, shard_file, plan)
                            return {**_deliver(item, destination, throttle), "source": source[:2]}
                        why = {"unpacked": unknown.error().to_dict()}
            except ShardFormatError as error:
                why = {"damaged": error.to_dict()}
        sent = _send_as_it_is(key, path, source[0], destination, throttle)
        return {**sent, "source": source if "damaged" in why else source[:2], **why}


def check_file(task: dict[str, Any], throttle: Throttle) -> dict[str, Any]:
    """Do the task {kind: "check", destination, key, nbytes, crc32c}: read a key back. The result adds
    ``same``: it still has that crc32c. Raises ``StorageError``."""
    found = 0
    for part in stored_parts(open_destination(task["destination"]), task["key"], task["nbytes"], throttle):
        found = crc32c.crc32c(part, found)
    return {
        "ok": True,
        "skipped": True,
        "same": found == task["crc32c"],
        "bytes_read": task["nbytes"],
        "bytes_written": 0,
    }


def _send_as_it_is(
    key: str, path: Path, nbytes: int, destination: Destination, throttle: Throttle
) -> dict[str, Any]:
    with storage_errors("read", path), open_regular(path, spilled=True, buffering=0) as file:
        sizes = np.array([nbytes] if nbytes else [], np.int64)
        return _deliver(
            TransferItem(key, sizes, lambda: _file_parts(file.fileno(), nbytes), lambda _: str(path)),
            destination,
            throttle,
        )


@dataclass(frozen=True)
class TransferItem:
    """The bytes that one key is to hold. ``sizes``: of its segments, each checked on its own. ``parts`` reads
    all of them, in pieces cut anywhere. ``name``: of a segment, for people.
    """

    key: str
    sizes: Int64s
    parts: Callable[[], Iterator[Part]]
    name: Callable[[int], str]

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())


class SentChecksums:
    """Those of the ``segments`` of what is sent, and that of the ``whole``."""

    def __init__(self, sizes: Int64s) -> None:
        self.segments = SegmentChecksums(sizes)
        self.whole = 0

    def add(self, piece: Part) -> None:
        self.segments.add(piece)
        self.whole = crc32c.crc32c(piece, self.whole)


def _deliver(item: TransferItem, destination: Destination, throttle: Throttle) -> dict[str, Any]:
    """Send it unless it is there, and verify it in either case."""
    key, nbytes = item.key, item.nbytes
    found = destination.size(key)
    if found == nbytes:
        sent = SentChecksums(item.sizes)
        for part in item.parts():
            throttle.take(len(part))
            sent.add(part)
        if _first_wrong(item, sent, destination, throttle) is None:
            destination.keep(key)
            return _delivered(item, sent, skipped=True)
    if found is not None:
        # the claim is ours, so this is what an earlier run left, of a source that was another then
        destination.delete(key)
    sent = SentChecksums(item.sizes)
    destination.put_new(key, _watched(item.parts(), sent, throttle), nbytes)
    segment = _first_wrong(item, sent, destination, throttle)
    if segment is not None:
        destination.delete(key)
        raise StorageError(
            f"{item.name(segment)} came back from {destination.url} with other bytes than were sent",
            hint="The source is left as it is. Check the storage of the destination before anything else is "
            "sent there",
        )
    return _delivered(item, sent, skipped=False)


def _delivered(item: TransferItem, sent: SentChecksums, *, skipped: bool) -> dict[str, Any]:
    return {
        "ok": True,
        "skipped": skipped,
        "nbytes": item.nbytes,
        "crc32c": sent.whole,
        "bytes_read": 2 * item.nbytes,
        "bytes_written": 0 if skipped else item.nbytes,
    }


def _watched(parts: Iterator[Part], checksums: SentChecksums, throttle: Throttle) -> Iterator[Part]:
    for part in parts:
        throttle.take(2 * len(part))  # read here, sent there
        checksums.add(part)
        yield part


def _first_wrong(
    item: TransferItem, sent: SentChecksums, destination: Destination, throttle: Throttle
) -> int | None:
    """Read back; returns the first segment whose bytes are not those of the source."""
    stored = SegmentChecksums(item.sizes)
    for part in stored_parts(destination, item.key, item.nbytes, throttle):
        stored.add(part)
    return stored.first_difference(sent.segments.values)


def stored_parts(destination: Destination, key: str, nbytes: int, throttle: Throttle) -> Iterator[Part]:
    """The bytes of a key. Raises ``StorageError`` when there are fewer than ``nbytes``."""
    for offset in range(0, nbytes, PART_BYTES):
        wanted = min(PART_BYTES, nbytes - offset)
        throttle.take(wanted)
        data = destination.read(key, offset, wanted)
        if len(data) != wanted:
            raise StorageError(
                f"{destination.url}/{key} is shorter than what was sent",
                expected=nbytes,
                got=offset + len(data),
            )
        yield data


def _packed(key: str, source: SourceShard, plan: PackPlan) -> TransferItem:
    index = plan.array.index
    encoded = index.encode(plan.entries())

    def parts() -> Iterator[Part]:
        if index.before_bytes:
            yield encoded
        chunks = PackedBytes(source, plan)
        yield from _chunk_parts(chunks)
        if plan.description:
            value = sum_in_place(plan, source.file, plan.source_offset, chunks.crcs)
            yield plan.with_description(value).description
        if index.behind_bytes:
            yield encoded

    return TransferItem(key, plan.segments()[0], parts, plan.segment_name)


def _chunk_parts(chunks: PackedBytes) -> Iterator[Part]:
    """The chunks in the order of the packed file. A part that was yielded is not changed any more."""
    while chunks.left_bytes:
        part = bytearray(min(PART_BYTES, chunks.left_bytes))
        chunks.read_into(np.frombuffer(part, np.uint8))
        yield part


def _file_parts(descriptor: int, nbytes: int) -> Iterator[Part]:
    offset = 0
    while offset < nbytes and (part := os.pread(descriptor, min(PART_BYTES, nbytes - offset), offset)):
        yield part
        offset += len(part)


@contextmanager
def _unchanged(path: Path) -> Iterator[list[int]]:
    """Yields what ``identify`` says of a file. Raises ``StorageError`` when the file changes meanwhile: what
    was sent may be a mixture of two states."""
    source = identify(path)
    yield source
    if not is_as_sent(path, source[:2]):
        raise StorageError(
            f"{path} was changed while it was sent",
            hint="Run the job again when nothing else works on this store",
        )


def identify(path: Path) -> list[int]:
    """[size, mtime_ns, ctime_ns] of the file behind a path."""
    with storage_errors("look at", path):
        status = shard_status(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def is_as_sent(path: Path, source: list[int]) -> bool:
    """Returns whether a file is still the one that was sent: by size and mtime, of a damaged shard also by
    ctime, since a backup that is put in its place often has both of the others."""
    return identify(path)[: len(source)] == source
