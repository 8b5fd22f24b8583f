"""``shardwright camera``: runs a simulated camera in a process of its own, as a rig's camera would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shardwright.array.spec import ArraySpec, Dimension
from shardwright.model.errors import AccessError
from shardwright.model.write_options import DTYPES

from .array_options import parse_codec
from .fitted_table import FittedTable, TableColumn, show
from .progress import show_steps

if TYPE_CHECKING:
    from shardwright.model.receipt import Receipt
    from shardwright.simulate.camera_loop import CameraRun

CHUNK_GOAL_BYTES = 2 << 20
SHARD_GOAL_BYTES = 256 << 20
KEYS_HINT = (  # in place of Python's call
    "If it demands keys, give --secret-key NAME.key_secret and --daemon-key RIG.key. `shardwright keygen "
    "NAME` makes a pair, whose NAME.key belongs in the daemon's ingest.curve.clients"
)


Endpoint = Annotated[
    str,
    typer.Option(
        "--connect",
        metavar="ENDPOINT",
        help="The daemon's endpoint, such as ipc:///run/shardwright/ingest.sock or tcp://rig:5555.",
    ),
]
Name = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the acquisition; the store is NAME.ome.zarr in the daemon's output root.",
    ),
]
Frames = Annotated[int, typer.Option("--frames", min=1, metavar="COUNT", help="Frames to send.")]
FrameShape = Annotated[
    str | None,
    typer.Option(
        "--shape", metavar="HxW", help="ROWSxCOLUMNS of a frame. Default: 2048x2048, or the stream's own."
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="DTYPE", help="Pixel type. Default: uint16, or the stream's own."),
]
Fps = Annotated[
    float,
    typer.Option(
        "--fps", min=0, metavar="HZ", help="Frames per second; 0 is as fast as the daemon takes them."
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", min=0, metavar="NUMBER", help="Seed of the pixels; the same seed gives the same frames."
    ),
]
ConfiguredStream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        metavar="STREAM",
        help="A stream of the daemon's configuration, in place of a layout of your own.",
    ),
]
Chunk = Annotated[
    str | None,
    typer.Option(
        "--chunk", metavar="TxHxW", help="Inner chunk as FRAMESxROWSxCOLUMNS. Default: about 2 MiB."
    ),
]
ShardChunks = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="TxHxW",
        help="Chunks of one shard along each axis, or none: each chunk is a file. Default: about 256 MiB.",
    ),
]
CodecName = Annotated[
    str,
    typer.Option(
        "--codec",
        metavar="CODEC",
        help="blosc[:CNAME[:LEVEL[:SHUFFLE]]], zstd[:LEVEL], gzip[:LEVEL] or none.",
    ),
]
Transport = Annotated[
    Literal["auto", "shm", "message"],
    typer.Option(
        "--transport",
        metavar="HOW",
        help="How the pixels travel: auto, shm or message; auto is shared memory where it can.",
    ),
]
Timeout = Annotated[
    int, typer.Option("--timeout-ms", min=1, metavar="MS", help="How long to wait for the daemon.")
]
Reconnect = Annotated[
    int,
    typer.Option(
        "--reconnect-ms",
        min=0,
        metavar="MS",
        help="How long to wait for a daemon that died to come back; 0: not at all.",
    ),
]
SecretKey = Annotated[
    Path | None,
    typer.Option(
        "--secret-key",
        envvar="SHARDWRIGHT_SECRET_KEY",
        metavar="FILE",
        help="This camera's NAME.key_secret, for a daemon that demands keys.",
    ),
]
DaemonKey = Annotated[
    Path | None,
    typer.Option(
        "--daemon-key", envvar="SHARDWRIGHT_DAEMON_KEY", metavar="FILE", help="The daemon's NAME.key."
    ),
]


def command(
    *,
    connect: Endpoint,
    name: Name,
    frames: Frames = 100,
    shape: FrameShape = None,
    dtype: Dtype = None,
    fps: Fps = 0.0,
    seed: Seed = 0,
    stream: ConfiguredStream = None,
    chunk: Chunk = None,
    shard: ShardChunks = None,
    codec: CodecName = "blosc:lz4:1:shuffle",
    transport: Transport = "auto",
    timeout_ms: Timeout = 10_000,
    reconnect_ms: Reconnect = 60_000,
    secret_key: SecretKey = None,
    daemon_key: DaemonKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON.")] = False,
) -> None:
    """Run a simulated camera: photon noise on a fluorescence-like sample. The seed determines every frame.

    Exits with 1 when the daemon did not store every frame.
    """
    if stream is not None and (chunk or shard):
        raise typer.BadParameter(
            "the stream has its own layout; leave out --chunk and --shard", param_hint="--stream"
        )
    rows_columns = None if shape is None else parse_shape(shape)
    if dtype is not None and dtype not in DTYPES:
        raise typer.BadParameter(f"expected one of {', '.join(DTYPES)}, got {dtype!r}", param_hint="--dtype")
    if (secret_key is None) != (daemon_key is None):
        raise typer.BadParameter("both keys are needed, or none", param_hint="--secret-key and --daemon-key")
    spec = (
        None if stream else camera_spec(rows_columns or (2048, 2048), dtype or "uint16", chunk, shard, codec)
    )

    from shardwright.client import Curve
    from shardwright.client import connect as connect_daemon
    from shardwright.simulate.camera_loop import run_camera
    from shardwright.simulate.photons import PhotonFrames

    curve = None if secret_key is None or daemon_key is None else Curve(secret_key, daemon_key)
    times = {"timeout_ms": timeout_ms, "reconnect_timeout_ms": reconnect_ms}
    try:
        connected = connect_daemon(connect, transport=transport, curve=curve, **times)
    except AccessError as error:
        if curve is None and connect.startswith("tcp://"):
            error.hint = KEYS_HINT
        raise
    with connected as daemon:
        with daemon.acquire(name, spec, stream=stream, frames_expected=frames) as target:
            places = target.spec.frame_places
            rows, columns = rows_columns or target.spec.frame_shape
            source = PhotonFrames((rows, columns * places), dtype or target.spec.dtype, seed)
            with show_steps("camera", "sending") as show:
                show(0, frames)
                run = run_camera(
                    target,
                    source,
                    frames,
                    fps=fps,
                    frame_places=places,
                    on_frame=lambda sent: show(sent, frames),
                )
        receipt, used_transport = target.receipt, target.transport
    if as_json:
        typer.echo(json.dumps({**receipt.to_dict(), **_run_facts(run), "transport": used_transport}))
    else:
        _print_receipt(receipt, run, used_transport)
    if receipt.frames_stored != frames * places:
        kept = receipt.frames_stored // places
        typer.echo(f"shardwright: {frames} frames were sent, {kept} are stored", err=True)
        raise typer.Exit(1)


def parse_counts(text: str, count: int, option: str) -> tuple[int, ...]:
    """``2048x2048`` as numbers above 0. Raises typer's usage error."""
    parts = text.lower().split("x")
    if len(parts) != count or not all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise typer.BadParameter(
            f"expected {'x'.join(['N'] * count)} with numbers above 0, got {text!r}", param_hint=option
        )
    return tuple(map(int, parts))


def parse_shape(text: str) -> tuple[int, int]:
    """(rows, columns) from ``2048x2048``. Raises typer's usage error."""
    rows, columns = parse_counts(text, 2, "--shape")
    return rows, columns


def camera_spec(
    shape: tuple[int, int], dtype: str, chunk: str | None, shard: str | None, codec: str
) -> ArraySpec:
    """An unlimited t, y, x array for frames of ``shape``. Raises typer's usage error for options that make no
    array."""
    import numpy as np

    itemsize = np.dtype(dtype).itemsize
    if chunk is None:
        rows, columns = (min(256, n) for n in shape)
        chunk_sizes: tuple[int, ...] = (
            max(1, CHUNK_GOAL_BYTES // (rows * columns * itemsize)),
            rows,
            columns,
        )
    else:
        chunk_sizes = parse_counts(chunk, 3, "--chunk")
    if shard is None:
        down, across = (-(-n // c) for n, c in zip(shape, chunk_sizes[1:], strict=True))
        slab_bytes = chunk_sizes[0] * shape[0] * shape[1] * itemsize
        shard_sizes: tuple[int | None, ...] = (max(1, SHARD_GOAL_BYTES // slab_bytes), down, across)
    elif shard == "none":
        shard_sizes = (None, None, None)
    else:
        shard_sizes = parse_counts(shard, 3, "--shard")
    counts = (None, *shape)
    dimensions = tuple(
        Dimension(name=axis, count=n, chunk_size=c, shard_size_chunks=s)
        for axis, n, c, s in zip("tyx", counts, chunk_sizes, shard_sizes, strict=True)
    )
    try:
        return ArraySpec(dtype=dtype, dimensions=dimensions, codec=parse_codec(codec))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _run_facts(run: CameraRun) -> dict[str, float]:
    """The figures that the camera measured, up to the last frame handed over, not the last one stored."""
    return {
        "camera_seconds": round(run.seconds, 6),
        "camera_frames_per_second": round(run.frames_per_second, 3),
        "camera_bytes_per_second": round(run.bytes_per_second, 1),
        "camera_frames_behind": run.frames_behind,
    }


def _print_receipt(receipt: Receipt, run: CameraRun, transport: str) -> None:
    table = FittedTable(TableColumn(), TableColumn(wraps=True))
    for field, value in receipt.to_dict().items():
        table.add_row(field, f"{value:,}" if isinstance(value, int) else str(value))
    table.add_row("ratio", f"{receipt.ratio:.2f}")
    table.add_row("transport", transport)
    table.add_row(
        "camera",
        f"{run.frames_per_second:,.1f} frames/s, {run.bytes_per_second / 1e9:.3f} GB/s, "
        f"{run.frames_behind} frames behind schedule",
    )
    show(table)
