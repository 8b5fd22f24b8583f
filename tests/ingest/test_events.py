"""Every event of an acquisition says which one it is: its name, its stream, and its path."""

from __future__ import annotations

from typing import Any

import pytest

import shardwright as sw
from shardwright.ingest import StreamSettings
from shardwright.model import errors
from shardwright.model.write_settings import WriteSettings


def of_acquisitions(events: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    return {name: facts for name, facts in events if "path" in facts}


@pytest.mark.parametrize("stream", ["cam0", None])
def test_each_has_name_stream_and_path(start, double, spec_of, frames_of, wait, proxy, stream: str | None):
    daemon = start(StreamSettings("cam0", spec_of(), None, WriteSettings()), doubled=double)
    link = proxy(daemon.tcp)
    frames = frames_of(4)
    with sw.connect(link.endpoint, transport="message") as connection:
        how = {"stream": stream} if stream else {"spec": spec_of()}
        with connection.acquire("a", **how) as acquired:
            acquired.append(frames[0])
            daemon.acquisitions[0].events.append(("disk_low", {"free_bytes": 1, "shards_left": 0}))
            daemon.event("disk_low")
            link.cut()
            link.mend()
            daemon.event("acquisition_resumed")
        with pytest.raises(errors.OutputExistsError):
            connection.acquire("a", **how)
    refused = daemon.event("acquisition_refused")
    assert (refused["name"], refused.get("stream")) == ("a", stream)
    told = of_acquisitions(daemon.events)
    expected = {"acquisition_opened", "acquisition_detached", "acquisition_resumed", "acquisition_ended"}
    assert told.keys() >= {*expected, "disk_low"}
    for event, facts in told.items():
        path = str(daemon.root / "a.ome.zarr")
        assert list(facts.items())[:3] == [("name", "a"), ("stream", stream or "client"), ("path", path)], (
            event
        )
