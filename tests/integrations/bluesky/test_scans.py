"""A step scan and a fly scan, which bluesky's own writer puts into a tiled server: every pixel comes back
through tiled's adapter for Zarr."""

from __future__ import annotations

import threading

import bluesky.plans as bp
import numpy as np
import pytest
from bluesky.utils import RunEngineInterrupted
from bluesky_tiled_plugins import TiledWriter
from ophyd_async.core import soft_signal_rw
from tests.harness.json_process import wait_for

import shardwright as sw

from .rig import SHAPE, flying, stepping
from .tiled_server import serving_tiled

STACKS_OF_COLOURS = sw.default_layout(
    shape=(None, 3, *SHAPE, 3), axes="tzyxc", dtype="uint16", chunks={"t": 1}, shards={"t": 4}
)


@pytest.fixture(scope="module")
def catalog(daemon, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiled")
    with serving_tiled(daemon.ready["output_root"], folder / "log") as client:
        yield client


def test_a_step_scan(rig, catalog):
    """Also while it runs: what was announced can be read."""
    detector, camera = rig.detector()
    stage = soft_signal_rw(float, name="z")
    rig.engine.subscribe(TiledWriter(catalog, batch_size=1))
    result = rig.engine(bp.scan([detector], stage, 0.0, 4.0, 5))
    assert result.exit_status == "success"
    run = catalog[result.run_start_uids[0]]
    array = run["primary"]["det"]
    assert (array.shape, array.dims) == ((5, 32, 48), ("time", "y", "x"))
    np.testing.assert_array_equal(array.read(), camera.sent)
    np.testing.assert_array_equal(array[3], camera.sent[3])
    assert list(run["primary"]["z"].read()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    np.testing.assert_array_equal(rig.documents.pixels(), camera.sent)
    assert rig.documents.ranges() == [(n, n + 1) for n in range(5)]


def test_a_fly_scan(rig, catalog):
    """The second half of its frames is not taken before some of the first were announced."""
    detector, camera = rig.detector()
    rig.engine.subscribe(TiledWriter(catalog))
    camera.before = lambda number: number != 20 or wait_for(rig.documents.ranges, "an announcement")
    result = rig.engine(flying(detector, 40))
    assert result.exit_status == "success"
    array = catalog[result.run_start_uids[0]]["primary"]["det"]
    assert array.shape == (40, 32, 48)
    np.testing.assert_array_equal(array.read(), camera.sent)
    np.testing.assert_array_equal(rig.documents.pixels(), camera.sent)
    assert len(rig.documents.ranges()) > 1


def test_stacks_of_a_colour_camera(rig, catalog):
    """Three planes of three colours are one event, in a run that steps and in one that flies."""
    detector, camera = rig.detector(STACKS_OF_COLOURS, shape=(*SHAPE, 3))
    rig.engine.subscribe(TiledWriter(catalog))
    for plan in (stepping(detector, 2, frames=3), flying(detector, 4, frames=3)):
        camera.sent.clear()
        result = rig.engine(plan)
        array = catalog[result.run_start_uids[0]]["primary"]["det"]
        events = len(camera.sent) // 3
        expected = np.array(camera.sent).reshape(events, 3, *SHAPE, 3).transpose(0, 4, 1, 2, 3)
        assert array.dims == ("time", "c", "z", "y", "x")
        np.testing.assert_array_equal(array.read(), expected)


def test_two_runs_are_two_stores(rig, catalog):
    detector, camera = rig.detector()
    rig.engine.subscribe(TiledWriter(catalog))
    for plan in (bp.count([detector], 2), bp.count([detector], 3)):
        camera.sent.clear()
        result = rig.engine(plan)
        array = catalog[result.run_start_uids[0]]["primary"]["det"]
        np.testing.assert_array_equal(array.read(), camera.sent)
        assert detector.data.receipt["frames_stored"] == len(camera.sent)
    assert len({resource["uri"] for resource in rig.documents.of("stream_resource")}) == 2


def test_an_exposure_that_was_made_again(rig, catalog):
    """A pause in the middle of an exposure: it is made again. Both frames are in the store and announced, the
    first one for nothing: the number of the event is that of the second as well."""
    detector, camera = rig.detector()
    rig.engine.subscribe(TiledWriter(catalog))
    is_paused = threading.Event()

    def expose(number):
        """A pause that does not wait for it has all the time to show."""
        if number == 1:
            rig.engine.request_pause()
            is_paused.wait(0.5)

    camera.before = expose
    with pytest.raises(RunEngineInterrupted):
        rig.engine(bp.count([detector], 3))
    is_paused.set()
    assert len(camera.sent) == 2  # what was begun has come
    result = rig.engine.resume()
    assert result.exit_status == "success"
    array = catalog[result.run_start_uids[0]]["primary"]["det"]
    assert len(camera.sent) == 4
    np.testing.assert_array_equal(array.read(), camera.sent)
    assert rig.documents.ranges() == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert rig.documents.numbers() == [(1, 2), (2, 3), (2, 3), (3, 4)]
    assert len(rig.documents.of("event")) == 3
