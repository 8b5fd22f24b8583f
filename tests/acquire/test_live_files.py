"""Shards that any reader sees grow (``live``): readers here are zarr-python on the files, which knows nothing
of journals."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.json_process import JsonProcess, wait_for
from tests.harness.python import start_module
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import live_scheduler
from shardwright.acquire.encoding import SlabEncoder
from shardwright.acquire.workers import WorkerPool
from shardwright.array.grid import Grid
from shardwright.config.load import parse_config
from shardwright.disk import beneath, failpoints
from shardwright.model.errors import ConfigError, FormatVersionError, SpecError, StorageError
from shardwright.read.inspect_shards import inspect_shards
from shardwright.read.store import open_store
from shardwright.read.verify_store import verify_store
from shardwright.recovery import execute
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.jobs.compact_store import Options, plan
from shardwright.shard import growing_copy
from shardwright.shard.frame_record import record_dtype
from shardwright.shard.index import LITTLE_ENDIAN_CRC32C
from shardwright.shard.journal import JournalLayout
from shardwright.shard.layout import PAGE_BYTES
from shardwright.shard.manifest import read_manifest

from .live_reader import SHAPE, frame, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = [
    pytest.mark.usefixtures("each_file_syncs_alone"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    # an index at the start, which zarrita does not understand
    pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
]
QUICK: dict[str, Any] = {"store_within_ms": 20, "sync_interval_ms": 20, "threads": 2}
LIVE: dict[str, Any] = {**QUICK, "live": "index"}
APPEND: dict[str, Any] = {**QUICK, "live": "append"}
# under load a frame may be staged for a while, and recovery seals it, whatever became of the journal
UNSTAGED: dict[str, Any] = {"store_within_ms": 3_600_000}
MODES = pytest.mark.parametrize("live", [LIVE, APPEND], ids=["index", "append"])
WAYS = pytest.mark.parametrize(
    "live",
    [{**LIVE, "io": io} for io in ("mmap", "pwrite", "direct")]
    + [{**APPEND, "io": io} for io in ("pwrite", "direct")],
    ids=lambda live: f"{live['live']}-{live['io']}",
)


def spec(chunk: int = 2, shard: int = 4, **fields: Any) -> sw.ArraySpec:
    """Two shard files in a shard row, of two chunks in a slab each, which reach over the frame's edge."""
    (height, width) = SHAPE
    return sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            sw.Dimension(name="t", count=None, chunk_size=chunk, shard_size_chunks=shard),
            sw.Dimension(name="y", count=height, chunk_size=12, shard_size_chunks=1),
            sw.Dimension(name="x", count=width, chunk_size=20, shard_size_chunks=2),
        ],
        **fields,
    )


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stored slab is shown, however fast they come."""
    monkeypatch.setattr(live_scheduler, "SHOW_INTERVAL_S", 0.0)


@pytest.fixture
def at_point() -> Iterator[Callable[[str, Callable[[], None] | None], None]]:
    points = []

    def at(point: str, hook: Callable[[], None] | None) -> None:
        points.append(point)
        failpoints.set_hook(point, hook)

    yield at
    for point in points:
        failpoints.set_hook(point, None)


class Died(BaseException):
    """A thread that ends as in a kill."""


def die() -> None:
    raise Died


def eio() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def send(writer: sw.Writer, first: int, stop: int) -> None:
    for i in range(first, stop):
        writer.append(frame(i))


def send_and_close(writer: sw.Writer, first: int, stop: int) -> None:
    with writer:  # closed also where it is fenced while it sends: nobody's later test hears of it
        send(writer, first, stop)


def sees(path: Path, frames: int) -> None:
    """Waits until a reader of the files sees so many frames, and no wrong one on the way."""
    wait_for(lambda: looked(path) >= frames, f"{frames} frames in the files")
    assert looked(path) == frames


def looked(path: Path) -> int:
    try:
        return judge(path)
    except AssertionError:
        raise
    except Exception:
        return -1


def leave(writer: sw.Writer) -> None:
    """As a kill leaves it."""
    failpoints.set_hook("sealer.before_command", die)
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    failpoints.set_hook("sealer.before_command", None)


def left_with(frames: int, path: Path, array: sw.ArraySpec, **options: Any) -> None:
    """A store whose readers see so many frames, as a kill leaves it."""
    writer = sw.create(path, array, **how(**options))
    send(writer, 0, frames)
    sees(path, frames)
    leave(writer)


def recover(path: Path, **options: Any) -> Any:
    pool = WorkerPool(2)
    pool.start()
    try:
        return recover_store(path, pool, threads=2, **options)
    finally:
        pool.stop()


def final(path: Path, shard: int = 0, row: int = 0) -> Path:
    return path / "0" / "c" / str(shard) / str(row) / "0"


def working(path: Path, shard: int = 0, row: int = 0) -> Path:
    (found,) = (path / ".shardwright").rglob(f"c.{shard}.{row}.0.partial")
    return found


def index_of(file: Path, live: dict[str, Any] = LIVE) -> np.ndarray:
    data = file.read_bytes()
    return LITTLE_ENDIAN_CRC32C.decode(
        data[: 16 * 8 + 4] if live["live"] == "index" else data[-16 * 8 - 4 :], 8
    )


def listed(file: Path, live: dict[str, Any]) -> int:
    """How many chunks the index of a file lists."""
    return int((index_of(file, live)["offset"] != 2**64 - 1).sum())


# ---------------------------------------------------------------------- readers in other processes


@WAYS
def test_another_process_sees_each_stored_slab(tmp_path, live):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**live)) as writer:
        send(writer, 0, 2)
        sees(path, 2)
        with JsonProcess(start_module("tests.acquire.live_reader", str(path))) as reader:
            for frames in range(4, 21, 2):  # into the third shard
                send(writer, frames - 2, frames)
                while (said := reader.next()) is not None and said.get("seen", 0) < frames:
                    pass
                assert said is not None, "it saw a wrong pixel"
    assert judge(path) == 20
    assert verify_store(path).ok


@pytest.mark.parametrize(
    ("live", "codec"),  # every way once, both codecs for each form of file; every pair among the slow ones
    [
        pytest.param(
            {**settings, "io": io},
            codec,
            marks=[pytest.mark.slow] * ((i + j) % 2),
            id=f"{codec}-{settings['live']}-{io}",
        )
        for i, (settings, io) in enumerate(
            [(LIVE, "mmap"), (LIVE, "pwrite"), (LIVE, "direct"), (APPEND, "pwrite"), (APPEND, "direct")]
        )
        for j, codec in enumerate(["blosc", None])
    ],
)
def test_readers_see_no_wrong_pixel_whatever_happens(tmp_path, at_once, at_point, live, codec):
    """Shards fill and are sealed, meet I/O errors and are rewritten, are sealed early and opened again, and
    recovered."""
    path = tmp_path / "a.ome.zarr"
    many = spec(chunk=1, shard=64, codec=codec)  # an index of more than a page
    writer = sw.create(path, many, **how(**live))
    send(writer, 0, 1)
    sees(path, 1)
    with JsonProcess(start_module("tests.acquire.live_reader", str(path))) as reader:
        send(writer, 1, 150)
        at_point("shard.before_sync", failpoints.at_time(2, eio))
        send(writer, 150, 170)
        writer.flush()
        at_point("shard.before_sync", None)
        send(writer, 170, 180)
        at_point("workspace.before_manifest", die)
        with pytest.raises(sw.errors.ShardwrightError):
            writer.close()  # sealed, but for the end of the store
        at_point("workspace.before_manifest", None)
        writer = sw.resume(path, **how(**QUICK))
        send(writer, 180, 230)
        writer.flush()
        leave(writer)
        writer = sw.resume(path, **how(**QUICK))
        send(writer, 230, 260)
        writer.close()
        while (said := reader.next()) is not None and said.get("seen", 0) < 260:
            assert "seen" in said or "AssertionError" not in said["error"]
        assert said is not None, "it saw a wrong pixel, or a frame go back"
    assert judge(path) == writer.receipt.frames_stored == 260
    assert verify_store(path).ok


@MODES
def test_an_acquisition_goes_on_as_it_was_created(tmp_path, live):
    path = tmp_path / "a.ome.zarr"
    left_with(6, path, spec(), **live)
    assert judge(path) == 6
    with sw.resume(path, **how(**QUICK)) as writer:
        assert writer.frames == 6
        send(writer, 6, 12)
        sees(path, 12)
        is_one = working(path, shard=1).samefile(final(path, shard=1))
        assert is_one == (live["live"] == "index")
    assert writer.receipt.shards == 4, "a shard that was seen before it was sealed is one shard"
    assert judge(path) == 12
    assert verify_store(path).ok


def test_an_index_that_is_torn_is_refused_and_recovered(tmp_path):
    path = tmp_path / "a.ome.zarr"
    left_with(6, path, spec(), io="pwrite", **LIVE)
    with final(path).open("r+b") as file:
        file.seek(8)
        file.write(b"torn")
    with pytest.raises(ValueError, match="checksum"):
        judge(path)
    assert np.array_equal(zarr.open_array(sw.open(path), path="0", mode="r")[5], frame(5)), "by the journal"
    assert recover(path).frames_kept == 6
    assert judge(path) == 6


def test_chunks_that_a_power_cut_took_are_not_listed_any_more(tmp_path):
    """The index had reached the disk, the chunk had not."""
    path = tmp_path / "a.ome.zarr"
    left_with(6, path, spec(), io="pwrite", **LIVE)
    (path / ".shardwright" / "boot").unlink()
    assert listed(final(path), LIVE) == 6
    entry = index_of(final(path))[4]  # of the third slab
    with final(path).open("r+b") as file:
        file.seek(int(entry["offset"]))
        file.write(bytes(int(entry["nbytes"])))
    with sw.resume(path, **how(**QUICK)) as writer:
        assert listed(final(path), LIVE) == 4
        send(writer, 6, 8)
    report = verify_store(path)
    assert report.ok, report.problems
    pixels = zarr.open_array(path / "0", mode="r")[...]
    assert not pixels[4:6, :12].any()
    for i in (0, 1, 2, 3, 6, 7):
        assert np.array_equal(pixels[i], frame(i))


# ---------------------------------------------------------------------- a copy that grows


def test_a_copy_only_ever_grows_and_is_the_sealed_shard(tmp_path, at_once):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=1, shard=64), **how(io="pwrite", **APPEND)) as writer:
        earlier = b""
        for i in range(8):
            send(writer, i, i + 1)
            sees(path, i + 1)
            now = final(path).read_bytes()
            assert now.startswith(earlier)
            assert len(now) > len(earlier)
            assert len(now) % 4096 == 0
            earlier = now
        number = final(path).stat().st_ino
    sealed = final(path)
    assert sealed.stat().st_ino == number
    data, index = sealed.read_bytes(), index_of_many(sealed)
    assert len(data) == len(earlier), "there was nothing to add"
    chunks = np.zeros(len(data), bool)
    for entry in index[index["offset"] != 2**64 - 1]:
        where = slice(int(entry["offset"]), int(entry["offset"] + entry["nbytes"]))
        assert data[where] == earlier[where], "for who has an older index"
        chunks[where] = True
    chunks[-(16 * 128 + 4) :] = True
    assert not np.frombuffer(data, np.uint8)[~chunks].any(), "older indexes would be bytes of unknown meaning"
    assert sealed.stat().st_blocks * 512 <= len(data), "room behind the end is given back"
    assert verify_store(path).ok
    planned = plan(open_store(path), Options())
    assert not planned.open
    assert len(planned.shards) == 2


def index_of_many(file: Path) -> np.ndarray:
    return LITTLE_ENDIAN_CRC32C.decode(file.read_bytes()[-(16 * 128 + 4) :], 128)


def test_a_write_that_a_kill_cut_in_two_is_refused_and_recovered(tmp_path):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(io="pwrite", **APPEND))
    send(writer, 0, 4)
    sees(path, 4)
    send(writer, 4, 6)
    sees(path, 6)
    leave(writer)
    places, before = index_of(final(path), APPEND), final(path).read_bytes()
    with final(path).open("ab") as file:
        file.write(b"half a chunk" * 700)
    with pytest.raises(ValueError, match="checksum"):
        judge(path)
    assert np.array_equal(zarr.open_array(sw.open(path), path="0", mode="r")[5], frame(5)), "by the journal"
    with sw.resume(path, **how(**QUICK)) as writer:
        assert judge(path) == 6
        assert final(path).read_bytes().startswith(before)
        assert np.array_equal(index_of(final(path), APPEND), places), "for who has the old index"
        send(writer, 6, 8)
    assert judge(path) == 8
    assert verify_store(path).ok


def test_a_file_without_any_sound_index_is_made_anew(tmp_path):
    path = tmp_path / "a.ome.zarr"
    left_with(4, path, spec(), io="pwrite", **APPEND)
    final(path).write_bytes(b"damaged" * 3000)
    assert recover(path).frames_kept == 4
    assert judge(path) == 4
    assert verify_store(path).ok


def index_before_a_power_cut(path):
    """Of a copy that has three frames. The writer died, and by its mark the store may have lost power."""
    left_with(3, path, spec(chunk=1), io="pwrite", **APPEND)
    (path / ".shardwright" / "boot").unlink()
    return index_of(final(path), APPEND)


def test_a_copy_has_an_index_of_its_own_where_nothing_new_is_to_be_copied(tmp_path):
    """The index that it copies lists a chunk that a power cut took."""
    path = tmp_path / "a.ome.zarr"
    before = index_before_a_power_cut(path)
    lost, nbytes = (int(before[2][field]) for field in ("offset", "nbytes"))
    start = working(path).read_bytes().index(final(path).read_bytes()[lost : lost + nbytes])
    with working(path).open("r+b") as file:
        file.seek(start)
        file.write(bytes(nbytes))
    with sw.resume(path, **how(**QUICK)):
        now = index_of(final(path), APPEND)
        assert now[2]["offset"] == 2**64 - 1, "as recovery reports"
        assert np.array_equal(now[[0, 1, 4]], before[[0, 1, 4]])
    assert verify_store(path).ok


def test_chunks_that_a_power_cut_took_are_not_listed_in_the_copy_any_more(tmp_path):
    """The copy had reached the disk, the chunk in the file in progress had not, nor another one's copy."""
    path = tmp_path / "a.ome.zarr"
    before = index_before_a_power_cut(path)
    lost, damaged = int(before[2]["offset"]), int(before[4]["offset"])
    start = working(path).read_bytes().index(final(path).read_bytes()[lost : lost + int(before[2]["nbytes"])])
    for file, place, nbytes in (
        (working(path), start, int(before[2]["nbytes"])),
        (final(path), damaged, int(before[4]["nbytes"])),
    ):
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(bytes(nbytes))
    with sw.resume(path, **how(**QUICK)) as writer:
        now = index_of(final(path), APPEND)
        assert now[2]["offset"] == 2**64 - 1, "as recovery reports"
        assert now[4]["offset"] not in (2**64 - 1, damaged), "copied again, to another place"
        assert np.array_equal(now[[0, 1]], before[[0, 1]])
        send(writer, 3, 4)
    assert verify_store(path).ok
    pixels = zarr.open_array(path / "0", mode="r")[...]
    assert not pixels[1, :12].any()
    for i in (0, 2, 3):
        assert np.array_equal(pixels[i], frame(i))


def test_a_full_disk_hides_nothing_and_the_copy_goes_on_when_there_is_room(tmp_path, at_once, at_point):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=1, shard=8), on_full="block", **how(io="pwrite", **APPEND)) as writer:
        send(writer, 0, 2)
        sees(path, 2)
        size = final(path).stat().st_size
        at_point("growing.before_write", lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        send(writer, 2, 8)
        try:
            wait_for(lambda: writer.watermark.stored == 8, "stored all the same")
            seen, now = judge(path), final(path).stat().st_size
        finally:
            at_point("growing.before_write", None)  # or it would wait for room for ever
        assert (seen, now) == (2, size), "nor does the shape cover more"
        send(writer, 8, 10)
        sees(path, 10)
    assert judge(path) == 10
    assert verify_store(path).ok


def test_a_full_disk_when_the_copy_is_made_costs_readers_alone(tmp_path, at_once, at_point):
    path = tmp_path / "a.ome.zarr"
    at_point("growing.before_preallocate", lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with sw.create(path, spec(), **how(io="pwrite", **APPEND)) as writer:
        send(writer, 0, 4)
        writer.flush()
        send(writer, 4, 8)
    assert judge(path) == writer.receipt.frames_stored == 8
    assert not list(path.rglob("*.copy.*"))
    assert verify_store(path).ok


def test_a_store_goes_on_though_there_is_no_room_for_another_copy(tmp_path, at_point):
    """Readers keep what they see."""
    path = tmp_path / "a.ome.zarr"
    left_with(4, path, spec(), io="pwrite", **APPEND)
    before = final(path).stat().st_ino
    at_point("growing.before_preallocate", lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with sw.resume(path, **how(**QUICK)) as writer:
        assert (judge(path), final(path).stat().st_ino) == (4, before)
        send(writer, 4, 6)
        writer.flush()
        at_point("growing.before_preallocate", None)
    assert judge(path) == 6
    assert verify_store(path).ok


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_copy_that_cannot_be_read_costs_no_frame(tmp_path, monkeypatch, number):
    path = tmp_path / "a.ome.zarr"
    left_with(4, path, spec(), io="pwrite", **APPEND)
    read_all, reads = growing_copy.read_all, []

    def fail(descriptor: int, offset: int, nbytes: int) -> bytes:
        reads.append(offset)
        if len(reads) >= number:
            eio()
        return read_all(descriptor, offset, nbytes)

    monkeypatch.setattr(growing_copy, "read_all", fail)
    with sw.resume(path, **how(**QUICK)) as writer:
        assert len(reads) >= number
        assert judge(path) == 4
        send(writer, 4, 8)
    assert judge(path) == 8
    assert verify_store(path).ok


def test_every_file_in_progress_is_synced_before_the_first_shard_of_a_row_is_sealed(tmp_path, at_once):
    path = tmp_path / "a.ome.zarr"
    points: list[str] = []
    with sw.create(path, spec(), live="append", threads=2, **how(io="pwrite")) as writer:
        send(writer, 0, 6)
        sees(path, 6)
        failpoints.watch_all(points.append)
        try:
            writer.close()
        finally:
            failpoints.watch_all(None)
    first = points.index("shard.before_delete")
    sealing = points[points.index("growing.before_sync") : first]
    assert sealing.count("growing.before_sync") == sealing.count("shard.before_sync") == 2


def test_indexes_take_no_more_than_chunks_beyond_what_is_free(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr(growing_copy, "FREE_INDEX_BYTES", 32 << 10)
    path = tmp_path / "a.ome.zarr"
    with sw.create(
        path, spec(chunk=1, shard=128), **how(io="pwrite", **APPEND)
    ) as writer:  # two pages of index
        for i in range(60):
            send(writer, i, i + 1)
            writer.flush()
        wait_for(lambda: writer.watermark.stored == 60)
        seen = judge(path)
        assert 2 < seen < 60, "others wait for more of their kind"
        assert final(path).stat().st_size < 3 * (32 << 10)
    assert judge(path) == 60
    assert verify_store(path).ok


@MODES
def test_the_shape_waits_for_chunks_that_were_lost_under_a_reader(tmp_path, at_once, at_point, live):
    """The other file keeps the final name, which lists them, until this one is sealed."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=1, shard=16), **how(io="pwrite", **live)) as writer:
        send(writer, 0, 6)
        sees(path, 6)
        writer.flush()
        shown = final(path).read_bytes()
        entry = LITTLE_ENDIAN_CRC32C.decode(shown[:516] if live["live"] == "index" else shown[-516:], 32)[2]
        chunk = shown[int(entry["offset"]) : int(entry["offset"] + entry["nbytes"])]
        with working(path).open("r+b") as file:
            file.seek(working(path).read_bytes().index(chunk))
            file.write(bytes(len(chunk)))
        at_point("shard.before_sync", failpoints.at_time(1, eio))
        send(writer, 6, 8)
        writer.flush()
        at_point("shard.before_sync", None)
        covered = zarr.open_array(path / "0", mode="r").shape[0]
        send(writer, 8, 10)
        writer.flush()
        writer.update_metadata({"asked": "behind what is shown"})
        assert zarr.open_array(path / "0", mode="r").shape[0] == covered < 10
    assert zarr.open_array(path / "0", mode="r").shape[0] == 10
    assert writer.receipt.frames_lost >= 1


def test_a_sync_of_the_copy_that_fails_leads_to_another_one(tmp_path, at_once, at_point):
    """Which nobody was shown before it is the sealed shard."""
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(chunk=1), **how(io="pwrite", **APPEND)) as writer:
        send(writer, 0, 3)
        sees(path, 3)
        before, places = final(path).stat().st_ino, index_of(final(path), APPEND)
        at_point("growing.before_sync", failpoints.at_time(1, eio))
        send(writer, 3, 6)
        writer.flush()
    assert final(path).stat().st_ino != before
    assert np.array_equal(index_of(final(path), APPEND)[:6], places[:6])
    assert (writer.receipt.frames_stored, judge(path)) == (6, 6)
    assert verify_store(path).ok


def test_a_copy_without_the_final_name_is_deleted_by_recovery(tmp_path, at_once, at_point):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(io="pwrite", **APPEND))
    at_point("shard.before_live_name", die)
    send(writer, 0, 2)
    wait_for(lambda: list(path.rglob("*.copy.*")))
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    at_point("shard.before_live_name", None)
    assert [file.name for file in path.rglob("*.copy.*")] == ["c.0.0.0.copy.partial.rewrite"]
    with sw.resume(path, **how(**QUICK)) as writer:
        assert not list(path.rglob("*.copy.*"))
        send(writer, 2, 4)
        sees(path, 4)
    assert verify_store(path).ok


def test_pieces_are_appended_in_writes_of_their_own(tmp_path, at_once, monkeypatch):
    """As many as there are, each with an index, of any size."""
    monkeypatch.setattr("shardwright.shard.growing_copy.PIECE_BYTES", 1500)
    monkeypatch.setattr("shardwright.shard.growing_copy.MOST_PARTS", 2)
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(chunk=1, shard=32, codec=None), **how(io="pwrite", **APPEND))
    send(writer, 0, 20)
    writer.flush()
    sees(path, 20)
    assert final(path).stat().st_size > 20 * 4096
    leave(writer)
    assert recover(path).frames_kept == 20
    assert judge(path) == 20
    assert verify_store(path).ok


# ---------------------------------------------------------------------- files that replace others


@WAYS
def test_a_rewritten_shard_takes_the_final_name_once_it_has_what_was_seen(tmp_path, at_once, at_point, live):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**live)) as writer:
        send(writer, 0, 4)
        sees(path, 4)
        before, places = final(path).stat().st_ino, index_of(final(path), live)
        at_point("shard.before_sync", failpoints.at_time(1, eio))
        send(writer, 4, 6)
        writer.flush()
        at_point("shard.before_sync", None)
        sees(path, 6)
        wait_for(lambda: final(path).stat().st_ino != before)
        assert final(path).samefile(working(path)) == (live["live"] == "index")
        assert np.array_equal(index_of(final(path), live)[:4], places[:4]), "for who has the old index"
    assert (writer.receipt.frames_stored, judge(path)) == (6, 6)
    assert verify_store(path).ok


@MODES
@pytest.mark.parametrize("first", [5, 6])
def test_a_shard_row_that_takes_frames_again_is_seen_once_it_is_sealed(
    tmp_path, at_once, at_point, live, first
):
    """Until then its sealed shards stay: they need no journal. The shape does not grow over what is new."""
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**live))
    send(writer, 0, first)
    at_point("workspace.before_manifest", die)
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    at_point("workspace.before_manifest", None)
    assert judge(path) == first
    sealed, places = final(path).stat().st_ino, index_of(final(path), live)
    with sw.resume(path, **how(**QUICK)) as writer:
        send(writer, first, 7)
        writer.flush()
        assert (judge(path), final(path).stat().st_ino) == (first, sealed)
        send(writer, 7, 10)
        sees(path, 10)
        assert final(path).stat().st_ino != sealed
        kept = first // 2
        found = index_of(final(path), live)
        assert np.array_equal(found[: 2 * kept], places[: 2 * kept]), "for who has the old index"
    assert judge(path) == 10
    assert verify_store(path).ok


@WAYS
def test_the_shape_does_not_cover_frames_of_a_shard_row_that_was_sealed_without_them(
    tmp_path, at_point, live
):
    """Killed while it sealed, it is sealed by the next writer, and opened again for the frames that come."""
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**live))
    send(writer, 0, 5)
    sees(path, 4)
    at_point("shard.before_delete", die)
    with pytest.raises(sw.errors.ShardwrightError):
        writer.close()
    at_point("shard.before_delete", None)
    with sw.resume(path, **how(**QUICK)) as writer:
        send(writer, 5, 6)
        writer.flush()
        writer.update_metadata({"asked": "behind what is shown"})
        assert judge(path) == 5
        send(writer, 6, 8)
        sees(path, 8)
    assert judge(path) == 8
    assert verify_store(path).ok


@MODES
def test_a_shard_whose_journal_is_damaged_is_not_seen_any_more(tmp_path, live):
    path = tmp_path / "a.ome.zarr"
    left_with(6, path, spec(chunk=1), io="pwrite", **live)  # no frame is staged
    with (path / ".shardwright" / "1.journal").open("r+b") as file:
        file.write(b"damaged!")
    recovery = recover(path)
    assert recovery.frames_kept == 4
    assert final(path).exists()
    assert not final(path, shard=1).exists()
    there = [path for path in (path / "0" / "c").rglob("*") if path.is_file()]
    assert recovery.receipt.shards == len(there) == 2, "those that are hidden are none"
    assert (path / ".shardwright.damaged" / "c.1.0.0.partial").exists()


@MODES
def test_a_store_that_is_taken_over_is_seen_through_the_new_writers_files(tmp_path, at_once, live):
    path = tmp_path / "a.ome.zarr"
    old = sw.create(path, spec(), **how(io="pwrite", **live))
    send(old, 0, 4)
    sees(path, 4)
    was = final(path).stat().st_ino
    with sw.resume(path, take_over=True, **how(**QUICK)) as writer:
        sees(path, 4)
        assert final(path).stat().st_ino != was
        assert final(path).samefile(working(path)) == (live["live"] == "index")
        with pytest.raises(sw.errors.FencedError):
            send_and_close(old, 4, 8)
        send(writer, 4, 8)
        sees(path, 8)
    assert judge(path) == 8
    assert verify_store(path).ok


@MODES
def test_a_file_that_is_no_shard_of_this_acquisition_is_not_replaced(tmp_path, at_once, live):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**live))
    final(path).parent.mkdir(parents=True)
    final(path).write_bytes(b"another program's")
    send(writer, 0, 4)
    writer.flush()
    assert final(path).read_bytes() == b"another program's"
    with pytest.raises(sw.errors.OutputExistsError):
        writer.close()
    assert final(path).read_bytes() == b"another program's"


@MODES
def test_nor_is_it_by_files_that_are_written_after_an_io_error(tmp_path, at_once, at_point, live):
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(io="pwrite", **live))
    final(path).parent.mkdir(parents=True)
    final(path).write_bytes(b"another program's")
    send(writer, 0, 4)
    writer.flush()
    before = working(path).stat().st_ino
    at_point("shard.before_sync", failpoints.at_time(1, eio))
    send(writer, 4, 6)
    writer.flush()
    at_point("shard.before_sync", None)
    wait_for(lambda: working(path).stat().st_ino != before)
    with pytest.raises(sw.errors.OutputExistsError):
        writer.close()
    assert final(path).read_bytes() == b"another program's"


@MODES
@pytest.mark.parametrize("was_seen", [False, True])
def test_a_shard_of_which_the_log_has_lost_the_record_is_not_replaced(tmp_path, at_once, live, was_seen):
    """Some of its frames come again, and the writer dies. Recovery tells that each time, until the name is
    free."""
    path, sealed = tmp_path / "a.ome.zarr", tmp_path / "sealed.ome.zarr"
    array = spec(index_location="start" if live["live"] == "index" else "end")
    with sw.create(sealed, array, **how(**(live if was_seen else QUICK))) as writer:
        send(writer, 0, 4)
        if was_seen:
            sees(sealed, 4)
        send(writer, 4, 8)
    left_with(4, path, array, **live)
    before = {final(path, row=row): final(sealed, row=row).read_bytes() for row in range(2)}
    for name, data in before.items():
        name.unlink()
        name.write_bytes(data)
    for _ in range(2):
        with pytest.raises(sw.errors.OutputExistsError):
            recover(path)
        assert {name: name.read_bytes() for name in before} == before
    for name in before:
        name.unlink()
    recovery = recover(path)
    assert (recovery.frames_kept, recovery.receipt.shards) == (4, 2)
    assert judge(path) == 4
    assert verify_store(path).ok


def test_a_copy_is_replaced_though_the_journal_has_lost_a_chunk_of_it(tmp_path, at_once):
    """By rot: nothing but kills has happened to the store, as far as its mark says."""
    path, array = tmp_path / "a.ome.zarr", spec(chunk=1)
    left_with(3, path, array, io="pwrite", **APPEND)
    layout = SlabEncoder(array, Grid.of(array)).layout
    tables = JournalLayout.of(layout, 0, record_dtype(0))
    with (path / ".shardwright" / "0.journal").open("r+b") as file:
        file.seek(tables.chunk_entry_offset(0, int(layout.plane.layer_slots[0])))  # of the second slab
        file.write(b"rot")
    before = final(path).stat().st_ino
    recovery = recover(path)
    assert (recovery.frames_kept, recovery.frames_lost) == (2, 1)
    assert final(path).stat().st_ino != before
    assert listed(final(path), APPEND) == 4, "two of each frame"
    assert verify_store(path).ok


@MODES
def test_a_file_beside_a_shard_whose_journal_is_damaged_is_not_deleted(tmp_path, live):
    path = tmp_path / "a.ome.zarr"
    left_with(6, path, spec(chunk=1), io="pwrite", **live)
    with (path / ".shardwright" / "1.journal").open("r+b") as file:
        file.write(b"damaged!")
    final(path, shard=1).unlink()
    final(path, shard=1).write_bytes(b"another program's")
    recover(path)
    aside = path / ".shardwright.damaged" / "c.1.0.0.copy.partial"
    kept = aside if live["live"] == "append" else final(path, shard=1)
    assert kept.read_bytes() == b"another program's"


# ---------------------------------------------------------------------- what else is in the store


@MODES
def test_our_own_readers_know_that_a_shard_is_not_sealed(tmp_path, live):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**live)) as writer:
        send(writer, 0, 7)
        writer.flush()
        sees(path, 6)
        whole = zarr.open_array(sw.open(path), path="0", mode="r")[...]
        assert len(whole) == 7, "a frame that is only staged is seen, too"
        assert all(np.array_equal(pixels, frame(i)) for i, pixels in enumerate(whole))
        (problem,) = verify_store(path).problems
        assert "work in progress" in str(problem)
        store = open_store(path)
        shards = list(inspect_shards(store, store.arrays[0]))
        assert [shard.chunks_present for shard in shards] == [6, 6]
        assert not any(shard.problems for shard in shards)
        planned = plan(store, Options())
        assert len(planned.open) == 2, "a compaction leaves them alone"
        assert not planned.shards
    assert judge(path) == 7


@MODES
def test_shards_of_fill_value_have_no_file(tmp_path, at_once, live):
    path = tmp_path / "a.ome.zarr"
    blank = np.zeros(SHAPE, np.uint16)
    with sw.create(path, spec(), **how(**live)) as writer:
        for _ in range(8):
            writer.append(blank)
        writer.flush()
        wait_for(lambda: zarr.open_array(path / "0", mode="r").shape[0] == 8)
        assert not final(path).exists()
    assert not final(path).exists()
    assert verify_store(path).ok


@MODES
def test_levels_and_images_are_seen_to_grow(tmp_path, at_once, live):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(levels=1), images=["left", "right"], **how(**live)) as writer:
        for i in range(4):
            for image in ("left", "right"):
                writer.append(frame(i), image=image)
        writer.flush()
        for image, level in ((0, 0), (0, 1), (1, 0), (1, 1)):
            array = path / str(image) / str(level)
            wait_for((array / "zarr.json").exists)
            wait_for(lambda array=array: zarr.open_array(array, mode="r").shape[0] == 4)
            assert zarr.open_array(array, mode="r")[...].all()
    assert verify_store(path).ok


def test_an_older_release_is_told_by_the_manifest(tmp_path, monkeypatch):
    path = tmp_path / "a.ome.zarr"
    with sw.create(path, spec(), **how(**LIVE)):
        manifest = read_manifest(path / ".shardwright")
        assert manifest.live == "index"
        monkeypatch.setattr("shardwright.shard.manifest.FORMAT", 4)
        with pytest.raises(FormatVersionError):
            read_manifest(path / ".shardwright")
        monkeypatch.undo()


# ---------------------------------------------------------------------- what does not go together


def test_the_index_is_at_the_start_unless_the_array_says_otherwise(tmp_path):
    with sw.create(tmp_path / "a.zarr", spec(), live="index") as writer:
        assert writer.spec.index_location == "start"
    with pytest.raises(SpecError, match=r"index_location: start, or none given"):
        sw.create(tmp_path / "b.zarr", spec(index_location="end"), live="index")
    assert not list(tmp_path.glob("b*"))


@pytest.mark.parametrize(
    "asked", [{"chunk_order": "row_major"}, {"io": "mmap"}, {"partial_chunks": "in_place"}], ids=str
)
def test_what_was_decided_when_the_store_was_made_stays(tmp_path, asked):
    """Also where that does not go with what is asked for now."""
    path = tmp_path / "a.ome.zarr"
    writer = sw.create(path, spec(), **how(**APPEND))
    send(writer, 0, 3)
    leave(writer)
    with sw.resume(path, **how(**QUICK, **asked)) as writer:
        settings = writer._acquisition.settings
        assert (settings.live, settings.io, settings.partial_chunks) == ("append", "pwrite", "collect")
        assert settings.chunk_order == "arrival"
        send(writer, 3, 9)
    np.testing.assert_array_equal(zarr.open_array(path / "0", mode="r")[...], [frame(i) for i in range(9)])


def test_an_order_does_not_say_where_the_index_is(tmp_path):
    array = sw.ArraySpec(
        dtype="uint16",
        dimensions=[
            *(sw.Dimension(name=name, count=2, chunk_size=1) for name in "ctz"),
            *(sw.Dimension(name=name, count=8, chunk_size=8) for name in "yx"),
        ],
    )
    both = sw.AcquisitionSpec(array=array, images=("a", "b"), order=("t", "p", "z", "c"))
    with sw.create(tmp_path / "a.zarr", both, live="index") as writer:
        found = read_manifest(writer.path / ".shardwright").spec
    assert found["array"]["index_location"] == "start"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"live": "index", "on_full": "spill", "spill_root": "spill"}, "choose on_full block or fail"),
        ({"live": "append", "on_full": "spill", "spill_root": "spill"}, "choose on_full block or fail"),
        ({"live": "append", "io": "mmap"}, "choose io pwrite, direct or auto"),
        ({"live": "yes"}, "one of none, index, append"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path, settings, says):
    with pytest.raises(SpecError) as caught:
        sw.create(tmp_path / "a.zarr", spec(), **how(**settings))
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_filesystem_without_second_names_is_refused(tmp_path, at_point):
    at_point("files.before_second_name", lambda: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    with pytest.raises(StorageError, match="cannot have two names") as caught:
        sw.create(tmp_path / "a.zarr", spec(), live="index")
    assert "live: append or none" in str(caught.value)
    assert not list(tmp_path.iterdir())


RIG = """
output: {{root: ., live: index{spill}}}
reliability: {{on_full: {on_full}}}
streams:
  - name: cam
    array:
      dtype: uint16
      {index}
      dimensions:
        - {{name: t, chunk_size: 2, shard_size_chunks: 4}}
        - {{name: y, count: 20, chunk_size: 20}}
        - {{name: x, count: 36, chunk_size: 36}}
"""


def test_a_configuration_names_it():
    config = parse_config(RIG.format(spill="", on_full="block", index=""), file="rig.yaml").config
    settings = config.ingest_settings(None)
    assert settings.write.live == "index"
    assert settings.streams[0].spec.arrays[0].index_location == "start"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"index": "index_location: end"}, "index_location: start, or none given"),
        ({"on_full": "spill", "spill": ", spill_root: ./spill"}, "choose on_full block or fail"),
    ],
)
def test_a_configuration_that_does_not_go_together_is_refused(fields, says):
    with pytest.raises(ConfigError) as caught:
        parse_config(RIG.format(**{"spill": "", "on_full": "block", "index": "", **fields}), file="rig.yaml")
    assert says in str(caught.value)


@pytest.mark.parametrize("point", ["journal.before_clear", "shard.before_live_name", "growing.before_write"])
def test_a_recovery_that_is_killed_leaves_a_copy_that_the_next_one_knows(tmp_path, at_point, point):
    """Rot has taken a chunk of the file in progress, and the copy lists it. It was cleared from the journal
    first: then the copy listed what no journal had, and was another program's."""
    path = tmp_path / "a.ome.zarr"
    left_with(3, path, spec(chunk=1), io="pwrite", **APPEND)
    entry = index_of(final(path), APPEND)[2]
    copied = final(path).read_bytes()[int(entry["offset"]) : int(entry["offset"] + entry["nbytes"])]
    with working(path).open("r+b") as file:
        file.seek(working(path).read_bytes().index(copied))
        file.write(bytes(len(copied)))
    at_point(point, die)
    with pytest.raises(Died):
        sw.resume(path, **how(**QUICK))
    at_point(point, None)
    with sw.resume(path, **how(**QUICK)) as writer:
        send(writer, 3, 5)
    assert verify_store(path).ok
    assert np.array_equal(zarr.open_array(path / "0", mode="r")[4], frame(4))


@MODES
@pytest.mark.parametrize("taken_over", [False, True])
def test_nobody_reads_on_in_a_file_whose_journal_is_damaged(tmp_path, monkeypatch, live, taken_over):
    """Its name goes, and durably so: without the journal nobody would take it away after a power cut. Also
    where the file in progress is a copy: the name is of the file of the writer that was taken over."""
    path, synced = tmp_path / "a.ome.zarr", []
    left_with(2, path, spec(), **{**live, **UNSTAGED})
    journal = path / ".shardwright/0.journal"
    header = bytearray(journal.read_bytes())
    header[19] ^= 4
    journal.write_bytes(header)
    sync = execute.sync_directory
    monkeypatch.setattr(execute, "sync_directory", lambda folder: (synced.append(folder), sync(folder)))
    assert recover(path, take_over=taken_over).set_aside
    assert not final(path).exists()
    assert final(path).parent in synced
    assert verify_store(path).ok


@MODES
def test_what_was_shown_of_a_row_that_was_cleared_goes_with_its_journal(tmp_path, live):
    """Without an entry, and with rot in its header, it looks like one that was never begun: its shard stayed
    under its final name, and no record had it."""
    path = tmp_path / "a.ome.zarr"
    left_with(2, path, spec(), **{**live, **UNSTAGED})
    journal = path / ".shardwright/0.journal"
    header = bytearray(journal.read_bytes()[:PAGE_BYTES])
    header[23] ^= 8
    journal.write_bytes(header.ljust(journal.stat().st_size, b"\0"))
    recover(path)
    assert not final(path).exists()
    report = verify_store(path)
    assert report.shards == report.shards_recorded


@MODES
def test_a_look_that_fails_ends_nothing(tmp_path, monkeypatch, at_once, live):
    """What readers see of a shard is for them alone."""
    path, failed = tmp_path / "a.ome.zarr", []
    stat = beneath.stat

    def fails_once(name: Path | str, **more: Any) -> os.stat_result:
        if name == final(path) and not failed:
            failed.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(name, **more)

    with sw.create(path, spec(), **how(**live)) as writer:
        send(writer, 0, 2)
        sees(path, 2)
        monkeypatch.setattr(beneath, "stat", fails_once)
        send(writer, 2, 4)
        wait_for(lambda: bool(failed), "a look")
        send(writer, 4, 6)
    assert judge(path) == 6


def test_a_want_of_descriptors_costs_readers_nothing(tmp_path, monkeypatch):
    """The copy that they have was taken for one that cannot be read, and made anew with other places."""
    path = tmp_path / "a.ome.zarr"
    left_with(3, path, spec(chunk=1), io="pwrite", **APPEND)
    before = final(path).read_bytes()

    def none_left(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as few:
        few.setattr(growing_copy, "open_regular", none_left)
        with pytest.raises(StorageError, match="Too many open files"):
            sw.resume(path, **how(**QUICK))
    with sw.resume(path, **how(**QUICK)) as writer:
        assert final(path).read_bytes().startswith(before)
        send(writer, 3, 5)
    assert verify_store(path).ok
