"""One kill from beginning to verdict: an acquisition dies, what it left is judged, brought back or continued,
and judged again. If it dies while its store is made, its name stands for a store that can be recovered, for
the one that was to be overwritten, or for none."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from tests.harness.levels import level_problems
from tests.harness.store_contents import frame_table
from tests.properties.readers import READERS

import shardwright as sw
from shardwright.array.frame_table_format import TABLE_PATH
from shardwright.model.frame_status import FrameStatus
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.shard.index import EMPTY
from shardwright.shard.manifest import has_manifest
from shardwright.shard.sealed_shard import SealedShard

from .oracle import Oracle
from .plans import AtCall, Plan, carry_out
from .processes import Recovered, Refused, acquire, overwrite, recover, resume_and_send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fork_server import ForkServer

    from shardwright.read.store import StoredArray

    from .scenes import Scene

WORKSPACE = ".shardwright"
GOING_ON = ("resume", "resume killed", "resume after a killed recovery")
ENDINGS = ("recover", "recover killed", *GOING_ON)
KILLED = -9
RECOVERY_CALLS, RESUMED_CALLS = 60, 80  # about; who is asked to die at a later one lives


@dataclass(frozen=True)
class Trial:
    """``second`` in [0, 1) says where in its run the second victim (a recovery, a resumed writer) is killed.
    ``early_end``: the first victim is told to close after so many frames, and the acquisition goes on with
    the others all the same. ``overwrites``: a finished store has the name."""

    scene: Scene
    io: str
    plan: Plan | None
    ending: str
    second: float = 0.5
    read_with: str = "zarr-python"
    early_end: int | None = None
    overwrites: bool = False

    def __str__(self) -> str:
        end = "" if self.early_end is None else f" ended after {self.early_end} frames,"
        over = " overwriting," if self.overwrites else ""
        return (
            f"{self.scene.name}, {self.io},{over}{end} killed at {self.plan}, then {self.ending} "
            f"({self.second:.2f})"
        )

    def run(self, server: ForkServer, folder: Path) -> Verdict:
        """``folder`` is this trial's own; the caller deletes it, or keeps it for a look."""
        return _TrialRun(server, self, folder).run()


@dataclass
class Verdict:
    """``looks``: of the reader beside a daemon. ``spilled``: shards that went to the second root."""

    trial: str
    way: str
    kills: int = 0
    promised: int = 0
    looks: int = 0
    spilled: int = 0
    problems: list[str] = field(default_factory=list)


def store_of_before(store: Path) -> dict[str, str]:
    """Makes a finished store of another acquisition: its ``digest``."""
    with sw.create(store, shape=(3, 6, 8), dtype="uint16", axes="tyx", threads=1) as writer:
        for n in range(3):
            writer.append(np.full((6, 8), 7 + n, np.uint16))
    return digest(store)


class _TrialRun:
    def __init__(self, server: ForkServer, trial: Trial, folder: Path) -> None:
        self._server = server
        self._trial = trial
        self._store = folder / "acquired" / "killed.ome.zarr"
        self._store.parent.mkdir()
        self._oracle = Oracle(trial.scene)
        self._verdict = Verdict(str(trial), f"{type(trial.plan).__name__}, {trial.ending}")
        self._read = READERS[trial.read_with]
        self._before = store_of_before(self._store) if trial.overwrites else None
        self._sealed: set[Path] = set()

    def run(self) -> Verdict:
        trial, oracle = self._trial, self._oracle
        scene = trial.scene if trial.early_end is None else trial.scene.until(trial.early_end)
        messages = self._live(trial.plan, *self._acquire(scene))
        oracle.listen(messages, stop=trial.early_end)
        if oracle.sealed is not None:
            oracle.scene = scene  # it got to its end: nobody can go on
        self._judge_final_shards()
        if trial.scene.live != "none" and oracle.created:
            oracle.promised |= oracle.sequences_in(oracle.arrays(self._store, self._read))
        if oracle.created and not self._store.exists():
            self._complain("the store is gone")
        if trial.ending == "resume after a killed recovery":
            self._live(self._second_call(RECOVERY_CALLS), recover, self._store)
        if oracle.created:
            self._bring_back()
        else:
            self._begin_again()
        self._judge_name()
        self._verdict.promised = len(oracle.promised)
        self._verdict.problems += oracle.complaints
        return self._verdict

    def _acquire(self, scene: Scene) -> tuple[Any, ...]:
        return overwrite if self._trial.overwrites else acquire, scene, self._store, self._trial.io

    def _begin_again(self) -> None:
        """Killed inside of create: nothing was promised. Recovery leaves what was there before; without it
        the next creation begins, or, if there is a store, a writer that goes on."""
        if self._trial.ending.startswith("recover"):
            if self._trial.ending == "recover killed":
                self._live(self._second_call(RECOVERY_CALLS), recover, self._store)
            self._recover(self._store)
            if (digest(self._store) if self._store.exists() else None) != self._before:
                self._complain("a creation that was killed leaves another store than before")
            return
        if self._trial.ending != "resume" and self._can_be_resumed():
            self._resume()
            self._recover(self._store)  # clears the folder in which the store was made
        else:
            self._oracle.listen(self._live(None, *self._acquire(self._trial.scene)))
            if self._oracle.sealed is None:
                self._complain("the name is burned: no creation begins after one that was killed")
        self._judge_store()

    def _bring_back(self) -> None:
        if self._trial.ending in GOING_ON and self._can_be_resumed():
            self._resume()
        if self._trial.ending == "recover killed" and self._unfinished():
            self._recover_in_two_goes()
        else:
            self._recover(self._store)
        self._judge_store()

    def _is_as_before(self) -> bool:
        """Whether there is the store that was to be overwritten."""
        return self._before is not None and self._store.exists() and digest(self._store) == self._before

    def _second_call(self, calls: int) -> AtCall:
        return AtCall(1 + int(self._trial.second * calls))

    def _unfinished(self) -> bool:
        return (self._store / WORKSPACE).exists()

    def _can_be_resumed(self) -> bool:
        return has_manifest(self._store / WORKSPACE)

    # ------------------------------------------------------------------ victims

    def _live(self, plan: Plan | None, function: Callable[..., None], *arguments: Any) -> list[Any]:
        """Run one process until it ends or dies as planned; returns what it said."""
        call = plan.number if isinstance(plan, AtCall) else 0
        child = self._server.start(function, *arguments, call)
        carry_out(plan, child)
        messages = child.drain()
        status = child.wait()
        if status == KILLED and plan is not None:
            self._verdict.kills += 1
        elif status != 0:
            self._complain(f"{function.__name__} ended with {status}")
        return messages

    def _recover(self, store: Path) -> Recovered | None:
        """Recover, twice: the second time changes nothing."""
        messages = self._live(None, recover, store)
        if not messages or not isinstance(messages[-1], Recovered):
            self._complain(f"recovery failed: {messages[-1:]}")
            return None
        if lost := messages[-1].facts.get("frames_lost"):
            self._complain(f"a kill takes no acknowledged frame, but recovery says that {lost} are lost")
        if store.exists():
            before = digest(store)
            self._live(None, recover, store)
            if digest(store) != before:
                self._complain(f"a second recovery changed {sorted(differing(before, digest(store)))}")
        return messages[-1]

    def _recover_in_two_goes(self) -> None:
        """The same wreck twice: recovered in one go, and by a recovery that is killed on its way and started
        again."""
        control = self._store.parents[1] / "control" / self._store.name  # which a plate's metadata have
        shutil.copytree(self._store.parent, control.parent, symlinks=True)
        recovered = self._recover(control)
        calls = len(recovered.points) if recovered else 0
        if calls:
            self._live(self._second_call(calls), recover, self._store)
            self._judge_final_shards()
        self._recover(self._store)
        grown = self._trial.scene.live == "append"
        facts = [recovered_facts(store, grown=grown) for store in (control, self._store)]
        if other := differing(*facts):
            self._complain(f"a recovery that was killed and started again made other {sorted(other)}")

    def _resume(self) -> None:
        """Go on with it, perhaps into a second death, and then once more."""
        trial, oracle = self._trial, self._oracle
        if trial.ending == "resume killed":
            first = oracle.next_to_send
            call = self._second_call(RESUMED_CALLS)
            oracle.listen(self._live(call, resume_and_send, trial.scene, self._store, first), first)
            self._judge_final_shards()
            if not self._unfinished():
                return
        first = oracle.next_to_send
        messages = self._live(None, resume_and_send, trial.scene, self._store, first)
        oracle.listen(messages, first)
        finished = oracle.sealed is not None or (messages and isinstance(messages[-1], Refused))
        if not finished:
            self._complain("a resumed acquisition did not come to its end")

    # ------------------------------------------------------------------ judgement

    def _judge_final_shards(self) -> None:
        """A shard that was sealed has its name at any moment, also while its row takes frames again."""
        if self._is_as_before():
            return
        for problem in self._oracle.judge_final_shards(self._store):
            self._complain(problem)
        if self._trial.scene.live == "none":
            sealed = self._oracle.shard_files(self._store)
            if gone := self._sealed - sealed:
                self._complain(f"shards that were sealed are gone: {sorted(map(str, gone))}")
            self._sealed = sealed

    def _judge_name(self) -> None:
        """Nothing is left beside the store."""
        if names := {path.name for path in self._store.parent.iterdir()} - {self._store.name}:
            self._complain(f"left beside the store: {sorted(names)}")

    def _judge_store(self) -> None:
        if self._unfinished():
            self._complain("work in progress is left after recovery")
        if not self._store.exists() or self._is_as_before():
            if self._oracle.promised or (self._before is not None and not self._store.exists()):
                self._complain("the store is gone")
            return
        if self._before is not None and FrameStatus.STORED not in frame_table(self._store)["status"]:
            self._complain("a finished store went for one without a frame")
        if not self._trial.ending.startswith("resume"):
            for problem in self._oracle.judge_end(self._store, self._read):
                self._complain(problem)
        for problem in self._oracle.judge_store(self._store, self._read):
            self._complain(problem)
        for problem in level_problems(self._store):
            self._complain(problem)
        report = verify_store(self._store, threads=1)
        for problem in report.problems:
            self._complain(f"verify: {problem}")

    def _complain(self, problem: str) -> None:
        self._verdict.problems.append(problem)


def digest(store: Path) -> dict[str, str]:
    """Every file of a store by its path and what is in it."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    return {
        path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def recovered_facts(store: Path, *, grown: bool) -> dict[str, str]:
    """``digest``, but of the frame table its rows in the order of their sequences: it tells in which order
    things were written, too.

    A frame that is lost for good has the moment at which this was found out; that is not compared. Of the
    record of the shards the last line of each counts: a recovery that was killed before the rename leaves one
    more. Of shards that have ``grown`` for readers only the chunks are compared: where they lie depends on
    what readers saw before. A store that recovery removed, as it had no frame, has no facts.
    """
    facts = {
        path: content for path, content in digest(store).items() if not path.startswith(f"{TABLE_PATH}/")
    }
    for array in open_store(store).arrays if grown and facts else ():
        for key, coordinates in array.shard_files():
            if coordinates is not None:
                facts[(array.path / key).relative_to(store).as_posix()] = chunks_of(array, array.path / key)
    for path in [path for path in facts if path.endswith("/shards.crc32c")]:
        lines = {
            json.loads(line)["key"]: line
            for line in (store / path).read_text().splitlines()
            if line.endswith("}")
        }
        facts[path] = "\n".join(sorted(lines.values()))
    if (store / TABLE_PATH).exists():
        table = {
            name: np.asarray(column[:])
            for name, column in zarr.open_group(store / TABLE_PATH, mode="r").arrays()
        }
        order = np.argsort(table["sequence"], kind="stable")
        came = table["status"][order] != FrameStatus.LOST
        for name, values in table.items():
            rows = values[order][came] if name in ("arrival_ns", "arrival_monotonic_ns") else values[order]
            facts[f"{TABLE_PATH}/{name}"] = rows.tobytes().hex()
    return facts


def chunks_of(array: StoredArray, path: Path) -> str:
    """The encoded chunks of a shard, each behind its length."""
    with SealedShard.open(path, array.index) as file:
        found = hashlib.sha256()
        for offset, nbytes in file.entries.tolist():
            found.update(nbytes.to_bytes(8, "little"))
            if offset != EMPTY:
                found.update(file.file.read(offset, nbytes))
        return found.hexdigest()


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
