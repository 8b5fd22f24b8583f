"""Where packed shards go when they leave the rig: another folder, or a bucket of an object store.

A destination is a flat space of keys such as ``0/c/0/1`` or ``zarr.json``. A key appears whole or not at all, and is never replaced.

    .compact/claim       who writes here: made conditionally, so of two jobs one is refused. Deleted when all is there
    .compact/*.part      what is being sent; a killed job's are deleted when it goes on

A claim carries its job's token. The job keeps the token on the source's side, and finds its own unfinished output by it.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardwright.model.errors import ConfigError, LockedError, OutputExistsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

Part = bytes | bytearray  # of a key's bytes, as it is sent; its owner does not change it afterwards
WORK_PREFIX = ".compact"
CLAIM_KEY = f"{WORK_PREFIX}/claim"
PART_SUFFIX = ".part"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Destination(Protocol):
    """Safe to use from several threads and processes at once. All raise ``StorageError`` when the other side refuses."""

    @property
    def url(self) -> str:
        """What ``open_destination`` opens it by, wherever a task runs."""

    def claim(self, token: str) -> bool:
        """Take an empty place. False: this token's claim was there already, and so is whatever that job has sent.

        Raises ``OutputExistsError`` when something else is there, ``LockedError`` naming the other job when there is one.
        """

    def release(self, token: str) -> None:
        """Give the claim back, and delete what only the job needed. Nothing happens when the claim is not this token's."""

    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        """Store ``nbytes`` that come in parts. Raises ``OutputExistsError`` when the key exists; on any error the key is as it was."""

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        """From what was stored, not from a cache of ours; fewer bytes at the end."""

    def size(self, key: str) -> int | None:
        """Bytes under a key, None when there is none."""

    def delete(self, key: str) -> None:
        """Nothing happens when the key is not there."""


def open_destination(url_or_path: str) -> Destination:
    """``s3://bucket/prefix``, or the path of a folder. Nothing is looked at or made yet. Raises ``ConfigError`` for other schemes."""
    scheme = _SCHEME.match(url_or_path)
    if scheme is None:
        from .local_folder import LocalFolder

        return LocalFolder(Path(url_or_path).absolute())
    if scheme[1].lower() != "s3":
        raise ConfigError(f"{url_or_path} is no destination", expected="a folder, or s3://BUCKET/PREFIX", got=f"{scheme[1]}://")
    from .bucket import Bucket

    return Bucket(url_or_path)


@dataclass(frozen=True)
class Claim:
    """What a claim says of the job that made it. ``token``: the job's, whichever process it goes on in."""

    token: str
    host: str
    pid: int
    since: str

    @classmethod
    def of_this_process(cls, token: str) -> Claim:
        return cls(token, socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"))

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, url: str, data: bytes) -> Claim:
        """Raises ``StorageError`` for what no job of ours wrote."""
        try:
            facts = json.loads(data)
            return cls(str(facts["token"]), str(facts["host"])[:255], int(facts["pid"]), str(facts["since"])[:64])
        except (ValueError, TypeError, KeyError):
            raise StorageError(f"{url}/{CLAIM_KEY} is no claim of a job", got=repr(data[:80])) from None


def claimed_by_another(url: str, claim: Claim) -> LockedError:
    return LockedError(
        f"another job writes to {url}: process {claim.pid} on {claim.host!r} since {claim.since}",
        hint=f"Wait for it, or choose another destination. If that job will never be run again, delete {url} with its {CLAIM_KEY}",
    )


def exists_already(url: str, found: str) -> OutputExistsError:
    return OutputExistsError(f"the destination {url} is not empty", got=found, hint="Choose another one: nothing is ever overwritten")


def key_exists(url: str, key: str) -> OutputExistsError:
    return OutputExistsError("the destination has this key already", got=f"{url}/{key}")


def check_size(url: str, key: str, expected: int, got: int) -> None:
    """Raises ``StorageError`` when the parts of a key did not add up."""
    if got != expected:
        raise StorageError(f"cannot write {url}/{key}: its source changed its size meanwhile", expected=f"{expected} bytes", got=got)


def part_key(key: str, random: str) -> str:
    return f"{WORK_PREFIX}/{key.replace('/', '.')}.{random}{PART_SUFFIX}"
