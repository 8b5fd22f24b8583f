"""``shardwright serve`` with keys, from outside: refusals of one line, a list that changes while it runs, and
a flood that costs no frame."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zmq
from tests.harness.daemon import DaemonProcess, run_cli
from tests.harness.store_contents import assert_holds

import shardwright as sw
from shardwright.config.load import load_config
from shardwright.daemon.assemble import Daemon
from shardwright.daemon.events import EventLog
from shardwright.ingest import IngestServer
from shardwright.simulate.photons import PhotonFrames
from shardwright.wire.key_files import read_public_key

from .test_serve import refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

CURVE = "curve: {secret_key: keys/rig.key_secret, clients: clients}"


@pytest.fixture
def keyed(config: Path, folder: Path) -> Path:
    """The configuration with keys: those of the daemon, and of one camera whose key is listed."""
    (folder / "keys").mkdir()
    (folder / "clients").mkdir()
    for name in ("rig", "camera"):
        done = run_cli("keygen", name, "--to", folder / "keys")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{folder}/keys/{name}.key_secret  secret" in done.stdout
    let_in(folder, "camera")
    config.write_text(config.read_text().replace("insecure: true", CURVE))
    return config


def let_in(folder: Path, name: str) -> None:
    (folder / "clients" / f"{name}.key").write_bytes((folder / "keys" / f"{name}.key").read_bytes())


def curve(folder: Path, name: str = "camera") -> sw.Curve:
    return sw.Curve(folder / "keys" / f"{name}.key_secret", folder / "keys" / "rig.key")


def camera(folder: Path, endpoint: str, name: str, key: str, daemon_key: str = "rig") -> tuple[int, str]:
    keys = (
        "--secret-key",
        folder / "keys" / f"{key}.key_secret",
        "--daemon-key",
        folder / "keys" / f"{daemon_key}.key",
    )
    done = run_cli(
        "camera", "--connect", endpoint, "--name", name, "--stream", "cam0", "--frames", "5", *keys
    )
    return done.returncode, done.stderr


def test_cameras_with_keys_and_the_errors_of_those_without(keyed: Path, folder: Path) -> None:
    run_cli("keygen", "new", "--to", folder / "keys")
    with DaemonProcess(keyed) as daemon:
        _, tcp = daemon.wait_for("ready")["endpoints"]
        assert camera(folder, tcp, "good", "camera")[0] == 0
        for result, says in (
            (camera(folder, tcp, "bad", "new"), "the daemon does not know this client's key"),
            (camera(folder, tcp, "bad", "camera", daemon_key="new"), "Check the daemon's public key"),
            (camera(folder, tcp, "bad", "absent"), "no such file"),
        ):
            code, message = result
            assert (code, message.count("\n")) == (2, 1), message
            assert says in message
        let_in(folder, "new")
        assert daemon.wait_for("client_keys_reloaded")["added"] == ["new"]
        assert camera(folder, tcp, "late", "new")[0] == 0
        (folder / "clients" / "torn.key").write_text("torn")
        assert daemon.wait_for("client_keys_refused")["code"] == "config"
        assert daemon.stop() == 0
        assert "insecure_warning" not in daemon.rest()
    assert_holds(folder / "data" / "late.ome.zarr", PhotonFrames((48, 80)), 5)
    assert not (folder / "data" / "bad.ome.zarr").exists()


def test_a_reload_reads_the_keys_again_though_no_file_has_changed(keyed: Path) -> None:
    """So that whoever took a key away knows that it is out of use when the reload is done."""
    # with a terminal SIGHUP would be its end
    with DaemonProcess(keyed, sabotage="import os; os.setsid()") as daemon:
        daemon.wait_for("ready")
        daemon.signal(signal.SIGHUP)
        facts = daemon.wait_for("client_keys_reloaded")
        assert (facts["added"], facts["removed"]) == ([], [])
        assert daemon.wait_for("reloaded")["changed"] == []
        assert daemon.stop() == 0


def test_two_readings_of_the_keys_never_overlap(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older one, of the thread that reloads, could put a key back that the newer one has taken out."""
    daemon, steps, is_second_done = Daemon(load_config(config), EventLog()), list[str](), threading.Event()

    def second() -> None:
        daemon.reload_clients()
        is_second_done.set()

    other = threading.Thread(target=second)

    def read(_: IngestServer) -> dict[str, list[str]]:
        name = "newer" if threading.current_thread() is other else "older"
        steps.append(f"{name} begins")
        if name == "older":
            other.start()
            is_second_done.wait(0.2)  # it never is, but without a lock
        steps.append(f"{name} ends")
        return {"added": [], "removed": []}

    monkeypatch.setattr(IngestServer, "reload_clients", read)
    daemon.reload_clients()
    other.join()
    assert steps == ["older begins", "older ends", "newer begins", "newer ends"]


def test_a_key_that_is_taken_away_while_the_daemon_starts_is_out(keyed: Path, folder: Path) -> None:
    """The list is read first of all, and what follows may take a minute where kernels are compiled."""
    key = folder / "clients" / "camera.key"
    with DaemonProcess(
        keyed,
        sabotage=f"from shardwright.daemon import assemble; assemble.warm_up = lambda: "
        f"__import__('os').unlink({str(key)!r})",
    ) as daemon:
        assert daemon.wait_for("client_keys_reloaded")["removed"] == ["camera"]
        assert daemon.stop() == 0


def test_what_cannot_be_used_is_refused_in_one_line_and_nothing_is_started(keyed: Path, folder: Path) -> None:
    secret = folder / "keys" / "rig.key_secret"
    for mode, says in (
        (0o644, "is open to others; expected mode 0600; got mode 0644"),
        (0o640, "got mode 0640"),
    ):
        secret.chmod(mode)
        code, message = refusal(keyed)
        assert code == 2
        assert f"{keyed}:4: ingest.curve.secret_key: " in message
        assert says in message
    assert says in run_cli("check", keyed).stdout, "check tells of it as well"
    secret.unlink()
    assert "no such file" in refusal(keyed)[1]
    keyed.write_text(keyed.read_text().replace("rig.key_secret", "camera.key_secret"))
    (folder / "clients" / "torn.key").write_text("torn")
    code, message = refusal(keyed)
    assert (code, "torn.key holds no public-key" in message) == (2, True)
    assert f"{keyed}:4: ingest.curve.clients: " in message
    assert not (folder / "in.sock").exists()
    keyed.write_text(
        keyed.read_text()
        .replace(CURVE.replace("rig", "camera"), "heartbeat_ms: 200")
        .replace("  heartbeat_ms: 200\n", "", 1)
    )
    code, message = refusal(keyed)
    assert (code, "open to the whole network" in message) == (2, True)


def test_open_tcp_is_said_aloud(config: Path) -> None:
    assert "anyone who can reach tcp://127.0.0.1:* may write" in run_cli("check", config).stdout
    with DaemonProcess(config) as daemon:
        assert daemon.wait_for("insecure_warning")["level"] == "warning"
        assert daemon.stop() == 0


def test_keygen_replaces_nothing(folder: Path) -> None:
    assert run_cli("keygen", "a", "--to", folder).returncode == 0
    again = run_cli("keygen", "a", "--to", folder)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert run_cli("keygen", "../a", "--to", folder).returncode == 1
    assert run_cli("keygen", "b", "--to", folder / "absent").returncode == 2


FLOOD = 1000  # bad connections, a third of each kind


@contextlib.contextmanager
def flood(endpoint: str, folder: Path) -> Iterator[None]:
    """Garbage, half a handshake that goes no further, and wrong keys; kept open until the end, as far as the
    daemon lets them be."""
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    random = np.random.default_rng(3)
    stranger_public, stranger_secret = zmq.curve_keypair()
    daemon_key = read_public_key(folder / "keys" / "rig.key")
    with contextlib.ExitStack() as opened:
        context = opened.enter_context(zmq.Context())
        for i in range(FLOOD):
            if i % 3 == 0:
                bad = opened.enter_context(context.socket(zmq.DEALER))
                bad.linger, bad.reconnect_ivl = 0, 20
                bad.curve_publickey, bad.curve_secretkey, bad.curve_serverkey = (
                    stranger_public,
                    stranger_secret,
                    daemon_key,
                )
                bad.connect(endpoint)
                with contextlib.suppress(zmq.Again):  # refused by now: nobody to send to
                    bad.send(b"let me in", flags=zmq.NOBLOCK)
                continue
            connection = opened.enter_context(socket.create_connection((host, int(port)), timeout=60))
            with contextlib.suppress(OSError):  # it may be closed by now
                connection.sendall(random.bytes(300) if i % 3 == 1 else b"\xff" + bytes(8) + b"\x7f\x03")
        yield


def test_a_thousand_bad_connections_starve_no_acquisition(keyed: Path, folder: Path) -> None:
    """Two cameras, one over TCP with keys and one on this machine, acquire all the while; a third comes in
    the middle of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    source = PhotonFrames((48, 80), seed=7)
    with DaemonProcess(keyed) as daemon:
        ipc, tcp = daemon.wait_for("ready")["endpoints"]
        over = threading.Event()
        sent: dict[str, int] = {}

        def acquire(name: str, endpoint: str) -> None:
            with (
                sw.connect(endpoint, curve=curve(folder), timeout_ms=60_000) as connection,
                connection.acquire(name, stream="cam0") as stream,
            ):
                count = 0
                while not over.is_set() or count < 50:
                    stream.append(source.frame(count))
                    count += 1
                    over.wait(0.005)
                assert stream.reconnects == 0
            assert stream.receipt.frames_missing == 0
            sent[name] = count

        cameras = [
            threading.Thread(target=acquire, args=arguments) for arguments in (("far", tcp), ("near", ipc))
        ]
        for each in cameras:
            each.start()
        try:
            with flood(tcp, folder):
                cameras.append(threading.Thread(target=acquire, args=("late", tcp)))
                cameras[-1].start()
                descriptors = len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))
                over.set()
                for each in cameras:
                    each.join()
        finally:  # a camera that outlived this test would fail in the midst of another one
            over.set()
            for each in cameras:
                each.join()
        assert descriptors < 1000, "the daemon keeps only so many strangers"
        assert daemon.stop() == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(sent) == ["far", "late", "near"]
    for name, count in sent.items():
        assert_holds(folder / "data" / f"{name}.ome.zarr", source, count)
