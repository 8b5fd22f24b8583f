"""``python -m shardwright.integrations.micromanager``: runs a useq sequence with a configuration of
Micro-Manager into a store, or through the daemon."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import shardwright as sw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from useq import MDASequence

PROGRESS_S = 2.0
EXIT_CANCELLED = 130


class _ProgressLines:
    """Lines on standard error, at most every two seconds."""

    def __init__(self) -> None:
        self._begin_s = self._last_s = time.monotonic()

    def __call__(self, frames: int, expected: int | None) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < PROGRESS_S and frames != expected:
            return
        self._last_s = now_s
        rate = frames / max(now_s - self._begin_s, 1e-9)
        left = "" if expected is None else f", {(expected - frames) / rate:.0f} s left"
        of = "" if expected is None else f" of {expected}"
        print(f"{frames}{of} frames, {rate:.1f} a second{left}", file=sys.stderr, flush=True)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.integrations.micromanager", description=__doc__
    )
    parser.add_argument("config", help="of Micro-Manager: a .cfg file; 'demo' is its simulated microscope")
    parser.add_argument("sequence", type=Path, help="a useq sequence, YAML or JSON")
    parser.add_argument("output", help="the store to write; with --daemon the name of the acquisition")
    parser.add_argument("--daemon", metavar="ENDPOINT", help="write through the daemon at this endpoint")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a finished store (not with --daemon)"
    )
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for an error, 130 for a run that was cancelled (Ctrl-C, SIGTERM), whose
    frames are sealed. With ``--json`` an error is a document, too, as of every command."""
    options = _arguments(words)
    try:
        return _run(options)
    except sw.errors.ShardwrightError as error:
        told = error
    except (OSError, RuntimeError, ValueError) as error:  # of Micro-Manager and its engine
        told = sw.errors.ShardwrightError(str(error))
    print(f"Error: {told}", file=sys.stderr)
    if options.json:
        print(json.dumps({"ok": False, "error": told.to_dict()}))
    return 1


def _sequence(path: Path) -> MDASequence:
    from useq import MDASequence

    try:
        return MDASequence.from_file(path)
    except Exception as error:  # noqa: BLE001  (parsers of YAML and JSON raise many classes)
        hint = "It is a useq MDASequence in YAML or JSON"
        raise sw.errors.ConfigError(f"{path} is no sequence", got=str(error), hint=hint) from None


def _run(options: argparse.Namespace) -> int:
    from pymmcore_plus import CMMCorePlus

    from shardwright.integrations.micromanager import acquire

    sequence = _sequence(options.sequence)
    core = CMMCorePlus()
    core.loadSystemConfiguration("MMConfig_demo.cfg" if options.config == "demo" else options.config)
    stopped: list[int] = []

    def cancel(*_: object) -> None:
        if stopped:
            core.mda.cancel()  # nothing before the run has begun

    def stop(number: int, _: Any) -> None:
        stopped.append(number)
        # the engine, which this may interrupt, holds a lock now and then that cancel takes
        Thread(target=cancel).start()

    core.mda.events.sequenceStarted.connect(cancel)
    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, stop))
        if options.daemon:
            output: Any = partial(stack.enter_context(sw.connect(options.daemon)).acquire, options.output)
        else:
            output = partial(sw.create, options.output, overwrite=options.overwrite)
        receipt = acquire(core, sequence, output, on_frame=_ProgressLines())
    if receipt is not None:
        print(receipt.to_json() if options.json else receipt)
    return EXIT_CANCELLED if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
