"""Metadata of frames, of the acquisition and of its images: written, killed, resumed, recovered, read."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaozarrs
import zarr
from ome_zarr_models import open_ome_zarr
from tests.harness.ome_forms import check_ome_forms
from tests.harness.python import commands
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire.limits import Limits
from shardwright.acquire.workers import WorkerPool
from shardwright.array import document
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.disk import failpoints
from shardwright.model.errors import (
    BudgetError,
    ClosedError,
    FormatVersionError,
    MetadataError,
    ShardFormatError,
    SpecError,
    StorageFullError,
    UnknownImageError,
)
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import Recovery, recover_store
from shardwright.shard.checked_json import encode_checked
from shardwright.shard.shard_row_files import Placement, frames_set_aside
from shardwright.store import store_metadata

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("each_file_syncs_alone")

FRAME = np.ones((16, 16), np.uint16)
SPEC = sw.default_layout(
    (None, 2, 16, 16),
    "uint16",
    "tcyx",
    chunks={"t": 4},
    shards={"t": 8},
    frame_fields=("laser_mw",),
    frame_json_bytes=300,
)


def told(number: int) -> dict:
    return {"laser_mw": number, "note": f"frame {number}, 3 µm", "stage": {"x": [number, None, True]}}


def noted(path: Path) -> list[dict | None]:
    """The JSON of each frame in the order of sending, as ``frame_table`` has it."""
    return [json.loads(text) if text else None for text in sw.frame_table(path)["json"]]


@pytest.fixture(scope="module")
def server():
    return commands()


def recover(path: Path) -> Recovery:
    pool = WorkerPool(2)
    pool.start()
    try:
        return recover_store(path, pool, threads=2)
    finally:
        pool.stop()


def without_numbers(metadata: dict) -> dict:
    return {name: value for name, value in metadata.items() if name != "laser_mw"}


def test_metadata_that_are_no_numbers_are_a_column_of_strings(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, **how(on_duplicate="count")) as writer:
        writer.append(FRAME, index=(0, 0))
        writer.append(FRAME, index=(0, 1), metadata=told(1))
        writer.append(FRAME, index=(0, 1), metadata=told(2))  # a duplicate has metadata too
        writer.append_many(
            [FRAME] * 2, indices=[(1, 0), (1, 1)], metadata={"laser_mw": [3, 4], "note": ["a", "b"], "run": 7}
        )
    assert noted(path) == [
        None,
        without_numbers(told(1)),
        without_numbers(told(2)),
        {"note": "a", "run": 7},
        {"note": "b", "run": 7},
    ]
    table = sw.frame_table(path)
    assert table["laser_mw"].tolist()[1:] == [1, 2, 3, 4]
    assert table["status"].tolist() == ["stored", "stored", "duplicate", "stored", "stored"]
    columns = {name: column[:] for name, column in zarr.open_group(path / "frames", mode="r").arrays()}
    assert columns["json"][np.argsort(columns["sequence"])].tolist() == table["json"].tolist()
    assert verify_store(path).ok


def test_columns_are_in_the_order_of_their_use(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, sw.AcquisitionSpec(array=SPEC, images=("left", "right"))) as writer:
        writer.append(FRAME, image="right", index=(0, 0), metadata={"note": "r"})
        writer.append(FRAME, image="left", index=(0, 1), metadata={"note": "l"})
    table = sw.frame_table(path)
    assert list(table) == [
        *("image", "index_t", "index_c", "frame_id", "sequence"),
        *("camera_ns", "monotonic_ns", "arrival_ns", "arrival_monotonic_ns"),
        *("delta_t", "exposure_time", "position_x", "position_y", "position_z", "laser_mw"),
        *("json", "client_epoch", "status", "fate", "reason"),
    ]
    assert table["image"].tolist() == ["right", "left"]
    assert all(table[name].dtype == "category" for name in ("image", "status", "fate", "reason"))
    assert noted(path) == [{"note": "r"}, {"note": "l"}]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"x": float("nan")}, "no JSON"),
        ({"x": [np.float32("inf")]}, "no JSON"),
        ({"x": object()}, "no JSON.*object"),
        ({"x": "\ud800"}, "no JSON"),
        ({("a", 1): 2}, "no values by name"),
        ({"laser_mw": "strong"}, "not a number"),
    ],
)
def test_bad_metadata_refuse_one_frame(tmp_path, metadata, words):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        with pytest.raises(MetadataError, match=words):
            writer.append(FRAME, metadata=metadata)
        with pytest.raises(MetadataError, match=words if "laser_mw" not in metadata else "not of numbers"):
            writer.append_many([FRAME], metadata=metadata)
        with pytest.raises(MetadataError, match=words):
            writer.claim(metadata=metadata)
        writer.append(FRAME, metadata=told(0))
    assert writer.receipt.frames_received == 1
    assert noted(path) == [without_numbers(told(0))]


LONG = {"laser_mw": 5, "note": "y" * 293}  # one byte too long


def append_long(writer: sw.Writer) -> None:
    """Six frames, of three of which the JSON does not fit."""
    writer.append(FRAME, index=(0, 0), metadata=told(0))
    writer.append(FRAME, index=(0, 1), metadata=LONG)
    writer.append_many([FRAME] * 2, indices=[(1, 0), (1, 1)], metadata={"note": ["z" * 293, "short"]})
    later: dict = {}
    with writer.claim(index=(2, 0), metadata=later) as pixels:
        pixels[:] = FRAME
        later.update(LONG)
    writer.append(FRAME, index=(2, 1))


def long_events(caplog) -> list[dict[str, Any]]:
    return [record.facts for record in caplog.records if getattr(record, "event", "") == "frame_json_dropped"]


def test_a_long_comment_costs_no_frame(tmp_path, caplog):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        append_long(writer)
    receipt = writer.receipt
    assert (receipt.frames_stored, receipt.frame_json_dropped, receipt.trouble) == (6, 3, {})
    assert noted(path) == [without_numbers(told(0)), None, None, {"note": "short"}, None, None]
    table = sw.frame_table(path)
    assert table["laser_mw"].tolist()[1::3] == [5, 5], "fields with a column of their own are kept"
    assert min(table["json"]) == "", "an empty cell, as of a frame without metadata"
    (event,) = long_events(caplog)
    assert (event["most_bytes"], event["sequence"], event["index"]) == (300, 1, [0, 1])
    assert verify_store(path).ok


def append_long_and_die(_, path: str) -> None:
    writer = sw.create(path, SPEC, **how(on_duplicate="count"))
    append_long(writer)
    writer.append(FRAME, index=(0, 1), metadata=LONG)  # a duplicate's does not fit either
    writer.flush()
    os._exit(0)


@pytest.mark.parametrize("ending", ["resumed", "recovered"])
def test_a_kill_forgets_none_that_did_not_fit(tmp_path, server, caplog, ending):
    path = tmp_path / "a.ome.zarr"
    assert server.start(append_long_and_die, str(path)).wait() == 0
    if ending == "recovered":
        pool = WorkerPool(2)
        pool.start()
        receipt = recover_store(path, pool, threads=2).receipt
        pool.stop()
    else:
        with sw.resume(path) as writer:
            writer.append(FRAME, index=(3, 0), metadata=LONG)
        receipt = writer.receipt
    assert receipt.frame_json_dropped == (4 if ending == "recovered" else 5)
    assert not long_events(caplog), "it was told by the writer that is gone"
    assert noted(path)[:7] == [without_numbers(told(0)), None, None, {"note": "short"}, None, None, None]


def test_no_json_at_all_fits_into_a_byte(tmp_path):
    spec = SPEC.model_copy(update={"frame_json_bytes": 1})
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        writer.append(FRAME, metadata={"a": 1})
    assert (writer.receipt.frames_stored, writer.receipt.frame_json_dropped) == (1, 1)
    assert noted(tmp_path / "a.ome.zarr") == [None]


def test_without_room_for_json_the_field_to_set_is_named(tmp_path):
    spec = SPEC.model_copy(update={"frame_json_bytes": 0})
    with sw.create(tmp_path / "a.ome.zarr", spec) as writer:
        with pytest.raises(MetadataError, match=r"unknown metadata field.*frame_json_bytes"):
            writer.append(FRAME, metadata={"note": "a"})
        writer.append(FRAME)


def test_the_longest_json_fits(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        writer.append(FRAME, metadata={"x": "y" * 292})
    (text,) = sw.frame_table(path)["json"]
    assert len(text) == 300


@pytest.mark.parametrize("ending", ["resumed", "recovered"])
def test_a_kill_loses_no_metadata_of_a_stored_frame(tmp_path, server, ending):
    """Sealed, journaled, staged and dropped into the log before the kill."""
    path = tmp_path / "a.ome.zarr"
    assert server.start(append_and_die, str(path)).wait() == 0
    expected = [without_numbers(told(number)) for number in range(21)]
    if ending == "recovered":
        recover(path)
    else:
        with sw.resume(path) as writer:
            assert writer.frames == 21
            writer.append(FRAME, index=(30, 0), metadata=told(21))
        expected.append(without_numbers(told(21)))
    assert noted(path) == expected
    assert verify_store(path).ok


def append_and_die(_, path: str) -> None:
    writer = sw.create(path, SPEC)
    for number in range(21):
        writer.append(FRAME, index=divmod(number, 2), metadata=told(number))
    writer.flush()
    os._exit(0)


def test_the_images_of_an_acquisition_have_one_bound():
    other = SPEC.model_copy(update={"frame_json_bytes": 8})
    with pytest.raises(SpecError, match="frame_json_bytes must be the same"):
        parse_acquisition({"images": {"a": SPEC, "b": other}})


def test_the_memory_of_json_is_planned(tmp_path):
    plain = SPEC.model_copy(update={"frame_json_bytes": 0})
    without, with_json = (Limits.derive(spec, threads=2) for spec in (plain, SPEC))
    assert with_json.memory_bytes - without.memory_bytes >= 300 * (1 << 16)
    with pytest.raises(BudgetError):
        Limits.derive(SPEC, threads=2, memory_bytes=without.memory_bytes)
    with pytest.raises(SpecError, match="too many bytes of frame_json_bytes in a shard"):
        sw.default_layout((None, 4, 4), "uint8", "tyx", shards={"t": 1 << 16}, frame_json_bytes=4096)
    assert sw.default_layout((None, 4, 4), "uint8", "tyx", frame_json_bytes=4096)


def attributes(path: Path) -> dict:
    """Those of a group that are not ours."""
    return {name: value for name, value in zarr.open_group(path, mode="r").attrs.items() if name != "ome"}


def test_metadata_at_the_beginning_and_at_the_end(tmp_path):
    path, images = tmp_path / "a.ome.zarr", (sw.Image(name="l", attributes={"side": "left"}), "r", "never")
    spec = sw.AcquisitionSpec(array=SPEC, images=images, attributes={"who": "me", "run": 1})
    with sw.create(path, spec) as writer:
        writer.update_metadata({"early": True}, image="r")  # before its group is there
        writer.update_metadata({"kept": "without its image"}, image="never")
        for image in ("l", "r"):
            writer.append(FRAME, image=image, index=(0, 0))
        writer.update_metadata({"run": 2, "temperature": np.float32(36.5), "text": "µ"})
        writer.update_metadata({"side": ["was", "left"]}, image="l")
    assert attributes(path) == {"who": "me", "run": 2, "temperature": 36.5, "text": "µ"}
    assert attributes(path / "0") == {"side": ["was", "left"]}
    assert attributes(path / "1") == {"early": True}
    assert attributes(path / "2") == {"kept": "without its image"}
    assert "multiscales" in zarr.open_group(path / "0", mode="r").attrs["ome"]
    assert verify_store(path).ok
    yaozarrs.validate_zarr_store(str(path))


def update_four(writer: sw.Writer) -> None:
    writer.append(FRAME, image="a", index=(0, 0))
    for image in ("d", "b", "a"):
        writer.update_metadata({"x": 1}, image=image)
    writer.flush()


def update_four_and_die(_, path: str) -> None:
    writer = sw.create(path, sw.AcquisitionSpec(array=SPEC, images=["a", "b", "c", "d"]))
    update_four(writer)
    os._exit(0)  # while the writer lives: one that is forgotten is sealed


@pytest.mark.parametrize("resumed", [False, True])
def test_metadata_of_an_image_without_a_frame_are_kept_where_another_has_frames(tmp_path, server, resumed):
    path = tmp_path / "a.ome.zarr"
    if resumed:
        assert server.start(update_four_and_die, str(path)).wait() == 0
        with sw.resume(path):
            pass
    else:
        with sw.create(path, sw.AcquisitionSpec(array=SPEC, images=["a", "b", "c", "d"])) as writer:
            update_four(writer)
    assert [attributes(path / number) for number in "013"] == [{"x": 1}] * 3
    assert json.loads((path / "OME/zarr.json").read_text())["attributes"]["ome"]["series"] == ["0"]
    assert not (path / "2").exists()
    assert not list((path / "1").glob("0*")), "no image"
    assert verify_store(path).ok
    yaozarrs.validate_zarr_store(str(path))


def test_metadata_of_a_declared_and_of_an_added_image_without_a_frame_are_those_of_its_first_one(tmp_path):
    path = tmp_path / "a.ome.zarr"
    images = ["with frames", sw.Image(name="declared", path="b/c", attributes={"dose": 1})]
    with sw.create(path, sw.AcquisitionSpec(array=SPEC, images=images)) as writer:
        writer.append(FRAME, image="with frames", index=(0, 0))
        writer.add_image("added", attributes={"dose": 2})
        writer.update_metadata(
            {"note": "n", "ome": {"name": "named"}}, image="added", position={"grid_row": 3}, remove=["dose"]
        )
    assert attributes(path / "b/c") == {"dose": 1}
    kept = {"position": {"unit": "micrometer", "grid_row": 3}, "ome": {"name": "named"}}
    assert attributes(path / "2") == {"note": "n", "shardwright": kept}
    zarr.open_group(path / "2").attrs["theirs"] = True
    assert verify_store(path).ok
    with sw.resume(path) as writer:
        writer.append(FRAME, image="added", index=(0, 0))
    assert attributes(path / "2") == {"note": "n", "theirs": True, "shardwright": {"grid": {"row": 3}}}
    assert multiscale(path / "2")["name"] == "named"
    assert attributes(path / "b/c") == {"dose": 1}
    assert verify_store(path).ok
    yaozarrs.validate_zarr_store(str(path))


def test_what_another_program_put_in_the_place_of_an_image_without_a_frame_stays(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, sw.AcquisitionSpec(array=SPEC, images=list("abcef"))) as writer:
        writer.append(FRAME, image="a", index=(0, 0))
        for image in "bcef":
            writer.update_metadata({"x": 1}, image=image)
        writer.add_image("d", attributes={"y": 1})
        (path / "1").write_text("a file")
        zarr.create_array(path / "2", shape=(3,), dtype="uint8")
        (path / "3").symlink_to(tmp_path)
        (path / "4").mkdir()
        (path / "4/zarr.json").symlink_to(path / "2/zarr.json")
        zarr.open_group(path / "5").attrs["theirs"] = True
    assert attributes(path / "5") == {"theirs": True, "y": 1}
    assert (path / "4/zarr.json").is_symlink()
    assert not (tmp_path / "zarr.json").exists()
    assert (path / "1").read_text() == "a file"
    assert zarr.open_array(path / "2", mode="r").shape == (3,)


def test_metadata_of_a_single_image_are_seen_at_once(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, attributes={"who": "me"}) as writer:
        assert attributes(path) == {"who": "me"}
        writer.append(FRAME)
        writer.update_metadata({"note": 1})
        assert attributes(path) == {"who": "me", "note": 1}
    assert attributes(path) == {"who": "me", "note": 1}
    assert "multiscales" in zarr.open_group(path, mode="r").attrs["ome"]


def test_metadata_of_a_plate(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, plate=sw.Plate(rows=2, columns=2), attributes={"who": "me"}) as writer:
        writer.append(FRAME, image="B/2/0")
        writer.update_metadata({"dose": 0.5}, image="B/2/0")
        writer.update_metadata({"dose": 0}, image="A/1/0")  # no frame comes to it
    assert (attributes(path), attributes(path / "B/2/0")) == ({"who": "me"}, {"dose": 0.5})
    assert attributes(path / "A/1/0") == {"dose": 0}
    wells = json.loads((path / "zarr.json").read_text())["attributes"]["ome"]["plate"]["wells"]
    assert [well["path"] for well in wells] == ["B/2"]
    assert verify_store(path).ok
    yaozarrs.validate_zarr_store(str(path))


def multiscale(group: Path) -> dict[str, Any]:
    (found,) = json.loads((group / "zarr.json").read_text())["attributes"]["ome"]["multiscales"]
    return found


def channels(group: Path) -> list[dict[str, Any]]:
    return json.loads((group / "zarr.json").read_text())["attributes"]["ome"]["omero"]["channels"]


def test_names_that_are_removed_go_declared_or_told(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, attributes={"who": "me", "draft": True}) as writer:
        writer.append(FRAME)
        writer.update_metadata({"x": 1, "y": 2})
        writer.update_metadata({"z": 3}, remove=["draft", "x", "not there"])
        assert attributes(path) == {"who": "me", "y": 2, "z": 3}
        writer.update_metadata({"x": "again"})
    assert attributes(path) == {"who": "me", "x": "again", "y": 2, "z": 3}


@pytest.mark.parametrize(
    ("update", "remove", "words"),
    [
        ({}, ["ome"], "remove: this is written by shardwright; expected names of attributes, ome.omero"),
        ({}, ["ome.multiscales"], "remove: this is written by shardwright"),
        ({}, ["shardwright"], "remove: this is written by shardwright"),
        ({}, "x", "a list of names"),
        ({}, [1], "a list of names"),
        ({"x": 1}, ["x"], "removes what it says"),
        ({"ome": {"name": "n"}}, ["ome.name"], "removes what it says"),
        ({"ome": {"version": "0.6", "name": "n"}}, [], "expected of it omero, name, metadata.*got.*version"),
        ({"ome": {"plate": {}}}, [], "expected of it omero, name, metadata"),
        ({"ome": {"name": 1}}, [], r"ome\.name cannot be; expected text"),
        ({"ome": {"metadata": "m"}}, [], r"ome\.metadata cannot be"),
        ({"ome": {"omero": {"version": "0.4"}}}, [], r"ome\.omero cannot be"),
        ({"ome": {"omero": {"channels": [{}] * 3}}}, [], r"omero\.channels cannot be; expected at most 2"),
        ({"ome": {"omero": {"channels": [{"color": "green"}]}}}, [], r"\[0\]\.color cannot be; expected six"),
        ({"ome": {"omero": {"channels": [{}, {"label": 5}]}}}, [], r"\[1\]\.label cannot be; expected text"),
        ({"ome": {"omero": {"channels": [{"window": {"start": 5, "end": 5}}]}}}, [], "start below end"),
        ({"ome": {"omero": {"channels": [{"window": {"low": 5}}]}}}, [], "numbers start and end"),
        ({"ome": {"omero": {"channels": [{"window": {"start": 5}}]}}}, [], "numbers start and end"),
    ],
)
def test_what_shardwright_is_responsible_for_is_refused_with_what_may_be_changed(
    tmp_path, update, remove, words
):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, attributes={"x": 0}) as writer:
        writer.append(FRAME)
        before = (path / "zarr.json").read_bytes()
        with pytest.raises(MetadataError, match=words):
            writer.update_metadata(update, remove=remove)
        assert (path / "zarr.json").read_bytes() == before
    with pytest.raises(MetadataError, match=words):
        sw.update_metadata(path, update, remove=remove)
    assert attributes(path) == {"x": 0}


def test_additions_are_of_one_image(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, images=["l", "r"]) as writer:
        writer.append(FRAME, image="l", index=(0, 0))
        for update in ({"attributes": {"ome": {"name": "n"}}}, {"remove": ["ome.name"]}):
            with pytest.raises(MetadataError, match="additions to 'ome' are of one image"):
                writer.update_metadata(**update)
    with pytest.raises(MetadataError, match="additions to 'ome' are of one image"):
        sw.update_metadata(path, {"ome": {"name": "n"}})


LOOKS = [{"label": "nuclei", "color": "0000FF", "window": {"start": 7, "end": 900}}, {"active": False}]


@pytest.mark.parametrize("version", ["0.5", "0.6"])
@pytest.mark.parametrize("when", ["before its group", "running", "finished"])
@pytest.mark.parametrize("several", [False, True], ids=["one image", "several"])
def test_additions_to_ome_are_beside_what_shardwright_writes(tmp_path, several, when, version):
    path = tmp_path / "a.ome.zarr"
    image = "r" if several else None
    told = {"ome": {"omero": {"channels": LOOKS, "rdefs": {"model": "greyscale"}}, "name": "cells"}}
    told["ome"]["metadata"] = {"by": "hand"}
    options = {"images": ["l", "r"]} if several else {}
    spec = SPEC.model_copy(update={"levels": sw.Levels(count=1)})
    with sw.create(path, spec, ome_version=version, **options) as writer:
        if when == "before its group":
            writer.update_metadata(told, image=image)
        for index in np.ndindex(8, 2):
            writer.append(FRAME * 100, image=image, index=index)
        writer.flush()
        if when == "running":
            writer.update_metadata(told, image=image)
    if when == "finished":
        sw.update_metadata(path, told, image=image)
    group = path / "1" if several else path
    first, second = channels(group)
    assert first == {
        "label": "nuclei",
        "color": "0000FF",
        "active": True,
        "window": {**first["window"], "start": 7, "end": 900},
    }
    assert first["window"]["min"] <= 7 < 900 <= first["window"]["max"]
    assert (second["label"], second["active"], second["window"]["start"]) == ("channel 1", False, 100)
    found = multiscale(group)
    assert found["name"] == "cells"
    assert found["metadata"]["by"] == "hand"
    assert found["metadata"]["method"] == "shardwright mean"
    assert [dataset["path"] for dataset in found["datasets"]] == ["0", "1"]
    ome = json.loads((group / "zarr.json").read_text())["attributes"]["ome"]
    assert (ome["omero"]["rdefs"], ome["version"]) == ({"model": "greyscale"}, version)
    assert verify_store(path).ok
    if version == "0.5":
        yaozarrs.validate_zarr_store(str(path))
        if not several:
            open_ome_zarr(zarr.open_group(path, mode="r"))
    check_ome_forms(path, version)


@pytest.mark.parametrize("when", ["running", "finished"])
def test_additions_that_are_removed_are_what_shardwright_writes(tmp_path, when):
    told = {"ome": {"omero": {"channels": LOOKS}, "name": "cells", "metadata": {"by": "hand"}}}
    path, plain = tmp_path / "a.ome.zarr", tmp_path / "plain" / "a.ome.zarr"
    for each in (plain, path):
        with sw.create(each, SPEC) as writer:
            for index in np.ndindex(8, 2):
                writer.append(FRAME * 100, index=index)
            if each == path and when == "running":
                writer.update_metadata(told)
                assert multiscale(path)["name"] == "cells"
                writer.update_metadata(remove=["ome.name", "ome.metadata", "ome.omero"])
    if when == "finished":
        sw.update_metadata(path, told)
        assert channels(path) != channels(plain)
        sw.update_metadata(path, remove=["ome.name", "ome.metadata", "ome.omero"])
    assert json.loads((path / "zarr.json").read_text()) == json.loads((plain / "zarr.json").read_text())


def test_channels_of_an_axis_without_a_count_are_described_at_the_end(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, shape=(None, 2, 16, 16), dtype="uint16", axes="ctyx") as writer:
        writer.update_metadata({"ome": {"omero": {"channels": [{}, {"label": "second"}, {"label": "none"}]}}})
        for index in np.ndindex(2, 2):
            writer.append(FRAME, index=index)
    assert [channel["label"] for channel in channels(path)] == ["channel 0", "second"]
    yaozarrs.validate_zarr_store(str(path))


def test_a_running_store_shows_what_was_told_and_not_what_was_removed(tmp_path):
    path = tmp_path / "a.ome.zarr"
    attributes_ = {"draft": True, "who": "me"}
    with sw.create(path, SPEC, images=["l", "r"], attributes=attributes_) as writer:
        writer.append(FRAME, image="l", index=(0, 0))
        writer.update_metadata({"who": "you"}, remove=["draft"])
        writer.update_metadata({"ome": {"name": "left"}}, image="l")
        writer.flush()
        root = zarr.open_group(sw.open(path), mode="r")
        assert {n: v for n, v in root.attrs.items() if n != "ome"} == {"who": "you"}
        assert root["0"].attrs["ome"]["multiscales"][0]["name"] == "left"


BAD_UPDATES = [
    ({"ome": {}}, "cannot be attributes: 'ome' is written by shardwright; expected of it omero, name, "),
    ({"ome": {"multiscales": []}}, "'ome' is written by.*expected of it omero, name, metadata"),
    ({"shardwright": 1}, "'shardwright' is written"),
    ({"x": float("nan")}, "cannot be attributes; expected text, finite numbers"),
    ({"x": {1, 2}}, "cannot be attributes; expected text, finite numbers"),
    ({"x": "\ud800"}, "cannot be attributes"),
    ({1: "x"}, "metadata by name"),
    (["x"], "metadata by name"),
    ({"x": "y" * (1 << 20)}, r"attributes: too long, expected at most 1048576 bytes in zarr.json, got \d+$"),
]


@pytest.mark.parametrize(("update", "words"), BAD_UPDATES, ids=[words for _, words in BAD_UPDATES])
def test_bad_updates_change_nothing(tmp_path, update, words):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        writer.update_metadata({"x": "before"})
        with pytest.raises(MetadataError, match=words):
            writer.update_metadata(update)
        with pytest.raises(UnknownImageError):
            writer.update_metadata({"x": 1}, image="left")
        writer.append(FRAME)
    assert attributes(path) == {"x": "before"}
    with pytest.raises(ClosedError):
        writer.update_metadata({"x": 1})


def test_updates_that_are_too_long_together(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", SPEC) as writer:
        writer.append(FRAME)
        writer.update_metadata({"x": "y" * 600_000})
        with pytest.raises(MetadataError, match="with those before"):
            writer.update_metadata({"z": "y" * 600_000})
        writer.update_metadata({"x": "short"})
        writer.update_metadata({"z": "y" * 600_000})
    assert attributes(tmp_path / "a.ome.zarr")["x"] == "short"


@pytest.mark.parametrize("given", [{"ome": 1}, {"shardwright": {}}, {"x": float("inf")}])
def test_bad_attributes_of_a_specification(tmp_path, given):
    with pytest.raises(SpecError, match="attributes"):
        sw.create(tmp_path / "a.ome.zarr", SPEC, attributes=given)
    with pytest.raises(SpecError, match="attributes"):
        sw.create(tmp_path / "a.ome.zarr", SPEC, images=[{"name": "a", "attributes": given}])


def update_and_die(_, path: str, point: str, several: bool) -> None:
    """Killed at the ``point``, or behind all."""
    images = {"images": ["l", "r"]} if several else {}
    writer = sw.create(path, SPEC, attributes={"who": "me"}, **how(**images))
    for index in np.ndindex(9, 2):
        writer.append(FRAME, image="l" if several else None, index=index)
    writer.flush()
    writer.update_metadata({"note": "kept"})
    if several:
        writer.update_metadata({"side": "left"}, image="l")
    if point:
        name, _, time = point.partition(" ")  # the second file is zarr.json
        failpoints.set_hook(name, failpoints.at_time(int(time or 1), lambda: os._exit(0)))
        writer.update_metadata({"note": "newer"})
    os._exit(0)


@pytest.mark.parametrize("several", [False, True], ids=["one image", "several"])
@pytest.mark.parametrize("ending", ["resumed", "recovered"])
@pytest.mark.parametrize(
    "point",
    ["", "replace.before_create", "replace.before_sync", "replace.before_rename", "replace.before_rename 2"],
)
def test_a_kill_loses_no_update_that_returned(tmp_path, server, point, ending, several):
    path = tmp_path / "a.ome.zarr"
    assert server.start(update_and_die, str(path), point, several).wait() == 0
    if ending == "recovered":
        recover(path)
    else:
        with sw.resume(path) as writer:
            writer.update_metadata({"later": 1})
            writer.append(FRAME, image="l" if several else None, index=(30, 0))
    found = attributes(path)
    assert found.pop("note") == ("newer" if point.endswith("2") else "kept")
    assert found == {"who": "me", **({"later": 1} if ending == "resumed" else {})}
    if several:
        assert attributes(path / "0") == {"side": "left"}
    assert not (path / ".shardwright").exists()
    assert verify_store(path).ok


def remove_and_die(_, path: str) -> None:
    images = ["l", "r", sw.Image(name="s", attributes={"draft": 1, "who": "s"})]
    writer = sw.create(path, SPEC, attributes={"who": "me", "draft": 1}, images=images)
    writer.append(FRAME, image="l", index=(0, 0))
    writer.flush()
    writer.update_metadata(remove=["draft"])
    writer.update_metadata(remove=["draft"], image="s")
    writer.update_metadata({"ome": {"name": "left", "omero": {"channels": [{"color": "ABCDEF"}]}}}, image="l")
    writer.update_metadata({"ome": {"name": "right", "omero": {"channels": [{}, LOOKS[0]]}}}, image="r")
    writer.append(FRAME, image="r", index=(0, 0))
    writer.flush()
    os._exit(0)


@pytest.mark.parametrize("ending", ["resumed", "recovered"])
def test_a_kill_loses_no_removal_and_no_addition_that_returned(tmp_path, server, ending):
    path = tmp_path / "a.ome.zarr"
    assert server.start(remove_and_die, str(path)).wait() == 0
    if ending == "recovered":
        recover(path)
    else:
        with sw.resume(path) as writer:
            writer.append(FRAME, image="l", index=(1, 0))
    assert attributes(path) == {"who": "me"}
    assert attributes(path / "2") == {"who": "s"}, "of an image without a frame"
    assert [multiscale(path / image)["name"] for image in "01"] == ["left", "right"]
    assert channels(path / "0")[0]["color"] == "ABCDEF"
    assert channels(path / "1")[1]["window"] | LOOKS[0]["window"] == channels(path / "1")[1]["window"]
    assert verify_store(path).ok
    yaozarrs.validate_zarr_store(str(path))
    sw.update_metadata(path, {"draft": 2})
    with sw.resume(path) as writer:
        writer.append(FRAME, image="r", index=(2, 0))
    assert attributes(path) == {"who": "me", "draft": 2}, "an earlier part's removal is over"


def test_a_damaged_update_is_set_aside_and_costs_no_frame(tmp_path, server):
    path = tmp_path / "a.ome.zarr"
    assert server.start(update_and_die, str(path), "", True).wait() == 0
    update = path / ".shardwright/metadata.json"
    update.write_bytes(update.read_bytes().replace(b"kept", b"lost"))
    assert recover(path).set_aside == [str(path / ".shardwright.damaged")]
    assert (path / ".shardwright.damaged/metadata.json").exists()
    assert not frames_set_aside([Placement(path)]), "no doubt about frames"
    (path / ".shardwright.damaged/0.journal").touch()
    assert frames_set_aside([Placement(path)])
    assert zarr.open_array(path / "0/0", mode="r")[:].sum() == 18 * FRAME.size
    assert attributes(path / "0") == {"side": "left"}


def test_an_update_of_a_later_release_is_refused(tmp_path, server):
    path = tmp_path / "a.ome.zarr"
    assert server.start(update_and_die, str(path), "", False).wait() == 0
    workspace = path / ".shardwright"
    (workspace / "metadata.json").write_bytes(encode_checked({"format": 3, "attributes": {}}))
    before = sorted(workspace.iterdir())
    with pytest.raises(FormatVersionError):
        sw.resume(path)
    assert sorted(workspace.iterdir()) == before


def test_an_update_that_cannot_be_written_is_the_callers_error(tmp_path):
    def full() -> None:
        raise OSError(errno.ENOSPC, "no space")

    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        writer.append(FRAME)
        failpoints.set_hook("replace.before_sync", full)
        try:
            with pytest.raises(StorageFullError):
                writer.update_metadata({"x": 1})
        finally:
            failpoints.set_hook("replace.before_sync", None)
        writer.update_metadata({"y": 2})
    assert attributes(path) == {"y": 2}
    assert writer.receipt.frames_stored == 1


def test_the_answer_to_an_update_that_was_interrupted_is_not_that_of_the_next(tmp_path, monkeypatch):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        writer.append(FRAME)
        goes_on = threading.Event()
        failpoints.set_hook("replace.before_sync", goes_on.wait)
        monkeypatch.setattr(writer._driver.lock.changed, "wait", interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                writer.update_metadata({"first": 1})
        finally:
            monkeypatch.undo()
            failpoints.set_hook("replace.before_sync", None)
            goes_on.set()
        # its answer comes before the next one is asked
        while not writer._acquisition._core.notifications._updates:
            time.sleep(0.001)
        writer.update_metadata({"second": 2})
    assert attributes(path) == {"first": 1, "second": 2}


def interrupt(_timeout_s: float) -> None:
    """Ctrl-C while a call waits."""
    raise KeyboardInterrupt


def test_threads_that_update_at_once_get_their_own_answers(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer, ThreadPoolExecutor(4) as callers:
        writer.append(FRAME)
        updates = [{f"k{number}": number} for number in range(40)]
        assert list(callers.map(writer.update_metadata, updates)) == [None] * 40
    assert attributes(path) == {f"k{number}": number for number in range(40)}


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize(
    ("several", "images"),
    [
        ({}, [None]),
        ({"images": ["r", "g"]}, ["r", "g"]),
        ({"plate": sw.Plate(rows=2, columns=2)}, ["A/1/0", "B/2/0"]),
    ],
)
def test_what_others_write_into_the_group_of_a_store_stays_and_consolidated_metadata_stay_true(
    tmp_path, several, images
):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, attributes={"who": "me"}, **how(**several)) as writer:
        writer.append(FRAME, image=images[0])
        writer.flush()
        zarr.open_group(path).attrs["theirs"] = [1]
        zarr.consolidate_metadata(path)
        writer.append(FRAME, image=images[-1])
        writer.update_metadata({"x": 1})
    assert attributes(path) == {"who": "me", "theirs": [1], "x": 1}
    group = zarr.open_group(path, mode="r", use_consolidated=True)
    written = [array for array in writer._acquisition.spec.paths if array in group]
    assert [group[array].shape[0] for array in written] == [1] * len(images)
    assert verify_store(path).ok


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("most_bytes", [1 << 20, 8000])
def test_a_copy_that_would_be_too_long_to_be_read_is_left_out_and_so_is_an_older_one(
    tmp_path, monkeypatch, most_bytes
):
    path = tmp_path / "a.ome.zarr"
    monkeypatch.setattr(document, "MAX_METADATA_BYTES", most_bytes)
    with sw.create(path, SPEC, **how(images=["r", "g", "b"])) as writer:
        zarr.consolidate_metadata(path)
        for image in "rgb":
            writer.append(FRAME, image=image)
    written = json.loads((path / "zarr.json").read_text())
    assert ("consolidated_metadata" in written) is (most_bytes > 8000)
    assert [zarr.open_group(path, mode="r")[f"{image}/0"].shape[0] for image in range(3)] == [1, 1, 1]
    assert verify_store(path).ok


def test_a_group_of_many_mib_is_no_damaged_one(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, **how(images=["r", "g"])) as writer:
        group = json.loads((path / "zarr.json").read_text())
        group["attributes"]["theirs"] = "x" * (17 << 20)
        (path / "zarr.json").write_text(json.dumps(group))
        writer.append(FRAME, image="g")
        writer.update_metadata({"x": 1})
    found = attributes(path)
    assert (len(found["theirs"]), found["x"]) == (17 << 20, 1)
    assert verify_store(path).ok


def test_a_group_that_is_longer_than_we_read_stays_and_ends_no_acquisition(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, **how(images=["r", "g"])) as writer:
        os.truncate(path / "zarr.json", document.MAX_METADATA_BYTES + 1)
        writer.append(FRAME, image="g")
        writer.update_metadata({"x": 1})
    assert (path / "zarr.json").stat().st_size == document.MAX_METADATA_BYTES + 1
    assert zarr.open_group(path / "1", mode="r")["0"].shape[0] == 1
    with pytest.raises(ShardFormatError, match="is too long"):
        verify_store(path)


def test_a_group_that_cannot_be_read_for_now_keeps_what_others_wrote(tmp_path, monkeypatch):
    def fail(path, most_bytes):
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, **how()) as writer:
        writer.append(FRAME)
        writer.flush()
        zarr.open_group(path).attrs["theirs"] = [1]
        with monkeypatch.context() as patch:
            patch.setattr(store_metadata, "read_regular", fail)
            writer.update_metadata({"x": 1})
        assert attributes(path) == {"theirs": [1]}
    assert attributes(path) == {"theirs": [1], "x": 1}


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        '{"zarr_format": 3, "node_type": "group", "attributes": []}',
        '{"zarr_format": 3, "node_type": "array", "attributes": {"y": 1}}',
    ],
)
@pytest.mark.parametrize("several", [{}, {"images": ["r", "g"]}])
def test_a_damaged_group_is_replaced(tmp_path, several, damage):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, **how(**several)) as writer:
        (path / "zarr.json").write_text(damage)
        writer.append(FRAME, **({"image": "g"} if several else {}))
        writer.update_metadata({"x": 1})
    assert attributes(path) == {"x": 1}
    assert verify_store(path).ok


def test_an_update_that_an_older_writer_was_about_to_put_in_place_is_deleted(tmp_path, server):
    path = tmp_path / "a.ome.zarr"
    assert server.start(update_and_die, str(path), "replace.before_rename", True).wait() == 0
    (about,) = (path / ".shardwright").glob(".metadata*.new")
    assert about.name == ".metadata.json.1.new"
    with sw.resume(path, take_over=True) as writer:
        assert not about.exists()
        writer.update_metadata({"by": "the new one"}, image="r")
        writer.append(FRAME, image="r", index=(0, 0))
    assert attributes(path) == {"who": "me", "note": "kept"}
    assert attributes(path / "1") == {"by": "the new one"}


def test_a_damaged_chunk_of_the_strings_is_found(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        writer.append(FRAME, metadata=told(0))
    chunk = path / "frames/json/c/0"
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    (problem,) = verify_store(path).problems
    assert problem.where == "frames/json/c/0"
    with pytest.raises(ShardFormatError, match="crc32c"):
        sw.frame_table(path)
