"""Documents of stores, byte for byte as earlier releases wrote them: no update changes a file that was read
before. After a wanted change the message shows the new hash."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.foreign.older_stores import IMAGE, V2

import shardwright as sw
from shardwright.array.document import encode_document
from shardwright.array.spec import Levels
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store

from .images import POLITE, run_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
T, C, Z = ("t", None, 2, 2), ("c", 2, 1, 2), ("z", 4, 2, 2)
Y, X = ("y", 8, 4, 2), ("x", 12, 4, 3)
CHANNEL = sw.Channel(name="GFP", color="00ff00", window=(100, 900), emission_nm=509.5, exposure_ms=20)
_TIMES = re.compile(rb'"(start|end)time": \d+')


def array(*axes: tuple, dtype: str = "uint16", **fields) -> sw.ArraySpec:
    dimensions = [
        sw.Dimension(
            name=name,
            count=count,
            chunk_size=chunk,
            shard_size_chunks=shard,
            unit=unit,
            scale=0.5 + place if unit else 1,
        )
        for place, (name, count, chunk, shard) in enumerate(axes)
        for unit in [{"t": "second", "c": None}.get(name, "micrometer")]
    ]
    return sw.ArraySpec(dtype=dtype, dimensions=dimensions, **fields)


def write(path: Path, spec: sw.ArraySpec, frames: int = 3, of: tuple = (None,), **options) -> Path:
    """A store with a few frames of nothing, whose windows do not depend on noise."""
    frame = np.arange(96).reshape(8, 12).astype(spec.dtype)
    with sw.create(path, spec, **options) as writer:
        for image in of:
            for _ in range(frames):
                writer.append(frame, image=image)
    return path


def rechunk(old: Path, new: Path, **options) -> Path:
    chosen = RechunkOptions(**options)
    assert write_new_store(plan_new_store(old, chosen), new, chosen, run_here, throttle=POLITE).ok
    return new


def rich(path: Path) -> Path:
    fields = {
        "fill_value": "NaN",
        "channels": [CHANNEL, {"name": "RFP"}],
        "attributes": {"µ": [1, {"a": None}]},
    }
    axes = (T, C, Z, Y, X)
    return write(
        path, array(*axes, dtype="float32", levels=2, **fields), 9, attributes={"of": {"the": "user"}}
    )


def stored_otherwise(path: Path) -> Path:
    order = ("c", "z", "t", "x", "y")
    spec = array(
        T, Z, C, Y, X, storage_order=order, codec=sw.Zstd(level=4), index_location="start", fill_value=7
    )
    return write(path, spec)


def without_shards(path: Path) -> Path:
    axes = [(*axis[:3], None) for axis in (Z, Y, X)]
    return write(path, array(*axes, codec=sw.Gzip(level=2), dtype="uint8", chunk_checksum=False))


def positions(path: Path) -> Path:
    fields = {"frame_json_bytes": 100, "frame_fields": ("laser_mw",), "index_checksum": False, "codec": None}
    levels = Levels(count=1, method="nearest", factors={"y": 4, "x": 2})
    return write(path, array(T, Y, X, levels=levels, **fields), 3, ("b", "a"), images=["a", "b"])


def plate(path: Path) -> Path:
    return write(path, array(T, Y, X, dtype="bool"), 1, ("A/1/0", "B/2/0"), plate=sw.Plate(rows=2, columns=2))


def pyramid(path: Path) -> Path:
    write(path, array(T, C, Y, X), 4)
    assert add_levels(path, PyramidOptions(2), run_here, throttle=POLITE).ok
    return path


def rechunked(path: Path) -> Path:
    old = rich(path.with_name("old.ome.zarr"))
    options = {"chunks": {"z": 3, "y": 4}, "codec": sw.Gzip(level=3), "pyramid": PyramidOptions(1, "max")}
    return rechunk(old, path, **options, index_location="start")


def rechunked_image_of_v2(path: Path) -> Path:
    return rechunk(IMAGE, path, chunks={"y": 16})


def rechunked_array_of_v2(path: Path) -> Path:
    return rechunk(V2["v2 zlib"].store, path, chunks={}, shards={"dim_0": 6})


HASHES: dict[Callable[[Path], Path], str] = {
    rich: "d83842655f357d2688647e563fe552f4",
    stored_otherwise: "285c992a8f604951a24728322fe1efd3",
    without_shards: "17aa8506357d6553aae3d9e0f8b38147",
    positions: "24d2b117c38b39cb65713c5a683d966d",
    plate: "f08141160c69037fa6f094a56483ba24",
    pyramid: "24cdde6ee52ddb5efd001f9b622965e3",
    rechunked: "918c1f0c0df514959813b8b66ab2039c",
    rechunked_image_of_v2: "6ab356e0fe870a27bcda6d3f5b57e6b3",
    rechunked_array_of_v2: "2888852f97f59ce2a557f06c0022e08e",
}


def _as_earlier(text: bytes) -> bytes:
    """A document without what is new: what an acquisition needs to go on (with an identity that each has
    anew), the status of skipped places, and how levels were made."""
    document = json.loads(text)
    attributes = document.get("attributes", {})
    ours = attributes.get("shardwright", {})
    new = [ours.pop(name, None) for name in ("receipts", "acquisition")]
    new += [ours[name].pop("6", None) for name in ("status", "fate") if name in ours]
    new += [each.pop("metadata", None) for each in attributes.get("ome", {}).get("multiscales", ())]
    return encode_document(document) if any(new) else text


@pytest.mark.parametrize("make", HASHES, ids=lambda make: make.__name__)
def test_documents_are_those_of_earlier_releases(make, tmp_path) -> None:
    store, digest = make(tmp_path / "a.ome.zarr"), hashlib.sha256()
    for file in sorted(path for path in store.rglob("*") if path.name in ("zarr.json", "METADATA.ome.xml")):
        text = file.read_bytes()
        text = _TIMES.sub(b"", _as_earlier(text) if file.suffix == ".json" else text)
        digest.update(json.dumps([file.relative_to(store).as_posix(), len(text)]).encode() + text)
    assert digest.hexdigest()[:32] == HASHES[make]
