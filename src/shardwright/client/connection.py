"""The connection to one daemon (``connect``, ``Connection``), with any number of acquisitions."""

from __future__ import annotations

import secrets
import socket
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakSet, WeakValueDictionary

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import AccessError, ConfigError, SessionLostError, ShardwrightError, SpecError
from shardwright.model.names import MAX_NAME_CHARACTERS, checked_name
from shardwright.model.permissions import how_to_connect, owners, refusing
from shardwright.model.progress_teller import check_on_progress
from shardwright.model.step_lock import ProcessBound, interrupts_package
from shardwright.wire.controls import Open

from .curve import keys_for
from .frame_ring import shared_memory_offered
from .io_thread import IoThread
from .stream import Patience, Stream

if TYPE_CHECKING:
    from types import TracebackType

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.array.spec import ArraySpec
    from shardwright.model.progress_teller import OnProgress
    from shardwright.model.promise import Promise
    from shardwright.wire.controls import Transport, Welcome

    from .curve import Curve, Keys

T = TypeVar("T")
SOFTWARE = "shardwright-python"
GOODBYE_S = 2.0  # for a connection that nobody closed
_LOCAL = "ipc://"


def connect(
    endpoint: str,
    *,
    timeout_ms: int = 10_000,
    transport: Literal["auto", "shm", "message"] = "auto",
    reconnect_timeout_ms: int = 60_000,
    curve: Curve | None = None,
) -> Connection:
    """Connects to the daemon at ``endpoint`` (``tcp://HOST:PORT`` or ``ipc://PATH``); waits at most
    ``timeout_ms``.

    ``transport``: ``"auto"`` takes shared memory where daemon and camera share a machine, else pixels travel
    in the messages. The memory of one stream's frames is then kept for the next one, until the connection is
    closed. ``reconnect_timeout_ms``: when the daemon or the link dies, a new connection is tried for this
    long and every open stream continues; ``append`` waits meanwhile. 0: never; streams then end with
    ``SessionLostError``. ``curve``: the keys for a daemon that demands them over TCP; by default the files
    that ``SHARDWRIGHT_SECRET_KEY`` and ``SHARDWRIGHT_DAEMON_KEY`` name, if set. Ignored for ipc. Raises
    ``SessionLostError`` when no daemon answers, ``AccessError`` when keys do not fit or the socket is not
    open to this user, ``VersionError`` when the daemon speaks another protocol version and ``ConfigError``
    for a bad endpoint or a key file that cannot be used.
    """
    if transport not in ("auto", "shm", "message"):
        raise ConfigError("unknown transport", expected="'auto', 'shm' or 'message'", got=repr(transport))
    if reconnect_timeout_ms < 0:
        raise ConfigError(
            "a reconnect timeout below 0", expected="milliseconds, or 0 for never", got=reconnect_timeout_ms
        )
    return Connection(endpoint, timeout_ms, transport, reconnect_timeout_ms, keys_for(endpoint, curve))


# by endpoint: a daemon that is silent is silent to all connections of this process
_patience_with: WeakValueDictionary[str, Patience] = WeakValueDictionary()


class Connection:
    """A connection made by ``connect``. A context manager; leaving it closes streams that are still open."""

    def __init__(
        self,
        endpoint: str,
        timeout_ms: int,
        transport: Literal["auto", "shm", "message"],
        reconnect_timeout_ms: int,
        keys: Keys | None,
    ) -> None:
        self._process = ProcessBound("connection")
        self._io = IoThread(endpoint, SOFTWARE, reconnect_timeout_ms, keys)
        # A stream keeps its connection, not the other way: one that is forgotten ends by itself. From any
        # thread: ``close`` iterates over a copy.
        self._streams: WeakSet[Stream] = WeakSet()
        self._patience = _patience_with.setdefault(endpoint, Patience())
        self._closed = False
        try:
            self._welcome = self._io.start().result(timeout_ms / 1000)
            self._transport = self._choose_transport(transport)
        except TimeoutError:
            self._io.stop()
            raise no_answer(endpoint, timeout_ms) from None
        except BaseException:
            self._io.stop()
            raise
        self._forgotten = weakref.finalize(self, _leave, self._process, self._io)

    @property
    def daemon(self) -> Welcome:
        """The daemon's WELCOME: its software and its limits."""
        return self._welcome

    def _choose_transport(self, wanted: Literal["auto", "shm", "message"]) -> Transport:
        if wanted == "message" or (wanted == "auto" and not shared_memory_offered(self._welcome)):
            return "message"
        if not shared_memory_offered(self._welcome):
            expected = "a Linux daemon on this machine, its ring socket within reach"
            raise ConfigError(
                "shared memory cannot be used", expected=expected, got=self._welcome.ring_socket
            )
        return "shm"

    def acquire(
        self,
        name: str | None = None,
        spec: ArraySpec | AcquisitionSpec | dict[str, Any] | None = None,
        *,
        stream: str | None = None,
        reopen: bool = False,
        frames_expected: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Stream:
        """Opens the acquisition ``name``, with the array ``spec`` or as the daemon's configuration describes
        ``stream``. One that another program has armed over the daemon's control socket
        (``ControlClient.arm``) is opened as it was armed, without either; with ``stream`` and no name, that
        which is armed for this stream.

        ``reopen``: resumes the unfinished acquisition of that name whose client process died, or goes on with
        the finished one (``sw.resume`` says which can). Frames placed by their count continue at the number
        of frames that the daemon had received; give ``index`` or ``frame_id`` for another place. ``spec`` may
        be left out, and must be the same otherwise.
        ``frames_expected``: how many frames are to come in all, for the progress bar of the status page and
        of ``shardwright status``, and of ``on_progress``; by default what the array's counts say.
        ``on_progress``: as of ``create``; with ``reopen`` frames that were stored before count.

        Raises the daemon's error when it refuses: ``InvalidNameError``, ``UnknownStreamError``,
        ``OutputExistsError``, ``BudgetError``, ``SpecError``, ``StorageError``; without a name
        ``UnknownAcquisitionError`` (the stream is not armed); with ``reopen`` also
        ``ResumeError`` (nothing of that name can go on) and ``LockedError`` (a client is still attached,
        or another process writes it).
        """
        self._process.check_process()
        for given in (name, stream):
            if given is not None and (not isinstance(given, str) or len(given) > MAX_NAME_CHARACTERS):
                # raises: the message could not even be sent; the daemon checks the rest of a name
                checked_name(given)
        if name is None and (stream is None or spec is not None or reopen):
            raise SpecError(
                "an acquisition needs a name", expected="NAME, or stream=... alone, if it is armed"
            )
        if frames_expected is not None and frames_expected < 1:
            raise SpecError(
                "bad number of expected frames", expected="1 or more, or None", got=frames_expected
            )
        check_on_progress(on_progress)
        facts = None if spec is None else parse_acquisition(spec).to_json()
        request = Open(
            self._io.next_request(),
            name or "",
            facts,
            stream,
            self._transport,
            reopen=reopen,
            frames_expected=frames_expected,
            opening=secrets.token_hex(16),
            visible=True,
        )
        link = _answer(self._io.open(request))
        opened = Stream(link, self._streams.discard, self, self._patience, on_progress)
        self._streams.add(opened)
        return opened

    def close(self) -> None:
        """Closes the streams that are still open (waiting for their receipts), then disconnects. Raises the
        first stream's error, if any."""
        self._process.check_process()
        if self._closed:
            return
        self._closed = True
        failed: list[ErrorText] = []
        for stream in list(self._streams):
            try:
                stream.close()
            except ShardwrightError as error:
                failed.append(ErrorText.of(error))
        self._io.stop()
        self._forgotten.detach()
        if failed:
            raise failed[0].to_error()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ShardwrightError as closing:
            if error is None:
                raise
            error.add_note(f"closing the connection also failed: {closing}")


def _leave(process: ProcessBound, io_thread: IoThread) -> None:
    """Disconnects when the last reference to a connection is gone, after its streams, or the interpreter
    ends."""
    if not process.is_forked:
        io_thread.stop(wait_s=0 if interrupts_package() else GOODBYE_S)


def _answer(answer: Promise[T]) -> T:
    """Returns the I/O thread's answer. There always is one: the thread resolves every request when the
    connection is lost."""
    try:
        return answer.result()
    except ShardwrightError:
        raise
    except BaseException:  # Ctrl-C
        answer.cancel()
        raise


def no_answer(endpoint: str, timeout_ms: int) -> AccessError | SessionLostError:
    """Finds why no daemon answered, and returns the error. ZeroMQ retries in silence, whatever the reason; a
    local socket is therefore connected once more, for errno. Call it only at the end of the wait: a starting
    daemon keeps its socket to itself until it gives it to its group."""
    got = None
    if endpoint.startswith(_LOCAL) and hasattr(socket, "AF_UNIX"):
        path = Path(endpoint.removeprefix(_LOCAL))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except PermissionError:
                return AccessError(
                    f"permission denied on {path}", got=owners(refusing(path)), hint=how_to_connect(path)
                )
            except OSError as error:
                got = error.strerror
    expected = f"an answer from {endpoint} within {timeout_ms} ms"
    return SessionLostError(
        "no daemon answered", expected=expected, got=got, hint="Is `shardwright serve` running there?"
    )
