"""``check`` never says that a configuration will run where ``serve`` refuses to start: each way to be refused
is tried with both, in this process. And what it tries leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.daemon import DaemonProcess, run_cli
from tests.harness.daemon_config import tmpfs_for_a_daemon

from shardwright.cli.app import exit_code, main
from shardwright.client.curve import make_key_pair
from shardwright.config import load, model
from shardwright.config import plan as plan_module
from shardwright.config.load import load_config
from shardwright.daemon import web_child
from shardwright.daemon.assemble import Daemon
from shardwright.daemon.events import EventLog
from shardwright.daemon.lifecycle import SIGNALS, Lifecycle
from shardwright.disk import choose_io
from shardwright.ingest.transport import endpoints
from shardwright.kernels import warm_up
from shardwright.model.errors import CodecError, ShardwrightError
from shardwright.shard.manifest import Manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Break = Callable[["Rig"], None]

CURVE = "curve: {secret_key: rig.key_secret, clients: clients}"
HTTP = "http: {enabled: true, listen: '127.0.0.1:*'}\n"


class Rig:
    """A configuration that works, its folder, and what a case changes of both or of this process."""

    def __init__(self, config: Path, patch: pytest.MonkeyPatch, opened: ExitStack) -> None:
        self.config, self.folder, self.patch, self._opened = config, config.parent, patch, opened

    def replace(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new, 1))

    def add(self, text: str) -> None:
        self.config.write_text(self.config.read_text() + text)

    def keys(self) -> None:
        """Of the daemon and of one client; everything is as it should be."""
        self.replace("insecure: true", CURVE)
        make_key_pair(self.folder, "rig")
        (self.folder / "clients").mkdir()
        public, _ = make_key_pair(self.folder, "camera")
        public.rename(self.folder / "clients" / public.name)

    def listen(self, path: Path) -> None:
        listener = self._opened.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen()

    def take_port(self) -> int:
        listener = self._opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port: int = listener.getsockname()[1]
        return port

    def memory_folder(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="sw-", dir=tmpfs_for_a_daemon()))
        self._opened.callback(shutil.rmtree, path, ignore_errors=True)
        return path


@pytest.fixture
def rig(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """What a daemon in this process changes of it is put back."""
    hook, handlers = threading.excepthook, {number: signal.getsignal(number) for number in SIGNALS}
    with ExitStack() as opened:
        yield Rig(config, monkeypatch, opened)
    signal.set_wakeup_fd(-1)
    threading.excepthook = hook
    for number, handler in handlers.items():
        signal.signal(number, handler)


def serve(config: Path) -> Exception | None:
    """Starts a daemon that ends once it is up; returns why it did not start."""
    events = EventLog(form="json", level="error", repeat_lines=0, repeat_every_s=1.0)
    try:
        loaded = load_config(config)
        life = Lifecycle(events)
        try:
            daemon = Daemon(loaded, events)
            life.stop.set()
            assert daemon.run(life) == 0
        finally:
            life.end()
    except Exception as error:
        return error
    return None


def check(config: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["check", str(config), "--json"])
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    assert end.value.code == (0 if answer["ok"] else 1)
    return answer


def bad(answer: dict[str, object]) -> dict[str, str]:
    return {f["check"]: f["found"] for f in answer["findings"] if f["result"] == "bad"}


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


# Each: the finding that says it, and what is done to the rig.
BROKEN: dict[str, tuple[str, Break]] = {
    "no such file": ("configuration", lambda rig: rig.config.unlink()),
    "no YAML": ("configuration", lambda rig: rig.config.write_text("output: [")),
    "an unknown key": ("configuration", lambda rig: rig.add("camera: 1\n")),
    "a field of another type": ("configuration", lambda rig: rig.replace("2GiB", "two")),
    "tcp without keys": ("configuration", lambda rig: rig.replace("insecure: true", "insecure: false")),
    "an unknown group": ("plan", lambda rig: rig.replace("insecure:", "group: no-such-group\n  insecure:")),
    "a budget too small for a stream": ("plan", lambda rig: rig.replace("2GiB", "1MiB")),
    "a ring too small for the chunks": ("plan", lambda rig: rig.add("    ring_frames: 2\n")),
    "more memory than the machine has": (
        "plan",
        lambda rig: rig.patch.setattr(plan_module, "machine_memory_bytes", lambda: 2**20),
    ),
    "too few descriptors": (
        "plan",
        lambda rig: rig.patch.setattr(model, "most_descriptors", lambda: 400),
    ),
    "a mapping that is not safe": (
        "plan",
        lambda rig: (
            rig.replace("in_memory: true", "in_memory: true, io: mmap"),
            rig.patch.setattr(choose_io, "unmappable_filesystem", lambda _path: "btrfs"),
        ),
    ),
    "no secret key": ("keys", lambda rig: (rig.keys(), (rig.folder / "rig.key_secret").unlink())),
    "a secret key open to others": (
        "keys",
        lambda rig: (rig.keys(), (rig.folder / "rig.key_secret").chmod(0o644)),
    ),
    "no folder of client keys": ("keys", lambda rig: (rig.keys(), shutil.rmtree(rig.folder / "clients"))),
    "a folder of client keys that anybody may change": (
        "keys",
        lambda rig: (rig.keys(), (rig.folder / "clients").chmod(0o777)),
    ),
    "a client key that is none": (
        "keys",
        lambda rig: (rig.keys(), (rig.folder / "clients" / "torn.key").write_text("torn")),
    ),
    "no CURVE": (
        "keys",
        lambda rig: (
            rig.keys(),
            rig.patch.setattr(endpoints.zmq, "has", lambda capability: capability != "curve"),
        ),
    ),
    "a status page without a control socket": (
        "status page",
        lambda rig: rig.add(f"{HTTP}control: {{socket: none}}\n"),
    ),
    "a status page without its packages": (
        "status page",
        lambda rig: (rig.add(HTTP), rig.patch.setitem(web_child.PACKAGES, "no_such_module", "no-such")),
    ),
    "an output root that is not there": ("output.root", lambda rig: (rig.folder / "data").rmdir()),
    "an output root that is a file": (
        "output.root",
        lambda rig: ((rig.folder / "data").rmdir(), (rig.folder / "data").touch()),
    ),
    "an output root that cannot be made": (
        "output.root",
        lambda rig: (
            rig.replace("create: false", "create: true"),
            (rig.folder / "data").rmdir(),
            (rig.folder / "data").symlink_to(rig.config / "such"),  # below a file
        ),
    ),
    "an output root in memory": (
        "output.root",
        lambda rig: (
            rig.replace("in_memory: true", "in_memory: false"),
            rig.replace("./data", str(rig.memory_folder())),
        ),
    ),
    "a spill root that is not there": (
        "output.spill_root",
        lambda rig: rig.replace("in_memory: true", "in_memory: true, spill_root: ./more"),
    ),
    "an endpoint that another program has": (
        "sockets",
        lambda rig: rig.listen(rig.folder / "in.sock"),
    ),
    "an endpoint that is a file": ("sockets", lambda rig: (rig.folder / "in.sock").touch()),
    "an endpoint below a file": (
        "sockets",
        lambda rig: ((rig.folder / "file").touch(), rig.replace("./in.sock", "./file/run/in.sock")),
    ),
    "a ring socket that another program has": (
        "sockets",
        lambda rig: rig.listen(rig.folder / "in.sock.ring"),
    ),
    "a port that another program has": (
        "sockets",
        lambda rig: rig.replace("127.0.0.1:*", f"127.0.0.1:{rig.take_port()}"),
    ),
    "an address of another machine": ("sockets", lambda rig: rig.replace("127.0.0.1:*", "192.0.2.7:5555")),
    "one endpoint by two names": (
        "sockets",
        lambda rig: (
            (rig.folder / "same").symlink_to(rig.folder),
            rig.replace('"tcp://127.0.0.1:*"', '"ipc://./same/in.sock"'),
        ),
    ),
    "a control socket that another program has": (
        "control socket",
        lambda rig: rig.listen(rig.folder / "control.sock"),
    ),
    "a control socket that is the ring socket by another name": (
        "control socket",
        lambda rig: (
            (rig.folder / "same").symlink_to(rig.folder),
            rig.add("control: {socket: ./same/in.sock.ring}\n"),
        ),
    ),
    "a status page's port that another program has": (
        "status page",
        lambda rig: rig.add(HTTP.replace("*", str(rig.take_port()))),
    ),
    "a status page at an endpoint's port": (
        "status page",
        lambda rig: (
            port := free_port(),
            rig.replace("127.0.0.1:*", f"127.0.0.1:{port}"),
            rig.add(HTTP.replace("*", str(port))),
        ),
    ),
    "kernels that do not run": (
        "kernels",
        lambda rig: (
            rig.patch.setattr(warm_up, "_done", False),
            rig.patch.setattr(warm_up, "_run_each", raise_codec_error),
        ),
    ),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def raise_codec_error() -> None:
    raise CodecError("the kernels do not run", hint="Install numba again")


@pytest.mark.parametrize("case", BROKEN)
def test_what_serve_refuses_is_found(case: str, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """With the words of ``serve``: the file, the line and the field among them."""
    name, break_it = BROKEN[case]
    break_it(rig)
    before = files(rig.folder)
    answer = check(rig.config, capsys)
    assert files(rig.folder) == before, "nothing is left behind"
    refused = serve(rig.config)
    assert isinstance(refused, ShardwrightError), "serve refuses"
    assert not answer["ok"]
    said = str(refused).removesuffix(f". {refused.hint}")
    assert bad(answer)[name] == " ".join(said.split())
    if refused.hint is not None:
        assert refused.hint in [finding["advice"] for finding in answer["findings"]]


@pytest.mark.parametrize(
    "case",
    [
        "an unknown group",
        "no secret key",
        "no folder of client keys",
        "an output root that is not there",
        "a spill root that is not there",
        "an address of another machine",
    ],
)
def test_what_the_machine_may_have_a_moment_later_is_tried_again(case: str, rig: Rig) -> None:
    """By systemd, to which 2 says that there is no use (``RestartPreventExitStatus``)."""
    _, break_it = BROKEN[case]
    break_it(rig)
    refused = serve(rig.config)
    assert isinstance(refused, ShardwrightError)
    assert exit_code(refused) == 1


WORKING: dict[str, Break] = {
    "as it is": lambda rig: None,
    "without streams": lambda rig: rig.config.write_text(
        rig.config.read_text()[: rig.config.read_text().index("streams:")]
    ),
    "keys": lambda rig: rig.keys(),
    "nobody on the list": lambda rig: (rig.keys(), (rig.folder / "clients" / "camera.key").unlink()),
    "a status page": lambda rig: rig.add(HTTP),
    "no control socket": lambda rig: rig.add("control: {socket: none}\n"),
    "an output root that is made": lambda rig: (
        (rig.folder / "data").rmdir(),
        rig.replace("./data", "./new/data"),
        rig.replace("create: false", "create: true"),
    ),
    "sockets whose folder is made": lambda rig: rig.replace("./in.sock", "./run/rig/in.sock"),
    "a store that cannot be read": lambda rig: unreadable_store(rig.folder / "data" / "a.ome.zarr"),
    "a disk without room": lambda rig: rig.patch.setattr(plan_module, "free_bytes", lambda _folder: 4096),
    "a mapping": lambda rig: rig.replace("in_memory: true", "in_memory: true, io: mmap"),
}


def unreadable_store(path: Path) -> None:
    (path / ".shardwright").mkdir(parents=True)
    spec = {"dtype": "uint16", "dimensions": [{"name": name, "count": 8, "chunk_size": 8} for name in "yx"]}
    write_manifest(path / ".shardwright", Manifest("0" * 32, 1, 1, spec, "pwrite", 0))
    (path / ".shardwright" / "acquisition.1.json").write_text("{}")


@pytest.mark.parametrize("case", WORKING)
def test_what_is_found_to_run_does(case: str, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    WORKING[case](rig)
    before = files(rig.folder)
    answer = check(rig.config, capsys)
    assert files(rig.folder) == before, "nothing is left behind"
    assert (bad(answer), answer["ok"]) == ({}, True)
    assert serve(rig.config) is None


def test_a_socket_of_a_dead_daemon_is_in_nobodys_way(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("in.sock", "in.sock.ring", "control.sock"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(rig.folder / name))
    assert check(rig.config, capsys)["ok"]
    assert serve(rig.config) is None


def test_a_daemon_that_is_running_is_told(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """``serve`` would refuse, and a reload of that daemon would not."""
    with DaemonProcess(rig.config) as daemon:
        daemon.wait_for("ready")
        answer = check(rig.config, capsys)
        told = f"a daemon is already running on them: process {daemon.process.pid}, with {rig.config}"
        assert bad(answer) == {"sockets": told}
        assert answer["plan"] is not None
        assert "in use" in str(serve(rig.config))
        reload = run_cli("check", "--reload", rig.config)
        assert (reload.returncode, reload.stderr) == (0, "")
        assert reload.stdout.splitlines()[-1].startswith("a running daemon would accept it")
        rig.replace("2GiB", "1MiB")
        reload = run_cli("check", "--reload", rig.config)
        assert reload.returncode == 1
        assert f"{rig.config}:8: memory.budget: too small for stream cam0" in reload.stdout
        assert daemon.stop() == 0


def test_keys_are_warned_of_as_the_daemon_does(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    def keys() -> list[tuple[str, str]]:
        findings = check(rig.config, capsys)["findings"]
        return [(f["result"], f["found"]) for f in findings if f["check"] == "keys"]

    ((result, found),) = keys()
    assert (result, "anyone who can reach tcp://127.0.0.1:* may write" in found) == ("warn", True)
    rig.keys()
    assert keys() == [("ok", "client keys on the list: 1")]
    (rig.folder / "clients" / "camera.key").unlink()
    loaded = load_config(rig.config)
    (warning,) = load.access_warnings(loaded, load.load_access(loaded))
    assert keys() == [("ok", "client keys on the list: 0"), ("warn", warning)]
    assert "no client can connect over TCP" in warning


def test_a_socket_folder_that_anybody_may_enter_is_told(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.folder.chmod(0o755)
    findings = check(rig.config, capsys)["findings"]
    assert ("warn", f"{rig.folder} has mode 0755") in [(f["result"], f["found"]) for f in findings]
