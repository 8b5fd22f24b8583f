"""What ``io: auto`` means: by filesystem, by a measurement that is told what it finds, and by one that really
writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.model.errors import StorageError
from shardwright.model.write_options import IO_MODES
from shardwright.storage import choose_io
from shardwright.storage.choose_io import ROUND_BYTES, decide, measure_io, offered_io, resolve_io

BOTH = ("direct", "pwrite")


@pytest.fixture
def measuring(monkeypatch):
    """As in a process that nobody told to leave it: ``measuring(rounds)`` is what each measurement finds, and
    the list that it returns says where."""
    monkeypatch.delenv(choose_io.VARIABLE)
    monkeypatch.setattr(choose_io, "LEAST_FREE_BYTES", 0)
    monkeypatch.setattr(choose_io, "memory_filesystem", lambda folder: None)
    choose_io.forget()

    def finds(found):
        folders = []

        def measure(folder, modes):
            folders.append(folder)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(choose_io, "measure_io", measure)
        return folders

    yield finds
    choose_io.forget()


@pytest.fixture
def takes_direct(monkeypatch):
    monkeypatch.setattr(choose_io, "_takes_direct_writes", lambda folder: True)
    monkeypatch.setattr(choose_io, "unmappable_filesystem", lambda folder: None)


def test_resolve_io_leaves_no_probe_and_keeps_what_was_asked_for(tmp_path):
    assert resolve_io("auto", [tmp_path]) in BOTH
    assert list(tmp_path.iterdir()) == []
    assert [resolve_io(m, [tmp_path]) for m in IO_MODES[1:]] == list(IO_MODES[1:])


def test_auto_takes_only_what_every_folder_can_take(tmp_path, monkeypatch):
    """One folder without O_DIRECT, or one whose full disk would end the process, is enough."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    monkeypatch.setattr(choose_io, "_takes_direct_writes", lambda folder: folder == good)
    assert resolve_io("auto", [good]) == "direct"
    assert resolve_io("auto", [good, bad]) == "pwrite", "a mapping is only for who asks for it"
    monkeypatch.setattr(choose_io, "unmappable_filesystem", lambda folder: "btrfs" if folder == bad else None)
    assert resolve_io("auto", [good, bad]) == "pwrite"
    assert resolve_io("mmap", [good]) == "mmap"
    with pytest.raises(StorageError, match="cannot be mapped: on btrfs"):
        resolve_io("mmap", [good, bad])


@pytest.mark.parametrize(
    ("rounds", "mode"),
    [
        ({"direct": (2e9, 2e9), "pwrite": (1e9, 1e9)}, "direct"),
        ({"direct": (1e9, 1e9), "pwrite": (1.4e9, 1.4e9)}, "direct"),  # within the margin
        ({"direct": (1e9, 1e9), "pwrite": (9e9, 1.4e9)}, "direct"),  # not in every round
        ({"direct": (1e9,), "pwrite": (9e9,)}, "direct"),  # one round proves nothing
        ({"direct": (1e9, 1e9), "pwrite": (1.6e9, 1.6e9)}, "pwrite"),
    ],
)
def test_another_way_must_be_clearly_faster_in_every_round(rounds, mode):
    assert decide(BOTH, [rounds]).mode == mode


@pytest.mark.usefixtures("takes_direct")
def test_auto_never_maps_however_fast_that_is(tmp_path, measuring):
    """A process that truncates a mapped file ends this one: only who asks for a mapping gets one."""
    measuring({"direct": (1e9, 1e9), "mmap": (9e9, 9e9), "pwrite": (1e9, 1e9)})
    choice = choose_io.choose_io([tmp_path])
    assert (choice.mode, choice.offered, set(choice.rates)) == ("direct", BOTH, set(BOTH))
    assert resolve_io("mmap", [tmp_path]) == "mmap"


def test_every_folder_has_a_say():
    slow, fast = {"direct": (1e9, 1e9), "pwrite": (2e9, 2e9)}, {"direct": (3e9, 3e9), "pwrite": (2e9, 2e9)}
    assert decide(("direct", "pwrite"), [slow]).mode == "pwrite"
    assert decide(("direct", "pwrite"), [slow, fast]).mode == "direct"


def test_rates_are_those_of_all_rounds_together():
    rates = tuple(size / 0.01 for size in ROUND_BYTES)  # each took 10 ms
    assert decide(BOTH, [dict.fromkeys(BOTH, rates)]).rates == pytest.approx(
        dict.fromkeys(BOTH, sum(ROUND_BYTES) / 0.04)
    )


@pytest.mark.usefixtures("takes_direct")
def test_a_filesystem_is_measured_once(tmp_path, measuring):
    folders = measuring({"direct": (1e9, 1e9), "pwrite": (2e9, 2e9)})
    other = tmp_path / "other"
    other.mkdir()
    assert [
        resolve_io("auto", [tmp_path]),
        resolve_io("auto", [other]),
        resolve_io("auto", [tmp_path, other]),
    ] == ["pwrite"] * 3
    assert folders == [tmp_path]
    choose_io.forget()
    assert resolve_io("auto", [other]) == "pwrite"
    assert folders == [tmp_path, other]


@pytest.mark.usefixtures("takes_direct")
def test_what_is_asked_for_is_not_measured(tmp_path, measuring):
    folders = measuring(OSError("must not be called"))
    assert [resolve_io(m, [tmp_path]) for m in IO_MODES[1:]] == list(IO_MODES[1:])
    assert folders == []


@pytest.mark.usefixtures("takes_direct")
def test_a_disk_that_cannot_be_measured_gets_the_favourite(tmp_path, measuring):
    measuring(OSError(5, "Input/output error"))
    choice = choose_io.choose_io([tmp_path])
    assert (choice.mode, choice.why, choice.measured) == ("direct", "not measured: Input/output error", "")


@pytest.mark.usefixtures("takes_direct")
def test_where_measuring_is_pointless_or_takes_room_it_is_left(tmp_path, measuring, monkeypatch):
    folders = measuring(OSError("must not be called"))
    monkeypatch.setattr(choose_io, "LEAST_FREE_BYTES", 1 << 62)
    assert "are free" in choose_io.choose_io([tmp_path]).why
    choose_io.forget()
    monkeypatch.setattr(choose_io, "memory_filesystem", lambda folder: "tmpfs")
    assert choose_io.choose_io([tmp_path]).why == "not measured: tmpfs is no disk"
    monkeypatch.setenv(choose_io.VARIABLE, "no")
    assert "SHARDWRIGHT_MEASURE_IO is no" in choose_io.choose_io([tmp_path]).why
    assert folders == []


@pytest.mark.usefixtures("takes_direct")
def test_stores_are_written_in_the_way_that_was_chosen(tmp_path, measuring):
    measuring({"direct": (1e9, 1e9), "pwrite": (2e9, 2e9)})
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=4)
        for name, count in (("t", None), ("y", 8), ("x", 8))
    ]
    with sw.create(tmp_path / "a.ome.zarr", sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as writer:
        assert writer._acquisition.folder.io == "pwrite"


def test_it_really_writes_and_leaves_nothing(tmp_path, monkeypatch):
    """A clock that stands still lets every round be done: each byte of each file is written, once, in its own
    way."""
    written, synced = {}, []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def counted(descriptor, data, offset):
        count = pwrite(descriptor, data, offset)
        written.setdefault(descriptor, []).extend(range(offset, offset + count, 4096))
        return count

    modes = offered_io(tmp_path)
    before = set(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(os, "pwrite", counted)
    monkeypatch.setattr(
        os, "fdatasync", lambda descriptor: (synced.append(descriptor), fdatasync(descriptor))
    )
    rounds = measure_io(tmp_path, modes, clock=lambda: 0.0)
    assert list(tmp_path.iterdir()) == []
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert set(rounds) == set(modes)
    assert {len(rates) for rates in rounds.values()} == {len(ROUND_BYTES)}
    assert all(sorted(offsets) == list(range(0, sum(ROUND_BYTES), 4096)) for offsets in written.values())
    assert len(written) == len(set(modes) - {"mmap"})
    assert len(synced) == len(modes) * len(ROUND_BYTES)


def test_a_slow_disk_gets_one_round(tmp_path):
    now = iter(range(1000))
    rounds = measure_io(tmp_path, ("pwrite",), clock=lambda: float(next(now)))
    assert {len(rates) for rates in rounds.values()} == {1}


def test_a_disk_that_fails_on_the_way_is_told(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="Input/output"):
        measure_io(tmp_path, ("pwrite", "mmap"))
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_this_filesystem_offers_what_it_should(tmp_path, monkeypatch):
    assert offered_io(tmp_path)[-2:] == ("mmap", "pwrite")
    monkeypatch.setattr(choose_io, "unmappable_filesystem", lambda folder: "btrfs")
    assert "mmap" not in offered_io(tmp_path)
    assert choose_io._takes_direct_writes(Path("/proc")) is False
