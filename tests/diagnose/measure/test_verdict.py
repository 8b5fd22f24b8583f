"""What follows from numbers that are given: floors, which one binds, who can be held, how long the disk
lasts, what to change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.config.load import load_config
from shardwright.config.plan import make_plan
from shardwright.diagnose.verdict import (
    ACCURACY,
    AcquisitionRun,
    Acquisitions,
    KernelRate,
    Measured,
    StageRate,
    StreamRates,
    binding,
    floors_of,
    judge,
)

GB = 1e9


def acquisitions(
    rate: float, cpu_s_per_gb: float = 1.0, ratio: float = 2.0, transport: str = "shm"
) -> Acquisitions:
    run = AcquisitionRun(1000, 8 * 10**9, int(8 * 10**9 / ratio), 8 * GB / rate + 0.5, rate, cpu_s_per_gb)
    return Acquisitions(transport, (run,))


RATES = StreamRates(
    sample="a sample",
    kernel=KernelRate(StageRate(5 * GB, 0.4), 2.0, (1000, 1000)),
    disk={"direct": StageRate(1.5 * GB, 0.1), "pwrite": StageRate(1.0 * GB, 0.4)},
    io="direct",
    transport={"shm": StageRate(6 * GB, 0.2), "message": StageRate(4 * GB, 0.3)},
    acquisitions={"shm": acquisitions(1.8 * GB), "in-process": acquisitions(2 * GB)},
)


def measured(**change: object) -> Measured:
    return Measured(2, StageRate(10 * GB, 0.1), "shm", {"cam0": replace(RATES, **change)}, 20.0)


@pytest.fixture
def plan(config):
    return make_plan(load_config(config))


def judge_at(plan, part: float, **change: object):
    """The verdict on a camera that takes this part of the predicted rate."""
    found = measured(**change)
    rate_hz = (
        part
        * found.streams["cam0"].acquisitions["shm"].sustained_bytes_per_s
        / plan.streams[0].limits.frame_bytes
    )
    return judge(replace(plan, streams=(replace(plan.streams[0], frame_rate_hz=rate_hz),)), 0, found).streams[
        0
    ]


def test_floors_are_those_of_raw_pixels_the_lowest_first():
    floors = floors_of(RATES, measured())
    assert [(floor.name, floor.bytes_per_s) for floor in floors] == [
        ("processors", 2 * GB),  # two cores, a CPU second each GB
        ("disk", 3 * GB),  # chunks are half as long as the pixels
        ("kernel", 5 * GB),
        ("transport", 6 * GB),
    ]
    assert floors[0].basis == "2 cores, 1.00 CPU s/GB: kernel 40%, disk 5%, transport 20%, rest 35%"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("processors", {}),
        ("disk", {"disk": {"direct": StageRate(0.95 * GB, 0.1)}}),
        ("kernel", {"kernel": KernelRate(StageRate(1.9 * GB, 0.4), 2.0, (1000,))}),
        ("transport", {"transport": {"shm": StageRate(1.9 * GB, 0.2)}}),
        ("pipeline", {"acquisitions": {"shm": acquisitions(0.9 * GB)}}),
    ],
)
def test_the_lowest_floor_binds_unless_even_that_is_far_away(name, change):
    rates = replace(RATES, **change)
    assert (
        binding(floors_of(rates, measured(**change)), rates.acquisitions["shm"].sustained_bytes_per_s) == name
    )


def test_what_is_held_leaves_room_for_the_error_of_the_prediction(plan):
    assert [
        judge_at(plan, part).held
        for part in (0.5, 1 / (1.001 + ACCURACY), 1 / (0.999 + ACCURACY), 0.999, 1.001)
    ] == [
        "yes",
        "yes",
        "barely",
        "barely",
        "no",
    ]


def test_cameras_share_the_machine(plan):
    """Each takes 0.6 of what it can do: alone either can be held, both at once cannot."""
    found = measured()
    rate_hz = 0.6 * 1.8 * GB / plan.streams[0].limits.frame_bytes
    both = tuple(replace(plan.streams[0], name=name, frame_rate_hz=rate_hz) for name in ("cam0", "cam1"))
    verdict = judge(replace(plan, streams=both), 0, replace(found, streams={"cam0": RATES, "cam1": RATES}))
    assert (verdict.held, verdict.load) == ("no", pytest.approx(1.2))
    assert [(stream.held, stream.held_alone) for stream in verdict.streams] == [("no", "yes"), ("no", "yes")]
    assert any("take turns" in line for line in verdict.streams[0].advice)
    calm = judge(replace(plan, streams=both[:1]), 0, found)
    assert (calm.held, calm.streams[0].advice) == ("yes", ())


def test_one_camera_that_is_too_fast_is_enough_where_another_s_rate_is_unknown(plan):
    fast = replace(plan.streams[0], frame_rate_hz=9 * GB / plan.streams[0].limits.frame_bytes)
    unknown = replace(plan.streams[0], name="cam1", frame_rate_hz=None)
    found = replace(measured(), streams={"cam0": RATES, "cam1": RATES})
    verdict = judge(replace(plan, streams=(fast, unknown)), 0, found)
    assert (verdict.held, [stream.held for stream in verdict.streams], verdict.load) == (
        "no",
        ["no", "unknown"],
        None,
    )
    slow = replace(fast, frame_rate_hz=1.0)
    assert judge(replace(plan, streams=(slow, unknown)), 0, found).held == "unknown"


def test_the_disk_lasts_for_what_is_stored_down_to_low_water(plan):
    stream = replace(plan.streams[0], frame_rate_hz=1e8 / plan.streams[0].limits.frame_bytes)
    roomy = replace(plan, streams=(stream,), disk_free_bytes=10**12 + plan.disk_reserved_bytes)
    unmeasured, with_ratio = judge(roomy, 10**11, None), judge(roomy, 10**11, measured())
    assert unmeasured.hours == unmeasured.streams[0].hours == pytest.approx(9e11 / 1e8 / 3600)
    assert with_ratio.hours == pytest.approx(2 * unmeasured.hours)
    assert judge(replace(roomy, disk_free_bytes=0), 0, None).hours == 0


def test_without_a_measurement_nothing_is_claimed(plan):
    stream = replace(plan.streams[0], frame_rate_hz=1e9)
    verdict = judge(replace(plan, streams=(stream,)), 0, None)
    (only,) = verdict.streams
    assert (verdict.held, only.held, only.predicted_bytes_per_s, only.floors, only.advice) == (
        "unknown",
        "unknown",
        None,
        (),
        (),
    )


SLOW_DISK = {"disk": {"direct": StageRate(0.9 * GB, 0.1), "pwrite": StageRate(1.5 * GB, 0.4)}}
FASTER = {
    "none": KernelRate(StageRate(9 * GB, 0.05), 1.0, (2000,)),
    "blosc:lz4:1:shuffle": KernelRate(StageRate(8 * GB, 0.1), 1.9, (1050,)),
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (SLOW_DISK, "Set output.io to pwrite: it wrote 1.7 times as fast here as direct."),
        (SLOW_DISK, "faster disk"),
        ({"other_codecs": FASTER}, "Set codec to blosc:lz4:1:shuffle: about"),
        ({}, "Lower the frame rate"),
        ({}, "Make inner chunks larger"),
    ],
)
def test_advice(plan, change, words):
    assert any(words in line for line in judge_at(plan, 1.5, **change).advice)


def test_a_codec_that_the_disk_could_not_take_is_not_recommended(plan):
    """Uncompressed chunks cost the processors least, but the disk takes 0.95 GB/s of them."""
    told = judge_at(plan, 1.5, other_codecs=FASTER, disk={"direct": StageRate(0.95 * GB, 0.1)}).advice
    assert not any("codec to none" in line for line in told)


def test_degrade_is_offered_where_only_the_codec_is_too_slow(plan):
    words, roomy = (
        "Set reliability.overload to degrade",
        {"disk": {"direct": StageRate(9 * GB, 0.1)}, "transport": {"shm": StageRate(9 * GB, 0.1)}},
    )
    assert any(words in line for line in judge_at(plan, 1.5, **roomy).advice)
    assert not any(words in line for line in judge_at(plan, 1.5, **SLOW_DISK).advice), (
        "uncompressed the disk could not take it"
    )
    stream = plan.streams[0]
    for other in (
        replace(stream, reliability=stream.reliability.model_copy(update={"overload": "degrade"})),
        replace(stream, acquisition=parse_acquisition(stream.spec.model_copy(update={"codec": None}))),
    ):
        assert not any(
            words in line for line in judge_at(replace(plan, streams=(other,)), 1.5, **roomy).advice
        )


def test_the_camera_of_a_network_is_told_of_shared_memory(plan):
    slow = {
        "transport": {"message": StageRate(1.9 * GB, 0.2)},
        "acquisitions": {"message": acquisitions(1.8 * GB, 0.5, transport="message")},
    }
    found = replace(measured(**slow), daemon_transport="message")
    fast = replace(plan.streams[0], frame_rate_hz=9 * GB / plan.streams[0].limits.frame_bytes)
    (stream,) = judge(replace(plan, streams=(fast,)), 0, found).streams
    assert stream.binds == "transport"
    assert any("shared memory" in line for line in stream.advice)


def test_a_short_acquisition_pays_for_its_start():
    """Half a second of ring, files and sealing: what tools/bench measures of a round is predicted with it."""
    runs = acquisitions(2 * GB)
    assert runs.start_s == pytest.approx(0.5)
    assert runs.bytes_per_s_of(2 * GB) == pytest.approx(2 * GB / 1.5)
    assert runs.bytes_per_s_of(1e15) == pytest.approx(2 * GB, rel=1e-3)


def test_medians_of_the_rounds_count():
    runs = Acquisitions(
        "shm", tuple(AcquisitionRun(10, 10**9, 5 * 10**8, 2.0, rate, 1.0) for rate in (1e9, 5e9, 2e9))
    )
    assert (runs.sustained_bytes_per_s, runs.spread_bytes_per_s, runs.ratio) == (2e9, (1e9, 5e9), 2.0)
