"""The JSON bodies of control messages as frozen records: ``to_body`` makes a body to send, ``from_body``
checks a received one.

PROTOCOL.md describes every field. Every length is bounded: a field of another type, or one that is too long,
raises ``ProtocolError``, which names the field.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_type_hints

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ProtocolError
from shardwright.model.receipt import Receipt
from shardwright.model.write_options import Durability, Extent, FlushLevel

from .messages import MAX_IMAGES

if TYPE_CHECKING:
    from collections.abc import Callable

Transport = Literal["shm", "message"]
Overload = Literal["block", "drop", "fail"]
MAX_MISSING_RANGES = 1024  # of one OPENED
MAX_UPDATES = 64  # of metadata in one session, sent and not answered
_HEX_32 = re.compile(r"[0-9a-f]{32}")


def _wrong(key: str, expected: str, got: object) -> ProtocolError:
    return ProtocolError(f"field {key!r} of a control body", expected=expected, got=repr(got)[:80])


def text(body: dict[str, Any], key: str, limit: int = 1024) -> str:
    value = body.get(key)
    if not isinstance(value, str) or len(value) > limit:
        raise _wrong(key, f"text of at most {limit} characters", value)
    return value


def optional_text(body: dict[str, Any], key: str, limit: int = 1024) -> str | None:
    return None if body.get(key) is None else text(body, key, limit)


def number(body: dict[str, Any], key: str, low: int = 0, high: int = 2**63 - 1) -> int:
    value = body.get(key)
    # Not ``isinstance``: true is an int to Python, and no number to any other client.
    if type(value) is not int or not low <= value <= high:
        raise _wrong(key, f"an integer from {low} to {high}", value)
    return value


def optional_number(body: dict[str, Any], key: str) -> int | None:
    return None if body.get(key) is None else number(body, key)


def optional_boolean(body: dict[str, Any], name: str) -> bool:
    return False if body.get(name) is None else boolean(body, name)


def boolean(body: dict[str, Any], key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return value


def one_of(body: dict[str, Any], key: str, values: tuple[str, ...]) -> Any:
    value = body.get(key)
    if not isinstance(value, str) or value not in values:
        raise _wrong(key, f"one of {', '.join(values)}", value)
    return value


def ranges(body: dict[str, Any], key: str, most: int, *, below: int) -> tuple[tuple[int, int], ...]:
    """Returns a list of at most ``most`` pairs [first, last], both included, ascending and disjoint, all
    ``below`` a number."""
    value = body.get(key)
    expected = f"at most {most} pairs of ascending integers from 0 to {below - 1}"
    if not isinstance(value, list) or len(value) > most:
        raise _wrong(key, expected, value)
    free = 0
    for pair in value:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair)
        if not is_pair or not free <= pair[0] <= pair[1] < below:
            raise _wrong(key, expected, pair)
        free = pair[1] + 1
    return tuple((first, last) for first, last in value)


def mapping(body: dict[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict):
        raise _wrong(key, "an object", value)
    return value


def optional_mapping(body: dict[str, Any], key: str) -> dict[str, Any] | None:
    return None if body.get(key) is None else mapping(body, key)


def _identity(body: dict[str, Any], key: str) -> str:
    value = text(body, key, 32)
    if not _HEX_32.fullmatch(value):
        raise ProtocolError("not an acquisition's identity", expected="32 hex digits", got=repr(value))
    return value


def _optional_token(body: dict[str, Any], key: str) -> str | None:
    value = optional_text(body, key, 32)
    if value is not None and not _HEX_32.fullmatch(value):
        raise ProtocolError(f"{key} is no token", expected="32 hex digits", got=repr(value))
    return value


def _images(body: dict[str, Any], key: str) -> tuple[Any, ...]:
    """Returns a list of images as JSON, each its name or an object."""
    value = [] if body.get(key) is None else body[key]
    if (
        not isinstance(value, list)
        or len(value) > MAX_IMAGES
        or not all(isinstance(each, str | dict) for each in value)
    ):
        raise _wrong(key, f"a list of at most {MAX_IMAGES} names and objects", value)
    return tuple(value)


def _missing(body: dict[str, Any], key: str) -> tuple[tuple[int, int], ...]:
    return ranges(body, key, MAX_MISSING_RANGES, below=number(body, "next_sequence"))


def _resume(body: dict[str, Any], key: str) -> Resume | None:
    resume = optional_mapping(body, key)
    return None if resume is None else Resume.from_body(resume)


def _choice(values: Any) -> Callable[[dict[str, Any], str], Any]:
    return partial(one_of, values=get_args(values))


_Number = Annotated[int, number]
_Above0 = Annotated[int, partial(number, low=1)]
_Slots = Annotated[int, partial(number, low=1, high=2**31 - 1)]
_Epoch = Annotated[int, partial(number, low=1, high=2**32 - 1)]
_Text = Annotated[str, text]
_Software = Annotated[str, partial(text, limit=128)]
_OptionalText = Annotated[str | None, optional_text]
_Flag = Annotated[bool, optional_boolean]  # which earlier releases do not send
_Mapping = Annotated[dict[str, Any], mapping]
_Token = Annotated[str | None, _optional_token]
_Identity = Annotated[str, _identity]
_Transport = Annotated[Transport, _choice(Transport)]


class _ControlBody:
    """A body of plain fields. Each has, in its annotation, the function that reads and checks it."""

    def to_body(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self:
        readers = _readers(cls)  # type: ignore[arg-type]  # a class is hashable
        return cls(**{name: read(body, name) for name, read in readers.items()})


@cache
def _readers(kind: type) -> dict[str, Callable[[dict[str, Any], str], Any]]:
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(kind, include_extras=True).items()}


@dataclass(frozen=True)
class Hello(_ControlBody):
    software: _Software
    host: Annotated[str, partial(text, limit=255)]
    pid: _Number


@dataclass(frozen=True)
class Welcome(_ControlBody):
    """The answer to a HELLO. ``boot_id`` and ``ring_socket`` are None if the daemon offers no shared memory.
    ``instance`` (32 hex digits) is of this process of the daemon, which knows an OPEN that comes again; None:
    it does not."""

    boot_id: Annotated[str | None, partial(optional_text, limit=64)]
    ring_socket: _OptionalText
    heartbeat_ms: Annotated[int, partial(number, low=1, high=3_600_000)]
    session_timeout_ms: Annotated[int, partial(number, low=1, high=24 * 3_600_000)]
    max_message_bytes: _Above0
    max_control_bytes: _Above0
    max_batch_frames: _Above0
    software: _Software
    resume_timeout_ms: _Number  # the time in which a lost client may resume its acquisitions
    updates: _Flag = False  # whether it takes UPDATE; earlier releases do not
    adds_images: _Flag = False  # likewise ADD_IMAGE
    flush_levels: _Flag = False  # likewise FLUSH_TO
    declares: _Flag = False  # whether it takes FRAME_SKIPPED, and the extent of FINISH
    removes: _Flag = False  # likewise an UPDATE that removes names, or adds to ``ome``
    instance: _Token = None


@dataclass(frozen=True)
class Resume(_ControlBody):
    """A client resumes its own acquisition: ``next_sequence`` is that of the first frame that it has not sent
    yet."""

    acquisition: _Identity
    client_epoch: _Epoch
    next_sequence: _Number
    ring_slots: _Slots


@dataclass(frozen=True)
class Open(_ControlBody):
    """The OPEN request: ``spec`` (an ArraySpec as JSON) or ``stream`` (a name from the daemon's
    configuration) gives the array.

    ``resume``: resumes the client's own acquisition after the daemon or the link was lost. ``reopen``: takes
    over what another client left unfinished. ``frames_expected``: how many frames the acquisition is to have
    in the end, for a progress bar; None: not known. ``opening`` (32 hex digits): the client's token of this
    OPEN, by which the daemon knows it when it comes again over another connection. ``visible``: the client
    takes VISIBLE.
    """

    request: _Number
    name: _Text
    spec: Annotated[dict[str, Any] | None, optional_mapping]
    stream: _OptionalText
    transport: _Transport
    resume: Annotated[Resume | None, _resume] = None
    reopen: _Flag = False
    frames_expected: Annotated[int | None, optional_number] = None
    opening: _Token = None
    visible: _Flag = False

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self:
        opening = super().from_body(body)
        if opening.resume is not None and opening.reopen:
            raise ProtocolError("an OPEN that resumes and reopens", expected="at most one of them")
        return opening


@dataclass(frozen=True)
class Opened(_ControlBody):
    """The answer to an OPEN. ``ring_token`` (32 hex digits) fetches the ring once; None for message
    transport.

    ``next_sequence``: of the first new frame. ``missing``: (first, last) ranges below it that the client must
    send again before that. ``added_images``: with the numbers behind those of ``spec``, as JSON; none from a
    daemon that takes no ADD_IMAGE.
    """

    request: _Number
    path: Annotated[str, partial(text, limit=65536)]
    spec: _Mapping
    transport: _Transport
    credit_bytes: _Above0
    ring_slots: _Slots
    slot_bytes: _Above0
    ring_token: Annotated[str | None, partial(optional_text, limit=32)]
    acquisition: _Identity
    client_epoch: _Epoch
    next_sequence: _Number
    missing: Annotated[tuple[tuple[int, int], ...], _missing]
    overload: Annotated[Overload, _choice(Overload)]
    durability: Annotated[Durability, _choice(Durability)]
    added_images: Annotated[tuple[Any, ...], _images] = ()

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self:
        opened = super().from_body(body)
        token_needed = opened.transport == "shm"
        if (opened.ring_token is not None) != token_needed or (
            opened.ring_token is not None and not _HEX_32.fullmatch(opened.ring_token)
        ):
            expected = "32 hex digits for shm, none for message"
            raise ProtocolError(
                "a ring token that does not fit the transport", expected=expected, got=repr(opened.ring_token)
            )
        return opened


@dataclass(frozen=True)
class Finish:
    """The end of a stream, from its client: no more frames follow. ``claimed``: slots of the ring into which
    a driver may still write, although their frames are given up: no other stream may use them. ``extent``:
    of each array along its first axis."""

    frames: int
    claimed: int = 0
    extent: Extent = "frames"

    def to_body(self) -> dict[str, Any]:
        # Left out where there are none, as by clients that know no claims: both are the same message.
        claimed = {"claimed": self.claimed} if self.claimed else {}
        return {
            "frames": self.frames,
            **claimed,
            **({"extent": self.extent} if self.extent != "frames" else {}),
        }

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Finish:
        extent: Extent = "frames"
        if body.get("extent") is not None:
            extent = one_of(body, "extent", get_args(Extent))
        return cls(number(body, "frames"), optional_number(body, "claimed") or 0, extent)


@dataclass(frozen=True)
class Update(_ControlBody):
    """Metadata of the store (``image`` None) or of an image. ``request``: the client's number, counted from 0
    in a stream."""

    request: _Number
    image: _OptionalText
    attributes: _Mapping


@dataclass(frozen=True)
class AddImage(_ControlBody):
    """An image to add: ``image`` as JSON. ``known``: how many images its client knows. ``request`` as that of
    an UPDATE."""

    request: _Number
    known: _Number
    image: _Mapping


@dataclass(frozen=True)
class FlushTo(_ControlBody):
    """A flush of the frames that came before it. ``request`` as that of an UPDATE."""

    request: _Number
    level: Annotated[FlushLevel, _choice(FlushLevel)]


@dataclass(frozen=True)
class Visible:
    """The number of frames that readers of the files see. ``images``: by number, those of images of which
    more are seen than was told before; none of a single image."""

    frames: int
    images: dict[int, int]

    def to_body(self) -> dict[str, Any]:
        images = {str(image): count for image, count in self.images.items()}
        return {"frames": self.frames, **({"images": images} if images else {})}

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Visible:
        images = optional_mapping(body, "images") or {}
        known = {str(image) for image in range(MAX_IMAGES)} if images else set()
        if not images.keys() <= known:
            raise ProtocolError(
                "field 'images' of a control body", expected="counts by the number of an image", got=images
            )
        return cls(number(body, "frames"), {int(image): number(images, image) for image in images})


@dataclass(frozen=True)
class Updated:
    """The answer to an UPDATE or an ADD_IMAGE: what it says is durable, or ``error`` says why it changed
    nothing; to a FLUSH_TO: its level is reached, or ``error`` says why it will not be. ``images``: to an
    ADD_IMAGE, all that its client did not know, in the order of their numbers; None to others."""

    request: int
    error: ErrorText | None
    images: tuple[Any, ...] | None = None

    def to_body(self) -> dict[str, Any]:
        images = {} if self.images is None else {"images": list(self.images)}
        error = None if self.error is None else _error_body(self.error)
        return {"request": self.request, "error": error, **images}

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Updated:
        error = optional_mapping(body, "error")
        return cls(
            number(body, "request"),
            None if error is None else _error_from_body(error),
            None if body.get("images") is None else _images(body, "images"),
        )


@dataclass(frozen=True)
class Problem:
    """An ERROR body. ``fatal``: the session (session 0: the connection) has ended. ``first``, ``last``: the
    frame sequences concerned."""

    error: ErrorText
    fatal: bool
    request: int | None = None
    first: int | None = None
    last: int | None = None
    receipt: Receipt | None = None

    def to_body(self) -> dict[str, Any]:
        facts = _error_body(self.error)
        more = {"request": self.request, "first": self.first, "last": self.last}
        more_facts = {key: value for key, value in more.items() if value is not None}
        receipt = {} if self.receipt is None else {"receipt": self.receipt.to_dict()}
        return {**facts, "fatal": self.fatal, **more_facts, **receipt}

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Problem:
        receipt = optional_mapping(body, "receipt")
        return cls(
            error=_error_from_body(body),
            fatal=boolean(body, "fatal"),
            request=optional_number(body, "request"),
            first=optional_number(body, "first"),
            last=optional_number(body, "last"),
            receipt=None if receipt is None else receipt_from_body(receipt),
        )


def _error_body(error: ErrorText) -> dict[str, str]:
    """Returns its texts, cut to what the peer accepts, so that an error can always be reported."""
    return {key: value[:1000] for key, value in error.to_dict().items()}


def _error_from_body(body: dict[str, Any]) -> ErrorText:
    facts = {key: optional_text(body, key) for key in ("expected", "got", "hint")}
    return ErrorText.from_dict({"code": text(body, "code"), "message": text(body, "message"), **facts})


def receipt_from_body(facts: dict[str, Any]) -> Receipt:
    try:
        return Receipt.from_dict(facts)
    # A JSON number may be infinity to Python, of which ``int`` raises ``OverflowError``. What a peer says
    # raises nothing but ``ProtocolError``.
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(
            "a receipt that cannot be read", expected="the fields of model/receipt.py", got=repr(error)[:80]
        ) from None
