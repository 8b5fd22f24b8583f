"""Who may open what: from an OPEN message to a path, a spec and limits, or the error that says why not. Looks
at no disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwright.acquire.limits import RUNTIME_BYTES
from shardwright.array.parse import parse_spec
from shardwright.model.errors import BudgetError, SpecError, UnknownStreamError
from shardwright.model.names import store_name

from .totals import CLIENT_STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardwright.acquire.limits import Limits
    from shardwright.acquire.settings import WriteSettings
    from shardwright.array.spec import ArraySpec
    from shardwright.wire.controls import Open

    from .settings import IngestSettings, StreamPolicy

    LimitsOf = Callable[[ArraySpec, int | None], Limits]


@dataclass(frozen=True)
class Admitted:
    """A new acquisition that may be opened; it counts against the budget from now on."""

    path: Path
    spec: ArraySpec
    limits: Limits
    settings: WriteSettings
    stream: str


class Admission:
    """``limits_of(spec, ring_frames)`` derives an acquisition's limits."""

    def __init__(
        self, settings: IngestSettings, streams: Iterable[StreamPolicy], limits_of: LimitsOf
    ) -> None:
        self._settings = settings
        self._streams = {stream.name: stream for stream in streams}
        self._limits_of = limits_of

    def set_low_water(self, low_water_bytes: int) -> None:
        """For acquisitions that are admitted from now on. From any thread."""

        def changed(write: WriteSettings) -> WriteSettings:
            return replace(write, low_water_bytes=low_water_bytes)

        self._streams = {
            name: replace(stream, write=changed(stream.write)) for name, stream in self._streams.items()
        }
        self._settings = replace(self._settings, write=changed(self._settings.write))

    def admit(self, request: Open, sessions: int, memory_bytes: int, descriptors: int) -> Admitted:
        """A new acquisition. Raises the error to send to the client. The numbers are those of what is open or
        being opened."""
        path, stream = self.path(request), self._stream(request.stream)
        spec = self._spec(request, stream)
        self.check_sessions(sessions)
        limits = self._limits_of(spec, None if stream is None else stream.ring_frames)
        self.check_memory(limits.bytes_with(request.transport), memory_bytes)
        self.check_descriptors(limits.descriptors, descriptors)
        self.check_transport(request, limits)
        settings = self._settings.write if stream is None else stream.write
        return Admitted(path, spec, limits, settings, CLIENT_STREAM if stream is None else stream.name)

    def path(self, request: Open) -> Path:
        """Where the acquisition of that name is. Raises ``InvalidNameError``, ``UnknownStreamError``."""
        name, stream = store_name(request.name), self._stream(request.stream)
        return (self._settings.output_root if stream is None else stream.output_root) / name

    def check_sessions(self, sessions: int) -> None:
        if sessions >= self._settings.max_sessions:
            raise BudgetError(
                "too many acquisitions at once",
                expected=f"at most {self._settings.max_sessions}",
                hint="End another one first",
            )

    def check_sessions_of_client(self, sessions: int) -> None:
        if sessions >= self._settings.max_sessions_per_client:
            expected, hint = (
                f"at most {self._settings.max_sessions_per_client}",
                ("End another one first; see ingest.max_sessions_per_client"),
            )
            raise BudgetError("too many acquisitions of one client", expected=expected, hint=hint)

    @property
    def budget_bytes(self) -> int:
        """For all acquisitions together."""
        return self._settings.memory_budget_bytes - RUNTIME_BYTES

    def check_descriptors(self, more: int, used: int) -> None:
        most = self._settings.max_descriptors
        if most is not None and used + more > most:
            raise BudgetError(
                "the daemon may not open enough files for this acquisition",
                expected=f"at most {max(0, most - used)} descriptors",
                got=more,
                hint="End another acquisition, raise LimitNOFILE (ulimit -Hn), or make shard_size_chunks of "
                "the frame's axes larger",
            )

    def check_memory(self, more_bytes: int, memory_bytes: int) -> None:
        if memory_bytes + more_bytes > self.budget_bytes:
            raise BudgetError(
                "the memory budget has no room for this acquisition",
                expected=f"at most {self.budget_bytes - memory_bytes:,} bytes (budget "
                f"{self._settings.memory_budget_bytes:,})",
                got=f"{more_bytes:,} bytes",
                hint="End another acquisition, raise memory.budget, or make chunks smaller",
            )

    def check_transport(self, request: Open, limits: Limits) -> None:
        if request.transport == "message" and limits.frame_bytes > self._settings.max_message_bytes:
            expected = f"at most max_message_bytes, {self._settings.max_message_bytes} bytes"
            raise BudgetError(
                "one frame does not fit a message", expected=expected, got=f"{limits.frame_bytes} bytes"
            )

    def check_same_array(self, request: Open, spec: ArraySpec) -> None:
        """Whoever reopens an acquisition may name its array again, but not another one."""
        if request.spec is not None and parse_spec(request.spec) != spec:
            hint = "Leave the spec out, or acquire under another name"
            raise SpecError(
                "the acquisition to reopen has another array",
                expected="the same spec, or none",
                got="another one",
                hint=hint,
            )

    def limits_found(self, root: Path, spec: ArraySpec) -> Limits:
        """Of an acquisition found below ``root`` whose stream is not known: as the stream that has this array
        there, if there is one."""
        stream = self._stream_found(root, spec)
        return self._limits_of(spec, None if stream is None else stream.ring_frames)

    def settings_found(self, root: Path, spec: ArraySpec | None) -> WriteSettings:
        stream = None if spec is None else self._stream_found(root, spec)
        return self._settings.write if stream is None else stream.write

    def stream_name_found(self, root: Path, spec: ArraySpec) -> str:
        stream = self._stream_found(root, spec)
        return CLIENT_STREAM if stream is None else stream.name

    def _stream_found(self, root: Path, spec: ArraySpec) -> StreamPolicy | None:
        return next(
            (
                stream
                for stream in self._streams.values()
                if stream.output_root == root and stream.spec == spec
            ),
            None,
        )

    def _stream(self, name: str | None) -> StreamPolicy | None:
        if name is None:
            return None
        if name not in self._streams:
            raise UnknownStreamError(
                "unknown stream",
                expected=f"one of {', '.join(self._streams) or '(none configured)'}",
                got=repr(name[:160]),
            )
        return self._streams[name]

    def _spec(self, request: Open, stream: StreamPolicy | None) -> ArraySpec:
        if stream is not None and stream.spec is not None:
            if request.spec is not None:
                raise SpecError(
                    "this stream has its own array",
                    expected="no spec",
                    got=f"a spec for stream {stream.name!r}",
                )
            return stream.spec
        if request.spec is None:
            raise SpecError(
                "an acquisition needs an array", expected="a spec, or a stream that has one", got="neither"
            )
        if stream is None and not self._settings.allow_client_specs:
            expected = f"one of the streams {', '.join(self._streams)}"
            raise SpecError(
                "this daemon takes no arrays from clients",
                expected=expected,
                got="a spec",
                hint="See ingest.allow_client_specs",
            )
        return parse_spec(request.spec)
