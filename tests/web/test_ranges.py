"""Which bytes a Range header asks for, against slices of Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from shardwright.web.stores import UnsatisfiableRangeError, is_unchanged, wanted_range

ETAG = '"a-1"'
DATA = bytes(range(100))
NO_RANGES = [
    "",
    "bytes",
    "bytes=",
    "bytes=-",
    "bytes=5-3",
    "bytes=a-b",
    "bytes=0-1,5-6",
    "items=0-5",
    "bytes=+1-5",
    "bytes=0x1-5",
    "bytes=--5",
    "1-2",
]
NO_RANGES += ["bytes=1-2-3", "bytes=" + "9" * 40 + "-", "bytes=\u0663-"]


def wanted(value: str, size: int = 100, **more: str) -> tuple[int, int] | None:
    return wanted_range(Headers({"range": value, **more}), ETAG, size)


@given(st.integers(0, 99), st.integers(0, 300))
def test_from_to(first: int, length: int) -> None:
    start, stop = wanted(f"bytes={first}-{first + length}") or (None, None)
    assert DATA[start:stop] == DATA[first : first + length + 1]


@given(st.integers(0, 99))
def test_from(first: int) -> None:
    assert wanted(f"bytes={first}-") == (first, 100)


@given(st.integers(1, 300))
def test_the_last(count: int) -> None:
    start, stop = wanted(f"bytes=-{count}") or (None, None)
    assert DATA[start:stop] == DATA[-count:]


@pytest.mark.parametrize("value", ["bytes=100-", "bytes=100-200", "bytes=-0", f"bytes={10**18}-"])
def test_bytes_that_are_not_there(value: str) -> None:
    with pytest.raises(UnsatisfiableRangeError):
        wanted(value)


def test_an_empty_file_has_none() -> None:
    for value in ("bytes=0-", "bytes=0-0", "bytes=-5"):
        with pytest.raises(UnsatisfiableRangeError):
            wanted(value, size=0)


@pytest.mark.parametrize("value", NO_RANGES)
def test_what_is_no_range_is_the_whole_file(value: str) -> None:
    assert wanted_range(Headers(raw=[(b"range", value.encode("utf-8"))]), ETAG, 100) is None


def test_words_may_be_written_as_people_do() -> None:
    assert wanted("Bytes= 3-4 ") == (3, 5)


def test_a_range_of_another_version_is_the_whole_file() -> None:
    assert wanted("bytes=0-1", **{"if-range": ETAG}) == (0, 2)
    for other in ('"b-1"', f"W/{ETAG}", "Wed, 21 Oct 2015 07:28:00 GMT"):
        assert wanted("bytes=0-1", **{"if-range": other}) is None


@pytest.mark.parametrize(
    ("known", "unchanged"),
    [(ETAG, True), (f"W/{ETAG}", True), (f'"x", {ETAG}', True), ("*", True), ('"x"', False), ("", False)],
)
def test_who_has_it_already(known: str, unchanged: bool) -> None:
    assert is_unchanged(Headers({"if-none-match": known}), ETAG) is unchanged
    assert not is_unchanged(Headers({}), ETAG)
