"""tools/bench compact: one acquired store made gapless by several means, interleaved in one run.

    ours      the fast path's moving of bytes alone; all of it in one process; the same as a job with its
              worker processes; lz4 recompressed to zstd
    floors    cp of the same live bytes (a packed store): alone, with every file synced, read back from the
              disk and compared as well, and put in
              the place of the acquired files, whose blocks the filesystem then has to free
    peers     the same array rewritten by zarr-python and tensorstore, synced

Every round begins with its source in the page cache and nothing waiting to be written. Moving is what cp does
(and synced); ours as a whole syncs, reads back, compares and replaces: cp-replace makes the same promise.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks.cases import Case, Frames
from benchmarks.peers.contender import Contender, check_last_shard, sync_one, sync_tree
from shardwright.read.store import open_store
from shardwright.repack.executors import LocalProcesses
from shardwright.repack.job import Options, Report, plan, run
from shardwright.repack.manners import Manners
from shardwright.repack.pack_shard import copy_chunks, finish_copy
from shardwright.repack.source import PackedBytes, SourceShard
from shardwright.repack.tasks import run_task
from shardwright.storage.working_file import WorkingFile

_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Sources:
    """``acquired``: the store as it was sealed. ``packed``: the same one compacted, what cp copies."""

    acquired: Path
    packed: Path

    @classmethod
    def make(cls, folder: Path, case: Case, frames: Frames) -> Sources:
        acquired, packed = folder / "acquired.ome.zarr", folder / "packed.ome.zarr"
        with sw.create(acquired, case.spec()) as writer:
            for i in range(case.frames):
                writer.append(frames[i % case.distinct])
        copy_store(acquired, packed)
        compact(packed, Options(idle=False), _ThisProcess())
        return cls(acquired, packed)


class Repacker(Contender):
    """``prepare`` is not timed; ``write`` is, and has everything on disk when it returns unless its name says
    otherwise."""

    sources: Sources

    def prepare(self, path: Path) -> None:
        """Everything but the work: its source is in the page cache, and clean."""
        read_all(self.sources.packed)

    def verify(self, path: Path) -> None:
        check_last_shard(path / "0", self)


class Move(Repacker):
    """To another store, synced, but neither read back nor put in another file's place."""

    kind = "ours"

    def prepare(self, path: Path) -> None:
        read_all(self.sources.acquired)

    def write(self, path: Path) -> int:
        manners = Manners(idle=False)
        array = open_store(self.sources.acquired).arrays[0]
        shutil.copytree(
            array.path, path / "0", ignore=lambda _, names: [name for name in names if name != "zarr.json"]
        )
        for key, shard in array.shard_files():
            assert shard is not None, f"{key} is a shard"
            target = path / "0" / key
            target.parent.mkdir(parents=True, exist_ok=True)
            with SourceShard(array, shard) as source:
                packing = source.packing("row_major")
                with WorkingFile(target.with_suffix(".new"), packing.file_bytes, source.status) as working:
                    copy_chunks(PackedBytes(source, packing), working, packing, manners)
                    finish_copy(working, packing)
                    working.replace(target, nullcontext())
        return store_bytes(path)


class Pack(Repacker):
    """In place, so that each round gets a copy."""

    kind = "ours"
    options = Options(idle=False)

    def prepare(self, path: Path) -> None:
        copy_store(self.sources.acquired, path)
        sync_tree(path)
        read_all(path)

    def write(self, path: Path) -> int:
        compact(path, self.options, _ThisProcess())
        return store_bytes(path)


class PackJob(Pack):
    """As ``shardwright compact`` does it, starts of the processes included."""

    def write(self, path: Path) -> int:
        compact(path, self.options, LocalProcesses(self.case.threads))
        return store_bytes(path)


class Recompress(PackJob):
    options = Options(recompress={"cname": "zstd", "clevel": 5, "shuffle": None}, idle=False)


class Cp(Repacker):
    kind = "floor"

    def write(self, path: Path) -> int:
        call("cp", "-r", "--reflink=never", "--sparse=never", str(self.sources.packed), str(path))
        return store_bytes(path)


class CpSync(Cp):
    def write(self, path: Path) -> int:
        nbytes = super().write(path)
        sync_tree(path)
        return nbytes


class CpSyncCmp(CpSync):
    def write(self, path: Path) -> int:
        nbytes = super().write(path)
        for copy in files(path):
            sync_one(copy, lambda descriptor: os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED))
            call("cmp", str(copy), str(self.sources.packed / copy.relative_to(path)))
        return nbytes


class CpReplace(CpSyncCmp):
    def prepare(self, path: Path) -> None:
        copy_store(self.sources.acquired, path)
        sync_tree(path)
        read_all(self.sources.packed)

    def write(self, path: Path) -> int:
        copied = path.with_name("copied.ome.zarr")
        nbytes = super().write(copied)
        for file in files(copied):
            target = path / file.relative_to(copied)
            file.replace(target)
            sync_one(target.parent, os.fsync)
        shutil.rmtree(copied)
        return nbytes


class RewriteZarrPython(Repacker):
    def prepare(self, path: Path) -> None:
        read_all(self.sources.acquired)

    def start(self, folder: Path) -> None:
        import zarr

        zarr.config.set(
            {"threading.max_workers": self.case.threads, "async.concurrency": 2 * self.case.threads}
        )

    def write(self, path: Path) -> int:
        import zarr
        from zarr.codecs import BloscCodec

        case = self.case
        source = zarr.open_array(self.sources.acquired / "0", mode="r")
        blosc = BloscCodec.from_dict(case.codecs()[0]["configuration"]["codecs"][1])
        target = zarr.create_array(
            path / "0",
            shape=source.shape,
            dtype="uint16",
            chunks=case.chunk,
            shards=case.shard,
            compressors=blosc,
            filters=None,
            fill_value=0,
        )
        for first in range(0, case.frames, case.shard[0]):
            target[first : first + case.shard[0]] = np.asarray(source[first : first + case.shard[0]])
        sync_tree(path)
        return store_bytes(path)


class RewriteTensorStore(RewriteZarrPython):
    def start(self, folder: Path) -> None:
        import tensorstore

        threads = {"limit": self.case.threads}
        self._context = tensorstore.Context(
            {"data_copy_concurrency": threads, "file_io_concurrency": threads, "file_io_sync": False}
        )

    def write(self, path: Path) -> int:
        import tensorstore

        case = self.case
        grid = {"name": "regular", "configuration": {"chunk_shape": list(case.shard)}}
        metadata = {
            "shape": list(case.shape_of_array),
            "data_type": "uint16",
            "chunk_grid": grid,
            "codecs": case.codecs(),
        }

        def array(folder: Path, **more: Any) -> Any:
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "0")}, **more}
            return tensorstore.open(spec, create=bool(more), context=self._context).result()

        source, target = array(self.sources.acquired), array(path, metadata=metadata)
        for first in range(0, case.frames, case.shard[0]):
            target[first : first + case.shard[0]].write(source[first : first + case.shard[0]]).result()
        sync_tree(path)
        return store_bytes(path)


REPACKERS: dict[str, type[Repacker]] = {
    "move": Move,
    "pack": Pack,
    "pack-job": PackJob,
    "recompress-zstd": Recompress,
    "cp": Cp,
    "cp-sync": CpSync,
    "cp-sync-cmp": CpSyncCmp,
    "cp-replace": CpReplace,
    "zarr-python": RewriteZarrPython,
    "tensorstore": RewriteTensorStore,
}


@dataclass
class Repacked:
    """One contender's measurements; a list entry is one timed round."""

    name: str
    kind: str
    stored_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    error: str | None = None


def measure(
    names: list[str], case: Case, rounds: int, folder: Path, say: Callable[[str], None]
) -> tuple[int, list[Repacked]]:
    """The live bytes that each of them moves a round, and the results. The first round warms up, is verified,
    and is not timed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        say(f"acquiring {case.raw_bytes / 1e9:.2f} GB")
        frames = case.draw()
        sources = Sources.make(folder, case, frames)
        contenders = {name: REPACKERS[name](case, frames) for name in names}
        results = {name: Repacked(name, contender.kind) for name, contender in contenders.items()}
        for number in range(rounds + 1):
            say(f"round {number} of {rounds}" if number else "warming up and verifying")
            for name, contender in contenders.items():
                if results[name].error is None:
                    contender.sources = sources
                    _round(contender, results[name], folder, timed=number > 0)
        return store_bytes(sources.packed), list(results.values())
    finally:
        shutil.rmtree(folder)


def _round(contender: Repacker, result: Repacked, folder: Path, *, timed: bool) -> None:
    path = folder / "work.ome.zarr"
    try:
        if not timed:
            contender.start(folder)
        contender.prepare(path)
        cpu_s, begin_s = cpu_seconds(), time.perf_counter()
        result.stored_bytes = contender.write(path)
        seconds = time.perf_counter() - begin_s
        if timed:
            result.seconds.append(seconds)
            result.cpu_seconds.append(cpu_seconds() - cpu_s)
        else:
            contender.verify(path)
    except Exception as error:  # noqa: BLE001  (whatever breaks a contender is its result)
        result.error = f"{type(error).__name__}: {error}"
    shutil.rmtree(path, ignore_errors=True)
    sync_tree(folder)  # nothing of this round is left for the next one to wait for


def compact(store: Path, options: Options, executor: Any) -> Report:
    report = run(plan(open_store(store), options), executor)
    assert report.ok, report.to_dict()
    assert report.packed > 0, "nothing was to be done"
    return report


class _ThisProcess:
    """Runs tasks right here: the work without the starts of processes."""

    workers = 1

    def run(
        self, tasks: Iterable[dict[str, Any]], on_moved: Callable[[dict[str, Any], int], None]
    ) -> Generator[dict[str, Any], None, None]:
        for task in tasks:
            yield run_task(task)

    def close(self) -> None:
        """Nothing is held."""


def files(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if file.is_file())


def store_bytes(path: Path) -> int:
    """Lengths of the image's files, whatever the filesystem holds of them."""
    return sum(file.stat().st_size for file in files(path / "0"))


def copy_store(source: Path, target: Path) -> None:
    call("cp", "-r", "--reflink=never", "--sparse=always", str(source), str(target))


def read_all(path: Path) -> None:
    """Into the page cache, but for the holes of a sparse file: an acquisition never wrote them, so that they
    are in no cache either."""
    for file in files(path):
        with file.open("rb", buffering=0) as reading:
            for start, stop in _data_ranges(reading.fileno()):
                reading.seek(start)
                while (left := stop - reading.tell()) > 0:
                    reading.read(min(_PIECE_BYTES, left))


def _data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """[start, stop) of what the filesystem holds of a file."""
    stop = 0
    while True:
        try:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, stop


def call(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cpu_seconds() -> float:
    """Of this process and the children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
