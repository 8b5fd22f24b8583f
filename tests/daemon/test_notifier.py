"""Receivers of notifications: a real HTTP server and a real program, such as sendmail, that take them, refuse
them or hang."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from tests.harness.daemon import DaemonProcess, camera, run_cli, start_cli
from tests.harness.json_process import wait_for

from shardwright.config.load import load_config, parse_config
from shardwright.config.model import Compaction, NotifyEvent, Receiver
from shardwright.daemon.compaction import CompactionService
from shardwright.daemon.notifier import CHOSEN, MOST_WAITING, Notifier, message_of, notify_problems, send
from shardwright.model.errors import ConfigError
from shardwright.model.event_text import SENTENCES

from .test_compaction import NOT_IDLE

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDED = "acquisition_ended"
FACTS = {"name": "embryo", "path": "/d/embryo.ome.zarr", "frames_stored": 7, "bytes_stored": 1 << 20}
SECRET = "Tok3n-of-nobody"


class Server:
    """An HTTP server. ``got``: (path, headers, body) of each request; with ``hangs`` set it answers none."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], str]] = []
        self.status = 200
        self.hangs = False
        self.released = threading.Event()
        self.command_lines = ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                server.command_lines = "".join(map(text_of, Path("/proc").glob("[0-9]*/cmdline")))
                server.got.append((self.path, dict(self.headers), body))
                if server.hangs:
                    server.released.wait()
                self.send_response(server.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.handle_error = lambda *_: None  # a client that was killed
        self.address = f"http://127.0.0.1:{self._http.server_port}/rig?key={SECRET}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.got]


def text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def program(folder: Path, *lines: str) -> Path:
    """A program of a user, which is no Python."""
    path = folder / "sendmail"
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def sendmail(folder: Path) -> Path:
    """Each mail, with the program's arguments, is a file of its own."""
    mail = 'mail=$(mktemp "$(dirname "$0")/part.XXXXXX")'
    return program(folder, mail, 'printf "%s\\n" "$@" > $mail; cat >> $mail; mv $mail "$mail.mail"')


def mails(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*.mail"))]


class Told:
    """The events of a notifier."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, event: str, facts: Any) -> None:
        self.events.append((event, dict(facts)))


@contextmanager
def running(*receivers: Receiver) -> Iterator[tuple[Notifier, Told]]:
    """A notifier with its threads, which has ended afterwards."""

    def spawn(name: str, work: Any) -> threading.Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    told = Told()
    notifier = Notifier(receivers, told.emit)
    notifier.begin(spawn)
    yield notifier, told
    notifier.end()
    assert not [each for each in threading.enumerate() if each.name.startswith("notify-")]


def to(server: Server, *events: NotifyEvent, **more: Any) -> Receiver:
    return Receiver(events=events or (ENDED,), post=server.address, **more)


def counts(**counted: int) -> dict[str, int]:
    return {"receivers": 1, "waiting": 0, "sent": 0, "failed": 0, "dropped": 0, **counted}


def test_a_post_is_json_and_only_what_was_chosen_is_told(server: Server) -> None:
    with running(to(server, "disk_low", ENDED)) as (notifier, told):
        notifier.notice("client_connected", {})
        notifier.notice("acquisition_detached", {**FACTS, "reason": "silence"})
        notifier.notice(ENDED, FACTS)
        notifier.notice("disk_full", {"path": "/d/two.ome.zarr", "reason": "no space left"})
        wait_for(lambda: notifier.snapshot() == counts(sent=2), "both are sent")
    assert told.events == []
    first, second = server.bodies
    assert list(first) == ["event", "time", "host", "acquisition", "text", "log_event"]
    assert (first["event"], first["acquisition"], first["log_event"]) == (ENDED, "embryo", ENDED)
    assert first["text"] == "embryo: ended with 7 frames stored, in 1.0 MiB"
    assert (second["event"], second["acquisition"], second["log_event"]) == ("disk_low", "two", "disk_full")
    path, headers, _ = server.got[0]
    assert (path, headers["Content-Type"]) == (f"/rig?key={SECRET}", "application/json")


def test_a_program_like_sendmail_gets_a_mail_and_its_arguments_as_they_are(tmp_path: Path) -> None:
    """Without a shell; and no name of an acquisition can add a header."""
    receiver = Receiver(
        events=(ENDED,),
        command=(str(sendmail(tmp_path)), "-t", "$(touch ran) ; *"),
        message="To: rig@example.org\nSubject: {acquisition}: {event}\n\n{text} {not a field}\n",
    )
    with running(receiver) as (notifier, _):
        notifier.notice(ENDED, {**FACTS, "name": "a\nBcc: all@example.org"})
        wait_for(lambda: notifier.snapshot() == counts(sent=1), "it is sent")
    (mail,) = mails(tmp_path)
    assert mail.splitlines()[:3] == ["-t", "$(touch ran) ; *", "To: rig@example.org"]
    assert [line.partition(":")[0] for line in mail.splitlines()[2:4]] == ["To", "Subject"]
    assert mail.splitlines()[4] == ""
    assert mail.endswith("ended with 7 frames stored, in 1.0 MiB {not a field}\n")
    assert not (tmp_path / "ran").exists()


def test_a_program_runs_as_from_a_shell(tmp_path: Path) -> None:
    """What the daemon's own processes get is not passed on: a closed pipe ends a program, Python imports."""
    path = program(tmp_path, 'test -z "$PYTHONSAFEPATH" || exit 3; kill -PIPE $$; exit 4')
    why, _ = send(Receiver(events=(ENDED,), command=(str(path),)), message_of("test", ""))
    assert why == "ended by signal 13"


def test_a_program_that_reads_nothing_blocks_nobody(tmp_path: Path) -> None:
    """The notification is longer than any pipe holds."""
    receiver = Receiver(events=(ENDED,), command=(str(program(tmp_path, "exit 0")),), message="{text}" * 1000)
    assert send(receiver, message_of("test", "text " * 1000)) == ("", "")


def test_what_fails_is_counted_told_without_secrets_and_not_sent_again(
    server: Server, tmp_path: Path
) -> None:
    server.status = 500
    saying = program(tmp_path, f'echo "{SECRET}" >&2; exit 75')
    refuses, fails = to(server), Receiver(events=(ENDED,), command=(str(saying), SECRET))
    gone = Receiver(events=(ENDED,), command=(str(tmp_path / "gone"),))
    with running(refuses, fails, gone) as (notifier, told):
        notifier.notice(ENDED, FACTS)
        wait_for(lambda: len(told.events) == 3, "all have failed")
        server.status = 302
        notifier.notice(ENDED, FACTS)
        wait_for(lambda: len(told.events) == 6, "all have failed once more")
        assert notifier.snapshot() == {**counts(failed=6), "receivers": 3}
    assert len(server.got) == 2, "no redirect is followed, nothing is sent again"
    assert {event for event, _ in told.events} == {"notification_failed"}
    errors = {(facts["receiver"], facts["error"]) for _, facts in told.events}
    host = server.address.split("/")[2]
    assert errors == {
        (host, "HTTP 500 Internal Server Error"),
        (host, "HTTP 302 Found"),
        ("sendmail", "exit code 75"),
        ("gone", f"there is no program {tmp_path / 'gone'}"),
    }
    assert SECRET not in repr(told.events)


def test_a_server_that_is_not_there(server: Server) -> None:
    server.close()
    assert send(to(server), message_of("test", ""))[0] == "Connection refused"


def test_an_address_that_a_library_would_quote() -> None:
    receiver = Receiver(events=(ENDED,), post=f"http://127.0.0.1:{SECRET}/")
    assert send(receiver, message_of("test", "")) == ("InvalidURL", "InvalidURL")


def test_headers_come_from_a_file_and_nobody_else_sees_them(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.touch(0o600)
    file.write_text(f"Authorization: Bearer {SECRET}\n\nX-Rig: 1\n")
    with running(to(server, headers_file=file)) as (notifier, _):
        notifier.notice(ENDED, FACTS)
        wait_for(lambda: notifier.snapshot() == counts(sent=1), "it is sent")
        assert SECRET not in repr(notifier.snapshot())
    _, headers, _ = server.got[0]
    assert (headers["Authorization"], headers["X-Rig"]) == (f"Bearer {SECRET}", "1")
    assert "http_post" in server.command_lines
    assert SECRET not in server.command_lines
    file.write_text(f"{SECRET}")
    why, last = send(to(server, headers_file=file), message_of("test", ""))
    assert SECRET not in why + last
    assert "headers:1: no header" in why


def test_a_receiver_that_hangs_delays_no_other_and_drops_the_oldest(server: Server, tmp_path: Path) -> None:
    """``notice`` returns although nobody takes what waits."""
    server.hangs = True
    hanging = to(server, timeout_s=300)
    other = Receiver(events=("camera_gone",), command=(str(sendmail(tmp_path)),), message="{acquisition}")
    with running(hanging, other) as (notifier, told):
        notifier.notice(ENDED, {**FACTS, "name": "first"})
        wait_for(lambda: server.got, "the first is on its way")
        for i in range(MOST_WAITING + 3):
            notifier.notice(ENDED, {**FACTS, "name": f"run{i}"})
        waiting = notifier._queues[0]
        assert waiting.counts() == {"waiting": MOST_WAITING, "dropped": 3}
        assert waiting._waiting[0]["acquisition"] == "run3"
        notifier.notice("acquisition_detached", {**FACTS, "reason": "silence"})
        wait_for(lambda: notifier.snapshot()["sent"] == 1, "the other receiver is told")
    assert mails(tmp_path) == ["\nembryo"]
    assert [facts["error"] for _, facts in told.events] == ["the daemon ended first"]
    assert waiting.counts() == {"failed": 1, "dropped": 3 + MOST_WAITING, "waiting": 0}
    assert len(server.got) == 1


def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    path = program(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/child", "echo still >&2; wait")
    receiver = Receiver(events=(ENDED,), command=(str(path),), timeout_s=2)
    assert send(receiver, message_of("test", "")) == ("no end within 2 s", "still")
    child = (tmp_path / "child").read_text().strip()
    wait_for(lambda: "sleep" not in text_of(Path(f"/proc/{child}/cmdline")), "its child is gone, too")


def test_a_program_that_writes_without_end_is_killed(tmp_path: Path) -> None:
    receiver = Receiver(events=(ENDED,), command=(str(program(tmp_path, "yes & yes >&2")),), timeout_s=1)
    assert send(receiver, message_of("test", ""))[0] == "no end within 1 s"


def test_every_event_that_may_be_chosen_has_a_source() -> None:
    assert set(CHOSEN.values()) == set(get_args(NotifyEvent))
    assert CHOSEN.keys() <= SENTENCES.keys()


@pytest.mark.parametrize(
    ("event", "facts", "is_told"),
    [
        ("acquisition_incomplete", {"frames_received": 3, "frames_duplicate": 1}, False),
        ("acquisition_incomplete", {"frames_received": 3, "frames_missing": 1}, True),
        ("compaction_failed", {"error": "no", "again": True}, False),
        ("compaction_failed", {"error": "no", "again": False}, True),
        ("compaction_died", {"error": "no"}, True),
        ("scrub_done", {}, False),
        ("scrub_failed", {"error": "c/0/0/0: missing", "problems": 1}, True),
        ("encode_check_failed", {"array": "0", "chunk": [0, 0, 0]}, True),
    ],
)
def test_what_is_no_trouble_is_not_told(event: str, facts: dict[str, Any], is_told: bool) -> None:
    notifier = Notifier([Receiver(events=get_args(NotifyEvent), command=("true",))], Told().emit)
    notifier.notice(event, {"path": "/d/run.ome.zarr", **facts})
    assert notifier.snapshot()["waiting"] == is_told


def test_what_comes_and_goes_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = Notifier([Receiver(events=get_args(NotifyEvent), command=("true",))], Told().emit)
    full = {"path": "/d/run.ome.zarr", "reason": "no space left"}
    for _ in range(3):
        notifier.notice("disk_full", full)
        notifier.notice("acquisition_detached", full)
    assert notifier.snapshot()["waiting"] == 2
    notifier.notice("disk_full", {**full, "path": "/d/other.ome.zarr"})
    notifier.notice("acquisition_ended", FACTS)
    notifier.notice("acquisition_ended", FACTS)
    assert notifier.snapshot()["waiting"] == 5
    monkeypatch.setattr("shardwright.daemon.notifier.REPEAT_S", 0.0)
    notifier.notice("disk_full", full)
    assert notifier.snapshot()["waiting"] == 6


def test_compaction_says_once_that_it_is_behind(tmp_path: Path) -> None:
    """A store that is done, or queued a moment ago, is not late."""
    told = Told()
    service = CompactionService(Compaction(enabled=True), tmp_path, None, told.emit)
    service._tell_if_behind()
    service._first_due_s = dict.fromkeys(("a", "b"), -1e6)
    service._tell_if_behind()
    service._tell_if_behind()
    service._first_due_s.clear()
    service._tell_if_behind()
    assert [(event, facts["queued"]) for event, facts in told.events] == [("compaction_behind", 2)]
    service._first_due_s["c"] = -1e6
    service._tell_if_behind()
    assert len(told.events) == 2


def test_a_daemon_tells_once_for_each_time_that_its_compaction_is_behind(config: Path, folder: Path) -> None:
    config.write_text(
        f"{config.read_text()}compaction: {{enabled: true, after_s: 0}}\n"
        f"notify: [{{events: [archive_behind], command: [{sendmail(folder)}], message: '{{text}}'}}]\n"
    )
    soon = "from shardwright.daemon import compaction; compaction.BEHIND_S = 0.0"
    with DaemonProcess(config, sabotage=f"{NOT_IDLE}\n{soon}") as daemon:
        for i, name in enumerate(("one", "two"), 1):
            assert camera(daemon.endpoint, name, "--stream", "cam0", "--frames", "8")["frames_stored"] == 8
            assert daemon.wait_for("compaction_behind")["queued"] == 1
            daemon.wait_for("compaction_done")
            wait_for(lambda i=i: len(mails(folder)) == i, "people are told")
        assert daemon.stop() == 0
        assert daemon.rest().count("compaction_behind") == 2
    assert mails(folder)[0].startswith("\nCompaction is behind: 1 store to compact, the oldest due for 0")


NOTIFY = "output: {root: d}\nnotify:\n  - "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{events: [disk_low]}", "notify[0]: has no one way to be told; expected either command or post"),
        (f"{{events: [disk_low], post: {SECRET}}}", "notify[0].post: is not valid"),
        (f"{{events: [disk_low], post: 'http://a:{SECRET}@b/'}}", "notify[0].post: is not valid"),
        (f"{{events: [disk_low], command: {SECRET}}}", "notify[0].command: is not valid; expected a list"),
        ("{events: [disk_low], command: [a], headers_file: b}", "notify[0].headers_file: has no effect"),
        (
            "{events: [disk_low], command: [a], message: '{txt}'}",
            "expected event, time, host, acquisition, text; got txt",
        ),
        ("{events: [disk], command: [a]}", "notify[0].events[0]: is not valid; expected 'disk_low', 'fr"),
    ],
)
def test_a_receiver_that_is_not_valid_is_refused_without_what_may_be_secret(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(NOTIFY + text)
    assert said in str(error.value)
    assert SECRET not in repr((error.value.to_dict(), error.value.others))


def test_the_place_of_a_program_counts_from_the_file(tmp_path: Path) -> None:
    (one, two) = parse_config(
        NOTIFY + "{events: [disk_low], command: [./tell, ./x]}\n  - {events: [disk_low], command: [mail]}",
        folder=tmp_path,
    ).config.notify
    assert one.command == (str(tmp_path / "tell"), "./x")
    assert two.command == ("mail",)


def test_what_cannot_be_told_is_found_before_and_hinders_nothing(config: Path, folder: Path) -> None:
    headers = folder / "headers"
    headers.write_text(f"Authorization: {SECRET}\n")
    headers.chmod(0o644)
    config.write_text(
        config.read_text().replace("reliability: {", "reliability: {encode_check: none, ") + "notify:\n"
        "  - {events: [archive_behind, store_damaged, encode_check_failed], command: [no-such-program]}\n"
        "  - {events: [disk_low], post: 'http://localhost/', headers_file: headers}\n"
        "  - {events: [disk_low], post: 'http://localhost/', headers_file: gone}\n"
    )
    problems = [
        "notify[0]: there is no program no-such-program that this user may run",
        "notify[0]: archive_behind is never told while compaction.enabled is false",
        "notify[0]: store_damaged is never told unless compaction scrubs",
        "notify[0]: encode_check_failed is never told while no chunk is checked",
        (
            f"notify[1]: the key file {headers} is open to others; expected mode 0600; got mode 0644. "
            f"`chmod go-rwx {headers}`"
        ),
        f"notify[2]: cannot read the key file {folder}/gone; got no such file",
    ]
    assert list(notify_problems(load_config(config).config)) == problems
    checked = run_cli("check", "--json", config)
    assert checked.returncode == 0, checked.stdout
    found = json.loads(checked.stdout)["findings"]
    assert [each["found"] for each in found if each["check"] == "notifications"] == problems
    assert {each["result"] for each in found if each["check"] == "notifications"} == {"warn"}
    with DaemonProcess(config) as daemon:
        assert daemon.ready["warnings"][-6:] == problems
        assert daemon.stop() == 0


def test_check_sends_a_test(config: Path, folder: Path, server: Server) -> None:
    nobody = run_cli("check", "--notify", config)
    assert nobody.returncode == 1
    assert "there is no receiver" in nobody.stdout
    mail = sendmail(folder)
    config.write_text(
        f"{config.read_text()}notify:\n"
        f"  - {{events: [disk_low], post: '{server.address}'}}\n"
        f"  - {{events: [disk_low], command: [{mail}], message: '{{event}}'}}\n"
    )
    told = run_cli("check", "--notify", config)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.splitlines()[-1].startswith("all receivers were told")
    assert server.bodies[0]["event"] == "test"
    assert mails(folder) == ["\ntest"]
    server.status = 500
    program(folder, "echo no such user >&2; exit 67")
    told = run_cli("check", "--notify", "--json", config)
    assert told.returncode == 1
    answer = json.loads(told.stdout)
    assert [each["found"] for each in answer["findings"]] == [
        "HTTP 500 Internal Server Error",
        "exit code 67: no such user",
    ]
    assert SECRET not in told.stdout + told.stderr


def test_a_daemon_tells_people_while_a_receiver_hangs(config: Path, folder: Path, server: Server) -> None:
    """It stores frames, answers and ends all the same, and its log and status have no secret."""
    server.hangs = True
    patient = config.read_text().replace("resume_timeout_ms: 5000", "resume_timeout_ms: 600000")
    config.write_text(  # a camera that is gone is missed, and its acquisition goes on until the end
        f"{patient}notify:\n"
        f"  - {{events: [acquisition_ended], post: '{server.address}', timeout_s: 300}}\n"
        "  - events: [acquisition_ended, camera_gone]\n"
        f"    command: [{sendmail(folder)}]\n"
        "    message: '{event} {acquisition}'\n"
    )
    with DaemonProcess(config) as daemon:
        assert camera(daemon.endpoint, "one", "--stream", "cam0", "--frames", "8")["frames_stored"] == 8
        wait_for(lambda: server.got, "the first is on its way")
        assert camera(daemon.endpoint, "two", "--stream", "cam0", "--frames", "8")["frames_stored"] == 8
        wait_for(lambda: len(mails(folder)) == 2, "the other receiver has both")
        slow = ("--name", "three", "--stream", "cam0", "--frames", "100000", "--fps", "1")
        with start_cli("camera", "--connect", daemon.endpoint, *slow) as gone:
            while daemon.wait_for("acquisition_opened")["name"] != "three":
                pass
            gone.kill()
        asked = ""

        def told() -> Any:
            nonlocal asked
            asked = run_cli("status", "--json", config).stdout
            return json.loads(asked)["notifications"]

        stands = {"receivers": 2, "waiting": 1, "sent": 3, "failed": 0, "dropped": 0}
        wait_for(lambda: told() == stands, "its camera is missed")
        assert len(mails(folder)) == 3
        shown = run_cli("status", config)
        assert "1 waiting, 3 sent, 0 failed, 0 dropped" in shown.stdout
        assert daemon.stop() == 0
        names = daemon.rest()
    assert names[-1] == "stopped"
    assert names.count("notification_failed") == 1
    ended = [f"\nacquisition_ended {name}" for name in ("one", "three", "two")]
    assert sorted(mails(folder)) == [*ended, "\ncamera_gone three"]
    assert server.bodies[0]["text"].startswith("one: ended with 8 frames stored")
    assert SECRET not in repr(daemon.events) + asked + shown.stdout
