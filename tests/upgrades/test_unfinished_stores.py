"""What a killed daemon of an older release left is recovered, and taken up again by a newer daemon, pixel for
pixel."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
from tests.harness.daemon import DaemonProcess
from tests.harness.ome_forms import check_ome_forms
from tests.harness.store_contents import frame_table
from tests.properties.readers import with_zarr_python

import shardwright as sw
from shardwright.model.frame_status import FrameStatus
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.shard import manifest
from shardwright.shard.manifest import read_manifest

from .conftest import contents, unpack
from .states import (
    PLATE_SENT,
    PLATE_SHAPE,
    PLATES,
    SENT_BEFORE_THE_KILL,
    SENT_IN_ALL,
    SENT_TWICE,
    all_pixels,
    pixels,
    plate_pixel,
    stage_v,
)


def index_of(name: str, number: int) -> tuple[int, ...]:
    return divmod(number, 2) if name == "tissue" else (number,)


def check(store, name: str, count: int) -> None:
    """Every frame below ``count`` is there, and nothing else."""
    image = with_zarr_python(store / "0")
    image = image.reshape(-1, *image.shape[-2:])
    assert np.array_equal(image[:count], all_pixels(name, count))
    assert not image[count:].any()
    assert not (store / ".shardwright").exists()
    report = verify_store(store)
    assert report.ok, report.problems
    table = frame_table(store)
    kept = table["status"] == FrameStatus.STORED
    assert sorted(table["frame_id"][kept]) == list(range(count))
    assert list(table["frame_id"][table["status"] == FrameStatus.DUPLICATE]) == [SENT_TWICE]
    assert FrameStatus.LOST not in table["status"]
    assert np.array_equal(table["fate"], table["status"]), "the older name is written too"
    if name == "tissue":
        assert all(stage_v(frame) == v for frame, v in zip(table["frame_id"], table["stage_v"], strict=True))


@pytest.mark.parametrize("name", SENT_BEFORE_THE_KILL)
def test_a_dry_run_sees_every_frame_and_changes_nothing(unfinished, pool, name: str):
    store = unfinished / f"{name}.ome.zarr"
    before = contents(store)
    found = recover_store(store, pool, threads=1, dry_run=True)
    assert (found.frames_kept, found.frames_lost, found.chunks_dropped) == (SENT_BEFORE_THE_KILL[name], 0, 0)
    assert found.frames_completed_from_staging > 0, "the fixture has staged frames"
    assert contents(store) == before


@pytest.mark.parametrize("name", SENT_BEFORE_THE_KILL)
def test_recovered(unfinished, pool, name: str):
    store = unfinished / f"{name}.ome.zarr"
    found = recover_store(store, pool, threads=1)
    assert (found.action, found.frames_kept, found.frames_lost) == ("sealed", SENT_BEFORE_THE_KILL[name], 0)
    check(store, name, SENT_BEFORE_THE_KILL[name])


@pytest.mark.parametrize("version", ["0.5", "0.6"])
def test_a_daemon_takes_them_up_and_cameras_go_on(unfinished, config, place, version):
    """``version``: of the metadata of new stores. These keep theirs."""
    text = config.read_text()
    config.write_text(text.replace("output: {", f'output: {{ome_version: "{version}", '))
    with DaemonProcess(config) as daemon:
        ready = daemon.wait_for("ready")
        assert ready["unfinished"] == [str(unfinished / f"{name}.ome.zarr") for name in SENT_BEFORE_THE_KILL]
        with sw.connect(f"ipc://{place}/in.sock") as connection:
            for name, sent in SENT_BEFORE_THE_KILL.items():
                with connection.acquire(name, stream=name, reopen=True) as stream:
                    for number in range(sent, SENT_IN_ALL):
                        metadata = {"stage_v": stage_v(number)} if name == "tissue" else None
                        stream.append(
                            pixels(name, number),
                            index=index_of(name, number),
                            frame_id=number,
                            metadata=metadata,
                        )
                assert (stream.receipt.frames_stored, stream.receipt.frames_duplicate) == (SENT_IN_ALL, 1)
        assert daemon.stop() == 0
    for name in SENT_BEFORE_THE_KILL:
        check(unfinished / f"{name}.ome.zarr", name, SENT_IN_ALL)
        check_ome_forms(unfinished / f"{name}.ome.zarr", "0.5")


def test_one_that_may_be_of_two_streams_waits_until_its_client_names_one(unfinished, config, place):
    """Its manifest does not say: two cameras of one model have equal arrays. The other has one stream, and is
    taken up."""
    text = config.read_text()
    begin, end = text.index("  - name: cells"), text.index("  - name: tissue")
    config.write_text(text[:end] + text[begin:end].replace("cells", "twin").replace("24", "32") + text[end:])
    store = unfinished / "cells.ome.zarr"
    before = contents(store)
    with DaemonProcess(config) as daemon:
        told = daemon.wait_for("acquisition_unopened_warning")
        assert (told["path"], told["code"]) == (str(store), "stream_unclear")
        assert told["expected"] == "one of cells, twin"
        assert "shardwright recover" in told["hint"]
        assert daemon.wait_for("acquisition_recovered")["path"] == str(unfinished / "tissue.ome.zarr")
        assert contents(store) == before
        with sw.connect(f"ipc://{place}/in.sock") as connection:
            with pytest.raises(sw.errors.StreamUnclearError, match=r"several streams have the array"):
                connection.acquire("cells", reopen=True)
            with pytest.raises(sw.errors.SpecError, match="another array"):
                connection.acquire("cells", stream="tissue", reopen=True)
            assert contents(store) == before
            with connection.acquire("cells", stream="twin", reopen=True) as stream:
                assert stream._link.opened.ring_slots == 32
                opened_as = read_manifest(store / ".shardwright").opened_as
                assert (opened_as.stream, opened_as.ring_frames) == ("twin", 32)
                for number in range(SENT_BEFORE_THE_KILL["cells"], SENT_IN_ALL):
                    stream.append(pixels("cells", number), index=(number,), frame_id=number)
        assert daemon.stop() == 0
    check(store, "cells", SENT_IN_ALL)


@pytest.fixture(params=PLATES, ids=lambda archive: archive.name.partition(".")[0])
def plate(request, place):
    """A plate whose writer was killed."""
    return unpack(request.param, place / "data") / "plate.ome.zarr"


def check_plate(store, sent: dict[int, int]) -> None:
    """So many frames of each image are there, and nothing else."""
    for image, frames in sent.items():
        expected = np.zeros(PLATE_SHAPE, np.uint16)
        for t in range(frames):
            expected[t] = plate_pixel(image, t)
        found = zarr.open_array(sw.open(store), path=f"{image}/0", mode="r")[:]
        assert (found == expected[: len(found)]).all()
        assert len(found) >= frames


def test_a_plate_is_seen_recovered_and_whole(plate, pool):
    check_plate(plate, PLATE_SENT)
    before = contents(plate)
    found = recover_store(plate, pool, threads=1, dry_run=True)
    assert (found.frames_kept, found.frames_lost) == (sum(PLATE_SENT.values()), 0)
    assert contents(plate) == before
    found = recover_store(plate, pool, threads=1)
    assert (found.action, found.frames_kept, found.frames_lost) == ("sealed", sum(PLATE_SENT.values()), 0)
    check_plate(plate, PLATE_SENT)
    assert verify_store(plate).ok


def test_a_plate_goes_on_as_it_was_begun(plate):
    """One that was made without shared journals keeps to that."""
    begun_with = read_manifest(plate / ".shardwright").journal_rows
    with sw.resume(plate) as writer:
        assert read_manifest(plate / ".shardwright").journal_rows == begun_with
        for image, frames in PLATE_SENT.items():
            for t in range(frames, PLATE_SHAPE[0]):
                frame = np.full(PLATE_SHAPE[1:], plate_pixel(image, t), np.uint16)
                writer.append(frame, image=f"{image}", index=(t,))
    assert writer.receipt.frames_lost == 0
    check_plate(plate, dict.fromkeys(PLATE_SENT, PLATE_SHAPE[0]))
    assert verify_store(plate).ok


def test_a_release_before_refuses_a_plate_with_shared_journals_by_name(plate, pool, monkeypatch):
    found = json.loads((plate / ".shardwright/acquisition.1.json").read_text())["format"]
    before = contents(plate)
    monkeypatch.setattr(manifest, "FORMAT", found - 1)
    with pytest.raises(sw.errors.FormatVersionError, match=f"1 to {found - 1}; got version {found}"):
        recover_store(plate, pool, threads=1)
    assert contents(plate) == before
