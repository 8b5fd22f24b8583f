"""The client of the control socket. Standard library only, so that commands and the web process stay
light."""

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
    from types import TracebackType

RUN_FOLDER = Path("/run/shardwright")  # folder of a daemon's sockets, by default
SOCKET_NAME = "control.sock"
_READ_BYTES = 256 << 10

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

    def ask(self, do: str, **facts: Any) -> dict[str, Any]:
        """Returns the daemon's reply to one request. Repeats the request where the connection ends before an
        answer, which every request allows."""
        request, until_s = encode_request(do, facts), time.monotonic() + self._timeout_s
        while True:
            try:
                if self._socket is None:
                    self._socket = self._connected(until_s)
                self._socket.settimeout(_left_s(until_s))
                self._socket.sendall(request)
                line = self._line(self._socket, until_s)
            except (TimeoutError, BlockingIOError):
                self.close()
                raise self._silence() from None
            except (ConnectionResetError, BrokenPipeError, EOFError):
                self.close()  # the daemon closed an idle connection, or had too many
                if time.monotonic() >= until_s:
                    raise self._silence() from None
                time.sleep(0.01)
            except BaseException:
                self.close()
                raise
            else:
                return decode_reply(line)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        pieces, length = [], 0
        while True:
            connection.settimeout(_left_s(until_s))
            piece = connection.recv(_READ_BYTES)
            if not piece:
                raise EOFError
            pieces.append(piece)
            length += len(piece)
            if b"\n" in piece:
                line, _, rest = b"".join(pieces).partition(b"\n")
                if rest:
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

    def _silence(self) -> TimedOutError:
        return TimedOutError(
            f"the daemon at {self._path} did not answer", expected=f"an answer within {self._timeout_s:g} s"
        )


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _timeval(seconds: float) -> bytes:
    """Packs a time for setsockopt; never zero, which would mean no limit."""
    return struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
