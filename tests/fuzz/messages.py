"""Damage to messages: bits, numbers at their boundaries, JSON values of other types, parts that are cut,
dropped, repeated or swapped.

Random damage dies at the header; so most inputs get a header that fits what follows it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardwright.wire.messages import ACK_RANGE, BATCH_PRELUDE, HEADER, MAGIC, VERSION, Kind

if TYPE_CHECKING:
    from random import Random

_ODD_NUMBERS = (
    0,
    1,
    2,
    3,
    11,
    95,
    96,
    255,
    256,
    1023,
    1024,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**47,
    2**48,
    2**63 - 1,
    2**63,
    2**64 - 2,
    2**64 - 1,
)
_ODD_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        1.5,
        1e308,
        2**31,
        2**32,
        2**63,
        2**70,
        "",
        "a",
        "..",
        "a/b",
        "\0",
        "\ud800",
        "x" * 300,
        "ab" * 16,
    ),
    *(
        [],
        {},
        [[]],
        [[0, 1]],
        [[1, 0]],
        [[0, 2**62]],
        {"a": {}},
        [1] * 50,
        [[i, i] for i in range(0, 4000, 2)],
    ),
    *("shm", "message", "block", "drop", "fail", "stored", "durable", "uint8", "NaN", "blosc"),
)


def damaged(parts: list[bytes], random: Random) -> list[bytes]:
    message = [bytearray(part) for part in parts]
    if random.random() < 0.01:
        message[random.randrange(len(message))] = bytearray(random.randbytes(random.randrange(200)))
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3))):
        if not message:
            break
        random.choice(_DAMAGES)(message, random)
    if message and random.random() < 0.75:
        _fit_header(message, random)
    return [bytes(part) for part in message] or [b""]


def _flip_bits(message: list[bytearray], random: Random) -> None:
    part = random.choice(message)
    if part:
        for _ in range(random.randint(1, 4)):
            part[random.randrange(len(part))] ^= 1 << random.randrange(8)


def _overwrite_number(message: list[bytearray], random: Random) -> None:
    part = random.choice(message[:2])
    size = random.choice((1, 2, 4, 8, 8))
    if len(part) >= size:
        place = random.randrange(0, len(part) - size + 1, min(size, 4))
        number = random.choice((*_ODD_NUMBERS, random.getrandbits(64)))
        part[place : place + size] = (number % 256**size).to_bytes(size, "little")


def _change_json(message: list[bytearray], random: Random) -> None:
    """Another value at any depth, a key less, or a key more."""
    if len(message) < 2:
        return
    try:
        body = json.loads(message[1])
    except (ValueError, RecursionError):
        return
    where: Any = body
    while isinstance(where, dict | list) and where:
        key = random.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if isinstance(where[key], dict | list) and where[key] and random.random() < 0.7:
            where = where[key]
            continue
        match random.randrange(8):
            case 0:
                del where[key]
            case 1 if isinstance(where, dict):
                where[str(random.choice(_ODD_VALUES))] = where[key]
            case _:
                where[key] = random.choice(_ODD_VALUES)
        break
    message[1][:] = json.dumps(body).encode("utf-8", "surrogatepass")


def _resize_part(message: list[bytearray], random: Random) -> None:
    part = random.choice(message)
    size = random.choice(
        (0, 1, len(part) - 1, len(part) + 1, len(part) // 2, 2 * len(part), random.randrange(5000))
    )
    del part[max(0, size) :]
    part.extend(bytes(max(0, size - len(part))))


def _drop_part(message: list[bytearray], random: Random) -> None:
    del message[random.randrange(len(message))]


def _repeat_part(message: list[bytearray], random: Random) -> None:
    place = random.randrange(len(message))
    message[place:place] = [bytearray(message[place]) for _ in range(random.choice((1, 1, 2, 30)))]


def _swap_parts(message: list[bytearray], random: Random) -> None:
    random.shuffle(message)


def _nest_json(message: list[bytearray], random: Random) -> None:
    if len(message) > 1:
        message[1][:] = random.choice((b"[", b'{"a":', b"[],", b"9", b'"')) * random.choice(
            (10, 1000, 30_000)
        )


_DAMAGES = (
    *(_flip_bits, _flip_bits, _overwrite_number, _overwrite_number, _overwrite_number),
    *(
        _change_json,
        _change_json,
        _change_json,
        _resize_part,
        _drop_part,
        _repeat_part,
        _swap_parts,
        _nest_json,
    ),
)


def _fit_header(message: list[bytearray], random: Random) -> None:
    """The lengths that are really there, and often a count and a sequence that fit."""
    header, body = message[0], message[1] if len(message) > 1 else b""
    if len(header) != HEADER.size:
        return
    _, _, kind, _, session, sequence, count, *_ = HEADER.unpack(header)
    if random.random() < 0.7:
        sequence = random.choice((0, 0, 0, 1))
        if kind == Kind.FRAMES:
            count = max(0, len(body) - BATCH_PRELUDE.size) // random.choice((96, 96, 112))
        elif kind == Kind.ACK:
            count = len(body) // ACK_RANGE.itemsize
        else:
            count = 0
    payload = sum(map(len, message[2:]))
    header[:] = HEADER.pack(
        MAGIC,
        VERSION,
        kind,
        0,
        session,
        sequence,
        min(count, 2**32 - 1),
        len(message) - 1,
        len(body),
        payload,
    )
