"""The version of OME-Zarr that a daemon writes: its configuration says it, or the specification of a
client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.harness.ome_forms import check_ome_forms, ome_groups
from tests.harness.store_contents import leftovers

import shardwright as sw
from shardwright.config.load import parse_config
from shardwright.model.errors import ConfigError, SpecError
from shardwright.read.verify_store import verify_store
from shardwright.wire.messages import Counter, Kind, decode_control

from .test_bad_messages import frames_message

if TYPE_CHECKING:
    from tests.harness.ingest_daemon import IngestDaemon

    from shardwright.config.model import Config

FRAME = np.full((12, 16), 7, np.uint16)
ARRAY = sw.default_layout((None, 12, 16), "uint16", "tyx", units={"y": "um", "x": "um"})
TILES = [sw.Image(name="left", position={"x": 3}), sw.Image(name="right", position={"x": 19})]
SPECS: dict[str, Any] = {
    "one": sw.AcquisitionSpec(array=ARRAY),
    "positions": sw.AcquisitionSpec(array=ARRAY, images=TILES),
}


def asking(spec: sw.AcquisitionSpec, version: str) -> sw.AcquisitionSpec:
    return spec.model_copy(update={"ome_version": version})


def written(daemon: IngestDaemon, spec: sw.AcquisitionSpec) -> Path:
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", spec) as stream:
        for image in spec.names:
            stream.append(FRAME, **({"image": image} if image else {}))
    return Path(stream.path)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_daemon_writes_the_version_of_its_configuration(start, spec):
    """Whatever release its clients are of: they say nothing of it, and hear nothing."""
    path = written(start(write=sw.WriteSettings(ome_version="0.6")), spec)
    check_ome_forms(path, "0.6")
    assert ("scene" in ome_groups(path)["."]) == bool(spec.images)
    assert verify_store(path).ok


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize(("configured", "asked"), [("0.5", "0.6"), ("0.6", "0.5")])
def test_a_client_asks_for_another_version(start, spec, configured, asked):
    path = written(start(write=sw.WriteSettings(ome_version=configured)), asking(spec, asked))
    check_ome_forms(path, asked)


def test_who_goes_on_with_an_acquisition_keeps_its_version(start, raw):
    daemon, spec = start(), asking(SPECS["one"], "0.6")
    first = raw(daemon.ipc)
    first.ask_to_open("a", spec)
    header, (body,) = first.receive()
    assert header.kind is Kind.OPENED
    assert decode_control(body)["spec"] == ARRAY.model_dump(mode="json", exclude={"channels", "levels"})
    first.send(frames_message(Counter(header.session), FRAME[None]))
    first.close()
    daemon.event("acquisition_detached")
    with sw.connect(daemon.ipc) as connection:
        with pytest.raises(SpecError, match="another array"):
            connection.acquire("a", asking(spec, "0.5"), reopen=True)
        with connection.acquire("a", spec, reopen=True) as stream:
            stream.append(FRAME)
    check_ome_forms(Path(stream.path), "0.6")
    assert not leftovers(Path(stream.path))


def test_a_configuration_says_it(tmp_path):
    streams = [{"name": "a", "array": ARRAY.model_dump(mode="json")}]

    def configured(**output: str) -> Config:
        facts = {"output": {"root": str(tmp_path), **output}, "streams": streams}
        return parse_config(json.dumps(facts)).config

    for output, expected in (({}, None), ({"ome_version": "0.5"}, None), ({"ome_version": "0.6"}, "0.6")):
        config = configured(**output)
        assert config.acquisition_of(config.streams[0]).ome_version == expected
    with pytest.raises(ConfigError, match="ome_version"):
        configured(ome_version="0.4")
