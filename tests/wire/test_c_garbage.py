"""The client in C takes whatever a daemon may say: it ends with an error of its kind, in time, and without a
complaint of AddressSanitizer or UndefinedBehaviorSanitizer."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import random
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.frames import array_spec
from tests.harness.json_process import wait_for
from tests.wire.fake_daemon import SESSION, SLOT_BYTES, SLOTS, SPEC, FakeDaemon, receipt_body

from shardwright.wire import handover
from shardwright.wire.messages import CONNECTION, Counter, Kind, encode_control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.wire.c_camera import CCamera

PLAIN = json.dumps(array_spec().model_dump(mode="json"))
SHORT_MS = 2000  # no answer is needed for longer: what goes wrong is told at once


@pytest.fixture
def fake(folder: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(folder)
    yield daemon
    daemon.close()


def spoilt(kind: Kind, change: Callable[[list[bytes]], Any]) -> Callable[..., list[list[bytes]]]:
    """Changes the parts of the answer to messages of a kind, or returns other messages."""

    def spoil(asked: Kind, messages: list[list[bytes]]) -> list[list[bytes]]:
        if asked is not kind:
            return messages
        (message,) = messages
        other = change(message)
        return [message] if other is None else other

    return spoil


def body(**changes: Any) -> Callable[[list[bytes]], None]:
    """Changes fields of a JSON body; ``...`` removes one."""

    def change(parts: list[bytes]) -> None:
        facts = json.loads(parts[1])
        facts |= {key: value for key, value in changes.items() if value is not ...}
        for key, value in changes.items():
            if value is ...:
                del facts[key]
        replace_body(parts, json.dumps(facts).encode())

    return change


def replace_body(parts: list[bytes], data: bytes) -> None:
    header = bytearray(parts[0])
    header[32:40] = len(data).to_bytes(8, "little")
    parts[:] = [bytes(header), data]


def raw(data: bytes) -> Callable[[list[bytes]], None]:
    return lambda parts: replace_body(parts, data)


def added(value: bytes) -> Callable[[list[bytes]], None]:
    """One key more, which nobody asks for."""
    return lambda parts: replace_body(parts, parts[1][:-1] + b',"x":' + value + b"}")


def header(at: int, value: bytes) -> Callable[[list[bytes]], None]:
    def change(parts: list[bytes]) -> None:
        parts[0] = parts[0][:at] + value + parts[0][at + len(value) :]

    return change


def spec(**changes: Any) -> Callable[[list[bytes]], None]:
    return body(spec={**SPEC, **changes})


def receipt(**changes: Any) -> Callable[[list[bytes]], None]:
    def change(parts: list[bytes]) -> None:
        body(receipt={**json.loads(parts[1])["receipt"], **changes})(parts)

    return change


def twice(parts: list[bytes]) -> list[list[bytes]]:
    """The same acknowledgement again, as the next message."""
    again = copy.copy(parts)
    header(16, (2).to_bytes(8, "little"))(again)
    return [parts, again]


def axes(*counts: int | None) -> list[dict[str, Any]]:
    return [{"name": f"a{i}", "count": count, "chunk_size": 1} for i, count in enumerate(counts)]


DEEP = b"[" * 500_000 + b"]" * 500_000  # a stack would not hold it
WELCOMES = {
    "no JSON": raw(b"{]"),
    "an array": raw(b"[1]"),
    "deep": added(DEEP),
    "not closed": raw(b'{"heartbeat_ms":50'),
    "behind it": added(b"1} {"),
    "no UTF-8": added(b'"\xff\xfe"'),
    "long UTF-8": added(b'"\xc0\xaf"'),
    "half an escape": added(b'"\\u12"'),
    "NaN": added(b"NaN"),
    "a zero in a word": added(b"nul\x00"),
    "an escape of nothing": added(b'"\\\x00"'),
    "0 ms": body(heartbeat_ms=0),
    "true ms": body(heartbeat_ms=True),
    "half a ms": body(heartbeat_ms=1.5),
    "long ms": body(session_timeout_ms=10**30),
    "below 0": body(max_batch_frames=-1),
    "no heartbeat": body(heartbeat_ms=...),
    "a number for text": body(boot_id=5),
    "a long boot_id": body(boot_id="x" * 100),
    "no instance": body(instance="zz"),
    "other magic": header(0, b"SWR2"),
    "flags": header(7, b"\1"),
    "kind 0": header(6, b"\0"),
    "kind 15": header(6, b"\x0f"),
    "kind RECEIPT": header(6, b"\x09"),
    "a count": header(24, b"\1"),
    "no parts": header(28, b"\0"),
    "a long body": header(32, b"\xff\xff"),
    "payload": header(40, b"\1"),
    "a hole": header(16, b"\1"),
    "a cut header": lambda parts: parts.__setitem__(0, parts[0][:47]),
    "a short header": lambda parts: parts.__setitem__(0, b"SWR"),
    "nothing": lambda parts: parts.__setitem__(slice(None), [b""]),
    "more parts": lambda parts: parts.extend([b"x"] * 5),
    "no body": lambda parts: parts.__delitem__(1),
}
OPENEDS = {
    "another request": body(request=7),
    "no request": body(request=...),
    "other transport": body(transport="shm"),
    "no slots": body(ring_slots=0),
    "many slots": body(ring_slots=2**31 - 1, credit_bytes=(2**31 - 1) * SLOT_BYTES),
    "other credit": body(credit_bytes=1),
    "other slots": body(slot_bytes=SLOT_BYTES + 2, credit_bytes=SLOTS * (SLOT_BYTES + 2)),
    "no epoch": body(client_epoch=0),
    "no identity": body(acquisition="x"),
    "a policy": body(overload="shrug"),
    "a number for a path": body(path=1),
    "no path": body(path=...),
    "ranges of nothing": body(missing=[[0, 0]]),
    "ranges upside down": body(next_sequence=9, missing=[[5, 3]]),
    "ranges that overlap": body(next_sequence=9, missing=[[0, 3], [3, 4]]),
    "many ranges": body(next_sequence=9000, missing=[[2 * i, 2 * i] for i in range(1025)]),
    "half a range": body(next_sequence=9, missing=[[1]]),
    "more than a range": body(next_sequence=9, missing=[[1, 2, 3]]),
    "no range": body(next_sequence=9, missing=[1]),
    "no list": body(missing={}),
    "no spec": body(spec=None),
    "a spec of nothing": body(spec={}),
    "an unknown dtype": spec(dtype="float128"),
    "a long dtype": spec(dtype="u" * 100),
    "no axes": spec(dimensions=[]),
    "one axis": spec(dimensions=axes(5)),
    "13 axes": spec(dimensions=axes(*[1] * 13)),
    "no axis": spec(dimensions=[1, 2, 3]),
    "no columns": spec(dimensions=axes(32, None)),
    "many columns": spec(dimensions=axes(2**40, 2**40)),
    "other rows": spec(dimensions=axes(None, 31, 48)),
    "many fields": spec(frame_fields=["x"] * 33),
    "no list of fields": spec(frame_fields=5),
    "much JSON": spec(frame_json_bytes=5000),
    "images without an array": body(spec={"images": ["a"]}),
    "an array of nothing": body(spec={"array": {}, "images": ["a"]}),
    "twice": twice,
}
ACKS = {
    "level 0": lambda parts: ack(parts, 0, 0, 0, 0),
    "level 4": lambda parts: ack(parts, 4, 0, 0, 0),
    "reserved": lambda parts: ack(parts, 1, 1, 0, 0),
    "upside down": lambda parts: ack(parts, 1, 0, 1, 0),
    "not sent": lambda parts: ack(parts, 1, 0, 0, 2**63),
    "stored, not sent": lambda parts: ack(parts, 2, 0, 0, 2**64 - 1),
    "released twice": twice,
    "no ranges": header(24, b"\0"),
    "fewer ranges": header(24, b"\2"),
    "out of turn": header(6, b"\x0d"),
    "a receipt": lambda parts: as_kind(parts, Kind.RECEIPT, {"receipt": {}}),
    "an error of nothing": lambda parts: as_kind(parts, Kind.ERROR, {}),
    "an error without fatal": lambda parts: as_kind(parts, Kind.ERROR, {"code": "x", "message": "y"}),
    "an error of no frames": lambda parts: as_kind(parts, Kind.ERROR, {"fatal": False, "first": -1}),
    "a loss of frames that were not sent": lambda parts: as_kind(
        parts, Kind.ERROR, {"code": "x", "message": "y", "fatal": False, "first": 0, "last": 2**63 - 1}
    ),
    "an error with half a receipt": lambda parts: as_kind(
        parts, Kind.ERROR, {"fatal": True, "receipt": {"path": ""}}
    ),
    "a hole": header(16, b"\7"),
}
RECEIPTS = {
    "none": body(receipt=...),
    "a number": body(receipt=5),
    "half": body(receipt={"path": "x"}),
    "below 0": receipt(frames_stored=-1),
    "long": receipt(bytes_raw=10**30),
    "half a frame": receipt(frames_lost=0.5),
}


def ack(parts: list[bytes], level: int, reserved: int, first: int, last: int) -> None:
    data = b"".join(
        (
            level.to_bytes(4, "little"),
            reserved.to_bytes(4, "little"),
            *(n.to_bytes(8, "little") for n in (first, last)),
        )
    )
    replace_body(parts, data)
    header(24, b"\1")(parts)


def as_kind(parts: list[bytes], kind: Kind, facts: dict[str, Any]) -> None:
    replace_body(parts, encode_control(facts))
    header(24, b"\0")(parts)
    header(6, bytes([kind]))(parts)


CASES = {
    **{f"welcome: {name}": (Kind.HELLO, change) for name, change in WELCOMES.items()},
    **{f"opened: {name}": (Kind.OPEN, change) for name, change in OPENEDS.items()},
    **{f"ack: {name}": (Kind.FRAMES, change) for name, change in ACKS.items()},
    **{f"receipt: {name}": (Kind.FINISH, change) for name, change in RECEIPTS.items()},
}


# where a later check would refuse it, too
TOLD = {"ack: released twice": "released before", "ack: not sent": "impossible ACK range"}


def play(camera: CCamera, endpoint: str, way: str = "message", wait_ms: int = SHORT_MS) -> dict[str, Any]:
    """An acquisition of 3 frames, as far as it comes. Returns the last answer."""
    said = camera.do("connect", endpoint, way, wait_ms, 0, "-", "-")
    for words in (
        ("open", "a", PLAIN, "-", 0, wait_ms),
        ("append", 0, 3, "-", "-", wait_ms),
        ("finish", wait_ms),
    ):
        if said["done"] == 0:
            said = camera.do(*words)
    camera.do("close")
    return said


def test_a_fake_daemon_is_taken_for_one(fake: FakeDaemon, camera: Callable[[], CCamera]):
    each = camera()
    for _ in range(3):
        said = play(each, fake.endpoint)
        assert (said["done"], said["frames_durable"]) == (0, 3)
    each.end()


def test_what_no_daemon_says_is_an_error_of_the_protocol(fake: FakeDaemon, camera: Callable[[], CCamera]):
    each = camera()
    for name, (kind, change) in CASES.items():
        fake.spoil = spoilt(kind, change)
        said = play(each, fake.endpoint)
        assert (said["done"], said.get("code")) == (-1, "protocol"), (name, said)
        assert TOLD.get(name, "") in said["message"] != "", name
    each.end()


def test_errors_of_the_connection_are_passed_on(fake: FakeDaemon, camera: Callable[[], CCamera]):
    each = camera()
    facts = {
        "code": "budget",
        "message": 'more "room"\n\u00e9\U0001f600\ud800',
        "hint": "h" * 5000,
        "fatal": True,
    }

    def refuse(_: list[bytes]) -> list[list[bytes]]:
        return [Counter(CONNECTION).control(Kind.ERROR, facts)]

    fake.spoil = spoilt(Kind.HELLO, refuse)
    said = play(each, fake.endpoint)
    assert (said["code"], said["message"], said["hint"]) == ("budget", 'more "room"\né😀\ufffd', "h" * 1023)

    def of_another_version(parts: list[bytes]) -> list[list[bytes]]:
        (refusal,) = refuse(parts)
        return [[refusal[0][:4] + b"\3\0" + refusal[0][6:], refusal[1]]]

    fake.spoil = spoilt(Kind.HELLO, of_another_version)
    assert play(each, fake.endpoint)["code"] == "budget"
    fake.spoil = spoilt(Kind.HELLO, header(4, b"\3"))
    assert play(each, fake.endpoint)["code"] == "version"
    fake.spoil = spoilt(Kind.HELLO, raw(b'{"a":"' + b"x" * (3 << 20) + b'"}'))
    assert play(each, fake.endpoint)["code"] in ("session_lost", "access")  # ZeroMQ hangs up, again and again
    each.end()


@pytest.mark.parametrize("silent", [Kind.HELLO, Kind.OPEN, Kind.FINISH])
def test_silence_ends_in_time(fake: FakeDaemon, camera: Callable[[], CCamera], silent: Kind):
    each = camera()
    fake.spoil = lambda kind, messages: [] if kind is silent else messages
    said = play(each, fake.endpoint, wait_ms=100)
    assert said["code"] == ("session_lost" if silent is Kind.HELLO else "timed_out")
    each.end()


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_survived(fake: FakeDaemon, camera: Callable[[], CCamera], seed: int):
    """Bits, cuts and doubled pieces anywhere in any answer. Where they matter to nobody the acquisition ends
    well."""
    chance = random.Random(seed)
    each = camera()
    outcomes: set[str] = set()

    def damage(part: bytes) -> bytes:
        data = bytearray(part)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data) + 1)
            match chance.randrange(4):
                case 0 if at < len(data):
                    data[at] ^= 1 << chance.randrange(8)
                case 1:
                    data[at:at] = data[at : at + chance.randrange(40)]
                case 2:
                    del data[at : at + chance.randrange(40)]
                case _:
                    data[at:at] = chance.choice(
                        [b'"', b"{", b"]", b"\\", b"-", b"9" * 25, b"\0", b",", b"null"]
                    )
        return bytes(data)

    def spoil(kind: Kind, messages: list[list[bytes]]) -> list[list[bytes]]:
        if kind is not damaged or not messages:
            return messages
        (parts,) = messages
        if chance.random() < 0.25:
            parts[0] = damage(parts[0])
        elif len(parts) > 1:
            replace_body(parts, damage(parts[1]))
        return [parts]

    fake.spoil = spoil
    for _ in range(60):
        damaged = chance.choice([Kind.HELLO, Kind.OPEN, Kind.FRAMES, Kind.FINISH])
        said = play(each, fake.endpoint, wait_ms=200)
        outcomes.add("" if said["done"] == 0 else said["code"])
    each.end()
    assert "protocol" in outcomes
    assert outcomes <= {"", "protocol", "version", "timed_out", "session_lost"}


def ring(slots: int = SLOTS, *, sealed: bool = True) -> int:
    file = os.memfd_create("ring", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, slots * SLOT_BYTES)
    if sealed:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return file


def file_of_a_disk() -> int:
    """Of the right size. It could shrink. (A file of a tmpfs would have seals.)"""
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.truncate(SLOTS * SLOT_BYTES)
        return os.dup(file.fileno())


GIVEN = handover.encode_answer(handover.GIVEN, SLOTS * SLOT_BYTES)
RINGS = {
    "good": (lambda: (GIVEN, [ring()]), ""),
    "hangs up": (lambda: None, "session_lost"),
    "refused": (lambda: (handover.encode_answer(handover.REFUSED, 0), []), "protocol"),
    "no file": (lambda: (GIVEN, []), "protocol"),
    "two files": (lambda: (GIVEN, [ring(), ring()]), ""),  # the kernel closes the second
    "another size": (lambda: (handover.encode_answer(handover.GIVEN, 5), [ring()]), "protocol"),
    "a smaller file": (lambda: (GIVEN, [ring(SLOTS - 1)]), "protocol"),
    "not sealed": (lambda: (GIVEN, [ring(sealed=False)]), "protocol"),
    "a file of a disk": (lambda: (GIVEN, [file_of_a_disk()]), "protocol"),
    "no memory": (lambda: (GIVEN, [os.open("/dev/null", os.O_RDWR)]), "protocol"),
    "other magic": (lambda: (b"SWRX" + GIVEN[4:], [ring()]), "protocol"),
    "cut": (lambda: (GIVEN[:9], [ring()]), "protocol"),
}


@pytest.mark.parametrize("name", RINGS)
def test_a_ring_is_checked_before_it_is_mapped(folder: Path, camera: Callable[[], CCamera], name: str):
    answer, code = RINGS[name]
    fake = FakeDaemon(folder, ring=answer)
    each = camera()
    files = each.good("files")["files"]
    try:
        said = play(each, fake.endpoint, "shm", wait_ms=10_000)
    finally:
        fake.close()
    assert said.get("code", "") == code, said
    assert each.good("files")["files"] == files
    each.end()


def test_a_ring_that_does_not_come_or_comes_late(folder: Path, camera: Callable[[], CCamera]):
    """The caller has given up; the client hears nothing any more of what it did not take."""
    given, heard = threading.Event(), list[Kind]()

    def late() -> tuple[bytes, list[int]] | None:
        given.wait()
        return (GIVEN, [ring()]) if heard.count(Kind.OPEN) < 3 else None

    def spoil(kind: Kind, messages: list[list[bytes]]) -> list[list[bytes]]:
        heard.append(kind)
        if kind is Kind.OPEN and heard.count(Kind.OPEN) > 1:
            header(16, bytes(8))(messages[0])  # a session of its own
        if kind is not Kind.ERROR or heard.count(Kind.ERROR) > 1:
            return messages
        session = Counter(SESSION)
        session.control(Kind.OPENED, {})
        return [session.control(Kind.RECEIPT, receipt_body(0))]

    fake = FakeDaemon(folder, ring=late)
    fake.spoil = spoil
    each, other = camera(), camera()
    try:
        assert each.connect(fake.endpoint, "shm")["done"] == 0
        assert each.do("open", "a", PLAIN, "-", 0, 50)["code"] == "timed_out"
        given.set()
        wait_for(
            lambda: Kind.ERROR in heard and len(heard) > heard.index(Kind.ERROR) + 3, "heartbeats after it"
        )
        each.good("open", "b", PLAIN, "-", 0, 10_000)
        each.good("close")
        given.clear()
        assert other.connect(fake.endpoint, "shm")["done"] == 0
        assert other.do("open", "a", PLAIN, "-", 0, 50)["code"] == "timed_out"
        other.good("close")  # waits 5 s at most
    finally:
        given.set()
        fake.close()
    each.end()
    other.end()


def test_signals_leave_nothing_open(fake: FakeDaemon, camera: Callable[[], CCamera]):
    each = camera()
    files = each.good("files")["files"]
    each.good("ticks")
    for _ in range(20):
        assert play(each, fake.endpoint)["done"] == 0
    assert each.good("files")["files"] == files
    each.end()
