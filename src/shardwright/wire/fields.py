"""Reads single fields of a JSON body: each function returns the checked value, or raises a ``ProtocolError``
that names the field. Every length is bounded."""

from __future__ import annotations

from typing import Any

from shardwright.model.errors import ProtocolError


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
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(
            f"field {key!r} of a control body",
            expected=f"an integer from {low} to {high}",
            got=repr(value)[:80],
        )
    return value


def optional_number(body: dict[str, Any], key: str) -> int | None:
    return None if body.get(key) is None else number(body, key)


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
