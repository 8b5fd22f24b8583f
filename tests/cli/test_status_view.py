"""What `shardwright status` shows, from snapshots that a test can read."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console
from rich.text import Text

from shardwright.cli import drain, fitted_table, status, stop
from shardwright.cli.app import main
from shardwright.cli.status import _view
from shardwright.cli.status_view import acquisitions_view, status_view
from shardwright.cli.stop import _end
from shardwright.daemon.control_requests import Requests
from shardwright.daemon.events import MOST_AT_ONCE, EventLog
from shardwright.model.display_text import plain
from shardwright.model.errors import SessionLostError, TimedOutError

if TYPE_CHECKING:
    from pathlib import Path

STREAM = {
    "acquisitions": 2,
    "acquisitions_failed": 0,
    "frames_received": 12_345,
    "frames_stored": 12_300,
    "frames_missing": 45,
    "frames_skipped": 0,
    "frames_late": 0,
    "frames_duplicate": 0,
    "frames_dropped": 45,
    "frames_lost": 0,
    "frames_faster": 0,
    "frames_uncompressed": 0,
    "shards_sealed": 7,
    "bytes_raw": 4 << 30,
    "bytes_stored": 1 << 30,
}
ACQUISITION = {
    "name": "embryo-42",
    "path": "/data/embryo-42.ome.zarr",
    "stream": "cam0",
    "state": "running",
    "frames_received": 1500,
    "frames_expected": 6000,
    "frames_stored": 1400,
    "frames_durable": 1300,
    "frames_missing": 3,
    "rate_hz": 99.96,
    "bytes_per_s": 838_860_800.0,
    "ring_fill": 0.25,
    "degrade_level": "configured",
    "since_s": 15.0,
    "client": {"host": "rig", "pid": 4711},
}


def snapshot(**changes: Any) -> dict[str, Any]:
    return {
        "software": "shardwright 0.1.0",
        "host": "rig",
        "pid": 77,
        "uptime_s": 7500.0,
        "state": "serving",
        "config": "/etc/shardwright/rig.yaml",
        "endpoints": ["ipc:///run/shardwright/ingest.sock"],
        "clients": 1,
        "foreign_messages": 0,
        "stall_s": 0.01,
        "memory": {"used_bytes": 1 << 30, "budget_bytes": 4 << 30},
        "disks": [
            {
                "path": "/data",
                "role": "root",
                "free_bytes": 800 << 30,
                "total_bytes": 2 << 40,
                "low_water_bytes": 1 << 30,
            }
        ],
        "compaction": {
            "enabled": False,
            "queued": 0,
            "running": None,
            "paused": False,
            "done": 0,
            "failed": 0,
        },
        "events": {"lines_dropped": 0, "lines_unwritten": 0, "by_name": {}},
        "acquisitions": [ACQUISITION],
        "streams": {"cam0": STREAM, "client": {**STREAM, "acquisitions": 0}},
        **changes,
    }


def shown(view: Any, *, width: int = 200) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False).print(view)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_everything_is_told() -> None:
    lines = shown(status_view(snapshot()))
    for line in [
        "daemon shardwright 0.1.0 on rig, process 77, for 2 h 5 min",
        "state serving",
        "configuration /etc/shardwright/rig.yaml",
        "listens ipc:///run/shardwright/ingest.sock",
        "clients 1 connected, 0 messages refused",
        "memory 1.0 GiB of 4.0 GiB",
        "disk /data: 800.0 GiB free of 2.0 TiB",
        "compaction off",
        "embryo-42 cam0 running 1,500 6,000 1,400 1,300 3 100.0 Hz 800.0 MiB/s 25% 15 s rig 4711",
        "stream acquisitions failed received stored shards raw on disk dropped",
        "cam0 2 0 12,345 12,300 7 4.0 GiB 1.0 GiB (4.0:1) 45",
    ]:
        assert line in lines
    assert not any(line.startswith(("stalled", "log", "client ")) for line in lines)


def test_a_full_disk_is_a_state_of_its_own() -> None:
    waiting = [{**ACQUISITION, "state": "disk_full"}, {**ACQUISITION, "name": "other"}]
    lines = shown(status_view(snapshot(state="disk_full", acquisitions=waiting)))
    assert "state disk full" in lines
    assert "disk full 1 acquisition waits for room, and the camera with it: free some space" in lines
    assert any(line.startswith("embryo-42 cam0 disk full 1,500") for line in lines)
    assert any(line.startswith("other cam0 running 1,500") for line in lines)


def test_a_disk_that_is_filling_says_until_when() -> None:
    (disk,) = snapshot()["disks"]
    lines = shown(status_view(snapshot(disks=[{**disk, "full_in_s": 12_000.0}])))
    assert "disk /data: 800.0 GiB free of 2.0 TiB, full in 3 h 20 min" in lines


def test_frames_without_their_json_have_a_column_only_if_there_are_any() -> None:
    lines = shown(status_view(snapshot(streams={"cam0": {**STREAM, "frame_json_dropped": 12}})))
    assert "stream acquisitions failed received stored shards raw on disk dropped frame_json_dropped" in lines


def test_trouble_is_told() -> None:
    compaction = {"enabled": True, "queued": 2, "running": "/data/a", "paused": True, "done": 5, "failed": 1}
    disks = [{"path": "/nfs", "role": "spill", "free_bytes": None, "total_bytes": None, "low_water_bytes": 1}]
    changes = {
        "compaction": compaction,
        "disks": disks,
        "stall_s": 65.0,
        "events": {"lines_dropped": 3, "lines_unwritten": 4, "by_name": {}},
    }
    people = {"receivers": 2, "waiting": 0, "sent": 1200, "failed": 3, "dropped": 4}
    assert "notifications 0 waiting, 1,200 sent, 3 failed, 4 dropped" in shown(
        status_view(snapshot(notifications=people))
    )
    dead = snapshot(compaction={**compaction, "enabled": False, "died": True})
    assert "compaction ended by an error: see the log, and restart the daemon" in shown(status_view(dead))
    lines = shown(status_view(snapshot(**changes)))
    assert "stalled for 1 min: a disk answers slowly or not at all" in lines
    assert "spill /nfs: free space unknown" in lines
    assert "compaction paused at /data/a; 2 queued, 5 done, 1 failed" in lines
    assert "log 7 lines lost: its reader is too slow" in lines


def test_degraded_acquisitions_and_streams_are_told() -> None:
    degraded = {**ACQUISITION, "name": "late", "degrade_level": "uncompressed"}
    stream = {**STREAM, "frames_dropped": 0, "frames_faster": 160, "frames_uncompressed": 48}
    lines = shown(status_view(snapshot(acquisitions=[ACQUISITION, degraded], streams={"cam0": stream})))
    assert (
        "acquisition stream state received of stored durable missing rate data ring chunks for client"
        in lines
    )
    assert (
        "embryo-42 cam0 running 1,500 6,000 1,400 1,300 3 100.0 Hz 800.0 MiB/s 25% configured 15 s rig 4711"
        in lines
    )
    assert (
        "late cam0 running 1,500 6,000 1,400 1,300 3 100.0 Hz 800.0 MiB/s 25% uncompressed 15 s rig 4711"
        in lines
    )
    assert "stream acquisitions failed received stored shards raw on disk faster uncompressed" in lines
    assert "cam0 2 0 12,345 12,300 7 4.0 GiB 1.0 GiB (4.0:1) 160 48" in lines


def test_the_state_is_green_while_every_frame_is_stored_and_no_longer() -> None:
    whole = {**STREAM, "frames_missing": 0, "frames_dropped": 0}
    colours = []
    for stream in (whole, {**whole, "frames_skipped": 2}, STREAM, whole):
        out = io.StringIO()
        Console(file=out, width=200, force_terminal=True, color_system="standard").print(
            status_view(snapshot(streams={"cam0": stream}))
        )
        (line,) = [line for line in out.getvalue().splitlines() if "state" in line and "serving" in line]
        colours.append(
            next(name for name, code in (("green", "\x1b[32m"), ("red", "\x1b[31m")) if code in line)
        )
    assert colours == ["green", "red", "red", "green"]


def test_nothing_open_and_nobody_there() -> None:
    assert "no acquisition is open" in shown(status_view(snapshot(acquisitions=[], streams={})))
    waiting = {**ACQUISITION, "client": None, "frames_expected": None, "state": "detached"}
    (_, line) = shown(acquisitions_view(snapshot(acquisitions=[waiting])))
    assert line.startswith("embryo-42 cam0 detached 1,500 - ")
    assert line.endswith(" none")


def test_what_a_client_calls_itself_cannot_command_the_terminal() -> None:
    hostile = {**ACQUISITION, "client": {"host": "\x1b]0;owned\x07\x1b[2J[red]rig[/red]\n", "pid": 1}}
    text = "\n".join(shown(acquisitions_view(snapshot(acquisitions=[hostile]))))
    assert "\x1b" not in text
    assert "[red]rig[/red]? 1" in text
    assert plain("Zürich µm") == "Zürich µm"


def test_the_last_warnings_and_errors_are_sentences() -> None:
    line = {"timestamp": "2026-11-24T09:12:31.2Z", "name": "embryo-42", "hint": "Free some"}
    full = [{**line, "event": "disk_full", "level": "warning", "reason": f"shard {n}"} for n in range(9)]
    events = [*full, {**line, "event": "disk_has_room", "level": "info"}]
    *_, blank, header, first, _, _, _, last = shown(status_view(snapshot(), events))
    assert (blank, header) == ("", "last warnings and errors")
    assert first.endswith(":31 embryo-42: the disk is full: shard 4. Free some")
    assert last.endswith(":31 embryo-42: the disk is full: shard 8. Free some")
    assert "warnings" not in "".join(shown(status_view(snapshot(), events[-1:])))


@pytest.mark.parametrize("height", [24, 8])
def test_a_watch_keeps_to_the_terminal_and_loses_no_warning(
    monkeypatch: pytest.MonkeyPatch, height: int
) -> None:
    """Of what does not fit, lines of acquisitions are left out, and the watch says so."""
    line = {"timestamp": "2026-11-24T09:12:31.2Z", "event": "disk_full", "level": "warning"}
    events = [{**line, "name": "embryo-42", "reason": f"shard {n}"} for n in range(5)]
    acquisitions = [{**ACQUISITION, "name": f"embryo-{n}"} for n in range(40)]
    answers = {"status": {"status": snapshot(acquisitions=acquisitions)}, "events": {"events": events}}
    daemon: Any = SimpleNamespace(ask=lambda do, **_: answers[do])

    out, screens = io.StringIO(), []

    def interrupt(_: float) -> None:
        screens.append(Text.from_ansi(out.getvalue()).plain)
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupt)
    terminal = Console(file=out, force_terminal=True, color_system=None, width=80, height=height)
    monkeypatch.setattr(fitted_table, "console", lambda: terminal)
    with pytest.raises(KeyboardInterrupt):
        status._watch(daemon, 1.0)
    lines = screens[0].splitlines()
    assert len(lines) == height
    assert lines[0].startswith("daemon")
    assert [each[-7:] for each in lines if "disk is full" in each] == [f"shard {n}" for n in range(5)]
    everything = shown(status_view(answers["status"]["status"], events), width=80)
    left_out = len(everything) - (height - 1)
    assert f"({left_out} lines left out, for a terminal of {height})" in lines


def test_many_other_events_hide_no_failure() -> None:
    log = EventLog(repeat_lines=0)
    log.emit("acquisition_failed", {"name": "embryo-42", "frames_stored": 1})
    for _ in range(MOST_AT_ONCE):
        log.emit("ready", {})
    requests = Requests(cast("Any", None), log.recent, status=snapshot, drain=lambda: None)
    daemon: Any = SimpleNamespace(ask=lambda do, **facts: requests.answers[do](facts))
    assert shown(_view(daemon))[-1].endswith("embryo-42: failed with 1 frame stored")


class Daemon:
    """A daemon that seals. ``answers``: to each request, one after the other; the last one stays."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = {"stop": [{}], "drain": [{}], "events": [{"events": []}], **answers}

    def ask(self, do: str, **_: Any) -> dict[str, Any]:
        left = self._answers[do]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return cast("dict[str, Any]", answer)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def with_open(*paths: str, pid: int = 1, since_s: float = 1e9) -> dict[str, Any]:
    return {"status": {"pid": pid, "acquisitions": [{"path": path, "since_s": since_s} for path in paths]}}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "LOOK_S", 0)
    monkeypatch.setattr(drain, "LOOK_S", 0)


A = "/data/a.ome.zarr"
SILENT = TimedOutError("the daemon did not answer")
ENDED = {"event": "acquisition_ended", "path": A, "frames_stored": 3, "name": "a"}


def ended(daemon: Daemon) -> dict[str, Any]:
    return _end(cast("Any", daemon), 1, "a.ome.zarr", 0)


def test_stop_looks_past_an_end_that_names_no_store() -> None:
    """Such as one that was much too long for the control socket."""
    events = [{"event": "acquisition_failed", "shortened": True}, ENDED]
    assert ended(Daemon(status=[with_open()], events=[{"events": events}])) == ENDED


@pytest.mark.usefixtures("at_once")
def test_stop_waits_for_a_daemon_that_is_too_busy_to_answer() -> None:
    status = [with_open(A), SILENT, with_open(A), with_open()]
    assert ended(Daemon(status=status, events=[SILENT, {"events": [ENDED]}])) == ENDED


@pytest.mark.usefixtures("at_once")
def test_stop_does_not_wait_for_a_later_acquisition_of_the_same_name() -> None:
    later = {**ENDED, "frames_stored": 9}
    status = [with_open(A), *[with_open(A, since_s=0)] * 9, AssertionError("it waits for the later one")]
    assert ended(Daemon(status=status, events=[{"events": [ENDED, later]}])) == ENDED


@pytest.mark.usefixtures("at_once")
def test_stop_takes_no_acquisition_for_sealed_that_another_daemon_has_resumed() -> None:
    with pytest.raises(SessionLostError, match=r"ended while a\.ome\.zarr was being sealed"):
        ended(Daemon(status=[with_open(A), with_open(A, pid=2, since_s=0), AssertionError("it waits")]))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("options", "events", "expected"),
    [
        (["--no-wait"], [], {"name": "a", "ended": False}),
        ([], [], {"name": "a", "ended": True}),
        ([], [ENDED], {"ended": True, **ENDED}),
    ],
)
def test_stop_always_prints_json_when_asked(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    events: list[dict[str, Any]],
    expected: dict[str, Any],
) -> None:
    """Also where it does not wait, and where the log level leaves the event out."""
    status = [with_open(A), with_open()]
    daemon = Daemon(status=status, events=[{"events": []}, {"events": events}])
    monkeypatch.setattr(stop, "control_client", lambda *_: daemon)
    with pytest.raises(SystemExit) as over:
        main(["stop", "a", "--json", *options])
    assert (over.value.code, json.loads(capsys.readouterr().out)) == (0, expected)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("unfinished", [True, False])
def test_drain_names_what_was_not_sealed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    *,
    unfinished: bool,
) -> None:
    """As after a kill of the daemon, or on a full disk."""
    left, sealed, removed, closed = (
        tmp_path / name for name in ("left.ome.zarr", "sealed.ome.zarr", "removed.ome.zarr", "n" * 256)
    )
    sealed.mkdir()
    (left / ".shardwright" if unfinished else left).mkdir(parents=True)
    elsewhere = tmp_path / "another-namespace" / "a.ome.zarr"
    stores = [str(path) for path in (left, sealed, removed, closed, elsewhere)]
    gone = SessionLostError("no daemon answers")
    daemon = Daemon(status=[with_open(*stores), SILENT, with_open(*stores), gone])
    monkeypatch.setattr(drain, "control_client", lambda *_: daemon)
    with pytest.raises(SystemExit) as over:
        main(["drain", *options])
    told = capsys.readouterr()
    assert over.value.code == int(unfinished)
    if not options:
        assert told.out == "process 1 is draining; 5 acquisitions to seal\nprocess 1 has ended\n"
    elif unfinished:
        assert json.loads(told.out)["error"]["message"] == f"not sealed: {left}"
    else:
        facts = {"pid": 1, "acquisitions": 5, "ended": True, "not_known": [str(closed), str(elsewhere)]}
        assert json.loads(told.out) == facts
    assert [line.split(": ")[0] for line in told.err.splitlines()[:2]] == [str(closed), str(elsewhere)]
    refusal = f"shardwright: not sealed: {left}. The next start of the daemon resumes them, "
    assert [line.startswith(refusal) for line in told.err.splitlines()[2:]] == [True] * unfinished
