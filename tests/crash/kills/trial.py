"""One kill from beginning to verdict: an acquisition dies, what it left is judged, brought back or continued,
and judged again."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from tests.harness.levels import level_problems
from tests.properties.readers import READERS

from shardwright.array.frame_table_format import TABLE_PATH
from shardwright.model.frame_status import FrameStatus
from shardwright.read.shard_file import ShardFile
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.shard.index import EMPTY

from .oracle import Oracle
from .plans import AtCall, Plan, carry_out
from .processes import Recovered, Refused, acquire, recover, resume_and_send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fork_server import ForkServer

    from shardwright.read.store import StoredArray

    from .scenes import Scene

WORKSPACE = ".shardwright"
ENDINGS = ("recover", "resume", "recover killed", "resume killed")
GOING_ON = ("resume", "resume killed")
KILLED = -9


@dataclass(frozen=True)
class Trial:
    """``second`` in [0, 1) says where in its run the second victim (a recovery, a resumed writer) is killed.
    ``early_end``: the first victim is told to close after so many frames, and the acquisition goes on with
    the others all the same."""

    scene: Scene
    io: str
    plan: Plan | None
    ending: str
    second: float = 0.5
    read_with: str = "zarr-python"
    early_end: int | None = None

    def __str__(self) -> str:
        end = "" if self.early_end is None else f" ended after {self.early_end} frames,"
        return (
            f"{self.scene.name}, {self.io},{end} killed at {self.plan}, then {self.ending} "
            f"({self.second:.2f})"
        )


@dataclass
class Verdict:
    trial: Trial
    kills: int = 0
    promised: int = 0
    problems: list[str] = field(default_factory=list)


class TrialRun:
    """``folder`` is this trial's own; the caller deletes it, or keeps it for a look."""

    def __init__(self, server: ForkServer, trial: Trial, folder: Path) -> None:
        self._server = server
        self._trial = trial
        self._store = folder / "killed.ome.zarr"
        self._oracle = Oracle(trial.scene)
        self._verdict = Verdict(trial)
        self._read = READERS[trial.read_with]

    def run(self) -> Verdict:
        trial, oracle = self._trial, self._oracle
        scene = trial.scene if trial.early_end is None else trial.scene.until(trial.early_end)
        messages = self._live(trial.plan, acquire, scene, self._store, trial.io)
        oracle.listen(messages, stop=trial.early_end)
        if oracle.sealed is not None:
            oracle.scene = scene  # it got to its end: nobody can go on
        self._judge_final_shards()
        if self._store.exists():
            self._bring_back()
        elif oracle.created:
            self._complain("the store is gone")
        self._verdict.promised = len(oracle.promised)
        self._verdict.problems += oracle.complaints
        return self._verdict

    def _bring_back(self) -> None:
        if not self._oracle.created:  # killed inside create: nothing was promised, but recovery must cope
            self._recover(self._store)
            return
        if self._trial.ending.startswith("resume") and self._unfinished():
            self._resume()
        if self._trial.ending == "recover killed" and self._unfinished():
            self._recover_in_two_goes()
        else:
            self._recover(self._store)
        self._judge_store()

    def _unfinished(self) -> bool:
        return (self._store / WORKSPACE).exists()

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
        control = self._store.parent / "control" / self._store.name  # which a plate's metadata have
        shutil.copytree(self._store, control, symlinks=True)
        recovered = self._recover(control)
        calls = len(recovered.points) if recovered else 0
        if calls:
            self._live(AtCall(1 + int(self._trial.second * calls)), recover, self._store)
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
            oracle.listen(
                self._live(
                    AtCall(1 + int(trial.second * 80)), resume_and_send, trial.scene, self._store, first
                ),
                first,
            )
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
        for problem in self._oracle.judge_final_shards(self._store):
            self._complain(problem)

    def _judge_store(self) -> None:
        if self._unfinished():
            self._complain("work in progress is left after recovery")
        if not self._store.exists():
            if self._oracle.promised:
                self._complain("the store is gone")
            return
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
    what readers saw before.
    """
    facts = {
        path: content for path, content in digest(store).items() if not path.startswith(f"{TABLE_PATH}/")
    }
    for array in open_store(store).arrays if grown else ():
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
        came = table["fate"][order] != FrameStatus.LOST
        for name, values in table.items():
            rows = values[order][came] if name in ("arrival_ns", "arrival_monotonic_ns") else values[order]
            facts[f"{TABLE_PATH}/{name}"] = rows.tobytes().hex()
    return facts


def chunks_of(array: StoredArray, path: Path) -> str:
    """The encoded chunks of a shard, each behind its length."""
    with ShardFile(array, path) as file:
        found = hashlib.sha256()
        for offset, nbytes in file.read_index().tolist():
            found.update(nbytes.to_bytes(8, "little"))
            if offset != EMPTY:
                chunk = bytearray(nbytes)
                file.read_into(offset, memoryview(chunk))
                found.update(chunk)
        return found.hexdigest()


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
