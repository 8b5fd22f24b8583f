"""One contender in its own process: reads commands as lines of JSON, answers each with one line.

{"do": "round", "name": N}   -> {"seconds": S, "stored_bytes": N}     the time includes the final sync
{"do": "verify", "name": N}  -> {}                                    of the last round's output
{"do": "clear", "name": N}   -> {}                                    deletes it, and waits until the disk is
at rest
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from .cases import Case, load_frames
from .peers import contender_class
from .peers.contender import Contender, sync_tree


def timed_round(contender: Contender, path: Path, folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    stored_bytes = contender.write(path)
    sync_tree(folder)
    return {"seconds": time.perf_counter() - start, "stored_bytes": stored_bytes}


def serve(contender: Contender, folder: Path, answers: TextIO) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        path = folder / command["name"]
        answer: dict[str, Any] = {}
        if command["do"] == "round":
            answer = timed_round(contender, path, folder)
        elif command["do"] == "verify":
            contender.verify(path)
        else:
            for old in folder.iterdir():
                if old.is_dir():  # a daemon keeps files of its own beside its stores
                    shutil.rmtree(old)
            os.sync()
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    name, frames_path, folder, case_json = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not talk into the answers
    case, own = Case.from_json(case_json), Path(folder)
    own.mkdir(parents=True)
    contender = contender_class(name)(case, load_frames(Path(frames_path), case))
    contender.start(own)
    try:
        ready = {
            "kind": contender.kind,
            "pids": contender.processes(),
            "frames_held_bytes": contender.frames_held_bytes(),
            "planned_memory_bytes": contender.planned_memory_bytes(),
        }
        print(json.dumps(ready), file=answers, flush=True)
        serve(contender, own, answers)
    finally:
        contender.stop()


if __name__ == "__main__":
    main()
