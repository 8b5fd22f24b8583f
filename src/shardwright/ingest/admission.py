"""Who may open what: from an OPEN message to a path, a spec and limits, or the error that says why not. Of the disk, one look for the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.array.parse import parse_spec
from shardwright.model.errors import BudgetError, OutputExistsError, SpecError, UnknownStreamError
from shardwright.model.names import store_name
from shardwright.pipeline.limits import RUNTIME_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from shardwright.array.spec import ArraySpec
    from shardwright.pipeline.limits import Limits
    from shardwright.pipeline.settings import WriteSettings
    from shardwright.wire.controls import Open

    from .settings import IngestSettings, StreamPolicy

    LimitsOf = Callable[[ArraySpec, int | None], Limits]


@dataclass(frozen=True)
class Admitted:
    """An acquisition that may be opened; it counts against the budget from now on."""

    request: Open
    path: Path
    spec: ArraySpec
    limits: Limits
    settings: WriteSettings


class Admission:
    """``limits_of(spec, ring_frames)`` derives an acquisition's limits."""

    def __init__(self, settings: IngestSettings, streams: Iterable[StreamPolicy], limits_of: LimitsOf) -> None:
        self._settings = settings
        self._streams = {stream.name: stream for stream in streams}
        self._limits_of = limits_of

    def admit(self, request: Open, taken: Collection[Admitted]) -> Admitted:
        """Raises the error to send to the client. ``taken``: everything that is open or being opened."""
        name = store_name(request.name)
        stream = self._stream(request.stream)
        spec = self._spec(request, stream)
        path = (self._settings.output_root if stream is None else stream.output_root) / name
        if len(taken) >= self._settings.max_sessions:
            raise BudgetError("too many acquisitions at once", expected=f"at most {self._settings.max_sessions}", hint="End another one first")
        limits = self._limits_of(spec, None if stream is None else stream.ring_frames)
        self._check_memory(limits, taken)
        if request.transport == "message" and limits.frame_bytes > self._settings.max_message_bytes:
            expected = f"at most max_message_bytes, {self._settings.max_message_bytes} bytes"
            raise BudgetError("one frame does not fit a message", expected=expected, got=f"{limits.frame_bytes} bytes")
        if path.exists() or any(path == other.path for other in taken):
            raise OutputExistsError("the output exists", expected="a name that is not taken", got=str(path))
        return Admitted(request, path, spec, limits, self._settings.write if stream is None else stream.write)

    def _stream(self, name: str | None) -> StreamPolicy | None:
        if name is None:
            return None
        if name not in self._streams:
            raise UnknownStreamError("unknown stream", expected=f"one of {', '.join(self._streams) or '(none configured)'}", got=repr(name[:160]))
        return self._streams[name]

    def _spec(self, request: Open, stream: StreamPolicy | None) -> ArraySpec:
        if stream is not None and stream.spec is not None:
            if request.spec is not None:
                raise SpecError("this stream has its own array", expected="no spec", got=f"a spec for stream {stream.name!r}")
            return stream.spec
        if request.spec is None:
            raise SpecError("an acquisition needs an array", expected="a spec, or a stream that has one", got="neither")
        if stream is None and not self._settings.allow_client_specs:
            expected = f"one of the streams {', '.join(self._streams)}"
            raise SpecError("this daemon takes no arrays from clients", expected=expected, got="a spec", hint="See ingest.allow_client_specs")
        return parse_spec(request.spec)

    def _check_memory(self, limits: Limits, taken: Collection[Admitted]) -> None:
        used = RUNTIME_BYTES + sum(other.limits.acquisition_bytes for other in taken)
        if used + limits.acquisition_bytes > self._settings.memory_budget_bytes:
            raise BudgetError(
                "the memory budget has no room for this acquisition",
                expected=f"at most {self._settings.memory_budget_bytes - used:,} bytes (budget {self._settings.memory_budget_bytes:,})",
                got=f"{limits.acquisition_bytes:,} bytes",
                hint="End another acquisition, raise memory.budget, or make chunks smaller",
            )
