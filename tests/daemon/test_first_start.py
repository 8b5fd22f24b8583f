"""The first start after an installation: kernels are compiled for half a minute, and whoever looks or waits
is told."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from tests.harness.daemon import DaemonProcess, run_cli
from tests.harness.json_process import wait_for
from tests.web.web_process import ask

import shardwright as sw
from shardwright.daemon.control_client import ControlClient
from shardwright.kernels.warm_up import COMPILING
from shardwright.simulate.photons import PhotonFrames

from .browser import Browser
from .notify_listener import NotifyListener

if TYPE_CHECKING:
    from pathlib import Path

HTTP = "http: {enabled: true, listen: '127.0.0.1:*'}\n"
SOURCE = PhotonFrames((48, 80), seed=5)
# As with an empty cache, for as long as the gate is there.
COMPILES = """
import pathlib, time
from shardwright.kernels import warm_up
gate, run = pathlib.Path({gate!r}), warm_up._run_each
def compile():
    while gate.exists():
        time.sleep(0.02)
    run()
warm_up._run_each, warm_up.is_compiled = compile, lambda folder: False
"""


def test_a_start_that_compiles_is_told_to_everybody_and_clients_wait(config: Path, folder: Path) -> None:
    """By the log, to the service manager, by the control socket and to probes; and no client gives up."""
    gate = folder / "gate"
    config.write_text(config.read_text() + HTTP)
    gate.touch()
    sabotage = COMPILES.format(gate=str(gate))
    with (
        NotifyListener(folder) as manager,
        DaemonProcess(
            config, fresh=True, sabotage=sabotage, more={"NOTIFY_SOCKET": manager.address}
        ) as daemon,
        ThreadPoolExecutor(1) as threads,
    ):
        assert daemon.wait_for("kernels_compiling")["meaning"] == COMPILING
        told = manager.wait_for(lambda message: COMPILING in message.get("STATUS", ""))
        assert int(told["EXTEND_TIMEOUT_USEC"]) > 60e6, "no manager ends a slow machine's first start"
        with ControlClient(folder / "control.sock", timeout_s=60) as control:
            status = control.ask("status")["status"]
        assert (status["state"], status["waits_for"]) == ("starting", COMPILING)
        shown = " ".join(run_cli("status", "--socket", folder / "control.sock").stdout.split())
        assert f"state starting: {COMPILING}" in shown
        port = urlsplit(daemon.wait_for("web_ready")["url"]).port
        assert port is not None
        assert [ask(port, f"/healthz/{which}").status for which in ("live", "ready")] == [200, 503]
        with sw.connect(f"ipc://{folder}/in.sock") as connection:
            opening = threads.submit(connection.acquire, "a", stream="cam0")
            daemon.wait_for("client_connected")
            assert not opening.done()
            gate.unlink()
            with opening.result(60) as stream:
                stream.append(SOURCE.frame(0))
        assert stream.receipt.frames_stored == 1
        names = [event["event"] for event in (daemon.wait_for("ready"), *daemon.events)]
        assert "kernels_compiled" in names
        wait_for(lambda: ask(port, "/healthz/ready").status == 200, "the page to hear of it")
        assert ask(port, "/healthz/live").status == 200
        assert daemon.stop() == 0
        assert daemon.rest().count("web_ready") == 1


@pytest.mark.browser
def test_the_page_says_what_a_start_waits_for(config: Path, folder: Path) -> None:
    gate = folder / "gate"
    config.write_text(config.read_text() + HTTP)
    gate.touch()
    with (
        DaemonProcess(config, fresh=True, sabotage=COMPILES.format(gate=str(gate))) as daemon,
        Browser() as page,
    ):
        page.open(daemon.wait_for("web_ready")["url"])
        page.wait(lambda: page.text("#state") == f"starting: {COMPILING}", "the reason")
        gate.unlink()
        page.wait(lambda: page.text("#state") == "serving", "the end of it")
        assert daemon.stop() == 0


def test_a_signal_while_kernels_are_compiled_ends_the_daemon_in_good_order(
    config: Path, folder: Path
) -> None:
    """Once they are compiled."""
    gate = folder / "gate"
    gate.touch()
    with DaemonProcess(config, fresh=True, sabotage=COMPILES.format(gate=str(gate))) as daemon:
        daemon.wait_for("kernels_compiling")
        daemon.signal(signal.SIGTERM)
        gate.unlink()
        assert daemon.exit_code() == 0
        names = daemon.rest()
    assert "ready" not in names
    assert names[-1] == "stopped"
    assert not (folder / "control.sock").exists()


def test_a_daemon_that_is_drained_while_kernels_are_compiled_never_says_that_it_is_ready(
    config: Path, folder: Path
) -> None:
    """Whoever waits is refused. Only systemd hears READY: a daemon that ends without has failed, to it, and
    is started again."""
    gate = folder / "gate"
    gate.touch()
    with (
        NotifyListener(folder) as manager,
        DaemonProcess(
            config,
            fresh=True,
            sabotage=COMPILES.format(gate=str(gate)),
            more={"NOTIFY_SOCKET": manager.address},
        ) as daemon,
        ThreadPoolExecutor(1) as threads,
    ):
        # a Python of its own may take longer to come this far than a client waits for an answer
        daemon.wait_for("kernels_compiling")
        # told also where the request comes when the daemon has gone already: nobody tries to connect again
        with sw.connect(f"ipc://{folder}/in.sock", reconnect_timeout_ms=0) as connection:
            opening = threads.submit(connection.acquire, "a", stream="cam0")
            with ControlClient(folder / "control.sock", timeout_s=60) as control:
                control.ask("drain")
            with pytest.raises(sw.errors.SessionLostError):
                opening.result(60)
        gate.unlink()
        assert daemon.exit_code() == 0
        names = daemon.rest()
        assert "ready" not in names
        assert names[-1] == "stopped"
        assert any("READY" in message for message in manager.waiting())
    assert not (folder / "data" / "a.ome.zarr").exists()


@pytest.mark.slow
def test_a_cache_that_is_really_empty(config: Path, folder: Path) -> None:
    """A client that connects at once, with the patience it has by itself, acquires; the next start compiles
    nothing."""
    environment = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    with DaemonProcess(config, fresh=True, more=environment) as daemon:
        daemon.wait_for("kernels_compiling")
        with (
            sw.connect(f"ipc://{folder}/in.sock") as connection,
            connection.acquire("a", stream="cam0") as stream,
        ):
            stream.append(SOURCE.frame(0))
        assert stream.receipt.frames_stored == 1
        assert daemon.stop() == 0
        names = daemon.rest()
        assert (
            names.index("client_connected")
            < names.index("kernels_compiled")
            < names.index("ready")
            < names.index("acquisition_opened")
        )
    with DaemonProcess(config, fresh=True, more=environment) as daemon:
        daemon.wait_for("ready")
        assert "kernels_compiling" not in [event["event"] for event in daemon.events]
