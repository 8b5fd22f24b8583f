"""The way of an OPEN request, from the message to its answer; the table is in PROTOCOL.md.

    Openings.open        the request waits in line
    Openings.advance     each round: decides what it asks for (new, resume, reopen)
    Arms                 has the plan already, if a program has armed the acquisition
    BlockingExecutor     plans a new acquisition: of one with thousands of images that takes seconds
    Admission            checks it against the settings and the budget
    BlockingExecutor     makes the store, the ring, or resumes a store from disk, in its own threads
    Openings.advance     in a later round: makes a session of the outcome and answers

Everything here runs in the ingest thread and never waits: a request that cannot be answered yet stays in line
and is looked at again each round.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwright.acquire.limits import RUNTIME_BYTES, Limits
from shardwright.array.ome import acquisition_warnings
from shardwright.disk.allocation_reserve import AllocationReserve
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    BudgetError,
    FencedError,
    LockedError,
    ResumeError,
    SessionLostError,
    ShardwrightError,
    StreamUnclearError,
)
from shardwright.model.names import acquisition_name
from shardwright.wire.controls import Problem
from shardwright.wire.messages import Kind
from shardwright.wire.session_tables import DaemonEvent, DaemonState

from .arms import Armed, Arms, is_open_already
from .blocking_executor import taken
from .session import ClientLease, Session
from .totals import CLIENT_STREAM
from .transport.inbound_byte_limit import FURTHER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.acquire.acquisition import Acquisition
    from shardwright.disk.ring import Ring
    from shardwright.model.promise import Promise
    from shardwright.model.write_settings import WriteSettings
    from shardwright.wire.controls import Open, Resume

    from .blocking_executor import BlockingExecutor
    from .open_admission import Admission, FoundAs, Planned
    from .registry import Sessions
    from .session import OnEvent, Send
    from .transport.client_state import Client

LOCK_RETRY_S = 0.5
MAX_WAITING = 1024  # requests of one client: as many as it can have acquisitions to resume


@dataclass(eq=False)
class Pending:
    """An OPEN that is not answered yet."""

    client: Client
    request: Open
    plan: Promise[Planned] | None = None  # of a new acquisition that is not admitted yet
    armed: Armed | None = None  # what it takes up
    # What the executor prepares: a new acquisition for ``admitted``, or a ring for ``session``. Its outcome
    # is taken even if the client is gone: nobody else would free it.
    work: Promise[Any] | None = None
    admitted: Planned | None = None
    session: Session | None = None
    # Of a store that is not open here. Several requests may wait for one recovery.
    recovery: Promise[tuple[Acquisition, FoundAs]] | None = None
    # Counted against the budget while the memory is made, from the decision on: between two decisions another
    # request must not be promised the same bytes. Then the session counts them.
    more_bytes: int = 0
    message_bytes: int = 0  # of them, for pixels in messages
    # A client may resume at this daemon while another one, which is about to die, still holds the store.
    patient_until_s: float = 0.0
    next_look_s: float = 0.0  # at its lock


class Openings:
    """The OPEN requests that wait for an answer, and their preparations. ``send`` takes a
    message for a client, ``probe`` finds out whether a client can still be reached."""

    def __init__(
        self,
        admission: Admission,
        sessions: Sessions,
        executor: BlockingExecutor,
        *,
        send: Send,
        probe: Callable[[Client], bool],
        on_event: OnEvent,
        resume_timeout_ms: int,
    ) -> None:
        self._admission = admission
        self._sessions = sessions
        self._executor = executor
        self._send = send
        self._probe = probe
        self._on_event = on_event
        self._patience_s = resume_timeout_ms / 1000
        self.arms = Arms(executor.plan_armed, self._is_open, sessions.name_goes_to_another, on_event)
        self._pending: list[Pending] = []  # in the order in which they came, and are decided
        # By store, so that it is recovered once, whoever asks: a client, several, or the daemon's start.
        self._recoveries: dict[Path, Promise[tuple[Acquisition, FoundAs]]] = {}
        self._stopping = False
        # The one field that another thread sets: kernels are compiled, workers run. Before, an acquisition
        # would be open whose ring fills while nothing stores it.
        self._prepared = threading.Event()
        self._prepared.set()
        self._unfinished: list[Path] = []  # to be recovered once prepared
        self._reserve = AllocationReserve(executor.submit)
        # The last client that acquired. The workers' buffers are kept for its next acquisition, and no longer
        # than it is there: an idle daemon gives its memory back.
        self._last_client: Client | None = None
        self._buffers_needed = (0, 0)  # by each worker: scratch, slots

    @property
    def busy(self) -> int:
        """The number of acquisitions that a thread is still preparing."""
        return sum(pending.work is not None for pending in self._pending) + len(self._recoveries)

    def adopt(self, paths: Iterable[Path]) -> None:
        """Recovers unfinished stores of an earlier process: each becomes a session without a client. Before
        the loop runs."""
        self._unfinished += paths

    def hold(self) -> None:
        """Opens and recovers nothing before ``let_go``: requests wait. Before the loop runs."""
        self._prepared.clear()

    def let_go(self) -> None:
        """Ends ``hold``. From any thread."""
        self._prepared.set()

    def open(self, client: Client, request: Open) -> None:
        """Puts a request in line; refuses it where its client has too many there."""
        pending = Pending(client, request, patient_until_s=time.monotonic() + self._patience_s)
        if sum(other.client is client for other in self._pending) < MAX_WAITING:
            self._pending.append(pending)
        else:
            self._refuse(
                pending,
                ErrorText(
                    BudgetError, "too many requests at once", f"at most {MAX_WAITING} that are not answered"
                ),
            )

    def arm(
        self, request: Open, waits_s: float, answer: Promise[Callable[[], dict[str, Any]]], before_s: float
    ) -> None:
        """As ``Arms.arm``; the same request again, once its camera has come, is answered as well. Raises
        ``SessionLostError``, too."""
        if self._stopping:
            raise SessionLostError("the daemon is stopping")
        path = self._admission.path_of(request.name)
        session = self._sessions.of_path(path)
        if session is not None and session.armed_as == request:
            answer.keep(session.description)
        elif self._is_open(path):
            raise is_open_already(request.name)
        else:
            self.arms.arm(request, waits_s, answer, before_s)

    def _is_open(self, path: Path) -> bool:
        """Returns whether a store is open, or being opened but for the camera that takes it up."""
        return (
            self._sessions.of_path(path) is not None
            or path in self._recoveries
            or any(
                other.armed is None and other.admitted is not None and other.admitted.path == path
                for other in self._pending
            )
        )

    def acquisition_ended(self) -> None:
        """Called when a session has ended and its memory is free."""
        self._reserve.ended()

    def client_gone(self, client: Client) -> None:
        """Drops the requests of a client; the outcome of one that is being prepared is handled when it is
        done."""
        self._pending = [
            pending for pending in self._pending if pending.client is not client or pending.work is not None
        ]
        self._reserve.forget(client)

    def begin_stop(self) -> None:
        """Refuses requests from now on, and leaves unfinished stores to the next start."""
        self._stopping = True
        self.arms.end()
        self._executor.cancel_recoveries()

    def advance(self) -> None:
        """One round: takes what the executor has prepared, then decides each request in line."""
        self._executor.fail_if_dead()
        self.arms.advance({pending.armed for pending in self._pending if pending.armed is not None})
        if not self._prepared.is_set() and not self._stopping:
            return
        self._recover_unfinished()
        self._take_recovered()
        for pending in list(self._pending):
            try:
                answered = self._advance(pending)
            except Exception as error:  # noqa: BLE001 - a defect that a client's spec can provoke must not end the others
                self._refuse(
                    pending,
                    ErrorText.of(
                        error, ShardwrightError("the daemon failed to open this acquisition", got=repr(error))
                    ),
                )
                answered = True
            if answered:
                self._pending.remove(pending)

    def _advance(self, pending: Pending) -> bool:
        """Returns True when the request is answered, or need not be."""
        if pending.work is not None:
            return pending.work.done() and self._take_work(pending)
        if pending.client.gone:
            return True
        if self._stopping:
            raise SessionLostError("the daemon is stopping")
        if pending.request.resume is not None:
            return self._resume(pending, pending.request.resume)
        if (session := self._sessions.of_opening(pending.request.opening)) is not None:
            return self._open_again(pending, session)
        if self._is_prepared_already(pending):
            return False
        if pending.request.reopen:
            return self._reopen(pending)
        return self._create(pending)

    # Decisions
    # ----------------------------------------------------------------------------------------------------

    def _create(self, pending: Pending) -> bool:
        armed, request = self.arms.meant_by(pending.request), pending.request
        plan = self._plan_of(pending) if armed is None else armed.plan
        if plan is None or not plan.done():
            return False
        if (why := plan.failure()) is not None:
            self._refuse(pending, why)
            return True
        admitted, pending.plan = plan.result(), None
        if armed is not None:
            self._admission.check_same_array(request, admitted.spec, admitted.settings.live)
            self._admission.check_same_stream(request, admitted.stream)
            pending.armed = armed
        self._admission.check_sessions_of_client(self._sessions_of(pending.client))
        being_made = [other.admitted for other in self._pending if other.admitted is not None]
        sessions = len(self._sessions) + len(being_made)
        self._admission.admit(admitted, pending.request, sessions, self._memory_bytes(), self._descriptors())
        known = self._sessions.of_path(admitted.path) is not None or admitted.path in self._recoveries
        known = known or any(other.path == admitted.path for other in being_made)
        if known and admitted.settings.name_taken != "increment":
            raise taken(admitted.path, unfinished=True)
        pending.admitted, pending.more_bytes = admitted, admitted.limits.bytes_with(pending.request.transport)
        self._expect(pending, admitted.limits.ring_bytes)
        pending.work = self._executor.create(admitted, pending.client, pending.request.transport)
        return False

    def _plan_of(self, pending: Pending) -> Promise[Planned] | None:
        """Begins the plan of a new acquisition, one at a time of each client: a plan of thousands of images
        has tens of MiB, and a client may have a thousand requests in line."""
        planning = any(other.plan is not None for other in self._pending if other.client is pending.client)
        if pending.plan is None and not planning:
            pending.plan = self._executor.plan(pending.request)
        return pending.plan

    def _is_prepared_already(self, pending: Pending) -> bool:
        """Returns whether the same OPEN came over an earlier connection, and its outcome is not there yet."""
        opening = pending.request.opening
        return opening is not None and any(
            other.work is not None and other.request.opening == opening for other in self._pending
        )

    def _open_again(self, pending: Pending, session: Session) -> bool:
        """The same OPEN has come before: its answer was lost with an earlier connection. So the client has
        sent no frame, and gets what it was given then."""
        if session.busy or session.state in (DaemonState.FINISHING, DaemonState.DRAINING):
            return False  # the answer waits until it has ended, and leaves its name
        session.lose_client(ErrorText(SessionLostError, "its client came back over another connection"))
        return self._hand_over(pending, session, session.acquisition.limits.ring_frames)

    def _sessions_of(self, client: Client) -> int:
        """Returns how many acquisitions a client has open, or is about to have. Those that wait for it to
        come back count."""
        open_ones = sum(
            session.client is not None and session.client.is_same_user(client) for session in self._sessions
        )
        return open_ones + sum(
            other.work is not None and other.client.is_same_user(client) for other in self._pending
        )

    def _resume(self, pending: Pending, resume: Resume) -> bool:
        session = self._sessions.of_identity(resume.acquisition)
        if session is None:
            return self._resume_absent(pending, resume)
        _check_epoch(resume, session.acquisition.client_epoch)
        if session.busy or session.state in (DaemonState.FINISHING, DaemonState.DRAINING):
            return False  # the answer waits; it will be the receipt
        credit, came = session.credit, session.acquisition.next_sequence
        if came > resume.next_sequence or credit.ring_slots not in (0, resume.ring_slots):
            expected = f"next_sequence {came} or more" + (
                f", {credit.ring_slots} slots" if credit.ring_slots else ""
            )
            got = f"{resume.next_sequence}, {resume.ring_slots} slots"
            raise ResumeError("the client's numbers do not fit its acquisition", expected=expected, got=got)
        session.lose_client(ErrorText(SessionLostError, "its client came back over another connection"))
        return self._hand_over(pending, session, resume.ring_slots)

    def _resume_absent(self, pending: Pending, resume: Resume) -> bool:
        ended = self._sessions.ended(resume.acquisition)
        if ended is not None:
            _check_epoch(resume, ended.client_epoch)
            self._refuse(pending, ended.why, receipt=ended.receipt)
            return True
        if self._recovery_failed(pending):
            raise ResumeError(
                "this acquisition is not known here",
                expected="one that is open or unfinished",
                got=resume.acquisition,
            )
        return False

    def _reopen(self, pending: Pending) -> bool:
        path = self._admission.path_of(pending.request.name)
        session = self._sessions.of_path(path)
        if session is None:
            if any(other.admitted is not None and other.admitted.path == path for other in self._pending):
                raise LockedError("another client is opening this acquisition", got=str(path))
            if self._recovery_failed(pending):
                raise ResumeError("this acquisition has ended", expected="an unfinished one", got=str(path))
            return False
        if session.busy:
            return False
        if session.state in (DaemonState.AWAIT_RING, DaemonState.RUNNING):
            assert session.lease is not None
            if self._probe(session.lease.client):
                holder = session.lease.client.hello
                hint = "It can be reopened once that client has ended"
                raise LockedError(
                    "a client is attached to this acquisition",
                    got=f"process {holder.pid} on {holder.host}",
                    hint=hint,
                )
            return False
        if session.state is not DaemonState.DETACHED:
            raise ResumeError(
                "this acquisition is being finished", expected="an unfinished one", got=str(path)
            )
        # By what the store was made with: one of an earlier release may have gone on under the configuration
        # of today.
        live = session.acquisition.settings.live
        self._admission.check_same_array(pending.request, session.acquisition.spec, live)
        self._admission.check_same_stream(pending.request, session.stream)
        self._admission.check_sessions_of_client(self._sessions_of(pending.client))
        return self._hand_over(pending, session, session.acquisition.limits.ring_frames)

    def _hand_over(self, pending: Pending, session: Session, ring_slots: int) -> bool:
        """Prepares the session for its next client once there is memory: the earlier ring may still be in
        use."""
        request, acquisition = pending.request, session.acquisition
        self._admission.check_transport(request, acquisition.limits)
        more = session.bytes_to_attach(ring_slots, request.transport)
        self._admission.check_memory(more, 0)
        try:
            self._admission.check_memory(more, self._memory_bytes())
        except BudgetError:
            return False
        self._expect(pending, ring_slots * acquisition.limits.frame_bytes)
        pending.session, pending.more_bytes = session, more
        # Without a token nobody can tell whether it has asked before. To count it twice costs nothing; not to
        # count it lets the earlier client come back, and take the new one's frames for its own.
        is_another = request.reopen and (request.opening is None or request.opening != session.opening)
        session.busy, session.paused = True, is_another
        expected = request.frames_expected or session.frames_expected
        another = partial(acquisition.new_client, session.stream, expected)
        count = another if is_another else lambda: None
        pending.work = self._executor.hand_over(
            acquisition, pending.client, ring_slots, request.transport, count
        )
        return False

    # What the executor has done
    # ----------------------------------------------------------------------------------------------------

    def _take_work(self, pending: Pending) -> bool:
        assert pending.work is not None
        work, pending.work, pending.more_bytes, pending.message_bytes = pending.work, None, 0, 0
        if pending.session is not None:
            session, pending.session = pending.session, None
            session.busy = session.paused = False
            return self._take_hand_over(pending, session, work)
        assert pending.admitted is not None
        admitted, pending.admitted = pending.admitted, None
        acquisition, ring = work.result()
        session = self._session_of(acquisition, admitted.settings, admitted.stream, recovered=False)
        session.frames_expected = admitted.frames_expected or session.frames_expected
        self._add(session)
        if (armed := pending.armed) is not None:
            # Behind ``_add``: at each moment others find one of the two. And before the flag is read, which
            # who stops it sets before looking for the session.
            self.arms.take(armed)
            session.armed_as = armed.request
            if armed.stop_asked:  # only ever set: another thread may do the same just now
                session.stop_asked = True
        self._attach(pending, session, ring)
        facts = {"host": pending.client.hello.host, "transport": pending.request.transport}
        session.tell("acquisition_opened", facts)
        for warning in acquisition_warnings(admitted.spec, admitted.settings.profile):
            session.tell("layout_warning", {"warning": warning})
        if pending.client.gone:
            session.end_early(
                DaemonEvent.CLIENT_LEFT,
                ErrorText(SessionLostError, "the client left while its acquisition was being opened"),
            )
        return True

    def _session_of(
        self, acquisition: Acquisition, settings: WriteSettings, stream: str, *, recovered: bool
    ) -> Session:
        return Session(
            acquisition,
            settings,
            stream,
            recovered=recovered,
            on_event=self._on_event,
            room_bytes=self._room_bytes,
        )

    def _add(self, session: Session) -> None:
        """Adds a session. Its low water may have changed while its acquisition was being made."""
        session.acquisition.warn_below(self._admission.low_water_bytes)
        self._sessions.add(session)

    def _take_hand_over(self, pending: Pending, session: Session, work: Promise[Ring | None]) -> bool:
        """Returns False when the session has changed meanwhile: the request is then decided again."""
        ring = work.result()
        if pending.client.gone or self._stopping or not self._attach(pending, session, ring):
            if ring is not None:
                ring.close()
            return False
        facts = {"host": pending.client.hello.host, "client_epoch": session.acquisition.client_epoch}
        session.tell("acquisition_reopened" if pending.request.reopen else "acquisition_resumed", facts)
        return True

    def _attach(self, pending: Pending, session: Session, ring: Ring | None) -> bool:
        lease = ClientLease(pending.client, ring, self._send)
        if not session.attach(lease, pending.request):
            return False
        self._sessions.attached(session, lease)
        client = pending.client
        has = sum(
            each.message_bytes
            for each in self._sessions
            if each.lease is not None and each.lease.client is client
        )
        client.most_credit_bytes = max(client.most_credit_bytes, has)
        return True

    def _recover_unfinished(self) -> None:
        unfinished, self._unfinished = self._unfinished, []
        if not self._stopping:
            for path in unfinished:
                self._recover(path)

    def _recover(
        self, path: Path, stream: str | None = None, *, goes_on: bool = False
    ) -> Promise[tuple[Acquisition, FoundAs]]:
        """``goes_on``: also a finished store, if its client asks for it by name. One that comes back after a
        lost connection does not: what it had sent is in its receipt."""
        if path not in self._recoveries:
            self._recoveries[path] = self._executor.recover(path, stream, goes_on=goes_on)
        return self._recoveries[path]

    def _recovery_failed(self, pending: Pending) -> bool:
        """Looks for the acquisition on disk, once for each request. Returns True when it was not found there;
        raises what went wrong."""
        now_s = time.monotonic()
        if now_s < pending.next_look_s:
            return False
        stream = _stream_named(pending.request)
        if pending.recovery is None:
            path = self._admission.path_of(pending.request.name)
            pending.recovery = self._recover(path, stream, goes_on=pending.request.reopen)
        if pending.recovery in self._recoveries.values():
            return False
        why = pending.recovery.failure()
        if why is not None and why.is_a(StreamUnclearError) and stream is not None:
            pending.recovery = None  # it was begun for nobody, and this client knows the stream
            return False
        if (
            why is not None
            and why.is_a(LockedError)
            and pending.request.resume is not None
            and now_s < pending.patient_until_s
        ):
            # the process that holds it may be about to die
            pending.recovery, pending.next_look_s = None, now_s + LOCK_RETRY_S
            return False
        if why is not None:
            raise why.to_error()
        return True

    def _take_recovered(self) -> None:
        for path, recovery in [
            (path, recovery) for path, recovery in self._recoveries.items() if recovery.done()
        ]:
            del self._recoveries[path]
            if recovery.cancelled():
                continue
            if (why := recovery.failure()) is not None:
                unclear = why.is_a(StreamUnclearError)
                event = "acquisition_unopened_warning" if unclear else "acquisition_recovery_failed"
                name = acquisition_name(path.name)
                self._on_event(event, {"name": name, "path": str(path), **why.as_facts()})
                continue
            acquisition, found = recovery.result()
            session = self._session_of(acquisition, found.settings, found.stream, recovered=True)
            session.frames_expected = found.frames_expected or session.frames_expected
            self._add(session)
            facts = {"identity": acquisition.identity, "frames": acquisition.next_sequence}
            session.tell("acquisition_recovered", facts)

    def _refuse(self, pending: Pending, why: ErrorText, receipt: Any = None) -> None:
        client, request = pending.client, pending.request
        event = "acquisition_refused" if why.trace is None else "acquisition_open_failed"
        stream = {} if request.stream is None else {"stream": request.stream}
        facts = {"name": request.name, **stream, "host": client.hello.host}
        self._on_event(event, {**facts, **why.as_facts()})
        problem = Problem(why, fatal=False, request=request.request, receipt=receipt)
        self._send(client, client.counter.control(Kind.ERROR, problem.to_body()))

    # Memory and descriptors
    # ----------------------------------------------------------------------------------------------------

    def give_back_idle_memory(self) -> None:
        """Called from time to time: gives back memory of the reserve and of workers that is kept for no
        client."""
        if self._last_client is None or self._last_client.gone:
            self._limit_buffers()
        # a trim holds up the acquisitions that run: it has the lock of the heap
        tolerated_bytes = FURTHER_BYTES if len(self._sessions) > 0 else 0
        self._reserve.tick(self._in_messages(), self._planned_bytes(), tolerated_bytes)

    def beyond_plan(self) -> int:
        """Returns how much more memory this process has than planned for all that is open or being opened."""
        return self._reserve.beyond_plan(self._in_messages(), self._planned_bytes())

    def _planned_bytes(self) -> int:
        """The memory that this process may have. That of a recovery is known when it is done: until then it
        is the whole budget."""
        in_plans = sum(limits.worker_bytes for limits in self._limits())
        kept = max(0, self._executor.pool.buffer_bytes - in_plans)
        planned_bytes = (
            self._memory_bytes() + sum(session.unclaimed_bytes for session in self._sessions) + kept
        )
        if self._recoveries:
            planned_bytes = max(planned_bytes, self._admission.budget_bytes)
        return RUNTIME_BYTES + planned_bytes

    def trim(self) -> None:
        """Gives free memory back to the system, a moment later. Called when memory is short."""
        self._reserve.trim()

    @property
    def is_trimming(self) -> bool:
        """True while memory is still being given back to the system."""
        return self._reserve.is_trimming

    def _expect(self, pending: Pending, ring_bytes: int) -> None:
        """Called before a request's memory is made: pixels in messages use the reserve's memory, a ring takes
        the place of unused memory."""
        self._last_client = pending.client
        self._limit_buffers()
        if pending.request.transport == "message":
            self._reserve.expect(pending.client, ring_bytes, self._in_messages())
            pending.message_bytes = ring_bytes
        else:
            self._reserve.make_room(self._in_messages())

    def _limit_buffers(self) -> None:
        """Gives back buffers of workers that no acquisition needs that is open or being opened, before any
        other memory is made ready. They grow with the largest chunks."""
        limits = self._limits()
        needed = (
            max((each.scratch_bytes for each in limits), default=0),
            max((each.buffer_bytes for each in limits), default=0),
        )
        if needed != self._buffers_needed:
            self._buffers_needed = needed
            self._executor.submit(self._executor.pool.keep_buffers, *needed)
            self._reserve.trim()  # after it: the buffers may be pieces of the heap

    def _in_messages(self) -> int:
        being_made = sum(pending.message_bytes for pending in self._pending)
        return being_made + sum(
            session.acquisition.limits.ring_bytes for session in self._sessions if session.pixels_in_messages
        )

    def _descriptors(self) -> int:
        return sum(each.descriptors for each in self._limits())

    def _limits(self) -> list[Limits]:
        """The limits of all acquisitions that are open or being opened."""
        limits = [session.acquisition.limits for session in self._sessions]
        return limits + [pending.admitted.limits for pending in self._pending if pending.admitted is not None]

    def _room_bytes(self) -> int:
        """The memory of the budget that no acquisition has."""
        return self._admission.budget_bytes - self._memory_bytes()

    def _memory_bytes(self) -> int:
        return sum(pending.more_bytes for pending in self._pending) + sum(
            session.memory_bytes for session in self._sessions
        )


def _stream_named(request: Open) -> str | None:
    """Returns the stream of an acquisition that is not open here, as its client knows it; None if the client
    need not know. The one that opened it does, also that it was none."""
    return request.stream or (CLIENT_STREAM if request.resume is not None else None)


def _check_epoch(resume: Resume, epoch: int) -> None:
    if resume.client_epoch < epoch:
        raise FencedError(
            "another client has taken this acquisition over",
            expected=f"client_epoch {epoch}",
            got=resume.client_epoch,
        )
    if resume.client_epoch > epoch:
        raise ResumeError(
            "no such client of this acquisition", expected=f"client_epoch {epoch}", got=resume.client_epoch
        )
