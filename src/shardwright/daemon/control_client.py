"""The client of the control socket. Standard library only, so that commands and the web process stay
light.

A program that is not the camera takes part in an acquisition by it:

    daemon.arm("run-17", stream="cam0")         the camera's next acquire(stream="cam0") takes it up
    daemon.describe("run-17")["images"]         dtype, shape, chunks
    for state in daemon.watch("run-17"): ...    at each change, until the end
    daemon.flush("run-17", "visible")           readers of the files see what has come
    daemon.counts("run-17")["receipt"]          also after the end
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shardwright.model.errors import ProtocolError, SessionLostError, TimedOutError
from shardwright.model.permissions import how_to_connect, owners, refusing

from .control_protocol import MAX_REPLY_BYTES, decode_reply, encode_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardwright.model.write_options import FlushLevel

RUN_FOLDER = Path("/run/shardwright")  # folder of a daemon's sockets, by default
SOCKET_NAME = "control.sock"
_READ_BYTES = 256 << 10

SILENCE_S = 30.0  # of a watch: the daemon repeats its line before
PATIENT_S = 10.0  # for people: they ask how a daemon stands just when its machine is too busy to answer


class ControlClient:
    """A connection that is kept for the next request and made again when the daemon has closed it. One thread
    at a time.

    ``ask`` raises ``SessionLostError`` when no daemon answers at ``path`` or this user may not connect,
    ``TimedOutError`` when one does not answer in time, and the error that the daemon answers with.
    """

    def __init__(self, path: str | os.PathLike[str], timeout_s: float = 2.0) -> None:
        self._path = os.fspath(path)
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._watches = False  # any number of lines answer one request
        self._rest = b""  # that came behind the last one

    def ask(self, do: str, **facts: Any) -> dict[str, Any]:
        """Returns the daemon's reply to one request. Repeats the request where the connection ends before an
        answer, which every request allows."""
        return self._ask(self._timeout_s, do, facts)

    # A program that is not the camera
    # ----------------------------------------------------------------------------------------------------

    def arm(
        self,
        name: str,
        *,
        stream: str | None = None,
        spec: Mapping[str, Any] | None = None,
        frames_expected: int | None = None,
        armed_s: float | None = None,
    ) -> dict[str, Any]:
        """Prepares the acquisition ``name`` for its camera and returns its description, as ``describe``. The
        first camera that opens that name takes it up, or that names ``stream`` alone. ``spec``: the JSON of
        an array or of an acquisition (``to_json``), in place of the stream's own. Disarmed after ``armed_s``
        without a camera (an hour), or by ``stop``. A daemon that comes to the request after ``TimedOutError``
        does not arm it. Raises ``OutputExistsError``, ``LockedError`` where the name or the stream is taken,
        ``AccessError``, ``SpecError``, ``BudgetError``."""
        facts = {"stream": stream, "spec": spec, "frames_expected": frames_expected, "timeout_s": armed_s}
        given = {key: value for key, value in facts.items() if value is not None}
        patience_s = max(self._timeout_s, PATIENT_S)
        given["before_s"] = time.monotonic() + patience_s
        answer = self._ask(patience_s, "arm", {"name": name, **given})
        return dict(answer["description"])

    def describe(self, name: str) -> dict[str, Any]:
        """Returns the description of an armed or open acquisition: ``uri`` of its store, and of each image
        ``name``, ``path``, ``dtype``, ``axes``, ``shape``, ``chunks``, ``shards``, ``frame_shape``."""
        return dict(self.ask("describe", name=name)["description"])

    def counts(self, name: str) -> dict[str, Any]:
        """Returns how far an acquisition has come, or came: ``state``, ``ended``, ``watermark``,
        ``receipt``, ``error``, as in CONTROL.md."""
        return dict(self.ask("counts", name=name)["acquisition"])

    def watch(self, name: str, *, every_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Yields what ``counts`` returns: at once, at each change, but not more often than ``every_s``
        (0.05 s), and now and then without one. The last one has ``ended`` true. It has a connection of its
        own, made again when the daemon has closed it, such as for a reader that was slow. Leave the loop to
        end it. Raises ``UnknownAcquisitionError`` also once it is disarmed, ``SessionLostError`` when the
        daemon is gone, ``TimedOutError`` when it no longer answers."""
        facts = {"name": name, **({} if every_s is None else {"every_s": every_s})}
        with ControlClient(self._path, self._timeout_s) as own:
            own._watches = True
            acquisition = own.ask("watch", **facts)["acquisition"]
            while True:
                yield acquisition
                if acquisition["ended"]:
                    return
                reply = own._next_reply() or own.ask("watch", **facts)
                acquisition = reply["acquisition"]

    def flush(self, name: str, level: FlushLevel = "durable", *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Waits until the frames that have come are ``stored``, ``durable`` or ``visible``; returns the
        watermark. Raises ``VisibilityError`` where only more frames can make them visible,
        ``TimedOutError``."""
        return dict(self._ask(timeout_s, "flush", {"name": name, "level": level})["watermark"])

    def set_metadata(
        self, name: str, attributes: Mapping[str, Any], *, image: str | None = None, timeout_s: float = 60.0
    ) -> None:
        """Adds JSON to the attributes of an open acquisition or an image, durably; as UPDATE of PROTOCOL.md.
        Raises ``UnknownImageError``, ``MetadataError``, ``ClosedError``, ``AccessError``."""
        of = {} if image is None else {"image": image}
        self._ask(timeout_s, "set_metadata", {"name": name, "attributes": dict(attributes), **of})

    def _ask(self, timeout_s: float, do: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        request, until_s = encode_request(do, facts), time.monotonic() + timeout_s
        while True:
            try:
                if self._socket is None:
                    self._socket = self._connected(until_s)
                self._socket.settimeout(_left_s(until_s))
                self._socket.sendall(request)
                line = self._line(self._socket, until_s)
            except (TimeoutError, BlockingIOError):
                self.close()
                raise self._silence(timeout_s) from None
            except (ConnectionResetError, BrokenPipeError, EOFError):
                self.close()  # the daemon closed an idle connection, or had too many
                if time.monotonic() >= until_s:
                    raise self._silence(timeout_s) from None
                time.sleep(0.01)
            except BaseException:
                self.close()
                raise
            else:
                return decode_reply(line)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket, self._rest = None, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self, until_s: float) -> socket.socket:
        if not hasattr(socket, "AF_UNIX"):
            raise SessionLostError(
                "this system has no Unix sockets, which requests to a daemon need",
                hint="Run the command on the daemon's own computer, over ssh.",
            )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Not settimeout: a non-blocking connect would fail at once where the backlog of the socket is
            # full.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(_left_s(until_s)))
            connection.connect(self._path)
        except BlockingIOError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise self._not_connected(error) from None
        return connection

    def _line(self, connection: socket.socket, until_s: float) -> bytes:
        """Returns one line, without its newline. Raises ``EOFError`` when the daemon closes the connection
        before."""
        pieces, length = [self._rest], len(self._rest)
        while True:
            if b"\n" in pieces[-1]:
                line, _, self._rest = b"".join(pieces).partition(b"\n")
                if (rest := self._rest) and not self._watches:
                    raise ProtocolError(
                        "the daemon sent more than one answer",
                        got=repr(rest[:80]),
                        hint=f"Is {self._path} a control socket?",
                    )
                return line
            if length > MAX_REPLY_BYTES:
                raise ProtocolError(
                    "a control reply that is too long", expected=f"at most {MAX_REPLY_BYTES} bytes in a line"
                )
            connection.settimeout(_left_s(until_s))
            piece = connection.recv(_READ_BYTES)
            if not piece:
                raise EOFError
            pieces.append(piece)
            length += len(piece)

    def _next_reply(self) -> dict[str, Any] | None:
        """Returns the next line of a watch; None when the daemon has closed the connection."""
        assert self._socket is not None
        try:
            return decode_reply(self._line(self._socket, time.monotonic() + SILENCE_S))
        except (ConnectionResetError, EOFError):
            self.close()
            return None
        except TimeoutError:
            raise self._silence(SILENCE_S) from None

    def _not_connected(self, error: OSError) -> SessionLostError:
        if error.errno in (errno.EACCES, errno.EPERM):
            path = Path(self._path)
            return SessionLostError(
                f"permission denied on {path}", got=owners(refusing(path)), hint=how_to_connect(path)
            )
        return SessionLostError(
            f"no daemon answers at {self._path}",
            got=error.strerror or str(error),
            hint="Is `shardwright serve` running? Name its configuration or its control socket.",
        )

    def _silence(self, timeout_s: float) -> TimedOutError:
        return TimedOutError(
            f"the daemon at {self._path} did not answer", expected=f"an answer within {timeout_s:g} s"
        )


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _timeval(seconds: float) -> bytes:
    """Packs a time for setsockopt; never zero, which would mean no limit."""
    return struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
