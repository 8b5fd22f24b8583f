"""Any sequence of append, acknowledgement, flush, kill, full disk, restart, resume, recovery and read,
against a model of what must be readable.

The writer runs in a process that is really killed; the model is the oracle of the kill suite, which lives
here. Power cuts are among the rules of a second machine, which works on small disks of its own: their
filesystem is shut down without writing what it still held back (``tests/power`` goes further, to every order
in which a disk may have written). ``./tools/prove machine`` tries many more sequences.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.faults.disks import LoopDisk
from tests.properties.readers import READERS, with_zarr_python

from shardwright.array.grid import Grid
from shardwright.disk.files import sync_directory
from shardwright.model.receipt import Receipt

from . import puppet
from .kills.oracle import Oracle
from .kills.processes import Created, Refused, Said, recover
from .kills.scenes import IO_MODES, Append, Scene, spec_of
from .kills.trial import WORKSPACE, digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fork_server import ForkServer

    import shardwright as sw

SPECS = {
    "deep chunks": spec_of(("t", None, 3, 2), ("y", 8, 8, 1), ("x", 12, 6, 1), chunk_checksum=True),
    "shallow chunks": spec_of(("t", None, 1, 3), ("y", 8, 4, 2), ("x", 12, 12, 1), frame_fields=("dose",)),
    "two axes": spec_of(
        ("t", None, 2, 1), ("z", 3, 1, 2), ("y", 8, 8, 1), ("x", 12, 12, 1), index_location="start"
    ),
}
REACH = 5  # how far from the newest place a frame may fall


def when(
    condition: Callable[[AcquisitionMachine], bool],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The rule does nothing while ``condition`` does not hold. No precondition: when a process dies of its
    threads' race with a kill or a full disk is not the same each time, and hypothesis wants the same rules on
    offer when it tries a sequence again."""

    def decorate(method: Callable[..., None]) -> Callable[..., None]:
        @wraps(method)
        def guarded(self: AcquisitionMachine, **values: object) -> None:
            if condition(self):
                method(self, **values)

        return guarded

    return decorate


class AcquisitionMachine(RuleBasedStateMachine):
    """States: running (``strings``), dead (a wreck on disk), ended (sealed or recovered; a new acquisition
    may begin)."""

    server: ForkServer
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=self.folder))
        self.number = 0
        self.strings: puppet.Strings | None = None
        self.ended = True
        self.failed = False

    @initialize(spec=st.sampled_from(sorted(SPECS)), io=st.sampled_from(IO_MODES))
    def choose(self, spec: str, io: str) -> None:
        self.spec: sw.ArraySpec = SPECS[spec]
        self.grid = Grid.of(self.spec)
        self.io = io
        self.begin_another()

    # ------------------------------------------------------------------ lives

    @rule()
    @when(lambda self: self.ended)
    def start(self) -> None:
        self.begin_another()

    def begin_another(self) -> None:
        self.number += 1
        self.store = self.place / f"{self.number}.ome.zarr"
        self.oracle = Oracle(Scene("machine", self.spec, (Append(0, 0),), late=True))
        self.script: list[Append] = []
        self.newest = self.durable = 0
        self.begin(fresh=True)

    @rule()
    @when(lambda self: self.is_dead)
    def resume(self) -> None:
        self.begin(fresh=False)

    def begin(self, *, fresh: bool) -> None:
        self.strings = puppet.Strings(self.server, self.store, self.spec, self.io, fresh)
        told = self.strings.told
        assert isinstance(told, Created), told
        self.base = self.next_sequence = told.frames
        self.oracle.listen([told], len(self.script))
        assert self.oracle.complaints == []
        self.ended = self.failed = False

    @property
    def is_running(self) -> bool:
        return self.strings is not None and not self.failed

    @property
    def is_dead(self) -> bool:
        return self.strings is None and not self.ended

    def order(self, order: object) -> object:
        """None when the puppet died of it."""
        assert self.strings is not None
        try:
            return self.strings.order(order)
        except puppet.Died:
            self.cut()
            return None

    def hear(self, answer: object) -> None:
        """A watermark is a promise; a refusal ends the acquisition's taking in."""
        if isinstance(answer, Said):
            assert self.oracle.stored <= answer.stored <= self.next_sequence
            assert answer.durable <= answer.stored
            self.oracle.stored = answer.stored
            self.durable = max(self.durable, answer.durable)
            self.oracle.promised.update(range(self.base, answer.stored))
        elif isinstance(answer, Refused):
            assert answer.code == "storage_full", answer
            self.failed = True

    # ------------------------------------------------------------------ frames

    @rule(
        step=st.sampled_from([1, 1, 1, 1, 0, 2, -1, -2, 3, REACH]),
        blank=st.sampled_from([False] * 9 + [True]),
    )
    @when(lambda self: self.is_running)
    def append(self, step: int, blank: bool) -> None:
        """The next place, one that was skipped, one that was sent before, or one further on."""
        place = max(0, self.newest + step) if self.script else 0
        n = len(self.script)
        frame = Append(place, 0 if blank else n + 1)
        self.script.append(frame)
        self.oracle.scene = replace(self.oracle.scene, steps=tuple(self.script))
        self.newest = max(self.newest, place)
        self.oracle.sent[self.next_sequence] = n
        self.next_sequence += 1
        self.hear(
            self.order(puppet.Append(self.grid.index_of(place), frame.seed, self.oracle.scene.frame_id(n)))
        )

    @rule()
    @when(lambda self: self.is_running)
    def acknowledge(self) -> None:
        self.hear(self.order(puppet.Tell()))

    @rule()
    @when(lambda self: self.is_running)
    def flush(self) -> None:
        answer = self.order(puppet.Flush())
        self.hear(answer)
        if isinstance(answer, Said):
            assert answer.durable == self.next_sequence, "flush waits until everything is durable"

    # ------------------------------------------------------------------ misfortune

    @rule()
    @when(lambda self: self.strings is not None)
    def kill(self) -> None:
        self.cut()

    def cut(self) -> None:
        """SIGKILL, or gather up what was killed already."""
        assert self.strings is not None
        self.strings.cut()
        self.strings = None

    @rule(call=st.integers(1, 60))
    @when(lambda self: self.is_running)
    def die_soon(self, call: int) -> None:
        self.hear(self.order(puppet.DieAt(call)))

    @rule()
    @when(lambda self: self.is_running)
    def fill_the_disk(self) -> None:
        self.hear(self.order(puppet.FillDisk()))

    # ------------------------------------------------------------------ ends

    @rule(reader=st.sampled_from(sorted(READERS)))
    @when(lambda self: self.is_running)
    def finish(self, reader: str) -> None:
        receipt = self.order(puppet.Finish())
        if isinstance(receipt, dict):
            assert Receipt.from_dict(receipt).frames_received >= self.next_sequence - self.base
            self.oracle.promised.update(range(self.base, self.next_sequence))
            self.durable = self.next_sequence
            self.end(reader)
        else:
            self.hear(receipt)

    @rule()
    @when(lambda self: self.failed and self.strings is not None)
    def finish_after_failure(self) -> None:
        """On a full disk everything that was promised is sealed; the error comes again."""
        answer = self.order(puppet.Finish())
        assert answer is None or isinstance(answer, Refused)
        if answer is not None:
            self.end("zarr-python")

    @rule(reader=st.sampled_from(sorted(READERS)))
    @when(lambda self: self.is_dead)
    def recover(self, reader: str) -> None:
        self.recover_store()
        self.end(reader)

    def recover_store(self) -> None:
        child = self.server.start(recover, self.store, 0)
        child.channel.send("go")
        messages = child.drain()
        assert child.wait() == 0, messages

    def end(self, reader: str) -> None:
        """The store is whole: nothing of ours is left in it, every promise holds, a recovery finds nothing to
        do."""
        if self.strings is not None:
            self.cut()
        if self.failed and (self.store / WORKSPACE).exists():
            self.recover_store()
        assert not (self.store / WORKSPACE).exists()
        assert self.oracle.judge_store(self.store, READERS[reader]) == []
        before = digest(self.store)
        self.recover_store()
        assert digest(self.store) == before
        self.ended, self.failed = True, False

    @invariant()
    def read(self) -> None:
        """At any moment, with the writer running or dead: every final shard is complete and true."""
        if not self.ended and self.script:
            assert self.oracle.judge_final_shards(self.store) == []

    def teardown(self) -> None:
        try:
            if self.strings is not None:
                self.cut()
            if not self.ended and self.store.exists():
                self.recover_store()
                assert self.oracle.judge_store(self.store, with_zarr_python) == []
        finally:
            shutil.rmtree(self.place)


class PowerCuts(AcquisitionMachine):
    """The same on a disk whose power fails: then only what was durable is still promised."""

    disk: LoopDisk

    def __init__(self) -> None:
        super().__init__()
        sync_directory(self.folder)  # the test's own folder outlives every cut

    @rule()
    @when(lambda self: self.is_running or self.is_dead)
    def cut_power(self) -> None:
        if self.strings is not None:
            self.cut()
        self.disk.cut_power()
        self.oracle.promised = {sequence for sequence in self.oracle.promised if sequence < self.durable}
        self.oracle.stored = self.durable

    @rule(reader=st.sampled_from(sorted(READERS)))
    @when(lambda self: self.ended and self.script)
    def cut_power_after_the_end(self, reader: str) -> None:
        """Sealed or recovered is durable as a whole."""
        before = digest(self.store)
        self.disk.cut_power()
        assert digest(self.store) == before
        assert self.oracle.judge_store(self.store, READERS[reader]) == []

    def teardown(self) -> None:
        super().teardown()
        sync_directory(self.folder)  # or the next cut brings back what was deleted here, and fills the disk


# ``tools/prove machine`` tries five hundred sequences, each as long.
SEQUENCES = settings(stateful_step_count=40)
if settings.get_current_profile_name() == "quick":
    SEQUENCES = settings(SEQUENCES, max_examples=12)


@pytest.fixture
def machine(server: ForkServer, tmp_path: Path) -> type[AcquisitionMachine]:
    return type("Machine", (AcquisitionMachine,), {"server": server, "folder": tmp_path})


def test_whatever_happens_in_whatever_order(machine: type[AcquisitionMachine]) -> None:
    run_state_machine_as_test(machine, settings=SEQUENCES)


@pytest.mark.parametrize("format_name", ["ext4", pytest.param("xfs", marks=pytest.mark.slow)])
def test_whatever_happens_when_the_power_fails_too(server: ForkServer, format_name: str) -> None:
    with LoopDisk(format_name, nbytes=200 << 20) as disk:
        made = type("Machine", (PowerCuts,), {"server": server, "folder": disk.path, "disk": disk})
        run_state_machine_as_test(made, settings=SEQUENCES)
