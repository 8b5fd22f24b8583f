"""Several acquisitions as one virtual array: joined chunk by chunk where that is exact, refused by name where
it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.repack.images import write_image

import shardwright as sw
from shardwright.model.errors import ConfigError

from .reference_readers import EACH_KIND, NEWER, read, read_by_virtualizarr, refer, without_newer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
DAY: dict[str, Any] = {
    "shape": (6, 21, 37),
    "chunks": (2, 8, 16),
    "shard_chunks": (2, 3, 3),
    "names": "tyx",
    "chunk_checksum": True,
}


def days(folder: Path, *changed: dict[str, Any]) -> tuple[list[Path], list[np.ndarray[Any, Any]]]:
    """A store for each, with what differs from ``DAY``, and their pixels."""
    paths = [folder / f"day{number}.ome.zarr" for number in range(len(changed))]
    return paths, [
        write_image(path, **{**DAY, "seed": seed, **more})
        for seed, (path, more) in enumerate(zip(paths, changed, strict=True))
    ]


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize(
    "changed",
    [
        ({}, {}, {"shape": (7, 21, 37)}),
        ({"shard_chunks": (3, 1, 2)}, {"shard_chunks": None}, {"index_location": "start"}),
        ({"codec": sw.Blosc(clevel=1)}, {"codec": sw.Blosc(clevel=9, cname="zstd")}),
        ({"levels": 2}, {"levels": 2}),
    ],
    ids=["days", "shards that differ", "settings of the codec", "levels"],
)
def test_days_are_one_array(changed: tuple[dict[str, Any], ...], kind: str, tmp_path: Path) -> None:
    paths, pixels = days(tmp_path, *changed)
    report = refer(kind, tmp_path, *paths, axis="t")
    found = read(kind, report)
    assert sorted(found.array_keys()) == sorted(zarr.open_group(paths[0], mode="r").array_keys())
    np.testing.assert_array_equal(found["0"][...], np.concatenate(pixels))
    if "levels" in changed[0]:
        lower = [sw.open_array(path, "1")[...] for path in paths]
        np.testing.assert_array_equal(found["1"][...], np.concatenate(lower))
    if kind != "parquet":
        assert dict(found.attrs) == dict(zarr.open_group(paths[0], mode="r").attrs)
        assert found["0"].metadata.dimension_names == ("t", "y", "x")


@pytest.mark.parametrize("kind", EACH_KIND)
def test_channels_are_joined_behind_the_first_axis(kind: str, tmp_path: Path) -> None:
    """Shards of the stores take turns in the order of the grid."""
    more: dict[str, Any] = {"names": "tcyx", "chunks": (2, 1, 8, 16), "shard_chunks": (1, 1, 3, 3)}
    paths, pixels = days(
        tmp_path,
        {**more, "shape": (6, 2, 21, 37)},
        {**more, "shape": (6, 1, 21, 37), "shard_chunks": (2, 1, 1, 1)},
    )
    found = read(kind, refer(kind, tmp_path, *paths, axis="c"))["0"]
    np.testing.assert_array_equal(found[...], np.concatenate(pixels, axis=1))


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("json", ("t", "y", "x")),
        ("json", ("t", "x", "y")),
        ("parquet", ("t", "y", "x")),  # Zarr v2 has no codec that transposes two axes of three
        pytest.param("icechunk", ("t", "x", "y"), marks=without_newer),
    ],
)
def test_positions_get_an_axis_of_their_own(order: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    paths, _ = days(tmp_path, {"storage_order": order}, {"storage_order": order, "shard_chunks": (1, 2, 2)})
    found = read(kind, refer(kind, tmp_path, *paths, axis="p"))
    image = found["0"]
    np.testing.assert_array_equal(image[...], np.stack([sw.open_array(path)[...] for path in paths]))
    assert "ome" not in found.attrs, "OME-Zarr has no such axis"
    if kind != "parquet":
        assert image.metadata.dimension_names == ("p", *order)


@without_newer
@pytest.mark.parametrize("kind", ["json", "icechunk"])
def test_chunks_that_differ_along_the_axis_make_a_rectilinear_grid(kind: str, tmp_path: Path) -> None:
    paths, pixels = days(
        tmp_path,
        {},
        {"chunks": (3, 8, 16), "shard_chunks": (1, 2, 2)},
        {"shape": (7, 21, 37), "chunks": (4, 8, 16)},
    )
    report = refer(kind, tmp_path, *paths, axis="t")
    assert "array.rectilinear_chunks" in report["warnings"][0]
    with zarr.config.set({"array.rectilinear_chunks": True}):
        found = read(kind, report)["0"]
        np.testing.assert_array_equal(found[...], np.concatenate(pixels))
    with pytest.raises(ConfigError, match="Parquet describe") as refused:
        refer("parquet", tmp_path, *paths, axis="t")
    assert refused.value.got == "chunks of several shapes"


@pytest.mark.skipif(not NEWER, reason="NOT TESTED: VirtualiZarr 2.8; Python 3.12")
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_virtualizarr_reads_what_is_joined(kind: str, tmp_path: Path) -> None:
    paths, pixels = days(tmp_path, {}, {})
    report = refer(kind, tmp_path, *paths, axis="t")
    np.testing.assert_array_equal(read_by_virtualizarr(kind, report)["0"][...], np.concatenate(pixels))


@pytest.mark.parametrize(
    ("changed", "axis", "message"),
    [
        (({}, {"dtype": "int16"}), "t", "the data types of .*day1.*differ"),
        (({}, {"codec": sw.Zstd()}), "t", "the codecs of"),
        (({}, {"chunk_checksum": False}), "t", "the codecs of"),
        (({}, {"fill_value": 7}), "t", "the fill values of"),
        (({}, {"chunks": (2, 8, 8)}), "t", "the chunks of"),
        (({}, {"shape": (6, 21, 38)}), "t", "the shapes of"),
        (({}, {"names": "zyx"}), "t", "the axes of"),
        (({}, {"shape": (7, 21, 37)}), "p", "the shapes of"),
        (({}, {"chunks": (3, 8, 16)}), "p", "the chunks of"),
        (({"shape": (7, 21, 37)}, {}), "t", "day0.* ends within a chunk along 't'"),
        (({}, {"levels": 2}), "t", "different levels"),
    ],
)
def test_what_would_not_be_exact_is_refused(
    changed: tuple[dict[str, Any], ...], axis: str, message: str, tmp_path: Path
) -> None:
    paths, _ = days(tmp_path, *changed)
    with pytest.raises(ConfigError, match=message):
        refer("json", tmp_path, *paths, axis=axis)
    assert not (tmp_path / "refs.json").exists()


def test_images_of_a_store_are_joined_by_their_folders(tmp_path: Path) -> None:
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=chunk, shard_size_chunks=2)
        for name, count, chunk in (("t", None, 1), ("y", 16, 8), ("x", 16, 8))
    ]
    array = sw.ArraySpec(dtype="uint16", dimensions=dimensions, chunk_checksum=True)
    with sw.create(tmp_path / "a.ome.zarr", images={"left": array, "right": array}) as writer:
        for value, image in enumerate(("left", "right"), 1):
            writer.append_many(np.full((3, 16, 16), value, np.uint16), image=image)
    with pytest.raises(ConfigError, match="has several images"):
        refer("json", tmp_path, tmp_path / "a.ome.zarr", axis="t")
    sides = [tmp_path / "a.ome.zarr" / name for name in ("0", "1")]
    found = read("json", refer("json", tmp_path, *sides, axis="t"))["0"]
    assert found[:, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]
