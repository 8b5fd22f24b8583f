"""The table of options and the program refuse the same, in the same words; and what neither refuses is
tried."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.ingest_daemon import IngestDaemon
from tests.harness.writing import how

import shardwright as sw
from shardwright.config.load import parse_config
from shardwright.model.errors import ConfigError, SpecError
from shardwright.model.write_options import OPTIONS, REFUSALS, Refusal, refusal_of
from shardwright.model.write_settings import WriteSettings
from shardwright.writer import writer

from .lives import GROUPS, LIFE, is_refused
from .rows import combinations
from .test_lives import LIVES

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning")
# of an array: they go with whatever else there is, as far as they are right by themselves
_FREE = (
    "dimensions",
    "fill_value",
    "storage_order",
    "attributes",
    "frame_fields",
    "frame_json_bytes",
    "channels",
    "interleaved",  # such a frame is several ordinary ones before anything is written
)
_NUMBERS = ("store_within_ms", "sync_interval_ms", "ballast_bytes", "low_water_bytes", "min_ratio")
_OF_AN_ARRAY = (
    *("dtype", "codec", "chunk_checksum", "levels", "shards", "index_location", "index_checksum"),
    "write_empty_chunks",
)
_BY_CREATE = ("overwrite",)  # another name of name_taken
_NEUTRAL = {name: values[0] for name, values in OPTIONS.items()} | {"codec": "none", "dtype": "uint16"}
ROWS = [pytest.param(row, id=" and ".join(row.of)) for row in REFUSALS]


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """The values of all options: a spill root is given where shards may spill."""
    facts = _NEUTRAL | values
    if "on_full" not in values:
        facts["on_full"] = "spill" if facts["spill_root"] else "block"
    elif "spill_root" not in values:
        facts["spill_root"] = facts["on_full"] == "spill"
    return facts


def array_of(facts: dict[str, Any]) -> dict[str, Any]:
    shard = {} if facts["shards"] else {"shard_size_chunks": None}
    array = {name: facts[name] for name in _OF_AN_ARRAY if name not in ("levels", "shards")}
    if array["index_location"] is None:
        del array["index_location"]
    dimensions = [
        {"name": name, "count": count, "chunk_size": 2, **shard}
        for name, count in (("t", None), ("y", 8), ("x", 8))
    ]
    return array | {"dimensions": dimensions, "levels": 1 if facts["levels"] else None}


def settings_of(facts: dict[str, Any], second: Path) -> dict[str, Any]:
    settings = {name: value for name, value in facts.items() if name not in _OF_AN_ARRAY}
    return settings | {"spill_root": second if facts["spill_root"] else None}


def values_of(row: Refusal) -> list[dict[str, Any]]:
    """Each pair that it refuses."""
    return [dict(zip(row.of, values, strict=True)) for values in itertools.product(*row.of.values())]


def reasons(facts: dict[str, Any]) -> list[str]:
    return [row.error(facts).message for row in REFUSALS if row.applies_to(facts)]


def test_the_table_has_every_option() -> None:
    of_settings = {field.name for field in fields(WriteSettings)} - {*_NUMBERS}
    of_arrays = set(sw.ArraySpec.model_fields) - {*_FREE} | {"shards"}
    assert set(OPTIONS) == of_settings | of_arrays | {*_BY_CREATE}
    assert set(_OF_AN_ARRAY) == of_arrays


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_of_two_options(row: Refusal) -> None:
    assert len(row.of) == 2
    for name, values in row.of.items():
        assert set(values) < set(OPTIONS[name]), "a value that goes with nothing would be none"


def test_a_pair_that_is_no_longer_refused_is_meant_to_be() -> None:
    """Table and program agree also where a row has gone: how many pairs each two options refuse."""
    found: Counter[str] = Counter()
    for row in REFUSALS:
        found[" and ".join(sorted(row.of))] += len(values_of(row))
    assert found == {
        "on_full and spill_root": 3,
        "name_taken and overwrite": 1,
        "live and on_full": 2,
        "io and live": 1,
        "chunk_order and live": 3,
        "index_checksum and live": 2,
        "index_location and live": 2,
        "live and partial_chunks": 2,
        "io and partial_chunks": 1,
        "chunk_order and partial_chunks": 2,
        "codec and partial_chunks": 3,
        "chunk_checksum and partial_chunks": 1,
        "levels and partial_chunks": 1,
        "index_location and shards": 1,
        "index_checksum and shards": 1,
        "dtype and levels": 1,
        "dtype and profile": 1,
        "ome_version and profile": 1,
    }


def test_no_row_hides_another() -> None:
    for row in REFUSALS:
        assert all(refusal_of(values) is row for values in values_of(row))


def test_the_program_refuses_what_the_table_does_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``create`` with every pair of values, up to the writer that it would make."""
    path = tmp_path / "a.ome.zarr"
    monkeypatch.setattr(writer, "Writer", lambda *_: SimpleNamespace(path=path))
    for pair in combinations(OPTIONS, itertools.combinations(OPTIONS, 2)):
        facts, said = completed(dict(pair)), None
        try:
            sw.create(path, array_of(facts), **how(**settings_of(facts, tmp_path / "second")))
        except (SpecError, TypeError) as error:
            said = str(error)
        told = reasons(facts)
        assert (said is None) == (not told), (pair, said, told)
        assert said is None or any(reason in said for reason in told), (pair, said, told)


@pytest.mark.parametrize("row", [row for row in ROWS if set(row.values[0].of) & {*_OF_AN_ARRAY}])
def test_an_image_that_is_added_is_refused_as_one_that_was_declared(tmp_path: Path, row: Refusal) -> None:
    """By the rows of its array: with the options that the store has, and by themselves."""
    for number, values in enumerate(values_of(row)):
        path = tmp_path / f"{number}.ome.zarr"
        of_array = {name: value for name, value in values.items() if name in _OF_AN_ARRAY}
        declared = completed({name: value for name, value in values.items() if name not in of_array})
        spec = sw.AcquisitionSpec(array=array_of(declared), images=("a",))
        with sw.create(path, spec, **how(**settings_of(declared, tmp_path / "second"))) as made:
            array = array_of(completed(of_array))
            with pytest.raises(SpecError) as refused:
                made.add_image("b", array=array)
            assert any(reason in str(refused.value) for reason in reasons(declared | of_array)), values
            made.add_image("b")
            assert made.images.names == ("a", "b")


def test_every_pair_of_values_is_in_a_life_or_refused() -> None:
    lived = {pair for life in LIVES for pair in itertools.combinations(life.row.items(), 2)}
    pairs = combinations(LIFE, itertools.combinations(LIFE, 2))
    assert not [pair for pair in pairs if pair not in lived and not is_refused(dict(pair))]
    assert not [life for life in LIVES if is_refused(life.row)]


def test_what_three_options_decide_is_in_a_life_or_refused() -> None:
    lived = {three for life in LIVES for three in itertools.combinations(life.row.items(), 3)}
    threes = combinations(LIFE, [group for group in GROUPS if len(group) == 3])
    assert not [three for three in threes if three not in lived and not is_refused(dict(three))]


@pytest.mark.parametrize("name", ["on_full", "overload", "on_duplicate"])
def test_each_policy_has_something_to_decide(name: str) -> None:
    """In several lives: the first writer has a full disk, or a full ring and then a duplicate."""
    met: Counter[str] = Counter()
    for life in LIVES:
        beyond, needs_files = life.beyond(life.frames[: life.before], life.spec.grids)
        needs_room = any(beyond) and not beyond[0] if life.row["on_full"] == "fail" else needs_files
        met[life.row[name]] += needs_room if name == "on_full" else life.is_crowded
    assert {value for value, lives in met.items() if lives > 1} == {*OPTIONS[name]}


YAML = """
output: {{root: .{output}}}
reliability: {{{reliability}}}
streams: {streams}
"""
STREAM = """
  - name: cam
    array:
      dtype: uint16
      codec: none
      dimensions:
        - {name: t, chunk_size: 2}
        - {name: y, count: 20, chunk_size: 20}
        - {name: x, count: 36, chunk_size: 36}
"""
_OUTPUT = ("io", "chunk_order", "partial_chunks", "live", "spill_root", "profile", "ome_version")
_RELIABILITY = ("on_full",)
OF_SETTINGS = [
    pytest.param(values, id="-".join(map(str, values.values())))
    for row in REFUSALS
    if set(row.of) <= {*_OUTPUT, *_RELIABILITY}
    for values in values_of(row)
    if not values.get("spill_root")  # one that no stream spills to is only warned of: another may, later
]


@pytest.mark.parametrize("streams", [STREAM, "[]"], ids=["a stream", "clients bring theirs"])
@pytest.mark.parametrize("values", OF_SETTINGS)
def test_a_configuration_refuses_it(values: dict[str, Any], streams: str) -> None:
    """Also for acquisitions of clients that bring their own array."""
    placed = {"spill_root": None if values.get("spill_root") is False else "./second"}
    output = "".join(
        f", {name}: {json.dumps(value)}" for name, value in {**values, **placed}.items() if name in _OUTPUT
    )
    reliability = ", ".join(f"{name}: {value}" for name, value in values.items() if name in _RELIABILITY)
    text = YAML.format(output=output, reliability=reliability, streams=streams)
    with pytest.raises(ConfigError) as caught:
        parse_config(text, file="rig.yaml")
    assert any(reason in str(caught.value) for reason in reasons(values))


OF_SETTINGS_AND_ARRAYS = [
    pytest.param(values, id="-".join(map(str, values.values())))
    for row in REFUSALS
    if len({*row.of} & {*_OF_AN_ARRAY}) == 1
    for values in values_of(row)
]


@pytest.mark.parametrize("values", OF_SETTINGS_AND_ARRAYS)
def test_an_array_that_a_client_brings_is_refused(
    tmp_path: Path, shared_pool: WorkerPool, values: dict[str, Any]
) -> None:
    """It meets the settings of the daemon where it is opened."""
    of_settings: dict[str, Any] = {n: value for n, value in values.items() if n not in _OF_AN_ARRAY}
    daemon = IngestDaemon(tmp_path, shared_pool, write=WriteSettings(**of_settings))
    try:
        with sw.connect(daemon.ipc) as connection, pytest.raises(SpecError) as caught:
            connection.acquire("a", array_of(completed(values)))
    finally:
        daemon.stop()
    assert caught.value.message in reasons(completed(values))
    assert not list(tmp_path.rglob("zarr.json"))
