"""Objects behind obstore: those of a bucket (s3://BUCKET/PREFIX), or of a server of plain files (http…,
read-only). Endpoint and credentials come from the environment (``AWS_…``).

obstore repeats a request that failed, for a bounded time. The answer to a request may be lost after the
server has done it: the connection ends, or a gateway answers 500 and obstore sends the same again, which now
meets the key that it has put itself. So an error says nothing about what was done, and 412 nothing about
whose key it is. ``done_if`` looks at what is there: if it is what was to be put, the request was done.
"""

from __future__ import annotations

import errno
import os
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.client import HTTPException
from itertools import count
from typing import TYPE_CHECKING, Any

from shardwright.disk.read_file import ChangedError
from shardwright.model.errors import ConfigError, OutputExistsError, StorageError
from shardwright.model.extras import naming_missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from obstore.store import HTTPStore, S3Store

RETRY_VARIABLE = "SHARDWRIGHT_S3_RETRY_S"
_DEFAULT_RETRY_S = 60.0
_REQUEST_TIMEOUT = timedelta(minutes=5)  # of one part on a slow line
_SIGNED_FOR = timedelta(minutes=5)
_DELETE_TIMEOUT_S = 60.0
_PARTS_IN_FLIGHT = 3
GONE, CHANGED, SERVER_ERROR, NOT_IMPLEMENTED = 404, 412, 500, 501
_OPENER = urllib.request.build_opener()
_changes = count(1)
# Without one of these obstore asks a cloud machine's metadata service, which a rig does not have.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
)


class Objects:
    """The objects below a URL, by key. Nothing is asked before the first key is. Raises ``ConfigError``
    naming the variable that is not set; each request raises ``StorageError`` that says what to set.

    changes  a number that is another one after each change that this process has made to any object
    """

    changes = 0

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.is_bucket = url.startswith("s3://")
        self._store = connect_bucket(self.url) if self.is_bucket else connect_http(self.url)

    # ------------------------------------------------------------------ reading

    def begin(self, key: str) -> Any:
        """Returns obstore's answer with an object, of whose bytes none is fetched yet; None without one."""
        with self.errors("read", key), suppress(FileNotFoundError):
            return self._api.get(self._store, key)
        return None

    def read(self, key: str) -> bytes | None:
        answer = self.begin(key)
        if answer is None:
            return None
        with self.errors("read", key):
            return bytes(answer.bytes())

    def get(self, key: str, options: dict[str, Any]) -> tuple[bytes, Any] | None:
        """Returns bytes of an object and obstore's answer; ``None`` for the state that the
        caller has (If-None-Match). Raises ``ChangedError`` when it is another one (If-Match),
        ``FileNotFoundError``."""
        from obstore.exceptions import NotModifiedError, PreconditionError

        with self.errors("read", key):
            try:
                answer = self._api.get(self._store, key, options=options)
                return bytes(answer.bytes()), answer
            except NotModifiedError:
                return None
            except PreconditionError:
                raise ChangedError from None
            except FileNotFoundError:
                pass
        raise not_found(key)

    def read_range(self, key: str, start: int | None, stop: int | None) -> bytes | None:
        """Returns the bytes from ``start`` to ``stop``, fewer where the object ends before; the last ``stop``
        ones without ``start``. None without the object."""
        from obstore.exceptions import BaseError

        if stop is not None and stop <= (start or 0):
            return None if self.size(key) is None else b""
        asked: Any = (
            {"suffix": stop} if start is None else {"offset": start} if stop is None else (start, stop)
        )
        with self.errors("read", key), suppress(FileNotFoundError):
            try:
                return bytes(self._api.get(self._store, key, options={"range": asked}).bytes())
            except BaseError:
                # Where the object ends before the range, or is empty, a server answers 416. obstore has no
                # error of that name.
                if (nbytes := self.size(key)) is not None and nbytes <= (start or 0):
                    return b""
                raise
        return None

    def read_exactly(self, key: str, offset: int, nbytes: int) -> bytes:
        with self.errors("read", key):
            return bytes(self._api.get_range(self._store, key, start=offset, length=nbytes))

    def head(self, key: str) -> Any:
        """Returns size, ETag and time of an object; None without one."""
        with self.errors("look at", key), suppress(FileNotFoundError):
            return self._api.head(self._store, key)
        return None

    def size(self, key: str) -> int | None:
        meta = self.head(key)
        return None if meta is None else int(meta["size"])

    def sizes(self, prefix: str | None = None) -> Iterator[tuple[str, int]]:
        """Keys below a prefix and their bytes."""
        with self.errors("list", prefix or ""):
            for batch in self._api.list(self._store, prefix):
                for found in batch:
                    yield str(found["path"]), int(found["size"])

    def names(self, prefix: str) -> tuple[set[str], set[str]]:
        """Objects and prefixes directly below a prefix, by the last part of their key."""
        with self.errors("list", prefix):
            found = self._api.list_with_delimiter(self._store, prefix or None)
        start = f"{prefix}/" if prefix else ""
        return (
            {str(meta["path"]).removeprefix(start) for meta in found["objects"]},
            {str(path).rstrip("/").removeprefix(start) for path in found["common_prefixes"]},
        )

    # ------------------------------------------------------------------ changing

    def put(self, key: str, data: bytes) -> None:
        with self._change("write", key):
            self._api.put(self._store, key, data, use_multipart=False)

    def put_new(self, key: str, data: bytes | bytearray) -> None:
        """Puts an object whose key is new (If-None-Match). Raises ``OutputExistsError``."""
        with self._change("write", key):
            self._api.put(self._store, key, data, mode="create", use_multipart=False)

    def put_if(self, key: str, data: bytes, tag: str) -> None:
        """Puts an object in place of the one with this ETag (If-Match). Raises ``ChangedError``."""
        from obstore.exceptions import PreconditionError

        with self._change("write", key):
            try:
                self._api.put(self._store, key, data, mode={"e_tag": tag}, use_multipart=False)
            except PreconditionError:
                raise ChangedError from None

    def put_parts(self, key: str, parts: Iterable[Any], part_bytes: int) -> None:
        """Puts an object in parts. It is there once all of them are, and replaces one of that key."""
        with self._change("write", key):
            self._api.put(
                self._store,
                key,
                parts,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=_PARTS_IN_FLIGHT,
            )

    def copy_new(self, source: str, key: str) -> None:
        """Copies within the store to a new key. Raises ``OutputExistsError``."""
        with self._change("write", key):
            self._api.copy(self._store, source, key, overwrite=False)

    def delete(self, key: str) -> None:
        with self._change("delete", key), suppress(FileNotFoundError):
            self._api.delete(self._store, key)

    def delete_if(self, key: str, tag: str) -> int:
        """Deletes an object that has this ETag, by one request that is not repeated, and that obstore only
        signs: it has none with a condition. Returns the status: 2xx or ``GONE``, ``CHANGED``, or that of a
        server that does not know such requests. Raises ``StorageError`` where no answer came: it may
        have been deleted nevertheless."""
        from obstore.exceptions import BaseError

        try:
            address = self._api.sign(self._store, "DELETE", key, _SIGNED_FOR)
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
            raise StorageError(f"cannot delete {self.url}/{key}: {error.code} {error.reason}") from None
        except (OSError, ValueError, HTTPException) as error:
            raise StorageError(f"cannot delete {self.url}/{key}: {error}") from error
        finally:
            Objects.changes = next(_changes)

    @contextmanager
    def _change(self, operation: str, key: str) -> Iterator[None]:
        """As ``errors``, of a request that changes an object; after an error it may have done so, too."""
        try:
            with self.errors(operation, key):
                yield
        finally:
            Objects.changes = next(_changes)

    @property
    def _api(self) -> Any:
        import obstore

        return obstore

    @contextmanager
    def errors(self, operation: str, key: str) -> Iterator[None]:
        """A context that turns an error of obstore into ``StorageError``: what was tried on what, the first
        line of the reason, and what to set. For an answer that is still being read, too: see ``begin``."""
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        try:
            yield
        except AlreadyExistsError as error:
            raise OutputExistsError(
                "the destination has this key already", got=f"{self.url}/{key}"
            ) from error
        except (BaseError, FileNotFoundError) as error:
            reason = str(error).partition("\n")[0]
            repeated = f"The request was repeated for up to {_retry_s():g} s ({RETRY_VARIABLE})"
            if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
                # 403 is also the answer for what is absent where the bucket may not be listed
                hint = (
                    "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their permissions on this bucket "
                    "(s3:GetObject, s3:ListBucket)"
                    if self.is_bucket
                    else "Check the address: nothing is sent by which the server could know who asks"
                )
            elif not self.is_bucket:
                hint = (
                    f"Check the address, and that the server runs and answers requests for ranges. {repeated}"
                )
            elif isinstance(error, FileNotFoundError):
                hint = "Check the name of the bucket: it must exist"
            elif "builder error" in reason:
                hint = "For an endpoint without encryption (http://) set AWS_ALLOW_HTTP=true"
            else:
                hint = f"Check AWS_ENDPOINT_URL and AWS_REGION, and that the server runs. {repeated}"
            raise StorageError(f"cannot {operation} {self.url}/{key}: {reason}", hint=hint) from error


def not_found(path: object) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


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
