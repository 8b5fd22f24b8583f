"""Settings are checked where they are made, explained once, and given to ``create`` and ``resume`` in one
way; the spelling of release 0.2 still works."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.config.model import Output, Reliability
from shardwright.model.errors import SpecError
from shardwright.model.write_settings import MAX_INTERVAL_MS
from shardwright.shard.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT: dict[str, Any] = {"shape": (None, 8, 8), "dtype": "uint16", "axes": "tyx", "threads": 1}
NAMES = {"ballast": "ballast_bytes", "low_water": "low_water_bytes"}  # in a file with other units
FRAME = np.ones((8, 8), np.uint16)


def settings_of(path: Path) -> dict[str, Any]:
    opened_as = read_manifest(path / ".shardwright").opened_as
    assert opened_as is not None
    return opened_as.settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("io", value) for value in ("dirct", None, 1)),
        *(("store_within_ms", value) for value in (0, -1, MAX_INTERVAL_MS + 1, 1.5, True, "10")),
        ("sync_interval_ms", 0),
        ("ballast_bytes", -1),
        ("low_water_bytes", None),
        ("on_duplicate", "keep"),
        ("live", ["append"]),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_given(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=name) as caught:
        sw.WriteSettings(**{name: value})
    assert caught.value.expected


def test_an_option_is_explained_once_wherever_it_can_be_set() -> None:
    said = {each.name: each.metadata["text"] for each in fields(sw.WriteSettings)}
    of_a_daemon = {**Output.model_fields, **Reliability.model_fields}
    shared = {name: NAMES.get(name, name) for name in of_a_daemon if NAMES.get(name, name) in said}
    assert set(shared.values()) == said.keys()
    assert {shared[name]: of_a_daemon[name].description for name in shared} == said
    told = re.sub(r"\s+", " ", inspect.getdoc(sw.WriteSettings) or "")
    assert all(f"{name} {text}" in told for name, text in said.items())


@pytest.mark.parametrize("function", [sw.create, sw.resume, sw.save])
def test_every_argument_is_explained(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    named = re.findall(r"^(\w+(?:, \w+)*)(?: : .*)?$", text.partition("Returns\n")[0], re.MULTILINE)
    explained = {name for line in named for name in line.split(", ")} - {"Parameters"}
    parameters = inspect.signature(function).parameters.values()
    assert {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} <= explained


@pytest.mark.parametrize(
    ("option", "value"),
    [("io", "pwrite"), ("store_within_ms", 20), ("sync_interval_ms", 30)],
)
def test_the_spelling_of_release_0_2_works_and_shows_the_new_one(
    tmp_path: Path, option: str, value: Any
) -> None:
    new = f"settings=sw.WriteSettings({option}={value!r})"
    with pytest.warns(DeprecationWarning, match=re.escape(new)) as told:
        writer = sw.create(tmp_path / "a.ome.zarr", **LAYOUT, **{option: value})
    assert told[0].filename == __file__
    with writer:
        writer.append(FRAME)
        assert getattr(writer._acquisition.settings, option) == value
    for unknown in ("ioo", "chunk_order"):  # the second one is a setting that 0.2 did not have
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            sw.create(tmp_path / "b.ome.zarr", **LAYOUT, **{unknown: "row_major"})


def test_resume_takes_what_it_took_and_no_more(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'io'"):
        sw.resume(tmp_path / "a.ome.zarr", io="pwrite")
    with (
        pytest.warns(
            DeprecationWarning, match=r"resume\(\.\.\., settings=sw.WriteSettings\(store_within_ms=9"
        ),
        pytest.raises(sw.errors.ResumeError),
    ):
        sw.resume(tmp_path / "a.ome.zarr", store_within_ms=9)


def test_an_argument_stands_in_place_of_what_the_settings_say(tmp_path: Path) -> None:
    settings = sw.WriteSettings(durability="durable", overload="drop", store_within_ms=20)
    with sw.create(tmp_path / "a.ome.zarr", **LAYOUT, overload="fail", settings=settings) as writer:
        writer.append(FRAME)
        found = settings_of(writer.path)
    assert found["durability"] == "durable"
    assert found["overload"] == "fail"
    assert found["store_within_ms"] == 20
    assert found["on_duplicate"] == "fail", "of a script that creates its store"
