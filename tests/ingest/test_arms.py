"""Acquisitions that are armed, at the moments when their camera, whoever stops them and the daemon cross."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.json_process import wait_for

import shardwright as sw
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.ingest import StreamSettings
from shardwright.ingest.blocking_executor import MOST_LOOK_UPS, BlockingExecutor
from shardwright.model import errors
from shardwright.model.write_settings import WriteSettings
from shardwright.wire.controls import MAX_UPDATES, Open

from .test_lost_openings import asked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENT_S = 3600.0


@pytest.fixture
def daemon(start, double, spec_of):
    return start(StreamSettings("cam0", parse_acquisition(spec_of()), 12, WriteSettings()), doubled=double)


def request(name: str, stream: str | None = "cam0", **facts: Any) -> Open:
    return Open(0, name, None, stream, "message", **facts)


@contextmanager
def held(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, at_end: bool = False
) -> Iterator[threading.Event]:
    """Calls of a method wait until the block ends, before they begin or ``at_end``. Yields the event that one
    has come there."""
    waits, may_go_on, call = threading.Event(), threading.Event(), getattr(owner, method)

    def wait() -> None:
        waits.set()
        assert may_go_on.wait(60)

    def held_call(*arguments: Any, **options: Any) -> Any:
        if not at_end:
            wait()
        outcome = call(*arguments, **options)
        if at_end:
            wait()
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, held_call)
        try:
            yield waits
        finally:
            may_go_on.set()


def test_a_stop_while_its_camera_opens_it_ends_it_as_soon_as_it_is_open(daemon, double, monkeypatch):
    daemon.server.arm(request("a"), PATIENT_S).result(60)
    with sw.connect(daemon.ipc) as connection, ThreadPoolExecutor(1) as threads:
        with held(monkeypatch, double, "__init__") as begun:
            answer = threads.submit(connection.acquire, None, stream="cam0")
            assert begun.wait(60)
            armed = daemon.server._openings.arms.get("a.ome.zarr")
            armed.until_s = 0.0  # its time is over as well
            daemon.server.stop_acquisition("a")
            assert daemon.server.account("a")["state"] == "armed"
        with pytest.raises(errors.SessionLostError, match="stopped on request"):
            answer.result(60).close()
    wait_for(lambda: daemon.server.account("a")["state"] == "ended")  # its client has the receipt before
    assert daemon.count("acquisition_disarmed") == 0


def test_of_two_cameras_that_open_it_at_once_one_gets_it(daemon, double, monkeypatch):
    daemon.server.arm(request("a"), PATIENT_S).result(60)
    with (
        sw.connect(daemon.ipc) as connection,
        sw.connect(daemon.ipc) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        with held(monkeypatch, double, "__init__") as begun:
            answer = threads.submit(connection.acquire, None, stream="cam0")
            assert begun.wait(60)
            with pytest.raises(errors.OutputExistsError):
                other.acquire(stream="cam0")
        answer.result(60).close()
        with pytest.raises(errors.UnknownAcquisitionError):
            other.acquire(stream="cam0")


def test_what_could_not_be_opened_stays_armed(daemon, double, monkeypatch):
    daemon.server.arm(request("a"), PATIENT_S).result(60)

    def is_full(*_: Any, **__: Any) -> None:
        raise errors.StorageFullError("there is no room")

    with sw.connect(daemon.ipc) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(double, "__init__", is_full)
            with pytest.raises(errors.StorageFullError):
                connection.acquire(stream="cam0")
        assert daemon.server.account("a")["state"] == "armed"
        connection.acquire(stream="cam0").close()


@pytest.mark.parametrize(("at_end", "kind"), [(False, errors.OutputExistsError), (True, errors.LockedError)])
def test_a_camera_that_comes_while_its_name_is_being_armed_keeps_it(daemon, monkeypatch, at_end, kind):
    with sw.connect(daemon.ipc) as connection:
        with held(monkeypatch, BlockingExecutor, "_plan_armed", at_end=at_end) as begun:
            answer, again = (daemon.server.arm(request("a"), PATIENT_S) for _ in range(2))
            assert begun.wait(60)
            stream = connection.acquire("a", stream="cam0")
            assert daemon.server.account("a")["state"] in ("await_ring", "running")
        for refused in (answer, again):
            with pytest.raises(kind):
                refused.result(60)
        assert daemon.server.snapshot()["armed"] == []
        stream.close()
    assert daemon.count("acquisition_armed") == 0


def test_a_request_that_comes_too_late_arms_nothing(daemon):
    with pytest.raises(errors.TimedOutError, match="it is not armed"):
        daemon.server.arm(request("a"), PATIENT_S, time.monotonic() - 1).result(60)


@pytest.mark.parametrize("another_waits", [False, True])
def test_what_takes_too_long_to_plan_is_armed_only_if_another_still_waits(daemon, monkeypatch, another_waits):
    arms = daemon.server._openings.arms
    with held(monkeypatch, BlockingExecutor, "_plan_armed") as begun:
        answers = [daemon.server.arm(request("a"), PATIENT_S, time.monotonic() + 60)]
        assert begun.wait(60)
        wait_for(lambda: "a.ome.zarr" in arms._all)
        arms._all["a.ome.zarr"].before_s = 0.0
        if another_waits:
            answers.append(daemon.server.arm(request("a"), PATIENT_S))
            wait_for(lambda: len(arms._all["a.ome.zarr"].answers) == 2)
    if another_waits:
        assert [answer.result(60)()["state"] for answer in answers] == ["armed", "armed"]
    else:
        with pytest.raises(errors.TimedOutError, match="it is not armed"):
            answers[0].result(60)
        assert daemon.server.snapshot()["armed"] == []


def test_a_camera_whose_answer_was_lost_gets_what_it_had_taken_up(start, double, spec_of, proxy):
    daemon = start(StreamSettings("cam0", parse_acquisition(spec_of()), 12, WriteSettings()), doubled=double)
    daemon.server.arm(request("a"), PATIENT_S).result(60)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection:
        link.mute()
        with asked(connection.acquire, None, stream="cam0") as answer:
            daemon.event("acquisition_opened")
            link.cut()
            link.mend()
            assert answer.result(60).path.endswith("a.ome.zarr")
    assert daemon.count("acquisition_opened") == 1


def test_a_daemon_that_stops_answers_who_is_arming(daemon, monkeypatch):
    with held(monkeypatch, BlockingExecutor, "_plan_armed") as begun:
        answer = daemon.server.arm(request("a"), PATIENT_S)
        assert begun.wait(60)
        daemon.ask_to_stop()
        with pytest.raises(errors.SessionLostError, match="stopping"):
            answer.result(60)
    with pytest.raises(errors.SessionLostError):
        daemon.server.watched_account("a")


def test_others_have_64_requests_apart_from_those_of_the_camera(daemon, double, monkeypatch):
    with sw.connect(daemon.ipc) as connection, connection.acquire("a", stream="cam0") as stream:
        with monkeypatch.context() as patch:
            patch.setattr(double, "take_updates", lambda _: [])
            promises = [daemon.server.flush("a", "stored") for _ in range(MAX_UPDATES)]
            for refused in (
                daemon.server.flush("a", "stored"),
                daemon.server.update_metadata("a", None, {"a": 1}),
            ):
                with pytest.raises(errors.OverloadError):
                    refused.result(60)
            assert not any(promise.done() for promise in promises)
        stream.update_metadata({"mine": 1})
        for promise in promises:
            assert promise.result(60).stored == 0


def test_what_waits_for_a_disk_that_hangs_is_bounded(daemon, monkeypatch):
    begun, may_go_on = threading.Event(), threading.Event()

    def hangs(path: Path) -> dict[str, Any]:
        begun.set()
        assert may_go_on.wait(60)
        return {"path": str(path)}

    monkeypatch.setattr("shardwright.ingest.blocking_executor.stored_account", hangs)
    promises = [daemon.server.stored_account("a")]
    assert begun.wait(60)
    promises += [daemon.server.stored_account("a") for _ in range(MOST_LOOK_UPS)]
    with pytest.raises(errors.OverloadError):
        daemon.server.stored_account("a").result(60)
    with sw.connect(daemon.ipc) as connection:
        connection.acquire("b", stream="cam0").close()  # no camera waits for it
    may_go_on.set()
    for promise in promises:
        assert promise.result(60)["path"].endswith("a.ome.zarr")


def test_what_is_being_stopped_is_not_armed_again(daemon, double, monkeypatch):
    daemon.server.arm(request("a"), PATIENT_S).result(60)
    with sw.connect(daemon.ipc) as connection, ThreadPoolExecutor(1) as threads:
        with held(monkeypatch, double, "__init__") as begun:
            answer = threads.submit(connection.acquire, None, stream="cam0")
            assert begun.wait(60)
            daemon.server.stop_acquisition("a")
            with pytest.raises(errors.LockedError, match="is being stopped"):
                daemon.server.arm(request("a"), PATIENT_S).result(60)
        with pytest.raises(errors.SessionLostError):
            answer.result(60).close()


def test_accounts_of_the_last_that_ended_are_kept_and_no_more(daemon, monkeypatch):
    monkeypatch.setattr("shardwright.ingest.registry.ENDED_REMEMBERED", 3)
    with sw.connect(daemon.ipc) as connection:
        for name in "abcde":
            connection.acquire(name, stream="cam0").close()
        wait_for(lambda: daemon.server.account("e")["ended"])
    known = [name for name in "abcde" if daemon.server.account(name) is not None]
    assert known == ["c", "d", "e"]


def test_a_camera_without_a_name_says_its_stream_alone(daemon, spec_of):
    with sw.connect(daemon.ipc) as connection:
        for said in (
            {},
            {"spec": spec_of()},
            {"stream": "cam0", "spec": spec_of()},
            {"stream": "cam0", "reopen": True},
        ):
            with pytest.raises(errors.SpecError, match="needs a name"):
                connection.acquire(**said)
    assert daemon.count("acquisition_refused") == 0


def test_what_is_armed_has_no_counts_of_an_earlier_one_of_its_name(daemon):
    with sw.connect(daemon.ipc) as connection:
        stream = connection.acquire("a", stream="cam0")
        stream.close()
        wait_for(lambda: daemon.server.account("a")["ended"])
    shutil.rmtree(stream.path)
    daemon.server.arm(request("a"), PATIENT_S).result(60)
    daemon.server.stop_acquisition("a")
    daemon.event("acquisition_disarmed")
    with pytest.raises(errors.UnknownAcquisitionError, match="no longer armed"):
        daemon.server.watched_account("a")


def test_no_description_is_made_by_the_thread_that_takes_frames(daemon, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("shardwright.ingest.arms.described", None)
        describe = daemon.server.arm(request("a"), PATIENT_S).result(60)
    assert describe()["state"] == "armed"
