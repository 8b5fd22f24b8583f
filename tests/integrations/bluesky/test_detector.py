"""The detector of bluesky in runs that do not go as planned: how each fails, and what becomes of its
acquisition."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, suppress

import bluesky.plan_stubs as bps
import bluesky.plans as bp
import numpy as np
import pytest
from bluesky.preprocessors import run_decorator, stage_decorator
from bluesky.utils import FailedStatus, RunEngineInterrupted
from ophyd_async.core import DetectorDataLogic, TriggerInfo
from tests.harness.daemon import DaemonProcess, bring_back, serving
from tests.harness.json_process import wait_for

import shardwright as sw
from shardwright.daemon.control_client import ControlClient
from shardwright.read.verify_store import verify_store

from .rig import FILE, SHAPE, Rig, flying, stepping, written_config

ARRAY = sw.default_layout(shape=(None, *SHAPE), dtype="uint16", chunks={"t": 1})
SLABS = sw.default_layout(shape=(None, *SHAPE), dtype="uint16", chunks={"t": 4}, shards={"t": 4})


def failure_of(engine, plan):
    """The error with which a status of the run failed."""
    with pytest.raises(FailedStatus) as raised:
        engine(plan)
    return raised.value.__cause__


def stored_by(detector):
    """The number of frames in the store of its last acquisition."""
    return len(sw.open_array(detector.data.receipt["path"]))


def states_of(rig):
    """The acquisitions that the daemon has open or armed, by name."""
    with ControlClient(rig.control) as daemon:
        status = daemon.ask("status")["status"]
    return {each["name"]: each for each in (*status["acquisitions"], *status["armed"])}


def test_a_camera_that_delivers_nothing(rig):
    detector, camera = rig.detector()
    camera.append = lambda stream, frame: None
    error = failure_of(rig.engine, stepping(detector, timeout_s=0.2))
    assert isinstance(error, sw.errors.TimedOutError)
    assert error.expected == "1 frames, each in its place"
    assert "got no frame for 0.2 s" in str(error)
    assert states_of(rig) == {}
    assert rig.documents.of("stop")[0]["exit_status"] == "fail"
    assert not rig.documents.ranges()


def test_a_camera_that_never_comes(rig):
    detector, camera = rig.detector()

    async def start_nothing():
        pass

    camera.start_acquiring = start_nothing
    error = failure_of(rig.engine, stepping(detector, timeout_s=0.2))
    assert isinstance(error, sw.errors.TimedOutError)
    assert states_of(rig) == {}
    assert detector.data.receipt is None


def test_the_daemon_dies_in_the_middle_of_a_run(folder, engine):
    config = written_config(folder)
    with DaemonProcess(config) as daemon, Rig(daemon.ready, engine) as rig:
        detector, camera = rig.detector()

        def die(stream, frame):
            if len(camera.sent) < 3:
                stream.append(frame)
            else:
                daemon.kill()

        camera.append = die
        error = failure_of(engine, stepping(detector, 5))
        assert isinstance(error, sw.errors.SessionLostError)
        assert "no daemon answers" in str(error)
        np.testing.assert_array_equal(rig.documents.pixels(), camera.sent[:2])
        assert detector.data.receipt is None
    bring_back(config)
    store = rig.documents.of("stream_resource")[0]["uri"].removeprefix(FILE).removesuffix("/0")
    np.testing.assert_array_equal(sw.open_array(store)[...], camera.sent[:2])


def test_without_a_daemon(folder, engine):
    with Rig({"output_root": folder, "control_socket": folder / "none", "endpoints": [""]}, engine) as rig:
        detector, _ = rig.detector()
        error = failure_of(engine, stepping(detector))
    assert isinstance(error, sw.errors.SessionLostError)


@pytest.mark.parametrize("end", ["abort", "stop"])
def test_a_run_that_is_ended_in_the_middle(rig, end):
    """What came is sealed, and the detector is ready for the next run."""
    detector, camera = rig.detector()
    camera.before = lambda number: number != 2 or rig.engine.request_pause()
    with pytest.raises(RunEngineInterrupted):
        rig.engine(stepping(detector, 5))
    getattr(rig.engine, end)()
    assert states_of(rig) == {}
    assert detector.data.receipt["frames_stored"] == 3
    assert verify_store(detector.data.receipt["path"]).problems == []
    np.testing.assert_array_equal(rig.documents.pixels(), camera.sent[:2])
    assert rig.engine(bp.count([detector], 2)).exit_status == "success"


def test_a_flight_that_is_aborted(rig):
    """The camera is stopped first, and the store has all that it took until then."""
    detector, camera = rig.detector()
    is_aborted = threading.Event()

    def take(number):
        """A store that is sealed before the camera has stopped has all the time for it."""
        if number == 5:
            rig.engine.request_pause()
            is_aborted.wait()
            with suppress(AssertionError):
                wait_for(lambda: states_of(rig) == {}, seconds=1)

    camera.before = take
    with pytest.raises(RunEngineInterrupted):
        rig.engine(flying(detector, 10))
    is_aborted.set()
    rig.engine.abort()
    assert states_of(rig) == {}
    assert stored_by(detector) == len(camera.sent) == 10


def test_a_run_that_is_halted(rig):
    """bluesky unstages its devices then as well, and does not wait for it. The next stage does."""
    detector, camera = rig.detector()
    camera.before = lambda number: number != 1 or rig.engine.request_pause()
    with pytest.raises(RunEngineInterrupted):
        rig.engine(stepping(detector, 5))
    name, first = detector.data.armed.name, list(camera.sent)
    rig.engine.halt()
    assert rig.engine(bp.count([detector], 2)).exit_status == "success"
    assert states_of(rig) == {}
    np.testing.assert_array_equal(sw.open_array(rig.root / f"{name}.ome.zarr")[...], first)


def test_one_stage_is_one_run(rig):
    """A second one knows nothing of the resource that the first one has announced, and bluesky refuses it."""
    detector, camera = rig.detector()

    @stage_decorator([detector])
    def plan():
        for _ in range(2):
            yield from bps.open_run()
            yield from bps.trigger_and_read([detector])
            yield from bps.close_run()

    with pytest.raises(KeyError):
        rig.engine(plan())
    assert states_of(rig) == {}
    assert stored_by(detector) == len(camera.sent) == 2
    assert rig.documents.ranges() == [(0, 1)]


@pytest.mark.parametrize("dropped", [0, 1])
@pytest.mark.parametrize("way", ["pause", "drop"])
def test_an_event_that_is_dropped_after_its_reading(rig, way, dropped):
    """Its frame is announced with the event in its place: tiled takes the n-th announced for the n-th."""
    detector, camera = rig.detector()

    @stage_decorator([detector])
    @run_decorator()
    def plan():
        for number in range(4 if way == "drop" else 3):
            yield from bps.checkpoint()
            yield from bps.trigger(detector, wait=True)
            yield from bps.create("primary")
            yield from bps.read(detector)
            if number == dropped and len(camera.sent) == dropped + 1:
                yield from getattr(bps, way)()
                if way == "drop":
                    continue
            yield from bps.save()

    if way == "drop":
        rig.engine(plan())
    else:
        with pytest.raises(RunEngineInterrupted):
            rig.engine(plan())
        assert rig.engine.resume().exit_status == "success"
    assert len(camera.sent) == 4
    assert rig.documents.ranges() == [(0, 1), (1, 2), (2, 3), (3, 4)]
    seq_nums = sorted([1, 2, 3, dropped + 1])
    assert rig.documents.numbers() == [(number, number + 1) for number in seq_nums]
    np.testing.assert_array_equal(rig.documents.pixels(), camera.sent)


def test_a_pause_of_a_fly_scan(rig):
    """The camera goes on. Then bluesky makes all since its last checkpoint again, here the whole flight: the
    frames of both are in the store, and announced as they came."""
    detector, camera = rig.detector()
    camera.before = lambda number: number != 5 or rig.engine.request_pause()
    with pytest.raises(RunEngineInterrupted):
        rig.engine(flying(detector, 10))
    wait_for(lambda: len(camera.sent) == 10, "the first flight")
    assert rig.engine.resume().exit_status == "success"
    assert stored_by(detector) == len(camera.sent) == 20
    announced = rig.documents.pixels()
    np.testing.assert_array_equal(announced, camera.sent[: len(announced)])
    assert len(announced) >= 10


def test_an_end_while_it_is_armed(rig):
    """An unstage that comes before the daemon has answered leaves nothing armed."""
    detector, _ = rig.detector()

    def plan():
        yield from bps.stage(detector, wait=True)
        yield from bps.prepare(detector, TriggerInfo(), group="prepared")
        yield from bps.unstage(detector, wait=True)
        yield from bps.wait("prepared")

    rig.engine(plan())
    assert states_of(rig) == {}


class BrokenLogic(DetectorDataLogic):
    """Data of the same detector that cannot be prepared, beside those that arm an acquisition."""

    async def prepare_unbounded(self, datakey_name):
        raise OSError("no file for it")


def test_a_prepare_after_one_that_failed(rig):
    """What the first one had armed is not left in the daemon, nor heard any more."""
    detector, _ = rig.detector(ARRAY)
    detector.add_detector_logics(BrokenLogic())

    @stage_decorator([detector])
    def plan():
        for _ in range(2):
            with pytest.raises(FailedStatus):
                yield from bps.prepare(detector, TriggerInfo(), wait=True)

    rig.engine(plan())
    assert states_of(rig) == {}


def test_a_prepare_that_is_made_again(rig):
    """As by a pause while the daemon arms. The camera can have but one acquisition of its stream armed."""
    detector, camera = rig.detector()

    @stage_decorator([detector])
    @run_decorator()
    def plan():
        for _ in range(2):
            yield from bps.prepare(detector, TriggerInfo(), group="prepared")
        yield from bps.wait("prepared")
        yield from bps.trigger_and_read([detector])

    assert rig.engine(plan()).exit_status == "success"
    assert states_of(rig) == {}
    np.testing.assert_array_equal(rig.documents.pixels(), camera.sent)


def test_more_detectors_than_the_daemon_lets_watch(rig):
    """The run fails, and leaves nothing armed for a camera that has not come."""

    async def start_nothing():
        pass

    detector, camera = rig.detector(ARRAY)
    camera.start_acquiring = start_nothing
    with ExitStack() as others, ControlClient(rig.control) as daemon:
        daemon.arm("other", stream="cam")
        for _ in range(8):
            watch = daemon.watch("other")
            next(watch)
            others.callback(watch.close)
        error = failure_of(rig.engine, stepping(detector))
        assert isinstance(error, sw.errors.BudgetError)
        assert list(states_of(rig)) == ["other"]
        daemon.ask("stop", name="other")


def test_a_daemon_that_answers_late(folder, engine):
    """Later than commands wait for it."""
    with serving(written_config(folder)) as daemon, Rig(daemon.ready, engine) as rig:
        detector, _ = rig.detector()
        listen = detector.data.watch
        goes_on = threading.Timer(3, daemon.signal, [signal.SIGCONT])

        def listen_late(*arguments):
            daemon.signal(signal.SIGSTOP)
            goes_on.start()
            listen(*arguments)

        detector.data.watch = listen_late
        assert engine(stepping(detector)).exit_status == "success"
        goes_on.join()


def test_chunks_that_only_more_frames_show(rig):
    detector, camera = rig.detector(SLABS)
    error = failure_of(rig.engine, stepping(detector, 3))
    assert isinstance(error, sw.errors.VisibilityError)
    assert "Chunks of one frame" in str(error)
    assert rig.engine(flying(detector, 8)).exit_status == "success"
    assert {end % 4 for _, end in rig.documents.ranges()} == {0}
    np.testing.assert_array_equal(rig.documents.pixels(), camera.sent[1:])


def test_a_camera_that_closes_too_early(rig):
    detector, camera = rig.detector()
    camera.before = lambda number: number != 2 or camera.close_stream()
    camera.append = lambda stream, frame: len(camera.sent) == 3 or stream.append(frame)
    error = failure_of(rig.engine, stepping(detector, 3))
    assert isinstance(error, sw.errors.ClosedError)
    assert error.got == "2 frames"


def test_a_frame_that_was_not_kept(rig):
    """The next one would be announced as the frame of that event."""
    detector, camera = rig.detector()
    camera.append = lambda stream, frame: stream.append(frame, index={"t": len(camera.sent) // 2})
    error = failure_of(rig.engine, stepping(detector, 4))
    assert isinstance(error, sw.errors.LostFramesError)
    assert error.got == "frames_duplicate=1"


def test_a_place_that_stays_empty(rig):
    """Its event would be announced with fill value."""
    detector, camera = rig.detector()
    camera.append = lambda stream, frame: stream.append(frame, index={"t": len(camera.sent)})
    error = failure_of(rig.engine, stepping(detector, 2, timeout_s=1))
    assert isinstance(error, sw.errors.TimedOutError)
    assert error.got == "1, 1 places empty"
    assert rig.documents.ranges() == []


@pytest.mark.parametrize(
    ("spec", "frames", "wrong"),
    [
        ({"shape": SHAPE}, 1, "y, x: [32, 48]"),
        ({"shape": (*SHAPE, 3), "axes": "yxc"}, 1, "c, y, x: [3, 32, 48]"),
        ({"shape": (None, 3, *SHAPE), "axes": "tzyx"}, 1, "1"),
        ({"shape": (None, *SHAPE)}, 3, "3"),
        ({"shape": (None, None, *SHAPE), "axes": "tzyx"}, 1, "t, z, y, x: [None, None, 32, 48]"),
    ],
)
def test_arrays_that_events_do_not_fit(rig, spec, frames, wrong):
    detector, _ = rig.detector(sw.default_layout(dtype="uint16", **spec))
    error = failure_of(rig.engine, stepping(detector, frames=frames))
    assert isinstance(error, sw.errors.SpecError)
    assert str(error.got) == wrong
    assert states_of(rig) == {}


def test_a_name_that_is_taken(rig):
    detector, _ = rig.detector()
    detector.data._names = lambda key: "taken"
    assert rig.engine(stepping(detector)).exit_status == "success"
    assert isinstance(failure_of(rig.engine, stepping(detector)), sw.errors.OutputExistsError)


def test_images_have_data_keys_of_their_own(rig):
    """Two positions at each event, of one store."""
    spec = sw.AcquisitionSpec(
        images=[
            sw.Image(
                name=name, array=sw.default_layout(shape=(None, *SHAPE), dtype="uint16", chunks={"t": 1})
            )
            for name in ("left", "far/right")
        ],
        order=("t", "p"),
    )
    detector, camera = rig.detector(spec, trigger=False)
    camera.asked = 2
    assert rig.engine(stepping(detector, 3)).exit_status == "success"
    np.testing.assert_array_equal(rig.documents.pixels("det-left"), camera.sent[::2])
    np.testing.assert_array_equal(rig.documents.pixels("det-far-right"), camera.sent[1::2])
    (descriptor,) = rig.documents.of("descriptor")
    assert descriptor["hints"]["det"]["fields"] == ["det-left", "det-far-right"]


def test_what_its_descriptor_says(rig):
    detector, _ = rig.detector()
    rig.engine(bp.count([detector], 1))
    (descriptor,) = rig.documents.of("descriptor")
    (resource,) = rig.documents.of("stream_resource")
    key = descriptor["data_keys"]["det"]
    assert (key["shape"], key["dims"], key["dtype_numpy"], key["external"]) == (
        [32, 48],
        ["y", "x"],
        "<u2",
        "STREAM:",
    )
    assert descriptor["hints"]["det"]["fields"] == ["det"]
    assert resource["parameters"] == {"chunk_shape": [1, 32, 48], "join_method": "stack"}
