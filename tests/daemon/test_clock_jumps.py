"""The wall clock of a daemon at work jumps: a day ahead, years back. Nothing that it decides may notice
(P11)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess
from tests.harness.store_contents import assert_holds

import shardwright as sw
from shardwright.simulate.photons import PhotonFrames

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
JUMPS = ("+1d", "-9000d", "+0", "-2h", "+400d")


def environment(control: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_TIMESTAMP_FILE": str(control),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


@pytest.mark.skipif(
    not FAKETIME, reason="NOT TESTED: clock jumps; install libfaketime (apt-get install faketime)"
)
def test_a_clock_that_jumps_while_frames_arrive_changes_nothing(config: Path, folder: Path) -> None:
    control = folder / "clock"
    control.write_text("+0\n")
    source = PhotonFrames((48, 80), seed=4)
    frames = 12 * len(JUMPS) + 5
    with DaemonProcess(config, fresh=True, more=environment(control)) as daemon:
        endpoint = daemon.wait_for("ready")["endpoints"][0]
        with sw.connect(endpoint) as connection, connection.acquire("jumps", stream="cam0") as stream:
            for i in range(frames):
                if i % 12 == 5:
                    _set(control, JUMPS[i // 12])
                stream.append(source.frame(i))
                if i % 12 == 11:
                    # staging, commits and heartbeats come in between, all under the clock of now
                    stream.flush(timeout_s=60)
        assert (
            stream.receipt.frames_stored,
            stream.receipt.frames_durable,
            stream.receipt.frames_missing,
        ) == (frames, frames, 0)
        _set(control, "+3d")
        assert daemon.stop() == 0
        assert not {"client_lost", "thread_died", "acquisition_failed"} & set(daemon.rest())
        days = {event["timestamp"][:10] for event in daemon.events}
        assert len(days) > 1, "the clock did jump"
    assert_holds(folder / "data" / "jumps.ome.zarr", source, frames)
    order = np.argsort(_column(folder, "sequence"))  # shards may be sealed in any order
    arrival = {name: _column(folder, name)[order] for name in ("arrival_ns", "arrival_monotonic_ns")}
    assert (np.diff(arrival["arrival_ns"]) < 0).any(), "what is recorded follows the clock"
    assert (np.diff(arrival["arrival_monotonic_ns"]) >= 0).all(), "what is decided does not"


def _set(control: Path, offset: str) -> None:
    temporary = control.with_suffix(".new")
    temporary.write_text(f"{offset}\n")
    temporary.replace(control)


def _column(folder: Path, name: str) -> np.ndarray:
    import zarr

    return np.asarray(zarr.open_group(folder / "data" / "jumps.ome.zarr" / "frames", mode="r")[name])
