"""A writer in a process of its own that does what it is told, one call a message, until it ends or is
killed."""

from __future__ import annotations

import errno
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.harness.writing import how

from shardwright.disk import failpoints
from shardwright.model.errors import LayoutWarning, ShardwrightError
from shardwright.writer.in_process import create, resume

from .kills.processes import Created, Refused, Said, kill_at
from .kills.scenes import metadata_of, pixels_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fork_server import Channel, Child, ForkServer

    import shardwright as sw
    from shardwright.writer.writer import Writer

PREALLOCATES = "shard.before_preallocate"


class Died(Exception):  # noqa: N818  (no error: it is what the test asked for)
    """The puppet was killed before it answered."""


@dataclass(frozen=True)
class Append:
    """Order: ``number`` is the frame's own."""

    index: tuple[int, ...]
    seed: int
    frame_id: int


@dataclass(frozen=True)
class Flush:
    """Order: wait for durable."""


@dataclass(frozen=True)
class Tell:
    """Order: say the watermark."""


@dataclass(frozen=True)
class Finish:
    """Order: close; the answer is the receipt as a dictionary."""


@dataclass(frozen=True)
class DieAt:
    """Order: be killed at the n-th storage call from now on."""

    call: int


@dataclass(frozen=True)
class FillDisk:
    """Order: from now on no shard can be preallocated."""


def puppet(channel: Channel, path: Path, spec: sw.ArraySpec, io: str, fresh: bool) -> None:
    """Creates or resumes, then obeys. Answers every order with ``Said``, a receipt or ``Refused``."""
    warnings.simplefilter("ignore", LayoutWarning)
    settings: dict[str, Any] = {
        "threads": 1,
        "store_within_ms": 1,
        "sync_interval_ms": 2,
        "on_duplicate": "count",
    }
    try:
        writer = create(path, spec, **how(io=io, **settings)) if fresh else resume(path, **how(**settings))
        channel.send(Created(writer.watermark.stored, 0 if fresh else writer.frames))
    except ShardwrightError as error:
        channel.send(Refused(error.code, str(error)))
        return
    while (order := channel.receive()) is not None:
        try:
            channel.send(_obey(writer, order))
        except ShardwrightError as error:
            channel.send(Refused(error.code, str(error)))


def _obey(writer: Writer, order: Any) -> Any:
    match order:
        case Append():
            facts = {"frame_id": order.frame_id, "metadata": metadata_of(writer.spec, order.seed)}
            writer.append(pixels_of(writer.spec, order.seed), index=order.index, **facts)
        case Flush():
            writer.flush()
        case Finish():
            return writer.close().to_dict()
        case DieAt():
            kill_at(order.call)
        case FillDisk():
            failpoints.set_hook(PREALLOCATES, _no_space)
    watermark = writer.watermark
    return Said(0, watermark.stored, watermark.durable)


def _no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Strings:
    """The hand that moves the puppet. ``told`` is its first word."""

    def __init__(self, server: ForkServer, *arguments: Any) -> None:
        self._child: Child = server.start(puppet, *arguments)
        self.told = self._child.channel.receive()

    def order(self, order: Any) -> Any:
        """Raises ``Died`` when there is no answer any more."""
        try:
            self._child.channel.send(order)
        except (BrokenPipeError, ConnectionResetError):
            raise Died from None
        answer = self._child.channel.receive()
        if answer is None:
            raise Died
        return answer

    def cut(self) -> int:
        """SIGKILL; returns the exit code."""
        self._child.kill()
        return self._child.wait()
