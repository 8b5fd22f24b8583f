"""Rechunking between codec chains: every legal spelling becomes a store that the peers read, and any chain is
written by zarr-python's codecs."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from tests.read.spellings import (
    BIG,
    CRC,
    GIVES_DELTA_BACK,
    GZIP,
    LEGAL,
    LITTLE,
    ZSTD,
    blosc,
    numcodec,
    sharded,
    shards,
    transpose,
)
from tests.read.test_spellings import ignored_warnings, run, same
from tests.repack.images import POLITE, run_here, write_image

from shardwright.array.codec_chain import parse_chain
from shardwright.codecs.zarr_chunks import ZarrChunks, _equal
from shardwright.model.errors import ShardFormatError, ValuesChangedError
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.rework.jobs.pyramid_levels import PyramidOptions
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.document_oracle import DocumentOracle


def rechunk(store: Path, new: Path, **options: Any) -> None:
    made = RechunkOptions(**{"chunks": {}, **options})
    report = write_new_store(plan_new_store(store, made), new, made, run_here, throttle=POLITE)
    assert report.ok
    assert verify_store(new, threads=1).problems == []


def codecs_of(path: Path) -> list[Any]:
    return json.loads((path / "zarr.json").read_text())["codecs"]


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_spelling_becomes_a_store_of_today(tmp_path: Path, name: str) -> None:
    values = LEGAL[name].write(tmp_path / "a.zarr")
    rechunk(tmp_path / "a.zarr", tmp_path / "b.zarr")
    with ignored_warnings():
        assert same(np.asarray(zarr.open_array(tmp_path / "b.zarr", mode="r")[...]), values)
    (array,) = open_store(tmp_path / "b.zarr").arrays
    if array.dtype.kind in "biufc" and array.is_ours:
        store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/b.zarr/"}}
        assert same(tensorstore.open(store).result().read().result(), values)
    if array.dtype.kind in "biuf":
        assert array.is_ours


CHAINS: dict[str, dict[str, Any]] = {
    "index without checksum": {"index_codecs": [LITTLE]},
    "at the start": {"index_codecs": [LITTLE], "index_location": "start"},
    "index big": {"index_codecs": [BIG, CRC], "index_location": "start"},
    "index of another checksum": {"index_codecs": [LITTLE, numcodec("adler32")]},
    "transposed": {"codec": [transpose(0, 2, 1), LITTLE, blosc()]},
    "transposed checksum": {"codec": [transpose(2, 1, 0), LITTLE, ZSTD, CRC]},
    "big": {"codec": [BIG, GZIP]},
    "numcodecs": {"codec": [numcodec("delta", dtype="<u2"), LITTLE, numcodec("bz2", level=1)]},
    "nested": {"codec": [sharded([LITTLE, ZSTD], chunk=(1, 2, 2))]},
    "nested thrice": {
        "codec": [
            sharded([sharded([LITTLE], chunk=(1, 1, 2), place="start")], chunk=(1, 2, 4), index=[LITTLE])
        ]
    },
}


@pytest.mark.parametrize("name", CHAINS)
def test_any_chain_is_written(tmp_path: Path, name: str) -> None:
    values = shards([LITTLE, blosc()]).write(tmp_path / "a.zarr")
    rechunk(tmp_path / "a.zarr", tmp_path / "b.zarr", **CHAINS[name])
    with ignored_warnings():
        assert same(np.asarray(zarr.open_array(tmp_path / "b.zarr", mode="r")[...]), values)
    facts = codecs_of(tmp_path / "b.zarr")[0]["configuration"]
    for asked, field in (
        ("codec", "codecs"),
        ("index_codecs", "index_codecs"),
        ("index_location", "index_location"),
    ):
        assert facts[field] == CHAINS[name].get(asked, facts[field])
    if "nested" not in name and "numcodecs" not in name and "another" not in name:
        store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/b.zarr/"}}
        assert same(tensorstore.open(store).result().read().result(), values)
    # absent chunks stay absent, and what zarr-python encodes it again finds as it was
    rechunk(tmp_path / "b.zarr", tmp_path / "c.zarr", chunks={"dim_1": 7})
    with ignored_warnings():
        assert same(np.asarray(zarr.open_array(tmp_path / "c.zarr", mode="r")[...]), values)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"codec": [LITTLE, {"name": "rot13"}]}, "rot13"),
        ({"codec": [GZIP, LITTLE]}, "wrong order"),
        ({"codec": [sharded([LITTLE], chunk=(2, 3, 4))]}, "divide"),
        ({"index_codecs": [LITTLE, GZIP]}, "fixed size"),
    ],
)
def test_a_chain_that_is_illegal_is_refused_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], part: str, oracle: DocumentOracle
) -> None:
    shards([LITTLE]).write(tmp_path / "a.zarr")
    made = RechunkOptions(chunks={}, **options)
    with pytest.raises(ShardFormatError, match=part):
        write_new_store(plan_new_store(tmp_path / "a.zarr", made), tmp_path / "b.zarr", made, run_here)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]
    oracle.new_problems()  # what was asked for is encoded, read as a reader would, and refused


def test_the_command_takes_chains_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = shards([LITTLE, blosc()]).write(tmp_path / "a.zarr")
    chain = json.dumps([transpose(0, 2, 1), LITTLE, GZIP])
    index = json.dumps([LITTLE])
    places = (tmp_path / "a.zarr", tmp_path / "b.zarr")
    options = ("--codec", chain, "--index", "start", "--index-codecs", index, "--no-idle", "--workers", "1")
    assert run("rechunk", *places, *options) == 0
    with warnings.catch_warnings():
        assert same(np.asarray(zarr.open_array(tmp_path / "b.zarr", mode="r")[...]), values)
    facts = codecs_of(tmp_path / "b.zarr")[0]["configuration"]
    assert facts["index_location"] == "start"
    assert [codec["name"] for codec in facts["codecs"]] == ["transpose", "bytes", "gzip"]
    capsys.readouterr()
    assert run("rechunk", places[0], tmp_path / "c.zarr", "--codec", "[1", "--no-idle") == 2
    assert run("rechunk", places[0], tmp_path / "c.zarr", "--index", "middle", "--no-idle") == 2


DELTA_BIG = [numcodec("delta", dtype="<u2"), BIG, GZIP]
BITROUND = [numcodec("bitround", keepbits=2), LITTLE, ZSTD]


@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("lossy", [False, True])
def test_codecs_that_do_not_give_values_back_are_refused_and_nothing_is_left(
    tmp_path: Path, lossy: bool, levels: int | None
) -> None:
    write_image(tmp_path / "a.ome.zarr")
    pyramid = None if levels is None else PyramidOptions(levels)
    made = RechunkOptions(chunks={}, codec=DELTA_BIG, pyramid=pyramid, lossy=lossy)
    plan = plan_new_store(tmp_path / "a.ome.zarr", made)
    if GIVES_DELTA_BACK:
        with ignored_warnings():
            assert write_new_store(plan, tmp_path / "b.ome.zarr", made, run_here, throttle=POLITE).ok
            new, old = (zarr.open_array(tmp_path / f"{name}.ome.zarr/0", mode="r") for name in "ba")
            assert same(new[...], old[...])
        return
    with pytest.raises(ValuesChangedError) as refused, ignored_warnings():
        write_new_store(plan, tmp_path / "b.ome.zarr", made, run_here, throttle=POLITE)
    message = str(refused.value)
    assert "numcodecs.delta -> bytes -> gzip" in message
    assert "chunk 0 of a shard" in message
    assert [path.name for path in tmp_path.iterdir()] == ["a.ome.zarr"]


def test_codecs_that_round_need_the_users_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "a.zarr"
    spelling = replace(shards([LITTLE]), data_type="float32")
    values = spelling.write(store)
    options = ("--codec", json.dumps(BITROUND), "--no-idle", "--workers", "1")
    assert run("rechunk", store, tmp_path / "b.zarr", *options) == 1
    assert "--lossy" in " ".join(capsys.readouterr().err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr"]
    assert run("rechunk", store, tmp_path / "b.zarr", *options, "--lossy") == 0
    with ignored_warnings():
        rounded = np.asarray(zarr.open_array(tmp_path / "b.zarr", mode="r")[...])
    expected = numcodecs.BitRound(2).decode(numcodecs.BitRound(2).encode(values))
    assert not same(rounded, values)
    assert same(rounded, expected)
    made = json.loads((tmp_path / "b.zarr" / "zarr.json").read_text())["attributes"]["shardwright"]
    assert made["lossy"] is True
    # values that are rounded already need no word
    rechunk(tmp_path / "b.zarr", tmp_path / "c.zarr", codec=BITROUND, chunks={"dim_0": 3})


@pytest.mark.parametrize("lossy", [False, True])
def test_nan_in_one_part_hides_no_change_of_the_other(tmp_path: Path, lossy: bool) -> None:
    """Of NaN + 1.4i fixedscaleoffset makes NaN + NaNi."""
    old, new = tmp_path / "a.zarr", tmp_path / "b.zarr"
    values = np.ones((4, 6), np.complex64)
    values[2, 3] = complex(np.nan, 1.4)
    zarr.create_array(old, data=values, chunks=(2, 6))
    rounds = numcodec("fixedscaleoffset", offset=0, scale=1, dtype="<c8", astype="<c8")
    if lossy:
        rechunk(old, new, codec=[rounds, LITTLE], lossy=True)
        return
    with pytest.raises(ValuesChangedError, match=r"c/1/0, chunk 0 .*nan\+1.4j"), ignored_warnings():
        rechunk(old, new, codec=[rounds, LITTLE])
    rechunk(old, new, codec=[LITTLE, GZIP])
    with ignored_warnings():
        found = np.asarray(zarr.open_array(new, mode="r")[...])
    assert np.array_equal(found.view(np.uint32), values.view(np.uint32))


def test_nan_in_one_field_hides_no_change_of_another() -> None:
    of = np.dtype([("a", "<f4"), ("b", "<c8"), ("c", "<i4", (2,))])
    one = np.array([(np.nan, complex(1, np.nan), (1, 2))], of)
    assert _equal(one, one.copy()).tolist() == [True]
    for name, value in (("a", 1), ("b", complex(2, np.nan)), ("c", (1, 3))):
        other = one.copy()
        other[name] = value
        assert _equal(one, other).tolist() == [False], name


@pytest.mark.parametrize("chain", [[transpose(1, 0), LITTLE], [BIG, GZIP], [sharded([BIG], chunk=(2, 4))]])
@pytest.mark.parametrize(("fill_value", "bits"), [("NaN", 0x7FC00123), (0.0, 0x80000000)])
def test_only_the_bits_of_the_fill_value_make_an_empty_chunk(
    chain: list[Any], fill_value: Any, bits: int
) -> None:
    """A NaN that says which pixel is masked, or -0, became the fill value."""
    made = ZarrChunks(parse_chain("codecs", chain, (4, 4), 4), (4, 4), "float32", fill_value)
    values = np.full((4, 4), bits, np.uint32).view(np.float32)
    if made.chain.sharding is not None and fill_value == "NaN":  # zarr-python decides within it
        with pytest.raises(ValuesChangedError):
            made.encode(values, lossy=False)
    else:
        data = made.encode(values, lossy=False)
        assert data is not None
        assert np.array_equal(made.decode(data).astype("<f4").view("<u4"), values.view(np.uint32))
    assert made.encode(np.broadcast_to(made.fill_element, (4, 4)), lossy=False) is None


@pytest.mark.parametrize(
    ("chain", "fill_value"),
    [
        (
            [
                numcodec("fixedscaleoffset", offset=0, scale=1, dtype="<f4", astype="|u1"),
                {"name": "bytes"},
            ],
            0,
        ),
        ([numcodec("bitround", keepbits=23), LITTLE], "NaN"),  # which is not equal to itself
    ],
)
def test_codecs_that_could_round_and_do_not_are_taken(
    tmp_path: Path, chain: list[Any], fill_value: Any
) -> None:
    spelling = replace(shards([LITTLE]), data_type="float32", fill_value=fill_value)
    values = spelling.write(tmp_path / "a.zarr")
    rechunk(tmp_path / "a.zarr", tmp_path / "b.zarr", codec=chain)
    with ignored_warnings():
        assert same(np.asarray(zarr.open_array(tmp_path / "b.zarr", mode="r")[...]), values)
