"""A bucket of an S3 object store as a destination, by obstore. Endpoint and credentials come from the
environment (``AWS_…``).

A small object is put on condition that the key is new (``If-None-Match: *``). A large one is sent in parts
under another key, then copied within the store on the same condition, which an upload in parts does not have.
Some servers check that condition without locking, and a copy is limited to 5 GiB. Two jobs are kept apart by
the claim in every case: it is a small object, and a server that ignores the condition is refused.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ConfigError, OutputExistsError, StorageError
from shardwright.model.extras import naming_missing_extra
from shardwright.storage.failpoints import reach

from .destination import CLAIM_KEY, WORK_PREFIX, Destination, check_size, key_exists, part_key

if TYPE_CHECKING:
    from collections.abc import Iterator
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
            with self._errors("write", key):
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
        with self._errors("write", key):
            reach("compact.before_put_parts")
            self._api.put(
                self._store,
                target,
                counted,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=_PARTS_IN_FLIGHT,
            )
            if copied:
                try:
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
        try:
            self.put_new(CLAIM_KEY, iter((claim,)), len(claim))
        except OutputExistsError:
            return
        raise StorageError(
            f"the object store of {self.url} ignores If-None-Match and overwrites keys: two jobs could "
            "destroy each other's work",
            hint="Use an object store that honours conditional puts",
        )

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
