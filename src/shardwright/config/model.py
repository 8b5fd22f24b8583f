"""The configuration of ``shardwright serve`` as frozen models, field by field.

Unknown keys are refused everywhere. Defaults are those of a workstation with one or two cameras; every field
but ``output.root`` has one.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from shardwright.acquire.limits import MAX_RING_FRAMES, SPARE_DESCRIPTORS, default_threads, most_descriptors
from shardwright.array.acquisition_spec import (
    AcquisitionSpec,
    Image,
    images_by_name,
    in_chunks_as,
    in_ome_version,
    parse_acquisition,
    with_index_for,
)
from shardwright.array.atlas_block import check_profile
from shardwright.array.plate import Plate  # noqa: TC001  (pydantic reads the annotation)
from shardwright.array.spec import ArraySpec, group_attributes, problems_of
from shardwright.model import write_options as options  # noqa: TC001  (pydantic reads the annotations)
from shardwright.model.errors import ConfigError, SpecError
from shardwright.model.names import NAME_PATTERN
from shardwright.model.write_settings import WriteSettings, check_second_root
from shardwright.shard.chunk_order import Order  # noqa: TC001
from shardwright.wire.messages import MAX_IMAGES

from .quantities import (
    MAX_SOCKET_PATH_BYTES,
    Argument,
    AutoOrThreads,
    Endpoint,
    File,
    Folder,
    HostName,
    Listen,
    OptionalSocketFile,
    Origin,
    Size,
    SocketFile,
    WebAddress,
    auto_or_count,
    auto_or_count_schema,
    program_path,
)

if TYPE_CHECKING:
    from shardwright.ingest import IngestSettings
    from shardwright.ingest.transport.allow_list import Access

# Which levels there are depends on a stream's codec: the plan warns of those that it does not have.
RECOMPRESS_PATTERN = r"^(codec|(lz4|lz4hc|zlib|zstd|gzip)(:[0-9]{1,2})?)$"
DEFAULT_ENDPOINT = "ipc:///run/shardwright/ingest.sock"
CONTROL_SOCKET = "control.sock"
MAX_FRAME_RATE_HZ = 1e9
MAX_RECEIVERS = 8
NotifyEvent = Literal[
    "disk_low",
    "frames_missing",
    "camera_gone",
    "acquisition_ended",
    "archive_behind",
    "store_damaged",
    "encode_check_failed",
]
MESSAGE_FIELDS = ("event", "time", "host", "acquisition", "text")  # of a notification, as people read it
MESSAGE_FIELD = r"\{([a-z_]+)\}"
VERSION: Literal[1] = 1  # of the file's format
AxisSizes = dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], Annotated[int, Field(ge=1)]]
AutoOrRingFrames = Annotated[
    int | Literal["auto"],
    BeforeValidator(auto_or_count(MAX_RING_FRAMES)),
    auto_or_count_schema(MAX_RING_FRAMES),
]
_OF_A_STREAM = ("durability", "overload", "on_full", "on_duplicate")  # fields that a stream may override
# fields of ``WriteSettings`` by the section that has them; those in bytes have other names
_OF_OUTPUT = (
    *("io", "chunk_order", "partial_chunks", "live", "name_taken"),
    *("profile", "frame_parquet", "ome_version", "min_ratio"),
)
# fields of ``IngestSettings`` that are those of ``Ingest``
_OF_INGEST = (
    *("endpoints", "group", "heartbeat_ms", "session_timeout_ms", "handshake_timeout_ms"),
    *("max_message_bytes", "max_connections", "max_sessions", "max_sessions_per_client"),
    "allow_client_specs",
)
_OF_RELIABILITY = (*_OF_A_STREAM, "store_within_ms", "sync_interval_ms", "encode_check")


def of_writing(name: str, *, default: Any = None) -> Any:
    """A field that is the one of ``WriteSettings``; ``default``: where that of a daemon is another."""
    option = next(each for each in fields(WriteSettings) if each.name == name)
    least, most = option.metadata["range"] or (None, None)
    if name.endswith("_bytes"):  # a ``Size``, which has bounds of its own
        least = most = None
    return Field(
        default=option.default if default is None else default,
        ge=least,
        le=most,
        description=option.metadata["text"],
    )


def of_stream(name: str) -> Any:
    """A field of a stream that may be given in place of the daemon's."""
    return Field(default=None, description=f"This stream's own, in place of reliability.{name}.")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Output(_Section):
    """Where stores are written."""

    root: Folder = Field(
        description="Folder that holds the stores; relative paths count from this file's folder."
    )
    io: options.IoMode = of_writing("io")
    chunk_order: options.WriteOrder = of_writing("chunk_order")
    partial_chunks: options.PartialChunks = of_writing("partial_chunks")
    live: options.LiveMode = of_writing("live")
    create: bool = Field(
        default=False,
        description="Make the folder if it is missing. Left false, a disk that is not mounted is an error.",
    )
    spill_root: Folder | None = of_writing("spill_root")
    name_taken: options.NameTaken = of_writing("name_taken")
    profile: options.Profile = of_writing("profile")
    frame_parquet: bool = of_writing("frame_parquet")
    ome_version: options.OmeVersion = of_writing("ome_version")
    min_ratio: float = of_writing("min_ratio")
    ballast: Size = of_writing("ballast_bytes", default=64 * 2**20)
    low_water: Size = of_writing("low_water_bytes", default=2**30)
    in_memory: bool = Field(
        default=False,
        description="Let root and spill_root lie on a tmpfs, for trials: nothing there survives a power cut.",
    )

    @model_validator(mode="after")
    def _spills_elsewhere(self) -> Output:
        if self.spill_root is not None:
            try:
                check_second_root(self.spill_root, self.root)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self


class CurveConfig(_Section):
    """CURVE, ZeroMQ's encryption, on every TCP endpoint: the daemon proves its identity, and only listed
    clients may connect. See `shardwright keygen`."""

    secret_key: File = Field(
        description="The daemon's own key, NAME.key_secret; mode 0600. Relative paths "
        "count from this file's folder."
    )
    clients: Folder = Field(
        description="Folder with the public key of each client, NAME.key. Keys may be "
        "added and removed while the daemon runs."
    )


class Ingest(_Section):
    """The sockets that cameras connect to, the clients that may connect, and the limits of one client."""

    endpoints: tuple[Endpoint, ...] = Field(
        default=(DEFAULT_ENDPOINT,),
        min_length=1,
        description="ZeroMQ endpoints to bind: ipc://PATH (relative paths count from this file's folder) or "
        "tcp://ADDRESS:PORT.",
    )
    ring_socket: SocketFile = Field(
        default="auto",
        description="Unix socket that hands out shared memory; auto is the first ipc endpoint's path with "
        ".ring added, or none without one.",
    )
    group: str | None = Field(
        default=None,
        min_length=1,
        description="Group of this machine whose members may connect over ipc and to the control socket. "
        "Left out, only the daemon's own user may.",
    )
    curve: CurveConfig | None = Field(
        default=None,
        description="Keys for the tcp endpoints. Without them tcp is refused unless insecure is true.",
    )
    insecure: bool = Field(
        default=False,
        description="Let anyone who can reach a tcp endpoint write stores and fill the disk, unencrypted. "
        "For a network of this machine and its cameras' computers only.",
    )
    heartbeat_ms: int = Field(
        default=1000, ge=10, le=60_000, description="How often each side sends a heartbeat."
    )
    session_timeout_ms: int = Field(
        default=10_000,
        ge=100,
        le=600_000,
        description="Silence after which a client's acquisition is ended and sealed.",
    )
    max_message_bytes: Size = Field(
        default=64 * 2**20, description="Longest message accepted; frames sent over TCP must fit into it."
    )
    max_sessions: int = Field(
        default=16, ge=1, le=1024, description="Acquisitions that may run at the same time."
    )
    max_sessions_per_client: int = Field(
        default=8,
        ge=1,
        le=1024,
        description="Acquisitions of one client that may run at the same time: of all connections with one "
        "key (which may be as many), or of one connection.",
    )
    max_connections: int = Field(
        default=64, ge=1, le=4096, description="Clients that may be connected at the same time."
    )
    handshake_timeout_ms: int = Field(
        default=5000, ge=100, le=60_000, description="How long the handshake of a new connection may take."
    )
    allow_client_specs: bool = Field(
        default=True,
        description="Whether clients may bring their own array specification, or only use the streams below.",
    )

    @property
    def ring_socket_path(self) -> str | None:
        """``ring_socket`` resolved; None where pixels can only travel in messages."""
        if self.ring_socket != "auto":
            return self.ring_socket
        sockets = [
            endpoint.removeprefix("ipc://") for endpoint in self.endpoints if endpoint.startswith("ipc://")
        ]
        return sockets[0] + ".ring" if sockets else None

    @property
    def descriptors_for_acquisitions(self) -> int:
        """The open files that all acquisitions of the daemon may share, once its connections have theirs. 0
        or less: not even the connections fit."""
        from shardwright.ingest.transport.endpoints import connection_descriptors

        taken = connection_descriptors(self.endpoints, self.max_connections)
        return most_descriptors() - SPARE_DESCRIPTORS - taken

    @model_validator(mode="after")
    def _sockets_and_times_fit(self) -> Ingest:
        if len(os.fsencode(self.ring_socket_path or "")) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"ring_socket: would be too long for a Unix socket, expected at most "
                f"{MAX_SOCKET_PATH_BYTES} bytes, got {self.ring_socket_path}"
            )
        if self.ring_socket_path in [endpoint.removeprefix("ipc://") for endpoint in self.endpoints]:
            raise ValueError("ring_socket: must differ from every endpoint")
        tcp = [endpoint for endpoint in self.endpoints if endpoint.startswith("tcp://")]
        if tcp and self.curve is None and not self.insecure:
            raise ValueError(
                f"endpoints: open to the whole network, expected curve beside it (shardwright "
                f"keygen), or insecure: true, got {tcp[0]}"
            )
        if self.curve is not None and self.insecure:
            raise ValueError("insecure: contradicts curve, expected one of them")
        if self.session_timeout_ms < 3 * self.heartbeat_ms:
            raise ValueError(
                f"session_timeout_ms: must cover three heartbeats, expected {3 * self.heartbeat_ms} or "
                f"more, got {self.session_timeout_ms}"
            )
        return self


class ControlConfig(_Section):
    """The socket for requests to the daemon (`shardwright status`, `stop` and `drain`), on this machine
    only."""

    socket: OptionalSocketFile = Field(
        default="auto",
        description="Unix socket; none: no control socket. auto is control.sock in the folder of "
        "ingest.ring_socket, or none where there is no such socket. Daemons that share this folder need one "
        "each.",
    )


class Workers(_Section):
    """Threads that slice and compress."""

    threads: AutoOrThreads = Field(
        default="auto", description="Worker threads; auto is two more than the CPUs that the daemon may use."
    )

    @property
    def count(self) -> int:
        """Threads to start; ``auto`` resolved for this machine."""
        return default_threads() if self.threads == "auto" else self.threads


class Memory(_Section):
    """The memory that the daemon may take."""

    budget: Size = Field(
        default=4 * 2**30,
        description="Most memory of the daemon, frame rings included; "
        "page cache of open shards comes on top.",
    )


class Reliability(_Section):
    """The promises for every frame, and the behaviour when the disk, the daemon or the link cannot keep up. A
    stream may have its own."""

    durability: options.Durability = of_writing("durability")
    store_within_ms: int = of_writing("store_within_ms")
    sync_interval_ms: int = of_writing("sync_interval_ms")
    encode_check: options.EncodeCheck = of_writing("encode_check")
    overload: options.Overload = of_writing("overload")
    on_full: options.OnFull = of_writing("on_full", default="block")
    on_duplicate: options.OnDuplicate = of_writing("on_duplicate", default="count")
    resume_timeout_ms: int = Field(
        default=60_000,
        ge=0,
        le=86_400_000,
        description="How long an acquisition whose client is gone stays open for it; then it is sealed.",
    )


class Compaction(_Section):
    """Repacking of sealed stores by the daemon itself, one store at a time, at idle priority, in a process of
    its own."""

    enabled: bool = Field(
        default=False, description="Compact each store after it was sealed, as shardwright compact does."
    )
    order: Order = Field(default="row_major", description="Order of the chunks in a packed shard.")
    recompress: str | None = Field(
        default=None,
        pattern=RECOMPRESS_PATTERN,
        description="CNAME or CNAME:LEVEL, such as zstd:5: encode chunks anew where that makes them "
        "smaller. Blosc arrays take lz4, lz4hc, zlib and "
        "zstd, others a level of their own codec. codec: as each array says, for what overload: degrade had "
        "written with less compression. "
        "Left out, chunks keep their encoding.",
    )
    shards: AxisSizes = Field(
        default={},
        description="Elements of a shard along axes, such as {t: 32}: shorter shards are merged into such "
        "ones, without decoding a chunk. A store with merged shards cannot go on, and programs that have it "
        "open must open it again. Left out, shards stay as they were sealed.",
    )
    rate: Size | None = Field(
        default=None,
        description="Most bytes a second, counting those read, written and read back again. Left out, "
        "there is no limit.",
    )
    workers: int = Field(
        default=1, ge=1, le=64, description="Processes that work at the same time, each on a shard."
    )
    parity: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Percent of each shard row that may be lost and restored: PAR2 files, made once a store "
        "is packed (extra parity). Left out, none are made.",
    )
    scrub: Literal["none", "report", "repair"] = Field(
        default="none",
        description="report: each finished store is read and verified every 30 days, while nothing is to be "
        "compacted, by the daemon (enabled) or shardwright compact --config. repair: shards that are damaged "
        "are also restored from their parity.",
    )
    after_s: float = Field(
        default=60,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="Time between the sealing of a store and its compaction.",
    )
    pause_above: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="Nothing is compacted while more than this part of any camera's ring is in use. Frames "
        "that wait for their chunk to fill count, "
        "and with durability durable those that wait for a sync.",
    )


class Http(_Section):
    """The status page, metrics, and finished stores for viewers: a process of its own beside the daemon.
    Read-only, and without a login."""

    enabled: bool = Field(default=False, description="Serve them. Needs the packages of the extra web.")
    listen: Listen = Field(
        default="127.0.0.1:8790",
        description="ADDRESS:PORT; port * takes any that is free. Anyone who can connect sees everything, so "
        "leave it on the loopback address unless the network is trusted.",
    )
    allowed_hosts: tuple[HostName, ...] = Field(
        default=(),
        max_length=64,
        description="Names by which browsers may call this machine, besides localhost and the address in "
        "listen. Requests for any other are refused, "
        "so that a web page elsewhere cannot reach this one by a name of its own (DNS rebinding).",
    )
    allowed_origins: tuple[Origin, ...] = Field(
        default=(),
        max_length=64,
        description="Web pages elsewhere that may read stores from here, such as https://viewer.example; "
        "*: any. The page's own viewer needs none.",
    )
    preview_hz: float = Field(default=2, gt=0, le=10, description="The most previews of one camera a second.")

    @property
    def address(self) -> tuple[str, int]:
        """The address to bind; port 0 takes any that is free."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), 0 if port == "*" else int(port)

    @property
    def local(self) -> bool:
        """True if only this machine can connect."""
        host = self.address[0]
        return host == "localhost" or ipaddress.ip_address(host).is_loopback

    @model_validator(mode="after")
    def _has_a_name(self) -> Http:
        host = self.address[0]
        if (
            self.enabled
            and host != "localhost"
            and ipaddress.ip_address(host).is_unspecified
            and not self.allowed_hosts
        ):
            raise ValueError(
                f"allowed_hosts: is missing, expected the names that browsers call this "
                f"machine by, as listen is {self.listen}"
            )
        return self


class Receiver(_Section):
    """A receiver of notifications: a command, or an HTTP server. Each notification is sent once, by a process
    of its own; one that fails is counted. `shardwright check --notify` sends a test."""

    events: tuple[NotifyEvent, ...] = Field(
        min_length=1,
        description="disk_low: the disk is almost full, or full. frames_missing: frames were dropped, lost "
        "or too late, or an acquisition has ended with places without a frame. camera_gone: the camera of "
        "an acquisition no longer answers. acquisition_ended: in good order, or by an error. archive_behind: "
        "a store waits for more than a day to be compacted, or cannot be. store_damaged: a scrub has found "
        "that a finished store is not sound. encode_check_failed: a chunk did not decode to its pixels.",
    )
    command: tuple[Argument, ...] | None = Field(
        default=None,
        min_length=1,
        description="Program and arguments; there is no shell. It gets the notification on standard input. "
        "A path counts from this file's folder, a name is looked for on PATH.",
    )
    post: WebAddress | None = Field(
        default=None, description="Address that gets the notification by an HTTP POST, without redirects."
    )
    headers_file: File | None = Field(
        default=None,
        description="File of mode 0600 with headers for post, a line NAME: VALUE each, such as "
        "Authorization: Bearer TOKEN. It is read for each notification.",
    )
    message: str | None = Field(
        default=None,
        max_length=10_000,
        description="Plain text to send, with {event}, {time}, {host}, {acquisition} and {text} (a sentence) "
        "in it; for sendmail -t a mail with its headers. Left out, JSON with these fields and log_event is "
        "sent.",
    )
    timeout_s: float = Field(
        default=10, gt=0, le=300, allow_inf_nan=False, description="Time after which the process is killed."
    )

    @property
    def label(self) -> str:
        """Its name in events: without arguments, path and query, which may be secret."""
        return urlsplit(self.post).netloc if self.post else (self.command or ("",))[0].rpartition("/")[2]

    @field_validator("command")
    @classmethod
    def _from_folder(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        return value and (program_path(value[0], info), *value[1:])

    @model_validator(mode="after")
    def _consistent(self) -> Receiver:
        if (self.command is None) == (self.post is None):
            raise ValueError("has no one way to be told, expected either command or post")
        if self.command and self.headers_file:
            raise ValueError("headers_file: has no effect, expected post beside it")
        unknown = set(re.findall(MESSAGE_FIELD, self.message or "")) - set(MESSAGE_FIELDS)
        if unknown:
            known = ", ".join(MESSAGE_FIELDS)
            raise ValueError(
                f"message: has unknown fields, expected {known}, got {', '.join(sorted(unknown))}"
            )
        return self


class Log(_Section):
    """The events that are written to standard output."""

    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="auto: readable on a terminal, else one JSON object a line."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level of events that are written."
    )
    repeat_lines: int = Field(
        default=10,
        ge=0,
        le=1_000_000,
        description="How many lines the same event of the same acquisition or host may have in "
        "repeat_every_s. One line reports the number of the others. 0: no limit.",
    )
    repeat_every_s: float = Field(
        default=10,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Time for which repeated lines are counted and reported as one.",
    )


class StreamConfig(_Section):
    """One camera whose array layout the daemon knows by name."""

    name: str = Field(
        pattern=f"^{NAME_PATTERN}$", description="The name by which clients choose this stream."
    )
    frame_rate_hz: float | None = Field(
        default=None,
        gt=0,
        le=MAX_FRAME_RATE_HZ,
        allow_inf_nan=False,
        description="Expected frame rate; used for the plan only, never enforced.",
    )
    ring_frames: AutoOrRingFrames = Field(
        default="auto",
        description="Frames in the shared ring between camera and daemon; auto derives it from the layout.",
    )
    durability: options.Durability | None = of_stream("durability")
    overload: options.Overload | None = of_stream("overload")
    on_full: options.OnFull | None = of_stream("on_full")
    on_duplicate: options.OnDuplicate | None = of_stream("on_duplicate")
    array: ArraySpec = Field(
        description="Dimensions in the order frames are acquired, or with order in that in which they are "
        "stored, dtype, codec and layout."
    )
    images: tuple[Image, ...] = Field(
        default=(),
        max_length=MAX_IMAGES,
        description="Names of the images of each acquisition (positions, cameras), where there are several; "
        "with an array of their own where it differs.",
    )
    plate: Plate | None = Field(
        default=None, description="A plate whose fields are the images of each acquisition."
    )
    order: tuple[str, ...] | None = Field(
        default=None,
        description="All frame axes in the order frames are acquired, slowest first, with p where several "
        "images change. The dimensions of an array are then in the order in which they are stored. Without "
        "it memory is planned for images that change at any frame.",
    )
    attributes: dict[str, Any] = Field(
        default_factory=dict, description="JSON for the zarr.json of the group of each store."
    )

    _json_ready = field_validator("attributes")(group_attributes)

    _by_name = field_validator("images", mode="before")(images_by_name)

    @model_validator(mode="after")
    def _consistent(self) -> StreamConfig:
        try:
            parse_acquisition(self.acquisition)  # refuses one that is too long to be sent
        except ValidationError as error:
            raise ValueError(problems_of(error)) from None
        return self

    @cached_property
    def acquisition(self) -> AcquisitionSpec:
        """The specification of its acquisitions."""
        return AcquisitionSpec(
            array=self.array,
            images=self.images,
            plate=self.plate,
            order=self.order,
            attributes=self.attributes,
        )


class Config(_Section):
    """The configuration of one shardwright daemon."""

    version: Literal[1] = Field(default=VERSION, description="Version of this file's format.")
    output: Output
    ingest: Ingest = Ingest()
    workers: Workers = Workers()
    memory: Memory = Memory()
    reliability: Reliability = Reliability()
    compaction: Compaction = Compaction()
    control: ControlConfig = ControlConfig()
    http: Http = Http()
    notify: tuple[Receiver, ...] = Field(
        default=(), max_length=MAX_RECEIVERS, description="Who is told of events, and of which."
    )
    log: Log = Log()
    streams: tuple[StreamConfig, ...] = Field(
        default=(), max_length=256, description="Cameras known by name."
    )

    def reliability_of(self, stream: StreamConfig) -> Reliability:
        """Returns the daemon's promises, with the stream's own in their place."""
        own = {name: value for name in _OF_A_STREAM if (value := getattr(stream, name)) is not None}
        return self.reliability.model_copy(update=own)

    def ingest_settings(self, access: Access | None) -> IngestSettings:
        """The settings of the ingest server. ``access``: the keys that ``ingest.curve`` names."""
        from shardwright.ingest import IngestSettings, StreamSettings

        ingest = self.ingest
        ring_socket = ingest.ring_socket_path
        return IngestSettings(
            **{name: getattr(ingest, name) for name in _OF_INGEST},
            ring_socket=None if ring_socket is None else Path(ring_socket),
            access=access,
            max_descriptors=ingest.descriptors_for_acquisitions,
            memory_budget_bytes=self.memory.budget,
            resume_timeout_ms=self.reliability.resume_timeout_ms,
            output_root=self.output.root,
            write=self._write_settings(self.reliability),
            streams=tuple(
                StreamSettings(
                    name=stream.name,
                    spec=self.acquisition_of(stream),
                    ring_frames=None if stream.ring_frames == "auto" else stream.ring_frames,
                    write=self._write_settings(self.reliability_of(stream)),
                )
                for stream in self.streams
            ),
        )

    def _write_settings(self, reliability: Reliability) -> WriteSettings:
        """Returns the settings by which acquisitions with these promises are written. Raises
        ``SpecError``."""
        output = self.output
        return WriteSettings(
            **{name: getattr(output, name) for name in _OF_OUTPUT},
            **{name: getattr(reliability, name) for name in _OF_RELIABILITY},
            ballast_bytes=output.ballast,
            low_water_bytes=output.low_water,
        ).with_second_root(output.spill_root)

    @property
    def control_socket_path(self) -> str | None:
        """``control.socket`` resolved; None where there is no control socket."""
        if self.control.socket != "auto":
            return None if self.control.socket == "none" else self.control.socket
        ring_socket = self.ingest.ring_socket_path
        return None if ring_socket is None else os.path.join(os.path.dirname(ring_socket), CONTROL_SOCKET)  # noqa: PTH118, PTH120

    @property
    def spills(self) -> bool:
        """True if any acquisition may write to ``output.spill_root``."""
        return "spill" in (self.reliability.on_full, *(stream.on_full for stream in self.streams))

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        names = [s.name for s in self.streams]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ValueError(
                    f"streams[{i}].name: must differ from every other stream's, got {name!r} twice"
                )
        if len(set(self.ingest.endpoints)) != len(self.ingest.endpoints):
            raise ValueError("ingest.endpoints: must differ from each other")
        self._check_control_socket()
        self._check_output()
        if not self.streams and not self.ingest.allow_client_specs:
            raise ValueError(
                "streams: must name at least one camera while ingest.allow_client_specs is false"
            )
        return self

    def _check_output(self) -> None:
        for i, stream in enumerate(self.streams):
            try:
                self.acquisition_of(stream)
            except SpecError as error:
                raise ValueError(f"streams[{i}], output: {error}") from None
            self._check_settings(self.reliability_of(stream))
        self._check_settings(self.reliability)

    def _check_settings(self, reliability: Reliability) -> None:
        try:
            self._write_settings(reliability)
        except SpecError as error:
            raise ValueError(f"output: {error}") from None

    def acquisition_of(self, stream: StreamConfig) -> AcquisitionSpec:
        """The specification of a stream's acquisitions, with the index where ``output.live`` needs it, frames
        where ``output.partial_chunks`` says, and metadata of ``output.ome_version``. Raises ``SpecError``."""
        spec = in_ome_version(self.output.ome_version, stream.acquisition)
        spec = in_chunks_as(self.output.partial_chunks, with_index_for(self.output.live, spec))
        return check_profile(self.output.profile, spec)

    def _check_control_socket(self) -> None:
        path, ingest = self.control_socket_path or "", self.ingest
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"control.socket: would be too long for a Unix socket, expected at most "
                f"{MAX_SOCKET_PATH_BYTES} bytes, got {path}"
            )
        if path in (
            ingest.ring_socket_path,
            *(endpoint.removeprefix("ipc://") for endpoint in ingest.endpoints),
        ):
            raise ValueError(f"control.socket: must differ from the sockets of ingest, got {path}")
