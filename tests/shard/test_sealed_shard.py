"""A sealed shard is opened in one way, whatever its bytes lie in: each check is made for a file and for an
object alike."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.disk.read_file import ChangedError, ReadFile
from shardwright.model.errors import LinkError, ShardFormatError, StorageError
from shardwright.shard.index import EMPTY, ShardIndex, empty_index
from shardwright.shard.sealed_shard import SealedShard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNKS, MOST = 4, 50
Opened = "Callable[[], SealedShard[Any]]"
DATA = bytes(range(100))
FAULTS = {
    (10, EMPTY): "half empty",
    (EMPTY, 10): "half empty",
    (90, 11): "outside the data",
    (2**64 - 2, 10): "outside the data",
    (10, 2**64 - 2): "outside the data",
    (0, 0): "size of 0",
    (20, MOST + 1): "longer than its codec",
}


class Object:
    """A shard that is an object; its version says no more than its length, if it is not ``sure``."""

    def __init__(self, path: Path, *, sure: bool = True) -> None:
        self.path, self._sure, self.asked = path, sure, 0

    def _version(self, data: bytes) -> Any:
        return data if self._sure else len(data)

    def edge(self, nbytes: int, *, at_end: bool, known: Any, sure: bool) -> tuple[bytes, Any, int] | None:
        if known is not None and not sure:
            return None
        self.asked += 1
        data = self.path.read_bytes()
        if known == self._version(data) and self._sure:
            return None
        return data[-nbytes:] if at_end else data[:nbytes], self._version(data), len(data)

    def ranges(self, version: Any, bounds: list[tuple[int, int]]) -> list[bytes]:
        data = self.path.read_bytes()
        if version != self._version(data):
            raise ChangedError
        return [data[start:stop] for start, stop in bounds]

    def is_sure(self, _version: Any) -> bool:
        return self._sure

    def unchanged(self) -> nullcontext[None]:
        return nullcontext()

    def close(self) -> None:
        pass


def of_descriptor(path: Path, form: ShardIndex) -> SealedShard[Any]:
    return SealedShard(ReadFile("c/0", os.open(path, os.O_RDONLY)), form)


WAYS: dict[str, Callable[[Path, ShardIndex], SealedShard[Any]]] = {
    "path": SealedShard.open,
    "descriptor": of_descriptor,
    "object": lambda path, form: SealedShard(Object(path), form),
    "object without a strong tag": lambda path, form: SealedShard(Object(path, sure=False), form),
}


@pytest.fixture(params=["end", "start"])
def form(request: pytest.FixtureRequest) -> ShardIndex:
    return ShardIndex(CHUNKS, request.param, most_chunk_bytes=MOST)


@pytest.fixture(params=WAYS)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, form: ShardIndex
) -> Callable[[], SealedShard[Any]]:
    return lambda: WAYS[request.param](tmp_path / "shard", form)


def written(path: Path, form: ShardIndex, *pairs: tuple[int, int], data: bytes = DATA) -> None:
    """Writes a shard with these entries; offsets count from the first byte of its data."""
    entries, first = empty_index(CHUNKS), form.before_bytes
    for number, (offset, nbytes) in enumerate(pairs):
        entries[number] = (offset if offset >= 2**64 - 2 else offset + first, nbytes)
    index = form.encode(entries)
    path.write_bytes(index + data if first else data + index)


def test_chunks_of_a_sound_index_are_read_also_where_they_share_bytes(tmp_path, form, opened):
    written(tmp_path / "shard", form, (0, MOST), (10, 20), (90, 10))
    with opened() as shard:
        index = shard.look()
        assert index.is_sound
        assert index.live.tolist() == [0, 1, 2]
        first = form.before_bytes
        found = shard.fetch(index, [(first + 10, first + 30), (first + 90, first + 100)])
    assert [bytes(each) for each in found] == [DATA[10:30], DATA[90:]]


@pytest.mark.parametrize("entry", FAULTS, ids=str)
def test_an_entry_that_cannot_be_right_spoils_its_own_chunk(tmp_path, form, opened, entry):
    written(tmp_path / "shard", form, (0, 10), entry)
    with opened() as shard:
        index = shard.index
        assert [number for number, _ in index.faults()] == [1]
        assert FAULTS[entry] in (index.fault(1) or "")
        assert index.live.tolist() == [0]
        assert index.fault(0) is index.fault(2) is None
        with pytest.raises(
            ShardFormatError, match=f"chunk 1 of {re.escape(str(shard.path))}: .*{FAULTS[entry]}"
        ):
            shard.check_sound()


def test_a_chunk_does_not_lie_in_the_index(tmp_path, form, opened):
    at = 0 if form.location == "start" else len(DATA)
    entries = empty_index(CHUNKS)
    entries[2] = (at, 10)
    index = form.encode(entries)
    (tmp_path / "shard").write_bytes(index + DATA if at == 0 else DATA + index)
    with opened() as shard:
        assert [number for number, _ in shard.index.faults()] == [2]
        assert "outside the data" in (shard.index.fault(2) or "")


@pytest.mark.parametrize("damage", ["short", "flipped"])
def test_an_index_that_is_not_whole_is_refused(tmp_path, form, opened, damage):
    written(tmp_path / "shard", form, (0, 10))
    data = bytearray((tmp_path / "shard").read_bytes())
    data[-1 if form.location == "end" else 0] ^= 1
    (tmp_path / "shard").write_bytes(data[: form.nbytes - 1] if damage == "short" else data)
    with opened() as shard, pytest.raises(ShardFormatError, match=r"shorter than its index|fails its crc32c"):
        assert shard.entries is None


def test_bytes_of_another_state_are_not_taken_for_those_of_its_index(tmp_path, form, opened):
    written(tmp_path / "shard", form, (0, 10), (20, 10))
    with opened() as shard:
        index = shard.look()
        assert shard.look(index) is index or not shard.file.is_sure(index.version)
        written(tmp_path / "shard", form, (20, 10), (0, 10))
        os.utime(tmp_path / "shard", ns=(0, 1))
        with pytest.raises(ChangedError):
            shard.fetch(index, [(form.before_bytes, form.before_bytes + 10)])


def test_a_known_index_costs_no_request_unless_it_must_be_sure(tmp_path, form):
    written(tmp_path / "shard", form, (0, 10))
    shard = SealedShard(Object(tmp_path / "shard"), form)
    known = shard.look()
    assert shard.look(known, sure=False) is known
    assert shard.file.asked == 1
    assert shard.look(known) is known
    assert shard.file.asked == 2


def test_what_is_no_regular_file_is_no_shard(tmp_path, form):
    (tmp_path / "c").mkdir()
    with pytest.raises(ShardFormatError, match="not a regular file"):
        SealedShard.open(tmp_path / "c", form)
    (tmp_path / "link").symlink_to(tmp_path / "c")
    with pytest.raises(LinkError):
        SealedShard.open(tmp_path / "link", form)
    with pytest.raises(StorageError) as error:
        SealedShard.open(tmp_path / "none", form)
    assert isinstance(error.value.__cause__, FileNotFoundError)
