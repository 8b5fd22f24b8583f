"""A bucket of an S3 object store as a destination, by obstore. Endpoint and credentials come from the
environment (``AWS_…``).

A small object is put on condition that the key is new (``If-None-Match: *``). A large one is sent in parts
under another key, then copied within the store on the same condition, which an upload in parts does not have.
Some servers check that condition without locking, and a copy is limited to 5 GiB. Two jobs are kept apart by
the claim in every case: it is a small object, and a server that ignores the condition is refused.

The answer to a request may be lost after the server has done it: the connection ends, or a gateway answers
500 and obstore sends the same again, which now meets the key that it has put itself. So an error says nothing
about what was done, and 412 nothing about whose key it is. ``done_if`` looks at what is there: if it is
what was to be put, the request was done. A claim has its job's token in it, so that no other job puts those
bytes; for a shard or a file equal bytes are as good as our own.
"""

from __future__ import annotations

import os
import secrets
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ConfigError, OutputExistsError, StorageError
from shardwright.model.extras import naming_missing_extra
from shardwright.storage.failpoints import reach

from .destination import CLAIM_KEY, WORK_PREFIX, Claim, Destination, check_size, key_exists, part_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from obstore.store import HTTPStore, S3Store

    from .destination import Part

MULTIPART_FROM_BYTES = 32 << 20  # below, an object is in memory twice while it is put
_PART_BYTES = 16 << 20
_MAX_PARTS = 9000  # S3 takes 10,000
_PARTS_IN_FLIGHT = 3
_MAX_COPY_BYTES = 5 << 30
RETRY_VARIABLE = "SHARDWRIGHT_S3_RETRY_S"
_DEFAULT_RETRY_S = 60.0
_REQUEST_TIMEOUT = timedelta(minutes=5)  # of one part on a slow line
_SIGNED_FOR = timedelta(minutes=5)
_DELETE_TIMEOUT_S = 60.0
GONE, CHANGED, SERVER_ERROR, NOT_IMPLEMENTED = 404, 412, 500, 501
_OPENER = urllib.request.build_opener()
# Without one of these obstore asks a cloud machine's metadata service, which a rig does not have.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
)


class Bucket(Destination):
    """A bucket, or a prefix in it. ``url``: s3://BUCKET or s3://BUCKET/PREFIX; the bucket must exist. Raises
    ``ConfigError`` naming the variable that is not set."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._store = connect_bucket(self._url)

    @property
    def url(self) -> str:
        return self._url

    def put_new(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        if nbytes <= MULTIPART_FROM_BYTES:
            data = bytearray(nbytes)  # filled as the parts come: they are never all there beside it
            filled = 0
            for part in _Counted(self.url, key, parts, nbytes):
                data[filled : filled + len(part)] = part
                filled += len(part)
            with done_if(lambda: self._holds(key, data)), self._errors("write", key):
                reach("compact.before_put_object")
                self._api.put(self._store, key, data, mode="create", use_multipart=False)
        elif self.size(key) is not None:
            raise key_exists(self.url, key)
        else:
            self._put_in_parts(key, parts, nbytes)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        with self._errors("read", key):
            return bytes(self._api.get_range(self._store, key, start=offset, length=nbytes))

    def size(self, key: str) -> int | None:
        with self._errors("look at", key):
            try:
                return int(self._api.head(self._store, key)["size"])
            except FileNotFoundError:
                return None

    def sizes(self) -> dict[str, int]:
        return {key: nbytes for key, nbytes in self._listed(None) if not key.startswith(f"{WORK_PREFIX}/")}

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
        with self._errors("delete", key):
            reach("compact.before_delete_object")
            try:
                self._api.delete(self._store, key)
            except FileNotFoundError:
                return

    def _put_in_parts(self, key: str, parts: Iterator[Part], nbytes: int) -> None:
        copied = nbytes <= _MAX_COPY_BYTES
        target = part_key(key, secrets.token_hex(4)) if copied else key
        part_bytes = max(_PART_BYTES, -(-nbytes // _MAX_PARTS))
        counted = _Counted(self.url, key, parts, nbytes)
        # the object is there only once all parts were put together, and its key is ours alone
        with done_if(lambda: self.size(target) == nbytes), self._errors("write", key):
            reach("compact.before_put_parts")
            self._api.put(
                self._store,
                target,
                counted,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=_PARTS_IN_FLIGHT,
            )
        if not copied:
            return
        try:
            with done_if(lambda: self._holds_same(key, target, nbytes)), self._errors("write", key):
                reach("compact.before_copy_object")
                self._api.copy(self._store, target, key, overwrite=False)
        finally:
            self.delete(target)

    def _claim_bytes(self) -> bytes | None:
        with self._errors("read", CLAIM_KEY):
            try:
                return bytes(self._api.get(self._store, CLAIM_KEY).bytes())
            except FileNotFoundError:
                return None

    def _first_found(self) -> str | None:
        return next((key for key, _ in self._listed(None) if not key.startswith(f"{WORK_PREFIX}/")), None)

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
        with self._errors("read", CLAIM_KEY), suppress(FileNotFoundError):
            found = self._api.get(self._store, CLAIM_KEY)
            tag = strong_tag(found.meta)
            if Claim.decode(self.url, bytes(found.bytes())).token != token:
                return
            reach("compact.before_delete_object")
            with suppress(StorageError):  # the answer was lost, or the server knows no such request
                if tag is not None:
                    delete_if_match(self._api, self._store, self.url, CLAIM_KEY, tag)
            if (held := self._read_claim()) is not None and held.token == token:
                self.delete(CLAIM_KEY)

    def _delete_parts(self) -> None:
        for key in [key for key, _ in self._listed(WORK_PREFIX) if key != CLAIM_KEY]:
            self.delete(key)

    def _listed(self, prefix: str | None) -> Iterator[tuple[str, int]]:
        """Keys and their bytes."""
        with self._errors("list", prefix or ""):
            for batch in self._api.list(self._store, prefix):
                for found in batch:
                    yield str(found["path"]), int(found["size"])

    @property
    def _api(self) -> Any:
        import obstore

        return obstore

    def _errors(self, operation: str, key: str) -> AbstractContextManager[None]:
        return object_errors(self.url, operation, key)


@contextmanager
def done_if(is_done: Callable[[], bool]) -> Iterator[None]:
    """A context for one request that changes an object. If it fails, ``is_done`` looks at the object: the
    request was done where that returns true, and only its answer was lost. Else the error is raised, also if
    nothing can be looked at."""
    try:
        yield
    except Exception:
        with suppress(StorageError):
            if is_done():
                return
        raise


def strong_tag(meta: Any) -> str | None:
    """Returns the ETag of an object for If-Match, None where the server has none that it can be."""
    tag = meta["e_tag"]
    return str(tag) if tag and not str(tag).startswith("W/") else None


def delete_if_match(api: Any, store: S3Store | HTTPStore, url: str, key: str, tag: str) -> int:
    """Deletes an object that has this ETag, by one request that is not repeated, and that obstore (``api``)
    only signs: it has none with a condition. Returns the status: 2xx or ``GONE``, ``CHANGED``, or that of a
    server that does not know such requests. Raises ``StorageError`` where no answer came: it may have been
    deleted nevertheless."""
    from obstore.exceptions import BaseError

    try:
        address = api.sign(store, "DELETE", key, _SIGNED_FOR)
    except (BaseError, ValueError):  # requests to this server are not signed
        return NOT_IMPLEMENTED
    try:
        request = urllib.request.Request(address, method="DELETE", headers={"If-Match": tag})  # noqa: S310
        with _OPENER.open(request, timeout=_DELETE_TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            if error.code < SERVER_ERROR or error.code == NOT_IMPLEMENTED:
                return error.code
        raise StorageError(f"cannot delete {url}/{key}: {error.code} {error.reason}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise StorageError(f"cannot delete {url}/{key}: {error}") from error


@contextmanager
def object_errors(url: str, operation: str, key: str) -> Iterator[None]:
    """A context that turns an error of obstore into ``StorageError``: what was tried on what, the first line
    of the reason, and what to set."""
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    try:
        yield
    except AlreadyExistsError as error:
        raise key_exists(url, key) from error
    except (BaseError, FileNotFoundError) as error:
        reason = str(error).partition("\n")[0]
        if not url.startswith("s3://"):
            hint = "Check the address, and that the server runs and answers requests for ranges"
        elif isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            hint = "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their permissions on this bucket"
        elif isinstance(error, FileNotFoundError):
            hint = "Check the name of the bucket: it must exist"
        elif "builder error" in reason:
            hint = "For an endpoint without encryption (http://) set AWS_ALLOW_HTTP=true"
        else:
            hint = (
                f"Check AWS_ENDPOINT_URL and AWS_REGION, and that the server runs. The request was "
                f"repeated for {_retry_s():g} s ({RETRY_VARIABLE})"
            )
        raise StorageError(f"cannot {operation} {url}/{key}: {reason}", hint=hint) from error


class _Counted:
    """The parts of one object, which must add up to its size: checked before the upload is completed."""

    def __init__(self, url: str, key: str, parts: Iterator[Part], nbytes: int) -> None:
        self._about = url, key, nbytes
        self._parts = parts
        self._come = 0

    def __iter__(self) -> Iterator[Part]:
        return self

    def __next__(self) -> Part:
        try:
            part = next(self._parts)
        except StopIteration:
            check_size(*self._about, self._come)
            raise
        self._come += len(part)
        if self._come > self._about[2]:
            check_size(*self._about, self._come)
        return part


def connect_bucket(url: str) -> S3Store:
    """Returns the store of obstore for s3://BUCKET/PREFIX. Raises ``ConfigError``."""
    with naming_missing_extra(url):
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    if not any(map(os.environ.get, _CREDENTIALS)):
        raise ConfigError(
            f"no credentials for {url}",
            expected=f"one of {', '.join(_CREDENTIALS)} in the environment",
            hint="Usually AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY",
        )
    settings: dict[str, Any] = {}
    if "AWS_COPY_IF_NOT_EXISTS" not in os.environ:
        settings["copy_if_not_exists"] = "multipart"
    allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
    try:
        return S3Store.from_url(
            url,
            client_options={"timeout": _REQUEST_TIMEOUT, "allow_http": allow_http},
            retry_config=_retries(),
            **settings,
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(
            f"cannot use {url}: {str(error).partition(chr(10))[0]}",
            expected="s3://BUCKET/PREFIX and AWS_… in the environment",
        ) from error


def connect_http(url: str) -> HTTPStore:
    """Returns the store of obstore for a server of plain files, http(s)://SERVER/PATH. Raises
    ``ConfigError``."""
    with naming_missing_extra(url):
        from obstore.exceptions import BaseError
        from obstore.store import HTTPStore
    try:
        return HTTPStore.from_url(
            url,
            client_options={"timeout": _REQUEST_TIMEOUT, "allow_http": url.startswith("http://")},
            retry_config=_retries(),
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"cannot use {url}: {str(error).partition(chr(10))[0]}") from error


def _retries() -> Any:
    return {
        "retry_timeout": timedelta(seconds=_retry_s()),
        "max_retries": 1000,
        "backoff": {"max_backoff": timedelta(seconds=5)},
    }


def _retry_s() -> float:
    text = os.environ.get(RETRY_VARIABLE, str(_DEFAULT_RETRY_S))
    try:
        return max(0.0, float(text))
    except ValueError:
        raise ConfigError(f"{RETRY_VARIABLE} is not a number of seconds", got=repr(text)) from None
