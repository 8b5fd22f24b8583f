"""The admission of an OPEN request: the settings of its stream, the limits that follow from its array, and
whether the budget has room for them. Reads no disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shardwright.acquire.limits import RUNTIME_BYTES, Limits
from shardwright.array.acquisition_spec import (
    in_chunks_as,
    in_ome_version,
    parse_acquisition,
    same_but_for_version,
    with_index_for,
)
from shardwright.array.atlas_block import check_profile
from shardwright.model.errors import BudgetError, SpecError, StreamUnclearError, UnknownStreamError
from shardwright.model.names import store_name
from shardwright.model.write_options import DEFAULT_OME_VERSION
from shardwright.shard.manifest import recorded_settings

from .totals import CLIENT_STREAM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.model.write_options import LiveMode
    from shardwright.model.write_settings import WriteSettings
    from shardwright.shard.manifest import Manifest
    from shardwright.wire.controls import Open

    from .ingest_settings import IngestSettings, StreamSettings

_MOST_NAMED = 16  # streams, in one error


@dataclass(frozen=True)
class Planned:
    """A new acquisition as it would be opened. Once admitted it counts against the budget."""

    path: Path
    spec: AcquisitionSpec
    limits: Limits
    settings: WriteSettings
    stream: str
    frames_expected: int | None


@dataclass(frozen=True)
class FoundAs:
    """The facts with which an acquisition that was found on disk continues."""

    stream: str
    settings: WriteSettings
    limits_of: Callable[[AcquisitionSpec], Limits]
    frames_expected: int | None = None


class Admission:
    """Admits requests: turns an OPEN message into a path, a spec and limits, or raises the reason for its
    refusal. Reads no disk."""

    def __init__(self, settings: IngestSettings, threads: int) -> None:
        # Both are replaced as a whole by ``set_low_water``, so that any thread may read them without a lock.
        self._settings = settings
        self._streams = {stream.name: stream for stream in settings.streams}
        self._threads = threads

    def set_low_water(self, low_water_bytes: int) -> None:
        """Sets the low water of acquisitions that are admitted from now on. From any thread."""

        def changed(write: WriteSettings) -> WriteSettings:
            return replace(write, low_water_bytes=low_water_bytes)

        self._streams = {
            name: replace(stream, write=changed(stream.write)) for name, stream in self._streams.items()
        }
        self._settings = replace(self._settings, write=changed(self._settings.write))

    @property
    def low_water_bytes(self) -> int:
        return self._settings.write.low_water_bytes

    def plan(self, request: Open, *, overrides: bool = False) -> Planned:
        """Plans a new acquisition. ``overrides``: a spec takes the place of the stream's own array, which is
        written with that stream's settings. Raises the error to send to the client. From any thread: with
        thousands of images it takes seconds."""
        path, stream = self.path_of(request.name), self._stream(request.stream)
        settings = self._settings.write if stream is None else stream.write
        # of a stream's array this is done already, and changes nothing
        spec = in_ome_version(settings.ome_version, self._spec(request, stream, overrides=overrides))
        spec = with_index_for(settings.live, spec)
        spec = check_profile(settings.profile, in_chunks_as(settings.partial_chunks, spec))
        limits = self._limits_of(spec, None if stream is None else stream.ring_frames)
        name = CLIENT_STREAM if stream is None else stream.name
        return Planned(path, spec, limits, settings, name, request.frames_expected or None)

    def admit(
        self, planned: Planned, request: Open, sessions: int, memory_bytes: int, descriptors: int
    ) -> None:
        """Admits a new acquisition. Raises the error to send to the client. The numbers count acquisitions
        that are open or being opened."""
        self.check_sessions(sessions)
        self.check_memory(planned.limits.bytes_with(request.transport), memory_bytes)
        self.check_descriptors(planned.limits.descriptors, descriptors)
        self.check_transport(request, planned.limits)

    def path_of(self, name: str) -> Path:
        """Where the acquisition of that name is. Raises ``InvalidNameError``."""
        return self._settings.output_root / store_name(name)

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
        if used + more > most:
            raise BudgetError(
                "the daemon cannot open enough files for this acquisition",
                expected=f"at most {max(0, most - used)} descriptors",
                got=more,
                hint="End another acquisition, raise LimitNOFILE (ulimit -Hn), or make shard_size_chunks of "
                "the frame's axes larger",
                short_of="descriptors",
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

    def check_same_array(self, request: Open, spec: AcquisitionSpec, live: LiveMode) -> None:
        """A client that reopens an acquisition, or takes up what is armed, may name its array again, but not
        another one. Raises ``SpecError``."""
        asked = None if request.spec is None else with_index_for(live, parse_acquisition(request.spec))
        declared = spec.without_added()
        if asked is not None and in_ome_version(spec.ome_version or DEFAULT_OME_VERSION, asked) != declared:
            hint = "Leave the spec out, or acquire under another name"
            raise SpecError(
                "the acquisition of this name has another array",
                expected="the same spec, or none",
                got="another one",
                hint=hint,
            )

    def check_same_stream(self, request: Open, stream: str) -> None:
        """Likewise, of its stream."""
        if request.stream is not None and request.stream != stream:
            raise SpecError(
                "the acquisition of this name is another stream's",
                expected="no stream" if stream == CLIENT_STREAM else f"stream {stream!r}, or none",
                got=repr(request.stream[:160]),
                hint="Leave the stream out, or acquire under another name",
            )

    def _limits_of(self, spec: AcquisitionSpec, ring_frames: int | None) -> Limits:
        return Limits.derive(
            spec,
            threads=self._threads,
            ring_frames=ring_frames,
            memory_bytes=self._settings.memory_budget_bytes,
            descriptors=self._settings.descriptors_per_acquisition,
        )

    def found_as(self, manifest: Manifest | None, named: str | None) -> FoundAs:
        """Returns what an acquisition on disk goes on as. Its manifest records that, and counts more than
        the configuration of today. One of an earlier release records nothing: then it is of the stream that
        its client has ``named``, else of the only stream with its array, else of none.

        Raises ``StreamUnclearError`` where several streams have the array (two cameras of one model), and
        ``ShardFormatError``, ``UnknownStreamError``, ``SpecError``. ``manifest`` None: resuming will say why
        there is none. From any thread."""
        if manifest is None:
            return self._found_as_stream(None)
        if (opened_as := manifest.opened_as) is None:
            return self._found_as_stream(self._stream_of(manifest.acquisition, named))
        recorded = recorded_settings(manifest, opened_as)
        return FoundAs(
            CLIENT_STREAM if opened_as.stream is None else opened_as.stream,
            replace(
                recorded,
                low_water_bytes=self.low_water_bytes,
                ballast_bytes=self._settings.write.ballast_bytes,
            ),
            partial(self._recorded_limits, opened_as.ring_frames),
            opened_as.frames_expected,
        )

    def _recorded_limits(self, ring_frames: int, spec: AcquisitionSpec) -> Limits:
        try:
            return self._limits_of(spec, ring_frames)
        except BudgetError:  # it was opened with a larger one, and its frames count more than its ring
            return self._limits_of(spec, None)

    def _found_as_stream(self, stream: StreamSettings | None) -> FoundAs:
        if stream is None:
            return FoundAs(CLIENT_STREAM, self._settings.write, partial(self._limits_of, ring_frames=None))
        limits_of = partial(self._limits_of, ring_frames=stream.ring_frames)
        return FoundAs(stream.name, stream.write, limits_of)

    def _stream_of(self, spec: AcquisitionSpec, named: str | None) -> StreamSettings | None:
        """The stream of an acquisition whose manifest does not record it. Raises as ``found_as`` does."""
        if named == CLIENT_STREAM and named not in self._streams:
            return None
        # those of earlier releases are of 0.5, whatever new ones of the stream are
        having = [stream for stream in self._streams.values() if same_but_for_version(stream.spec, spec)]
        if named is not None:
            stream = self._stream(named)
            if stream not in having:
                raise SpecError(
                    "the acquisition to reopen has another array",
                    expected="the stream that it was opened as",
                    got=repr(named[:160]),
                )
            return stream
        if len(having) > 1:
            raise StreamUnclearError(
                "several streams have the array of this acquisition, and the release that opened it did not "
                "record which of them it is",
                expected="one of " + ", ".join(stream.name for stream in having[:_MOST_NAMED]),
                hint="It stays as it is until a client reopens it with its stream's name: acquire(NAME, "
                "stream=STREAM, reopen=True). `shardwright recover STORE` seals it",
            )
        return having[0] if having else None

    def _stream(self, name: str | None) -> StreamSettings | None:
        if name is None:
            return None
        if name not in self._streams:
            raise UnknownStreamError(
                "unknown stream",
                expected=f"one of {', '.join(self._streams) or '(none configured)'}",
                got=repr(name[:160]),
            )
        return self._streams[name]

    def _spec(self, request: Open, stream: StreamSettings | None, *, overrides: bool) -> AcquisitionSpec:
        if stream is not None and not (overrides and request.spec is not None):
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
        if not self._settings.allow_client_specs:
            expected = f"one of the streams {', '.join(self._streams)}"
            raise SpecError(
                "this daemon takes no arrays from clients",
                expected=expected,
                got="a spec",
                hint="See ingest.allow_client_specs",
            )
        return parse_acquisition(request.spec)
