"""The first start after an installation: kernels are compiled for half a minute, and whoever looks or waits
is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.harness.daemon import DaemonProcess, run_cli

import shardwright as sw
from shardwright.daemon.control_client import ControlClient
from shardwright.kernels.warm_up import COMPILING
from shardwright.simulate.photons import PhotonFrames

from .notify_listener import NotifyListener

if TYPE_CHECKING:
    from pathlib import Path

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
    """By the log, to the service manager, by the control socket; and no client gives up."""
    gate = folder / "gate"
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
        assert daemon.stop() == 0


def test_a_signal_while_kernels_are_compiled_ends_the_daemon(config: Path, folder: Path) -> None:
    gate = folder / "gate"
    gate.touch()
    with DaemonProcess(config, fresh=True, sabotage=COMPILES.format(gate=str(gate))) as daemon:
        daemon.wait_for("kernels_compiling")
        assert daemon.stop() != 0
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        assert daemon.stop() == 0


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
