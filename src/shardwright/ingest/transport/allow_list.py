"""The allow list: the clients that may connect over TCP, a folder with the public key NAME.key of each; and
the ZAP handler (RFC 27), which answers ZeroMQ at each CURVE handshake whether the key may connect.

``AllowList.read`` reads the folder in its caller's thread, never in the ingest thread. A list is never
changed, only replaced by a newer one.

The handler answers in the ingest thread, between its messages: a thread of its own (pyzmq's
ThreadAuthenticator) could die or fall behind unseen. An answer is one look into a dictionary, at most
``ANSWERS_A_ROUND`` in a round, and established connections do not wait for it. Without an answer ZeroMQ
refuses the connection, and ends the handshake after its timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils import z85

from shardwright.model.errors import ConfigError, InvalidNameError
from shardwright.model.names import checked_name
from shardwright.wire.key_files import PUBLIC_SUFFIX, read_public_key

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping
    from pathlib import Path

MAX_CLIENTS = 4096
ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # where ZeroMQ sends its requests; one for each context
ZAP_DOMAIN = b"shardwright"
RAW_KEY_BYTES = 32
ANSWERS_A_ROUND = 64
_USER = "User-Id"

State = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True)
class AllowList:
    """The clients that may connect, as a folder of their keys named them when it was read. ``names``: the
    name of the client by its public key, as Z85; the first of two names of one key. ``state``: of the folder,
    just before it was read."""

    folder: Path
    names: Mapping[str, str]
    state: State = ()

    def name_of(self, public_key: str) -> str | None:
        return self.names.get(public_key)

    def names_beyond(self, other: AllowList) -> list[str]:
        """The names of clients whose keys the other list does not have."""
        return sorted(self.names[key] for key in self.names.keys() - other.names.keys())

    @classmethod
    def read(cls, folder: Path) -> AllowList:
        """Reads the folder. Raises ``ConfigError`` naming the folder or file that cannot be used: an
        incomplete list is never used."""
        # The state is older than the list. A key that changes between the two looks makes a difference at the
        # next one, and the folder is read once more; the other way round the change would never be noticed.
        state, names = folder_state(folder), dict[str, str]()
        for path in _key_files(folder):
            key, name = _read(path)
            names.setdefault(key, name)
        return cls(folder, names, state)

    def without_removed(self) -> AllowList:
        """The list for a folder that cannot be read as a whole: no client is added, and one whose key is
        certainly gone is removed. A client's file that cannot be read may be half written."""
        there, unclear = set[str](), set[str]()
        try:
            paths = list(_paths(self.folder))
        except OSError:
            return self
        for path in paths:
            try:
                there.add(_read(path)[0])
            except ConfigError:
                unclear.add(path.name.removesuffix(PUBLIC_SUFFIX))
        return AllowList(
            self.folder,
            {key: name for key, name in self.names.items() if key in there or name in unclear},
            self.state,
        )


@dataclass(frozen=True)
class Access:
    """CURVE on the TCP endpoints: the daemon's secret key, and the clients that may connect at first;
    ``IngestServer.reload_clients`` reads the folder again."""

    secret_key: bytes = field(repr=False)
    clients: AllowList


def folder_state(folder: Path) -> State:
    """A value that differs after a key was added, changed or removed. Raises ``ConfigError``."""
    try:
        facts = [(path.name, path.stat()) for path in _key_files(folder)]
    except OSError as error:
        raise ConfigError(f"cannot read the folder of client keys {folder}", got=error.strerror) from None
    return tuple((name, fact.st_mtime_ns, fact.st_size, fact.st_ino, fact.st_mode) for name, fact in facts)


def _read(path: Path) -> tuple[str, str]:
    """The key in a file, and the name of its client. Raises ``ConfigError``."""
    try:
        name = checked_name(path.name.removesuffix(PUBLIC_SUFFIX))
    except InvalidNameError as error:
        raise ConfigError(f"{path} does not name a client", expected=error.expected, got=error.got) from None
    return read_public_key(path).decode(), name


def _paths(folder: Path) -> Iterator[Path]:
    return (
        path
        for path in folder.iterdir()
        if path.name.endswith(PUBLIC_SUFFIX) and not path.name.startswith(".")
    )


def _key_files(folder: Path) -> list[Path]:
    try:
        mode = folder.stat().st_mode
        files = sorted(_paths(folder))
    except OSError as error:
        raise ConfigError(f"cannot read the folder of client keys {folder}", got=error.strerror) from None
    if mode & 0o002:
        hint = f"`chmod o-w {folder}`"
        raise ConfigError(
            f"every user of this machine may add keys to {folder}",
            expected="a folder that others cannot write to",
            got=f"mode {mode & 0o7777:04o}",
            hint=hint,
        )
    if len(files) > MAX_CLIENTS:
        raise ConfigError(
            f"too many client keys in {folder}", expected=f"at most {MAX_CLIENTS}", got=len(files)
        )
    return files


class ZapHandler:
    """Registers with ``poller`` and answers in ``serve``; before the first TCP endpoint is bound. ``allowed``
    may be replaced by any thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        allowed: AllowList,
        poller: zmq.Poller,
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.allowed = allowed
        self._on_event = on_event
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP_ENDPOINT)
        poller.register(self._socket, zmq.POLLIN)

    def serve(self, ready: Container[Any]) -> None:
        if self._socket not in ready:
            return
        for _ in range(ANSWERS_A_ROUND):
            try:
                request = self._socket.recv_multipart(flags=zmq.NOBLOCK)
            except zmq.Again:
                return
            self._socket.send_multipart(self._answer(request))

    def reload(self) -> dict[str, list[str]]:
        """Reads the folder again, in the calling thread. Returns the names that were added and removed.
        Raises ``ConfigError`` where a file cannot be used: then no client is added, and those whose keys are
        gone are removed all the same."""
        before = self.allowed
        try:
            after = self.allowed = AllowList.read(before.folder)
        except ConfigError:
            # One file that was put there by mistake once kept every key in that was removed afterwards. A
            # removal takes effect at once; an addition waits until the whole folder can be read.
            self.allowed = before.without_removed()
            raise
        return {"added": after.names_beyond(before), "removed": before.names_beyond(after)}

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """[version, request, status, text, user, metadata]; the user becomes the ``User-Id`` of every message
        of the connection."""
        version, number, domain, address, _, mechanism, *credentials = request
        # ZeroMQ has written all of the request but the credentials. The key is checked before it is encoded:
        # an error here would leave the ingest loop, and end the daemon.
        raw = credentials[0] if mechanism == b"CURVE" and len(credentials) == 1 else b""
        public_key = z85.encode(raw).decode() if len(raw) == RAW_KEY_BYTES else ""
        if domain == ZAP_DOMAIN and self.allowed.name_of(public_key) is not None:
            # The user is the key and not its name: a client that gets a new key under the old name must lose
            # the connections of the old one.
            return [version, number, b"200", b"OK", public_key.encode(), b""]
        facts = {
            "address": address.decode("ascii", "replace"),
            "reason": "its key is not on the list",
            "public_key": public_key,
        }
        self._on_event("client_refused", facts)
        return [version, number, b"400", b"key not known", b"", b""]


def public_key_of(frame: zmq.Frame) -> str | None:
    """The public key of the connection that a message came over; None for one without keys."""
    try:
        user = frame.get(_USER)
    except zmq.ZMQError:
        return None
    assert isinstance(user, str)
    return user
