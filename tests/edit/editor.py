"""A process of its own that edits and recovers shards, each time in a child that may be killed at its N-th
call of storage. Reads a JSON line for each, writes one: {"died_at": the point, or null; "error": a code}."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardwright.edit.interrupted import recover_edits
from shardwright.edit.shard_edit import edit_shard
from shardwright.model.errors import ShardwrightError
from shardwright.read.store import parse_array
from shardwright.storage import failpoints

from .arrays import encoded, make_array

ROOT = Path(__file__).parents[2]


class Editor:
    """A context manager: the process, started once."""

    def __enter__(self) -> Editor:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.edit.editor"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def edit(self, array: Path, shard: tuple[int, ...], chunks: dict[int, bytes | None], **more: Any) -> Any:
        """``kill_at``: the number of the call, from 1."""
        encoded = [[number, None if data is None else data.hex()] for number, data in chunks.items()]
        return self._ask({"array": str(array), "shard": shard, "chunks": encoded, **more})

    def recover(self, array: Path, kill_at: int) -> Any:
        return self._ask({"array": str(array), "kill_at": kill_at})

    def _ask(self, order: dict[str, Any]) -> Any:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def obey(order: dict[str, Any], killed: int) -> None:
    """In the child. ``killed``: where it writes at which point it kills itself, or the code of an error."""
    calls = 0

    def watch(name: str) -> None:
        nonlocal calls
        calls += 1
        if calls == order.get("kill_at"):
            os.write(killed, f"at {name}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.watch_all(watch)
    array = parse_array(Path(order["array"]))
    try:
        if "chunks" not in order:
            recover_edits(array.path)
            return
        chunks = {number: None if data is None else bytes.fromhex(data) for number, data in order["chunks"]}
        edit_shard(array, tuple(order["shard"]), chunks, strategy=order["strategy"])
    except ShardwrightError as error:
        os.write(killed, error.code.encode())


def warm_up() -> None:
    """Load the kernels once, not in each child."""
    with tempfile.TemporaryDirectory() as folder:
        array = make_array(Path(folder) / "a", recorded=True)
        edit_shard(array, (0, 0), {0: encoded(array, 1), 1: encoded(array, 2)})
        for strategy in ("in_place", "append", "gap", "rewrite"):
            edit_shard(array, (0, 0), {0: encoded(array, 1)}, strategy=strategy)


def main() -> None:
    warm_up()
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            obey(json.loads(line), writing)
            os._exit(0)
        os.close(writing)
        said = os.read(reading, 1000).decode()
        os.close(reading)
        os.waitpid(child, 0)
        at = said.removeprefix("at ") if said.startswith("at ") else None
        print(json.dumps({"died_at": at, "error": None if at else said or None}), flush=True)


if __name__ == "__main__":
    main()
