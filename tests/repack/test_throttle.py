"""Rate, pause and priority of a task, by a clock that the test moves; the priority is the one that the kernel
tells of a real process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import (
    RIG_PAUSE_NAME,
    ROOM_PAUSE_NAME,
    Throttle,
    TokenBucket,
    pause_files,
    sending_pause_files,
)


class Clock:
    """Time passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds
        self.slept_s += seconds


def test_bytes_pass_at_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(100.0, clock, clock.sleep)
    for _ in range(50):
        bucket.take(10)
    assert 4.7 <= clock.slept_s <= 5.0  # the last grant is not waited for, and 0.1 s may be caught up with


def test_a_quiet_time_is_not_saved_up() -> None:
    clock = Clock()
    bucket = TokenBucket(100.0, clock, clock.sleep)
    clock.now_s += 3600
    for _ in range(10):
        bucket.take(100)
    assert clock.slept_s >= 8.8


def test_tasks_of_one_thread_share_its_rate() -> None:
    """Otherwise each of many small shards would begin with a bucket of its own, and there would be no rate at
    all."""
    clock = Clock()
    for _ in range(5):
        Throttle(100.0, (), True, clock, clock.sleep).take(100)
    assert 3.8 <= clock.slept_s <= 4.0


def test_threads_of_one_task_share_its_rate() -> None:
    clock = Clock()
    throttle = Throttle(100.0, (), True, clock, clock.sleep)
    for _ in range(3):
        thread = threading.Thread(target=throttle.take, args=(100,))
        thread.start()
        thread.join()
    assert 1.8 <= clock.slept_s <= 2.0


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    Throttle(None, (), True, clock, clock.sleep).take(1 << 40)
    assert clock.slept_s == 0


def test_nothing_moves_while_the_pause_file_is_there(tmp_path: Path) -> None:
    pause, clock = tmp_path / "pause", Clock()
    pause.touch()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.slept_s > 7:
            pause.unlink()

    Throttle(None, (str(pause),), True, clock, sleep).take(1)
    assert clock.slept_s > 7
    Throttle(None, (str(pause),), True, clock, sleep).take(1)
    assert clock.slept_s < 8


def test_who_sends_a_store_away_needs_no_room_where_it_is(tmp_path: Path) -> None:
    """But in a folder on the same disk it does, and in one of another daemon's."""
    array = tmp_path / "run.ome.zarr" / "0"
    machine, room = str(tmp_path / RIG_PAUSE_NAME), str(tmp_path / ROOM_PAUSE_NAME)
    elsewhere = Path("/proc/archive/run.ome.zarr")  # certainly another filesystem
    for folders in ((), (elsewhere,)):
        files = sending_pause_files(array, *folders)
        assert files[0] == pause_files(array)[0]
        assert (machine in files, room in files) == (True, False)
    assert f"/proc/{ROOM_PAUSE_NAME}" in files
    assert set(sending_pause_files(array, tmp_path / "b" / "c")) == set(
        pause_files(array, tmp_path / "b" / "c")
    )
    assert {machine, room} <= set(pause_files(array))


def test_a_throttle_travels_as_plain_values() -> None:
    throttle = Throttle(12.5, ("/a/pause", "/.shardwright-pause"), False)
    assert Throttle.from_dict(json.loads(json.dumps(throttle.to_dict()))) == throttle
    assert Throttle.from_dict({}) == Throttle()


PRIORITY = """
import ctypes, json, os, sys
from pathlib import Path
from shardwright.rework.runtime.throttle import Throttle
Throttle(idle=sys.argv[1] == "idle").be_idle()
session = Path("/proc/self/autogroup")
group = session.read_text().split() if session.exists() else []
print(json.dumps({
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "io_class": ctypes.CDLL(None).syscall(252, 1, 0) >> 13 if os.uname().machine == "x86_64" else 3,
    "session_nice": int(group[-1]) if group else None,
}))
"""


def groups_by_session() -> bool:
    """Whether a new session gets a group of its own here. One begun outside may have none all the same, so
    one that has just begun is asked."""
    asked = subprocess.run(
        ["cat", "/proc/self/autogroup"], capture_output=True, text=True, start_new_session=True
    )
    return bool(asked.stdout)


def priority(how: str, *, session: bool) -> dict[str, int | None]:
    done = subprocess.run(
        [sys.executable, "-c", PRIORITY, how],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=session,
    )
    facts: dict[str, int | None] = json.loads(done.stdout)
    return facts


def test_priority_of_a_process() -> None:
    ours = priority("normal", session=False)
    assert priority("idle", session=False) == {
        "nice": 19,
        "io_class": 3,
        "session_nice": ours["session_nice"],
    }, "others are in our session"
    assert ours["nice"] != 19


def test_priority_of_a_session() -> None:
    grouped = groups_by_session()
    assert priority("idle", session=True) == {
        "nice": 19,
        "io_class": 3,
        "session_nice": 19 if grouped else None,
    }
    assert priority("normal", session=True)["session_nice"] == (0 if grouped else None)


def test_an_unreadable_array_is_a_result_and_no_exception(tmp_path: Path) -> None:
    task = {
        "kind": "pack",
        "array": str(tmp_path / "absent"),
        "shard": [0],
        "key": "0/c/0",
        "order": "row_major",
        "recompress": None,
        "throttle": {"idle": False},
    }
    result = run_task(task)
    assert (result["ok"], result["kind"], result["key"], result["bytes_written"]) == (
        False,
        "pack",
        "0/c/0",
        0,
    )
    assert result["error"]["code"] in ("shard_format", "storage", "internal")
    assert json.loads(json.dumps(result)) == result
