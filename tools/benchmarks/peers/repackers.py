"""The ways of ``tools/bench compact`` to make an acquired store gapless.

    ours      the moving of bytes alone; all of it in one process; the same as a job with its worker
              processes; lz4 recompressed to zstd
    floors    cp of the same live bytes (a packed store): alone; with every file synced; read back from the
              disk and compared as well; and put in the place of the acquired files, whose blocks the
              filesystem then has to free
    peers     the same array rewritten by zarr-python and tensorstore

Every round begins with its source in the page cache and nothing waiting to be written. Speeds are of live
bytes, the length of a packed store.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks.peers import Contender, check_last_shard, sync_tree, with_descriptor
from shardwright.disk.working_file import WorkingFile, WriteBehind
from shardwright.read.store import open_store
from shardwright.rework.jobs.compact_store import Options, plan, run
from shardwright.rework.runtime.executors import LocalProcesses
from shardwright.rework.runtime.tasks import run_task
from shardwright.rework.runtime.throttle import Throttle
from shardwright.rework.shard_copy import copy_behind, finish_copy
from shardwright.rework.source_shard import PackedBytes, SourceShard

_PIECE_BYTES = 16 << 20
AS_IT_IS = Options(idle=False)


class Repacker(Contender):
    """``acquired`` is the store as it was sealed, ``packed`` the same one compacted, which cp copies. All
    repackers share them: the first to start makes them."""

    def start(self, folder: Path) -> None:
        self.acquired, self.packed = (folder.parent / f"{name}.ome.zarr" for name in ("acquired", "packed"))
        with (folder.parent / "sources.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.acquired.exists():
                with sw.create(self.acquired, self.case.spec()) as writer:
                    for i in range(self.case.frames):
                        writer.append(self.frame(i))
                copy_store(self.acquired, self.packed)
                compact(self.packed, _ThisProcess())

    def prepare(self, path: Path) -> None:
        read_all(self.packed)

    def verify(self, path: Path) -> None:
        check_last_shard(path / "0", self)

    def counted_bytes(self) -> int:
        return store_bytes(self.packed)


class Move(Repacker):
    """To another store, synced, but neither read back nor put in another file's place."""

    kind = "ours"

    def prepare(self, path: Path) -> None:
        read_all(self.acquired)

    def write(self, path: Path) -> int:
        throttle = Throttle(idle=False)
        array = open_store(self.acquired).arrays[0]
        (path / "0").mkdir(parents=True)
        shutil.copy(array.path / "zarr.json", path / "0")
        for key, shard in array.shard_files():
            assert shard is not None, f"{key} is a shard"
            target = path / "0" / key
            target.parent.mkdir(parents=True, exist_ok=True)
            with SourceShard(array, shard) as source:
                pack_plan = source.pack_plan("row_major")
                with WorkingFile(
                    target.with_suffix(".new"), pack_plan.file_bytes, source.file.status
                ) as working:
                    with WriteBehind(working, pack_plan.data_start) as out:
                        copy_behind(PackedBytes(source, pack_plan), out, throttle)
                    finish_copy(working, pack_plan)
                    working.replace(target, nullcontext())
        return store_bytes(path)


class Pack(Repacker):
    """In place, so that each round gets a copy; tasks run in this process, without the start of another."""

    kind = "ours"
    options = AS_IT_IS

    def prepare(self, path: Path) -> None:
        copy_store(self.acquired, path)
        sync_tree(path)
        read_all(path)

    def write(self, path: Path) -> int:
        compact(path, self.executor(), self.options)
        return store_bytes(path)

    def executor(self) -> Any:
        return _ThisProcess()


class PackJob(Pack):
    """As ``shardwright compact`` does it, starts of the processes included."""

    def executor(self) -> Any:
        return LocalProcesses(self.case.threads)


class Recompress(PackJob):
    options = Options(recompress={"cname": "zstd", "clevel": 5, "shuffle": None}, idle=False)


class Cp(Repacker):
    kind = "floor"
    synced = False

    def write(self, path: Path) -> int:
        call("cp", "-r", "--reflink=never", "--sparse=never", str(self.packed), str(path))
        return store_bytes(path)


class CpSync(Cp):
    synced = True


class CpSyncCmp(CpSync):
    def write(self, path: Path) -> int:
        nbytes = super().write(path)
        sync_tree(path)
        for copy in files(path):
            with_descriptor(copy, lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))
            call("cmp", str(copy), str(self.packed / copy.relative_to(path)))
        return nbytes


class CpReplace(CpSyncCmp):
    def prepare(self, path: Path) -> None:
        copy_store(self.acquired, path)
        sync_tree(path)
        read_all(self.packed)

    def write(self, path: Path) -> int:
        copied = path.with_name("copied.ome.zarr")
        nbytes = super().write(copied)
        for file in files(copied):
            file.replace(path / file.relative_to(copied))
        shutil.rmtree(copied)
        return nbytes


class RewriteZarrPython(Repacker):
    def start(self, folder: Path) -> None:
        import zarr

        super().start(folder)
        threads = self.case.threads
        self._configured = zarr.config.set(
            {"threading.max_workers": threads, "async.concurrency": 2 * threads}
        )

    def prepare(self, path: Path) -> None:
        read_all(self.acquired)

    def write(self, path: Path) -> int:
        import zarr
        from zarr.codecs import BloscCodec

        case, blosc = self.case, self.case.blosc()
        assert blosc is not None, "the stores of this comparison are compressed"
        source = zarr.open_array(self.acquired / "0", mode="r")
        target = zarr.create_array(
            path / "0",
            shape=source.shape,
            dtype="uint16",
            chunks=case.chunk,
            shards=case.shard,
            compressors=BloscCodec.from_dict(blosc),
            filters=None,
            fill_value=0,
        )
        for first in range(0, case.frames, case.shard[0]):
            target[first : first + case.shard[0]] = np.asarray(source[first : first + case.shard[0]])
        return store_bytes(path)

    def stop(self) -> None:
        self._configured.__exit__(None, None, None)
        super().stop()


class RewriteTensorStore(Repacker):
    def start(self, folder: Path) -> None:
        import tensorstore

        super().start(folder)
        threads = {"limit": self.case.threads}
        self._context = tensorstore.Context(
            {"data_copy_concurrency": threads, "file_io_concurrency": threads, "file_io_sync": False}
        )

    def prepare(self, path: Path) -> None:
        read_all(self.acquired)

    def write(self, path: Path) -> int:
        import tensorstore

        def array(folder: Path, **more: Any) -> Any:
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "0")}, **more}
            return tensorstore.open(spec, create=bool(more), context=self._context).result()

        depth = self.case.shard[0]
        source, target = array(self.acquired), array(path, metadata=self.case.zarr_json())
        for first in range(0, self.case.frames, depth):
            target[first : first + depth].write(source[first : first + depth]).result()
        return store_bytes(path)


def compact(store: Path, executor: Any, options: Options = AS_IT_IS) -> None:
    report = run(plan(open_store(store), options), executor)
    assert report.ok, report.to_dict()
    assert report.packed > 0, "nothing was to be done"


class _ThisProcess:
    """Runs tasks right here."""

    workers = 1

    def run(self, tasks: Iterable[dict[str, Any]], on_moved: object) -> Generator[dict[str, Any], None, None]:
        return (run_task(task) for task in tasks)

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
    """Reads the files into the page cache."""
    for file in files(path):
        with file.open("rb", buffering=0) as reading:
            while reading.read(_PIECE_BYTES):
                pass


def call(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
