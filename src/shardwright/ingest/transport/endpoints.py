"""Makes ZeroMQ's context and ROUTER and binds sockets: folders for this user alone, sockets of a dead daemon
replaced, those of a live one refused with a clear error."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from shardwright.disk.filesystems import nearest_folder
from shardwright.model.errors import ConfigError
from shardwright.model.permissions import owners, user_name

from .allow_list import ZAP_DOMAIN
from .connection_guard import MAX_STRANGERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardwright.ingest.ingest_settings import IngestSettings

# TCP connections that the kernel keeps until they are accepted, so that a flood does not make an honest
# client retry
BACKLOG = 256
# of ZeroMQ: TCP traffic, handshakes and garbage included, never makes local cameras wait
IO_THREADS = 2
MAX_WAITING = 32  # connections of the ring socket without a request yet
_LOCAL, _TCP = 1, 2  # masks of these threads
_ZERO_COPY_RECV = 10  # of a context: in zmq.h, not in pyzmq
_NOT_BOUND = {
    errno.EACCES: "Ports below 1024 are the system's: choose another one",
    errno.EADDRNOTAVAIL: "This machine has no such address (yet): see `ip address`",
    errno.ENODEV: "This machine has no such address (yet): see `ip address`",
}


def has_curve() -> bool:
    """True if libzmq was built with CURVE."""
    return bool(zmq.has("curve"))


def make_context() -> zmq.Context[Any]:
    """Makes a context in which small parts have memory of their own. Otherwise each part holds the whole
    piece of 8 KiB and more that was read with it, and the frames in flight of a camera with tiny frames take
    a hundred times the admitted memory. Parts longer than such a piece are never copied."""
    context: zmq.Context[Any] = zmq.Context(IO_THREADS)
    context.set(_ZERO_COPY_RECV, 0)
    return context


def make_router(context: zmq.Context[Any]) -> zmq.Socket[bytes]:
    """Makes a ROUTER whose names for connections cannot be guessed. It counts up from C's ``rand``, which has
    no seed by itself, and aborts the process when a client has chosen the next name for itself."""
    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    return router


def bind_router(router: zmq.Socket[bytes], settings: IngestSettings) -> tuple[str, ...]:
    """Binds the ROUTER to all endpoints, those over TCP with CURVE where there is a secret key. Returns them,
    a ``*`` port replaced by the real one. Raises ``ConfigError`` naming the endpoint that cannot be bound;
    the files of those that were bound before it are then removed."""
    # a client that is gone or does not read is an error here, not a silent drop
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
    router.setsockopt(zmq.HANDSHAKE_IVL, settings.handshake_timeout_ms)
    router.setsockopt(zmq.BACKLOG, BACKLOG)
    router.setsockopt(zmq.RCVHWM, 256)  # messages of one client; further ones wait in the client
    router.setsockopt(zmq.SNDHWM, 1000)
    # Options hold for the endpoints that are bound after they are set: local ones first, then those that take
    # only clients with keys.
    router.setsockopt(zmq.AFFINITY, _LOCAL)
    bound: dict[str, str] = {}
    try:
        for endpoint in settings.endpoints:
            if not is_tcp(endpoint):
                bound[endpoint] = _bind(router, endpoint, settings.group)
        router.setsockopt(zmq.AFFINITY, _TCP)
        if settings.access is not None:
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, settings.access.secret_key)
            router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no connection without an answer
        for endpoint in settings.endpoints:
            if is_tcp(endpoint):
                bound[endpoint] = _bind(router, endpoint)
    except BaseException:
        remove_socket_files(bound)
        raise
    return tuple(bound[endpoint] for endpoint in settings.endpoints)


def socket_files(endpoints: Iterable[str]) -> list[Path]:
    """The files of those endpoints that are Unix sockets. ZeroMQ leaves them behind when it closes them."""
    return [Path(each.removeprefix("ipc://")) for each in endpoints if each.startswith("ipc:///")]


def remove_socket_files(bound: Iterable[str]) -> None:
    """Removes the files of bound endpoints, before these are closed: until then no other process can have
    taken a path."""
    for path in socket_files(bound):
        with contextlib.suppress(OSError):
            path.unlink()


def is_tcp(endpoint: str) -> bool:
    return endpoint.startswith("tcp://")


def connection_descriptors(endpoints: Iterable[str], max_connections: int) -> int:
    """The most open files of all connections: clients, those that wait for rings, and over TCP strangers and
    those that the kernel has not handed out yet."""
    strangers = MAX_STRANGERS + BACKLOG if any(map(is_tcp, endpoints)) else 0
    return max_connections + MAX_WAITING + strangers


def _bind(router: zmq.Socket[bytes], endpoint: str, group: str | None = None) -> str:
    path = next(iter(socket_files([endpoint])), None)
    if path is not None:
        _make_way(path, group)
    try:
        with _for_this_user():
            router.bind(endpoint)
    except zmq.ZMQError as error:
        in_use = error.errno == zmq.EADDRINUSE
        hint = (
            "Another program listens there; is a daemon already running?"
            if in_use
            else _NOT_BOUND.get(error.errno or 0)
        )
        raise ConfigError(
            f"cannot bind {endpoint}", expected="an endpoint that is free", got=str(error), hint=hint
        ) from None
    if path is not None:
        try:
            _share(path, 0o660, group)
        except ConfigError:
            remove_socket_files([endpoint])
            raise
    last = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(last, bytes)
    return last.rstrip(b"\0").decode()


def bind_unix_listener(path: Path, group: str | None = None) -> socket.socket:
    """A non-blocking Unix stream listener at ``path``, for this user and the members of ``group``."""
    _make_way(path, group)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _for_this_user():
            listener.bind(str(path))
        listener.listen(64)
        listener.setblocking(False)
        _share(path, 0o660, group)
    except ConfigError:  # it cannot be shared
        path.unlink(missing_ok=True)
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot bind {path}",
            expected="a Unix socket path of at most 107 bytes that is free",
            got=str(error),
        ) from None
    return listener


@contextlib.contextmanager
def _for_this_user() -> Iterator[None]:
    """Makes sockets for this user alone, whatever the umask and the folder; a group gets access later."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _share(path: Path, mode: int, group: str | None) -> None:
    """Gives a socket or folder of ours to a group."""
    if group is None:
        return
    try:
        shutil.chown(path, group=group)
        path.chmod(mode)
    except (LookupError, ValueError):  # ValueError: a NUL in it
        raise ConfigError("no such group on this machine", got=group) from None
    except OSError as error:
        hint = "Run the daemon as root or as a member of that group"
        raise ConfigError(f"cannot give {path} to the group {group}", got=error.strerror, hint=hint) from None


def _make_way(path: Path, group: str | None) -> None:
    """Makes the folder, and removes a socket without a listener. (ZeroMQ would take over a live one
    silently.)"""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _share(path.parent, 0o750, group)
        if not path.exists():
            return
        if not path.is_socket():
            hint = "Remove it or choose another path"
            raise ConfigError(
                f"cannot bind {path}",
                expected="a free path or a socket",
                got="another kind of file",
                hint=hint,
            )
        if _remove_dead_socket(path):
            return
        raise ConfigError(
            f"{path} is in use",
            expected="a socket without a listener",
            got="a live one",
            hint="Is a daemon already running?",
        )
    except OSError as error:
        raise ConfigError(f"cannot prepare {path}", got=error.strerror, hint=_way_out(path, error)) from None


def _remove_dead_socket(path: Path) -> bool:
    """Removes a Unix socket whose daemon is dead; returns False if a process listens on it. Raises
    ``OSError``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return True
    return False


def _way_out(path: Path, error: OSError) -> str:
    """The hint where a socket's folder cannot be made or used."""
    if not isinstance(error, PermissionError):
        return "Choose another path for it"
    user, folder, found = user_name(os.geteuid()), path.parent, owners(nearest_folder(path.parent))
    again = ", at each boot (in a service: RuntimeDirectory=)" if folder.is_relative_to("/run") else ""
    return (
        f"Found {found}. As root: install -d -o {user} {folder}{again}; or choose a path in a folder "
        f"that {user} may write to"
    )
