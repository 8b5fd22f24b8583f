"""Every error that crosses a border of shardwright.

Each class has a stable ``code``, which is sent in ERROR messages of the wire protocol and appears in
``--json`` output and logs, so that a client can raise the same class as the daemon. A message says what was
expected, what came, and what to do next.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypedDict, Unpack


class ErrorFacts(TypedDict, total=False):
    """The arguments that every error takes beside its message."""

    expected: object
    got: object
    hint: str | None


class ShardwrightError(Exception):
    """The base class. ``expected`` and ``got`` are short, printable facts; ``hint`` says what to do next.
    ``others``: what else is wrong with the same input, each as of ``to_dict``."""

    code: ClassVar[str] = "internal"
    others: tuple[dict[str, Any], ...] = ()

    def __init__(
        self, message: str, *, expected: object = None, got: object = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.expected = None if expected is None else str(expected)
        self.got = None if got is None else str(got)
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.got is not None:
            parts.append(f"got {self.got}")
        text = "; ".join(parts)
        return f"{text}. {self.hint}" if self.hint else text

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON-ready form: ``code``, ``message`` and, if known, ``expected``, ``got``, ``hint``,
        ``others``."""
        facts = {
            "code": self.code,
            "message": self.message,
            "expected": self.expected,
            "got": self.got,
            "hint": self.hint,
            "others": list(self.others) or None,
        }
        return {key: value for key, value in facts.items() if value is not None}


class LayoutWarning(UserWarning):
    """A layout that can be written, but that some readers or validators do not accept (the message names
    them), or that is slow."""


class PartialWriteWarning(UserWarning):
    """A write of a part of a large shard for which all of the shard was written anew (the message has the
    bytes of both)."""


class SpecError(ShardwrightError, ValueError):
    """An array specification that cannot be written."""

    code = "spec"


class ConfigError(ShardwrightError, ValueError):
    """A YAML configuration that cannot work; the message names the field and, where known, its line."""

    code = "config"


class AddressError(ShardwrightError):
    """A socket that cannot be bound, or not be given to its group: its address is taken, or it is not yet an
    address or a group of this machine. The same configuration may work a moment later."""

    code = "address"


class FrameShapeError(ShardwrightError, ValueError):
    code = "frame_shape"


class FrameDtypeError(ShardwrightError, TypeError):
    code = "frame_dtype"


class FrameIndexError(ShardwrightError, IndexError):
    """A frame index or id outside the array."""

    code = "frame_index"


class UnknownImageError(FrameIndexError):
    """An image that the acquisition does not have."""

    code = "unknown_image"


class DuplicateFrameError(ShardwrightError, ValueError):
    """A frame came for a place that another frame has; the first one is kept."""

    code = "duplicate_frame"


class MetadataError(ShardwrightError, ValueError):
    """Metadata that are no JSON, are too long, or have no field of the frame table."""

    code = "metadata"


class InvalidNameError(ShardwrightError, ValueError):
    """An acquisition name that is not a plain file name."""

    code = "invalid_name"


class UnknownStreamError(ShardwrightError, LookupError):
    code = "unknown_stream"


class UnknownAcquisitionError(ShardwrightError, LookupError):
    """No acquisition of this name is open."""

    code = "unknown_acquisition"


class OutputExistsError(ShardwrightError, FileExistsError):
    code = "output_exists"


class BudgetError(ShardwrightError, MemoryError):
    """The memory budget (or a count limit) has no room for the request. ``short_of``: what there is too
    little of; not sent to a peer."""

    code = "budget"

    def __init__(
        self,
        message: str,
        *,
        short_of: Literal["memory", "ring_frames", "descriptors"] = "memory",
        **facts: Unpack[ErrorFacts],
    ) -> None:
        super().__init__(message, **facts)
        self.short_of = short_of


class ProtocolError(ShardwrightError):
    """The peer sent something that the protocol does not allow."""

    code = "protocol"


class VersionError(ProtocolError):
    """The peer uses a protocol version that this side does not support."""

    code = "version"


class AccessError(ShardwrightError, PermissionError):
    """Client and daemon do not have each other's keys, or one of them uses keys and the other does not."""

    code = "access"


class SessionLostError(ShardwrightError, ConnectionError):
    """The other side of a session stopped answering or ended it."""

    code = "session_lost"


class TimedOutError(ShardwrightError, TimeoutError):
    """An answer or event did not come in time; it may still come."""

    code = "timed_out"


class ClosedError(ShardwrightError, ValueError):
    """A frame was given to a writer or stream that has ended."""

    code = "closed"


class NestedCallError(ShardwrightError, RuntimeError):
    """A signal handler or a finalizer called a writer or stream in the middle of a step that it interrupted
    in the same thread. Nothing was done."""

    code = "nested_call"


class ForkedError(ShardwrightError, RuntimeError):
    """A writer, stream or connection was used in a forked child of the process that made it."""

    code = "forked"


class StorageError(ShardwrightError, OSError):
    """An operation of the filesystem failed; the message has the operation, the path and errno's text.
    ``in_sync``: it was the sync of a file. What was to be written may be in memory alone, on a full disk
    too."""

    code = "storage"

    def __init__(self, message: str, *, in_sync: bool = False, **facts: Unpack[ErrorFacts]) -> None:
        super().__init__(message, **facts)
        self.in_sync = in_sync
        self.strerror = message  # who catches any ``OSError`` tells of it by this


class VisibilityError(ShardwrightError):
    """Frames that readers of the files do not see, and will not before more frames come or the store ends."""

    code = "visibility"


class LinkError(StorageError):
    """A symbolic link where a file or folder of a store must be. It is not followed, and stays."""

    code = "link"


class StorageFullError(StorageError):
    """There is no room to preallocate the next shard."""

    code = "storage_full"


class LockedError(ShardwrightError, BlockingIOError):
    """Another writer holds this output; the message names it."""

    code = "locked"


class FencedError(ShardwrightError):
    """Another writer (or client) has taken this acquisition over; this one must not write what it still
    holds."""

    code = "fenced"


class StoreGoneError(ShardwrightError):
    """The folder of a store was deleted or moved while it was recorded."""

    code = "store_gone"


class StoreMovedError(StoreGoneError):
    """The folder of a store was moved while it was recorded: stored frames are under its new path."""

    code = "store_moved"


class ShardChangedError(StorageError):
    """A shard was replaced or changed by another process after it was read."""

    code = "shard_changed"


class StoreChangingError(StorageError):
    """A store whose files its writers replaced again and again while it was read: try again."""

    code = "store_changing"


class StrategyError(ShardwrightError, ValueError):
    """A shard that cannot be changed by the strategy that was asked for."""

    code = "strategy"


class OverloadError(ShardwrightError):
    """The writer could not keep up, and the stream's policy is to fail; or a client asked for more at once
    than the protocol allows."""

    code = "overload"


class ResumeError(ShardwrightError):
    """An acquisition that cannot be resumed."""

    code = "resume"


class StreamUnclearError(ResumeError):
    """Several streams may be the one of an unfinished acquisition, and nothing says which."""

    code = "stream_unclear"


class LostFramesError(ShardwrightError):
    """Frames that were taken in could not be kept; the frame table lists each with the reason."""

    code = "lost_frames"


class ShardFormatError(ShardwrightError, ValueError):
    """A shard or store whose bytes do not follow the format."""

    code = "shard_format"


class FormatVersionError(ShardFormatError):
    """An undamaged file of a format version that this release does not read. It is left unchanged."""

    code = "format_version"


class CodecError(ShardwrightError):
    """The native codec library is missing or lacks a symbol, or zarr-python cannot encode a chunk."""

    code = "codec"


class ValuesChangedError(CodecError):
    """Codecs do not give back the values that they have encoded. Nothing is stored."""

    code = "values_changed"


class InterruptedJobError(ShardwrightError):
    """A signal ended a long job before it was done. What it had finished stays."""

    code = "interrupted"


class WorkerError(ShardwrightError, RuntimeError):
    """A thread of the pipeline died; the frames that it held are not stored."""

    code = "worker"


def _all_subclasses(base: type[ShardwrightError]) -> list[type[ShardwrightError]]:
    found = [base]
    for child in base.__subclasses__():
        found.extend(_all_subclasses(child))
    return found


_BY_CODE = {cls.code: cls for cls in _all_subclasses(ShardwrightError)}


def error_from_dict(facts: dict[str, Any]) -> ShardwrightError:
    """Returns the error that ``to_dict`` described; a plain ``ShardwrightError`` for an unknown code."""
    cls = _BY_CODE.get(str(facts.get("code")), ShardwrightError)
    return cls(
        str(facts.get("message", "unknown error")),
        expected=facts.get("expected"),
        got=facts.get("got"),
        hint=facts.get("hint"),
    )
