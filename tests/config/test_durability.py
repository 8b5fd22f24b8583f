"""What crash safety costs, in numbers that can be checked by hand, and the warnings about disks on which a
promise means less."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.harness.batches import sealer_held
from tests.harness.json_process import wait_for
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import limits as limits_module
from shardwright.acquire.limits import Limits
from shardwright.array import grid
from shardwright.array.acquisition_spec import parse_acquisition
from shardwright.array.default_layout import default_layout
from shardwright.array.grid import Grid
from shardwright.config import durability
from shardwright.config.durability import SafetyCost
from shardwright.config.load import parse_config
from shardwright.config.plan import make_plan
from shardwright.disk import choose_io
from shardwright.disk.filesystems import memory_filesystem, remote_filesystem, same_filesystem
from shardwright.model.errors import ConfigError

ARRAY = """{dtype: uint16, frame_fields: [laser_mw], dimensions: [{name: t, chunk_size: 16, shard_size_chunks: 4},
     {name: y, count: 512, chunk_size: 256, shard_size_chunks: 1}, {name: x, count: 512, chunk_size: 256, shard_size_chunks: 2}]}"""  # noqa: E501


def rig(root: Path, *, output: str = "", common: str = "{}", stream: str = "") -> str:
    return f"""\
output: {{root: {root}{output}}}
workers: {{threads: 2}}
reliability: {common}
streams: [{{name: a, frame_rate_hz: 100, ring_frames: 100, {stream} array: {ARRAY}}}]
"""


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder is on NFS."""
    monkeypatch.setattr(durability, "remote_filesystem", lambda _path: "nfs")


def test_the_cost_of_one_stream(tmp_path: Path) -> None:
    plan = make_plan(parse_config(rig(tmp_path, output=", ballast: 10MiB")))
    (planned,) = plan.streams
    assert planned.safety.staging_bytes == 32 << 20
    # A header page; 16 frame records of 128 + 8 bytes for each of 4 slabs, in whole pages; for each of two
    # files 8 chunk entries of 32 bytes, in whole pages.
    assert planned.safety.journal_bytes == 4096 + 3 * 4096 + 2 * 4096
    with sw.create(tmp_path / "a.ome.zarr", planned.spec) as writer:
        writer.append(np.zeros(planned.spec.frame_shape, planned.spec.dtype))
        writer.flush()
        (journal,) = (tmp_path / "a.ome.zarr" / ".shardwright").glob("0*.journal")
        assert journal.stat().st_size == planned.safety.journal_bytes
    assert planned.safety.journals == planned.limits.disk_reserved_bytes // (
        2 * planned.limits.shard_file_bytes
    )
    assert (
        planned.safety.disk_bytes
        == (32 << 20) + planned.safety.journals * planned.safety.journal_bytes + 10 * 2**20
    )
    assert plan.disk_reserved_bytes == planned.limits.disk_reserved_bytes + planned.safety.disk_bytes


def test_copies_that_readers_see_grow_take_room_of_the_disk(tmp_path: Path) -> None:
    plain, plan = (
        make_plan(parse_config(rig(tmp_path, output=f", ballast: 10MiB{live}")))
        for live in ("", ", live: append")
    )
    (planned,) = plan.streams
    assert plan.disk_reserved_bytes == plain.disk_reserved_bytes + planned.copies_bytes
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, planned.spec, live="append", **how(store_within_ms=20)) as writer:
        for value in range(1, 1 + planned.limits.frames_per_slab):
            writer.append(np.full(planned.spec.frame_shape, value, planned.spec.dtype))
        writer.flush()
        wait_for(lambda: len(list(path.glob("0/c/*/*/*"))) == planned.limits.shard_files_per_shard_row)
        copies = [file.stat().st_blocks * 512 for file in path.glob("0/c/*/*/*")]
    assert 0 < sum(copies) <= planned.copies_bytes


def test_journals_that_rows_share_keep_within_their_room(tmp_path: Path, monkeypatch) -> None:
    """One stays until its last row ends: of the rows of each round, which share one, the row of one image
    waits for its second frame until the end. What has both kinds of journals is resumed."""
    images, rounds = 8, 15
    names = [f"{image}" for image in range(images)]
    layout = {"shape": (2 * rounds, 8, 8), "chunks": {"t": 2}, "shards": {"t": 2}, "axes": "tyx"}
    monkeypatch.setattr(grid, "MOST_ROW_FILES", images)  # each slab is a row, as on a large plate
    spec = parse_acquisition({"array": default_layout(dtype="uint16", **layout), "images": names})
    # So few rows that a small plate gets there: 8 that are filled, 16 more.
    row_bytes = Limits.derive(spec, threads=1).shard_row_bytes
    monkeypatch.setattr(limits_module, "REORDER_DISK_BYTES", 16 * row_bytes)
    monkeypatch.setattr(limits_module, "MOST_ROWS", 8)
    limits = Limits.derive(spec, threads=1)
    safety = SafetyCost.of(spec, limits, 0)
    workspace = tmp_path / "a.ome.zarr" / ".shardwright"
    most_shared = most = 0

    def append(t: int, chosen: list[str]) -> None:
        for name in chosen:
            writer.append(np.full((8, 8), t + 1, np.uint16), image=name, index=(t,))

    with sw.create(workspace.parent, spec, threads=1) as writer:
        for number in range(rounds):
            with sealer_held() as (at_it, wait_for_rows):
                append(2 * number, names[:1])
                at_it.wait()
                append(2 * number, names[1:])
                wait_for_rows(images - 1)
            late = names[number % images]
            append(2 * number + 1, [name for name in names if name != late])
            sealed = (images - 1) * (number + 1)
            wait_for(lambda n=sealed: len(list(workspace.parent.glob("*/0/c/*/0/0"))) == n)
            shared, alone = (
                _bytes_of(workspace, pattern) for pattern in ("rows-*.journal", "[0-9]*.journal")
            )
            most_shared, most = max(most_shared, shared), max(most, shared + alone)
        assert len(list(workspace.glob("[0-9]*.journal"))) > 1, "at last rows have journals of their own"
        writer.flush()
        left = Path(shutil.copytree(workspace.parent, tmp_path / "left.ome.zarr"))
        for number in range(rounds):
            append(2 * number + 1, [names[number % images]])
    with sw.resume(left, threads=1) as writer:
        assert list((left / ".shardwright").glob("rows-*.journal"))
        for number in range(rounds):
            append(2 * number + 1, [names[number % images]])
    assert most > safety.journals * safety.journal_bytes, "else nothing was tried"
    assert most_shared <= limits.shared_journal_rows * safety.journal_bytes
    assert most <= (safety.journals + safety.shared_rows) * safety.journal_bytes
    assert safety.disk_bytes >= most
    for store, name in product((workspace.parent, left), names):
        assert (sw.open_array(store, f"{name}/0")[:, 0, 0] == np.arange(1, 2 * rounds + 1)).all()
    live = SafetyCost.of(spec, limits, 0, live="index")
    assert live.shared_rows == SafetyCost.of(parse_acquisition(spec.arrays[0]), limits, 0).shared_rows == 0


def _bytes_of(folder: Path, pattern: str) -> int:
    found = 0
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512
    return found


def test_the_plan_as_json_names_promises_and_cost(tmp_path: Path) -> None:
    plan = make_plan(
        parse_config(rig(tmp_path, stream="durability: durable,", common="{sync_interval_ms: 200}"))
    ).to_dict()
    (planned,) = plan["streams"]
    assert planned["reliability"]["durability"] == "durable"
    assert planned["reliability"]["sync_interval_ms"] == 200
    assert planned["safety"]["disk_bytes"] > planned["safety"]["staging_bytes"]
    assert planned["disk_reserved_bytes"] == plan["disk_reserved_bytes"]


def test_a_durable_ring_must_bridge_two_syncs(tmp_path: Path) -> None:
    """100 frames at 100 Hz are one second."""
    (warning,) = make_plan(parse_config(rig(tmp_path, stream="durability: durable,"))).streams[0].warnings
    assert "it bridges 1.00 s" in warning
    assert "for 2 s" in warning
    quick = make_plan(
        parse_config(rig(tmp_path, stream="durability: durable,", common="{sync_interval_ms: 500}"))
    )
    assert quick.streams[0].warnings == ()


def test_what_degrade_writes_is_put_right_only_if_somebody_does_it(tmp_path: Path) -> None:
    degrading = rig(tmp_path, stream="overload: degrade,")
    (warning,) = make_plan(parse_config(degrading)).warnings
    assert warning.startswith(
        "a: chunks that overload: degrade writes with less compression stay so; set compaction"
    )
    assert len(make_plan(parse_config(f"{degrading}compaction: {{enabled: true}}\n")).warnings) == 1
    assert (
        make_plan(parse_config(f"{degrading}compaction: {{enabled: true, recompress: zstd}}\n")).warnings
        == ()
    )
    assert (
        make_plan(parse_config(f"{degrading}compaction: {{enabled: true, recompress: codec}}\n")).warnings
        == ()
    )
    assert make_plan(parse_config(rig(tmp_path))).warnings == ()


def test_a_codec_that_no_store_of_a_stream_takes_is_a_warning(tmp_path: Path) -> None:
    """Compaction would refuse each of them, and forget it."""

    def warnings(recompress: str, codec: str) -> tuple[str, ...]:
        text = rig(tmp_path).replace("{dtype: uint16,", f"{{dtype: uint16, codec: {codec},")
        return make_plan(parse_config(f"{text}compaction: {{recompress: '{recompress}'}}\n")).warnings

    for recompress, codec in (
        ("zstd:15", "blosc"),
        ("lz4:12", "blosc"),
        ("zstd:20", "zstd"),
        ("lz4", "zstd"),
        ("zstd", "none"),
    ):
        (warning,) = warnings(recompress, codec)
        assert warning.startswith(
            f"a: stores are not compacted, since compaction.recompress ({recompress}) does not fit"
        )
    for recompress, codec in (("lz4hc:9", "blosc"), ("zstd:15", "zstd"), ("codec", "none")):
        assert warnings(recompress, codec) == ()


@pytest.mark.usefixtures("remote")
def test_a_network_filesystem_is_a_warning(tmp_path: Path) -> None:
    (warning,) = make_plan(parse_config(rig(tmp_path))).warnings
    assert warning.startswith("output.root is on a network filesystem (nfs)")


def test_a_mapping_that_a_full_disk_would_turn_into_a_sigbus_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_io, "unmappable_filesystem", lambda _path: "btrfs")
    make_plan(parse_config(rig(tmp_path, output=", io: auto")))
    with pytest.raises(ConfigError, match=r"output\.io.* cannot be mapped: on btrfs"):
        make_plan(parse_config(rig(tmp_path, output=", io: mmap")))
    not_mounted = rig(tmp_path / "not-mounted", output=", io: mmap")
    make_plan(parse_config(not_mounted))
    with pytest.raises(ConfigError, match="cannot be mapped"):
        make_plan(parse_config(not_mounted.replace("io: mmap", "io: mmap, create: true")))


def test_a_mapping_is_a_warning_that_says_what_it_risks(tmp_path: Path) -> None:
    (warning,) = make_plan(parse_config(rig(tmp_path, output=", io: mmap"))).warnings
    assert "truncates a file being written" in warning
    assert "ends the daemon and all acquisitions" in warning
    for safe in ("auto", "direct", "pwrite"):
        assert make_plan(parse_config(rig(tmp_path, output=f", io: {safe}"))).warnings == ()


def test_a_root_in_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "memory_filesystem", lambda _path: "tmpfs")
    (warning,) = make_plan(parse_config(rig(tmp_path))).warnings
    assert warning.endswith(
        "in memory (tmpfs): nothing there is durable; serve refuses it unless output.in_memory is true"
    )
    (warning,) = make_plan(parse_config(rig(tmp_path, output=", in_memory: true"))).warnings
    assert warning.endswith("in memory (tmpfs): nothing there is durable")


def test_a_spill_root_that_helps_nobody_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (same,) = make_plan(
        parse_config(rig(tmp_path, output=f", spill_root: {tmp_path}/more", stream="on_full: spill,"))
    ).warnings
    assert "on the same filesystem" in same
    (unused,) = make_plan(parse_config(rig(tmp_path, output=f", spill_root: {tmp_path}/more"))).warnings
    assert "is never used" in unused


def test_a_disk_that_will_be_below_its_low_water_is_a_warning(tmp_path: Path) -> None:
    (warning,) = make_plan(parse_config(rig(tmp_path, output=", low_water: 900TB"))).warnings
    assert warning.startswith("output.root is below output.low_water (818.5 TiB)")
    both = make_plan(
        parse_config(rig(tmp_path, output=f", low_water: 900TB, spill_root: {tmp_path}/more"))
    ).warnings
    assert [warning.split()[0] for warning in both if "low_water" in warning] == [
        "output.root",
        "output.spill_root",
    ]


def test_filesystems_of_this_machine_are_told_apart() -> None:
    assert (memory_filesystem(Path("/dev/shm")), remote_filesystem(Path("/dev/shm"))) == ("tmpfs", None)
    assert (memory_filesystem(Path("/proc")), remote_filesystem(Path("/proc"))) == (None, None)
    assert not same_filesystem(Path("/proc"), Path("/dev/shm"))


def test_the_journal_of_a_single_image_has_one_record() -> None:
    spec = (
        parse_config(rig(Path("/tmp")).replace("{name: t, chunk_size: 16, shard_size_chunks: 4},", ""))
        .config.streams[0]
        .array
    )
    assert durability.journal_bytes(spec, Grid.of(spec)) == 4096 + 4096 + 2 * 4096
