"""The harness itself: the log is read as it was written, an image holds exactly what a cut leaves, and is put
back to the last byte."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from . import rounds
from .images import DiskImage, Piece, draw_cut
from .judge import UnmountableError
from .recording import Promised, Recording, draw_cuts
from .rounds import RoundResult
from .scenario import FRAMES, Scenario
from .write_log import SECTOR_BYTES, WriteLog

DISK_BYTES = 1 << 20
FLUSH = (0, b"", 1)


def write(sector: int, *fills: int) -> tuple[int, bytes, int]:
    """An entry that writes sectors, each full of one number."""
    return sector, b"".join(bytes([fill]) * SECTOR_BYTES for fill in fills), 0


def log_of(path, *entries: tuple[int, bytes, int]) -> WriteLog:
    data = struct.pack("<QQQI", 0x6A736677736872, 1, len(entries), SECTOR_BYTES).ljust(SECTOR_BYTES, b"\0")
    for sector, content, flags in entries:
        data += (
            struct.pack("<QQQQ", sector, len(content) // SECTOR_BYTES, flags, 0).ljust(SECTOR_BYTES, b"\0")
            + content
        )
    path.write_bytes(data)
    return WriteLog.read(path)


@pytest.fixture
def log(tmp_path):
    return log_of(
        tmp_path / "log",
        write(0, 1, 2),
        FLUSH,
        write(1, 3),
        write(64, 4, 5, 6),
        write(8, *range(7, 23)),
        FLUSH,
        write(0, 99),
    )


@pytest.fixture
def image(tmp_path):
    fresh = tmp_path / "fresh"
    with fresh.open("wb") as file:
        file.truncate(DISK_BYTES)
        file.seek(512 * 1024)
        file.write(b"f" * 8192)
    made = DiskImage(fresh, tmp_path / "image")
    yield made
    made.close()


def sectors(image: DiskImage, *numbers: int) -> list[int]:
    with image.path.open("rb") as file:
        data = file.read()
    return [data[number * SECTOR_BYTES] for number in numbers]


def test_the_log_is_read_in_order(log):
    assert log.sizes.tolist() == [1024, 0, 512, 1536, 8192, 0, 512]
    assert log.offsets.tolist() == [0, 0, 512, 64 * 512, 8 * 512, 0, 0]
    assert np.flatnonzero(log.barriers).tolist() == [1, 5]
    assert log.bytes_of(3)[::SECTOR_BYTES].tolist() == [4, 5, 6]
    assert [log.flushed_before(cut) for cut in range(8)] == [0, 0, 2, 2, 2, 2, 6, 6]


def test_a_torn_log_is_refused(tmp_path):
    log_of(tmp_path / "log", write(0, 1, 2))
    with (tmp_path / "log").open("rb+") as file:
        file.truncate(SECTOR_BYTES * 3)
    with pytest.raises(AssertionError, match="the log is whole"):
        WriteLog.read(tmp_path / "log")


def test_a_mark_lies_after_all_that_had_begun(log):
    for entry, start in enumerate(log.starts.tolist()):
        assert log.entries_before(start) == entry
        assert log.entries_before(start + 1) == entry + 1
    assert log.entries_before(log.data.size) == len(log)


def test_an_image_holds_what_the_cut_left(image, log):
    image.advance(log, log.flushed_before(4))
    assert sectors(image, 0, 1, 1024) == [1, 2, ord("f")]
    image.lay(log, [Piece(3, 512, 1024)])
    assert sectors(image, 0, 1, 64, 65, 66) == [1, 2, 0, 5, 0], (
        "the write to sector 1 and two parts of the other were lost"
    )
    image.restore()
    assert sectors(image, 0, 1, 64, 65, 66) == [1, 2, 0, 0, 0]
    image.advance(log, 6)
    assert sectors(image, 0, 1, 64, 65, 66, 8, 23) == [1, 3, 4, 5, 6, 7, 22]


def test_whatever_a_mount_writes_is_undone(image, log):
    image.advance(log, 6)
    before = image.path.read_bytes()
    with image.path.open("rb+") as file:
        for offset in (0, 77_777, 512 * 1024 + 5, DISK_BYTES - 3):
            file.seek(offset)
            file.write(b"abc")
    image.restore()
    assert image.path.read_bytes() == before


def test_digests_are_equal_for_equal_disks_only(image, log):
    seen = {}
    rng = np.random.default_rng(5)
    for flushed, cut in [(0, 0), (0, 1), (2, 2), (2, 4), (2, 5), (6, 6), (6, 7)]:
        for kind in ("whole", "flushed", *["subset", "torn"] * 5):
            drawn = draw_cut(log, cut, kind, rng)
            assert drawn.flushed == flushed
            image.advance(log, flushed)
            digest = image.lay(log, drawn.pieces)
            content = image.path.read_bytes()
            assert seen.setdefault(digest, content) == content
            image.restore()
    assert len(set(seen.values())) > 10


def test_what_was_flushed_is_never_dropped_and_writes_stay_in_order(log):
    rng = np.random.default_rng(6)
    torn_at = set()
    for kind in ("whole", "flushed", "subset", "torn"):
        for _ in range(50):
            drawn = draw_cut(log, 5, kind, rng)
            entries = [piece.entry for piece in drawn.pieces]
            assert entries == sorted(entries)
            assert set(entries) <= {2, 3, 4}, "written after the last flush"
            if kind in ("whole", "flushed"):
                assert entries == ([2, 3, 4] if kind == "whole" else [])
            torn_at.update(piece.first for piece in drawn.pieces if kind == "torn" and piece.entry == 4)
    assert {512, 4096} <= torn_at, "torn between sectors and between blocks"


def test_promises_hold_for_cuts_after_their_mark_only(log):
    marks = [*log.starts[[2, 6]].tolist(), log.data.size]
    told = [
        {"durable": 3, "mark": marks[0]},
        {"durable": 8, "mark": marks[1]},
        {"sealed": True, "mark": marks[2]},
    ]
    recording = Recording.of(told, log)
    assert [recording.promised_at(cut) for cut in (0, 1)] == [Promised()] * 2
    assert [recording.promised_at(cut).durable for cut in (2, 5, 6, 7)] == [3, 3, 8, 8]
    assert recording.promised_at(7).sealed == 8
    assert Recording.of([], log, Promised(5)).promised_at(0).durable == 5, "promised before the log began"
    assert Promised(8).covers(Promised(3))
    assert not Promised(8).covers(Promised(8, added=1))
    assert not Promised(8).covers(Promised(3, sealed=3))


def test_every_prefix_is_drawn_when_asked_for(log):
    cuts = draw_cuts(Recording(log, []), 3, np.random.default_rng(7), every_prefix=True)
    whole = [draw_cut(log, cut, "whole", np.random.default_rng(0)) for cut in range(len(log) + 1)]
    assert {(cut.flushed, cut.pieces) for cut in cuts} >= {(cut.flushed, cut.pieces) for cut in whole}


def test_a_scenario_sends_each_frame_once():
    for seed in range(30):
        scenario = Scenario.draw(seed, "xfs")
        assert sorted(scenario.order) == list(range(FRAMES))
        for each in (scenario, scenario.with_added_images()):
            assert sorted(each.sent) == list(range(FRAMES))


def test_images_are_added_in_their_order_and_before_their_first_frames():
    for seed in range(30):
        scenario = Scenario.draw(seed, "xfs").with_added_images().in_parts()
        images = [scenario.place(frame)[0] for frame in scenario.sent]
        assert list(scenario.adds) == sorted(scenario.adds)
        assert len(scenario.adds) == scenario.added < len(scenario.parts)
        for number, when in enumerate(scenario.adds, scenario.declared_images):
            assert number not in images[:when]
        assert len(scenario.parts) - 1 not in images, "the last one gets no frame"
        assert scenario.acquisition.names[scenario.declared_images :] == tuple(
            image.name for image in scenario.added_images
        )
        assert all(0 < end < FRAMES for end in scenario.ends)


@pytest.mark.parametrize(
    ("kind", "failures", "judged"),
    [("whole", 1, "mounted anew"), ("whole", 2, "violation"), ("torn", 1, "unmountable")],
)
def test_a_mount_that_fails_is_tried_once_more_with_the_same_bytes_on_a_fresh_device(
    image, log, monkeypatch, kind, failures, judged
):
    seen = []

    class Device:
        def __init__(self, path):
            assert path == image.path

        def drop_cache(self):
            pass

        close = drop_cache

    class Judge:
        def judge(self, loop, promised, *, independently):
            seen.append(image.path.read_bytes())
            image._image[:4096] = 255  # as a mount that fails half-way may leave it
            if len(seen) <= failures:
                raise UnmountableError
            return []

    monkeypatch.setattr(rounds.machine, "LoopDevice", Device)
    result = RoundResult("btrfs", 1, "none", "direct")
    run = rounds._Run(Recording.of([], log), Judge(), result, lambda _: None, None)
    cut = draw_cut(log, 5, kind, np.random.default_rng(2))
    run._lay_and_judge(cut, image, Device(image.path))
    assert len(set(seen)) == 1, "the same bytes each time"
    assert len(seen) == (1 if kind == "torn" else 2)
    assert (result.mounted_anew, result.violating_images, result.unmountable) == {
        "mounted anew": (1, 0, 0),
        "violation": (0, 1, 0),
        "unmountable": (0, 0, 1),
    }[judged]
