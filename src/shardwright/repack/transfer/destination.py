"""Where packed shards go when they leave the rig: another folder, or a bucket of an object store.

A destination is a flat space of keys such as ``0/c/0/1`` or ``zarr.json``. A key appears whole or not at all,
and is never replaced.

    .compact/claim       who writes here, see ``claim``. Deleted when the job has ended
    .compact/*.part      what is being sent; a killed job's are deleted when it goes on

A claim carries its job's token. The job keeps the token on the source's side, and finds its own unfinished
output by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shardwright.model.errors import OutputExistsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

Part = bytes | bytearray  # of a key's bytes, as it is sent; its owner does not change it afterwards
WORK_PREFIX = ".compact"
CLAIM_KEY = f"{WORK_PREFIX}/claim"
PART_SUFFIX = ".part"


class Destination(Protocol):
    """Safe to use from several threads and processes at once. All raise ``StorageError`` when the other side
    refuses."""

    @property
    def url(self) -> str:
        """What ``open_destination`` opens it by, wherever a task runs."""

    def claim(self, token: str) -> bool:
        """Take an empty place. False: this token's claim was there already, and so is whatever that job has
        sent.

        Raises ``OutputExistsError`` when something else is there, ``LockedError`` naming the other job when
        there is one.
        """

    def release(self, token: str) -> None:
        """Give the claim back, and delete what only the job needed. Nothing happens when the claim is not
        this token's."""

    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        """Store ``nbytes`` that come in parts. Raises ``OutputExistsError`` when the key exists; on any error
        the key is as it was."""

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        """From what was stored, not from a cache of ours; fewer bytes at the end."""

    def size(self, key: str) -> int | None:
        """Bytes under a key, None when there is none."""

    def sizes(self) -> dict[str, int]:
        """Bytes of every key that is no work of a job's, by one listing."""

    def delete(self, key: str) -> None:
        """Nothing happens when the key is not there."""


def key_exists(url: str, key: str) -> OutputExistsError:
    return OutputExistsError("the destination has this key already", got=f"{url}/{key}")


def check_size(url: str, key: str, expected: int, got: int) -> None:
    """Raises ``StorageError`` when the parts of a key did not add up."""
    if got != expected:
        raise StorageError(
            f"cannot write {url}/{key}: its source changed its size meanwhile",
            expected=f"{expected} bytes",
            got=got,
        )


def part_key(key: str, random: str) -> str:
    return f"{WORK_PREFIX}/{key.replace('/', '.')}.{random}{PART_SUFFIX}"
