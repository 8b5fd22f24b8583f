"""The encode check, with compressors that really make errors: what is stored has the right pixels, and the
errors are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.broken_compressor import run_broken
from tests.harness.daemon import run_cli

import shardwright as sw
from shardwright.acquire import encoding
from shardwright.kernels.encode_check import CHECK_SAMPLE
from shardwright.model.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

LZ4 = {"name": "blosc", "cname": "lz4", "shuffle": "noshuffle"}
ZSTD_IN_BLOSC = {"name": "blosc", "cname": "zstd", "shuffle": "bitshuffle"}
CODECS = {"lz4": LZ4, "blosc zstd": ZSTD_IN_BLOSC, "zstd": {"name": "zstd"}, "gzip": {"name": "gzip"}}
FRAMES, SIDE, CHUNK = 8, 64, 16  # 16 chunks a slab of 2 frames, of each of two images: 128 in all
WRITER = """
import logging
import shardwright as sw
from shardwright.model.errors import ShardwrightError
from tests.acquire.test_encode_check import write
told = []
class Keep(logging.Handler):
    def emit(self, record):
        told.append({"event": getattr(record, "event", None), **getattr(record, "facts", {})})
logging.getLogger("shardwright").addHandler(Keep())
answers = []
for each in asked["stores"]:
    told.clear()
    broken.append(each.pop("broken", True))
    try:
        receipt, error = write(**each).to_dict(), None
    except ShardwrightError as failure:
        receipt, error = None, [type(failure).__name__, str(failure)]
    answers.append({"receipt": receipt, "error": error, "told": list(told)})
print(json.dumps(answers, default=str))
"""


def frames() -> np.ndarray:
    return np.random.default_rng(4).poisson(3, (FRAMES, SIDE, SIDE)).astype(np.uint16)


def write(path: str, codec: Any, check: str, min_ratio: float = 1.0) -> sw.Receipt:
    axes = (("t", FRAMES, 2), ("y", SIDE, CHUNK), ("x", SIDE, CHUNK))
    array = sw.ArraySpec(
        dtype="uint16",
        codec=codec,
        dimensions=[sw.Dimension(name=n, count=c, chunk_size=k, shard_size_chunks=2) for n, c, k in axes],
    )
    settings = sw.WriteSettings(encode_check=check, min_ratio=min_ratio)  # type: ignore[arg-type]
    spec = sw.AcquisitionSpec(array=array, images=("a", "b"), order=("p", "t"))
    with sw.create(path, spec, settings=settings) as writer:
        for image in ("a", "b"):
            for t, frame in enumerate(frames()):
                writer.append(frame, index=(t,), image=image)
    return writer.receipt


def written(stores: list[dict[str, Any]], **asked: Any) -> list[dict[str, Any]]:
    """What became of stores that a process with broken compressors wrote: one for all, it takes a second."""
    answers: list[dict[str, Any]] = run_broken(WRITER, stores=stores, **asked)
    return answers


def wrong_chunks(path: Path) -> int:
    """The chunks of both images whose pixels, as zarr-python reads them, are not those that were appended; an
    error is one."""
    wrong, sent = 0, frames()
    for image in ("0", "1"):
        array = zarr.open_group(path / image, mode="r")["0"]
        for t, y, x in np.ndindex(FRAMES // 2, SIDE // CHUNK, SIDE // CHUNK):
            box = (slice(2 * t, 2 * t + 2), *(slice(CHUNK * i, CHUNK * i + CHUNK) for i in (y, x)))
            try:
                wrong += not np.array_equal(array[box], sent[box])
            except Exception:
                wrong += 1
    return wrong


ALL = 2 * FRAMES // 2 * (SIDE // CHUNK) ** 2


def test_with_broken_compressors_each_pixel_is_right_and_the_errors_are_told(tmp_path: Path) -> None:
    rows = [(name, check) for name in CODECS for check in ("none", "sample", "all")]
    paths = [tmp_path / f"{name} {check}.ome.zarr" for name, check in rows]
    stores = [
        {"path": str(path), "codec": CODECS[name], "check": check}
        for path, (name, check) in zip(paths, rows, strict=True)
    ]
    for path, (_, check), told in zip(paths, rows, written(stores), strict=True):
        failed, wrong = told["receipt"]["encode_checks_failed"], wrong_chunks(path)
        events = [each for each in told["told"] if each["event"] == "encode_check_failed"]
        if check == "none":
            assert (failed, wrong, events) == (0, ALL, []), "without the check nobody knows"
            continue
        assert wrong == ALL - failed
        assert failed == ALL if check == "all" else 2 <= failed < ALL / 8, "of each image, at least the first"
        (event,) = events  # one, and the count of the others
        assert (event["image"], event["array"].endswith("/0"), len(event["chunk"])) in (
            ("a", True, 3),
            ("b", True, 3),
        )
        assert "memory" in event["hint"]


def test_only_what_differs_is_stored_in_another_form(tmp_path: Path) -> None:
    stores = [
        {
            "path": str(tmp_path / f"{broken}.ome.zarr"),
            "codec": {"name": "zstd"},
            "check": "all",
            "broken": broken,
        }
        for broken in (False, True)
    ]
    sound, broken = written(stores)
    assert (sound["receipt"]["encode_checks_failed"], broken["receipt"]["encode_checks_failed"]) == (0, ALL)
    assert sound["receipt"]["bytes_stored"] < broken["receipt"]["bytes_stored"]
    assert broken["receipt"]["chunks_uncompressed"] == 0, "that counts what overload: degrade stored so"
    inspected = [run_cli("inspect", store["path"]).stdout for store in stores]
    assert [f"encode checks failed: {ALL}" in text for text in inspected] == [False, True]
    assert "encode checks" not in inspected[0]


def test_where_not_even_the_uncompressed_form_decodes_nothing_counts_as_stored(tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "a.ome.zarr"), "codec": LZ4, "check": "all"}
    (told,) = written([store], memory=True)
    assert told["error"] is not None
    assert told["error"][0] == "CodecError"
    assert "does not decode to its pixels, compressed or not" in told["error"][1]
    assert "test it" in told["error"][1]


def test_a_sample_has_the_first_chunk_of_each_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of fewer chunks than a sample has one of, by whatever worker: chunks are numbered by image."""
    checks = []
    encode = encoding.encode_planes

    def seen(*arguments: Any) -> Any:
        checks.append(arguments[-1])
        return encode(*arguments)

    monkeypatch.setattr(encoding, "encode_planes", seen)
    receipt = write(str(tmp_path / "a.ome.zarr"), LZ4, "sample")
    assert receipt.encode_checks_failed == 0
    assert {mode for mode, _ in checks} == {CHECK_SAMPLE}
    numbers = sorted(number for _, number in checks)
    assert numbers == sorted(2 * [16 * slab for slab in range(FRAMES // 2)]), "from 0 on in both"


@pytest.mark.parametrize("codec", [*CODECS.values(), "none"], ids=[*CODECS, "none"])
def test_what_hardly_shrinks_is_stored_uncompressed(tmp_path: Path, codec: Any) -> None:
    sizes = {}
    for least in (1, 1.01, 1000.0):
        path = tmp_path / f"{least}.ome.zarr"
        sizes[least] = write(str(path), codec, "all", min_ratio=least).bytes_stored
        assert wrong_chunks(path) == 0
    raw = 2 * frames().nbytes
    assert sizes[1] == sizes[1.01] < sizes[1000.0] or codec == "none"
    assert sizes[1000.0] > raw


@pytest.mark.parametrize("value", [0.5, 1001, float("nan"), "2", True, None])
def test_a_ratio_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=r"min_ratio out of range.*1 to 1000"):
        sw.WriteSettings(min_ratio=value)
