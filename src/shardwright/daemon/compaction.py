"""Compacts the stores that the daemon has sealed, one after another, in a process of its own, while the
cameras leave room for it.

    acquisition_ended ──▶ queued (a file in the store) ──after_s──▶ child ──▶ done: the file is deleted
                                                                     │ ▲
                                      the cameras need the machine: it waits like every job

    failed           tried again after 4 and 16 times after_s, then given up; the file holds the number of
                     failures
    disk low         the child is ended, which deletes its copies; its store is retried after_s later
    behind           a store waits longer than ``BEHIND_S``, once due: told once, until none does
    stop             the child is ended, and its store stays queued
    the next start   resumes every store that is queued
    scrub            while none is due, a finished store that was not read for 30 days is verified, by
                     ``shardwright repair`` in the same way; it repairs only if told to

The thread only polls ten times a second, also where nothing is to be compacted: other jobs wait for the
cameras as well (camera_needs.py). No error in it or in the child reaches the cameras.

The child is ``shardwright compact`` at idle priority, and never outlives the daemon. It is made idle right
after its start, not by the thread that starts it: a thread of the daemon at idle priority would hold the
interpreter's lock while it waits for a processor.
"""

from __future__ import annotations

import math
import queue
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.config.model import Compaction
from shardwright.disk.typed_errors import says_absent
from shardwright.model.errors import LinkError, LockedError, ShardwrightError, StorageError
from shardwright.model.json_text import parse_json
from shardwright.rework.jobs.scrub import due_stores, note_scrub
from shardwright.rework.runtime.child import end_child, start_child, take
from shardwright.rework.runtime.compaction_queue import QueueEntry, queue_entries
from shardwright.rework.runtime.throttle import make_idle

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .camera_needs import CameraNeeds

MAX_ATTEMPTS = 3
STOP_TIMEOUT_S = 15.0  # for the child to end its workers and clear up
BEHIND_S = 86_400.0
_LOOK_S = 0.1
_ERROR_TAIL_BYTES = 4096
_COMMAND = (sys.executable, "-m", "shardwright.cli")
_SCRUB_LOOK_S = 86_400.0  # after all stores were scrubbed that are due, or tried
USAGE = 2  # exit code: the same command fails the next time, too
_REPORTED = (
    "merged",
    "unmerged",
    "packed",
    "skipped",
    "left",
    "bytes_read",
    "bytes_written",
    "gain_bytes",
    "chunks_recoded",
    "seconds",
)
_SCRUBBED = ("restored", "problems")


class CompactionService:
    """The compaction of sealed stores. ``run`` is its thread; ``notice``, ``configure`` and ``close`` may be
    called from any."""

    def __init__(
        self,
        options: Compaction,
        root: Path,
        needs: CameraNeeds,
        emit: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._options = options
        self._root = root
        self._needs = needs
        self._emit = emit
        # options: they have changed; None: the queue ends
        self._sealed: queue.SimpleQueue[Path | Compaction | None] = queue.SimpleQueue()
        self._due_s: dict[QueueEntry, float] = {}  # in the order in which they were sealed
        self._first_due_s: dict[QueueEntry, float] = {}  # until it is compacted or given up
        self._is_behind = False
        self._job: _Job | None = None
        self._done = self._failures = self._scrubbed = self._scrub_failures = 0
        self._scrub_look_s = 0.0
        self._scrub_tried: set[Path] = set()  # since then, and not read to the end: they hold up no other
        self._died = False

    def snapshot(self) -> dict[str, Any]:
        """Returns the state; ``done`` and ``scrubbed`` count stores, ``failed`` attempts, ``scrub_failed``
        scrubs that found something wrong or did not end, since the start. If an error has
        ended ``run``, it is ``died``, and nothing is enabled. From any thread."""
        job = self._job
        return {
            "enabled": self._options.enabled and not self._died,
            "died": self._died,
            "queued": len(self._due_s) + self._sealed.qsize(),
            "running": None if job is None else str(job.store.root),
            "paused": job is not None and job.paused,
            "done": self._done,
            "failed": self._failures,
            "scrubbed": self._scrubbed,
            "scrub_failed": self._scrub_failures,
        }

    def notice(self, event: str, facts: Mapping[str, Any]) -> None:
        """Queues the store of an ended acquisition. Gets every event of ingest; never waits."""
        if event == "acquisition_ended" and facts["frames_stored"] and self._options.enabled:
            self._sealed.put(Path(facts["path"]))

    def configure(self, options: Compaction) -> None:
        """Changes the options; a store in work keeps its command. If disabled, that one is interrupted, and
        all stay queued."""
        self._options = options
        self._sealed.put(options)

    def close(self) -> None:
        """Ends the queue of sealed stores; ``run`` records the queued ones and ends."""
        self._sealed.put(None)

    def run(self, stop: threading.Event) -> None:
        """Runs until ``close``. After ``stop`` no store is worked on. An error in the work ends compaction,
        and nothing else: stores are queued for the next daemon, and jobs wait for cameras."""
        try:
            with self._dying():
                self._emit_errors(self._needs.begin)
                if self._options.enabled:
                    self._take_up()
                while self._take_sealed():
                    self._emit_errors(self._needs.look)
                    if stop.is_set() or self._died or not self._options.enabled:
                        self._interrupt()
                    else:
                        with self._dying():
                            self._work()
                            self._tell_if_behind()
        finally:
            self._interrupt()
            self._emit_errors(self._needs.end)

    @contextmanager
    def _dying(self) -> Iterator[None]:
        """A context whose error ends compaction: the cameras must not suffer for it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._died = True
            self._emit("compaction_died", {"error": f"{type(error).__name__}: {error}", "exc_info": error})

    def _emit_errors(self, action: Callable[[], None]) -> None:
        try:
            action()
        except ShardwrightError as error:
            self._emit("compaction_pause_failed", {"path": str(self._root), **error.to_dict()})

    def _take_up(self) -> None:
        """Queues the stores that an earlier daemon has left."""
        try:
            stores = queue_entries(self._root)
        except ShardwrightError as error:
            self._emit("compaction_take_up_failed", {"path": str(self._root), **error.to_dict()})
            return
        for store in stores:
            try:
                store.check_version()
            except ShardwrightError as error:
                self._emit("compaction_failed", {"path": str(store.root), **error.to_dict(), "again": False})
            else:
                if store not in self._due_s:
                    self._put_in_queue(store)

    def _take_sealed(self) -> bool:
        """Records a sealed store, after waiting for one for a moment; returns False once the queue has
        ended."""
        try:
            path = self._sealed.get(timeout=_LOOK_S)
        except queue.Empty:
            return True
        if path is None:
            return False
        if isinstance(path, Compaction):
            if path.enabled and self._job is None:
                self._take_up()  # the stores left when it was disabled
            return True
        store = QueueEntry(path)
        try:
            store.add()
            self._put_in_queue(store)
        except ShardwrightError as error:
            self._failures += 1
            self._emit("compaction_failed", {"path": str(path), **error.to_dict(), "again": False})
        return True

    def _put_in_queue(self, store: QueueEntry) -> None:
        """Puts a store behind the others, ``after_s`` from now."""
        self._due_s[store] = time.monotonic() + self._options.after_s
        self._first_due_s.setdefault(store, self._due_s[store])

    def _tell_if_behind(self) -> None:
        waited_s = time.monotonic() - min(self._first_due_s.values(), default=math.inf)
        is_behind = waited_s > BEHIND_S
        if is_behind and not self._is_behind:
            self._emit("compaction_behind", {"queued": len(self._first_due_s), "waited_s": waited_s})
        self._is_behind = is_behind

    def _work(self) -> None:
        if self._job is not None:
            self._look_after(self._job)
        elif self._needs.calm:
            now_s = time.monotonic()
            due = next((store for store, due_s in self._due_s.items() if due_s <= now_s), None)
            if due is not None:
                del self._due_s[due]
                self._begin(due)
            elif self._options.scrub != "none" and now_s >= self._scrub_look_s:
                self._begin_scrub(now_s)

    def _begin(self, store: QueueEntry) -> None:
        try:
            store.add(store.failures)  # the end of an earlier job of the same store has removed it
            self._job = _Job(store, CompactionChild(compact_command(store.root, self._options)))
        except (ShardwrightError, OSError) as error:
            self._failed(store, str(error), again=not _says_gone(error))
            return
        self._emit("compaction_begun", {"path": str(store.root), "pid": self._job.child.pid})

    def _begin_scrub(self, now_s: float) -> None:
        path = self._root
        try:
            path = next((one for one in due_stores(path) if one not in self._scrub_tried), path)
            if path == self._root:
                self._scrub_tried.clear()
                self._scrub_look_s = now_s + _SCRUB_LOOK_S
                return
            self._scrub_tried.add(path)
            child = CompactionChild(scrub_command(path, self._options))
        except (ShardwrightError, OSError) as error:
            self._scrub_look_s = now_s + _SCRUB_LOOK_S
            self._scrub_failures += 1
            self._emit("scrub_failed", {"path": str(path), "error": str(error)})
            return
        self._job = _Job(QueueEntry(path), child, is_scrub=True)
        self._emit("scrub_begun", {"path": str(path), "pid": child.pid})

    def _scrub_ended(self, job: _Job, code: int) -> None:
        path, report = job.store.root, job.child.report()
        if code and report.get("error", {}).get("code") == LockedError.code:
            return  # another job, or an acquisition, is at work on it: at the next look
        self._scrubbed += 1
        counts = {name: len(report[name]) for name in _SCRUBBED if name in report}
        if "problems" in report:
            try:
                note_scrub(path)
            except ShardwrightError as error:
                self._emit("compaction_record_failed", {"path": str(path), **error.to_dict()})
        if code == 0:
            self._emit("scrub_done", {"path": str(path), **counts})
        else:
            self._scrub_failures += 1
            facts = {"path": str(path), "error": job.child.why(code), **counts}
            self._emit("scrub_failed", {**facts, "hint": f"Try `shardwright repair {path}`"})

    def _look_after(self, job: _Job) -> None:
        path, needs = str(job.store.root), self._needs
        if (code := job.child.poll()) is not None:
            self._ended(job, code)
        elif needs.disk_low or not (needs.calm or needs.jobs_wait):
            self._end(job)
            if not job.is_scrub:
                self._due_s[job.store] = time.monotonic() + self._options.after_s
            why = (
                "Its copies take disk space that the cameras need"
                if needs.disk_low
                else "It could not be paused while the cameras need the machine"
            )
            self._emit(
                "compaction_interrupted",
                {"path": path, **needs.facts, "hint": f"{why}; it is retried later"},
            )
        elif not needs.calm and not job.paused:
            job.paused = True
            self._emit("compaction_paused", {"path": path, **needs.facts})
        elif needs.calm and job.paused:
            job.paused = False
            self._emit("compaction_resumed", {"path": path})

    def _ended(self, job: _Job, code: int) -> None:
        self._end(job)
        if job.is_scrub:
            self._scrub_ended(job, code)
        elif code == 0:
            self._done += 1
            self._forget(job.store)
            report = job.child.report()
            self._emit(
                "compaction_done",
                {"path": str(job.store.root), **{name: report[name] for name in _REPORTED if name in report}},
            )
        else:
            self._failed(job.store, job.child.why(code), again=code != USAGE)

    def _failed(self, store: QueueEntry, error: str, *, again: bool) -> None:
        """Queues a store again for later, or gives it up after a few attempts."""
        self._failures += 1
        failures = store.failures + 1
        again = again and failures < MAX_ATTEMPTS
        facts: dict[str, Any] = {"path": str(store.root), "error": error, "attempt": failures, "again": again}
        if again:
            wait_s = self._options.after_s * 4**failures
            self._due_s.setdefault(store, time.monotonic() + wait_s)
            facts["again_in_s"] = wait_s
            try:
                store.add(failures)
            except ShardwrightError as unrecorded:
                facts["unrecorded"] = str(unrecorded)
        else:
            self._forget(store)
            facts["hint"] = f"Try `shardwright compact {store.root}`"
        self._emit("compaction_failed", facts)

    def _forget(self, store: QueueEntry) -> None:
        """Removes a store from the queue, unless it was sealed once more meanwhile."""
        if store in self._due_s:
            self._first_due_s[store] = self._due_s[store]
            return
        self._first_due_s.pop(store, None)
        try:
            store.remove()
        except ShardwrightError as error:
            self._emit("compaction_record_failed", {"path": str(store.root), **error.to_dict()})

    def _end(self, job: _Job) -> None:
        """Ends the job and its child."""
        self._job = None
        if job.child.poll() is None:
            job.child.stop(STOP_TIMEOUT_S)
        job.child.close()

    def _interrupt(self) -> None:
        """Interrupts the job; its store stays queued."""
        job = self._job
        if job is None:
            return
        if (code := job.child.poll()) is not None:
            self._ended(job, code)
        else:
            self._end(job)
            self._emit(
                "compaction_interrupted",
                {"path": str(job.store.root), "hint": "The next start compacts it"},
            )


def _says_gone(error: Exception) -> bool:
    """Returns whether a store was deleted or moved away. Its error is asked, and not the disk once more: that
    look could fail as well, and would end the thread."""
    return isinstance(error, LinkError) or (isinstance(error, StorageError) and says_absent(error))


class _Job:
    """The store in work, and its process."""

    def __init__(self, store: QueueEntry, child: CompactionChild, *, is_scrub: bool = False) -> None:
        self.store = store
        self.is_scrub = is_scrub
        self.child = child
        self.paused = False


def compact_command(store: Path, options: Compaction) -> list[str]:
    """Returns the command line that compacts one store as configured."""
    command = [
        *_COMMAND,
        "compact",
        str(store),
        "--order",
        options.order,
        "--workers",
        str(options.workers),
        "--json",
    ]
    command += [] if options.recompress is None else ["--recompress", options.recompress]
    command += [] if options.parity is None else ["--parity", str(options.parity)]
    sizes = ",".join(f"{axis}={count}" for axis, count in options.shards.items())
    command += ["--shards", sizes] if sizes else []
    return command + ([] if options.rate is None else ["--rate", str(options.rate)])


def scrub_command(store: Path, options: Compaction) -> list[str]:
    """Returns the command line that reads and verifies one store, and repairs it if configured so."""
    command = [*_COMMAND, "repair", str(store), "--json"]
    command += [] if options.scrub == "repair" else ["--dry-run"]
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
            document = parse_json(self._output, may_be_nan=True)
            (report,) = document.get("stores", (document,))
        except (ValueError, AttributeError, TypeError):
            return {}
        return report if isinstance(report, dict) else {}

    def why(self, code: int) -> str:
        """Returns the error in one line, after ``poll`` returned ``code``."""
        report = self.report()
        failures: dict[str, Any] = {
            **report.get("failures", {}),
            **({report.get("path", "the store"): report["error"]} if "error" in report else {}),
        }
        failures = failures or {one["where"]: {"message": one["what"]} for one in report.get("problems", ())}
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
