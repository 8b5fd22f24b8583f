"""The JSON bodies of control messages as frozen records: ``to_body`` makes a body to send, ``from_body``
checks a received one.

PROTOCOL.md describes every field. Every length is bounded: a field of another type, or one that is too long,
raises ``ProtocolError``, which names the field.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from shardwright.model.error_text import ErrorText
from shardwright.model.errors import ProtocolError
from shardwright.model.receipt import Receipt
from shardwright.model.write_options import Extent, FlushLevel

from .messages import MAX_IMAGES

Transport = Literal["shm", "message"]
Overload = Literal["block", "drop", "fail"]
Durability = Literal["stored", "durable"]
MAX_MISSING_RANGES = 1024  # of one OPENED
MAX_UPDATES = 64  # of metadata in one session, sent and not answered
_HEX_32 = re.compile(r"[0-9a-f]{32}")


class _ControlBody:
    def to_body(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]


def _identity(body: dict[str, Any]) -> str:
    value = text(body, "acquisition", 32)
    if not _HEX_32.fullmatch(value):
        raise ProtocolError("not an acquisition's identity", expected="32 hex digits", got=repr(value))
    return value


def _optional_token(body: dict[str, Any], key: str) -> str | None:
    value = optional_text(body, key, 32)
    if value is not None and not _HEX_32.fullmatch(value):
        raise ProtocolError(f"{key} is no token", expected="32 hex digits", got=repr(value))
    return value


@dataclass(frozen=True)
class Hello(_ControlBody):
    software: str
    host: str
    pid: int

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Hello:
        return cls(text(body, "software", 128), text(body, "host", 255), number(body, "pid"))


@dataclass(frozen=True)
class Welcome(_ControlBody):
    """The answer to a HELLO. ``boot_id`` and ``ring_socket`` are None if the daemon offers no shared memory.
    ``instance`` (32 hex digits) is of this process of the daemon, which knows an OPEN that comes again; None:
    it does not."""

    boot_id: str | None
    ring_socket: str | None
    heartbeat_ms: int
    session_timeout_ms: int
    max_message_bytes: int
    max_control_bytes: int
    max_batch_frames: int
    software: str
    resume_timeout_ms: int  # the time in which a lost client may resume its acquisitions
    updates: bool = False  # whether it takes UPDATE; earlier releases do not
    adds_images: bool = False  # likewise ADD_IMAGE
    flush_levels: bool = False  # likewise FLUSH_TO
    declares: bool = False  # whether it takes FRAME_SKIPPED, and the extent of FINISH
    removes: bool = False  # likewise an UPDATE that removes names, or adds to ``ome``
    instance: str | None = None

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Welcome:
        return cls(
            boot_id=optional_text(body, "boot_id", 64),
            ring_socket=optional_text(body, "ring_socket"),
            heartbeat_ms=number(body, "heartbeat_ms", 1, 3_600_000),
            session_timeout_ms=number(body, "session_timeout_ms", 1, 24 * 3_600_000),
            max_message_bytes=number(body, "max_message_bytes", 1),
            max_control_bytes=number(body, "max_control_bytes", 1),
            max_batch_frames=number(body, "max_batch_frames", 1),
            software=text(body, "software", 128),
            resume_timeout_ms=number(body, "resume_timeout_ms", 0),
            updates=optional_boolean(body, "updates"),
            adds_images=optional_boolean(body, "adds_images"),
            flush_levels=optional_boolean(body, "flush_levels"),
            declares=optional_boolean(body, "declares"),
            removes=optional_boolean(body, "removes"),
            instance=_optional_token(body, "instance"),
        )


@dataclass(frozen=True)
class Resume(_ControlBody):
    """A client resumes its own acquisition: ``next_sequence`` is that of the first frame that it has not sent
    yet."""

    acquisition: str
    client_epoch: int
    next_sequence: int
    ring_slots: int

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Resume:
        return cls(
            acquisition=_identity(body),
            client_epoch=number(body, "client_epoch", 1, 2**32 - 1),
            next_sequence=number(body, "next_sequence"),
            ring_slots=number(body, "ring_slots", 1, 2**31 - 1),
        )


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

    request: int
    name: str
    spec: dict[str, Any] | None
    stream: str | None
    transport: Transport
    resume: Resume | None = None
    reopen: bool = False
    frames_expected: int | None = None
    opening: str | None = None
    visible: bool = False

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Open:
        resume = optional_mapping(body, "resume")
        opening = cls(
            request=number(body, "request"),
            name=text(body, "name"),
            spec=optional_mapping(body, "spec"),
            stream=optional_text(body, "stream"),
            transport=one_of(body, "transport", get_args(Transport)),
            resume=None if resume is None else Resume.from_body(resume),
            reopen=optional_boolean(body, "reopen"),
            frames_expected=optional_number(body, "frames_expected"),
            opening=_optional_token(body, "opening"),
            visible=optional_boolean(body, "visible"),
        )
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

    request: int
    path: str
    spec: dict[str, Any]
    transport: Transport
    credit_bytes: int
    ring_slots: int
    slot_bytes: int
    ring_token: str | None
    acquisition: str
    client_epoch: int
    next_sequence: int
    missing: tuple[tuple[int, int], ...]
    overload: Overload
    durability: Durability
    added_images: tuple[Any, ...] = ()

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Opened:
        next_sequence = number(body, "next_sequence")
        opened = cls(
            request=number(body, "request"),
            path=text(body, "path", 65536),
            spec=mapping(body, "spec"),
            transport=one_of(body, "transport", get_args(Transport)),
            credit_bytes=number(body, "credit_bytes", 1),
            ring_slots=number(body, "ring_slots", 1, 2**31 - 1),
            slot_bytes=number(body, "slot_bytes", 1),
            ring_token=optional_text(body, "ring_token", 32),
            acquisition=_identity(body),
            client_epoch=number(body, "client_epoch", 1, 2**32 - 1),
            next_sequence=next_sequence,
            missing=ranges(body, "missing", MAX_MISSING_RANGES, below=next_sequence),
            overload=one_of(body, "overload", get_args(Overload)),
            durability=one_of(body, "durability", get_args(Durability)),
            added_images=_images(body, "added_images"),
        )
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
class Finish(_ControlBody):
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

    request: int
    image: str | None
    attributes: dict[str, Any]

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Update:
        return cls(number(body, "request"), optional_text(body, "image"), mapping(body, "attributes"))


@dataclass(frozen=True)
class AddImage(_ControlBody):
    """An image to add: ``image`` as JSON. ``known``: how many images its client knows. ``request`` as that of
    an UPDATE."""

    request: int
    known: int
    image: dict[str, Any]

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> AddImage:
        return cls(number(body, "request"), number(body, "known"), mapping(body, "image"))


@dataclass(frozen=True)
class FlushTo(_ControlBody):
    """A flush of the frames that came before it. ``request`` as that of an UPDATE."""

    request: int
    level: FlushLevel

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> FlushTo:
        return cls(number(body, "request"), one_of(body, "level", get_args(FlushLevel)))


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


def _images(body: dict[str, Any], key: str) -> tuple[Any, ...]:
    """Returns a list of images as JSON, each its name or an object."""
    value = [] if body.get(key) is None else body[key]
    if (
        not isinstance(value, list)
        or len(value) > MAX_IMAGES
        or not all(isinstance(each, str | dict) for each in value)
    ):
        expected = f"a list of at most {MAX_IMAGES} names and objects"
        raise ProtocolError(f"field {key!r} of a control body", expected=expected, got=repr(value)[:80])
    return tuple(value)


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


def text(body: dict[str, Any], key: str, limit: int = 1024) -> str:
    value = body.get(key)
    if not isinstance(value, str) or len(value) > limit:
        raise ProtocolError(
            f"field {key!r} of a control body",
            expected=f"text of at most {limit} characters",
            got=repr(value)[:80],
        )
    return value


def optional_text(body: dict[str, Any], key: str, limit: int = 1024) -> str | None:
    return None if body.get(key) is None else text(body, key, limit)


def number(body: dict[str, Any], key: str, low: int = 0, high: int = 2**63 - 1) -> int:
    value = body.get(key)
    # Not ``isinstance``: true is an int to Python, and no number to any other client.
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(
            f"field {key!r} of a control body",
            expected=f"an integer from {low} to {high}",
            got=repr(value)[:80],
        )
    return value


def optional_number(body: dict[str, Any], key: str) -> int | None:
    return None if body.get(key) is None else number(body, key)


def optional_boolean(body: dict[str, Any], name: str) -> bool:
    return False if body.get(name) is None else boolean(body, name)


def boolean(body: dict[str, Any], key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool):
        raise ProtocolError(
            f"field {key!r} of a control body", expected="true or false", got=repr(value)[:80]
        )
    return value


def one_of(body: dict[str, Any], key: str, values: tuple[str, ...]) -> Any:
    value = body.get(key)
    if not isinstance(value, str) or value not in values:
        raise ProtocolError(
            f"field {key!r} of a control body", expected=f"one of {', '.join(values)}", got=repr(value)[:80]
        )
    return value


def ranges(body: dict[str, Any], key: str, most: int, *, below: int) -> tuple[tuple[int, int], ...]:
    """Returns a list of at most ``most`` pairs [first, last], both included, ascending and disjoint, all
    ``below`` a number."""
    value = body.get(key)
    expected = f"at most {most} pairs of ascending integers from 0 to {below - 1}"
    if not isinstance(value, list) or len(value) > most:
        raise ProtocolError(f"field {key!r} of a control body", expected=expected, got=repr(value)[:80])
    free = 0
    for pair in value:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or type(pair[0]) is not int
            or type(pair[1]) is not int
        ):
            raise ProtocolError(f"field {key!r} of a control body", expected=expected, got=repr(pair)[:80])
        if not free <= pair[0] <= pair[1] < below:
            raise ProtocolError(f"field {key!r} of a control body", expected=expected, got=repr(pair)[:80])
        free = pair[1] + 1
    return tuple((first, last) for first, last in value)


def mapping(body: dict[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict):
        raise ProtocolError(f"field {key!r} of a control body", expected="an object", got=repr(value)[:80])
    return value


def optional_mapping(body: dict[str, Any], key: str) -> dict[str, Any] | None:
    return None if body.get(key) is None else mapping(body, key)
