"""What ``overload: degrade`` had written is compressed later as the array says: as if the codec had kept
up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.codecs.degrade import DegradeLevel
from shardwright.codecs.recompress import parse_recompress
from shardwright.model.errors import ConfigError
from shardwright.read.inspect_shards import inspect_shard
from shardwright.read.store import parse_array
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs import recode
from shardwright.rework.runtime.tasks import run_task

from . import degraded_store
from .stores import FRAMES, frame, shard_files, spec, task

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")

AS_CONFIGURED = parse_recompress("codec")
SHARDS = [(t, 0, x) for t in range(2) for x in range(2)]
# of the slabs, two frames each
LEVELS = [DegradeLevel.UNCOMPRESSED, DegradeLevel.FASTER, DegradeLevel.CONFIGURED]
CODECS = {
    "blosc zstd": sw.Blosc(cname="zstd", clevel=3),
    "blosc lz4 bitshuffle": sw.Blosc(cname="lz4", clevel=1, shuffle="bitshuffle"),
    "blosc lz4": sw.Blosc(cname="lz4", clevel=5),
    "zstd": sw.Zstd(level=9),
    "gzip": sw.Gzip(level=9),
}


@pytest.fixture
def degraded(tmp_path):
    """``degraded(spec)``: the image array of an acquisition whose slabs were written at ``LEVELS``, and its
    receipt."""

    def write(asked: sw.ArraySpec):
        slabs = [[frame(i), frame(i + 1)] for i in range(0, FRAMES, 2)]
        receipt = degraded_store.write(tmp_path / "degraded.ome.zarr", asked, slabs, LEVELS)
        return parse_array(tmp_path / "degraded.ome.zarr" / "0"), receipt

    return write


def look(array) -> tuple[Counter[str], int]:
    """How the chunks are encoded, and their bytes."""
    reports = [
        inspect_shard(array, shard) for shard in SHARDS if (array.path / array.shard_key(shard)).exists()
    ]
    assert not any(report.problems for report in reports)
    return sum((Counter(report.forms) for report in reports), Counter()), sum(
        report.encoded_bytes for report in reports
    )


def recompress(array, wish=AS_CONFIGURED) -> int:
    results = [
        run_task(task(array, *shard, recompress=wish))
        for shard in SHARDS
        if (array.path / array.shard_key(shard)).exists()
    ]
    assert all(result["ok"] for result in results), results
    return sum(result["chunks_recoded"] for result in results)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("name", CODECS)
def test_chunks_of_every_level_become_what_the_array_says(store_of, degraded, name, checksum):
    asked = spec(CODECS[name], chunk_checksum=checksum)
    forms, nbytes = look(store_of(asked))
    array, receipt = degraded(asked)
    values = [read(array.path) for read in READERS.values()]
    assert np.array_equal(values[0], np.stack([frame(i) for i in range(FRAMES)]))
    before, bytes_before = look(array)
    assert sum(count for form, count in before.items() if "stored" in form) == receipt.chunks_uncompressed > 0
    assert receipt.chunks_faster > 0
    assert bytes_before > nbytes
    recoded = recompress(array)
    after, bytes_after = look(array)
    assert bytes_after <= nbytes, (
        "as an acquisition that was never overloaded, or smaller where the faster setting happened to be"
    )
    assert after.keys() <= forms.keys() | before.keys()
    assert all(after[form] == forms[form] for form in after if "stored" in form)
    if name == "blosc zstd":
        assert (after, bytes_after) == (forms, nbytes)
    assert receipt.chunks_uncompressed <= recoded <= receipt.chunks_uncompressed + receipt.chunks_faster
    assert all(
        np.array_equal(old, read(array.path)) for old, read in zip(values, READERS.values(), strict=True)
    )
    assert verify_store(array.path).ok
    files = shard_files(array)
    assert recompress(array) == 0
    assert shard_files(array) == files, "nothing is left to do"


def test_another_codec_takes_them_as_well(degraded):
    array, receipt = degraded(spec(CODECS["blosc lz4"]))
    assert recompress(array, parse_recompress("zstd:5")) >= receipt.chunks_uncompressed
    forms, _ = look(array)
    assert set(forms) == {"blosc zstd shuffle"}


@pytest.mark.parametrize("name", ["blosc zstd", "blosc lz4 bitshuffle"])
def test_chunks_that_tell_that_they_are_sound_are_not_decoded(degraded, monkeypatch, name):
    array, receipt = degraded(spec(CODECS[name]))
    decoded = []
    decode = recode.decode_chunk_into

    def counting(data, codecs, out):
        decoded.append(1)
        decode(data, codecs, out)

    monkeypatch.setattr(recode, "decode_chunk_into", counting)
    recoded = recompress(array)
    assert len(decoded) == receipt.chunks_uncompressed + receipt.chunks_faster + recoded, (
        "what was degraded, and what became of it"
    )


def test_arrays_without_a_compressor_stay_as_they_are(store_of):
    array = store_of(spec(None))
    run_task(task(array, 0, 0, 0))
    files = shard_files(array)
    assert run_task(task(array, 0, 0, 0, recompress=AS_CONFIGURED))["skipped"]
    assert shard_files(array) == files


def test_a_codec_has_no_level_of_its_own_here():
    with pytest.raises(ConfigError, match="or codec alone"):
        parse_recompress("codec:5")
