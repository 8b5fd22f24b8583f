"""Consolidated metadata, as zarr-python writes them, are true in every store that is written here, and a copy
that is not is an error."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import shardwright as sw
from shardwright.model.errors import ShardFormatError
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store

from .images import POLITE, run_here, write_image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Consolidated by zarr-python, once its labels were added, whose codecs are none of ours."""
    path = tmp_path / "a.ome.zarr"
    write_image(path)
    labels = zarr.create_group(path / "labels")
    labels.create_array("cells", shape=(3, 5), chunks=(2, 5), dtype="uint32")[...] = 1
    zarr.consolidate_metadata(path)
    assert problems(path) == []
    return path


def problems(path: Path) -> list[str]:
    return [str(problem) for problem in verify_store(path, threads=1).problems]


def rechunk(old: Path, new: Path) -> None:
    chosen = RechunkOptions(chunks={"z": 4, "y": 6, "x": 8})
    assert write_new_store(plan_new_store(old, chosen), new, chosen, run_here, throttle=POLITE).ok


def pyramid(path: Path) -> None:
    assert add_levels(path, PyramidOptions(2), run_here, throttle=POLITE).ok


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((path / "zarr.json").read_text())
    change(document)
    (path / "zarr.json").write_text(json.dumps(document))


def told(path: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((path / "zarr.json").read_text())["consolidated_metadata"][
        "metadata"
    ]
    return metadata


def test_a_rechunked_store_reads_right_as_a_group(store: Path, tmp_path: Path) -> None:
    new = tmp_path / "b.ome.zarr"
    rechunk(store, new)
    group = zarr.open_group(new, mode="r")
    assert group.metadata.consolidated_metadata is not None
    assert group["0"].shards != zarr.open_group(store, mode="r")["0"].shards
    np.testing.assert_array_equal(group["0"][...], zarr.open_array(store / "0", mode="r")[...])
    assert len(group["frames/status"][...]) == 10
    assert {"0", "frames", "frames/status"} <= told(new).keys()
    assert problems(new) == []


def test_new_levels_are_seen_in_the_group_and_others_stay(store: Path) -> None:
    pyramid(store)
    group = zarr.open_group(store, mode="r")
    assert {"0", "1", "2", "frames", "labels"} == set(dict(group.members()))
    assert group["1"].shape == (11, 11, 19)
    assert group["labels/cells"][...].sum() == 15
    assert problems(store) == []


def test_a_copy_that_would_be_too_long_to_be_read_is_left_out(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one would hide the levels."""
    most_bytes = (store / "zarr.json").stat().st_size + 100
    monkeypatch.setattr("shardwright.array.document.MAX_METADATA_BYTES", most_bytes)
    pyramid(store)
    group = zarr.open_group(store, mode="r")
    assert group.metadata.consolidated_metadata is None
    assert group["1"].shape == (11, 11, 19)
    assert problems(store) == []


def test_nan_in_the_attributes_of_a_node_below_is_in_the_copy(store: Path) -> None:
    zarr.open_group(store / "labels", mode="r+").attrs["drift"] = math.nan
    zarr.consolidate_metadata(store)
    pyramid(store)
    assert math.isnan(told(store)["labels"]["attributes"]["drift"])
    assert problems(store) == []


def test_what_was_not_consolidated_stays_so(tmp_path: Path) -> None:
    write_image(tmp_path / "a.ome.zarr")
    pyramid(tmp_path / "a.ome.zarr")
    rechunk(tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr")
    for name in "ab":
        assert "consolidated_metadata" not in json.loads(
            (tmp_path / f"{name}.ome.zarr/zarr.json").read_text()
        )


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized")  # nor a document in the making
def test_a_store_that_is_consolidated_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    dimensions = [
        sw.Dimension(name="t", count=None, chunk_size=1),
        *(sw.Dimension(name=name, count=8, chunk_size=8) for name in "yx"),
    ]
    with sw.create(path, sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as writer:
        writer.append(np.ones((8, 8), np.uint16))
        zarr.consolidate_metadata(path)
    group = zarr.open_group(path, mode="r")
    assert group["0"].shape == (1, 8, 8)
    assert group["frames/status"].shape == (1,)
    assert problems(path) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda m: m["0"]["chunk_grid"]["configuration"].update(chunk_shape=[1, 8, 16]),
            "'0' is described with a different chunk_grid",
        ),
        (
            lambda m: m["0"]["codecs"][0]["configuration"].update(chunk_shape=[1, 1, 1]),
            "'0' is described with a different codecs",
        ),
        (
            lambda m: m["0"].update(fill_value=1, shape=[1, 1, 1]),
            "'0' is described with a different fill_value, shape",
        ),
        (
            lambda m: m["0"].update(storage_transformers=[{"name": "x"}]),
            "'0' is described with a different storage_transformers",
        ),
        (lambda m: m["frames"]["attributes"].clear(), "'frames' is described with a different attributes"),
        (lambda m: m.pop("frames/status"), "'frames/status' is not listed"),
        (lambda m: m.update({"1": m["0"]}), "'1' is listed but does not exist"),
        (lambda m: m.update({"0": None}), "'0' is not described by an object"),
    ],
)
def test_each_difference_is_an_error(store: Path, change: Callable[[dict[str, Any]], Any], what: str) -> None:
    edit(store, lambda document: change(document["consolidated_metadata"]["metadata"]))
    (problem,) = problems(store)
    assert problem.startswith(f"zarr.json: consolidated_metadata: {what}")


def test_a_group_below_is_looked_at_as_well(store: Path) -> None:
    zarr.consolidate_metadata(store / "labels")
    assert problems(store) == []
    edit(store / "labels", lambda document: document["consolidated_metadata"]["metadata"].clear())
    (problem,) = problems(store)
    assert problem.startswith("labels/zarr.json: consolidated_metadata: 'cells' is not listed")


def test_another_kind_is_an_error(store: Path, tmp_path: Path) -> None:
    edit(store, lambda document: document["consolidated_metadata"].update(kind="elsewhere"))
    (problem,) = problems(store)
    assert "unknown kind" in problem
    with pytest.raises(ShardFormatError, match="unknown kind"):
        rechunk(store, tmp_path / "b.ome.zarr")


def test_an_image_in_a_consolidated_hierarchy_gets_no_levels_behind_its_back(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "plate")
    write_image(tmp_path / "plate/a.ome.zarr")
    zarr.consolidate_metadata(tmp_path / "plate")
    with pytest.raises(ShardFormatError, match="plate has consolidated metadata"):
        pyramid(tmp_path / "plate/a.ome.zarr")
    edit(tmp_path / "plate", lambda document: document.pop("consolidated_metadata"))
    pyramid(tmp_path / "plate/a.ome.zarr")


def test_fields_that_tell_of_the_old_store_only_stay_there(tmp_path: Path) -> None:
    """What need not be understood is no part of what is made from it."""
    old, new = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    write_image(old)
    for path in (old, old / "0"):
        edit(path, lambda document: document.update(chunk_sums={"must_understand": False, "c/0/0/0": 17}))
    edit(
        old,
        lambda document: document["attributes"]["ome"]["multiscales"][0].update(
            metadata={"method": "of another program"}
        ),
    )
    rechunk(old, new)
    pyramid(old)
    documents = {
        path: json.loads((path / "zarr.json").read_text())
        for path in (old, old / "0", old / "1", new, new / "0")
    }
    assert [path for path, document in documents.items() if "chunk_sums" in document] == [old, old / "0"]
    made = documents[old]["attributes"]["ome"]["multiscales"][0]["metadata"]
    assert made["method"] == "shardwright mean", "of the levels that were added"
    assert documents[new]["attributes"]["ome"]["multiscales"][0]["metadata"] == {
        "method": "of another program"
    }
    assert problems(new) == problems(old) == []
