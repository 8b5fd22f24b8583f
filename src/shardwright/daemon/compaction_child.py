"""The process that compacts one store for the daemon: ``shardwright compact``, at idle priority. It never
outlives the daemon.

The process is made idle right after its start, not the thread that starts it: a thread of the daemon at idle
priority would hold the interpreter's lock while it waits for a processor.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

from shardwright.repack.runtime.throttle import make_idle

from .child import end_child, start_child, take

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardwright.config.model import Compaction

_ERROR_TAIL_BYTES = 4096
COMPACT = ("-m", "shardwright.cli", "compact")
USAGE = 2  # exit code: the same command fails the next time, too


def compact_command(store: Path, options: Compaction) -> list[str]:
    """Returns the command line that compacts one store as configured."""
    command = [
        sys.executable,
        *COMPACT,
        str(store),
        "--order",
        options.order,
        "--workers",
        str(options.workers),
        "--json",
    ]
    command += [] if options.recompress is None else ["--recompress", options.recompress]
    return command + ([] if options.rate is None else ["--rate", str(options.rate)])


class CompactionChild:
    """The compaction process. The constructor starts it (``OSError`` when that fails); call ``poll``
    regularly, and ``stop`` to end it. For one thread, which must outlive it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = start_child(command)
        make_idle(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = (self._process.stdout, self._process.stderr)
        self._output = self._errors = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code once it has ended, negative for a signal. Collects its output so far."""
        code = self._process.poll()
        self._output += take(self._pipes[0])
        # it writes a line every two seconds, for days
        self._errors = (self._errors + take(self._pipes[1]))[-_ERROR_TAIL_BYTES:]
        return code

    def report(self) -> dict[str, Any]:
        """Returns its report on the store; empty when it wrote none."""
        try:
            (report,) = json.loads(self._output)["stores"]
        except (ValueError, KeyError, TypeError):
            return {}
        return report if isinstance(report, dict) else {}

    def why(self, code: int) -> str:
        """Returns the error in one line, after ``poll`` returned ``code``."""
        report = self.report()
        failures: dict[str, Any] = {
            **report.get("failures", {}),
            **({report["path"]: report["error"]} if "error" in report else {}),
        }
        if failures:
            name, error = next(iter(failures.items()))
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            return f"{name}: {' '.join(str(error.get('message')).split())}{more}"
        if code < 0:
            return f"ended by a signal: {signal.strsignal(-code) or -code}"
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {code}"

    def stop(self, timeout_s: float) -> None:
        """Ends it by SIGTERM, and after ``timeout_s`` by SIGKILL, which also ends its workers."""
        end_child(self._process, timeout_s)

    def close(self) -> None:
        """Closes the pipes, once it has ended."""
        for pipe in self._pipes:
            pipe.close()
