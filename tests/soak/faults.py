"""What a soak breaks, by name. Each fault sees to it that it has had an effect, and says in one line what it
was.

While the soak breaks one thing, the rest must hold: only where ``FAULTS`` says so may the daemon be another
one afterwards, and may cameras have had to connect again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.harness.json_process import wait_for

from . import floods
from .cameras import AFTERWARDS, CameraSide

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.faults.disks import LoopDisk

    from .daemon import SoakDaemon
    from .settings import Places, Settings

STUCK_S = 1.0  # a call that takes so long shows that the disk is stuck
WRITES_WITHIN_S = 20.0  # an acquisition, to a disk that is not full
# Not acquisition_recovery_failed: asking for an acquisition that was never begun ends in that as well. What
# really is not recovered is not sealed either, and found by that.
NEVER = (
    "thread_died",
    "web_died",
    "control_died",
    "acquisition_failed",
    "acquisition_open_failed",
    "events_lost",
)


@dataclass
class Scene:
    """All that can be broken. ``disk`` None: the stores lie in a plain folder."""

    settings: Settings
    places: Places
    daemon: SoakDaemon
    cameras: list[CameraSide]
    disk: LoopDisk | None
    random: Random

    def hold(self) -> None:
        time.sleep(self.settings.hold_s)


def client_kill(scene: Scene) -> str:
    camera, afterwards = scene.random.choice(scene.cameras), scene.random.choice(AFTERWARDS)
    wait_for(lambda: camera.sending, f"camera {camera.name} to send")
    deaths = camera.deaths
    camera.kill(afterwards)
    wait_for(lambda: camera.deaths > deaths, f"camera {camera.name} to be started again")
    return f"{camera.name} killed, its program is to {afterwards.replace('_', ' ')}"


def daemon_kill(scene: Scene) -> str:
    for camera in scene.cameras:
        camera.daemon_deaths += 1
    acquiring = wait_for(
        lambda: len(scene.daemon.status()["acquisitions"]), "an acquisition that a kill can interrupt"
    )
    scene.daemon.kill()
    began_s = time.monotonic()
    scene.daemon.start()
    return f"killed with {acquiring} acquisitions open, serves again after {time.monotonic() - began_s:.1f} s"


def disk_stall(scene: Scene) -> str:
    longest_s = wait_for(lambda: _stall(scene), "a call to be stuck in the disk")
    return f"a call was stuck for {longest_s:.1f} s"


def _stall(scene: Scene) -> float:
    """The duration of the longest call while the disk is frozen; 0.0 where none began in time: the making and
    the recovery of stores, which take long on any disk, are not among them."""
    assert scene.disk is not None
    wait_for(lambda: scene.daemon.status()["acquisitions"], "an acquisition that writes to the disk")
    with scene.disk.frozen():
        end_s = time.monotonic() + WRITES_WITHIN_S
        while scene.daemon.status()["stall_s"] < STUCK_S:
            if time.monotonic() > end_s:
                return 0.0
            time.sleep(0.02)
        scene.hold()
        return float(scene.daemon.status()["stall_s"])


def disk_full(scene: Scene) -> str:
    """Taken again and again: meanwhile finished stores are deleted, which makes room."""
    assert scene.disk is not None
    filler, noticed = scene.disk.filler, ("disk_full", "spilling", "acquisition_refused")
    before = scene.daemon.count(*noticed)
    end_s = time.monotonic() + scene.settings.hold_s
    try:
        wait_for(
            lambda: filler.fill() and scene.daemon.count(*noticed) > before and time.monotonic() > end_s,
            "the daemon to notice that the disk is full",
        )
        taken, times = filler.path.stat().st_size, scene.daemon.count(*noticed) - before
    finally:
        filler.release()
    return f"the last {taken >> 20} MiB taken, noticed {times} times"


def bad_messages(scene: Scene) -> str:
    before = scene.daemon.status()["foreign_messages"]
    done = floods.bad_messages(scene.places, scene.settings.hold_s, scene.random.randrange(1 << 30))
    wait_for(
        lambda: scene.daemon.status()["foreign_messages"] > before, "the daemon to count foreign messages"
    )
    return ", ".join(f"{count} {what}" for what, count in sorted(done.items()))


def page_reload(scene: Scene) -> str:
    done = floods.page_reload(scene.daemon.url, scene.settings.hold_s, scene.random.randrange(1 << 30))
    assert done["answers"], f"the page has answered nothing: {dict(done)}"
    assert not done["answers 500"], f"the page could not answer: {dict(done)}"
    wait_for(lambda: floods.answers(scene.daemon.url), "the page to answer after the flood")
    return ", ".join(f"{count} {what}" for what, count in sorted(done.items()))


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    do: Callable[[Scene], str]
    needs_disk: bool = False
    daemon_dies: bool = False


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "client-kill",
            "SIGKILL to a camera; its program goes on, sends again, or starts anew",
            client_kill,
        ),
        Fault("daemon-kill", "SIGKILL to the daemon, which is started again", daemon_kill, daemon_dies=True),
        Fault("disk-stall", "the filesystem is frozen: whoever writes waits", disk_stall, needs_disk=True),
        Fault("disk-full", "a file takes all the room there is", disk_full, needs_disk=True),
        Fault("bad-messages", "garbage and nonsense on every socket", bad_messages),
        Fault("page-reload", "browsers that reload without end, and that hang", page_reload),
    )
}


def carry_out(fault: Fault, scene: Scene) -> tuple[str, list[str]]:
    """What was done, and what it broke that it must not."""
    pid, reconnects = scene.daemon.pid, [(camera, camera.reconnects) for camera in scene.cameras]
    # nobody could ask that daemon any more
    faults = what_must_not_be(scene.daemon) if fault.daemon_dies else []
    done = fault.do(scene)
    for camera, stored in [(camera, camera.stored) for camera in scene.cameras]:
        # a camera that is not connected again could still fill its ring
        wait_for(
            lambda camera=camera, stored=stored: camera.stored > stored,
            f"frames of camera {camera.name} to be stored after {fault.name}",
        )
    if scene.daemon.dead:
        faults.append(f"the daemon died of {fault.name}")
    if not fault.daemon_dies:
        if scene.daemon.pid != pid:
            faults.append(f"the daemon is another one after {fault.name}")
        faults += [
            f"{camera.name} had to connect again during {fault.name}"
            for camera, before in reconnects
            if camera.reconnects > before
        ]
    return done, faults + what_must_not_be(scene.daemon)


def what_must_not_be(daemon: SoakDaemon) -> list[str]:
    """In this life of the daemon, so far."""
    happened = daemon.status()["events"]["by_name"]
    return [f"the daemon tells of {name}" for name in NEVER if happened.get(name)]
