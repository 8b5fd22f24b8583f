"""The metadata of a finished store become those of OME-Zarr 0.6, whatever kills the job; what is at work,
elsewhere or not ours stays."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.daemon import run_cli
from tests.harness.ome_forms import (
    add_labels,
    check_ome_forms,
    labels_of,
    ome_groups,
    places_of,
    versions_of,
)
from tests.harness.python import commands

import shardwright as sw
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import LockedError, OutputExistsError, ShardFormatError, StorageError
from shardwright.model.names import EDIT_FOLDER, MOVE_LOCK_NAME, UPGRADE_RECORD, WORK_FOLDER
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.ome_upgrade import (
    UpgradeReport,
    interrupted_upgrades,
    upgrade_store,
)
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.name_changes import rename_store
from shardwright.rework.runtime.job_record import write_job

from .dying_upgrade import upgrade_and_die
from .images import POLITE, run_here

if TYPE_CHECKING:
    from pathlib import Path

# zarr-python, of consolidated metadata, and of the OME-XML that it meets
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
SIZE = 16
FRAME = np.full((SIZE, SIZE), 7, np.uint16)
LAYOUT: dict[str, Any] = {
    "shape": (None, SIZE, SIZE),
    "dtype": "uint16",
    "axes": "tyx",
    "scales": {"y": 0.325, "x": 0.325},
    "units": {"y": "um", "x": "um"},
    "levels": 2,
}
TILES = [
    sw.Image(name="left", position={"x": 12345.678, "y": -0.1}),
    sw.Image(name="right", position={"x": 12350.878, "y": -0.1}),
]
NESTED = [
    sw.Image(name="left", position={"x": 12345.678, "y": -0.1}, path="well.1/Pos0"),
    sw.Image(name="right", position={"x": 12350.878, "y": -0.1}, path="well.1/Pos1"),
    sw.Image(name="alone", path="Pos2"),
]
STORES: dict[str, dict[str, Any]] = {
    "one": {},
    "positions": {"images": TILES},
    "nested positions": {"images": NESTED},
    "without positions": {"images": ["a", "b"]},
    "a plate": {
        "plate": sw.Plate(rows=1, columns=2),
        "images": [sw.Image(name="A/2/0", position={"x": 5})],
    },
    "days of a plate": {
        "plate": sw.Plate(
            rows=1,
            columns=1,
            fields=["left", "right"],
            acquisitions=[{"id": 3, "fields": ["left"]}, {"id": 7, "fields": ["right"], "name": "later"}],
        ),
        "images": [sw.Image(name="A/1/right", position={"x": 5})],
    },
}


def write(path: Path, **facts: Any) -> Path:
    with sw.create(path, **{**LAYOUT, **facts}) as writer:
        for image in writer._acquisition.spec.names:
            writer.append(FRAME, **({"image": image} if image else {}))
    return path


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    return write(tmp_path / "a.ome.zarr", images=TILES)


def documents(store: Path) -> dict[str, Any]:
    return {
        file.relative_to(store).as_posix(): json.loads(file.read_text()) for file in store.rglob("zarr.json")
    }


def mixture_of(store: Path) -> list[str]:
    return [problem.what for problem in verify_store(store, threads=1).problems]


@pytest.mark.parametrize("kind", STORES)
def test_an_upgraded_store_is_as_one_that_was_written_so(tmp_path, kind):
    path, told = write(tmp_path / "a.ome.zarr", **STORES[kind]), []
    before = places_of(path)
    report = upgrade_store(path, lambda done, of: told.append((done, of)))
    new = write(tmp_path / "new" / "a.ome.zarr", ome_version="0.6", **STORES[kind])
    assert report == UpgradeReport(str(path), "0.6", len(ome_groups(new)), len(ome_groups(new)))
    assert told == [(done, report.groups) for done in range(report.groups + 1)]
    found, expected = documents(path), documents(new)
    for facts in (found, expected):
        # what an acquisition needs to go on has its own identity
        del facts["frames/zarr.json"]["attributes"]["shardwright"]["acquisition"]
        for acquisition in facts["zarr.json"]["attributes"]["ome"].get("plate", {}).get("acquisitions", ()):
            for name in ("starttime", "endtime"):
                acquisition.pop(name, None)
    assert found == expected
    for folder, levels in before.items():
        np.testing.assert_allclose(places_of(path)[folder], levels)
    check_ome_forms(path, "0.6")
    assert verify_store(path).ok
    assert not (path / WORK_FOLDER).exists()
    assert upgrade_store(path).changed == 0


def test_whatever_kills_it_the_same_command_ends_it(tmp_path):
    """At each of its storage calls."""
    source, path = write(tmp_path / "source.ome.zarr", images=NESTED[:2], levels=1), tmp_path / "a.ome.zarr"
    add_labels(source / "well.1/Pos1", labels_of("0.5", -0.1, 12350.878 + 2))
    places, x = places_of(source), NESTED[1].position.x
    zarr.consolidate_metadata(source)
    whole = shutil.copytree(source, tmp_path / "whole" / "a.ome.zarr")
    upgrade_store(whole)
    assert verify_store(whole).ok
    assert "consolidated_metadata" in documents(whole)["zarr.json"]
    seen, number = set(), 0
    while True:
        number += 1
        shutil.copytree(source, path)
        with commands().start(upgrade_and_die, str(path), number) as child:
            said, status = child.drain(), child.wait()
        if status == 0:
            break
        assert (said, status) == ([], -signal.SIGKILL)
        check_ome_forms(path)  # each by itself
        versions, problems = versions_of(path), mixture_of(path)
        seen.add(tuple(sorted(versions)))
        is_mixed = len(versions) > 1
        assert is_mixed == any("different versions of OME-Zarr" in problem for problem in problems)
        for folder in ("well.1/Pos0", "well.1/Pos1"):
            np.testing.assert_allclose(places_of(path)[folder], places[folder])
        np.testing.assert_allclose(sw.open_xarray(path, image="right")["x"][0], x)
        np.testing.assert_allclose(sw.open_xarray(path / "well.1/Pos1/labels/cells")["x"][0], x + 2)
        is_begun = (path / WORK_FOLDER / UPGRADE_RECORD).exists()
        assert is_begun == any("ends an upgrade that was interrupted" in problem for problem in problems)
        assert is_begun or not is_mixed
        upgrade_store(path)
        assert documents(path) == documents(whole), number
        assert not (path / WORK_FOLDER).exists()
        shutil.rmtree(path)
    assert seen == {("0.5",), ("0.5", "0.6"), ("0.6",)}
    assert said == [number - 1]


def test_a_mixture_without_a_record_is_ended_too(tiles):
    before = places_of(tiles)
    old = (tiles / "1" / "zarr.json").read_bytes()
    upgrade_store(tiles)
    (tiles / "1" / "zarr.json").write_bytes(old)
    (problem,) = mixture_of(tiles)
    assert "1 of 0.5, such as 1, 3 of 0.6, such as the store; `shardwright upgrade-ome`" in problem
    assert upgrade_store(tiles).changed == 1
    np.testing.assert_allclose(places_of(tiles)["1"], before["1"])
    assert mixture_of(tiles) == []


@pytest.mark.parametrize("born", ["0.5", "0.6"])
def test_labels_are_where_they_were(tmp_path, born):
    """Those of an image that was written in 0.6 have no position of it in theirs."""
    path = write(tmp_path / "a.ome.zarr", images=TILES, ome_version=born)
    at = (-0.1, 12345.678) if born == "0.5" else (0.0, 0.0)
    cells = add_labels(path / "0", labels_of("0.5", at[0], at[1] + 2))
    before = sw.open_xarray(cells)
    assert upgrade_store(path).changed == (6 if born == "0.5" else 2)
    check_ome_forms(path, "0.6")
    for axis in "yx":
        np.testing.assert_allclose(sw.open_xarray(cells)[axis], before[axis])
    np.testing.assert_allclose(before["x"][0], 12347.678)


def test_labels_of_the_new_version_in_an_image_of_the_old_one_are_refused(tiles):
    add_labels(tiles / "0", labels_of("0.6"))
    with pytest.raises(ShardFormatError, match=r"of OME-Zarr 0\.6, and its image is not"):
        upgrade_store(tiles)
    assert versions_of(tiles) == {"0.5", "0.6"}
    assert not (tiles / WORK_FOLDER).exists()


@pytest.mark.parametrize("version", ["0.4", None, 7])
def test_labels_of_another_version_stay(tiles, version):
    said = {} if version is None else {"version": version}
    add_labels(tiles / "0", {"version": "0.5", "labels": []})
    for name in ("labels", "labels/cells"):
        file = tiles / "0" / name / "zarr.json"
        document = json.loads(file.read_text())
        document["attributes"]["ome"] = {"labels": [], **said}
        file.write_text(json.dumps(document))
    assert upgrade_store(tiles).changed == 4
    assert ome_groups(tiles)["0/labels"] == {"labels": [], **said}
    assert verify_store(tiles).ok


@pytest.mark.parametrize(
    "datasets",
    [
        [],
        [{"path": "../../x", "coordinateTransformations": []}],
        [{"path": "a\0b", "coordinateTransformations": []}],
    ],
)
def test_arrays_that_labels_do_not_have_hinder_nothing(tiles, datasets):
    """The job never looks for them, so that it cannot stop in the middle."""
    axes = [{"name": name, "type": "space"} for name in "yx"]
    add_labels(
        tiles / "0", {"version": "0.5", "multiscales": [{"name": "a", "axes": axes, "datasets": datasets}]}
    )
    upgrade_store(tiles)
    assert versions_of(tiles) == {"0.6"}
    assert not (tiles / WORK_FOLDER).exists()
    assert upgrade_store(tiles).changed == 0


def test_transformations_in_another_order_keep_their_meaning(tiles):
    """A translation that is scaled afterwards, and a scale that stands there twice."""
    labels = labels_of("0.5")
    steps = [
        {"type": "translation", "translation": [-0.2, 24691.356 + 4]},
        {"type": "scale", "scale": [0.25, 0.25]},
        {"type": "scale", "scale": [2, 2]},
    ]
    labels["multiscales"][0]["datasets"][0]["coordinateTransformations"] = steps
    cells = add_labels(tiles / "0", labels)
    before = sw.open_xarray(cells)
    np.testing.assert_allclose(before["x"][:2], [12347.678, 12348.178])
    upgrade_store(tiles)
    np.testing.assert_allclose(sw.open_xarray(cells)["x"], before["x"])
    np.testing.assert_allclose(sw.open_xarray(cells)["y"], before["y"])


def test_a_pyramid_waits_for_the_end_of_an_upgrade(tiles):
    """Whichever came first: the metadata of levels and those of the new version are written by one job."""
    zarr.consolidate_metadata(tiles)
    refused = []

    def try_to(_done: int, _of: int) -> None:
        with pytest.raises(LockedError, match="upgrade-ome"):
            add_levels(tiles / "0", PyramidOptions(3), run_here, throttle=POLITE)
        refused.append(True)

    upgrade_store(tiles, try_to)
    assert len(refused) == 5
    assert verify_store(tiles).ok


def test_an_upgrade_waits_for_a_pyramid_that_has_begun(tmp_path):
    """It has read the metadata already, and would write them back as they were."""
    path, tried = write(tmp_path / "a.ome.zarr", levels=None), []

    def try_to(_done: int, _of: int) -> None:
        with pytest.raises(LockedError, match="a job is at work"):
            upgrade_store(path)
        tried.append(versions_of(path))

    assert add_levels(path, PyramidOptions(1), run_here, throttle=POLITE, on_progress=try_to).ok
    assert tried
    assert tried[0] == {"0.5"}
    assert not (path / WORK_FOLDER).exists()
    upgrade_store(path)
    assert verify_store(path).ok
    assert len(ome_groups(path)["."]["multiscales"][0]["datasets"]) == 2


def test_a_record_that_is_damaged_goes_with_the_end(tiles):
    upgrade_store(tiles)
    record = tiles / WORK_FOLDER / UPGRADE_RECORD
    record.parent.mkdir()
    record.write_bytes(b"no record")
    assert "ends an upgrade that was interrupted" in mixture_of(tiles)[0]
    upgrade_store(tiles)
    assert not record.parent.exists()
    assert mixture_of(tiles) == []


def test_links_in_a_root_and_in_stores_are_passed_over(tiles, tmp_path):
    for name, target in (("link.ome.zarr", tiles), ("gone", tmp_path / "nothing"), ("up", tmp_path)):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "b.ome.zarr").mkdir()
    (tmp_path / "b.ome.zarr" / WORK_FOLDER).symlink_to(tmp_path)
    assert interrupted_upgrades(tmp_path) == []
    record = tiles / WORK_FOLDER / UPGRADE_RECORD
    record.parent.mkdir()
    write_job(record, "upgrade-ome", {"version": "0.6", "consolidated": False})
    assert interrupted_upgrades(tmp_path) == [tiles]
    recovered = run_cli("recover", tmp_path, "--json")
    assert json.loads(recovered.stdout)["upgrades"] == [str(tiles)]


def test_a_link_in_place_of_the_work_folder_has_no_record(tiles, tmp_path):
    """Jobs on images, and the check, go on as they did before there were upgrades."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / UPGRADE_RECORD).touch()
    (tiles / WORK_FOLDER).symlink_to(tmp_path / "elsewhere")
    assert verify_store(tiles).ok
    assert add_levels(tiles / "0", PyramidOptions(3), run_here, throttle=POLITE).ok
    with pytest.raises(OutputExistsError, match="a part of it lies elsewhere"):
        upgrade_store(tiles)


@pytest.mark.parametrize(("images", "folder"), [(TILES, "0"), (NESTED, "well.1/Pos0")])
def test_what_others_have_added_is_upgraded_or_stays(tmp_path, images, folder):
    """A label image of theirs, in the place of its image; versions at places of earlier releases go."""
    path = write(tmp_path / "a.ome.zarr", images=images)
    shift = {"type": "translation", "translation": [-0.1, 12345.678]}
    label = {
        "version": "0.5",
        "image-label": {"version": "0.5", "colors": []},
        "multiscales": [
            {
                "version": "0.5",
                "axes": [{"name": n, "type": "space"} for n in "yx"],
                "datasets": [
                    {
                        "path": "0",
                        "coordinateTransformations": [{"type": "scale", "scale": [0.5, 0.5]}, shift],
                        "theirs": 1,
                    }
                ],
                "coordinateTransformations": [{"type": "scale", "scale": [2.0, 1.0]}],
                "metadata": {"version": "3"},
            }
        ],
    }
    labels = zarr.open_group(path / folder, mode="r+").create_group("labels")
    labels.attrs["ome"] = {"version": "0.5", "labels": ["cells"]}
    cells = labels.create_group("cells")
    cells.attrs.update({"ome": label, "theirs": 7})
    cells.create_array("0", shape=(SIZE, SIZE), dtype="uint8")
    upgrade_store(path)
    found = json.loads((path / folder / "labels/cells/zarr.json").read_text())["attributes"]
    assert found["theirs"] == 7
    assert found["ome"]["image-label"] == {"colors": []}
    (multiscale,) = found["ome"]["multiscales"]
    assert "version" not in multiscale
    assert multiscale["metadata"] == {"version": "3"}
    (dataset,) = multiscale["datasets"]
    assert dataset["theirs"] == 1
    (transformation,) = dataset["coordinateTransformations"]
    scale, translation = transformation["transformations"]
    assert scale["scale"] == [1.0, 0.5]
    np.testing.assert_allclose(translation["translation"], [-0.1, 0], atol=1e-12)
    assert ome_groups(path)[f"{folder}/labels"] == {"version": "0.6", "labels": ["cells"]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": "0.7"}, "of another version of OME-Zarr; expected 0.5, or 0.6"),
        ({"multiscales": [{"axes": 7, "datasets": [{}]}]}, "names '1', which is no image"),
        (
            {"multiscales": [{"axes": [{"name": "x"}], "datasets": [{"coordinateTransformations": [7]}]}]},
            "coordinateTransformations not supported",
        ),
    ],
)
def test_what_cannot_be_upgraded_is_refused_before_anything_changes(tiles, change, problem):
    """The last of the groups, which comes behind all others."""
    document = json.loads((tiles / "1/zarr.json").read_text())
    document["attributes"]["ome"] |= change
    (tiles / "1/zarr.json").write_text(json.dumps(document))
    before = documents(tiles)
    with pytest.raises(ShardFormatError, match=problem):
        upgrade_store(tiles)
    assert documents(tiles) == before
    assert not (tiles / WORK_FOLDER).exists()


def test_a_group_below_that_was_consolidated_is_refused(tiles):
    zarr.consolidate_metadata(tiles / "1")
    with pytest.raises(ShardFormatError, match="has consolidated metadata"):
        upgrade_store(tiles)
    assert versions_of(tiles) == {"0.5"}


def test_metadata_that_are_consolidated_by_nothing_are_none(tiles):
    """Some programs write the field of groups without a copy, too."""
    file = tiles / "1/zarr.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "consolidated_metadata": None}))
    upgrade_store(tiles)
    assert versions_of(tiles) == {"0.6"}


def test_an_image_that_was_deleted_is_named(tiles):
    shutil.rmtree(tiles / "1")
    with pytest.raises(ShardFormatError, match=r"names '1', which is no image.*`series` in OME/zarr\.json"):
        upgrade_store(tiles)
    assert versions_of(tiles) == {"0.5"}
    file = tiles / "OME/zarr.json"
    document = json.loads(file.read_text())
    document["attributes"]["ome"]["series"].remove("1")
    file.write_text(json.dumps(document))
    upgrade_store(tiles)
    assert versions_of(tiles) == {"0.6"}


def test_a_link_to_a_store_leads_to_nothing(tiles):
    link = tiles.with_name("link.ome.zarr")
    link.symlink_to(tiles)
    with pytest.raises(StorageError, match="is a link to"):
        upgrade_store(link)
    assert versions_of(tiles) == {"0.5"}


def test_a_store_with_parts_elsewhere_stays(tiles, tmp_path):
    (tiles / "0/zarr.json").rename(tmp_path / "elsewhere.json")
    (tiles / "0/zarr.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(OutputExistsError, match="a part of it lies elsewhere"):
        upgrade_store(tiles)
    assert json.loads((tmp_path / "elsewhere.json").read_text())["attributes"]["ome"]["version"] == "0.5"


def test_what_another_program_wrote_or_is_a_part_stays(tiles, tmp_path):
    zarr.create_group(tmp_path / "b.zarr", attributes={"ome": {"version": "0.5"}})
    for path in (tmp_path / "b.zarr", tiles / "0"):
        with pytest.raises(OutputExistsError, match="no store that was written here"):
            upgrade_store(path)
    assert versions_of(tiles) == versions_of(tmp_path / "b.zarr") == {"0.5"}


def test_a_store_in_one_file_stays(tiles, tmp_path):
    assert run_cli("compact", tiles, "--to", tmp_path / "a.ozx").returncode == 0
    before = (tmp_path / "a.ozx").read_bytes()
    ended = run_cli("upgrade-ome", tmp_path / "a.ozx", "--json")
    assert ended.returncode == 1
    error = json.loads(ended.stdout)["error"]
    assert "stays as it is: upgrade the one that it was made of" in error["hint"]
    assert (tmp_path / "a.ozx").read_bytes() == before


def test_a_store_that_is_written_stays(tmp_path):
    with sw.create(tmp_path / "a.ome.zarr", **LAYOUT) as writer:
        writer.append(FRAME)
        with pytest.raises(OutputExistsError, match="it is an acquisition that is unfinished"):
            upgrade_store(tmp_path / "a.ome.zarr")
    assert versions_of(tmp_path / "a.ome.zarr") == {"0.5"}


@pytest.mark.parametrize(
    "lock",
    [
        f"0/0/{WORK_FOLDER}/lock",
        f"1/1/{WORK_FOLDER}/lock",
        f"0/{WORK_FOLDER}/{MOVE_LOCK_NAME}",
        f"{WORK_FOLDER}/{MOVE_LOCK_NAME}",
    ],
)
def test_a_store_on_which_a_job_is_at_work_stays(tiles, lock):
    (tiles / lock).parent.mkdir()
    held = StoreLock.take(tiles / lock)
    try:
        with pytest.raises(LockedError, match="a job is at work"):
            upgrade_store(tiles)
    finally:
        held.release()
    assert versions_of(tiles) == {"0.5"}
    upgrade_store(tiles)


def test_a_store_whose_update_or_move_was_interrupted_stays(tiles):
    journal = tiles / "0/0" / EDIT_FOLDER / "c.0.0.0.journal"
    journal.parent.mkdir()
    journal.touch()
    with pytest.raises(LockedError, match="its update was interrupted"):
        upgrade_store(tiles)
    shutil.rmtree(journal.parent)
    record = tiles / WORK_FOLDER / "move.0123.job"
    record.parent.mkdir(exist_ok=True)
    write_job(record, "move", {"destination": "/mnt/archive/a.ome.zarr"})
    with pytest.raises(LockedError, match=r"a copy of .* to /mnt/archive/a.ome.zarr was interrupted"):
        upgrade_store(tiles)
    assert versions_of(tiles) == {"0.5"}


def test_nobody_renames_it_meanwhile(tiles):
    refused = []

    def try_to(_done: int, _of: int) -> None:
        with pytest.raises(LockedError) as caught:
            rename_store(tiles, "b")
        refused.append(caught.value)

    upgrade_store(tiles, try_to)
    assert refused
    assert verify_store(tiles).ok


def test_the_command_says_what_it_did(tiles):
    ended = run_cli("upgrade-ome", tiles, "--json")
    assert ended.returncode == 0, ended.stderr
    facts = {"ok": True, "path": str(tiles), "version": "0.6", "groups": 4, "changed": 4}
    assert json.loads(ended.stdout) == facts
    assert "is of OME-Zarr 0.6: 0 of 4 groups changed" in run_cli("upgrade-ome", tiles).stdout
    check_ome_forms(tiles, "0.6")


_INTERRUPTED = """
import os, signal
from shardwright.disk import failpoints
def interrupt(name, seen=[]):
    seen.append(name)
    if seen.count("replace.before_rename") == 4:  # the record, and three groups
        os.kill(os.getpid(), signal.SIGTERM)
failpoints.watch_all(interrupt)
"""


def test_the_command_is_interrupted_between_two_groups(tiles, tmp_path):
    ended = run_cli("upgrade-ome", tiles, "--json", first=_INTERRUPTED)
    assert ended.returncode == 1
    assert "run the same command again" in json.loads(ended.stdout)["error"]["message"], ended.stderr
    assert versions_of(tiles) == {"0.5", "0.6"}
    # neither may be sent away so, nor is it a store that recovery ends
    copied = run_cli("compact", tiles, "--to", tmp_path / "copy.ome.zarr", "--json")
    assert copied.returncode != 0
    error = json.loads(copied.stdout)["error"]
    assert (error["code"], "upgrade-ome" in error["hint"]) == ("locked", True)
    assert not (tmp_path / "copy.ome.zarr").exists()
    for where in (tiles, tmp_path):
        recovered = run_cli("recover", where, "--json")
        assert recovered.returncode == 1, recovered.stderr
        assert json.loads(recovered.stdout)["upgrades"] == [str(tiles)]
    assert f"`shardwright upgrade-ome {tiles}`" in " ".join(run_cli("recover", tmp_path).stdout.split())
    assert versions_of(tiles) == {"0.5", "0.6"}
    assert run_cli("upgrade-ome", tiles).returncode == 0
    check_ome_forms(tiles, "0.6")
    assert verify_store(tiles).ok
    assert json.loads(run_cli("recover", tmp_path, "--json").stdout)["upgrades"] == []
    assert run_cli("compact", tiles, "--to", tmp_path / "copy.ome.zarr").returncode == 0


@pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
def test_a_store_with_the_block_of_the_atlas_stays(tmp_path):
    """It is of OME-Zarr 0.5."""
    path = write(tmp_path / "a.ome.zarr", settings=sw.WriteSettings(profile="dynamic-cell-atlas"))
    with pytest.raises(ShardFormatError, match="the block 'dca'"):
        upgrade_store(path)
    assert versions_of(path) == {"0.5"}
