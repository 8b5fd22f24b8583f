"""The simulated camera's options: the layout they make, and what is refused before anything connects."""

from __future__ import annotations

import pytest

from shardwright.array.grid import Grid
from shardwright.array.spec import Blosc, Codec, Gzip, Zstd
from shardwright.cli.app import main
from shardwright.cli.array_options import parse_codec
from shardwright.cli.camera import camera_spec


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("blosc", Blosc()),
        ("blosc:zstd", Blosc(cname="zstd")),
        ("blosc:zstd:3:bitshuffle", Blosc(cname="zstd", clevel=3, shuffle="bitshuffle")),
        ("zstd", Zstd()),
        ("zstd:-2", Zstd(level=-2)),
        ("gzip:6", Gzip(level=6)),
        ("none", None),
    ],
)
def test_codecs(text: str, codec: Codec | None) -> None:
    assert parse_codec(text) == codec


@pytest.mark.parametrize(
    ("shape", "dtype", "chunk", "group_frames", "files"),
    [
        ((2048, 2048), "uint16", (16, 256, 256), 32, 1),
        ((128, 128), "uint16", (64, 128, 128), 64 * 128, 1),
        ((100, 3000), "float64", (10, 100, 256), 110, 1),
    ],
)
def test_the_layout_without_options(
    shape: tuple[int, int], dtype: str, chunk: tuple[int, ...], group_frames: int, files: int
) -> None:
    spec = camera_spec(shape, dtype, None, None, "blosc")
    assert tuple(d.chunk_size for d in spec.dimensions) == chunk
    grid = Grid.of(spec)
    assert grid.chunk[0] * grid.shard_chunks[0] == group_frames
    assert grid.plane_shards == (files, 1)
    assert grid.unlimited


def test_a_layout_by_options() -> None:
    spec = camera_spec((64, 64), "uint8", "4x32x16", "2x1x3", "none")
    assert [(d.chunk_size, d.shard_size_chunks) for d in spec.dimensions] == [(4, 2), (32, 1), (16, 3)]
    assert spec.codec is None
    plain = camera_spec((64, 64), "uint8", "4x32x16", "none", "none")
    assert [(d.chunk_size, d.shard_size_chunks) for d in plain.dimensions] == [
        (4, None),
        (32, None),
        (16, None),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--shape", "2048"), "--shape"),
        (("--shape", "0x5"), "--shape"),
        (("--shape", "axb"), "--shape"),
        (("--dtype", "uint12"), "uint12"),
        (("--chunk", "16x16"), "--chunk"),
        (("--shard", "1x1x0"), "--shard"),
        (("--codec", "lzma"), "lzma"),
        (("--codec", "blosc:lz4:1:shuffle:5"), "--codec"),
        (("--codec", "blosc:lz4:77"), "--codec"),
        (("--frames", "0"), "--frames"),
        (("--fps", "-1"), "--fps"),
        (("--stream", "cam0", "--chunk", "1x1x1"), "--stream"),
        (("--transport", "pigeon"), "pigeon"),
    ],
)
def test_bad_options_are_usage_errors(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["camera", "--connect", "ipc:///nowhere", "--name", "x", *options])
    assert end.value.code == 2
    assert says in capsys.readouterr().err
