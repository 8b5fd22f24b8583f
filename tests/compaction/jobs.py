"""The jobs, as processes run them: in one thread, one task after another, so that their storage calls come in
the same order every time."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from shardwright.disk import failpoints
from shardwright.disk.files import sync_directory
from shardwright.model.errors import OutputExistsError, ShardwrightError
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.rework.jobs.merge_shards import merge_shards
from shardwright.rework.jobs.pyramid_levels import PyramidOptions, add_levels
from shardwright.rework.jobs.rechunk_store import RechunkOptions, plan_new_store, write_new_store
from shardwright.rework.jobs.shard_parity import make_parity
from shardwright.rework.runtime.job_report import no_progress
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import Throttle
from shardwright.rework.transfer.move_plan import MoveOptions
from shardwright.rework.transfer.move_store import move_store
from shardwright.store.new_store import abandoned, remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.fork_server import Channel

STORE, MOVED, RECHUNKED = "run.ome.zarr", "away.ome.zarr", "new.ome.zarr"


class Here:
    """An executor: every task in this process."""

    workers = 1

    def run(self, tasks, _on_moved=None) -> Iterator[dict[str, Any]]:
        for task in tasks:
            yield run_task({**task, "throttle": {**task["throttle"], "idle": False}})

    def close(self) -> None: ...


def _pack(folder: Path) -> dict[str, Any]:
    return run(plan(open_store(folder / STORE), Options("morton")), Here()).to_dict()


def _recode(folder: Path) -> dict[str, Any]:
    return run(
        plan(open_store(folder / STORE), Options(recompress={"cname": "zstd", "clevel": 5, "shuffle": None})),
        Here(),
    ).to_dict()


def _describe(folder: Path) -> dict[str, Any]:
    return run(plan(open_store(folder / STORE), Options("morton", describe=True)), Here()).to_dict()


def _hdf5(folder: Path) -> dict[str, Any]:
    options = Options("morton", container="hdf5", describe=True)
    return run(plan(open_store(folder / STORE), options), Here()).to_dict()


def _move(folder: Path) -> dict[str, Any]:
    if not (folder / STORE).exists():  # killed after its last deed, and `recover` removes the emptied folder
        for emptied in abandoned(folder):
            remove_abandoned(emptied)
        return {"ok": True}
    return move_store(
        folder / STORE,
        MoveOptions(str(folder / MOVED), delete_source=True, throttle=Throttle(idle=False)),
        Here().run,
    ).to_dict()


def _pyramid(folder: Path) -> dict[str, Any]:
    return add_levels(folder / STORE, PyramidOptions(2), Here().run, throttle=Throttle(idle=False)).to_dict()


def _rechunk(folder: Path) -> dict[str, Any]:
    is_sharded = open_store(folder / STORE).arrays[0].is_sharded
    shards = {"y": 16, "x": 24} if is_sharded else None
    options = RechunkOptions({"z": 3, "y": 8, "x": 12}, shards, pyramid=PyramidOptions(1))
    try:
        report = write_new_store(
            plan_new_store(folder / STORE, options),
            folder / RECHUNKED,
            options,
            Here().run,
            throttle=Throttle(idle=False),
        )
    except OutputExistsError:  # a job that was killed after its last deed; who runs it again is told so
        return {"ok": True}
    return report.to_dict()


def _parity(folder: Path) -> dict[str, Any]:
    """Made, deleted as shards are packed, and made again."""
    for step in (_made, _pack, _made):
        report = step(folder)
        if not report["ok"]:
            break
    return report


def _made(folder: Path) -> dict[str, Any]:
    _, failures = make_parity(open_store(folder / STORE), 30, Throttle(idle=False), 1)
    return {"ok": not failures, "failures": {name: error.to_dict() for name, error in failures.items()}}


def _merge(folder: Path) -> dict[str, Any]:
    link, spilled = folder / STORE / "0/c/1/0/0", folder / "spill" / STORE / "0/c/1/0/0"
    if link.is_symlink():  # a store with spilled shards is left as it is
        spilled.replace(link)
        for parent in (link.parent, spilled.parent):
            sync_directory(parent)
    spilled.unlink(missing_ok=True)  # a power cut may have kept both names
    store, throttle = open_store(folder / STORE), Throttle(idle=False)
    merge = merge_shards(store, {"z": 8}, Here().run, throttle, no_progress)
    ok = not merge.failures and not merge.unmerged
    return {"ok": ok, "failures": merge.failures, "unmerged": merge.unmerged}


JOBS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "pack": _pack,
    "recode": _recode,
    "describe": _describe,
    "hdf5": _hdf5,
    "move": _move,
    "pyramid": _pyramid,
    "rechunk": _rechunk,
    "parity": _parity,
    "merge": _merge,
}
WITHOUT_SHARDS = ("recode", "pyramid", "rechunk", "merge")  # also of an image whose chunks are files
WHOLE = ("hdf5",)  # of a store without a spilled shard alone


def run_job(
    name: str, folder: Path, at_call: Callable[[int, str], None] = lambda _number, _point: None
) -> tuple[list[str], dict[str, Any]]:
    """``at_call(number, point)`` is called at each storage call, counted from 1. The points, and the job's
    report or its error."""
    points: list[str] = []

    def watch(point: str) -> None:
        points.append(point)
        at_call(len(points), point)

    failpoints.watch_all(watch)
    try:
        return points, JOBS[name](folder)
    except ShardwrightError as error:
        return points, {"ok": False, "error": error.to_dict()}
    finally:
        failpoints.watch_all(None)


def run_and_die(channel: Channel, name: str, folder: Path, call: int) -> None:
    """Dies at a storage call, or says what ``run_job`` returned; for call 0 the latter."""

    def kill(number: int, _point: str) -> None:
        if number == call:
            os.kill(os.getpid(), signal.SIGKILL)

    channel.send(run_job(name, folder, kill))
