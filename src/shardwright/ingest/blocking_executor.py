"""The blocking executor: makes the calls that wait for a disk or for memory, or that take long, in threads
beside the ingest thread.

    planner thread     the plans of new acquisitions: of one with thousands of images it takes seconds
    opener thread      new stores, rings, the hand-over to another client, memory that is given back
    recovery thread    unfinished stores of an earlier process, one after another
    look-up thread     what programs ask that are no cameras: plans to arm, receipts of finished stores

The ingest thread submits a call and finds its outcome in a promise. When a thread dies, the calls that wait
for it fail.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from shardwright.disk import beneath
from shardwright.disk.allocation_reserve import make_ready
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import OutputExistsError, OverloadError, ResumeError, WorkerError
from shardwright.model.names import WORKSPACE
from shardwright.model.promise import Promise
from shardwright.recovery.resume import manifest_of
from shardwright.scan.unfinished_store import unfinished_beside
from shardwright.shard.manifest import find_manifest
from shardwright.store.replaced_store import unfinished as unfinished_store

from .account import stored_account

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.acquire.acquisition import Acquisition
    from shardwright.acquire.workers import WorkerPool
    from shardwright.disk.ring import Ring, SpareRing
    from shardwright.wire.controls import Open

    from .open_admission import Admission, FoundAs, Planned
    from .transport.client_state import Client

    _Call = tuple[Promise[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]

MOST_LOOK_UPS = 64


class BlockingExecutor:
    """Owned by the ingest thread. ``open_acquisition(path, spec, limits, pool, wake, settings, *, stream,
    frames_expected)`` makes a store, ``resume_acquisition(path, pool, wake, settings, limits_of, *,
    goes_on)`` resumes one from disk; ``wake`` is called from a thread after each call that it made."""

    def __init__(
        self,
        pool: WorkerPool,
        rings: SpareRing,
        admission: Admission,
        wake: Callable[[], None],
        open_acquisition: Callable[..., Acquisition],
        resume_acquisition: Callable[..., Acquisition],
    ) -> None:
        self.pool = pool
        self._rings = rings
        self._admission = admission
        self._wake = wake
        self._open_acquisition = open_acquisition
        self._resume_acquisition = resume_acquisition
        # A recovery may take minutes, and cameras that open a new store do not wait for it. A request that is
        # refused waits for no disk.
        self._planner = _CallThread("shardwright-planner", wake)
        self._opener = _CallThread("shardwright-opener", wake)
        self._recoverer = _CallThread("shardwright-recovery", wake)
        self._looker = _CallThread("shardwright-look-up", wake)  # no camera waits for it
        self._threads = (self._planner, self._opener, self._recoverer, self._looker)

    # The ingest thread
    # ----------------------------------------------------------------------------------------------------

    def plan(self, request: Open) -> Promise[Planned]:
        """Plans a new acquisition: its specification and its limits."""
        return self._planner.submit(self._admission.plan, request)

    def plan_armed(self, request: Open) -> Promise[Planned]:
        """Plans an acquisition that is to be armed, and looks whether its name is free."""
        return self._looker.submit(self._plan_armed, request)

    def look_up(self, path: Path, promise: Promise[dict[str, Any]]) -> None:
        """Settles ``promise`` with ``stored_account``. Raises ``OverloadError`` while a disk that hangs has
        ``MOST_LOOK_UPS`` wait: who asked may be gone, and ask again."""
        if self._looker.waiting >= MOST_LOOK_UPS:
            raise OverloadError(
                "too many stores are being looked up", expected=f"at most {MOST_LOOK_UPS}", hint="Ask again"
            )
        self._looker.submit_for(promise, stored_account, path)

    def create(
        self, admitted: Planned, client: Client, transport: str
    ) -> Promise[tuple[Acquisition, Ring | None]]:
        """Makes a new store, its first shards, and the ring or the memory for messages."""
        return self._opener.submit(self._create, admitted, client, transport)

    def hand_over(
        self,
        acquisition: Acquisition,
        client: Client,
        ring_slots: int,
        transport: str,
        count: Callable[[], object],
    ) -> Promise[Ring | None]:
        """Makes the ring, or the memory for messages, of an acquisition's next client. ``count`` is called
        then: it records the epoch of a client that did not have it before."""
        return self._opener.submit(self._hand_over, acquisition, client, ring_slots, transport, count)

    def recover(
        self, path: Path, stream: str | None, *, goes_on: bool
    ) -> Promise[tuple[Acquisition, FoundAs]]:
        """Resumes an unfinished store, and a finished one if that ``goes_on``; waits for those that were
        submitted before. ``stream``: as for ``Admission.found_as``."""
        return self._recoverer.submit(self._recover, path, stream, goes_on=goes_on)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Promise[Any]:
        """Makes any other call in the opener thread."""
        return self._opener.submit(call, *arguments)

    def dead_threads(self) -> list[str]:
        """The names of threads that died. From any thread."""
        return [thread.name for thread in self._threads if not thread.alive()]

    def fail_if_dead(self) -> None:
        """Fails the calls that wait for a dead thread, with ``WorkerError``."""
        for thread in self._threads:
            thread.fail_if_dead()

    def cancel_recoveries(self) -> None:
        """Cancels recoveries that have not begun: those stores wait for the next start."""
        self._recoverer.cancel_waiting()

    def close(self) -> None:
        """Drops what has not begun; does not wait for what has."""
        for thread in self._threads:
            thread.close()

    # Its threads
    # ----------------------------------------------------------------------------------------------------

    def _plan_armed(self, request: Open) -> Planned:
        planned = self._admission.plan(request, overrides=True)
        unfinished = beneath.exists(planned.path / WORKSPACE)
        if unfinished or (planned.settings.name_taken != "overwrite" and beneath.exists(planned.path)):
            raise taken(planned.path, unfinished=unfinished)
        if planned.settings.name_taken == "increment":  # the path that was told must be the one that comes
            return replace(planned, settings=replace(planned.settings, name_taken="fail"))
        return planned

    def _create(self, admitted: Planned, client: Client, transport: str) -> tuple[Acquisition, Ring | None]:
        """The ring's memory, then the store and its first shards. The ingest thread owns both afterwards."""
        ring = self._memory(client, admitted.limits.ring_frames, admitted.limits.frame_bytes, transport)
        try:
            return self._open_acquisition(
                admitted.path,
                admitted.spec,
                admitted.limits,
                self.pool,
                self._wake,
                admitted.settings,
                stream=admitted.stream,
                frames_expected=admitted.frames_expected,
            ), ring
        except BaseException as error:
            if ring is not None:
                ring.close()
            if isinstance(error, OutputExistsError) and admitted.settings.name_taken != "overwrite":
                raise taken(admitted.path, unfinished=beneath.exists(admitted.path / WORKSPACE)) from None
            raise

    def _hand_over(
        self,
        acquisition: Acquisition,
        client: Client,
        ring_slots: int,
        transport: str,
        count: Callable[[], object],
    ) -> Ring | None:
        ring = self._memory(client, ring_slots, acquisition.limits.frame_bytes, transport)
        try:
            count()
        except BaseException:
            if ring is not None:
                ring.close()
            raise
        return ring

    def _memory(self, client: Client, ring_slots: int, frame_bytes: int, transport: str) -> Ring | None:
        """Memory for as many frames as the client may have on the way: its ring, or None once the heap has
        room for its messages."""
        if transport == "shm":
            return self._rings.take(client, ring_slots * frame_bytes)
        self._rings.release()  # its memory was admitted for something else
        make_ready(ring_slots * frame_bytes)
        return None

    def _recover(self, path: Path, stream: str | None, *, goes_on: bool) -> tuple[Acquisition, FoundAs]:
        if not beneath.exists(path):
            raise ResumeError(
                "there is nothing to resume",
                expected="an unfinished acquisition",
                got=str(path),
                hint=unfinished_beside(path),
            )
        manifest = manifest_of(path) if goes_on else find_manifest(path / WORKSPACE)
        found = self._admission.found_as(manifest, stream)
        acquisition = self._resume_acquisition(
            path, self.pool, self._wake, found.settings, found.limits_of, goes_on=goes_on
        )
        return acquisition, found


def taken(path: Path, *, unfinished: bool) -> OutputExistsError:
    """The error for a name that has a store already."""
    if unfinished:
        return unfinished_store(path)
    hint = (
        "`acquire(..., reopen=True)` goes on with it. For another one choose another name, or set "
        "output.name_taken of the daemon to increment, or to overwrite if a finished store may go"
    )
    return OutputExistsError(
        "the output exists", expected="a name that is not taken", got=str(path), hint=hint
    )


class _CallThread:
    """One thread that makes calls in the order of ``submit``. Owned by the ingest thread; ``alive`` may be
    called from any.

    It keeps nothing of a call that was made: the outcome belongs to the holder of the promise.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.name = name
        self._wake = wake
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._promises: weakref.WeakSet[Promise[Any]] = weakref.WeakSet()  # those that are still awaited
        self._died = False
        self._closed = False
        # started with the first call
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        self.submit_for(promise, call, *arguments, **options)
        return promise

    def submit_for(
        self, promise: Promise[Any], call: Callable[..., Any], *arguments: Any, **options: Any
    ) -> None:
        self._promises.add(promise)
        self._calls.put((promise, call, arguments, options))
        if self._thread.ident is None:
            self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of calls that have not begun."""
        return self._calls.qsize()

    def alive(self) -> bool:
        """True until the thread ended without ``close``. It notes its end itself: ``Thread.is_alive`` is also
        False while a thread starts, and the daemon would end for that."""
        return self._closed or not self._died

    def fail_if_dead(self) -> None:
        """Fails the waiting calls of a dead thread, with ``WorkerError``."""
        if not self.alive():
            for promise in list(self._promises):
                promise.fail(ErrorText(WorkerError, f"the thread {self.name} died"))

    def cancel_waiting(self) -> None:
        """Cancels the calls that have not begun."""
        with suppress(Empty):
            while (waiting := self._calls.get_nowait()) is not None:
                waiting[0].cancel()

    def close(self) -> None:
        """Drops the calls that have not begun; does not wait for the one that has."""
        self._closed = True
        self._calls.put(None)

    def _work(self) -> None:
        try:
            while (waiting := self._calls.get()) is not None and not self._closed:
                self._make(*waiting)
                del waiting  # the outcome may be large, and this thread waits for long
                self._wake()
                if self._died:
                    return
        finally:
            self._died = True

    def _make(
        self,
        promise: Promise[Any],
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        """Makes one call. An error that ends threads ends this one, and reaches the waiting thread as
        text."""
        try:
            promise.keep(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001  (travels in the promise, as text)
            promise.fail(ErrorText.of(error))
        except BaseException as error:  # noqa: BLE001
            self._died = True
            promise.fail(ErrorText.of(error, WorkerError(f"the thread {self.name} died: {error!r}")))
