"""A bucket of an S3 object store as a destination.

A small object is put on condition that the key is new (``If-None-Match: *``). A large one is sent in parts
under another key, then copied within the store on the same condition, which an upload in parts does not have.
Some servers check that condition without locking, and a copy is limited to 5 GiB. Two jobs are kept apart by
the claim in every case: it is a small object, and a server that ignores the condition is refused.

An error says nothing about what was done: see ``remote/objects.py``. A claim has its job's token in it, so
that no other job puts its bytes; for a shard or a file equal bytes are as good as our own.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from shardwright.disk.failpoints import reach
from shardwright.model.errors import OutputExistsError, StorageError
from shardwright.remote.objects import Objects, done_if, strong_tag

from .destination import CLAIM_KEY, WORK_PREFIX, Claim, Destination, check_size, key_exists, part_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .destination import Part

MULTIPART_FROM_BYTES = 32 << 20  # below, an object is in memory twice while it is put
_PART_BYTES = 16 << 20
_MAX_PARTS = 9000  # S3 takes 10,000
_MAX_COPY_BYTES = 5 << 30


class Bucket(Destination):
    """A bucket, or a prefix in it. ``url``: s3://BUCKET or s3://BUCKET/PREFIX; the bucket must exist. Raises
    ``ConfigError`` naming the variable that is not set."""

    def __init__(self, url: str) -> None:
        self._objects = Objects(url)

    @property
    def url(self) -> str:
        return self._objects.url

    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        if nbytes <= MULTIPART_FROM_BYTES:
            data = bytearray(nbytes)  # filled as the parts come: they are never all there beside it
            filled = 0
            for part in _counted(self.url, key, parts, nbytes):
                data[filled : filled + len(part)] = part
                filled += len(part)
            with done_if(lambda: self._holds(key, data)):
                reach("compact.before_put_object")
                self._objects.put_new(key, data)
        elif self.size(key) is not None:
            raise key_exists(self.url, key)
        else:
            self._put_in_parts(key, parts, nbytes)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return self._objects.read_exactly(key, offset, nbytes)

    def size(self, key: str) -> int | None:
        return self._objects.size(key)

    def sizes(self) -> dict[str, int]:
        return {key: nbytes for key, nbytes in self._objects.sizes() if not key.startswith(f"{WORK_PREFIX}/")}

    def _holds(self, key: str, data: bytearray) -> bool:
        """Returns whether these are the bytes of a key."""
        return self.size(key) == len(data) and (not data or self.read(key, 0, len(data)) == data)

    def _holds_same(self, key: str, other: str, nbytes: int) -> bool:
        """Returns whether two keys hold the same bytes, ``nbytes`` of them."""
        return self.size(key) == nbytes and all(
            self.read(key, start, _PART_BYTES) == self.read(other, start, _PART_BYTES)
            for start in range(0, nbytes, _PART_BYTES)
        )

    def delete(self, key: str) -> None:
        reach("compact.before_delete_object")
        self._objects.delete(key)

    def _put_in_parts(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        copied = nbytes <= _MAX_COPY_BYTES
        target = part_key(key, secrets.token_hex(4)) if copied else key
        part_bytes = max(_PART_BYTES, -(-nbytes // _MAX_PARTS))
        counted = _counted(self.url, key, parts, nbytes)
        # the object is there only once all parts were put together, and its key is ours alone
        with done_if(lambda: self.size(target) == nbytes):
            reach("compact.before_put_parts")
            self._objects.put_parts(target, counted, part_bytes)
        if not copied:
            return
        try:
            with done_if(lambda: self._holds_same(key, target, nbytes)):
                reach("compact.before_copy_object")
                self._objects.copy_new(target, key)
        finally:
            self.delete(target)

    def _claim_bytes(self) -> bytes | None:
        return self._objects.read(CLAIM_KEY)

    def _first_found(self) -> str | None:
        return next((key for key, _ in self._objects.sizes() if not key.startswith(f"{WORK_PREFIX}/")), None)

    def _check_claim_holds(self, claim: bytes) -> None:
        other = claim + b"\n"  # the same claim, but not the same bytes: those would be taken for put
        try:
            self.put_new(CLAIM_KEY, iter((other,)), len(other))
        except OutputExistsError:
            return
        raise StorageError(
            f"the object store of {self.url} ignores If-None-Match and overwrites keys: two jobs could "
            "destroy each other's work",
            hint="Use an object store that honours conditional puts",
        )

    def _delete_claim(self, token: str) -> None:
        """On condition that it is still the one that was read. obstore repeats a DELETE whose answer was
        lost: without the condition the second one could delete the claim that another job has put by then."""
        found = self._objects.begin(CLAIM_KEY)
        if found is None:
            return
        tag = strong_tag(found.meta)
        with self._objects.errors("read", CLAIM_KEY):
            held = bytes(found.bytes())
        if Claim.decode(self.url, held).token != token:
            return
        reach("compact.before_delete_object")
        with suppress(StorageError):  # the answer was lost, or the server knows no such request
            if tag is not None:
                self._objects.delete_if(CLAIM_KEY, tag)
        if (still := self._read_claim()) is not None and still.token == token:
            self.delete(CLAIM_KEY)

    def _delete_parts(self) -> None:
        for key in [key for key, _ in self._objects.sizes(WORK_PREFIX) if key != CLAIM_KEY]:
            self.delete(key)


def _counted(url: str, key: str, parts: Iterator[Part], nbytes: int) -> Iterator[Part]:
    """Yields the parts of one object, which must add up to its size: checked before the upload is
    completed."""
    come = 0
    for part in parts:
        come += len(part)
        if come > nbytes:
            check_size(url, key, nbytes, come)
        yield part
    check_size(url, key, nbytes, come)
