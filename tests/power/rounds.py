"""One round: record one run of the writer on one filesystem, then cut the power in many ways and judge what
is left each time."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.names import WORKSPACE

from . import EDIT, JOBS, machine
from .edits import EditJudge
from .images import WITHOUT_TEARS, Cut, DiskImage, draw_cut
from .jobs import JobJudge
from .judge import Judge, UnmountableError
from .pressure import write_back
from .recording import Promised, Recording, draw_cuts
from .scenario import STORE
from .workload import act, boot
from .write_log import WriteLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fork_server import Child, ForkServer

    from shardwright.acquire.workers import WorkerPool

    from .scenario import Scenario
    from .workload import Act

_CHILD_S = 600
_INDEPENDENT_EVERY = 40  # images of which zarr-python reads one as well
_MOST_PASSES = 6
MOST_VIOLATIONS_KEPT = 20


@dataclass
class RoundResult:
    """``images`` counts judged ones only; ``repeated`` had the content and the promises of one judged before.
    ``unmountable`` images are counted apart: a superblock torn within its 4 KiB is nothing that a filesystem
    promises to survive."""

    filesystem: str
    seed: int
    interruption: str
    io: str
    entries: int = 0
    flushes: int = 0
    promises: int = 0
    images: int = 0
    with_promise: int = 0  # images of which something had been promised
    with_shared_journal: int = 0  # images in which shard rows share a journal
    with_added: int = 0  # images of the disk by which ``add_image`` had returned
    going_on: int = 0  # images of the disk with a finished store that was going on
    kinds: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    unmountable: int = 0
    # whose first mount failed, and the second, of the same bytes through a device that had cached nothing,
    # did not
    mounted_anew: int = 0
    failed_recordings: int = 0
    violating_images: int = 0
    violations: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


class RecordingError(Exception):
    """The writer itself failed while it was recorded."""


def record(scenario: Scenario, folder: Path, server: ForkServer, *, mutant: str | None = None) -> Recording:
    """Run the scenario on a fresh filesystem. ``folder`` then holds ``fresh``, the disk before what was
    recorded."""
    fresh = folder / "fresh"
    machine.make_filesystem(scenario.filesystem, fresh)
    subprocess.run(["fallocate", "--dig-holes", str(fresh)], check=True)
    if scenario.compaction in (*JOBS, EDIT):
        laid = _record(scenario, ("lay",), folder, Promised(), server, None)
        return _record(scenario, ("do",), folder, _let_end(laid, folder), server, mutant)
    if scenario.compaction is not None:
        written = _record(scenario, ("write",), folder, Promised(), server, mutant)
        return _record(scenario, ("pack",), folder, _let_end(written, folder), server, mutant)
    if scenario.interruption == "power":
        first = _record(scenario, ("write",), folder, Promised(), server, mutant)
        return _record(
            scenario, (scenario.then,), folder, _cut_power(scenario, first, folder), server, mutant
        )
    again = ("take-over-and-hang",) if scenario.then == "recover" else ()
    hung = ("write-and-hang", *again, "take-over")
    acts = {"none": ("write",), "kill": ("write-and-die", scenario.then), "hang": hung}[scenario.interruption]
    return _record(scenario, acts, folder, Promised(), server, mutant)


def _record(
    scenario: Scenario,
    acts: tuple[Act, ...],
    folder: Path,
    before: Promised,
    server: ForkServer,
    mutant: str | None,
) -> Recording:
    """What one process after another does to a copy of ``fresh``."""
    disk, log, mounted = (folder / name for name in ("disk", "log", "mounted"))
    subprocess.run(["cp", "--sparse=always", str(folder / "fresh"), str(disk)], check=True)
    mounted.mkdir(exist_ok=True)
    recorded = machine.RecordedDisk(disk, log)
    try:
        machine.mount(recorded.loop.device, mounted, scenario.filesystem, scenario.mount_options)
        try:
            with (
                write_back(mounted, scenario.seed) if scenario.pressure else nullcontext(),
                ExitStack() as hung,
            ):
                told = [
                    each for what in acts for each in _act(what, scenario, mounted, log, mutant, server, hung)
                ]
        finally:
            machine.unmount(mounted)
    finally:
        recorded.close()
    written = WriteLog.read(log)
    log.unlink()
    disk.unlink()
    return Recording.of(told, written, before)


def _let_end(recording: Recording, folder: Path) -> Promised:
    """Make ``fresh`` the disk after the last write. Returns what has been promised."""
    image = DiskImage(folder / "fresh", folder / "image")
    image.advance(recording.log, len(recording.log))
    image.close()
    (folder / "image").replace(folder / "fresh")
    return recording.promised_at(len(recording.log))


def _cut_power(scenario: Scenario, recording: Recording, folder: Path) -> Promised:
    """Make ``fresh`` what a cut leaves, at a random moment between the first promise and the end. Returns
    what had been promised by then."""
    rng = np.random.default_rng((scenario.seed, 3))
    first = next(entries for entries, told in recording.promises if told.durable)
    last = max(first + 1, recording.promises[-1][0])
    cut = draw_cut(recording.log, int(rng.integers(first, last)), str(rng.choice(WITHOUT_TEARS)), rng)
    image = DiskImage(folder / "fresh", folder / "image")
    image.advance(recording.log, cut.flushed)
    image.lay(recording.log, cut.pieces)
    image.close()
    (folder / "image").replace(folder / "fresh")
    return recording.promised_at(cut.cut)


def _act(
    what: Act,
    scenario: Scenario,
    root: Path,
    log: Path,
    mutant: str | None,
    server: ForkServer,
    hung: ExitStack,
) -> list[dict[str, Any]]:
    """What one process told. One that stops itself goes on while the next one takes the store over, and is
    killed when ``hung`` ends."""
    child = server.start(act, what, root, log, mutant, scenario)
    told, status = _until_ended_or_stopped(child)
    if status == -signal.SIGSTOP:
        over = threading.Event()
        goes_on = threading.Thread(
            target=_go_on, args=(child, root / STORE / WORKSPACE / "lock", scenario.seed % 7 / 100, over)
        )
        goes_on.start()
        for end in (child.wait, child.kill, goes_on.join, over.set):  # the last one first
            hung.callback(end)
    elif status != (-signal.SIGKILL if what == "write-and-die" else 0):
        raise RecordingError(
            f"{what} of seed {scenario.seed} on {scenario.filesystem} ended with {status}: {told[-1:]}"
        )
    return told


def _go_on(process: Child, lock: Path, delay_s: float, over: threading.Event) -> None:
    """Once another writer has the lock: it makes a file of its own."""
    before = lock.stat().st_ino
    while not over.is_set() and lock.exists() and lock.stat().st_ino == before:
        time.sleep(0.001)
    over.wait(delay_s)
    process.send_signal(signal.SIGCONT)


def _until_ended_or_stopped(child: Child) -> tuple[list[Any], int]:
    """What it told by then, and its exit code, or minus the signal that ended or (SIGSTOP) stopped it."""
    end_s, told = time.monotonic() + _CHILD_S, []
    while True:
        state = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
        while child.channel.pending():
            if (message := child.channel.receive()) is None:
                return told, child.wait()
            told.append(message)
        if state == "T":
            return told, -signal.SIGSTOP
        if time.monotonic() > end_s:
            child.kill()
            raise RecordingError(f"process {child.pid} does not end")
        time.sleep(0.005)


def run_round(
    scenario: Scenario,
    images: int,
    folder: Path,
    pool: WorkerPool,
    server: ForkServer,
    *,
    every_prefix: bool = False,
    mutant: str | None = None,
    until_violation: bool = False,
    keep: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> RoundResult:
    """Judge about ``images`` images: more with every prefix of the log, fewer when the recording has no more
    different ones, with ``until_violation`` none after the first violation. ``keep``: a folder for violating
    images, as the cut left them."""
    result = RoundResult(scenario.filesystem, scenario.seed, scenario.interruption, scenario.io)
    try:
        recording = record(scenario, folder, server, mutant=mutant)
    except RecordingError as error:
        result.failed_recordings, result.violations = 1, [str(error)]
        return result
    log = recording.log
    result.entries, result.flushes, result.promises = (
        len(log),
        int(log.barriers.sum()),
        len(recording.promises),
    )
    rng = np.random.default_rng((scenario.seed, 2))
    mounted = folder / "mounted"  # where it was recorded: a job knows a destination by its path
    mounted.mkdir(exist_ok=True)
    boot(3)
    judge: Judge | JobJudge | EditJudge = Judge(scenario, mounted, pool, recording.shards)
    if scenario.compaction in JOBS:
        judge = JobJudge(scenario.compaction, scenario.filesystem, mounted)
    elif scenario.compaction == EDIT:
        judge = EditJudge(scenario, mounted)
    run = _Run(recording, judge, result, progress, keep, until_violation)
    for number in range(_MOST_PASSES):
        wanted = images - result.images
        cuts = draw_cuts(recording, wanted, rng, every_prefix=every_prefix and number == 0)
        run.judge_cuts(cuts, folder / "fresh", folder / "image")
        if run.over or result.images >= images or wanted - (images - result.images) < wanted // 4:
            break  # enough, or hardly anything new is left
    return result


@dataclass
class _Run:
    """The judging of one recording. ``judged``: the digest of each image that was judged, with what had been
    promised then."""

    recording: Recording
    judge: Judge | JobJudge | EditJudge
    result: RoundResult
    progress: Callable[[int], None]
    keep: Path | None
    until_violation: bool = False
    judged: dict[int, Promised] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.until_violation and self.result.violating_images > 0

    def judge_cuts(self, cuts: list[Cut], fresh: Path, path: Path) -> None:
        image = DiskImage(fresh, path)
        loop = machine.LoopDevice(path)
        try:
            for cut in cuts:
                self._lay_and_judge(cut, image, loop)
                if self.over:
                    return
        finally:
            loop.close()
            image.close()
            path.unlink()

    def _lay_and_judge(self, cut: Cut, image: DiskImage, loop: machine.LoopDevice) -> None:
        log, promised = self.recording.log, self.recording.promised_at(cut.cut)
        image.advance(log, cut.flushed)
        digest = image.lay(log, cut.pieces)
        if digest in self.judged and self.judged[digest].covers(promised):
            self.result.repeated += 1
        else:
            self.judged[digest] = promised
            loop.drop_cache()
            sound = self._judge_one(cut, promised, image, loop)
            self.progress(self.result.images)
            if not sound and self.keep is not None:
                image.restore()
                image.lay(log, cut.pieces)
                name = f"{self.result.filesystem}-{self.result.seed}-{self.result.violating_images}"
                subprocess.run(["cp", "--sparse=always", str(image.path), str(self.keep / name)], check=True)
        image.restore()

    def _judge_one(self, cut: Cut, promised: Promised, image: DiskImage, loop: machine.LoopDevice) -> bool:
        result = self.result
        independently = result.images % _INDEPENDENT_EVERY == 0
        try:
            try:
                faults = self.judge.judge(loop, promised, independently=independently)
            except UnmountableError:
                if cut.kind == "torn":
                    raise
                faults = self._judge_anew(cut, promised, image, independently=independently)
        except UnmountableError as error:
            if cut.kind == "torn":
                result.unmountable += 1
                return True
            faults = [f"not to be mounted: {error}"]
        result.images += 1
        result.with_promise += promised.durable > 0
        result.with_added += promised.added > 0
        if isinstance(self.judge, Judge):
            result.with_shared_journal = self.judge.shared_journals
            result.going_on = self.judge.going_on
        result.kinds[cut.kind] = result.kinds.get(cut.kind, 0) + 1
        if faults:
            result.violating_images += 1
            where = f"{result.filesystem} seed {result.seed} image {result.violating_images}"
            how = f"{cut.kind}, {len(cut.pieces)} pieces on {cut.flushed} of {cut.cut} entries, {promised}"
            result.violations += [f"{where}: {how}: {fault}" for fault in faults][
                : MOST_VIOLATIONS_KEPT - len(result.violations)
            ]
        return not faults

    def _judge_anew(
        self, cut: Cut, promised: Promised, image: DiskImage, *, independently: bool
    ) -> list[str]:
        """The same bytes once more, on a device of their own: whatever else reads block devices on this
        machine (udev, blkid) may have kept a page of the image before, through ``drop_cache``, and a
        filesystem that finds an old superblock on a new disk does not mount."""
        image.restore()
        image.lay(self.recording.log, cut.pieces)
        fresh = machine.LoopDevice(image.path)
        try:
            faults = self.judge.judge(fresh, promised, independently=independently)
        finally:
            fresh.close()
        self.result.mounted_anew += 1
        return faults
