"""Metadata of finished stores: changed, removed, refused, killed; and what the next part makes of it."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaozarrs
import zarr
from tests.harness.daemon import run_cli
from tests.harness.python import commands
from tests.harness.writing import how
from tests.repack.images import POLITE, run_here

import shardwright as sw
from shardwright.disk import failpoints
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import (
    FormatVersionError,
    LockedError,
    MetadataError,
    ShardFormatError,
    StorageError,
    UnknownImageError,
)
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.ome_upgrade import upgrade_store
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.shard.checked_json import with_checksum

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FRAME = np.full((16, 16), 100, np.uint16)
SPEC = sw.default_layout((None, 2, 16, 16), "uint16", "tcyx", chunks={"t": 4}, shards={"t": 8})
OLDER_PLATE = {
    "version": "0.4",
    "columns": [{"name": "1"}],
    "rows": [{"name": "A"}],
    "wells": [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}],
}
LOOKS = [{"label": "nuclei", "window": {"start": 7, "end": 900}}]
IMAGES = {
    "one image": ({}, None, ""),
    "several": ({"images": ["l", "r"]}, "r", "1"),
    "plate": ({"plate": sw.Plate(rows=2, columns=2)}, "B/2/0", "B/2/0"),
}


@pytest.fixture(scope="module")
def server():
    return commands()


def make(path: Path, kind: str = "one image", **options: Any) -> Path:
    several, image, _ = IMAGES[kind]
    with sw.create(path, SPEC, attributes={"who": "me", "draft": True}, **several, **options) as writer:
        for index in np.ndindex(4, 2):
            writer.append(FRAME, image=image, index=index)
    return path


def go_on(path: Path, image: str | None = None, at: int = 4) -> None:
    with sw.resume(path) as writer:
        writer.append(FRAME, image=image, index=(at, 0))


@contextmanager
def no_part_begins_meanwhile(path: Path) -> Iterator[None]:
    """While the first document within is replaced, a next part is tried, and refused."""
    refused = []

    def begin() -> None:
        failpoints.set_hook("replace.before_rename", None)
        with pytest.raises(LockedError):
            sw.resume(path)
        refused.append(True)

    failpoints.set_hook("replace.before_rename", begin)
    try:
        yield
    finally:
        failpoints.set_hook("replace.before_rename", None)
    assert refused


def document(group: Path) -> dict[str, Any]:
    return json.loads((group / "zarr.json").read_text())


def attributes(group: Path) -> dict[str, Any]:
    return {name: value for name, value in document(group)["attributes"].items() if name != "ome"}


def channels(group: Path) -> list[dict[str, Any]]:
    return document(group)["attributes"]["ome"]["omero"]["channels"]


def check_whole(path: Path) -> None:
    report = verify_store(path)
    assert (report.problems, report.warnings) == ([], [])
    yaozarrs.validate_zarr_store(str(path))


@pytest.mark.parametrize("kind", IMAGES)
def test_a_finished_store_takes_metadata_and_stays_whole(tmp_path, kind):
    path, (_, image, folder) = make(tmp_path / "a.ome.zarr", kind), IMAGES[kind]
    files = {file for file in path.rglob("*") if file.is_file()}
    before = {file: file.read_bytes() for file in files}
    sw.update_metadata(path, {"stain": "µ", "dose": np.float32(0.5)}, image=image, remove=["draft", "none"])
    changed = {file for file in files if file.read_bytes() != before[file]}
    assert changed == {path / folder / "zarr.json"}
    assert {file for file in path.rglob("*") if file.is_file()} == files, "no lock stays"
    whole = {"who": "me", "draft": True}
    expected = {"stain": "µ", "dose": 0.5}
    assert attributes(path / folder) == ({"who": "me", **expected} if kind == "one image" else expected)
    if kind != "one image":
        assert attributes(path) == whole
        sw.update_metadata(path, {"who": "you"}, remove=["draft"])
        assert attributes(path) == {"who": "you"}
    check_whole(path)


@pytest.mark.parametrize("kind", IMAGES)
def test_the_next_part_puts_nothing_back_that_was_changed_or_removed(tmp_path, kind):
    """Declared and told, of the store and of an image, before and after a part."""
    several, image, folder = IMAGES[kind]
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC, attributes={"who": "me", "draft": True, "same": 1}, **several) as writer:
        writer.append(FRAME, image=image, index=(0, 0))
        writer.update_metadata({"told": 1, "kept": 1, "gone": 1}, image=image)
    sw.update_metadata(path, {"who": "you"}, remove=["draft"])
    sw.update_metadata(path, {"told": 2, "new": 3}, image=image, remove=["gone"])
    for part in (1, 2):
        go_on(path, image, part)
        store, group = attributes(path), attributes(path / folder)
        mine = {"told": 2, "kept": 1, "new": 3}
        if kind == "one image":
            assert store == {"who": "you", "same": 1, **mine}
        else:
            assert (store, group) == ({"who": "you", "same": 1}, mine)
    with sw.resume(path) as writer:
        writer.update_metadata({"draft": "again"})
        writer.append(FRAME, image=image, index=(3, 0))
    assert attributes(path)["draft"] == "again"
    check_whole(path)


@pytest.mark.parametrize("kind", IMAGES)
def test_the_next_part_keeps_additions_and_the_window_that_a_user_chose(tmp_path, kind):
    path, (_, image, folder) = make(tmp_path / "a.ome.zarr", kind), IMAGES[kind]
    told = {"name": "cells", "metadata": {"by": "hand"}}
    looks = [
        {"color": "0000FF", "window": {"min": 0, "max": 900, "start": 7, "end": 800}},
        {"label": "second"},
    ]
    sw.update_metadata(path, {"ome": {**told, "omero": {"channels": looks}}}, image=image)
    check_whole(path)
    with sw.resume(path) as writer:
        for index in np.ndindex(4, 2):
            writer.append(FRAME * 50, image=image, index=(4 + index[0], index[1]))
    first, second = channels(path / folder)
    assert (first["color"], first["window"]) == ("0000FF", looks[0]["window"])
    assert second["label"] == "second"
    assert second["window"]["end"] == 5000, "that of the pixels, by now"
    (multiscale,) = document(path / folder)["attributes"]["ome"]["multiscales"]
    assert {name: multiscale[name] for name in told} == told
    sw.update_metadata(path, image=image, remove=["ome.omero"])
    assert channels(path / folder)[0]["window"] == second["window"]
    check_whole(path)


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_the_block_of_a_profile_takes_fields_that_no_end_writes(tmp_path):
    path = tmp_path / "a.ome.zarr"
    options = {"images": ["l", "r"], "profile": "dynamic-cell-atlas", "attributes": {"dca": {"study": 1}}}
    with sw.create(path, SPEC, **how(**options)) as writer:
        writer.update_metadata({"dca": {"mine": 1}}, image="l")
        for image in "lr":
            writer.append(FRAME, image=image, index=(0, 0))
    with pytest.raises(MetadataError, match=r"each end writes version.*channels"):
        sw.update_metadata(path, {"dca": {"channels": []}}, image="l")
    with pytest.raises(MetadataError, match="a JSON object"):
        sw.update_metadata(path, {"dca": 1}, image="l")
    sw.update_metadata(path, {"dca": {"mine": 2, "specimen": "s"}}, image="l")
    sw.update_metadata(path, {"dca": {"specimen": "t"}}, image="r")
    assert len(attributes(path / "0")["dca"]["channels"]) == 2
    go_on(path, "r", 1)
    sw.update_metadata(path, {"dca": {"study": 2}})
    go_on(path, "r", 2)
    said = [attributes(path / image)["dca"] for image in "01"]
    assert [each["specimen"] for each in said] == ["s", "t"]
    assert [each["study"] for each in said] == [2, 2], "what is said of all is not frozen in each"
    assert said[0]["mine"] == 2
    assert [len(each["channels"]) for each in said] == [2, 2]
    check_whole(path)


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("kind", IMAGES)
def test_consolidated_metadata_stay_true(tmp_path, kind):
    path, (_, image, folder) = make(tmp_path / "a.ome.zarr", kind), IMAGES[kind]
    zarr.consolidate_metadata(path)
    sw.update_metadata(path, {"stain": "blue"}, image=image)
    group = zarr.open_group(path, mode="r", use_consolidated=True)
    assert (group[folder] if folder else group).attrs["stain"] == "blue"
    check_whole(path)


def update_and_die(_, path: str, image: str | None, point: str) -> None:
    name, _, time = point.partition(" ")
    failpoints.set_hook(name, failpoints.at_time(int(time or 1), lambda: os._exit(0)))
    sw.update_metadata(path, {"note": "newer"}, image=image, remove=["draft"])
    os._exit(1)  # too few such moments


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("kind", ["one image", "several"])
@pytest.mark.parametrize(
    "moment",
    [
        *(f"replace.before_{step}" for step in ("create", "sync", "rename")),
        "compact.before_remove_work_folder",
    ],
)
def test_a_kill_leaves_each_zarr_json_old_or_new_and_the_same_call_completes_it(
    tmp_path, server, kind, moment, consolidated
):
    _, image, folder = IMAGES[kind]
    writes = 3 if consolidated and image and moment.startswith("replace") else 1
    for number in range(1, writes + 1):
        path = make(tmp_path / f"{number}.ome.zarr", kind)
        if consolidated:
            zarr.consolidate_metadata(path)
        assert server.start(update_and_die, str(path), image, f"{moment} {number}").wait() == 0
        check_whole(path)
        found = attributes(path / folder)
        assert found.get("note") in (None, "newer")
        assert ("draft" in found) == ("note" not in found and kind == "one image")
        assert zarr.open_array(path / folder / "0", mode="r")[:].sum() == 8 * FRAME.sum()
        sw.update_metadata(path, {"note": "newer"}, image=image, remove=["draft"])
        assert attributes(path / folder)["note"] == "newer"
        check_whole(path)
        go_on(path, image)
        assert attributes(path / folder)["note"] == "newer"


def test_updates_at_once_wait_for_each_other(tmp_path):
    path = make(tmp_path / "a.ome.zarr")
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(lambda number: sw.update_metadata(path, {f"k{number}": number}), range(24)))
    assert attributes(path) == {"who": "me", "draft": True, **{f"k{number}": number for number in range(24)}}


def test_a_store_that_is_written_is_refused(tmp_path):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, SPEC) as writer:
        writer.append(FRAME)
        with pytest.raises(LockedError, match="still being written"):
            sw.update_metadata(path, {"x": 1})
    with sw.resume(path) as writer:
        writer.append(FRAME)
        with pytest.raises(LockedError, match="still being written"):
            sw.update_metadata(path, {"x": 1})
    assert attributes(path) == {}


@pytest.mark.parametrize("where", [".compact/move.lock", "0/.compact/lock"], ids=["moved", "packed"])
def test_a_store_that_is_moved_or_packed_is_refused(tmp_path, where):
    path = make(tmp_path / "a.ome.zarr")
    (path / where).parent.mkdir()
    lock = StoreLock.take(path / where)
    before = (path / "zarr.json").read_bytes()
    with pytest.raises(LockedError):
        sw.update_metadata(path, {"x": 1})
    assert (path / "zarr.json").read_bytes() == before
    lock.delete()
    sw.update_metadata(path, {"x": 1})
    assert attributes(path)["x"] == 1


def test_no_part_begins_while_metadata_change(tmp_path):
    """And what changed before it began counts: the update is read under the locks that keep others out."""
    path = make(tmp_path / "a.ome.zarr")
    with no_part_begins_meanwhile(path):
        sw.update_metadata(path, {"who": "you"})

    def change() -> None:
        failpoints.set_hook("replace.before_rename", None)
        sw.update_metadata(path, {"who": "them"}, remove=["draft"])

    failpoints.set_hook("replace.before_rename", change)  # the next part is being made, beside the store
    go_on(path)
    assert attributes(path) == {"who": "them"}
    check_whole(path)


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize(("job", "image"), [("upgrade", "r"), ("move", "r"), ("move", None)])
def test_no_upgrade_and_no_move_begins_while_metadata_change(tmp_path, job, image):
    """They would take what is there for a moment, without the consolidated copies, for the store; and a move
    could delete the source under an update that returns."""
    path, refused = make(tmp_path / "a.ome.zarr", "several"), []
    zarr.consolidate_metadata(path)
    jobs = {
        "upgrade": lambda: upgrade_store(path),
        "move": lambda: move_store(
            path, MoveOptions(str(tmp_path / "b.ome.zarr"), throttle=POLITE), run_here
        ),
    }

    def begin() -> None:
        failpoints.set_hook("replace.before_rename", None)
        with pytest.raises(LockedError):
            jobs[job]()
        refused.append(True)

    failpoints.set_hook("replace.before_rename", failpoints.at_time(2 if image else 1, begin))
    try:
        sw.update_metadata(path, {"x": 1}, image=image)
    finally:
        failpoints.set_hook("replace.before_rename", None)
    assert refused
    assert attributes(path / ("1" if image else ""))["x"] == 1
    check_whole(path)


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_a_store_in_a_group_of_the_user_is_the_one_that_is_kept_from_others(tmp_path):
    zarr.open_group(tmp_path / "study", mode="w").attrs["title"] = "t"
    path = tmp_path / "study/a.ome.zarr"
    with sw.create(path, SPEC, images=["l", "r"]) as writer:
        for index in np.ndindex(4, 2):
            writer.append(FRAME, image="r", index=index)
        with pytest.raises(LockedError, match="still being written"):
            sw.update_metadata(path, {"x": 1})
    zarr.consolidate_metadata(tmp_path / "study")
    with no_part_begins_meanwhile(path):
        sw.update_metadata(path, {"ome": {"name": "n", "omero": {"channels": LOOKS}}}, image="r")
    sw.update_metadata(path, {"x": 1}, image="r", remove=["ome.name", "ome.omero"])
    (multiscale,) = document(path / "1")["attributes"]["ome"]["multiscales"]
    assert (multiscale["name"], channels(path / "1")[0]["label"]) == ("r", "channel 0")
    study = zarr.open_group(tmp_path / "study", mode="r", use_consolidated=True)
    assert (study.attrs["title"], study["a.ome.zarr/1"].attrs["x"]) == ("t", 1)
    assert {file.name for file in (tmp_path / "study").iterdir()} == {"zarr.json", "a.ome.zarr"}
    check_whole(path)


def test_an_interrupted_upgrade_is_ended_first(tmp_path):
    path = make(tmp_path / "a.ome.zarr")
    failpoints.set_hook("replace.before_rename", failpoints.at_time(2, interrupt))
    try:
        with pytest.raises(KeyboardInterrupt):
            upgrade_store(path)
    finally:
        failpoints.set_hook("replace.before_rename", None)
    with pytest.raises(LockedError, match="upgrade-ome"):
        sw.update_metadata(path, {"x": 1})
    upgrade_store(path)
    sw.update_metadata(path, {"x": 1, "ome": {"name": "n"}})
    assert attributes(path)["x"] == 1
    assert verify_store(path).ok


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_record_that_cannot_be_understood_is_refused(tmp_path):
    path = make(tmp_path / "a.ome.zarr")
    table = document(path / "frames")
    record = table["attributes"]["shardwright"]["acquisition"]
    newer = {**record["manifest"], "format": 999}
    newer.pop("crc32c")
    for manifest, error in ((with_checksum(newer), FormatVersionError), ({"format": 1}, ShardFormatError)):
        record["manifest"] = manifest
        (path / "frames/zarr.json").write_text(json.dumps(table))
        with pytest.raises(error):
            sw.update_metadata(path, {"x": 1})
    assert attributes(path) == {"who": "me", "draft": True}


def test_a_store_without_a_record_takes_attributes_and_additions(tmp_path):
    """As an earlier release, or another program, has left it."""
    path = make(tmp_path / "a.ome.zarr")
    table = document(path / "frames")
    del table["attributes"]["shardwright"]["acquisition"]
    (path / "frames/zarr.json").write_text(json.dumps(table))
    sw.update_metadata(path, {"ome": {"omero": {"channels": [{"color": "ff00ff"}]}}}, remove=["draft"])
    assert attributes(path) == {"who": "me"}
    assert channels(path)[0]["color"] == "ff00ff"
    with pytest.raises(MetadataError, match="does not record how its channels were described"):
        sw.update_metadata(path, remove=["ome.omero"])
    check_whole(path)


def test_what_is_no_finished_store_of_images_is_refused(tmp_path):
    path = make(tmp_path / "a.ome.zarr", "several")
    with pytest.raises(UnknownImageError, match="the name or folder of one: r"):
        sw.update_metadata(path, {"x": 1}, image="never")
    with pytest.raises(ShardFormatError, match=r"no zarr\.json in"):
        sw.update_metadata(tmp_path / "none", {"x": 1})
    with pytest.raises(ShardFormatError, match="is no image"):
        sw.update_metadata(path / "1/0", {"x": 1})
    (tmp_path / "link").symlink_to(path)
    older = zarr.open_group(tmp_path / "older", mode="w", zarr_format=2, attributes={"plate": OLDER_PLATE})
    older.create_group("A/1", attributes={"well": {"version": "0.4", "images": []}})
    with pytest.raises(ShardFormatError, match="read but not changed"):
        sw.update_metadata(tmp_path / "older", {"x": 1})
    assert not (tmp_path / "older/zarr.json").exists(), "it would hide all that is there"
    with pytest.raises(StorageError, match="is a link"):
        sw.update_metadata(tmp_path / "link", {"x": 1})
    sw.update_metadata(path / "1", {"x": 1})  # an image by its folder
    assert (attributes(path / "1"), attributes(path)) == ({"x": 1}, {"who": "me", "draft": True})


def test_metadata_that_are_too_long_together_are_refused(tmp_path):
    path = make(tmp_path / "a.ome.zarr")
    sw.update_metadata(path, {"x": "y" * 600_000})
    with pytest.raises(MetadataError, match="too long with those before"):
        sw.update_metadata(path, {"z": "y" * 600_000})
    sw.update_metadata(path, {"z": "y" * 600_000}, remove=["x"])
    assert attributes(path).keys() == {"who", "draft", "z"}
    with pytest.raises(MetadataError, match="too long with those before"):
        sw.update_metadata(path, {"ome": {"omero": {"rdefs": "y" * 600_000}}})


def test_a_name_below_ome_is_another_than_that_of_an_attribute(tmp_path):
    path = make(tmp_path / "a.ome.zarr")
    sw.update_metadata(path, {"name": 1})
    sw.update_metadata(path, {"ome": {"name": "n"}}, remove=["name"])
    assert attributes(path).keys() == {"who", "draft"}
    (multiscale,) = document(path)["attributes"]["ome"]["multiscales"]
    assert multiscale["name"] == "n"


def test_levels_that_are_added_later_say_how_they_were_made_and_removal_gives_that_back(tmp_path):
    path = make(tmp_path / "a.ome.zarr")
    sw.update_metadata(path, {"ome": {"metadata": {"by": "hand", "method": "mine"}}})
    done = run_cli("pyramid", path, "--levels", "1", "--method", "max", "--factors", "y=4,x=2")
    assert done.returncode == 0, done.stderr
    made = {"method": "shardwright max", "version": sw.__version__, "kwargs": {"factors": {"y": 4, "x": 2}}}
    (multiscale,) = document(path)["attributes"]["ome"]["multiscales"]
    assert (multiscale["type"], multiscale["metadata"]) == ("max", {**made, "by": "hand"})
    sw.update_metadata(path, remove=["ome.metadata"])
    (multiscale,) = document(path)["attributes"]["ome"]["multiscales"]
    assert multiscale["metadata"] == made
    check_whole(path)
