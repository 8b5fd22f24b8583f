"""How acquisitions are opened, found on disk, resumed and reopened: the table in PROTOCOL.md, and the threads
in which disks are waited for.

    opener thread      new stores, rings, the hand-over to another client
    recovery thread    unfinished stores of an earlier process, one after another, while everybody else is
                       served

Everything else here runs in the ingest thread and never waits: a request that cannot be answered yet stays in
line and is looked at again each round.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from shardwright.array.ome import layout_warnings
from shardwright.model.error_text import ErrorText
from shardwright.model.errors import (
    BudgetError,
    FencedError,
    LockedError,
    ResumeError,
    SessionLostError,
    ShardwrightError,
)
from shardwright.wire.controls import Problem
from shardwright.wire.messages import Kind
from shardwright.wire.session import DaemonEvent, DaemonState

from .attachment import Attachment
from .backstage import taken
from .message_room import MessageRoom
from .pending import Pending
from .session import Session
from .slow_thread import SlowThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.acquire.limits import Limits
    from shardwright.model.promise import Promise
    from shardwright.storage.ring import Ring
    from shardwright.wire.controls import Open, Resume

    from .acquisition_like import AcquisitionLike
    from .admission import Admission
    from .attachment import Send
    from .backstage import Backstage
    from .connection import Client
    from .registry import Sessions
    from .session import OnEvent

LOCK_RETRY_S = 0.5
MAX_WAITING = 1024  # requests of one client: as many as it can have acquisitions to resume


class Openings:
    """``send`` takes a message for a client, ``probe`` finds out whether a client can still be reached."""

    def __init__(
        self,
        admission: Admission,
        sessions: Sessions,
        backstage: Backstage,
        *,
        send: Send,
        probe: Callable[[Client], bool],
        on_event: OnEvent,
        resume_timeout_ms: int,
    ) -> None:
        self._admission = admission
        self._sessions = sessions
        self._backstage = backstage
        self._send = send
        self._probe = probe
        self._on_event = on_event
        self._patience_s = resume_timeout_ms / 1000
        self._pending: list[Pending] = []
        self._recoveries: dict[Path, Promise[AcquisitionLike]] = {}
        self._opener = SlowThread("shardwright-opener", backstage.wake)
        self._recoverer = SlowThread("shardwright-recovery", backstage.wake)
        self._stopping = False
        self._prepared = threading.Event()  # set from any thread
        self._prepared.set()
        self._unfinished: list[Path] = []  # to be taken up as soon as it is
        self._message_room = MessageRoom(self._opener.submit)
        # that acquired: what workers have is kept for its next acquisition
        self._last_client: Client | None = None
        self._buffers_needed = (0, 0)  # by each worker: scratch, slots

    @property
    def busy(self) -> int:
        """How many acquisitions a thread is still preparing."""
        return sum(pending.work is not None for pending in self._pending) + len(self._recoveries)

    def dead_threads(self) -> list[str]:
        """From any thread."""
        return [thread.name for thread in (self._opener, self._recoverer) if not thread.alive()]

    def adopt(self, paths: Iterable[Path]) -> None:
        """Unfinished stores of an earlier process: each becomes a session without a client. Before the loop
        runs."""
        self._unfinished += paths

    def hold(self) -> None:
        """Nothing is opened or taken up before ``let_go``; whoever asks waits. Before the loop runs."""
        self._prepared.clear()

    def let_go(self) -> None:
        """From any thread."""
        self._prepared.set()

    def open(self, client: Client, request: Open) -> None:
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

    def give_back_idle_memory(self) -> None:
        """What was made ready for pixels in messages, or workers have, and is kept for nobody."""
        if self._last_client is None or self._last_client.gone:
            self._limit_buffers()
        self._message_room.tick(self._in_messages(), self._planned_bytes(), acquiring=len(self._sessions) > 0)

    def beyond_plan(self) -> int:
        """How much more memory this process has than all that is there may take. What a recovery takes is
        known when it is done: until then that is the whole budget."""
        return self._message_room.beyond_plan(self._in_messages(), self._planned_bytes())

    def _planned_bytes(self) -> int:
        in_plans = sum(
            limits.threads * (limits.scratch_bytes + limits.buffer_bytes) for limits in self._limits()
        )
        kept = max(0, self._backstage.pool.buffer_bytes - in_plans)
        planned_bytes = (
            self._memory_bytes() + sum(session.unclaimed_bytes for session in self._sessions) + kept
        )
        return max(planned_bytes, self._admission.budget_bytes) if self._recoveries else planned_bytes

    def trim(self) -> None:
        """Memory is short: what is free goes to the system, a moment later."""
        self._message_room.trim()

    @property
    def is_trimming(self) -> bool:
        """Whether memory is still on its way to the system."""
        return self._message_room.is_trimming

    def acquisition_ended(self) -> None:
        self._message_room.ended()

    def client_gone(self, client: Client) -> None:
        """What it waits for goes with it, also while nothing is answered; what a thread prepares for it is
        looked at when that is done."""
        self._pending = [
            pending for pending in self._pending if pending.client is not client or pending.work is not None
        ]
        self._message_room.forget(client)

    def _expect(self, pending: Pending, ring_bytes: int) -> None:
        """Before its memory is provided: pixels in messages get theirs from what is kept, a ring takes the
        place of what nobody uses."""
        self._last_client = pending.client
        self._limit_buffers()
        if pending.request.transport == "message":
            self._message_room.expect(pending.client, ring_bytes, self._in_messages())
            pending.message_bytes = ring_bytes
        else:
            self._message_room.make_room(self._in_messages())

    def _limit_buffers(self) -> None:
        """The buffers of workers grow with the largest chunks, which are in the plan of the acquisition that
        has them: what no acquisition needs that is here or being opened goes before anything is made ready
        beside it."""
        limits = self._limits()
        needed = (
            max((each.scratch_bytes for each in limits), default=0),
            max((each.buffer_bytes for each in limits), default=0),
        )
        if needed != self._buffers_needed:
            self._buffers_needed = needed
            self._opener.submit(self._backstage.pool.keep_buffers, *needed)
            self._message_room.trim()  # behind it: they may be pieces of the heap

    def _in_messages(self) -> int:
        being_made = sum(pending.message_bytes for pending in self._pending)
        return being_made + sum(
            session.acquisition.limits.ring_bytes for session in self._sessions if session.pixels_in_messages
        )

    def begin_stop(self) -> None:
        """What has not begun never will: unfinished stores wait for the next start, requests are refused."""
        self._stopping = True
        self._recoverer.cancel_waiting()

    def close(self) -> None:
        self._opener.close()
        self._recoverer.close()

    def advance(self) -> None:
        """One round: takes what the threads have prepared (or will not, being dead), then looks at everyone
        in line."""
        for thread in (self._opener, self._recoverer):
            thread.fail_if_dead()
        if not self._prepared.is_set() and not self._stopping:
            return
        self._take_up_unfinished()
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
        """True when the request is answered, or need not be."""
        if pending.work is not None:
            return pending.work.done() and self._take_work(pending)
        if pending.client.gone:
            return True
        if self._stopping:
            raise SessionLostError("the daemon is stopping")
        if pending.request.resume is not None:
            return self._resume(pending, pending.request.resume)
        if pending.request.reopen:
            return self._reopen(pending)
        return self._create(pending)

    # Decisions
    # ----------------------------------------------------------------------------------------------------

    def _create(self, pending: Pending) -> bool:
        self._admission.check_sessions_of_client(self._sessions_of(pending.client))
        being_made = [other.admitted for other in self._pending if other.admitted is not None]
        admitted = self._admission.admit(
            pending.request, len(self._sessions) + len(being_made), self._memory_bytes(), self._descriptors()
        )
        known = self._sessions.of_path(admitted.path) is not None or admitted.path in self._recoveries
        if known or any(other.path == admitted.path for other in being_made):
            raise taken(admitted.path, unfinished=True)
        pending.admitted, pending.more_bytes = admitted, admitted.limits.bytes_with(pending.request.transport)
        self._expect(pending, admitted.limits.ring_bytes)
        pending.work = self._opener.submit(
            self._backstage.create, admitted, pending.client, pending.request.transport
        )
        return False

    def _sessions_of(self, client: Client) -> int:
        """How many acquisitions a client has open, or is about to have. Those that it left behind are its own
        as long as they wait for it."""
        open_ones = sum(
            session.client is not None and session.client.is_same_user(client) for session in self._sessions
        )
        return open_ones + sum(
            other.work is not None and other.client.is_same_user(client) for other in self._pending
        )

    def _descriptors(self) -> int:
        return sum(each.descriptors for each in self._limits())

    def _limits(self) -> list[Limits]:
        """Of what is open or being opened."""
        limits = [session.acquisition.limits for session in self._sessions]
        return limits + [pending.admitted.limits for pending in self._pending if pending.admitted is not None]

    def _memory_bytes(self) -> int:
        return sum(pending.more_bytes for pending in self._pending) + sum(
            session.memory_bytes for session in self._sessions
        )

    def _resume(self, pending: Pending, resume: Resume) -> bool:
        session = self._sessions.of_identity(resume.acquisition)
        if session is None:
            return self._resume_absent(pending, resume)
        _check_epoch(resume, session.acquisition.client_epoch)
        if session.busy or session.state in (DaemonState.FINISHING, DaemonState.DRAINING):
            return False  # the receipt will be its answer
        credit, came = session.credit, session.acquisition.next_sequence
        if came > resume.next_sequence or credit.ring_slots not in (0, resume.ring_slots):
            expected = f"next_sequence {came} or more" + (
                f", {credit.ring_slots} slots" if credit.ring_slots else ""
            )
            got = f"{resume.next_sequence}, {resume.ring_slots} slots"
            raise ResumeError("this client does not know its own acquisition", expected=expected, got=got)
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
        path = self._admission.path(pending.request)
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
            assert session.attachment is not None
            if self._probe(session.attachment.client):
                holder = session.attachment.client.hello
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
        self._admission.check_same_array(pending.request, session.acquisition.spec)
        self._admission.check_sessions_of_client(self._sessions_of(pending.client))
        return self._hand_over(pending, session, session.acquisition.limits.ring_frames)

    def _hand_over(self, pending: Pending, session: Session, ring_slots: int) -> bool:
        """Prepares the session for its next client as soon as there is memory: the earlier ring may still be
        needed."""
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
        session.busy, session.paused = True, request.reopen
        pending.work = self._opener.submit(
            self._backstage.hand_over,
            acquisition,
            pending.client,
            ring_slots,
            request.transport,
            to_another=request.reopen,
        )
        return False

    # What the threads have done
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
        session = Session(
            acquisition, admitted.settings, admitted.stream, recovered=False, on_event=self._on_event
        )
        self._sessions.add(session)
        self._attach(pending, session, ring)
        facts = {
            "path": str(admitted.path),
            "host": pending.client.hello.host,
            "transport": pending.request.transport,
        }
        self._on_event("acquisition_opened", facts)
        for warning in layout_warnings(admitted.spec):
            self._on_event("layout_warning", {"path": str(admitted.path), "warning": warning})
        if pending.client.gone:
            session.end_early(
                DaemonEvent.CLIENT_LEFT,
                ErrorText(SessionLostError, "the client left while its acquisition was being opened"),
            )
        return True

    def _take_hand_over(self, pending: Pending, session: Session, work: Promise[Ring | None]) -> bool:
        """False when the session has changed meanwhile: the request is looked at again."""
        ring = work.result()
        if pending.client.gone or self._stopping or not self._attach(pending, session, ring):
            if ring is not None:
                ring.close()
            return False
        facts = {
            "path": str(session.acquisition.path),
            "host": pending.client.hello.host,
            "client_epoch": session.acquisition.client_epoch,
        }
        self._on_event("acquisition_reopened" if pending.request.reopen else "acquisition_resumed", facts)
        return True

    def _attach(self, pending: Pending, session: Session, ring: Ring | None) -> bool:
        attachment = Attachment(pending.client, ring, self._send)
        if not session.attach(attachment, pending.request):
            return False
        self._sessions.attached(session, attachment)
        client = pending.client
        has = sum(
            each.message_bytes
            for each in self._sessions
            if each.attachment is not None and each.attachment.client is client
        )
        client.most_credit_bytes = max(client.most_credit_bytes, has)
        return True

    def _take_up_unfinished(self) -> None:
        unfinished, self._unfinished = self._unfinished, []
        if not self._stopping:
            for path in unfinished:
                self._recover(path)

    def _recover(self, path: Path) -> Promise[AcquisitionLike]:
        if path not in self._recoveries:
            self._recoveries[path] = self._recoverer.submit(self._backstage.recover, path)
        return self._recoveries[path]

    def _recovery_failed(self, pending: Pending) -> bool:
        """The acquisition may be on disk: for each request it is looked for. True when it was not found
        there; raises what went wrong."""
        now_s = time.monotonic()
        if now_s < pending.next_look_s:
            return False
        if pending.recovery is None:
            pending.recovery = self._recover(self._admission.path(pending.request))
        if pending.recovery in self._recoveries.values():
            return False
        why = pending.recovery.failure()
        if (
            why is not None
            and why.is_a(LockedError)
            and pending.request.resume is not None
            and now_s < pending.patient_until_s
        ):
            # the process that has it may be about to die
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
                self._on_event("acquisition_recovery_failed", {"path": str(path), **why.as_facts()})
                continue
            acquisition = recovery.result()
            settings = self._admission.settings_found(path.parent, acquisition.spec)
            stream = self._admission.stream_name_found(path.parent, acquisition.spec)
            self._sessions.add(
                Session(acquisition, settings, stream, recovered=True, on_event=self._on_event)
            )
            self._on_event(
                "acquisition_recovered",
                {"path": str(path), "identity": acquisition.identity, "frames": acquisition.next_sequence},
            )

    def _refuse(self, pending: Pending, why: ErrorText, receipt: Any = None) -> None:
        client, request = pending.client, pending.request
        event = "acquisition_refused" if why.trace is None else "acquisition_open_failed"
        self._on_event(event, {"name": request.name, "host": client.hello.host, **why.as_facts()})
        problem = Problem(why, fatal=False, request=request.request, receipt=receipt)
        self._send(client, client.counter.control(Kind.ERROR, problem.to_body()))


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
