"""``run_task``: the one function that every executor calls, here, in another process or on a cluster's
worker. A task goes in, a result comes out.

Both are plain JSON values. A task has ``kind`` and what that kind asks for, ``throttle`` (see
``Throttle.to_dict``) and, for messages, ``key``: what it makes. A result has ``kind``, ``key``, ``array``,
``shard`` (those two as the task gave them), ``ok``, ``bytes_read``, ``bytes_written``, ``seconds`` and,
unless ``ok``, ``error``, as ``ShardwrightError.to_dict`` describes it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterable
from importlib import import_module
from typing import Any

from shardwright.disk.files import storage_errors
from shardwright.model.errors import ShardwrightError

from .throttle import Throttle

Task = dict[str, Any]
Result = dict[str, Any]
Results = Generator[Result, None, None]
RunTasks = Callable[
    [Iterable[Task]], Results
]  # ``run_task`` on each, here or elsewhere; results as they come

# kind -> (module of this room, function). The name alone, since jobs and transfers lie above the runtime; a
# worker imports only what the kind of its task needs.
KINDS = {
    "pack": ("jobs.pack_shard", "pack_shard"),
    "move": ("transfer.transfer_item", "move_shard"),
    "check": ("transfer.transfer_item", "check_file"),
    "make": ("jobs.new_shard", "make_shard"),
}


def run_task(task: Task) -> Result:
    """Do one task. Faults of a shard or a disk are in the result and never raised: the other tasks
    continue."""
    begin_s = time.monotonic()
    try:
        result = _run(task)
    except ShardwrightError as error:
        result = {"ok": False, "error": error.to_dict()}
    except Exception as error:  # noqa: BLE001  (our own mistake in one task must not take the others with it; it is reported as one)
        traceback.print_exc()
        result = {
            "ok": False,
            "error": {"code": ShardwrightError.code, "message": f"{type(error).__name__}: {error}"},
        }
    return {**_blank(task), "seconds": time.monotonic() - begin_s, **result, **_about(task)}


def failed(task: Task, error: ShardwrightError) -> Result:
    """The result of a task that never came to an end of its own."""
    return {**_blank(task), "error": error.to_dict()}


def _blank(task: Task) -> Result:
    return {**_about(task), "ok": False, "bytes_read": 0, "bytes_written": 0, "seconds": 0.0}


def _about(task: Task) -> Result:
    return {"kind": task["kind"], "key": key_of(task), "array": task.get("array"), "shard": task.get("shard")}


def key_of(task: Task) -> str:
    """The name of what a task makes, for people."""
    return str(task.get("key") or f"{task.get('array', '')} {task.get('shard', '')}".strip())


def _run(task: Task) -> Result:
    module, function = KINDS[task["kind"]]
    throttle = Throttle.from_dict(task.get("throttle") or {})
    throttle.be_idle()
    with storage_errors("work on", key_of(task)):
        work = getattr(import_module(f"shardwright.rework.{module}"), function)
        result: Result = work(task, throttle)
    return result
